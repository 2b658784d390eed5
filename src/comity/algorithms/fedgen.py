"""FedGen: Zhu, Hong, Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning,
ICML 2021.

Idea: from the parties' heads alone, the server trains a generator of representations for each
class. Parties train on generated representations in addition to their own data, so that their heads
do not forget the classes that they lack.

Generator: min_G E_{y∼p̂, ε} CE(Σ_k (n_k / n_S) h_k(G(y, ε)), y) + η_d · sameness, over the logits
h_k of this round's heads.
Party: min_θ CE(h(f(x)), y) + λ · E_{ŷ∼p̂, ε} CE(h(G(ŷ, ε)), ŷ), with as many ŷ as the batch has
samples.
Sameness: exp(−mean_{i,j} ‖ε_i − ε_j‖² · |z_i − z_j|), both distances being means over values.

At a glance: personal = nothing; exchanged = weights, both ways, and a generator's weights down;
counts of classes once; kept = nothing; at the server the generator and the counts; steps = E epochs
of two batches; a generator's steps at the server.
Symbols: G = (y, ε) → FC, BatchNorm, ReLU, FC → z, a representation at the model's cut; ε ∼ N(0, I);
p̂ = all parties' labels, counted together; f, h = the stages up to the cut and the head.
Deviations: as in PFLlib, heads are weighted by sample counts (paper: equally), the counts behind p̂
are exchanged once before round 1 (paper: in every round), Adam keeps its moments from round to
round, λ = 1 and η_d = 0 (authors' code: λ = 10, decaying, η_d = 1, and a term that pulls a sample's
prediction to that for its class). ε is normal as in the paper (both codes: uniform). Generated z
pass heads in evaluation mode, so that BatchNorm statistics come from data only, and without a
wrapper's offset.
Compared: within chance of PFLlib's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.content import CLASS_COUNTS, describe
from comity.components.averaged import AveragesWeights, AveragingAccounting
from comity.core import *
from comity.models.stack import Builder, batchnorm, linear, relu


@record
class Source:
    """The server's state: w, the generator with its optimizer's moments, and p̂."""

    theta: Params
    G: Params
    moments: Moments | None
    labels: Tensor


@record
class Taught:
    """The server's message: w and the generator."""

    theta: Params
    G: Params


@record
class FedGenState:
    """A party's state: its private parameters, and p̂."""

    private: Params
    labels: Tensor


@record
class Ensemble:
    """The teachers of the generator: this round's heads, and the weight of each."""

    shares: list[float]
    heads: list[Params]


@record
class Wanted:
    """The inputs of the generator for a batch: labels and ε."""

    y: Tensor
    eps: Tensor


@record
class Labels:
    """Sample counts by class: a party's in a reply, all parties' in a message."""

    counts: Tensor = describe(CLASS_COUNTS)


def draw_labels(labels: Tensor, count: int, key: Key) -> Tensor:
    """Draw labels y ∼ p̂."""
    return torch.multinomial(
        labels.cpu().float(), count, replacement=True, generator=key.generator()
    ).to(labels.device)


def sameness(eps: Tensor, z: Tensor) -> Tensor:
    """The diversity penalty: 1 where different noise gives equal representations, less
    otherwise.
    """
    z = z.flatten(1)
    return (-((eps[:, None] - eps).square().mean(2) * (z[:, None] - z).abs().mean(2)).mean()).exp()


@record
class Generator:
    """The input of a party's loss: G from the message, and p̂ from its state."""

    G: Params
    labels: Tensor


@algorithm
class FedGen(AveragesWeights[Source, FedGenState, Taught]):
    weight: float = option(1.0, "λ, weight of the generated representations at a party", minimum=0)
    diversity: float = option(
        0.0, "η_d, weight of what keeps the generator from making one z a class", minimum=0
    )
    gen_steps: int = option(1000, "steps of Adam on the generator in a round", minimum=1)
    gen_lr: float = option(0.005, "the generator's learning rate", minimum=0)
    gen_batch: int = option(10, "labels in a batch of the generator's", minimum=2)
    noise: int = option(512, "values in ε", minimum=1)
    hidden: int = option(512, "width of the generator's hidden layer", minimum=1)

    def check(self, info: Info) -> None:
        super().check(info)
        info.needs_classes("fedgen", "generates representations of each class")
        if private_heads := sorted(self.private_names(info.task) & info.task.head_names):
            raise UsageError(
                f"fedgen's server needs whole heads, but {private_heads[0]} stays at the party:"
                " use --bn all or another --cut."
            )

    def generator(self, task: LearningTask) -> LearningTask:
        build = Builder("generator", (self.noise + task.classes,)).stage(
            "gen1", linear(self.hidden), batchnorm(), relu
        )
        network = build.stage("gen2", linear(task.width)).build()
        return LearningTask(network, classes=task.width, cut=network.cut)

    def generate(
        self, task: LearningTask, G: Params, request: Wanted, train: bool = False
    ) -> Tensor:
        """G(y, ε) in the shape of the task's representations."""
        gen = self.generator(task)
        inputs = torch.cat([request.eps, F.one_hot(request.y, task.classes).float()], dim=1)
        z: Tensor = gen.head(G, gen.features(G, inputs, train), train).unflatten(1, task.z_shape)
        return z

    def eps(self, count: int, key: Key, device: torch.device) -> Tensor:
        return torch.randn((count, self.noise), generator=key.fold("noise").generator()).to(device)

    def init_server(self, key: Key, info: Info) -> Source:
        G = self.generator(info.task).init(key.fold("generator"))
        theta = self.shared_part(info.task.init(key), info.task)
        return Source(theta, G, None, torch.ones(info.task.classes, dtype=torch.int32))

    def init_party(self, key: Key, party: Party) -> FedGenState:
        private = self.private_part(party.task.init(key), party.task)
        return FedGenState(private, torch.ones(party.task.classes, dtype=torch.int32))

    def message_for(self, s: Source, i: int) -> Taught:
        return Taught(s.theta, s.G)

    def start(self, s: Source, server: Server) -> Source:
        replies = server.call(self.count, dict.fromkeys(server.info.parties, Empty()))
        labels = torch.stack([reply.counts for reply in replies.values()]).sum(0).int()
        server.call(self.agree, dict.fromkeys(server.info.parties, Labels(labels)))
        return replace(s, labels=labels)

    def catch_up(self, s: Source, server: Server, ids: Sequence[int]) -> Source:
        server.call(self.agree, dict.fromkeys(ids, Labels(s.labels)))
        return s

    def join(self, s: Source, server: Server, ids: Sequence[int]) -> Source:
        server.call(self.agree, dict.fromkeys(ids, Labels(s.labels)))
        return super().join(s, server, ids)

    @on_party
    async def count(
        self, state: FedGenState, m: Empty, party: Party, key: Key
    ) -> tuple[FedGenState, Labels]:
        return state, Labels(torch.bincount(party.data.train.y, minlength=party.task.classes).int())

    @on_party
    async def agree(
        self, state: FedGenState, m: Labels, party: Party, key: Key
    ) -> tuple[FedGenState, None]:
        return replace(state, labels=m.counts), None

    def round(self, s: Source, server: Server, t: int) -> Source:
        replies = server.call(self.local, {i: self.message_for(s, i) for i in server.sample(t)})
        sizes = {i: server.info.sizes[i] for i in replies}
        total = sum(sizes.values())
        heads = Ensemble(
            [size / total for size in sizes.values()], [reply.theta for reply in replies.values()]
        )
        y = draw_labels(s.labels, self.gen_steps * self.gen_batch, server.key("labels"))
        how = Training("adam", self.gen_lr, batch=self.gen_batch, steps=self.gen_steps)
        key = server.key("generator")
        task = server.info.task
        data = Samples(y, y)
        fitted = server.fit(
            self.j_g,
            s.G,
            data,
            key,
            heads,
            task=task,
            training=how,
            before=s.moments,
            draw=self.noises,
        )
        server.note("generator/loss", float(fitted.loss or 0.0))
        return Source(
            average({i: r.theta for i, r in replies.items()}, sizes),
            fitted.theta,
            fitted.moments,
            s.labels,
        )

    def noises(self, batch: Batch, key: Key, heads: Ensemble) -> Tensor:
        """Draw ε for a batch of the generator."""
        return self.eps(len(batch.y), key.fold("made"), batch.y.device)

    def j_g(self, task: LearningTask, G: Params, batch: Batch, ensemble: Ensemble) -> Tensor:
        eps: Tensor = batch.draws
        z = self.generate(task, G, Wanted(batch.y, eps), train=True)
        answers = zip(ensemble.shares, ensemble.heads, strict=True)
        logits = torch.stack([share * task.head(theta, z) for share, theta in answers]).sum(0)
        value = F.cross_entropy(logits, batch.y)
        return value + self.diversity * sameness(eps, z) if self.diversity else value

    @on_party
    async def local(
        self, state: FedGenState, m: Taught, party: Party, key: Key
    ) -> tuple[FedGenState, Model]:
        generator = Generator(m.G, state.labels)
        theta = (
            await party.fit(
                self.j_k, m.theta | state.private, key, generator, draw=self.draw_request
            )
        ).theta
        private = self.private_part(theta, party.task)
        shared = self.shared_part(theta, party.task)
        return replace(state, private=private), Model(shared)

    def draw_request(self, batch: Batch, key: Key, aux: Generator) -> Wanted:
        """Draw one label and one ε for each sample of a party's batch."""
        key = key.fold("made")
        y = draw_labels(aux.labels, len(batch.y), key)
        return Wanted(y, self.eps(len(y), key, y.device))

    def j_k(self, task: LearningTask, theta: Params, batch: Batch, aux: Generator) -> Tensor:
        request: Wanted = batch.draws
        z = self.generate(task.plain, aux.G, request)
        return task.loss(theta, batch) + self.weight * mean_cross_entropy(
            task.plain.head(theta, z), request.y
        )

    def newcomer_state(self, state: FedGenState, theta: Params) -> FedGenState:
        return replace(state, private=theta | state.private)

    def deployed_model(self, state: FedGenState, m: Taught, party: Party) -> Params:
        return m.theta | state.private

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        AveragesWeights.traits,
        also_leaves=("class counts",),
        bytes_formula="Σ_t |S_t| · (2·S + S_G), and N · 8·C once before round 1",
    )


@accounts_for(FedGen)
class FedGenAccounting(AveragingAccounting[FedGen]):
    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        return {"Taught.G": self.method.generator(task), "Labels.counts": (task.classes,)}

    def start_traffic(self, info: Info) -> Traffic:
        size = 4 * info.task.classes * len(info.names)
        return Traffic(up=size, down=size)

    def join_traffic(self, info: Info) -> Traffic:
        return super().join_traffic(info) + Traffic(down=len(info.late) * 4 * info.task.classes)

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        shared = self.shared_bytes(info)
        generator = self.method.generator(info.task).bytes()
        return Traffic(up=len(cohort) * shared, down=len(cohort) * (shared + generator))
