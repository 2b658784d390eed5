"""Writes a skeleton and its tensors as one blob in safetensors' format, and reads it back.

Blobs may come from untrusted sources: the cost of reading one is bounded by its size before any
memory is allocated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

MOST_BYTES = 1 << 36
"""The default limit for the size of a blob."""
MOST_HEADER_BYTES = 100_000_000
"""The limit for names, shapes and skeleton. Other readers of safetensors accept no more."""
FREE_BRACKETS, BYTES_PER_BRACKET = 1 << 16, 8
"""How many lists and objects a header may contain: FREE_BRACKETS, and one more per
BYTES_PER_BRACKET bytes of the blob. Each takes up to 300 bytes of memory. A tensor has five of
them, in at least a hundred bytes.
"""
MOST_DIMENSIONS, MOST_EMPTY = 32, 1 << 26
"""The limits for the number of dimensions of a tensor, and for the product of the nonzero
dimensions of an empty one.
"""

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Dtypes by their names in safetensors."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class InvalidBlob(Exception):
    """A blob or its skeleton is invalid. The message says why, in a few words."""


def write_blob(skeleton: Any, tensors: Sequence[Tensor]) -> bytes:
    """Write the tensors after a header with their positions.

    Tensors with larger elements come first, so that all are aligned.
    """
    tree = json.dumps(skeleton)
    _check_text(tree, skeleton)
    header: dict[str, Any] = {"__metadata__": {"tree": tree}}
    parts: list[Any] = []
    offset = 0
    for i in sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size()):
        tensor = tensors[i].detach().cpu().contiguous()
        if tensor.dtype not in NAMES:
            raise InvalidBlob(f"a tensor of {tensor.dtype} is in it")
        header[str(i)] = {
            "dtype": NAMES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        parts.append(tensor.view(-1).view(torch.uint8).numpy())
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def read_blob(blob: bytes | memoryview, most_bytes: int = MOST_BYTES) -> tuple[Any, list[Tensor]]:
    """The skeleton and the tensors of a blob. Any exception means that it is invalid."""
    text = header_of(blob, most_bytes)
    header = HEADERS.decode(text)
    tree = header.pop("__metadata__")["tree"]
    skeleton = json.loads(tree)
    _check_text(tree, skeleton)
    return skeleton, _tensors(header, memoryview(blob)[8 + len(text) :])


def header_of(blob: bytes | memoryview, most_bytes: int = MOST_BYTES) -> str:
    """The names, shapes and skeleton as text.

    Raises InvalidBlob if decoding them would take more memory than a blob of that size may use.
    """
    length = int.from_bytes(blob[:8], "little")
    if len(blob) > most_bytes or length > min(MOST_HEADER_BYTES, len(blob) - 8):
        raise InvalidBlob("it is too large, or not whole")
    header = bytes(blob[8 : 8 + length])
    brackets = header.count(b"[") + header.count(b"{")
    if brackets > FREE_BRACKETS + len(blob) // BYTES_PER_BRACKET:
        raise InvalidBlob("it has too many parts for its bytes")
    return str(header, "ascii")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict. Raises InvalidBlob if a key occurs twice."""
    items = dict(pairs)
    if len(items) < len(pairs):
        raise InvalidBlob("a name in it comes twice")
    return items


HEADERS = json.JSONDecoder(object_pairs_hook=_unique_keys)


def _check_text(text: str, skeleton: Any) -> None:
    """Refuse unpaired surrogates: JSON can write them, but no encoder accepts text that contains
    one.
    """
    if "\\u" in text or not text.isascii():
        json.dumps(skeleton, ensure_ascii=False).encode()


def _tensors(header: dict[str, Any], data: memoryview) -> list[Tensor]:
    """The tensors in `data`, copied. They must be contiguous and fill `data`."""
    places = sorted(entry["data_offsets"] for entry in header.values())
    ends = [0, *(end for _, end in places)]
    if [begin for begin, _ in places] != ends[:-1] or ends != sorted(ends) or ends[-1] != len(data):
        raise InvalidBlob("its tensors do not lie one after the other")
    return [_tensor(data, **header[str(i)]) for i in range(len(header))]


def _tensor(data: memoryview, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    if len(shape) > MOST_DIMENSIONS or any(type(size) is not int or size < 0 for size in shape):
        raise InvalidBlob("a tensor in it has no shape")
    kind, count = DTYPES[dtype], prod(shape)
    begin, end = data_offsets
    too_large_empty = not count and prod(max(size, 1) for size in shape) > MOST_EMPTY
    if count * kind.itemsize != end - begin or too_large_empty:
        raise InvalidBlob("a tensor in it is not of its size")
    if not count:
        return torch.empty(shape, dtype=kind)
    value = torch.empty(count, dtype=kind)
    contents = value.view(torch.uint8)
    contents.numpy().data[:] = data[begin:end]  # the only copy
    if kind is torch.bool and contents.max() > 1:
        raise InvalidBlob("a bool in it is neither true nor false")
    return value.view(shape)
