"""FedFomo: Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR
2021.

Idea: there is no global model. Each party receives a few of the others' models, evaluates them on
held-out samples, and continues from a combination of those that are better than its own.

Weights: w_n = (L_i(θ_i) − L_i(θ_n)) / ‖θ_n − θ_i‖; those above 0 are kept and divided by their sum:
w⁺_n.
Update: θ_i ← θ_i + Σ_n w⁺_n (θ_n − θ_i), then E epochs on the party's samples.
Whose models: P_ij ← P_ij + w_j, from P = I; the M − 1 models with the highest P_ij, each with
probability ε replaced by a random one.

Symbols: θ_i = what i's last training began from; θ_n = the models that n, and i itself, trained
since; L_i = the mean loss of i's held-out samples; M counts the party's own model; ε falls by a
fixed step a round.
At a glance: personal = everything; exchanged = a model up and M − 1 of others' down; kept = the
trained model and where the next training begins, at the server P and all parties' last models;
steps = E epochs of the samples that are not held out, and M + 1 looks at those that are.
Deviations: the parties of a round exchange the models that they trained in it, and a party deploys
the model that it trained last; the authors' server sends the models of one round to the parties of
the next, which is the same if all take part in every round. The held-out samples are the
experiment's validation samples, or every fifth training sample if there are none. Checked against
the authors' code, not the printed text. That code takes the ℓ1 norm by default (norm=l1), and
divides what it adds to P by |Σ w|. If no model is better, θ_i stays, as in the update and in the
code; PFLlib continues from the trained model. PFLlib has no ε. BatchNorm's statistics are combined
like the weights, but are not part of the norm. A newcomer gets M − 1 models at random.
Compared: within chance of PFLlib's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from comity.base.content import Content, describe_reply
from comity.components.averaged import AveragesWeights, AveragingAccounting
from comity.core import *
from comity.core.diagnostics import PartyMatrix
from comity.metrics.evaluation import score_on_validation

HELD_OUT = 5  # one of so many samples is held out
WEIGHT = "weight/"


@record
class Affinities:
    """The server's state: P, the sum of each party's (row's) weights on each other party's models,
    and the last models that parties sent.
    """

    P: Tensor
    last: dict[int, Params]


@record
class FomoState:
    """A party's state: the model that it trained last, and θ_i, with a flag whether θ_i includes
    this round's models of others.
    """

    trained: Params
    begin: Params
    weighed: bool


@record
class Offered:
    """The server's message: others' models by party."""

    models: dict[int, Params]


def distance_between(theta: Params, other: Params, norm: int) -> float:
    """‖theta − other‖ over the trained parameters."""
    gap = torch.cat([(theta[k] - v).flatten() for k, v in trainable(other).items()])
    return float(torch.linalg.vector_norm(gap, norm))


def choose_models(
    affinity: Sequence[float], candidates: Sequence[int], count: int, epsilon: float, key: Key
) -> list[int]:
    """Choose `count` candidates one by one: with probability ε at random, else the one with the
    highest affinity (ties at random).
    """
    pool = [candidates[k] for k in key.permutation(len(candidates)).tolist()]
    explores = torch.rand(count, generator=key.fold("explore").generator()) < epsilon
    picks = []
    for explore in explores.tolist():
        picks.append(pool[0] if explore else max(pool, key=lambda j: affinity[j]))
        pool.remove(picks[-1])
    return sorted(picks)


@algorithm
class FedFomo(AveragesWeights[Affinities, FomoState, Empty]):
    models: int = option(
        5, "M, models that a party weighs in a round, its own among them", minimum=1
    )
    epsilon: float = option(
        0.3, "ε, chance that a model is drawn evenly, in round 0", minimum=0, maximum=1
    )
    epsilon_decay: float = option(0.05, "by how much ε falls each round", minimum=0)
    norm: Literal["l2", "l1"] = option(
        "l2", "‖·‖ in the weights; l1: the default of the authors' code"
    )

    def init_server(self, key: Key, info: Info) -> Affinities:
        return Affinities(torch.eye(len(info.names)), {})

    def init_party(self, key: Key, party: Party) -> FomoState:
        return FomoState(party.task.init(key), party.task.init(key), True)

    def message_for(self, s: Affinities, i: int) -> Empty:
        return Empty()

    def sources(self, info: Info, i: int, others: Sequence[int]) -> list[int]:
        return [j for j in others if info.listens(i, j)]

    def downloads(self, candidates: int) -> int:
        return min(self.models - 1, candidates)

    def round(self, s: Affinities, server: Server, t: int) -> Affinities:
        replies = server.call(self.local, dict.fromkeys(server.sample(t), Empty()))
        uploads = {i: reply.theta for i, reply in replies.items()}
        epsilon = max(0.0, self.epsilon - t * self.epsilon_decay)
        offered: dict[int, Offered] = {}
        for i in uploads:
            candidates = self.sources(server.info, i, list(uploads))
            key = server.key("models", server.info.stream(i))
            count = self.downloads(len(candidates))
            ids = choose_models(s.P[i].tolist(), candidates, count, epsilon, key)
            if ids:
                offered[i] = Offered({j: uploads[j] for j in ids})
        P = s.P.clone()
        weights = server.call(self.weigh, offered) if offered else {}
        for i, w in weights.items():
            total = sum(max(0.0, value) for value in w.values()) or 1.0
            for j, value in w.items():
                P[i, j] += value
                server.note(f"{WEIGHT}{server.info.name(j)}", max(0.0, value) / total, party=i)
        return Affinities(P, s.last | uploads)

    def samples(self, data: PartyData, held_out: bool) -> Samples:
        """The samples that models are weighted by (`held_out`), or that they are trained on. A
        party with too few samples uses all of them for both.
        """
        if len(data.validation) or len(data.train) < HELD_OUT:
            return data.validation if held_out and len(data.validation) else data.train
        places = torch.arange(len(data.train)) % HELD_OUT == HELD_OUT - 1
        return data.train.take((places == held_out).nonzero()[:, 0])

    @on_party
    async def local(
        self, state: FomoState, m: Empty, party: Party, key: Key
    ) -> tuple[FomoState, Model]:
        # A party that missed the exchange continues with its own model.
        begin = state.begin if state.weighed else state.trained
        samples = self.samples(party.data, held_out=False)
        theta = (await party.fit(plain, begin, key, samples=samples)).theta
        return FomoState(theta, begin, False), Model(self.shared_part(theta, party.task))

    @on_party
    @describe_reply(
        Content(
            "by how much some parties' models do better than its own on records that it held out",
            "weights",
        )
    )
    async def weigh(
        self, state: FomoState, m: Offered, party: Party, key: Key
    ) -> tuple[FomoState, dict[int, float]]:
        private = self.private_part(state.trained, party.task)
        models = {j: theta | private for j, theta in m.models.items()} | {party.id: state.trained}
        w = self.weights(state.begin, models, party)
        better = {n: weight for n, weight in w.items() if weight > 0}
        begin = average({n: models[n] for n in better}, better) if better else state.begin
        return replace(state, begin=begin, weighed=True), w

    def weights(
        self, theta: Params, models: Mapping[int, Params], party: Party
    ) -> dict[int, float]:
        """(L(θ) − L(θ_n)) / ‖θ_n − θ‖ for each model; 0 for θ itself, and where the quotient is not
        finite.
        """
        held_out_data = replace(party.data, validation=self.samples(party.data, held_out=True))
        loss = score_on_validation(party.task, theta, held_out_data).loss
        weights = {}
        for n, theta_n in models.items():
            distance = distance_between(theta_n, theta, int(self.norm[1]))
            if not distance:
                weights[n] = 0.0
                continue
            loss_n = score_on_validation(party.task, theta_n, held_out_data).loss
            w = (loss - loss_n) / distance
            weights[n] = w if math.isfinite(w) else 0.0
        return weights

    def join(self, s: Affinities, server: Server, ids: Sequence[int]) -> Affinities:
        senders = sorted(s.last)
        picks = server.key("newcomers").choose(self.downloads(len(senders)), len(senders))
        if picks:
            offer = Offered({senders[k]: s.last[senders[k]] for k in picks})
            server.call(self.weigh, dict.fromkeys(ids, offer))
        return super().join(s, server, ids)

    def newcomer_state(self, state: FomoState, theta: Params) -> FomoState:
        return state

    def deployed_model(self, state: FomoState, m: Empty, party: Party) -> Params:
        return state.trained

    def weights_bytes(self, downloads: int) -> int:
        """Bytes of the weights that a party reports to the server."""
        return 4 * (downloads + 1) if downloads else 0

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(
        AveragesWeights.traits,
        self_contained=True,
        one_model=False,
        hears_peers=True,
        start_weights="",
        not_private="it weighs models by how well they do on a party's records",
        bytes_formula=(
            "Σ_t |S_t| · (S + m · (S + 4) + 4),  S = bytes of the shared weights, m = min(M,"
            " |S_t|) − 1"
        ),
        diagnostics=(
            PartyMatrix(
                name="weights",
                title="whose models parties go on from",
                meaning=(
                    "the weights of others' models, and of a party's own, in what it goes on from"
                ),
                value="weight",
                prefix=WEIGHT,
            ),
        ),
    )


@accounts_for(FedFomo)
class FedFomoAccounting(AveragingAccounting[FedFomo]):
    def join_traffic(self, info: Info) -> Traffic:
        # An upper bound: parties that never replied have sent no model.
        downloads = self.method.downloads(len(info.names))
        per_newcomer = Traffic(
            up=self.method.weights_bytes(downloads),
            down=downloads * info.task.bytes(without=self.method.private_names(info.task)),
        )
        return sum([per_newcomer] * len(info.late), Traffic())

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        downloads = [
            self.method.downloads(len(self.method.sources(info, i, cohort))) for i in cohort
        ]
        size = info.task.bytes(without=self.method.private_names(info.task))
        return Traffic(
            up=len(cohort) * size + sum(map(self.method.weights_bytes, downloads)),
            down=sum(downloads) * size,
        )
