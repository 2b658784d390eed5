"""Content of replies that contradicts what a method declares.

A method whose traits say that parties send weights may still send samples. Declarations are
trusted by wrappers, sites and readers, so that the account of a run compares replies with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from torch import Tensor

from comity.base.record import is_record
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Info
from comity.core.validate import shapes_on_wire
from comity.core.wrapper import chain

UNDECLARED_SAMPLES = "undeclared samples in "
"""How the account names a field with samples that its method does not declare."""


def undeclared_samples(
    outermost: AnyAlgorithm, depth: int, reply: Any, info: Info
) -> Iterator[str]:
    """The fields of a reply with rows in the form of samples, if no method of the chain declares
    that parties send samples.

    Weights of the model, and fields whose shapes the method declares, are not looked at: the first
    layer of a network may have the form of samples.
    """
    if any("samples" in owner.traits.leaves for owner in chain(outermost)):
        return
    names = dict.fromkeys(_fields_with_samples(reply, "message", info))
    if names:
        shapes = shapes_on_wire(outermost, depth, info.task, len(info.names))
        yield from (name for name in names if name not in shapes)


def _fields_with_samples(tree: Any, name: str, info: Info) -> Iterator[str]:
    if isinstance(tree, Tensor):
        if tree.dim() > 1 and tuple(tree.shape[1:]) == tuple(info.shape):
            yield name
    elif is_record(tree):
        for f in fields(tree):
            place = f"{type(tree).__name__}.{f.name}"
            yield from _fields_with_samples(getattr(tree, f.name), place, info)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            if not _is_weight(key, value, info):
                yield from _fields_with_samples(value, name, info)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _fields_with_samples(value, name, info)


def _is_weight(key: Any, value: Any, info: Info) -> bool:
    """Whether a value has the name and the shape of one of the model's weights."""
    if not isinstance(value, Tensor) or key not in info.task.shapes:
        return False
    return tuple(value.shape) == tuple(info.task.shapes[key][0])
