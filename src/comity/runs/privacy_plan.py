"""What a run will release of each party, the noise that its budget requires, and what a guarantee
assumes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from comity.core.algorithm import AnyAlgorithm
from comity.core.release import RECORD_UNITS, PartyFacts, Release
from comity.core.wrapper import chain
from comity.errors import UsageError
from comity.names import display_name
from comity.privacy.account import Account, guarantee, plan_releases
from comity.privacy.budget import Budget
from comity.privacy.composition import weakest_unit
from comity.privacy.options import TRAINED_OPENLY
from comity.runs.config import Experiment
from comity.runs.noise_calibration import (
    check_budget,
    noise_for,
    server_release,
    undecided,
    unprotected,
    with_noise,
)
from comity.runs.party_side import training_of

if TYPE_CHECKING:
    from comity.runs.server_run import ServerRun

OWN_CONSTANTS = "inputs scaled or filled in by the party's own records"


class PrivacyPlan:
    """The planned releases of a run, from its settings and what parties say of themselves."""

    def __init__(self, run: ServerRun) -> None:
        self._run = run

    @property
    def budget(self) -> Budget:
        """The limit for what may be released of any party."""
        return Budget.read(self._run.experiment.budget)

    def account(self) -> Account:
        """A new account of what parties release."""
        return Account(
            self._run.algorithm,
            self._run.info,
            self.about_party,
            self.budget,
            self.planned_releases,
            self.coupled,
        )

    def coupled(self, i: int) -> str:
        """Why no noise can protect a single record of a party; empty if noise can."""
        return OWN_CONSTANTS if self._run.party_infos[i].own_constants else ""

    def about_party(self, i: int) -> PartyFacts:
        """What is known of a party before it is called."""
        info = self._run.party_infos[i]
        training = training_of(self._run.context, i, info.train)
        return PartyFacts(self._run.info, i, info.train, training, info.patients)

    def planned_releases(
        self, algorithm: AnyAlgorithm | None = None
    ) -> dict[int, Counter[Release]]:
        """What each party will release in all rounds, with another method if one is given."""
        rounds = Counter(i for ids in self._cohorts for i in ids)
        return plan_releases(
            algorithm or self._run.algorithm, self.about_party, self._run.info.parties, rounds
        )

    def planned_by_server(
        self, algorithm: AnyAlgorithm | None = None
    ) -> dict[int, Counter[Release]]:
        """What a trusted server that adds noise will release of each party in all rounds."""
        info = self._run.info
        releases: dict[int, Counter[Release]] = {i: Counter() for i in info.parties}
        for ids in self._cohorts:
            if release := server_release(algorithm or self._run.algorithm, info, ids):
                for i in info.parties if release.drawn_of else ids:
                    releases[i][release] += 1
        return releases

    @cached_property
    def _cohorts(self) -> list[list[int]]:
        return [self._run.cohort(t) for t in range(1, self._run.experiment.rounds + 1)]

    def guarantees(self) -> dict[str, Any]:
        """The guarantees for each party after all rounds, in the form of `summary.json`."""
        info = self._run.info

        def by_name(plans: Mapping[int, Counter[Release]]) -> dict[str, Counter[Release]]:
            return {info.name(i): plan for i, plan in plans.items() if plan}

        open_fields = {
            (function, name): set(info.names)
            for name, function in unprotected(self._run.algorithm, self.about_party(0))
        }
        plans = self.planned_releases()
        coupled = {
            info.name(i)
            for i, plan in plans.items()
            if self.coupled(i) and weakest_unit(plan) in RECORD_UNITS
        }
        if coupled:
            open_fields["introduce", OWN_CONSTANTS] = coupled
        by_server = by_name(self.planned_by_server())
        trusted_server = guarantee(by_server, {}, self.budget) if by_server else None
        return guarantee(by_name(plans), open_fields, self.budget) | {
            "trusted_server": trusted_server
        }

    def noise(self) -> float | None:
        """The noise that the budget requires, if the method leaves it open, else None."""
        algorithm, info = self._run.algorithm, self._run.info
        name = display_name(self._run.experiment.algorithm)
        check_budget(algorithm, self.budget, self.about_party(0), name)
        bounded = math.isfinite(self.budget.epsilon) and any(
            part.traits.protects_records for part in chain(algorithm)
        )
        coupled = next((info.name(i) for i in info.parties if self.coupled(i)), "")
        if bounded and coupled:
            raise UsageError(
                f"{name} cannot keep to a budget ({self.budget}): {coupled} has {OWN_CONSTANTS}, so"
                " that one record moves what all others are. Use data that are scaled by constants"
                " of no record: --data 'heart(scale=fixed)', or files that are imported with"
                " --constant COLUMN=MEAN,STD for each column of numbers."
            )
        if not undecided(algorithm):
            return None

        def plans(algorithm: AnyAlgorithm) -> list[Counter[Release]]:
            return [
                *self.planned_releases(algorithm).values(),
                *self.planned_by_server(algorithm).values(),
            ]

        return noise_for(algorithm, self.budget, plans)

    def with_noise(self) -> tuple[Experiment, AnyAlgorithm]:
        """The settings and the method with the noise that the budget requires, to be saved with the
        run.
        """
        experiment, algorithm = self._run.experiment, self._run.algorithm
        noise = self.noise()
        if noise is None:
            return experiment, algorithm
        noise_options = {f"{name}.noise": noise for name in undecided(algorithm)}
        others = {
            name: value
            for name, value in experiment.set.items()
            if name not in ("noise", *noise_options)
        }
        return experiment.but(set=others | noise_options), with_noise(algorithm, noise)

    def assumptions(self) -> list[str]:
        """What the guarantees assume, a sentence each."""
        source = (
            "from secrets of the sites"
            if self._run.secret or self._run.experiment.engine == "flare"
            else "from the run's seed and settings, so that whoever knows them can subtract it"
        )
        sentences = [
            "It is for training records. Of validation and test records figures leave as they are.",
            "How many records each party has, and everything in the settings, is no secret.",
            f"Noise is drawn {source}.",
        ]
        if any(count is not None for count in self._run.info.patients):
            sentences.append("How many patients each party has is no secret either.")
        if not any(part.traits.protects_records for part in chain(self._run.algorithm)):
            sentences.append(f"It {TRAINED_OPENLY}")
        return sentences
