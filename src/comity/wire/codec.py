"""Encodes records without pickle: a JSON skeleton beside plain tensors.

`flatten` and `unflatten` separate and join the two. `encode` and `decode` write them as one
safetensors blob, for checkpoints and networks; the process engine puts the tensors into shared
memory instead.

`decode` accepts untrusted bytes: it returns a tree whose records are as declared and whose size is
proportional to the bytes, or raises `CorruptedFile`. `encode` writes nothing that `decode` would
refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from hashlib import blake2b
from typing import Any

from torch import Tensor

from comity.base.declared import mismatch
from comity.base.record import Cipher, Origin, Sealed, is_record, name_of, record_type, unseal
from comity.errors import ComityError, CorruptedFile
from comity.wire.blob import MOST_BYTES, InvalidBlob, header_of, read_blob, write_blob

Skeleton = Any
PLAIN = (bool, int, float, str)
LEAVES = frozenset((bool, float, str, type(None)))
"""Types that are written and read unchanged."""

MOST_LEVELS = 100
"""The maximum depth of a tree."""
FREE_NODES = 1 << 16
"""How many nodes a tree may have, with repeated objects counted each time: FREE_NODES, and one more
per byte of the blob.
"""
LEAST, MOST = -(1 << 63), 1 << 64
"""The range of integers: signed or unsigned 64 bits."""


def tree_digest(tree: Any) -> bytes:
    """A digest of all values in a tree."""
    return blake2b(encode(tree), digest_size=32).digest()


def corrupted_error(why: Exception) -> CorruptedFile:
    """The error to raise when a message or a saved state cannot be read."""
    return CorruptedFile(
        f"A message or a saved state could not be read ({_reason(why)}): it is damaged or foreign."
    )


def _reason(why: Exception) -> str:
    return str(why) if isinstance(why, InvalidBlob) else type(why).__name__


def flatten(tree: Any, sealed_messages: bool = False) -> tuple[Skeleton, list[Tensor]]:
    """A JSON-compatible skeleton and the tensors that it refers to. An object that occurs twice is
    written once.

    With `sealed_messages` the tree may contain sealed messages if they are encrypted: between
    processes, never on a disk.
    """
    flat = _Flat(sealed_messages)
    return flat.skeleton(tree), flat.tensors


class _Flat:
    """The state of `flatten`: the tensors so far, and the positions of tensors and objects by
    identity.
    """

    def __init__(self, sealed_messages: bool) -> None:
        self.tensors: list[Tensor] = []
        self._allow_sealed = sealed_messages
        self._index: dict[int, int] = {}
        self._positions: dict[int, int] = {}

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
        if id(node) in self._positions:
            return {"s": self._positions[id(node)]}
        skeleton = self._object(node)
        self._positions[id(node)] = len(self._positions)
        return skeleton

    def _place(self, tensor: Tensor) -> int:
        """The position of a tensor in the list."""
        if id(tensor) not in self._index:
            self._index[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._index[id(tensor)]

    def _object(self, node: Any) -> dict[str, Any]:
        """An object that is written once: a sealed message, a dict or a record."""
        if isinstance(node, Sealed):
            if not (self._allow_sealed and isinstance(unseal(node), Cipher)):
                raise ComityError(
                    "A sealed message is valid for one call: it is never saved, and leaves a"
                    " process encrypted only."
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
    """Join a skeleton from a trusted process with its tensors. Fields are not checked, and sealed
    messages are accepted.
    """
    try:
        return _Tree(tensors, sealed_messages=True, checked=False, most_nodes=1 << 62).whole(
            skeleton
        )
    except Exception as why:
        raise corrupted_error(why) from why


class _Tree:
    """The state of decoding: the objects so far, and the number of nodes of each."""

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
        """The number of tensors referred to so far. The first references to tensors are in
        order.
        """
        self._allow_sealed = sealed_messages
        self._checked = checked
        self._most_nodes = most_nodes
        self._records = records
        self._nodes = 1
        self._objects: list[Any] = []
        self._sizes: list[int] = []

    def whole(self, skeleton: Skeleton) -> Any:
        """The decoded tree of a skeleton, all of whose tensors must be referred to."""
        tree = self.node(skeleton, 0)
        if self.placed < len(self.tensors):
            raise InvalidBlob("it has tensors that nothing refers to")
        return tree

    def node(self, node: Skeleton, depth: int) -> Any:
        """A node and all below it."""
        kind = type(node)
        if kind is dict:
            return self._tensor(node["t"]) if "t" in node else self._object(node, depth)
        if kind is list:
            return self._items(node, depth)
        if kind is int and not LEAST <= node < MOST:
            raise InvalidBlob("a number in it has more than 64 bits")
        return node

    def _object(self, node: dict[str, Any], depth: int) -> Any:
        if "s" in node:
            return self._again(node["s"])
        if "u" in node:
            return tuple(self._items(node["u"], depth))
        before = self._nodes
        result: Any
        if "d" in node:
            result = self._dict(node["d"], depth)
        elif "r" in node:
            result = self._record(node["r"], self._items(node["v"], depth))
        else:
            result = self._sealed(self.node(node["x"], depth + 1), node["n"])
        self._sizes.append(self._nodes - before)
        self._objects.append(result)
        return result

    def _items(self, items: list[Skeleton], depth: int) -> list[Any]:
        self._enter(items, depth)
        return [item if type(item) in LEAVES else self.node(item, depth + 1) for item in items]

    def _enter(self, items: list[Skeleton], depth: int) -> None:
        if depth >= MOST_LEVELS or type(items) is not list:
            raise InvalidBlob(
                f"its tree is not made of lists, or is deeper than {MOST_LEVELS} levels"
            )
        self._nodes += len(items)

    def _tensor(self, number: int) -> Tensor:
        if type(number) is not int or not 0 <= number <= self.placed:
            raise InvalidBlob("it refers to a tensor out of turn")
        if number == self.placed:
            self.placed += 1
        return self.tensors[number]

    def _again(self, number: int) -> Any:
        """An object that occurred before. Its nodes count again, since all readers of the tree
        visit them again.
        """
        if type(number) is not int or not 0 <= number < len(self._objects):
            raise InvalidBlob("it refers to an object that is not there")
        self._nodes += self._sizes[number]
        if self._nodes > self._most_nodes:
            raise InvalidBlob("its tree is too large for its bytes")
        return self._objects[number]

    def _dict(self, pairs: list[list[Any]], depth: int) -> dict[Any, Any]:
        self._enter(pairs, depth)
        names = [name for name, _ in pairs]
        kinds = set(map(type, names))
        if not kinds <= {int, str}:
            raise InvalidBlob("names of a dict in it are neither texts nor whole numbers")
        if int in kinds:
            numbers = [name for name in names if type(name) is int]
            if min(numbers) < LEAST or max(numbers) >= MOST:
                # Larger integers could be chosen to collide in the dict.
                raise InvalidBlob("a number in it has more than 64 bits")
        items = {
            name: item if type(item) in LEAVES else self.node(item, depth + 1)
            for name, item in pairs
        }
        if len(items) < len(pairs):
            raise InvalidBlob("a name in it comes twice")
        return items

    def _record(self, name: str, values: list[Any]) -> Any:
        try:
            kind = record_type(name)
            if self._records is not None and kind not in self._records:
                raise InvalidBlob(f"a record {str(name)[:100]!r} has no place in it")
            result = kind(*values)
        except (KeyError, TypeError) as why:
            raise InvalidBlob(
                f"there is no record {str(name)[:100]!r} of {len(values)} fields"
            ) from why
        if self._checked and (wrong := mismatch(result)):
            raise InvalidBlob(wrong)
        return result

    def _sealed(self, content: Any, size: int) -> Sealed:
        if not self._allow_sealed:
            raise InvalidBlob("a sealed message is in it")
        if not isinstance(content, Cipher) or mismatch(content):
            raise InvalidBlob("a sealed message in it is not encrypted")
        if type(size) is not int or not 0 <= size < MOST:
            raise InvalidBlob("a sealed message in it has no size")
        return Sealed(content, size, tuple(content.to), Origin(content.sender, content.round))


def encode(tree: Any, sealed_messages: bool = False) -> bytes:
    """A tree as one safetensors blob, with its skeleton in the metadata.

    Raises ComityError if `decode` could not read it.
    """
    skeleton, tensors = flatten(tree, sealed_messages)
    try:
        blob = write_blob(skeleton, tensors)
        header_of(blob)
        _Tree(tensors, sealed_messages, checked=True, most_nodes=FREE_NODES + len(blob)).whole(
            skeleton
        )
    except Exception as why:
        raise ComityError(
            f"This cannot be saved, because it could not be read again: {_reason(why)}."
        ) from why
    return blob


def decode(
    blob: bytes | memoryview,
    sealed_messages: bool = False,
    most_bytes: int = MOST_BYTES,
    records: frozenset[type] | None = None,
) -> Any:
    """The tree in a blob. Its tensors are copies in newly allocated memory, since BLAS results can
    depend on alignment.

    `records` are the record types that it may contain (see `signature.records_of`); others are
    refused before they are created. Raises CorruptedFile if the blob is invalid.
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
    except Exception as why:  # invalid bytes can raise anything
        raise corrupted_error(why) from why
