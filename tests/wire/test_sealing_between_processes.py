"""Sealed messages on the process engine pass through the server's process, which never gets their
plaintext.

The tests record all traffic of the server's process: every byte of every header, and every memory
file. The plaintext is known from the same run on the loop engine, where sealed messages are not
encrypted.
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
def server_traffic(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """All bytes that the server's process sends and receives."""
    traffic: list[bytes] = []

    files: dict[int, bytes] = {}  # by descriptor; a file crosses once and is used again

    def record_files(descriptors: Iterable[int]) -> None:
        files.update((os.dup(fd), b"") for fd in descriptors)
        for fd, before in files.items():
            files[fd] = os.pread(fd, os.fstat(fd).st_size, 0)
            if files[fd] != before:
                traffic.append(files[fd])

    class Tap(socket.socket):
        def sendall(self, data: Any, *more: Any) -> None:
            traffic.append(bytes(data))
            super().sendall(data, *more)

        def sendmsg(self, buffers: Any, ancillary: Any = (), *more: Any) -> int:
            traffic.extend(map(bytes, buffers))
            record_files([fd for _, _, descriptors in ancillary for fd in descriptors])
            return super().sendmsg(buffers, ancillary, *more)

        def recv(self, *args: Any) -> bytes:
            data = super().recv(*args)
            traffic.append(data)
            return data

        def recvmsg(self, *args: Any) -> Any:
            result = super().recvmsg(*args)
            traffic.append(result[0])
            record_files([fd for _, _, blob in result[1] for fd in array.array("i", blob)])
            return result

    def pair() -> tuple[Channel, Channel]:
        server_end, worker_end = socket.socketpair()
        return Channel(Tap(fileno=server_end.detach())), Channel(worker_end)

    monkeypatch.setattr(Channel, "pair", staticmethod(pair))
    yield traffic
    for fd in files:
        os.close(fd)


def windows(tensors: Iterable[Tensor]) -> set[bytes]:
    """All stretches of 16 bytes that begin at a number, without padding and rows of zeros."""
    blobs = [t.numpy().tobytes() for t in tensors]
    all_windows = {
        blob[k : k + WINDOW] for blob in blobs for k in range(0, len(blob) - WINDOW + 1, 4)
    }
    return {window for window in all_windows if len(set(window)) > WINDOW // 2}


def exposed_windows(secrets: set[bytes], traffic: Iterable[bytes]) -> set[bytes]:
    """The secrets that occur in the traffic."""
    return {
        window
        for blob in traffic
        for k in range(len(blob) - WINDOW + 1)
        if (window := blob[k : k + WINDOW]) in secrets
    }


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> list[list[Tensor]]:
    """The tensors of each sealed message of the run, in the order of delivery."""
    plaintexts: list[list[Tensor]] = []
    function = LoopEngine.run

    def run_and_record(
        engine: LoopEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        plaintexts.extend(
            [t.clone() for t in leaves(unseal(sealed))] for sealed in sealed_messages.values()
        )
        return function(engine, call, messages, sealed_messages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopEngine, "run", run_and_record)
        run(GOSSIP, tmp_path_factory.mktemp("loop"), **SMALL)
    return plaintexts


def disable_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace encryption by plain encoding."""

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
def test_server_process_gets_no_plaintext_of_sealed_messages(
    workers: int, server_traffic: list[bytes], contents: list[list[Tensor]], tmp_path: Path
) -> None:
    secrets = windows(t for sealed in contents for t in sealed)
    assert len(contents) == 8  # four parties, two rounds
    assert len(secrets) > 2000
    on_processes(tmp_path, workers)
    assert (
        sum(map(len, server_traffic)) > 2 * 8 * 2600
    )  # each sealed message arrives and leaves; a linear model has 650 numbers
    assert not exposed_windows(secrets, server_traffic)


def test_without_encryption_the_server_process_gets_all_plaintext(
    server_traffic: list[bytes],
    contents: list[list[Tensor]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Shows that the test above records the sealed messages and knows their contents."""
    disable_encryption(monkeypatch)
    on_processes(tmp_path)
    for sealed in contents:
        secrets = windows(sealed)
        assert exposed_windows(secrets, server_traffic) == secrets


def test_unsealing_at_the_server_gives_unique_ciphertexts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Equal models have different ciphertexts, because no nonce occurs twice."""
    forwarded: list[Any] = []
    function = ProcessEngine.run

    def run_and_record(
        engine: ProcessEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        forwarded.extend((sealed.size, unseal(sealed)) for sealed in sealed_messages.values())
        return function(engine, call, messages, sealed_messages)

    monkeypatch.setattr(ProcessEngine, "run", run_and_record)
    on_processes(tmp_path, rounds=3)
    assert len(forwarded) == 12
    assert {size for size, _ in forwarded} == {4 * 650}
    assert {type(content) for _, content in forwarded} == {Cipher}
    for part in ("blob", "keys"):
        assert len({getattr(content, part).numpy().tobytes() for _, content in forwarded}) == 12


def test_changed_sealed_message_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    function = ProcessEngine.run

    def run_with_change(
        engine: ProcessEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        for sealed in list(sealed_messages.values())[:1]:
            unseal(sealed).blob[-1] ^= 1
        return function(engine, call, messages, sealed_messages)

    monkeypatch.setattr(ProcessEngine, "run", run_with_change)
    with pytest.raises(comity.ComityError):
        on_processes(tmp_path)


def misdeliver(how: str, engine: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an engine deliver sealed messages to wrong recipients, from wrong senders, late or
    twice.
    """
    function = engine.run
    earlier_messages: dict[Any, Any] = {}

    def run_with_misdelivery(
        self: Any, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        if how == "to another party" and sealed_messages:
            original = dict(sealed_messages)
            sealed_messages = {
                (src, (dst - 2) % 4): sealed for (src, dst), sealed in original.items()
            }
        elif how == "as another's" and sealed_messages:
            sealed_messages = {
                ((src + 1) % 4, dst): sealed for (src, dst), sealed in sealed_messages.items()
            }
        elif how == "a round late" and sealed_messages:
            sealed_messages = dict(earlier_messages) if call.round > 1 else sealed_messages
        elif how == "twice" and not sealed_messages and call.round == 2:
            list(function(self, CallId("local", 0, 1, 1), messages, earlier_messages))
        earlier_messages.update(sealed_messages)
        return function(self, call, messages, sealed_messages)

    monkeypatch.setattr(engine, "run", run_with_misdelivery)


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
def test_misdelivered_sealed_message_is_refused_on_every_engine(
    how: str, why: str, engine: type[Engine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    misdeliver(how, engine, monkeypatch)
    where = {"engine": "process", "workers": 2} if engine is ProcessEngine else {"engine": "loop"}
    with pytest.raises(comity.ComityError, match=why):
        run(GOSSIP, tmp_path, **SMALL | where)


def test_sealed_messages_open_again_when_a_call_is_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The replies of the first call may have been lost."""
    replies: list[list[Any]] = []
    function = ProcessEngine.run

    def run_twice(
        engine: ProcessEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        if call.function == "local":
            replies.append(
                [
                    (i, result.steps)
                    for i, result in sorted(function(engine, call, messages, sealed_messages))
                ]
            )
        return function(engine, call, messages, sealed_messages)

    monkeypatch.setattr(ProcessEngine, "run", run_twice)
    on_processes(tmp_path)
    assert [len(steps) for steps in replies] == [4, 4]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_encryption_does_not_change_results(workers: int, tmp_path: Path) -> None:
    settings = {
        "rounds": 3,
        "participation": 0.75,
        "model": "mlp2(width=12)",
        "optimizer": "adam",
        "lr": 0.01,
    }
    loop_run = run(GOSSIP, tmp_path / "loop", **settings)
    process_run = on_processes(tmp_path / "process", workers, **settings)
    assert tables(process_run.folder) == tables(loop_run.folder)
    for name, theta in weights(loop_run).items():
        assert all(
            torch.equal(value, weights(process_run)[name][k]) for k, value in theta.items()
        ), name
    rows = [row for row in process_run.ledger if row.kind == "peer"]
    assert len(rows) == 3 * 3
    assert {row.bytes for row in rows} == {
        4 * (64 * 12 + 12 + 12 * 12 + 12 + 12 * 10 + 10)
    }  # as without encryption


def test_sealed_messages_are_never_saved() -> None:
    """The secret ends with the run's processes. On the loop engine, without encryption, saving is
    refused, too.
    """
    sealed = seal(Model({"w": torch.ones(5)}), to=1)
    set_origin(sealed, 0, 1)
    with pytest.raises(comity.ComityError, match="never saved"):
        encode(sealed)
    with pytest.raises(comity.ComityError, match="never saved"):
        encode(Lock(SharedSecret(bytes(KEY)), b"").close(sealed))


# --- the secret


def test_each_run_has_one_secret_that_the_server_never_has(
    server_traffic: list[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def record_secret(secret: bytes) -> PairKeys:
        (secret_folder / str(os.getpid())).write_bytes(secret)
        return SharedSecret(secret)

    monkeypatch.setattr(sealing, "SharedSecret", record_secret)
    secrets = []
    for name in ("first", "second"):
        secret_folder = tmp_path / f"secrets-{name}"
        secret_folder.mkdir()
        on_processes(tmp_path / name, rounds=1)
        assert len(list(secret_folder.iterdir())) == 3
        assert not (secret_folder / str(os.getpid())).exists()
        (secret,) = {path.read_bytes() for path in secret_folder.iterdir()}
        assert len(secret) == KEY
        secrets.append(secret)
    assert secrets[0] != secrets[1]
    assert not any(secret in blob for secret in secrets for blob in server_traffic)


def sockets(pid: int | None) -> set[str]:
    """The open sockets of a process."""
    targets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.add(os.readlink(descriptor))
        except OSError:
            continue
    return {name for name in targets if name.startswith("socket:")}


class Inodes(Quiet):
    """Records the sockets of the server after the fork, and those of the workers after a round."""

    server: set[str]
    workers: list[set[str]]

    def begin(self, job: Any, first_round: int) -> None:
        self.server = sockets(os.getpid())

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        self.workers = [sockets(child.pid) for child in multiprocessing.active_children()]


def test_sockets_of_the_secret_are_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    handover_sockets: list[str] = []
    alive: list[Handover] = []
    begin = Handover.__init__

    def create_and_record(self: Handover, workers: int) -> None:
        begin(self, workers)
        alive.append(self)  # keeps the object, so that only close() can close its sockets
        handover_sockets.extend(
            f"socket:[{os.fstat(end.fileno()).st_ino}]" for pair in self._pairs for end in pair
        )
        assert set(handover_sockets) <= sockets(os.getpid())

    monkeypatch.setattr(Handover, "__init__", create_and_record)
    before, inodes = sockets(os.getpid()), Inodes()
    on_processes(tmp_path, progress=inodes, rounds=1)
    assert len(handover_sockets) == 4  # two pairs for three workers
    assert not inodes.server & set(handover_sockets)
    assert len(inodes.server - before) == 3  # the channels
    assert len(inodes.workers) == 3
    for worker_sockets in inodes.workers:
        assert not worker_sockets & set(handover_sockets)
        assert len(worker_sockets - before) == 1  # only its own channel
    assert sockets(os.getpid()) == before


@pytest.mark.parametrize(
    ("victim", "handovers"),
    [(0, 0), (0, 1), (1, 0), (2, 0)],
    ids=[
        "first-draws-nothing",
        "first-hands-on-to-one",
        "second-takes-nothing",
        "third-takes-nothing",
    ],
)
def test_worker_killed_during_the_handover_of_the_secret_ends_the_run(
    victim: int, handovers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run ends with an error, and the other workers exit by themselves."""
    lock, close = Handover.lock, ProcessEngine.close
    codes: list[int | None] = []

    def lock_or_die(self: Handover, worker: int) -> Lock:
        if worker == victim:
            for giver, _ in self._pairs[:handovers]:
                giver.sendall(bytes(KEY + RUN))
            os.kill(os.getpid(), signal.SIGKILL)
        return lock(self, worker)

    def close_and_record(engine: ProcessEngine) -> None:
        processes = list(engine._processes)
        close(engine)
        codes.extend(process.exitcode for process in processes)

    monkeypatch.setattr(Handover, "lock", lock_or_die)
    monkeypatch.setattr(ProcessEngine, "close", close_and_record)
    with pytest.raises(comity.ComityError, match=r"A worker process (was ended by SIGKILL|ended)"):
        on_processes(tmp_path)
    assert codes == [-signal.SIGKILL if worker == victim else 0 for worker in range(3)]
