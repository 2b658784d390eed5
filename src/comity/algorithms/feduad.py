"""FedUAD: FedUFO's first stage alone (Zhang et al., ICCV 2021, section 3.2): adversarial features
for one global model.

Idea: each party trains a plain copy of the global model (its prior), the group exchanges priors,
and each party trains its posterior so that a discriminator D cannot predict whose extractor
computed its features. Posteriors are averaged.

Eqs. 4, 11: CE + L_uni, L_uni = −(1/K) Σ_j log D_j(f̂_i); D is frozen, the gradient goes through it.
Eq. 5: L_D = −log D_k(f̂_i) − (1/(K_c − 1)) Σ_{j≠k} log D_j(f̃_{i|j}), all features constant.

At a glance: personal = nothing; exchanged = weights and a discriminator, both ways; others' weights
and class counts down; kept = nothing; steps = E epochs with a pass of every other party's model,
and the discriminator's.
Symbols: w = global model; w̃_k = priors; f̂_i, f̃_{i|j} = sample i's features by the posterior and
by prior j; K, K_c = parties.
Deviations: D is averaged with w and takes as many steps a round as the posterior (the paper does
not say; disc_steps=epochs: passes over the samples); a fresh D is trained before the posterior, not
after it. The server averages; with server_lr or server_momentum it steps towards the average. The
posterior starts from w; "a prior model" may also mean that it starts from w̃_k (begin=prior). With
bn=none others' priors are evaluated with the party's own BatchNorm.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from comity.base.content import (
    CLASS_COUNTS,
    OTHER_PARTIES,
    TRAINING_ACCURACY,
    WEIGHTS,
    Content,
    describe,
)
from comity.components.classwise import features_of
from comity.components.discriminator import (
    DiscriminatorSteps,
    Owners,
    discriminator,
    tell_apart,
    with_others,
)
from comity.components.divergence import uniform_cross_entropy
from comity.components.server_steps import momentum_step
from comity.core import *

DISC = "disc."


@record
class FedUadServer:
    """The server's state: w, D, the momentum of w, and w's last accuracy at each party."""

    w: Params
    D: Params
    velocity: Params
    accuracy: dict[int, float]


@record
class Both:
    """w or a posterior, and D. A message also has the other members of the group; a reply has w's
    accuracy if sampling needs it.
    """

    theta: Params = describe(WEIGHTS)
    D: Params = describe(
        Content(
            "the weights of a second network, which learns to tell whose records it is shown",
            "weights",
        )
    )
    accuracy: float | None = describe(TRAINING_ACCURACY, default=None)
    others: list[int] = describe(OTHER_PARTIES, default_factory=list)


@record
class Prior:
    """w̃_k and the party's class counts, for the group."""

    theta: Params = describe(
        Content(
            "the weights of a model that was trained at this party alone, for the others of its"
            " group",
            "weights",
        )
    )
    counts: Tensor = describe(CLASS_COUNTS)


@record
class FedUadState:
    """A party's state: its private weights, w and its prior during a round, and D if each party has
    its own.
    """

    private: Params
    w: Params
    prior: Prior | None
    D: Params


@record
class Adversary:
    """The input of eq. 11: D, and the owners of the features."""

    D: Params
    owners: Owners


@algorithm
class FedUad(DiscriminatorSteps, Algorithm[FedUadServer, FedUadState, Both]):
    uad: bool = field(default=True, init=False)  # an option of fedufo
    cgr: bool = field(default=False, init=False)
    weight: float = option(1.0, "weight of L_uni; 1 as printed", minimum=0)
    reduction: Literal["sum", "mean"] = option(
        "sum", "as printed; mean: L_uni over D's outputs too, KL over classes"
    )
    begin: Literal["w", "prior"] = option(
        "w", "what the posterior is trained from: the global model, or the party's prior"
    )
    outputs: Literal["all", "group"] = option(
        "all", "D names all K parties, or the round's K_c (it is then new each round)"
    )
    disc: Literal["shallow", "mlp", "linear"] = option(
        "shallow", "D: two FC layers, three (re-identification), or one"
    )
    disc_state: Literal["federated", "local", "fresh"] = option(
        "federated", "D is averaged, the party's, or new each round"
    )
    alternate: Literal["round", "batch"] = option(
        "round", "D learns after the posterior's epochs, or with each of its batches"
    )
    server_lr: float = option(1.0, "the server's step towards the average", above=0)
    server_momentum: float = option(0.0, "momentum of the server's steps", minimum=0)

    def lives(self, where: str) -> bool:
        return self.uad and where == ("fresh" if self.outputs == "group" else self.disc_state)

    def check(self, info: Info) -> None:
        info.needs_classes("fedufo", "weighs answers by class")
        info.same_architecture("averaging")
        self.check_disc_steps()
        if self.begin == "prior" and not (self.uad or self.cgr):
            raise UsageError("begin=prior needs priors, but without uad and cgr nobody trains one.")

    def discriminator(self, d: int, k: int) -> LearningTask:
        return discriminator(self.disc, d, d, k)

    def init_server(self, key: Key, info: Info) -> FedUadServer:
        D = self.discriminator(info.width, len(info.names)).init(key.fold("discriminator"))
        return FedUadServer(
            drop(info.task.init(key), info.task.private),
            D if self.lives("federated") else {},
            {},
            {},
        )

    def init_party(self, key: Key, party: Party) -> FedUadState:
        D = self.discriminator(party.task.width, party.federation_size).init(
            key.fold("discriminator")
        )
        return FedUadState(
            keep(party.task.init(key), party.task.private),
            {},
            None,
            D if self.lives("local") else {},
        )

    def message_for(self, s: FedUadServer, i: int) -> Both:
        return Both(s.w, {})

    def round(self, s: FedUadServer, server: Server, t: int) -> FedUadServer:
        messages = {k: self.message_for(s, k) for k in server.sample(t)}
        return self.average_posteriors(s, server, self.align, messages)

    def average_posteriors(
        self, s: FedUadServer, server: Server, posterior: PartyFunction, messages: dict[int, Both]
    ) -> FedUadServer:
        sealed_messages: dict[Edge, Sealed] = {}
        if self.uad or self.cgr:
            others = {k: [j for j in messages if j != k] for k in messages}
            with_others = {k: replace(m, others=others[k]) for k, m in messages.items()}
            priors = server.call(self.prior, with_others)
            sealed_messages = {(j, k): priors[j] for j in priors for k in priors if j != k}
            messages = dict.fromkeys(priors, Both({}, s.D))
        replies: dict[int, Both] = server.call(posterior, messages, sealed_messages)
        sizes = {k: server.info.sizes[k] for k in replies}
        w = average({k: reply.theta for k, reply in replies.items()}, sizes)
        D = average({k: reply.D for k, reply in replies.items()}, sizes)
        w, velocity = momentum_step(s.w, w, s.velocity, self.server_lr, self.server_momentum)
        accuracies = {k: r.accuracy for k, r in replies.items() if r.accuracy is not None}
        return FedUadServer(w, D, velocity, s.accuracy | accuracies)

    @on_party
    async def prior(
        self, state: FedUadState, m: Both, party: Party, key: Key
    ) -> tuple[FedUadState, Sealed[Prior]]:
        w = m.theta or state.w
        theta = (await party.fit(plain, w | state.private, key)).theta
        counts = torch.bincount(party.data.train.y, minlength=party.task.classes).int()
        prior = Prior(theta, counts)
        shared_prior = replace(prior, theta=drop(theta, party.task.private))
        return replace(state, w=w, prior=prior), seal(shared_prior, m.others)

    @on_party
    async def align(
        self, state: FedUadState, m: Both, party: Party, key: Key
    ) -> tuple[FedUadState, Both]:
        others = (
            {j: prior.theta | state.private for j, prior in party.inbox.items()} if self.uad else {}
        )
        features = {
            j: features_of(party.task, theta, party.data.train) for j, theta in others.items()
        }
        return await self.posterior(state, m, party, key, features, {})

    async def posterior(
        self,
        state: FedUadState,
        m: Both,
        party: Party,
        key: Key,
        features: dict[int, Tensor],
        teachers: Params,
    ) -> tuple[FedUadState, Both]:
        """Train w and D. `features` are others' features of the party's samples, `teachers` are
        others' predictions for them.
        """
        task = party.task
        start = (
            state.prior.theta
            if state.prior and self.begin == "prior"
            else (m.theta or state.w) | state.private
        )
        D = m.D or state.D
        everyone = (
            range(party.federation_size)
            if self.outputs == "all"
            else sorted([party.id, *party.inbox])
        )
        disc = self.discriminator(task.width, len(everyone))
        me, others = everyone.index(party.id), [everyone.index(j) for j in features]
        owners = on_device(
            Owners(torch.tensor(me), torch.tensor(others, dtype=torch.int64)),
            party.data.train.x.device,
        )
        samples = with_others(party.data.train, list(features.values()))

        async def train_discriminator(D: Params, theta: Params) -> Params:
            how = self.disc_training(party.training)
            inputs = replace(samples, x=features_of(task, theta, samples))
            turn = key.fold("discriminator")
            return (
                await party.fit(
                    tell_apart, D, turn, owners, task=disc, samples=inputs, training=how
                )
            ).theta

        if self.lives("fresh"):
            D = await train_discriminator(
                on_device(disc.init(key.fold("fresh")), party.data.train.x.device), start
            )
        samples = replace(samples, rows=samples.rows | teachers)
        if self.uad and self.alternate == "batch":
            both = start | {DISC + k: v for k, v in D.items()}
            fitted = (await party.fit(self.eqs_5_and_11, both, key, owners, samples=samples)).theta
            theta = {k: fitted[k] for k in start}
            D = {k: fitted[DISC + k] for k in D}
        else:
            theta = (
                await party.fit(self.eq11, start, key, Adversary(D, owners), samples=samples)
            ).theta
        if self.uad and self.alternate == "round" and not self.lives("fresh"):
            D = await train_discriminator(D, theta)
        private, shared = keep(theta, task.private), drop(theta, task.private)
        kept_D = D if self.lives("local") else {}
        sent_D = D if self.lives("federated") else {}
        return FedUadState(private, {}, None, kept_D), Both(shared, sent_D)

    def objective(self, task: LearningTask, theta: Params, z: Tensor, batch: Batch) -> Tensor:
        """The posterior's loss without eq. 4: that of the labels. FedUFO adds a consensus."""
        return task.objective(theta, z, batch)

    def eq11(self, task: LearningTask, theta: Params, batch: Batch, adversary: Adversary) -> Tensor:
        z = task.features(theta, batch.x, train=True)
        value = self.objective(task, theta, z, batch)
        return value + self.weight * self.eq4(task, adversary.D, z) if self.uad else value

    def eq4(self, task: LearningTask, D: Params, z: Tensor) -> Tensor:
        outputs = len(D["out.bias"])
        logits = self.discriminator(task.width, outputs).logits(
            {k: v.detach() for k, v in D.items()}, z
        )
        return uniform_cross_entropy(logits) / (outputs if self.reduction == "mean" else 1)

    def eqs_5_and_11(
        self, task: LearningTask, both: Params, batch: Batch, owners: Owners
    ) -> Tensor:
        """The loss of a common step of the posterior and D; each treats the other as a constant."""
        D = {k.removeprefix(DISC): v for k, v in both.items() if k.startswith(DISC)}
        z = task.features(both, batch.x, train=True)
        value = self.objective(task, both, z, batch) + self.weight * self.eq4(task, D, z)
        disc = self.discriminator(task.width, len(D["out.bias"]))
        return value + tell_apart(disc, D, replace(batch, x=z.detach().flatten(1)), owners)

    @on_party
    async def warm_up(
        self, state: FedUadState, m: Both, party: Party, key: Key
    ) -> tuple[FedUadState, None]:
        theta = (await party.fit(plain, m.theta | state.private, key)).theta
        # A newcomer has no group: it fine-tunes the global model.
        return replace(state, private=theta), None

    def deployed_model(self, state: FedUadState, m: Both, party: Party) -> Params:
        return m.theta | state.private

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(
        also_leaves=("class counts",),
        one_model=True,
        start_weights="theta",
        bytes_formula=(
            "Σ_t K_c · (2·S + 2·S_D + (K_c − 1) · (S + 4·C + 4)); no S_D unless D is averaged"
        ),
    )


A = TypeVar("A", bound=FedUad)


@accounts_for(FedUad)
class FedUadAccounting(Accounting[A]):
    def warnings(self, info: Info) -> list[str]:
        if not self.method.uad or self.method.alternate == "batch":
            return []
        return self.method.disc_warnings(info.training, max(info.sizes[i] for i in info.parties))

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        return {
            "Both.D": self.method.discriminator(task.width, parties),
            "Prior.counts": (task.classes,),
        }

    def join_traffic(self, info: Info) -> Traffic:
        return Traffic(down=len(info.late) * info.task.bytes(without=info.task.private))

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        k = len(cohort)
        w = info.task.bytes(without=info.task.private)
        D = (
            self.method.discriminator(info.width, len(info.names)).bytes()
            if self.method.lives("federated")
            else 0
        )
        edges = k * (k - 1) if self.method.uad or self.method.cgr else 0
        return Traffic(k * (w + D), k * (w + D) + 4 * edges, edges * (w + 4 * info.task.classes))
