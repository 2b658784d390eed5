"""Flower as one of the libraries of `beside.py`: its strategies, as `strategy.start` runs them, on
a grid within this process.

    python beside_flower.py FOLDER

Parties train here as they would in a ClientApp: what a strategy does at the server is Flower's. No
Ray is needed. FedProx's term is the parties' part, and is here as Flower's documentation prints it
for them.

Options that are not Flower's: `alike` has all parties tell the same number of samples, `inside`
names the strategy within one that is a wrapper, and `mended` names a function below which mends
what would hide everything else.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from beside_work import Asked, Curve, answer, network, parties, right
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy
from flwr.supercore.task_identity import TaskIdentity

LOSS = "train_loss"


class Here(Grid):  # type: ignore[misc]
    """All parties in this process, asked one after the other."""

    def __init__(self, folder: Path, asked: Asked, alike: bool) -> None:
        self.how, self.data, self.alike = asked.how, parties(folder), alike
        self.power = 1  # of the norms in FedProx's term
        self.network = network(folder, asked)

    def set_run(self, *args: Any) -> None: ...
    def run(self) -> Any: ...
    def create_message(self, *args: Any, **named: Any) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...

    def get_node_ids(self) -> Iterable[int]:
        return range(1, len(self.data) + 1)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return [self.trained(message) for message in messages]

    def trained(self, message: Message) -> Message:
        """A party's training, from the weights that came; the loss it tells is of these."""
        x, y = self.data[message.metadata.dst_node_id - 1][0]
        net = self.network
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        with torch.no_grad():
            loss = F.cross_entropy(net(x), y).item()
        mu = float(message.content["config"].get("proximal-mu", 0.0))
        sent = [weight.detach().clone() for weight in net.parameters()]
        optimizer = torch.optim.SGD(net.parameters(), self.how.lr)
        for _ in range(self.how.epochs):
            for pick in torch.randperm(len(y)).split(self.how.batch or len(y)):
                optimizer.zero_grad()
                F.cross_entropy(net(x[pick]), y[pick]).backward()
                if mu:
                    norms = [
                        (now - then).norm(2)
                        for now, then in zip(net.parameters(), sent, strict=True)
                    ]
                    (mu / 2 * torch.stack(norms).pow(self.power).sum()).backward()
                optimizer.step()
        seen = MetricRecord({"num-examples": 1 if self.alike else len(y), LOSS: loss})
        return Message(
            RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": seen}), reply_to=message
        )


def squared(made: Any, grid: Here, first: ArrayRecord) -> None:
    """FedProx: the squares of norms, as in the paper's eq. 2."""
    grid.power = 2


def first_moments(made: Any, grid: Here, first: ArrayRecord) -> None:
    """FedAdam, FedYogi, FedAdagrad: v begins at τ², not at 0, and nothing is corrected for its
    beginning.
    """
    made.v_t = {name: np.full_like(array.numpy(), made.tau**2) for name, array in first.items()}
    if not isinstance(made, strategy.FedAdam):
        return
    eta, aggregate = made.eta, made.aggregate_train

    def uncorrected(server_round: int, replies: Iterable[Message]) -> Any:
        left, right = (1 - beta ** (server_round + 1.0) for beta in (made.beta_1, made.beta_2))
        made.eta = eta * left / np.sqrt(right)
        return aggregate(server_round, replies)

    made.aggregate_train = uncorrected


MENDED = {each.__name__: each for each in (first_moments, squared)}


def run(folder: Path, asked: Asked) -> Curve:
    """One of its strategies, by its class's name."""
    logging.disable()
    # some strategies collect garbage with every message, and look through all of torch each time
    gc.freeze()
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = (
        1  # whose messages these are; Flower's runtime would tell
    )
    options = dict(asked.options)
    ours = {name: options.pop(name, None) for name in ("alike", "inside", "mended")}
    grid, curve = Here(folder, asked, bool(ours["alike"])), Curve()
    everybody = len(grid.data)

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        grid.network.load_state_dict(arrays.to_torch_state_dict())
        curve.append([right(grid.network, tests) for _, tests in grid.data])

    everyone: dict[str, Any] = {"fraction_train": 1.0, "fraction_evaluate": 0.0}
    everyone |= {"min_train_nodes": everybody, "min_available_nodes": everybody}
    if inside := ours["inside"]:
        within = getattr(strategy, inside)(**everyone)
        made = getattr(strategy, asked.method)(within, num_sampled_clients=everybody, **options)
    else:
        made = getattr(strategy, asked.method)(**everyone, **options)
    first = ArrayRecord(grid.network.state_dict())
    if ours["mended"]:
        MENDED[ours["mended"]](made, grid, first)
    made.start(grid, first, asked.how.rounds, evaluate_fn=evaluate)
    return curve


if __name__ == "__main__":
    answer(run)
