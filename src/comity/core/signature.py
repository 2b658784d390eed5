"""Signatures of party functions: the types of messages and replies, and so the records that may be
on the wire.

Annotations are resolved along inheritance: `M` in a subclass of
`AveragesWeights[Params, C, Model]` is Model, and a method without annotations has those of the
method that it overrides.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from comity.base.content import Content, record_contents, reply_content
from comity.base.declared import resolve_field_type
from comity.base.record import Cipher, Empty, Sealed, is_record_type
from comity.core.algorithm import AnyAlgorithm
from comity.core.wrapper import Hosts, chain, party_function_names


class Signature(NamedTuple):
    """The types of a party function's message and reply; Any where they are not annotated."""

    message: Any
    reply: Any


def signature(outermost: AnyAlgorithm, depth: int, name: str) -> Signature:
    """The signature of the party function `name` of the algorithm at `depth` of the chain."""
    owners = chain(outermost)[depth:]
    hints = _annotation(type(owners[0]), name, 1), reply_type(type(owners[0]), name)
    return Signature(*(_resolve_host(owners, hint) for hint in hints))


def reply_type(cls: type, name: str) -> Any:
    """What a party function of a class declares to reply; Any where it does not say."""
    state_and_reply = get_args(_annotation(cls, name, "return"))
    return state_and_reply[1] if len(state_and_reply) == 2 else Any


def message_type(cls: type) -> Any:
    """What `message_for` of a class declares to send."""
    return _annotation(cls, "message_for", "return")


def evaluation_message_type(outermost: AnyAlgorithm) -> Any:
    """The type of the message with which a party evaluates the model that it would deploy."""
    return Empty if outermost.traits.self_contained else _resolve_host(chain(outermost), Hosts)


def party_functions(outermost: AnyAlgorithm) -> list[tuple[int, str]]:
    """All party functions: the depth of each in the chain, and its name."""
    return [
        (depth, name)
        for depth, owner in enumerate(chain(outermost))
        for name in sorted(party_function_names(type(owner)))
    ]


def wire_types(outermost: AnyAlgorithm) -> list[Any]:
    """The types of all messages and replies between the server and a party."""
    return [
        evaluation_message_type(outermost),
        *(hint for place in party_functions(outermost) for hint in signature(outermost, *place)),
    ]


def sealed_types(outermost: AnyAlgorithm) -> list[Any]:
    """The types of all sealed messages between parties."""
    return [
        get_args(hint)[0] for hint in _parts(wire_types(outermost)) if get_origin(hint) is Sealed
    ]


def sealed_fields(outermost: AnyAlgorithm, depth: int, name: str) -> list[str]:
    """The fields of a party function's reply that go sealed to other parties, named as by
    `fields_on_wire`.
    """
    kinds = [
        get_args(hint)[0]
        for hint in _parts([signature(outermost, depth, name).reply])
        if get_origin(hint) is Sealed
    ]
    return [field for kind in kinds for field in fields_on_wire(kind)]


def fields_on_wire(hint: Any) -> list[str]:
    """The fields of a message of a type that hold anything, as in "Model.theta"; "message" where it
    is no record.

    A field that holds records stands for itself and for their fields.
    """
    kinds = [
        kind
        for part in _parts([hint])
        if is_record_type(kind := get_origin(part) or part) and kind is not Cipher
    ]
    names = [
        f"{kind.__name__}.{f.name}"
        for kind in kinds
        for f in fields(kind)
        if not records_in(resolve_field_type(kind, f))
    ]
    return names if kinds or hint in (None, type(None)) else ["message"]


def reply_contents(outermost: AnyAlgorithm, depth: int, name: str) -> dict[str, Content | None]:
    """What the fields of a party function's reply hold, as they are described where they are
    declared; None for a field without a description. Names are those of `fields_on_wire`.
    """
    reply = signature(outermost, depth, name).reply
    described: dict[str, Content | None] = {
        "message": reply_content(type(chain(outermost)[depth]), name)
    }
    for kind in records_in(reply):
        described |= record_contents(kind)
    return {field: described.get(field) for field in fields_on_wire(reply)}


def records_in(*hints: Any) -> frozenset[type]:
    """The record types that occur in these types, and in the fields of those."""
    kinds = (get_origin(hint) or hint for hint in _parts(list(hints)))
    return frozenset(kind for kind in kinds if is_record_type(kind))


def records_of(outermost: AnyAlgorithm) -> frozenset[type]:
    """The record types that may be in messages, replies and sealed messages."""
    return records_in(*wire_types(outermost)) | {Cipher}


def _parts(hints: list[Any]) -> Iterator[Any]:
    """The types, their type arguments, and the types of the fields of records among them, each
    once.
    """
    earlier: list[Any] = []
    while hints:
        hint = hints.pop()
        if hint in earlier:
            continue
        earlier.append(hint)
        yield hint
        hints += get_args(hint)
        kind = get_origin(hint) or hint
        if is_record_type(kind):
            hints += [resolve_field_type(kind, f) for f in fields(kind)]


def _resolve_host(owners: list[AnyAlgorithm], hint: Any) -> Any:
    """The type itself; for `Hosts`, the type that the `message_for` of the first host in the chain
    declares.
    """
    if hint != Hosts:
        return hint
    types = (message_type(type(owner)) for owner in owners)
    return next((kind for kind in types if kind not in (Any, Hosts)), Any)


def _annotation(cls: type, name: str, what: int | str) -> Any:
    """The type of a method's n-th argument, or of its result ("return"), from the first class of
    the inheritance that annotates it.
    """
    for base in cls.__mro__:
        if name in vars(base):
            method = inspect.unwrap(vars(base)[name])
            names = list(inspect.signature(method).parameters)[1:]
            annotation = inspect.get_annotations(method).get(
                names[what] if isinstance(what, int) else what, inspect.Parameter.empty
            )
            if annotation is not inspect.Parameter.empty:
                return _bind(_evaluate(annotation, method.__globals__), _bindings(cls, base))
    return Any


def _evaluate(annotation: Any, names: dict[str, Any]) -> Any:
    try:
        return get_type_hints(
            SimpleNamespace(__annotations__={"it": annotation}), names, include_extras=True
        )["it"]
    except Exception:  # evaluating a user's annotation may raise anything
        return Any


def _bindings(cls: type, base: type) -> dict[Any, Any]:
    """The types that the type variables of `base` have in its subclass `cls`."""
    if cls is base:
        return {}
    for generic_base in vars(cls).get("__orig_bases__", cls.__bases__):
        parent = get_origin(generic_base) or generic_base
        if parent is not Generic and issubclass(parent, base):
            variables = getattr(parent, "__parameters__", ())
            here = dict(zip(variables, get_args(generic_base), strict=False))
            above = (
                _bindings(parent, base)
                if parent is not base
                else {var: var for var in getattr(base, "__parameters__", ())}
            )
            return {var: _bind(hint, here) for var, hint in above.items()}
    return {}


def _bind(hint: Any, bindings: dict[Any, Any]) -> Any:
    """A type with its type variables replaced. Variables without a binding stay."""
    if isinstance(hint, TypeVar):
        return bindings.get(hint, hint)
    free = () if isinstance(hint, type) else getattr(hint, "__parameters__", ())
    return hint[tuple(bindings.get(var, var) for var in free)] if free else hint
