"""FADA: Peng, Huang, Zhu, Saenko, Federated Adversarial Domain Adaptation, ICLR 2020.

Idea: one party, the target, has samples but no labels. The others teach a model for it: for each
source a domain identifier at the server learns to tell its features from the target's, extractors
learn to confuse it, and sources count by how well their models sort the target's samples into
clusters.

Source: min CE(C_i(G_i(x)), y) + μ · CE(DI_i(G_i(x)), source), E epochs from the target's model.
Identifier: min CE(DI_i(G_i(x)), source) + CE(DI_i(G_t(x)), target), at the server, for each pair of
a source and the target.
Attention: α = softmax(−log(W_k(i) / W_1(i))), W_k(i) = scatter within k = C clusters of the
target's features by i's model; (G_t, C_t) ← Σ_i α_i (G_i, C_i).
Target: min μ · mean_i CE(DI_i(G_t(x)), source) over G_t, E epochs, without labels.

Symbols: G = the stages up to the cut, C its head; t = the target, i = a source; DI_i = a binary
discriminator of features.
At a glance: personal = nothing (target=each: the model made for the party); exchanged = sources:
weights both ways, DI_i down, all samples' representations up; the target: the sources' weights and
DIs down, weights and representations up; kept = nothing (the server: models and DIs); steps = E
epochs at sources and at the target (target=each: N times that); each DI's at the server, by default
as many as a party's.
Deviations: only the abstract, the introduction and summaries of the paper could be read; the rest
is from memory. μ and DI's size are choices of this file. Sources begin each round at the target's
model (paper: their gradients are applied to it). The paper's attention is a softmax of how much
scatter falls in a step; since all sources begin at one model, it depends only on the scatter that
is left. Here it is a logarithm of scatter relative to the whole, so that small features do not
count as tight clusters. Both sides are trained to be classified as the source, as in eq. 6, so that
only the target changes its looks; confuse=both trains each to be classified as the other. k-means
takes the best of five starts. The disentangler (class identifier, mutual information,
reconstruction) is left out, because the paper's equations for it were not available. target=each
trains a model for every party by the others' labels, each equal, bit for bit, to that of a run with
this target: one run replaces the N runs of ADCOL's Table 21. Representations of single samples
leave sources and target, and the target sees each source's model. A newcomer gets the target's
model, or the mean of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from comity.base.content import REPRESENTATIONS, WEIGHTS, Content, describe
from comity.components.classwise import features_of
from comity.components.clusters import left_in_clusters
from comity.components.discriminator import (
    DiscriminatorSteps,
    as_many_steps_as_a_party,
    both_sides,
    discriminator,
    label_by_owner,
    shares_of,
)
from comity.core import *

SOURCE, TARGET = 0, 1
NOBODY = -1


@record
class Lesson:
    """A model, and the identifier that its extractor is to confuse."""

    theta: Params
    DI: Params


@record
class Shown:
    """A source's reply for one target: its model, and its samples' representations."""

    theta: Params = describe(WEIGHTS)
    z: Tensor = describe(REPRESENTATIONS)


@record
class Adapted:
    """The target's reply: its model, its samples' representations, and the weight of each
    source.
    """

    theta: Params = describe(WEIGHTS)
    z: Tensor = describe(REPRESENTATIONS)
    attention: dict[int, float] = describe(
        Content("how much each party's model helps to tell groups of records apart", "weights")
    )


@record
class Targets:
    """The server's state by target: its model, and the identifiers of its sources."""

    models: dict[int, Params]
    DI: dict[int, dict[int, Params]]


@record
class Judges:
    """The identifiers that an extractor is to confuse, and the label that they should predict."""

    DI: list[Params]
    wanted: Tensor


@algorithm
class Fada(DiscriminatorSteps, Algorithm[Targets, dict[int, Params], Model]):
    target: str = option(
        "",
        "the party without labels, by its name; empty: the last; each: every party in turn, by the"
        " others",
    )
    mu: float = option(0.1, "μ, weight of confusing the identifiers", minimum=0)
    attention: Literal["gap", "uniform"] = option(
        "gap", "how sources count: by the target's clusters, or alike"
    )
    confuse: Literal["target", "both"] = option(
        "target", "who learns to look like the other: the target alone (eq. 6), or both"
    )
    disc: Literal["mlp", "linear", "shallow", "deep"] = option(
        "shallow", "DI: three FC layers, one, two, or five"
    )
    hidden: int = option(256, "width of DI's hidden layers", minimum=1)

    def check(self, info: Info) -> None:
        info.needs_classes("fada", "looks for as many clusters as there are classes")
        info.same_architecture("fada")
        self.check_disc_steps()
        if len(info.names) < 2:
            raise UsageError("fada needs a source beside the target: at least two parties.")
        if self.target == "each" and info.training.keep and 0 < info.cohort < len(info.names):
            raise UsageError(
                "With cohorts target=each would mix up what optimizers keep of its models: use"
                " --opt-state reset."
            )
        if self.target not in ("", "each", *info.names):
            raise UsageError(
                f"There is no party {self.target!r} to be fada's target; there are"
                f" {', '.join(info.names[:10])}."
            )

    def targets(self, info: Info, cohort: Sequence[int]) -> dict[int, list[int]]:
        """The targets of a round with their sources. A single target takes part in every round that
        has sources.
        """
        if self.target == "each":
            targets = list(cohort)
        elif self.target in info.names:
            targets = [info.names.index(self.target)]
        else:
            targets = [len(info.names) - 1]
        plan = {k: [i for i in cohort if i != k] for k in targets}
        return {k: sources for k, sources in plan.items() if sources}

    def identifier(self, width: int) -> LearningTask:
        return discriminator(self.disc, width, self.hidden, 2)

    def init_server(self, key: Key, info: Info) -> Targets:
        pairs = self.targets(info, info.parties)
        first = self.identifier(info.width).init(key.fold("identifier"))
        w = drop(info.task.init(key), info.task.private)
        return Targets(
            dict.fromkeys(pairs, w),
            {k: dict.fromkeys(sources, first) for k, sources in pairs.items()},
        )

    def init_party(self, key: Key, party: Party) -> dict[int, Params]:
        """The private parameters of the models that the party has trained, by target."""
        return {NOBODY: keep(party.task.init(key), party.task.private)}

    def message_for(self, s: Targets, i: int) -> Model:
        if self.target == "each":
            return Model(
                s.models[i] if i in s.models else average(s.models, dict.fromkeys(s.models, 1.0))
            )
        return Model(*s.models.values())

    def round(self, s: Targets, server: Server, t: int) -> Targets:
        plan = self.targets(server.info, server.sample(t))
        messages: dict[int, dict[int, Lesson]] = {}
        for k, sources in plan.items():
            for i in sources:
                messages.setdefault(i, {})[k] = Lesson(s.models[k], s.DI[k][i])
        if not messages:
            return s
        replies = server.call(self.local, dict(sorted(messages.items())))
        by_target = {
            k: {i: replies[i][k] for i in sources if i in replies} for k, sources in plan.items()
        }
        lessons = {
            k: {i: Lesson(reply.theta, s.DI[k][i]) for i, reply in by_source.items()}
            for k, by_source in by_target.items()
            if by_source
        }
        models, DI = dict(s.models), dict(s.DI)
        for k, adapted in server.call(self.adapt, lessons).items():
            models[k] = adapted.theta
            DI[k] = DI[k] | {
                i: self.train_identifier(DI[k][i], reply.z, adapted.z, server, (k, i))
                for i, reply in by_target[k].items()
            }
            for i, share in adapted.attention.items():
                server.note(f"attention/{server.info.name(i)}", share, party=k)
        return Targets(models, DI)

    def train_identifier(
        self, DI: Params, z_i: Tensor, z_t: Tensor, server: Server, pair: tuple[int, int]
    ) -> Params:
        like_a_party = as_many_steps_as_a_party(server.info, server.info.parties)
        how = replace(self.disc_training(like_a_party), augment=None)
        data = label_by_owner({SOURCE: z_i, TARGET: z_t})
        task = self.identifier(server.info.width)
        return server.fit(
            both_sides,
            DI,
            data,
            server.key("identifier", *pair),
            shares_of(data),
            task=task,
            training=how,
        ).theta

    @on_party
    async def local(
        self, state: dict[int, Params], m: dict[int, Lesson], party: Party, key: Key
    ) -> tuple[dict[int, Params], dict[int, Shown]]:
        """A source's work: it trains each target's model on its own labels."""
        replies = {}
        private = party.task.private
        for k, lesson in m.items():
            begin = lesson.theta | state.get(k, state[NOBODY])
            if self.mu:
                domain = TARGET if self.confuse == "both" else SOURCE
                judges = Judges([lesson.DI], torch.tensor(domain, device=party.data.train.y.device))
                theta = (await party.fit(self.source_loss, begin, key, judges)).theta
            else:
                theta = (await party.fit(plain, begin, key)).theta
            state = {**state, k: keep(theta, private)}
            replies[k] = Shown(
                drop(theta, private), features_of(party.task, theta, party.data.train)
            )
        return state, replies

    @on_party
    async def adapt(
        self, state: dict[int, Params], m: dict[int, Lesson], party: Party, key: Key
    ) -> tuple[dict[int, Params], Adapted]:
        """The target's work: it weights the sources' models and confuses their identifiers, without
        using its labels.
        """
        task, train = party.task, party.data.train
        unlabelled = Samples(train.x, torch.zeros_like(train.y))
        private = state.get(party.id, state[NOBODY])
        share = dict.fromkeys(m, 1 / len(m))
        if self.attention == "gap":
            z = {
                i: features_of(task, lesson.theta | private, unlabelled) for i, lesson in m.items()
            }
            fit = [
                1 / left_in_clusters(rows, task.classes, key.fold("clusters"))
                for rows in z.values()
            ]
            # softmax(−log(W_k / W_1))
            share = {i: value / sum(fit) for i, value in zip(m, fit, strict=True)}
        theta = average({i: lesson.theta for i, lesson in m.items()}, share) | private
        if self.mu:
            judges = Judges(
                [lesson.DI for lesson in m.values()], torch.tensor(SOURCE, device=train.y.device)
            )
            body = frozenset(theta.keys() - task.head_names)
            fitted = await party.fit(
                self.target_loss, theta, key, judges, samples=unlabelled, only=body
            )
            theta = fitted.theta
        reply = Adapted(drop(theta, task.private), features_of(task, theta, unlabelled), share)
        return {**state, party.id: keep(theta, task.private)}, reply

    def source_loss(
        self, task: LearningTask, theta: Params, batch: Batch, judges: Judges
    ) -> Tensor:
        z = task.features(theta, batch.x, train=True)
        return task.objective(theta, z, batch) + self.mu * self.identifier_loss(task, z, judges)

    def target_loss(
        self, task: LearningTask, theta: Params, batch: Batch, judges: Judges
    ) -> Tensor:
        return self.mu * self.identifier_loss(
            task, task.features(theta, batch.x, train=True), judges
        )

    def identifier_loss(self, task: LearningTask, z: Tensor, judges: Judges) -> Tensor:
        """The mean cross entropy of the identifiers' predictions for z with the label in
        `judges`.
        """
        disc, labels = self.identifier(task.width), judges.wanted.expand(len(z))
        return torch.stack(
            [mean_cross_entropy(disc.logits(D, z), labels) for D in judges.DI]
        ).mean()

    def deployed_model(self, state: dict[int, Params], m: Model, party: Party) -> Params:
        private = [*state.values()][-1]
        if self.target == "each":
            private = state.get(party.id, state[NOBODY])
        return m.theta | private

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(
        also_leaves=("representations",),
        feature_skew_only=True,
        experimental="only the abstract, the introduction and summaries of the paper could be read",
        common_start="has one model for each target, from which all its sources begin",
        bytes_formula=(
            "Σ_t Σ_targets ((3·m + 1)·S + 2·m·S_DI + 4·d·Σ_i n_i + 4·m), m sources, i over these"
            " and the target"
        ),
    )

    def adjust_traits(self, declared: Traits) -> Traits:
        return replace(declared, one_model=self.target != "each")


@accounts_for(Fada)
class FadaAccounting(Accounting[Fada]):
    def warnings(self, info: Info) -> list[str]:
        pair = sum(sorted(info.sizes[i] for i in info.parties)[-2:])
        return self.method.disc_warnings(as_many_steps_as_a_party(info, info.parties), pair)

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        rows = (-1, task.width)
        return {"Lesson.DI": self.method.identifier(task.width), "Shown.z": rows, "Adapted.z": rows}

    def join_traffic(self, info: Info) -> Traffic:
        return Traffic(down=len(info.late) * info.task.bytes(without=info.task.private))

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        S, S_DI = (
            info.task.bytes(without=info.task.private),
            self.method.identifier(info.width).bytes(),
        )
        total = Traffic()
        for k, sources in self.method.targets(info, cohort).items():
            m = len(sources)
            rows = sum(info.sizes[i] for i in (k, *sources))
            total += Traffic(
                up=(m + 1) * S + 4 * info.width * rows + 4 * m, down=2 * m * (S + S_DI)
            )
        return total
