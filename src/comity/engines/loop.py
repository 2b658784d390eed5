"""All parties in this process, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from comity.base.call import CallId, Edge, EvaluationRequest, Message, PartyResult
from comity.base.record import Sealed
from comity.engines.engine import Engine, Inboxes, Scheduler, Sites, inboxes
from comity.engines.saved import Saved
from comity.engines.site_store import SiteStore
from comity.metrics.evaluation import Evaluation

T = TypeVar("T")


class Sequential:
    """The plainest order: a party's work from beginning to end, then the next one's."""

    def run(
        self, sites: Sites, call: CallId, messages: Mapping[int, Message], inboxes: Inboxes
    ) -> Iterator[tuple[int, PartyResult]]:
        for i, message in messages.items():
            yield i, sites[i].run(call, message, inboxes.get(i, {}))

    def evaluate(
        self, sites: Sites, messages: Mapping[int, Message], final: bool
    ) -> Iterator[tuple[int, Evaluation]]:
        for i, message in messages.items():
            yield i, sites[i].evaluate(message, final)


class LoopEngine(Engine):
    """Parties of this process: a message is the object itself."""

    def __init__(self, sites: SiteStore, scheduler: Scheduler) -> None:
        self.sites = sites
        self._scheduler = scheduler

    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        return map(
            self._released,
            self._scheduler.run(self.sites, call, messages, inboxes(sealed_messages)),
        )

    def evaluate(
        self, messages: Mapping[int, Message], look: EvaluationRequest
    ) -> Iterator[tuple[int, Evaluation]]:
        return map(self._released, self._scheduler.evaluate(self.sites, messages, look.final))

    def evaluate_solo(self, ids: Iterable[int], t: int) -> Iterator[tuple[int, Evaluation]]:
        return map(self._released, ((i, self.sites[i].evaluate_solo(t)) for i in ids))

    def _released(self, answered: tuple[int, T]) -> tuple[int, T]:
        """An answer, once what its party keeps is in its place."""
        self.sites.release([answered[0]])
        return answered

    def settle(self, versions: Mapping[int, CallId | None]) -> None:
        self.sites.settle(versions)

    def save(self, folder: Path, t: int) -> list[Saved]:
        return self.sites.save(folder, t)

    def load(
        self,
        folder: Path,
        states: Iterable[Saved],
        versions: Mapping[int, CallId],
        homes: Mapping[int, int],
    ) -> None:
        self.sites.load(folder, states, versions)
