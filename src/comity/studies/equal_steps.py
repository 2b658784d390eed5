"""Equal budgets for all methods of a comparison: the number of rounds of each method in which a
party takes as many gradient evaluations as in plain local training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from comity.core.participation import NoReplies
from comity.core.wrapper import chain
from comity.names import display_name
from comity.runs.build import SimulatedRun
from comity.runs.planned_absences import PlannedAbsences
from comity.runs.server_run import Quiet
from comity.runs.step_warnings import STEPS

TRIED_ROUNDS = 3
"""The rounds that are tried. In their second round, parties of some methods do more than later."""
TOLERANCE = 0.1
"""The difference to the budget, relative to it, from which on it is mentioned."""


@dataclass(frozen=True)
class EqualSteps:
    """The number of rounds in which a method spends the plain budget."""

    rounds: int
    steps: float
    """The expected gradient evaluations of a party in these rounds, mean over parties."""
    budget: float
    """Those of plain local training in the rounds of the experiment."""
    trains: bool = True
    """Whether parties train at all. If not, the number of rounds is that of the experiment."""

    @property
    def excess(self) -> float:
        """The difference to the budget, relative to it."""
        return self.steps / self.budget - 1 if self.budget else 0.0


def equal_steps(job: SimulatedRun) -> EqualSteps:
    """Return the rounds in which a method spends what one local training a round would.

    The first rounds of the run are tried, with all their parties.
    """
    parties = len(job.info.names)
    rounds = job.experiment.rounds
    budget = job.cost.plain_steps(rounds)
    outside, tried = _try_rounds(job)
    plain = [job.cost.steps_in(t) for t in range(1, len(tried) + 1)]
    pairs = [(steps, once) for steps, once in zip(tried, plain, strict=True) if once]
    if not pairs or not sum(tried) or not budget:
        return EqualSteps(rounds, outside / parties, budget / parties, trains=False)
    # Cohorts may differ in size, so the last round counts relative to plain training.
    last = pairs[-1][0] / pairs[-1][1] * budget / rounds

    def total(count: int) -> float:
        later = max(0, count - len(tried)) * last
        return outside + sum(tried[:count]) + later

    best = rounds  # if parties do not train any more, further rounds cost nothing
    if last:
        best = len(tried) + round((budget - total(len(tried))) / last)
    if best <= len(tried):
        best = min(range(1, len(tried) + 1), key=lambda count: abs(total(count) - budget))
    return EqualSteps(best, total(best) / parties, budget / parties)


def _try_rounds(job: SimulatedRun) -> tuple[int, list[int]]:
    """Return the gradient evaluations of all parties before and after all rounds, and in each of
    the first ones.

    Nothing is written, and planned absences are ignored: they are no property of the method.
    """
    stacked = job.experiment.engine == "stacked"
    where = {
        "engine": "stacked" if stacked else "loop",
        "workers": 1 if stacked else None,
        "gpus": None,
        "partial_sums": False,
    }
    job = replace(job, experiment=job.experiment.but(**where), absences=PlannedAbsences())
    algorithm = job.algorithm
    engine = job.engine()
    server = job.server(engine, Quiet())
    steps: list[int] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a run
    try:
        state = algorithm.init_server(job.root.fold("init"), server.info)
        for t in range(min(TRIED_ROUNDS, job.experiment.rounds) + 1):
            before = server.steps
            server.begin(t)
            server.begin_exchanges()
            try:
                state = algorithm.round(state, server, t) if t else algorithm.start(state, server)
                engine.commit(server.commit())
            except NoReplies:  # nobody was drawn, or all replies diverged
                engine.commit(server.undo())
            steps.append(server.steps - before)
        before = server.steps
        if any(part.traits.finishes for part in chain(algorithm)):
            server.begin_exchanges()
            algorithm.finish(state, server)
        return steps[0] + server.steps - before, steps[1:]
    finally:
        engine.close()
        torch.set_num_threads(threads)


def describe_equal_steps(methods: Mapping[str, EqualSteps], rounds: int) -> list[str]:
    """Return what was done so that all methods spend the same, a sentence each.

    `rounds` is the number of rounds of plain local training.
    """
    trained = {display_name(m): equal for m, equal in methods.items() if equal.trains}
    if not trained:
        return []
    budget = next(iter(trained.values())).budget
    others = {name: equal for name, equal in trained.items() if equal.rounds != rounds}
    listed = ", ".join(f"{name} {equal.rounds:,}" for name, equal in others.items())
    scaled = f"{listed} instead of {rounds:,}" if others else f"{rounds:,} for all methods"
    texts = [f"Equal steps: a party may take about {budget:,.0f} {STEPS}. Rounds: {scaled}."]
    for name, equal in trained.items():
        if abs(equal.excess) <= TOLERANCE:
            continue
        reason = (
            "that is one round: use more --rounds"
            if equal.rounds == 1 and equal.excess > 0
            else "rounds cannot be divided: use more --rounds"
        )
        texts.append(
            f"{name} is not equal: a party takes about {equal.steps:,.0f} steps instead of"
            f" {equal.budget:,.0f}, and {reason}."
        )
    return texts
