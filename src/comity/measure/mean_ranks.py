"""Mean ranks of methods over several federations, with the tests of Demšar, Statistical
Comparisons of Classifiers over Multiple Data Sets, JMLR 2006.

Friedman's test asks whether any methods differ. If it says so, Nemenyi's critical difference tells
which: two methods differ if their mean ranks are at least that far apart. Both look only at the
order of the methods in each federation, so figures of different size, or of different metrics, can
be combined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALPHA = 0.05
FEWEST_METHODS = 3
"""Friedman's test is for three methods or more."""
FEWEST_FEDERATIONS = 5
"""With fewer federations the critical difference covers nearly all ranks there are."""


@dataclass(frozen=True)
class MeanRanks:
    """The mean ranks of methods over federations, and what can be concluded from them."""

    ranks: dict[str, float]
    """Mean rank by method, the best (lowest) first. Equal figures share the mean of their ranks."""
    federations: int
    chi_square: float
    """Friedman's statistic, corrected for equal figures."""
    p: float
    """The p-value of Friedman's test: how probable such ranks are if no methods differ."""
    critical_difference: float
    """Nemenyi's: mean ranks that differ by less are not clearly different."""

    @property
    def differ(self) -> bool:
        """Whether Friedman's test says that some methods differ."""
        return self.p < ALPHA

    @property
    def alike(self) -> list[list[str]]:
        """The largest sets of methods that are not clearly different from each other.

        If Friedman's test finds no difference, this is one set of all methods.
        """
        names = list(self.ranks)
        if not self.differ:
            return [names]
        sets: list[list[str]] = []
        for k, first in enumerate(names):
            near = [
                name
                for name in names[k:]
                if self.ranks[name] - self.ranks[first] < self.critical_difference
            ]
            if len(near) > 1 and not (sets and set(near) <= set(sets[-1])):
                sets.append(near)
        return sets


def mean_ranks(figures: Mapping[str, Sequence[float]]) -> MeanRanks:
    """Return the mean ranks of methods, and the tests of their differences.

    Args:
        figures: For each method, its figure on each federation. Higher is better.

    Raises:
        ValueError: If there are fewer than three methods or fewer than two federations.

    Examples:
        >>> result = mean_ranks({"a": [0.9, 0.8], "b": [0.7, 0.7], "c": [0.6, 0.7]})
        >>> result.ranks
        {'a': 1.0, 'b': 2.25, 'c': 2.75}
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    methods, federations = len(figures), len(next(iter(figures.values()), ()))
    if methods < FEWEST_METHODS or federations < 2:
        raise ValueError("mean ranks need three methods and two federations")
    columns = zip(*figures.values(), strict=True)
    ranks = [rankdata([-value for value in column]) for column in columns]
    sums = [float(sum(ranks_of_method)) for ranks_of_method in zip(*ranks, strict=True)]
    means = {name: total / federations for name, total in zip(figures, sums, strict=True)}
    if all(len(set(row)) == 1 for row in ranks):  # all figures are equal: 0 / 0 in the statistic
        chi_square, p = 0.0, 1.0
    else:
        chi_square, p = map(float, friedmanchisquare(*figures.values()))
    q = float(studentized_range.ppf(1 - ALPHA, methods, math.inf)) / math.sqrt(2)
    difference = q * math.sqrt(methods * (methods + 1) / (6 * federations))
    ordered = dict(sorted(means.items(), key=lambda item: item[1]))
    return MeanRanks(ordered, federations, chi_square, p, difference)
