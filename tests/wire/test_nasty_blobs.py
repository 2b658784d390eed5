"""Bytes made to hurt whoever reads them: each is refused, or costs in proportion to its size, and
quickly.

Before the codec was a gate the first hung for ever, some took seconds or hundreds of megabytes, and
some went through.
"""

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

# seconds of the processor; most take milliseconds, but the garbage collector looks through all of a
# test session
QUICKLY = 6.0


@contextmanager
def quickly(seconds: float = QUICKLY) -> Iterator[None]:
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
    made: bytes = safetensors.torch.save(
        {str(i): t for i, t in enumerate(tensors)}, metadata={"tree": text}
    )
    return made


def told(tree: str, *entries: tuple[str, list[Any], list[Any]]) -> dict[str, Any]:
    """A header of one's own."""
    named = {
        str(i): {"dtype": d, "shape": s, "data_offsets": o} for i, (d, s, o) in enumerate(entries)
    }
    return {"__metadata__": {"tree": tree}, **named}


def bomb(levels: int) -> Any:
    """Each level holds the one below twice: so many bytes, two to that power of nodes."""
    node: Any = {"d": []}
    for k in range(levels):
        node = {"d": [["a", node], ["b", {"s": k}]]}
    return node


CIPHER = f"{Cipher.__module__}:{Cipher.__qualname__}"
MODEL = "comity.base.record:Model"
PLAIN_CIPHER = {"r": CIPHER, "v": [1, 1, [2], {"t": 0}, {"t": 1}]}

REFUSED = {
    "a bomb of 40 levels": lambda: blob(bomb(40)),
    "a bomb that is small enough to be read but for its last level": lambda: blob(bomb(16)),
    "lists in lists, 100000 deep": lambda: blob("[" * 100_000 + "]" * 100_000),
    "lists in lists, 900 deep": lambda: blob("[" * 900 + "]" * 900),
    "dicts in dicts, 300 deep": lambda: blob('{"d":[["a",' * 300 + "1" + "]]}" * 300),
    "five million empty lists": lambda: blob("[" + ",".join(["[]"] * 5_000_000) + "]"),
    "two million empty dicts": lambda: blob("[" + ",".join(['{"d":[]}'] * 2_000_000) + "]"),
    "a number of 4000 digits": lambda: blob("9" * 4000),
    "a number of a million digits": lambda: blob("9" * 1_000_000),
    "a name of 4000 digits": lambda: blob('{"d": [[' + "9" * 4000 + ", 1]]}"),
    "names that all fall into one place": lambda: blob(
        {"d": [[(2**61 - 1) * k, 1] for k in range(20_000)]}
    ),
    "names that are no numbers": lambda: blob('{"d": [[NaN, 1], [NaN, 2], [Infinity, 3]]}'),
    "names that are true and nothing": lambda: blob({"d": [[True, 1], [None, 3]]}),
    "a name twice": lambda: blob({"d": [["a", 1], ["a", 2]]}),
    "names that are lists": lambda: blob({"d": [[[1], 1]]}),
    "half a letter": lambda: blob('"\\ud800"'),
    "half a letter in a name": lambda: blob('{"d": [["\\udfff", 1]]}'),
    "half a letter, hidden twice": lambda: raw(b'{"__metadata__":{"tree":"\\"\\ud800\\""}}'),
    "30000 tensors that nothing refers to": lambda: raw(
        told("1", *[("F32", [0], [0, 0])] * 30_000)
    ),
    "an empty tensor with an endless side": lambda: raw(
        told('{"t":0}', ("F32", [0, 2**62], [0, 0]))
    ),
    "an empty tensor with many sides": lambda: raw(
        told('{"t":0}', ("F32", [0] + [1] * 1000, [0, 0]))
    ),
    "a tensor of a negative side": lambda: raw(told('{"t":0}', ("F32", [-2], [0, 8])), bytes(8)),
    "a tensor of no kind": lambda: raw(told('{"t":0}', ("F33", [2], [0, 8])), bytes(8)),
    "tensors over each other": lambda: raw(
        told('[{"t":0},{"t":1}]', ("F32", [2], [0, 8]), ("F32", [2], [0, 8])), bytes(8)
    ),
    "a thousand tensors over a megabyte": lambda: raw(
        told(
            "[" + ",".join(f'{{"t":{i}}}' for i in range(1000)) + "]",
            *[("U8", [1 << 20], [0, 1 << 20])] * 1000,
        ),
        bytes(1 << 20),
    ),
    "a hole between tensors": lambda: raw(told('[{"t":0}]', ("F32", [2], [8, 16])), bytes(16)),
    "bytes after the tensors": lambda: raw(told('[{"t":0}]', ("F32", [2], [0, 8])), bytes(16)),
    "tensors beyond the end": lambda: raw(
        told('[{"t":0}]', ("F32", [2**40], [0, 2**42])), bytes(16)
    ),
    "a tensor larger than its place": lambda: raw(
        told('[{"t":0}]', ("F32", [200], [0, 8])), bytes(8)
    ),
    "a truth value that is 7": lambda: raw(told('[{"t":0}]', ("BOOL", [2], [0, 2])), b"\7\xff"),
    "a tensor out of turn": lambda: blob([{"t": 1}, {"t": 0}], torch.ones(1), torch.ones(1)),
    "a tensor counted from the end": lambda: blob([{"t": -1}], torch.ones(1)),
    "an object counted from the end": lambda: blob([{"d": []}, {"s": -1}]),
    "an object before it is there": lambda: blob({"d": [["a", {"s": 0}]]}),
    "metadata twice": lambda: raw(b'{"__metadata__":{"tree":"1"},"__metadata__":{"tree":"2"}}'),
    "no metadata": lambda: raw(b"{}"),
    "nothing": lambda: b"",
    "a length and nothing else": lambda: struct.pack("<Q", 72),
    "a length beyond all measure": lambda: b"\xff" * 8 + b"{}",
    "a header in letters of four bytes": lambda: raw(
        '{"__metadata__":{"tree":"1"}}'.encode("utf-32")
    ),
    "a model of words": lambda: blob({"r": MODEL, "v": ["hello"]}),
    "a model of numbers": lambda: blob({"r": MODEL, "v": [{"d": [["w", 1.5]]}]}),
    "a model with numbers for names": lambda: blob(
        {"r": MODEL, "v": [{"d": [[1, {"t": 0}]]}]}, torch.ones(1)
    ),
    "a model of nothing": lambda: blob({"r": MODEL, "v": []}),
    "a record that nobody knows": lambda: blob({"r": "os:system", "v": ["ls"]}),
    "a record whose name is a list": lambda: blob({"r": [], "v": []}),
    "an object of no kind": lambda: blob({"q": 1}),
    "a parcel": lambda: blob(
        {"x": PLAIN_CIPHER, "n": 4}, torch.zeros(1, 60).byte(), torch.zeros(50).byte()
    ),
}
PARCELS = {
    "of a negative size": {"x": PLAIN_CIPHER, "n": -(10**9)},
    "of a size in words": {"x": PLAIN_CIPHER, "n": "much"},
    "of a size that is true": {"x": PLAIN_CIPHER, "n": True},
    "of half a byte": {"x": PLAIN_CIPHER, "n": 0.5},
    "of no size": {"x": PLAIN_CIPHER},
    "that is a number": {"x": 5, "n": 3},
    "that is not locked": {
        "x": {"r": MODEL, "v": [{"d": [["w", {"t": 0}], ["v", {"t": 1}]]}]},
        "n": 3,
    },
    "for nobody in particular": {
        "x": {"r": CIPHER, "v": [1, 1, ["x"], {"t": 0}, {"t": 1}]},
        "n": 3,
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_quickly(name):
    made = REFUSED[name]()
    with quickly(), pytest.raises(CorruptedFile, match="damaged or foreign"):
        decode(made)


@pytest.mark.parametrize("name", PARCELS)
def test_a_parcel_without_the_form_of_one_is_refused(name):
    made = blob(PARCELS[name], torch.zeros(1, 60).byte(), torch.zeros(50).byte())
    with quickly(), pytest.raises(CorruptedFile, match="damaged or foreign"):
        decode(made, sealed_messages=True)


@pytest.mark.parametrize(
    "name",
    ["five million empty lists", "two million empty dicts", "a thousand tensors over a megabyte"],
)
def test_it_is_refused_before_memory_is_taken(name):
    made = REFUSED[name]()
    tracemalloc.start()
    with pytest.raises(CorruptedFile):
        decode(made)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(made) + 1_000_000


def test_what_is_shared_is_counted_as_often_as_it_occurs():
    """The largest bomb that is read still costs all its readers little."""
    made = blob(bomb(15))
    with quickly(10):  # the garbage collector looks through all of a long test session
        tree = decode(made)
        assert payload(tree) == 0
        assert leaves(tree) == []
        read_only(tree)
        tree_map(lambda leaf: leaf, tree)
        assert decode(encode(tree)) == tree


def test_a_tensor_a_million_times_costs_no_memory():
    made = blob("[" + ",".join(['{"t":0}'] * 1_000_000) + "]", torch.zeros(1000))
    with quickly(10):
        tree = decode(made)
        assert len(tree) == 1_000_000
        assert tree[0] is tree[-1]


def test_names_of_64_bits_cannot_all_fall_into_one_place():
    """Python's own table moves on when numbers agree in their lower bits."""
    close = blob({"d": [[k, 1] for k in range(30_000)]})
    far = blob({"d": [[k << 46, 1] for k in range(30_000)]})

    def seconds(made: bytes) -> float:
        begin = time.process_time()
        assert len(decode(made)) == 30_000
        return time.process_time() - begin

    # Without the collector, which looks through all of a long test session whenever it likes.
    gc.collect()
    gc.disable()
    try:
        times = [min(seconds(made) for _ in range(3)) for made in (close, far)]
    finally:
        gc.enable()
    assert times[1] < 10 * times[0] + 0.1


# --- what is legitimate goes through


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
        "letters",
    ],
)
def test_large_states_can_be_written_and_read(tree):
    with quickly(20):
        assert len(leaves(decode(encode(tree)))) == len(leaves(tree))


def test_one_model_for_thousands_of_parties_at_the_server():
    theta = {f"layer{n}": torch.zeros(1000) for n in range(60)}
    tree = decode(encode(dict.fromkeys(range(4000), Model(theta))))
    assert tree[0] is tree[3999]


@pytest.mark.parametrize("depth", [MOST_LEVELS - 1, MOST_LEVELS])
def test_depth_has_the_same_limit_both_ways(depth):
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
def test_what_could_not_be_read_is_not_written(tree, why):
    if why is None:
        with pytest.raises(CorruptedFile):
            decode(encode(tree))
        return
    with pytest.raises(ComityError, match=why):
        encode(tree)


def test_a_tree_too_large_for_its_bytes_is_not_written():
    tree: Any = {}
    for _ in range(FREE_NODES.bit_length()):
        tree = {"a": tree, "b": tree}
    with pytest.raises(ComityError, match="too large for its bytes"):
        encode(tree)


def test_others_read_what_we_write_and_we_what_they_write():
    theta = {
        "w": torch.arange(6.0).view(2, 3),
        "n": torch.tensor(3),
        "b": torch.tensor([True, False]),
        "e": torch.zeros(0, 2),
    }
    theirs = safetensors.torch.load(encode(theta))
    assert all(torch.equal(theirs[str(i)], t) for i, t in enumerate(theta.values()))
    back = decode(blob({"d": [[name, {"t": i}] for i, name in enumerate(theta)]}, *theta.values()))
    assert all(torch.equal(back[name], t) for name, t in theta.items())
