"""How sure an attack's success is: intervals, true positives where false ones are few, and the
least epsilon that explains it.
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
"""How often an interval misses: of ten attacks that can do nothing, hardly one in twenty audits has
one that looks otherwise.
"""
DRAWS = 1000
RATES = (0.01, 0.001)
"""The false positive rates at which true ones are counted."""
GUESSED = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Shares of the candidates about which one guess each is made, the surest first."""


class Estimate(NamedTuple):
    """A figure between the ends of its interval."""

    value: float
    low: float
    high: float


class Scored(NamedTuple):
    """What an attack says of one party's candidates: the higher the score, the more it takes it for
    a member.
    """

    scores: Tensor
    member: Tensor


def share(hits: int, tries: int, level: float = LEVEL) -> Estimate:
    """A share with its exact interval (Clopper and Pearson)."""
    low = float(beta.ppf(level / 2, hits, tries - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - level / 2, hits + 1, tries - hits)) if hits < tries else 1.0
    return Estimate(hits / tries, low, high)


def area(parties: Sequence[Scored], key: Key) -> Estimate:
    """The AUC: the chance that a member outscores another candidate of its party; its interval by
    drawing candidates anew.
    """
    pairs = [float(one.member.sum() * (~one.member).sum()) for one in parties]
    drawn = torch.stack(
        [
            areas(one.scores, one.member, _drawn(one.member, key.fold(k)))
            for k, one in enumerate(parties)
        ]
    )
    value = math.fsum(
        n * (auc(one.scores, one.member) or 0.5) for n, one in zip(pairs, parties, strict=True)
    ) / math.fsum(pairs)
    means = torch.tensor(pairs, dtype=torch.float64) @ drawn / math.fsum(pairs)
    low, high = torch.quantile(
        means, torch.tensor([LEVEL / 2, 1 - LEVEL / 2], dtype=torch.float64)
    ).tolist()
    return Estimate(value, low, high)


def _drawn(member: Tensor, key: Key) -> Tensor:
    """How often each candidate is drawn, `DRAWS` times over: as many members as there are, and as
    many others.
    """
    source = key.numpy()
    weights = torch.zeros(DRAWS, len(member), dtype=torch.float64)
    for part in (member, ~member):
        count = int(part.sum())
        weights[:, part] = torch.from_numpy(
            source.multinomial(count, np.full(count, 1 / count), DRAWS)
        ).double()
    return weights


def together(parties: Sequence[Scored]) -> Scored:
    """All parties' candidates in one list, each party's scores in its own unit: found without a
    look at who is a member.
    """

    def even(scores: Tensor) -> Tensor:
        off = scores - scores.median()
        return off / off.abs().median().clamp(min=1e-12)

    return Scored(
        torch.cat([even(one.scores) for one in parties]), torch.cat([one.member for one in parties])
    )


class Caught(NamedTuple):
    """True positives where false ones are few."""

    members: Estimate
    """The share of members that are found."""
    others: Estimate
    """The share of others that are taken for members."""

    @property
    def beyond(self) -> bool:
        """Whether members are found more often than others are taken for such, beyond chance."""
        return self.members.low > self.others.high


def caught(parties: Sequence[Scored], rate: float) -> Caught | None:
    """What is above the score that so many of the others exceed; None if there are too few others
    to tell.
    """
    scores, member = together(parties)
    others = scores[~member].sort(descending=True).values
    if len(others) * rate < 1:
        return None
    above = scores > others[int(len(others) * rate)]
    return Caught(
        *(share(int((above & part).sum()), int(part.sum())) for part in (member, ~member))
    )


def shown_epsilon(parties: Sequence[Scored], delta: float, key: Key) -> float:
    """The least epsilon of a record that explains an attack's guesses, from one run (Steinke et al.
    2023, Theorem 5.2).

    Who is a member must have been drawn at random. As many members as there are others are looked
    at, drawn anew. Of several numbers of guesses the best counts, so that each has its share of the
    level.
    """
    some = [_balanced(one, key.fold("balanced", k)) for k, one in enumerate(parties)]
    scores, member = together([one for one in some if len(one.scores)])
    order = scores.argsort(descending=True, stable=True)
    count = len(order)
    found = [0.0]
    for part in GUESSED:
        top = max(1, int(part * count / 2))
        right = int(member[order[:top]].sum())
        both = right + int((~member[order[count - top :]]).sum())
        level = LEVEL / (2 * len(GUESSED))
        found += [
            one_run_epsilon(right, top, count, delta, level),
            one_run_epsilon(both, 2 * top, count, delta, level),
        ]
    return max(found)


def _balanced(one: Scored, key: Key) -> Scored:
    """As many members as others."""
    members, others = one.member.nonzero()[:, 0], (~one.member).nonzero()[:, 0]
    least = min(len(members), len(others))
    chosen = torch.cat(
        [part[key.fold(k).choose(least, len(part))] for k, part in enumerate((members, others))]
    )
    return Scored(one.scores[chosen], one.member[chosen])


def one_run_epsilon(right: int, guesses: int, candidates: int, delta: float, level: float) -> float:
    """The largest epsilon with which so many right guesses, or more, would come by chance in less
    than `level` of all runs.
    """

    def chance(epsilon: float) -> float:
        sure = 1 / (1 + math.exp(-epsilon))
        tail = binom.sf(
            np.arange(right, -1, -1) - 1, guesses, sure
        )  # at least right, right - 1, ..., 0 of them
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
