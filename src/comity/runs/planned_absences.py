"""Absences that are planned, to study what they do: a table of who misses what, or a share of the
parties at random.

A table has the columns of a run's own `absences.csv`, so that what happened between real sites can
be simulated afterwards: `party`, `round` (3, 3-5, 3- or *) and, if one likes, `function` (all,
unless told), `occurrence` and `how` (dead, unless told, or lost).
"""

from __future__ import annotations

import csv
import inspect
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from comity.core.algorithm import AnyAlgorithm
from comity.base.call import CallId
from comity.base.key import Key
from comity.core.participation import LOST, NOT_FINITE, OFFLINE, WAITING
from comity.core.wrapper import chain
from comity.errors import ComityError, UsageError, unknown
from comity.runs.tables import OLD_REASONS, current_columns
from comity.spec import call as apply_spec
from comity.spec import parse

EVERY = "*"
CONSEQUENCES = (WAITING, NOT_FINITE)
"""Ways that a table of a run has, but that come about by themselves when it is simulated."""
MOST = 10_000_000  # bytes of a table


class Row(NamedTuple):
    """One line of a plan."""

    party: str
    first: int
    last: float
    call: str
    occurrence: int | None
    how: str

    def meets(self, call: CallId) -> bool:
        """Whether it speaks of a call."""
        here = self.first <= call.round <= self.last and self.call in (EVERY, call.function)
        return here and self.occurrence in (None, call.occurrence)


@dataclass(frozen=True)
class PlannedAbsences:
    """Who is to miss what."""

    text: str = ""
    """The table as it was given; a run keeps it in its folder."""
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """By party."""
    offline: float = 0.0
    """The share of parties that are not there in a round, at random; they evaluate all the same."""
    lost: float = 0.0
    """The share of all replies that are lost, at random."""
    root: Key = field(default_factory=lambda: Key(0))

    def __call__(self, party: str, call: CallId) -> str:
        """What is planned for a party's part in a call: OFFLINE, LOST, or nothing."""
        for row in self.rows.get(party, ()):
            if row.meets(call):
                return row.how
        if call.round and call.depth >= 0:
            if self._drawn(self.offline, party, call.round):
                return OFFLINE
            if self._drawn(self.lost, party, *call):
                return LOST
        return ""

    def _drawn(self, share: float, *path: str | int) -> bool:
        return share > 0 and self.root.fold("absent", *path).bits < share * 2**64

    def without_effect(self, algorithm: AnyAlgorithm) -> list[str]:
        """PartyRunner that the plan speaks of and a method does not have, a sentence each."""
        works = {
            name
            for a in chain(algorithm)
            for name, _ in inspect.getmembers(type(a), inspect.iscoroutinefunction)
        }
        spoken = (
            {row.call for rows in self.rows.values() for row in rows} - works - {EVERY, "evaluate"}
        )
        return [
            f"the plan of absences speaks of {function!r}, which is no work of this method."
            for function in sorted(spoken)
        ]


def planned(
    wish: str | None, seed: int, parties: Iterable[str], kept: str | None = None
) -> PlannedAbsences:
    """The plan that the setting `absent` names; `kept` is its table as the run's folder has it, if
    the run was begun before.
    """
    if wish is None:
        return PlannedAbsences()
    if kept is None and not wish.endswith(".csv"):
        return _random(wish, seed)
    return _table(_read(Path(wish)) if kept is None else kept, wish, list(parties))


def _random(wish: str, seed: int) -> PlannedAbsences:
    def random(offline: float = 0.0, lost: float = 0.0) -> PlannedAbsences:
        if not (0 <= offline < 1 and 0 <= lost < 1 and offline + lost > 0):
            raise UsageError(
                f"{wish} is out of range: offline and lost are shares from 0 to below 1, and one of"
                " them is more than 0."
            )
        return PlannedAbsences(offline=offline, lost=lost, root=Key.root(seed))

    spec = parse(wish)
    if spec.name != "random":
        raise UsageError(
            f"absent is a table (plan.csv) or random(offline=0.1,lost=0.1), not {wish!r}."
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
        known = {"party", "round", "call", "occurrence", "how"}
        heads = current_columns(reader.fieldnames or ())
        if not {"party", "round"} <= set(heads) or not set(heads) <= known:
            raise UsageError(
                f"{name} needs the columns party and round, and may have call, occurrence and how;"
                f" it has {', '.join(heads)}."
            )
        reader.fieldnames = heads
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
    if how not in (OFFLINE, LOST, *CONSEQUENCES):
        raise UsageError(f"{where}: how is {OFFLINE} or {LOST}, not {how!r}.")
    first, last = _rounds(cells["round"].strip(), where)
    occurrence = cells.get("occurrence", "").strip()
    if occurrence and not occurrence.isdecimal():
        raise UsageError(f"{where}: an occurrence is a whole number, not {occurrence!r}.")
    call = cells.get("call", "").strip() or EVERY
    return Row(cells["party"], first, last, call, int(occurrence) if occurrence else None, how)


def _rounds(text: str, where: str) -> tuple[int, float]:
    """`3`, `3-5`, `3-` or `*` as the first round and the last."""
    begin, dash, end = text.partition("-")
    if text == EVERY:
        return 0, float("inf")
    if not begin.isdecimal() or (end and not end.isdecimal()) or len(text) > 40:
        raise UsageError(f"{where}: a round is written as 3, 3-5, 3- or *, not {text[:40]!r}.")
    first = int(begin)
    return first, (int(end) if end else float("inf")) if dash else first
