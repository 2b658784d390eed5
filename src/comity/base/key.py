"""Randomness is an argument: a key is a position in a tree of names, never a running state.

`key.fold("batches", 3)` is another key, the same on every engine and in every order of calls. A
generator drawn from a key belongs to that key alone, so one purpose's draws cannot shift another's.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch

Part = int | str


@dataclass(frozen=True, slots=True)
class Key:
    """64 bits that name a stream of random numbers."""

    bits: int

    @staticmethod
    def root(seed: int) -> Key:
        """The key of a whole run."""
        return Key(0).fold("comity", seed)

    def fold(self, *path: Part) -> Key:
        """The key found by following `path` from here. Ints and strings of equal spelling differ."""
        text = repr((self.bits, path)).encode()
        return Key(int.from_bytes(blake2b(text, digest_size=8).digest(), "little"))

    def generator(self) -> torch.Generator:
        """A fresh torch generator for this key."""
        return torch.Generator().manual_seed(self.bits & 0x7FFF_FFFF_FFFF_FFFF)

    def numpy(self) -> np.random.Generator:
        """A fresh numpy generator for this key."""
        return np.random.Generator(np.random.PCG64(self.bits))

    def permutation(self, n: int) -> torch.Tensor:
        """A random order of 0..n-1."""
        return torch.randperm(n, generator=self.generator())

    def choose(self, count: int, n: int) -> list[int]:
        """`count` of 0..n-1 without replacement, in ascending order."""
        return sorted(self.permutation(n)[:count].tolist())

    def noise(self) -> bytes:
        """What noise that hides something is drawn from (`core/noise.py`): of a plain key,
        everybody could compute it.
        """
        return blake2b(self.bits.to_bytes(8, "little"), person=b"noise", digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class SecretKey(Key):
    """A key whose noise comes from a secret, too: all else that is drawn from it whoever has the
    seed can draw as well.

    A site has a secret of its own. In a simulation the run's settings take its place: two runs with
    one seed would else have the same noise, and it could be subtracted. The noise is the same when
    the same is asked again, or asking often would average it away.
    """

    secret: bytes

    def fold(self, *path: Part) -> Key:
        return SecretKey(Key(self.bits).fold(*path).bits, self.secret)

    def noise(self) -> bytes:
        return blake2b(
            self.bits.to_bytes(8, "little"), key=self.secret, person=b"noise", digest_size=32
        ).digest()


@dataclass(frozen=True, slots=True)
class BatchKey(Key):
    """A training's key as `draw` gets it for one batch: whatever comes of it is that batch's own."""

    number: int
    """The batch's number in its training."""

    def fold(self, *path: Part) -> Key:
        return Key(self.bits).fold(*path, self.number)

    def generator(self) -> torch.Generator:
        return self.fold("batch").generator()

    def numpy(self) -> np.random.Generator:
        return self.fold("batch").numpy()
