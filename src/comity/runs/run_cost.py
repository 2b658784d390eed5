"""Estimates of what a run costs before it starts: its cohorts, gradient steps and seconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from comity.runs.party_side import training_of

if TYPE_CHECKING:
    from comity.runs.server_run import ServerRun

COUNTED_ROUNDS = 1_000
COUNTED_DRAWS = 100_000
"""The limits for rounds, and for parties in them, that are counted one by one."""


class RunCost:
    """The cost of a run, estimated from its settings and the parties' sizes."""

    def __init__(self, run: ServerRun) -> None:
        self._run = run

    @cached_property
    def counted_cohorts(self) -> dict[int, list[int]]:
        """The cohorts of the rounds that estimates are based on, by round.

        These are all rounds or, if there are too many, evenly spaced ones up to the last.
        """
        rounds = self._run.experiment.rounds
        limit = max(COUNTED_ROUNDS, COUNTED_DRAWS // len(self._run.context.roster.names))
        sample_rounds = (
            range(1, rounds + 1)
            if rounds <= limit
            else [1 + k * (rounds - 1) // (limit - 1) for k in range(limit)]
        )
        return {t: self._run.cohort(t) for t in sample_rounds}

    def in_all_rounds(self, count: int) -> int:
        """Extrapolate a count in the counted rounds to all rounds.

        Exact if all rounds were counted, or all are equal.
        """
        return count * self._run.experiment.rounds // len(self.counted_cohorts)

    @cached_property
    def party_steps(self) -> list[int]:
        """The gradient steps of each party, and of each newcomer, in one local training."""
        return [
            training_of(self._run.context, i, info.train).steps_for(info.train)
            for i, info in self._run.party_infos.items()
        ]

    def steps_in(self, t: int) -> int:
        """The gradient steps of all parties in round t, if each party trains once."""
        return sum(self.party_steps[i] for i in self._run.cohort(t))

    def plain_steps(self, rounds: int) -> int:
        """The gradient steps of all parties in the first `rounds` rounds, if each party trains once
        in each of its rounds: the budget that methods are compared with.
        """
        return self._in_first(rounds, lambda ids: sum(self.party_steps[i] for i in ids))

    def party_rounds(self, rounds: int) -> int:
        """In how many of the first `rounds` rounds parties take part, summed over parties."""
        return self._in_first(rounds, len)

    def _in_first(self, rounds: int, count: Callable[[list[int]], int]) -> int:
        """Extrapolate a count of the counted rounds to the first `rounds` rounds."""
        party_counts = [count(ids) for t, ids in self.counted_cohorts.items() if t <= rounds]
        return sum(party_counts) * rounds // len(party_counts) if party_counts else 0

    def steps(self) -> int:
        """The gradient steps of all parties in all rounds, if each party function trains once."""
        run = self._run
        late = sum(self.party_steps[i] for i in run.info.late)
        tried = sum(self.steps_in(t) for t in run.algorithm.traits.tried_rounds)
        return late + tried + self.plain_steps(run.experiment.rounds)

    def seconds(self) -> float:
        """A rough estimate of the training time on one worker.

        A step takes about 0.2 ms, and six operations per parameter and sample.
        """
        weights = sum(size for _, size in self._run.info.task.shapes.values()) / 4
        return self.steps() * (2e-4 + 6 * weights * self._run.experiment.batch / 2e10)
