"""FD: Jeong et al., Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation, 2018.

Idea: parties exchange no weights, only their mean logits per class. Every party is regularised
towards the mean logits of a sample's class. Parties may have different architectures.

Eq. 1, with the thesis' choices: CE(F_i(x), y) + γ · mean ‖logits(x) − Ḡ^y‖² / C, with Ḡ^c = Σ_j
n_jc Ḡ_j^c / Σ_j n_jc.

At a glance: personal = the whole model; exchanged = mean logits and counts of each class up, their
means over parties down; kept = the party's model; steps = E epochs.
Symbols: Ḡ_j^c = party j's mean logits over its samples of class c; n_jc = how many there are; γ =
weight of the distillation.
Deviations: defaults are those of the representation-sharing thesis, which uses FD as its baseline
(squared error, γ = 10, means pooled over all parties, including the party itself). The paper leaves
the party itself out and compares softmax outputs by cross-entropy: exclude_self=true, distance=ce.
Mean logits are taken after local training, in evaluation mode. Classes that no party has sent yet
add nothing to the loss.
Compared: the same as PFLlib's (distance=ce) after PFLlib was changed to compare softmax outputs, as
the paper does, of the trained model, weighted by sample counts. HtFLlib's is within chance after
the first of these changes. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.content import CLASS_COUNTS, Content, describe
from comity.components.hidden_means import Holding, SendsMeans
from comity.core import *


@record
class Answers:
    """A party's reply: the mean logits of each class (rows), and the sample counts."""

    logits: Tensor = describe(
        Content("averages of the model's answers to the records of a class", "means", "by class")
    )
    counts: Tensor = describe(CLASS_COUNTS)


@record
class Bank:
    """The server's state: each party's last reply."""

    classes: int
    last: dict[int, Answers]


@record
class Teacher:
    """The server's message: mean logits by class, and a mask of the known classes."""

    logits: Tensor
    known: Tensor


@algorithm
class Fd(SendsMeans[Bank, Params, Teacher]):
    means_in: ClassVar = {"local": Holding(("Answers.logits",), ("Answers.counts",))}
    gamma: float = option(10.0, "γ, weight of the distillation", minimum=0)
    distance: Literal["mse", "ce"] = option(
        "mse", "between own and mean logits: squared error, or cross-entropy of softmaxes"
    )
    exclude_self: bool = option(False, "teach a party by the others only, as the paper does")

    def check(self, info: Info) -> None:
        info.needs_classes("fd", "sends mean logits of each class")

    def init_server(self, key: Key, info: Info) -> Bank:
        return Bank(info.task.classes, {})

    def init_party(self, key: Key, party: Party) -> Params:
        return party.task.init(key)

    def message_for(self, s: Bank, i: int) -> Teacher:
        sums, total = torch.zeros(s.classes, s.classes), torch.zeros(s.classes)
        for j, answers in sorted(s.last.items()):
            if not (self.exclude_self and j == i):
                sums = sums + answers.logits.cpu() * answers.counts.cpu()[:, None]
                total = total + answers.counts.cpu()
        return Teacher(sums / total.clamp(min=1)[:, None], total > 0)

    def round(self, s: Bank, server: Server, t: int) -> Bank:
        return Bank(
            s.classes,
            s.last | server.call(self.local, {i: self.message_for(s, i) for i in server.sample(t)}),
        )

    @on_party
    async def local(
        self, F_i: Params, m: Teacher, party: Party, key: Key
    ) -> tuple[Params, Answers]:
        task = party.task
        F_i = (await party.fit(self.eq1, F_i, key, on_device(m, party.device))).theta
        return F_i, Answers(*self.class_means_of(party, lambda x: task.logits(F_i, x), key))

    def eq1(self, task: LearningTask, F_i: Params, batch: Batch, m: Teacher) -> Tensor:
        logits = task.head(F_i, task.features(F_i, batch.x, train=True), train=True)
        mask = m.known[batch.y].float()
        target = m.logits[batch.y]
        if self.distance == "mse":
            gap = (logits - target).square().mean(1)
        else:
            gap = F.cross_entropy(logits, target.softmax(1), reduction="none")
        return mean_cross_entropy(logits, batch.y) + self.gamma * (mask * gap).mean()

    @on_party
    async def warm_up(self, F_i: Params, m: Teacher, party: Party, key: Key) -> tuple[Params, None]:
        F_i, _ = await self.local(F_i, m, party, key)
        return F_i, None

    def deployed_model(self, F_i: Params, m: Teacher, party: Party) -> Params:
        return F_i

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(
        shares="means",
        also_leaves=("class counts",),
        self_contained=True,
        start_weights="",
        bytes_formula=(
            "Σ_t |S_t| · (8·C² + 5·C): logits both ways, counts up, a mask of known classes down"
        ),
    )


@accounts_for(Fd)
class FdAccounting(Accounting[Fd]):
    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        c = task.classes
        return {
            "Answers.logits": (c, c),
            "Answers.counts": (c,),
            "Teacher.logits": (c, c),
            "Teacher.known": (c,),
        }

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        c = info.task.classes
        return Traffic(up=len(cohort) * (4 * c * c + 4 * c), down=len(cohort) * (4 * c * c + c))
