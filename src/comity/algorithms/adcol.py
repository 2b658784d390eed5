"""ADCOL: Li, He, Song, Adversarial Collaborative Learning on Non-IID Features, ICML 2023.

Idea: nobody averages models. The server trains a discriminator D to name the party a representation came
from; each party trains its own model F_i so that D cannot tell.

Eq. 2: min CE(F_i(x), y) + μ · KL(u ‖ D(G_i(x))), u = (1/N, ..., 1/N); D is constant, the gradient goes
through it into G_i.
Algorithm 1: l.3-5 send D, train locally, collect R_i = G_i(x); l.6-9 one pass of SGD on D with label i;
l.11-18 the party's part.

Symbols: G_i = features of F_i (up to the cut); N = parties; R = representations; r = share of them sent.
Deviations: all F_i start from the same weights, so that comparisons are paired. Representations are computed
after training, in evaluation mode; class labels are never sent. D is trained with the experiment's optimizer,
as the paper has a single η. Meant for feature skew: with label skew the penalty fights the labels (B.8).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.core import *
from comity.models.stack import Builder, flat, linear, relu


@record
class Disc:
    """The discriminator on its way to a party."""

    theta: Params


@record
class Reps:
    """A party's representations on their way to the server; the sender is their label."""

    z: Tensor


def kl_from_uniform(logits: Tensor) -> Tensor:
    """KL(u ‖ softmax(logits)) = −log N − (1/N) Σ_j log p_j, batch mean."""
    return -math.log(logits.shape[1]) - F.log_softmax(logits, dim=1).mean()


@algorithm
class Adcol(Algorithm):
    shares = "representations"
    self_contained = True
    bytes_formula = "Σ_t (4 · d · Σ_{i∈S_t} ⌈r·n_i⌉ + |S_t| · S_D)"

    mu: float = option(1.0, "weight of the adversarial term, eq. 2", minimum=0)
    disc: Literal["mlp", "linear"] = option("mlp", "D: three FC layers with ReLU (5.1), or one FC layer (B.15)")
    hidden: int = option(512, "width of D's hidden layers (5.1)", minimum=1)
    disc_epochs: int = option(1, "passes over the representations per round (Algorithm 1)", minimum=0)
    sampling: float = option(1.0, "r, share of its representations a party sends, drawn each round (B.11)", above=0, maximum=1)

    def check(self, info: Info) -> None:
        info.same_width("adcol")

    def discriminator(self, d: int, n: int) -> Task:
        build = Builder("discriminator", (d,)).stage("input", flat)
        if self.disc == "mlp":
            build = build.stage("fc1", linear(self.hidden), relu).stage("fc2", linear(self.hidden), relu)
        network = build.stage("out", linear(n)).build()
        return Task(network, classes=n, cut=network.cut)

    def server(self, key: Key, info: Info) -> Params:
        return self.discriminator(info.width, len(info.names)).init(key.fold("discriminator"))

    def client(self, key: Key, party: Party) -> Params:
        return party.task.init(key)

    def view(self, D: Params, i: int) -> Disc:
        return Disc(D)

    def round(self, D: Params, net: Net, t: int) -> Params:
        R = net.call(self.local, {i: self.view(D, i) for i in net.sample(t)})  # l.3-5
        task = self.discriminator(net.info.width, len(net.info.names))
        labels = torch.cat([torch.full((len(reps.z),), i) for i, reps in R.items()])
        labelled = Samples(torch.cat([reps.z for reps in R.values()]), labels.to(D["out.bias"].device))
        how = replace(net.info.training, epochs=self.disc_epochs, steps=None)
        D = fit(task.loss, D, labelled, net.key("discriminator"), how).theta  # l.6-9
        answers = in_chunks(lambda z: task.logits(D, z), labelled.x)
        net.note("discriminator/accuracy", (answers.argmax(1) == labelled.y).float().mean().item())
        for i in R:
            net.note("discriminator/kl", kl_from_uniform(answers[labelled.y == i]).item(), party=i)
        return D

    def local(self, F_i: Params, m: Disc, party: Party, key: Key) -> tuple[Params, Reps]:
        train = party.data.train
        F_i = fit(self.eq2(party, m.theta), F_i, train, key, party.training).theta  # l.11-17
        x = train.x
        if self.sampling < 1:
            x = x[key.fold("representations").choose(self.rows(len(train)), len(train))]
        return F_i, Reps(in_chunks(lambda part: party.task.features(F_i, part).flatten(1), x))  # l.18

    def rows(self, n: int) -> int:
        """⌈r·n⌉, not misled by what floating point makes of r·n."""
        return math.ceil(round(self.sampling * n, 9))

    def eq2(self, party: Party, D: Params) -> Loss:
        task, disc = party.task, self.discriminator(party.task.width, party.parties)

        def loss(F_i: Params, batch: Batch) -> Tensor:
            z = task.features(F_i, batch.x, train=True)
            return task.objective(F_i, z, batch) + self.mu * kl_from_uniform(disc.logits(D, z))

        return loss

    def welcome(self, F_i: Params, m: Disc, party: Party, key: Key) -> tuple[Params, None]:
        return self.local(F_i, m, party, key)[0], None

    def model(self, F_i: Params, m: Disc, party: Party) -> Params:
        return F_i

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        sent = sum(self.rows(info.sizes[i]) for i in cohort)
        disc = self.discriminator(info.width, len(info.names)).bytes()
        return Traffic(up=4 * info.width * sent, down=len(cohort) * disc)
