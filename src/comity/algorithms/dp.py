"""DP: Abadi et al., Deep Learning with Differential Privacy, CCS 2016. A wrapper.

Idea: whatever a method's parties train, they train so that no record tells (level=record), or no
patient with all its records (level=patient); or what a trusted server makes of their models tells
of no party (level=party).

level=record, Algorithm 1 of Abadi et al. in place of every training: each step takes each record
with chance B/n_i; g̃ = (Σ clip_C(∇ℓ) + N(0, σ²C²)) / B, then the experiment's optimizer. Nobody
needs to be trusted. level=patient, the same with patients in place of records: each step takes each
patient with chance B/P_i, and a patient p with records R_p adds Σ_{r∈R_p} clip_C(∇ℓ_r) / |R_p|,
whose norm is at most C. level=party, DP-FedAvg (McMahan et al., Learning Differentially Private
Recurrent Language Models, ICLR 2018): Δ_i ← clip_C(θ_i − θ); θ ← θ + (Σ_{i∈S} Δ_i)/|S| + N(0,
(σC/|S|)²) at the server, which sees every Δ_i. With secure aggregation nobody needs to be trusted:
each site adds discrete Gaussian noise to its Δ_i, and the server sees their sum (Kairouz, Liu and
Steinke, ICML 2021).

At a glance: personal = what the host's is; exchanged = what the host exchanges, with noise or
clipped for a server that adds it; kept = what the host keeps; steps = the host's, each record's
gradient clipped.
Symbols: C = clip; σ = noise; B = the experiment's batch; n_i = records of party i; P_i = patients
of party i; S = the round's parties.
Deviations: a party's records are n_i throughout, so two neighbours differ in one record (patient)
that is blank in one of them. With level=party all parties count alike, and a cohort is drawn
without replacement: what that gains is accounted for as such. What looks at records in any other
way than by being trained on them is refused: own steps, BatchNorm, losses that couple a batch,
counts of labels.
Compared: level=party is the same as Flower's clipping at the server, level=record as fluke's by
Opacus, without noise; with noise both are within chance. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Literal

import torch

from comity.algorithms.fedavg import AveragedModel
from comity.components.hidden_means import SendsMeans
from comity.core import *
from comity.core.aggregate import NoisyAveraging
from comity.core.release import ALL, STAGES, PartyFacts, Release, Releases, Unit, releases_of
from comity.core.signature import party_functions
from comity.core.wrapper import AsHost, chain
from comity.privacy.guard import hide_samples
from comity.training.dp_sgd import Sampling
from comity.training.requests import Private

ROWS_OF_PATIENTS = (
    "dp cannot protect patients here: the noise that the method itself adds protects single rows,"
    " and a patient may have several; write dp(level=record) to protect records."
)


def clipped(change: Params, most: float) -> Params:
    """A change of some parameters, of that norm at most."""
    size = torch.stack([value.square().sum() for value in change.values()]).sum().sqrt()
    return {name: value * (most / size.clamp(min=most)) for name, value in change.items()}


@algorithm
class Dp(AsHost[None]):
    host: AnyAlgorithm
    level: Literal["auto", "record", "patient", "party"] = option(
        "auto",
        "whom it protects: a record; a patient with all its records; or a party, if the server is"
        " trusted. auto: a patient if the data name patients, else a record",
    )
    noise: float | Literal["auto"] = option(
        "auto", "σ, in units of C; auto: as little as the run's budget allows", minimum=0
    )
    clip: float = option(
        1.0,
        "C, the norm of a record's gradient, or of a party's change of the model, at most",
        above=0,
    )
    amplify: bool = option(
        True, "level=party: that nobody knows who was drawn for a round counts as protection"
    )

    @classmethod
    def check_host(cls, host: AnyAlgorithm, name: str, wrapper: str) -> None:
        if host.traits.why_not_private:
            first = f" ({name}+ldp+{wrapper} hides them)" if isinstance(host, SendsMeans) else ""
            raise UsageError(
                f"{wrapper} is not supported with {name}: {host.traits.why_not_private}{first}."
            )

    def check(self, info: Info) -> None:
        if info.training.precision != "float32":
            raise UsageError(
                f"dp is not supported with precision={info.training.precision}: the gradient of"
                " each record is clipped and summed in float32; use precision=float32."
            )
        if self.level != "party" and any(task.network.norms for task in info.tasks):
            raise UsageError(
                f"dp cannot train {info.task.network.name}: BatchNorm couples the records of a"
                " batch."
            )
        if self.level == "party" and not isinstance(self.host, AveragedModel):
            raise UsageError(
                "dp with level=party goes around methods that average models, as fedavg and"
                " fedbn do."
            )
        if self.level == "party" and any(
            is_buffer(name)
            for name in info.task.shapes
            if name not in self._private_names(info.task)
        ):
            raise UsageError(
                "dp with level=party has no noise for BatchNorm's statistics, which would be"
                " shared: use fedbn+dp."
            )
        self._check_patients(info)
        super().check(info)

    def _check_patients(self, info: Info) -> None:
        """Refuse level=patient where patients are not known, or where they cannot be protected."""
        counts = [info.patient_count(i) for i in info.parties]
        unnamed = [name for name, count in zip(info.names, counts, strict=True) if count is None]
        if self.level == "patient" and unnamed:
            raise UsageError(
                f"dp with level=patient needs data that name patients, and those of {unnamed[0]} do"
                " not: import them with --group and the column of the patient."
            )
        if self.level in ("record", "party") or len(unnamed) == len(info.names):
            return
        if any(getattr(layer, "noise", 0) == "auto" for layer in chain(self.host)):
            raise UsageError(ROWS_OF_PATIENTS)
        facts = PartyFacts(info, 0, info.sizes[0], info.training, counts[0])
        if any(
            releases
            for depth, function in party_functions(self.host)
            for releases in releases_of(self.host, depth, function, facts).values()
        ):
            raise UsageError(ROWS_OF_PATIENTS)

    def _private_names(self, task: LearningTask) -> frozenset[str]:
        assert isinstance(self.host, AveragedModel)
        return self.host.private_names(task)

    @property
    def sigma(self) -> float:
        if self.noise == "auto":
            raise UsageError(
                "dp needs to know how much noise: give a budget (--budget epsilon=8,delta=1e-5), or"
                " noise=1."
            )
        return self.noise

    # A record is protected, or a patient.

    def wrap_party(
        self, party: Party, extra: None, trainings: list[tuple[float, int]] | None = None
    ) -> Party:
        if self.level == "party":
            return party
        how = Private(
            party.data.train,
            self.clip,
            self.sigma,
            [] if trainings is None else trainings,
            None if self.level == "record" else party.data.patients,
        )
        return replace(party, data=hide_samples(party.data), private=how)

    def wrap_function(self, function: PartyFunction) -> PartyFunction:
        @wraps(function)
        async def private_function(
            state: Wrapped[None], message: Any, party: Party, key: Key
        ) -> tuple[Wrapped[None], Any]:
            trainings: list[tuple[float, int]] = []
            host_state, reply = await function(
                state.host, message, self.wrap_party(party, None, trainings), key
            )
            if self.level != "party":
                self._check_declared(function.__name__, trainings, party)
            elif isinstance(reply, Model):
                reply = Model(self._clipped(reply.theta, message.theta))
            return Wrapped(host_state, None), reply

        return private_function

    def _check_declared(
        self, function: str, trainings: list[tuple[float, int]], party: Party
    ) -> None:
        """Refuse a reply that came of more training than was accounted for before it was asked
        for.
        """
        unit, n = self.protected_units(len(party.data.train), party.data.patient_count)
        declared = sorted(
            (r.rate, r.steps)
            for r in DpAccounting(self).trained_releases(function, unit, n, party.training)
        )
        if sorted(trainings) != declared:
            raise UsageError(
                f"{function} trains otherwise than its method declares (trainings):"
                f" {sorted(trainings)}, not {declared}."
            )

    def protected_units(self, records: int, patients: int | None) -> tuple[Unit, int]:
        """What DP-SGD protects at a party, and how many of them the party has."""
        if patients is None or self.level == "record":
            return "record", records
        return "patient", patients

    # A party is protected.

    def _clipped(self, theta: Params, received: Params) -> Params:
        change = clipped({name: value - received[name] for name, value in theta.items()}, self.clip)
        return {name: received[name] + value for name, value in change.items()}

    def averaging(self, server: Server) -> NoisyAveraging | None:
        if self.level != "party" or server.info.secure_sums:
            return None  # in secure sums the parties add the noise themselves
        cohort = server.sample(server.round)

        def noise_on_mean(count: int) -> float:
            """The noise on a mean of so many models, of which the account learns before anybody
            else does.
            """
            how = self.accounting.server_release(server.info, cohort)
            assert how
            less = len(cohort) / count  # of fewer models each weighs more, and so does its noise
            how = replace(how, sensitivity=how.sensitivity * less, noise=how.noise * less)
            server.release("Model.theta", how, server.info.parties if how.drawn_of else cohort)
            return how.noise

        return NoisyAveraging(server.key("noise"), noise_on_mean)

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(start_weights="", bytes_formula="the host's")

    def adjust_traits(self, declared: Traits) -> Traits:
        return replace(
            super().adjust_traits(declared),
            protects_records=self.level != "party",
            averages=self.level == "party",
        )


@accounts_for(Dp)
class DpAccounting(WrapperAccounting[Dp]):
    def warnings(self, info: Info) -> list[str]:
        warnings = []
        if not self.method.noise:
            warnings.append(
                "with noise=0 nothing is hidden: gradients are clipped, and that is all."
            )
        warnings += self._patient_warnings(info)
        return warnings

    def _patient_warnings(self, info: Info) -> list[str]:
        """What is protected where the data of some parties name patients."""
        with_patients = [i for i in info.parties if info.patient_count(i) is not None]
        if not with_patients or self.method.level == "party":
            return []
        if self.method.level == "record":
            return [
                "the data name patients, but level=record protects single records: a patient with"
                " several records is protected less."
            ]
        others = [info.name(i) for i in info.parties if i not in with_patients]
        if others:
            return [
                "all records of a patient are protected together only where the data name"
                f" patients, which those of {', '.join(others[:5])} do not: single records are"
                " protected there."
            ]
        return ["the data name patients: all records of a patient are protected together."]

    def covers(self, function: str, host: Releases, facts: PartyFacts) -> Releases:
        if self.method.level == "party":
            is_sent = function in self.host.declared_trainings("round", facts.training)
            return (
                {**host, ALL: [self.sum_release()]} if facts.info.secure_sums and is_sent else host
            )
        unit, n = self.method.protected_units(facts.size, facts.patients)
        trained = self.trained_releases(function, unit, n, facts.training)
        if unit == "patient" and any(host.values()):
            raise UsageError(ROWS_OF_PATIENTS)
        # A row behind noise, of a model of which no record tells: then the noise protects the
        # record that it is of.
        records = {
            id(row): replace(row, unit="record") for releases in host.values() for row in releases
        }  # one release stays one
        rows = {
            name: [*(records[id(row)] for row in releases), *trained]
            for name, releases in host.items()
        }
        return {**rows, ALL: trained}

    def trained_releases(self, function: str, unit: Unit, n: int, how: Training) -> list[Release]:
        """The releases of one of n records, or of n patients, by all trainings of a party function.
        Post-processing of their results costs nothing more.
        """
        trainings = [
            each
            for stage in STAGES
            for each in self.host.declared_trainings(stage, how).get(function, ())
        ]
        return [
            Release(
                unit,
                "gaussian",
                self.method.clip,
                self.method.sigma * self.method.clip,
                rate=sampling.rate,
                steps=sampling.steps,
            )
            for sampling in (Sampling.of(h, n) for h in trainings)
        ]

    def sum_release(self) -> Release:
        """The release of a party by a secure sum, to which all parties add shares of the noise."""
        C = self.method.clip
        return Release("party", "discrete gaussian", C, self.method.sigma * C)

    def server_release(self, info: Info, cohort: Sequence[int]) -> Release | None:
        if self.method.level != "party" or info.secure_sums or not cohort:
            return self.host.server_release(info, cohort)
        everybody, C, spread = (
            len(info.names),
            self.method.clip / len(cohort),
            self.method.sigma * self.method.clip / len(cohort),
        )
        if (
            self.method.amplify and len(cohort) < everybody
        ):  # a party that is replaced by another takes its change of the model along
            return Release(
                "party",
                "gaussian",
                2 * C,
                spread,
                "replaced",
                drawn_of=everybody,
                drawn=len(cohort),
            )
        return Release("party", "gaussian", C, spread)
