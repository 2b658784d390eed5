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

from torch import Tensor

from comity.core import *
from comity.core.diagnostics import CurveByRound
from comity.parts.classwise import features_of
from comity.parts.discriminator import carried, discriminator, labelled
from comity.parts.divergence import kl_from_uniform
from comity.parts.server import shared_names
from comity.parts.views import SelfSupervised, probe
from comity.privacy.mechanisms import bounded
from comity.privacy.options import PrivateRows


@record
class Game:
    """What the server keeps and sends: D, the averaged part of the models if any, and whether D has never been trained."""

    D: Params
    shared: Params
    untrained: Empty | None = None


@record
class Own:
    """What a party keeps: its model, and discriminators of earlier rounds, the newest first."""

    F: Params
    past: list[Params]


@record
class Reps:
    """A party's representations on their way to the server, whose label is the sender; and what is averaged."""

    z: Tensor
    shared: Params


@algorithm
class Adcol(PrivateRows, Algorithm):
    shares = "representations"
    self_contained = True
    feature_skew_only = True
    bytes_formula = "Σ_t (4 · d · Σ_{i∈S_t} ⌈r·n_i⌉ + |S_t| · S_D), and 2 · |S_t| · S_shared with aggregate"

    diagnostics = (
        CurveByRound(
            name="discriminator",
            title="the discriminator, towards chance",
            meaning="how often the discriminator names the party of a representation",
            value="accuracy",
            axis="discriminator's accuracy",
            metric="discriminator/accuracy",
            percent=True,
            reference="chance",
        ),
    )

    mu: float = option(1.0, "weight of the adversarial term, eq. 2", minimum=0)
    disc: Literal["mlp", "linear", "deep", "conv"] = option("mlp", "D: three FC layers (5.1), one (B.15), five (B.12), two conv")
    hidden: int = option(512, "width of D's hidden layers (5.1)", minimum=1)
    disc_epochs: int = option(1, "passes over the representations per round (Algorithm 1)", minimum=0)
    sampling: float = option(1.0, "r, share of its representations a party sends, drawn each round (B.11)", above=0, maximum=1)
    past: int = option(1, "N_d, discriminators of so many rounds in the penalty, by their mean (B.6)", minimum=1)
    slots: Literal["party", "cohort"] = option("party", "D's outputs: all N parties, or the round's m, who train twice (B.14)")
    disc_carry: Literal["trunk", "keep", "reinit"] = option("trunk", "slots=cohort: what of D lives on: all but its output layer")
    aggregate: Literal["none", "predictor", "model"] = option("none", "average the predictors too (B.10), or whole models")
    rep_mode: Literal["after", "last_epoch"] = option("after", "representations: after training, or as the last epoch made them")
    objective: Literal["ce", "simsiam", "ntxent"] = option("ce", "labels, or self-supervision with a linear probe (future work)")

    def check(self, info: Info) -> None:
        info.same_width("adcol")
        if self.aggregate != "none":
            info.same_architecture(f"adcol with aggregate={self.aggregate}")
        if self.slots == "cohort" and (self.past > 1 or self.aggregate != "none"):
            raise Refusal("slots=cohort goes with neither past discriminators nor aggregate: slots and senders change.")

    def cautions(self, info: Info) -> list[str]:
        return self.privacy_cautions(info, sum(map(self.rows, info.sizes)), self.disc_epochs)

    def discriminator(self, d: int, n: int) -> Task:
        return discriminator(self.disc, d, self.hidden, n)

    def server(self, key: Key, info: Info) -> Game:
        D = self.discriminator(info.width, len(info.names)).init(key.fold("discriminator"))
        return Game(D, keep(info.task.init(key), shared_names(info.task, self.aggregate)), Empty())

    def client(self, key: Key, party: Party) -> Own:
        return Own(self.task(party).init(key), [])

    def task(self, party: Party) -> Task:
        task = party.task
        return task if self.objective == "ce" else SelfSupervised(task.network, task.classes, task.cut, kind=self.objective)

    def view(self, s: Game, i: int) -> Game:
        return s

    def round(self, s: Game, net: Net, t: int) -> Game:
        cohort, changing = net.sample(t), self.slots == "cohort"
        slot = {i: j for j, i in enumerate(cohort if changing else net.info.parties)}
        task = self.discriminator(net.info.width, len(slot))
        D = carried(s.D, task.init(net.key("slots")), self.disc_carry) if changing else s.D
        R = net.call(self.local, dict.fromkeys(cohort, replace(s, D={} if changing else D)))  # l.3-5; B.14, i and ii
        data = labelled({slot[i]: reps.z for i, reps in R.items()})
        how = replace(net.info.training, epochs=self.disc_epochs, steps=None)
        D = self.fitted(task, D, data, net.key("discriminator"), how)  # l.6-9
        for name, value in self.spent(t, net.info.width, len(data), how).items():
            net.note(f"privacy/{name}", value)
        answers = in_chunks(lambda z: task.logits(D, z), data.x)
        net.note("discriminator/accuracy", (answers.argmax(1) == data.y).float().mean().item())
        for i in R:
            net.note("discriminator/kl", kl_from_uniform(answers[data.y == slot[i]]).item(), party=i)
        if changing:
            net.call(self.align, dict.fromkeys(R, Game(D, {})))  # B.14, iv and v
        return Game(D, average({i: reps.shared for i, reps in R.items()}, {i: net.info.sizes[i] for i in R}) if s.shared else {})

    def local(self, mine: Own, m: Game, party: Party, key: Key) -> tuple[Own, Reps]:
        earlier = mine.past or [m.D] * (self.past - 1)  # the first trained D stands for those before it
        F_i, z = self.trained(mine.F | m.shared, [m.D, *earlier], party, key)  # l.11-17
        if self.sampling < 1:
            z = z[key.fold("representations").choose(self.rows(len(z)), len(z))]
        z = self.released(z, key.fold("noise"))
        past = [] if m.untrained else [m.D, *earlier][: self.past - 1]
        return Own(F_i, past), Reps(z, keep(F_i, shared_names(party.task, self.aggregate)))  # l.18

    def align(self, mine: Own, m: Game, party: Party, key: Key) -> tuple[Own, None]:
        return replace(mine, F=self.trained(mine.F, [m.D], party, key)[0]), None

    def trained(self, F_i: Params, past: list[Params], party: Party, key: Key) -> tuple[Params, Tensor]:
        train, task, tape = party.data.train, self.task(party), list[tuple[Tensor, Tensor]]()
        F_i = fit(self.eq2(task, past, tape), F_i, train, key, party.training).theta
        if self.objective != "ce":  # a linear probe: the loss had no use for the head
            F_i = fit(probe(party.task), F_i, train, key.fold("probe"), party.training, only=task.head_names).theta
        z = features_of(task, F_i, train).clone() if tape else features_of(task, F_i, train)
        for indices, seen in tape:  # later batches overwrite: the last epoch remains
            z[indices] = seen
        return F_i, z

    def eq2(self, task: Task, past: list[Params], tape: list[tuple[Tensor, Tensor]]) -> Loss:
        judges = [(self.discriminator(task.width, len(D["out.bias"])), D) for D in past if D]

        def loss(F_i: Params, batch: Batch) -> Tensor:
            z = task.features(F_i, batch.x, train=True)
            if self.rep_mode == "last_epoch":
                tape.append((batch.indices, z.detach().flatten(1)))
            value = task.objective(F_i, z, batch)
            for disc, D in judges:
                value = value + self.mu / len(judges) * kl_from_uniform(disc.logits(D, bounded(z, self.noise)))
            return value

        return loss

    def rows(self, n: int) -> int:
        return math.ceil(round(self.sampling * n, 9))  # ⌈r·n⌉, not misled by what floating point makes of r·n

    def welcome(self, mine: Own, m: Game, party: Party, key: Key) -> tuple[Own, None]:
        return self.local(mine, m, party, key)[0], None

    def model(self, mine: Own, m: Game, party: Party) -> Params:
        return mine.F

    def join_traffic(self, info: Info) -> Traffic:
        return Traffic(down=len(info.late) * self.traffic(info, list(range(info.cohort))).down // info.cohort)

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        disc = len(cohort) * self.discriminator(info.width, len(cohort if self.slots == "cohort" else info.names)).bytes()
        averaged = shared_names(info.task, self.aggregate)
        shared = len(cohort) * info.task.bytes(without=frozenset(info.task.shapes) - averaged)
        return Traffic(up=4 * info.width * sum(self.rows(info.sizes[i]) for i in cohort) + shared, down=disc + shared)
