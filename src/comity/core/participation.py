"""Who is heard and who is not: a party can be away, its reply can be lost, or hold what is no
number. All is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from comity.base.call import CallId
from comity.core.party import Info
from comity.errors import ComityError

OFFLINE = "offline"
LOST = "lost"
WAITING = "waiting"
NOT_FINITE = "nonfinite"
ABSENT = (OFFLINE, LOST, WAITING)
"""The ways not to be heard at all."""
MEANING = {
    OFFLINE: "it was not there",
    LOST: "it was asked, but no reply came",
    WAITING: "it was not asked, as it had missed the start",
    NOT_FINITE: "it had values that are not finite, which were left out",
}


class Absence(NamedTuple):
    """A row of `absences.csv`: a party that was not heard."""

    party: str
    round: int
    call: str
    how: str
    """A key of MEANING."""
    occurrence: int
    """How often this work was asked for in this round before."""


class NoReplies(ComityError):
    """Too few were heard: what was exchanged is void, at the server and at the parties."""


@dataclass(frozen=True)
class Rules:
    """Who must be heard, and what happens if somebody is not."""

    min_replies: int = 1
    """So many replies make an exchange count, or all if fewer are asked."""
    stop_if_not_finite: bool = False
    """Whether a reply with values that are not finite ends the run; else it is left out."""
    planned: Callable[[str, CallId], str] | None = None
    """For simulations: whether a party of that name is to be OFFLINE when it is called, or its
    reply LOST. None if no absences are planned.
    """


class Participation:
    """The register of a run."""

    def __init__(self, info: Info, rules: Rules) -> None:
        self.rules = rules
        self.absences: list[Absence] = []
        self.waiting: set[int] = set()
        """Parties that missed the start: they are asked nothing before they were told what they
        missed.
        """
        self.missed: set[int] = set()
        """Who missed a call since `begin`."""
        self.quorum = 1
        """How many must be heard now."""
        self._info = info

    def begin(self, quorum: int) -> None:
        """Exchanges begin that count only as a whole."""
        self.missed = set()
        self.quorum = quorum

    def begin_call(self, call: CallId, ids: Iterable[int]) -> CallParticipation:
        """Begin a call of these parties: who cannot be asked is written down."""
        party_ids = sorted(ids)
        may_be_away = self.waiting or self.rules.planned
        away = {i: how for i in party_ids if (how := self._away(call, i))} if may_be_away else {}
        for i, how in away.items():
            self._write(call, i, how)
        needed = min(self.quorum, len(party_ids)) if call.depth >= 0 else 0
        return CallParticipation(self, call, needed, [i for i in party_ids if i not in away])

    def will_be_lost(self, call: CallId, i: int) -> bool:
        """Whether it is planned that a party's reply does not get here."""
        return bool(self.rules.planned) and self._planned(call, i) == LOST

    def is_lost(self, call: CallId, i: int) -> bool:
        """Whether a party's reply does not get here, which is written down."""
        if lost := self.will_be_lost(call, i):
            self._write(call, i, LOST)
        return lost

    def not_usable(self, call: CallId, i: int, what: str) -> None:
        """What a party sent, or keeps, is no number."""
        if self.rules.stop_if_not_finite:
            raise ComityError(
                f"{self._info.name(i)} has values that are not finite in round {call.round}"
                f" ({what}, after {call.function}): give it a smaller lr, or leave such replies out"
                " with --on-nonfinite drop."
            )
        self._write(call, i, NOT_FINITE)

    def did_not_answer(self, call: CallId, i: int) -> None:
        """A party was asked, but nothing came."""
        self._write(call, i, LOST)

    def take(self) -> list[Absence]:
        """The rows since the last call, which are then forgotten."""
        rows, self.absences = self.absences, []
        return rows

    def _away(self, call: CallId, i: int) -> str:
        if i in self.waiting and call.depth >= 0:  # a look at models is for everyone
            return WAITING
        return OFFLINE if self._planned(call, i) == OFFLINE else ""

    def _planned(self, call: CallId, i: int) -> str:
        planned = self.rules.planned
        return planned(self._info.name(i), call) if planned else ""

    def _write(self, call: CallId, i: int, how: str) -> None:
        self.absences.append(
            Absence(self._info.name(i), call.round, call.function, how, call.occurrence)
        )
        self.missed.add(i)


@dataclass
class CallParticipation:
    """One call: who could be asked, who answered, and how many of the answers count."""

    register: Participation
    call: CallId
    needed: int
    """How many answers must count."""
    there: list[int]
    """Who can be asked, in party order."""
    answered: set[int] = field(default_factory=set)
    heard: int = 0

    def arrives(self, i: int) -> bool:
        """Whether a party's answer gets here."""
        self.answered.add(i)
        return not (self.register.rules.planned and self.register.is_lost(self.call, i))

    def counts(self, i: int, unfit: str, ruined: str) -> bool:
        """Whether what arrived can be used: `unfit` names a value in it that is not finite,
        `ruined` one of the party's state.
        """
        if unfit or ruined:
            what = f"{unfit} of its reply" if unfit else f"{ruined} of what it keeps"
            self.register.not_usable(self.call, i, what)
            return False
        self.heard += 1
        return True

    def close(self) -> None:
        """No more answers come: who was asked and said nothing is written down, and too few that
        count make the exchange void.
        """
        for i in self.there:
            if i not in self.answered:
                self.register.did_not_answer(self.call, i)
        if self.heard < self.needed:
            few = (
                f"Only {self.heard} of the {self.needed} parties that are needed"
                if self.heard
                else "No party"
            )
            raise NoReplies(f"{few} answered {self.call.function} in round {self.call.round}.")
