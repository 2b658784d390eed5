"""FedUAD: FedUFO's first stage alone (Zhang et al., ICCV 2021, section 3.2): adversarial features for one global model.

Idea: each party trains a plain copy of the global model (its prior), the group swaps priors, and each trains its posterior
so that a discriminator D cannot tell whose extractor made its features. Posteriors are averaged.

Eqs. 4, 11: CE + L_uni, L_uni = −(1/K) Σ_j log D_j(f̂_i); D is frozen, the gradient goes through it.
Eq. 5: L_D = −log D_k(f̂_i) − (1/(K_c − 1)) Σ_{j≠k} log D_j(f̃_{i|j}), all features constant.

Symbols: w = global model; w̃_k = priors; f̂_i, f̃_{i|j} = sample i's features by the posterior and by prior j; K, K_c = parties.
Deviations: D is averaged with w and makes one pass a round (the paper does not say); a fresh D learns before the posterior, not
after it. The server averages, unless told to step. With bn=none others' priors answer with the party's own BatchNorm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from comity.core import *
from comity.parts.classwise import features_of
from comity.parts.discriminator import discriminator, tell_apart
from comity.parts.divergence import uniform_cross_entropy
from comity.parts.server import momentum_step

Objective = Callable[[Params, Tensor, Batch], Tensor]
Read = dict[int, Tensor] | None  # what others' models make of the party's samples, if that is known already


@record
class State:
    """What the server keeps: w, D, its momentum, and w's accuracy at parties where it was looked at."""

    w: Params
    D: Params
    velocity: Params
    accuracy: dict[int, float]


@record
class Both:
    """w or a posterior, and D; in a reply w's accuracy at the party, where sampling asks for it."""

    theta: Params
    D: Params
    accuracy: float | None = None


@record
class Prior:
    """w̃_k and its party's class counts, for the group."""

    theta: Params
    counts: Tensor


@record
class Own:
    """What a party keeps: private weights; w and its prior while a round lasts; D if it is its own."""

    private: Params
    w: Params
    prior: Prior | None
    D: Params


@algorithm
class FedUad(Algorithm):
    stacks = False  # the discriminator learns between the batches
    bytes_formula = "Σ_t K_c · (2·S + 2·S_D + (K_c − 1) · (S + 4·C)); no S_D unless D is averaged"

    uad: bool = field(default=True, init=False)  # fedufo has a choice here
    cgr: bool = field(default=False, init=False)
    weight: float = option(1.0, "weight of L_uni; 1 as printed", minimum=0)
    outputs: Literal["all", "group"] = option("all", "D names all K parties, or the round's K_c (it is then new each round)")
    disc: Literal["shallow", "mlp", "linear"] = option("shallow", "D: two FC layers, three (re-identification), or one")
    disc_state: Literal["federated", "local", "fresh"] = option("federated", "D is averaged, the party's, or new each round")
    disc_epochs: int = option(1, "passes over D's features a round", minimum=0)
    alternate: Literal["round", "batch"] = option("round", "D learns after the posterior's epochs, or after each of its batches")
    server_lr: float = option(1.0, "the server's step towards the average", above=0)
    server_momentum: float = option(0.0, "momentum of the server's steps", minimum=0)

    @property
    def one_model(self) -> bool:
        return True

    def lives(self, where: str) -> bool:
        return self.uad and where == ("fresh" if self.outputs == "group" else self.disc_state)

    def check(self, info: Info) -> None:
        info.same_architecture("averaging")

    def discriminator(self, d: int, k: int) -> Task:
        return discriminator(self.disc, d, d, k)

    def server(self, key: Key, info: Info) -> State:
        D = self.discriminator(info.width, len(info.names)).init(key.fold("discriminator"))
        return State(drop(info.task.init(key), info.task.private), D if self.lives("federated") else {}, {}, {})

    def client(self, key: Key, party: Party) -> Own:
        D = self.discriminator(party.task.width, party.parties).init(key.fold("discriminator"))
        return Own(keep(party.task.init(key), party.task.private), {}, None, D if self.lives("local") else {})

    def view(self, s: State, i: int) -> Both:
        return Both(s.w, {})

    def round(self, s: State, net: Net, t: int) -> State:
        return self.averaged(s, net, self.align, {k: self.view(s, k) for k in net.sample(t)})

    def averaged(self, s: State, net: Net, posterior: Work, letters: dict[int, Both]) -> State:
        post: dict[tuple[int, int], Sealed] = {}
        if self.uad or self.cgr:
            priors = net.call(self.prior, letters)
            post = {(j, k): priors[j] for j in priors for k in priors if j != k}
            letters = dict.fromkeys(priors, Both({}, s.D))
        replies = net.call(posterior, letters, post)
        sizes = {k: net.info.sizes[k] for k in replies}
        w, D = (average({k: getattr(r, part) for k, r in replies.items()}, sizes) for part in ("theta", "D"))
        w, velocity = momentum_step(s.w, w, s.velocity, self.server_lr, self.server_momentum)
        looked = {k: r.accuracy for k, r in replies.items() if r.accuracy is not None}
        return State(w, D, velocity, s.accuracy | looked)

    def prior(self, mine: Own, m: Both, party: Party, key: Key) -> tuple[Own, Sealed]:
        w, train = m.theta or mine.w, party.data.train
        theta = fit(party.task.loss, w | mine.private, train, key, party.training).theta
        prior = Prior(theta, torch.bincount(train.y, minlength=party.task.classes).int())
        return replace(mine, w=w, prior=prior), seal(replace(prior, theta=drop(theta, party.task.private)))

    def align(self, mine: Own, m: Both, party: Party, key: Key) -> tuple[Own, Both]:
        return self.posterior(mine, m, party, key, party.task.objective)

    def posterior(self, mine: Own, m: Both, party: Party, key: Key, objective: Objective, read: Read = None) -> tuple[Own, Both]:
        task, train, how = party.task, party.data.train, party.training
        start, D = (m.theta or mine.w) | mine.private, m.D or mine.D
        everyone = range(party.parties) if self.outputs == "all" else sorted([party.id, *party.inbox])
        disc = self.discriminator(task.width, len(everyone))

        others = party.inbox if self.uad else {}
        read = read or {j: features_of(task, prior.theta | mine.private, train) for j, prior in others.items()}
        eq5 = tell_apart(disc, everyone.index(party.id), {everyone.index(j): read[j] for j in others})

        def learned(D: Params, theta: Params) -> Params:
            epochs = replace(how, epochs=self.disc_epochs, steps=None)
            return fit(eq5, D, Samples(features_of(task, theta, train), train.y), key.fold("discriminator"), epochs).theta

        def eq11(theta: Params, batch: Batch) -> Tensor:
            nonlocal D
            z = task.features(theta, batch.x, train=True)
            value = objective(theta, z, batch)
            if self.uad:
                value = value + self.weight * uniform_cross_entropy(disc.logits(D, z))
                if self.alternate == "batch":
                    D = judge.after(replace(batch, x=z.detach().flatten(1)))
            return value

        D = learned(disc.init(key.fold("fresh")), start) if self.lives("fresh") else D
        judge = Stepper.on(eq5, D, how)
        theta = fit(eq11, start, train, key, how).theta
        if self.uad and self.alternate == "round" and not self.lives("fresh"):
            D = learned(D, theta)
        kept, sent = keep(theta, task.private), drop(theta, task.private)
        return Own(kept, {}, None, D if self.lives("local") else {}), Both(sent, D if self.lives("federated") else {})

    def welcome(self, mine: Own, m: Both, party: Party, key: Key) -> tuple[Own, None]:
        tuned = fit(party.task.loss, m.theta | mine.private, party.data.train, key, party.training).theta
        return replace(mine, private=tuned), None  # a newcomer has no group: it tunes the global model for itself

    def model(self, mine: Own, m: Any, party: Party) -> Params:
        return dict(m.theta | mine.private)

    def join_traffic(self, info: Info) -> Traffic:
        return Traffic(down=len(info.late) * info.task.bytes(without=info.task.private))

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        k, w = len(cohort), info.task.bytes(without=info.task.private)
        D = self.discriminator(info.width, len(info.names)).bytes() if self.lives("federated") else 0
        return Traffic(k * (w + D), k * (w + D), k * (k - 1) * (w + 4 * info.task.classes) if self.uad or self.cgr else 0)
