"""Fields of records are checked against their declared types."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Optional, TypeVar

import pytest
import torch
from torch import Tensor, nn

import comity.algorithms
from comity.base.declared import _checks, fits, mismatch
from comity.base.record import _BY_NAME
from comity.core import Empty, Model, Params, Sealed, Wrapped, record, seal
from comity.errors import ComityError
from comity.wire.codec import decode, encode

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from typing import Any as Unknown

W = TypeVar("W")
B = TypeVar("B", bound=Model)
T = torch.zeros(2)


class Pair(NamedTuple):
    a: int
    b: int


@record
class Holder(Generic[W, B]):
    anything: Any
    free: W
    bound: B | None
    unknown: Unknown  # a name that exists for type checkers only


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (Tensor, [T, nn.Parameter(T)], [1.5, [T], None]),
        (
            Params,
            [{}, {"w": T}, OrderedDict(w=T), defaultdict(lambda: T, w=T)],
            [T, {"w": 1.0}, {1: T}, [("w", T)], "hello"],
        ),
        (int, [1, -(2**62), True], [1.0, "1", None, T]),
        (float, [1.5, 1, float("nan")], ["1", None, T]),
        (bool, [True], [1, 7, None]),
        (str, ["", "x"], [1, None, ["x"]]),
        (None, [None], [0, ""]),
        (list[int], [[], [1]], [(1,), [1.5], ["x"], {1: 1}]),
        (list[Params], [[], [{"w": T}]], [[T], {"w": T}]),
        (list[list[int] | None], [[None, [1]]], [[1], [["x"]]]),
        (list, [[], [1, "x"]], [()]),
        (tuple[int, ...], [(), (1, 2)], [[1], ("x",)]),
        (tuple[int, str], [(1, "x")], [(1,), ("x", 1), (1, "x", 2)]),
        (tuple, [(), (1, "x")], [[]]),
        (Pair, [Pair(1, 2), (1, 2)], [[1, 2]]),
        (dict[int, float], [{1: 0.5, 2: 1}], [{"1": 0.5}, {1: "x"}]),
        (dict[int, Sealed], [{1: seal(1, 2)}], [{1: Model({})}]),
        (dict, [{}, {1: 2}], [[]]),
        (Mapping[str, int], [{"a": 1}], [{"a": "b"}, []]),
        (Sequence[int], [[1], (1,)], ["x", [None], {1}]),
        (Optional[Tensor], [None, T], [1.0]),  # noqa: UP045
        (int | str | None, [1, "x", None], [1.5, T]),
        (Literal["a", 1], ["a", 1], ["b", True, 2]),
        (Model, [Model({})], [Empty(), {}, None]),
        (Wrapped[Model], [Wrapped(1, 2)], [Model({})]),
        (B, [Model({})], [Empty()]),
        (W, [1, T, None], []),
        (Any, [1, T, None], []),
        (object, [1, T, None], []),
    ],
)
def test_fits(hint, good, bad):
    assert all(fits(value, hint) for value in good)
    assert not any(fits(value, hint) for value in bad)


def test_unresolvable_declarations_are_not_checked():
    assert mismatch(Holder(1, "x", Model({}), T)) == ""
    assert mismatch(Holder(1, "x", Empty(), T)) == (
        "Holder.bound should be B | None, but the Empty in it is not"
    )


def test_fields_are_checked_by_encode_and_decode():
    good = encode(Model({"w": T}))
    wrong = good.replace(b"base.record:Model", b"base.record:Empty")
    with pytest.raises(ComityError, match="damaged or foreign"):
        decode(wrong)
    with pytest.raises(ComityError, match=r"Model.theta should be Params, but the str"):
        encode([Model("hello")])  # type: ignore[arg-type]


def test_constructors_do_not_check_fields():
    """Fields are checked by the codec, not when a record is constructed."""
    assert Model("hello").theta == "hello"  # type: ignore[arg-type]


def test_declarations_of_all_records_are_resolvable():
    for name in comity.algorithms.names():
        comity.algorithms.find(name)
    ours = [cls for name, cls in _BY_NAME.items() if name.startswith("comity.")]
    assert len(ours) > 30
    free = {
        f"{cls.__name__}.{f.name}"
        for cls in ours
        for f in fields(cls)
        if f.name not in {name for name, _, _ in _checks(cls)} and str(f.type) != "Any"
    }
    assert free == {"Wrapped.extra"}
