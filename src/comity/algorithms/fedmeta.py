"""FedMeta with UGA: Yao et al., Federated Learning with Unbiased Gradient Aggregation and
Controllable Meta Updating, 2019.

Idea: a party's last gradient is taken with respect to the model that it received, so that the
gradients of all parties are taken at one point (UGA). Then the server makes a step on samples of
its own, which steers the model to their distribution (FedMeta).

Keep-trace: w_k = the model after E − 1 epochs of SGD from w, as a function of w.
Gradient evaluation: g_k = ∇_w F_k(w_k), over all of the party's training samples, in place of the
last epoch.
UGA: w ← w − η_g Σ_{k∈S} (n_k / n_S) g_k.
Meta updating: w ← w − η_m ∇L(w; D_meta).

Symbols: η_g = server_lr; η_m = meta_lr; D_meta = a share of each party's training samples, which it
sends before round 1.
Deviations: the gradient is propagated back through the trace step by step (Hessian-vector
products), which needs the memory of one model per step. Parties send w − η_g g_k, whose average is
UGA's line. With first_order=true the trace is left out: g_k = ∇F_k at w_k. D_meta is a tenth of
every party's samples, as in FedUFO, and stays in their training data; one step is made on all of
it. The trace uses the experiment's momentum, starting at 0 in every round (also with
opt_state=keep), and weight decay. BatchNorm's statistics are those after the trace, averaged. The
paper's η_g and η_m could not be checked; the defaults are not tuned; they converge on digits, where
η_m = 1 diverges. With η_m = 0 it is UGA alone, and parties send no samples.
At a glance: personal = nothing; exchanged = the weights, both ways, and a tenth of the samples
once; kept = nothing (the server: those samples); steps = E epochs, and E − 1 of Hessian products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from comity.algorithms.centralized import Data, together
from comity.components.averaged import AveragesWeights, AveragingAccounting
from comity.core import *

ROWS = 512  # batch size of gradients over many samples
Tally = tuple[Params, int]
"""A sum of gradients, and the number of its samples."""


@record
class Guided:
    """The server's state: w and D_meta."""

    theta: Params
    data: Data


@record
class Moving:
    """The state of a party's SGD with momentum: weights and velocity."""

    w: Params
    v: Params


def zeros(theta: Params) -> Params:
    return {k: torch.zeros_like(v) for k, v in trainable(theta).items()}


def plus(w: Params, by: float, along: Params) -> Params:
    """w + by · along."""
    return w | {k: w[k] + by * step for k, step in along.items()}


def adding(task: LearningTask, w: Params) -> Callable[[Tally, Batch], Tally]:
    """A step function that sums the gradient at w over batches."""

    def add(tally: Tally, batch: Batch) -> Tally:
        count = len(batch.y)
        _, g = value_and_gradient(partial(task.loss, batch=batch), w)
        return {k: total + count * g[k] for k, total in tally[0].items()}, tally[1] + count

    return add


def mean(tally: Tally) -> Params:
    return {k: total / max(1, tally[1]) for k, total in tally[0].items()}


def once(how: Training) -> Training:
    """A training of one epoch with large batches."""
    return replace(how, batch=max(how.batch, ROWS), epochs=1, steps=None)


@algorithm
class FedMeta(AveragesWeights[Guided, Params, Model]):
    server_lr: float = option(1.0, "η_g, the step along the parties' gradients", above=0)
    meta_lr: float = option(
        0.1, "η_m, the step on what the server holds; 0: none, and nobody sends samples", minimum=0
    )
    share: float = option(
        0.1, "of each party's training samples, which the server holds", above=0, maximum=1
    )
    first_order: bool = option(
        False, "leave out the trace: the gradient where the party's steps have led"
    )

    def check(self, info: Info) -> None:
        super().check(info)
        if info.training.optimizer != "sgd":
            raise UsageError(
                "fedmeta goes back through the steps of SGD: use --optimizer sgd, with momentum if"
                " wanted."
            )
        if not self.first_order and any(task.network.draws for task in info.tasks):
            raise UsageError(
                "fedmeta cannot go back through steps in which layers draw at random: use"
                " first_order=true."
            )

    def init_server(self, key: Key, info: Info) -> Guided:
        return Guided(
            self.shared_part(info.task.init(key), info.task), Data(torch.zeros(0), torch.zeros(0))
        )

    def init_party(self, key: Key, party: Party) -> Params:
        return self.private_part(party.task.init(key), party.task)

    def message_for(self, s: Guided, i: int) -> Model:
        return Model(s.theta)

    def start(self, s: Guided, server: Server) -> Guided:
        return self.collect_meta_data(s, [], server, server.info.parties)

    def catch_up(self, s: Guided, server: Server, ids: Sequence[int]) -> Guided:
        return self.collect_meta_data(s, [s.data], server, ids)

    def collect_meta_data(
        self, s: Guided, before: list[Data], server: Server, ids: Sequence[int]
    ) -> Guided:
        """Set D_meta to `before` and the samples that these parties send."""
        if not self.meta_lr:
            return s
        replies = server.call(self.hand_over, {i: Empty() for i in ids})
        return replace(s, data=together([*before, *replies.values()]))

    @on_party
    async def hand_over(
        self, state: Params, m: Empty, party: Party, key: Key
    ) -> tuple[Params, Data]:
        train = party.data.train
        subset = train.take(key.fold("meta").choose(self.meta_count(len(train)), len(train)))
        return state, Data(subset.x, subset.y.int() if party.task.classes else subset.y)

    def meta_count(self, n: int) -> int:
        return math.ceil(self.share * n)

    @only_averages
    def round(self, s: Guided, server: Server, t: int) -> Guided:
        messages = {i: self.message_for(s, i) for i in server.sample(t)}
        w = server.mean(self.local, messages, server.info.sizes).value.theta
        return replace(s, theta=self.meta_update(w, s.data, server) if self.meta_lr else w)

    def meta_update(self, w: Params, data: Data, server: Server) -> Params:
        """The meta update. It does not change BatchNorm's statistics. Parameters that are private
        at parties have their initial values here.
        """
        task = server.info.task
        whole = task.init(server.key("kept")) | w
        whole = {k: v.clone() if is_buffer(k) else v for k, v in whole.items()}
        samples = Samples(data.x, data.y.long() if task.classes else data.y)
        g = server.fold(
            adding(task, whole),
            (zeros(w), 0),
            samples,
            server.key("meta"),
            once(server.info.training),
        )
        return plus(w, -self.meta_lr, mean(g))

    @on_party
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        w, how = m.theta | state, party.training
        past: list[tuple[Params, Batch]] = []

        def descend(at: Moving, batch: Batch) -> Moving:
            if not self.first_order:
                past.append((at.w, batch))
            _, g = value_and_gradient(partial(party.task.loss, batch=batch), at.w)
            v = {k: how.momentum * at.v[k] + g[k] + how.decay * at.w[k] for k in g}
            return Moving(plus(at.w, -how.lr, v), v)

        shorter = (
            replace(how, epochs=how.epochs - 1)
            if how.steps is None
            else replace(how, steps=how.steps - 1)
        )
        w_k = (await party.fold(descend, Moving(w, zeros(w)), key, shorter)).w
        add = adding(party.task, w_k)
        g = mean(await party.fold(add, (zeros(w), 0), key.fold("evaluate"), once(how)))
        buffers = {k: v for k, v in w_k.items() if is_buffer(k)}
        theta = plus(w, -self.server_lr, self.backpropagate(g, past, party)) | buffers
        return self.private_part(theta, party.task), Model(self.shared_part(theta, party.task))

    def backpropagate(self, g: Params, past: list[tuple[Params, Batch]], party: Party) -> Params:
        """The gradient at w from that at w_k, back through the steps v ← μ v + ∇f + λ w, w ← w − η
        v.
        """
        how, dv = party.training, zeros(g)
        for w, batch in reversed(past):
            if batch.scratch:
                raise UsageError(
                    "fedmeta cannot go back through a loss that remembers its last batches: use"
                    " first_order=true."
                )
            dv = plus(dv, -how.lr, g)
            bend = curvature(partial(party.task.loss, batch=batch), w, dv)
            g = {k: g[k] + bend[k] + how.decay * dv[k] for k in g}
            dv = {k: how.momentum * d for k, d in dv.items()}
        return g

    def newcomer_state(self, state: Params, theta: Params) -> Params:
        return theta | state

    def deployed_model(self, state: Params, m: Model, party: Party) -> Params:
        return m.theta | state

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        AveragesWeights.traits,
        also_leaves=("samples",),
        bytes_formula=(
            "2 · Σ_t |S_t| · S, and Σ_i ⌈share · n_i⌉ · (bytes of a sample + 4) once, before round"
            " 1"
        ),
    )

    def adjust_traits(self, declared: Traits) -> Traits:
        return declared if self.meta_lr else replace(declared, also_leaves=())


@accounts_for(FedMeta)
class FedMetaAccounting(AveragingAccounting[FedMeta]):
    def warnings(self, info: Info) -> list[str]:
        how = info.training
        traces = how.epochs > 1 if how.steps is None else how.steps > 1
        warnings = (
            []
            if traces
            else ["with one epoch there is nothing to trace: a round is one gradient step."]
        )
        return (
            warnings
            if not self.method.meta_lr
            else [
                f"each party sends the server {self.method.share:.0%} of its training samples.",
                *warnings,
            ]
        )

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        return {"Data.x": None, "Data.y": (-1,)}

    def start_traffic(self, info: Info) -> Traffic:
        sample = 4 * torch.Size(info.shape).numel() + 4
        return Traffic(
            up=sum(map(self.method.meta_count, info.sizes)) * sample if self.method.meta_lr else 0
        )
