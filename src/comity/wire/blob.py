"""A skeleton and its tensors as one blob in safetensors' format, and back.

Bytes may come from anywhere: what reading them takes is known from their number before any memory
is taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

MOST_BYTES = 1 << 36
"""How large a blob may be, unless told."""
MOST_HEADER_BYTES = 100_000_000
"""How much of it may be names, shapes and skeleton: other readers of safetensors take no more."""
FREE_BRACKETS, BYTES_A_BRACKET = 1 << 16, 8
"""How many lists and objects a header may hold (each takes up to 300 bytes of memory): so many, and
one more for each 8 bytes of the blob. A tensor has five of them, in a hundred bytes at least.
"""
MOST_SIDES, MOST_EMPTY = 32, 1 << 26
"""How many sides a tensor may have, and how large they may be together in one that holds nothing.
"""

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16, "U32": torch.uint32,
    "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16,
    "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
"""Kinds of tensors by the names that safetensors has for them."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Wrong(Exception):
    """What is wrong with a blob or its skeleton, in a few words."""


def write_blob(skeleton: Any, tensors: Sequence[Tensor]) -> bytes:
    """Tensors after a header that says where each lies; those of large numbers first, so that all
    are aligned.
    """
    tree = json.dumps(skeleton)
    _check_text(tree, skeleton)
    header: dict[str, Any] = {"__metadata__": {"tree": tree}}
    parts: list[Any] = []
    at = 0
    for i in sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size()):
        tensor = tensors[i].detach().cpu().contiguous()
        if tensor.dtype not in NAMES:
            raise Wrong(f"a tensor of {tensor.dtype} is in it")
        header[str(i)] = {
            "dtype": NAMES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [at, at + tensor.nbytes],
        }
        parts.append(tensor.view(-1).view(torch.uint8).numpy())
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def read_blob(blob: bytes, most_bytes: int = MOST_BYTES) -> tuple[Any, list[Tensor]]:
    """The skeleton and the tensors of a blob; some exception if it is none."""
    text = header_of(blob, most_bytes)
    header = HEADERS.decode(text)
    tree = header.pop("__metadata__")["tree"]
    skeleton = json.loads(tree)
    _check_text(tree, skeleton)
    return skeleton, _tensors(header, bytearray(memoryview(blob)[8 + len(text) :]))


def header_of(blob: bytes, most_bytes: int = MOST_BYTES) -> str:
    """Names, shapes and skeleton as text, if reading them takes no more memory than a blob of that
    size may ask for.
    """
    length = int.from_bytes(blob[:8], "little")
    if len(blob) > most_bytes or length > min(MOST_HEADER_BYTES, len(blob) - 8):
        raise Wrong("it is too large, or not whole")
    if (
        blob.count(b"[", 8, 8 + length) + blob.count(b"{", 8, 8 + length)
        > FREE_BRACKETS + len(blob) // BYTES_A_BRACKET
    ):
        raise Wrong("it has too many parts for its bytes")
    return str(memoryview(blob)[8 : 8 + length], "ascii")


def _all_different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise Wrong("a name in it comes twice")
    return made


HEADERS = json.JSONDecoder(object_pairs_hook=_all_different)


def _check_text(text: str, skeleton: Any) -> None:
    """Refuse halves of letters: JSON has words for them, but no text can be sent on that holds one."""
    if "\\u" in text or not text.isascii():
        json.dumps(skeleton, ensure_ascii=False).encode()


def _tensors(header: dict[str, Any], data: bytearray) -> list[Tensor]:
    """The tensors in `data`, each in memory of its own: they lie one after the other, and nothing
    else is there.
    """
    places = sorted(told["data_offsets"] for told in header.values())
    ends = [0, *(end for _, end in places)]
    if [begin for begin, _ in places] != ends[:-1] or ends != sorted(ends) or ends[-1] != len(data):
        raise Wrong("its tensors do not lie one after the other")
    return [_tensor(data, **header[str(i)]) for i in range(len(header))]


def _tensor(data: bytearray, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    if len(shape) > MOST_SIDES or any(type(side) is not int or side < 0 for side in shape):
        raise Wrong("a tensor in it has no shape")
    kind, count = DTYPES[dtype], prod(shape)
    begin, end = data_offsets
    if count * kind.itemsize != end - begin or (
        not count and prod(max(side, 1) for side in shape) > MOST_EMPTY
    ):
        raise Wrong("a tensor in it is not of its size")
    if not count:
        return torch.empty(shape, dtype=kind)
    there = torch.frombuffer(data, dtype=kind, count=count, offset=begin)
    if kind is torch.bool and there.view(torch.uint8).max() > 1:
        raise Wrong("a truth value in it is neither true nor false")
    return there.clone().view(shape)
