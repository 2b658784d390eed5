"""Parties evaluate what they would deploy, each on its own data, and the figures that they send are
noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from comity.base.call import EvaluationRequest, Message
from comity.metrics.evaluation import Evaluation, Score
from comity.metrics.metrics import ACCURACY, METRICS
from comity.base.record import Empty
from comity.core.runner import in_order
from comity.core.server import Server, cohort
from comity.engines.engine import Engine
from comity.runs.folder import RunFolder
from comity.runs.server_run import ServerRun
from comity.measure.figures import mean

SHARE = (
    "Before the last round a share of the parties evaluated, others each time (eval_share): curves"
    " are means of the last figures that are known, and only the last round counts as one of the"
    " best."
)


@dataclass(frozen=True)
class Evaluations:
    """What parties found."""

    by_party: Mapping[int, Evaluation]
    parties: int
    """How many there are, whether or not they were asked this time."""
    metric: str
    """What rounds are chosen by."""

    @property
    def complete(self) -> bool:
        """Whether everybody was heard."""
        return len(self.by_party) == self.parties

    @property
    def figure(self) -> float | None:
        """The mean of the chosen metric on test samples, over those who were heard and have one;
        None if nobody has.
        """
        found = {
            i: figure
            for i, one in self.by_party.items()
            if (figure := _figure(one.test, self.metric)) is not None
        }
        return mean(found) if found else None

    @property
    def pooled(self) -> float:
        """The share of all test samples together that are right: one model's accuracy, if all
        parties have the same.
        """
        tests = [one.test for one in self.by_party.values()]
        return sum(score.correct for score in tests) / sum(score.count for score in tests)

    @property
    def goodness(self) -> float | None:
        """What rounds are chosen by, more being better: on all validation samples together, or on
        test samples if there are none.

        Accuracy is that of all these samples; of another metric it is the mean over the parties
        that have one, by samples. None if nobody tells.
        """
        known = [one.validation for one in self.by_party.values() if one.validation.count]
        known = known or [one.test for one in self.by_party.values() if one.test.count]
        if not known:
            return None
        if self.metric == ACCURACY.name:
            return sum(score.correct for score in known) / sum(score.count for score in known)
        figures = [
            (score.count, score.figures[self.metric])
            for score in known
            if self.metric in score.figures
        ]
        if not figures:
            return None
        return (
            METRICS[self.metric].sign
            * sum(n * figure for n, figure in figures)
            / sum(n for n, _ in figures)
        )


def _figure(score: Score, metric: str) -> float | None:
    """A party's figure by a metric, if it has one."""
    if metric == ACCURACY.name:
        return score.correct / score.count if score.count else None
    return score.figures.get(metric)


def evaluate(job: ServerRun, server: Server, engine: Engine, s: Any, *, final: bool) -> Evaluations:
    """Each party evaluates what it would deploy; after the last round (`final`) by all metrics, and
    it gives its answers.

    Before it, only the share of the parties that the settings say is asked, others each time.
    """
    ids = (
        job.info.parties
        if final
        else cohort(job.root.fold("evaluate"), job.experiment.eval_share, job.info, server.round)
    )
    if len(ids) < len(job.info.parties):
        server.warnings[SHARE] = None
    messages = _messages(job, s, ids)
    found = Evaluations(
        _asked(server, engine, messages, EvaluationRequest(server.round, final)),
        len(job.info.parties),
        job.metric.name,
    )
    _note(job, server, found.by_party)
    _remark_withheld_validation(job, server, found)
    if (
        found.complete
        and not server.withholding.intersection(found.by_party)
        and job.info.task.classes
        and job.algorithm.traits.one_model
        and not any(task.private for task in job.info.tasks)
    ):
        server.note("accuracy", found.pooled, None, "pooled")
    if final:
        for i, evaluation in found.by_party.items():
            for name, figure in further_figures(evaluation, job.metric.name):
                server.note(name, figure, i, "test")
    return found


def _remark_withheld_validation(job: ServerRun, server: Server, found: Evaluations) -> None:
    """Say by which samples the end was chosen, if all withhold the figures of their validation
    samples.
    """
    validated = any(job.everybody[i].validation for i in found.by_party)
    if (
        job.experiment.patience
        and validated
        and not any(one.validation.count for one in found.by_party.values())
    ):
        server.warnings[
            "All have withheld figures of their validation samples: when to end was judged on test"
            " samples."
        ] = None


def evaluate_unfinished(job: ServerRun, server: Server, engine: Engine, s: Any) -> None:
    """What parties have before a method's last step, its `finish`."""
    _staged(job, server, engine, s, job.info.parties, "unfinished")


def evaluate_newcomers(job: ServerRun, server: Server, engine: Engine, s: Any, stage: str) -> None:
    """What newcomers have at a stage of their joining: what they are `offered`, or have once they
    have `joined`.
    """
    _staged(job, server, engine, s, job.info.late, stage)


def _staged(
    job: ServerRun, server: Server, engine: Engine, s: Any, ids: Iterable[int], stage: str
) -> None:
    found = _asked(
        server, engine, _messages(job, s, ids), EvaluationRequest(server.round, False, stage)
    )
    _note(job, server, found, f"-{stage}")


def evaluate_newcomers_alone(job: ServerRun, server: Server, engine: Engine) -> None:
    """What newcomers would have if they did not join: trained on their own data only. Nothing
    crosses but figures.
    """
    found = {}
    for i, evaluation in in_order(job.info.late, engine.evaluate_solo(job.info.late, server.round)):
        server.charge_reply("alone", i, evaluation, "eval")
        found[i] = evaluation
    _note(job, server, found, "-alone")


def _asked(
    server: Server, engine: Engine, messages: Mapping[int, Any], look: EvaluationRequest
) -> dict[int, Evaluation]:
    """Evaluations of the parties that are heard, in party order; what crosses for them is charged
    as `eval`.
    """
    roll = server.participation_log.begin_call(server.looking(), messages)
    sent = {i: messages[i] for i in roll.there}
    server.charge_messages("evaluate", sent, "eval")
    asked = {i: Message(message, server.versions.get(i)) for i, message in sent.items()}
    found = {}
    for i, evaluation in in_order(sent, engine.evaluate(asked, look)):
        if roll.arrives(i):
            server.charge_reply("evaluate", i, evaluation, "eval")
            found[i] = evaluation
    roll.write_silent()
    return found


def write_outcomes(job: ServerRun, folder: RunFolder, found: Evaluations) -> None:
    """Write down what parties' models said of the test samples after the last round, as far as they
    tell.
    """
    answers = {
        job.info.names[i]: one.answers
        for i, one in found.by_party.items()
        if one.answers is not None
    }
    folder.write_outcomes(answers)


def _messages(job: ServerRun, s: Any, ids: Iterable[int]) -> dict[int, Any]:
    """What each party needs of the server's state to have its model."""
    return {
        i: Empty() if job.algorithm.traits.self_contained else job.algorithm.message_for(s, i) for i in ids
    }


def _note(
    job: ServerRun, server: Server, evaluations: Mapping[int, Evaluation], suffix: str = ""
) -> None:
    """Note the figures of each party, where it has samples, and who withholds those of its test
    samples.

    A suffix to the split's name says what was evaluated.
    """
    for i, evaluation in evaluations.items():
        for split, name, figure in figures(evaluation, server.info.task.classes, job.metric.name):
            server.note(name, figure, i, split + suffix)
        if evaluation.test.count < job.everybody[i].test:  # a site's policy says so
            server.withholding.add(i)
        else:
            server.withholding.discard(i)


def figures(evaluation: Evaluation, classes: int, metric: str) -> Iterator[tuple[str, str, float]]:
    """What is noted of a party's model after every evaluation: (split, metric, figure), where it
    has samples.
    """
    for split, score in (("validation", evaluation.validation), ("test", evaluation.test)):
        if score.count:
            if classes:
                yield split, ACCURACY.name, score.correct / score.count
            yield split, "loss", score.loss
        if metric in score.figures:
            yield split, metric, score.figures[metric]


def further_figures(evaluation: Evaluation, metric: str) -> list[tuple[str, float]]:
    """What is noted of a party's model at the end, on its test samples, beside what is noted after
    every evaluation.
    """
    return [(name, figure) for name, figure in evaluation.test.figures.items() if name != metric]
