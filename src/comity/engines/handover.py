"""How worker processes come to a secret that the server's process never has.

The first worker draws it and hands it to the others over sockets whose ends in the server's process are closed. With it they
lock parcels between parties. A party still opens its own inbox only: that is the site's doing, as on every engine.
"""

from __future__ import annotations

import os
import socket

from comity.engines.sealing import SECRET, Lock


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
