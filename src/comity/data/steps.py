"""Steps after a partition, as in `dirichlet(alpha=0.5)|keep(samples=200)|shift`."""

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


class TooFewSamples(UsageError):
    """A party has fewer samples to learn from than it is to keep."""

    def __init__(self, party: str, present: int, goal: int) -> None:
        super().__init__(
            f"Party {party!r} has {present} samples to learn from, not {goal}: use a smaller keep."
        )
        self.party = party
        self.present = present
        self.goal = goal


@dataclass(frozen=True)
class Keep:
    """Each party keeps a number or a fraction of its training samples, stratified by class."""

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

    def select(self, party: str, y: Ints, train: Ints, rng: np.random.Generator) -> Ints:
        """The samples of `train` that a party keeps."""
        count = (
            self.samples
            if self.samples is not None
            else max(1, round((self.fraction or 1) * len(train)))
        )
        if count > len(train):
            raise TooFewSamples(party, len(train), count)
        if count == len(train):
            return train
        return train[proportional(y[train], count, rng)]


@dataclass(frozen=True)
class Concept:
    """Concept shift: groups of parties use different numbers for the classes.

    The first group uses the numbers of the data, each other group a permutation of them.
    """

    groups: int = 2

    def __post_init__(self) -> None:
        if self.groups < 2:
            raise UsageError(f"groups of concept must be at least 2, not {self.groups}.")

    def class_numbers(self, i: int, classes: int, key: Key) -> tuple[int, ...] | None:
        """Party i's number for each class, different for each group; None if not permuted."""
        if self.groups > math.factorial(min(classes, 20)):
            raise UsageError(
                f"{classes} classes cannot be permuted in {self.groups} different ways; use fewer"
                " groups."
            )
        rng = key.fold("concept").numpy()
        numberings = [tuple(range(classes))]
        while len(numberings) <= i % self.groups:
            permutation = tuple(rng.permutation(classes).tolist())
            numberings += [permutation] if permutation not in numberings else []
        return numberings[i % self.groups] if i % self.groups else None


STEPS: dict[str, Any] = {"shift": shifts.kinds, "keep": Keep, "concept": Concept}


@dataclass(frozen=True)
class Steps:
    """All steps after a partition, by kind and in order."""

    shifts: list[tuple[str, ...]]
    keeps: list[Keep]
    concepts: list[Concept]

    @staticmethod
    def read(specs: list[Spec]) -> Steps:
        """Parse the steps after a partition; refuse unknown steps."""
        steps = Steps([], [], [])
        for spec in specs:
            if spec.name not in STEPS:
                raise unknown("step after a partition called", spec.name, STEPS)
            step = call(spec, STEPS[spec.name])
            match step:
                case Keep():
                    steps.keeps.append(step)
                case Concept():
                    steps.concepts.append(step)
                case _:
                    steps.shifts.append(step)
        if len(steps.concepts) > 1:
            raise UsageError("A partition can have one concept step.")
        return steps

    def shift(self, i: int) -> str | None:
        """Party i's feature shift: kind i of each step, modulo the number of kinds."""
        return "|".join(kinds[i % len(kinds)] for kinds in self.shifts) or None

    def keep(self, party: str, y: Ints, train: Ints, key: Key) -> Ints:
        """The training samples that a party keeps."""
        for n, step in enumerate(self.keeps):
            train = step.select(party, y, train, key.fold("keep", party, n).numpy())
        return train

    def labels(self, i: int, classes: int, key: Key) -> tuple[int, ...] | None:
        """Party i's numbers for the classes; None if they are those of the data."""
        return self.concepts[0].class_numbers(i, classes, key) if self.concepts else None
