"""What a loss gets beside its batch: the same tensors, in dicts, lists and records that cannot be
written to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from comity.base.record import (
    ReadOnlyDict,
    ReadOnlyList,
    leaves,
    read_only,
    tensor_versions,
    tree_map,
)
from comity.core import Batch, Key, LearningTask, Params, Samples, Training, record
from comity.engines.stacked.batched_training import BatchedTraining
from comity.errors import ComityError
from comity.models import build
from comity.training.descent import check_unwritten, train
from comity.training.requests import FitRequest

pytestmark = pytest.mark.quick

WRITES = (
    "^A loss may not write to its arguments: values that it keeps from batch to batch go into"
    " batch.scratch.$"
)


@record
class Inner:
    weights: Params
    notes: list[int]


@record
class Outer:
    inner: Inner
    by_party: dict[int, Inner]
    pair: tuple[Tensor, dict[str, int]]


class Both(NamedTuple):
    mean: Tensor
    notes: list[int]


def inner() -> Inner:
    return Inner({"w": torch.ones(2)}, [3, 1, 2])


def outer() -> Outer:
    return Outer(inner(), {4: inner()}, (torch.zeros(1), {"n": 1}))


# --- what cannot be written to


DICT_WRITES: dict[str, Callable[[Any], Any]] = {
    "an entry": lambda d: d.__setitem__("a", 2),
    "a new entry": lambda d: d.__setitem__("new", 2),
    "del": lambda d: d.__delitem__("a"),
    "|=": lambda d: d.__ior__({"a": 2}),
    "update": lambda d: d.update(a=2),
    "update of nothing": lambda d: d.update(),
    "setdefault": lambda d: d.setdefault("new", 2),
    "setdefault of what is there": lambda d: d.setdefault("a", 2),
    "pop": lambda d: d.pop("a"),
    "pop of what is not there": lambda d: d.pop("new", None),
    "popitem": lambda d: d.popitem(),
    "clear": lambda d: d.clear(),
}
LIST_WRITES: dict[str, Callable[[Any], Any]] = {
    "an entry": lambda xs: xs.__setitem__(0, 9),
    "a slice": lambda xs: xs.__setitem__(slice(0, 2), [9]),
    "del": lambda xs: xs.__delitem__(0),
    "+=": lambda xs: xs.__iadd__([9]),
    "*=": lambda xs: xs.__imul__(2),
    "append": lambda xs: xs.append(9),
    "extend": lambda xs: xs.extend([9]),
    "insert": lambda xs: xs.insert(0, 9),
    "pop": lambda xs: xs.pop(),
    "remove": lambda xs: xs.remove(3),
    "clear": lambda xs: xs.clear(),
    "sort": lambda xs: xs.sort(),
    "reverse": lambda xs: xs.reverse(),
}


@pytest.mark.parametrize("write", DICT_WRITES)
def test_a_dict_cannot_be_written_to(write: str) -> None:
    given = {"a": 1, "b": 2}
    seen = read_only(given)
    with pytest.raises(ComityError, match=WRITES):
        DICT_WRITES[write](seen)
    assert seen == given == {"a": 1, "b": 2}


@pytest.mark.parametrize("write", LIST_WRITES)
def test_a_list_cannot_be_written_to(write: str) -> None:
    given = [3, 1, 2]
    seen = read_only(given)
    with pytest.raises(ComityError, match=WRITES):
        LIST_WRITES[write](seen)
    assert seen == given == [3, 1, 2]


def test_all_ways_to_write_that_python_has_are_refused() -> None:
    """Whatever a dict or a list has beyond what a tuple or a mapping's view offers is a way to
    write, or a copy.
    """
    reads_of_dict = {
        "copy",
        "fromkeys",
        "get",
        "items",
        "keys",
        "values",
        "__reversed__",
        "__or__",
        "__ror__",
        "__class_getitem__",
    }
    reads_of_list = {"copy", "__reversed__"}
    for kind, made, reads in (
        (dict, ReadOnlyDict, reads_of_dict),
        (list, ReadOnlyList, reads_of_list),
    ):
        ways = set(vars(kind)) - set(vars(tuple)) - reads - {"__init__", "__new__", "__sizeof__"}
        assert {way for way in ways if getattr(made, way) is getattr(kind, way)} <= {
            "__hash__",
            "__doc__",
        }


def test_an_array_is_a_copy_and_its_mark_tells_of_every_way_to_write() -> None:
    """A read-only view would do, but torch makes no tensor of one without a warning."""
    given = np.arange(6.0).reshape(2, 3)
    writes: list[Callable[[Any], object]] = [
        lambda seen: seen.__setitem__((0, 0), 9.0),
        lambda seen: seen.__iadd__(1.0),
        lambda seen: seen[1].fill(9.0),
        lambda seen: seen[:, ::-1].sort(),
        lambda seen: np.add(seen, 1.0, out=seen),
    ]
    for write in writes:
        own = read_only({"table": given})
        before = tensor_versions(own)
        check_unwritten(own, before)
        write(own["table"])
        with pytest.raises(ComityError, match="create a new tensor instead"):
            check_unwritten(own, before)
    assert given.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_torch_makes_tensors_of_arrays_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    torch.as_tensor(read_only({"table": np.arange(6.0)})["table"])
    assert not recwarn.list


def test_what_is_in_a_record_cannot_be_written_to() -> None:
    """Nested in records, dicts and tuples; the record itself is frozen as all records are."""
    seen = read_only(outer())
    assert type(seen) is Outer
    assert type(seen.inner) is Inner
    assert type(seen.by_party[4]) is Inner
    writes: list[Callable[[], object]] = [
        lambda: seen.inner.weights.__setitem__("w", torch.zeros(2)),
        lambda: seen.inner.notes.append(4),
        lambda: seen.by_party.__setitem__(4, inner()),
        lambda: seen.by_party[4].weights.pop("w"),
        seen.by_party[4].notes.sort,
        lambda: seen.pair[1].update(n=2),
    ]
    for write in writes:
        with pytest.raises(ComityError, match=WRITES):
            write()
    with pytest.raises(FrozenInstanceError):
        seen.inner = inner()  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        seen.inner.weights = {}  # type: ignore[misc]


def test_what_is_in_a_tuple_cannot_be_written_to() -> None:
    seen = read_only(([1], {"a": [2]}, (torch.ones(1),)))
    assert type(seen) is tuple
    for write in (lambda: seen[0].append(2), seen[1].clear, lambda: seen[1]["a"].append(3)):
        with pytest.raises(ComityError, match=WRITES):
            write()
    with pytest.raises(TypeError):
        seen[0] = []  # type: ignore[index]


def test_a_named_tuple_keeps_its_names_and_cannot_be_written_to() -> None:
    mean = torch.ones(3)
    seen = read_only(Both(mean, [1]))
    assert type(seen) is Both
    assert seen.mean is mean
    with pytest.raises(ComityError, match=WRITES):
        seen.notes.append(2)
    with pytest.raises(AttributeError):
        seen.mean = torch.zeros(3)  # type: ignore[misc]


# --- what stays as it is


def test_tensors_are_the_same_objects() -> None:
    given = outer()
    seen = read_only(given)
    assert all(a is b for a, b in zip(leaves(seen), leaves(given), strict=True))
    assert sum(isinstance(leaf, Tensor) for leaf in leaves(seen)) == 3


def test_the_owners_own_is_left_as_it_was() -> None:
    given = outer()
    read_only(given)
    given.inner.weights["v"] = torch.ones(1)
    given.inner.notes.append(7)
    assert type(given.inner.weights) is dict
    assert type(given.inner.notes) is list


@pytest.mark.parametrize(
    "value", [None, True, 3, 2.5, "word", b"bytes", torch.ones(2), np.float64(0.5)]
)
def test_plain_values_are_themselves(value: object) -> None:
    assert read_only(value) is value
    assert read_only([value])[0] is value


def test_it_reads_and_joins_as_dicts_and_lists_do() -> None:
    """A new dict or list is made in passing, and that one is the loss's own."""
    seen = read_only({"a": torch.ones(1), "b": [1, 2]})
    assert list(seen) == ["a", "b"]
    assert {**seen}.keys() == seen.keys()
    joined = seen | {"c": 3}
    joined["d"] = 4
    assert list(joined) == ["a", "b", "c", "d"]
    longer = seen["b"] + [3]
    longer.append(4)
    assert sorted(seen["b"], reverse=True) == [2, 1]
    assert longer == [1, 2, 3, 4]
    copied = dict(seen)
    copied["a"] = None
    assert torch.equal(seen["a"], torch.ones(1))


def test_twice_is_once() -> None:
    seen = read_only(read_only(outer()))
    with pytest.raises(ComityError, match=WRITES):
        seen.inner.weights.clear()
    assert isinstance(read_only(OrderedDict(a=1)), ReadOnlyDict)


def test_it_maps_and_flattens_as_what_it_was_made_from() -> None:
    given = outer()
    seen = read_only(given)
    doubled = tree_map(lambda leaf: leaf * 2, seen)
    assert doubled.inner.notes == [6, 2, 4]
    assert torch.equal(doubled.by_party[4].weights["w"], torch.full((2,), 2.0))
    with pytest.raises(ComityError, match=WRITES):
        doubled.inner.weights.clear()
    flat, spec = pytree.tree_flatten(seen)
    back = pytree.tree_unflatten(flat, spec)
    assert type(back) is Outer
    assert all(a is b for a, b in zip(leaves(back), leaves(given), strict=True))


# --- what is refused


class Colour(Enum):
    RED = 1


class Counter:
    """Anybody's own object."""

    count = 0


@dataclass(frozen=True)
class NotARecord:
    weights: Params


FOREIGN: dict[str, object] = {
    "Counter": Counter(),
    "NotARecord": NotARecord({}),
    "Colour": Colour.RED,
    "set": {1},
    "frozenset": frozenset({1}),
    "builtin_function_or_method": len,
    "function": asdict,
    "Generator": torch.Generator(),
    "int64": np.int64(3),
    "bytearray": bytearray(b"x"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("where", ["itself", "dict", "list", "tuple", "record"])
def test_a_foreign_object_is_refused_by_its_name(name: str, where: str) -> None:
    """Of any other object nobody knows whether it is the same for all parties, or what a loss does
    to it.
    """
    value = FOREIGN[name]
    places = {
        "itself": value,
        "dict": {"a": value},
        "list": [1, [value]],
        "tuple": (value,),
        "record": Inner({"w": value}, []),  # type: ignore[dict-item]
    }
    said = (
        f"^The aux argument of a loss must be a record of tensors and plain values, but it holds a {name}"
        ".$"
    )
    with pytest.raises(ComityError, match=said):
        read_only(places[where])


# --- in a training


NETWORK = build("mlp2(width=4)", (5,), 3)
TASK = LearningTask(NETWORK, 3, NETWORK.cut)
DATA = Samples(torch.randn(12, 5, generator=Key(7).generator()), torch.arange(12) % 3)


def asked(
    loss: Callable[[LearningTask, Params, Batch, Any], Tensor], own: object, draw: Any = None
) -> FitRequest[Any]:
    return FitRequest(
        loss, TASK.init(Key(1)), DATA, Key(2), Training(batch=4), TASK, own, draw=draw
    )


def reading(task: LearningTask, theta: Params, batch: Batch, own: Inner) -> Tensor:
    return task.loss(theta, batch) * own.weights["w"].sum()


def swapping(task: LearningTask, theta: Params, batch: Batch, own: Inner) -> Tensor:
    own.weights["w"] = torch.zeros(2)
    return task.loss(theta, batch)


def counting(task: LearningTask, theta: Params, batch: Batch, own: Inner) -> Tensor:
    own.notes.append(batch.number)
    return task.loss(theta, batch)


def replacing_weights(task: LearningTask, theta: Params, batch: Batch, own: Inner) -> Tensor:
    theta["fc1.bias"] = torch.zeros(4)
    return task.loss(theta, batch)


def in_place(task: LearningTask, theta: Params, batch: Batch, own: Inner) -> Tensor:
    own.weights["w"].add_(1)
    return task.loss(theta, batch)


def in_place_by_a_view(task: LearningTask, theta: Params, batch: Batch, own: Inner) -> Tensor:
    own.weights["w"][0] = batch.number
    return task.loss(theta, batch)


def in_place_at_last(task: LearningTask, theta: Params, batch: Batch, own: Inner) -> Tensor:
    if batch.number == 2:
        own.weights["w"].detach().zero_()
    return task.loss(theta, batch)


def test_a_loss_that_reads_its_own_is_trained() -> None:
    own = inner()
    done = train(asked(reading, own))
    assert done.steps == 3
    assert torch.equal(own.weights["w"], torch.ones(2))


@pytest.mark.parametrize(
    "loss", [swapping, counting, replacing_weights], ids=lambda loss: loss.__name__
)
def test_a_loss_that_writes_to_what_it_is_given_is_stopped(loss: Any) -> None:
    """At its first batch, and before anything was written: neither what it was given nor the
    weights it is called with.
    """
    own = inner()
    kept = own.weights["w"]
    with pytest.raises(ComityError, match=WRITES):
        train(asked(loss, own))
    assert own.weights["w"] is kept
    assert own.notes == [3, 1, 2]


@pytest.mark.parametrize(
    "loss", [in_place, in_place_by_a_view, in_place_at_last], ids=lambda loss: loss.__name__
)
def test_a_loss_that_writes_to_a_tensor_in_place_is_refused_after_the_training(loss: Any) -> None:
    """Nobody can keep a tensor from being written to, but its version tells."""
    said = "^A loss wrote to a tensor of its aux argument or of its task: create a new tensor instead.$"
    with pytest.raises(ComityError, match=said):
        train(asked(loss, inner()))
    with pytest.raises(ComityError, match=said):
        BatchedTraining([asked(loss, inner()), asked(loss, inner())]).train()


def test_a_draw_that_writes_to_a_tensor_in_place_is_refused_as_well() -> None:
    def draw(batch: Batch, key: Key, own: Inner) -> None:
        own.weights["w"].mul_(0.5)

    with pytest.raises(ComityError, match="wrote to a tensor of its aux"):
        train(asked(reading, inner(), draw))


def test_a_foreign_object_is_refused_before_the_training() -> None:
    display_name: list[int] = []

    def loss(task: LearningTask, theta: Params, batch: Batch, own: Any) -> Tensor:
        display_name.append(batch.number)
        return task.loss(theta, batch)

    with pytest.raises(ComityError, match="holds a Counter"):
        train(asked(loss, {"counter": Counter()}))
    assert not display_name


def test_versions_tell_of_every_way_to_write() -> None:
    own = read_only(outer())
    tensors = [own.inner.weights["w"], own.by_party[4].weights["w"], own.pair[0]]
    for tensor in tensors:
        for write in (
            lambda t: t.add_(1),
            lambda t: t.__setitem__(0, 5.0),
            lambda t: t.view(-1).zero_(),
        ):
            before = tensor_versions(own)
            check_unwritten(own, before)
            write(tensor)
            with pytest.raises(ComityError, match="create a new tensor instead"):
                check_unwritten(own, before)
