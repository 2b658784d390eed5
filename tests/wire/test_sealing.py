"""What parties write to each other passes through the server's process, and that process never
learns it.

The server's ends of all lines are tapped: every byte of every header, and every memory file as a
whole. What must not be in there is known from the same run in a loop, where parcels are plain
objects.
"""

from __future__ import annotations

import array
import multiprocessing
import os
import signal
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import GOSSIP, run, tables, weights
from torch import Tensor

import comity
from comity.base.call import CallId
from comity.base.record import Cipher, Sealed, leaves, set_origin, unseal
from comity.core import Model, seal
from comity.engines.engine import Engine
from comity.engines.loop import LoopEngine
from comity.engines.process import ProcessEngine
from comity.runs.server_run import Quiet
from comity.wire import sealing
from comity.wire.channel import Channel
from comity.wire.codec import decode, encode
from comity.wire.sealing import KEY, RUN, Handover, Lock, PairKeys, SharedSecret

WINDOW = 16
SMALL: dict[str, Any] = {"model": "linear", "rounds": 2}


def on_processes(out: Path, workers: int = 3, **settings: Any) -> comity.Result:
    return run(GOSSIP, out, engine="process", workers=workers, **(SMALL | settings))


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All that the server's process sends and receives from now on."""
    seen: list[bytes] = []

    def read(descriptors: Iterable[int]) -> None:
        seen.extend(os.pread(fd, os.fstat(fd).st_size, 0) for fd in descriptors)

    class Tap(socket.socket):
        def sendall(self, data: Any, *more: Any) -> None:
            seen.append(bytes(data))
            super().sendall(data, *more)

        def sendmsg(self, buffers: Any, ancillary: Any = (), *more: Any) -> int:
            seen.extend(map(bytes, buffers))
            for _, _, descriptors in ancillary:
                read(descriptors)
            return super().sendmsg(buffers, ancillary, *more)

        def recv(self, *how: Any) -> bytes:
            got = super().recv(*how)
            seen.append(got)
            return got

        def recvmsg(self, *how: Any) -> Any:
            got = super().recvmsg(*how)
            seen.append(got[0])
            for _, _, blob in got[1]:
                read(array.array("i", blob))
            return got

    def pair() -> tuple[Channel, Channel]:
        here, there = socket.socketpair()
        return Channel(Tap(fileno=here.detach())), Channel(there)

    monkeypatch.setattr(Channel, "pair", staticmethod(pair))
    return seen


def windows(tensors: Iterable[Tensor]) -> set[bytes]:
    """All stretches of 16 bytes that begin with a number and say something: no padding, no row of
    zeros.
    """
    blobs = [t.numpy().tobytes() for t in tensors]
    made = {blob[k : k + WINDOW] for blob in blobs for k in range(0, len(blob) - WINDOW + 1, 4)}
    return {window for window in made if len(set(window)) > WINDOW // 2}


def in_sight(secrets: set[bytes], seen: Iterable[bytes]) -> set[bytes]:
    """Those of the secrets that occur anywhere in what was seen."""
    return {
        window
        for blob in seen
        for k in range(len(blob) - WINDOW + 1)
        if (window := blob[k : k + WINDOW]) in secrets
    }


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> list[list[Tensor]]:
    """What each parcel of the run holds, in the order of delivery."""
    held: list[list[Tensor]] = []
    function = LoopEngine.run

    def listening(
        engine: LoopEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        held.extend(
            [t.clone() for t in leaves(unseal(sealed))] for sealed in sealed_messages.values()
        )
        return function(engine, call, messages, sealed_messages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopEngine, "run", listening)
        run(GOSSIP, tmp_path_factory.mktemp("loop"), **SMALL)
    return held


def glass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the lock by one that locks nothing."""

    def close(lock: Lock, sealed: Sealed) -> Sealed:
        assert sealed.origin
        blob = torch.frombuffer(bytearray(encode(unseal(sealed))), dtype=torch.uint8)
        content = Cipher(*sealed.origin, list(sealed.to), torch.zeros(0, dtype=torch.uint8), blob)
        return Sealed(content, sealed.size, sealed.to, sealed.origin)

    def open_(lock: Lock, sealed: Sealed, *address: Any) -> Sealed:
        return Sealed(
            decode(unseal(sealed).blob.numpy().tobytes()), sealed.size, sealed.to, sealed.origin
        )

    monkeypatch.setattr(Lock, "_close", close)
    monkeypatch.setattr(Lock, "_open", open_)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_no_plaintext_of_a_parcel_passes_the_server(
    workers: int, tap: list[bytes], contents: list[list[Tensor]], tmp_path: Path
) -> None:
    secrets = windows(t for sealed in contents for t in sealed)
    assert len(contents) == 8  # four parties, two rounds
    assert len(secrets) > 2000
    on_processes(tmp_path, workers)
    assert (
        sum(map(len, tap)) > 2 * 8 * 2600
    )  # each parcel came and went: a linear model has 650 numbers
    assert not in_sight(secrets, tap)


def test_without_the_lock_all_of_it_would_pass(
    tap: list[bytes], contents: list[list[Tensor]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The test above looks where parcels really are, and knows what they hold."""
    glass(monkeypatch)
    on_processes(tmp_path)
    for sealed in contents:
        secrets = windows(sealed)
        assert in_sight(secrets, tap) == secrets


def test_whoever_reaches_into_a_parcel_at_the_server_finds_ciphertext(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Equal models look different: no nonce comes twice."""
    carried: list[Any] = []
    function = ProcessEngine.run

    def curious(
        engine: ProcessEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        carried.extend((sealed.size, unseal(sealed)) for sealed in sealed_messages.values())
        return function(engine, call, messages, sealed_messages)

    monkeypatch.setattr(ProcessEngine, "run", curious)
    on_processes(tmp_path, rounds=3)
    assert len(carried) == 12
    assert {size for size, _ in carried} == {4 * 650}
    assert {type(content) for _, content in carried} == {Cipher}
    for part in ("blob", "keys"):
        assert len({getattr(content, part).numpy().tobytes() for _, content in carried}) == 12


def test_a_parcel_that_was_changed_on_its_way_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    function = ProcessEngine.run

    def meddling(
        engine: ProcessEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        for sealed in list(sealed_messages.values())[:1]:
            unseal(sealed).blob[-1] ^= 1
        return function(engine, call, messages, sealed_messages)

    monkeypatch.setattr(ProcessEngine, "run", meddling)
    with pytest.raises(comity.ComityError):
        on_processes(tmp_path)


def delivered_otherwise(how: str, engine: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an engine deliver parcels otherwise than methods ask for: in a ring of four, each
    party's to the party before it.
    """
    function = engine.run
    old: dict[Any, Any] = {}

    def carrying(self: Any, call: Any, messages: Any, sealed_messages: Any) -> Iterator[Any]:
        if how == "to another party" and sealed_messages:
            kept = dict(sealed_messages)
            sealed_messages = {(src, (dst - 2) % 4): sealed for (src, dst), sealed in kept.items()}
        elif how == "as another's" and sealed_messages:
            sealed_messages = {
                ((src + 1) % 4, dst): sealed for (src, dst), sealed in sealed_messages.items()
            }
        elif how == "a round late" and sealed_messages:
            sealed_messages = dict(old) if call.round > 1 else sealed_messages
        elif how == "twice" and not sealed_messages and call.round == 2:
            list(function(self, CallId("local", 0, 1, 1), messages, old))
        old.update(sealed_messages)
        return function(self, call, messages, sealed_messages)

    monkeypatch.setattr(engine, "run", carrying)


@pytest.mark.parametrize("engine", [LoopEngine, ProcessEngine])
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("to another party", "not for"),
        ("as another's", "from another party"),
        ("a round late", "another round|second time"),
        ("twice", "second time"),
    ],
)
def test_a_parcel_delivered_otherwise_is_refused_on_every_engine(
    how: str, why: str, engine: type[Engine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    delivered_otherwise(how, engine, monkeypatch)
    where = {"engine": "process", "workers": 2} if engine is ProcessEngine else {"engine": "loop"}
    with pytest.raises(comity.ComityError, match=why):
        run(GOSSIP, tmp_path, **SMALL | where)


def test_parcels_open_again_for_a_call_that_is_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its answers may have been lost on their way."""
    replies: list[list[Any]] = []
    function = ProcessEngine.run

    def repeating(
        engine: ProcessEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        if call.function == "local":
            replies.append(
                [
                    (i, answer.steps)
                    for i, answer in sorted(function(engine, call, messages, sealed_messages))
                ]
            )
        return function(engine, call, messages, sealed_messages)

    monkeypatch.setattr(ProcessEngine, "run", repeating)
    on_processes(tmp_path)
    assert [len(answers) for answers in replies] == [4, 4]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_locked_parcels_change_no_bit(workers: int, tmp_path: Path) -> None:
    settings = {
        "rounds": 3,
        "participation": 0.75,
        "model": "mlp2(width=12)",
        "optimizer": "adam",
        "lr": 0.01,
    }
    alone = run(GOSSIP, tmp_path / "loop", **settings)
    together = on_processes(tmp_path / "process", workers, **settings)
    assert tables(together.folder) == tables(alone.folder)
    for name, theta in weights(alone).items():
        assert all(torch.equal(value, weights(together)[name][k]) for k, value in theta.items()), (
            name
        )
    rows = [row for row in together.ledger if row.kind == "peer"]
    assert len(rows) == 3 * 3
    assert {row.bytes for row in rows} == {
        4 * (64 * 12 + 12 + 12 * 12 + 12 + 12 * 10 + 10)
    }  # as if it were not locked


def test_a_parcel_is_never_saved() -> None:
    """Its secret is gone with the run's processes; in a loop, where it is not locked, it is refused
    already.
    """
    sealed = seal(Model({"w": torch.ones(5)}), to=1)
    set_origin(sealed, 0, 1)
    with pytest.raises(comity.ComityError, match="never saved"):
        encode(sealed)
    with pytest.raises(comity.ComityError, match="never saved"):
        encode(Lock(SharedSecret(bytes(KEY)), b"").close(sealed))


# --- the secret


def test_a_run_has_one_secret_which_the_server_never_has(
    tap: list[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def telling(secret: bytes) -> PairKeys:
        (told / str(os.getpid())).write_bytes(secret)
        return SharedSecret(secret)

    monkeypatch.setattr(sealing, "SharedSecret", telling)
    secrets = []
    for turn in ("first", "second"):
        told = tmp_path / f"told-{turn}"
        told.mkdir()
        on_processes(tmp_path / turn, rounds=1)
        assert len(list(told.iterdir())) == 3
        assert not (told / str(os.getpid())).exists()
        (secret,) = {path.read_bytes() for path in told.iterdir()}
        assert len(secret) == KEY
        secrets.append(secret)
    assert secrets[0] != secrets[1]
    assert not any(secret in blob for secret in secrets for blob in tap)


def sockets(pid: int | None) -> set[str]:
    """The sockets that a process holds."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(descriptor))
        except OSError:
            continue
    return {name for name in found if name.startswith("socket:")}


class Inodes(Quiet):
    """Who holds which sockets: the server when all workers are forked, and the workers when they
    have worked.
    """

    server: set[str]
    workers: list[set[str]]

    def begin(self, job: Any, first_round: int) -> None:
        self.server = sockets(os.getpid())

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        self.workers = [sockets(child.pid) for child in multiprocessing.active_children()]


def test_the_sockets_that_the_secret_went_through_are_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[str] = []
    alive: list[Handover] = []
    begin = Handover.__init__

    def noting(self: Handover, workers: int) -> None:
        begin(self, workers)
        alive.append(self)  # what is not closed is not collected either
        made.extend(
            f"socket:[{os.fstat(end.fileno()).st_ino}]" for pair in self._pairs for end in pair
        )
        assert set(made) <= sockets(os.getpid())

    monkeypatch.setattr(Handover, "__init__", noting)
    before, inodes = sockets(os.getpid()), Inodes()
    on_processes(tmp_path, progress=inodes, rounds=1)
    assert len(made) == 4  # two pairs for three workers
    assert not inodes.server & set(made)
    assert len(inodes.server - before) == 3  # the lines
    assert len(inodes.workers) == 3
    for held in inodes.workers:
        assert not held & set(made)
        assert len(held - before) == 1  # its own line: it cannot listen to the others'
    assert sockets(os.getpid()) == before


@pytest.mark.parametrize(
    ("victim", "handed"),
    [(0, 0), (0, 1), (1, 0), (2, 0)],
    ids=[
        "first-draws-nothing",
        "first-hands-on-to-one",
        "second-takes-nothing",
        "third-takes-nothing",
    ],
)
def test_a_worker_killed_while_the_secret_goes_round_leaves_nobody_waiting(
    victim: int, handed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run ends with a sentence, and the other workers end by themselves: none has to be killed."""
    lock, close = Handover.lock, ProcessEngine.close
    codes: list[int | None] = []

    def dying(self: Handover, worker: int) -> Lock:
        if worker == victim:
            for giver, _ in self._pairs[:handed]:
                giver.sendall(bytes(KEY + RUN))
            os.kill(os.getpid(), signal.SIGKILL)
        return lock(self, worker)

    def counting(engine: ProcessEngine) -> None:
        processes = list(engine._processes)
        close(engine)
        codes.extend(process.exitcode for process in processes)

    monkeypatch.setattr(Handover, "lock", dying)
    monkeypatch.setattr(ProcessEngine, "close", counting)
    with pytest.raises(comity.ComityError, match=r"A worker process (was ended by SIGKILL|ended)"):
        on_processes(tmp_path)
    assert codes == [-signal.SIGKILL if worker == victim else 0 for worker in range(3)]
