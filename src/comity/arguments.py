"""Wrong arguments of public functions as errors in one sentence, in place of Python's TypeError."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

from comity.errors import UsageError, unknown

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def refuses_wrong_arguments(method: Callable[P, R]) -> Callable[P, R]:
    """Return a method that raises UsageError for missing, unknown or too many arguments.

    Examples:
        >>> class Data:
        ...     @refuses_wrong_arguments
        ...     def partition(self, spec, parties=None): ...
        >>> Data().partition("iid", partys=3)
        Traceback (most recent call last):
        comity.errors.UsageError: There is no argument of partition called 'partys'. Did you mean \
'parties'?
    """
    return _checked(method, method.__name__)


def checks_arguments(cls: type[T]) -> type[T]:
    """Return a class whose constructor raises UsageError for missing, unknown or too many
    arguments.
    """
    setattr(cls, "__init__", _checked(cls.__init__, cls.__name__))  # noqa: B010
    return cls


def _checked(function: Callable[P, R], name: str) -> Callable[P, R]:
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            raise _wrong_call(signature, name, args[1:], kwargs) from None
        return function(*args, **kwargs)

    return checked


def _wrong_call(
    signature: inspect.Signature, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> UsageError:
    """Return the error for arguments, without `self`, that do not fit a signature."""
    parameters = list(signature.parameters.values())[1:]
    names = [parameter.name for parameter in parameters]
    for keyword in kwargs:
        if keyword not in names:
            return unknown(f"argument of {name} called", keyword, names)
    if len(args) > len(names):
        return UsageError(f"{name} takes at most {len(names)} arguments, not {len(args)}.")
    if twice := next((n for n in names[: len(args)] if n in kwargs), None):
        return UsageError(f"{name} gets {twice} twice, by its position and by its name.")
    missing = [
        parameter.name
        for parameter in parameters[len(args) :]
        if parameter.default is parameter.empty and parameter.name not in kwargs
    ]
    example = ", ".join(f"{parameter}=..." for parameter in missing)
    return UsageError(f"{name} needs {' and '.join(missing)}: write {name}(..., {example}).")
