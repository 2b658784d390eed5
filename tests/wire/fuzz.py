"""Blobs and parcels that nobody wrote: mutants of legitimate ones, by the hundred thousand.

    python tests/wire/fuzz.py --count 100000 [--seed 0]

Whatever a mutant is, `decode` (and `Lock.open`, for parcels) returns a tree that can be weighed,
listed and written again, or raises a ComityError; it does so in little time and memory. Prints how
many were read and why the others were refused.
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
"""How long one mutant may take, on a busy machine."""
MEGABYTES = 400
"""How much memory all of them together may add."""
CALL = CallId("local", 0, 3, 0)
SENDER, RECIPIENT = 1, 2


@record
class Odd:
    """A bit of everything."""

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


def parcel_blob(content: Any) -> bytes:
    """A party's inbox on its way."""
    sealed = seal(content, to=(RECIPIENT, 5))
    set_origin(sealed, SENDER, CALL.round)
    return encode({RECIPIENT: {SENDER: new_lock().close(sealed)}}, sealed_messages=True)


# --- mutations


Mutation = Callable[[random.Random, bytes, bytes], bytes]
"""From a blob, and another one to take from."""
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


def flipped(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    made = bytearray(blob)
    for _ in range(draw.randint(1, 8)):
        made[draw.randrange(len(made))] = draw.randrange(256)
    return bytes(made)


def other_numbers(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    """Only what is after the header: tensors, and in parcels the ciphertext."""
    header, data = apart(blob)
    return rebuilt(header, flipped(draw, data, other)) if data else blob


def cut(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    return blob[: draw.randrange(len(blob))]


def grown(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    return blob + draw.randbytes(draw.randint(1, 64))


def spliced(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    return blob[: draw.randrange(len(blob))] + other[draw.randrange(len(other)) :]


def repeated(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    a, b = sorted(draw.sample(range(len(blob) + 1), 2))
    return blob[:b] + blob[a:b] * draw.randint(1, 3) + blob[b:]


def swapped(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    """The header of one over the tensors of the other."""
    size, theirs = (8 + int.from_bytes(b[:8], "little") for b in (blob, other))
    return blob[:size] + other[theirs:]


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


def disturbed(draw: random.Random, tree: Any, other: Any) -> Any:
    """A JSON tree with a few nodes changed, moved, copied, renamed or gone."""
    box = [tree]
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        where = list(places(box))
        holder, key = draw.choice(where)
        source, name = draw.choice(list(places([other])) if draw.random() < 0.5 else where)
        what = draw.randrange(6)
        if what == 0:
            holder[key] = copied(draw.choice(ATOMS))
        elif what == 1:
            holder[key] = copied(source[name])
        elif what == 2 and isinstance(holder[key], int):
            holder[key] += draw.choice((-1, 1, 2, 2**20))
        elif what == 3 and isinstance(holder, dict):
            holder[draw.choice(KEYS)] = holder.pop(key)
        elif what == 4 and isinstance(holder, list):
            holder.insert(key, copied(source[name]))
        elif holder is not box:
            del holder[key]
    return box[0]


def copied(tree: Any) -> Any:
    return json.loads(json.dumps(tree))


def rebuilt(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def apart(blob: bytes) -> tuple[Any, bytes]:
    size = 8 + int.from_bytes(blob[:8], "little")
    return json.loads(blob[8:size]), blob[size:]


def other_tree(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    (header, data), (theirs, _) = apart(blob), apart(other)
    tree, fodder = (json.loads(h["__metadata__"]["tree"]) for h in (header, theirs))
    header["__metadata__"]["tree"] = json.dumps(disturbed(draw, tree, fodder))
    return rebuilt(header, data)


def other_header(draw: random.Random, blob: bytes, other: bytes) -> bytes:
    (header, data), (theirs, _) = apart(blob), apart(other)
    return rebuilt(disturbed(draw, header, theirs), data)


MUTATIONS: tuple[Mutation, ...] = (
    flipped, other_numbers, cut, grown, spliced, repeated, swapped, *[other_tree] * 8, *[other_header] * 3,
)  # fmt: skip


def mutants(seeds: list[bytes], count: int, draw: random.Random) -> Iterator[tuple[int, bytes]]:
    """So many, each with the number of the blob it was made of."""
    for _ in range(count):
        n = draw.randrange(len(seeds))
        yield n, draw.choice(MUTATIONS)(draw, seeds[n], draw.choice(seeds))


# --- what must hold


class Outcome(NamedTuple):
    """What came of mutants."""

    read: int
    refused: Counter[str]
    slowest: float


def occurrence(tree: Any) -> None:
    """All that is done with what was read; a tree that was read can be written, and is then the
    same.
    """
    payload(tree)
    leaves(tree)
    read_only(tree)
    blob = encode(tree)
    assert encode(decode(blob)) == blob


def read_blob(n: int, blob: bytes) -> None:
    occurrence(decode(blob))


def open_parcel(contents: list[bytes]) -> Callable[[int, bytes], None]:
    """Receive a parcel from somebody who may have changed it: what opens is what was sent."""

    def opened(n: int, blob: bytes) -> None:
        inboxes = decode(blob, sealed_messages=True)
        payload(inboxes)
        for inbox in new_lock().open(inboxes, CALL).values():
            assert all(encode(unseal(sealed)) in contents for sealed in inbox.values()), (
                "a parcel opened that nobody sent"
            )

    return opened


def tried(
    seeds: list[bytes], receive: Callable[[int, bytes], None], count: int, seed: int
) -> Outcome:
    """Make mutants and receive them; an AssertionError or any foreign exception is a fault of ours."""
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
    """A tenth of them parcels, the others blobs."""
    trees = legitimate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    blobs = tried([encode(tree) for tree in trees], read_blob, count - count // 10, seed)
    sealed_messages = tried(
        [parcel_blob(tree) for tree in trees],
        open_parcel([encode(tree) for tree in trees]),
        count // 10,
        seed + 1,
    )
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert grown < MEGABYTES, f"they took {grown} MB"
    return blobs, sealed_messages


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, outcome in zip(("blobs", "parcels"), fuzz(asked.count, asked.seed), strict=True):
        refused = outcome.refused.total()
        print(
            f"{name}: {outcome.read + refused} mutants, {outcome.read} read, {refused} refused;"
            f" slowest {outcome.slowest:.2f} s"
        )
        for reason, times in outcome.refused.most_common(12):
            print(f"  {times:7d}  {reason}")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(
        f"{time.perf_counter() - begin:.0f} s, {grown} MB more than at the start; nothing but a"
        " tree or a ComityError came out"
    )


if __name__ == "__main__":
    main()
