"""FedProto: Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI
2022.

Idea: parties exchange no weights, only prototypes: the mean representation of each of their
classes. Every party regularises its representations towards the global prototypes, and predicts the
class of the nearest one. Architectures may differ if they have the same width d'.

Eq. 3: C_i^(j) = (1/|D_ij|) Σ_{(x,y)∈D_ij} f_i(x). Eq. 6: C̄^(j) = Σ_i (|D_ij| / N_j) C_i^(j).
Eq. 7: min CE(g_i(f_i(x)), y) + λ · ‖f_i(x) − C̄^(y)‖². Eq. 4, inference: ŷ = argmin_j ‖f_i(x) −
C̄^(j)‖.

Symbols: f_i, g_i = a party's stages up to the cut, and its head; D_ij = its samples of class j; N_j
= all parties' of class j.
Deviations: eq. 6 as printed also divides by the number of parties, which would shrink prototypes
towards 0; Appendix B has weights that sum to 1, which are used here. The authors' code and PFLlib
weight parties equally (weights=uniform). Eq. 7 is Appendix B's, whose ‖·‖² the code, which λ = 1
was tuned with, divides by d' (reduction=sum: as printed; norm: the L2 distance that the text speaks
of; HtFLlib uses λ = 10). Prototypes are those of the trained model in evaluation mode, as eq. 3
says; both codes compute means during training, while weights still change. Prototypes of parties
outside the cohort are kept (PFLlib drops them); a prototype of fewer than min_count samples is not
sent (the paper sends all). The authors' code considers a party's own classes only (answer=own), and
its script adds the hits of both rules, and of all earlier parties, in one ratio, so that it prints
the accuracy of neither rule. PFLlib and HtFLlib take the nearest of all classes. Before there are
prototypes, the heads predict; test losses are those of softmax(−‖·‖²). The paper's text, with its
appendices, and all three codes were read.
At a glance: personal = all weights; exchanged = mean representations of each class, and class
counts up; kept = the whole model, and the server everybody's last prototypes; steps = E epochs.
Compared: the same as PFLlib's, HtFLlib's and fluke's (weights=uniform), after their prototypes were
changed to eq. 3's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from comity.base.content import CLASS_COUNTS, CLASS_MEANS, describe
from comity.components.around import Around
from comity.components.bank import smallest_mean
from comity.components.classwise import class_means, features_of, pool_means
from comity.core import *

PROTOTYPES, KNOWN_CLASSES = "fedproto.prototypes", "fedproto.known"


@record
class Prototypes:
    """A party's reply: the mean representation of each class, and the sample counts."""

    means: Tensor = describe(CLASS_MEANS)
    counts: Tensor = describe(CLASS_COUNTS)


@record
class Guide:
    """The server's message: the global prototypes, and a mask of the classes that have one."""

    means: Tensor
    known: Tensor


@record
class Bank:
    """The server's state: each party's last prototypes."""

    classes: int
    width: int
    last: dict[int, Prototypes]


@dataclass(frozen=True, kw_only=True)
class Nearest(Around):
    """A task that predicts the class of the nearest prototype if its parameters contain
    prototypes.
    """

    def logits(self, theta: Params, x: Tensor) -> Tensor:
        if PROTOTYPES not in theta:
            return self.inner.logits(theta, x)
        z = self.inner.features(theta, x).flatten(1)
        C = theta[PROTOTYPES]
        near = 2 * z @ C.T - C.square().sum(1) - z.square().sum(1, keepdim=True)  # eq. 4: −‖z − C‖²
        # An unknown class is never the nearest.
        return torch.where(theta[KNOWN_CLASSES] > 0, near, near.amin(1, keepdim=True) - 1)


@mixin
class SharesPrototypes(Algorithm[S, Params, Guide]):
    """The party's side of methods with prototypes. Subclasses define how the server computes the
    global ones.
    """

    lam: float = option(1.0, "λ, weight of the pull to the global prototypes", minimum=0)
    reduction: Literal["mean", "sum", "norm"] = option(
        "mean", "the pull: ‖·‖² / d' as in the code, ‖·‖² as printed, or ‖·‖"
    )
    answer: Literal["nearest", "own", "head"] = option(
        "nearest", "by all prototypes, those of the party's classes, or the head"
    )
    min_count: int = option(2, "a mean of fewer samples is not sent", minimum=1)

    def check(self, info: Info) -> None:
        info.needs_classes(type(self).__name__, "sends a mean representation of each class")
        info.same_width(type(self).__name__)

    def init_party(self, key: Key, party: Party) -> Params:
        return party.task.init(key)

    @on_party
    async def local(
        self, theta: Params, m: Guide, party: Party, key: Key
    ) -> tuple[Params, Prototypes]:
        loss: Loss[Guide] = self.eq7 if self.lam else plain
        theta = (await party.fit(loss, theta, key, m)).theta
        return theta, self.local_prototypes(theta, party)

    def eq7(self, task: LearningTask, theta: Params, batch: Batch, m: Guide) -> Tensor:
        z = task.features(theta, batch.x, train=True)
        apart = m.known[batch.y][:, None] * (z.flatten(1) - m.means[batch.y])
        pull: Tensor
        if self.reduction == "norm":
            pull = torch.linalg.vector_norm(apart, dim=1).mean()
        else:
            pull = apart.square().mean() * (1 if self.reduction == "mean" else task.width)
        return task.objective(theta, z, batch) + self.lam * pull

    def local_prototypes(self, theta: Params, party: Party) -> Prototypes:
        """Eq. 3: the prototypes of the trained model."""
        train = party.data.train
        z = features_of(party.task, theta, train)
        return Prototypes(*class_means(z, train.y, party.task.classes, self.min_count))

    @on_party
    async def warm_up(self, theta: Params, m: Guide, party: Party, key: Key) -> tuple[Params, None]:
        theta, _ = await self.local(theta, m, party, key)
        return theta, None

    def party_for(self, party: Party, state: Params) -> Party:
        return with_task(party, Nearest.of(party.task))

    def deployed_model(self, theta: Params, m: Guide, party: Party) -> Params:
        mask = m.known
        if self.answer == "own":
            mask = mask & (torch.bincount(party.data.train.y, minlength=party.task.classes) > 0)
        if self.answer == "head" or not mask.any():
            return theta
        return theta | {PROTOTYPES: m.means, KNOWN_CLASSES: mask.to(m.means.dtype)}

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(shares="means", start_weights="")


A = TypeVar("A", bound=SharesPrototypes[Any])


@accounts_for(SharesPrototypes)
class SharesPrototypesAccounting(Accounting[A]):
    def group_size(self, field: str, counts: Sequence[int]) -> int | None:
        return smallest_mean(field, counts, 0, self.method.min_count)

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        c, d = task.classes, task.width
        return {
            "Prototypes.means": (c, d),
            "Prototypes.counts": (c,),
            "Guide.means": (c, d),
            "Guide.known": (c,),
        }

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        c, d = info.task.classes, info.width
        return Traffic(up=len(cohort) * c * (4 * d + 4), down=len(cohort) * c * (4 * d + 1))


@algorithm
class FedProto(SharesPrototypes[Bank]):
    weights: Literal["samples", "uniform"] = option(
        "samples", "global prototypes by sample counts, or parties alike (codes)"
    )

    def init_server(self, key: Key, info: Info) -> Bank:
        return Bank(info.task.classes, info.width, {})

    def message_for(self, s: Bank, i: int) -> Guide:
        uploads = [s.last[j] for j in sorted(s.last)]
        # eq. 6
        means = [up.means for up in uploads]
        counts = [up.counts for up in uploads]
        return Guide(*pool_means(means, counts, s.classes, s.width))

    def round(self, s: Bank, server: Server, t: int) -> Bank:
        guide = self.message_for(s, 0)
        new = server.call(self.local, dict.fromkeys(server.sample(t), guide))
        return Bank(s.classes, s.width, s.last | new)

    def local_prototypes(self, theta: Params, party: Party) -> Prototypes:
        prototypes = super().local_prototypes(theta, party)
        return (
            prototypes
            if self.weights == "samples"
            else Prototypes(prototypes.means, (prototypes.counts > 0).int())
        )

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        SharesPrototypes.traits,
        also_leaves=("class counts",),
        bytes_formula=(
            "Σ_t |S_t| · C · (8·d' + 5): prototypes both ways, counts up, a mask of known classes"
            " down"
        ),
    )
