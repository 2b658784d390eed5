"""One method of a comparison against each of the others: paired differences with intervals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from comity.errors import unknown
from comity.measure.gain import Gain
from comity.metrics.metrics import Metric
from comity.names import display_name
from comity.spec import parse, split
from comity.studies.estimate import Estimate
from comity.studies.party_verdicts import average_gain, estimates, without_few

HEADS = ("against", "difference", "between", "better at", "worse at")
"""The columns of the table."""
TWO_SEEDS = 2


@dataclass(frozen=True)
class Difference:
    """A method's difference to another one: above zero, the method is better."""

    mean: Estimate
    """The mean over parties. Its interval is Bonferroni-corrected for the number of others."""
    better: int
    """The number of parties whose own interval lies above zero."""
    worse: int
    """The number of parties whose own interval lies below zero."""
    judged: int
    """The number of parties with enough test samples."""

    def cells(self, other: str) -> list[str]:
        """Return the row of the table."""
        return [
            other,
            f"{100 * self.mean.gain:+.1f}",
            f"{100 * self.mean.low:+.1f} to {100 * self.mean.high:+.1f}",
            f"{self.better}/{self.judged}",
            f"{self.worse}/{self.judged}",
        ]


@dataclass(frozen=True)
class AgainstEach:
    """The differences of one method to all others."""

    method: str
    differences: dict[str, Difference]
    reading: str

    @property
    def rows(self) -> list[list[str]]:
        """The rows of the table, in the order of the comparison."""
        return [difference.cells(other) for other, difference in self.differences.items()]


def find_method(name: str, methods: Sequence[str]) -> str:
    """Return the method that a user calls by its name, with or without its options.

    Raises UsageError if there is none, or more than one.
    """
    names = {display_name(method): method for method in methods}
    if name in names or name in methods:
        return names.get(name, name)
    bare = [method for method in methods if _without_options(method) == _without_options(name)]
    if len(bare) == 1:
        return bare[0]
    raise unknown("method in this comparison called", name, names)


def _without_options(method: str) -> str:
    return "+".join(parse(part).name for part in split(display_name(method), "+"))


def against_each(
    method: str,
    others: Sequence[str],
    gains: Callable[[str, str], Mapping[int, Sequence[Gain]]],
    too_few: Mapping[int, Collection[str]],
    same: bool,
    metric: Metric,
) -> AgainstEach:
    """Compare a method with each of the others, on the same test samples.

    Args:
        method: The method.
        others: The other methods.
        gains: Returns the gains of the parties by one method over another, by seed.
        too_few: The parties with too few test samples, by seed. They count in the mean only.
        same: Whether parties are the same under all seeds.
        metric: The metric.
    """
    differences = {}
    for other in others:
        by_seed = gains(method, other)
        mean = average_gain(by_seed, len(others), metric)
        if mean is None:
            continue
        parties = estimates(without_few(by_seed, too_few, same), same, len(others), metric)
        differences[display_name(other)] = Difference(
            mean,
            sum(estimate.helped for estimate in parties.values()),
            sum(estimate.hurt for estimate in parties.values()),
            len(parties),
        )
    name = display_name(method)
    corrected = f", Bonferroni-corrected for {len(others)} comparisons" if len(others) > 1 else ""
    reading = (
        f"difference: points of {metric.title} that {name} has more than the other method, mean"
        f" over parties, paired over their test samples. between: its 95% interval{corrected}."
        " better at, worse at: parties whose own interval excludes zero."
    )
    if len(too_few) == TWO_SEEDS:
        reading += " Two seeds tell little of how training varies: with more, it is narrower."
    return AgainstEach(name, differences, reading)
