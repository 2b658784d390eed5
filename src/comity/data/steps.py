"""Steps chained after a partition, as in `dirichlet(alpha=0.5)|keep(samples=200)|shift`: what else
sets parties apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from comity.base.key import Key
from comity.base.samples import Ints
from comity.data import shifts
from comity.data.protocols import proportional
from comity.errors import UsageError, unknown
from comity.spec import Spec, call


@dataclass(frozen=True)
class Keep:
    """Each party keeps so many samples to learn from, or such a part of them, with its classes in
    proportion.
    """

    samples: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if (self.samples is None) == (self.fraction is None):
            raise UsageError(
                "keep takes either samples or fraction, as in keep(samples=200) or"
                " keep(fraction=0.2)."
            )
        if self.samples is not None and self.samples < 1:
            raise UsageError(f"samples of keep must be at least 1, not {self.samples}.")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise UsageError(
                f"fraction of keep must be more than 0 and at most 1, not {self.fraction}."
            )

    def of(self, party: str, y: Ints, learn: Ints, rng: np.random.Generator) -> Ints:
        """The samples that a party keeps of `learn`."""
        wanted = (
            self.samples
            if self.samples is not None
            else max(1, round((self.fraction or 1) * len(learn)))
        )
        if wanted > len(learn):
            raise UsageError(
                f"Party {party!r} has {len(learn)} samples to learn from, not {wanted}; use a"
                " smaller keep."
            )
        if wanted == len(learn):
            return learn
        return learn[proportional(y[learn], wanted, rng)]


@dataclass(frozen=True)
class Concept:
    """Parties of different groups call the classes by different names: the first group as the data
    do, the others permuted.
    """

    groups: int = 2

    def __post_init__(self) -> None:
        if self.groups < 2:
            raise UsageError(f"groups of concept must be at least 2, not {self.groups}.")

    def of(self, i: int, classes: int, key: Key) -> tuple[int, ...] | None:
        """What party i calls each class, if not by its number; no two groups do it alike."""
        if self.groups > math.factorial(min(classes, 20)):
            raise UsageError(
                f"{classes} classes cannot be called in {self.groups} different ways; use fewer"
                " groups."
            )
        rng = key.fold("concept").numpy()
        made = [tuple(range(classes))]
        while len(made) <= i % self.groups:
            drawn = tuple(rng.permutation(classes).tolist())
            made += [drawn] if drawn not in made else []
        return made[i % self.groups] if i % self.groups else None


STEPS: dict[str, Any] = {"shift": shifts.kinds, "keep": Keep, "concept": Concept}


@dataclass(frozen=True)
class Steps:
    """All steps of a partition, by kind and in their order."""

    shifts: list[tuple[str, ...]]
    keeps: list[Keep]
    concepts: list[Concept]

    @staticmethod
    def read(specs: list[Spec]) -> Steps:
        """The steps that were written after a partition; what is no step is refused."""
        made = Steps([], [], [])
        for spec in specs:
            if spec.name not in STEPS:
                raise unknown("step after a partition called", spec.name, STEPS)
            step = call(spec, STEPS[spec.name])
            match step:
                case Keep():
                    made.keeps.append(step)
                case Concept():
                    made.concepts.append(step)
                case _:
                    made.shifts.append(step)
        if len(made.concepts) > 1:
            raise UsageError("A partition can have one concept step.")
        return made

    def shift(self, i: int) -> str | None:
        """Party i's feature shift: each step's i-th kind, and from the first again after the last."""
        return "|".join(kinds[i % len(kinds)] for kinds in self.shifts) or None

    def keep(self, party: str, y: Ints, learn: Ints, key: Key) -> Ints:
        """What a party keeps to learn from."""
        for n, step in enumerate(self.keeps):
            learn = step.of(party, y, learn, key.fold("keep", party, n).numpy())
        return learn

    def labels(self, i: int, classes: int, key: Key) -> tuple[int, ...] | None:
        """Party i's own names for the classes."""
        return self.concepts[0].of(i, classes, key) if self.concepts else None
