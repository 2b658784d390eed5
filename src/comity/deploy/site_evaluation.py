"""Evaluations at a site: the site's own tables get all figures, and only those leave that the site
policy allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace

from comity.base.call import Message
from comity.base.record import payload
from comity.base.samples import Split
from comity.core.server import Note
from comity.deploy import messages
from comity.deploy.messages import to_call_id
from comity.deploy.policy import SitePolicy
from comity.deploy.sent_ledger import EVALUATION
from comity.deploy.site_run import SiteRun
from comity.deploy.site_store import runs_of, write_view
from comity.errors import UsageError, quote
from comity.measure.gain import gains
from comity.metrics.evaluation import NOTHING, Evaluation, Gained, Score
from comity.names import OWN_MODEL, OWN_MODELS, SOLO
from comity.runs.evaluation import figures, further_figures
from comity.runs.folder import RunFolder
from comity.wire.codec import decode
from comity.wire.ledger import SERVER

JOINED = "joined"
STAGES = ("", "unfinished", "offered", JOINED)


class SiteEvaluation:
    """Evaluates the models of a run."""

    def __init__(self, run: SiteRun) -> None:
        self._run = run

    def evaluate(self, head: messages.Evaluate, body: bytes, policy: SitePolicy) -> Evaluation:
        """Evaluate the deployed model, and return what may leave of the result.

        The site's own tables get the whole result.
        """
        active, after = self._run.active, to_call_id(head.after)
        self._run.check_round(head.round)
        if head.stage not in STAGES:
            raise UsageError(
                f"There is no stage {quote(head.stage)} at which models are evaluated."
            )
        self._run.sent_ledger.check_evaluations(self._run.name, policy)
        content = decode(body, most_bytes=policy.message, records=active.validator.records)
        active.validator.check_evaluation_message(content)
        self._run.tables.charge_received(head.round, "evaluate", "eval", payload(content))
        evaluation = self._run.restore_site(after).evaluate(Message(content, after), head.final)
        self._run.tables.add_metrics(self._metrics(evaluation, head.round, head.stage, head.final))
        if head.final or head.stage == JOINED:
            write_view(self._run.folder.path, content, after)
        if head.final and evaluation.answers is not None:
            self._run.folder.write_outcomes({self._run.party: evaluation.answers})
            evaluation = replace(evaluation, gained=self._gain_over_own_model())
        return self._allowed(evaluation, policy, head.round, "evaluate")

    def evaluate_alone(self, head: messages.EvaluateAlone, policy: SitePolicy) -> Evaluation:
        """Evaluate the model that the site would have from its own data alone."""
        self._run.check_round(head.round)
        if math.isfinite(policy.budget_epsilon):
            raise UsageError(
                f"{self._run.party} reports no model of its own data alone: it would be trained"
                " without noise (budget: epsilon)."
            )
        self._run.sent_ledger.check_evaluations(self._run.name, policy)
        evaluation = self._run.active.site.evaluate_solo(head.round)
        self._run.tables.add_metrics(self._metrics(evaluation, head.round, "alone"))
        return self._allowed(evaluation, policy, head.round, "alone")

    def _allowed(
        self, evaluation: Evaluation, policy: SitePolicy, round: int, call: str
    ) -> Evaluation:
        """What of an evaluation may leave: scores on enough patients or samples, and per-sample
        outcomes if the site policy allows them.
        """

        def is_enough(score: Score, split: Split) -> bool:
            return min(score.count, self._run.data.group_size(split)) >= policy.records

        def if_enough(score: Score, split: Split) -> Score:
            if not is_enough(score, split):
                return NOTHING
            figures = {name: policy.round_figure(value) for name, value in score.figures.items()}
            return replace(score, loss=policy.round_figure(score.loss), figures=figures)

        # Scores could be computed from per-sample outcomes, so that these have the same limit.
        enough_tests = is_enough(evaluation.test, "test")
        allowed = Evaluation(
            if_enough(evaluation.validation, "validation"),
            if_enough(evaluation.test, "test"),
            evaluation.answers if policy.outcomes and enough_tests else None,
            evaluation.gained if enough_tests else None,
        )
        self._run.charge_sent(round, call, [(EVALUATION, payload(allowed), SERVER)], policy)
        return allowed

    def _metrics(
        self, evaluation: Evaluation, round: int, stage: str, final: bool = False
    ) -> Iterator[Note]:
        """The rows of the site's own metrics.csv."""
        classes, metric = self._run.federation.classes, self._run.active.server_run.metric.name
        for split, name, figure in figures(evaluation, classes, metric):
            yield Note(round, self._run.party, f"{split}-{stage}" if stage else split, name, figure)
        for name, figure in further_figures(evaluation, metric) if final else ():
            yield Note(round, self._run.party, "test", name, figure)

    def _gain_over_own_model(self) -> Gained | None:
        """The gain over what the site has alone: the newest run of SOLO, or of its own model, with
        the same settings on the same data. A comparison with plain models runs both, first SOLO.

        None if there is no such run, or if this run is itself without exchange.
        """
        if self._run.experiment.algorithm in (SOLO, *OWN_MODELS):
            return None
        alone = [run for run in runs_of(self._run.at) if run.is_finished and self._is_baseline(run)]
        if not alone:
            return None
        newest = max(alone, key=lambda run: run.summary.stat().st_mtime)
        by_party = gains(
            self._run.folder.path, newest.path, self._run.active.server_run.metric.name
        )
        if not by_party:
            return None
        return Gained(*(getattr(by_party[0], f.name) for f in fields(Gained)))

    def _is_baseline(self, run: RunFolder) -> bool:
        method_settings = {
            "algorithm",
            "set",
            "secure_aggregation",
            "secure_aggregation_range",
        }
        experiment = run.read_experiment()
        same_settings = experiment.model_dump(
            exclude=method_settings
        ) == self._run.experiment.model_dump(exclude=method_settings)
        return (
            experiment.algorithm in (SOLO, OWN_MODEL)
            and same_settings
            and run.read_environment()["fingerprint"] == self._run.introduced.digest
        )
