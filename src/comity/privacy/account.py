"""The account of what parties give away: every release with its noise, and every field that leaves
without any.

A release is charged before a party is asked for it: a reply that is lost may still have been read
by somebody. What leaves without noise is noted when it comes. Two accounts are kept: what the
server (or whoever reads along) can tell from what parties send, and, if the server is trusted and
adds noise itself, what parties can tell from what it sends them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from comity.base.call import CallId
from comity.base.declared import resolve_field_type
from comity.base.record import Sealed, is_record, payload, sealed_in
from comity.core.algorithm import AnyAlgorithm
from comity.core.release import (
    NEIGHBOURS,
    UNITS,
    Asked,
    Release,
    declares,
    planned_calls,
    releases_of,
    reply_fields,
)
from comity.core.signature import fields_on_wire
from comity.core.undeclared import UNDECLARED_SAMPLES, undeclared_samples
from comity.errors import ComityError
from comity.privacy.budget import Budget
from comity.privacy.composition import (
    ACCOUNTANTS,
    History,
    accountant,
    epsilon,
    neighbours_of,
    renyi_epsilon,
    weakest_unit,
)
from comity.wire.ledger import EVERYBODY, MAX_PARTY_ROWS

INFINITE = "infinite"
"""How an infinite ε is written where numbers are expected."""
FROM_PARTIES, FROM_SERVER = "server", "parties"
"""Against whom a release protects: the server, which gets it, or the parties, if the server is
trusted.
"""


Fields = dict[str, Sequence[Release] | None]
"""By field: through which mechanisms it leaves; None if as it is."""


class BudgetSpent(ComityError):
    """A call would give away more than the run may: it was not made."""


class Spent(NamedTuple):
    """A row of privacy.csv: what left a party, or the server, in a call; ε and δ are of this row
    alone.
    """

    round: int
    call: str
    party: str
    release: str
    unit: str
    mechanism: str
    sensitivity: float
    noise: float
    rate: float
    steps: int
    epsilon: float
    delta: float
    neighbours: str
    against: str
    drawn: int
    drawn_of: int

    def made(self) -> Release | None:
        """The release that it is the row of; None if nothing protects what left."""
        if self.mechanism == "none":
            return None
        kinds: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(Release)}
        return Release(**kinds)


class Account:
    """What each party has given away so far."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        names: Callable[[int], str],
        asked: Callable[[int], Asked],
        count: int,
        budget: Budget,
        plan: Callable[[], Mapping[int, Counter[Release]]] = dict,
        coupled: Callable[[int], str] = lambda i: "",
    ) -> None:
        self.budget = budget
        self._algorithm = algorithm
        self._name = names
        self._asked = asked
        self._plan = plan
        self._coupled = coupled
        """Why one record of a party moves what others are before anything is trained, if it does:
        then none is protected.
        """
        self._planned: Mapping[int, Counter[Release]] | None = None
        self._together = count > MAX_PARTY_ROWS
        self._rows: list[Spent] = []
        self._known: dict[tuple[int, str, int], Fields] = {}
        self._bare: dict[tuple[int, str], Fields | None] = {}
        """The fields of works of which nobody declares anything: the same for all parties, of which
        there may be many.
        """
        self.history: dict[str, dict[str, Counter[Release]]] = {FROM_PARTIES: {}, FROM_SERVER: {}}
        """By whom it protects against, and by party: what was released."""
        self.unprotected: dict[str, dict[tuple[str, str], set[str]]] = {
            FROM_PARTIES: {},
            FROM_SERVER: {},
        }
        """What left as it is, by work and field, and of whom."""

    def restore(self, rows: Iterable[Spent]) -> None:
        """Go on from what a table says."""
        for row in rows:
            self._count(row.against, row.party, row.made(), row.call, row.release)

    def take(self) -> list[Spent]:
        """The rows since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def charge_call(self, call: CallId, ids: Iterable[int]) -> None:
        """Parties are about to be asked: write down what their replies will give away, or refuse if
        that is more than may be.
        """
        if self._undeclared(call) is not None:
            return  # the method declares no releases: nothing is protected, and nothing charged
        due = [(i, given) for i in ids if (given := _apart(self._releases(call, i)))]
        for i, given in due:
            if not self._affordable(i, Counter(release for release, _ in given)):
                raise BudgetSpent(self._spent(f"{call.function} in round {call.round}", i))
        for i, given in due:
            for release, names in given:
                self._add(
                    call.round,
                    call.function,
                    self._name(i),
                    ", ".join(names),
                    release,
                    FROM_PARTIES,
                )
                if release.unit == "record" and (why := self._coupled(i)):
                    self.note_open(call.round, "introduce", i, why)

    def note_reply(self, call: CallId, i: int, reply: Any) -> None:
        """A reply has come: write down, once, what of it left as it is."""
        said = self._releases(call, i)
        # What is in parcels that are in no record's field only the work's declaration tells: all
        # that may be in them.
        sealed = said if not is_record(reply) and sealed_in(reply) else ()
        for name in dict.fromkeys((*held_fields(reply), *sealed)):
            if said.get(name) is None:
                self.note_open(call.round, call.function, i, name)
        info = self._asked(i).info
        for name in undeclared_samples(self._algorithm, call.depth, reply, info):
            self.note_open(call.round, call.function, i, f"{UNDECLARED_SAMPLES}{name}")

    def note_open(
        self, round: int, function: str, i: int, name: str, against: str = FROM_PARTIES
    ) -> None:
        """Something of a party left as it is; that is written down once."""
        party = (
            EVERYBODY if self._together else self._name(i)
        )  # of thousands of parties there would be as many rows
        if party not in self.unprotected[against].get((function, name), ()):
            self._add(round, function, party, name, None, against)

    def charge_server(
        self, round: int, name: str, release: Release | None, ids: Iterable[int]
    ) -> None:
        """The server makes known what it learned from these parties, behind noise of its own or as
        it is.
        """
        for i in ids:
            if release:
                if not self._affordable(i, Counter([release]), FROM_SERVER):
                    raise BudgetSpent(
                        self._spent(f"what the server would make known in round {round}", i)
                    )
                self._add(round, "server", self._name(i), name, release, FROM_SERVER)
            else:
                self.note_open(round, "server", i, name, FROM_SERVER)

    def _undeclared(self, call: CallId) -> Fields | None:
        """The fields of a reply if nobody declares releases of it; None if releases are declared."""
        place = call.depth, call.function
        if place not in self._bare:
            declared = declares(self._algorithm, call.depth)
            self._bare[place] = (
                None if declared else dict.fromkeys(reply_fields(self._algorithm, *place))
            )
        return self._bare[place]

    def _releases(self, call: CallId, i: int) -> Fields:
        if (bare := self._undeclared(call)) is not None:
            return bare
        place = call.depth, call.function
        if (*place, i) not in self._known:
            self._known[*place, i] = releases_of(self._algorithm, *place, self._asked(i))
        return self._known[*place, i]

    def _spent(self, what: str, i: int) -> str:
        return (
            f"The privacy budget ({self.budget}) is spent: {what} would take {self._name(i)} beyond"
            " it, and was not to be."
        )

    def _affordable(self, i: int, more: Counter[Release], against: str = FROM_PARTIES) -> bool:
        if not math.isfinite(self.budget.epsilon):
            return True
        most, delta = self.budget.epsilon, self.budget.delta
        history = self.history[against].get(self._name(i), Counter()) + more
        if renyi_epsilon(history, delta) <= most:
            return True
        if against == FROM_SERVER:
            return epsilon(history, delta) <= most
        if self._planned is None:
            self._planned = self._plan()
        planned = self._planned.get(i, Counter())
        # Less than what was planned costs no more: parties' plans are few, their histories many.
        if history <= planned and epsilon(planned, delta) <= most:
            return True
        return epsilon(history, delta) <= most

    def _add(
        self,
        round: int,
        function: str,
        party: str,
        name: str,
        release: Release | None,
        against: str,
    ) -> None:
        if release:
            alone = epsilon({release: 1}, self.budget.delta)
            row = Spent(
                *(
                    round,
                    function,
                    party,
                    name,
                    release.unit,
                    release.mechanism,
                    release.sensitivity,
                    release.noise,
                    release.rate,
                ),
                *(
                    release.steps,
                    alone,
                    self.budget.delta,
                    release.neighbours,
                    against,
                    release.drawn,
                    release.drawn_of,
                ),
            )
        else:
            row = Spent(
                round,
                function,
                party,
                name,
                "",
                "none",
                0.0,
                0.0,
                1.0,
                1,
                math.inf,
                self.budget.delta,
                "",
                against,
                0,
                0,
            )
        self._rows.append(row)
        self._count(against, party, release, function, name)

    def _count(
        self, against: str, party: str, release: Release | None, function: str, name: str
    ) -> None:
        if release:
            self.history[against].setdefault(party, Counter())[release] += 1
        else:
            self.unprotected[against].setdefault((function, name), set()).add(party)

    def summary(self, assumptions: Sequence[str]) -> dict[str, Any]:
        """What `summary.json` says: against the server and, if the server adds noise, against
        parties that trust it.
        """
        found = self._block(FROM_PARTIES)
        trusted = self._block(FROM_SERVER) if self.history[FROM_SERVER] else None
        used = bool(self.history[FROM_PARTIES] or trusted)
        said = list(assumptions) if used else []
        said += [f"Epsilon is by {ACCOUNTANTS[accountant()]}."] if used else []
        return {**found, "trusted_server": trusted, "assumptions": said}

    def _block(self, against: str) -> dict[str, Any]:
        return block(self.history[against], self.unprotected[against], self.budget)


def block(
    history: Mapping[str, History], opened: Mapping[tuple[str, str], Iterable[str]], budget: Budget
) -> dict[str, Any]:
    """What is guaranteed to each party, given what it released and, by work and field, of whom
    something left as it is.
    """
    bare = set().union(*opened.values())
    everything = {release: 1 for counts in history.values() for release in counts}
    of = {
        party: math.inf if party in bare else epsilon(history[party], budget.delta)
        for party in {*history, *bare}
    }
    return {
        "unit": weakest_unit(everything) if everything else None,
        "neighbours": (neighbours_of(everything) or None) if everything else None,
        "delta": budget.delta,
        "epsilon": written(max(of.values(), default=0.0)),
        "parties": {party: written(of[party]) for party in sorted(of)},
        "unprotected": [f"{name} ({function})" for function, name in opened],
    }


def written(value: float) -> float | str:
    """ε as a file has it: a number, or in a word."""
    return INFINITE if math.isinf(value) else round(value, 6)


def read_epsilon(value: float | str) -> float:
    """ε as `written` it was."""
    return math.inf if value == INFINITE else float(value)


def held_fields(reply: Any) -> Iterator[str]:
    """The fields of a reply that hold anything, as in "Model.theta"; of a parcel, which nobody
    sees, all that may be in it.
    """
    if not is_record(reply):
        if payload(reply) or isinstance(reply, Sealed):
            yield "message"
        return
    for field in fields(reply):
        value = getattr(reply, field.name)
        if isinstance(value, Sealed):
            yield from fields_on_wire(resolve_field_type(type(reply), field))
        elif _has_records(value):
            for inner in (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, list | tuple)
                else [value]
            ):
                yield from held_fields(inner)
        elif payload(value):
            yield f"{type(reply).__name__}.{field.name}"


def _has_records(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(map(_has_records, value.values() if isinstance(value, dict) else value))
    return is_record(value)


def _apart(said: Mapping[str, Sequence[Release] | None]) -> list[tuple[Release, list[str]]]:
    """Each release of a call once, with all fields that come through it: what is made of one
    release costs nothing more.

    One release is one object; two of the same strength are two.
    """
    found: dict[int, tuple[Release, list[str]]] = {}
    for name, releases in said.items():
        for release in releases or ():
            found.setdefault(id(release), (release, []))[1].append(name)
    return list(found.values())


def planned(
    algorithm: AnyAlgorithm,
    asked: Callable[[int], Asked],
    parties: Iterable[int],
    rounds: Mapping[int, int],
) -> dict[int, Counter[Release]]:
    """What each party will release in a whole run, if it takes part in so many `rounds`, by the
    methods' own declarations.
    """
    found: dict[int, Counter[Release]] = {}
    for i in parties:
        about = asked(i)
        total: Counter[Release] = Counter()
        for stage, depth, function in planned_calls(algorithm, about.training):
            for release, _ in _apart(releases_of(algorithm, depth, function, about)):
                total[release] += rounds.get(i, 0) if stage == "round" else 1
        found[i] = +total
    return found


def in_words(block: Mapping[str, Any]) -> str:
    """What a block of `summary` says, in one sentence."""
    if block["epsilon"] == INFINITE:
        few = block["unprotected"][:3]
        more = f" and {len(block['unprotected']) - 3} more" if len(block["unprotected"]) > 3 else ""
        why = (
            f"no noise hides {', '.join(few)}{more}"
            if few
            else "there is no noise, or of kinds that cannot be added up"
        )
        return f"no guarantee (epsilon infinite), as {why}"
    if not block["unit"]:
        return "nothing left a party"
    unit, kind = UNITS[block["unit"]], NEIGHBOURS.get(block["neighbours"], "")
    return f"epsilon {block['epsilon']:.3g} at delta {block['delta']:g}, for {unit}: {kind}"


def guarantees(told: Mapping[str, Any] | None, always: bool = False) -> list[str]:
    """What a run's account comes to, a sentence each; of runs without any noise nothing is said,
    unless `always`.
    """
    if not told or not (always or told["unit"] or told["trusted_server"]):
        return []
    said = [f"privacy: {in_words(told)}"]
    if told["trusted_server"]:
        said.append(
            f"from other parties, if the server is trusted: {in_words(told['trusted_server'])}"
        )
    return said


def account_of(summary: Mapping[str, Any], party: str) -> str:
    """What a run's summary says of one party, in words; runs of earlier versions have no account."""
    told = summary.get("privacy")
    if not told:
        return "no account was kept"
    blocks = [
        ("", told),
        ("against other parties, if the server is trusted, ", told["trusted_server"]),
    ]
    return "; ".join(
        f"{whom}{in_words({**block, 'epsilon': block['parties'].get(party, 0.0)})}"
        for whom, block in blocks
        if block
    )
