"""Trees as plain bytes, for transports that carry bytes: a header with the skeleton (JSON), and the
tensors in bundles.

What several recipients get is in a bundle that is sent once. Each tensor starts at a multiple of 64
bytes of fresh memory, as torch's own do: results of BLAS can depend on alignment, and all engines
must agree bit for bit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comity.wire.channel import ALIGN, places_of, views_at, write_tensors
from comity.wire.codec import flatten, unflatten

Bytes = NDArray[np.uint8]


def laid_out(tensors: Sequence[Tensor]) -> tuple[list[list[Any]], Bytes]:
    """Where tensors lie in a bundle, and the bundle."""
    places, size = places_of(list(tensors))
    bundle = np.empty(size, np.uint8)
    if size:
        write_tensors(tensors, places, bundle.data)
    return places, bundle


def packed(tree: Any) -> tuple[bytes, Bytes]:
    """A tree as a header and one bundle."""
    skeleton, tensors = flatten(tree, sealed_messages=True)
    places, bundle = laid_out(tensors)
    return json.dumps([skeleton, [places], [[0, k] for k in range(len(tensors))]]).encode(), bundle


def packed_for(trees: Mapping[int, Any]) -> tuple[dict[int, tuple[bytes, list[int]]], list[Bytes]]:
    """Trees for several recipients: each one's header and the numbers of its bundles, and all
    bundles.

    Tensors that go to the same recipients are in one bundle, so that what all get is there once.
    """
    flat = {w: flatten(tree, sealed_messages=True) for w, tree in trees.items()}
    found: dict[int, Tensor] = {}
    wanted: dict[int, list[int]] = defaultdict(list)
    for w, (_, tensors) in flat.items():
        for tensor in tensors:
            found[id(tensor)] = tensor
            wanted[id(tensor)].append(w)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for name, recipients in wanted.items():
        groups[tuple(recipients)].append(name)
    where = {
        name: (g, k) for g, group in enumerate(groups.values()) for k, name in enumerate(group)
    }
    bundles = [laid_out([found[name] for name in group]) for group in groups.values()]
    posts = {}
    for w, (skeleton, tensors) in flat.items():
        own = [g for g, recipients in enumerate(groups) if w in recipients]
        refers = [[own.index(g), k] for g, k in (where[id(tensor)] for tensor in tensors)]
        posts[w] = json.dumps([skeleton, [bundles[g][0] for g in own], refers]).encode(), own
    return posts, [bundle for _, bundle in bundles]


def unpacked(header: bytes, *bundles: Bytes) -> Any:
    """The tree again; its tensors lie in fresh memory, as others may read a bundle too."""
    skeleton, places, refers = json.loads(header)
    tensors = [views_at(own, _copied(bundle)) for own, bundle in zip(places, bundles, strict=True)]
    return unflatten(skeleton, [tensors[b][k] for b, k in refers])


def _copied(bundle: Bytes) -> memoryview | None:
    """A bundle in memory of its own, aligned."""
    if not bundle.size:
        return None
    memory = torch.empty(bundle.size, dtype=torch.uint8)
    assert memory.data_ptr() % ALIGN == 0
    memory.numpy()[:] = bundle
    return memory.numpy().data
