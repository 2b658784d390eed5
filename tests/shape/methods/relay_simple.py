"""Representation sharing in its simplest form, as a probe of the core: two architectures, Adam's moments kept across rounds.

Idea: parties pull their features to the mean of all parties' class means.

Symbols: t̄^c = global class means; s = features.
Deviations: a probe, not the method: the KD term only.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from comity.core import *


@record
class Means:
    t: Tensor
    counts: Tensor


@record
class Own:
    theta: Params
    moments: Moments | None


@algorithm
class RelaySimple(Algorithm):
    shares = "representations"
    self_contained = True
    lambda_kd: float = option(10.0, "weight of the distillation term", minimum=0)

    def check(self, info: Info) -> None:
        info.same_width("relay")

    def server(self, key: Key, info: Info) -> Means:
        return Means(torch.zeros(info.task.classes, info.width), torch.zeros(info.task.classes, dtype=torch.int32))

    def client(self, key: Key, party: Party) -> Own:
        return Own(party.task.init(key), None)

    def view(self, s: Means, i: int) -> Means:
        return s

    def round(self, s: Means, net: Net, t: int) -> Means:
        replies = net.call(self.local, {u: self.view(s, u) for u in net.sample(t)})
        counts = torch.stack([r.counts for r in replies.values()]).sum(0, dtype=torch.int32)
        sums = torch.stack([r.t * r.counts[:, None] for r in replies.values()]).sum(0)
        return Means(sums / counts.clamp(min=1)[:, None], counts)

    def local(self, mine: Own, m: Means, party: Party, key: Key) -> tuple[Own, Means]:
        task, data = party.task, party.data.train

        def loss(theta: Params, batch: Batch) -> Tensor:
            z = task.features(theta, batch.x, train=True)
            known = (m.counts[batch.y] > 0).float()[:, None]
            kd = (known * (z - m.t[batch.y])).square().mean()
            return task.objective(theta, z, batch) + self.lambda_kd * kd

        how = replace(party.training, optimizer="adam", lr=1e-3)
        done = fit(loss, mine.theta, data, key, how, moments=mine.moments)
        z = in_chunks(lambda x: task.features(done.theta, x), data.x)
        counts = torch.bincount(data.y, minlength=task.classes).int()
        sums = torch.zeros(task.classes, task.width).index_add_(0, data.y, z)
        return Own(done.theta, done.moments), Means(sums / counts.clamp(min=1)[:, None], counts)

    def model(self, mine: Own, m: Means, party: Party) -> Params:
        return mine.theta

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        each = len(cohort) * 4 * info.task.classes * (info.width + 1)
        return Traffic(up=each, down=each)
