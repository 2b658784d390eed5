"""Records to bytes and back, without pickle: a JSON skeleton beside plain tensors.

`flatten` and `unflatten` are the codec proper; `encode` and `decode` put both halves into one safetensors blob (for
checkpoints and networks), while the process engine lays the tensors in shared memory instead.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from comity.core.record import Cipher, Sealed, is_record, name_of, record_type, unseal
from comity.errors import ComityError

Skeleton = Any
PLAIN = (bool, int, float, str)


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
            return [self.skeleton(item) for item in node]
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
            return {"d": [[key, self.skeleton(item)] for key, item in node.items()]}
        if is_record(node):
            return {"r": name_of(type(node)), "v": [self.skeleton(getattr(node, f.name)) for f in fields(node)]}
        raise TypeError(f"{type(node).__name__} is neither a record nor a tensor, number, string, list, tuple or dict")


def unflatten(skeleton: Skeleton, tensors: list[Tensor]) -> Any:
    """What `flatten` took apart."""
    seen: list[Any] = []

    def walk(node: Skeleton) -> Any:
        if not isinstance(node, dict):
            return [walk(item) for item in node] if isinstance(node, list) else node
        if "t" in node:
            return tensors[node["t"]]
        if "s" in node:
            return seen[node["s"]]
        if "u" in node:
            return tuple(walk(item) for item in node["u"])
        made: Any
        if "x" in node:
            made = Sealed(walk(node["x"]), node["n"])
        elif "d" in node:
            made = {key: walk(item) for key, item in node["d"]}
        else:
            made = record_type(node["r"])(*[walk(item) for item in node["v"]])
        seen.append(made)
        return made

    return walk(skeleton)


def encode(tree: Any) -> bytes:
    """A tree as one safetensors blob, its skeleton in the metadata."""
    skeleton, tensors = flatten(tree)
    # Fresh memory for each: safetensors refuses tensors that share storage, and a view would drag its base along.
    named = {str(i): t.detach().to("cpu", copy=True).contiguous() for i, t in enumerate(tensors)}
    blob: bytes = safetensors.torch.save(named, metadata={"tree": json.dumps(skeleton)})
    return blob


def decode(blob: bytes) -> Any:
    """The tree in a blob; its tensors lie in fresh memory, as BLAS results can depend on alignment."""
    try:
        length = int.from_bytes(blob[:8], "little")
        skeleton = json.loads(json.loads(blob[8 : 8 + length])["__metadata__"]["tree"])
        named = safetensors.torch.load(blob)
        tensors = [torch.clone(named[str(i)]) for i in range(len(named))]
        return unflatten(skeleton, tensors)
    except Exception as why:
        raise ComityError(f"A saved state could not be read ({type(why).__name__}): it is damaged or foreign.") from why
