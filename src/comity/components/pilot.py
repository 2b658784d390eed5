"""A choice of kappa on validation data. Before round 1, the method runs some rounds with each
candidate; these rounds are charged like all others.

Every candidate starts from the same state of the server and of each party, and after the last one
all return to it. So the run from round 1 on equals, bit for bit, the run with this kappa as a
number.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from torch import Tensor

from comity.base.content import Content, describe
from comity.base.record import register_earlier_name
from comity.core import (
    Info,
    Key,
    LearningTask,
    Party,
    Server,
    Traffic,
    Traits,
    WireShapes,
    Wrapped,
    Wrapper,
    WrapperAccounting,
    accounts_for,
    on_party,
    record,
)
from comity.core.participation import NoReplies
from comity.core.wrapper import Hosts
from comity.metrics.evaluation import Score, score_on_validation

CANDIDATES = (0.0, 1.0, 5.0, 50.0)
TRIED_BYTES, SCORE_BYTES = 5, 12
HOPELESS = 1e30
"""The loss that a party reports if its model's loss is not finite."""


@record
class Tried:
    """A value of kappa, in a message and in a party's state."""

    value: float = describe(
        Content("a constant of the method that is the same for all parties", "", "nothing")
    )
    trial: bool = describe(
        Content("whether that constant is only being tried", "", "nothing"), default=False
    )
    before: Any = describe(
        Content("nothing: what a party keeps while a constant is tried", "", "nothing"),
        default=None,
    )
    """In a party's state during a trial: the host's state from before it."""


@dataclass(frozen=True)
class CandidateResult:
    """A candidate's result on the validation samples of all parties together."""

    value: float
    accuracy: float
    loss: float
    count: int

    @staticmethod
    def of(value: float, scores: Mapping[int, Score]) -> CandidateResult:
        """Combine the parties' scores, weighted by their numbers of samples."""
        count = sum(score.count for score in scores.values())
        right = sum(score.correct for score in scores.values())
        return CandidateResult(
            value,
            right / count,
            sum(score.loss * score.count for score in scores.values()) / count,
            count,
        )


def rank_candidates(scores: Mapping[float, Mapping[int, Score]]) -> list[CandidateResult]:
    """All candidates, the best first: by accuracy, then by loss, then by the smaller value. Only
    parties that replied for every candidate count.
    """
    judges = set.intersection(*(set(of) for of in scores.values()))
    if not sum(
        candidate.count for of in scores.values() for i, candidate in of.items() if i in judges
    ):
        raise NoReplies("Nobody who has validation samples was heard in the whole pilot.")
    candidates = [
        CandidateResult.of(value, {i: of[i] for i in sorted(judges)})
        for value, of in scores.items()
    ]
    return sorted(
        candidates, key=lambda candidate: (-candidate.accuracy, candidate.loss, candidate.value)
    )


def describe_choice(rounds: int, ranked: list[CandidateResult], classes: int) -> str:
    """A sentence for the user about the choice."""
    best = ranked[0]

    def figure(candidate: CandidateResult) -> str:
        return (
            f"{candidate.value:g}: {candidate.accuracy:.1%} (loss {candidate.loss:.3g})"
            if classes
            else f"{candidate.value:g}: loss {candidate.loss:.3g}"
        )

    figures = ", ".join(
        figure(candidate) for candidate in sorted(ranked, key=lambda candidate: candidate.value)
    )
    out = [
        f"{value:g}"
        for value in CANDIDATES
        if value not in {candidate.value for candidate in ranked}
    ]
    failures = f"; {' and '.join(out)} came to nothing" if out else ""
    return (
        f"kappa=auto chose {best.value:g}, by {best.count:,} validation samples after {rounds} "
        f"{'round' if rounds == 1 else 'rounds'} with each candidate: {figures}{failures}."
    )


@record
class Mean:
    """A mean representation in a message; in a party's state, the consensus mean."""

    z: Tensor = describe(Content("the average of what the model makes of all records", "means"))
    kappa: Tried | None = describe(
        Content("a constant of the method that is the same for all parties", "", "nothing"),
        default=None,
    )
    """The value from a pilot; None if there was none yet."""


register_earlier_name(Mean, "comity.algorithms.dbe:Mean")


class Piloted(Wrapper[Mean]):
    """A wrapper whose kappa may be chosen by a pilot. A party keeps the chosen value in its
    state.
    """

    kappa: float | Literal["paper", "auto"]
    pilot_rounds: int
    """Number of rounds with each candidate."""

    @property
    def auto(self) -> bool:
        """Whether there is a pilot."""
        return self.kappa == "auto"

    @abstractmethod
    def at_cut(self, task: LearningTask) -> LearningTask:
        """The task with the cut at which means are taken."""

    @abstractmethod
    def paper_kappa(self, task: LearningTask) -> float:
        """The paper's kappa for a network of this kind."""

    def weight(self, extra: Mean, task: LearningTask) -> float:
        """The present value of kappa: the paper's, the option, or the one from the pilot."""
        if self.kappa == "paper":
            return self.paper_kappa(task)
        if self.kappa != "auto":
            return self.kappa
        return extra.kappa.value if extra.kappa else 0.0

    def choose(self, s: Wrapped[Mean | None], server: Server) -> Wrapped[Mean | None]:
        """Try each candidate, and send the best one to all parties."""
        scores: dict[float, dict[int, Score]] = {}
        for value in CANDIDATES:
            server.call(self.weigh, dict.fromkeys(server.info.parties, Tried(value, trial=True)))
            with server.trial():
                try:
                    scores[value] = self._run_pilot(s.host, server)
                except NoReplies as why:  # it diverged, for instance: the candidate is left out
                    failure = why
        if not scores:
            raise failure
        ranked = rank_candidates(scores)
        choice = Tried(ranked[0].value)
        server.call(self.weigh, dict.fromkeys(server.info.parties, choice))
        server.note("kappa", choice.value)
        for candidate in ranked:
            server.note(
                f"kappa={candidate.value:g}/accuracy", candidate.accuracy, split="validation"
            )
            server.note(f"kappa={candidate.value:g}/loss", candidate.loss, split="validation")
        server.warn(describe_choice(self.pilot_rounds, ranked, server.info.task.classes))
        assert s.extra is not None
        return replace(s, extra=replace(s.extra, kappa=choice))

    def _run_pilot(self, host: Any, server: Server) -> dict[int, Score]:
        for t in range(1, self.pilot_rounds + 1):
            host = self.host.round(host, server, t)
        return server.call(
            self.judge, {i: self.host.message_for(host, i) for i in server.info.parties}
        )

    def host_state(self, state: Wrapped[Mean]) -> Any:
        """The host's state without the changes of a trial."""
        now = state.extra.kappa
        return now.before if now and now.trial else state.host

    @on_party
    async def weigh(
        self, state: Wrapped[Mean], m: Tried, party: Party, key: Key
    ) -> tuple[Wrapped[Mean], None]:
        """Set another kappa, and return to the state from before the pilot."""
        host = self.host_state(state)
        return (
            Wrapped(host, replace(state.extra, kappa=replace(m, before=host if m.trial else None))),
            None,
        )

    @on_party
    async def judge(
        self, state: Wrapped[Mean], m: Hosts, party: Party, key: Key
    ) -> tuple[Wrapped[Mean], Score]:
        """Score the model that the party would deploy on its validation samples."""
        score = score_on_validation(
            self.party_for(party, state).task, self.deployed_model(state, m, party), party.data
        )
        return state, (
            score if math.isfinite(score.loss) else replace(score, correct=0, loss=HOPELESS)
        )

    def quiet(self, party: Party, extra: Mean) -> Party:
        """The party with a training that keeps no optimizer state, during a trial."""
        now = extra.kappa
        return (
            replace(party, training=replace(party.training, keep=False))
            if now and now.trial
            else party
        )

    def adjust_traits(self, declared: Traits) -> Traits:
        declared = super().adjust_traits(declared)
        if not self.auto:
            return replace(declared, tried_rounds=())
        return replace(
            declared,
            tried_rounds=tuple(range(1, self.pilot_rounds + 1)) * len(CANDIDATES),
            needs_validation=(
                "kappa=auto is chosen on validation samples: give parties some (--validation 0.1),"
                " or kappa a number"
            ),
        )


A = TypeVar("A", bound=Piloted)


@accounts_for(Piloted)
class PilotedAccounting(WrapperAccounting[A]):
    """The accounting of a wrapper with a pilot."""

    def warnings(self, info: Info) -> list[str]:
        kappa = self.method.kappa
        paper = max(self.method.paper_kappa(task) for task in info.tasks)
        if isinstance(kappa, str) or kappa <= paper:
            return []
        return [
            f"kappa={kappa:g} is more than the paper's {paper:g} for a network of this kind, and"
            " may do harm: leave it out, or kappa=auto asks validation data."
        ]

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        return {"Mean.z": self.method.at_cut(task).z_shape}

    def pilot_traffic(self, info: Info) -> Traffic:
        """Bytes of the pilot without its rounds, which the trait `tried_rounds` counts."""
        if not self.method.auto:
            return Traffic()
        n, many = len(info.names), len(CANDIDATES)
        models = many * n * self.host.traffic(info, [0]).down
        return Traffic(up=many * n * SCORE_BYTES, down=(many + 1) * n * TRIED_BYTES + models)
