"""ADCOL: Li, He, Song, Adversarial Collaborative Learning on Non-IID Features, ICML 2023.

Idea: models are not averaged. The server trains a discriminator D to predict the party of a
representation. Each party trains its own model F_i so that D cannot predict it.

Eq. 2: min CE(F_i(x), y) + μ · KL(u ‖ D(G_i(x))), u = (1/N, ..., 1/N); D is constant, the gradient
goes through it into G_i.
Algorithm 1: l.3-5 send D, train locally, collect R_i = G_i(x); l.6-9 SGD on D with label i; l.11-18
the party's steps.

At a glance: personal = the whole model; exchanged = representations up, the discriminator's weights
down; kept = the party's model; at the server the discriminator; steps = E epochs; the
discriminator's at the server, by default as many as a party's.
Symbols: G_i = features of F_i (up to the cut); N = parties; R = representations; r = share of them
sent.
Deviations: D takes as many steps a round as a party, while Algorithm 1 prints one pass over all R_i
(disc_steps=epochs). In the paper's set-up (N = 5, E = 10) that pass is half of a party's steps;
with fewer local steps or more parties it is many times more, D predicts every party with certainty
and its gradient destroys the representations. All F_i start from the same weights, so that
comparisons are paired (init=own: each party from its own). Representations are computed after
training, in evaluation mode; class labels are never sent. D is trained with the experiment's
optimizer, as the paper has a single η. The method is meant for feature skew: with label skew the
penalty works against the labels (B.8).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from comity.base.content import AVERAGED_PART, REPRESENTATIONS, describe
from comity.components.discriminator import (
    DiscriminatorSteps,
    as_many_steps_as_a_party,
    carry_over,
    discriminator,
    label_by_owner,
)
from comity.components.divergence import kl_from_uniform
from comity.components.server_steps import shared_names
from comity.components.views import Supervision, supervision
from comity.core import *
from comity.core.diagnostics import CurveByRound
from comity.privacy.mechanisms import bound_rows
from comity.privacy.options import PrivateRows, PrivateRowsAccounting

LAST_EPOCH_ROWS = "adcol.seen"


@record
class Game:
    """The server's state and message: D, the averaged part of the models if there is one, and
    whether D is still untrained.
    """

    D: Params
    shared: Params
    untrained: Empty | None = None


@record
class AdcolState:
    """A party's state: its model, and the discriminators of earlier rounds, newest first."""

    F: Params
    past: list[Params]


@record
class Reps:
    """A party's reply: its representations, whose label is the sender, and the averaged part of its
    model.
    """

    z: Tensor = describe(REPRESENTATIONS)
    shared: Params = describe(AVERAGED_PART)


@record
class Judges:
    """The input of eq. 2: the discriminators of the penalty and, with rep_mode=last_epoch, a buffer
    for the representations of the last epoch.
    """

    past: list[Params]
    seen: Tensor | None


@algorithm
class Adcol(DiscriminatorSteps, PrivateRows, Algorithm[Game, AdcolState, Game]):
    mu: float = option(1.0, "weight of the adversarial term, eq. 2", minimum=0)
    disc: Literal["mlp", "linear", "deep", "conv"] = option(
        "mlp", "D: three FC layers (5.1), one (B.15), five (B.12), two conv"
    )
    hidden: int = option(512, "width of D's hidden layers (5.1)", minimum=1)
    sampling: float = option(
        1.0,
        "r, share of its representations a party sends, drawn each round (B.11)",
        above=0,
        maximum=1,
    )
    past: int = option(
        1,
        "N_d, discriminators of so many rounds in the penalty, by their mean (B.6)",
        minimum=1,
        maximum=1000,
    )
    slots: Literal["party", "cohort"] = option(
        "party", "D's outputs: all N parties, or the round's m, who train twice (B.14)"
    )
    disc_carry: Literal["trunk", "keep", "reinit"] = option(
        "trunk", "slots=cohort: what of D lives on: all but its output layer"
    )
    aggregate: Literal["none", "predictor", "model"] = option(
        "none", "average the predictors too (B.10), or whole models"
    )
    rep_mode: Literal["after", "last_epoch"] = option(
        "after", "representations: after training, or as the last epoch made them"
    )
    objective: Literal["ce", "simsiam", "ntxent"] = option(
        "ce", "labels, or self-supervision with a linear probe (future work)"
    )

    def check(self, info: Info) -> None:
        info.same_width("adcol")
        self.check_disc_steps()
        if self.aggregate != "none":
            info.same_architecture(f"adcol with aggregate={self.aggregate}")
        if self.slots == "cohort" and (self.past > 1 or self.aggregate != "none"):
            raise UsageError(
                "slots=cohort goes with neither past discriminators nor aggregate: slots and"
                " senders change."
            )

    def discriminator(self, d: int, n: int) -> LearningTask:
        return discriminator(self.disc, d, self.hidden, n)

    def init_server(self, key: Key, info: Info) -> Game:
        D = self.discriminator(info.width, len(info.names)).init(key.fold("discriminator"))
        return Game(D, keep(info.task.init(key), shared_names(info.task, self.aggregate)), Empty())

    def init_party(self, key: Key, party: Party) -> AdcolState:
        return AdcolState(self.supervision.task(party.task).init(key), [])

    def message_for(self, s: Game, i: int) -> Game:
        return s

    def round(self, s: Game, server: Server, t: int) -> Game:
        if self.slots == "cohort":
            return self.round_by_cohort(s, server, t)
        R = server.call(self.local, dict.fromkeys(server.sample(t), s))  # l.3-5
        slot = {i: i for i in server.info.parties}
        D = self.train_discriminator(s.D, R, slot, server)  # l.6-9
        self.charge_server(server, list(R), {"Game.shared"} if s.shared else set())
        self.log_discriminator(D, R, slot, server)
        return Game(D, self.average_shared(R, server) if s.shared else {})

    def train_discriminator(
        self, D: Params, R: dict[int, Reps], slot: dict[int, int], server: Server
    ) -> Params:
        """D after its steps on R_i with label slot[i], l.6-9."""
        task = self.discriminator(server.info.width, len(slot))
        data = label_by_owner({slot[i]: reps.z for i, reps in R.items()})
        how = self.server_training(server.info, list(R))
        return self.fit_on_server(server, task, D, data, server.key("discriminator"), how)

    def server_training(self, info: Info, cohort: Sequence[int]) -> Training:
        return self.disc_training(as_many_steps_as_a_party(info, cohort))

    @on_party
    async def local(
        self, state: AdcolState, m: Game, party: Party, key: Key
    ) -> tuple[AdcolState, Reps]:
        # If there are fewer than self.past discriminators, the first one is repeated.
        earlier = state.past or [m.D] * (self.past - 1)
        # l.11-17
        F_i, last_z = await self.train_locally(state.F | m.shared, [m.D, *earlier], party, key)

        def rows_to_send(z: Tensor) -> Tensor:
            if last_z is not None:  # NaN: the sample was in no batch
                z = torch.where(last_z.isnan(), z, last_z)
            if self.sampling < 1:
                z = z[key.fold("representations").choose(self.rows(len(z)), len(z))]
            return self.add_row_noise(z, key.fold("noise"))

        z = party.represent(self.supervision.task(party.task), F_i, rows_to_send)  # l.18
        past = [] if m.untrained else [m.D, *earlier][: self.past - 1]
        return AdcolState(F_i, past), Reps(z, keep(F_i, shared_names(party.task, self.aggregate)))

    async def train_locally(
        self, F_i: Params, past: list[Params], party: Party, key: Key
    ) -> tuple[Params, Tensor | None]:
        """F_i after its epochs on eq. 2. With rep_mode=last_epoch also the representations computed
        in the last epoch.
        """
        last_z = None
        if self.rep_mode == "last_epoch":
            train = party.data.train
            shape = (len(train), party.task.width)
            last_z = torch.full(shape, torch.nan, dtype=train.x.dtype, device=train.x.device)
        judges = Judges([D for D in past if D], last_z)
        fitted = await self.supervision.fit(party, self.eq2, F_i, key, judges)
        return fitted.theta, fitted.scratch.get(LAST_EPOCH_ROWS)

    def eq2(self, task: LearningTask, F_i: Params, batch: Batch, judges: Judges) -> Tensor:
        z = task.features(F_i, batch.x, train=True)
        if judges.seen is not None:  # each epoch overwrites the one before
            last_z = batch.scratch.get(LAST_EPOCH_ROWS, judges.seen)
            batch.scratch[LAST_EPOCH_ROWS] = last_z.index_copy(
                0, batch.indices, z.detach().flatten(1)
            )
        value = task.objective(F_i, z, batch)
        for D in judges.past:
            disc = self.discriminator(task.width, len(D["out.bias"]))
            value = value + self.mu / len(judges.past) * kl_from_uniform(
                disc.logits(D, bound_rows(z, self.noise))
            )
        return value

    def rows(self, n: int) -> int:
        # ⌈r·n⌉ without the rounding error of r·n
        return math.ceil(round(self.sampling * n, 9))

    @on_party
    async def warm_up(
        self, state: AdcolState, m: Game, party: Party, key: Key
    ) -> tuple[AdcolState, None]:
        state, _ = await self.local(state, m, party, key)
        return state, None

    def deployed_model(self, state: AdcolState, m: Game, party: Party) -> Params:
        return state.F

    # -- variants ----------------------------------------------------------------------------------

    @property
    def supervision(self) -> Supervision:
        """The supervision that replaces CE in eq. 2, with objective=simsiam or ntxent."""
        return supervision(self.objective)

    def round_by_cohort(self, s: Game, server: Server, t: int) -> Game:
        """A round of B.14: D has one output for each of the round's m parties, and these train
        twice.
        """
        cohort = server.sample(t)
        slot = {i: j for j, i in enumerate(cohort)}
        new = self.discriminator(server.info.width, len(cohort)).init(server.key("slots"))
        D = carry_over(s.D, new, self.disc_carry)
        R = server.call(self.local, dict.fromkeys(cohort, replace(s, D={})))  # i and ii
        D = self.train_discriminator(D, R, slot, server)  # iii
        self.charge_server(server, list(R), set())
        self.log_discriminator(D, R, slot, server)
        server.call(self.align, dict.fromkeys(R, Game(D, {})))  # iv and v
        return Game(D, {})

    @on_party
    async def align(
        self, state: AdcolState, m: Game, party: Party, key: Key
    ) -> tuple[AdcolState, None]:
        F_i, _ = await self.train_locally(state.F, [m.D], party, key)
        return replace(state, F=F_i), None

    def average_shared(self, R: dict[int, Reps], server: Server) -> Params:
        """The mean of the predictors or models, with the option aggregate (B.10)."""
        sizes = {i: server.info.sizes[i] for i in R}
        return average({i: reps.shared for i, reps in R.items()}, sizes)

    def log_discriminator(
        self, D: Params, R: dict[int, Reps], slot: dict[int, int], server: Server
    ) -> None:
        """Log D's accuracy and the distance of its predictions from uniform."""
        task = self.discriminator(server.info.width, len(slot))
        data = label_by_owner({slot[i]: reps.z for i, reps in R.items()})
        answers = in_chunks(lambda z: task.logits(D, z), data.x)
        server.note("discriminator/accuracy", (answers.argmax(1) == data.y).float().mean().item())
        for i in R:
            distance = kl_from_uniform(answers[data.y == slot[i]]).item()
            server.note("discriminator/kl", distance, party=i)

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(
        shares="representations",
        self_contained=True,
        encoder_term="the adversarial loss",
        feature_skew_only=True,
        start_weights="shared",
        bytes_formula=(
            "Σ_t (4 · d · Σ_{i∈S_t} ⌈r·n_i⌉ + |S_t| · S_D), and 2 · |S_t| · S_shared with aggregate"
        ),
        diagnostics=(
            CurveByRound(
                name="discriminator",
                title="how often the discriminator is right",
                meaning=(
                    "how often the discriminator, once trained in a round, names the party of a"
                    " representation that it learned from; the lower, the less representations tell"
                ),
                value="accuracy",
                axis="discriminator's accuracy",
                metric="discriminator/accuracy",
                percent=True,
                reference="chance",
            ),
        ),
    )

    def adjust_traits(self, declared: Traits) -> Traits:
        weights = () if self.aggregate == "none" else ("weights",)
        return replace(
            declared,
            also_leaves=weights,
            raw_inputs=self.objective != "ce",  # the views of self-supervision are of inputs
            not_private=self.why_rows_not_private,
        )


@accounts_for(Adcol)
class AdcolAccounting(PrivateRowsAccounting[Adcol]):
    def declared_trainings(self, stage: Stage, how: Training) -> Mapping[str, Sequence[Training]]:
        again = {"align": [how]} if stage == "round" and self.method.slots == "cohort" else {}
        return {**super().declared_trainings(stage, how), **again}

    def releases(self, function: str, facts: PartyFacts) -> Releases:
        rows = self.method.row_releases("Reps.z", facts.info.width)
        return rows if self.method.aggregate != "none" else {**rows, "Reps.shared": NOTHING}

    def warnings(self, info: Info) -> list[str]:
        cohort = list(info.parties)[: info.cohort or None]
        rows = sum(self.method.rows(info.sizes[i]) for i in cohort)
        return self.method.disc_warnings(as_many_steps_as_a_party(info, cohort), rows)

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        D = (
            None
            if self.method.slots == "cohort"
            else self.method.discriminator(task.width, parties)
        )
        return {"Game.D": D, "Reps.z": (-1, task.width)}

    def join_traffic(self, info: Info) -> Traffic:
        return Traffic(
            down=len(info.late) * self.traffic(info, list(range(info.cohort))).down // info.cohort
        )

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        disc = (
            len(cohort)
            * self.method.discriminator(
                info.width, len(cohort if self.method.slots == "cohort" else info.names)
            ).bytes()
        )
        averaged = shared_names(info.task, self.method.aggregate)
        shared = len(cohort) * info.task.bytes(without=frozenset(info.task.shapes) - averaged)
        return Traffic(
            up=4 * info.width * sum(self.method.rows(info.sizes[i]) for i in cohort) + shared,
            down=disc + shared,
        )
