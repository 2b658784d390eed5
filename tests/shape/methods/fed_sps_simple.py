"""Fed-SPS in its simplest form, as a probe of the core: no server, everything crosses sealed between parties.

Idea: j returns the gradient of i's model on j's adversarial samples that also raise i's loss.

Symbols: h^i = a party's model; T = sign-gradient attack of ε.
Deviations: a probe, not the method: one step a round, one attack step, all peers.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.core import *


@record
class Parcels:
    to: dict[int, Sealed]


@record
class Help:
    grads: Params
    loss: float
    count: int
    overlap: float


def attack(task: Task, theta: Params, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(task.logits(theta, x), y), x)
    return (x + epsilon * slope.sign()).detach()


@algorithm
class FedSpsSimple(Algorithm):
    beta: float = option(0.5, "weight of the peers' gradients", minimum=0)
    epsilon: float = option(0.03, "attack radius", minimum=0)

    def server(self, key: Key, info: Info) -> Empty:
        return Empty()

    def client(self, key: Key, party: Party) -> Params:
        return party.task.init(key)

    def view(self, s: Empty, i: int) -> Empty:
        return s

    def round(self, s: Empty, net: Net, t: int) -> Empty:
        group = net.sample(t)
        letters = dict.fromkeys(group, Empty())
        models = net.call(self.send, letters)
        everyone = {(i, j): models[i].to[-1] for i in group for j in group if i != j}
        helped = net.call(self.assist, letters, everyone)
        net.call(self.local, letters, {(j, i): parcel for j in group for i, parcel in helped[j].to.items()})
        return s

    def send(self, mine: Params, m: Empty, party: Party, key: Key) -> tuple[Params, Parcels]:
        return mine, Parcels({-1: seal(Model(mine))})

    def assist(self, mine: Params, m: Empty, party: Party, key: Key) -> tuple[Params, Parcels]:
        data, task = party.data.train, party.task
        adversarial = attack(task, mine, data.x, data.y, self.epsilon)
        answers = {}
        for i, sent in sorted(party.inbox.items()):
            before = F.cross_entropy(task.logits(sent.theta, data.x), data.y, reduction="none")

            def mean_on_overlap(theta: Params, before: Tensor = before) -> Tensor:
                after = F.cross_entropy(task.logits(theta, adversarial), data.y, reduction="none")
                chosen = (after > before).float()
                return (after * chosen).sum() / chosen.sum().clamp(min=1)

            loss, grads = gradient(mean_on_overlap, sent.theta)
            after = F.cross_entropy(task.logits(sent.theta, adversarial), data.y, reduction="none")
            answers[i] = seal(Help(grads, loss.item(), int((after > before).sum()), (after > before).float().mean().item()))
        return mine, Parcels(answers)

    def local(self, mine: Params, m: Empty, party: Party, key: Key) -> tuple[Params, Empty]:
        lr = party.training.lr
        helps = [help_ for _, help_ in sorted(party.inbox.items())]

        def step(theta: Params, batch: Batch) -> Params:
            _, own = gradient(lambda w: party.task.loss(w, batch), theta)
            theirs = {k: sum(help_.grads[k] for help_ in helps) / max(len(helps), 1) for k in own}
            return theta | {k: theta[k] - lr * (g + self.beta * theirs[k]) for k, g in own.items()}

        whole = replace(party.training, steps=1, batch=len(party.data.train))
        tuned = run(step, mine, batches(party.data.train, key, whole))
        return fit(party.task.loss, tuned, party.data.train, key.fold("tune"), party.training).theta, Empty()

    def model(self, mine: Params, m: Empty, party: Party) -> Params:
        return mine

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        edges = len(cohort) * (len(cohort) - 1)
        buffers = frozenset(k for k in info.task.shapes if "~" in k)
        return Traffic(peer=edges * (info.task.bytes() + info.task.bytes(without=buffers) + 12))


