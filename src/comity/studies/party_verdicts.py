"""The answer of a comparison for each party, in words: does it gain by collaborating, by which
method, and how sure is that?
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scipy.special import stdtrit

from comity.data import Federation
from comity.data.split import Share
from comity.measure.gain import Z95, Gain
from comity.metrics.metrics import TWO, Metric, count_by_class, has_too_few, relevant_classes

MOST = 12
"""With more parties than this, they are counted, and only the first are told of one by one."""
FIRST = 5

WITHHELD = "not judged: its site's policy withholds its figures"
Verdict = Literal["gains", "level", "alone", "too few", "not judged"]


@dataclass(frozen=True)
class Estimate:
    """What a method gives over training alone, over all seeds, with an interval that allows for the
    best being picked.
    """

    gain: float
    low: float
    high: float

    @property
    def helped(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low > 0

    @property
    def hurt(self) -> bool:
        """Whether the interval lies below zero."""
        return self.high < 0

    @property
    def short(self) -> str:
        """For a table: half of the interval's width stands in brackets."""
        return f"{100 * self.gain:+.1f} (±{50 * (self.high - self.low):.1f})"

    def __str__(self) -> str:
        return (
            f"{100 * self.gain:+.1f} points (between {100 * self.low:.1f} and"
            f" {100 * self.high:.1f})"
        )


@dataclass(frozen=True)
class PartyVerdict:
    """What a comparison says to one party."""

    party: str
    verdict: Verdict
    says: str
    method: str | None
    """The method that is named: the one that is surest to help or, where all harm, the one that
    harms least surely.
    """
    methods: Mapping[str, Estimate]
    """All methods that it could take part in."""

    def __str__(self) -> str:
        return f"{self.party}: {self.says}"


@dataclass(frozen=True)
class Held:
    """How many samples of each class a party trains and is tested on."""

    train: tuple[int, ...]
    test: tuple[int, ...]
    few: bool = False
    """Whether a party that does not tell how many it has of each class says that it has too few of
    one to judge by.
    """
    withheld: bool = False
    """Whether the policy of the party's site withholds the figures of its test samples."""


@dataclass(frozen=True)
class Parties:
    """What a comparison keeps of a federation: who has which samples, and how many of each class."""

    held: Mapping[str, Held]
    shares: Mapping[str, Share]
    class_names: Sequence[str] = ()

    @staticmethod
    def of(federation: Federation) -> Parties:
        """The parties of a federation."""
        held = {
            name: Held(
                count_by_class(data.train.y, federation.classes),
                count_by_class(data.test.y, federation.classes),
            )
            for name, data in federation.parties.items()
        }
        return Parties(held, federation.split.parties, federation.class_names)

    def only(self, names: Collection[str]) -> Parties:
        """The same without those who do not take part from the start."""
        return replace(self, held={name: has for name, has in self.held.items() if name in names})


def same_parties(splits: Iterable[Mapping[str, Share]]) -> bool:
    """Whether a party has the same samples under every seed; if not, its name is all it has in
    common with itself.
    """
    has = [
        {name: frozenset(s.train + s.validation + s.test) for name, s in split.items()}
        for split in splits
    ]
    return all(one == has[0] for one in has)


def named(party: str, seed: int, same: bool) -> str:
    """A party as it is told of: by its seed too, where it has other samples under another."""
    return party if same else f"{party} (seed {seed})"


def held_by(parties: Mapping[int, Parties], same: bool) -> dict[str, list[Held]]:
    """What each party has under each of its seeds."""
    found: dict[str, list[Held]] = {}
    for seed, each in parties.items():
        for party, has in each.held.items():
            found.setdefault(named(party, seed, same), []).append(has)
    return found


def judged(
    gains: Mapping[int, Sequence[Gain]], few: Mapping[int, Collection[str]], same: bool
) -> dict[int, list[Gain]]:
    """The gains by seed without those of parties whose test samples are too few to judge them by:
    `few` names them, by seed.

    Where parties are the same under all seeds, too few under one of them is too few.
    """
    out = {named(party, seed, same) for seed, some in few.items() for party in some}
    return {
        seed: [gain for gain in each if named(gain.party, seed, same) not in out]
        for seed, each in gains.items()
    }


def estimates(
    gains: Mapping[int, Sequence[Gain]], same: bool, methods: int, metric: Metric
) -> dict[str, Estimate]:
    """What one of so many methods gives each party, from its gains over SOLO by seed.

    Seeds count together where a party is the `same` under all; where it has other samples under
    each, every seed's parties stand for themselves.
    """
    found: dict[str, list[Gain]] = {}
    for seed, each in gains.items():
        for gain in each:
            found.setdefault(named(gain.party, seed, same), []).append(gain)
    return {party: over_seeds(mine, methods, metric.bounded) for party, mine in found.items()}


def on_average(
    gains: Mapping[int, Sequence[Gain]], methods: int, metric: Metric
) -> Estimate | None:
    """What one of so many methods gives the parties on average; None where nobody was judged.

    Parties' test samples are different ones, so their errors do not add up; those of seeds are
    taken to be the same. The interval is around the mean itself: what draws each party's towards
    zero would not be lost among many, but add up.
    """
    seeds = []
    for each in (each for each in gains.values() if each):
        gain = statistics.fmean(one.gain for one in each)
        error = math.sqrt(sum(one.error**2 for one in each)) / len(each)
        seeds.append(Gain("", gain, gain - Z95 * error, gain + Z95 * error, gain, error))
    return over_seeds(seeds, methods, metric.bounded) if seeds else None


def over_seeds(gains: Sequence[Gain], methods: int, bounded: bool = True) -> Estimate:
    """One party's gain by one of so many methods, over seeds.

    Its variance is that of the test samples, which more seeds do not make smaller, as they share
    the party's samples; and that of training, which they do. The second is known from as many runs
    as there are seeds, hence Student's t, with Satterthwaite's degrees of freedom for the sum.
    Bonferroni: with m methods to pick the best of, each has an interval at 1 - 0.05 / m.
    """
    sampling = statistics.fmean(gain.error**2 for gain in gains)
    training = (
        statistics.variance(gain.gain for gain in gains) / len(gains) if len(gains) > 1 else 0.0
    )
    freedom = (len(gains) - 1) * ((sampling + training) / training) ** 2 if training else math.inf
    middle = statistics.fmean(gain.middle for gain in gains)
    half = float(stdtrit(freedom, 1 - 0.025 / methods)) * math.sqrt(sampling + training)
    low, high = middle - half, middle + half
    if bounded:  # shares differ by no more than 1
        low, high = max(-1.0, low), min(1.0, high)
    return Estimate(statistics.fmean(gain.gain for gain in gains), low, high)


def answers(
    found: Mapping[str, Mapping[str, Estimate]],
    held: Mapping[str, Sequence[Held]],
    metric: Metric,
    class_names: Sequence[str] = (),
    foremost: str = "",
) -> list[PartyVerdict]:
    """One answer a party, from what every method gives everybody, and from what parties have.

    Where methods give a party the same, the `foremost` of all is named.
    """
    order = sorted(found, key=lambda method: method != foremost)
    return [
        _answer(
            party,
            {method: found[method][party] for method in order if party in found[method]},
            has,
            metric,
            class_names,
        )
        for party, has in (held.items() if found else ())
    ]


def _answer(
    party: str,
    found: Mapping[str, Estimate],
    has: Sequence[Held],
    metric: Metric,
    class_names: Sequence[str],
) -> PartyVerdict:
    if not found and any(each.withheld for each in has):
        return PartyVerdict(party, "not judged", WITHHELD, None, found)
    if few := _too_few(has, metric, class_names):
        return PartyVerdict(party, "too few", few, None, found)
    if not found:
        return PartyVerdict(
            party,
            "not judged",
            "not judged: it was not heard at the end, or a model has diverged",
            None,
            found,
        )
    best = max(found, key=lambda method: found[method].low)
    if found[best].low > 0:
        return PartyVerdict(party, "gains", f"{found[best]} by {best}", best, found)
    if all(estimate.high < 0 for estimate in found.values()):
        best = max(found, key=lambda method: found[method].high)
        return PartyVerdict(
            party,
            "alone",
            f"better alone; {best}, which costs it least, gives {found[best]}",
            best,
            found,
        )
    best = max(found, key=lambda method: found[method].gain)
    return PartyVerdict(
        party, "level", f"no clear difference; {best} gives {found[best]}", None, found
    )


def _too_few(has: Sequence[Held], metric: Metric, class_names: Sequence[str]) -> str:
    """That there are too few samples to say anything, if there are; under the seed that leaves
    fewest.
    """
    if not any(each.few or has_too_few(each.test, metric) for each in has):
        return ""
    if any(each.few for each in has):
        return "too few test samples to say, or too few of a class, by its own word"
    if len(has[0].test) != TWO:
        return f"too few test samples ({min(sum(each.test) for each in has)}) to say"
    tests, trains, label = min(
        (each.test[label], each.train[label], label)
        for each in has
        for label in relevant_classes(metric)
    )
    what = f"samples of {class_names[label]!r}" if class_names else f"samples of class {label}"
    return f"too few {what} to say ({tests} to test on, {trains} to train on)"


COUNTED: dict[Verdict, str] = {
    "gains": "gain by collaborating",
    "level": "no clear difference",
    "alone": "better alone",
    "too few": "too few samples to say",
    "not judged": "not judged",
}


def lines(every: Sequence[PartyVerdict]) -> list[str]:
    """The answers as they are told: a line a party or, if parties are many, how many there are of
    each kind and the first few.
    """
    if len(every) <= MOST:
        return [str(one) for one in every]
    counts = {verdict: sum(one.verdict == verdict for one in every) for verdict in COUNTED}
    told = ", ".join(f"{count} {COUNTED[verdict]}" for verdict, count in counts.items() if count)
    head = f"{len(every)} parties: {told}. All are in comparison.json, the first {FIRST} here:"
    return [head, *(str(one) for one in every[:FIRST])]


def how_to_read(methods: int, seeds: Sequence[int], metric: Metric, same: bool = True) -> str:
    """What the intervals are about; parties are the `same` under all seeds, or have other samples
    under each.
    """
    picked = f", wider because the best of {methods} methods is named" if methods > 1 else ""
    which = f" (mean over {len(seeds)} seeds)" if len(seeds) > 1 else ""
    which = (
        which
        if same
        else " (under each seed a party has other samples, so it is told of once for each)"
    )
    once = (
        " What another start of training would change is not in it: that takes several seeds of the"
        " same parties."
    )
    twice = (
        " Two seeds tell little of how training varies, so they are wide: more seeds make them"
        " narrower."
    )
    more = once if len(seeds) == 1 or not same else twice if len(seeds) == 2 else ""
    return (
        f"Points of {metric.title} more than by training alone, on a party's own test"
        f" samples{which}; between: where the true difference lies with 95%"
        f" confidence{picked}.{more}"
    )
