"""Records to bytes and back, without pickle: a JSON skeleton beside plain tensors.

`flatten` and `unflatten` are the codec proper; `encode` and `decode` put both halves into one
safetensors blob (for checkpoints and networks), while the process engine lays the tensors in shared
memory instead.

`decode` is a gate: whatever bytes it is given, it returns a tree that is as its records declare and
that costs its readers in proportion to the bytes, or it raises `CorruptedFile`. `encode` writes
nothing that `decode` would refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor

from comity.base.declared import mismatch
from comity.base.record import Cipher, Origin, Sealed, is_record, name_of, record_type, unseal
from comity.errors import ComityError, CorruptedFile
from comity.wire.blob import MOST_BYTES, Wrong, header_of, read_blob, write_blob

Skeleton = Any
PLAIN = (bool, int, float, str)
LEAVES = frozenset((bool, float, str, type(None)))
"""What stays as it is on both ways, without a look."""

MOST_LEVELS = 100
"""How deep a tree may be."""
FREE_NODES = 1 << 16
"""How many nodes a tree may have, what occurs twice counted twice: so many, and one more for each
byte of the blob.
"""
LEAST, MOST = -(1 << 63), 1 << 64
"""Whole numbers are of 64 bits."""


def damaged(why: Exception) -> CorruptedFile:
    """What is raised when something cannot be read."""
    return CorruptedFile(
        f"A message or a saved state could not be read ({_reason(why)}): it is damaged or foreign."
    )


def _reason(why: Exception) -> str:
    return str(why) if isinstance(why, Wrong) else type(why).__name__


def flatten(tree: Any, sealed_messages: bool = False) -> tuple[Skeleton, list[Tensor]]:
    """A JSON-able skeleton and the tensors it refers to; an object that occurs twice is written
    once.

    With `sealed_messages` there may be sealed ones in it, if they are locked: on their way between
    processes, never on a disk.
    """
    flat = _Flat(sealed_messages)
    return flat.skeleton(tree), flat.tensors


class _Flat:
    """A tree while it is taken apart: the tensors found so far, and by identity where those and
    other objects are.
    """

    def __init__(self, sealed_messages: bool) -> None:
        self.tensors: list[Tensor] = []
        self._sealed_rows = sealed_messages
        self._index: dict[int, int] = {}
        self._seen: dict[int, int] = {}

    def skeleton(self, node: Any) -> Skeleton:
        """A node without its tensors."""
        if node is None or isinstance(node, PLAIN):
            return node
        if isinstance(node, Tensor):
            return {"t": self._place(node)}
        if isinstance(node, list):
            return [item if type(item) in LEAVES else self.skeleton(item) for item in node]
        if isinstance(node, tuple):
            return {"u": [self.skeleton(item) for item in node]}
        if id(node) in self._seen:
            return {"s": self._seen[id(node)]}
        made = self._object(node)
        self._seen[id(node)] = len(self._seen)
        return made

    def _place(self, tensor: Tensor) -> int:
        """Where a tensor is among the others."""
        if id(tensor) not in self._index:
            self._index[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._index[id(tensor)]

    def _object(self, node: Any) -> dict[str, Any]:
        """What is written once: a parcel, a dict or a record."""
        if isinstance(node, Sealed):
            if not (self._sealed_rows and isinstance(unseal(node), Cipher)):
                raise ComityError(
                    "A sealed parcel lives for one call: it is never saved, and leaves a process"
                    " locked only."
                )
            return {"x": self.skeleton(unseal(node)), "n": node.size}
        if isinstance(node, dict):
            return {
                "d": [
                    [key, item if type(item) in LEAVES else self.skeleton(item)]
                    for key, item in node.items()
                ]
            }
        if is_record(node):
            return {
                "r": name_of(type(node)),
                "v": [self.skeleton(getattr(node, f.name)) for f in fields(node)],
            }
        raise TypeError(
            f"{type(node).__name__} is neither a record nor a tensor, number, string, list, tuple"
            " or dict"
        )


def unflatten(skeleton: Skeleton, tensors: Sequence[Tensor]) -> Any:
    """What `flatten` took apart in a process that is one of ours: fields are not checked, parcels
    are let through.
    """
    try:
        return _Tree(tensors, sealed_messages=True, checked=False, most_nodes=1 << 62).whole(
            skeleton
        )
    except Exception as why:
        raise damaged(why) from why


class _Tree:
    """A tree while it is put together: the objects made so far, and how many nodes each has."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        sealed_messages: bool,
        checked: bool,
        most_nodes: int,
        records: frozenset[type] | None = None,
    ) -> None:
        self.tensors = tensors
        self.placed = 0
        """How many tensors were referred to; each is for the first time after all those before it.
        """
        self._sealed_rows = sealed_messages
        self._checked = checked
        self._most_nodes = most_nodes
        self._records = records
        self._nodes = 1
        self._made: list[Any] = []
        self._sizes: list[int] = []

    def whole(self, skeleton: Skeleton) -> Any:
        """All of it."""
        made = self.node(skeleton, 0)
        if self.placed < len(self.tensors):
            raise Wrong("it has tensors that nothing refers to")
        return made

    def node(self, node: Skeleton, depth: int) -> Any:
        """A node and all below it."""
        kind = type(node)
        if kind is dict:
            return self._tensor(node["t"]) if "t" in node else self._object(node, depth)
        if kind is list:
            return self._items(node, depth)
        if kind is int and not LEAST <= node < MOST:
            raise Wrong("a number in it has more than 64 bits")
        return node

    def _object(self, node: dict[str, Any], depth: int) -> Any:
        if "s" in node:
            return self._again(node["s"])
        if "u" in node:
            return tuple(self._items(node["u"], depth))
        before = self._nodes
        made: Any
        if "d" in node:
            made = self._dict(node["d"], depth)
        elif "r" in node:
            made = self._record(node["r"], self._items(node["v"], depth))
        else:
            made = self._parcel(self.node(node["x"], depth + 1), node["n"])
        self._sizes.append(self._nodes - before)
        self._made.append(made)
        return made

    def _items(self, items: list[Skeleton], depth: int) -> list[Any]:
        self._enter(items, depth)
        return [item if type(item) in LEAVES else self.node(item, depth + 1) for item in items]

    def _enter(self, items: list[Skeleton], depth: int) -> None:
        if depth >= MOST_LEVELS or type(items) is not list:
            raise Wrong(f"its tree is not made of lists, or is deeper than {MOST_LEVELS} levels")
        self._nodes += len(items)

    def _tensor(self, number: int) -> Tensor:
        if type(number) is not int or not 0 <= number <= self.placed:
            raise Wrong("it refers to a tensor out of turn")
        if number == self.placed:
            self.placed += 1
        return self.tensors[number]

    def _again(self, number: int) -> Any:
        """An object that occurred before: it counts again, as all who go through the tree will meet
        it again.
        """
        if type(number) is not int or not 0 <= number < len(self._made):
            raise Wrong("it refers to an object that is not there")
        self._nodes += self._sizes[number]
        if self._nodes > self._most_nodes:
            raise Wrong("its tree is too large for its bytes")
        return self._made[number]

    def _dict(self, pairs: list[list[Any]], depth: int) -> dict[Any, Any]:
        self._enter(pairs, depth)
        names = [name for name, _ in pairs]
        kinds = set(map(type, names))
        if not kinds <= {int, str}:
            raise Wrong("names of a dict in it are neither texts nor whole numbers")
        if int in kinds:
            numbers = [name for name in names if type(name) is int]
            if min(numbers) < LEAST or max(numbers) >= MOST:
                raise Wrong(
                    "a number in it has more than 64 bits"
                )  # of such there could be many in one place of a dict
        made = {
            name: item if type(item) in LEAVES else self.node(item, depth + 1)
            for name, item in pairs
        }
        if len(made) < len(pairs):
            raise Wrong("a name in it comes twice")
        return made

    def _record(self, name: str, values: list[Any]) -> Any:
        try:
            kind = record_type(name)
            if self._records is not None and kind not in self._records:
                raise Wrong(f"a record {str(name)[:100]!r} has no place in it")
            made = kind(*values)
        except (KeyError, TypeError) as why:
            raise Wrong(f"there is no record {str(name)[:100]!r} of {len(values)} fields") from why
        if self._checked and (wrong := mismatch(made)):
            raise Wrong(wrong)
        return made

    def _parcel(self, content: Any, size: int) -> Sealed:
        if not self._sealed_rows:
            raise Wrong("a sealed parcel is in it")
        if not isinstance(content, Cipher) or mismatch(content):
            raise Wrong("a sealed parcel in it is not locked")
        if type(size) is not int or not 0 <= size < MOST:
            raise Wrong("a sealed parcel in it has no size")
        return Sealed(content, size, tuple(content.to), Origin(content.sender, content.round))


def encode(tree: Any, sealed_messages: bool = False) -> bytes:
    """A tree as one safetensors blob, its skeleton in the metadata."""
    skeleton, tensors = flatten(tree, sealed_messages)
    try:
        blob = write_blob(skeleton, tensors)
        header_of(blob)
        _Tree(tensors, sealed_messages, checked=True, most_nodes=FREE_NODES + len(blob)).whole(
            skeleton
        )
    except Exception as why:
        raise ComityError(
            f"This is not written down, as it could not be read again: {_reason(why)}."
        ) from why
    return blob


def decode(
    blob: bytes,
    sealed_messages: bool = False,
    most_bytes: int = MOST_BYTES,
    records: frozenset[type] | None = None,
) -> Any:
    """The tree in a blob; its tensors lie in fresh memory, as BLAS results can depend on alignment.

    `records` are the types that may be in it (see `signature.records_of`): another one is refused,
    not made.
    """
    try:
        skeleton, tensors = read_blob(blob, most_bytes)
        return _Tree(
            tensors,
            sealed_messages,
            checked=True,
            most_nodes=FREE_NODES + len(blob),
            records=records,
        ).whole(skeleton)
    except Exception as why:  # whatever bytes that nobody wrote lead to
        raise damaged(why) from why
