"""Operations of a server on an average of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from comity.components.averaged import AveragesWeights
from comity.core import SHARES, AnyAlgorithm, LearningTask, Params, UsageError, trainable
from comity.core.wrapper import chain

Method = TypeVar("Method", bound=Callable[..., Any])


def shared_names(task: LearningTask, what: str) -> frozenset[str]:
    """The names that are averaged in addition to a method's own exchange: none, the head
    (`predictor`), or all (`model`).
    """
    names = {
        "none": frozenset[str](),
        "predictor": task.head_names,
        "model": frozenset(task.shapes),
    }
    return names[what] - task.private


def averages_models(round: Method) -> Method:
    """Mark a `round` whose result is the mean of the parties' models, weighted by sample counts.

    Wrappers may replace the mean of such a method, or step from it. A method that overrides the
    round loses the mark.
    """
    round.__averages_models__ = True  # type: ignore[attr-defined]
    return round


def check_averages(host: AnyAlgorithm, name: str, wrapper: str) -> None:
    """Refuse a host whose server does anything but average models as FedAvg does; the message says
    why.
    """
    method = type(chain(host)[-1])
    if getattr(method.round, "__averages_models__", False):
        return
    if any(hasattr(vars(cls).get("round"), "__averages_models__") for cls in method.__mro__):
        raise UsageError(
            f"{wrapper} cannot tell how {name} averages, as it has a round of its own."
        )
    averages = issubclass(method, AveragesWeights) or method.traits.shares == "model"
    why = "has another way to average" if averages else SHARES[method.traits.shares]
    raise UsageError(
        f"{wrapper} goes around methods that average models as fedavg does, but {name} {why}."
    )


def momentum_step(
    w: Params, mean: Params, velocity: Params, lr: float, momentum: float
) -> tuple[Params, Params]:
    """FedAvgM: v ← β v + (mean − w), w ← w + η v. Returns w and v. Buffers are averaged. η = 1
    without momentum gives the mean.
    """
    if lr == 1 and not momentum:
        return mean, {}
    v = {
        k: momentum * velocity.get(k, torch.zeros_like(now)) + mean[k] - now
        for k, now in trainable(w).items()
    }
    return mean | {k: w[k] + lr * step for k, step in v.items()}, v
