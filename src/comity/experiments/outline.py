"""A run as the server knows it: its settings, its method, and what parties say of themselves. Nobody's data are in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch

from comity.core.algorithm import AnyAlgorithm
from comity.core.attendance import Rules
from comity.core.key import Key, SecretKey
from comity.core.ledger import Ledger
from comity.core.metrics import ACCURACY, EXPLAINED, METRICS, Metric
from comity.core.net import Net, Works, cohort
from comity.core.party import Info
from comity.core.wrapper import chain
from comity.errors import Refusal
from comity.experiments.absent import PlannedAbsences
from comity.experiments.common import CommonGround, Introduction
from comity.experiments.config import Experiment
from comity.experiments.party_side import training_of
from comity.names import called

COUNTED_ROUNDS, COUNTED_DRAWS = 1_000, 100_000  # rounds, and parties in them, that are counted one by one
SKEWED = 0.25


@runtime_checkable
class Progress(Protocol):
    """Whoever watches a run."""

    def begin(self, job: Outline, first_round: int) -> None:
        """A run begins, or goes on: rounds up to the first one given are over."""

    def answered(self, count: int) -> None:
        """So many more parties have answered what they were asked in this round."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """Round t is over; the mean of the chosen metric, if it was evaluated, and all bytes that crossed so far."""

    def end(self) -> None:
        """The run has ended, one way or another."""


class Quiet:
    """Nobody watches."""

    def begin(self, job: Outline, first_round: int) -> None:
        pass

    def answered(self, count: int) -> None:
        pass

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        pass

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class Outline:
    """All that a server needs to conduct a run. Where parties live, and what they hold, is the engine's matter."""

    experiment: Experiment
    common: CommonGround
    algorithm: AnyAlgorithm
    info: Info
    absent: PlannedAbsences = field(default_factory=PlannedAbsences)
    """Who is to miss what."""
    secret: bytes = field(default=b"", repr=False)
    """The server's own, where parties are elsewhere: of it noise is drawn that hides something from them."""

    @cached_property
    def root(self) -> Key:
        """The key of all randomness in the run."""
        root = Key.root(self.experiment.seed)
        return SecretKey(root.bits, self.secret) if self.secret else root

    @property
    def metric(self) -> Metric:
        """What rounds, settings and methods are judged by."""
        return METRICS[self.experiment.metric]

    @property
    def device(self) -> torch.device:
        """Where tensors live."""
        return torch.device(self.experiment.device)

    @property
    def everybody(self) -> Mapping[int, Introduction]:
        """What parties and newcomers said of themselves, by their numbers."""
        said = self.common.introductions.parties
        return {number: said[name] for number, name in enumerate(self.common.seats.names)}

    @property
    def introduced(self) -> Mapping[str, Introduction]:
        """What those who take part from the start said of themselves, by name."""
        return {name: self.common.introductions.parties[name] for name in self.info.names}

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called, if they have names."""
        return self.common.introductions.class_names

    def cohort(self, t: int) -> list[int]:
        """The parties of round t."""
        return cohort(self.root, self.experiment.participation, self.info, t)

    def method_cautions(self) -> list[str]:
        """What a user should know of the method on these data."""
        name = called(self.experiment.algorithm)
        said = [f"{name}: {text}" for a in chain(self.algorithm) for text in a.cautions(self.info)]
        said += [f"{name}: {text}" for text in self.absent.without_effect(self.algorithm)]
        if self.experiment.device != "cpu":
            said.append(f"Nothing was ever tested on {self.experiment.device}: compare a few rounds with --device cpu first.")
        if any(a.feature_skew_only for a in chain(self.algorithm)):
            said += self._skew(name)
        return said

    def _skew(self, name: str) -> list[str]:
        """What is to be said where a method is not meant for labels that differ."""
        skew = self.common.introductions.label_skew()
        meant = f"{name} is meant for parties whose inputs differ, but"
        if skew is None:
            return [f"{meant} whether their labels do here is not known, as somebody does not tell how many it has of each."]
        if skew <= SKEWED:
            return []
        return [
            f"{meant} here their labels do "
            f"(on average {skew:.0%} of a party's labels would have to change to match the others'): expect it to lose."
        ]

    def judged(self, split: str) -> list[str]:
        """The parties whose samples of a split (validation, test) have a figure by the chosen metric."""
        return [name for name, said in self.introduced.items() if split in said.judged]

    def check_judged(self) -> None:
        """Refuse a metric that none of the parties has a figure by, where one is needed."""
        validated = any(said.validation for said in self.everybody.values())
        needed = ["test", *(["validation"] if self.experiment.patience and validated else [])]
        if not any(said.validation for said in self.introduced.values()) and (
            why := next(filter(None, (a.needs_validation for a in chain(self.algorithm))), "")
        ):
            raise Refusal(f"{called(self.experiment.algorithm)}: {why}.")
        metric = self.metric
        if metric is not ACCURACY and (lacking := next((split for split in needed if not self.judged(split)), None)):
            raise Refusal(
                f"No party's {lacking} samples have a figure by metric {metric.name} ({metric.about}): choose another metric."
            )

    @cached_property
    def counted(self) -> dict[int, list[int]]:
        """The cohorts of the rounds that are looked at to know what all will cost: of all rounds, or if these are too many, of
        some, evenly spread, with the last among them."""
        rounds = self.experiment.rounds
        most = max(COUNTED_ROUNDS, COUNTED_DRAWS // len(self.common.seats.names))
        looked = range(1, rounds + 1) if rounds <= most else [1 + k * (rounds - 1) // (most - 1) for k in range(most)]
        return {t: self.cohort(t) for t in looked}

    def in_all_rounds(self, count: int) -> int:
        """What was found in the `counted` rounds, for all rounds: exact where these are all, or all alike."""
        return count * self.experiment.rounds // len(self.counted)

    def steps(self) -> int:
        """Gradient steps of all parties in all rounds, if each work trains once."""
        each = [training_of(self.common, i, said.train).steps_for(said.train) for i, said in self.everybody.items()]
        late = sum(each[i] for i in self.info.late)
        tried = sum(each[i] for t in self.algorithm.tried_rounds for i in self.cohort(t))
        return late + tried + self.in_all_rounds(sum(each[i] for cohort in self.counted.values() for i in cohort))

    def seconds(self) -> float:
        """A guess at how long one worker trains: a step takes some 0.2 ms, and six flops a parameter and sample."""
        weights = sum(size for _, size in self.info.task.shapes.values()) / 4
        return self.steps() * (2e-4 + 6 * weights * self.experiment.batch / 2e10)

    def net(self, works: Works, progress: Progress) -> Net:
        """What rounds use to reach the parties on an engine."""
        rules = Rules(self.experiment.min_replies, self.experiment.on_nonfinite == "stop", self.absent)
        return Net(self.algorithm, self.info, self.root, self.experiment.participation, works, progress.answered, rules)


def judged_by(experiment: Experiment, classes: int) -> Experiment:
    """The same experiment, judged by what suits labels that are numbers, where nothing else was chosen."""
    if classes or experiment.metric != ACCURACY.name:
        return experiment
    return experiment.but(metric=EXPLAINED.name)
