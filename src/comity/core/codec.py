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
    tensors: list[Tensor] = []
    index: dict[int, int] = {}
    seen: dict[int, int] = {}

    def walk(node: Any) -> Skeleton:
        if node is None or isinstance(node, PLAIN):
            return node
        if isinstance(node, Tensor):
            if id(node) not in index:
                index[id(node)] = len(tensors)
                tensors.append(node)
            return {"t": index[id(node)]}
        if isinstance(node, list):
            return [walk(item) for item in node]
        if isinstance(node, tuple):
            return {"u": [walk(item) for item in node]}
        if id(node) in seen:
            return {"s": seen[id(node)]}
        if isinstance(node, Sealed):
            if not (parcels and isinstance(unseal(node), Cipher)):
                raise ComityError("A sealed parcel lives for one call: it is never saved, and leaves a process locked only.")
            made: dict[str, Any] = {"x": walk(unseal(node)), "n": node.size}
        elif isinstance(node, dict):
            made = {"d": [[key, walk(item)] for key, item in node.items()]}
        elif is_record(node):
            made = {"r": name_of(type(node)), "v": [walk(getattr(node, f.name)) for f in fields(node)]}
        else:
            raise TypeError(f"{type(node).__name__} is neither a record nor a tensor, number, string, list, tuple or dict")
        seen[id(node)] = len(seen)
        return made

    return walk(tree), tensors


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
