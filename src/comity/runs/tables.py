"""A run's tables (metrics, ledger, timing, absences, privacy): what their rows mean, how they are
written, how they are read.

Tables grow by whole rounds, and can be cut back to where a checkpoint was made. There is one way to
understand a row and three to read a table: all of it, or nothing (`read`); as far as it makes sense
(`salvage`); and what is new in one that grows (`Growing`).
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

from comity.checksums import Checksum
from comity.wire.ledger import Charge
from comity.core.participation import Absence
from comity.core.server import Note
from comity.errors import ComityError
from comity.privacy.account import PrivacyCharge

R = TypeVar("R")
BLOCK = 1 << 20
# bytes before the place up to which a growing table was read: if they are others now, so is the
# file
REMEMBERED = 64


class Timing(NamedTuple):
    """A row of timing.csv: the seconds that a round took, and the most memory that was held by
    then, in bytes.
    """

    round: int
    train: float
    evaluate: float
    checkpoint: float
    memory: int


@dataclass(frozen=True)
class Salvaged(Generic[R]):
    """What could be read of a table."""

    rows: list[R]
    damaged: bool
    """Whether something makes no sense: the rows are those before it."""
    open_end: bool
    """Whether the last line has no end: it is still being written, or was cut off."""


OLD_COLUMNS = {"work": "call", "use": "occurrence"}
"""Columns by the names that they had in folders of earlier versions."""
OLD_REASONS = {"dead": "offline"}
"""Reasons for an absence by the names that they had in folders of earlier versions."""


def current_columns(heads: Sequence[str]) -> tuple[str, ...]:
    """The names that columns have now."""
    return tuple(OLD_COLUMNS.get(head, head) for head in heads)


@dataclass(frozen=True)
class Table(Generic[R]):
    """One of the tables: its file's name, its columns, and what the cells of a line mean."""

    name: str
    columns: tuple[str, ...]
    meaning: Callable[[Sequence[str]], R]
    seldom: bool = False
    """Whether there is a file only if there are rows."""

    def row(self, cells: Sequence[str]) -> R:
        """What a line says; a ValueError if that makes no sense."""
        if len(cells) != len(self.columns):
            raise ValueError(
                f"{self.name} has {len(self.columns)} columns, but a line of {len(cells)}."
            )
        return self.meaning(cells)

    def read(self, folder: Path) -> list[R]:
        """All rows; a table that is not whole is refused."""
        found = self.salvage(folder)
        if found.damaged or found.open_end:
            raise ComityError(f"{folder / self.name} is damaged.")
        return found.rows

    def salvage(self, folder: Path) -> Salvaged[R]:
        """The rows up to the first that makes no sense."""
        rows: list[R] = []
        open_end = False
        try:
            text = (folder / self.name).read_text(encoding="utf-8")
            whole, _, rest = text.rpartition("\n")
            open_end = bool(rest)
            heads, *lines = csv.reader(whole.split("\n"))
            for cells in lines:
                rows.append(self.row(cells))
            damaged = current_columns(heads) != self.columns
        except (ValueError, csv.Error):
            damaged = True
        return Salvaged(rows, damaged, open_end)


def _note(cells: Sequence[str]) -> Note:
    return Note(int(cells[0]), cells[1], cells[2], cells[3], float(cells[4]))


def _charge(cells: Sequence[str]) -> Charge:
    return Charge(int(cells[0]), cells[1], cells[2], cells[3], cells[4], int(cells[5]))


def _timing(cells: Sequence[str]) -> Timing:
    return Timing(int(cells[0]), float(cells[1]), float(cells[2]), float(cells[3]), int(cells[4]))


def _spent(cells: Sequence[str]) -> PrivacyCharge:
    kinds = (
        int,
        str,
        str,
        str,
        str,
        str,
        float,
        float,
        float,
        int,
        float,
        float,
        str,
        str,
        int,
        int,
    )
    made: list[Any] = [kind(cell) for kind, cell in zip(kinds, cells, strict=True)]
    return PrivacyCharge(*made)


def _absence(cells: Sequence[str]) -> Absence:
    return Absence(
        cells[0], int(cells[1]), cells[2], OLD_REASONS.get(cells[3], cells[3]), int(cells[4])
    )


METRICS = Table("metrics.csv", Note._fields, _note)
LEDGER = Table("ledger.csv", Charge._fields, _charge)
TIMING = Table("timing.csv", Timing._fields, _timing)
ABSENCES = Table("absences.csv", Absence._fields, _absence, seldom=True)
PRIVACY = Table("privacy.csv", PrivacyCharge._fields, _spent, seldom=True)
TABLES: tuple[Table[Any], ...] = (METRICS, LEDGER, TIMING, ABSENCES, PRIVACY)


class Writer:
    """The files of a run that goes on: tables that grow, and others that are written once.

    `files` are their lengths and checksums so far, by name, for its checkpoints and its summary.
    """

    def __init__(self, folder: Path, record_messages: str = "") -> None:
        self._folder = folder
        self._tape = record_messages
        """The file of messages, if they are kept: it grows as the tables do."""
        self.files: dict[str, Checksum] = {}

    def create(self) -> None:
        """Begin all tables with their headings, but for those that there seldom are, and the tape
        if there is to be one.
        """
        for table in TABLES:
            if not table.seldom:
                self._begin(table)
        if self._tape:
            self._write(self._tape, b"")

    def _begin(self, table: Table[Any]) -> None:
        self._write(table.name, (",".join(table.columns) + "\n").encode())

    def _write(self, name: str, blob: bytes) -> None:
        (self._folder / name).parent.mkdir(exist_ok=True)
        (self._folder / name).write_bytes(blob)
        self.files[name] = Checksum.of(blob)

    def go_on(self, files: Mapping[str, Checksum]) -> None:
        """Go back to what a checkpoint knows of. All is checked before anything is cut."""
        grown = {table.name for table in TABLES} | {self._tape}
        for name, known in files.items():
            self.files[name] = known.check_beginning(self._folder / name)
        for name in grown & files.keys():
            path = self._folder / name
            try:
                os.truncate(path, files[name].length)
            except OSError as why:
                raise ComityError(f"{path} cannot be continued ({why.strerror}).") from why
        for table in TABLES:
            if (
                table.name not in files
            ):  # it had no rows yet, or the run is of a version that had no such table
                (self._folder / table.name).unlink(missing_ok=True)
                if not table.seldom:
                    self._begin(table)

    def add(self, table: Table[Any], rows: Iterable[Sequence[Any]]) -> None:
        """Append rows in one write."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        if table.name not in self.files:
            if not text.getvalue():
                return
            self._begin(table)
        self.append(table.name, text.getvalue().encode())

    def append(self, name: str, blob: bytes) -> None:
        """Let a file grow in one write."""
        with (self._folder / name).open("ab") as file:
            file.write(blob)
        self.files[name] = self.files[name].and_then(blob)

    def rows(self, table: Table[R]) -> list[R]:
        """What a table holds so far."""
        return table.read(self._folder) if table.name in self.files else []

    def note(self, name: str) -> None:
        """Remember a file that was just written whole."""
        self.files[name] = Checksum.of((self._folder / name).read_bytes())


class Growing(Generic[R]):
    """A table that somebody else writes: each look hands its new whole rows to `take`. Lines that
    make no sense are passed over.

    If the file was cut back, or is another one, `forget` is called and all of it is read again.
    """

    def __init__(
        self, table: Table[R], folder: Path, take: Callable[[R], None], forget: Callable[[], None]
    ) -> None:
        self._table = table
        self._path = folder / table.name
        self._take = take
        self._forget = forget
        self._at = 0
        self._last = b""

    def look(self) -> None:
        """Read on."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at - len(self._last))
                if file.read(len(self._last)) != self._last:
                    self._begin_again()
                    file.seek(0)
                for lines in self._whole(file):
                    self._hand_on(lines)
        except OSError:
            self._begin_again()

    def _begin_again(self) -> None:
        if self._at:
            self._forget()
        self._at = 0
        self._last = b""

    def _whole(self, file: BinaryIO) -> Iterator[bytes]:
        """The new lines in blocks, without a last one that is still being written."""
        rest = b""
        while block := file.read(BLOCK):
            lines, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                self._at += len(lines) + 1
                self._last = (self._last + lines + newline)[-REMEMBERED:]
                yield lines

    def _hand_on(self, lines: bytes) -> None:
        with contextlib.suppress(csv.Error):
            for cells in csv.reader(lines.decode("utf-8", "replace").split("\n")):
                with contextlib.suppress(ValueError):  # the heading, or a line that was damaged
                    self._take(self._table.row(cells))
