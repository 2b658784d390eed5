"""Fuzz test of the codec: mutants of valid blobs and sealed messages, by the hundred thousand.

    python tests/wire/fuzz.py --count 100000 [--seed 0]

For every mutant, `decode` (and `Lock.open`, for sealed messages) returns a tree that can be
counted, listed and encoded again, or raises a ComityError, within limits of time and memory. Prints
how many were read and why the others were refused.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from comity.base.call import CallId
from comity.base.record import leaves, payload, read_only, set_origin, unseal
from comity.components.bank import Bank, Upload
from comity.components.overlap import Help
from comity.core import Empty, Model, Moments, Wrapped, record, seal
from comity.engines.versions import PartyState
from comity.errors import ComityError
from comity.metrics.evaluation import Answers, Evaluation, Score
from comity.wire.codec import decode, encode
from comity.wire.sealing import Lock, SharedSecret

SECONDS = 2.0
"""Largest time for one mutant, on a busy machine."""
MEGABYTES = 400
"""Largest growth of memory for all mutants together."""
CALL = CallId("local", 0, 3, 0)
SENDER, RECIPIENT = 1, 2


@record
class Odd:
    """A record with fields of all kinds."""

    numbers: list[int]
    words: dict[str, str | None]
    pair: tuple[int, float]
    flag: bool
    anything: Any


def theta(count: int, size: int = 3) -> dict[str, torch.Tensor]:
    return {f"layer{n}.weight": torch.arange(size * 2.0).view(size, 2) + n for n in range(count)}


def legitimate() -> list[Any]:
    """Trees as they occur in checkpoints and messages."""
    shared = theta(3)
    upload = Upload(
        torch.ones(2, 3),
        torch.ones(2, dtype=torch.int32),
        torch.ones(1, 2, 3),
        torch.tensor([[True, False]]),
        {},
    )
    return [
        Model(theta(2)),
        PartyState(Model(shared), {"0.local.0": Moments(shared, theta(2), 7)}),
        PartyState(Wrapped(Empty(), {"extra": torch.zeros(0, 4)}), {}),
        Bank(
            10, 84, {0: upload, 3: upload}, {0: 1, 3: 2}, 5, 2**63 + 5, [[1, 2], None, []], shared
        ),
        Evaluation(
            Score(1, 2, 0.5, {}),
            Score(3, 4, float("nan"), {"auc": 0.5}),
            Answers(torch.ones(3), torch.zeros(3), None),
        ),
        {i: Model(shared) for i in range(20)},
        Odd(
            [1, -2, 2**60],
            {"é": "ñ\n", "none": None, "😀": '"'},
            (1, 0.5),
            True,
            [(1, [2, {"deep": [[[]]]}]), "x", None],
        ),
        Help(theta(1), None, torch.zeros(2, dtype=torch.bfloat16), 0.5, 3, 0.25),
        [torch.tensor(1.5), torch.zeros(2, 3, dtype=torch.int64), [], {}, ()],
    ]


def new_lock() -> Lock:
    return Lock(SharedSecret(bytes(range(32))), b"a run")


def sealed_message_blob(content: Any) -> bytes:
    """An encoded inbox with one sealed message."""
    sealed = seal(content, to=(RECIPIENT, 5))
    set_origin(sealed, SENDER, CALL.round)
    return encode({RECIPIENT: {SENDER: new_lock().close(sealed)}}, sealed_messages=True)


# --- mutations


Mutation = Callable[[random.Random, bytes, bytes], bytes]
"""Makes a mutant from a blob and another blob that it may copy from."""
ATOMS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 255, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 0.5, -0.0, float("nan"), float("inf"), True, False, None, "",
    "x", "\ud800", "é", "0", "comity.base.record:Model", "comity.base.record:Cipher", "comity.base.record:Empty", [], {}, [[]],
    {"t": 0}, {"t": 1}, {"t": -1}, {"t": True}, {"s": 0}, {"s": 1}, {"s": -1}, {"u": []}, {"d": []}, {"d": [[1, 2], [1, 3]]},
    {"d": [[None, 2]]}, {"r": "comity.base.record:Empty", "v": []}, {"x": 5, "n": 3}, {"r": [], "v": 1}, {"d": [1]}, {"d": 1},
)  # fmt: skip
KEYS = (
    "t",
    "s",
    "u",
    "d",
    "r",
    "v",
    "x",
    "n",
    "tree",
    "__metadata__",
    "0",
    "1",
    "dtype",
    "shape",
    "data_offsets",
    "y",
)


def flip_bytes(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    mutant = bytearray(blob)
    for _ in range(draw.randint(1, 8)):
        mutant[draw.randrange(len(mutant))] = draw.randrange(256)
    return bytes(mutant)


def mutate_data(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    """Flip bytes after the header: tensors, and the ciphertext of sealed messages."""
    header, data = split_blob(blob)
    return build_blob(header, flip_bytes(draw, data, other)) if data else blob


def truncate(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    return blob[: draw.randrange(len(blob))]


def append_bytes(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    return blob + draw.randbytes(draw.randint(1, 64))


def splice(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    return blob[: draw.randrange(len(blob))] + other[draw.randrange(len(other)) :]


def repeat_bytes(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    a, b = sorted(draw.sample(range(len(blob) + 1), 2))
    return blob[:b] + blob[a:b] * draw.randint(1, 3) + blob[b:]


def swap_tensors(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    """The header of one blob with the tensors of the other."""
    size, other_size = (8 + int.from_bytes(b[:8], "little") for b in (blob, other))
    return blob[:size] + other[other_size:]


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """All (container, key) in a JSON tree."""
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, item in list(items):
        yield tree, key
        yield from places(item)


def mutate_tree(draw: random.Random, tree: Any, other: Any) -> Any:
    """Change, move, copy, rename or delete a few nodes of a JSON tree."""
    box = [tree]
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        where = list(places(box))
        holder, key = draw.choice(where)
        source, name = draw.choice(list(places([other])) if draw.random() < 0.5 else where)
        what = draw.randrange(6)
        if what == 0:
            holder[key] = copy_json(draw.choice(ATOMS))
        elif what == 1:
            holder[key] = copy_json(source[name])
        elif what == 2 and isinstance(holder[key], int):
            holder[key] += draw.choice((-1, 1, 2, 2**20))
        elif what == 3 and isinstance(holder, dict):
            holder[draw.choice(KEYS)] = holder.pop(key)
        elif what == 4 and isinstance(holder, list):
            holder.insert(key, copy_json(source[name]))
        elif holder is not box:
            del holder[key]
    return box[0]


def copy_json(tree: Any) -> Any:
    return json.loads(json.dumps(tree))


def build_blob(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def split_blob(blob: bytes) -> tuple[Any, bytes]:
    size = 8 + int.from_bytes(blob[:8], "little")
    return json.loads(blob[8:size]), blob[size:]


def mutate_content(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    (header, data), (other_header, _) = split_blob(blob), split_blob(other)
    tree, other_content = (json.loads(h["__metadata__"]["tree"]) for h in (header, other_header))
    header["__metadata__"]["tree"] = json.dumps(mutate_tree(draw, tree, other_content))
    return build_blob(header, data)


def mutate_header(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    (header, data), (other_header, _) = split_blob(blob), split_blob(other)
    return build_blob(mutate_tree(draw, header, other_header), data)


MUTATIONS: tuple[Mutation, ...] = (
    flip_bytes, mutate_data, truncate, append_bytes, splice, repeat_bytes, swap_tensors, *[mutate_content] * 8, *[mutate_header] * 3,
)  # fmt: skip


def mutants(seeds: list[bytes], count: int, draw: random.Random) -> Iterator[tuple[int, bytes]]:
    """Make `count` mutants, each with the index of its original blob."""
    for _ in range(count):
        n = draw.randrange(len(seeds))
        yield n, draw.choice(MUTATIONS)(draw, seeds[n], draw.choice(seeds))


# --- checks


class Outcome(NamedTuple):
    """How many mutants were read, why the others were refused, and the longest time."""

    read: int
    refused: Counter[str]
    slowest: float


def check_tree(tree: Any) -> None:
    """Use a decoded tree as Comity does; it can be encoded, and decodes to the same tree."""
    payload(tree)
    leaves(tree)
    read_only(tree)
    blob = encode(tree)
    assert encode(decode(blob)) == blob


def read_blob(n: int, blob: bytes) -> None:
    check_tree(decode(blob))


def open_sealed_message(contents: list[bytes]) -> Callable[[int, bytes], None]:
    """Receive sealed messages that may have been changed: only original contents open."""

    def open_and_check(n: int, blob: bytes) -> None:
        inboxes = decode(blob, sealed_messages=True)
        payload(inboxes)
        for inbox in new_lock().open(inboxes, CALL).values():
            assert all(encode(unseal(sealed)) in contents for sealed in inbox.values()), (
                "a sealed message opened with a content that nobody sent"
            )

    return open_and_check


def receive_mutants(
    seeds: list[bytes], receive: Callable[[int, bytes], None], count: int, seed: int
) -> Outcome:
    """Make mutants and receive them. Any exception other than a ComityError is a failure."""
    draw = random.Random(seed)
    read, slowest = 0, 0.0
    refused: Counter[str] = Counter()
    for n, blob in mutants(seeds, count, draw):
        begin = time.perf_counter()
        try:
            receive(n, blob)
            read += 1
        except ComityError as why:
            refused[str(why)[:120]] += 1
        except BaseException:
            sys.stderr.write(f"A mutant of seed {n} went through: {blob!r}\n")
            raise
        slowest = max(slowest, time.perf_counter() - begin)
        assert slowest < SECONDS, f"a mutant of seed {n} took {slowest:.1f} s: {blob!r}"
    return Outcome(read, refused, slowest)


def fuzz(count: int, seed: int) -> tuple[Outcome, Outcome]:
    """Receive mutants: one tenth sealed messages, the others blobs."""
    trees = legitimate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    blobs = receive_mutants([encode(tree) for tree in trees], read_blob, count - count // 10, seed)
    sealed_messages = receive_mutants(
        [sealed_message_blob(tree) for tree in trees],
        open_sealed_message([encode(tree) for tree in trees]),
        count // 10,
        seed + 1,
    )
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert megabytes < MEGABYTES, f"they took {megabytes} MB"
    return blobs, sealed_messages


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, outcome in zip(
        ("blobs", "sealed messages"), fuzz(arguments.count, arguments.seed), strict=True
    ):
        refused = outcome.refused.total()
        print(
            f"{name}: {outcome.read + refused} mutants, {outcome.read} read, {refused} refused;"
            f" slowest {outcome.slowest:.2f} s"
        )
        for reason, times in outcome.refused.most_common(12):
            print(f"  {times:7d}  {reason}")
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(
        f"{time.perf_counter() - begin:.0f} s, {megabytes} MB more than at the start; nothing but a"
        " tree or a ComityError came out"
    )


if __name__ == "__main__":
    main()
