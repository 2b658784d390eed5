"""Composition: ε at a chosen δ of all releases of a party.

It is computed by privacy loss distributions if dp-accounting is installed (`pip install
comity[privacy]`), else by the Rényi accounting of this package, which is a looser bound. Discrete
Gaussian noise is always accounted for by Rényi divergences, for which the bound of the continuous
Gaussian is proven (Canonne, Kamath and Steinke 2020, Theorem 14).
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

DISCRETE = "discrete gaussian"
History = Mapping[Release, int]
"""Releases, and how often each occurred."""
GRID = 1e-3
"""The grid to which privacy losses are rounded up. A grid ten times finer changes ε by one
ten-thousandth and takes ten times as long.
"""
ACCOUNTANTS = {
    "pld": "privacy loss distributions (dp-accounting)",
    "renyi": (
        "Rényi accounting, which is looser (pip install 'comity[privacy]' for privacy loss"
        " distributions)"
    ),
}


def accountant() -> str:
    """The key in `ACCOUNTANTS` of the accountant that is used."""
    return "pld" if importlib.util.find_spec("dp_accounting") else "renyi"


def weakest_unit(history: History) -> Unit:
    """The unit that all releases protect: the weakest of their units, because a release that
    protects a stronger unit protects the weaker ones as well.
    """
    order = list(UNITS)
    return min((release.unit for release in history), key=order.index, default="party")


def epsilon(history: History, delta: float) -> float:
    """ε at δ of all releases, for the weakest of their units and one neighbouring relation.

    Infinite if the releases have no neighbouring relation in common.
    """
    unified = _with_one_relation(history)
    return math.inf if unified is None else _epsilon(frozenset(unified.items()), delta)


def renyi_epsilon(history: History, delta: float) -> float:
    """The same by Rényi accounting alone: an upper bound, in a thousandth of the time."""
    unified = _with_one_relation(history)
    return math.inf if unified is None else _renyi(unified, delta)


def neighbours_of(history: History) -> str:
    """The neighbouring relation that ε is for; "" if the releases have none in common."""
    relations = {release.neighbours for release in history}
    if len(relations) < 2:
        return next(iter(relations), "blank")
    return "blank" if _with_one_relation(history) is not None else ""


def _with_one_relation(history: History) -> Counter[Release] | None:
    """The same releases under one neighbouring relation; None if that is not possible.

    A guarantee for `replaced` (any other value) implies one for `blank`, not vice versa. For units
    drawn without replacement only the guarantee for `replaced` is known.
    """
    if len({release.neighbours for release in history}) < 2:
        return Counter(history)
    if any(release.drawn_of for release in history):
        return None
    unified: Counter[Release] = Counter()
    for release, count in history.items():
        unified[replace(release, neighbours="blank")] += count
    return unified


@lru_cache(maxsize=4096)
def _epsilon(history: frozenset[tuple[Release, int]], delta: float) -> float:
    releases = dict(history)
    if any(release.multiplier == 0 for release in releases):
        return math.inf
    if not releases:
        return 0.0
    if accountant() == "renyi" or any(r.mechanism == DISCRETE for r in releases):
        return _renyi(releases, delta)
    return _by_distributions(releases, delta)


def _by_distributions(history: History, delta: float) -> float:
    import dp_accounting
    from dp_accounting import pld, rdp

    relations = dp_accounting.NeighboringRelation
    account: Any = (
        rdp.RdpAccountant(neighboring_relation=relations.REPLACE_ONE)
        if any(release.drawn_of for release in history)
        else pld.PLDAccountant(relations.REPLACE_SPECIAL, GRID)
    )
    for release, count in history.items():
        account.compose(dp_accounting.SelfComposedDpEvent(_event(release), release.steps * count))
    return float(account.get_epsilon(delta))


def _event(release: Release) -> Any:
    """A release as an event of dp-accounting; its noise is in units of the sensitivity."""
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
    """Rényi accounting over integer orders. If all noise is Laplace noise, the result is at most
    the sum of the pure ε.
    """
    if any(release.multiplier == 0 for release in history):
        return math.inf
    if not history:
        return 0.0
    bounds: list[float] = []
    for k, order in enumerate(ORDERS):
        divergence = sum(
            count * release.steps * _divergences(_single_step(release))[k]
            for release, count in history.items()
        )
        bounds.append(divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    best = max(0.0, min(bounds))
    if all(release.mechanism == "laplace" for release in history):
        best = min(
            best,
            sum(count * release.steps / release.multiplier for release, count in history.items()),
        )
    return float(best)


def _single_step(release: Release) -> Release:
    """A release with only those values that the divergence of one step depends on (a cache key)."""
    # Sampling without replacement is treated as full participation, which is an upper bound.
    rate = 1.0 if release.drawn_of else release.rate
    return Release("row", release.mechanism, 1.0, release.multiplier, rate=rate)


@lru_cache(maxsize=4096)
def _divergences(release: Release) -> tuple[float, ...]:
    if release.mechanism in ("gaussian", DISCRETE):
        return tuple(
            sampled_gaussian_rdp(release.rate, release.multiplier, order) for order in ORDERS
        )
    return tuple(_laplace_divergence(release.multiplier, order) for order in ORDERS)


def _laplace_divergence(scale: float, order: int) -> float:
    """Rényi divergence of Laplace noise of that scale at sensitivity 1 (Mironov 2017, Prop. 6)."""
    near = math.log(order / (2 * order - 1)) + (order - 1) / scale
    far = math.log((order - 1) / (2 * order - 1)) - order / scale
    high, low = max(near, far), min(near, far)
    return (high + math.log1p(math.exp(low - high))) / (order - 1)


def smallest_noise(fits: Callable[[float], bool], low: float = 1e-2, high: float = 1e5) -> float:
    """The smallest noise for which `fits(noise)` holds, to a relative error of 1/1000.

    `fits` must be monotone: false below some noise and true above it. The result is infinite if
    even `high` does not fit.
    """
    if not fits(high):
        return math.inf
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    rounded = float(f"{high:.4g}")
    return rounded if fits(rounded) else high
