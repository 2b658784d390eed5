"""The grammar of names with options, used for methods, models, partitions and test protocols.

name                      iid
name(option=value, ...)   dirichlet(alpha=0.1,min=10)
name(value)               own(0.25)
name(option=a,b,c)        shift(kinds=rotate,invert,noise)

The last form is a list: words without `=` continue the option before them.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from comity.errors import UsageError, quote, unknown

MAX_INT = 10**12
"""Integers must be smaller: larger counts make no sense and could overflow 64 bits."""
T = TypeVar("T")
Value = bool | int | float | str | tuple[Any, ...]


@dataclass(frozen=True)
class Spec:
    """A parsed `name(...)`: positional values, then options."""

    name: str
    args: tuple[Value, ...] = ()
    options: dict[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = [format_value(v) for v in self.args]
        inside += [f"{name}={format_value(v)}" for name, v in self.options.items()]
        return f"{self.name}({','.join(inside)})" if inside else self.name


def format_value(value: object) -> str:
    """Return a value as the grammar writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(format_value(v) for v in value)
    try:
        return str(value)
    except ValueError:  # Python refuses to convert integers with thousands of digits
        raise UsageError("A number has thousands of digits, which is too large.") from None


def split(text: str, separator: str) -> list[str]:
    """Split `text` at `separator`, but not inside parentheses."""
    parts = []
    depth = 0
    begin = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth < 0:
            break
        if char == separator and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    if depth != 0:
        raise UsageError(f"The parentheses in {text!r} do not match.")
    return [part.strip() for part in [*parts, text[begin:]]]


def parse_value(text: str) -> Value:
    """Parse `true`, `3`, `0.1`, or a word."""
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse(text: str) -> Spec:
    """Parse one `name(...)`."""
    text = text.strip()
    name, bracket, rest = text.partition("(")
    name = name.strip()
    if not name or (bracket and not rest.rstrip().endswith(")")):
        raise UsageError(f"{text!r} is not of the form name or name(option=value,...).")
    inside = rest.rstrip()[:-1].strip() if bracket else ""
    args: list[Value] = []
    options: dict[str, Value] = {}
    last = ""
    for part in split(inside, ",") if inside else []:
        key, equals, right = part.partition("=")
        key = key.strip()
        if not part:
            raise UsageError(f"{text!r} has an empty option.")
        if equals:
            if key in options:
                raise UsageError(f"{text!r} gives {key} twice.")
            options[key] = parse_value(right)
            last = key
        elif last:
            before = options[last]
            items = before if isinstance(before, tuple) else (before,)
            options[last] = (*items, parse_value(part))
        else:
            args.append(parse_value(part))
    return Spec(name, tuple(args), options)


def coerce(what: str, value: object, kind: Any) -> Any:
    """Convert a value to an annotated type.

    Args:
        what: what the value is for, for the error message
        value: the parsed value
        kind: the type, as in a function's signature

    Raises:
        UsageError: the value does not fit the type.
    """
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _coerce_to_any(what, value, typing.get_args(kind))
    if origin is typing.Literal:
        if value in typing.get_args(kind):
            return value
        raise UsageError(
            f"{what} must be one of {', '.join(map(str, typing.get_args(kind)))}, not"
            f" {quote(format_value(value))}."
        )
    if origin is tuple:
        inner, *_ = typing.get_args(kind)
        items = value if isinstance(value, tuple | list) else (value,)
        return tuple(coerce(what, item, inner) for item in items)
    return _coerce_to_one(what, value, kind)


def _coerce_to_any(what: str, value: object, choices: tuple[Any, ...]) -> Any:
    """Convert a value to the first of several types that it fits."""
    if value is None and type(None) in choices:
        return None
    for choice in (c for c in choices if c is not type(None)):
        try:
            return coerce(what, value, choice)
        except UsageError:
            continue
    *others, last = [word for choice in choices for word in _kind_words(choice)]
    allowed = f"{', '.join(others)} or {last}" if others else last
    raise UsageError(f"{what} must be {allowed}, not {quote(format_value(value))}.")


KIND_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def _kind_words(kind: Any) -> list[str]:
    """A type in words: a number, or the words that a choice allows."""
    if kind is type(None):
        return ["none"]
    if typing.get_origin(kind) is typing.Literal:
        return list(map(str, typing.get_args(kind)))
    return [KIND_WORDS.get(kind, str(kind))]


def _coerce_to_one(what: str, value: object, kind: Any) -> Any:
    """Convert a value to a number, a word or a bool.

    3 is also a float, 3.0 is also an integer, and every number is also a word.
    """
    if kind is int and isinstance(value, int | float) and abs(value) >= MAX_INT:
        raise UsageError(f"{what} is too large: whole numbers have at most 12 digits.")
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UsageError(f"{what} is too large: no number is larger than 1.8e308.") from None
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is str and isinstance(value, int | float):
        return format_value(value)
    if isinstance(value, kind) and (kind is bool) == isinstance(value, bool):
        return value
    raise UsageError(f"{what} must be {_kind_words(kind)[0]}, not {quote(format_value(value))}.")


def call(spec: Spec, function: Callable[..., T], *fixed: Any) -> T:
    """Call `function(*fixed, ...)` with the values of a spec, converted as its signature says.

    Raises `UsageError` for unknown, repeated or missing options, and for values of a wrong type.
    """
    return function(*fixed, **bind_options(spec, function, len(fixed)))


def bind_options(spec: Spec, function: Callable[..., Any], fixed: int) -> dict[str, Any]:
    """The values of a spec as keyword arguments of a function, converted as its signature says.

    The first `fixed` parameters of the function are not options. An option without an annotation
    gets the value as it was parsed. Raises as `call` does.
    """
    kinds = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[fixed:]
    names = [p.name for p in parameters]
    if len(spec.args) > len(names):
        raise UsageError(
            f"{spec.name} takes at most {len(names)} values, but {len(spec.args)} were given."
        )
    values = dict(zip(names, spec.args, strict=False))
    for name, option in spec.options.items():
        if name not in names:
            raise unknown(f"option of {spec.name} called", name, names)
        if name in values:
            raise UsageError(f"{spec} gives {name} twice.")
        values[name] = option
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in values]
    if missing:
        raise UsageError(
            f"{spec.name} needs {' and '.join(missing)}, as in {spec.name}({missing[0]}=...)."
        )
    return {
        name: coerce(f"{name} of {spec.name}", value, kinds[name]) if name in kinds else value
        for name, value in values.items()
    }
