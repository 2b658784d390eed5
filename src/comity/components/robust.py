"""The common part of robust means: they need all replies at once, and weight all replies
equally.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from comity.components.server_steps import check_averages
from comity.core import (
    AnyAlgorithm,
    Averaging,
    Info,
    Params,
    Server,
    Traits,
    UsageError,
    WrapperAccounting,
    accounts_for,
    check_like,
)
from comity.core.participation import NoReplies
from comity.core.wrapper import AsHost, chain

FEW = 3
TOO_FEW = (
    "of fewer than three replies nobody can tell which is nonsense: such a round protects from"
    " nobody."
)


class Gathering(Averaging):
    """Collects all replies, and aggregates them at the end."""

    def __init__(self, aggregate: Callable[[Sequence[Params]], Params]) -> None:
        super().__init__()
        self._aggregate = aggregate
        self._all: list[Params] = []

    def add(self, theta: Params, weight: float) -> None:
        if self._all:
            check_like(theta, self._all[0], "A model that is to be averaged")
        self._all.append(theta)

    def value(self) -> Params:
        return self._aggregate(self._all)


class RobustMean(AsHost[None]):
    """A wrapper that replaces the mean, around methods that average with `server.averaging`."""

    host: AnyAlgorithm

    @classmethod
    def check_host(cls, host: AnyAlgorithm, name: str, wrapper: str) -> None:
        check_averages(host, name, wrapper)
        if other := next(
            (type(layer).__name__.lower() for layer in chain(host) if layer.traits.averages), ""
        ):
            raise UsageError(
                f"{wrapper} and {other} would both take the place of the mean: choose one of them."
            )

    def check(self, info: Info) -> None:
        if (cohort := info.cohort or len(info.names)) < self.needs:
            raise UsageError(
                f"{self.name} with these options needs {self.needs} parties in a round, but"
                f" {cohort} take part."
            )
        super().check(info)

    @property
    def name(self) -> str:
        """The wrapper's name in messages."""
        return type(self).__name__.lower()

    @property
    def needs(self) -> int:
        """The smallest number of replies. With fewer, the round is discarded."""
        return 1

    @abstractmethod
    def aggregate(self, models: Sequence[Params]) -> Params:
        """The replacement of the mean of these models, which are in party order."""

    def averaging(self, server: Server) -> Averaging:
        def aggregate(models: Sequence[Params]) -> Params:
            if len(models) < self.needs:
                raise NoReplies(
                    f"{self.name} with these options needs {self.needs} replies, but {len(models)}"
                    " came."
                )
            if len(models) < FEW:
                server.warn(f"{self.name}: {TOO_FEW}")
            return self.aggregate(models)

        return Gathering(aggregate)

    traits = Traits(start_weights="", averages=True, bytes_formula="the host's")


A = TypeVar("A", bound=RobustMean)


@accounts_for(RobustMean)
class RobustMeanAccounting(WrapperAccounting[A]):
    """The accounting of a robust mean."""

    def warnings(self, info: Info) -> list[str]:
        others = sorted(
            {kind for layer in chain(self.method.host) for kind in layer.traits.leaves}
            - {"weights"}
        )
        warnings = [
            f"it guards the weights; {kind} that parties send are averaged as ever."
            for kind in others
        ]
        return warnings + ([TOO_FEW] if (info.cohort or len(info.names)) < FEW else [])


def trimmed_mean(models: Sequence[Params], trims: int) -> Params:
    """The mean of each coordinate without its `trims` largest and `trims` smallest values. Integers
    are rounded down.
    """

    def middle(values: list[Tensor]) -> Tensor:
        ordered = torch.stack(values).sort(0).values[trims : len(models) - trims]
        return (
            (ordered if ordered.is_floating_point() else ordered.double())
            .mean(0)
            .to(values[0].dtype)
        )

    return {name: middle([theta[name] for theta in models]) for name in models[0]}
