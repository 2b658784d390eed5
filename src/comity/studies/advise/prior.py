"""What methods gained on similar federations: the order of a race, and a stated weight in it.

A prior never decides: verdicts use the intervals of this federation alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comity.studies.board import Board, Description

SMALLEST_WEIGHT = 0.05
"""Federations of less similarity do not count."""
NEAR = 0.02
"""A method that is behind the best by no more was near it."""


@dataclass(frozen=True)
class FederationTraits:
    """What federations are compared by."""

    parties: int
    samples: float
    """The training samples of a party, mean over parties."""
    classes: int
    skew: float
    """The mean total variation distance between a party's labels and all labels."""
    linear: bool = False
    """Whether the network has no hidden layer."""
    inputs: float = 0.0
    """How far the parties' inputs are from those of all, in standard deviations."""

    @staticmethod
    def of(description: Description) -> FederationTraits:
        """Return the traits of a described federation."""
        return FederationTraits(
            description.parties,
            description.samples,
            description.classes,
            description.label_skew or 0.0,
            description.network == "linear",
            description.input_difference,
        )

    def similarity(self, other: FederationTraits) -> float:
        """Return how similar two federations are, from 0 to 1."""
        apart = (
            math.log2(self.parties / other.parties) / 3,
            math.log2(max(1, self.samples) / max(1, other.samples)) / 3,
            math.log2((1 + self.classes) / (1 + other.classes)) / 3,
            (self.skew - other.skew) / 0.25,
            (self.inputs - other.inputs) / 0.5,
            2.0 * (self.linear != other.linear),
        )
        return math.exp(-0.5 * sum(d * d for d in apart))


@dataclass(frozen=True)
class GainsElsewhere:
    """What the methods gained over training alone on one federation."""

    traits: FederationTraits
    gains: Mapping[str, float]


@dataclass(frozen=True)
class Expectation:
    """What is expected of a method here."""

    gain: float
    """The mean gain over training alone on similar federations."""
    near_best: float
    """The weighted share of similar federations on which it was within two points of the best."""


@dataclass(frozen=True)
class MethodPrior:
    """The standings of methods on other federations."""

    standings: Sequence[GainsElsewhere] = ()

    def expectations(self, traits: FederationTraits) -> dict[str, Expectation]:
        """Return what is expected of each known method on a federation with these traits."""
        weighted = [
            (w, s) for s in self.standings if (w := s.traits.similarity(traits)) >= SMALLEST_WEIGHT
        ]
        expected: dict[str, Expectation] = {}
        for method in dict.fromkeys(m for _, s in weighted for m in s.gains):
            of_method = [(w, s) for w, s in weighted if method in s.gains]
            total = sum(w for w, _ in of_method)
            near = sum(
                w for w, s in of_method if s.gains[method] >= max([0.0, *s.gains.values()]) - NEAR
            )
            expected[method] = Expectation(
                sum(w * s.gains[method] for w, s in of_method) / total, near / total
            )
        return expected

    def similar(self, traits: FederationTraits) -> int:
        """Return how many of the federations are similar."""
        return sum(s.traits.similarity(traits) >= SMALLEST_WEIGHT for s in self.standings)


def prior_of(board: Board) -> MethodPrior:
    """Return the standings of a board."""
    return MethodPrior(
        [
            GainsElsewhere(
                FederationTraits.of(federation.description),
                {
                    standing.algorithm: standing.gain / 100
                    for standing in federation.methods.values()
                    if standing.algorithm != "solo" and math.isfinite(standing.gain)
                },
            )
            for federation in board.federations
        ]
    )


@dataclass(frozen=True)
class PriorOfRace:
    """The expectations that a race uses, and their weight."""

    expected: Mapping[str, Expectation] = field(default_factory=dict)
    folds: float = 0.0
    """How many folds of this federation they count for in the order of the race."""

    def of(self, method: str) -> Expectation | None:
        """Return what is expected of a method; with values of options, those of the method."""
        return self.expected.get(method) or self.expected.get(without_options(method))

    def plain(self) -> dict[str, Any]:
        """Return the entry of advice.json."""
        return {
            "weight_in_folds": self.folds,
            "expected": {m: vars(e) for m, e in self.expected.items()},
        }


def without_options(method: str) -> str:
    """Return a method without the options in its brackets."""
    return re.sub(r"\([^)]*\)", "", method)
