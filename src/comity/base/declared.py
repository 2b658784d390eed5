"""Checks that the fields of a record have their declared types.

Records are checked when they are written, and when they are read from a disk or a wire, but never
while a method computes. A field whose declaration cannot be resolved (a name that only type
checkers import, an unsupported type) is not checked.
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
"""The codec reduces all subclasses of these to the type itself. A named tuple is read back as a
tuple, a default dict as a dict.
"""


def mismatch(value: Any) -> str:
    """Describe the first field of a record that does not have its declared type; empty if all
    do.
    """
    cls: type = type(value)
    for name, declaration, check in _checks(cls):
        item = getattr(value, name)
        if not check(item):
            return (
                f"{cls.__name__}.{name} should be {declaration}, but the {type(item).__name__} in"
                " it is not"
            )
    return ""


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has a type, as far as that can be checked: `fits(reply, dict[int,
    Sealed])`.
    """
    check = _check_of(hint)
    return check is None or check(value)


@cache
def _checks(cls: type) -> list[tuple[str, str, Check]]:
    """The checkable fields of a record type: name, declaration and check."""
    checks = ((f.name, str(f.type), _check_of(resolve_field_type(cls, f))) for f in fields(cls))
    return [(name, declaration, check) for name, declaration, check in checks if check]


def resolve_field_type(cls: type, f: Field[Any]) -> Any:
    """The type of a record's field. Names in it are looked up in the module of the class that
    declares it.

    Returns `Any` if the annotation cannot be evaluated.
    """
    owner = next((c for c in cls.__mro__ if f.name in get_annotations(c)), cls)
    try:
        names = vars(sys.modules[owner.__module__])
        return get_type_hints(
            SimpleNamespace(__annotations__={f.name: f.type}), names, dict(vars(owner))
        )[f.name]
    except Exception:  # a user's annotation can raise anything when it is evaluated
        return Any


def _check_of(hint: Any) -> Check | None:
    """The function that checks whether a value has a type; None if every value is accepted."""
    if isinstance(hint, TypeVar):
        hint = hint.__bound__ or Any
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return _one_of([_check_of(part) for part in inner])
    if kind is Literal:
        return lambda value: any(
            type(value) is type(choice) and value == choice for choice in inner
        )
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
    present = [check for check in checks if check]
    if len(present) < len(checks):
        return None
    return lambda value: any(check(value) for check in present)


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
        pairs = zip(checks, value, strict=True)
        return all(item_check is None or item_check(item) for item_check, item in pairs)

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
