"""FedUFO with UAD only, as a probe of the core: two calls in a round, priors delivered sealed between parties.

Idea: posteriors are trained so that a discriminator cannot tell whose extractor made their features.

Symbols: w = global model; w̃_k = priors; D = discriminator, averaged with w.
Deviations: a probe, not the method: no stages, no CGR, CGL or dynamic sampling.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.core import *
from comity.models.stack import Builder, flat, linear, relu


@record
class State:
    w: Params
    disc: Params


@record
class Prior:
    parcel: Sealed


@algorithm
class FedUfoUad(Algorithm):
    def check(self, info: Info) -> None:
        info.same_architecture("fedufo")

    def discriminator(self, d: int, n: int) -> Task:
        network = Builder("discriminator", (d,)).stage("fc1", flat, linear(d), relu).stage("out", linear(n)).build()
        return Task(network, n, network.cut)

    def server(self, key: Key, info: Info) -> State:
        disc = self.discriminator(info.width, len(info.names)).init(key.fold("discriminator"))
        return State(info.task.init(key), disc)

    def client(self, key: Key, party: Party) -> Empty:
        return Empty()

    def view(self, s: State, i: int) -> State:
        return s

    def round(self, s: State, net: Net, t: int) -> State:
        group = net.sample(t)
        priors = net.call(self.prior, {k: Model(s.w) for k in group})
        post = {(j, k): priors[j].parcel for j in group for k in group if j != k}
        replies = net.call(self.posterior, {k: self.view(s, k) for k in group}, post)
        sizes = {k: net.info.sizes[k] for k in replies}
        w, disc = ({k: getattr(r, part) for k, r in replies.items()} for part in ("w", "disc"))
        return State(average(w, sizes), average(disc, sizes))

    def prior(self, mine: Empty, m: Model, party: Party, key: Key) -> tuple[Empty, Prior]:
        theta = fit(party.task.loss, m.theta, party.data.train, key, party.training).theta
        return mine, Prior(seal(Model(theta)))

    def posterior(self, mine: Empty, m: State, party: Party, key: Key) -> tuple[Empty, State]:
        task, disc = party.task, self.discriminator(party.task.width, party.parties)

        def eq5(theta: Params, batch: Batch) -> Tensor:
            z = task.features(theta, batch.x, train=True)
            uni = -F.log_softmax(disc.logits(m.disc, z.flatten(1)), 1).mean()  # L_uni
            return task.objective(theta, z, batch) + uni

        w = fit(eq5, m.w, party.data.train, key.fold("posterior"), party.training).theta
        models: dict[int, Any] = {party.id: w} | {j: p.theta for j, p in party.inbox.items()}
        x = party.data.train.x
        z = [in_chunks(lambda part, theta=theta: task.features(theta, part).flatten(1), x) for theta in models.values()]
        whose = torch.cat([torch.full((len(x),), j) for j in models])
        trained = fit(disc.loss, m.disc, Samples(torch.cat(z), whose), key.fold("disc"), party.training).theta
        return mine, State(w, trained)

    def model(self, mine: Empty, m: State, party: Party) -> Params:
        return m.w

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        k, w = len(cohort), info.task.bytes()
        disc = self.discriminator(info.width, len(info.names)).bytes()
        return Traffic(up=k * (w + disc), down=k * (2 * w + disc), peer=k * (k - 1) * w)
