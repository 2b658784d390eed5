"""Whether a record's fields hold what they are declared to hold.

It is asked of records that come from a disk or a wire, and of those that are written down, never
while a method computes. A declaration that cannot be told (a name that only type checkers import, a
type of no known kind) is not checked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from functools import cache, partial
from inspect import get_annotations
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from torch import Tensor

Check = Callable[[Any], bool]
PLAIN = (Tensor, bool, int, float, str)
"""What the codec makes of these and of all their subclasses. A named tuple comes back as a tuple, a
default dict as a dict.
"""


def mismatch(value: Any) -> str:
    """Which field of a record is not as declared, in words; nothing if all are."""
    cls: type = type(value)
    for name, declared, check in _checks(cls):
        held = getattr(value, name)
        if not check(held):
            return (
                f"{cls.__name__}.{name} should be {declared}, but the {type(held).__name__} in it"
                " is not"
            )
    return ""


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as far as that can be told: `fits(reply, dict[int, Sealed])`."""
    check = _check_of(hint)
    return check is None or check(value)


@cache
def _checks(cls: type) -> list[tuple[str, str, Check]]:
    """The fields of a record type that can be checked, and how they are declared."""
    found = ((f.name, str(f.type), _check_of(declared(cls, f))) for f in fields(cls))
    return [(name, declared, check) for name, declared, check in found if check]


def declared(cls: type, f: Field[Any]) -> Any:
    """A field's type, whose name is looked up in the module of the class that declares it."""
    owner = next((c for c in cls.__mro__ if f.name in get_annotations(c)), cls)
    try:
        names = vars(sys.modules[owner.__module__])
        return get_type_hints(
            SimpleNamespace(__annotations__={f.name: f.type}), names, dict(vars(owner))
        )[f.name]
    except Exception:  # whatever a user's annotation does when it is looked up
        return Any


def _check_of(hint: Any) -> Check | None:
    """How to tell whether a value is of a type; None if anything is."""
    if isinstance(hint, TypeVar):
        hint = hint.__bound__ or Any
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return _one_of([_check_of(part) for part in inner])
    if kind is Literal:
        return lambda value: any(type(value) is type(known) and value == known for known in inner)
    if kind is None:
        return partial(_is, NoneType)
    if (
        kind in (Any, object)
        or not isinstance(kind, type)
        or is_typeddict(kind)
        or getattr(kind, "_is_protocol", False)
    ):
        return None
    return _check_of_class(kind, inner)


def _check_of_class(kind: type, inner: tuple[Any, ...]) -> Check | None:
    if issubclass(kind, tuple):
        return _tuple_of(inner)
    if issubclass(kind, dict) or kind is Mapping:
        return _dict_of(inner)
    if issubclass(kind, list) or kind is Sequence:
        return _all_of((list, tuple) if kind is Sequence else (list,), inner)
    if kind is float:
        return partial(_is, (float, int))
    return partial(_is, next((plain for plain in PLAIN if issubclass(kind, plain)), kind))


def _is(kinds: type | tuple[type, ...], value: Any) -> bool:
    return isinstance(value, kinds)


def _one_of(checks: list[Check | None]) -> Check | None:
    known = [check for check in checks if check]
    return (
        (lambda value: any(check(value) for check in known)) if len(known) == len(checks) else None
    )


def _all_of(kinds: tuple[type, ...], inner: tuple[Any, ...]) -> Check:
    check = _check_of(inner[0]) if inner else None
    return lambda value: _is(kinds, value) and (check is None or all(map(check, value)))


def _tuple_of(inner: tuple[Any, ...]) -> Check:
    if not inner:
        return partial(_is, tuple)
    if inner[-1] is Ellipsis:
        return _all_of((tuple,), inner[:1])
    checks = [_check_of(part) for part in inner]

    def check(value: Any) -> bool:
        if not isinstance(value, tuple) or len(value) != len(checks):
            return False
        return all(one is None or one(item) for one, item in zip(checks, value, strict=True))

    return check


def _dict_of(inner: tuple[Any, ...]) -> Check:
    names, items = (_check_of(part) for part in inner) if len(inner) == 2 else (None, None)

    def check(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        return (names is None or all(map(names, value))) and (
            items is None or all(map(items, value.values()))
        )

    return check
