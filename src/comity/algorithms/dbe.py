"""DBE: Zhang et al., Eliminating Domain Bias for FL in Representation Space, NeurIPS 2023. A
wrapper.

Idea: the part of a representation that is specific to a party moves out of the shared weights into
a private, trainable offset (PRBM), and a regulariser (MR) pulls each party's mean representation to
a consensus mean that is fixed before training.

PRBM, eq. 6: z = z^g + z̄^p_i, with z^g = f(x).
MR, eqs. 8 and 9: κ · (1/K) Σ_k ½ (m_k − z̄^g_k)², with m ← (1 − μ) sg(m) + μ mean_batch f(x), from
0 in every local training.
Algorithm 1, l.1-3: before round 1 each party trains one epoch without PRBM and MR and reports z̄_i;
z̄^g = Σ_i (n_i/n) z̄_i.

At a glance: personal = what the host's is, and an offset of the representation; exchanged = what
the host exchanges, and a mean of representations once, before round 1; kept = what the host keeps,
the offset and a running mean; steps = the host's, and one epoch before round 1.
Symbols: K = values in a representation; offset = z̄^p_i; consensus = z̄^g; m = running mean of z^g.
Deviations: the ½ in MR is from the authors' code, with which κ = 50 was tuned (as printed:
half=false). z̄_i is the exact mean, as printed (the code: init_mean=ema). The offset is trained by
the experiment's optimizer. κ and μ are the paper's for a network of this kind (C.2): 50 and 1 (its
CNN), 1 and 0.1 with BatchNorm (its ResNet-18), 0.1 and 1 for a mean of word vectors (fastText).
kappa=auto runs some rounds with each of κ = 0, 1, 5 and 50 and takes the best on validation
samples.
Compared: the same as PFLlib's, with init_mean=ema. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from comity.components.averaged import AveragesWeights, AveragingAccounting
from comity.components.pilot import TRIED_BYTES, Mean, Piloted, PilotedAccounting
from comity.core import *
from comity.core.diagnostics import ParameterNorms
from comity.privacy.options import NoisyMean, NoisyMeanAccounting

OFFSET = "dbe.offset"
MEAN = "dbe.mean"


class Constants(NamedTuple):
    """κ and μ, which the paper sets by the kind of network (C.2)."""

    kappa: float
    mu: float


def paper_constants(task: LearningTask) -> Constants:
    """The paper's constants for a network of this kind."""
    if task.norm_names:  # as its ResNet-18
        return Constants(1.0, 0.1)
    if task.network.name.startswith("fasttext"):
        return Constants(0.1, 1.0)
    return Constants(50.0, 1.0)  # as its 4-layer CNN


@dataclass(frozen=True, kw_only=True)
class Biased(LearningTask):
    """A task with a private offset before its head and a mean regulariser in its objective."""

    host: LearningTask
    offset: bool = True
    frozen: bool = False
    kappa: float = 0.0
    mu: float = 1.0
    half: bool = True
    debias: bool = False
    consensus: Tensor | None = None

    @property
    def head_names(self) -> frozenset[str]:
        # The wrapper's own cut must not change what the host calls its head.
        return self.plain.head_names

    @property
    def plain(self) -> LearningTask:
        return self.host

    @property
    def personal(self) -> LearningTask:
        return replace(self, kappa=0.0)  # MR regularises shared parameters only

    def init(self, key: Key) -> Params:
        theta = super().init(key)
        return theta | {OFFSET: torch.zeros(self.z_shape)} if self.offset else theta

    def head(self, theta: Params, z: Tensor, train: bool = False) -> Tensor:
        if self.offset:
            z = z + (theta[OFFSET].detach() if self.frozen else theta[OFFSET])  # eq. 6
        return super().head(theta, z, train)

    def criterion(self, logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
        loss = super().criterion(logits, z, batch)
        return loss + self.kappa * self.regulariser(z, batch) if self.kappa else loss

    def regulariser(self, z: Tensor, batch: Batch) -> Tensor:
        """Eqs. 8 and 9. The running mean m is kept in the scratch of this local training."""
        assert self.consensus is not None
        m = z.mean(0)
        if self.mu < 1:
            m = self.mu * m
            if MEAN in batch.scratch:
                m = (1 - self.mu) * batch.scratch[MEAN] + m
            batch.scratch[MEAN] = m.detach()
        if self.debias:
            m = m / (1 - (1 - self.mu) ** (batch.number + 1))
        return (0.5 if self.half else 1.0) * (m - self.consensus).square().mean()


@algorithm
class Dbe(NoisyMean, Piloted):
    host: AveragesWeights[Any, Any, Any]
    kappa: float | Literal["paper", "auto"] = option(
        "paper",
        "κ, weight of the mean regulariser (eq. 8): 50, with BatchNorm 1, for fasttext 0.1; auto:"
        " by a pilot",
        minimum=0,
    )
    mu: float | Literal["paper"] = option(
        "paper",
        "μ, momentum of the running mean (eq. 9): 1, the current batch alone, with BatchNorm 0.1",
        minimum=0,
        maximum=1,
    )
    cut: str = option("", "the stage after which the offset sits; default: the model's own cut")
    train_offset: bool = option(True, "false freezes the offset at 0")
    half: bool = option(True, "the ½ in MR: as in the authors' code, or plain MSE as printed")
    ema_debias: bool = option(
        False,
        "divide the running mean by 1 − (1 − μ)^b, as it starts from 0 in every local training",
    )
    init_mean: Literal["exact", "ema", "batch"] = option(
        "exact", "the mean after training, or in it: by μ, or all batches alike"
    )
    init_epochs: int = option(1, "epochs before a party reports its mean (l.1)", minimum=0)
    noise_s: float = option(
        0.0, "s, standard deviation of the noise on an uploaded mean (Table 3)", minimum=0
    )
    noise_q: float = option(
        0.0, "q, share of an uploaded mean that is withheld (Table 3)", minimum=0, maximum=1
    )
    pilot_rounds: int = option(
        5, "rounds with each κ of the pilot before round 1, with kappa=auto", minimum=1
    )

    has_offset: ClassVar[bool] = True

    @classmethod
    def check_host(cls, host: AnyAlgorithm, name: str, wrapper: str) -> None:
        if isinstance(host, Wrapper):
            raise UsageError(f"{wrapper} cannot go around a method that is already wrapped.")
        if not isinstance(host, AveragesWeights) or host.traits.shares not in (
            "model",
            "generic",
            "body",
        ):
            raise UsageError(
                f"{wrapper} is not supported with {name}: {name} {SHARES[host.traits.shares]}, so"
                " there is no averaged extractor."
            )
        if cls.has_offset and (host.traits.shares != "model" or host.traits.self_contained):
            raise UsageError(
                f"{name} is personalised already, so an offset would be redundant: use {name}+mr."
            )
        if cls.has_offset and host.traits.no_offset:
            raise UsageError(
                f"{wrapper} is not supported with {name}: {name} {host.traits.no_offset}. Use"
                f" {name}+mr."
            )

    def check(self, info: Info) -> None:
        for task in info.tasks:
            self.at_cut(task)  # refuses an unknown stage
        runs_along = self.init_mean == "batch" or (self.init_mean == "ema" and self.mu)
        if (self.init_mean != "exact" and not (runs_along and self.init_epochs)) or (
            self.ema_debias and not self.mu
        ):
            raise UsageError(
                "A running mean needs mu > 0, and init_mean=ema and batch an epoch to run along."
            )
        super().check(info)

    def paper_kappa(self, task: LearningTask) -> float:
        return paper_constants(task).kappa

    def momentum(self, task: LearningTask) -> float:
        """μ for a network of this kind."""
        return paper_constants(task).mu if self.mu == "paper" else self.mu

    def at_cut(self, task: LearningTask) -> LearningTask:
        return replace(task, cut=self.cut) if self.cut else task

    def extra(self, key: Key, party: Party) -> Mean:
        return Mean(torch.zeros(self.at_cut(party.task).z_shape))

    def wrap_party(self, party: Party, extra: Mean) -> Party:
        task = self.at_cut(party.task)
        biased = Biased(
            task.network,
            task.classes,
            task.cut,
            task.private | frozenset({OFFSET} if self.has_offset else ()),
            host=party.task,
            offset=self.has_offset,
            frozen=not self.train_offset,
            consensus=extra.z,
            kappa=self.weight(extra, task),
            mu=self.momentum(task),
            half=self.half,
            debias=self.ema_debias,
        )
        return with_task(self.quiet(party, extra), biased)

    def start(self, s: Wrapped[Mean | None], server: Server) -> Wrapped[Mean | None]:
        s = super().start(s, server)
        messages = {i: self.start_model(s, i) for i in server.info.parties}
        means = server.call(self.mean, messages)  # l.1-2
        sizes = dict(enumerate(server.info.sizes))
        z_bar = average({i: {MEAN: reply.z} for i, reply in means.items()}, sizes)[MEAN]  # l.3
        server.call(self.agree, dict.fromkeys(server.info.parties, Mean(z_bar)))
        s = replace(s, extra=Mean(z_bar))
        return self.choose(s, server) if self.auto else s

    def start_model(self, s: Wrapped[Mean | None], i: int) -> Model:
        """The model that party i computes its mean with; empty if the party has one itself."""
        return Model({} if self.host.traits.self_contained else self.message_for(s, i).theta)

    def catch_up(
        self, s: Wrapped[Mean | None], server: Server, ids: Sequence[int]
    ) -> Wrapped[Mean | None]:
        assert s.extra
        server.call(self.agree, dict.fromkeys(ids, s.extra))
        return super().catch_up(s, server, ids)

    def join(
        self, s: Wrapped[Mean | None], server: Server, ids: Sequence[int]
    ) -> Wrapped[Mean | None]:
        assert s.extra
        server.call(self.agree, dict.fromkeys(ids, s.extra))
        return super().join(s, server, ids)

    @on_party
    async def mean(
        self, state: Wrapped[Mean], m: Model, party: Party, key: Key
    ) -> tuple[Wrapped[Mean], Mean]:
        """Train one epoch without PRBM and MR, report the mean representation, and discard the
        weights.
        """
        task = self.at_cut(party.task)
        theta = drop(self.host.deployed_model(state.host, m, party), frozenset({OFFSET}))
        how = replace(party.training, epochs=self.init_epochs, steps=None)
        loss = plain if self.init_mean == "exact" else self.running
        fitted = await party.fit(loss, theta, key, task=task, training=how)
        if self.init_mean == "exact":
            z = in_chunks(lambda x: task.features(fitted.theta, x), party.data.train.x).mean(0)
        else:
            z = fitted.scratch.get(MEAN, torch.zeros_like(state.extra.z))
        return state, Mean(self.add_mean_noise(z, key.fold("noise")))

    def running(self, task: LearningTask, theta: Params, batch: Batch, aux: None) -> Tensor:
        """The plain loss, with a running mean of the representations in the scratch."""
        z = task.features(theta, batch.x, train=True)
        now = z.detach().mean(0)
        before = batch.scratch.get(MEAN, torch.zeros_like(now))
        mu = self.momentum(task) if self.init_mean == "ema" else 1 / (batch.number + 1)
        batch.scratch[MEAN] = (1 - mu) * before + mu * now
        return task.objective(theta, z, batch)

    @on_party
    async def agree(
        self, state: Wrapped[Mean], m: Mean, party: Party, key: Key
    ) -> tuple[Wrapped[Mean], None]:
        return Wrapped(self.host_state(state), m), None

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        Piloted.traits,
        also_leaves=("means",),
        start_weights="theta",
        not_private=(
            "the mean regulariser couples the records of a batch (prbm, the offset alone, can be"
            " had)"
        ),
        bytes_formula=(
            "the host's, and N · (S + 8·K) once before round 1; kappa=auto: 4 · pilot_rounds"
            " rounds and N · (4·S + 73) more"
        ),
        diagnostics=(
            ParameterNorms(
                name="offsets",
                title="the parties' offsets",
                meaning="norms of the parties' offsets",
                value="norm",
                axis="Euclidean norm of the offset",
                parameter=OFFSET,
            ),
        ),
    )


@accounts_for(Dbe)
class DbeAccounting(NoisyMeanAccounting[Dbe], PilotedAccounting[Dbe]):
    def join_traffic(self, info: Info) -> Traffic:
        kappa_bytes = TRIED_BYTES if self.method.auto else 0
        return super().join_traffic(info) + Traffic(
            down=len(info.late) * (4 * self.method.at_cut(info.task).width + kappa_bytes)
        )

    def start_traffic(self, info: Info) -> Traffic:
        n = len(info.names)
        k = self.method.at_cut(info.task).width
        assert isinstance(self.host, AveragingAccounting)
        model = 0 if self.method.host.traits.self_contained else self.host.shared_bytes(info)
        return (
            super().start_traffic(info)
            + Traffic(up=4 * k * n, down=(model + 4 * k) * n)
            + self.pilot_traffic(info)
        )
