"""Statistics of an attack's success: intervals, true positives at low false positive rates, and the
smallest epsilon that explains the success.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import beta, binom
from torch import Tensor

from comity.base.key import Key
from comity.metrics.auc import areas, auc

LEVEL = 0.005
"""The error level of an interval. It is so small that of ten attacks without any power, one seems
to have some in fewer than one of twenty audits.
"""
DRAWS = 1000
RATES = (0.01, 0.001)
"""The false positive rates at which true positives are counted."""
GUESSED = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Shares of the candidates about which guesses are made, those with the highest scores first."""


class IntervalEstimate(NamedTuple):
    """An estimate with the ends of its interval."""

    value: float
    low: float
    high: float


class Scored(NamedTuple):
    """An attack's scores of one party's candidates; members should have high scores."""

    scores: Tensor
    member: Tensor


def share(hits: int, tries: int, level: float = LEVEL) -> IntervalEstimate:
    """The share of hits with its exact interval (Clopper and Pearson)."""
    low = float(beta.ppf(level / 2, hits, tries - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - level / 2, hits + 1, tries - hits)) if hits < tries else 1.0
    return IntervalEstimate(hits / tries, low, high)


def area(parties: Sequence[Scored], key: Key) -> IntervalEstimate:
    """The AUC over all parties: the chance that a member has a higher score than another candidate
    of its party. The interval is a bootstrap over candidates.
    """
    pairs = [float(party.member.sum() * (~party.member).sum()) for party in parties]
    resampled = torch.stack(
        [
            areas(party.scores, party.member, _bootstrap_weights(party.member, key.fold(k)))
            for k, party in enumerate(parties)
        ]
    )
    value = math.fsum(
        n * (auc(party.scores, party.member) or 0.5)
        for n, party in zip(pairs, parties, strict=True)
    ) / math.fsum(pairs)
    means = torch.tensor(pairs, dtype=torch.float64) @ resampled / math.fsum(pairs)
    low, high = torch.quantile(
        means, torch.tensor([LEVEL / 2, 1 - LEVEL / 2], dtype=torch.float64)
    ).tolist()
    return IntervalEstimate(value, low, high)


def _bootstrap_weights(member: Tensor, key: Key) -> Tensor:
    """How often each candidate is in each of `DRAWS` bootstrap samples.

    Members and other candidates are resampled separately, so that their numbers stay the same.
    """
    source = key.numpy()
    weights = torch.zeros(DRAWS, len(member), dtype=torch.float64)
    for part in (member, ~member):
        count = int(part.sum())
        weights[:, part] = torch.from_numpy(
            source.multinomial(count, np.full(count, 1 / count), DRAWS)
        ).double()
    return weights


def pool_parties(parties: Sequence[Scored]) -> Scored:
    """The candidates of all parties in one list.

    Each party's scores are centred and scaled by their median, without using who is a member.
    """

    def standardise(scores: Tensor) -> Tensor:
        centred = scores - scores.median()
        return centred / centred.abs().median().clamp(min=1e-12)

    return Scored(
        torch.cat([standardise(party.scores) for party in parties]),
        torch.cat([party.member for party in parties]),
    )


class PositiveRates(NamedTuple):
    """The true and false positive rates at a threshold."""

    members: IntervalEstimate
    """The share of members above the threshold (true positives)."""
    others: IntervalEstimate
    """The share of others above the threshold (false positives)."""

    @property
    def significant(self) -> bool:
        """Whether the true positive rate is above the false positive rate beyond chance."""
        return self.members.low > self.others.high


def positive_rates(parties: Sequence[Scored], rate: float) -> PositiveRates | None:
    """The rates at the threshold with the false positive rate `rate`; None if there are too few
    others to measure it.
    """
    scores, member = pool_parties(parties)
    others = scores[~member].sort(descending=True).values
    if len(others) * rate < 1:
        return None
    above = scores > others[int(len(others) * rate)]
    return PositiveRates(
        *(share(int((above & part).sum()), int(part.sum())) for part in (member, ~member))
    )


def epsilon_from_guesses(parties: Sequence[Scored], delta: float, key: Key) -> float:
    """The smallest epsilon of a record that explains an attack's guesses in one run (Steinke et al.
    2023, Theorem 5.2).

    Members must have been drawn at random. Of the members and others, equal numbers are used,
    drawn at random. The best of several numbers of guesses counts, so that each has its share of
    the error level.
    """
    balanced = [_balance(party, key.fold("balanced", k)) for k, party in enumerate(parties)]
    scores, member = pool_parties([party for party in balanced if len(party.scores)])
    order = scores.argsort(descending=True, stable=True)
    count = len(order)
    epsilons = [0.0]
    for part in GUESSED:
        top = max(1, int(part * count / 2))
        right = int(member[order[:top]].sum())
        both = right + int((~member[order[count - top :]]).sum())
        level = LEVEL / (2 * len(GUESSED))
        epsilons += [
            one_run_epsilon(right, top, count, delta, level),
            one_run_epsilon(both, 2 * top, count, delta, level),
        ]
    return max(epsilons)


def _balance(party: Scored, key: Key) -> Scored:
    """A random choice of candidates with as many members as others."""
    members, others = party.member.nonzero()[:, 0], (~party.member).nonzero()[:, 0]
    least = min(len(members), len(others))
    indices = torch.cat(
        [part[key.fold(k).choose(least, len(part))] for k, part in enumerate((members, others))]
    )
    return Scored(party.scores[indices], party.member[indices])


def one_run_epsilon(right: int, guesses: int, candidates: int, delta: float, level: float) -> float:
    """The largest epsilon under which `right` or more of the guesses would be right in less than
    `level` of all runs.
    """

    def chance(epsilon: float) -> float:
        probability = 1 / (1 + math.exp(-epsilon))  # of one right guess
        # The chances of at least right, right - 1, ..., 0 right guesses.
        tail = binom.sf(np.arange(right, -1, -1) - 1, guesses, probability)
        more = (tail[1:] - tail[0]) / np.arange(1, right + 1)
        return float(tail[0] + 2 * candidates * delta * more.max(initial=0.0))

    if chance(0.0) > level:
        return 0.0
    low, high = 0.0, 1.0
    while chance(high) <= level and high < 64:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) <= level else (low, middle)
    return low
