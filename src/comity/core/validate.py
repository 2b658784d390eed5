"""Validation of messages: of a message before a party uses it, and of a reply before it leaves the
party and when it arrives at the server.

It is used where parties run in other processes or at other sites. The codec turns bytes into
records, of no other types than `MessageValidator.records`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from comity.base.call import CallId
from comity.base.declared import fits, mismatch, resolve_field_type
from comity.base.finite import first_not_finite, is_finite
from comity.base.record import Params, is_record, payload
from comity.core.accounting import WireShapes
from comity.core.algorithm import AnyAlgorithm
from comity.core.signature import (
    Signature,
    evaluation_message_type,
    party_functions,
    records_of,
    sealed_types,
    signature,
)
from comity.core.wrapper import chain, check_party_function
from comity.errors import UsageError
from comity.training.task import LearningTask
from comity.wire.blob import MOST_BYTES


@dataclass(frozen=True)
class MessageValidator:
    """Validates what passes between the server and one party in a run of an algorithm."""

    algorithm: AnyAlgorithm
    task: LearningTask
    """The party's task, without the changes of wrappers."""
    parties: int
    """The number of parties."""
    most_bytes: int = MOST_BYTES
    """The largest size of a message."""

    @cached_property
    def records(self) -> frozenset[type]:
        """The record types that may be in a message: for `codec.decode`."""
        return records_of(self.algorithm)

    @cached_property
    def _declared(self) -> dict[tuple[int, str], Signature]:
        return {
            place: signature(self.algorithm, *place) for place in party_functions(self.algorithm)
        }

    def check_message(self, call: CallId, content: Any) -> None:
        """Raise UsageError unless a message is of the type that the party function declares, fits
        the model, and is finite.
        """
        self.check_call(call)
        self._check(
            f"The message for {call.function}",
            content,
            self._declared[call.depth, call.function].message,
            call.depth,
        )
        _check_finite(f"The message for {call.function}", content)

    def check_reply(self, call: CallId, reply: Any) -> None:
        """Raise UsageError unless a reply is of the type that the party function declares, and fits
        the model.

        The server decides what happens to replies that are not finite.
        """
        self.check_call(call)
        self._check(
            f"The reply of {call.function}",
            reply,
            self._declared[call.depth, call.function].reply,
            call.depth,
        )

    def check_evaluation_message(self, content: Any) -> None:
        """Raise UsageError for a message that does not fit an evaluation."""
        self._check("The message for evaluate", content, evaluation_message_type(self.algorithm), 0)
        _check_finite("The message for evaluate", content)

    def check_sealed_message(self, content: Any) -> None:
        """Raise UsageError unless some party function declares that it seals such content.

        The receiving site drops sealed messages that are not finite, with a warning.
        """
        kinds = sealed_types(self.algorithm) or [Any]
        self._check(
            "The content of a sealed message",
            content,
            next((kind for kind in kinds if fits(content, kind)), kinds[0]),
            0,
        )

    def check_call(self, call: CallId) -> None:
        """Raise UsageError for a call of something that is no party function, or in no round."""
        check_party_function(self.algorithm, call.depth, call.function)
        if any(type(number) is not int or number < 0 for number in (call.round, call.occurrence)):
            raise UsageError(
                f"{call.function} is asked for in round {str(call.round)[:20]}, which is none."
            )

    def _check(self, what: str, tree: Any, declared_type: Any, depth: int) -> None:
        if payload(tree) > self.most_bytes:
            raise UsageError(
                f"{what} weighs {payload(tree):,} bytes, and no more than {self.most_bytes:,} may"
                " pass."
            )
        if declared_type is Any or isinstance(declared_type, TypeVar):
            raise UsageError(
                f"{what} has no declared type: annotate the message and the reply of the party"
                " function."
            )
        if not fits(tree, declared_type):
            raise UsageError(
                f"{what} should be {_words(declared_type)}, but the {type(tree).__name__} that came"
                " is not."
            )
        if wrong := _first_wrong(
            tree, "", shapes_on_wire(self.algorithm, depth, self.task, self.parties), self.task
        ):
            raise UsageError(f"{what} {wrong}.")


def shapes_on_wire(
    outermost: AnyAlgorithm, depth: int, task: LearningTask, parties: int
) -> WireShapes:
    """Shapes of what the party functions at `depth` of the chain send or receive beside the model's
    own weights, by field.
    """
    inside_out = reversed(chain(outermost)[depth:])
    return dict(
        shape
        for owner in inside_out
        for shape in owner.accounting.wire_shapes(task, parties).items()
    )


def _first_wrong(tree: Any, place: str, shapes: WireShapes, task: LearningTask) -> str:
    """The first error in the content of a message's field, in words; "" if there is none."""
    if isinstance(tree, Tensor):
        return _wrong_tensor(tree, place, shapes.get(place))
    if (
        isinstance(tree, dict)
        and tree
        and all(isinstance(value, Tensor) for value in tree.values())
    ):
        like = shapes.get(place, task)
        return _wrong_weights(tree, place, like) if isinstance(like, LearningTask) else ""
    if is_record(tree):
        if wrong := mismatch(tree):
            return f"is not as declared: {wrong}"
        inside = [(getattr(tree, f.name), f"{type(tree).__name__}.{f.name}") for f in fields(tree)]
        if free := [
            f.name
            for f in fields(tree)
            if resolve_field_type(type(tree), f) is Any and getattr(tree, f.name) is not None
        ]:
            return f"has something in {free[0]}, and nobody says what that is"
    elif isinstance(tree, dict | list | tuple):
        inside = [(value, place) for value in (tree.values() if isinstance(tree, dict) else tree)]
    else:
        return ""
    return next(
        filter(None, (_first_wrong(value, name, shapes, task) for value, name in inside)), ""
    )


def _wrong_tensor(value: Tensor, place: str, like: LearningTask | tuple[int, ...] | None) -> str:
    if not isinstance(like, tuple):
        return ""
    if value.dim() == len(like) and all(
        want in (-1, side) for want, side in zip(like, value.shape, strict=True)
    ):
        return ""
    return f"has {[*value.shape]} as the shape of {place}, where {[*like]} belongs (-1: any)"


def _wrong_weights(theta: Params, place: str, like: LearningTask) -> str:
    for name, value in theta.items():
        if name not in like.shapes or name in like.private:
            return (
                f"has {str(name)[:100]!r} in {place or 'it'}, which is not of the model, or stays"
                " with its party"
            )
        if (tuple(value.shape), value.dtype) != (like.shapes[name][0], like.dtypes[name]):
            right = _kind(like.shapes[name][0], like.dtypes[name])
            return (
                f"has {_kind(tuple(value.shape), value.dtype)} as {name} in {place or 'it'}, where"
                f" {right} belongs"
            )
    return ""


def _kind(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """As in float32[10, 4]."""
    return f"{str(dtype).removeprefix('torch.')}{[*shape]}"


def _words(hint: Any) -> str:
    """A type as it is written in source code."""
    return (
        hint.__name__
        if isinstance(hint, type) and not hasattr(hint, "__args__")
        else re.sub(r"[\w.]+\.(\w+)", r"\1", str(hint))
    )


def _check_finite(what: str, tree: Any) -> None:
    if not is_finite(tree):
        raise UsageError(f"{what} has values that are not finite: {first_not_finite(tree)}.")
