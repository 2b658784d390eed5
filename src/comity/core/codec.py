"""Records to bytes and back, without pickle: a JSON skeleton beside plain tensors.

`flatten` and `unflatten` are the codec proper; `encode` and `decode` put both halves into one safetensors blob (for
checkpoints and networks), while the process engine lays the tensors in shared memory instead.

`decode` is a gate: whatever bytes it is given, it returns a tree that is as its records declare and that costs its readers in
proportion to the bytes, or it raises `Damaged`. `encode` writes nothing that `decode` would refuse.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from math import prod
from typing import Any

import torch
from torch import Tensor

from comity.core.declared import mismatch
from comity.core.record import Cipher, Postmark, Sealed, is_record, name_of, record_type, unseal
from comity.errors import ComityError, Damaged

Skeleton = Any
PLAIN = (bool, int, float, str)
LEAVES = frozenset((bool, float, str, type(None)))
"""What stays as it is on both ways, without a look."""

MOST_BYTES = 1 << 36
"""How large a blob may be, unless told."""
MOST_HEADER_BYTES = 100_000_000
"""How much of it may be names, shapes and skeleton: safetensors reads no more."""
MOST_LEVELS = 100
"""How deep a tree may be."""
FREE_BRACKETS, BYTES_A_BRACKET = 1 << 16, 8
"""How many lists and objects a header may hold (each takes up to 300 bytes of memory): so many, and one more for each 8 bytes of
the blob. A tensor has five of them, in a hundred bytes at least."""
FREE_NODES = 1 << 18
"""How many nodes a tree may have, what occurs twice counted twice: so many, and one more for each byte of the blob."""
MOST_SIDES, MOST_EMPTY = 32, 1 << 26
"""How many sides a tensor may have, and how large they may be together in one that holds nothing."""
LEAST, MOST = -(1 << 63), 1 << 64
"""Whole numbers are of 64 bits."""

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16, "U32": torch.uint32,
    "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16,
    "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
"""Kinds of tensors by the names that safetensors has for them."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def damaged(why: Exception) -> Damaged:
    """What is raised when something cannot be read."""
    return Damaged(f"A message or a saved state could not be read ({_reason(why)}): it is damaged or foreign.")


def _reason(why: Exception) -> str:
    return str(why) if isinstance(why, _Wrong) else type(why).__name__


class _Wrong(Exception):
    """What is wrong with a blob, in a few words."""


def flatten(tree: Any, parcels: bool = False) -> tuple[Skeleton, list[Tensor]]:
    """A JSON-able skeleton and the tensors it refers to; an object that occurs twice is written once.

    With `parcels` there may be sealed ones in it, if they are locked: on their way between processes, never on a disk.
    """
    flat = _Flat(parcels)
    return flat.skeleton(tree), flat.tensors


class _Flat:
    """A tree while it is taken apart: the tensors found so far, and by identity where those and other objects are."""

    def __init__(self, parcels: bool) -> None:
        self.tensors: list[Tensor] = []
        self._parcels = parcels
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
            if not (self._parcels and isinstance(unseal(node), Cipher)):
                raise ComityError("A sealed parcel lives for one call: it is never saved, and leaves a process locked only.")
            return {"x": self.skeleton(unseal(node)), "n": node.size}
        if isinstance(node, dict):
            return {"d": [[key, item if type(item) in LEAVES else self.skeleton(item)] for key, item in node.items()]}
        if is_record(node):
            return {"r": name_of(type(node)), "v": [self.skeleton(getattr(node, f.name)) for f in fields(node)]}
        raise TypeError(f"{type(node).__name__} is neither a record nor a tensor, number, string, list, tuple or dict")


def unflatten(skeleton: Skeleton, tensors: Sequence[Tensor]) -> Any:
    """What `flatten` took apart in a process that is one of ours: fields are not checked, parcels are let through."""
    try:
        return _Tree(tensors, parcels=True, checked=False, most_nodes=1 << 62).whole(skeleton)
    except Exception as why:
        raise damaged(why) from why


class _Tree:
    """A tree while it is put together: the objects made so far, and how many nodes each has."""

    def __init__(self, tensors: Sequence[Tensor], parcels: bool, checked: bool, most_nodes: int) -> None:
        self.tensors = tensors
        self.placed = 0
        """How many tensors were referred to; each is for the first time after all those before it."""
        self._parcels = parcels
        self._checked = checked
        self._most_nodes = most_nodes
        self._nodes = 1
        self._made: list[Any] = []
        self._sizes: list[int] = []

    def whole(self, skeleton: Skeleton) -> Any:
        """All of it."""
        made = self.node(skeleton, 0)
        if self.placed < len(self.tensors):
            raise _Wrong("it has tensors that nothing refers to")
        return made

    def node(self, node: Skeleton, depth: int) -> Any:
        """A node and all below it."""
        kind = type(node)
        if kind is dict:
            return self._tensor(node["t"]) if "t" in node else self._object(node, depth)
        if kind is list:
            return self._items(node, depth)
        if kind is int and not LEAST <= node < MOST:
            raise _Wrong("a number in it has more than 64 bits")
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
            raise _Wrong(f"its tree is not made of lists, or is deeper than {MOST_LEVELS} levels")
        self._nodes += len(items)

    def _tensor(self, number: int) -> Tensor:
        if type(number) is not int or not 0 <= number <= self.placed:
            raise _Wrong("it refers to a tensor out of turn")
        if number == self.placed:
            self.placed += 1
        return self.tensors[number]

    def _again(self, number: int) -> Any:
        """An object that occurred before: it counts again, as all who go through the tree will meet it again."""
        if type(number) is not int or not 0 <= number < len(self._made):
            raise _Wrong("it refers to an object that is not there")
        self._nodes += self._sizes[number]
        if self._nodes > self._most_nodes:
            raise _Wrong("its tree is too large for its bytes")
        return self._made[number]

    def _dict(self, pairs: list[list[Any]], depth: int) -> dict[Any, Any]:
        self._enter(pairs, depth)
        made = {key: item if type(item) in LEAVES else self.node(item, depth + 1) for key, item in pairs}
        kinds = set(map(type, made))
        if len(made) < len(pairs) or not kinds <= {int, str}:
            raise _Wrong("names of a dict in it are not texts and whole numbers, or come twice")
        if int in kinds:
            numbers = [key for key in made if type(key) is int]
            if min(numbers) < LEAST or max(numbers) >= MOST:
                raise _Wrong("a number in it has more than 64 bits")
        return made

    def _record(self, name: str, values: list[Any]) -> Any:
        try:
            made = record_type(name)(*values)
        except (KeyError, TypeError) as why:
            raise _Wrong(f"there is no record {str(name)[:100]!r} of {len(values)} fields") from why
        if self._checked and (wrong := mismatch(made)):
            raise _Wrong(wrong)
        return made

    def _parcel(self, content: Any, size: int) -> Sealed:
        if not self._parcels:
            raise _Wrong("a sealed parcel is in it")
        if not isinstance(content, Cipher) or mismatch(content):
            raise _Wrong("a sealed parcel in it is not locked")
        if type(size) is not int or not 0 <= size < MOST:
            raise _Wrong("a sealed parcel in it has no size")
        return Sealed(content, size, tuple(content.to), Postmark(content.sender, content.round))


def encode(tree: Any, parcels: bool = False) -> bytes:
    """A tree as one safetensors blob, its skeleton in the metadata."""
    skeleton, tensors = flatten(tree, parcels)
    blob = _blob(json.dumps(skeleton), tensors)
    try:
        _header(blob, MOST_BYTES)
        _Tree(tensors, parcels, checked=True, most_nodes=FREE_NODES + len(blob)).whole(skeleton)
    except Exception as why:
        raise ComityError(f"This is not written down, as it could not be read again: {_reason(why)}.") from why
    return blob


def decode(blob: bytes, parcels: bool = False, most_bytes: int = MOST_BYTES) -> Any:
    """The tree in a blob; its tensors lie in fresh memory, as BLAS results can depend on alignment."""
    try:
        text = _header(blob, most_bytes)
        header = HEADERS.decode(text)
        skeleton = _skeleton(header.pop("__metadata__")["tree"])
        tensors = _tensors(header, bytearray(memoryview(blob)[8 + len(text) :]))
        return _Tree(tensors, parcels, checked=True, most_nodes=FREE_NODES + len(blob)).whole(skeleton)
    except Exception as why:  # whatever bytes that nobody wrote lead to
        raise damaged(why) from why


def _blob(skeleton: str, tensors: list[Tensor]) -> bytes:
    """Tensors after a header that says where each lies; those of large numbers first, so that all are aligned."""
    header: dict[str, Any] = {"__metadata__": {"tree": skeleton}}
    parts: list[Any] = []
    at = 0
    for i in sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size()):
        tensor = tensors[i].detach().cpu().contiguous()
        header[str(i)] = {"dtype": NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [at, at + tensor.nbytes]}
        parts.append(tensor.view(-1).view(torch.uint8).numpy())
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _header(blob: bytes, most_bytes: int) -> str:
    """Names, shapes and skeleton as text, if reading them takes no more memory than a blob of that size may ask for."""
    length = int.from_bytes(blob[:8], "little")
    if len(blob) > most_bytes or length > min(MOST_HEADER_BYTES, len(blob) - 8):
        raise _Wrong("it is too large, or not whole")
    if blob.count(b"[", 8, 8 + length) + blob.count(b"{", 8, 8 + length) > FREE_BRACKETS + len(blob) // BYTES_A_BRACKET:
        raise _Wrong("it has too many parts for its bytes")
    return str(memoryview(blob)[8 : 8 + length], "ascii")


def _all_different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _Wrong("a name in it comes twice")
    return made


HEADERS = json.JSONDecoder(object_pairs_hook=_all_different)


def _skeleton(text: str) -> Skeleton:
    skeleton = json.loads(text)
    if "\\u" in text or not text.isascii():
        json.dumps(skeleton, ensure_ascii=False).encode()  # an error if there are halves of letters, which nobody could send on
    return skeleton


def _tensors(header: dict[str, Any], data: bytearray) -> list[Tensor]:
    """The tensors in `data`, each in memory of its own: they lie one after the other, and nothing else is there."""
    begins: dict[int, int] = {}
    tensors = []
    for i in range(len(header)):
        told = header[str(i)]
        begin, end = told["data_offsets"]
        tensors.append(_tensor(DTYPES[told["dtype"]], told["shape"], data, begin, end - begin))
        if end > begin:
            begins[begin] = end
    at = 0
    while at in begins:
        at = begins.pop(at)
    if begins or at != len(data):
        raise _Wrong("its tensors do not lie one after the other")
    return tensors


def _tensor(dtype: torch.dtype, shape: list[int], data: bytearray, begin: int, size: int) -> Tensor:
    if len(shape) > MOST_SIDES or any(type(side) is not int or side < 0 for side in shape):
        raise _Wrong("a tensor in it has no shape")
    count = prod(shape)
    if count * dtype.itemsize != size or (not count and prod(max(side, 1) for side in shape) > MOST_EMPTY):
        raise _Wrong("a tensor in it is not of its size")
    if not count:
        return torch.empty(shape, dtype=dtype)
    made = torch.frombuffer(data, dtype=dtype, count=count, offset=begin).clone().view(shape)
    if dtype is torch.bool and made.view(torch.uint8).max() > 1:
        raise _Wrong("a truth value in it is neither true nor false")
    return made
