"""Checks of what a method declares about its messages, for Comity's own methods and for others."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from torch import Tensor

from comity.base.declared import resolve_field_type
from comity.base.record import Params, is_record_type
from comity.core import AnyAlgorithm, LearningTask
from comity.core.signature import _parts, party_functions, sealed_types, signature, wire_types
from comity.core.wrapper import chain
from comity.models import build
from comity.training.task import batchnorm_private

NETWORK = build("fedbn-cnn(scale=0.06)", (1, 8, 8), 10)
PRIVATE = batchnorm_private(NETWORK, "params_only")
TASK = LearningTask(NETWORK, 10, NETWORK.cut, PRIVATE)
MODELS = (Params, dict[int, Params])


def check_types(method: AnyAlgorithm) -> None:
    """All messages and replies have a type."""
    for place in party_functions(method):
        for hint in signature(method, *place):
            assert hint is not Any, place
            assert not isinstance(hint, TypeVar), place


def check_shapes(method: AnyAlgorithm) -> None:
    """All tensors in messages are weights of the model, or have a declared shape."""
    kinds = [
        kind
        for kind in _parts([*wire_types(method), *sealed_types(method)])
        if is_record_type(kind)
    ]
    types = {
        f"{kind.__name__}.{f.name}": resolve_field_type(kind, f)
        for kind in kinds
        for f in fields(kind)
    }
    tensors = {name for name, hint in types.items() if Tensor in _parts([hint])}
    weights = {name for name, hint in types.items() if hint in MODELS}
    shapes: dict[str, Any] = {}
    for owner in chain(method):
        shapes |= owner.accounting.wire_shapes(TASK, 4)
    assert shapes.keys() <= tensors
    assert tensors - weights <= shapes.keys()
