"""A run as the server knows it: its settings, its method, and what parties say of themselves.
Nobody's data are in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch

from comity.core.algorithm import AnyAlgorithm
from comity.base.key import Key, SecretKey
from comity.wire.ledger import Ledger
from comity.metrics.metrics import ACCURACY, EXPLAINED, METRICS, Metric
from comity.core.participation import Rules
from comity.core.party import Info
from comity.core.release import Asked, Release
from comity.core.runner import PartyRunner, SumsReplies
from comity.core.server import Server, cohort
from comity.core.wrapper import chain
from comity.errors import UsageError
from comity.runs.config import Experiment
from comity.runs.context import PartyInfo, RunContext
from comity.runs.party_side import training_of
from comity.runs.planned_absences import PlannedAbsences
from comity.names import display_name
from comity.privacy.account import Account, guarantee, plan_releases
from comity.privacy.budget import Budget
from comity.privacy.composition import weakest_unit
from comity.privacy.options import TRAINED_OPENLY
from comity.runs.noise_calibration import (
    calibrate_noise,
    check_budget,
    server_release,
    uncalibrated_wrappers,
    unprotected_fields,
    with_noise,
)

COUNTED_ROUNDS, COUNTED_DRAWS = (
    1_000,
    100_000,
)  # rounds, and parties in them, that are counted one by one
SKEWED = 0.25
OWN_CONSTANTS = "inputs scaled or filled in by the party's own records"


@runtime_checkable
class Progress(Protocol):
    """Whoever watches a run."""

    def begin(self, job: ServerRun, first_round: int) -> None:
        """A run begins, or goes on: rounds up to the first one given are over."""

    def answered(self, count: int) -> None:
        """So many more parties have answered what they were asked in this round."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """Round t is over; the mean of the chosen metric, if it was evaluated, and all bytes that
        crossed so far.
        """

    def end(self) -> None:
        """The run has ended, one way or another."""


class Quiet:
    """Nobody watches."""

    def begin(self, job: ServerRun, first_round: int) -> None:
        pass

    def answered(self, count: int) -> None:
        pass

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        pass

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class ServerRun:
    """All that a server needs to conduct a run. Where parties live, and what they hold, is the
    engine's matter.
    """

    experiment: Experiment
    common: RunContext
    algorithm: AnyAlgorithm
    info: Info
    absent: PlannedAbsences = field(default_factory=PlannedAbsences)
    """Who is to miss what."""
    secret: bytes = field(default=b"", repr=False)
    """The server's own, where parties are elsewhere: of it noise is drawn that hides something from
    them.
    """

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
        """Where the server's tensors live: with workers on a cluster, here, whatever these have."""
        return torch.device("cpu" if self.experiment.engine == "ray" else self.experiment.device)

    @property
    def everybody(self) -> Mapping[int, PartyInfo]:
        """What parties and newcomers said of themselves, by their numbers."""
        said = self.common.introductions.parties
        return {number: said[name] for number, name in enumerate(self.common.seats.names)}

    @property
    def introduced(self) -> Mapping[str, PartyInfo]:
        """What those who take part from the start said of themselves, by name."""
        return {name: self.common.introductions.parties[name] for name in self.info.names}

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called, if they have names."""
        return self.common.introductions.class_names

    def cohort(self, t: int) -> list[int]:
        """The parties of round t."""
        return cohort(self.root, self.experiment.participation, self.info, t)

    def method_warnings(self) -> list[str]:
        """What a user should know of the method on these data."""
        name = display_name(self.experiment.algorithm)
        said = [f"{name}: {text}" for a in chain(self.algorithm) for text in a.warnings(self.info)]
        if not any(one.protects_records for one in chain(self.algorithm)):
            said += [
                f"{name}: {text}"
                for a in chain(self.algorithm)
                for text in a.privacy_warnings(self.info)
            ]
        said += [f"{name}: {text}" for text in self.absent.without_effect(self.algorithm)]
        if self.experiment.device != "cpu":
            without = "without --gpus" if self.experiment.gpus else "with --device cpu"
            said.append(
                f"Nothing was ever tested on {self.experiment.device}: compare a few rounds"
                f" {without} first."
            )
        if any(a.feature_skew_only for a in chain(self.algorithm)):
            said += self._skew(name)
        return said

    def _skew(self, name: str) -> list[str]:
        """What is to be said where a method is not meant for labels that differ."""
        skew = self.common.introductions.label_skew()
        meant = f"{name} is meant for parties whose inputs differ, but"
        if skew is None:
            return [
                f"{meant} whether their labels do here is not known, as somebody does not tell how"
                " many it has of each."
            ]
        if skew <= SKEWED:
            return []
        return [
            f"{meant} here their labels do (on average {skew:.0%} of a party's labels would have to"
            " change to match the others'): expect it to lose."
        ]

    def judged(self, split: str) -> list[str]:
        """The parties whose samples of a split (validation, test) have a figure by the chosen
        metric.
        """
        return [name for name, said in self.introduced.items() if split in said.judged]

    def check_judged(self) -> None:
        """Refuse a metric that none of the parties has a figure by, where one is needed."""
        validated = any(said.validation for said in self.everybody.values())
        needed = ["test", *(["validation"] if self.experiment.patience and validated else [])]
        if not any(said.validation for said in self.introduced.values()) and (
            why := next(filter(None, (a.needs_validation for a in chain(self.algorithm))), "")
        ):
            raise UsageError(f"{display_name(self.experiment.algorithm)}: {why}.")
        metric = self.metric
        if metric is not ACCURACY and (
            lacking := next((split for split in needed if not self.judged(split)), None)
        ):
            raise UsageError(
                f"No party's {lacking} samples have a figure by metric {metric.name}"
                f" ({metric.about}): choose another metric."
            )

    @cached_property
    def counted(self) -> dict[int, list[int]]:
        """The cohorts of the rounds that are looked at to know what all will cost: of all rounds,
        or if these are too many, of some, evenly spread, with the last among them.
        """
        rounds = self.experiment.rounds
        most = max(COUNTED_ROUNDS, COUNTED_DRAWS // len(self.common.seats.names))
        looked = (
            range(1, rounds + 1)
            if rounds <= most
            else [1 + k * (rounds - 1) // (most - 1) for k in range(most)]
        )
        return {t: self.cohort(t) for t in looked}

    def in_all_rounds(self, count: int) -> int:
        """What was found in the `counted` rounds, for all rounds: exact where these are all, or all
        alike.
        """
        return count * self.experiment.rounds // len(self.counted)

    def steps(self) -> int:
        """Gradient steps of all parties in all rounds, if each work trains once."""
        each = [
            training_of(self.common, i, said.train).steps_for(said.train)
            for i, said in self.everybody.items()
        ]
        late = sum(each[i] for i in self.info.late)
        tried = sum(each[i] for t in self.algorithm.tried_rounds for i in self.cohort(t))
        return (
            late
            + tried
            + self.in_all_rounds(sum(each[i] for cohort in self.counted.values() for i in cohort))
        )

    def seconds(self) -> float:
        """A guess at how long one worker trains: a step takes some 0.2 ms, and six flops a
        parameter and sample.
        """
        weights = sum(size for _, size in self.info.task.shapes.values()) / 4
        return self.steps() * (2e-4 + 6 * weights * self.experiment.batch / 2e10)

    def server(
        self, works: PartyRunner, progress: Progress, account: Account | None = None
    ) -> Server:
        """What rounds use to reach the parties on an engine."""
        rules = Rules(
            self.experiment.min_replies, self.experiment.on_nonfinite == "stop", self.absent
        )
        adds = None
        if self.experiment.partial_sums:
            assert isinstance(works, SumsReplies), (
                "settings let partial sums through only where there are workers"
            )
            adds = works
        share = self.experiment.participation
        return Server(
            self.algorithm,
            self.info,
            self.root,
            share,
            works,
            progress.answered,
            rules,
            account,
            adds,
        )

    def account(self) -> Account:
        """The account of what parties give away, at the beginning."""
        count = len(self.common.seats.names)
        return Account(
            self.algorithm,
            self.info.name,
            self.asked,
            count,
            self.budget,
            self.planned_releases,
            self.coupled,
        )

    def coupled(self, i: int) -> str:
        """Why a guarantee for a record of a party would not hold, whatever is added to what leaves;
        empty if it would.
        """
        return OWN_CONSTANTS if self.everybody[i].own_constants else ""

    @property
    def budget(self) -> Budget:
        """The most that may be given away of any party."""
        return Budget.read(self.experiment.budget)

    def asked(self, i: int) -> Asked:
        """What is known of a party before it is asked to work."""
        size = self.everybody[i].train
        return Asked(self.info, i, size, training_of(self.common, i, size))

    def planned_releases(
        self, algorithm: AnyAlgorithm | None = None
    ) -> dict[int, Counter[Release]]:
        """What each party will release in all rounds; with another method, if that is given."""
        rounds = Counter(i for drawn in self._cohorts for i in drawn)
        return plan_releases(algorithm or self.algorithm, self.asked, self.info.parties, rounds)

    def planned_by_server(
        self, algorithm: AnyAlgorithm | None = None
    ) -> dict[int, Counter[Release]]:
        """What a trusted server will make known of each party in all rounds, behind noise of its
        own.
        """
        found: dict[int, Counter[Release]] = {i: Counter() for i in self.info.parties}
        for drawn in self._cohorts:
            if release := server_release(algorithm or self.algorithm, self.info, drawn):
                for i in self.info.parties if release.drawn_of else drawn:
                    found[i][release] += 1
        return found

    @cached_property
    def _cohorts(self) -> list[list[int]]:
        return [self.cohort(t) for t in range(1, self.experiment.rounds + 1)]

    def planned_privacy(self) -> dict[str, Any]:
        """What will be guaranteed to each party after all rounds, as `summary.json` will say it."""

        def named(plans: Mapping[int, Counter[Release]]) -> dict[str, Counter[Release]]:
            return {self.info.name(i): plan for i, plan in plans.items() if plan}

        bare = {
            (function, name): set(self.info.names)
            for name, function in unprotected_fields(self.algorithm, self.asked(0))
        }
        plans = self.planned_releases()
        if own := {
            self.info.name(i)
            for i, plan in plans.items()
            if self.coupled(i) and weakest_unit(plan) == "record"
        }:
            bare["introduce", OWN_CONSTANTS] = own
        trusted = named(self.planned_by_server())
        found = guarantee(named(plans), bare, self.budget)
        return found | {"trusted_server": guarantee(trusted, {}, self.budget) if trusted else None}

    def noise(self) -> float | None:
        """The noise that the budget asks for, where the method leaves it open; None where it does
        not.
        """
        check_budget(
            self.algorithm, self.budget, self.asked(0), display_name(self.experiment.algorithm)
        )
        bounded = math.isfinite(self.budget.epsilon) and any(
            one.protects_records for one in chain(self.algorithm)
        )
        if bounded and (
            lacking := next((self.info.name(i) for i in self.info.parties if self.coupled(i)), "")
        ):
            name = display_name(self.experiment.algorithm)
            raise UsageError(
                f"{name} cannot keep to a budget ({self.budget}): {lacking} has {OWN_CONSTANTS}, so"
                " that one record moves what all others are. Use data whose schema has fixed"
                " constants."
            )
        if not uncalibrated_wrappers(self.algorithm):
            return None

        def plans(algorithm: AnyAlgorithm) -> list[Counter[Release]]:
            return [
                *self.planned_releases(algorithm).values(),
                *self.planned_by_server(algorithm).values(),
            ]

        return calibrate_noise(self.algorithm, self.budget, plans)

    def with_noise(self) -> tuple[Experiment, AnyAlgorithm]:
        """The settings and the method with as much noise as the budget asks for, to be written down
        with the run.
        """
        if (noise := self.noise()) is None:
            return self.experiment, self.algorithm
        found = {f"{name}.noise": noise for name in uncalibrated_wrappers(self.algorithm)}
        others = {
            name: value
            for name, value in self.experiment.set.items()
            if name not in ("noise", *found)
        }
        return self.experiment.but(set=others | found), with_noise(self.algorithm, noise)

    def privacy_assumptions(self) -> list[str]:
        """What must hold so that a guarantee holds, a sentence each."""
        secret = (
            "from secrets of the sites"
            if self.secret
            else "from the run's seed and settings, so that whoever knows them can subtract it"
        )
        return [
            "It is for training records. Of validation and test records figures leave as they are.",
            "How many records each party has, and everything in the settings, is no secret.",
            f"Noise is drawn {secret}.",
            *(
                []
                if any(one.protects_records for one in chain(self.algorithm))
                else [f"It {TRAINED_OPENLY}"]
            ),
        ]


def judged_by(experiment: Experiment, classes: int) -> Experiment:
    """The same experiment, judged by what suits labels that are numbers, where nothing else was
    chosen.
    """
    if classes or experiment.metric != ACCURACY.name:
        return experiment
    return experiment.but(metric=EXPLAINED.name)
