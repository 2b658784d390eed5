"""How much noise a budget asks for, found before a run; and runs that no noise would bring within
their budget, refused.
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
from comity.core.release import Asked, Release, planned_calls, releases_of
from comity.core.wrapper import Wrapper, chain
from comity.errors import UsageError
from comity.privacy.budget import Budget
from comity.privacy.composition import History, epsilon, renyi_epsilon, smallest_noise

Planned = Callable[[AnyAlgorithm], Iterable[Counter[Release]]]
"""What each party, or a trusted server, will release in a whole run of a method."""


def undecided(algorithm: AnyAlgorithm) -> list[str]:
    """Which wrappers of a method leave their noise open, by name."""
    return [
        type(one).__name__.lower()
        for one in chain(algorithm)
        if isinstance(one, Dp | Ldp) and one.noise == "auto"
    ]


def with_noise(algorithm: AnyAlgorithm, noise: float) -> AnyAlgorithm:
    """The same method with so much noise wherever it was left open."""
    if not isinstance(algorithm, Wrapper):
        return algorithm
    host = with_noise(algorithm.host, noise)
    if isinstance(algorithm, Dp | Ldp) and algorithm.noise == "auto":
        return replace(algorithm, host=host, noise=noise)
    return replace(algorithm, host=host)  # type: ignore[type-var]


def noise_for(algorithm: AnyAlgorithm, budget: Budget, planned: Planned) -> float:
    """The least noise with which nobody gives away more than the budget, to a thousandth of it."""
    if not math.isfinite(budget.epsilon):
        raise UsageError(
            f"{undecided(algorithm)[0]} needs to know how much noise: give a budget (--budget"
            " epsilon=8,delta=1e-5), or noise=1."
        )

    def fits(epsilon_of: Callable[[History, float], float]) -> Callable[[float], bool]:
        def within(noise: float) -> bool:
            histories = {
                frozenset(each.items()): each for each in planned(with_noise(algorithm, noise))
            }
            over = (
                each
                for each in histories.values()
                if renyi_epsilon(each, budget.delta) > budget.epsilon
            )
            return all(epsilon_of(each, budget.delta) <= budget.epsilon for each in over)

        return within

    quick = smallest_noise(
        fits(renyi_epsilon)
    )  # never too small, and near: what takes longer has little left to search
    found = (
        smallest_noise(fits(epsilon), low=quick / 4, high=quick * 4)
        if math.isfinite(quick)
        else smallest_noise(fits(epsilon))
    )
    if math.isinf(found):
        raise UsageError(
            f"No noise brings this run within its budget ({budget}): fewer rounds, or parties with"
            " more records, may."
        )
    return found


def unprotected(algorithm: AnyAlgorithm, asked: Asked) -> list[tuple[str, str]]:
    """Fields that leave parties without noise, with their calls, as far as known before a run."""
    found: list[tuple[str, str]] = []
    for _, depth, function in planned_calls(algorithm, asked.training):
        by_field = releases_of(algorithm, depth, function, asked)
        found += [(name, function) for name, releases in by_field.items() if releases is None]
    return found


def check_budget(algorithm: AnyAlgorithm, budget: Budget, asked: Asked, name: str) -> None:
    """Refuse a run that has a budget and sends things to which nobody adds noise."""
    algorithm = with_noise(algorithm, 1.0)  # how much there is does not matter here
    bounded = math.isfinite(budget.epsilon) and not server_release(
        algorithm, asked.info, asked.info.parties
    )
    if bounded and (bare := unprotected(algorithm, asked)):
        few = ", ".join(f"{field} ({function})" for field, function in bare[:3])
        raise UsageError(
            f"{name} cannot keep to a budget ({budget}): {few} would leave without noise."
        )


def server_release(algorithm: AnyAlgorithm, info: Info, cohort: Sequence[int]) -> Release | None:
    """The release of a trusted server in a round, if it adds noise: the outermost wrapper's."""
    return next(
        filter(None, (one.accounting.server_release(info, cohort) for one in chain(algorithm))),
        None,
    )
