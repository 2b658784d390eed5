"""A dataset: all samples in one place, before they are shared out to parties."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from comity.core.key import Key
from comity.core.samples import PartyData, Samples, combine
from comity.data import partitions, protocols, shifts
from comity.data.federation import Federation, share
from comity.data.split import Indices, Share, Split
from comity.errors import Refusal
from comity.spec import coerce, parse
from comity.spec import split as cut

PARTIES = 10


@dataclass(frozen=True, eq=False)
class Dataset:
    """Pooled samples. Images are N x C x H x W with values in [0, 1].

    `mean` and `std` (one number, or one a channel) are fixed constants, applied after a party's feature shift:
    statistics of the pooled data would tell each party about the others.
    """

    name: str
    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    classes: int
    description: str = ""
    licence: str = ""
    official_test: Tensor | None = field(default=None, repr=False)  # a mask: what its makers set aside for testing
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __post_init__(self) -> None:
        whose = f"dataset {self.name!r}"
        checked = Samples.of(whose, self.x, self.y)
        object.__setattr__(self, "x", checked.x)
        object.__setattr__(self, "y", checked.y)
        if self.y.max() >= coerce("classes", self.classes, int):
            raise Refusal(f"A label of {whose} is {int(self.y.max())}, but labels must be less than "
                          f"classes={self.classes}.")
        if self.x.dim() == 4 and not 0 <= self.x.min() <= self.x.max() <= 1:
            raise Refusal(f"The images of {whose} have values from {self.x.min():g} to {self.x.max():g}; "
                          "bring them to between 0 and 1.")
        for constant in ("mean", "std"):
            object.__setattr__(self, constant, coerce(constant, getattr(self, constant), tuple[float, ...]))
        if any(len(c) not in (1, self.x.shape[1]) for c in (self.mean, self.std)) or not all(s > 0 for s in self.std):
            raise Refusal(f"mean and std of {whose} must be one number or one a channel, and std more than 0.")
        mask = self.official_test
        if mask is not None and not (
            isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == self.y.shape
            and mask.any() and not mask.all()
        ):
            raise Refusal(f"official_test of {whose} must be a mask with true for some samples and false for others.")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    def fingerprint(self) -> str:
        """A short name for exactly these values."""
        return combine((Samples(self.x, self.y).digest(), self.classes, self.mean, self.std))

    def partition(
        self,
        spec: str,
        parties: int | None = None,
        seed: int = 0,
        test: str = "own(0.25)",
        validation: float = 0.1,
    ) -> Federation:
        """Share the samples out, as in `dirichlet(alpha=0.1)|shift(kinds=none,invert)`, to 10 parties unless told.

        `spec` may be the path of a saved split (`.json`), which then decides everything.
        """
        parties = None if parties is None else coerce("parties", parties, int)
        if spec.endswith(".json"):
            federation = self.split(spec)
            if parties not in (None, len(federation.parties)):
                raise Refusal(f"The split {spec!r} has {len(federation.parties)} parties, not {parties}.")
            return federation
        first, *steps = [parse(part) for part in cut(spec, "|")]
        rule, validation = protocols.read(test), protocols.check_validation(validation)
        parties, seed = PARTIES if parties is None else parties, coerce("seed", seed, int)
        # A key of its own for each purpose: a test or shift setting must not change who gets which sample.
        key = Key.root(seed).fold("data")
        y = self.y.numpy()
        official = None if self.official_test is None else self.official_test.numpy()
        kept = rule.reserve(y, official, key.fold("reserve").numpy())
        pool, common = np.flatnonzero(~kept), np.flatnonzero(kept)
        owned = partitions.divide(first, y[pool], parties, key.fold("partition").numpy())

        shares: dict[str, Share] = {}
        for i, (positions, shift) in enumerate(zip(owned, shifts.assign(steps, len(owned)), strict=True)):
            name, mine = f"p{i}", np.sort(pool[positions])
            learn, held = rule.divide(name, y, mine, common, key.fold("test", name).numpy())
            shares[name] = share(name, y, learn, held, validation=validation, key=key, shift=shift)
        text = "|".join(map(str, [first, *steps]))
        return self._build(Split(self.name, self.fingerprint(), text, test, validation, seed, shares))

    def split(self, source: Split | str | Path) -> Federation:
        """The federation of a saved split, exactly as it was."""
        split = source if isinstance(source, Split) else Split.read(source)
        if split.fingerprint != self.fingerprint():
            raise Refusal(f"The split was made for other data (dataset {split.dataset!r}), not for {self.name!r} as "
                          "it is here; use the dataset it was made for.")
        split.check(len(self))
        return self._build(split)

    def _build(self, split: Split) -> Federation:
        """The parties' tensors, from a split alone: a new split and a saved one take the same way."""
        shifted = protocols.read(split.test).shifted
        key = Key.root(split.seed).fold("data", "shift")
        everyone = cache(self._take)  # what is the same for all parties is held once
        parties: dict[str, PartyData] = {}
        for name, part in split.parties.items():
            seen = part.train + part.validation + (part.test if shifted else ())
            order = tuple(sorted(seen))  # noise belongs to a sample, whichever part of the data it is in
            own = self._take(order, part.shift, key.fold(name))
            train, validation = (own.take(np.searchsorted(order, i)) for i in (part.train, part.validation))
            test = own.take(np.searchsorted(order, part.test)) if shifted else everyone(part.test)
            parties[name] = PartyData(train, validation, test)
        return Federation(self.name, parties, self.classes, self.shape, split)

    def _take(self, indices: Indices, shift: str | None = None, key: Key | None = None) -> Samples:
        """These samples, shifted and then normalised."""
        samples = Samples(self.x, self.y).take(indices)
        x = shifts.apply(shift, samples.x, key) if shift and key else samples.x
        mean, std = (torch.tensor(c).view(-1, *[1] * (x.dim() - 2)) for c in (self.mean, self.std))
        return Samples((x - mean) / std, samples.y)
