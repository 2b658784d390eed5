"""What a server may do with an average."""

from __future__ import annotations

import torch

from comity.core import Params, Task, trainable


def shared_names(task: Task, what: str) -> frozenset[str]:
    """What is averaged beside a method's own exchange: nothing (`none`), the head (`predictor`), or all (`model`)."""
    names = {"none": frozenset[str](), "predictor": task.head_names, "model": frozenset(task.shapes)}
    return names[what] - task.private


def momentum_step(w: Params, mean: Params, velocity: Params, lr: float, momentum: float) -> tuple[Params, Params]:
    """FedAvgM: v ← β v + (mean − w), w ← w + η v, and the new v; buffers are averaged. η = 1 without momentum is the mean."""
    if lr == 1 and not momentum:
        return mean, {}
    v = {k: momentum * velocity.get(k, torch.zeros_like(now)) + mean[k] - now for k, now in trainable(w).items()}
    return mean | {k: w[k] + lr * step for k, step in v.items()}, v
