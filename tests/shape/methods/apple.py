"""APPLE as a probe of the core: N core models mixed at each party, gradients on one of them and on the mixture.

Idea: party i's model is Σ_j p_ij w_j; it trains its own w_i and its own p_i.

Symbols: w_j = core models, sent between parties; p = mixture weights, p_0 = n_j / n.
Deviations: the proximal weight is constant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comity.core import *


@record
class Shares:
    p0: Tensor


@record
class AppleState:
    core: Params
    p: Tensor
    mixed: Params


@record
class Sent:
    parcel: Sealed[Model]


@algorithm
class Apple(Algorithm[Shares, AppleState, Shares]):
    self_contained = True
    mu: float = option(0.1, "weight of the pull to p_0", minimum=0)

    def check(self, info: Info) -> None:
        info.same_architecture("apple")

    def server(self, key: Key, info: Info) -> Shares:
        sizes = torch.tensor(info.sizes, dtype=torch.float32)
        return Shares(sizes / sizes.sum())

    def client(self, key: Key, party: Party) -> AppleState:
        theta = party.task.init(key)
        return AppleState(theta, torch.full((party.federation_size,), 1 / party.federation_size), theta)

    def view(self, s: Shares, i: int) -> Shares:
        return s

    def round(self, s: Shares, net: Net, t: int) -> Shares:
        everyone = list(net.info.parties)
        sent = net.call(self.send, dict.fromkeys(everyone, Empty()))
        post = {(j, i): sent[j].parcel for j in everyone for i in everyone if i != j}
        net.call(self.local, {i: self.view(s, i) for i in everyone}, post)
        return s

    @work
    async def send(self, mine: AppleState, m: Empty, party: Party, key: Key) -> tuple[AppleState, Sent]:
        return mine, Sent(seal(Model(mine.core), to=(j for j in range(party.federation_size) if j != party.id)))

    @work
    async def local(self, mine: AppleState, m: Shares, party: Party, key: Key) -> tuple[AppleState, Empty]:
        lr, names = party.training.lr, list(trainable(mine.core))
        others = {j: sent.theta for j, sent in sorted(party.inbox.items())}

        def mix(core: Params, p: Tensor) -> Params:
            return core | {k: p[party.id] * core[k] + sum(p[j] * w[k] for j, w in others.items()) for k in names}

        def step(state: Params, batch: Batch) -> Params:
            def value(free: Params) -> Tensor:
                return party.task.loss(mix(free, free["p"]), batch) + self.mu / 2 * (free["p"] - m.p0).square().sum()

            _, grads = gradient(value, state)
            return state | {k: state[k] - lr * g for k, g in grads.items()}

        done = await party.fold(step, mine.core | {"p": mine.p}, key)
        core, p = {k: v for k, v in done.items() if k != "p"}, done["p"]
        return AppleState(core, p, mix(core, p)), Empty()

    def model(self, mine: AppleState, m: Shares, party: Party) -> Params:
        return mine.mixed

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        n = len(info.names)
        return Traffic(down=4 * n * n, peer=n * (n - 1) * info.task.bytes())
