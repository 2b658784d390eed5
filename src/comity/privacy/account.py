"""The privacy account of a run: every release with its noise, and every field sent without noise.

A release is charged before the party is called, because somebody may read a reply that the server
never gets. A field without noise is noted when the reply arrives. The account has two sides: what
the server (or an eavesdropper) can infer from the messages of the parties and, if a trusted server
adds the noise, what parties can infer from the messages of the server.
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
from comity.core.party import Info
from comity.core.release import (
    NEIGHBOURS,
    RECORD_UNITS,
    UNITS,
    PartyFacts,
    Release,
    declares,
    planned_calls,
    releases_of,
    reply_fields,
)
from comity.core.signature import fields_on_wire, party_functions
from comity.core.undeclared import UNDECLARED_SAMPLES, UndeclaredSamples
from comity.core.wrapper import chain
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
from comity.text import join_names
from comity.wire.ledger import EVERYBODY, MAX_PARTY_ROWS

INFINITE = "infinite"
"""How JSON files write an infinite ε."""
AGAINST_SERVER, AGAINST_PARTIES = "server", "parties"
"""Whom a release protects against: the server, which receives it, or the other parties, which
receive what a trusted server sends.
"""


Fields = dict[str, Sequence[Release] | None]
"""By field of a reply: the mechanisms through which it leaves; None for a field without noise."""


class BudgetExceeded(ComityError):
    """A call would exceed the privacy budget, and was not made."""


class PrivacyCharge(NamedTuple):
    """A row of privacy.csv: one release of a party, or of the server, in a call.

    `epsilon` and `delta` are those of this row alone. `mechanism` is "none" for what left without
    noise.
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

    @staticmethod
    def of(
        round: int,
        call: str,
        party: str,
        name: str,
        release: Release | None,
        against: str,
        delta: float,
    ) -> PrivacyCharge:
        """The row of a release; of None for what leaves without noise."""
        return PrivacyCharge(
            round=round,
            call=call,
            party=party,
            release=name,
            unit=release.unit if release else "",
            mechanism=release.mechanism if release else "none",
            sensitivity=release.sensitivity if release else 0.0,
            noise=release.noise if release else 0.0,
            rate=release.rate if release else 1.0,
            steps=release.steps if release else 1,
            epsilon=epsilon({release: 1}, delta) if release else math.inf,
            delta=delta,
            neighbours=release.neighbours if release else "",
            against=against,
            drawn=release.drawn if release else 0,
            drawn_of=release.drawn_of if release else 0,
        )

    def to_release(self) -> Release | None:
        """The release of this row; None if there was no noise."""
        if self.mechanism == "none":
            return None
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(Release)}
        return Release(**values)


class Account:
    """What each party has released so far.

    Arguments:
        algorithm: the method of the run
        info: what is known of all parties
        asked: what is known of a party before it is called, by its number
        budget: the largest ε of a party; a call that would exceed it raises `BudgetExceeded`
        plan: computes what each party will release in the whole run
        coupled: why one record of a party changes its other records before any training, for
            instance by scaling; then no record is protected. Empty where that is not so.
    """

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        info: Info,
        facts: Callable[[int], PartyFacts],
        budget: Budget,
        plan: Callable[[], Mapping[int, Counter[Release]]] = dict,
        coupled: Callable[[int], str] = lambda i: "",
    ) -> None:
        self.budget = budget
        self._algorithm = algorithm
        self._name = info.name
        self._facts = facts
        self._plan = plan
        self._coupled = coupled
        self._planned: Mapping[int, Counter[Release]] | None = None
        self._aggregated = len(info.names) + len(info.newcomers) > MAX_PARTY_ROWS
        self._rows: list[PrivacyCharge] = []
        self._declaring = {
            depth for depth in range(len(chain(algorithm))) if declares(algorithm, depth)
        }
        """The depths of the chain whose party functions have declared releases."""
        self._fields: dict[tuple[int, str, int | None], Fields] = {
            (depth, function, None): dict.fromkeys(reply_fields(algorithm, depth, function))
            for depth, function in party_functions(algorithm)
            if depth not in self._declaring
        }
        """The reply fields of party functions: for each party, or under None for all parties if no
        releases are declared.
        """
        self._undeclared_samples = UndeclaredSamples(algorithm, info)
        self.history: dict[str, dict[str, Counter[Release]]] = {
            AGAINST_SERVER: {},
            AGAINST_PARTIES: {},
        }
        """All releases, by whom they protect against and by party."""
        self.unprotected: dict[str, dict[tuple[str, str], set[str]]] = {
            AGAINST_SERVER: {},
            AGAINST_PARTIES: {},
        }
        """The parties whose values left without noise, by party function and field."""

    def restore(self, rows: Iterable[PrivacyCharge]) -> None:
        """Continue from the rows of privacy.csv."""
        for row in rows:
            self._count(row.against, row.party, row.to_release(), row.call, row.release)

    def add(self, rows: Iterable[PrivacyCharge]) -> None:
        """Charge rows once more, as of an attempt whose checkpoint was lost."""
        rows = list(rows)
        self._rows += rows
        self.restore(rows)

    def take(self) -> list[PrivacyCharge]:
        """The rows that were added since the last call of `take`."""
        rows, self._rows = self._rows, []
        return rows

    def charge_call(self, call: CallId, ids: Iterable[int]) -> None:
        """Charge what the replies of these parties will release, before they are called.

        Raises `BudgetExceeded`, and charges nothing, if a party would exceed the budget.
        """
        if call.depth not in self._declaring:
            return  # nothing is protected, and nothing charged
        charges = [
            (i, releases) for i in ids if (releases := _fields_by_release(self._fields_of(call, i)))
        ]
        for i, releases in charges:
            if not self._is_affordable(i, Counter(release for release, _ in releases)):
                raise self._budget_exceeded(f"{call.function} in round {call.round}", i)
        for i, releases in charges:
            for release, names in releases:
                self._add(
                    call.round,
                    call.function,
                    self._name(i),
                    ", ".join(names),
                    release,
                    AGAINST_SERVER,
                )
                if release.unit in RECORD_UNITS and (why := self._coupled(i)):
                    self.note_open(call.round, "introduce", i, why)

    def note_reply(self, call: CallId, i: int, reply: Any) -> None:
        """Note the fields of a reply that arrived without noise, each once."""
        declared = self._fields_of(call, i)
        # The content of sealed messages outside a record's fields cannot be seen. All fields that
        # the party function declares may be in them.
        sealed = declared if not is_record(reply) and sealed_in(reply) else ()
        for name in dict.fromkeys((*fields_with_values(reply), *sealed)):
            if declared.get(name) is None:
                self.note_open(call.round, call.function, i, name)
        for name in self._undeclared_samples.fields_of(reply, call.depth):
            self.note_open(call.round, call.function, i, f"{UNDECLARED_SAMPLES}{name}")

    def note_open(
        self, round: int, function: str, i: int, name: str, against: str = AGAINST_SERVER
    ) -> None:
        """Note once that a value of a party left without noise."""
        # With thousands of parties there would be as many rows.
        party = EVERYBODY if self._aggregated else self._name(i)
        if party not in self.unprotected[against].get((function, name), ()):
            self._add(round, function, party, name, None, against)

    def charge_server(
        self, round: int, name: str, release: Release | None, ids: Iterable[int]
    ) -> None:
        """Charge what the server makes known of these parties to the others.

        `release` is the server's own noise; None if there is none.
        """
        for i in ids:
            if release:
                if not self._is_affordable(i, Counter([release]), AGAINST_PARTIES):
                    raise self._budget_exceeded(
                        f"what the server would make known in round {round}", i
                    )
                self._add(round, "server", self._name(i), name, release, AGAINST_PARTIES)
            else:
                self.note_open(round, "server", i, name, AGAINST_PARTIES)

    def _fields_of(self, call: CallId, i: int) -> Fields:
        """The fields of a party's reply to a call, with their releases."""
        key = call.depth, call.function, i if call.depth in self._declaring else None
        if key not in self._fields:
            self._fields[key] = releases_of(
                self._algorithm, call.depth, call.function, self._facts(i)
            )
        return self._fields[key]

    def _budget_exceeded(self, what: str, i: int) -> BudgetExceeded:
        return BudgetExceeded(
            f"The privacy budget ({self.budget}) is spent: {what} would take {self._name(i)} beyond"
            " it, and was not done."
        )

    def _is_affordable(self, i: int, more: Counter[Release], against: str = AGAINST_SERVER) -> bool:
        """Whether a party stays within the budget with these releases added."""
        if not math.isfinite(self.budget.epsilon):
            return True
        most, delta = self.budget.epsilon, self.budget.delta
        history = self.history[against].get(self._name(i), Counter()) + more
        if renyi_epsilon(history, delta) <= most:
            return True
        if against == AGAINST_PARTIES:
            return epsilon(history, delta) <= most
        if self._planned is None:
            self._planned = self._plan()
        plan = self._planned.get(i, Counter())
        # A part of a plan costs no more than the whole plan. Plans are few and histories many, so
        # that the cached ε of a plan saves most computations.
        if history <= plan and epsilon(plan, delta) <= most:
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
        row = PrivacyCharge.of(round, function, party, name, release, against, self.budget.delta)
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
        """The privacy part of `summary.json`.

        It has the guarantee against the server and, if the server adds noise, the guarantee against
        other parties under the key `trusted_server`.
        """
        against_server = self._guarantee(AGAINST_SERVER)
        trusted = self._guarantee(AGAINST_PARTIES) if self.history[AGAINST_PARTIES] else None
        sentences: list[str] = []
        if self.history[AGAINST_SERVER] or trusted:
            sentences = [*assumptions, f"Epsilon is by {ACCOUNTANTS[accountant()]}."]
        return {**against_server, "trusted_server": trusted, "assumptions": sentences}

    def _guarantee(self, against: str) -> dict[str, Any]:
        return guarantee(self.history[against], self.unprotected[against], self.budget)


def guarantee(
    history: Mapping[str, History],
    unprotected: Mapping[tuple[str, str], Iterable[str]],
    budget: Budget,
) -> dict[str, Any]:
    """What is guaranteed to each party, as `summary.json` has it.

    Arguments:
        history: the releases of each party, by name
        unprotected: by party function and field, the parties whose values left without noise
        budget: its δ is the one that ε is computed at
    """
    parties_without = set().union(*unprotected.values())
    all_releases = {release: 1 for counts in history.values() for release in counts}
    epsilons = {
        party: math.inf if party in parties_without else epsilon(history[party], budget.delta)
        for party in {*history, *parties_without}
    }
    return {
        "unit": weakest_unit(all_releases) if all_releases else None,
        "neighbours": (neighbours_of(all_releases) or None) if all_releases else None,
        "delta": budget.delta,
        "epsilon": epsilon_for_json(max(epsilons.values(), default=0.0)),
        "parties": {party: epsilon_for_json(epsilons[party]) for party in sorted(epsilons)},
        "unprotected": [f"{name} ({function})" for function, name in unprotected],
    }


def epsilon_for_json(value: float) -> float | str:
    """ε as JSON files have it: a rounded number, or "infinite"."""
    return INFINITE if math.isinf(value) else round(value, 6)


def format_epsilon(value: float | str, digits: str = ".3g") -> str:
    """ε as text. `value` is a number, or what `epsilon_for_json` returned.

    Examples:
        >>> format_epsilon(7.98765), format_epsilon(math.inf), format_epsilon("infinite")
        ('7.99', 'infinite', 'infinite')
    """
    epsilon = read_epsilon(value)
    return INFINITE if math.isinf(epsilon) else f"{epsilon:{digits}}"


def read_epsilon(value: float | str) -> float:
    """The inverse of `epsilon_for_json`."""
    return math.inf if value == INFINITE else float(value)


def fields_with_values(reply: Any) -> Iterator[str]:
    """The fields of a reply that are not empty, for instance "Model.theta".

    Of a sealed message, whose content cannot be seen, these are all fields that may be in it.
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
            for part in _parts(value):
                yield from fields_with_values(part)
        elif payload(value):
            yield f"{type(reply).__name__}.{field.name}"


def _parts(value: Any) -> Iterable[Any]:
    """The values of a dict, list or tuple; otherwise the value itself."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else [value]


def _has_records(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(map(_has_records, _parts(value)))
    return is_record(value)


def _fields_by_release(
    declared: Mapping[str, Sequence[Release] | None],
) -> list[tuple[Release, list[str]]]:
    """Each release of a call once, with all fields that come from it.

    Several fields computed from one release cost no more than one field (post-processing). Releases
    are told apart by identity: two objects with equal values are two releases.
    """
    by_identity: dict[int, tuple[Release, list[str]]] = {}
    for name, releases in declared.items():
        for release in releases or ():
            by_identity.setdefault(id(release), (release, []))[1].append(name)
    return list(by_identity.values())


def plan_releases(
    algorithm: AnyAlgorithm,
    facts: Callable[[int], PartyFacts],
    parties: Iterable[int],
    rounds: Mapping[int, int],
) -> dict[int, Counter[Release]]:
    """What each party will release in a whole run, by the declarations of the method.

    Arguments:
        algorithm: the method
        asked: what is known of a party before it is called, by its number
        parties: the numbers of the parties
        rounds: in how many rounds each of them takes part
    """
    plans: dict[int, Counter[Release]] = {}
    for i in parties:
        party = facts(i)
        total: Counter[Release] = Counter()
        for stage, depth, function in planned_calls(algorithm, party.training):
            declared = releases_of(algorithm, depth, function, party)
            for release, _ in _fields_by_release(declared):
                total[release] += rounds.get(i, 0) if stage == "round" else 1
        plans[i] = +total
    return plans


def describe_guarantee(block: Mapping[str, Any]) -> str:
    """A result of `guarantee` as a phrase."""
    if block["epsilon"] == INFINITE:
        unprotected = block["unprotected"]
        why = (
            f"no noise hides {join_names(unprotected, 3)}"
            if unprotected
            else "there is no noise, or of kinds that cannot be added up"
        )
        return f"no guarantee (epsilon infinite), as {why}"
    if not block["unit"]:
        return "nothing left a party"
    unit, kind = UNITS[block["unit"]], NEIGHBOURS.get(block["neighbours"], "")
    return f"epsilon {block['epsilon']:.3g} at delta {block['delta']:g}, for {unit}: {kind}"


def describe_guarantees(privacy: Mapping[str, Any] | None, always: bool = False) -> list[str]:
    """The privacy part of a run's summary as sentences.

    For a run without any noise the list is empty, unless `always` is set.
    """
    if not privacy or not (always or privacy["unit"] or privacy["trusted_server"]):
        return []
    sentences = [f"privacy: {describe_guarantee(privacy)}"]
    if trusted := privacy["trusted_server"]:
        sentences.append(
            f"from other parties, if the server is trusted: {describe_guarantee(trusted)}"
        )
    return sentences


def describe_party_guarantee(summary: Mapping[str, Any], party: str) -> str:
    """What a run's summary guarantees to one party, as a phrase.

    Summaries of earlier versions have no privacy part.
    """
    privacy = summary.get("privacy")
    if not privacy:
        return "no account was kept"
    blocks = [
        ("", privacy),
        ("against other parties, if the server is trusted, ", privacy["trusted_server"]),
    ]
    return "; ".join(
        whom + describe_guarantee({**block, "epsilon": block["parties"].get(party, 0.0)})
        for whom, block in blocks
        if block
    )
