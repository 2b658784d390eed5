"""Parties spread over long-lived worker processes, one torch thread each.

All data are in all workers from the start (they are forked). Messages are in shared memory
(`channel`).
"""

from __future__ import annotations

import multiprocessing
import selectors
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch

from comity.base.key import Key
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Party
from comity.engines.allocator import give_back, keep_freed_memory
from comity.engines.engine import Scheduler
from comity.engines.site_store import SiteStore
from comity.engines.workers import Ask, Worker, WorkerMessage, WorkersEngine
from comity.errors import ComityError, UsageError, describe, describe_exit
from comity.wire.channel import Channel
from comity.wire.sealing import Handover

GONE = (EOFError, ConnectionError)  # what a line says when nobody is at its other end
ENDS = (signal.SIGINT, signal.SIGTERM)


class ProcessEngine(WorkersEngine):
    """Workers forked once; letters go to the worker where the party lives."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        parties: Iterable[Party],
        root: Key,
        scheduler: Scheduler,
        workers: int,
    ) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UsageError(
                "The process engine needs a system that can fork: use --engine loop here."
            )
        everyone = list(parties)
        workers = max(1, min(workers, len(everyone)))
        super().__init__({p.id: len(p.data.train) for p in everyone}, workers)
        self._lines: list[Channel] = []
        self._processes = []
        fork = multiprocessing.get_context("fork")
        give_back()  # what is free here would be a burden to every worker
        handover = Handover(workers)
        for w in range(workers):
            here, there = Channel.pair()
            strangers = [*self._lines, here]
            process = fork.Process(
                target=_worker,
                args=(there, strangers, handover, w, algorithm, everyone, root, scheduler),
                daemon=True,
            )
            with held_back():
                process.start()
            there.close()
            self._lines.append(here)
            self._processes.append(process)
        handover.close()

    def close(self) -> None:
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._lines, self._processes = [], []

    def _exchange(self, asks: Mapping[int, Ask]) -> Iterator[tuple[int, WorkerMessage]]:
        asked = set(asks)
        self._tell(asks)
        with selectors.DefaultSelector() as ready:
            for w in asked:
                ready.register(self._lines[w], selectors.EVENT_READ, w)
            while asked:
                for event, _ in ready.select():
                    message = self._receive(event.data)
                    if message["last"]:
                        asked.discard(event.data)
                    yield event.data, message

    def _tell(self, asks: Mapping[int, Ask]) -> None:
        for w, ask in asks.items():
            self._send(w, ask)

    def _send(self, w: int, ask: Ask) -> None:
        try:
            self._lines[w].send(ask)
        except GONE as why:
            raise self._ended(w) from why

    def _receive(self, w: int) -> WorkerMessage:
        try:
            message: WorkerMessage = self._lines[w].receive()
        except GONE as why:
            raise self._ended(w) from why
        if "error" in message:
            raise ComityError(message["error"])
        return message

    def _ended(self, w: int) -> ComityError:
        """What is said of a worker that is no longer there."""
        self._processes[w].join(timeout=1)  # its line ends a moment before it does
        return ComityError(
            f"A worker process {describe_exit(self._processes[w].exitcode)}; the run can be resumed."
        )


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C waits until a new worker has said that it is not for it: in between, it would be a
    traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _worker(
    line: Channel,
    strangers: list[Channel],
    handover: Handover,
    number: int,
    algorithm: AnyAlgorithm,
    parties: list[Party],
    root: Key,
    scheduler: Scheduler,
) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is the server's to answer; a worker ends when the line does
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    for stranger in strangers:
        stranger.close()
    torch.set_num_threads(1)
    keep_freed_memory()
    worker: Worker | None = None
    try:
        lock = handover.lock(number)
        while True:
            try:
                ask = line.receive()
                worker = worker or Worker(SiteStore(algorithm, parties, root), scheduler, lock)
                for message in worker.answer(ask):
                    line.send(message)
                    del message  # the next party trains in its memory
            except GONE:
                raise
            except Exception as why:
                line.send({"error": describe(why)})
    except GONE:
        return
