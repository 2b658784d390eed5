"""What methods gained on similar federations: the order of a race, and a stated weight in it.

A prior never decides: verdicts use the intervals of this federation alone.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comity.data import Federation
from comity.errors import UsageError

SMALLEST_WEIGHT = 0.05
"""Federations of less similarity do not count."""


@dataclass(frozen=True)
class Traits:
    """What federations are compared by."""

    parties: int
    samples: float
    """The samples of a party, median over parties."""
    classes: int
    skew: float
    """The mean fraction of a party's labels that would have to change to match all labels."""
    linear: bool = False
    """Whether the network has no hidden layer."""

    @staticmethod
    def of(federation: Federation, network: str = "") -> Traits:
        """Return the traits of a federation."""
        counts = federation.counts().double()
        shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
        pooled = counts.sum(0) / counts.sum().clamp(min=1)
        sizes = [
            len(p.train) + len(p.validation) + len(p.test) for p in federation.parties.values()
        ]
        return Traits(
            len(federation.names),
            statistics.median(sizes),
            federation.classes,
            float(0.5 * (shares - pooled).abs().sum(1).mean()),
            network == "linear",
        )

    def similarity(self, other: Traits) -> float:
        """Return how similar two federations are, from 0 to 1."""
        apart = (
            math.log2(self.parties / other.parties) / 2,
            math.log2(max(1, self.samples) / max(1, other.samples)) / 2,
            math.log2((1 + self.classes) / (1 + other.classes)) / 2,
            (self.skew - other.skew) / 0.2,
            2.0 * (self.linear != other.linear),
        )
        return math.exp(-0.5 * sum(d * d for d in apart))


@dataclass(frozen=True)
class Standing:
    """What the methods gained over training alone on one federation."""

    traits: Traits
    gains: Mapping[str, float]


@dataclass(frozen=True)
class Expectation:
    """What is expected of a method here."""

    gain: float
    """The mean gain over training alone on similar federations."""
    near_best: float
    """The weighted share of similar federations on which it was within two points of the best."""


@dataclass(frozen=True)
class Prior:
    """The standings of methods on other federations."""

    standings: Sequence[Standing] = ()
    source: str = ""
    """Where they come from, for the reader."""

    def expectations(self, traits: Traits) -> dict[str, Expectation]:
        """Return what is expected of each known method on a federation with these traits."""
        weighted = [
            (w, s)
            for s in self.standings
            if (w := s.traits.similarity(traits)) >= SMALLEST_WEIGHT
        ]
        expected: dict[str, Expectation] = {}
        for method in dict.fromkeys(m for _, s in weighted for m in s.gains):
            of_method = [(w, s) for w, s in weighted if method in s.gains]
            total = sum(w for w, _ in of_method)
            near = sum(
                w for w, s in of_method if s.gains[method] >= max(0.0, *s.gains.values()) - 0.02
            )
            expected[method] = Expectation(
                sum(w * s.gains[method] for w, s in of_method) / total, near / total
            )
        return expected

    def similar(self, traits: Traits) -> int:
        """Return how many of the federations are similar."""
        return sum(s.traits.similarity(traits) >= SMALLEST_WEIGHT for s in self.standings)


def read_prior(path: Path) -> Prior:
    """Read a prior from a file of JSON: `{"source": ..., "standings": [...]}`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Prior(
            [Standing(Traits(**row["traits"]), row["gains"]) for row in content["standings"]],
            content.get("source", path.name),
        )
    except OSError as why:
        raise UsageError(f"The prior {path} cannot be read ({why.strerror}).") from why
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise UsageError(
            f"{path} is no prior: it needs standings, each with traits and gains."
        ) from why


@dataclass(frozen=True)
class PriorOfRace:
    """The expectations that a race uses, and their weight."""

    expected: Mapping[str, Expectation] = field(default_factory=dict)
    folds: float = 0.0
    """How many folds of this federation they count for in the order of the race."""

    def plain(self) -> dict[str, Any]:
        """Return the entry of advice.json."""
        return {
            "weight_in_folds": self.folds,
            "expected": {m: vars(e) for m, e in self.expected.items()},
        }
