"""Representation sharing without a relay: the thesis' peer-to-peer form (Berdoz, 2022, section on
relaxing the server).

Idea: each round a party asks a few neighbours for their observations. Global class means are not
available, so a party pulls its representations to the class-wise mean of all observations that it
has received so far. The losses are those of relay.

Heard: t̄^c ← t̄^c + (t^c − t̄^c) / k^c with the k^c-th observation of class c, or t̄^c ← (1 − r)
t̄^c + r · t^c with running = r.

At a glance: personal = the whole model, of any architecture; exchanged = means of representations
by class, between parties; kept = the party's model; steps = E epochs.
Symbols: as in relay.
Deviations: as in relay. The coordinator of the round draws who asks whom, and sees nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from comity.algorithms.relay import SharesRepresentations
from comity.base.content import CLASSES_PRESENT, OBSERVATIONS, describe
from comity.components.bank import Teacher, smallest_mean
from comity.components.hidden_means import Holding
from comity.components.peer import Group, PeerToPeer
from comity.core import *


@record
class RelayPeerState:
    """A party's state: its model, the mean of the observations received for each class, and their
    number.
    """

    theta: Params
    mean: Tensor
    heard: Tensor


@record
class Told:
    """Sets of observations, and which classes they show."""

    obs: Tensor = describe(OBSERVATIONS)
    seen: Tensor = describe(CLASSES_PRESENT)


@algorithm
class RelayP2p(PeerToPeer[RelayPeerState], SharesRepresentations[Empty, RelayPeerState, Empty]):
    means_in: ClassVar = {"tell": Holding(("Told.obs",), ("Told.seen",))}
    neighbours: int = option(1, "parties that a party asks a round, drawn anew", minimum=1)
    running: float = option(
        0.0, "r, weight of the newest observations in the mean; 0: all alike", minimum=0, maximum=1
    )

    def init_party(self, key: Key, party: Party) -> RelayPeerState:
        c, d = party.task.classes, party.task.width
        return RelayPeerState(
            self.first(key, party), torch.zeros(c, d), torch.zeros(c, dtype=torch.int32)
        )

    def exchange(self, server: Server, learners: list[int], others: list[int]) -> None:
        neighbours = {v: self.sources(server.info, v, others) for v in learners}
        keys = {v: server.key("neighbours", server.info.stream(v)) for v in learners}
        neighbours = {
            v: [us[k] for k in keys[v].choose(self.few(us), len(us))]
            for v, us in neighbours.items()
        }
        tellers = {u: Group([v for v in learners if u in neighbours[v]]) for u in others}
        replies = server.call(self.tell, {u: group for u, group in tellers.items() if group.ids})
        sealed_messages = {(u, v): sealed for u, to in replies.items() for v, sealed in to.items()}
        server.call(self.local, dict.fromkeys(learners, Empty()), sealed_messages)

    def sources(self, info: Info, v: int, others: list[int]) -> list[int]:
        return [u for u in others if info.listens(v, u)]

    def few(self, sources: list[int]) -> int:
        return min(self.neighbours, len(sources))

    @on_party
    async def tell(
        self, state: RelayPeerState, m: Group, party: Party, key: Key
    ) -> tuple[RelayPeerState, dict[int, Sealed[Told]]]:
        upload = self.make_upload(state.theta, party, key)
        return state, dict.fromkeys(m.ids, seal(Told(upload.obs, upload.seen), to=m.ids))

    @on_party
    async def local(
        self, state: RelayPeerState, m: Empty, party: Party, key: Key
    ) -> tuple[RelayPeerState, None]:
        mean, times = state.mean, state.heard
        sets = [
            (obs, message.seen) for _, message in sorted(party.inbox.items()) for obs in message.obs
        ]
        for obs, present in sets:
            times = times + present.int()
            rate = torch.where(times == 1, 1.0, self.running or 1 / times.clamp(min=1)) * present
            mean = mean + rate[:, None] * (obs - mean)
        nothing = [(torch.zeros_like(mean), torch.zeros_like(times, dtype=torch.bool))]
        obs, present = (torch.stack(part) for part in zip(*(sets or nothing), strict=True))
        theta = await self.train_with_teacher(
            state.theta, Teacher(mean, times > 0, obs, present, {}), party, key
        )
        return RelayPeerState(theta, mean, times), None

    def deployed_model(self, state: RelayPeerState, m: Empty, party: Party) -> Params:
        return state.theta

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        SharesRepresentations.traits,
        start_weights="",
        bytes_formula="Σ_t Σ_{v asks u} (C · (4·M↑·d' + 1) between peers, 4 down)",
    )


@accounts_for(RelayP2p)
class RelayP2pAccounting(Accounting[RelayP2p]):
    def group_size(self, field: str, counts: Sequence[int]) -> int | None:
        return smallest_mean(field, counts, self.method.n_avg, self.method.min_count)

    def declared_trainings(self, stage: Stage, how: Training) -> Mapping[str, Sequence[Training]]:
        trainings: dict[str, Sequence[Training]] = {"tell": []} if stage == "round" else {}
        return {**trainings, **super().declared_trainings(stage, how)}

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        return {"Told.obs": (-1, task.classes, task.width), "Told.seen": (task.classes,)}

    def join_traffic(self, info: Info) -> Traffic:
        return self.telling(info, list(info.late), list(info.parties))

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        return self.telling(info, cohort, cohort)

    def telling(self, info: Info, learners: list[int], others: list[int]) -> Traffic:
        edges = sum(self.method.few(self.method.sources(info, v, others)) for v in learners)
        return Traffic(
            down=4 * edges, peer=edges * info.task.classes * (4 * self.method.m_up * info.width + 1)
        )
