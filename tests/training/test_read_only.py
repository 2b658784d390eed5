"""The aux argument of a loss is read-only: the same tensors, in dicts, lists and records that
refuse writes.
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
    original = {"a": 1, "b": 2}
    view = read_only(original)
    with pytest.raises(ComityError, match=WRITES):
        DICT_WRITES[write](view)
    assert view == original == {"a": 1, "b": 2}


@pytest.mark.parametrize("write", LIST_WRITES)
def test_a_list_cannot_be_written_to(write: str) -> None:
    original = [3, 1, 2]
    view = read_only(original)
    with pytest.raises(ComityError, match=WRITES):
        LIST_WRITES[write](view)
    assert view == original == [3, 1, 2]


def test_all_ways_to_write_that_python_has_are_refused() -> None:
    """Every method that a dict or list has and a tuple or mapping view lacks either writes or
    copies.
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
    for kind, read_only_kind, reads in (
        (dict, ReadOnlyDict, reads_of_dict),
        (list, ReadOnlyList, reads_of_list),
    ):
        ways = set(vars(kind)) - set(vars(tuple)) - reads - {"__init__", "__new__", "__sizeof__"}
        assert {way for way in ways if getattr(read_only_kind, way) is getattr(kind, way)} <= {
            "__hash__",
            "__doc__",
        }


def test_an_array_is_a_copy_and_every_write_to_it_is_detected() -> None:
    """A read-only view would do, but torch warns when it makes a tensor of one."""
    original = np.arange(6.0).reshape(2, 3)
    writes: list[Callable[[Any], object]] = [
        lambda array: array.__setitem__((0, 0), 9.0),
        lambda array: array.__iadd__(1.0),
        lambda array: array[1].fill(9.0),
        lambda array: array[:, ::-1].sort(),
        lambda array: np.add(array, 1.0, out=array),
    ]
    for write in writes:
        aux = read_only({"table": original})
        before = tensor_versions(aux)
        check_unwritten(aux, before)
        write(aux["table"])
        with pytest.raises(ComityError, match="create a new tensor instead"):
            check_unwritten(aux, before)
    assert original.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_torch_makes_tensors_of_arrays_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    torch.as_tensor(read_only({"table": np.arange(6.0)})["table"])
    assert not recwarn.list


def test_what_is_in_a_record_cannot_be_written_to() -> None:
    """Nested in records, dicts and tuples; the record itself is frozen as all records are."""
    view = read_only(outer())
    assert type(view) is Outer
    assert type(view.inner) is Inner
    assert type(view.by_party[4]) is Inner
    writes: list[Callable[[], object]] = [
        lambda: view.inner.weights.__setitem__("w", torch.zeros(2)),
        lambda: view.inner.notes.append(4),
        lambda: view.by_party.__setitem__(4, inner()),
        lambda: view.by_party[4].weights.pop("w"),
        view.by_party[4].notes.sort,
        lambda: view.pair[1].update(n=2),
    ]
    for write in writes:
        with pytest.raises(ComityError, match=WRITES):
            write()
    with pytest.raises(FrozenInstanceError):
        view.inner = inner()  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        view.inner.weights = {}  # type: ignore[misc]


def test_what_is_in_a_tuple_cannot_be_written_to() -> None:
    view = read_only(([1], {"a": [2]}, (torch.ones(1),)))
    assert type(view) is tuple
    for write in (lambda: view[0].append(2), view[1].clear, lambda: view[1]["a"].append(3)):
        with pytest.raises(ComityError, match=WRITES):
            write()
    with pytest.raises(TypeError):
        view[0] = []  # type: ignore[index]


def test_a_named_tuple_keeps_its_names_and_cannot_be_written_to() -> None:
    mean = torch.ones(3)
    view = read_only(Both(mean, [1]))
    assert type(view) is Both
    assert view.mean is mean
    with pytest.raises(ComityError, match=WRITES):
        view.notes.append(2)
    with pytest.raises(AttributeError):
        view.mean = torch.zeros(3)  # type: ignore[misc]


# --- what stays as it is


def test_tensors_are_the_same_objects() -> None:
    original = outer()
    view = read_only(original)
    assert all(a is b for a, b in zip(leaves(view), leaves(original), strict=True))
    assert sum(isinstance(leaf, Tensor) for leaf in leaves(view)) == 3


def test_the_original_stays_writable() -> None:
    original = outer()
    read_only(original)
    original.inner.weights["v"] = torch.ones(1)
    original.inner.notes.append(7)
    assert type(original.inner.weights) is dict
    assert type(original.inner.notes) is list


@pytest.mark.parametrize(
    "value", [None, True, 3, 2.5, "word", b"bytes", torch.ones(2), np.float64(0.5)]
)
def test_plain_values_are_themselves(value: object) -> None:
    assert read_only(value) is value
    assert read_only([value])[0] is value


def test_reading_and_merging_work_as_for_dicts_and_lists() -> None:
    """Merging makes a new dict or list, which the loss may write to."""
    view = read_only({"a": torch.ones(1), "b": [1, 2]})
    assert list(view) == ["a", "b"]
    assert {**view}.keys() == view.keys()
    merged = view | {"c": 3}
    merged["d"] = 4
    assert list(merged) == ["a", "b", "c", "d"]
    longer = view["b"] + [3]
    longer.append(4)
    assert sorted(view["b"], reverse=True) == [2, 1]
    assert longer == [1, 2, 3, 4]
    copied = dict(view)
    copied["a"] = None
    assert torch.equal(view["a"], torch.ones(1))


def test_read_only_is_idempotent() -> None:
    view = read_only(read_only(outer()))
    with pytest.raises(ComityError, match=WRITES):
        view.inner.weights.clear()
    assert isinstance(read_only(OrderedDict(a=1)), ReadOnlyDict)


def test_tree_functions_treat_it_as_the_original() -> None:
    original = outer()
    view = read_only(original)
    doubled = tree_map(lambda leaf: leaf * 2, view)
    assert doubled.inner.notes == [6, 2, 4]
    assert torch.equal(doubled.by_party[4].weights["w"], torch.full((2,), 2.0))
    with pytest.raises(ComityError, match=WRITES):
        doubled.inner.weights.clear()
    flat, spec = pytree.tree_flatten(view)
    back = pytree.tree_unflatten(flat, spec)
    assert type(back) is Outer
    assert all(a is b for a, b in zip(leaves(back), leaves(original), strict=True))


# --- what is refused


class Colour(Enum):
    RED = 1


class Counter:
    """An object of a user's class."""

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
    """Comity cannot know whether any other object is the same for all parties, or whether a loss
    changes it.
    """
    value = FOREIGN[name]
    places = {
        "itself": value,
        "dict": {"a": value},
        "list": [1, [value]],
        "tuple": (value,),
        "record": Inner({"w": value}, []),  # type: ignore[dict-item]
    }
    message = (
        f"^The aux argument of a loss must be a record of tensors and plain values, but it holds a {name}"
        ".$"
    )
    with pytest.raises(ComityError, match=message):
        read_only(places[where])


# --- in a training


NETWORK = build("mlp2(width=4)", (5,), 3)
TASK = LearningTask(NETWORK, 3, NETWORK.cut)
DATA = Samples(torch.randn(12, 5, generator=Key(7).generator()), torch.arange(12) % 3)


def fit_request(
    loss: Callable[[LearningTask, Params, Batch, Any], Tensor], aux: object, draw: Any = None
) -> FitRequest[Any]:
    return FitRequest(
        loss, TASK.init(Key(1)), DATA, Key(2), Training(batch=4), TASK, aux, draw=draw
    )


def reading(task: LearningTask, theta: Params, batch: Batch, aux: Inner) -> Tensor:
    return task.loss(theta, batch) * aux.weights["w"].sum()


def swapping(task: LearningTask, theta: Params, batch: Batch, aux: Inner) -> Tensor:
    aux.weights["w"] = torch.zeros(2)
    return task.loss(theta, batch)


def counting(task: LearningTask, theta: Params, batch: Batch, aux: Inner) -> Tensor:
    aux.notes.append(batch.number)
    return task.loss(theta, batch)


def replacing_weights(task: LearningTask, theta: Params, batch: Batch, aux: Inner) -> Tensor:
    theta["fc1.bias"] = torch.zeros(4)
    return task.loss(theta, batch)


def in_place(task: LearningTask, theta: Params, batch: Batch, aux: Inner) -> Tensor:
    aux.weights["w"].add_(1)
    return task.loss(theta, batch)


def in_place_by_a_view(task: LearningTask, theta: Params, batch: Batch, aux: Inner) -> Tensor:
    aux.weights["w"][0] = batch.number
    return task.loss(theta, batch)


def in_place_at_last(task: LearningTask, theta: Params, batch: Batch, aux: Inner) -> Tensor:
    if batch.number == 2:
        aux.weights["w"].detach().zero_()
    return task.loss(theta, batch)


def test_a_loss_that_reads_its_aux_is_trained() -> None:
    aux = inner()
    fit = train(fit_request(reading, aux))
    assert fit.steps == 3
    assert torch.equal(aux.weights["w"], torch.ones(2))


@pytest.mark.parametrize(
    "loss", [swapping, counting, replacing_weights], ids=lambda loss: loss.__name__
)
def test_a_loss_that_writes_to_its_arguments_is_stopped(loss: Any) -> None:
    """The error comes at the first batch, before anything is written to `aux` or to the weights."""
    aux = inner()
    tensor = aux.weights["w"]
    with pytest.raises(ComityError, match=WRITES):
        train(fit_request(loss, aux))
    assert aux.weights["w"] is tensor
    assert aux.notes == [3, 1, 2]


@pytest.mark.parametrize(
    "loss", [in_place, in_place_by_a_view, in_place_at_last], ids=lambda loss: loss.__name__
)
def test_a_loss_that_writes_to_a_tensor_in_place_is_refused_after_the_training(loss: Any) -> None:
    """Writes to a tensor cannot be prevented, but its version counter shows them."""
    message = "^A loss wrote to a tensor of its aux argument or of its task: create a new tensor instead.$"
    with pytest.raises(ComityError, match=message):
        train(fit_request(loss, inner()))
    with pytest.raises(ComityError, match=message):
        BatchedTraining([fit_request(loss, inner()), fit_request(loss, inner())]).train()


def test_a_draw_that_writes_to_a_tensor_in_place_is_refused_as_well() -> None:
    def draw(batch: Batch, key: Key, aux: Inner) -> None:
        aux.weights["w"].mul_(0.5)

    with pytest.raises(ComityError, match="wrote to a tensor of its aux"):
        train(fit_request(reading, inner(), draw))


def test_a_foreign_object_is_refused_before_the_training() -> None:
    batch_numbers: list[int] = []

    def loss(task: LearningTask, theta: Params, batch: Batch, aux: Any) -> Tensor:
        batch_numbers.append(batch.number)
        return task.loss(theta, batch)

    with pytest.raises(ComityError, match="holds a Counter"):
        train(fit_request(loss, {"counter": Counter()}))
    assert not batch_numbers


def test_versions_show_every_write() -> None:
    aux = read_only(outer())
    tensors = [aux.inner.weights["w"], aux.by_party[4].weights["w"], aux.pair[0]]
    for tensor in tensors:
        for write in (
            lambda t: t.add_(1),
            lambda t: t.__setitem__(0, 5.0),
            lambda t: t.view(-1).zero_(),
        ):
            before = tensor_versions(aux)
            check_unwritten(aux, before)
            write(tensor)
            with pytest.raises(ComityError, match="create a new tensor instead"):
                check_unwritten(aux, before)
