"""The yardstick: federated averaging as a bare PyTorch loop, with no framework around it, in one
process or several.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LR, BATCH = 0.005, 10
Data = list[tuple[Tensor, Tensor]]
WORKS = {
    "cnn4": (20, 370),
    "mlp2": (100, 70),
    "linear": (1000, 50),
    "lenet5": (100, 70),
}  # parties, samples each


def data_of(function: str) -> Data:
    """Random 28x28 images with labels 0-9."""
    parties, samples = WORKS[function]
    draw = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(samples, 1, 28, 28, generator=draw),
            torch.randint(0, 10, (samples,), generator=draw),
        )
        for _ in range(parties)
    ]


def network(function: str) -> nn.Sequential:
    """The same nets as `comity.models`, as anybody would write them."""
    flat, act = nn.Flatten(), nn.ReLU(inplace=True)
    if function == "linear":
        return nn.Sequential(flat, nn.Linear(784, 10))
    if function == "mlp2":
        return nn.Sequential(
            flat, nn.Linear(784, 200), act, nn.Linear(200, 200), act, nn.Linear(200, 10)
        )
    if function == "lenet5":
        convs = [
            nn.Conv2d(1, 6, 5, padding=2),
            act,
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5, padding=2),
            act,
            nn.MaxPool2d(2),
        ]
        ends = [
            nn.Conv2d(16, 120, 3, padding=1),
            act,
            nn.AdaptiveAvgPool2d(1),
            flat,
            nn.Linear(120, 84),
            nn.Tanh(),
        ]
        return nn.Sequential(*convs, *ends, nn.Linear(84, 10))
    convs = [nn.Conv2d(1, 32, 5), act, nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), act, nn.MaxPool2d(2)]
    return nn.Sequential(*convs, flat, nn.Linear(1024, 512), act, nn.Linear(512, 10))


class Bare:
    """Weights and sums lie flat in shared memory; each process trains its parties and adds them up."""

    def __init__(self, function: str, data: Data, processes: int) -> None:
        self.data, self.count = data, sum(len(y) for _, y in data)
        model = network(function)
        self.shapes = [p.shape for p in model.parameters()]
        self.theta = torch.cat([p.detach().flatten() for p in model.parameters()]).share_memory_()
        self.sums = [torch.zeros_like(self.theta).share_memory_() for _ in range(processes)]
        self.model = model
        self.pipes, self.procs = [], []
        fork = multiprocessing.get_context("fork")
        for k in range(processes if processes > 1 else 0):
            here, there = fork.Pipe()
            self.procs.append(
                fork.Process(target=self._serve, args=(there, k, processes), daemon=True)
            )
            self.procs[-1].start()
            self.pipes.append(here)

    def views(self, flat: Tensor) -> list[Tensor]:
        return [
            part.view(s)
            for part, s in zip(
                flat.split([s.numel() for s in self.shapes]), self.shapes, strict=True
            )
        ]

    def train(self, ids: Sequence[int], total: Tensor) -> None:
        params: list[Tensor] = list(self.model.parameters())
        theta, sums = self.views(self.theta), self.views(total)
        torch._foreach_zero_(sums)
        for i in ids:
            x, y = self.data[i]
            with torch.no_grad():
                torch._foreach_copy_(params, theta)
            for pick in torch.randperm(len(y)).split(BATCH):
                grads = torch.autograd.grad(F.cross_entropy(self.model(x[pick]), y[pick]), params)
                with torch.no_grad():
                    torch._foreach_add_(params, grads, alpha=-LR)
            with torch.no_grad():
                torch._foreach_add_(sums, params, alpha=len(y))

    def _serve(self, pipe: Connection, k: int, processes: int) -> None:
        torch.set_num_threads(1)
        while pipe.recv_bytes() == b"go":
            self.train(range(k, len(self.data), processes), self.sums[k])
            pipe.send_bytes(b"done")

    def round(self) -> None:
        if self.pipes:
            for pipe in self.pipes:
                pipe.send_bytes(b"go")
            for pipe in self.pipes:
                pipe.recv_bytes()
        else:
            self.train(range(len(self.data)), self.sums[0])
        self.theta.copy_(sum(self.sums)).div_(self.count)

    def close(self) -> None:
        for pipe, proc in zip(self.pipes, self.procs, strict=True):
            pipe.send_bytes(b"stop")
            proc.join()
