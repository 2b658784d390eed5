"""CCVR: Luo et al., No Fear of Heterogeneity: Classifier Calibration for FL, NeurIPS 2021.

Idea: of all layers the head suffers most from label skew. After the last round of FedAvg the server
trains the head again, on virtual features that it draws from a Gaussian for each class.

Section 4, party: N_ck, μ_ck = (1/N_ck) Σ z and Σ_ck = (1/(N_ck − 1)) Σ (z − μ_ck)(z − μ_ck)ᵀ over
the features z of its samples of class c.
Section 4, server: N_c = Σ_k N_ck and μ_c = Σ_k (N_ck/N_c) μ_ck.
Section 4, server: Σ_c = (1/(N_c − 1)) (Σ_k (N_ck − 1) Σ_ck + Σ_k N_ck μ_ck μ_ckᵀ − N_c μ_c μ_cᵀ).
Algorithm 1, server: M_c virtual features ∼ N(μ_c, Σ_c) of each class c train the head.

At a glance: personal = nothing; exchanged = weights, both ways; after the last round counts, means
and covariances of each class up; kept = nothing; steps = E epochs; after the last round the head's
epochs at the server.
Symbols: z = the representation at the model's cut, in evaluation mode; the head = the stages after
the cut. A class without samples gets no virtual features, and Σ_c of a single sample is 0.
Deviations: z is used as it is (paper: after Tukey's power transformation). M_c is one number for
all classes and data (paper: chosen for each dataset). The head starts from FedAvg's and is trained
by the experiment's optimizer, learning rate and batch size. A robust mean around it (`+median`)
covers the weights, not the class statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from comity.algorithms.fedavg import FedAvg
from comity.base.content import CLASS_COUNTS, CLASS_MEANS, Content, describe
from comity.components.averaged import AveragingAccounting
from comity.components.classwise import features_of
from comity.core import *


@record
class ClassStatistics:
    """What a party sends after the last round: N_ck, μ_ck and Σ_ck of each class (rows)."""

    counts: Tensor = describe(CLASS_COUNTS)
    means: Tensor = describe(CLASS_MEANS)
    covariances: Tensor = describe(
        Content(
            "how what the model makes of the records of a class varies around its average"
            " (covariances)",
            "covariances",
            "by class",
        )
    )


class Gaussians(NamedTuple):
    """N_c, μ_c and Σ_c of each class (rows), over all parties."""

    counts: Tensor
    means: Tensor
    covariances: Tensor


def class_statistics(z: Tensor, y: Tensor, classes: int) -> ClassStatistics:
    """N_ck, μ_ck and Σ_ck of the rows of `z`. Zeros for a class without rows."""
    z = z.double()
    counts = torch.bincount(y, minlength=classes)
    sums = torch.zeros(classes, z.shape[1], dtype=z.dtype, device=z.device).index_add_(0, y, z)
    means = sums / counts.clamp(min=1)[:, None]
    apart = z - means[y]
    scatter = torch.stack([apart[y == c].T @ apart[y == c] for c in range(classes)])
    covariances = scatter / (counts - 1).clamp(min=1)[:, None, None]
    return ClassStatistics(counts.int(), means.float(), covariances.float())


def pooled(replies: Iterable[ClassStatistics], classes: int, width: int) -> Gaussians:
    """The statistics of all parties' samples together, in double precision."""
    counts = torch.zeros(classes, dtype=torch.float64)
    sums = torch.zeros(classes, width, dtype=torch.float64)
    squares = torch.zeros(classes, width, width, dtype=torch.float64)
    for reply in replies:
        n = reply.counts.cpu().double()
        mu = reply.means.cpu().double()
        counts += n
        sums += n[:, None] * mu
        squares += (n - 1).clamp(min=0)[:, None, None] * reply.covariances.cpu()
        squares += n[:, None, None] * outer(mu)
    means = sums / counts.clamp(min=1)[:, None]
    scatter = squares - counts[:, None, None] * outer(means)
    return Gaussians(counts, means, scatter / (counts - 1).clamp(min=1)[:, None, None])


def outer(rows: Tensor) -> Tensor:
    """v vᵀ of each row v."""
    return rows[:, :, None] * rows[:, None, :]


def square_root(covariance: Tensor) -> Tensor:
    """The symmetric square root. Eigenvalues that rounding made negative count as 0."""
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = vectors * values.clamp(min=0).sqrt() @ vectors.T
    return root


@algorithm
class Ccvr(FedAvg):
    virtual: int = option(100, "M_c, virtual features of each class", minimum=1)
    calibration_epochs: int = option(10, "epochs of the head on the virtual features", minimum=0)

    def check(self, info: Info) -> None:
        super().check(info)
        info.needs_classes("ccvr", "draws virtual features of each class")
        if private_head := sorted(info.task.head_names & self.private_names(info.task)):
            raise UsageError(
                f"ccvr trains the head at the server, but {private_head[0]} of the head stays at"
                " the parties."
            )

    def finish(self, theta: Params, server: Server) -> Params:
        task = server.info.task.plain
        messages = {i: self.message_for(theta, i) for i in server.info.parties}
        replies = (reply for _, reply in server.replies(self.describe_classes, messages))
        gaussians = pooled(replies, task.classes, task.width)
        head = keep(theta, task.head_names)
        device = next(iter(head.values())).device
        virtual = self.virtual_features(gaussians, task, server.key("virtual"))
        how = replace(server.info.training, epochs=self.calibration_epochs, steps=None)
        fitted = server.fit(
            self.on_virtual_features,
            head,
            Samples(virtual.x.to(device), virtual.y.to(device)),
            server.key("calibrate"),
            None,
            task=task,
            training=how,
        )
        return theta | fitted.theta

    @on_party
    async def describe_classes(
        self, state: Params, m: Model, party: Party, key: Key
    ) -> tuple[Params, ClassStatistics]:
        z = features_of(party.task, m.theta | state, party.data.train)
        return state, class_statistics(z, party.data.train.y, party.task.classes)

    def virtual_features(self, gaussians: Gaussians, task: LearningTask, key: Key) -> Samples:
        """M_c draws from the Gaussian of each class that has samples."""
        present = [c for c in range(task.classes) if gaussians.counts[c]]
        draws = []
        for c in present:
            noise = torch.randn(
                self.virtual, task.width, dtype=torch.float64, generator=key.fold(c).generator()
            )
            draws.append(gaussians.means[c] + noise @ square_root(gaussians.covariances[c]))
        z = torch.cat(draws).float().reshape(-1, *task.z_shape)
        return Samples(z, torch.tensor(present).repeat_interleave(self.virtual))

    def on_virtual_features(
        self, task: LearningTask, theta: Params, batch: Batch, aux: None
    ) -> Tensor:
        return task.objective(theta, batch.x, batch)

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        FedAvg.traits,
        finishes=True,
        also_leaves=("class counts", "covariances", "means"),
        no_offset="trains one head for all parties on representations without their offsets",
        bytes_formula=(
            "2 · Σ_t |S_t| · S, and N · (S + 4·C·(1 + d' + d'²)) once after the last round"
        ),
        experimental=(
            "the paper's equations were followed, but its constants could not be compared"
        ),
    )


@accounts_for(Ccvr)
class CcvrAccounting(AveragingAccounting[Ccvr]):
    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        c, d = task.classes, task.width
        return {
            "ClassStatistics.counts": (c,),
            "ClassStatistics.means": (c, d),
            "ClassStatistics.covariances": (c, d, d),
        }

    def declared_trainings(self, stage: Stage, how: Training) -> Mapping[str, Sequence[Training]]:
        if stage == "finish":
            return {"describe_classes": []}
        return super().declared_trainings(stage, how)

    def finish_traffic(self, info: Info) -> Traffic:
        parties, c, d = len(info.names), info.task.classes, info.task.width
        return Traffic(up=parties * 4 * c * (1 + d + d * d), down=parties * self.shared_bytes(info))
