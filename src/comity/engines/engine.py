"""What every engine gives, wherever its parties live: they work, they evaluate their models, their
states are kept.
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
"""Parcels by recipient, then by sender."""


class Engine(ABC):
    """Parties and what they keep. Answers come in any order, each as soon as it is there."""

    @abstractmethod
    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        """Have each party that gets a letter do the work that is called for."""

    @abstractmethod
    def evaluate(
        self, messages: Mapping[int, Message], look: EvaluationRequest
    ) -> Iterator[tuple[int, Evaluation]]:
        """Have each party evaluate what it would deploy, given what the server would send it."""

    @abstractmethod
    def evaluate_solo(self, ids: Iterable[int], t: int) -> Iterator[tuple[int, Evaluation]]:
        """Have each party evaluate what its own data alone would have given it, had it trained in
        round t.
        """

    @abstractmethod
    def settle(self, versions: Mapping[int, CallId | None]) -> None:
        """Have parties keep the states after the calls that are named (None: the first) and forget
        all others.
        """

    @abstractmethod
    def save(self, folder: Path, t: int) -> list[Saved]:
        """Write the party states that changed since the last save; all are settled."""

    def committed(self, versions: Mapping[int, CallId]) -> None:
        """A checkpoint is on the disk that names these states: nobody will ask for earlier ones."""

    @property
    def warnings(self) -> list[str]:
        """What a user should know of how parties were reached."""
        return []

    @property
    def homes(self) -> Mapping[int, int]:
        """Which worker each party lives at, where there are several: who is trained together
        decides how numbers are rounded.
        """
        return {}

    @abstractmethod
    def load(
        self,
        folder: Path,
        states: Iterable[Saved],
        versions: Mapping[int, CallId],
        homes: Mapping[int, int],
    ) -> None:
        """Put saved states back, each that after the call which is named for its party, and parties
        where they lived.
        """

    def close(self) -> None:
        """Let go of processes and connections."""


class Sites(Protocol):
    """The parties of one process, by their numbers."""

    def __getitem__(self, i: int) -> Site: ...


class Scheduler(Protocol):
    """In which order, and how many at a time, the parties of one process work."""

    def run(
        self, sites: Sites, call: CallId, messages: Mapping[int, Message], inboxes: Inboxes
    ) -> Iterator[tuple[int, PartyResult]]: ...
    def evaluate(
        self, sites: Sites, messages: Mapping[int, Message], final: bool
    ) -> Iterator[tuple[int, Evaluation]]: ...


def inboxes(sealed_messages: Mapping[Edge, Sealed]) -> dict[int, dict[int, Sealed]]:
    """Parcels by recipient, then by sender."""
    sorted_out: dict[int, dict[int, Sealed]] = defaultdict(dict)
    for (src, dst), sealed in sealed_messages.items():
        sorted_out[dst][src] = sealed
    return sorted_out
