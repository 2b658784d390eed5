"""A run as the server knows it: its settings, its method, and what parties say of themselves. It
contains no data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch

from comity.base.key import Key
from comity.core.algorithm import AnyAlgorithm
from comity.core.participation import Rules
from comity.core.party import Info
from comity.core.runner import PartyRunner, SumsReplies
from comity.core.server import Server, cohort
from comity.core.wrapper import chain
from comity.errors import UsageError
from comity.metrics.metrics import ACCURACY, EXPLAINED, METRICS, Metric
from comity.names import display_name
from comity.privacy.account import Account
from comity.runs.config import Experiment
from comity.runs.context import PartyInfo, RunContext
from comity.runs.planned_absences import PlannedAbsences
from comity.runs.privacy_plan import PrivacyPlan
from comity.runs.run_cost import RunCost
from comity.wire.ledger import Ledger

SKEWED = 0.25
"""The label skew above which a method for feature skew gets a warning."""


@runtime_checkable
class Progress(Protocol):
    """Receives the progress of a run."""

    def begin(self, job: ServerRun, first_round: int) -> None:
        """A run begins or continues: rounds up to `first_round` are complete."""

    def add_replies(self, count: int) -> None:
        """`count` more parties have replied in this round."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """Round t is complete.

        `figure` is the mean of the chosen metric if the round was evaluated, and `ledger` has all
        bytes so far.
        """

    def end(self) -> None:
        """The run has ended, normally or by an error."""


class Quiet:
    """Ignores the progress of a run."""

    def begin(self, job: ServerRun, first_round: int) -> None:
        pass

    def add_replies(self, count: int) -> None:
        pass

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        pass

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class ServerRun:
    """Everything that a server needs for a run. The engine has the parties and their data."""

    experiment: Experiment
    context: RunContext
    algorithm: AnyAlgorithm
    info: Info
    absences: PlannedAbsences = field(default_factory=PlannedAbsences)
    """The planned absences of parties."""
    secret: bytes = field(default=b"", repr=False)
    """The server's secret, where parties are at sites: noise that hides values from them is drawn
    from it.
    """

    @cached_property
    def root(self) -> Key:
        """The key of all randomness in the run."""
        return Key.root(self.experiment.seed, self.secret, binds=bool(self.secret))

    @cached_property
    def cost(self) -> RunCost:
        """Estimates of what the run costs."""
        return RunCost(self)

    @cached_property
    def privacy(self) -> PrivacyPlan:
        """What the run will release of each party."""
        return PrivacyPlan(self)

    @property
    def metric(self) -> Metric:
        """The metric that rounds, settings and methods are judged by."""
        return METRICS[self.experiment.metric]

    @property
    def device(self) -> torch.device:
        """The device of the server's tensors: the CPU if workers are on a cluster."""
        return torch.device("cpu" if self.experiment.engine == "ray" else self.experiment.device)

    @cached_property
    def party_infos(self) -> Mapping[int, PartyInfo]:
        """What parties and newcomers said of themselves, by party number."""
        infos = self.context.party_infos.parties
        return {number: infos[name] for number, name in enumerate(self.context.roster.names)}

    @cached_property
    def initial_party_infos(self) -> Mapping[str, PartyInfo]:
        """What the parties that take part from the start said of themselves, by name."""
        return {name: self.context.party_infos.parties[name] for name in self.info.names}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, if they have names."""
        return self.context.party_infos.class_names

    def cohort(self, t: int) -> list[int]:
        """The parties of round t."""
        return cohort(self.root, self.experiment.participation, self.info, t)

    def method_warnings(self) -> list[str]:
        """Warnings for the user about the method on these data."""
        name = display_name(self.experiment.algorithm)
        parts = chain(self.algorithm)
        texts = [text for part in parts for text in part.accounting.warnings(self.info)]
        if not any(part.traits.protects_records for part in parts):
            texts += [
                text for part in parts for text in part.accounting.privacy_warnings(self.info)
            ]
        if not any(task.trains_encoder for task in self.info.tasks):
            texts += [
                f"the encoder is frozen, so {part.traits.encoder_term} has no effect."
                for part in parts
                if part.traits.encoder_term
            ]
        texts += self.absences.without_effect(self.algorithm)
        warnings = [f"{name}: {text}" for text in texts]
        if self.experiment.device != "cpu":
            without = "without --gpus" if self.experiment.gpus else "with --device cpu"
            warnings.append(
                f"Nothing was ever tested on {self.experiment.device}: compare a few rounds"
                f" {without} first."
            )
        if any(part.traits.feature_skew_only for part in parts):
            warnings += self._skew_warnings(name)
        return warnings

    def _skew_warnings(self, name: str) -> list[str]:
        """Warnings if the method is for feature skew only, but labels differ or may differ."""
        skew = self.context.party_infos.label_skew()
        purpose = f"{name} is meant for parties whose inputs differ, but"
        if skew is None:
            return [
                f"{purpose} whether their labels differ here is not known, because a party does not"
                " reveal its class counts."
            ]
        if skew <= SKEWED:
            return []
        return [
            f"{purpose} here their labels do (on average {skew:.0%} of a party's labels would have"
            " to change to match the others'): expect no gain from it."
        ]

    def parties_with_metric(self, split: str) -> list[str]:
        """The parties for whose samples of a split (validation, test) the metric is defined."""
        return [name for name, info in self.initial_party_infos.items() if split in info.judged]

    def check_metric(self) -> None:
        """Refuse a metric that is defined for none of the parties where it is needed."""
        name = display_name(self.experiment.algorithm)
        if not any(info.validation for info in self.initial_party_infos.values()):
            for part in chain(self.algorithm):
                if part.traits.needs_validation:
                    raise UsageError(f"{name}: {part.traits.needs_validation}.")
        metric = self.metric
        if metric is ACCURACY:
            return
        validated = any(info.validation for info in self.party_infos.values())
        needed = ["test", "validation"] if self.experiment.patience and validated else ["test"]
        for split in needed:
            if not self.parties_with_metric(split):
                raise UsageError(
                    f"No party's {split} samples have a figure by metric {metric.name}"
                    f" ({metric.about}): choose another metric."
                )

    def server(
        self, runner: PartyRunner, progress: Progress, account: Account | None = None
    ) -> Server:
        """The server of the run, which calls parties through `runner`."""
        summer = None
        if self.experiment.partial_sums or self.experiment.secure_aggregation:
            assert isinstance(runner, SumsReplies), (
                "settings allow sums of replies only where there are workers or sites"
            )
            summer = runner
        return Server(
            self.algorithm,
            self.info,
            self.root,
            self.experiment.participation,
            runner,
            progress.add_replies,
            Rules(
                self.experiment.on_nonfinite == "stop",
                None if self.absences.is_empty else self.absences,
            ),
            account,
            summer,
        )


def judged_by(experiment: Experiment, classes: int) -> Experiment:
    """The same experiment; with the default metric and no classes, judged by explained variance."""
    if classes or experiment.metric != ACCURACY.name:
        return experiment
    return experiment.but(metric=EXPLAINED.name)
