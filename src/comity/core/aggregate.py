"""Weighted means of parameters and of replies. Values are added in a fixed binary tree over their
order, so that workers can add up parts of it and the bits stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

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


class Values(NamedTuple):
    """The tensors of a model: those that are averaged, and the others (integer buffers)."""

    floats: list[Tensor]
    others: list[Tensor]

    def times(self, weight: float) -> Values:
        """A copy, with the first tensors times a weight."""
        floats = list(torch._foreach_mul(self.floats, weight)) if self.floats else []
        return Values(floats, [value.clone() for value in self.others])

    def over(self, weight: float) -> Values:
        """The same with the first tensors divided by a weight."""
        floats = list(torch._foreach_div(self.floats, weight)) if self.floats else []
        return Values(floats, self.others)


class _Node(NamedTuple):
    """The sum of all values under one node of a tree."""

    sums: Values | None
    """None if no value under the node counts."""
    size: int = 0
    """How many values are in the sum."""
    owned: bool = False
    """Whether the sums may be written to."""

    def plus(self, right: _Node) -> _Node:
        """The sum of this node and its right sibling. Integer buffers are those of the left."""
        if self.sums is None:
            return right
        if right.sums is None:
            return self
        floats, others = self.sums
        size = self.size + right.size
        if not self.owned:
            floats = list(torch._foreach_add(floats, right.sums.floats)) if floats else []
            return _Node(Values(floats, others), size, True)
        if floats:
            torch._foreach_add_(floats, right.sums.floats)
        return _Node(self.sums, size, True)


NO_VALUE = _Node(None)


class TreeSum:
    """Adds values in a binary tree over their positions, which may come in any order.

    The bits depend only on the values and their positions: neighbours 2k and 2k + 1 are added
    first, then neighbouring pairs, and so on. So whoever has all values of a subtree can add it up
    alone. Positions without a value change nothing. If positions come in ascending order, the
    number of sums in memory is at most the logarithm of the number of positions.

    `count` is the number of positions, if it is known: then nobody waits for what is beyond them.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self._nodes: dict[tuple[int, int], _Node] = {}
        """By level and index: the node (2, 1) has the positions 4 to 7."""

    def add(self, position: int, values: Values) -> None:
        """Add values whose tensors may be written to."""
        self._put(0, position, _Node(values, 1, True))

    def skip(self, position: int) -> None:
        """A position has no value. Without this, sums would wait for it until the end."""
        self._put(0, position, NO_VALUE)

    def add_node(
        self, level: int, index: int, size: int, sums: Values, *, owned: bool = False
    ) -> None:
        """Add the sum of a subtree of `size` values. If it is `owned`, its tensors may be written
        to.
        """
        self._put(level, index, _Node(sums, size, owned))

    def nodes(self) -> list[tuple[int, int, int, Values]]:
        """The sums so far, as (level, index, number of values, sums), by position."""
        nodes = [
            (*place, node.size, node.sums)
            for place, node in self._nodes.items()
            if node.sums is not None
        ]
        return sorted(nodes, key=lambda node: node[1] << node[0])

    def total(self) -> tuple[Values, int]:
        """The sum of all values, and how many they are. At least one must have been added."""
        level = 0
        while len(self._nodes) > 1:
            for place in sorted(place for place in self._nodes if place[0] == level):
                node = self._nodes.pop(place, None)
                if node is not None:
                    self._put(level + 1, place[1] // 2, self._with_sibling(*place, node))
            level += 1
        (node,) = self._nodes.values()
        assert node.sums is not None, "nothing was added"
        return node.sums, node.size

    def _put(self, level: int, index: int, node: _Node) -> None:
        """Put a node into the tree, and add it to its sibling as long as there is one."""
        while not self._is_root(level, index):
            sibling = (level, index ^ 1)
            if sibling not in self._nodes and not self._is_beyond(*sibling):
                break
            node = self._with_sibling(level, index, node)
            level, index = level + 1, index // 2
        self._nodes[level, index] = node

    def _with_sibling(self, level: int, index: int, node: _Node) -> _Node:
        """The sum of a node and its sibling, which is removed. One that did not come has no
        value.
        """
        sibling = self._nodes.pop((level, index ^ 1), NO_VALUE)
        return sibling.plus(node) if index % 2 else node.plus(sibling)

    def _is_beyond(self, level: int, index: int) -> bool:
        return self._count is not None and index << level >= self._count

    def _is_root(self, level: int, index: int) -> bool:
        return self._count is not None and index == 0 and 1 << level >= self._count


class _ModelForm:
    """The names and kinds of a model's tensors."""

    def __init__(self, model: Params) -> None:
        self.like = {k: torch.empty_like(v, device="meta") for k, v in model.items()}
        """The model without content: its tensors are meta tensors."""
        self.floating = [k for k, v in model.items() if v.is_floating_point()]
        self.others = [k for k, v in model.items() if not v.is_floating_point()]

    def values(self, theta: Params) -> Values:
        """The tensors of a model, in the same order for all models."""
        return Values([theta[k] for k in self.floating], [theta[k] for k in self.others])

    def model(self, floats: Iterable[Tensor], others: Iterable[Tensor]) -> Params:
        """The model with the next of these tensors."""
        values = dict(zip(self.floating, floats, strict=False))
        values |= zip(self.others, others, strict=False)
        return {k: values[k] for k in self.like}


class Averaging:
    """A weighted mean of parameters that are added one by one, all of the same names and shapes.
    Integer buffers are those of the first.

    They are added in a tree over the order in which they come, as by `server.mean`.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._form: _ModelForm | None = None
        self._tree = TreeSum()
        self._next = 0

    def add(self, theta: Params, weight: float) -> None:
        """Add parameters. No reference to their tensors is kept."""
        self._add(theta, weight, factor=weight)

    def add_sum(self, total: Params, weight: float) -> None:
        """Add a weighted sum, with the weight of all parameters in it."""
        self._add(total, weight, factor=1.0)

    def _add(self, theta: Params, weight: float, factor: float) -> None:
        if self._form is None:
            self._form = _ModelForm(theta)
        else:
            check_like(theta, self._form.like, "A model that is to be averaged")
        self._tree.add(self._next, self._form.values(theta).times(factor))
        self._next += 1
        self._weight += weight

    @property
    def weight(self) -> float:
        """The sum of all weights."""
        return self._weight

    def value(self) -> Params:
        """The weighted mean."""
        assert self._form, "nothing was added"
        sums, _ = self._tree.total()
        return self._form.model(*sums.over(self._weight))


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
    """The weighted mean of parameters, added in a tree over party order. Integer buffers are those
    of the first party.
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
    """The weighted sum of the replies of parties that hide them by secure aggregation: a record of
    the replies' type, with sums as its floating-point values.
    """

    total: Any
    weight: float
    heard: list[int]
    """The parties whose replies are in it, in the order in which they were added."""


@record
class SumNode:
    """The weighted sum of the replies under one node of the tree over a call's messages."""

    level: int
    index: int
    """The node has the messages at positions `index << level` to `(index + 1 << level) - 1`."""
    size: int
    """How many replies are in it."""
    total: Any
    """A record of the replies' type, with sums as its floating-point values."""


class SumsByPosition(Protocol):
    """Adds up the replies of one call, or of a worker's part of it."""

    def add(self, position: int, reply: Any, weight: float) -> Any:
        """Add the reply to the message at that position. Returns a reply of the same form without
        content. No reference to the reply's tensors is kept once `nodes` was called.
        """
        ...

    def skip(self, position: int) -> None:
        """The reply to the message at that position does not count, or did not come."""
        ...

    def nodes(self) -> list[SumNode]:
        """The sums of all replies so far."""
        ...


class ReplyTree(Generic[R]):
    """The weighted sum of the replies of one call, in a tree over the positions of its messages.
    Replies are records of parameters.

    `count` is the number of messages.
    """

    def __init__(self, count: int) -> None:
        self._tree = TreeSum(count)
        self._form: ReplyForm[R] | None = None

    def add(self, position: int, reply: R, weight: float) -> R:
        """Add a reply. Returns a reply of the same form without content. No reference to the
        reply's tensors is kept.
        """
        form = self._checked(reply)
        self._tree.add(position, form.values(reply).times(weight))
        return form.like

    @property
    def like(self) -> R:
        """A reply of the form of all replies, without content."""
        assert self._form
        return self._form.like

    def skip(self, position: int) -> None:
        """A reply does not count, or did not come."""
        self._tree.skip(position)

    def add_node(self, node: SumNode) -> None:
        """Add what a worker has added up."""
        sums = self._checked(node.total).values(node.total)
        self._tree.add_node(node.level, node.index, node.size, sums)

    def nodes(self) -> list[SumNode]:
        """The sums so far, to be added elsewhere."""
        if self._form is None:
            return []
        return [
            SumNode(level, index, size, self._form.reply(sums))
            for level, index, size, sums in self._tree.nodes()
        ]

    def mean(self, weights: Mapping[int, float]) -> Mean[R]:
        """The mean of the replies of these parties, whose weights are in party order."""
        assert self._form, "without a reply there is no mean"
        sums, size = self._tree.total()
        if size != len(weights):
            raise ComityError(
                "The workers added up other replies than those that count: this is a fault of the"
                " engine."
            )
        return Mean(self._form.reply(sums.over(sum(weights.values()))), list(weights))

    def _checked(self, reply: R) -> ReplyForm[R]:
        """The form of all replies. Refuses a reply of another form than the first one."""
        if self._form is None:
            self._form = ReplyForm(reply)
        else:
            self._form.check(reply)
        return self._form


class ReplyForm(Generic[R]):
    """What all replies of a mean have in common: their type, and the names, shapes and dtypes of
    their tensors.
    """

    def __init__(self, reply: R) -> None:
        check_fields(reply)
        self._kind = type(reply)
        self._fields = {name: _ModelForm(model) for name, model in vars(reply).items()}
        self.like = self._kind(**{name: form.like for name, form in self._fields.items()})
        """A reply without content: its tensors are meta tensors."""

    def check(self, reply: R) -> None:
        """Refuse a reply of another form."""
        check_kind(reply, self._kind)
        for name, form in self._fields.items():
            check_like(getattr(reply, name), form.like, "A model that is to be averaged")

    def values(self, reply: R) -> Values:
        """The tensors of all fields."""
        values = Values([], [])
        for name, form in self._fields.items():
            floats, others = form.values(getattr(reply, name))
            values.floats.extend(floats)
            values.others.extend(others)
        return values

    def reply(self, values: Values) -> R:
        """The reply with these tensors."""
        floats, others = map(iter, values)
        return self._kind(
            **{name: form.model(floats, others) for name, form in self._fields.items()}
        )


def check_fields(reply: Any) -> None:
    """Refuse a reply that is no record of parameters."""
    if not is_record(reply) or not vars(reply):
        raise ComityError(
            f"server.mean averages records of parameters, but a {type(reply).__name__} is"
            " none: go through server.replies."
        )
    other = next((name for name, value in vars(reply).items() if not isinstance(value, dict)), "")
    if other:
        raise ComityError(
            f"server.mean averages records of parameters, but {type(reply).__name__}.{other}"
            " holds no parameters: go through server.replies."
        )


def check_kind(reply: Any, kind: type) -> None:
    """Refuse a reply of another type than the first one."""
    if type(reply) is not kind:
        raise ComityError(
            f"All replies must be of one type to be averaged, but one is a"
            f" {type(reply).__name__} and others are a {kind.__name__}."
        )


class AveragedReplies(Generic[R]):
    """The mean of replies that are added one by one, where a wrapper takes the place of the
    weighted mean, or where secure aggregation hides single replies. Each field is averaged by
    itself.
    """

    def __init__(self, averaging: Callable[[], Averaging] = Averaging) -> None:
        self.parties: list[int] = []
        """The parties whose replies were added, in this order."""
        self._averaging = averaging
        self._kind: type[R] | None = None
        self._means: dict[str, Averaging] = {}

    def add(self, i: int, reply: R, weight: float) -> None:
        """Add a party's reply."""
        self._check(reply)
        for name, mean in self._means.items():
            mean.add(getattr(reply, name), weight)
        self.parties.append(i)

    def add_sum(self, part: PartialSum) -> None:
        """Add the replies that sites have added up."""
        self._check(part.total)
        if any(type(mean) is not Averaging for mean in self._means.values()):
            raise ComityError(
                "A wrapper takes the place of the mean and needs each reply by itself: run without"
                " secure aggregation."
            )
        for name, mean in self._means.items():
            mean.add_sum(getattr(part.total, name), part.weight)
        self.parties += part.heard

    def value(self) -> Mean[R]:
        """The mean of the replies. At least one must have been added."""
        assert self._kind, "without a reply there is no mean"
        return Mean(
            self._kind(**{name: mean.value() for name, mean in self._means.items()}),
            sorted(self.parties),
        )

    def _check(self, reply: R) -> None:
        """Refuse a reply that is no record of parameters, or of another type than the first one."""
        if self._kind is not None:
            check_kind(reply, self._kind)
            return
        check_fields(reply)
        self._kind = type(reply)
        self._means = {name: self._averaging() for name in vars(reply)}
        if len(self._means) > 1 and any(
            type(mean) is not Averaging for mean in self._means.values()
        ):
            raise ComityError(
                f"A wrapper takes the place of the mean of a model, but {self._kind.__name__}"
                " has several fields."
            )
