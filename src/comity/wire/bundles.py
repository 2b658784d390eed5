"""Encodes trees for transports that carry bytes: a header with the skeleton (JSON), and the tensors
in bundles.

Tensors that several recipients get are in one bundle, which is sent once. Each tensor starts at a
multiple of 64 bytes of newly allocated memory, as torch's own tensors do: BLAS results can depend
on alignment, and all engines must agree bit for bit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from comity.wire.channel import aligned_copy, places_of, views_at, write_tensors
from comity.wire.codec import flatten, unflatten

Bytes = NDArray[np.uint8]


def write_bundle(tensors: Sequence[Tensor]) -> tuple[list[list[Any]], Bytes]:
    """The positions of tensors in a bundle, and the bundle."""
    places, size = places_of(list(tensors))
    bundle = np.empty(size, np.uint8)
    if size:
        write_tensors(tensors, places, bundle.data)
    return places, bundle


def pack(tree: Any) -> tuple[bytes, Bytes]:
    """A tree as a header and one bundle."""
    skeleton, tensors = flatten(tree, sealed_messages=True)
    places, bundle = write_bundle(tensors)
    return json.dumps([skeleton, [places], [[0, k] for k in range(len(tensors))]]).encode(), bundle


def pack_for(trees: Mapping[int, Any]) -> tuple[dict[int, tuple[bytes, list[int]]], list[Bytes]]:
    """Trees for several recipients: the header and the bundle numbers of each recipient, and all
    bundles.

    Tensors that go to the same recipients share a bundle, so each tensor is stored once.
    """
    flat = {recipient: flatten(tree, sealed_messages=True) for recipient, tree in trees.items()}
    tensor_by_id: dict[int, Tensor] = {}
    recipients_by_id: dict[int, list[int]] = defaultdict(list)
    for recipient, (_, tensors) in flat.items():
        for tensor in tensors:
            tensor_by_id[id(tensor)] = tensor
            recipients_by_id[id(tensor)].append(recipient)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for tensor_id, recipients in recipients_by_id.items():
        groups[tuple(recipients)].append(tensor_id)
    place_by_id = {
        tensor_id: (g, k)
        for g, group in enumerate(groups.values())
        for k, tensor_id in enumerate(group)
    }
    bundles = [
        write_bundle([tensor_by_id[tensor_id] for tensor_id in group]) for group in groups.values()
    ]
    headers = {}
    for recipient, (skeleton, tensors) in flat.items():
        bundle_numbers = [g for g, recipients in enumerate(groups) if recipient in recipients]
        refers = [
            [bundle_numbers.index(g), k] for g, k in (place_by_id[id(tensor)] for tensor in tensors)
        ]
        headers[recipient] = (
            json.dumps([skeleton, [bundles[g][0] for g in bundle_numbers], refers]).encode(),
            bundle_numbers,
        )
    return headers, [bundle for _, bundle in bundles]


def unpack(header: bytes, *bundles: Bytes) -> Any:
    """The tree again. Its tensors are copies, since other readers may use the same bundle."""
    skeleton, places, refers = json.loads(header)
    tensors = [
        views_at(positions, aligned_copy(bundle.data) if bundle.size else None)
        for positions, bundle in zip(places, bundles, strict=True)
    ]
    return unflatten(skeleton, [tensors[b][k] for b, k in refers])
