"""fluke as one of the libraries of `beside.py`: its clients and servers, run by its own algorithm.

    python beside_fluke.py FOLDER

`method` is a file and a class of its algorithms, as in fedopt.FedOpt. Options are those of its `client`, `server` and
`optimizer`, each a dict; what is measured after each round is the server's model.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import torch
from beside_work import CLASSES, Asked, Curve, Pair, answer, network, parties, right
from fluke import FlukeENV
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver


class Measured(FederationObserver):  # type: ignore[misc]
    """Everybody's right answers after every round."""

    def __init__(self, model: torch.nn.Module, tests: list[Pair], curve: Curve) -> None:
        self.model, self.tests, self.curve = model, tests, curve

    def end_round(self, round: int) -> None:
        self.curve.append([right(self.model, own) for own in self.tests])


def loader(pair: Pair, batch: int) -> FastDataLoader:
    return FastDataLoader(*pair, num_labels=CLASSES, batch_size=batch, shuffle=True, skip_singleton=False)


def run(folder: Path, asked: Asked) -> Curve:
    """One of its algorithms."""
    file, name = asked.method.split(".")
    kind, how, data = getattr(importlib.import_module(f"fluke.algorithms.{file}"), name), asked.how, parties(folder)
    FlukeENV().set_seed(asked.seed)
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    steps = {"name": kind.get_optimizer_class(kind), "lr": how.lr} | asked.options.get("optimizer", {})
    client, server = kind.get_client_class(kind), kind.get_server_class(kind)
    own = {"local_epochs": how.epochs} | asked.options.get("client", {})
    clients = [
        client(
            i, loader(train, how.batch or len(train[1])), None, OptimizerConfigurator(steps), torch.nn.CrossEntropyLoss(), **own
        )
        for i, (train, _) in enumerate(data)
    ]
    model = network(folder, asked.seed)
    tests = [tests for _, tests in data]
    curve: Curve = [[right(model, own) for own in tests]]
    made = server(model, None, clients, weighted=True, **asked.options.get("server", {}))
    federation = kind(len(clients), None, {}, clients, made)
    federation.set_callbacks([Measured(made.model, tests, curve)])
    federation.run(how.rounds, 1.0, finalize=False)
    return curve


if __name__ == "__main__":
    answer(run)
