"""Evaluation: each party evaluates the model that it would deploy on its own data, and its scores
are noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from comity.base.call import EvaluationRequest, Message
from comity.base.record import Empty
from comity.core.runner import in_order
from comity.core.server import Server, cohort
from comity.engines.engine import Engine
from comity.metrics.evaluation import Evaluation, Score
from comity.metrics.metrics import ACCURACY, METRICS
from comity.runs.config import is_calibrated
from comity.runs.figures import mean
from comity.runs.folder import RunFolder
from comity.runs.server_run import ServerRun

SHARE = (
    "Before the last round a share of the parties evaluated, others each time (eval_share): curves"
    " are means of the last figures that are known, and only the last round counts as one of the"
    " best."
)


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of one round."""

    by_party: Mapping[int, Evaluation]
    parties: int
    """The number of all parties, evaluated or not."""
    metric: str
    """The metric that rounds are chosen by."""

    @property
    def complete(self) -> bool:
        """Whether all parties were evaluated."""
        return len(self.by_party) == self.parties

    @property
    def figure(self) -> float | None:
        """The mean of the chosen metric on test samples over the parties that have it; None if none
        has.
        """
        figures = {
            i: figure
            for i, evaluation in self.by_party.items()
            if (figure := _figure(evaluation.test, self.metric)) is not None
        }
        return mean(figures) if figures else None

    @property
    def pooled(self) -> float:
        """The accuracy on all test samples together: that of one model, if all parties have the
        same.
        """
        tests = [evaluation.test for evaluation in self.by_party.values()]
        return sum(score.correct for score in tests) / sum(score.count for score in tests)

    @property
    def goodness(self) -> float | None:
        """What rounds are chosen by, higher is better: on all validation samples, or on test
        samples if there are none.

        Accuracy is over all these samples; another metric is the mean over the parties that have
        it, weighted by samples. None if no party reports it.
        """
        evaluations = self.by_party.values()
        scores = [e.validation for e in evaluations if e.validation.count]
        scores = scores or [e.test for e in evaluations if e.test.count]
        if not scores:
            return None
        if self.metric == ACCURACY.name:
            return sum(score.correct for score in scores) / sum(score.count for score in scores)
        figures = [
            (score.count, score.figures[self.metric])
            for score in scores
            if self.metric in score.figures
        ]
        if not figures:
            return None
        weighted = sum(count * figure for count, figure in figures)
        total = sum(count for count, _ in figures)
        return METRICS[self.metric].sign * weighted / total


def _figure(score: Score, metric: str) -> float | None:
    """A party's score by a metric; None if it has none."""
    if metric == ACCURACY.name:
        return score.correct / score.count if score.count else None
    return score.figures.get(metric)


def evaluate(job: ServerRun, server: Server, engine: Engine, s: Any, *, final: bool) -> Evaluations:
    """Each party evaluates the model that it would deploy; after the last round (`final`) with all
    metrics and its predictions.

    Before the last round only a sample of the parties is evaluated, of the size that the settings
    say.
    """
    ids = (
        job.info.parties
        if final
        else cohort(job.root.fold("evaluate"), job.experiment.eval_share, job.info, server.round)
    )
    if len(ids) < len(job.info.parties):
        server.warn(SHARE)
    messages = _messages(job, s, ids)
    evaluations = Evaluations(
        _request(server, engine, messages, EvaluationRequest(server.round, final)),
        len(job.info.parties),
        job.metric.name,
    )
    _note(job, server, evaluations.by_party)
    _warn_withheld_validation(job, server, evaluations)
    if (
        evaluations.complete
        and not server.withholding.intersection(evaluations.by_party)
        and job.info.task.classes
        and job.algorithm.traits.one_model
        and not any(task.private for task in job.info.tasks)
        and not (final and is_calibrated(job.experiment))  # parties then have different ones
    ):
        server.note("accuracy", evaluations.pooled, None, "pooled")
    if final:
        for i, evaluation in evaluations.by_party.items():
            for name, figure in further_figures(evaluation, job.metric.name):
                server.note(name, figure, i, "test")
    return evaluations


def _warn_withheld_validation(job: ServerRun, server: Server, evaluations: Evaluations) -> None:
    """Warn that the end was chosen on test samples, if all parties withhold scores of their
    validation samples.
    """
    validated = any(job.party_infos[i].validation for i in evaluations.by_party)
    if (
        job.experiment.patience
        and validated
        and not any(evaluation.validation.count for evaluation in evaluations.by_party.values())
    ):
        server.warn(
            "All have withheld figures of their validation samples: when to end was judged on test"
            " samples."
        )


def evaluate_unfinished(job: ServerRun, server: Server, engine: Engine, s: Any) -> None:
    """Evaluate the models before a method's last step, its `finish`."""
    _evaluate_stage(job, server, engine, s, job.info.parties, "unfinished")


def evaluate_newcomers(job: ServerRun, server: Server, engine: Engine, s: Any, stage: str) -> None:
    """Evaluate newcomers at a stage: the models that they are `offered`, or have once they have
    `joined`.
    """
    _evaluate_stage(job, server, engine, s, job.info.late, stage)


def _evaluate_stage(
    job: ServerRun, server: Server, engine: Engine, s: Any, ids: Iterable[int], stage: str
) -> None:
    evaluations = _request(
        server, engine, _messages(job, s, ids), EvaluationRequest(server.round, False, stage)
    )
    _note(job, server, evaluations, f"-{stage}")


def evaluate_newcomers_alone(job: ServerRun, server: Server, engine: Engine) -> None:
    """Evaluate what newcomers would have without joining: trained on their own data only. Only
    scores are sent.
    """
    evaluations = {}
    for i, evaluation in in_order(job.info.late, engine.evaluate_solo(job.info.late, server.round)):
        server.charge_reply("alone", i, evaluation, "eval")
        evaluations[i] = evaluation
    _note(job, server, evaluations, "-alone")


def _request(
    server: Server, engine: Engine, messages: Mapping[int, Any], request: EvaluationRequest
) -> dict[int, Evaluation]:
    """The evaluations that arrive, in party order. The bytes sent for them are charged as
    `eval`.
    """
    participation = server.participation_log.begin_call(server.evaluation_call(), messages)
    contents = {i: messages[i] for i in participation.reachable}
    server.charge_messages("evaluate", contents, "eval")
    requests = {i: Message(message, server.versions.get(i)) for i, message in contents.items()}
    evaluations = {}
    for i, evaluation in in_order(contents, engine.evaluate(requests, request)):
        if participation.arrives(i):
            server.charge_reply("evaluate", i, evaluation, "eval")
            evaluations[i] = evaluation
    participation.close()
    return evaluations


def write_outcomes(job: ServerRun, folder: RunFolder, evaluations: Evaluations) -> None:
    """Write the parties' predictions for the test samples after the last round, as far as they
    reveal them.
    """
    answers = {
        job.info.names[i]: evaluation.answers
        for i, evaluation in evaluations.by_party.items()
        if evaluation.answers is not None
    }
    folder.write_outcomes(answers)


def _messages(job: ServerRun, s: Any, ids: Iterable[int]) -> dict[int, Any]:
    """What each party needs of the server's state to have its model."""
    return {
        i: Empty() if job.algorithm.traits.self_contained else job.algorithm.message_for(s, i)
        for i in ids
    }


def _note(
    job: ServerRun, server: Server, evaluations: Mapping[int, Evaluation], suffix: str = ""
) -> None:
    """Note the scores of each party that has samples, and which parties withhold those of their
    test samples.

    A suffix to the split's name says what was evaluated.
    """
    for i, evaluation in evaluations.items():
        for split, name, figure in figures(evaluation, server.info.task.classes, job.metric.name):
            server.note(name, figure, i, split + suffix)
        if evaluation.test.count < job.party_infos[i].test:  # as a site policy may require
            server.withholding.add(i)
        else:
            server.withholding.discard(i)


def figures(evaluation: Evaluation, classes: int, metric: str) -> Iterator[tuple[str, str, float]]:
    """The scores that are noted after every evaluation: (split, metric, value), where the party has
    samples.
    """
    for split, score in (("validation", evaluation.validation), ("test", evaluation.test)):
        if score.count:
            if classes:
                yield split, ACCURACY.name, score.correct / score.count
            yield split, "loss", score.loss
        if metric in score.figures:
            yield split, metric, score.figures[metric]


def further_figures(evaluation: Evaluation, metric: str) -> list[tuple[str, float]]:
    """The scores on test samples that are noted after the last evaluation only."""
    return [(name, figure) for name, figure in evaluation.test.figures.items() if name != metric]
