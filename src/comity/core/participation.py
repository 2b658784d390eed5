"""Which parties take part in each call, and which are absent.

A party can be offline, its reply can be lost, or its reply can hold values that are not finite.
Each absence becomes a row of `absences.csv`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from comity.base.call import CallId
from comity.core.party import Info
from comity.errors import ComityError

OFFLINE = "offline"
LOST_REPLY = "lost"
WAITING = "waiting"
NOT_FINITE = "nonfinite"
ABSENT = (OFFLINE, LOST_REPLY, WAITING)
"""The kinds of absence in which no reply arrived."""
MEANING = {
    OFFLINE: "it was offline",
    LOST_REPLY: "it was called, but no reply came",
    WAITING: "it was not called, because it had missed the start",
    NOT_FINITE: "it had values that are not finite, which were left out",
}


class Absence(NamedTuple):
    """A row of `absences.csv`: a party whose reply does not count."""

    party: str
    round: int
    call: str
    how: str
    """A key of MEANING."""
    occurrence: int
    """How many times this party function was called in this round before."""


class NoReplies(ComityError):
    """Too few replies count: the exchange is discarded, at the server and at the parties."""


@dataclass(frozen=True)
class Rules:
    """What happens to replies that cannot be used, and which absences are planned."""

    stop_if_not_finite: bool = False
    """Whether a reply with values that are not finite ends the run. If not, it is left out."""
    plan: Callable[[str, CallId], str] | None = None
    """For simulations: the planned absence of a party (by name) in a call, which is OFFLINE,
    LOST_REPLY or empty. None if no absences are planned.
    """


class Participation:
    """The absences of a run, and the parties that must wait."""

    def __init__(self, info: Info, rules: Rules) -> None:
        self.rules = rules
        self.absences: list[Absence] = []
        self.waiting: set[int] = set()
        """Parties that missed the start. They are not called until they have caught up."""
        self.missed: set[int] = set()
        """Parties that missed a call since `begin`."""
        self.quorum = 1
        """How many replies must count in each call of the current exchanges."""
        self._info = info

    def begin(self, quorum: int) -> None:
        """Begin exchanges that count as a whole or not at all."""
        self.missed = set()
        self.quorum = quorum

    def begin_call(self, call: CallId, ids: Iterable[int]) -> CallParticipation:
        """Begin a call of these parties. Those that cannot be called are recorded as absent."""
        party_ids = sorted(ids)
        may_be_absent = self.waiting or self.rules.plan
        absent = (
            {i: how for i in party_ids if (how := self._absence(call, i))} if may_be_absent else {}
        )
        for i, how in absent.items():
            self._record(call, i, how)
        needed = min(self.quorum, len(party_ids)) if call.depth >= 0 else 0
        return CallParticipation(self, call, needed, [i for i in party_ids if i not in absent])

    def will_lose_reply(self, call: CallId, i: int) -> bool:
        """Whether it is planned that a party's reply is lost."""
        return self._planned_absence(call, i) == LOST_REPLY

    def record_lost_reply(self, call: CallId, i: int) -> None:
        """Record that a party was called, but no reply came."""
        self._record(call, i, LOST_REPLY)

    def record_not_finite(self, call: CallId, i: int, what: str) -> None:
        """Record that a value in a party's reply or state is not finite, or end the run if the
        rules say so.
        """
        if self.rules.stop_if_not_finite:
            raise ComityError(
                f"{self._info.name(i)} has values that are not finite in round {call.round}"
                f" ({what}, after {call.function}): give it a smaller lr, or leave such replies out"
                " with --on-nonfinite drop."
            )
        self._record(call, i, NOT_FINITE)

    def take(self) -> list[Absence]:
        """Return and remove the rows since the last call."""
        rows, self.absences = self.absences, []
        return rows

    def _absence(self, call: CallId, i: int) -> str:
        """Why a party cannot be called: WAITING, OFFLINE, or empty if it can."""
        if i in self.waiting and call.depth >= 0:  # waiting parties are evaluated all the same
            return WAITING
        return OFFLINE if self._planned_absence(call, i) == OFFLINE else ""

    def _planned_absence(self, call: CallId, i: int) -> str:
        plan = self.rules.plan
        return plan(self._info.name(i), call) if plan else ""

    def _record(self, call: CallId, i: int, how: str) -> None:
        self.absences.append(
            Absence(self._info.name(i), call.round, call.function, how, call.occurrence)
        )
        self.missed.add(i)


@dataclass
class CallParticipation:
    """The participation in one call: which parties are called, which reply, and how many replies
    count.
    """

    log: Participation
    call: CallId
    needed: int
    """How many replies must count. An evaluation needs none."""
    reachable: list[int]
    """The parties that can be called, in party order."""
    responders: set[int] = field(default_factory=set)
    """The parties whose result has come."""
    usable_replies: int = 0

    def arrives(self, i: int) -> bool:
        """Whether a party's result reaches the server. One that is planned to be lost does not."""
        self.responders.add(i)
        if self.log.rules.plan and self.log.will_lose_reply(self.call, i):
            self.log.record_lost_reply(self.call, i)
            return False
        return True

    def counts(self, i: int, unfit: str, ruined: str) -> bool:
        """Whether a reply that arrived can be used.

        `unfit` names a value of the reply that is not finite, and `ruined` one of the party's new
        state. Both are empty if all values are finite.
        """
        if unfit or ruined:
            what = f"{unfit} of its reply" if unfit else f"{ruined} of its state"
            self.log.record_not_finite(self.call, i, what)
            return False
        self.usable_replies += 1
        return True

    def close(self) -> None:
        """End the call: record the parties that did not reply.

        Raises NoReplies if fewer replies count than are needed.
        """
        for i in self.reachable:
            if i not in self.responders:
                self.log.record_lost_reply(self.call, i)
        if self.usable_replies < self.needed:
            few = (
                f"Only {self.usable_replies} of the {self.needed} parties that are needed"
                if self.usable_replies
                else "No party"
            )
            raise NoReplies(f"{few} answered {self.call.function} in round {self.call.round}.")
