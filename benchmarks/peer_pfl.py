"""pfl-research as a contestant of `peers.py`: two processes that meet in torch.distributed, one
thread each.

Its own way of evaluating would look at training parties before and after they train, and at others
with the model of the round before. Here, after every round, all parties test the new model, and
nothing else is evaluated: less work for it, and the same for all contestants. Its datasets do not
shuffle; the function that makes a party's dataset does, in one gather.
"""

from __future__ import annotations

import os
import socket
import sys
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from bare import BATCH, LR
from contest import Contest, Over
from works import Work


def meet() -> list[Popen[bytes]]:
    """Start the second process; both know from the environment where to meet when pfl is imported."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    if "PFL_WORKER_RANK" in os.environ:  # we are the second
        return []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = (
        f"127.0.0.1:{port},127.0.0.1:{port}"  # only the first is ever dialled
    )
    os.environ["PFL_WORKER_RANK"] = os.environ["LOCAL_RANK"] = "0"
    second = os.environ | {"PFL_WORKER_RANK": "1", "LOCAL_RANK": "1"}
    return [Popen([sys.executable, *sys.argv], env=second, stdin=PIPE, stdout=DEVNULL)]


def run(contest: Contest) -> None:
    """FedAvg with pfl, paced by the contest."""
    import numpy as np
    import torch
    import torch.nn.functional as F
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.algorithm_utils import run_train_eval
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.common_types import Population
    from pfl.context import CentralContext
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from torch import Tensor, nn

    torch.set_num_threads(1)
    torch.manual_seed(0)  # both processes begin with the same weights
    np.random.seed(0)  # noqa: NPY002 - pfl's samplers draw from here, the same in both
    work: Work = contest.work

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = work.network()

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.net(x), y)

        @torch.no_grad()
        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            logits, count = self.net(x), len(y)
            right = (logits.argmax(1) == y).sum().item()
            return {
                "accuracy": Weighted(right, count),
                "loss": Weighted(F.cross_entropy(logits, y).item() * count, count),
            }

    data = work.data()

    def shuffled(i: int) -> PyTorchTensorDataset:
        x, y = data[i][0]
        order = torch.randperm(len(y))
        return PyTorchTensorDataset((x[order], y[order]), user_id=i)

    tests = [PyTorchTensorDataset(test, user_id=i) for i, (_, test) in enumerate(data)]
    everyone = list(range(work.parties))
    backend = SimulatedBackend(
        FederatedDataset(shuffled, get_user_sampler("minimize_reuse", everyone)),
        FederatedDataset(tests.__getitem__, get_user_sampler("minimize_reuse", everyone)),
        postprocessors=[WeightByDatapoints()],
    )
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    algorithm = FederatedAveraging()
    plan = NNAlgorithmParams(
        contest.rounds, contest.rounds, train_cohort_size=work.cohort, val_cohort_size=0
    )
    training = NNTrainHyperParams(
        local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LR
    )
    testing = NNEvalHyperParams(local_batch_size=None)

    class Paced(TrainingProcessCallback):  # type: ignore[misc]
        def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
            contest.pause()
            return Metrics()

        def after_central_iteration(
            self, _: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            seen = Metrics()
            if contest.whole:
                look = CentralContext(
                    central_iteration,
                    True,
                    work.parties,
                    Population.VAL,
                    plan,
                    training,
                    testing,
                    0,
                )
                ((_, seen),) = run_train_eval(algorithm, backend, model, (look,))
            contest.pause()
            return False, seen

    algorithm.run(
        plan, backend, model, training, testing, [Paced()], send_metrics_to_platform=contest.whole
    )


def main() -> None:
    contest = Contest()
    contest.followers = meet()
    try:
        run(contest)
    except Over:
        for follower in contest.followers:
            follower.wait()


if __name__ == "__main__":
    main()
