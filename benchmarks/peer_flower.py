"""Flower as a contestant of `peers.py`: its simulation on Ray, two client actors of one processor
and one thread each.

What a client does is the user's own code in Flower: here it is the bare loop's steps, and each
actor keeps network and data from one message to the next. `run_simulation` is deprecated in favour
of `flwr run`, which would leave a server behind; the engine is the same.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from bare import BATCH, LR
from contest import Contest, Over
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from works import TRIALS, WORKS, Pair

client = ClientApp()


@functools.cache
def kept(work: str) -> tuple[nn.Sequential, list[Tensor], list[tuple[Pair, Pair]]]:
    """What an actor has of a work: the network, its parameters, and the data of all parties, since
    any may come to it.
    """
    torch.set_num_threads(1)
    network = (WORKS | TRIALS)[work].network()
    return network, list(network.parameters()), (WORKS | TRIALS)[work].data()


def unpacked(message: Message, context: Context) -> tuple[nn.Sequential, list[Tensor], Pair, Pair]:
    """The network with the weights that came, and the party's data."""
    network, params, data = kept(str(message.content["config"]["work"]))
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return network, params, *data[int(context.node_config["partition-id"])]


@client.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    network, params, (x, y), _ = unpacked(message, context)
    for pick in torch.randperm(len(y)).split(BATCH):
        grads = torch.autograd.grad(F.cross_entropy(network(x[pick]), y[pick]), params)
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-LR)
    reply = {
        "arrays": ArrayRecord(network.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(RecordDict(reply), reply_to=message)


@client.evaluate()  # type: ignore[untyped-decorator]
@torch.no_grad()
def evaluate(message: Message, context: Context) -> Message:
    network, _, _, (x, y) = unpacked(message, context)
    logits = network(x)
    seen = {
        "accuracy": (logits.argmax(1) == y).float().mean().item(),
        "loss": F.cross_entropy(logits, y).item(),
    }
    return Message(
        RecordDict({"metrics": MetricRecord(seen | {"num-examples": len(y)})}), reply_to=message
    )


class Paced(FedAvg):  # type: ignore[misc]
    """A pause before every round, and no round in which somebody failed: Flower would go on without
    them.
    """

    def __init__(self, contest: Contest) -> None:
        cohort, parties = contest.work.cohort, contest.work.parties
        # The first round may begin before all nodes are known, and takes its shares of those that
        # are: hence the least numbers.
        least = {
            "min_train_nodes": cohort,
            "min_evaluate_nodes": parties,
            "min_available_nodes": parties,
        }
        super().__init__(
            fraction_train=cohort / parties, fraction_evaluate=float(contest.whole), **least
        )
        self._contest = contest

    def configure_train(self, *args: object) -> list[Message]:
        self._contest.pause()
        return list(super().configure_train(*args))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return super().aggregate_train(
            server_round, self._complete(replies, self._contest.work.cohort)
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return super().aggregate_evaluate(
            server_round, self._complete(replies, self._contest.work.parties * self._contest.whole)
        )

    def _complete(self, replies: Iterable[Message], expected: int) -> list[Message]:
        answers = list(replies)
        if failed := next((answer for answer in answers if answer.has_error()), None):
            raise RuntimeError(failed.error.reason)
        if len(answers) != expected:
            raise RuntimeError(f"{len(answers)} of {expected} parties answered.")
        return answers


def main() -> None:
    contest = Contest()
    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def run(grid: Grid, context: Context) -> None:
        grid.pull_interval = (
            0.02  # five times as often as by default, which short rounds would wait for
        )
        arrays, said = (
            ArrayRecord(contest.work.network().state_dict()),
            ConfigRecord({"work": contest.name}),
        )
        Paced(contest).start(grid, arrays, contest.rounds, train_config=said, evaluate_config=said)

    with tempfile.TemporaryDirectory(prefix="flower-") as folder:
        os.environ |= {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": folder,
        }
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        ray = {"num_cpus": 2, "_temp_dir": folder}
        backend = {"init_args": ray, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        with contextlib.suppress(Over):
            run_simulation(server, client, contest.work.parties, backend_config=backend)


if __name__ == "__main__":
    from peer_flower import (
        main as imported,
    )  # by this name, actors find the client too, and what they keep of it

    imported()
