"""Malicious blobs: each is refused, or costs time and memory in proportion to its size."""

from __future__ import annotations

import gc
import json
import signal
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import safetensors.torch
import torch

from comity.base.record import Cipher, leaves, read_only, tree_map
from comity.core import Model, payload, record
from comity.errors import ComityError, CorruptedFile
from comity.wire.blob import MOST_EMPTY
from comity.wire.codec import FREE_NODES, MOST_LEVELS, decode, encode

pytestmark = pytest.mark.quick

# Seconds of CPU time. Most blobs take milliseconds, but the garbage collector may walk through all
# objects of the test session.
SECONDS = 6.0


@contextmanager
def time_limit(seconds: float = SECONDS) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def raw(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def blob(tree: Any, *tensors: torch.Tensor) -> bytes:
    text = tree if isinstance(tree, str) else json.dumps(tree)
    encoded: bytes = safetensors.torch.save(
        {str(i): t for i, t in enumerate(tensors)}, metadata={"tree": text}
    )
    return encoded


def header_for(tree: str, *entries: tuple[str, list[Any], list[Any]]) -> dict[str, Any]:
    """A safetensors header with this tree and these tensors."""
    tensor_entries = {
        str(i): {"dtype": d, "shape": s, "data_offsets": o} for i, (d, s, o) in enumerate(entries)
    }
    return {"__metadata__": {"tree": tree}, **tensor_entries}


def bomb(levels: int) -> Any:
    """A tree whose levels contain the level below twice: 2 to the power of `levels` nodes."""
    node: Any = {"d": []}
    for k in range(levels):
        node = {"d": [["a", node], ["b", {"s": k}]]}
    return node


CIPHER = f"{Cipher.__module__}:{Cipher.__qualname__}"
MODEL = "comity.base.record:Model"
PLAIN_CIPHER = {"r": CIPHER, "v": [1, 1, [2], {"t": 0}, {"t": 1}]}

INVALID_BLOBS = {
    "a bomb of 40 levels": lambda: blob(bomb(40)),
    "a bomb of 16 levels, one more than is accepted": lambda: blob(bomb(16)),
    "lists in lists, 100000 deep": lambda: blob("[" * 100_000 + "]" * 100_000),
    "lists in lists, 900 deep": lambda: blob("[" * 900 + "]" * 900),
    "dicts in dicts, 300 deep": lambda: blob('{"d":[["a",' * 300 + "1" + "]]}" * 300),
    "five million empty lists": lambda: blob("[" + ",".join(["[]"] * 5_000_000) + "]"),
    "two million empty dicts": lambda: blob("[" + ",".join(['{"d":[]}'] * 2_000_000) + "]"),
    "a number of 4000 digits": lambda: blob("9" * 4000),
    "a number of a million digits": lambda: blob("9" * 1_000_000),
    "a key of 4000 digits": lambda: blob('{"d": [[' + "9" * 4000 + ", 1]]}"),
    "keys that all collide": lambda: blob({"d": [[(2**61 - 1) * k, 1] for k in range(20_000)]}),
    "keys that are not finite": lambda: blob('{"d": [[NaN, 1], [NaN, 2], [Infinity, 3]]}'),
    "keys that are true and null": lambda: blob({"d": [[True, 1], [None, 3]]}),
    "a key twice": lambda: blob({"d": [["a", 1], ["a", 2]]}),
    "keys that are lists": lambda: blob({"d": [[[1], 1]]}),
    "a lone surrogate": lambda: blob('"\\ud800"'),
    "a lone surrogate in a key": lambda: blob('{"d": [["\\udfff", 1]]}'),
    "a lone surrogate, escaped twice": lambda: raw(b'{"__metadata__":{"tree":"\\"\\ud800\\""}}'),
    "30000 tensors that nothing refers to": lambda: raw(
        header_for("1", *[("F32", [0], [0, 0])] * 30_000)
    ),
    "an empty tensor with a huge dimension": lambda: raw(
        header_for('{"t":0}', ("F32", [0, 2**62], [0, 0]))
    ),
    "an empty tensor with many dimensions": lambda: raw(
        header_for('{"t":0}', ("F32", [0] + [1] * 1000, [0, 0]))
    ),
    "a tensor with a negative dimension": lambda: raw(
        header_for('{"t":0}', ("F32", [-2], [0, 8])), bytes(8)
    ),
    "a tensor of an unknown dtype": lambda: raw(
        header_for('{"t":0}', ("F33", [2], [0, 8])), bytes(8)
    ),
    "overlapping tensors": lambda: raw(
        header_for('[{"t":0},{"t":1}]', ("F32", [2], [0, 8]), ("F32", [2], [0, 8])), bytes(8)
    ),
    "a thousand tensors in the same megabyte": lambda: raw(
        header_for(
            "[" + ",".join(f'{{"t":{i}}}' for i in range(1000)) + "]",
            *[("U8", [1 << 20], [0, 1 << 20])] * 1000,
        ),
        bytes(1 << 20),
    ),
    "a gap before a tensor": lambda: raw(header_for('[{"t":0}]', ("F32", [2], [8, 16])), bytes(16)),
    "bytes after the tensors": lambda: raw(
        header_for('[{"t":0}]', ("F32", [2], [0, 8])), bytes(16)
    ),
    "tensors beyond the end": lambda: raw(
        header_for('[{"t":0}]', ("F32", [2**40], [0, 2**42])), bytes(16)
    ),
    "a tensor larger than its place": lambda: raw(
        header_for('[{"t":0}]', ("F32", [200], [0, 8])), bytes(8)
    ),
    "a boolean that is 7": lambda: raw(header_for('[{"t":0}]', ("BOOL", [2], [0, 2])), b"\7\xff"),
    "tensors out of order": lambda: blob([{"t": 1}, {"t": 0}], torch.ones(1), torch.ones(1)),
    "a negative tensor index": lambda: blob([{"t": -1}], torch.ones(1)),
    "a negative object index": lambda: blob([{"d": []}, {"s": -1}]),
    "a reference to a later object": lambda: blob({"d": [["a", {"s": 0}]]}),
    "metadata twice": lambda: raw(b'{"__metadata__":{"tree":"1"},"__metadata__":{"tree":"2"}}'),
    "no metadata": lambda: raw(b"{}"),
    "no bytes": lambda: b"",
    "a length and nothing else": lambda: struct.pack("<Q", 72),
    "a length of 2**64 - 1": lambda: b"\xff" * 8 + b"{}",
    "a header in UTF-32": lambda: raw('{"__metadata__":{"tree":"1"}}'.encode("utf-32")),
    "a model that is a string": lambda: blob({"r": MODEL, "v": ["hello"]}),
    "a model of numbers": lambda: blob({"r": MODEL, "v": [{"d": [["w", 1.5]]}]}),
    "a model with integer keys": lambda: blob(
        {"r": MODEL, "v": [{"d": [[1, {"t": 0}]]}]}, torch.ones(1)
    ),
    "a model without fields": lambda: blob({"r": MODEL, "v": []}),
    "an unknown record": lambda: blob({"r": "os:system", "v": ["ls"]}),
    "a record whose name is a list": lambda: blob({"r": [], "v": []}),
    "an unknown kind of object": lambda: blob({"q": 1}),
    "a sealed message where none may be": lambda: blob(
        {"x": PLAIN_CIPHER, "n": 4}, torch.zeros(1, 60).byte(), torch.zeros(50).byte()
    ),
}
INVALID_SEALED_MESSAGES = {
    "negative size": {"x": PLAIN_CIPHER, "n": -(10**9)},
    "size that is a string": {"x": PLAIN_CIPHER, "n": "much"},
    "size that is a boolean": {"x": PLAIN_CIPHER, "n": True},
    "fractional size": {"x": PLAIN_CIPHER, "n": 0.5},
    "no size": {"x": PLAIN_CIPHER},
    "content that is a number": {"x": 5, "n": 3},
    "content that is not encrypted": {
        "x": {"r": MODEL, "v": [{"d": [["w", {"t": 0}], ["v", {"t": 1}]]}]},
        "n": 3,
    },
    "recipient that is a string": {
        "x": {"r": CIPHER, "v": [1, 1, ["x"], {"t": 0}, {"t": 1}]},
        "n": 3,
    },
}


@pytest.mark.parametrize("name", INVALID_BLOBS)
def test_invalid_blob_is_refused_quickly(name):
    malicious = INVALID_BLOBS[name]()
    with time_limit(), pytest.raises(CorruptedFile, match="damaged or foreign"):
        decode(malicious)


@pytest.mark.parametrize("name", INVALID_SEALED_MESSAGES)
def test_invalid_sealed_message_is_refused_quickly(name):
    malicious = blob(
        INVALID_SEALED_MESSAGES[name], torch.zeros(1, 60).byte(), torch.zeros(50).byte()
    )
    with time_limit(), pytest.raises(CorruptedFile, match="damaged or foreign"):
        decode(malicious, sealed_messages=True)


@pytest.mark.parametrize(
    "name",
    [
        "five million empty lists",
        "two million empty dicts",
        "a thousand tensors in the same megabyte",
    ],
)
def test_invalid_blob_is_refused_without_much_memory(name):
    malicious = INVALID_BLOBS[name]()
    tracemalloc.start()
    with pytest.raises(CorruptedFile):
        decode(malicious)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(malicious) + 1_000_000


def test_shared_objects_count_at_every_occurrence():
    """The largest such tree that is accepted still costs little time."""
    encoded = blob(bomb(15))
    with time_limit(10):  # the garbage collector may walk through all objects of the test session
        tree = decode(encoded)
        assert payload(tree) == 0
        assert leaves(tree) == []
        read_only(tree)
        tree_map(lambda leaf: leaf, tree)
        assert decode(encode(tree)) == tree


def test_tensor_with_a_million_references_is_one_object():
    encoded = blob("[" + ",".join(['{"t":0}'] * 1_000_000) + "]", torch.zeros(1000))
    with time_limit(10):
        tree = decode(encoded)
        assert len(tree) == 1_000_000
        assert tree[0] is tree[-1]


def test_64_bit_keys_cannot_all_collide():
    """Python's dict resolves collisions of keys that agree in their lower bits."""
    adjacent_keys = blob({"d": [[k, 1] for k in range(30_000)]})
    shifted_keys = blob({"d": [[k << 46, 1] for k in range(30_000)]})

    def seconds(encoded: bytes) -> float:
        begin = time.process_time()
        assert len(decode(encoded)) == 30_000
        return time.process_time() - begin

    # Without the garbage collector, which could run during a measurement.
    gc.collect()
    gc.disable()
    try:
        times = [
            min(seconds(encoded) for _ in range(3)) for encoded in (adjacent_keys, shifted_keys)
        ]
    finally:
        gc.enable()
    assert times[1] < 10 * times[0] + 0.1


# --- valid trees are accepted


@pytest.mark.parametrize(
    "tree",
    [
        {i: Model({f"layer{n}": torch.zeros(3) for n in range(10)}) for i in range(700)},
        {f"layer{n}": torch.zeros(1) for n in range(5000)},
        dict.fromkeys(range(100000), 0.5),
        [[] for _ in range(50_000)],
        list(range(100_000)),
        torch.zeros(0, 3, 224, 224),
        [torch.zeros(0, MOST_EMPTY)],
        2**64 - 1,
        "é😀" * 1000,
    ],
    ids=[
        "parties",
        "tensors",
        "numbers by party",
        "lists",
        "list",
        "empty images",
        "empty",
        "a key",
        "text",
    ],
)
def test_large_states_round_trip(tree):
    with time_limit(20):
        assert len(leaves(decode(encode(tree)))) == len(leaves(tree))


def test_model_shared_by_thousands_of_parties_is_one_object():
    theta = {f"layer{n}": torch.zeros(1000) for n in range(60)}
    tree = decode(encode(dict.fromkeys(range(4000), Model(theta))))
    assert tree[0] is tree[3999]


@pytest.mark.parametrize("depth", [MOST_LEVELS - 1, MOST_LEVELS])
def test_depth_limit_is_the_same_for_encoding_and_decoding(depth):
    tree: Any = 1
    for _ in range(depth):
        tree = [tree]
    if depth < MOST_LEVELS:
        assert decode(encode(tree)) == tree
    else:
        encode(tree)
        with pytest.raises(ComityError, match="could not be read again"):
            encode([tree])


@record
class Sloppy:
    weight: float
    names: list[str]


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (Sloppy(torch.ones(1), []), "Sloppy.weight should be float, but the Tensor"),  # type: ignore[arg-type]
        (Sloppy(1, [2]), "Sloppy.names should be list"),  # type: ignore[list-item]
        ({(1, 2): 3}, "names of a dict"),
        ({0.5: 3}, "names of a dict"),
        ([2**64], "more than 64 bits"),
        ({-(2**63) - 1: 0}, "more than 64 bits"),
        (torch.zeros(2, dtype=torch.complex128), "a tensor of torch.complex128"),
        (["\ud800"], "UnicodeEncodeError"),
        ([torch.zeros(0, MOST_EMPTY + 1)], None),
    ],
)
def test_values_that_cannot_be_decoded_are_not_encoded(tree, why):
    if why is None:
        with pytest.raises(CorruptedFile):
            decode(encode(tree))
        return
    with pytest.raises(ComityError, match=why):
        encode(tree)


def test_tree_too_large_for_its_bytes_is_not_encoded():
    tree: Any = {}
    for _ in range(FREE_NODES.bit_length()):
        tree = {"a": tree, "b": tree}
    with pytest.raises(ComityError, match="too large for its bytes"):
        encode(tree)


def test_encoding_is_compatible_with_safetensors():
    theta = {
        "w": torch.arange(6.0).view(2, 3),
        "n": torch.tensor(3),
        "b": torch.tensor([True, False]),
        "e": torch.zeros(0, 2),
    }
    loaded_tensors = safetensors.torch.load(encode(theta))
    assert all(torch.equal(loaded_tensors[str(i)], t) for i, t in enumerate(theta.values()))
    decoded = decode(
        blob({"d": [[name, {"t": i}] for i, name in enumerate(theta)]}, *theta.values())
    )
    assert all(torch.equal(decoded[name], t) for name, t in theta.items())
