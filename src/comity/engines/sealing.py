"""Parcels outside of the processes where their senders and recipients live: authenticated ciphertext (ChaCha20-Poly1305).

The carrier never has the secret: of several worker processes the first draws it and hands it to the others over sockets whose
ends in the server's process are closed. A party still opens its own inbox only: that is the site's doing, as on every engine.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from comity.core.codec import decode, encode
from comity.core.record import Cipher, Sealed, tree_map, unseal
from comity.errors import ComityError

SECRET, NONCE = 32, 12  # bytes


class Lock:
    """Closes and opens what is in parcels."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = ChaCha20Poly1305(secret)

    def close(self, tree: Any) -> Any:
        """The same tree with all its parcels locked; one that occurs twice is locked once."""
        return _on_parcels(self._close, tree)

    def open(self, tree: Any) -> Any:
        """The same tree with all its parcels as their senders made them."""
        return _on_parcels(self._open, tree)

    def _close(self, content: Any) -> Cipher:
        nonce = os.urandom(NONCE)
        blob = nonce + self._cipher.encrypt(nonce, encode(content), None)
        return Cipher(torch.frombuffer(bytearray(blob), dtype=torch.uint8))

    def _open(self, content: Cipher) -> Any:
        blob = content.blob.numpy().tobytes()
        try:
            return decode(self._cipher.decrypt(blob[:NONCE], blob[NONCE:], None))
        except InvalidTag as why:
            raise ComityError("A sealed parcel was changed on its way, or is not for this run.") from why


def _on_parcels(function: Any, tree: Any) -> Any:
    made: dict[int, Sealed] = {}

    def leaf(node: Any) -> Any:
        if not isinstance(node, Sealed):
            return node
        if id(node) not in made:
            made[id(node)] = Sealed(function(unseal(node)), node.size)
        return made[id(node)]

    return tree_map(leaf, tree)


class Handover:
    """How workers come to one secret. Made before they are forked; `close` in the process that must not know it."""

    def __init__(self, workers: int) -> None:
        self._pairs = [socket.socketpair() for _ in range(1, workers)]

    def close(self) -> None:
        """Let go of all ends."""
        for pair in self._pairs:
            for end in pair:
                end.close()

    def lock(self, worker: int) -> Lock:
        """In worker 0: draw the secret and hand it on; in another: receive it."""
        if worker == 0:
            secret = os.urandom(SECRET)
            for giver, _ in self._pairs:
                giver.sendall(secret)
        else:
            for giver, _ in self._pairs:
                giver.close()  # so that a dead first worker is noticed
            secret = self._pairs[worker - 1][1].recv(SECRET, socket.MSG_WAITALL)
            if len(secret) < SECRET:
                raise EOFError
        self.close()
        return Lock(secret)
