"""Sites and a server in rounds of secure aggregation, within one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from comity.base.call import CallId
from comity.base.record import Params
from comity.privacy.secagg import (
    Encoding,
    Inbox,
    Layout,
    MaskedReply,
    RevealedShares,
    RosterKeys,
    SecureAggregationError,
    ServerRound,
    Signatures,
    SiteKeys,
    SiteLimits,
    SiteRound,
    SiteShares,
    SumOfReplies,
    Survivors,
    SurvivorSignature,
    Terms,
    from_bytes,
    least_threshold,
    to_bytes,
)

M = TypeVar("M")
NEVER = 9
"""A step after the last: a site that is lost at this step replies in all steps."""


class PinnedKeys:
    """A site that signs with Ed25519, and has pinned the public keys of all sites."""

    def __init__(
        self, name: str, key: Ed25519PrivateKey, pinned: Mapping[str, Ed25519PublicKey]
    ) -> None:
        self.name = name
        self.pinned = dict(pinned)
        self._key = key

    def sign(self, text: bytes) -> bytes:
        return self._key.sign(text)

    def verify(self, name: str, text: bytes, signature: bytes) -> bool:
        if name not in self.pinned:
            return False
        try:
            self.pinned[name].verify(signature, text)
        except InvalidSignature:
            return False
        return True


class CallsInMemory:
    """A log of calls that lasts as long as the test."""

    def __init__(self) -> None:
        self.calls: set[tuple[str, CallId]] = set()

    def claim(self, terms: Terms) -> None:
        if (terms.run, terms.call) in self.calls:
            raise SecureAggregationError("This site has already sent a masked reply.")
        self.calls.add((terms.run, terms.call))


def names_of(count: int) -> tuple[str, ...]:
    return tuple(f"site{i:02}" for i in range(count))


def identities(names: tuple[str, ...]) -> dict[str, PinnedKeys]:
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    pinned = {name: key.public_key() for name, key in keys.items()}
    return {name: PinnedKeys(name, key, pinned) for name, key in keys.items()}


def call(round: int = 1) -> CallId:
    return CallId("local", 0, round, 0)


def replies_of(names: tuple[str, ...], size: int = 5, spread: float = 1.0) -> dict[str, Params]:
    """Different replies within ±`spread`."""
    generator = torch.Generator().manual_seed(len(names))
    return {
        name: {
            "weight": spread * (2 * torch.rand(size, 2, generator=generator) - 1),
            "bias": spread * (2 * torch.rand(size, generator=generator) - 1),
        }
        for name in names
    }


def terms_of(
    names: tuple[str, ...],
    replies: Mapping[str, Params],
    colluders: int = 1,
    threshold: int | None = None,
    *,
    round: int = 1,
    run: str = "run",
    message: str = "model",
    **encoding: Any,
) -> Terms:
    """Terms with the least threshold and the largest scale, unless they are given."""
    options = {"clip": 1.0} | encoding
    options = {"scale": Encoding.largest_scale(options["clip"], len(names))} | options
    return Terms(
        run,
        call(round),
        message,
        names,
        threshold or least_threshold(len(names), colluders),
        colluders,
        Encoding(Layout.of(replies[names[0]]), **options),
    )


def through_bytes(message: M) -> M:
    """A message as its recipient reads it."""
    return from_bytes(type(message), to_bytes(message))


class SecureRound:
    """A round with all its sites, step by step. `lost` says at which step, from 1 on, a site does
    not answer any more.
    """

    def __init__(
        self,
        terms: Terms,
        signatories: Mapping[str, PinnedKeys] | None = None,
        logs: Mapping[str, CallsInMemory] | None = None,
        lost: Mapping[str, int] | None = None,
        limits: SiteLimits | None = None,
    ) -> None:
        self.terms = terms
        self.signatories = signatories or identities(terms.roster)
        self.limits = limits or SiteLimits(terms.threshold, terms.threshold, terms.colluders)
        self.lost = dict(lost or {})
        self.server = ServerRound(terms)
        self.sites = {
            name: SiteRound(
                terms,
                self.limits,
                self.signatories[name],
                logs[name] if logs else CallsInMemory(),
            )
            for name in terms.roster
        }
        self.keys: dict[str, SiteKeys] = {}
        self.shares: dict[str, SiteShares] = {}
        self.inboxes: dict[str, Inbox] = {}
        self.masked: dict[str, MaskedReply] = {}
        self.signatures: dict[str, SurvivorSignature] = {}
        self.revealed: dict[str, RevealedShares] = {}
        self.roster_keys = RosterKeys([])
        self.survivors = Survivors([])
        self.all_signatures = Signatures({})

    def answering(self, step: int) -> list[str]:
        return [name for name in self.terms.roster if self.lost.get(name, NEVER) > step]

    def step1(self) -> RosterKeys:
        self.keys = {name: through_bytes(self.sites[name].keys()) for name in self.answering(1)}
        self.roster_keys = through_bytes(self.server.collect_keys(self.keys.values()))
        return self.roster_keys

    def step2(self) -> dict[str, Inbox]:
        self.shares = {
            name: through_bytes(self.sites[name].shares(self.roster_keys))
            for name in self.answering(2)
        }
        inboxes = self.server.collect_shares(self.shares.values())
        self.inboxes = {name: through_bytes(inbox) for name, inbox in inboxes.items()}
        return self.inboxes

    def step3(
        self, replies: Mapping[str, Params], weights: Mapping[str, float] | None = None
    ) -> Survivors:
        for name in self.answering(3):
            weight = weights[name] if weights else self.terms.encoding.largest_weight
            masked_reply = self.sites[name].masked(self.inboxes[name], replies[name], weight)
            self.masked[name] = through_bytes(masked_reply)
            self.server.add_masked(self.masked[name])
        self.survivors = through_bytes(self.server.close())
        return self.survivors

    def step4(self) -> Signatures:
        self.signatures = {
            name: through_bytes(self.sites[name].signature(self.survivors))
            for name in self.answering(4)
        }
        signatures = self.server.collect_signatures(self.signatures.values())
        self.all_signatures = through_bytes(signatures)
        return self.all_signatures

    def step5(self) -> SumOfReplies:
        self.revealed = {
            name: through_bytes(self.sites[name].reveal(self.all_signatures))
            for name in self.answering(5)
        }
        return self.server.unmask(self.revealed.values())

    def all_steps(
        self, replies: Mapping[str, Params], weights: Mapping[str, float] | None = None
    ) -> SumOfReplies:
        self.step1()
        self.step2()
        self.step3(replies, weights)
        self.step4()
        return self.step5()


def weighted_mean(
    replies: Mapping[str, Params], weights: Mapping[str, float], names: list[str]
) -> Params:
    """The mean in float64."""
    total = sum(weights[name] for name in names)
    return {
        key: sum(
            (weights[name] * replies[name][key].double() for name in names),
            torch.zeros(value.shape, dtype=torch.float64),
        )
        / total
        for key, value in replies[names[0]].items()
    }
