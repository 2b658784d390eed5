"""The process engine: parties are distributed over long-lived worker processes with one torch
thread each.

Workers are forked, so each has all data from the start. Messages are in shared memory
(`wire/channel.py`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import wait

import torch

from comity.base.key import Key
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Party
from comity.engines.allocator import keep_freed_memory, trim_memory
from comity.engines.engine import Scheduler
from comity.engines.site_store import SiteStore
from comity.engines.workers import (
    Worker,
    WorkerReply,
    WorkerRequest,
    WorkersEngine,
    always_open,
)
from comity.errors import ComityError, UsageError, describe, describe_exit
from comity.machine import can_fork, signal_at_end_of_parent
from comity.wire.channel import Channel
from comity.wire.sealing import Handover

CHANNEL_CLOSED = (EOFError, ConnectionError)  # what a channel raises when its other end has closed
ENDS = (signal.SIGINT, signal.SIGTERM)
WATCH_SECONDS = 1.0


class ProcessEngine(WorkersEngine):
    """Workers that are forked once. Messages go to the worker that has the party."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        parties: Iterable[Party],
        root: Key,
        scheduler: Scheduler,
        workers: int,
    ) -> None:
        if not can_fork():
            raise UsageError(
                "The process engine needs a system that can fork: use --engine loop here."
            )
        all_parties = list(parties)
        workers = max(1, min(workers, len(all_parties)))
        super().__init__({p.id: len(p.data.train) for p in all_parties}, workers)
        self._channels: list[Channel] = []
        self._processes = []
        fork = multiprocessing.get_context("fork")
        trim_memory()  # every worker would inherit the free memory
        handover = Handover(workers)
        end_with_server = _EndWithServer()
        for w in range(workers):
            server_end, worker_end = Channel.pair()
            other_channels = [*self._channels, server_end]
            process = fork.Process(
                target=_worker,
                args=(
                    end_with_server,
                    worker_end,
                    other_channels,
                    handover,
                    w,
                    algorithm,
                    all_parties,
                    root,
                    scheduler,
                ),
                daemon=True,
            )
            with signals_blocked():
                process.start()
            worker_end.close()
            self._channels.append(server_end)
            self._processes.append(process)
        handover.close()

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._channels, self._processes = [], []

    def _exchange(
        self,
        requests: Mapping[int, WorkerRequest],
        is_open: Callable[[int], bool] = always_open,
    ) -> Iterator[tuple[int, WorkerReply]]:
        workers = {self._channels[w].fileno(): w for w in requests}
        self._notify(requests)
        while workers:
            for w in workers.values():
                self._channels[w].return_files()  # of replies that were used meanwhile
            for ready in wait([file for file, w in workers.items() if is_open(w)]):
                assert isinstance(ready, int)
                w = workers[ready]
                reply = self._receive(w)
                if reply["last"]:
                    del workers[ready]
                yield w, reply
                del reply

    def _notify(self, requests: Mapping[int, WorkerRequest]) -> None:
        for w, request in requests.items():
            self._send(w, request)

    def _send(self, w: int, request: WorkerRequest) -> None:
        try:
            self._channels[w].send(request)
        except CHANNEL_CLOSED as why:
            raise self._worker_error(w) from why

    def _receive(self, w: int) -> WorkerReply:
        try:
            reply: WorkerReply = self._channels[w].receive()
        except CHANNEL_CLOSED as why:
            raise self._worker_error(w) from why
        if "error" in reply:
            raise ComityError(reply["error"])
        return reply

    def _worker_error(self, w: int) -> ComityError:
        """The error for a worker whose channel has closed."""
        self._processes[w].join(timeout=1)  # its channel closes shortly before it exits
        return ComityError(
            f"A worker process {describe_exit(self._processes[w].exitcode)}; the run can be"
            " resumed."
        )


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM until a new worker ignores the first: before that, it would print a
    traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _EndWithServer:
    """Ends a worker when the server's process ends in any way, also in the middle of a call.

    On Linux the system kills the worker. On other systems a thread of the worker looks whether the
    server is there.
    """

    def __init__(self) -> None:
        self._server = os.getpid()
        self._ask_for_signal = signal_at_end_of_parent(signal.SIGKILL)

    def begin(self) -> None:
        """Is called in the worker."""
        if self._ask_for_signal:
            self._ask_for_signal()
        else:
            threading.Thread(target=self._watch, daemon=True).start()
        self._end_if_alone()  # the server may have ended before that

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            self._end_if_alone()

    def _end_if_alone(self) -> None:
        if os.getppid() != self._server:
            os._exit(1)


def _worker(
    end_with_server: _EndWithServer,
    channel: Channel,
    other_channels: list[Channel],
    handover: Handover,
    number: int,
    algorithm: AnyAlgorithm,
    parties: list[Party],
    root: Key,
    scheduler: Scheduler,
) -> None:
    end_with_server.begin()
    # The server handles Ctrl-C. A worker ends when its channel closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    for other in other_channels:
        other.close()
    torch.set_num_threads(1)
    keep_freed_memory()
    worker: Worker | None = None
    try:
        lock = handover.lock(number)
        while True:
            try:
                request = channel.receive()
                worker = worker or Worker(SiteStore(algorithm, parties, root), scheduler, lock)
                for reply in worker.handle(request):
                    channel.send(reply)
                    del reply  # its memory is free for the next party
            except CHANNEL_CLOSED:
                raise
            except Exception as why:
                channel.send({"error": describe(why)})
    except CHANNEL_CLOSED:
        return
