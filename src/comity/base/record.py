"""Records: the frozen dataclasses that all states and messages consist of.

A record is a torch pytree, so its tensors can be mapped, stacked and counted. It is registered by
name, so that the codec can rebuild it from a wire or a checkpoint.
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
"""The content of a sealed message."""
Params = dict[str, Tensor]

_BY_NAME: dict[str, type] = {}
_TYPES: set[type] = set()


def name_of(cls: type) -> str:
    """The name that the codec writes for a record type."""
    return f"{cls.__module__}:{cls.__qualname__}"


EARLIER_MODULES = {
    "comity.core.record:": "comity.base.record:",
    "comity.core.fit:": "comity.training.requests:",
    "comity.core.training:": "comity.training.settings:",
    "comity.core.evaluation:": "comity.metrics.evaluation:",
    "comity.experiments.common:Introduction": "comity.runs.context:PartyInfo",
    "comity.parts.": "comity.components.",
    "comity.sites.": "comity.deploy.",
}
"""Prefixes of the names that earlier versions wrote for records, and their current equivalents."""


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


def register_earlier_name(cls: type, name: str) -> None:
    """Let the codec also find a record type by an earlier name, as states that were saved with it
    have it.
    """
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
    """The party whose reply contained a sealed message, and the round."""

    sender: int
    round: int


class Sealed(Generic[X]):
    """A message between parties. Its carrier learns its `size` and recipients (`to`), and nothing
    else.

    It has no accessor and cannot be printed, copied or pickled; only a recipient's site opens it.
    It gets its `origin` when it leaves its sender's site. Between processes its content is a
    `Cipher` whose keys the carrier never has. A party function declares the content's type, as in
    `Sealed[Model]`; recipients in other processes accept no other type.
    """

    __slots__ = ("__content", "__opening_calls", "origin", "size", "to")

    def __init__(
        self, content: X, size: int, to: tuple[int, ...], origin: Origin | None = None
    ) -> None:
        self.__content = content
        self.__opening_calls: dict[int, CallId] = {}
        self.size = size
        self.to = to
        self.origin = origin

    def __repr__(self) -> str:
        return f"<a sealed message of {self.size} bytes>"

    def __reduce__(self) -> str:
        raise TypeError("a sealed message cannot be copied or pickled")


def seal(content: X, to: int | Iterable[int]) -> Sealed[X]:
    """Seal a record for one or several other parties, by number. Its bytes are charged to each edge
    that it travels on.
    """
    return Sealed(content, payload(content), (to,) if isinstance(to, int) else tuple(to))


def unseal(sealed: Sealed) -> Any:
    """The content of a sealed message, for code that encrypts it before it leaves a process, and
    for tests.
    """
    return sealed._Sealed__content  # type: ignore[attr-defined]


def set_origin(tree: Any, sender: int, round: int) -> None:
    """Record the sender and round of all sealed messages in a reply that leaves its site."""
    for sealed in sealed_in(tree):
        origin = Origin(sender, round)
        if sealed.origin not in (None, origin):
            raise ComityError(
                "A sealed message left its site twice: a party must seal a new message in each"
                " round."
            )
        sealed.origin = origin


def sealed_in(tree: Any) -> list[Sealed]:
    """All sealed messages in a tree, each as often as it occurs."""
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


def open_sealed(sealed: Sealed, sender: int, recipient: int, call: CallId) -> Any:
    """The content of a sealed message at its recipient's site.

    Raises ComityError if the message is from another round or sender, or was opened for another
    call.
    """
    check_address(sealed, sender, recipient, call.round)
    opening_calls: dict[int, CallId] = sealed._Sealed__opening_calls  # type: ignore[attr-defined]
    if opening_calls.setdefault(recipient, call) != call:
        raise ComityError(OPENED_TWICE)
    return unseal(sealed)


def check_address(sealed: Sealed, sender: int, recipient: int, round: int) -> None:
    """Refuse a sealed message that is not for this party in this round, or not from the stated
    sender.
    """
    if recipient not in sealed.to:
        raise ComityError("A sealed message came to a party that it is not for.")
    if sealed.origin != (sender, round):
        raise ComityError(
            "A sealed message came in another round than it was sent in, or from another party"
            " than it was sent by."
        )


OPENED_TWICE = "A sealed message came a second time: it is valid for one call only."


leaves: Callable[[Any], list[Any]] = pytree.tree_leaves
"""leaves(tree): all leaves of a tree, in order."""
tree_map: Callable[[Callable[[Any], Any], Any], Any] = pytree.tree_map
"""tree_map(function, tree): the same tree with `function` applied to each leaf."""


class ReadOnlyDict(dict[Any, Any]):
    """A dict that a loss can read but not write to."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise ComityError(READ_ONLY)

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse


class ReadOnlyList(list[Any]):
    """A list that a loss can read but not write to."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise ComityError(READ_ONLY)

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse


READ_ONLY = (
    "A loss may not write to its arguments: values that it keeps from batch to batch go into"
    " batch.scratch."
)
PLAIN = (Tensor, bool, int, float, str, bytes, type(None))


def read_only(tree: Any) -> Any:
    """A tree as losses receive it: read-only dicts and lists around the same tensors, with copies
    of arrays.

    It may contain records, dicts, lists, tuples, tensors, numpy arrays and plain values only. For
    any other object it is unknown whether it is the same for all parties, or whether a loss changes
    it.
    """
    if isinstance(tree, PLAIN):
        return tree
    if isinstance(tree, np.ndarray) and not tree.dtype.hasobject:
        # A copy, since torch makes no tensors of read-only views. `tensor_versions` detects writes.
        return tree.copy()
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
        "The aux argument of a loss must be a record of tensors and plain values, but it holds"
        f" a {type(tree).__name__}."
    )


def _with_fields(old: Any, values: dict[str, Any]) -> Any:
    """A record of the same type with other field values, which skips the checks of its
    constructor.
    """
    new = object.__new__(type(old))
    new.__dict__.update(values)
    return new


def tensor_versions(tree: Any) -> list[int]:
    """The version counter of each tensor and the hash of each array in a tree: they change when one
    is written to.
    """
    if tree is None:
        return []
    versions = []
    for leaf in leaves(tree):
        if isinstance(leaf, Tensor) and not leaf.is_inference():
            versions.append(leaf._version)
        elif isinstance(leaf, np.ndarray):
            versions.append(hash(leaf.tobytes()))
    return versions


def _register_read_only() -> None:
    """Register the read-only containers as pytrees."""
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
    """The same tree with its tensors on `device`. Meta tensors stay as they are."""
    return tree_map(
        lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) and not leaf.is_meta else leaf,
        tree,
    )


def meta_like(tree: Any) -> Any:
    """The same tree with its tensors on torch's `meta` device: equal shapes and sizes, without
    content.
    """
    return tree_map(
        lambda leaf: torch.empty_like(leaf, device="meta") if isinstance(leaf, Tensor) else leaf,
        tree,
    )


PLAIN_BYTES: dict[type, int] = {bool: 1, int: 4, float: 4, type(None): 0}
"""The bytes that plain values of exactly these types are charged for."""


def payload(tree: Any) -> int:
    """The bytes that a message is charged for: tensors by size, 4 per number, 1 per bool, the UTF-8
    bytes of strings.

    Framing (field names, shapes) is not counted. A sealed message is charged to its own edge.
    """
    plain = PLAIN_BYTES.get(type(tree))
    if plain is not None:
        return plain
    if isinstance(tree, Tensor):
        return tree.nbytes
    if isinstance(tree, dict):
        return sum(map(payload, tree.values()))
    if is_record(tree):
        return sum(map(payload, vars(tree).values()))
    return sum(map(payload, tree)) if isinstance(tree, list | tuple) else _other_payload(tree)


def _other_payload(value: Any) -> int:
    """The bytes of a string, or of a number of a derived type; 0 for types that are not counted."""
    if isinstance(value, int | float):
        return 4
    return len(value.encode()) if isinstance(value, str) else 0


@record
class Cipher:
    """The encrypted content of a sealed message, outside of its sender's and recipients' processes.

    The content is encrypted once, with a key of its own. `keys` holds that key once per recipient,
    encrypted for that recipient.
    """

    sender: int
    round: int
    to: list[int]
    keys: Tensor
    blob: Tensor


@record
class Empty:
    """A message without content."""


@record
class Model:
    """Weights in a message: parameters, and the buffers that are exchanged with them."""

    theta: Params = describe(WEIGHTS)


def keep(theta: Params, names: frozenset[str]) -> Params:
    """The entries of `theta` with these names."""
    return {k: v for k, v in theta.items() if k in names}


def drop(theta: Params, names: frozenset[str]) -> Params:
    """The entries of `theta` without these names."""
    return {k: v for k, v in theta.items() if k not in names}


def is_buffer(name: str) -> bool:
    """Whether a name is that of a buffer (running statistics): it contains `~`. Buffers are
    exchanged but never trained.
    """
    return "~" in name


def trainable(theta: Params) -> Params:
    """The parameters without the buffers."""
    return {k: v for k, v in theta.items() if not is_buffer(k)}
