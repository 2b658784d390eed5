"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning, ICML 2020.

Idea: control variates c (server) and c_i (party) estimate the drift of local steps, which is
subtracted.

Algorithm 1, l.10: y_i ← y_i − η_l (g_i(y_i) − c_i + c).
Algorithm 1, l.12, option II: c_i⁺ ← c_i − c + (x − y_i) / (K η_l).
Algorithm 1, l.16: x ← x + η_g · mean_{i∈S} (y_i − x).
Algorithm 1, l.17: c ← c + (1/N) Σ_{i∈S} (c_i⁺ − c_i).

At a glance: personal = nothing; exchanged = weights and control variates, both ways; kept = a
control variate; at the server another; steps = E epochs.
Symbols: x = the server's theta; y_i = a party's; K = its local steps. Control variates cover the
shared parameters only (neither buffers nor private parameters), so a party's private offset is
trained by plain SGD.
Deviations: none; l.16 averages uniformly, as printed. Option II assumes plain SGD: momentum and
Adam are refused.
Compared: the same as PFLlib's and fluke's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from comity.base.content import WEIGHTS, Content, describe
from comity.components.averaged import AveragesWeights, AveragingAccounting
from comity.core import *


@record
class Control:
    """The server's state and message: x and c."""

    theta: Params
    c: Params


@record
class ScaffoldState:
    """A party's state: its private parameters and c_i."""

    private: Params
    c: Params


@record
class Change:
    """A party's reply: y_i and c_i⁺ − c_i."""

    theta: Params = describe(WEIGHTS)
    dc: Params = describe(
        Content(
            "how the direction of training at this party has changed, a number for each weight",
            "weights",
        )
    )


def zeros(theta: Params) -> Params:
    return {k: torch.zeros_like(v) for k, v in trainable(theta).items()}


@algorithm
class Scaffold(AveragesWeights[Control, ScaffoldState, Control]):
    server_lr: float = option(1.0, "η_g, the server's step size (l.16)", minimum=0)

    def check(self, info: Info) -> None:
        super().check(info)
        if info.training.optimizer != "sgd" or info.training.momentum:
            raise UsageError(
                "scaffold's control variates assume plain SGD: use --optimizer sgd without"
                " momentum."
            )

    def init_server(self, key: Key, info: Info) -> Control:
        x = self.shared_part(info.task.init(key), info.task)
        return Control(x, zeros(x))

    def init_party(self, key: Key, party: Party) -> ScaffoldState:
        theta = party.task.init(key)
        private = self.private_part(theta, party.task)
        shared = self.shared_part(theta, party.task)
        return ScaffoldState(private, zeros(shared))

    def message_for(self, s: Control, i: int) -> Control:
        return s

    @only_averages
    def round(self, s: Control, server: Server, t: int) -> Control:
        messages = {i: self.message_for(s, i) for i in server.sample(t)}
        mean, repliers = server.mean(self.local, messages)
        y = mean.theta
        # l.16; buffers are averaged
        x = y | {k: s.theta[k] + self.server_lr * (y[k] - s.theta[k]) for k in s.c}
        # l.17
        share = len(repliers) / len(server.info.names)
        c = {k: c_k + share * mean.dc[k] for k, c_k in s.c.items()}
        return Control(x, c)

    @on_party
    async def local(
        self, state: ScaffoldState, m: Control, party: Party, key: Key
    ) -> tuple[ScaffoldState, Change]:
        drift = {k: c - state.c[k] for k, c in m.c.items()}
        fitted = await party.fit(plain, m.theta | state.private, key, add=drift)  # l.10
        private = self.private_part(fitted.theta, party.task)
        y = self.shared_part(fitted.theta, party.task)
        if not fitted.steps:
            return state, Change(y, zeros(y))
        K_eta = fitted.steps * party.training.lr
        c_new = {k: (m.theta[k] - y[k]) / K_eta - drift[k] for k in state.c}  # l.12, option II
        dc = {k: c_new[k] - c for k, c in state.c.items()}
        return ScaffoldState(private, c_new), Change(y, dc)

    def newcomer_state(self, state: ScaffoldState, theta: Params) -> ScaffoldState:
        return replace(state, private=theta | state.private)

    def deployed_model(self, state: ScaffoldState, m: Control, party: Party) -> Params:
        return m.theta | state.private

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        AveragesWeights.traits,
        bytes_formula=(
            "2 · Σ_t |S_t| · (S + S_c),  S_c = bytes of the shared parameters without buffers"
        ),
    )


@accounts_for(Scaffold)
class ScaffoldAccounting(AveragingAccounting[Scaffold]):
    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        private = self.method.private_names(info.task)
        buffers = frozenset(filter(is_buffer, info.task.shapes))
        both = len(cohort) * (
            info.task.bytes(without=private) + info.task.bytes(without=private | buffers)
        )
        return Traffic(up=both, down=both)
