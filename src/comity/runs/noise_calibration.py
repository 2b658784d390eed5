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
from comity.core.release import PartyFacts, Release, planned_calls, releases_of
from comity.core.wrapper import Wrapper, chain
from comity.errors import UsageError
from comity.privacy.budget import Budget
from comity.privacy.composition import History, epsilon, renyi_epsilon, smallest_noise

PlannedReleases = Callable[[AnyAlgorithm], Iterable[Counter[Release]]]
"""What each party, or a trusted server, will release in a whole run of a method."""


def undecided(algorithm: AnyAlgorithm) -> list[str]:
    """The names of the wrappers whose noise is "auto"."""
    return [
        type(part).__name__.lower()
        for part in chain(algorithm)
        if isinstance(part, Dp | Ldp) and part.noise == "auto"
    ]


def with_noise(algorithm: AnyAlgorithm, noise: float) -> AnyAlgorithm:
    """The same method with this noise in all wrappers whose noise is "auto"."""
    if not isinstance(algorithm, Wrapper):
        return algorithm
    host = with_noise(algorithm.host, noise)
    if isinstance(algorithm, Dp | Ldp) and algorithm.noise == "auto":
        return replace(algorithm, host=host, noise=noise)
    return replace(algorithm, host=host)  # type: ignore[type-var]


def noise_for(algorithm: AnyAlgorithm, budget: Budget, plans_of: PlannedReleases) -> float:
    """The smallest noise with which no party exceeds the budget, to a thousandth of it.

    `plans_of` returns the planned releases of a method with that noise.
    """
    if not math.isfinite(budget.epsilon):
        raise UsageError(
            f"{undecided(algorithm)[0]} needs to know how much noise: give a budget (--budget"
            " epsilon=8,delta=1e-5), or noise=1."
        )

    def fits(epsilon_of: Callable[[History, float], float]) -> Callable[[float], bool]:
        def within(noise: float) -> bool:
            histories = {
                frozenset(history.items()): history
                for history in plans_of(with_noise(algorithm, noise))
            }
            over = (
                history
                for history in histories.values()
                if renyi_epsilon(history, budget.delta) > budget.epsilon
            )
            return all(epsilon_of(history, budget.delta) <= budget.epsilon for history in over)

        return within

    # A bound that is fast to compute: never too small, and near. So the exact search is short.
    quick = smallest_noise(fits(renyi_epsilon))
    noise = (
        smallest_noise(fits(epsilon), low=quick / 4, high=quick * 4)
        if math.isfinite(quick)
        else smallest_noise(fits(epsilon))
    )
    if math.isinf(noise):
        raise UsageError(
            f"No noise brings this run within its budget ({budget}): fewer rounds, or parties with"
            " more records, may."
        )
    return noise


def unprotected(algorithm: AnyAlgorithm, about_party: PartyFacts) -> list[tuple[str, str]]:
    """The reply fields that leave parties without noise, with their party functions, as far as they
    are known before a run.
    """
    fields: list[tuple[str, str]] = []
    for _, depth, function in planned_calls(algorithm, about_party.training):
        by_field = releases_of(algorithm, depth, function, about_party)
        fields += [(name, function) for name, releases in by_field.items() if releases is None]
    return fields


def check_budget(
    algorithm: AnyAlgorithm, budget: Budget, about_party: PartyFacts, name: str
) -> None:
    """Refuse a run that has a budget and sends fields without noise."""
    algorithm = with_noise(algorithm, 1.0)  # any amount: only whether there is noise matters
    bounded = math.isfinite(budget.epsilon) and not server_release(
        algorithm, about_party.info, about_party.info.parties
    )
    if bounded and (bare := unprotected(algorithm, about_party)):
        few = ", ".join(f"{field} ({function})" for field, function in bare[:3])
        raise UsageError(
            f"{name} cannot keep to a budget ({budget}): {few} would leave without noise."
        )


def server_release(algorithm: AnyAlgorithm, info: Info, cohort: Sequence[int]) -> Release | None:
    """The release of a trusted server in a round, if it adds noise: the outermost wrapper's."""
    return next(
        filter(None, (part.accounting.server_release(info, cohort) for part in chain(algorithm))),
        None,
    )
