"""Weighted means of parameters and of replies, taken in party order, or of sums that were taken
elsewhere.
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
    """Refuse parameters of other names, shapes or kinds than those they are added to: torch would
    broadcast or skip them.
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
    """A weighted mean of parameters that come one by one and are alike; whole-number buffers come
    from the first.
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._sums: list[Tensor] = []
        self._first: Params = {}
        self._floating: list[str] = []

    def add(self, theta: Params, weight: float) -> None:
        """Count one more; nothing of it is kept."""
        self._add(theta, weight, factor=weight)

    def add_sum(self, total: Params, weight: float) -> None:
        """Count several at once: what another averaging has come to (`total`), and the weight of
        all in it.
        """
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
        """Of all that were added."""
        return self._total

    def total(self) -> Params:
        """The weighted sum of what was added."""
        return self._first

    def value(self) -> Params:
        """The mean of what was added."""
        means = torch._foreach_div(self._sums, self._total) if self._sums else []
        return self._first | dict(zip(self._floating, means, strict=True))


class NoisyAveraging(Averaging):
    """A mean in which all count alike, with noise on it: `spread` tells how much on the mean of so
    many.
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
    """The weighted mean of parameters, summed in party order; whole-number buffers come from the
    first party.
    """
    mean = Averaging()
    for i in sorted(models):
        mean.add(models[i], weights[i])
    return mean.value()


class Mean(NamedTuple, Generic[R]):
    """The mean of parties' replies, and whose they are."""

    value: R
    heard: list[int]


@record
class PartialSum:
    """What the replies of some parties come to: of the form of one of them, its floating-point
    values weighted sums.
    """

    total: Any
    weight: float
    heard: list[int]
    """Whose replies are in it, in the order in which they were added."""


class AveragedReplies(Generic[R]):
    """The weighted mean of replies that come one by one: records whose fields are parameters, each
    field averaged by itself.
    """

    def __init__(self, averaging: Callable[[], Averaging] = Averaging) -> None:
        self.heard: list[int] = []
        self._averaging = averaging
        self._kind: type[R] | None = None
        self._means: dict[str, Averaging] = {}

    def add(self, i: int, reply: R, weight: float) -> None:
        """Count a party's reply; nothing of it is kept."""
        self._check(reply)
        for name, mean in self._means.items():
            mean.add(getattr(reply, name), weight)
        self.heard.append(i)

    def add_sum(self, part: PartialSum) -> None:
        """Count replies that were added up elsewhere."""
        self._check(part.total)
        if any(type(mean) is not Averaging for mean in self._means.values()):
            raise ComityError(
                "A wrapper takes the place of the mean, and needs each reply by itself: there are"
                " no partial sums."
            )
        for name, mean in self._means.items():
            mean.add_sum(getattr(part.total, name), part.weight)
        self.heard += part.heard

    def total(self) -> PartialSum | None:
        """What was added, to be counted elsewhere; None if nothing was."""
        if self._kind is None:
            return None
        total = self._kind(**{name: mean.total() for name, mean in self._means.items()})
        return PartialSum(total, next(iter(self._means.values())).weight, self.heard)

    def value(self) -> Mean[R]:
        """The mean of what was added, which is not nothing."""
        assert self._kind, "without a reply there is no mean"
        return Mean(
            self._kind(**{name: mean.value() for name, mean in self._means.items()}),
            sorted(self.heard),
        )

    def _check(self, reply: R) -> None:
        """Refuse what has no mean; the first reply says what all are like."""
        if self._kind is None:
            if not is_record(reply) or not vars(reply):
                raise ComityError(
                    f"server.mean averages records of parameters, but a {type(reply).__name__} is"
                    " none."
                )
            if other := next(
                (name for name, value in vars(reply).items() if not isinstance(value, dict)), ""
            ):
                kind = type(reply).__name__
                raise ComityError(
                    f"server.mean averages records of parameters, but {kind}.{other} is none: go"
                    " through server.replies."
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
                f"Replies that are to be averaged are alike, but one is a {type(reply).__name__}."
            )
