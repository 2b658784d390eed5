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


class UndeclaredSamples:
    """Finds samples in replies, if no method of the chain declares that parties send samples.

    Weights of the model, and fields whose shapes the method declares, are not looked at: the first
    layer of a network may have the form of samples.
    """

    def __init__(self, outermost: AnyAlgorithm, info: Info) -> None:
        self._outermost = outermost
        self._info = info
        self._declared = any("samples" in owner.traits.leaves for owner in chain(outermost))
        self._weight_shapes = {name: shape for name, (shape, _) in info.task.shapes.items()}

    def fields_of(self, reply: Any, depth: int) -> list[str]:
        """The fields of a reply with rows in the form of samples. The party function belongs to
        the algorithm at `depth` of the chain.
        """
        if self._declared:
            return []
        names = dict.fromkeys(self._fields_with_samples(reply, "message"))
        if not names:
            return []
        shapes = shapes_on_wire(self._outermost, depth, self._info.task, len(self._info.names))
        return [name for name in names if name not in shapes]

    def _fields_with_samples(self, tree: Any, name: str) -> Iterator[str]:
        if isinstance(tree, Tensor):
            if tree.dim() > 1 and tuple(tree.shape[1:]) == tuple(self._info.shape):
                yield name
        elif is_record(tree):
            for f in fields(tree):
                place = f"{type(tree).__name__}.{f.name}"
                yield from self._fields_with_samples(getattr(tree, f.name), place)
        elif isinstance(tree, dict):
            for key, value in tree.items():
                is_weight = isinstance(value, Tensor) and self._weight_shapes.get(key) == tuple(
                    value.shape
                )
                if not is_weight:
                    yield from self._fields_with_samples(value, name)
        elif isinstance(tree, list | tuple):
            for value in tree:
                yield from self._fields_with_samples(value, name)
