"""pFedMe as a probe of the core: a step of its own, with an inner loop.

Idea: θ solves min f(θ) + λ/2 ‖θ − w_i‖² on one batch, approximately; w_i follows θ.

Symbols: w_i = the local copy of the global model; θ = the personal model, which is evaluated.
Deviations: β = 1.
"""

from __future__ import annotations

from comity.core import *


@record
class Pair:
    w: Params
    theta: Params


@algorithm
class PFedMe(Algorithm[Params, Params, Model]):
    self_contained = True
    lam: float = option(15.0, "λ", minimum=0)
    inner_lr: float = option(0.05, "η_p", minimum=0)
    inner_steps: int = option(5, "K", minimum=1)

    def check(self, info: Info) -> None:
        info.same_architecture("pfedme")

    def server(self, key: Key, info: Info) -> Params:
        return info.task.init(key)

    def client(self, key: Key, party: Party) -> Params:
        return party.task.init(key)

    def view(self, w: Params, i: int) -> Model:
        return Model(w)

    def round(self, w: Params, net: Net, t: int) -> Params:
        replies = net.call(self.local, {i: self.view(w, i) for i in net.sample(t)})
        return average({i: r.theta for i, r in replies.items()}, {i: net.info.sizes[i] for i in replies})

    @work
    async def local(self, mine: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        def step(state: Pair, batch: Batch) -> Pair:
            w, theta = state.w, state.theta
            for _ in range(self.inner_steps):
                _, g = gradient(lambda free: party.task.loss(free, batch), theta)
                theta = theta | {k: theta[k] - self.inner_lr * (g[k] + self.lam * (theta[k] - w[k])) for k in g}
            moved = {k: w[k] - party.training.lr * self.lam * (w[k] - theta[k]) for k in trainable(w)}
            return Pair(theta | moved, theta)  # BatchNorm's buffers go with theta's passes

        done = await party.fold(step, Pair(m.theta, m.theta), key)
        return done.theta, Model(done.w)

    def model(self, mine: Params, m: Model, party: Party) -> Params:
        return mine

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        each = len(cohort) * info.task.bytes()
        return Traffic(up=each, down=each)
