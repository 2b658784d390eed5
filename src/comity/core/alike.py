"""One function in place of several that differ only in the tensors they hold.

Parties' losses are closures of the same code over each party's own tensors: its previous model, its offset, the letter it got.
`join` finds those tensors, stacks them, and makes a loss of the same code around whatever slices `vmap` puts in their places.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

Make = Callable[[Sequence[Tensor]], Any]


class Unlike(Exception):
    """These cannot be one: they differ in more than their tensors."""


def join(values: Sequence[Any]) -> tuple[list[Tensor], Make]:
    """The stacked tensors by which `values` differ, and what makes one value of as many tensors."""
    stacked: list[Tensor] = []
    return stacked, _join(values, stacked)


def _join(values: Sequence[Any], stacked: list[Tensor]) -> Make:
    first = values[0]
    if all(v is first for v in values):
        return lambda tensors: first
    if any(type(v) is not type(first) for v in values):
        raise Unlike
    if isinstance(first, Tensor):
        if any(v.shape != first.shape or v.dtype != first.dtype for v in values):
            raise Unlike
        place = len(stacked)
        stacked.append(torch.stack([v.detach() for v in values]))
        return lambda tensors: tensors[place]
    if isinstance(first, FunctionType):
        return _functions(values, stacked)
    if isinstance(first, MethodType):
        owner, function = _join([v.__self__ for v in values], stacked), first.__func__
        if any(v.__func__ is not function for v in values):
            raise Unlike
        return lambda tensors: MethodType(function, owner(tensors))
    if isinstance(first, partial):
        parts = _join([(v.func, v.args, v.keywords) for v in values], stacked)

        def bound(tensors: Sequence[Tensor]) -> Any:
            function, args, keywords = parts(tensors)
            return partial(function, *args, **keywords)

        return bound
    if isinstance(first, dict):
        if any(list(v) != list(first) for v in values):
            raise Unlike
        items = {k: _join([v[k] for v in values], stacked) for k in first}
        return lambda tensors: FixedDict((k, make(tensors)) for k, make in items.items())
    if isinstance(first, list | tuple):
        if any(len(v) != len(first) for v in values):
            raise Unlike
        each = [_join(column, stacked) for column in zip(*values, strict=True)]
        kind: Callable[[Any], Any] = FixedList if isinstance(first, list) else tuple
        return lambda tensors: kind(make(tensors) for make in each)
    if is_dataclass(first) and not isinstance(first, type):
        return _dataclasses(values, stacked)
    if all(v == first for v in values):
        return lambda tensors: first
    raise Unlike


def _functions(values: Sequence[Any], stacked: list[Tensor]) -> Make:
    first = values[0]
    if any(v.__code__ is not first.__code__ for v in values) or _assigns(first.__code__):
        raise Unlike
    defaults = _join([(v.__defaults__, v.__kwdefaults__) for v in values], stacked)
    cells = _join([tuple(c.cell_contents for c in v.__closure__ or ()) for v in values], stacked)

    def made(tensors: Sequence[Tensor]) -> Any:
        positional, named = defaults(tensors)
        closure = tuple(CellType(content) for content in cells(tensors))
        function = FunctionType(first.__code__, first.__globals__, first.__name__, positional, closure)
        function.__kwdefaults__ = named
        return function

    return made


@cache
def _assigns(code: CodeType) -> bool:
    """Whether a function writes to variables around it: what it wrote would be lost with its copy."""
    return any(i.opname in ("STORE_DEREF", "DELETE_DEREF") and i.argval in code.co_freevars for i in dis.get_instructions(code))


class FixedDict(dict[Any, Any]):
    """A dict that a loss may read but not write to."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise Unlike

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse


class FixedList(list[Any]):
    """A list that a loss may read but not write to."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise Unlike

    __setitem__ = __delitem__ = __iadd__ = append = extend = insert = pop = remove = clear = sort = _refuse


def _dataclasses(values: Sequence[Any], stacked: list[Tensor]) -> Make:
    first = values[0]
    names = [f.name for f in fields(first)]
    parts = _join([tuple(getattr(v, n) for n in names) for v in values], stacked)

    def made(tensors: Sequence[Tensor]) -> Any:
        whole = object.__new__(type(first))  # checked when it was made: only its tensors are others now
        for name, part in zip(names, parts(tensors), strict=True):
            object.__setattr__(whole, name, part)
        return whole

    return made
