"""fluke as a contestant of `peers.py`: one process, since it has no other way on a CPU; two threads
where they pay.

It evaluates the global model at the server, or parties' models; here, after every round, all
parties test the new global model with its evaluator, which is asked for accuracy alone (it would
compute seven measures), and its logger hears of it.
"""

from __future__ import annotations

import contextlib

import torch
from bare import BATCH, LR
from contest import Contest, Over
from fluke import FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.server import Server
from fluke.utils import FederationObserver
from fluke.utils.log import Log
from torchmetrics import Accuracy
from works import Pair


class Paced(FederationObserver):  # type: ignore[misc]
    """A pause before every round, and everybody's test after it."""

    def __init__(self, contest: Contest, federation: FedAVG) -> None:
        self._contest, self._federation = contest, federation

    def start_round(self, round: int, global_model: torch.nn.Module) -> None:
        self._contest.pause()

    def end_round(self, round: int) -> None:
        if self._contest.whole:
            evaluator, model = FlukeENV().get_evaluator(), self._federation.server.model
            for client in self._federation.clients:
                seen = evaluator.evaluate(
                    round, model, client.test_set, loss_fn=client.hyper_params.loss_fn
                )
                client.notify(
                    event="client_evaluation",
                    round=round,
                    client_id=client.index,
                    phase="pre-fit",
                    evals=seen,
                )


def loader(pair: Pair, batch: int, shuffle: bool = False) -> FastDataLoader:
    return FastDataLoader(
        *pair, num_labels=10, batch_size=batch, shuffle=shuffle, skip_singleton=False
    )


def main() -> None:
    contest = Contest()
    work = contest.work
    torch.set_num_threads(2 if work.model in ("cnn4", "lenet5") else 1)
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    FlukeENV().set_evaluator(
        ClassificationEval(1, 10, accuracy=Accuracy(task="multiclass", num_classes=10))
    )
    sgd, loss = OptimizerConfigurator({"name": "SGD", "lr": LR}), torch.nn.CrossEntropyLoss()
    how = {
        "local_epochs": 1,
        "persistency": False,
    }  # clients forget their models after a round: as fast, and needs less memory
    clients = [
        Client(i, loader(train, BATCH, shuffle=True), loader(test, work.tests), sgd, loss, **how)
        for i, (train, test) in enumerate(work.data())
    ]
    server = Server(work.network(), None, clients, weighted=True)
    federation = FedAVG(len(clients), None, {}, clients, server)
    federation.set_callbacks([Paced(contest, federation)] + [Log()] * contest.whole)
    with contextlib.suppress(Over):
        federation.run(contest.rounds, work.cohort / work.parties)


if __name__ == "__main__":
    main()
