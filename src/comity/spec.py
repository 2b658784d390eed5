"""The small grammar in which partitions, models, test protocols and algorithms are named on a
command line.

name                      iid
name(option=value, ...)   dirichlet(alpha=0.1,min=10)
name(value)               own(0.25)
name(option=a,b,c)        shift(kinds=rotate,invert,noise)      a list: bare words continue the option before them
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from comity.errors import UsageError, shown, unknown

MAX_INT = 10**12
"""No count of anything reaches it; further on 64 bits overflow."""
T = TypeVar("T")
Value = bool | int | float | str | tuple[Any, ...]


@dataclass(frozen=True)
class Spec:
    """A parsed `name(...)`: positional values, then options."""

    name: str
    args: tuple[Value, ...] = ()
    options: dict[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = [show(a) for a in self.args] + [f"{k}={show(v)}" for k, v in self.options.items()]
        return f"{self.name}({','.join(inside)})" if inside else self.name


def show(value: object) -> str:
    """A value as the grammar writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(show(v) for v in value)
    try:
        return str(value)
    except ValueError:  # Python does not spell out numbers of more than some thousand digits
        raise UsageError(
            "There is a number of thousands of digits, which nothing here takes."
        ) from None


def split(text: str, separator: str) -> list[str]:
    """Cut `text` at `separator`, but not inside parentheses."""
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


def value(text: str) -> Value:
    """`true`, `3`, `0.1`, or a word."""
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
    """Read one `name(...)`."""
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
            options[key] = value(right)
            last = key
        elif last:
            so_far = options[last]
            options[last] = (
                (*so_far, value(part)) if isinstance(so_far, tuple) else (so_far, value(part))
            )
        else:
            args.append(value(part))
    return Spec(name, tuple(args), options)


def coerce(what: str, given: object, kind: Any) -> Any:
    """`given` as the annotated type `kind`, or a refusal that says what is wanted."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _any_of(what, given, typing.get_args(kind))
    if origin is typing.Literal:
        if given in typing.get_args(kind):
            return given
        raise UsageError(
            f"{what} must be one of {', '.join(map(str, typing.get_args(kind)))}, not"
            f" {shown(show(given))}."
        )
    if origin is tuple:
        inner, *_ = typing.get_args(kind)
        return tuple(
            coerce(what, g, inner) for g in (given if isinstance(given, tuple | list) else (given,))
        )
    return _single(what, given, kind)


def _any_of(what: str, given: object, choices: tuple[Any, ...]) -> Any:
    """`given` as the first of several types that it fits."""
    if given is None and type(None) in choices:
        return None
    for choice in (c for c in choices if c is not type(None)):
        try:
            return coerce(what, given, choice)
        except UsageError:
            continue
    raise UsageError(f"{what} cannot be {shown(show(given))}.")


def _single(what: str, given: object, kind: Any) -> Any:
    """One number, word, or true or false: 3 is a float as well, 3.0 a whole number, and any number
    a word.
    """
    if kind is int and isinstance(given, int | float) and abs(given) >= MAX_INT:
        raise UsageError(f"{what} is too large: whole numbers have at most 12 digits.")
    if kind is float and isinstance(given, int | float) and not isinstance(given, bool):
        try:
            return float(given)
        except OverflowError:
            raise UsageError(f"{what} is too large: no number is larger than 1.8e308.") from None
    if kind is int and isinstance(given, float) and given.is_integer():
        return int(given)
    if kind is str and isinstance(given, int | float):
        return show(given)
    if isinstance(given, kind) and (kind is bool) == isinstance(given, bool):
        return given
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    raise UsageError(f"{what} must be {names.get(kind, kind)}, not {shown(show(given))}.")


def call(spec: Spec, function: Callable[..., T], *fixed: Any) -> T:
    """Call `function(*fixed, ...)` with the spec's values, checked against the function's own
    signature.
    """
    hints = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[len(fixed) :]
    names = [p.name for p in parameters]
    if len(spec.args) > len(names):
        raise UsageError(
            f"{spec.name} takes at most {len(names)} values, but {len(spec.args)} were given."
        )
    given = dict(zip(names, spec.args, strict=False))
    for name, option in spec.options.items():
        if name not in names:
            raise unknown(f"option of {spec.name} called", name, names)
        if name in given:
            raise UsageError(f"{spec} gives {name} twice.")
        given[name] = option
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in given]
    if missing:
        raise UsageError(
            f"{spec.name} needs {' and '.join(missing)}, as in {spec.name}({missing[0]}=...)."
        )
    return function(
        *fixed, **{n: coerce(f"{n} of {spec.name}", v, hints[n]) for n, v in given.items()}
    )
