"""Planned absences, to study their effect: a table of who misses what, or a random share of the
parties.

A table has the columns of a run's `absences.csv`, so that absences of real sites can be simulated
later: `party`, `round` (3, 3-5, 3- or *) and optionally `call` (default: all), `occurrence` and
`how` (offline, the default, or lost).
"""

from __future__ import annotations

import csv
import inspect
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from comity.base.call import CallId
from comity.base.key import Key
from comity.core.algorithm import AnyAlgorithm
from comity.core.participation import LOST_REPLY, NOT_FINITE, OFFLINE, WAITING
from comity.core.wrapper import chain
from comity.errors import ComityError, UsageError, unknown
from comity.runs.tables import OLD_REASONS, current_columns
from comity.spec import call as apply_spec
from comity.spec import parse

WILDCARD = "*"
"""Stands for all rounds, or all calls, in a table."""
CONSEQUENCES = (WAITING, NOT_FINITE)
"""Reasons in a run's table that a simulation produces by itself."""
MOST = 10_000_000  # bytes of a table


class Row(NamedTuple):
    """One line of a plan."""

    party: str
    first: int
    last: float
    call: str
    occurrence: int | None
    how: str

    def matches(self, call: CallId) -> bool:
        """Whether it applies to a call."""
        same_call = self.first <= call.round <= self.last and self.call in (WILDCARD, call.function)
        return same_call and self.occurrence in (None, call.occurrence)


@dataclass(frozen=True)
class PlannedAbsences:
    """Which parties will miss which calls."""

    text: str = ""
    """The table as the user wrote it. A run keeps it in its folder."""
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """By party."""
    offline_share: float = 0.0
    """The share of parties that are offline in a round, at random. They are evaluated all the
    same.
    """
    lost_share: float = 0.0
    """The share of replies that are lost, at random."""
    root: Key = field(default_factory=lambda: Key(0))

    @property
    def is_empty(self) -> bool:
        """Whether no absences are planned."""
        return not (self.rows or self.offline_share or self.lost_share)

    def __call__(self, party: str, call: CallId) -> str:
        """What is planned for a party in a call: OFFLINE, LOST_REPLY, or empty."""
        for row in self.rows.get(party, ()):
            if row.matches(call):
                return row.how
        if call.round and call.depth >= 0:
            if self._draw(self.offline_share, party, call.round):
                return OFFLINE
            if self._draw(self.lost_share, party, *call):
                return LOST_REPLY
        return ""

    def _draw(self, share: float, *path: str | int) -> bool:
        return share > 0 and self.root.fold("absent", *path).bits < share * 2**64

    def without_effect(self, algorithm: AnyAlgorithm) -> list[str]:
        """Warnings about party functions in the plan that a method does not have."""
        functions = {
            name
            for part in chain(algorithm)
            for name, _ in inspect.getmembers(type(part), inspect.iscoroutinefunction)
        }
        unknown_functions = (
            {row.call for rows in self.rows.values() for row in rows}
            - functions
            - {WILDCARD, "evaluate"}
        )
        return [
            f"the plan of absences names {function!r}, which is no party function of this method."
            for function in sorted(unknown_functions)
        ]


def read_plan(
    setting: str | None, seed: int, parties: Iterable[str], saved: str | None = None
) -> PlannedAbsences:
    """The plan that the setting `absent` names. `saved` is its table in the folder of an existing
    run.
    """
    if setting is None:
        return PlannedAbsences()
    if saved is None and not setting.endswith(".csv"):
        return _random(setting, seed)
    return _table(_read(Path(setting)) if saved is None else saved, setting, list(parties))


def _random(setting: str, seed: int) -> PlannedAbsences:
    def random(offline: float = 0.0, lost: float = 0.0) -> PlannedAbsences:
        if not (0 <= offline < 1 and 0 <= lost < 1 and offline + lost > 0):
            raise UsageError(
                f"{setting} is out of range: offline and lost are shares from 0 to below 1, and one"
                " of them is more than 0."
            )
        return PlannedAbsences(offline_share=offline, lost_share=lost, root=Key.root(seed))

    spec = parse(setting)
    if spec.name != "random":
        raise UsageError(
            f"absent is a table (plan.csv) or random(offline=0.1,lost=0.1), not {setting!r}."
        )
    return apply_spec(spec, random)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MOST:
            raise UsageError(f"{path} is too large for a plan of absences.")
        return path.read_text(encoding="utf-8-sig")
    except UsageError:
        raise
    except (OSError, ValueError) as why:
        raise UsageError(
            f"{path} cannot be read ({getattr(why, 'strerror', None) or 'it is no text'})."
        ) from why


def _table(text: str, name: str, parties: list[str]) -> PlannedAbsences:
    rows: dict[str, list[Row]] = {}
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        allowed = {"party", "round", "call", "occurrence", "how"}
        columns = current_columns(reader.fieldnames or ())
        if not {"party", "round"} <= set(columns) or not set(columns) <= allowed:
            raise UsageError(
                f"{name} needs the columns party and round, and may have call, occurrence and how;"
                f" it has {', '.join(columns)}."
            )
        reader.fieldnames = columns
        for cells in reader:
            if None in cells or None in cells.values():
                raise UsageError(
                    f"{name}, line {reader.line_num}: the cells do not match the columns."
                )
            if (
                row := _row(cells, f"{name}, line {reader.line_num}", parties)
            ) and row.how not in CONSEQUENCES:
                rows.setdefault(row.party, []).append(row)
    except csv.Error as why:
        raise ComityError(f"{name} cannot be read: {why}.") from why
    return PlannedAbsences(text, rows)


def _row(cells: dict[str, str], where: str, parties: list[str]) -> Row:
    if cells["party"] not in parties:
        raise unknown(f"party ({where}) called", cells["party"], parties)
    how = cells.get("how") or OFFLINE
    how = OLD_REASONS.get(how, how)
    if how not in (OFFLINE, LOST_REPLY, *CONSEQUENCES):
        raise UsageError(f"{where}: how is {OFFLINE} or {LOST_REPLY}, not {how!r}.")
    first, last = _rounds(cells["round"].strip(), where)
    occurrence = cells.get("occurrence", "").strip()
    if occurrence and not occurrence.isdecimal():
        raise UsageError(f"{where}: an occurrence is a whole number, not {occurrence!r}.")
    call = cells.get("call", "").strip() or WILDCARD
    return Row(cells["party"], first, last, call, int(occurrence) if occurrence else None, how)


def _rounds(text: str, where: str) -> tuple[int, float]:
    """`3`, `3-5`, `3-` or `*` as the first and the last round."""
    begin, dash, end = text.partition("-")
    if text == WILDCARD:
        return 0, float("inf")
    if not begin.isdecimal() or (end and not end.isdecimal()) or len(text) > 40:
        raise UsageError(f"{where}: a round is written as 3, 3-5, 3- or *, not {text[:40]!r}.")
    first = int(begin)
    return first, (int(end) if end else float("inf")) if dash else first
