"""Noise calibration: the smallest noise that keeps a run within its privacy budget.

`check_budget` refuses runs that no noise can keep within a budget, because something leaves a party
without noise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from comity.algorithms.dp import Dp
from comity.algorithms.ldp import Ldp
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Info
from comity.core.release import Asked, Release, planned_works, releases_of
from comity.core.wrapper import Wrapper, chain
from comity.errors import UsageError
from comity.privacy.budget import Budget
from comity.privacy.composition import History, epsilon, renyi_epsilon, smallest_noise

PlanReleases = Callable[[AnyAlgorithm], Iterable[Counter[Release]]]
"""Maps a method to what each party, or a trusted server, will release in a whole run of it."""


def uncalibrated_wrappers(algorithm: AnyAlgorithm) -> list[str]:
    """The names of the method's wrappers whose noise is `auto`."""
    return [
        type(layer).__name__.lower()
        for layer in chain(algorithm)
        if isinstance(layer, Dp | Ldp) and layer.noise == "auto"
    ]


def with_noise(algorithm: AnyAlgorithm, noise: float) -> AnyAlgorithm:
    """The same method with this noise in every wrapper whose noise is `auto`."""
    if not isinstance(algorithm, Wrapper):
        return algorithm
    host = with_noise(algorithm.host, noise)
    if isinstance(algorithm, Dp | Ldp) and algorithm.noise == "auto":
        return replace(algorithm, host=host, noise=noise)
    return replace(algorithm, host=host)  # type: ignore[type-var]


def calibrate_noise(algorithm: AnyAlgorithm, budget: Budget, plan_releases: PlanReleases) -> float:
    """The smallest noise with which no party exceeds the budget, to a relative error of 1/1000.

    Arguments:
        algorithm: a method with at least one wrapper whose noise is `auto`
        budget: the largest ε of a party, and its δ
        plan_releases: maps a method to the releases of each party in the whole run

    Raises `UsageError` if the budget is infinite, or if no noise keeps the run within it.
    """
    if not math.isfinite(budget.epsilon):
        raise UsageError(
            f"{uncalibrated_wrappers(algorithm)[0]} needs to know how much noise: give a budget"
            " (--budget epsilon=8,delta=1e-5), or noise=1."
        )

    def fits_by(epsilon_of: Callable[[History, float], float]) -> Callable[[float], bool]:
        def fits(noise: float) -> bool:
            # Parties with equal plans are checked once.
            histories = {
                frozenset(history.items()): history
                for history in plan_releases(with_noise(algorithm, noise))
            }
            # Rényi accounting is an upper bound: what it accepts needs no slower check.
            unclear = (
                history
                for history in histories.values()
                if renyi_epsilon(history, budget.delta) > budget.epsilon
            )
            return all(epsilon_of(history, budget.delta) <= budget.epsilon for history in unclear)

        return fits

    # The Rényi bound is fast and close, so that the slower accountant searches a small range.
    estimate = smallest_noise(fits_by(renyi_epsilon))
    noise = (
        smallest_noise(fits_by(epsilon), low=estimate / 4, high=estimate * 4)
        if math.isfinite(estimate)
        else smallest_noise(fits_by(epsilon))
    )
    if math.isinf(noise):
        raise UsageError(
            f"No noise keeps this run within its budget ({budget}): try fewer rounds, or parties"
            " with more records."
        )
    return noise


def unprotected_fields(algorithm: AnyAlgorithm, asked: Asked) -> list[tuple[str, str]]:
    """What a party sends without noise, as (field, party function), as far as it is known before
    the run.
    """
    unprotected: list[tuple[str, str]] = []
    for _, depth, function in planned_works(algorithm, asked.training):
        releases_by_field = releases_of(algorithm, depth, function, asked)
        unprotected += [
            (name, function) for name, releases in releases_by_field.items() if releases is None
        ]
    return unprotected


def check_budget(algorithm: AnyAlgorithm, budget: Budget, asked: Asked, name: str) -> None:
    """Refuse a run that has a budget and whose parties send something without noise.

    Arguments:
        algorithm: the method
        budget: the run's budget
        asked: a party that is representative of all
        name: how the method is called in the error message
    """
    algorithm = with_noise(algorithm, 1.0)  # the amount of noise does not matter here
    bounded = math.isfinite(budget.epsilon) and not server_release(
        algorithm, asked.info, asked.info.parties
    )
    if bounded and (unprotected := unprotected_fields(algorithm, asked)):
        examples = ", ".join(f"{field} ({function})" for field, function in unprotected[:3])
        raise UsageError(
            f"{name} cannot keep to a budget ({budget}): {examples} would leave without noise."
        )


def server_release(algorithm: AnyAlgorithm, info: Info, cohort: Sequence[int]) -> Release | None:
    """What a trusted server that adds noise makes known in a round; None if no layer adds noise.

    The outermost layer of the method that declares a release counts.
    """
    releases = (layer.server_release(info, cohort) for layer in chain(algorithm))
    return next(filter(None, releases), None)
