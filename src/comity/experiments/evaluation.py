"""Parties evaluate what they would deploy, each on its own data, and the figures that they send are noted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from comity.core.evaluation import Judgement
from comity.core.net import Net
from comity.core.record import Empty
from comity.experiments.build import Job
from comity.experiments.folder import RunFolder
from comity.measure.accuracy import mean


@dataclass(frozen=True)
class Evaluation:
    """What all parties found."""

    judgements: Mapping[int, Judgement]

    @property
    def accuracy(self) -> float | None:
        """The mean test accuracy; None if nobody was asked."""
        found = {i: one.test.correct / one.test.count for i, one in self.judgements.items()}
        return mean(found) if found else None

    @property
    def pooled(self) -> float:
        """The share of all test samples together that are right: one model's accuracy, if all parties have the same."""
        tests = [one.test for one in self.judgements.values()]
        return sum(score.correct for score in tests) / sum(score.count for score in tests)

    @property
    def chosen_by(self) -> float:
        """The accuracy that rounds are chosen by: on all validation samples together, or on test samples if there are none."""
        known = [one.validation for one in self.judgements.values() if one.validation.count]
        known = known or [one.test for one in self.judgements.values()]
        return sum(score.correct for score in known) / max(1, sum(score.count for score in known))


def evaluate(job: Job, net: Net, s: Any, *, final: bool) -> Evaluation:
    """Each party evaluates what it would deploy; after the last round (`final`) it also says which test samples were right."""
    found = Evaluation(net.evaluate(_letters(job, s, job.info.parties), final))
    _note(net, found.judgements)
    if job.algorithm.one_model and not any(task.private for task in job.info.tasks):
        net.note("accuracy", found.pooled, None, "pooled")
    if final:
        for i, judgement in found.judgements.items():
            if judgement.auc is not None:
                net.note("auc" if job.info.task.classes == 2 else "auc_micro", judgement.auc, i, "test")
    return found


def evaluate_unfinished(job: Job, net: Net, s: Any) -> None:
    """What parties have before a method's last step, its `finish`."""
    _note(net, net.evaluate(_letters(job, s, job.info.parties), final=False), "-unfinished")


def evaluate_newcomers(job: Job, net: Net, s: Any, stage: str) -> None:
    """What newcomers have at a stage of their joining: what they are `offered`, or have once they have `joined`."""
    _note(net, net.evaluate(_letters(job, s, job.info.late), final=False), f"-{stage}")


def evaluate_newcomers_alone(job: Job, net: Net) -> None:
    """What newcomers would have if they did not join: trained on their own data only."""
    _note(net, net.alone(job.info.late), "-alone")


def write_outcomes(job: Job, folder: RunFolder, found: Evaluation) -> None:
    """Write down which test samples were right after the last round."""
    right: dict[str, list[bool]] = {}
    for i, judgement in found.judgements.items():
        assert judgement.outcomes is not None, "only a final evaluation has outcomes"
        right[job.info.names[i]] = judgement.outcomes.tolist()
    folder.write_outcomes(right)


def _letters(job: Job, s: Any, ids: Iterable[int]) -> dict[int, Any]:
    """What each party needs of the server's state to have its model."""
    return {i: Empty() if job.algorithm.self_contained else job.algorithm.view(s, i) for i in ids}


def _note(net: Net, judgements: Mapping[int, Judgement], suffix: str = "") -> None:
    """The figures of each party, where it has samples; a suffix to the split's name says what was evaluated."""
    for i, judgement in judgements.items():
        for split, score in (("validation", judgement.validation), ("test", judgement.test)):
            if score.count:
                net.note("accuracy", score.correct / score.count, i, split + suffix)
                net.note("loss", score.loss, i, split + suffix)
