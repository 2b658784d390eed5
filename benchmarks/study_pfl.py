"""pfl-research as one of the libraries of `study.py`: a backend in one process, and a callback that
has all parties test the new model after every round.

    python study_pfl.py FOLDER
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from beside_work import Asked, Curve, answer, network, parties, right
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Model(nn.Module):
    """A network with the two functions that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


def run(folder: Path, asked: Asked) -> Curve:
    """One of its algorithms."""
    how, data = asked.how, parties(folder)
    net = Model(network(folder, asked))
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    curve: Curve = []

    def shuffled(i: int) -> PyTorchTensorDataset:
        x, y = data[i][0]
        order = torch.randperm(len(y))
        return PyTorchTensorDataset((x[order], y[order]), user_id=i)

    class Measured(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(
            self, _: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            curve.append([right(net.net, tests) for _, tests in data])
            net.train()
            return False, Metrics()

    federated = FederatedDataset(shuffled, get_user_sampler("minimize_reuse", range(len(data))))
    backend = SimulatedBackend(federated, federated, postprocessors=[WeightByDatapoints()])
    counts: dict[str, Any] = {
        "central_num_iterations": how.rounds,
        "evaluation_frequency": how.rounds + 1,
        "train_cohort_size": len(data),
        "val_cohort_size": 0,
    }
    memory = {"user_state_storage": InMemoryUserStateStorage()}
    algorithm, settings = {
        "fedavg": lambda: (FederatedAveraging(), NNAlgorithmParams(**counts)),
        "fedprox": lambda: (FedProx(), FedProxParams(**counts, **asked.options)),
        "scaffold": lambda: (
            SCAFFOLD(),
            SCAFFOLDParams(**counts, population=len(data), **asked.options, **memory),
        ),
    }[asked.method]()
    training = NNTrainHyperParams(
        local_batch_size=how.batch, local_num_epochs=how.epochs, local_learning_rate=how.lr
    )
    algorithm.run(
        settings,
        backend,
        model,
        training,
        NNEvalHyperParams(local_batch_size=None),
        [Measured()],
        send_metrics_to_platform=False,
    )
    return curve


if __name__ == "__main__":
    answer(run)
