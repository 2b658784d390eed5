"""Parties spread over long-lived worker processes, one torch thread each.

A party lives in one worker for the whole run: its data are there from the start (workers are forked) and its state never leaves.
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

from comity.core import crew
from comity.core.algorithm import Algorithm
from comity.core.allocator import keep_freed_memory
from comity.core.key import Key
from comity.core.lock import Lock
from comity.core.net import Call, Edge, Net, Saved
from comity.core.party import Info, Party
from comity.core.record import Sealed, payload
from comity.core.site import Site
from comity.errors import ComityError, Refusal, describe
from comity.nets.channel import Channel
from comity.nets.handover import Handover
from comity.nets.loop import Done, inboxes

# Replies are sent in batches: few messages for many small ones, live progress for slow ones, large ones while in the cache.
FLUSH_SECONDS, FLUSH_BYTES = 0.2, 4_000_000


def deal(loads: list[int], workers: int) -> list[list[int]]:
    """Parties by worker: the largest first, each to the least loaded."""
    hands: list[list[int]] = [[] for _ in range(workers)]
    totals = [0] * workers
    for i in sorted(range(len(loads)), key=lambda i: -loads[i]):
        least = totals.index(min(totals))
        hands[least].append(i)
        totals[least] += loads[i]
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
        self._hands = deal([len(p.data.train) for p in everyone], max(1, min(workers, len(everyone))))
        self._home = {i: w for w, hand in enumerate(self._hands) for i in hand}
        self._lines: list[Channel] = []
        self._processes = []
        fork = multiprocessing.get_context("fork")
        handover = Handover(len(self._hands))
        for w, hand in enumerate(self._hands):
            here, there = Channel.pair()
            strangers = [*self._lines, here]
            process = fork.Process(
                target=_worker,
                args=(there, strangers, handover, w, algorithm, [everyone[i] for i in hand], root, stacked),
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
        for w, hand in enumerate(self._hands):
            if mine := {i: mail[i] for i in hand if i in mail}:
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
                    self._done(len(answer["answers"]))
                    if answer["last"]:
                        asked.discard(event.data)
        return answers

    def save(self, folder: Path, t: int) -> list[Saved]:
        return [Saved(*s) for s in self._all({"do": "save", "folder": str(folder), "round": t})]

    def load(self, folder: Path, states: Iterable[Saved]) -> None:
        self._all({"do": "load", "folder": str(folder), "states": [tuple(s) for s in states]})

    def state(self, i: int) -> Any:
        self._send(self._home[i], {"do": "state", "party": i})
        return self._receive(self._home[i])["state"]

    def close(self) -> None:
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._lines, self._processes = [], []

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
    sites: dict[int, Site] = {}
    try:
        lock = handover.lock(number)
        while True:
            ask = line.receive()
            try:
                if not sites:
                    sites = {party.id: Site(algorithm, party, root) for party in parties}
                _answer(line, ask, sites, lock, stacked)
            except (EOFError, BrokenPipeError):
                raise
            except Exception as why:
                line.send({"error": describe(why)})
    except (EOFError, OSError):
        return


def _answer(line: Channel, ask: dict[str, Any], sites: dict[int, Site], lock: Lock, stacked: bool) -> None:
    match ask["do"]:
        case "work":
            call, ready, size, flushed = Call(*ask["call"]), {}, 0, time.monotonic()
            answers = crew.work(sites, call, ask["mail"], lock.open(ask["post"]), stacked)
            for left, (i, answer) in zip(range(len(ask["mail"]) - 1, -1, -1), answers, strict=True):
                ready[i] = lock.close(answer)
                size += payload(ready[i])
                if not left or size > FLUSH_BYTES or time.monotonic() - flushed > FLUSH_SECONDS:
                    line.send({"answers": ready, "last": not left})
                    ready, size, flushed = {}, 0, time.monotonic()
        case "save":
            folder, t = Path(ask["folder"]), ask["round"]
            line.send({"list": [tuple(saved) for site in sites.values() if (saved := site.save(folder, t))]})
        case "load":
            for saved in (Saved(*s) for s in ask["states"]):
                if saved.party in sites:
                    sites[saved.party].load(Path(ask["folder"]), saved)
            line.send({"list": []})
        case "state":
            line.send({"state": sites[ask["party"]].mine})
