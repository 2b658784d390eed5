"""Parcels outside of the processes where their senders and recipients live: authenticated
ciphertext (ChaCha20-Poly1305).

A content is encrypted once, by a key of its own. That key is locked for each recipient by the key
that sender and recipient share, and bound to run, round, sender, recipient and size: a parcel opens
for whom it is, in its round, and for one call.

Of several worker processes the first draws the secret of which pairs' keys are made, and hands it
to the others over sockets whose ends in the server's process are closed: the carrier never has it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from torch import Tensor

from comity.base.call import CallId
from comity.base.declared import fits
from comity.base.record import (
    TWICE,
    Cipher,
    Sealed,
    check_address,
    payload,
    sealed_in,
    tree_map,
    unseal,
)
from comity.errors import ComityError, CorruptedFile
from comity.wire.codec import decode, encode

KEY, NONCE, TAG, RUN = 32, 12, 16, 16  # bytes
LOCKED_KEY = NONCE + KEY + TAG
USED_ONCE = bytes(NONCE)  # the nonce of a key that encrypts one content only


class PairKeys(Protocol):
    """The key that two parties share and nobody else has. Where sites do not trust each other's
    machines, each computes its own from its X25519 half and the other's public one.
    """

    def __call__(self, one: int, other: int) -> bytes: ...


class SharedSecret:
    """Pairs' keys for processes that are all trusted with all of them: derived (HKDF) from one
    secret.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __call__(self, one: int, other: int) -> bytes:
        pair = f"comity parcels {min(one, other)} {max(one, other)}"
        return HKDFExpand(SHA256(), KEY, pair.encode()).derive(self._secret)


class Lock:
    """Closes and opens what is in parcels, and remembers what was opened in this round."""

    def __init__(self, keys: PairKeys, run: bytes, records: frozenset[type] | None = None) -> None:
        self._keys = keys
        self._run = run
        self._records = records
        """What may be in a parcel; None: whatever its sender put there."""
        self._round = -1
        self._opened: dict[tuple[int, bytes], CallId] = {}

    def close(self, tree: Any) -> Any:
        """The same tree with all its parcels locked; one that occurs twice is locked once."""
        locked = {id(sealed): sealed for sealed in sealed_in(tree)}
        if not locked:
            return tree
        locked = {name: self._close(sealed) for name, sealed in locked.items()}
        return tree_map(lambda leaf: locked[id(leaf)] if isinstance(leaf, Sealed) else leaf, tree)

    def open(
        self, inboxes: Mapping[int, Mapping[int, Sealed]], call: CallId
    ) -> dict[int, dict[int, Sealed]]:
        """Parcels by recipient and sender as their senders made them, for this call.

        For the same call they open again, if its answer was lost; for another one never.
        """
        if not fits(inboxes, dict[int, dict[int, Sealed]]):
            raise CorruptedFile("What came for parties is not their sealed parcels by sender.")
        if call.round < self._round and inboxes:
            raise ComityError(
                f"Sealed parcels of round {call.round} came after those of round {self._round}."
            )
        if call.round > self._round:
            self._round = call.round
            self._opened.clear()  # a parcel of an earlier round does not open any more
        return {
            recipient: {
                sender: self._open(sealed, sender, recipient, call)
                for sender, sealed in inbox.items()
            }
            for recipient, inbox in inboxes.items()
        }

    def _close(self, sealed: Sealed) -> Sealed:
        if sealed.origin is None:
            raise ComityError(
                "A sealed parcel leaves its process in a party's reply or not at all."
            )
        sender, round = sealed.origin
        key = os.urandom(KEY)
        blob = ChaCha20Poly1305(key).encrypt(USED_ONCE, encode(unseal(sealed)), None)
        keys = b"".join(
            self._locked(key, sender, recipient, round, sealed.size) for recipient in sealed.to
        )
        cipher = Cipher(
            sender,
            round,
            list(sealed.to),
            _numbers(keys).view(len(sealed.to), LOCKED_KEY),
            _numbers(blob),
        )
        return Sealed(cipher, sealed.size, sealed.to, sealed.origin)

    def _locked(self, key: bytes, sender: int, recipient: int, round: int, size: int) -> bytes:
        nonce = os.urandom(NONCE)
        return nonce + self._between(sender, recipient).encrypt(
            nonce, key, self._bound(sender, recipient, round, size)
        )

    def _open(self, sealed: Sealed, sender: int, recipient: int, call: CallId) -> Sealed:
        check_address(sealed, sender, recipient, call.round)
        cipher = unseal(sealed)
        _check_form(cipher)
        locked = cipher.keys[cipher.to.index(recipient)].numpy().tobytes()
        if self._opened.get((recipient, locked), call) != call:
            raise ComityError(TWICE)
        try:
            bound = self._bound(sender, recipient, call.round, sealed.size)
            key = self._between(sender, recipient).decrypt(locked[:NONCE], locked[NONCE:], bound)
            content = decode(
                ChaCha20Poly1305(key).decrypt(USED_ONCE, cipher.blob.numpy(), None),
                records=self._records,
            )
        except InvalidTag as why:
            raise CorruptedFile(
                "A sealed parcel was changed on its way, or is not of this run."
            ) from why
        if payload(content) != sealed.size:
            raise CorruptedFile("A sealed parcel is not of the size that was charged for it.")
        self._opened[recipient, locked] = call
        return Sealed(content, sealed.size, sealed.to, sealed.origin)

    def _between(self, sender: int, recipient: int) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self._keys(sender, recipient))

    def _bound(self, sender: int, recipient: int, round: int, size: int) -> bytes:
        """What a locked key is bound to."""
        return self._run + f" {round} {sender} {recipient} {size}".encode()


def _numbers(data: bytes) -> Tensor:
    """Bytes as a tensor."""
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )


def _check_form(cipher: Any) -> None:
    """Refuse what no lock has made."""
    formed = (
        isinstance(cipher, Cipher)
        and cipher.keys.dtype == cipher.blob.dtype == torch.uint8
        and cipher.keys.shape == (len(cipher.to), LOCKED_KEY)
        and cipher.blob.dim() == 1
        and len(cipher.blob) >= TAG
    )
    if not formed:
        raise CorruptedFile("A sealed parcel is not locked as parcels are.")


class Handover:
    """How workers come to one secret. Made before they are forked; `close` in the process that must
    not know it.
    """

    def __init__(self, workers: int) -> None:
        self._pairs = [socket.socketpair() for _ in range(1, workers)]

    def close(self) -> None:
        """Let go of all ends."""
        for pair in self._pairs:
            for end in pair:
                end.close()

    def lock(self, worker: int) -> Lock:
        """In worker 0: draw the secret and the run's name and hand them on; in another: receive
        them.
        """
        if worker == 0:
            drawn = os.urandom(KEY + RUN)
            for giver, _ in self._pairs:
                giver.sendall(drawn)
        else:
            for giver, _ in self._pairs:
                giver.close()  # so that a dead first worker is noticed
            drawn = self._pairs[worker - 1][1].recv(KEY + RUN, socket.MSG_WAITALL)
            if len(drawn) < KEY + RUN:
                raise EOFError
        self.close()
        return Lock(SharedSecret(drawn[:KEY]), drawn[KEY:])
