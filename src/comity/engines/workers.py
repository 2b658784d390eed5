"""What engines with several workers have in common: how parties are dealt, what workers are asked,
and how a worker answers.

A worker holds parties and does one thing after the other. It is asked in dicts (`do` says what) and
answers in dicts; how these travel, and what a worker is (a forked process, an actor of a cluster),
is the engine's own matter. A party that keeps something lives where it worked first, and its state
never leaves; one that keeps nothing works wherever there is least to do.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from comity.base.call import CallId, Edge, EvaluationRequest, Message, PartyResult
from comity.base.finite import not_finite
from comity.base.record import Sealed, meta_like, payload
from comity.core.aggregate import AveragedReplies, PartialSum
from comity.engines.engine import Engine, Scheduler, inboxes
from comity.engines.saved import Saved
from comity.engines.site_store import SiteStore
from comity.metrics.evaluation import Evaluation
from comity.wire.sealing import Lock

Ask = dict[str, Any]
"""What a worker is asked: `do`, and what belongs to it; `messages` are by party."""
WorkerMessage = dict[str, Any]
"""What a worker says: `answers` by party, who of them is `keeping` something, and their `sum`, or
what was `saved`; the `last` one says so.
"""

# Replies are sent in batches: few messages for many small ones, live progress for slow ones, large
# ones while in the cache.
FLUSH_SECONDS, FLUSH_BYTES = 0.2, 4_000_000


def deal(loads: Mapping[int, int], workers: int, homes: Mapping[int, int]) -> list[list[int]]:
    """Parties by worker: those that have a home there, the others each to the least loaded, the
    largest first.
    """
    hands: list[list[int]] = [[] for _ in range(workers)]
    totals = [0] * workers
    for i in sorted(loads, key=lambda i: (i not in homes, -loads[i])):
        w = homes[i] if i in homes else totals.index(min(totals))
        hands[w].append(i)
        totals[w] += loads[i]
    return [sorted(hand) for hand in hands]


class WorkersEngine(Engine):
    """Parties at several workers; a letter goes to the worker where its party lives."""

    def __init__(self, loads: Mapping[int, int], workers: int) -> None:
        self._loads = loads
        """How much there is to do for each party: its training samples."""
        self._workers = workers
        self._homes: dict[int, int] = {}

    @abstractmethod
    def _exchange(self, asks: Mapping[int, Ask]) -> Iterator[tuple[int, WorkerMessage]]:
        """Ask workers, and hand on what they say as it comes; each says at least one thing."""

    @abstractmethod
    def _tell(self, asks: Mapping[int, Ask]) -> None:
        """Ask workers for what needs no answer."""

    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        boxes = inboxes(sealed_messages)
        asks: dict[int, Ask] = {}
        for w, hand in self._hands(messages):
            own = {i: boxes[i] for i in hand if i in boxes}
            asks[w] = {
                "do": "run",
                "call": tuple(call),
                "messages": {i: messages[i] for i in hand},
                "inboxes": own,
            }
        for i, answer in self._answers(asks):
            yield i, PartyResult(*answer)

    def sum_replies(
        self, call: CallId, messages: Mapping[int, Message], weights: Mapping[int, float]
    ) -> Iterator[tuple[dict[int, PartyResult], PartialSum | None]]:
        """Have parties work, and each worker add up what its own reply; see
        `core.works.SumsReplies`.

        Who is where depends on the letters and on where parties live, and a worker adds up in party
        order: sums are the same each time. A worker answers once, when it is done with all, so that
        a sum which was lost is asked for as a whole.
        """
        asks: dict[int, Ask] = {}
        for w, hand in self._hands(messages):
            own = {i: weights[i] for i in hand if i in weights}
            asks[w] = {
                "do": "sum replies",
                "call": tuple(call),
                "messages": {i: messages[i] for i in hand},
                "weights": own,
            }
        for w, message in self._exchange(asks):
            self._homes |= dict.fromkeys(message["keeping"], w)
            yield (
                {i: PartyResult(*answer) for i, answer in message["answers"].items()},
                message["sum"],
            )

    def evaluate(
        self, messages: Mapping[int, Message], look: EvaluationRequest
    ) -> Iterator[tuple[int, Evaluation]]:
        hands = self._hands(messages)
        yield from self._answers(
            {
                w: {
                    "do": "evaluate",
                    "messages": {i: messages[i] for i in hand},
                    "final": look.final,
                }
                for w, hand in hands
            }
        )

    def evaluate_solo(self, ids: Iterable[int], t: int) -> Iterator[tuple[int, Evaluation]]:
        hands = self._hands(ids)
        yield from self._answers(
            {
                w: {"do": "evaluate solo", "messages": dict.fromkeys(hand), "round": t}
                for w, hand in hands
            }
        )

    def settle(self, versions: Mapping[int, CallId | None]) -> None:
        own: dict[int, dict[int, CallId | None]] = {}
        for i, version in versions.items():
            if i in self._homes:
                own.setdefault(self._homes[i], {})[i] = version
        self._tell({w: {"do": "settle", "versions": own[w]} for w in sorted(own)})

    def save(self, folder: Path, t: int) -> list[Saved]:
        asks: dict[int, Ask] = {
            w: {"do": "save", "folder": str(folder.resolve()), "round": t}
            for w in range(self._workers)
        }
        saved = {w: message["saved"] for w, message in self._exchange(asks)}
        return [Saved(*item) for w in sorted(saved) for item in saved[w]]

    @property
    def homes(self) -> Mapping[int, int]:
        return self._homes

    def load(
        self,
        folder: Path,
        states: Iterable[Saved],
        versions: Mapping[int, CallId],
        homes: Mapping[int, int],
    ) -> None:
        if all(w < self._workers for w in homes.values()):  # there may have been more workers
            self._homes |= homes
        kept = {saved.party: saved for saved in states}
        asks: dict[int, Ask] = {}
        for w, hand in self._hands(kept):
            self._homes |= dict.fromkeys(hand, w)
            asks[w] = {
                "do": "load",
                "folder": str(folder.resolve()),
                "states": [tuple(kept[i]) for i in hand],
                "versions": {i: versions[i] for i in hand},
            }
        for _ in self._exchange(asks):
            pass

    def _hands(self, ids: Iterable[int]) -> list[tuple[int, list[int]]]:
        """The workers that have something to do for these parties, and for whom."""
        hands = deal({i: self._loads[i] for i in ids}, self._workers, self._homes)
        return [(w, hand) for w, hand in enumerate(hands) if hand]

    def _answers(self, asks: Mapping[int, Ask]) -> Iterator[tuple[int, Any]]:
        """Ask workers, and hand on what they answer as it comes."""
        for w, message in self._exchange(asks):
            self._homes |= dict.fromkeys(message["keeping"], w)
            answers: dict[int, Any] = message.pop("answers")
            while answers:  # each is let go as soon as it is handed on
                i = next(iter(answers))
                yield i, answers.pop(i)


class Worker:
    """The parties of one worker, and how it answers what the engine asks."""

    def __init__(self, sites: SiteStore, scheduler: Scheduler, lock: Lock) -> None:
        self._sites = sites
        self._scheduler = scheduler
        self._lock = lock

    def answer(self, ask: Ask) -> Iterator[WorkerMessage]:
        """All that there is to say to an ask."""
        sites = self._sites
        match ask["do"]:
            case "run":
                call = CallId(*ask["call"])
                answers = self._scheduler.run(
                    sites, call, _messages(ask), self._lock.open(ask["inboxes"], call)
                )
                yield from self._batches(
                    ask, ((i, self._lock.close(tuple(answer))) for i, answer in answers)
                )
            case "sum replies":
                yield self._added_up(
                    self._scheduler.run(sites, CallId(*ask["call"]), _messages(ask), {}),
                    ask["weights"],
                )
            case "evaluate":
                yield from self._batches(
                    ask, self._scheduler.evaluate(sites, _messages(ask), ask["final"])
                )
            case "evaluate solo":
                yield from self._batches(
                    ask, ((i, sites[i].evaluate_solo(ask["round"])) for i in ask["messages"])
                )
            case "settle":
                sites.settle(
                    {i: version and CallId(*version) for i, version in ask["versions"].items()}
                )
            case "save":
                yield {
                    "saved": [
                        tuple(saved) for saved in sites.save(Path(ask["folder"]), ask["round"])
                    ],
                    "last": True,
                }
            case "load":
                versions = {i: CallId(*version) for i, version in ask["versions"].items()}
                sites.load(Path(ask["folder"]), [Saved(*s) for s in ask["states"]], versions)
                yield {"last": True}

    def _added_up(
        self, answers: Iterator[tuple[int, PartyResult]], weights: Mapping[int, float]
    ) -> WorkerMessage:
        """All answers with hollow replies, and the sum of the replies that count: they have a
        weight, and all is finite.
        """
        total = AveragedReplies[Any]()
        hollowed: dict[int, Any] = {}
        keeping: list[int] = []
        for i, answer in answers:
            unfit = not_finite(answer.reply)
            if i in weights and not unfit and not answer.ruined:
                total.add(i, answer.reply, weights[i])
            hollowed[i] = tuple(answer._replace(reply=meta_like(answer.reply), unfit=unfit))
            keeping += self._sites.release([i])
            del answer  # the next party trains in its memory
        return {"answers": hollowed, "keeping": keeping, "sum": total.total(), "last": True}

    def _batches(self, ask: Ask, answers: Iterator[tuple[int, Any]]) -> Iterator[WorkerMessage]:
        count = len(ask["messages"])
        ready: dict[int, Any] = {}
        size = 0
        flushed = time.monotonic()
        for i, answer in answers:
            count -= 1
            ready[i] = answer
            size += payload(answer)
            del answer
            if not count or size > FLUSH_BYTES or time.monotonic() - flushed > FLUSH_SECONDS:
                message = {
                    "answers": ready,
                    "keeping": self._sites.release(ready),
                    "last": not count,
                }
                ready = {}
                yield message
                del message  # the next party trains in its memory
                size = 0
                flushed = time.monotonic()


def _messages(ask: Ask) -> dict[int, Message]:
    return {
        i: Message(content, after and CallId(*after), first)
        for i, (content, after, first) in ask["messages"].items()
    }
