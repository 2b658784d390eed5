"""The server's side of a round. It collects what sites send, and adds up the masked replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from comity.base.record import Params
from comity.privacy.secagg import shamir
from comity.privacy.secagg.errors import SecureAggregationError
from comity.privacy.secagg.masks import RING, Ring, add_mask, pair_key, pair_sign
from comity.privacy.secagg.messages import (
    Inbox,
    MaskedReply,
    RevealedShares,
    RosterKeys,
    Signatures,
    SiteKeys,
    SiteShares,
    Survivors,
    SurvivorSignature,
    from_hex,
)
from comity.privacy.secagg.site import STEPS, commitment, context_of, point_of, self_mask_key
from comity.privacy.secagg.terms import Terms

FromSite = TypeVar("FromSite", SiteKeys, SiteShares, SurvivorSignature, RevealedShares)


class SumOfReplies(NamedTuple):
    """What the server learns from a round."""

    mean: Params
    """The weighted mean of the survivors' replies."""
    weight: float
    """The sum of their weights."""
    survivors: list[str]


class ServerRound:
    """The server in one round.

    Its methods are to be called in the order of the steps, with the messages of the sites that
    answered in time. A site that does not answer a step is lost, and gets no further requests. A
    step that has too few sites raises `SecureAggregationError`: the round is over.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._next_step = 0
        self._keys: dict[str, SiteKeys] = {}
        self._senders: list[str] = []
        self._survivors: list[str] = []
        self._signers: list[str] = []
        self._context = b""
        self._total: Ring = np.zeros(terms.encoding.length, dtype=RING)

    def collect_keys(self, messages: Iterable[SiteKeys]) -> RosterKeys:
        """Step 1: the keys of all sites, for all of them."""
        self._begin(0)
        self._keys = self._by_site(messages, self._terms.roster, "sent keys")
        self._context = context_of(self._terms, self._keys)
        return RosterKeys([self._keys[name] for name in sorted(self._keys)])

    def collect_shares(self, messages: Iterable[SiteShares]) -> dict[str, Inbox]:
        """Step 2: the encrypted shares for each site that sent some, by site."""
        self._begin(1)
        shares = self._by_site(messages, self._keys, "sent shares")
        for name, message in shares.items():
            if message.shares.keys() != self._keys.keys() - {name}:
                raise SecureAggregationError(f"{name} did not send one share for each other site.")
        self._senders = sorted(shares)
        return {
            name: Inbox({peer: shares[peer].shares[name] for peer in shares if peer != name})
            for name in shares
        }

    def add_masked(self, message: MaskedReply) -> None:
        """Step 3: add one masked reply. Nothing else of it is kept."""
        self._check_turn(2)
        if message.name not in self._senders or message.name in self._survivors:
            raise SecureAggregationError(
                f"{message.name} must send one masked reply, after its shares."
            )
        values = message.values
        if values.dtype != torch.int32 or values.shape != self._total.shape:
            raise SecureAggregationError(
                f"The masked reply of {message.name} must have {len(self._total)} 32-bit integers."
            )
        self._total += values.contiguous().numpy().view(RING)
        self._survivors.append(message.name)

    def close(self) -> Survivors:
        """Step 3: end the collection of masked replies. Returns the list of survivors for them."""
        self._begin(2)
        self._check_count(len(self._survivors), "sent a masked reply")
        self._survivors.sort()
        return Survivors(list(self._survivors))

    def collect_signatures(self, messages: Iterable[SurvivorSignature]) -> Signatures:
        """Step 4: all signatures of the list of survivors, for the sites that signed."""
        self._begin(3)
        signatures = self._by_site(messages, self._survivors, "signed the list of survivors")
        self._signers = sorted(signatures)
        return Signatures({name: signatures[name].signature for name in self._signers})

    def unmask(self, messages: Iterable[RevealedShares]) -> SumOfReplies:
        """Step 5: remove the masks that remain in the sum, with the secrets that the revealed
        shares determine.
        """
        self._begin(4)
        revealed = self._by_site(messages, self._signers, "revealed their shares")
        lost_sites = sorted(set(self._senders) - set(self._survivors))
        for name, message in revealed.items():
            if sorted(message.seeds) != self._survivors or sorted(message.mask_keys) != lost_sites:
                raise SecureAggregationError(
                    f"{name} did not reveal one share for each site that sent shares."
                )
        for name in self._survivors:
            shares = {site: message.seeds[name] for site, message in revealed.items()}
            seed = self._combine_shares(shares)
            if commitment(seed).hex() != self._keys[name].commitment:
                raise wrong_share(name)
            add_mask(self._total, self_mask_key(seed, self._context), -1)
        for name in lost_sites:
            shares = {site: message.mask_keys[name] for site, message in revealed.items()}
            mask_key = X25519PrivateKey.from_private_bytes(self._combine_shares(shares))
            if mask_key.public_key().public_bytes_raw().hex() != self._keys[name].mask_key:
                raise wrong_share(name)
            self._remove_pair_masks(name, mask_key)
        mean, weight = self._terms.encoding.decode(self._total, len(self._terms.roster))
        return SumOfReplies(mean, weight, list(self._survivors))

    def _remove_pair_masks(self, lost_site: str, mask_key: X25519PrivateKey) -> None:
        """Remove the masks that survivors share with a lost site."""
        for name in self._survivors:
            key = pair_key(mask_key, self._keys[name].mask_key, self._context, lost_site, name)
            add_mask(self._total, key, -pair_sign(name, lost_site))

    def _combine_shares(self, shares: Mapping[str, str]) -> bytes:
        """The secret of a site, from shares by the site that revealed them."""
        by_point = {
            point_of(self._terms, name): from_hex(text, shamir.SHARE, name)
            for name, text in shares.items()
        }
        return shamir.join(by_point, self._terms.threshold)

    def _begin(self, step: int) -> None:
        self._check_turn(step)
        self._next_step = step + 1

    def _check_turn(self, step: int) -> None:
        if self._next_step != step:
            raise SecureAggregationError(
                f"Step {step + 1} ({STEPS[step]}) of secure aggregation is out of turn at the"
                " server."
            )

    def _by_site(
        self, messages: Iterable[FromSite], expected: Iterable[str], what: str
    ) -> dict[str, FromSite]:
        """Messages by site. Each must be from another one of the expected sites."""
        expected_names = set(expected)
        by_site: dict[str, FromSite] = {}
        for message in messages:
            if message.name not in expected_names or message.name in by_site:
                raise SecureAggregationError(
                    f"A site that is not expected, or that has answered before, {what}:"
                    f" {message.name[:100]!r}."
                )
            by_site[message.name] = message
        self._check_count(len(by_site), what)
        return by_site

    def _check_count(self, count: int, what: str) -> None:
        if count < self._terms.threshold:
            raise SecureAggregationError(
                f"{count} sites {what}, and {self._terms.threshold} must (threshold): the round has"
                " no sum."
            )


def wrong_share(name: str) -> SecureAggregationError:
    """The error for shares that do not give the secret that a site committed to."""
    return SecureAggregationError(
        f"The revealed shares of {name}'s secret do not fit what it committed to: a site sent a"
        " wrong share."
    )
