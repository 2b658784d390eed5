"""Records: the frozen dataclasses that every state and every message is made of.

A record is a torch pytree, so its tensors can be mapped, stacked and counted, and it is known by
name, so that the codec can rebuild it on the other side of a wire or from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, dataclass_transform

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from typing_extensions import TypeVar

from comity.base.call import CallId
from comity.base.content import WEIGHTS, describe
from comity.errors import ComityError

C = TypeVar("C", bound=type)
X = TypeVar("X", default=Any)
"""What is in a parcel."""
Params = dict[str, Tensor]

_BY_NAME: dict[str, type] = {}
_TYPES: set[type] = set()


def name_of(cls: type) -> str:
    """The name under which the codec knows a record type."""
    return f"{cls.__module__}:{cls.__qualname__}"


EARLIER_MODULES = {
    "comity.base.record:": "comity.base.record:",
    "comity.core.fit:": "comity.training.requests:",
    "comity.core.training:": "comity.training.settings:",
    "comity.core.evaluation:": "comity.metrics.evaluation:",
    "comity.experiments.common:Introduction": "comity.runs.context:PartyInfo",
    "comity.components.": "comity.components.",
    "comity.sites.": "comity.deploy.",
}
"""Beginnings of names under which earlier versions saved records, and what they are now."""


def record_type(name: str) -> type:
    """Return the record type of that name, which may be one of an earlier version.

    Raises KeyError if no imported module defines it.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    for earlier, current in EARLIER_MODULES.items():
        if name.startswith(earlier):
            return _BY_NAME[current + name.removeprefix(earlier)]
    raise KeyError(name)


def once_called(cls: type, name: str) -> None:
    """Have the codec find a record type by an earlier name, too, under which states were saved."""
    _BY_NAME[name] = cls


def is_record(value: object) -> bool:
    """Whether `value` is an instance of a record type."""
    return type(value) in _TYPES


def is_record_type(cls: object) -> bool:
    """Whether `cls` is a record type."""
    return isinstance(cls, type) and cls in _TYPES


@dataclass_transform(frozen_default=True, field_specifiers=(field, describe))
def record(cls: C) -> C:
    """Make `cls` a record: frozen, a pytree, and known to the codec."""
    frozen: C = dataclass(frozen=True)(cls)  # type: ignore[assignment]
    pytree.register_dataclass(frozen)
    _BY_NAME[name_of(frozen)] = frozen
    _TYPES.add(frozen)
    return frozen


class Origin(NamedTuple):
    """Whose reply a parcel left in, and in which round."""

    sender: int
    round: int


class Sealed(Generic[X]):
    """A parcel between parties: whoever carries it learns its `size` and whom it is for (`to`), and
    nothing else.

    There is no accessor, and it can be neither printed, copied nor pickled; a recipient's site
    opens it. It gets its `origin` when it leaves its sender's site. Between processes the content
    is a `Cipher`, whose keys the carrier never had. A work declares what is in it, `Sealed[Model]`,
    for its recipients elsewhere, who open nothing else.
    """

    __slots__ = ("__content", "__opened", "origin", "size", "to")

    def __init__(
        self, content: X, size: int, to: tuple[int, ...], origin: Origin | None = None
    ) -> None:
        self.__content = content
        self.__opened: dict[int, CallId] = {}
        self.size = size
        self.to = to
        self.origin = origin

    def __repr__(self) -> str:
        return f"<a sealed parcel of {self.size} bytes>"

    def __reduce__(self) -> str:
        raise TypeError("a sealed parcel cannot be copied or pickled")


def seal(content: X, to: int | Iterable[int]) -> Sealed[X]:
    """Close a record for one other party or several, by their numbers; it is charged to each edge
    it travels on.
    """
    return Sealed(content, payload(content), (to,) if isinstance(to, int) else tuple(to))


def unseal(sealed: Sealed) -> Any:
    """What a parcel holds: for whoever locks parcels before they leave a process, and for tests."""
    return sealed._Sealed__content  # type: ignore[attr-defined]


def post(tree: Any, sender: int, round: int) -> None:
    """Mark all parcels in a reply as they leave their sender's site."""
    for sealed in sealed_in(tree):
        mark = Origin(sender, round)
        if sealed.origin not in (None, mark):
            raise ComityError(
                "A sealed parcel left its site twice: in each round a party seals what it sends"
                " anew."
            )
        sealed.origin = mark


def sealed_in(tree: Any) -> list[Sealed]:
    """All parcels in a tree, each as often as it occurs."""
    if isinstance(tree, Sealed):
        return [tree]
    if isinstance(tree, dict):
        inside: Iterable[Any] = tree.values()
    elif is_record(tree):
        inside = vars(tree).values()
    elif isinstance(tree, list | tuple):
        inside = tree
    else:
        return []
    return [sealed for item in inside if not isinstance(item, Tensor) for sealed in sealed_in(item)]


def received(sealed: Sealed, sender: int, recipient: int, call: CallId) -> Any:
    """What a parcel holds, for a recipient's site: in its round, from its sender, and for one call
    only.
    """
    check_address(sealed, sender, recipient, call.round)
    opened: dict[int, CallId] = sealed._Sealed__opened  # type: ignore[attr-defined]
    if opened.setdefault(recipient, call) != call:
        raise ComityError(TWICE)
    return unseal(sealed)


def check_address(sealed: Sealed, sender: int, recipient: int, round: int) -> None:
    """Refuse a parcel that is not for this party in this round, or not from whom it is said to be."""
    if recipient not in sealed.to:
        raise ComityError("A sealed parcel came to a party that it is not for.")
    if sealed.origin != (sender, round):
        raise ComityError(
            "A sealed parcel came in another round than it was sent in, or from another party than"
            " it was sent by."
        )


TWICE = "A sealed parcel came a second time: it lives for one call."


def leaves(tree: Any) -> list[Any]:
    """All leaves of a tree, in order."""
    return pytree.tree_leaves(tree)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with `function` applied to each leaf."""
    return pytree.tree_map(function, tree)


class ReadOnlyDict(dict[Any, Any]):
    """A dict that a loss may read but not write to."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise ComityError(READ_ONLY)

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse


class ReadOnlyList(list[Any]):
    """A list that a loss may read but not write to."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise ComityError(READ_ONLY)

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse


READ_ONLY = (
    "A loss may not write to what it is given: what it notes from batch to batch goes into"
    " batch.scratch."
)
PLAIN = (Tensor, bool, int, float, str, bytes, type(None))


def read_only(tree: Any) -> Any:
    """A tree as losses get it: dicts and lists that refuse to be written to, around the same
    tensors and copies of arrays.

    Only records, dicts, lists, tuples, tensors, numpy arrays and plain values may be in it: of any
    other object nobody knows whether it is the same for all parties, or what a loss does to it.
    """
    if isinstance(tree, PLAIN):
        return tree
    if isinstance(tree, np.ndarray) and not tree.dtype.hasobject:
        return tree.copy()  # not a read-only view, of which torch can make no tensor; `marks` tell whether it was written to
    if is_record(tree):
        return _with_fields(tree, {name: read_only(value) for name, value in vars(tree).items()})
    if isinstance(tree, dict):
        return ReadOnlyDict((key, read_only(value)) for key, value in tree.items())
    if isinstance(tree, list):
        return ReadOnlyList(map(read_only, tree))
    if isinstance(tree, tuple):
        values = map(read_only, tree)
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    raise ComityError(
        "What a loss gets beside its batch is a record of tensors and plain values, but a"
        f" {type(tree).__name__} is in it."
    )


def _with_fields(old: Any, values: dict[str, Any]) -> Any:
    """A record of the same type with other fields: it was checked when it was made."""
    made = object.__new__(type(old))
    made.__dict__.update(values)
    return made


def marks(tree: Any) -> list[int]:
    """A mark of each tensor and array in a tree: another list later tells that one was written to."""
    if tree is None:
        return []
    found = []
    for leaf in leaves(tree):
        if isinstance(leaf, Tensor) and not leaf.is_inference():
            found.append(leaf._version)
        elif isinstance(leaf, np.ndarray):
            found.append(hash(leaf.tobytes()))
    return found


def _register_read_only() -> None:
    """To map and stack read-only trees as all others."""
    pytree.register_pytree_node(
        ReadOnlyDict,
        lambda tree: (list(tree.values()), list(tree)),
        lambda values, names: ReadOnlyDict(zip(names, values, strict=True)),
        flatten_with_keys_fn=lambda tree: (
            [(pytree.MappingKey(k), v) for k, v in tree.items()],
            list(tree),
        ),
    )
    pytree.register_pytree_node(
        ReadOnlyList,
        lambda tree: (list(tree), None),
        lambda values, _: ReadOnlyList(values),
        flatten_with_keys_fn=lambda tree: (
            [(pytree.SequenceKey(n), v) for n, v in enumerate(tree)],
            None,
        ),
    )


_register_read_only()


def on_device(tree: Any, device: torch.device) -> Any:
    """The same tree with its tensors on `device`; hollow ones are nowhere, and stay as they are."""
    return tree_map(
        lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) and not leaf.is_meta else leaf,
        tree,
    )


def meta_like(tree: Any) -> Any:
    """The same tree, its tensors without content (on torch's `meta` device): they weigh what they
    weighed, and tell nothing.
    """
    return tree_map(
        lambda leaf: torch.empty_like(leaf, device="meta") if isinstance(leaf, Tensor) else leaf,
        tree,
    )


def payload(tree: Any) -> int:
    """Bytes that a message weighs: its tensors, 4 for a number, 1 for a truth value, the letters of
    a string.

    Framing (names of fields, shapes) is not counted, and a sealed parcel is charged to its own
    edge.
    """
    if isinstance(tree, Tensor):
        return tree.nbytes
    if isinstance(tree, dict):
        return sum(map(payload, tree.values()))
    if is_record(tree):
        return sum(map(payload, vars(tree).values()))
    if isinstance(tree, list | tuple):
        return sum(map(payload, tree))
    return _plain_payload(tree)


def _plain_payload(value: Any) -> int:
    """Bytes that a plain value weighs; what is not counted weighs nothing."""
    if isinstance(value, bool):
        return 1
    if isinstance(value, int | float):
        return 4
    if isinstance(value, str):
        return len(value.encode())
    return 0


@record
class Cipher:
    """A parcel's content while it is outside of the processes where its sender and its recipients
    live.

    It is encrypted once, by a key of its own; `keys` has that key for each recipient, locked for it
    alone.
    """

    sender: int
    round: int
    to: list[int]
    keys: Tensor
    blob: Tensor


@record
class Empty:
    """A message with nothing in it."""


@record
class Model:
    """Weights on their way: parameters, and whatever buffers travel with them."""

    theta: Params = describe(WEIGHTS)


def keep(theta: Params, names: frozenset[str]) -> Params:
    """The part of `theta` that `names` names."""
    return {k: v for k, v in theta.items() if k in names}


def drop(theta: Params, names: frozenset[str]) -> Params:
    """The part of `theta` that `names` does not name."""
    return {k: v for k, v in theta.items() if k not in names}


def is_buffer(name: str) -> bool:
    """Buffers (running statistics) carry a `~` in their names: they travel with the weights but are
    never trained.
    """
    return "~" in name


def trainable(theta: Params) -> Params:
    """The parameters without the buffers."""
    return {k: v for k, v in theta.items() if not is_buffer(k)}
