"""The site's side of a round: five steps, each of which runs once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from comity.base.call import CallId
from comity.base.record import Params
from comity.privacy.secagg import shamir
from comity.privacy.secagg.errors import SecureAggregationError
from comity.privacy.secagg.masks import (
    add_mask,
    agree,
    derive,
    digest,
    join_fields,
    pair_key,
    pair_sign,
)
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
from comity.privacy.secagg.terms import SiteLimits, Terms
from comity.wire.sealing import KEY, TAG, USED_ONCE

STEPS = ("keys", "shares", "masked", "signature", "reveal")
BOTH_SHARES = 2 * shamir.SHARE


class Signatory(Protocol):
    """A site's signing key, and the public keys of all sites that it knows, its own included.

    The public keys must be pinned at the site. If a certificate of the federation's root were
    enough, whoever holds the root's key could add sites that do not exist to the roster.
    """

    @property
    def name(self) -> str:
        """This site's name."""

    def sign(self, text: bytes) -> bytes:
        """This site's signature of a text."""

    def verify(self, name: str, text: bytes, signature: bytes) -> bool:
        """Whether a signature is that of site `name`. False for a site that is not known."""


class RoundLog(Protocol):
    """Remembers for which calls a site has masked a reply. It must survive a restart."""

    def claim(self, terms: Terms) -> None:
        """Record a call. Raises SecureAggregationError if it was recorded before."""


class RoundFiles:
    """A `RoundLog` that creates an empty file in a folder for each call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, terms: Terms) -> None:
        path = self._path(terms.run, terms.call)
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            raise self._second_reply(terms.run, terms.call) from None
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def check_free(self, run: str, call: CallId) -> None:
        """Raise SecureAggregationError if a call was recorded before. Records nothing."""
        if self._path(run, call).exists():
            raise self._second_reply(run, call)

    def _path(self, run: str, call: CallId) -> Path:
        return self._folder / digest("comity secagg call", run, *call).hex()

    def _second_reply(self, run: str, call: CallId) -> SecureAggregationError:
        return SecureAggregationError(
            f"This site has already sent a masked reply for round {call.round} of {run}: a second"
            " one could expose it, so the server has to go on with the next round."
        )


class SiteRound:
    """One site in one round.

    Its methods are to be called in the order of the steps. A request out of turn is refused and
    changes nothing. A step that fails ends the round for this site, and deletes its secrets. An
    object cannot be copied or saved, because two copies could reveal both kinds of shares.

    Arguments:
        terms: the terms of the round
        limits: the least terms that this site accepts
        signatory: signs as this site and verifies the signatures of the others
        log: remembers for which calls this site has masked a reply

    Raises `UsageError` if the site does not accept the terms.
    """

    def __init__(
        self, terms: Terms, limits: SiteLimits, signatory: Signatory, log: RoundLog
    ) -> None:
        limits.check(terms)
        self.name = signatory.name
        if self.name not in terms.roster:
            raise SecureAggregationError(f"{self.name} is not on the roster of this round.")
        self.clipped = 0
        """How many coordinates of the reply clipping changed."""
        self._terms = terms
        self._limits = limits
        self._signatory = signatory
        self._log = log
        self._next_step = 0
        self._context = b""
        self._keys: dict[str, SiteKeys] = {}
        """The keys of U1, by site."""
        self._senders: list[str] = []
        """U2, in ascending order."""
        self._survivors: list[str] = []
        """U3, in ascending order."""
        self._cipher_key: X25519PrivateKey | None = X25519PrivateKey.generate()
        self._mask_key: X25519PrivateKey | None = X25519PrivateKey.generate()
        self._seed = secrets.token_bytes(shamir.SECRET)
        self._seed_shares: dict[str, bytes] = {}
        """This site's shares of the self seeds of all senders, its own included."""
        self._mask_key_shares: dict[str, bytes] = {}
        """This site's shares of the private mask keys of all other senders."""

    def __reduce__(self) -> str:
        raise TypeError("a site's round of secure aggregation cannot be copied or pickled")

    def keys(self) -> SiteKeys:
        """Step 1: two fresh public keys and a commitment to the self seed, signed."""
        with self._step(0):
            assert self._cipher_key
            assert self._mask_key
            unsigned = SiteKeys(
                self.name,
                self._terms.digest().hex(),
                self._cipher_key.public_key().public_bytes_raw().hex(),
                self._mask_key.public_key().public_bytes_raw().hex(),
                commitment(self._seed).hex(),
                "",
            )
            signature = self._signatory.sign(signed_keys_text(unsigned))
            keys = replace(unsigned, signature=signature.hex())
            self._keys[self.name] = keys
            return keys

    def shares(self, roster: RosterKeys) -> SiteShares:
        """Step 2: check the keys of all sites, and share both secrets among them."""
        with self._step(1):
            self._check_keys(roster)
            self._keys = {keys.name: keys for keys in roster.keys}
            self._context = context_of(self._terms, self._keys)
            assert self._mask_key
            points = {name: point_of(self._terms, name) for name in self._keys}
            threshold = self._terms.threshold
            key_shares = shamir.split(
                self._mask_key.private_bytes_raw(), threshold, points.values()
            )
            seed_shares = shamir.split(self._seed, threshold, points.values())
            self._seed_shares = {self.name: seed_shares[points[self.name]]}
            return SiteShares(
                self.name,
                {
                    name: self._cipher(self.name, name)
                    .encrypt(USED_ONCE, key_shares[point] + seed_shares[point], self._context)
                    .hex()
                    for name, point in points.items()
                    if name != self.name
                },
            )

    def masked(self, inbox: Inbox, reply: Params, weight: float = 1.0) -> MaskedReply:
        """Step 3: the encoded reply, with noise if the terms ask for it, and with all masks.

        Arguments:
            inbox: the encrypted shares for this site
            reply: the tensors to be averaged
            weight: the weight of this reply in the mean
        """
        with self._step(2):
            self._open(inbox)
            terms = self._terms
            vector, self.clipped = terms.encoding.encode(reply, weight, len(terms.roster))
            self._log.claim(terms)
            noise_key = secrets.token_bytes(KEY)
            terms.encoding.add_noise(vector, noise_key, terms.threshold, terms.colluders)
            add_mask(vector, self_mask_key(self._seed, self._context), 1)
            assert self._mask_key
            for name in self._senders:
                if name != self.name:
                    public = self._keys[name].mask_key
                    key = pair_key(self._mask_key, public, self._context, self.name, name)
                    add_mask(vector, key, pair_sign(self.name, name))
            self._seed = b""
            self._mask_key = None
            return MaskedReply(self.name, torch.from_numpy(vector.view(np.int32)))

    def signature(self, survivors: Survivors) -> SurvivorSignature:
        """Step 4: check and sign the list of survivors."""
        with self._step(3):
            names = survivors.names
            unknown_names = set(names) - set(self._senders)
            if len(set(names)) < len(names) or unknown_names or self.name not in names:
                raise SecureAggregationError(
                    "The list of survivors must have this site and only sites that sent shares,"
                    " each once."
                )
            self._check_count(len(names), "are in the sum")
            self._survivors = sorted(names)
            text = survivors_text(self._context, self._senders, self._survivors)
            return SurvivorSignature(self.name, self._signatory.sign(text).hex())

    def reveal(self, signatures: Signatures) -> RevealedShares:
        """Step 5: for each sender one kind of share, if enough survivors signed the same list."""
        with self._step(4):
            text = survivors_text(self._context, self._senders, self._survivors)
            signers = [
                name
                for name in self._survivors
                if self._verifies(name, text, signatures.signatures.get(name, ""))
            ]
            if self.name not in signers or len(signers) < self._terms.threshold:
                raise SecureAggregationError(
                    f"{len(signers)} sites signed the list of survivors that this site signed, and"
                    f" {self._terms.threshold} must (threshold): the server lost too many sites, or"
                    " sent different lists."
                )
            lost_sites = sorted(set(self._senders) - set(self._survivors))
            shares = RevealedShares(
                self.name,
                {name: self._seed_shares[name].hex() for name in self._survivors},
                {name: self._mask_key_shares[name].hex() for name in lost_sites},
            )
            self._forget()
            return shares

    @contextmanager
    def _step(self, number: int) -> Iterator[None]:
        if self._next_step != number:
            raise SecureAggregationError(
                f"Step {number + 1} ({STEPS[number]}) of secure aggregation was requested out of"
                f" turn: {self._expectation()}."
            )
        self._next_step = len(STEPS) + 1
        try:
            yield
        except BaseException:
            self._forget()
            raise
        self._next_step = number + 1

    def _expectation(self) -> str:
        if self._next_step < len(STEPS):
            return f"the next is step {self._next_step + 1} ({STEPS[self._next_step]})"
        if self._next_step == len(STEPS):
            return f"{self.name} has completed this round"
        return f"this round has ended for {self.name}"

    def _forget(self) -> None:
        """Delete all secrets."""
        self._cipher_key = None
        self._mask_key = None
        self._seed = b""
        self._seed_shares = {}
        self._mask_key_shares = {}

    def _check_keys(self, roster: RosterKeys) -> None:
        """Refuse keys that are not fresh keys of distinct sites on the roster, for these terms."""
        names = [keys.name for keys in roster.keys]
        if len(set(names)) < len(names) or not set(names) <= set(self._terms.roster):
            raise SecureAggregationError(
                "The list of keys must have sites of the roster only, each once."
            )
        self._check_count(len(names), "sent keys")
        if len(names) < self._limits.least_roster:
            raise SecureAggregationError(
                f"{len(names)} sites sent keys, and this site requires {self._limits.least_roster}"
                " (least_roster)."
            )
        if self._keys[self.name] not in roster.keys:
            raise SecureAggregationError(
                f"The list of keys does not have those that {self.name} sent: somebody replaced"
                " them."
            )
        for keys in roster.keys:
            if keys.terms != self._terms.digest().hex():
                raise SecureAggregationError(
                    f"{keys.name} takes part under other terms than {self.name}: run, call,"
                    " message, roster, threshold, colluders and encoding must be the same."
                )
            for text in (keys.cipher_key, keys.mask_key, keys.commitment):
                from_hex(text, KEY, keys.name)
            if not self._verifies(keys.name, signed_keys_text(keys), keys.signature):
                raise SecureAggregationError(
                    f"The keys that are said to be {keys.name}'s are not signed by it for this"
                    " call: somebody replaced them."
                )
        public_keys = {key for keys in roster.keys for key in (keys.cipher_key, keys.mask_key)}
        if len(public_keys) < 2 * len(names):
            raise SecureAggregationError("A public key occurs twice: every key must be fresh.")

    def _check_count(self, count: int, what: str) -> None:
        if count < self._terms.threshold:
            raise SecureAggregationError(
                f"{count} sites {what}, and {self._terms.threshold} must (threshold)."
            )

    def _open(self, inbox: Inbox) -> None:
        """Decrypt the shares from all other senders."""
        others = set(inbox.shares)
        if self.name in others or not others <= set(self._keys):
            raise SecureAggregationError(
                "Shares must come from other sites that sent keys in this round."
            )
        self._senders = sorted({*others, self.name})
        self._check_count(len(self._senders), "sent shares")
        for name, text in inbox.shares.items():
            data = from_hex(text, BOTH_SHARES + TAG, name)
            try:
                shares = self._cipher(name, self.name).decrypt(USED_ONCE, data, self._context)
            except InvalidTag:
                raise SecureAggregationError(
                    f"The shares that are said to be {name}'s for {self.name} are not: they were"
                    " changed, or the server sent different keys to different sites."
                ) from None
            self._mask_key_shares[name] = shares[: shamir.SHARE]
            self._seed_shares[name] = shares[shamir.SHARE :]
        self._cipher_key = None

    def _cipher(self, sender: str, recipient: str) -> ChaCha20Poly1305:
        """The cipher for shares from one site to another, of which one is this site. Its key
        encrypts one message only.
        """
        assert self._cipher_key
        peer = recipient if sender == self.name else sender
        return ChaCha20Poly1305(
            agree(
                self._cipher_key,
                self._keys[peer].cipher_key,
                "shares",
                self._context,
                sender,
                recipient,
            )
        )

    def _verifies(self, name: str, text: bytes, signature: str) -> bool:
        try:
            return self._signatory.verify(name, text, bytes.fromhex(signature))
        except ValueError:
            return False


def commitment(seed: bytes) -> bytes:
    """The commitment to a self seed. It says nothing about the masks that the seed expands to."""
    return derive(seed, "commitment")


def self_mask_key(seed: bytes, context: bytes) -> bytes:
    """The key of the mask that a self seed expands to."""
    return derive(seed, "self mask", context)


def point_of(terms: Terms, name: str) -> int:
    """Where the polynomials of secret sharing are evaluated for a site."""
    return terms.roster.index(name) + 1


def signed_keys_text(keys: SiteKeys) -> bytes:
    """What a site signs in step 1."""
    return join_fields(
        "comity secagg keys",
        keys.name,
        keys.terms,
        keys.cipher_key,
        keys.mask_key,
        keys.commitment,
    )


def survivors_text(context: bytes, senders: list[str], survivors: list[str]) -> bytes:
    """What a site signs in step 4: the keys (in the context), U2 and U3."""
    return join_fields(
        "comity secagg survivors", context, join_fields(*senders), join_fields(*survivors)
    )


def context_of(terms: Terms, keys: Mapping[str, SiteKeys]) -> bytes:
    """A digest of the terms and of all keys of step 1, to which all later steps are bound."""
    signed = (signed_keys_text(keys[name]) for name in sorted(keys))
    return digest("comity secagg context", terms.digest(), *signed)
