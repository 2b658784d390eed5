"""Weighted means of parameters and of replies. Values are added in party order; partial sums from
workers can be added, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.noise import gaussian
from comity.base.record import Params, is_record, record
from comity.errors import ComityError
from comity.wire.codec import tree_digest

R = TypeVar("R")


def check_like(theta: Params, like: Params, whose: str = "A model") -> None:
    """Refuse parameters whose names, shapes or dtypes differ from those that they are added to:
    torch would broadcast or skip them.
    """
    if theta.keys() != like.keys():
        name = min(theta.keys() ^ like.keys())
        raise ComityError(
            f"{whose} does not fit the others: {name} is"
            f" {'only in it' if name in theta else 'missing'}."
        )
    for name, value in theta.items():
        other = like[name]
        if value.shape != other.shape or value.dtype != other.dtype:
            raise ComityError(
                f"{whose} does not fit the others: {name} is {_form(value)} in it, and"
                f" {_form(other)} in them."
            )


def _form(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}"


class Averaging:
    """A weighted mean of parameters that are added one by one, all of the same names and shapes.
    Integer buffers are those of the first.
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._sums: list[Tensor] = []
        self._first: Params = {}
        self._floating: list[str] = []

    def add(self, theta: Params, weight: float) -> None:
        """Add parameters. No reference to their tensors is kept."""
        self._add(theta, weight, factor=weight)

    def add_sum(self, total: Params, weight: float) -> None:
        """Add the `total` of another averaging, with the weight of all parameters in it."""
        self._add(total, weight, factor=1.0)

    def _add(self, theta: Params, weight: float, factor: float) -> None:
        if not self._total:
            self._floating = [k for k, v in theta.items() if v.is_floating_point()]
            self._sums = [torch.zeros_like(theta[k]) for k in self._floating]
            self._first = {k: v if k in self._floating else v.clone() for k, v in theta.items()}
            self._first |= dict(zip(self._floating, self._sums, strict=True))
        else:
            check_like(theta, self._first, "A model that is to be averaged")
        if self._sums:
            torch._foreach_add_(self._sums, [theta[k] for k in self._floating], alpha=factor)
        self._total += weight

    @property
    def weight(self) -> float:
        """The sum of all weights."""
        return self._total

    def total(self) -> Params:
        """The weighted sum."""
        return self._first

    def value(self) -> Params:
        """The weighted mean."""
        means = torch._foreach_div(self._sums, self._total) if self._sums else []
        return self._first | dict(zip(self._floating, means, strict=True))


class NoisyAveraging(Averaging):
    """An unweighted mean with Gaussian noise. `spread` returns the standard deviation of the noise
    on a mean of that many.
    """

    def __init__(self, key: Key, spread: Callable[[int], float]) -> None:
        super().__init__()
        self._key = key
        self._spread = spread
        self._count = 0

    def add(self, theta: Params, weight: float) -> None:
        self._count += 1
        super().add(theta, 1.0)

    def value(self) -> Params:
        mean = super().value()
        spread = self._spread(self._count)
        # Means of other replies, as after a restart, must not have the same noise.
        key = self._key.bind(tree_digest(mean))
        return {k: v + gaussian(key.fold(k), v.shape, spread).to(v) for k, v in mean.items()}


def average(models: Mapping[int, Params], weights: Mapping[int, float]) -> Params:
    """The weighted mean of parameters, summed in party order. Integer buffers are those of the
    first party.
    """
    mean = Averaging()
    for i in sorted(models):
        mean.add(models[i], weights[i])
    return mean.value()


class Mean(NamedTuple, Generic[R]):
    """The mean of replies, and the parties whose replies are in it."""

    value: R
    parties: list[int]


@record
class PartialSum:
    """The weighted sum of some parties' replies: a record of the replies' type, with sums as its
    floating-point values.
    """

    total: Any
    weight: float
    heard: list[int]
    """The parties whose replies are in it, in the order in which they were added."""


class AveragedReplies(Generic[R]):
    """The weighted mean of replies that are added one by one. Replies are records of parameters,
    and each field is averaged by itself.
    """

    def __init__(self, averaging: Callable[[], Averaging] = Averaging) -> None:
        self.parties: list[int] = []
        """The parties whose replies were added, in this order."""
        self._averaging = averaging
        self._kind: type[R] | None = None
        self._means: dict[str, Averaging] = {}

    def add(self, i: int, reply: R, weight: float) -> None:
        """Add a party's reply. No reference to its tensors is kept."""
        self._check(reply)
        for name, mean in self._means.items():
            mean.add(getattr(reply, name), weight)
        self.parties.append(i)

    def add_sum(self, part: PartialSum) -> None:
        """Add the replies that a worker has added up."""
        self._check(part.total)
        if any(type(mean) is not Averaging for mean in self._means.values()):
            raise ComityError(
                "A wrapper takes the place of the mean and needs each reply by itself: run without"
                " partial sums."
            )
        for name, mean in self._means.items():
            mean.add_sum(getattr(part.total, name), part.weight)
        self.parties += part.heard

    def total(self) -> PartialSum | None:
        """The sum of the replies, to be added elsewhere; None if there was no reply."""
        if self._kind is None:
            return None
        total = self._kind(**{name: mean.total() for name, mean in self._means.items()})
        return PartialSum(total, next(iter(self._means.values())).weight, self.parties)

    def value(self) -> Mean[R]:
        """The mean of the replies. At least one must have been added."""
        assert self._kind, "without a reply there is no mean"
        return Mean(
            self._kind(**{name: mean.value() for name, mean in self._means.items()}),
            sorted(self.parties),
        )

    def _check(self, reply: R) -> None:
        """Refuse a reply that is no record of parameters, or of another type than the first one."""
        if self._kind is None:
            if not is_record(reply) or not vars(reply):
                raise ComityError(
                    f"server.mean averages records of parameters, but a {type(reply).__name__} is"
                    " none: go through server.replies."
                )
            other = next(
                (name for name, value in vars(reply).items() if not isinstance(value, dict)), ""
            )
            if other:
                kind = type(reply).__name__
                raise ComityError(
                    f"server.mean averages records of parameters, but {kind}.{other} holds no"
                    " parameters: go through server.replies."
                )
            self._kind = type(reply)
            self._means = {name: self._averaging() for name in vars(reply)}
            if len(self._means) > 1 and any(
                type(mean) is not Averaging for mean in self._means.values()
            ):
                raise ComityError(
                    f"A wrapper takes the place of the mean of a model, but {self._kind.__name__}"
                    " has several fields."
                )
        elif type(reply) is not self._kind:
            raise ComityError(
                f"All replies must be of one type to be averaged, but one is a"
                f" {type(reply).__name__} and others are a {self._kind.__name__}."
            )
