"""The answer of a comparison for each party, in words: does it gain by collaborating, by which method, and how sure is that?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from comity.core.metrics import TWO, Metric
from comity.data import Federation
from comity.data.split import Share
from comity.measure.gain import Gain

LEAST_OF_CLASS = 5
"""Test samples of each of two classes without which a party's figures tell nothing."""
LEAST = 10
"""Test samples, of whatever class, where there are more classes."""
MOST = 12
"""With more parties than this, they are counted, and only the first are told of one by one."""
FIRST = 5

Verdict = Literal["gains", "level", "alone", "too few", "not judged"]


@dataclass(frozen=True)
class Estimate:
    """What a method gives a party over training alone, over all seeds, with an interval that allows for the best being picked."""

    gain: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.gain:+.1f} points (between {100 * self.low:.1f} and {100 * self.high:.1f})"


@dataclass(frozen=True)
class Answer:
    """What a comparison says to one party."""

    party: str
    verdict: Verdict
    says: str
    method: str | None
    """The method that is named: the one that is surest to help or, where all harm, the one that harms least surely."""
    methods: Mapping[str, Estimate]
    """All methods that it could take part in."""

    def __str__(self) -> str:
        return f"{self.party}: {self.says}"


@dataclass(frozen=True)
class Held:
    """How many samples of each class a party trains and is tested on."""

    train: tuple[int, ...]
    test: tuple[int, ...]


@dataclass(frozen=True)
class Parties:
    """What a comparison keeps of a federation: who has which samples, and how many of each class."""

    held: Mapping[str, Held]
    shares: Mapping[str, Share]
    class_names: Sequence[str] = ()

    @staticmethod
    def of(federation: Federation) -> Parties:
        """The parties of a federation."""

        def counts(y: torch.Tensor) -> tuple[int, ...]:
            if not federation.classes:
                return (len(y),)
            return tuple(torch.bincount(y, minlength=federation.classes).tolist())

        held = {name: Held(counts(data.train.y), counts(data.test.y)) for name, data in federation.parties.items()}
        return Parties(held, federation.split.parties, federation.class_names)

    def only(self, names: Collection[str]) -> Parties:
        """The same without those who do not take part from the start."""
        return replace(self, held={name: has for name, has in self.held.items() if name in names})


def same_parties(splits: Iterable[Mapping[str, Share]]) -> bool:
    """Whether a party has the same samples under every seed; if not, its name is all it has in common with itself."""
    has = [{name: frozenset(s.train + s.validation + s.test) for name, s in split.items()} for split in splits]
    return all(one == has[0] for one in has)


def answers(
    gains: Mapping[str, Sequence[Sequence[Gain]]],
    parties: Sequence[Parties],
    metric: Metric,
) -> list[Answer]:
    """One answer a party, from every method's gains over SOLO, seed by seed, and from what parties have under each seed."""
    return [
        _answer(party, _estimates(party, gains, metric), [each.held[party] for each in parties], metric, parties[0].class_names)
        for party in (parties[0].held if gains else ())
    ]


def _estimates(party: str, gains: Mapping[str, Sequence[Sequence[Gain]]], metric: Metric) -> dict[str, Estimate]:
    found = {method: [gain for seed in seeds for gain in seed if gain.party == party] for method, seeds in gains.items()}
    return {method: over_seeds(mine, len(gains), metric.bounded) for method, mine in found.items() if mine}


def over_seeds(gains: Sequence[Gain], methods: int, bounded: bool = True) -> Estimate:
    """One party's gain by one of so many methods, over seeds.

    Its variance is that of the test samples, which more seeds do not make smaller, as they share the party's samples; and that of
    training, which they do. Bonferroni: with m methods to pick the best of, each has an interval at 1 - 0.05 / m.
    """
    sampling = statistics.fmean(gain.error**2 for gain in gains)
    training = statistics.variance(gain.gain for gain in gains) / len(gains) if len(gains) > 1 else 0.0
    middle = statistics.fmean(gain.middle for gain in gains)
    half = statistics.NormalDist().inv_cdf(1 - 0.025 / methods) * math.sqrt(sampling + training)
    low, high = middle - half, middle + half
    if bounded:  # shares differ by no more than 1
        low, high = max(-1.0, low), min(1.0, high)
    return Estimate(statistics.fmean(gain.gain for gain in gains), low, high)


def _answer(party: str, found: Mapping[str, Estimate], has: Sequence[Held], metric: Metric, class_names: Sequence[str]) -> Answer:
    if few := _too_few(has, metric, class_names):
        return Answer(party, "too few", few, None, found)
    if not found:
        return Answer(party, "not judged", "not judged: it was not heard at the end, or a model has diverged", None, found)
    best = max(found, key=lambda method: found[method].low)
    if found[best].low > 0:
        return Answer(party, "gains", f"{found[best]} by {best}", best, found)
    if all(estimate.high < 0 for estimate in found.values()):
        best = max(found, key=lambda method: found[method].high)
        return Answer(party, "alone", f"better alone; {best}, which costs it least, gives {found[best]}", best, found)
    best = max(found, key=lambda method: found[method].gain)
    return Answer(party, "level", f"no clear difference; {best} gives {found[best]}", None, found)


def _too_few(has: Sequence[Held], metric: Metric, class_names: Sequence[str]) -> str:
    """That there are too few samples to say anything, if there are; under the seed that leaves fewest."""
    if len(has[0].test) != TWO:
        tests = min(sum(each.test) for each in has)
        return f"too few test samples ({tests}) to say" if tests < LEAST else ""
    looked_at = range(TWO) if metric.only is None else (metric.only,)
    least = min((each.test[label], each.train[label], label) for each in has for label in looked_at)
    tests, trains, label = least
    if tests >= LEAST_OF_CLASS:
        return ""
    named = f"samples of {class_names[label]!r}" if class_names else f"samples of class {label}"
    return f"too few {named} to say ({tests} to test on, {trains} to train on)"


COUNTED: dict[Verdict, str] = {
    "gains": "gain by collaborating",
    "level": "no clear difference",
    "alone": "better alone",
    "too few": "too few samples to say",
    "not judged": "not judged",
}


def lines(every: Sequence[Answer]) -> list[str]:
    """The answers as they are told: a line a party or, if parties are many, how many there are of each kind and the first few."""
    if len(every) <= MOST:
        return [str(one) for one in every]
    counts = {verdict: sum(one.verdict == verdict for one in every) for verdict in COUNTED}
    told = ", ".join(f"{count} {COUNTED[verdict]}" for verdict, count in counts.items() if count)
    head = f"{len(every)} parties: {told}. All are in comparison.json, the first {FIRST} here:"
    return [head, *(str(one) for one in every[:FIRST])]


def how_to_read(methods: int, seeds: Sequence[int], metric: Metric, less: int = 0) -> str:
    """One sentence about the intervals; `less` seeds are left out, as parties have other samples under them."""
    picked = f", wider because the best of {methods} methods is named" if methods > 1 else ""
    which = f" (mean over {len(seeds)} seeds)" if len(seeds) > 1 else ""
    which = f" (seed {seeds[0]}: under another, a party has other samples)" if less else which
    return (
        f"Points of {metric.title} more than by training alone, on a party's own test samples{which}; between: where the true "
        f"difference lies with 95% confidence{picked}."
    )
