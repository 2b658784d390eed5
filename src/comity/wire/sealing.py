"""Authenticated encryption (ChaCha20-Poly1305) of sealed messages outside of their senders' and
recipients' processes.

A content is encrypted once, with a key of its own. That key is encrypted for each recipient with
the key that sender and recipient share, and bound to run, round, sender, recipient and size: only a
recipient can open the message, in its round, for one call.

The first of several worker processes draws the secret from which the pairs' keys are derived. It
sends the secret to the others over sockets whose ends are closed in the server's process, so the
carrier never has it.
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
    OPENED_TWICE,
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
    """The key that two parties share and nobody else has.

    Sites that do not trust each other's machines each compute it from their own X25519 private key
    and the other's public key.
    """

    def __call__(self, first: int, second: int, /) -> bytes: ...


class SharedSecret:
    """Keys of pairs, derived (HKDF) from one secret, for processes that may all know all keys."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __call__(self, first: int, second: int) -> bytes:
        pair = f"comity parcels {min(first, second)} {max(first, second)}"
        return HKDFExpand(SHA256(), KEY, pair.encode()).derive(self._secret)


class Lock:
    """Encrypts and decrypts sealed messages, and remembers which were opened in this round."""

    def __init__(self, keys: PairKeys, run: bytes, records: frozenset[type] | None = None) -> None:
        self._keys = keys
        self._run = run
        self._records = records
        """The record types that a sealed message may contain; None allows all."""
        self._round = -1
        self._opening_calls: dict[tuple[int, bytes], CallId] = {}

    def close(self, tree: Any) -> Any:
        """The same tree with all its sealed messages encrypted. One that occurs twice is encrypted
        once.
        """
        locked = {id(sealed): sealed for sealed in sealed_in(tree)}
        if not locked:
            return tree
        locked = {name: self._close(sealed) for name, sealed in locked.items()}
        return tree_map(lambda leaf: locked[id(leaf)] if isinstance(leaf, Sealed) else leaf, tree)

    def open(
        self, inboxes: Mapping[int, Mapping[int, Sealed]], call: CallId
    ) -> dict[int, dict[int, Sealed]]:
        """The decrypted sealed messages for this call, by recipient and sender.

        A message can be opened again for the same call, if its reply was lost, but never for
        another call.
        """
        if not fits(inboxes, dict[int, dict[int, Sealed]]):
            raise CorruptedFile("The inboxes of parties are not sealed messages by sender.")
        if call.round < self._round and inboxes:
            raise ComityError(
                f"Sealed messages of round {call.round} came after those of round {self._round}."
            )
        if call.round > self._round:
            self._round = call.round
            self._opening_calls.clear()  # messages of earlier rounds are refused by their round
        return {
            recipient: {
                sender: self._open(sealed, sender, recipient, call)
                for sender, sealed in inbox.items()
            }
            for recipient, inbox in inboxes.items()
        }

    def _close(self, sealed: Sealed) -> Sealed:
        if sealed.origin is None:
            raise ComityError("A sealed message can leave its process in a party's reply only.")
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
            _as_tensor(keys).view(len(sealed.to), LOCKED_KEY),
            _as_tensor(blob),
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
        if self._opening_calls.get((recipient, locked), call) != call:
            raise ComityError(OPENED_TWICE)
        try:
            bound = self._bound(sender, recipient, call.round, sealed.size)
            key = self._between(sender, recipient).decrypt(locked[:NONCE], locked[NONCE:], bound)
            content = decode(
                ChaCha20Poly1305(key).decrypt(USED_ONCE, cipher.blob.numpy(), None),
                records=self._records,
            )
        except InvalidTag as why:
            raise CorruptedFile(
                "A sealed message was changed on its way, or is not of this run."
            ) from why
        if payload(content) != sealed.size:
            raise CorruptedFile("A sealed message is not of the size that was charged for it.")
        self._opening_calls[recipient, locked] = call
        return Sealed(content, sealed.size, sealed.to, sealed.origin)

    def _between(self, sender: int, recipient: int) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self._keys(sender, recipient))

    def _bound(self, sender: int, recipient: int, round: int, size: int) -> bytes:
        """The associated data that an encrypted key is bound to."""
        return self._run + f" {round} {sender} {recipient} {size}".encode()


def _as_tensor(data: bytes) -> Tensor:
    """Bytes as a uint8 tensor."""
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )


def _check_form(cipher: Any) -> None:
    """Refuse a cipher that no `Lock` can have produced."""
    valid = (
        isinstance(cipher, Cipher)
        and cipher.keys.dtype == cipher.blob.dtype == torch.uint8
        and cipher.keys.shape == (len(cipher.to), LOCKED_KEY)
        and cipher.blob.dim() == 1
        and len(cipher.blob) >= TAG
    )
    if not valid:
        raise CorruptedFile("A sealed message is not encrypted as it should be.")


class Handover:
    """How workers agree on one secret.

    It is created before the workers are forked. The process that must not know the secret calls
    `close`.
    """

    def __init__(self, workers: int) -> None:
        self._pairs = [socket.socketpair() for _ in range(1, workers)]

    def close(self) -> None:
        """Close all sockets."""
        for pair in self._pairs:
            for end in pair:
                end.close()

    def lock(self, worker: int) -> Lock:
        """Worker 0 draws the secret and the run's name and sends them; the other workers receive
        them.
        """
        if worker == 0:
            secret = os.urandom(KEY + RUN)
            for sender, _ in self._pairs:
                sender.sendall(secret)
        else:
            for sender, _ in self._pairs:
                sender.close()  # so that the end of the first worker closes the socket
            secret = self._pairs[worker - 1][1].recv(KEY + RUN, socket.MSG_WAITALL)
            if len(secret) < KEY + RUN:
                raise EOFError
        self.close()
        return Lock(SharedSecret(secret[:KEY]), secret[KEY:])
