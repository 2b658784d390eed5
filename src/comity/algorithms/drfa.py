"""DRFA: Deng, Kamani, Mahdavi, Distributionally Robust Federated Averaging, NeurIPS 2020.

Idea: AFL's worst mixture with many local steps between exchanges. Parties are drawn with
probabilities λ. λ is updated with the losses of a snapshot from a random step of the round, which
represents all its steps.

Objective: min_w max_{λ∈Δ} Σ_i λ_i F_i(w).
Algorithm 1: draw m parties D by λ, and t' ∈ {1, ..., τ} uniformly; each of D makes τ steps from w;
w ← (1/m) Σ_{i∈D} w_i; w' ← (1/m) Σ_{i∈D} w_i after t' steps;  draw m parties U uniformly, who
report F_i(w');  v_i = (N/m) F_i(w') for i ∈ U, else 0; λ ← Π_Δ(λ + τ γ_λ v).

Symbols: Δ = the simplex, Π_Δ the nearest point in it; N = parties; m = those of a round; τ = local
steps.
At a glance: personal = nothing; exchanged = all weights and a snapshot of them up, both down, and a
loss up; kept = nothing (the server: λ); steps = E epochs for each time that a party is drawn, and
the loss of every sample.
Deviations: a party drawn twice trains twice, on other batches. τ is the number of steps of the
largest party drawn; the snapshot of a party with fewer than t' steps is its final model. F_i is
over all samples, in evaluation mode (paper: a mini-batch). γ_λ and {1, ..., τ} are from memory of
the paper and could not be checked. λ starts uniform (FedTorch: by sample counts). The authors'
FedTorch differs from Algorithm 1. There parties are drawn uniformly and averaged by λ, each with a
t' of its own; γ_λ starts at 0.1 and falls by a tenth per round; λ is kept at 0.001 or more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor

from comity.base.content import TRAINING_LOSS, WEIGHTS, Content, describe, describe_reply
from comity.components.agnostic import Agnostic, Mixture, mean_loss
from comity.components.averaged import AveragingAccounting
from comity.core import *

SNAPSHOT = "drfa."


@record
class Until:
    """The server's message: the weights, and the number of steps after which to take the
    snapshot.
    """

    theta: Params
    steps: int | None = None


@record
class Snapped:
    """A party's reply: its trained weights, and the snapshot."""

    theta: Params = describe(WEIGHTS)
    snapshot: Params = describe(
        Content(f"{WEIGHTS.words}, as they were at a moment of the round", "weights")
    )


@record
class Snapshot:
    """w', whose loss parties compute. The field is not called theta, as no party trains from it."""

    w: Params


@algorithm
class Drfa(Agnostic[Until]):
    lam_lr: float = option(0.008, "γ_λ, step size of λ for each local step", minimum=0)

    def message_for(self, s: Mixture, i: int) -> Until:
        return Until(s.theta)

    def round(self, s: Mixture, server: Server, t: int) -> Mixture:
        n, m = len(server.info.names), len(server.sample(t))
        chances = torch.tensor(s.lam, dtype=torch.float64)
        parties = chances.multinomial(
            m, replacement=True, generator=server.key("parties").generator()
        ).tolist()
        tau = max(server.info.training.steps_for(server.info.sizes[i]) for i in parties)
        message = Until(s.theta, 1 + server.key("snapshot").choose(1, max(1, tau))[0])
        w, snapshot = Averaging(), Averaging()
        times = Counter(parties)
        while times:  # first all parties drawn, then those drawn twice, and so on
            draws = Counter[int]()
            for i, reply in server.replies(self.local, dict.fromkeys(sorted(times), message)):
                w.add(reply.theta, 1.0)
                snapshot.add(reply.snapshot, 1.0)
                draws[i] = times[i]
            times = draws - Counter(draws.keys())
        judges = server.key("judges").choose(m, n)
        losses = server.call(self.judge, dict.fromkeys(sorted(judges), Snapshot(snapshot.value())))
        v = {i: n / m * loss for i, loss in losses.items()}
        return Mixture(w.value(), self.raise_weights(s.lam, v, tau * self.lam_lr, server))

    @on_party
    async def local(
        self, state: Params, m: Until, party: Party, key: Key
    ) -> tuple[Params, Snapped]:
        fitted = await party.fit(self.snapping, m.theta | state, key, m.steps)
        snapshot = {
            k.removeprefix(SNAPSHOT): v for k, v in fitted.scratch.items() if k.startswith(SNAPSHOT)
        }
        w_i = self.shared_part(fitted.theta, party.task)
        shared_snapshot = self.shared_part(snapshot, party.task) or w_i
        return self.private_part(fitted.theta, party.task), Snapped(w_i, shared_snapshot)

    def snapping(self, task: LearningTask, w_i: Params, batch: Batch, steps: int | None) -> Tensor:
        """F_i. After `steps` steps it saves the weights in the scratch."""
        if batch.number == steps:
            batch.scratch.update({SNAPSHOT + k: v.detach().clone() for k, v in w_i.items()})
        return task.loss(w_i, batch)

    @on_party
    @describe_reply(TRAINING_LOSS)
    async def judge(
        self, state: Params, m: Snapshot, party: Party, key: Key
    ) -> tuple[Params, float]:
        return state, mean_loss(party.task, m.w | state, party.data.train)

    def deployed_model(self, state: Params, m: Until, party: Party) -> Params:
        return m.theta | state

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(Agnostic.traits, bytes_formula="Σ_t |S_t| · (4·S + 8)")


@accounts_for(Drfa)
class DrfaAccounting(AveragingAccounting[Drfa]):
    def join_traffic(self, info: Info) -> Traffic:
        return Traffic(
            down=len(info.late) * info.task.bytes(without=self.method.private_names(info.task))
        )

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        size = 2 * self.shared_bytes(info) + 4
        return Traffic(up=len(cohort) * size, down=len(cohort) * size)
