"""FedCP: Zhang et al., Separating Feature Information for Personalized Federated Learning via
Conditional Policy, KDD 2023.

Idea: a small network, the conditional policy, divides each value of a sample's representation
between the global head and the party's own head. The logits are the sum of both heads'.

Policy: {r, s} = softmax over pairs of CPN(v_i/‖v_i‖ ⊙ h; Θ), r + s = 1, with CPN =
ReLU(LayerNorm(linear layer)) from d' to 2·d'.
Answer: g(r ⊙ h; W^hd) + g(s ⊙ h; W_i^hd), h = f(x; W_i^fe).
Loss: min over (W_i^fe, W_i^hd, Θ_i) of CE + λ · MMD(h, f(x; W^fe)), with W^hd and W^fe as received,
frozen.
Server: averages of W_i^fe, Θ_i and of the heads that parties send, by sample counts.

Symbols: f, g = the stages up to the cut, and the head; W^hd, W_i^hd = the global and the party's
own head; v_i = the own head's weights added up over the classes, at the round's beginning; MMD =
maximum mean discrepancy, its kernel the sum of e^{−‖·‖²/(2a)} over a = 10, 15, 20 and 50.
Deviations: the code draws the policy by Gumbel's softmax, also when it evaluates (gumbel=true draws
in training). It sends the mean of the received and of its own head (upload=half, the default); the
authors' talk has the own head sent (upload=own). Its v_i are random in round 1. Frozen parts are in
evaluation mode. If a head has several layers, v_i comes from the product of their matrices, as in
the code; other heads are refused. λ = 5 is the code's for MNIST. PFLlib follows the code; the
latter leaves out the last test samples if they do not fill a batch. The authors' talk was read. The
paper's text, which defines the softmax, was not available.
At a glance: personal = a head; exchanged = the body, a head and the policy's weights, both ways;
kept = the own head; steps = E epochs.
Compared: within chance of PFLlib's with a softmax instead of Gumbel's; on whole batches the same
until rounding errors grow. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.algorithms.fedavg import FedAvg
from comity.components.around import Around
from comity.core import *
from comity.models.stack import uniform
from comity.training.kernels import linear

OWN, POLICY, CONTEXT = "fedcp.own.", "fedcp.policy.", "fedcp.context"
WIDTHS = (10, 15, 20, 50)  # bandwidths of MMD's kernels


def own_head(theta: Params) -> Params:
    """W_i^hd with the names of W^hd."""
    return {k.removeprefix(OWN): v for k, v in theta.items() if k.startswith(OWN)}


def mmd(a: Tensor, b: Tensor) -> Tensor:
    """The mean of k(a, a') + k(b, b') − 2 k(a, b') over all pairs of a batch."""
    both = torch.cat([a, b])
    norms = both.square().sum(1)
    apart = norms[:, None] + norms - 2 * both @ both.T
    k = (
        (apart / (-2 * torch.tensor(WIDTHS, dtype=a.dtype, device=a.device)[:, None, None]))
        .exp()
        .sum(0)
    )
    n = len(a)
    return k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean()


@dataclass(frozen=True, kw_only=True)
class Separated(Around):
    """A task whose logits are the sum of two heads'. A policy divides the representation between
    them.
    """

    def init(self, key: Key) -> Params:
        theta = self.inner.init(key)
        d, generator = self.width, key.fold(POLICY).generator()
        own_copy = {OWN + k: theta[k].clone() for k in theta if k in self.head_names}
        layer = {
            POLICY + "weight": uniform((2 * d, d), d, generator),
            POLICY + "bias": uniform((2 * d,), d, generator),
        }
        return (
            theta
            | own_copy
            | layer
            | {
                POLICY + "norm.weight": torch.ones(2 * d),
                POLICY + "norm.bias": torch.zeros(2 * d),
            }
        )

    def head(self, theta: Params, z: Tensor, train: bool = False) -> Tensor:
        return self.separated_logits(theta, z, train)

    def separated_logits(
        self, theta: Params, h: Tensor, train: bool, noise: Tensor | None = None
    ) -> Tensor:
        """The sum of both heads' logits. `noise` is added to the policy before its softmax."""
        a = linear(theta[CONTEXT] * h, theta[POLICY + "weight"], theta[POLICY + "bias"])
        a = F.relu(
            F.layer_norm(a, a.shape[1:], theta[POLICY + "norm.weight"], theta[POLICY + "norm.bias"])
        ).unflatten(1, (2, -1))
        r, s = (a if noise is None else a + noise).softmax(1).unbind(1)
        return self.inner.head(theta, r * h) + self.inner.head(
            theta | own_head(theta), s * h, train
        )


@algorithm
class FedCp(FedAvg):
    lam: float = option(
        5.0, "λ, weight of the discrepancy from the received body's representations", minimum=0
    )
    upload: Literal["half", "own"] = option(
        "half", "which head is sent: half own and half received (code), or the own"
    )
    gumbel: bool = option(False, "Gumbel noise on the policy in training, as in the code")

    def check(self, info: Info) -> None:
        super().check(info)
        task = info.task
        if len(task.z_shape) != 1 or not self.layers(task):
            raise UsageError(
                f"fedcp needs a head of linear layers alone, which {task.network.name} has not"
                f" after {task.cut}."
            )

    def layers(self, task: LearningTask) -> list[str]:
        """The weight matrices of a head of linear layers, last layer first; empty for any other
        head.
        """
        names = [k for k in task.shapes if k in task.head_names and k.endswith("weight")]
        shapes = [task.shapes[k][0] for k in names]
        wide = [task.width, *(shape[0] for shape in shapes)]
        return (
            names[::-1]
            if all(shape[1:] == (before,) for shape, before in zip(shapes, wide, strict=False))
            else []
        )

    def extend_task(self, task: LearningTask) -> LearningTask:
        return Separated.of(task, frozenset(OWN + k for k in task.head_names))

    def in_context(self, theta: Params, task: LearningTask) -> Params:
        """Add v_i/‖v_i‖ to the parameters."""
        matrices = [theta[OWN + k] for k in self.layers(task)]
        return theta | {CONTEXT: F.normalize(reduce(torch.matmul, matrices).sum(0), dim=0)}

    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        task = party.task
        begin = self.in_context(theta, task)
        only = frozenset(begin.keys() - task.head_names - {CONTEXT})
        frozen = Model(drop(theta, task.head_names))
        theta = (
            await party.fit(
                self.loss, begin, key, frozen, only=only, draw=self.noise if self.gumbel else None
            )
        ).theta
        share = 0.5 if self.upload == "half" else 1.0
        heads = {
            k: torch.lerp(theta[k], v, share)
            for k, v in own_head(theta).items()
            if not is_buffer(k)
        }
        return drop(theta, frozenset({CONTEXT})) | heads

    def noise(self, batch: Batch, key: Key, frozen: Model) -> Tensor:
        d = frozen.theta[POLICY + "weight"].shape[1]
        draws = torch.rand(len(batch.y), 2, d, generator=key.fold("gumbel").generator()).clamp(
            1e-12, 1 - 1e-7
        )
        return -(-draws.log()).log().to(batch.y.device)

    def loss(self, task: LearningTask, theta: Params, batch: Batch, frozen: Model) -> Tensor:
        assert isinstance(task, Separated)
        h = task.features(theta, batch.x, train=True)
        value = task.inner.criterion(task.separated_logits(theta, h, True, batch.draws), h, batch)
        if not self.lam:
            return value
        with torch.no_grad():
            h_g = task.features(frozen.theta, batch.x)
        return value + self.lam * mmd(h, h_g)

    def newcomer_state(self, state: Params, theta: Params) -> Params:
        heads = frozenset(k for k in theta if OWN + k in state)
        return drop(theta, heads) | state  # the global head is the received one

    def deployed_model(self, state: Params, m: Model, party: Party) -> Params:
        return self.in_context(m.theta | state, party.task)

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        FedAvg.traits,
        shares="generic",
        one_model=False,
        not_private="its discrepancy couples the records of a batch",
        bytes_formula="2 · Σ_t |S_t| · (S + 8·d'·(d' + 3)): the weights and the policy's",
    )
