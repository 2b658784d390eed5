"""FedTGP: Zhang et al., Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning, AAAI 2024.

Idea: FedProto whose global prototypes are learned at the server, because averages lie closer to
each other than any party's own prototypes. Each is trained to be near the parties' prototypes of
its class, and far from the others' by a margin that grows with their distances.

Server: P̂^c = F(embedding of c; θ_F), S epochs over this round's prototypes P_i^c with the loss
−log( e^{−(φ(P_i^c, P̂^c) + δ)} / (e^{−(φ(P_i^c, P̂^c) + δ)} + Σ_{c'≠c} e^{−φ(P_i^c, P̂^{c'})}) ).
Margin: δ(t) = min( max_c min_{c'≠c} φ(Q^c, Q^{c'}), τ ), Q^c = the mean of the P_i^c.
Party: min CE + λ · ‖f_i(x) − P̂^y‖² / d'. Inference: the class whose P̂^c is nearest.

Symbols: φ = Euclidean distance; F = two linear layers of width d' with ReLU between; P_i^c =
C_i^(c) of fedproto.
Deviations: as in fedproto, except for the means. δ: the authors' talk defines a margin as the
smallest distance to another class, as the code has it; their formula takes the largest of all
distances (margin=pairs). λ = 0.1 in the paper is for the Euclidean distance (reduction=norm); for
the code's squared error over d' the authors use λ = 10 (FedTGP, issue 3), as here. The server's
batches are the experiment's, as in the code. The server's step size is 0.01, as in the authors'
script, independent of the experiment's: with 0.05, θ_F can fail to learn. Its loss is a batch's
mean. A class that no party has sent yet has no prototype (the code sends F's output for it). The
authors advise 1,000 rounds or more, until the server's loss is below 0.001. The paper's text was
not available: the formulas are from the authors' talk, and S = 100, τ = 100 and λ from their code
and answers.
At a glance: personal = all weights; exchanged = mean representations of each class up, learnt
prototypes down; kept = the whole model, and the server what makes the prototypes; steps = E epochs,
and S epochs over prototypes at the server.
Compared: the same as HtFLlib's, after two changes: its prototypes are those of the round, and it
takes no roots of negative numbers. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.algorithms.fedproto import Guide, Prototypes, SharesPrototypes
from comity.components.classwise import pool_means
from comity.core import *
from comity.models.stack import uniform
from comity.training.kernels import linear

EMBEDDING = "embedding"


@record
class Learnt:
    """The server's state: θ_F with the classes' embeddings, and a mask of the classes that any
    party has sent.
    """

    F: Params
    known: Tensor


def generate_prototypes(theta: Params) -> Tensor:
    """All P̂^c, one row per class."""
    hidden = F.relu(linear(theta[EMBEDDING], theta["in.weight"], theta["in.bias"]))
    return linear(hidden, theta["out.weight"], theta["out.bias"])


def distances(a: Tensor, b: Tensor) -> Tensor:
    """φ between each row of a and each row of b."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


@algorithm
class FedTgp(SharesPrototypes[Learnt]):
    lam: float = option(10.0, "λ, weight of the pull to the global prototypes", minimum=0)
    margin: Literal["classwise", "pairs"] = option(
        "classwise", "δ by each class's nearest other (code), or by the farthest pair"
    )
    tau: float = option(100.0, "τ, the most that δ can be", minimum=0)
    server_epochs: int = option(100, "S, epochs over the parties' prototypes in a round", minimum=0)
    server_lr: float = option(0.01, "the server's learning rate; 0: the experiment's", minimum=0)

    def init_server(self, key: Key, info: Info) -> Learnt:
        c, d = info.task.classes, info.width
        generators = {
            name: key.fold("prototypes", name).generator() for name in (EMBEDDING, "in", "out")
        }
        layers = {
            f"{name}.{kind}": uniform(shape, d, generators[name])
            for name in ("in", "out")
            for kind, shape in (("weight", (d, d)), ("bias", (d,)))
        }
        embedding = {EMBEDDING: torch.randn(c, d, generator=generators[EMBEDDING])}
        return Learnt(embedding | layers, torch.zeros(c, dtype=torch.bool))

    def message_for(self, s: Learnt, i: int) -> Guide:
        return Guide(generate_prototypes(s.F) * s.known[:, None], s.known)

    def round(self, s: Learnt, server: Server, t: int) -> Learnt:
        guide = self.message_for(s, 0)
        replies = server.call(self.local, dict.fromkeys(server.sample(t), guide))
        uploads = on_device(replies, s.known.device).values()
        prototypes = torch.cat([up.means[up.counts > 0] for up in uploads])
        labels = torch.cat([up.counts.nonzero()[:, 0] for up in uploads])
        data = Samples(prototypes, labels)
        if not len(data):
            return s
        delta, present = self.delta(uploads, *guide.means.shape)
        how = server.info.training
        how = Training("sgd", self.server_lr or how.lr, batch=how.batch, epochs=self.server_epochs)
        fitted = server.fit(
            self.acl,
            s.F,
            data,
            server.key("prototypes"),
            delta,
            task=server.info.task,
            training=how,
        )
        server.note("prototypes/loss", float(fitted.loss or 0.0))
        server.note("prototypes/margin", float(delta))
        return Learnt(fitted.theta, s.known | present)

    def delta(
        self, uploads: Collection[Prototypes], classes: int, width: int
    ) -> tuple[Tensor, Tensor]:
        """δ(t), and a mask of the classes that any party sent."""
        means = [up.means for up in uploads]
        weights = [(up.counts > 0).float() for up in uploads]
        Q, present = pool_means(means, weights, classes, width)
        distance = distances(Q[present], Q[present])
        others = distance[~torch.eye(len(distance), dtype=torch.bool)].view(len(distance), -1)
        if not others.numel():  # there is one class only
            return torch.tensor(self.tau), present
        widest = others.max() if self.margin == "pairs" else others.amin(1).max()
        return widest.clamp(max=self.tau), present

    def acl(self, task: LearningTask, theta: Params, batch: Batch, delta: Tensor) -> Tensor:
        distance = distances(batch.x, generate_prototypes(theta))
        margin = delta * F.one_hot(batch.y, distance.shape[1])
        return F.cross_entropy(-(distance + margin), batch.y)

    def local_prototypes(self, theta: Params, party: Party) -> Prototypes:
        prototypes = super().local_prototypes(theta, party)
        return Prototypes(prototypes.means, (prototypes.counts > 0).int())

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        SharesPrototypes.traits,
        bytes_formula="Σ_t |S_t| · C · (8·d' + 5): prototypes both ways, which classes they are of",
    )
