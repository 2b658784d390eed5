"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017.

Idea: each round the server sends its model to a cohort, each party trains it for E epochs on its own data, and
the server takes the average, weighted by sample counts.

Algorithm 1: w ← Σ_{i∈S} (n_i / n_S) w_i, with w_i from E epochs of SGD on F_i starting at w.

Symbols: theta = w; S the cohort; n_i training samples of party i.
Deviations: none. What BatchNorm statistics do is the experiment's `bn` setting (all are averaged by default).
"""

from __future__ import annotations

from typing import Any

from comity.core import *


@algorithm
class FedAvg(Algorithm):
    # States and messages are plain weights here; they are typed loosely because SCAFFOLD's hold more.
    bytes_formula = "2 · Σ_t |S_t| · S,  S = bytes of the shared weights"

    @property
    def one_model(self) -> bool:
        return True

    def check(self, info: Info) -> None:
        info.same_architecture("averaging")
        if self.kept(info.task) >= info.task.shapes.keys():
            raise Refusal(f"Nothing of {info.task.network.name} would be shared: all its weights stay at the party.")

    def kept(self, task: Task) -> frozenset[str]:
        """The names that stay at the party; FedBN and FedPer differ here and nowhere else."""
        return task.private

    def server(self, key: Key, info: Info) -> Any:
        return drop(info.task.init(key), self.kept(info.task))

    def client(self, key: Key, party: Party) -> Any:
        return keep(party.task.init(key), self.kept(party.task))

    def view(self, theta: Any, i: int) -> Any:
        return Model(theta)

    def round(self, theta: Any, net: Net, t: int) -> Any:
        mean, n, letter = Averaging(), net.info.sizes, {i: self.view(theta, i) for i in net.sample(t)}
        net.call(self.local, letter, each=lambda i, reply: mean.add(reply.theta, n[i]))
        return mean.value()

    def local(self, mine: Any, m: Any, party: Party, key: Key) -> tuple[Any, Any]:
        done = fit(self.loss(party.task, m), m.theta | mine, party.data.train, key, party.training)
        kept = self.kept(party.task)
        return keep(done.theta, kept), Model(drop(done.theta, kept))

    def welcome(self, mine: Any, m: Any, party: Party, key: Key) -> tuple[Any, None]:
        mine, reply = self.local(mine, m, party, key)
        return self.settled(mine, reply.theta), None

    def settled(self, mine: Any, theta: Params) -> Any:
        """The state of a newcomer that keeps what it trained from the received model."""
        return theta | mine

    def loss(self, task: Task, m: Any) -> Loss:
        """The local objective; FedProx adds to it."""
        return task.loss

    def model(self, mine: Any, m: Any, party: Party) -> Params:
        return dict(m.theta | mine)

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        shared = len(cohort) * info.task.bytes(without=self.kept(info.task))
        return Traffic(up=shared, down=shared)
