"""The interface of all engines: parties run party functions, evaluate their models and keep their
states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from comity.base.call import CallId, Edge, EvaluationRequest, Message, PartyResult
from comity.base.record import Sealed
from comity.engines.saved import Saved
from comity.engines.site import Site
from comity.metrics.evaluation import Evaluation

Inboxes = Mapping[int, dict[int, Sealed]]
"""Sealed messages by recipient, then by sender."""


class Engine(ABC):
    """The parties and their states. Results are returned in any order, as soon as they are
    ready.
    """

    @abstractmethod
    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        """Run a party function at each party that has a message."""

    @abstractmethod
    def evaluate(
        self, messages: Mapping[int, Message], request: EvaluationRequest
    ) -> Iterator[tuple[int, Evaluation]]:
        """Have each party evaluate the model that it would deploy after receiving this message."""

    @abstractmethod
    def evaluate_solo(self, ids: Iterable[int], t: int) -> Iterator[tuple[int, Evaluation]]:
        """Have each party evaluate a model that it trains alone, on its own data, in round t."""

    @abstractmethod
    def commit(self, versions: Mapping[int, CallId | None]) -> None:
        """Have parties keep the states after these calls (None: the initial state) and discard all
        others.
        """

    @abstractmethod
    def save(self, folder: Path, t: int) -> list[Saved]:
        """Write the party states that changed since the last save. All states are committed."""

    def checkpoint_written(self, versions: Mapping[int, CallId]) -> None:
        """Called when a checkpoint with these states is on the disk: earlier states are no longer
        needed.
        """

    @property
    def warnings(self) -> Mapping[str, int]:
        """Warnings for the user about how parties were reached, and the round in which each was
        first known.
        """
        return {}

    @property
    def workers_by_party(self) -> Mapping[int, int]:
        """The worker of each party, where there are several. Which parties are batched together
        affects rounding.
        """
        return {}

    @abstractmethod
    def load(
        self,
        folder: Path,
        states: Iterable[Saved],
        versions: Mapping[int, CallId],
        workers_by_party: Mapping[int, int],
    ) -> None:
        """Restore saved states, each as the state after the call named for its party, and assign
        parties to their earlier workers.
        """

    def close(self) -> None:
        """End processes and connections."""


class Sites(Protocol):
    """The parties of one process, by number."""

    def __getitem__(self, i: int) -> Site: ...


class Scheduler(Protocol):
    """In which order, and how many at a time, the parties of one process are run."""

    def run(
        self, sites: Sites, call: CallId, messages: Mapping[int, Message], inboxes: Inboxes
    ) -> Iterator[tuple[int, PartyResult]]: ...
    def evaluate(
        self, sites: Sites, messages: Mapping[int, Message], final: bool
    ) -> Iterator[tuple[int, Evaluation]]: ...


def inboxes(sealed_messages: Mapping[Edge, Sealed]) -> dict[int, dict[int, Sealed]]:
    """Sealed messages by recipient, then by sender."""
    by_recipient: dict[int, dict[int, Sealed]] = defaultdict(dict)
    for (src, dst), sealed in sealed_messages.items():
        by_recipient[dst][src] = sealed
    return by_recipient
