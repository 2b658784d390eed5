"""Parties spread over long-lived worker processes, one torch thread each.

All data are in all workers from the start (they are forked). A party that keeps something lives where it worked first, and its
state never leaves; one that keeps nothing works wherever there is least to do.
"""

from __future__ import annotations

import multiprocessing
import selectors
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from comity.core.algorithm import AnyAlgorithm
from comity.core.call import Answer, Call, Edge, Letter, Look
from comity.core.evaluation import Evaluation
from comity.core.key import Key
from comity.core.party import Party
from comity.core.record import Sealed, payload
from comity.engines.allocator import give_back, keep_freed_memory
from comity.engines.channel import Channel
from comity.engines.engine import Engine, Scheduler, inboxes
from comity.engines.saved import Saved
from comity.engines.sealing import Handover, Lock
from comity.engines.site_store import SiteStore
from comity.errors import ComityError, Refusal, describe, fate

# Replies are sent in batches: few messages for many small ones, live progress for slow ones, large ones while in the cache.
FLUSH_SECONDS, FLUSH_BYTES = 0.2, 4_000_000
GONE = (EOFError, ConnectionError)  # what a line says when nobody is at its other end
ENDS = (signal.SIGINT, signal.SIGTERM)


def deal(loads: Mapping[int, int], workers: int, homes: Mapping[int, int]) -> list[list[int]]:
    """Parties by worker: those that have a home there, the others each to the least loaded, the largest first."""
    hands: list[list[int]] = [[] for _ in range(workers)]
    totals = [0] * workers
    for i in sorted(loads, key=lambda i: (i not in homes, -loads[i])):
        w = homes[i] if i in homes else totals.index(min(totals))
        hands[w].append(i)
        totals[w] += loads[i]
    return [sorted(hand) for hand in hands]


class ProcessEngine(Engine):
    """Workers forked once; letters go to the worker where the party lives."""

    def __init__(self, algorithm: AnyAlgorithm, parties: Iterable[Party], root: Key, scheduler: Scheduler, workers: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise Refusal("The process engine needs a system that can fork: use --engine loop here.")
        everyone = list(parties)
        self._loads = {p.id: len(p.data.train) for p in everyone}
        self._homes: dict[int, int] = {}
        self._lines: list[Channel] = []
        self._processes = []
        fork = multiprocessing.get_context("fork")
        workers = max(1, min(workers, len(everyone)))
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

    def work(self, call: Call, letters: Mapping[int, Letter], parcels: Mapping[Edge, Sealed]) -> Iterator[tuple[int, Answer]]:
        boxes = inboxes(parcels)
        asks: dict[int, dict[str, Any]] = {}
        for w, hand in enumerate(self._deal(letters)):
            own = {i: boxes[i] for i in hand if i in boxes}
            asks[w] = {"do": "work", "call": tuple(call), "letters": {i: letters[i] for i in hand}, "inboxes": own}
        for i, answer in self._answers(asks):
            yield i, Answer(*answer)

    def evaluate(self, letters: Mapping[int, Letter], look: Look) -> Iterator[tuple[int, Evaluation]]:
        hands = enumerate(self._deal(letters))
        asks = {w: {"do": "evaluate", "letters": {i: letters[i] for i in hand}, "final": look.final} for w, hand in hands}
        yield from self._answers(asks)

    def evaluate_solo(self, ids: Iterable[int], t: int) -> Iterator[tuple[int, Evaluation]]:
        hands = enumerate(self._deal(ids))
        asks = {w: {"do": "evaluate solo", "letters": dict.fromkeys(hand), "round": t} for w, hand in hands}
        yield from self._answers(asks)

    def settle(self, versions: Mapping[int, Call | None]) -> None:
        for w in range(len(self._lines)):
            own = {i: version for i, version in versions.items() if self._homes.get(i) == w}
            if own:
                self._send(w, {"do": "settle", "versions": own})

    def save(self, folder: Path, t: int) -> list[Saved]:
        for w in range(len(self._lines)):
            self._send(w, {"do": "save", "folder": str(folder), "round": t})
        return [Saved(*item) for w in range(len(self._lines)) for item in self._receive(w)["saved"]]

    @property
    def homes(self) -> Mapping[int, int]:
        return self._homes

    def load(self, folder: Path, states: Iterable[Saved], versions: Mapping[int, Call], homes: Mapping[int, int]) -> None:
        if all(w < len(self._lines) for w in homes.values()):  # there may have been more workers
            self._homes |= homes
        kept = {saved.party: saved for saved in states}
        for w, hand in enumerate(self._deal(kept)):
            self._homes |= dict.fromkeys(hand, w)
            self._send(
                w,
                {
                    "do": "load",
                    "folder": str(folder),
                    "states": [tuple(kept[i]) for i in hand],
                    "versions": {i: versions[i] for i in hand},
                },
            )
            self._receive(w)

    def close(self) -> None:
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._lines, self._processes = [], []

    def _deal(self, ids: Iterable[int]) -> list[list[int]]:
        return deal({i: self._loads[i] for i in ids}, len(self._lines), self._homes)

    def _answers(self, asks: Mapping[int, dict[str, Any]]) -> Iterator[tuple[int, Any]]:
        """Ask workers, and hand on what they answer as it comes."""
        asked = {w for w, ask in asks.items() if ask["letters"]}
        for w in asked:
            self._send(w, asks[w])
        with selectors.DefaultSelector() as ready:
            for w in asked:
                ready.register(self._lines[w], selectors.EVENT_READ, w)
            while asked:
                for event, _ in ready.select():
                    message = self._receive(event.data)
                    self._homes |= dict.fromkeys(message["keeping"], event.data)
                    if message["last"]:
                        asked.discard(event.data)
                    answers: dict[int, Any] = message.pop("answers")
                    while answers:  # each is let go as soon as it is handed on
                        i = next(iter(answers))
                        yield i, answers.pop(i)

    def _send(self, w: int, ask: dict[str, Any]) -> None:
        try:
            self._lines[w].send(ask)
        except GONE as why:
            raise self._ended(w) from why

    def _receive(self, w: int) -> dict[str, Any]:
        try:
            message: dict[str, Any] = self._lines[w].receive()
        except GONE as why:
            raise self._ended(w) from why
        if "error" in message:
            raise ComityError(message["error"])
        return message

    def _ended(self, w: int) -> ComityError:
        """What is said of a worker that is no longer there."""
        self._processes[w].join(timeout=1)  # its line ends a moment before it does
        return ComityError(f"A worker process {fate(self._processes[w].exitcode)}; the run can be resumed.")


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C waits until a new worker has said that it is not for it: in between, it would be a traceback."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to answer; a worker ends when the line does
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    for stranger in strangers:
        stranger.close()
    torch.set_num_threads(1)
    keep_freed_memory()
    sites: SiteStore | None = None
    try:
        lock = handover.lock(number)
        while True:
            try:
                ask = line.receive()
                sites = sites or SiteStore(algorithm, parties, root)
                _answer(line, ask, sites, lock, scheduler)
            except GONE:
                raise
            except Exception as why:
                line.send({"error": describe(why)})
    except GONE:
        return


def _answer(line: Channel, ask: dict[str, Any], sites: SiteStore, lock: Lock, scheduler: Scheduler) -> None:
    match ask["do"]:
        case "work":
            call = Call(*ask["call"])
            answers = scheduler.work(sites, call, _letters(ask), lock.open(ask["inboxes"], call))
            _send_answers(line, sites, len(ask["letters"]), ((i, lock.close(tuple(answer))) for i, answer in answers))
        case "evaluate":
            _send_answers(line, sites, len(ask["letters"]), scheduler.evaluate(sites, _letters(ask), ask["final"]))
        case "evaluate solo":
            alone = ((i, sites[i].evaluate_solo(ask["round"])) for i in ask["letters"])
            _send_answers(line, sites, len(ask["letters"]), alone)
        case "settle":
            sites.settle({i: version and Call(*version) for i, version in ask["versions"].items()})
        case "save":
            line.send({"saved": [tuple(saved) for saved in sites.save(Path(ask["folder"]), ask["round"])]})
        case "load":
            versions = {i: Call(*version) for i, version in ask["versions"].items()}
            sites.load(Path(ask["folder"]), [Saved(*s) for s in ask["states"]], versions)
            line.send({"loaded": True})


def _letters(ask: dict[str, Any]) -> dict[int, Letter]:
    return {i: Letter(content, after and Call(*after), first) for i, (content, after, first) in ask["letters"].items()}


def _send_answers(line: Channel, sites: SiteStore, count: int, answers: Iterator[tuple[int, Any]]) -> None:
    ready: dict[int, Any] = {}
    size = 0
    flushed = time.monotonic()
    for i, answer in answers:
        count -= 1
        ready[i] = answer
        size += payload(answer)
        if not count or size > FLUSH_BYTES or time.monotonic() - flushed > FLUSH_SECONDS:
            line.send({"answers": ready, "keeping": sites.release(ready), "last": not count})
            ready = {}
            size = 0
            flushed = time.monotonic()
