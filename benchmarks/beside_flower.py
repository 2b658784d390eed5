"""Flower as one of the libraries of `beside.py`: its strategies, as `strategy.start` runs them, on a grid within this process.

    python beside_flower.py FOLDER

Parties train here as they would in a ClientApp: what a strategy does at the server is Flower's. No Ray is needed.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from beside_work import Asked, Curve, answer, network, parties, right
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy
from flwr.supercore.task_identity import TaskIdentity

LOSS = "train_loss"


class Here(Grid):  # type: ignore[misc]
    """All parties in this process, asked one after the other."""

    def __init__(self, folder: Path, asked: Asked) -> None:
        self.how, self.data = asked.how, parties(folder)
        self.network = network(folder, asked.seed)

    def set_run(self, *args: Any) -> None: ...
    def run(self) -> Any: ...
    def create_message(self, *args: Any, **named: Any) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...

    def get_node_ids(self) -> Iterable[int]:
        return range(1, len(self.data) + 1)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self.trained(message) for message in messages]

    def trained(self, message: Message) -> Message:
        """A party's training, from the weights that came; the loss it tells is of these."""
        x, y = self.data[message.metadata.dst_node_id - 1][0]
        net = self.network
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        with torch.no_grad():
            loss = F.cross_entropy(net(x), y).item()
        optimizer = torch.optim.SGD(net.parameters(), self.how.lr)
        for _ in range(self.how.epochs):
            for pick in torch.randperm(len(y)).split(self.how.batch or len(y)):
                optimizer.zero_grad()
                F.cross_entropy(net(x[pick]), y[pick]).backward()
                optimizer.step()
        seen = MetricRecord({"num-examples": len(y), LOSS: loss})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": seen}), reply_to=message)


def run(folder: Path, asked: Asked) -> Curve:
    """One of its strategies, by its class's name."""
    logging.disable()
    gc.freeze()  # some strategies collect garbage with every message, and look through all of torch each time
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # whose messages these are; Flower's runtime would tell
    grid, curve = Here(folder, asked), Curve()
    everybody = len(grid.data)

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        grid.network.load_state_dict(arrays.to_torch_state_dict())
        curve.append([right(grid.network, tests) for _, tests in grid.data])

    made = getattr(strategy, asked.method)(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=everybody, min_available_nodes=everybody, **asked.options
    )
    first = ArrayRecord(grid.network.state_dict())
    made.start(grid, first, asked.how.rounds, evaluate_fn=evaluate)
    return curve


if __name__ == "__main__":
    answer(run)
