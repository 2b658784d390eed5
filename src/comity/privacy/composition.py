"""ε of everything that a party has given away, at a chosen δ.

By privacy loss distributions where dp-accounting is installed (`pip install comity[privacy]`), else
by Rényi accounting of our own: a bound as well, but a looser one. `ACCOUNTANTS` has the words for
either.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from comity.core.release import UNITS, Release, Unit
from comity.privacy.accounting import ORDERS, sampled_gaussian_rdp

History = Mapping[Release, int]
"""What was released, and how often."""
GRID = 1e-3
"""The grid on which distributions of privacy loss are rounded up: a tenth of it changes ε by a
ten-thousandth, in ten times the time.
"""
ACCOUNTANTS = {
    "pld": "privacy loss distributions (dp-accounting)",
    "renyi": (
        "Rényi accounting, which is looser (pip install comity[privacy] for privacy loss"
        " distributions)"
    ),
}


def accountant() -> str:
    """Which of ACCOUNTANTS is at hand."""
    return "pld" if importlib.util.find_spec("dp_accounting") else "renyi"


def weakest_unit(history: History) -> Unit:
    """The unit that all releases protect: the weakest of theirs, as who protects more protects that
    as well.
    """
    order = list(UNITS)
    return min((release.unit for release in history), key=order.index, default="party")


def epsilon(history: History, delta: float) -> float:
    """ε at δ of all releases together, for the weakest of their units and one kind of neighbours.

    Infinite if they have no kind of neighbours in common.
    """
    alike = _alike(history)
    return math.inf if alike is None else _epsilon(frozenset(alike.items()), delta)


def renyi_epsilon(history: History, delta: float) -> float:
    """The same by Rényi accounting alone, in a thousandth of the time: never below."""
    alike = _alike(history)
    return math.inf if alike is None else _renyi(alike, delta)


def neighbours_of(history: History) -> str:
    """What kind of neighbours ε is for; "" if there is none that all releases can be accounted for."""
    kinds = {release.neighbours for release in history}
    if len(kinds) < 2:
        return next(iter(kinds), "blank")
    return "blank" if _alike(history) is not None else ""


def _alike(history: History) -> Counter[Release] | None:
    """The same releases for one kind of neighbours; None if that cannot be.

    Whoever cannot tell one from any other cannot tell it from a blank: what holds for `replaced`
    holds for `blank`, and never the other way round. Of units that are drawn without replacement
    only the stronger kind is known.
    """
    if len({release.neighbours for release in history}) < 2:
        return Counter(history)
    if any(release.drawn_of for release in history):
        return None
    made: Counter[Release] = Counter()
    for release, count in history.items():
        made[replace(release, neighbours="blank")] += count
    return made


@lru_cache(maxsize=4096)
def _epsilon(history: frozenset[tuple[Release, int]], delta: float) -> float:
    releases = dict(history)
    if any(release.multiplier == 0 for release in releases):
        return math.inf
    if not releases:
        return 0.0
    return _by_distributions(releases, delta) if accountant() == "pld" else _renyi(releases, delta)


def _by_distributions(history: History, delta: float) -> float:
    import dp_accounting
    from dp_accounting import pld, rdp

    drawn = any(release.drawn_of for release in history)
    relation = (
        dp_accounting.NeighboringRelation.REPLACE_ONE
        if drawn
        else dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    )
    account: Any = (
        rdp.RdpAccountant(neighboring_relation=relation)
        if drawn
        else pld.PLDAccountant(relation, GRID)
    )
    for release, count in history.items():
        account.compose(dp_accounting.SelfComposedDpEvent(_event(release), release.steps * count))
    return float(account.get_epsilon(delta))


def _event(release: Release) -> Any:
    """A release in dp-accounting's words: its noise is in units of what one neighbour changes,
    whichever kind that is.
    """
    import dp_accounting

    if release.mechanism == "laplace":
        return dp_accounting.LaplaceDpEvent(release.multiplier)
    noise = dp_accounting.GaussianDpEvent(release.multiplier)
    if release.drawn_of:
        return dp_accounting.SampledWithoutReplacementDpEvent(
            release.drawn_of, release.drawn, noise
        )
    return dp_accounting.PoissonSampledDpEvent(release.rate, noise) if release.rate < 1 else noise


def _renyi(history: History, delta: float) -> float:
    """By the divergences of whole orders; never more than pure ε would add up to, where all is
    Laplace's.
    """
    if any(release.multiplier == 0 for release in history):
        return math.inf
    if not history:
        return 0.0
    found: list[float] = []
    for place, order in enumerate(ORDERS):
        divergence = sum(
            count * release.steps * _divergences(_one(release))[place]
            for release, count in history.items()
        )
        found.append(divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    best = max(0.0, min(found))
    if all(release.mechanism == "laplace" for release in history):
        best = min(
            best,
            sum(count * release.steps / release.multiplier for release, count in history.items()),
        )
    return float(best)


def _one(release: Release) -> Release:
    """What the divergence of one step depends on, and nothing else."""
    rate = (
        1.0 if release.drawn_of else release.rate
    )  # without replacement: as if all took part, which is never too little
    return Release("row", release.mechanism, 1.0, release.multiplier, rate=rate)


@lru_cache(maxsize=4096)
def _divergences(release: Release) -> tuple[float, ...]:
    if release.mechanism == "gaussian":
        return tuple(
            sampled_gaussian_rdp(release.rate, release.multiplier, order) for order in ORDERS
        )
    return tuple(_laplace_divergence(release.multiplier, order) for order in ORDERS)


def _laplace_divergence(scale: float, order: int) -> float:
    """Mironov 2017, Proposition 6: of Laplace noise of that scale on what changes by 1."""
    near = math.log(order / (2 * order - 1)) + (order - 1) / scale
    far = math.log((order - 1) / (2 * order - 1)) - order / scale
    high, low = max(near, far), min(near, far)
    return (high + math.log1p(math.exp(low - high))) / (order - 1)


def smallest_noise(fits: Callable[[float], bool], low: float = 1e-2, high: float = 1e5) -> float:
    """The smallest noise for which `fits(noise)` holds, to a thousandth: there is such a number
    below which it never does.

    Infinite if even `high` does not do.
    """
    if not fits(high):
        return math.inf
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return float(f"{high:.4g}") if fits(float(f"{high:.4g}")) else high
