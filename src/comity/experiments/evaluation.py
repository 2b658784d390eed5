"""Parties evaluate what they would deploy, each on its own data, and the figures that they send are noted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from comity.core.call import Letter
from comity.core.evaluation import Evaluation
from comity.core.net import Net, in_order
from comity.core.record import Empty
from comity.engines.engine import Engine
from comity.experiments.build import Job
from comity.experiments.folder import RunFolder
from comity.measure.accuracy import mean


@dataclass(frozen=True)
class Evaluations:
    """What all parties found."""

    by_party: Mapping[int, Evaluation]
    asked: int

    @property
    def complete(self) -> bool:
        """Whether everybody was heard who was asked."""
        return len(self.by_party) == self.asked

    @property
    def accuracy(self) -> float | None:
        """The mean test accuracy of those who were heard; None if nobody was."""
        found = {i: one.test.correct / one.test.count for i, one in self.by_party.items()}
        return mean(found) if found else None

    @property
    def pooled(self) -> float:
        """The share of all test samples together that are right: one model's accuracy, if all parties have the same."""
        tests = [one.test for one in self.by_party.values()]
        return sum(score.correct for score in tests) / sum(score.count for score in tests)

    @property
    def chosen_by(self) -> float:
        """The accuracy that rounds are chosen by: on all validation samples together, or on test samples if there are none."""
        known = [one.validation for one in self.by_party.values() if one.validation.count]
        known = known or [one.test for one in self.by_party.values()]
        return sum(score.correct for score in known) / max(1, sum(score.count for score in known))


def evaluate(job: Job, net: Net, engine: Engine, s: Any, *, final: bool) -> Evaluations:
    """Each party evaluates what it would deploy; after the last round (`final`) it also says which test samples were right."""
    letters = _letters(job, s, job.info.parties)
    found = Evaluations(_asked(net, engine, letters, final), len(letters))
    _note(net, found.by_party)
    if found.complete and job.algorithm.one_model and not any(task.private for task in job.info.tasks):
        net.note("accuracy", found.pooled, None, "pooled")
    if final:
        for i, evaluation in found.by_party.items():
            if evaluation.auc is not None:
                net.note("auc" if job.info.task.classes == 2 else "auc_micro", evaluation.auc, i, "test")
    return found


def evaluate_unfinished(job: Job, net: Net, engine: Engine, s: Any) -> None:
    """What parties have before a method's last step, its `finish`."""
    _note(net, _asked(net, engine, _letters(job, s, job.info.parties), final=False), "-unfinished")


def evaluate_newcomers(job: Job, net: Net, engine: Engine, s: Any, stage: str) -> None:
    """What newcomers have at a stage of their joining: what they are `offered`, or have once they have `joined`."""
    _note(net, _asked(net, engine, _letters(job, s, job.info.late), final=False), f"-{stage}")


def evaluate_newcomers_alone(job: Job, net: Net, engine: Engine) -> None:
    """What newcomers would have if they did not join: trained on their own data only. Nothing crosses but figures."""
    found = {}
    for i, evaluation in in_order(job.info.late, engine.evaluate_solo(job.info.late, net.round)):
        net.charge_reply("alone", i, evaluation, "eval")
        found[i] = evaluation
    _note(net, found, "-alone")


def _asked(net: Net, engine: Engine, letters: Mapping[int, Any], final: bool) -> dict[int, Evaluation]:
    """Evaluations of the parties that are heard, in party order; what crosses for them is charged as `eval`."""
    roll = net.attendance.roll_call(net.looking(), letters)
    sent = {i: letters[i] for i in roll.there}
    net.charge_letters("evaluate", sent, "eval")
    asked = {i: Letter(letter, net.versions.get(i)) for i, letter in sent.items()}
    found = {}
    for i, evaluation in in_order(sent, engine.evaluate(asked, final)):
        if roll.arrives(i):
            net.charge_reply("evaluate", i, evaluation, "eval")
            found[i] = evaluation
    roll.write_silent()
    return found


def write_outcomes(job: Job, folder: RunFolder, found: Evaluations) -> None:
    """Write down which test samples were right after the last round."""
    right: dict[str, list[bool]] = {}
    for i, evaluation in found.by_party.items():
        assert evaluation.outcomes is not None, "only a final evaluation has outcomes"
        right[job.info.names[i]] = evaluation.outcomes.tolist()
    folder.write_outcomes(right)


def _letters(job: Job, s: Any, ids: Iterable[int]) -> dict[int, Any]:
    """What each party needs of the server's state to have its model."""
    return {i: Empty() if job.algorithm.self_contained else job.algorithm.view(s, i) for i in ids}


def _note(net: Net, evaluations: Mapping[int, Evaluation], suffix: str = "") -> None:
    """The figures of each party, where it has samples; a suffix to the split's name says what was evaluated."""
    for i, evaluation in evaluations.items():
        for split, score in (("validation", evaluation.validation), ("test", evaluation.test)):
            if score.count:
                net.note("accuracy", score.correct / score.count, i, split + suffix)
                net.note("loss", score.loss, i, split + suffix)
