"""Parties spread over long-lived worker processes, one torch thread each.

All data are in all workers from the start (they are forked). A party that keeps something lives where it worked first, and its
state never leaves; one that keeps nothing works wherever there is least to do.
"""

from __future__ import annotations

import multiprocessing
import selectors
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from comity.core.algorithm import Algorithm
from comity.core.key import Key
from comity.core.net import Call, Edge, Net, Saved
from comity.core.party import Info, Party
from comity.core.record import Sealed, payload
from comity.engines.allocator import give_back, keep_freed_memory
from comity.engines.channel import Channel
from comity.engines.handover import Handover
from comity.engines.loop import Done, inboxes
from comity.engines.sealing import Lock
from comity.engines.site_store import Residents
from comity.engines.stacked import scheduler
from comity.errors import ComityError, Refusal, describe

# Replies are sent in batches: few messages for many small ones, live progress for slow ones, large ones while in the cache.
FLUSH_SECONDS, FLUSH_BYTES = 0.2, 4_000_000


def deal(loads: Mapping[int, int], workers: int, homes: Mapping[int, int]) -> list[list[int]]:
    """Parties by worker: those that have a home there, the others each to the least loaded, the largest first."""
    hands: list[list[int]] = [[] for _ in range(workers)]
    totals = [0] * workers
    for i in sorted(loads, key=lambda i: (i not in homes, -loads[i])):
        w = homes[i] if i in homes else totals.index(min(totals))
        hands[w].append(i)
        totals[w] += loads[i]
    return [sorted(hand) for hand in hands]


class ProcessNet(Net):
    """Workers forked once; letters go to the worker where the party lives."""

    def __init__(
        self,
        algorithm: Algorithm,
        info: Info,
        root: Key,
        participation: float,
        parties: Iterable[Party],
        done: Done,
        workers: int,
        stacked: bool = False,
    ) -> None:
        super().__init__(algorithm, info, root, participation)
        if "fork" not in multiprocessing.get_all_start_methods():
            raise Refusal("The process engine needs a system that can fork: use --engine loop here.")
        everyone = list(parties)
        self._done = done
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
                args=(there, strangers, handover, w, algorithm, everyone, root, stacked),
                daemon=True,
            )
            process.start()
            there.close()
            self._lines.append(here)
            self._processes.append(process)
        handover.close()

    def deliver(self, call: Call, mail: Mapping[int, Any], post: Mapping[Edge, Sealed]) -> dict[int, tuple[Any, int]]:
        parcels = inboxes(post)
        asked = set()
        for w, hand in enumerate(self._deal(mail)):
            if mine := {i: mail[i] for i in hand}:
                boxes = {i: parcels[i] for i in mine if i in parcels}
                self._send(w, {"do": "work", "call": tuple(call), "mail": mine, "post": boxes})
                asked.add(w)
        answers: dict[int, tuple[Any, int]] = {}
        with selectors.DefaultSelector() as ready:
            for w in asked:
                ready.register(self._lines[w], selectors.EVENT_READ, w)
            while asked:
                for event, _ in ready.select():
                    answer = self._receive(event.data)
                    answers |= {i: self.arrived(i, one) for i, one in answer["answers"].items()}
                    self._homes |= dict.fromkeys(answer["keeping"], event.data)
                    self._done(len(answer["answers"]))
                    if answer["last"]:
                        asked.discard(event.data)
        return answers

    def save(self, folder: Path, t: int) -> list[Saved]:
        return [Saved(*s) for s in self._all({"do": "save", "folder": str(folder), "round": t})]

    def load(self, folder: Path, states: Iterable[Saved]) -> None:
        kept = {saved.party: saved for saved in states}
        for w, hand in enumerate(self._deal(kept)):
            self._homes |= dict.fromkeys(hand, w)
            self._send(w, {"do": "load", "folder": str(folder), "states": [tuple(kept[i]) for i in hand]})
            self._receive(w)

    def state(self, i: int) -> Any:
        home = self._homes.get(i, 0)
        self._send(home, {"do": "state", "party": i})
        return self._receive(home)["state"]

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

    def _all(self, ask: dict[str, Any]) -> list[Any]:
        """Ask every worker the same, and join their lists."""
        for w in range(len(self._lines)):
            self._send(w, ask)
        return [item for w in range(len(self._lines)) for item in self._receive(w)["list"]]

    def _send(self, w: int, ask: dict[str, Any]) -> None:
        try:
            self._lines[w].send(ask)
        except OSError as why:
            raise ComityError("A worker process ended unexpectedly; the run can be resumed.") from why

    def _receive(self, w: int) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self._lines[w].receive()
        except (OSError, EOFError) as why:
            raise ComityError("A worker process ended unexpectedly; the run can be resumed.") from why
        if "error" in answer:
            raise ComityError(answer["error"])
        return answer


def _worker(
    line: Channel,
    strangers: list[Channel],
    handover: Handover,
    number: int,
    algorithm: Algorithm,
    parties: list[Party],
    root: Key,
    stacked: bool,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to answer; a worker ends when the line does
    for stranger in strangers:
        stranger.close()
    torch.set_num_threads(1)
    keep_freed_memory()
    sites: Residents | None = None
    try:
        lock = handover.lock(number)
        while True:
            ask = line.receive()
            try:
                sites = sites or Residents(algorithm, parties, root)
                _answer(line, ask, sites, lock, stacked)
            except (EOFError, BrokenPipeError):
                raise
            except Exception as why:
                line.send({"error": describe(why)})
    except (EOFError, OSError):
        return


def _answer(line: Channel, ask: dict[str, Any], sites: Residents, lock: Lock, stacked: bool) -> None:
    match ask["do"]:
        case "work":
            call, ready, size, flushed = Call(*ask["call"]), {}, 0, time.monotonic()
            answers = scheduler.work(sites, call, ask["mail"], lock.open(ask["post"]), stacked)
            for left, (i, answer) in zip(range(len(ask["mail"]) - 1, -1, -1), answers, strict=True):
                ready[i] = lock.close(answer)
                size += payload(ready[i])
                if not left or size > FLUSH_BYTES or time.monotonic() - flushed > FLUSH_SECONDS:
                    line.send({"answers": ready, "keeping": sites.settle(ready), "last": not left})
                    ready, size, flushed = {}, 0, time.monotonic()
        case "save":
            folder, t = Path(ask["folder"]), ask["round"]
            line.send({"list": [tuple(saved) for saved in sites.save(folder, t)]})
        case "load":
            sites.load(Path(ask["folder"]), [Saved(*s) for s in ask["states"]])
            line.send({"list": []})
        case "state":
            line.send({"state": sites[ask["party"]].mine})
            sites.settle([ask["party"]])
