"""The loop engine: all parties in this process, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from comity.base.call import CallId, Edge, EvaluationRequest, Message, PartyResult
from comity.base.record import Sealed
from comity.engines.engine import Engine, Inboxes, Scheduler, Sites, inboxes
from comity.engines.evaluation import evaluate_one_by_one
from comity.engines.saved import Saved
from comity.engines.site_store import SiteStore
from comity.metrics.evaluation import Evaluation

T = TypeVar("T")


class Sequential:
    """Runs each party's function from beginning to end before the next party's."""

    def run(
        self, sites: Sites, call: CallId, messages: Mapping[int, Message], inboxes: Inboxes
    ) -> Iterator[tuple[int, PartyResult]]:
        for i, message in messages.items():
            yield i, sites[i].run(call, message, inboxes.get(i, {}))

    def evaluate(
        self, sites: Sites, messages: Mapping[int, Message], final: bool
    ) -> Iterator[tuple[int, Evaluation]]:
        return evaluate_one_by_one(sites, messages, final)


class LoopEngine(Engine):
    """Parties in this process. Messages are passed as objects."""

    def __init__(self, sites: SiteStore, scheduler: Scheduler) -> None:
        self.sites = sites
        self._scheduler = scheduler

    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        return map(
            self._release,
            self._scheduler.run(self.sites, call, messages, inboxes(sealed_messages)),
        )

    def evaluate(
        self, messages: Mapping[int, Message], request: EvaluationRequest
    ) -> Iterator[tuple[int, Evaluation]]:
        return map(self._release, self._scheduler.evaluate(self.sites, messages, request.final))

    def evaluate_solo(self, ids: Iterable[int], t: int) -> Iterator[tuple[int, Evaluation]]:
        return map(self._release, ((i, self.sites[i].evaluate_solo(t)) for i in ids))

    def _release(self, result: tuple[int, T]) -> tuple[int, T]:
        """Pass on a party's result, after its state was accounted for or spilled."""
        self.sites.release([result[0]])
        return result

    def commit(self, versions: Mapping[int, CallId | None]) -> None:
        self.sites.commit(versions)

    def save(self, folder: Path, t: int) -> list[Saved]:
        return self.sites.save(folder, t)

    def load(
        self,
        folder: Path,
        states: Iterable[Saved],
        versions: Mapping[int, CallId],
        workers_by_party: Mapping[int, int],
    ) -> None:
        self.sites.load(folder, states, versions)
