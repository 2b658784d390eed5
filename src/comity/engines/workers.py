"""What engines with several workers share: the assignment of parties, the requests to workers, and
a worker's replies.

A worker has parties and handles one request at a time. Requests and replies are dicts (`do` names
the operation). The engine decides how they travel and what a worker is (a forked process, an actor
of a cluster). A party that keeps a state stays at the worker where it ran first, and its state
never leaves; one that keeps nothing runs at the least loaded worker.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from comity.base.call import CallId, Edge, EvaluationRequest, Message, PartyResult
from comity.base.finite import not_finite
from comity.base.record import Sealed, meta_like, payload
from comity.core.aggregate import AveragedReplies, PartialSum
from comity.core.runner import SUMMED, Overhead
from comity.engines.engine import Engine, Scheduler, inboxes
from comity.engines.saved import Saved
from comity.engines.site_store import SiteStore
from comity.errors import ComityError
from comity.metrics.evaluation import Evaluation
from comity.wire.sealing import Lock

WorkerRequest = dict[str, Any]
"""A request to a worker: `do`, and its arguments; `messages` are by party."""
WorkerReply = dict[str, Any]
"""A worker's reply: `answers` by party and their `bytes`, the parties that are `keeping` a state,
and the `sum` of replies, or the `saved` states. The `last` reply to a request says so.
"""

# Results are sent in batches: few messages for many small results, progress updates for slow ones,
# and large ones while they are in the cache.
FLUSH_SECONDS, FLUSH_BYTES = 0.2, 4_000_000
WINDOW_BYTES = 128 << 20
"""The bytes of results that a worker may send before those of earlier parties have come."""
NOT_SHARED = (
    "A worker is on a machine that does not share the folder {}: workers write their parties'"
    " states there, so --out must be on a disk that all machines share."
)


def assign_parties(
    loads: Mapping[int, int], workers: int, worker_of: Mapping[int, int]
) -> list[list[int]]:
    """Parties by worker: those with a worker stay there; of the others, the largest first, each
    goes to the least loaded worker.
    """
    assigned: list[list[int]] = [[] for _ in range(workers)]
    totals = [0] * workers
    for i in sorted(loads, key=lambda i: (i not in worker_of, -loads[i])):
        w = worker_of[i] if i in worker_of else totals.index(min(totals))
        assigned[w].append(i)
        totals[w] += loads[i]
    return [sorted(ids) for ids in assigned]


class Window:
    """Which workers may send further results. Results are used in party order, so that early ones
    fill the server's memory until those of earlier parties have come.

    The worker that has the next party in order may always send.
    """

    def __init__(self, requests: Mapping[int, WorkerRequest], order: Sequence[int]) -> None:
        self._requests = requests
        self._order = order
        self._position = {i: n for n, i in enumerate(order)}
        self._due = 0
        """The position of the first party whose result has not come."""
        self._arrived = [False] * len(order)
        # By worker: the last position and the bytes of each batch, oldest first.
        self._batches: dict[int, deque[tuple[int, int]]] = defaultdict(deque)

    def add(self, w: int, results: Iterable[int], size: int) -> None:
        """A worker has sent results of these parties, of so many bytes in total."""
        positions = [self._position[i] for i in results]
        for n in positions:
            self._arrived[n] = True
        while self._due < len(self._order) and self._arrived[self._due]:
            self._due += 1
        if positions:
            self._batches[w].append((max(positions), size))

    def is_open(self, w: int) -> bool:
        """Whether a worker may send."""
        batches = self._batches[w]
        while batches and batches[0][0] < self._due:
            batches.popleft()
        if sum(size for last, size in batches if last >= self._due) <= WINDOW_BYTES:
            return True
        return self._due < len(self._order) and (
            self._order[self._due] in self._requests[w]["messages"]
        )


def always_open(w: int) -> bool:
    """Of requests with one reply."""
    return True


class WorkersEngine(Engine):
    """Parties at several workers. A message goes to the worker that has its party."""

    def __init__(self, loads: Mapping[int, int], workers: int) -> None:
        self._loads = loads
        """The cost of each party: its number of training samples."""
        self._workers = workers
        self._worker_of: dict[int, int] = {}

    @abstractmethod
    def _exchange(
        self,
        requests: Mapping[int, WorkerRequest],
        is_open: Callable[[int], bool] = always_open,
    ) -> Iterator[tuple[int, WorkerReply]]:
        """Send requests to workers and yield their replies as they arrive. Each worker replies at
        least once. The replies of a worker that is not open have to wait, which slows it down.
        """

    @abstractmethod
    def _notify(self, requests: Mapping[int, WorkerRequest]) -> None:
        """Send requests that need no reply."""

    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        boxes = inboxes(sealed_messages)
        requests: dict[int, WorkerRequest] = {}
        for w, ids in self._assign(messages):
            inboxes_here = {i: boxes[i] for i in ids if i in boxes}
            requests[w] = {
                "do": "run",
                "call": tuple(call),
                "messages": {i: messages[i] for i in ids},
                "inboxes": inboxes_here,
            }
        for i, result in self._results(requests):
            yield i, PartyResult(*result)

    def sum_replies(
        self, call: CallId, messages: Mapping[int, Message], weights: Mapping[int, float]
    ) -> Iterator[tuple[dict[int, PartyResult], PartialSum | None]]:
        """Run a party function, and have each worker sum its parties' replies; see
        `core.runner.SumsReplies`.

        The assignment depends only on the messages and on where parties are, and a worker sums in
        party order, so the sums are reproducible. A worker replies once, after all its parties: a
        lost sum is requested again as a whole.
        """
        requests: dict[int, WorkerRequest] = {}
        for w, ids in self._assign(messages):
            weights_here = {i: weights[i] for i in ids if i in weights}
            requests[w] = {
                "do": "sum replies",
                "call": tuple(call),
                "messages": {i: messages[i] for i in ids},
                "weights": weights_here,
            }
        for w, reply in self._exchange(requests):
            self._worker_of |= dict.fromkeys(reply["keeping"], w)
            yield (
                {i: PartyResult(*result) for i, result in reply["answers"].items()},
                reply["sum"],
            )

    @property
    def sum_warning(self) -> str:
        return SUMMED

    def take_overhead(self) -> list[Overhead]:
        return []  # the sums themselves are charged as the replies in them

    def evaluate(
        self, messages: Mapping[int, Message], request: EvaluationRequest
    ) -> Iterator[tuple[int, Evaluation]]:
        assigned = self._assign(messages)
        yield from self._results(
            {
                w: {
                    "do": "evaluate",
                    "messages": {i: messages[i] for i in ids},
                    "final": request.final,
                }
                for w, ids in assigned
            }
        )

    def evaluate_solo(self, ids: Iterable[int], t: int) -> Iterator[tuple[int, Evaluation]]:
        assigned = self._assign(ids)
        yield from self._results(
            {
                w: {"do": "evaluate solo", "messages": dict.fromkeys(worker_ids), "round": t}
                for w, worker_ids in assigned
            }
        )

    def commit(self, versions: Mapping[int, CallId | None]) -> None:
        versions_by_worker: dict[int, dict[int, CallId | None]] = {}
        for i, version in versions.items():
            if i in self._worker_of:
                versions_by_worker.setdefault(self._worker_of[i], {})[i] = version
        self._notify(
            {
                w: {"do": "commit", "versions": versions_by_worker[w]}
                for w in sorted(versions_by_worker)
            }
        )

    def save(self, folder: Path, t: int) -> list[Saved]:
        requests: dict[int, WorkerRequest] = {
            w: {"do": "save", "folder": str(folder.resolve()), "round": t}
            for w in range(self._workers)
        }
        saved = {w: reply["saved"] for w, reply in self._exchange(requests)}
        states = [Saved(*item) for w in sorted(saved) for item in saved[w]]
        if any(not (folder / state.file).is_file() for state in states):
            raise ComityError(NOT_SHARED.format(folder))
        return states

    @property
    def workers_by_party(self) -> Mapping[int, int]:
        return self._worker_of

    def load(
        self,
        folder: Path,
        states: Iterable[Saved],
        versions: Mapping[int, CallId],
        workers_by_party: Mapping[int, int],
    ) -> None:
        if all(
            w < self._workers for w in workers_by_party.values()
        ):  # an earlier run may have had more workers
            self._worker_of |= workers_by_party
        saved_by_party = {saved.party: saved for saved in states}
        requests: dict[int, WorkerRequest] = {}
        for w, ids in self._assign(saved_by_party):
            self._worker_of |= dict.fromkeys(ids, w)
            requests[w] = {
                "do": "load",
                "folder": str(folder.resolve()),
                "states": [tuple(saved_by_party[i]) for i in ids],
                "versions": {i: versions[i] for i in ids},
            }
        for _ in self._exchange(requests):
            pass

    def _assign(self, ids: Iterable[int]) -> list[tuple[int, list[int]]]:
        """The workers that have any of these parties, and which."""
        assigned = assign_parties({i: self._loads[i] for i in ids}, self._workers, self._worker_of)
        return [(w, worker_ids) for w, worker_ids in enumerate(assigned) if worker_ids]

    def _results(self, requests: Mapping[int, WorkerRequest]) -> Iterator[tuple[int, Any]]:
        """Send requests to workers and yield their parties' results as they arrive."""
        window = Window(requests, sorted(i for r in requests.values() for i in r["messages"]))
        for w, reply in self._exchange(requests, window.is_open):
            self._worker_of |= dict.fromkeys(reply["keeping"], w)
            results: dict[int, Any] = reply.pop("answers")
            window.add(w, results, reply["bytes"])
            while results:  # each result is freed as soon as it is passed on
                i = next(iter(results))
                yield i, results.pop(i)


class Worker:
    """The parties of one worker, and how it handles the engine's requests."""

    def __init__(self, sites: SiteStore, scheduler: Scheduler, lock: Lock) -> None:
        self._sites = sites
        self._scheduler = scheduler
        self._lock = lock

    def handle(self, request: WorkerRequest) -> Iterator[WorkerReply]:
        """All replies to a request."""
        sites = self._sites
        match request["do"]:
            case "run":
                call = CallId(*request["call"])
                results = self._scheduler.run(
                    sites, call, _messages(request), self._lock.open(request["inboxes"], call)
                )
                yield from self._batches(
                    request, ((i, self._lock.close(tuple(result))) for i, result in results)
                )
            case "sum replies":
                yield self._sum_results(
                    self._scheduler.run(sites, CallId(*request["call"]), _messages(request), {}),
                    request["weights"],
                )
            case "evaluate":
                yield from self._batches(
                    request, self._scheduler.evaluate(sites, _messages(request), request["final"])
                )
            case "evaluate solo":
                yield from self._batches(
                    request,
                    ((i, sites[i].evaluate_solo(request["round"])) for i in request["messages"]),
                )
            case "commit":
                sites.commit(
                    {i: version and CallId(*version) for i, version in request["versions"].items()}
                )
            case "save":
                yield {"saved": [tuple(saved) for saved in self._save(request)], "last": True}
            case "load":
                versions = {i: CallId(*version) for i, version in request["versions"].items()}
                sites.load(
                    Path(request["folder"]), [Saved(*s) for s in request["states"]], versions
                )
                yield {"last": True}

    def _save(self, request: WorkerRequest) -> list[Saved]:
        try:
            return self._sites.save(Path(request["folder"]), request["round"])
        except FileNotFoundError as why:
            raise ComityError(NOT_SHARED.format(request["folder"])) from why

    def _sum_results(
        self, results: Iterator[tuple[int, PartyResult]], weights: Mapping[int, float]
    ) -> WorkerReply:
        """All results with meta tensors as replies, and the sum of the replies that count: those
        with a weight and finite values.
        """
        total = AveragedReplies[Any]()
        without_content: dict[int, Any] = {}
        keeping: list[int] = []
        for i, result in results:
            unfit = not_finite(result.reply)
            if i in weights and not unfit and not result.ruined:
                total.add(i, result.reply, weights[i])
            without_content[i] = tuple(result._replace(reply=meta_like(result.reply), unfit=unfit))
            keeping += self._sites.release([i])
            del result  # its memory is free for the next party
        return {"answers": without_content, "keeping": keeping, "sum": total.total(), "last": True}

    def _batches(
        self, request: WorkerRequest, results: Iterator[tuple[int, Any]]
    ) -> Iterator[WorkerReply]:
        """Replies with the results so far, whenever enough of them or enough time has passed."""
        count = len(request["messages"])
        ready: dict[int, Any] = {}
        size = 0
        flushed = time.monotonic()
        for i, result in results:
            count -= 1
            ready[i] = result
            size += payload(result)
            del result
            if not count or size > FLUSH_BYTES or time.monotonic() - flushed > FLUSH_SECONDS:
                reply = {
                    "answers": ready,
                    "keeping": self._sites.release(ready),
                    "bytes": size,
                    "last": not count,
                }
                ready = {}
                yield reply
                del reply  # its memory is free for the next party
                size = 0
                flushed = time.monotonic()


def _messages(request: WorkerRequest) -> dict[int, Message]:
    return {
        i: Message(content, after and CallId(*after), first)
        for i, (content, after, first) in request["messages"].items()
    }
