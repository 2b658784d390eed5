"""Representation sharing: Berdoz, Scalable Collaborative Learning via Representation Sharing,
EPFL/MIT thesis, 2022 ("CFKD").

Idea: parties send only class-wise averages of last-layer representations, to a relay that stores
and forwards them. Each party pulls its own representations to the global class means (feature
distillation), and its classifier learns whether one of its own representations and another party's
averaged one are of the same class (contrast). Architectures may differ if they have the same width
d'.

Loss: CE + λ_KD · ‖s − t̄^y‖² + λ_disc · ( −log ĥ(s, t^y) − Σ_{c≠y} log(1 − ĥ(s, t^c)) ), ĥ(s, t) =
⟨softmax τ(s), softmax τ(t)⟩.
Algorithm 1: the relay sends t̄ and M↓ sets of observations; E epochs; the party sends its class
means and M↑ sets, each the mean of n_avg samples a class. All parties use the uploads of the round
before.

At a glance: personal = the whole model, of any architecture; exchanged = means of representations
by class and their counts up, means and others' observations down; kept = the party's model; at the
relay means and observations; steps = E epochs.
Symbols: s = features of x; τ = the party's head; t̄^c = global class means; t_m^c = observations;
M↑, M↓ = sets sent, received.
Deviations: reductions are those of the authors' code, with which λ was tuned. All parties start
from equal weights (the code: init=own). A set of observations comes from one other party. Classes
that no party has sent are masked. Before round 1 parties send the averages of their untrained
models. A mean is not sent if it, or its difference from another sent mean, covers fewer than
min_count samples. The external ĥ has a square V without bias (the code: d' to C with bias).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.components.bank import UPLOADED, Bank, Teacher, Upload, noise, smallest_mean
from comity.components.classwise import (
    class_means,
    contrast,
    features_of,
    levels,
    observations,
    one_class,
    one_class_external,
)
from comity.components.hidden_means import SendsMeans
from comity.components.server_steps import shared_names
from comity.core import *

V = "relay.V"


@record
class Drawn:
    """The draws of a batch: the set of observations that each sample is compared with, and its
    negatives if these are random.
    """

    pick: Tensor
    negatives: Tensor | None


@mixin
class SharesRepresentations(SendsMeans[S, C, M]):
    """The party's side, with and without a relay: the loss, and the upload."""

    lambda_kd: float = option(10.0, "λ_KD, weight of the pull to the global class means", minimum=0)
    lambda_disc: float = option(1.0, "λ_disc, weight of the contrast", minimum=0)
    n_avg: int = option(10, "samples in an observation; 0: all of the class", minimum=0)
    m_up: int = option(1, "M↑, sets of observations a party sends", minimum=1)
    kd_reduction: Literal["code", "paper"] = option(
        "code", "‖·‖² divided by d' as in the code, or as printed"
    )
    disc_reduction: Literal["code", "paper"] = option(
        "code", "the contrast's terms divided by C as in the code, or as printed"
    )
    disc: Literal["prob_product", "external"] = option(
        "prob_product", "ĥ: by the classifier, or by a linear layer V of its own"
    )
    disc_temperature: float = option(
        1.0, "T of the external ĥ = e^{a/T} / (e^{a/T} + (C−1)/C), a = ⟨Vs, Vt⟩", above=0
    )
    negatives: Literal["class", "marginal"] = option(
        "class", "one of each other class, or C − 1 at random (for the bound)"
    )
    min_count: int = option(2, "a mean of fewer samples is not sent", minimum=1)
    guarded: float = option(
        0.0,
        "share of a party's samples that enter means of all only (level 1)",
        minimum=0,
        maximum=1,
    )
    secret: float = option(
        0.0, "share of a party's samples that are never shared (level 2)", minimum=0, maximum=1
    )

    def check(self, info: Info) -> None:
        info.needs_classes("relay", "sends a mean representation of each class")
        info.same_width("relay")
        if 0 < self.n_avg < self.min_count:
            raise UsageError(
                f"n_avg must be at least min_count ({self.min_count}): smaller means are not sent."
            )
        if self.guarded + self.secret > 1:
            raise UsageError(
                "guarded and secret are shares of the same samples: together at most 1."
            )

    def first(self, key: Key, party: Party) -> Params:
        """A party's initial model."""
        d = party.task.width
        external = (
            {V: torch.randn(d, d, generator=key.fold(V).generator()) / d**0.5}
            if self.disc == "external"
            else {}
        )
        return party.task.init(key) | external

    async def train_with_teacher(self, theta: Params, m: Teacher, party: Party, key: Key) -> Params:
        """Train E epochs with the method's loss."""
        if not (self.lambda_kd or self.lambda_disc):
            return (await party.fit(plain, theta, key)).theta
        m = on_device(m, party.device)
        mask = m.known[:, None].to(m.means.dtype)
        teacher = replace(m, known=mask, means=mask * m.means, shared={})
        several = len(m.obs) > 1 or self.negatives == "marginal"
        return (
            await party.fit(
                self.loss, theta, key, teacher, draw=self.draw_comparisons if several else None
            )
        ).theta

    def loss(self, task: LearningTask, theta: Params, batch: Batch, m: Teacher) -> Tensor:
        s = task.features(theta, batch.x, train=True)
        logits = task.head(theta, s, train=True)
        y = batch.y
        # the mean over d', as in the authors' code
        kd = F.mse_loss(m.known[y] * s.flatten(1), m.means[y])
        draws: Drawn | None = batch.draws
        pick: Any = 0 if draws is None else draws.pick
        if self.disc == "external":
            h = one_class_external(s.flatten(1), m.obs[pick], theta[V], self.disc_temperature)
        else:
            theirs = task.head(theta, m.obs.view(-1, *task.z_shape)).softmax(1)
            h = one_class(logits.softmax(1), theirs.view(*m.obs.shape[:2], -1)[pick])
        disc = contrast(h, m.seen[pick], y, None if draws is None else draws.negatives).mean()
        weigh_kd = self.lambda_kd * (1 if self.kd_reduction == "code" else task.width)
        weigh_disc = self.lambda_disc / (task.classes if self.disc_reduction == "code" else 1)
        return mean_cross_entropy(logits, y) + weigh_kd * kd + weigh_disc * disc

    def draw_comparisons(self, batch: Batch, key: Key, m: Teacher) -> Drawn:
        key = key.fold("observation")
        n = len(batch.y)
        sets, classes = m.obs.shape[:2]
        pick = torch.randint(sets, (n,), generator=key.generator()).to(batch.y.device)
        if self.negatives == "class":
            return Drawn(pick, None)
        return Drawn(
            pick,
            torch.randint(
                classes, (n, classes - 1), generator=key.fold("negatives").generator()
            ).to(pick.device),
        )

    def make_upload(self, theta: Params, party: Party, key: Key) -> Upload:
        """The party's upload: class means, and M↑ sets of observations."""
        # Noise is added once. Observations are the same noisy means and reveal nothing more.
        if party.hidden_means:
            means, counts = self.class_means_of(
                party, lambda x: party.task.features(theta, x).flatten(1), key
            )
            return Upload(means, counts, means.repeat(self.m_up, 1, 1), counts > 0, {})
        data = party.data.train
        classes = party.task.classes
        z = features_of(party.task, theta, data)
        level = levels(
            len(data), self.guarded, self.secret, Key(0).fold("levels", party.stream)
        ).to(z.device)
        means, counts = class_means(z[level < 2], data.y[level < 2], classes, self.min_count)
        free = level == 0
        all_counts = torch.bincount(data.y[level < 2], minlength=classes)
        draw = key.fold("observations")
        obs, present = observations(
            z[free], data.y[free], all_counts, self.m_up, self.n_avg, self.min_count, draw
        )
        return Upload(means, counts, obs, present, {})

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(
        shares="means", also_leaves=("class counts",), self_contained=True, hears_peers=True
    )


@algorithm
class Relay(SharesRepresentations[Bank, Params, Teacher]):
    means_in: ClassVar = {"show": UPLOADED, "local": UPLOADED}
    m_down: int = option(1, "M↓, sets of observations it receives", minimum=1)
    exclude_self: bool = option(
        True, "observations come from others only; the code draws oneself, too"
    )
    weights: Literal["samples", "uniform"] = option(
        "samples", "global means by sample counts (code), or parties alike (thesis)"
    )
    begin: Literal["features", "random"] = option(
        "features", "what round 1 uses: untrained models' representations, or noise"
    )
    aggregate: Literal["none", "predictor", "model"] = option(
        "none", "average classifiers too, or whole models"
    )
    max_age: int = option(0, "forget uploads that are older, in rounds; 0: never", minimum=0)
    age_decay: float = option(1.0, "weight of an upload by its age, a round", above=0, maximum=1)

    def check(self, info: Info) -> None:
        super().check(info)
        if self.aggregate != "none":
            info.same_architecture(f"relay with aggregate={self.aggregate}")

    def init_server(self, key: Key, info: Info) -> Bank:
        shared = keep(info.task.init(key), shared_names(info.task, self.aggregate))
        first = (
            {-1: noise(self.m_up, info.task.classes, info.width, key.fold("begin"))}
            if self.begin == "random"
            else {}
        )
        peers = [None if wish is None else list(wish) for wish in info.peers]
        return Bank(
            info.task.classes,
            info.width,
            first,
            dict.fromkeys(first, 0),
            0,
            0,
            peers,
            shared,
            list(info.places),
        )

    def init_party(self, key: Key, party: Party) -> Params:
        return self.first(key, party)

    def start(self, s: Bank, server: Server) -> Bank:
        if self.begin == "random":
            return s
        return s.store(server.call(self.show, dict.fromkeys(server.info.parties, Empty())), 0)

    def round(self, s: Bank, server: Server, t: int) -> Bank:
        s = replace(s, round=t, draw=server.key("observations").bits)
        new = server.call(self.local, {u: self.message_for(s, u) for u in server.sample(t)})
        shared = average(
            {u: up.shared for u, up in new.items()}, {u: server.info.sizes[u] for u in new}
        )
        return replace(s.store(new, t), shared=shared)

    def message_for(self, s: Bank, u: int) -> Teacher:
        return s.teacher(
            u, s.heard_by(u, self.max_age), self.m_down, self.age_decay, self.exclude_self
        )

    @on_party
    async def show(self, state: Params, m: Empty, party: Party, key: Key) -> tuple[Params, Upload]:
        return state, self.upload(state, party, key)

    @on_party
    async def local(
        self, state: Params, m: Teacher, party: Party, key: Key
    ) -> tuple[Params, Upload]:
        theta = await self.train_with_teacher(state | m.shared, m, party, key)
        shared = keep(theta, shared_names(party.task, self.aggregate))
        return theta, replace(self.upload(theta, party, key), shared=shared)

    def upload(self, theta: Params, party: Party, key: Key) -> Upload:
        result = self.make_upload(theta, party, key)
        return (
            result
            if self.weights == "samples"
            else replace(result, counts=(result.counts > 0).int())
        )

    @on_party
    async def warm_up(
        self, state: Params, m: Teacher, party: Party, key: Key
    ) -> tuple[Params, None]:
        state, _ = await self.local(state, m, party, key)
        return state, None

    def deployed_model(self, state: Params, m: Teacher, party: Party) -> Params:
        return state

    def upload_bytes(self, info: Info) -> int:
        """Bytes of one upload."""
        return info.task.classes * (4 * (self.m_up + 1) * info.width + 5)

    def weight(self, info: Info) -> int:
        return info.task.bytes(
            without=frozenset(info.task.shapes) - shared_names(info.task, self.aggregate)
        )

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        SharesRepresentations.traits,
        start_weights="shared",
        bytes_formula=(
            "Σ_t |S_t| · C · (4·(M↑ + 1)·d' + 5 up, 4·(M↓ + 1)·d' + M↓ + 1 down), the former once"
            " before"
        ),
    )

    def adjust_traits(self, declared: Traits) -> Traits:
        if self.aggregate == "none":
            return declared
        return replace(declared, also_leaves=(*declared.also_leaves, "weights"))


@accounts_for(Relay)
class RelayAccounting(Accounting[Relay]):
    def group_size(self, field: str, counts: Sequence[int]) -> int | None:
        return smallest_mean(field, counts, self.method.n_avg, self.method.min_count)

    def declared_trainings(self, stage: Stage, how: Training) -> Mapping[str, Sequence[Training]]:
        trainings: dict[str, Sequence[Training]] = (
            {"show": []} if stage == "start" and self.method.begin == "features" else {}
        )
        return {**super().declared_trainings(stage, how), **trainings}

    def releases(self, function: str, facts: PartyFacts) -> Releases:
        return {"Upload.shared": NOTHING} if self.method.aggregate == "none" else {}

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        c, d = task.classes, task.width
        up = {
            "Upload.means": (c, d),
            "Upload.counts": (c,),
            "Upload.obs": (-1, c, d),
            "Upload.seen": (c,),
        }
        return up | {
            "Teacher.means": (c, d),
            "Teacher.known": (c,),
            "Teacher.obs": (-1, c, d),
            "Teacher.seen": (-1, c),
        }

    def start_traffic(self, info: Info) -> Traffic:
        return Traffic(
            up=len(info.names) * self.method.upload_bytes(info)
            if self.method.begin == "features"
            else 0
        )

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        down = info.task.classes * (
            4 * (self.method.m_down + 1) * info.width + self.method.m_down + 1
        ) + self.method.weight(info)
        return Traffic(
            up=len(cohort) * (self.method.upload_bytes(info) + self.method.weight(info)),
            down=len(cohort) * down,
        )
