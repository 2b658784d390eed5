"""Centralized: what pooling the data would give, if it were allowed. A reference, not a method.

Idea: before round 1 every party hands its training data to the server (and the ledger says so); the
server then trains one model for E epochs a round.

At a glance: personal = nothing; exchanged = all samples once, before round 1; kept = the data and
the model, at the server; steps = none; E epochs on all samples at the server.
Symbols: theta = the one model; pool = all training samples.
Deviations: none. Rounds are matched in epochs (T·E), not in gradient steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from comity.base.content import Content, describe
from comity.core import *


@record
class Data:
    x: torch.Tensor = describe(Content("the training records themselves", "samples", "single"))
    y: torch.Tensor = describe(
        Content("the right answers to the training records", "samples", "single")
    )


def together(parts: Iterable[Data]) -> Data:
    """Concatenate the samples of several parties."""
    parts = list(parts)
    return Data(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


@record
class Pool:
    theta: Params
    data: Data


@algorithm
class Centralized(Algorithm[Pool, Empty, Model]):
    def check(self, info: Info) -> None:
        info.same_architecture("one central model")

    def init_server(self, key: Key, info: Info) -> Pool:
        return Pool(info.task.init(key), Data(torch.zeros(0), torch.zeros(0)))

    def init_party(self, key: Key, party: Party) -> Empty:
        return Empty()

    def start(self, s: Pool, server: Server) -> Pool:
        replies = server.call(self.hand_over, {i: Empty() for i in server.info.parties})
        return Pool(s.theta, together(replies.values()))

    def catch_up(self, s: Pool, server: Server, ids: Sequence[int]) -> Pool:
        replies = server.call(self.hand_over, {i: Empty() for i in ids})
        return Pool(s.theta, together([s.data, *replies.values()]))

    @on_party
    async def hand_over(self, state: Empty, m: Empty, party: Party, key: Key) -> tuple[Empty, Data]:
        return state, Data(party.data.train.x, party.data.train.y.int())

    def message_for(self, s: Pool, i: int) -> Model:
        return Model(s.theta)

    def round(self, s: Pool, server: Server, t: int) -> Pool:
        pool = Samples(s.data.x, s.data.y.long())
        task, how = server.info.task, server.info.training
        key = server.key("local")
        fitted = server.fit(plain, s.theta, pool, key, None, task=task, training=how)
        return Pool(fitted.theta, s.data)

    def deployed_model(self, state: Empty, m: Model, party: Party) -> Params:
        return m.theta

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(
        shares="data",
        one_model=True,
        common_start="trains one model at the server, so that no party starts from any",
        bytes_formula="Σ_i n_i · (bytes of a sample + 4), once, before round 1",
    )


@accounts_for(Centralized)
class CentralizedAccounting(Accounting[Centralized]):
    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        return {"Data.x": None, "Data.y": (-1,)}

    def start_traffic(self, info: Info) -> Traffic:
        sample = 4 * torch.Size(info.shape).numel() + 4
        return Traffic(up=sum(info.sizes) * sample)

    def join_traffic(self, info: Info) -> Traffic:
        return Traffic(down=len(info.late) * info.task.bytes())

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        return Traffic()
