"""Randomness as an argument: a key names a position in a tree, and has no running state.

`key.fold("batches", 3)` is another key, the same on every engine and in every order of calls. Each
key has a generator of its own, so the draws for one purpose cannot shift those for another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import torch

Part = int | str


@dataclass(frozen=True, slots=True)
class Key:
    """64 bits that identify a stream of random numbers, and a secret that privacy noise depends
    on.
    """

    bits: int
    secret: bytes = field(default=b"", kw_only=True, repr=False)
    """Only the noise depends on it. Everything else drawn from a key depends on the seed alone.

    A site has a secret of its own. A simulation uses the run's settings instead: otherwise two runs
    with one seed would have the same noise, and an observer could subtract it. The same key always
    gives the same noise, so that repeating a call does not let an observer average it away.
    """
    binds: bool = field(default=False, kw_only=True, repr=False)
    """Whether `bind` has an effect. It must have one where somebody else chooses the messages, as
    between sites: two different values with the same noise could be subtracted.
    """

    @staticmethod
    def root(seed: int, secret: bytes = b"", *, binds: bool = False) -> Key:
        """The key of a whole run."""
        return Key(0, secret=secret, binds=binds).fold("comity", seed)

    def fold(self, *path: Part) -> Key:
        """The key reached by following `path` from here. Ints and strings of equal spelling
        differ.
        """
        text = repr((self.bits, path)).encode()
        bits = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
        return Key(bits, secret=self.secret, binds=self.binds)

    def bind(self, inputs: bytes) -> Key:
        """This key with noise that also depends on `inputs`: a digest of everything that the noisy
        value is computed from. In a simulation it is this key itself.
        """
        if not self.binds:
            return self
        secret = blake2b(inputs, key=self.secret, person=b"inputs", digest_size=32).digest()
        return Key(self.bits, secret=secret, binds=True)

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
        """The 32 bytes that privacy noise is drawn from (`base/noise.py`).

        Anyone who knows a key without a secret can compute its noise.
        """
        return blake2b(
            self.bits.to_bytes(8, "little"), key=self.secret, person=b"noise", digest_size=32
        ).digest()


@dataclass(frozen=True, slots=True)
class BatchKey(Key):
    """A training's key as `draw` receives it for one batch: each batch draws other values from
    it.
    """

    number: int
    """The position of the batch in its training."""

    def fold(self, *path: Part) -> Key:
        return Key(self.bits).fold(*path, self.number)

    def generator(self) -> torch.Generator:
        return self.fold("batch").generator()

    def numpy(self) -> np.random.Generator:
        return self.fold("batch").numpy()
