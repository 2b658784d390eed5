"""A run's tables (metrics, ledger, timing, absences, privacy): their rows, and how they are written
and read.

Tables grow by whole rounds, and can be cut back to a checkpoint. A table can be read completely or
not at all (`read`), up to the first invalid row (`salvage`), or incrementally while it grows
(`Growing`).
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

from comity.checksums import Checksum
from comity.core.participation import Absence
from comity.core.server import Note
from comity.errors import ComityError
from comity.privacy.account import PrivacyCharge
from comity.safe_files import create_file, make_folder, open_to_append, open_to_update
from comity.wire.ledger import Charge

R = TypeVar("R")
BLOCK = 1 << 20
REMEMBERED = 64  # bytes before the current position, to detect that a growing file was replaced


class Timing(NamedTuple):
    """A row of timing.csv: the seconds that a round took, and the peak memory so far, in bytes."""

    round: int
    train: float
    evaluate: float
    checkpoint: float
    memory: int


@dataclass(frozen=True)
class Salvaged(Generic[R]):
    """The readable part of a table."""

    rows: list[R]
    damaged: bool
    """Whether a row is invalid. The rows are those before it."""
    open_end: bool
    """Whether the last line is incomplete: it is being written, or was cut off."""


OLD_COLUMNS = {"work": "call", "use": "occurrence"}
"""Columns by their names in folders of earlier versions."""
OLD_REASONS = {"dead": "offline"}
"""Reasons for an absence by their names in folders of earlier versions."""


def current_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The current names of columns."""
    return tuple(OLD_COLUMNS.get(name, name) for name in names)


@dataclass(frozen=True)
class RunTable(Generic[R]):
    """A table: its file name, its columns, and how to parse the cells of a line."""

    name: str
    columns: tuple[str, ...]
    parse: Callable[[Sequence[str]], R]
    seldom: bool = False
    """Whether the file exists only if there are rows."""

    def row(self, cells: Sequence[str]) -> R:
        """The parsed row. Raises ValueError if it is invalid."""
        if len(cells) != len(self.columns):
            raise ValueError(
                f"{self.name} has {len(self.columns)} columns, but a line of {len(cells)}."
            )
        return self.parse(cells)

    def read(self, folder: Path) -> list[R]:
        """All rows. Raises ComityError if the table is damaged or incomplete."""
        table = self.salvage(folder)
        if table.damaged or table.open_end:
            raise ComityError(f"{folder / self.name} is damaged.")
        return table.rows

    def salvage(self, folder: Path) -> Salvaged[R]:
        """The rows up to the first invalid one."""
        rows: list[R] = []
        open_end = False
        try:
            text = (folder / self.name).read_text(encoding="utf-8")
            whole, _, rest = text.rpartition("\n")
            open_end = bool(rest)
            columns, *lines = csv.reader(whole.split("\n"))
            for cells in lines:
                rows.append(self.row(cells))
            damaged = current_columns(columns) != self.columns
        except (ValueError, csv.Error):
            damaged = True
        return Salvaged(rows, damaged, open_end)


def _note(cells: Sequence[str]) -> Note:
    return Note(int(cells[0]), cells[1], cells[2], cells[3], float(cells[4]))


def _charge(cells: Sequence[str]) -> Charge:
    return Charge(int(cells[0]), cells[1], cells[2], cells[3], cells[4], int(cells[5]))


def _timing(cells: Sequence[str]) -> Timing:
    return Timing(int(cells[0]), float(cells[1]), float(cells[2]), float(cells[3]), int(cells[4]))


PRIVACY_CELLS: tuple[Callable[[str], Any], ...] = (
    *(int, str, str, str, str, str),
    *(float, float, float, int, float, float),
    *(str, str, int, int),
)
"""How the cells of privacy.csv are parsed."""


def _privacy_charge(cells: Sequence[str]) -> PrivacyCharge:
    values: list[Any] = [parse(cell) for parse, cell in zip(PRIVACY_CELLS, cells, strict=True)]
    return PrivacyCharge(*values)


def _absence(cells: Sequence[str]) -> Absence:
    return Absence(
        cells[0], int(cells[1]), cells[2], OLD_REASONS.get(cells[3], cells[3]), int(cells[4])
    )


METRICS = RunTable("metrics.csv", Note._fields, _note)
LEDGER = RunTable("ledger.csv", Charge._fields, _charge)
TIMING = RunTable("timing.csv", Timing._fields, _timing)
ABSENCES = RunTable("absences.csv", Absence._fields, _absence, seldom=True)
PRIVACY = RunTable("privacy.csv", PrivacyCharge._fields, _privacy_charge, seldom=True)
TABLES: tuple[RunTable[Any], ...] = (METRICS, LEDGER, TIMING, ABSENCES, PRIVACY)


class Writer:
    """Writes the files of a run: tables that grow, and others that are written once.

    `files` are their lengths and checksums so far, by name, for checkpoints and the summary.
    """

    def __init__(self, folder: Path, messages: str = "") -> None:
        self._folder = folder
        self._messages = messages
        """The name of the file of recorded messages, which grows as the tables do; empty if there
        is none.
        """
        self.files: dict[str, Checksum] = {}

    def create(self) -> None:
        """Create all tables but those that are seldom needed, and the file of recorded messages."""
        for table in TABLES:
            if not table.seldom:
                self._begin(table)
        if self._messages:
            self._write(self._messages, b"")

    def _begin(self, table: RunTable[Any]) -> None:
        self._write(table.name, (",".join(table.columns) + "\n").encode())

    def _write(self, name: str, blob: bytes) -> None:
        path = self._folder / name
        if path.parent != self._folder:
            make_folder(path.parent)
        with create_file(path) as file:
            file.write(blob)
        self.files[name] = Checksum.of(blob)

    def resume(self, files: Mapping[str, Checksum]) -> None:
        """Cut files back to a checkpoint. All files are checked before any is cut."""
        growing = {table.name for table in TABLES} | {self._messages}
        for name, checksum in files.items():
            self.files[name] = checksum.check_beginning(self._folder / name)
        for name in growing & files.keys():
            path = self._folder / name
            try:
                with open_to_update(path) as file:
                    file.truncate(files[name].length)
            except OSError as why:
                raise ComityError(f"{path} cannot be continued ({why.strerror}).") from why
        for table in TABLES:
            # It had no rows yet, or an earlier version did not have this table.
            if table.name not in files:
                (self._folder / table.name).unlink(missing_ok=True)
                if not table.seldom:
                    self._begin(table)

    def add(self, table: RunTable[Any], rows: Iterable[Sequence[Any]]) -> None:
        """Append rows in one write."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        if table.name not in self.files:
            if not text.getvalue():
                return
            self._begin(table)
        self.append(table.name, text.getvalue().encode())

    def append(self, name: str, blob: bytes) -> None:
        """Append to a file in one write."""
        with open_to_append(self._folder / name) as file:
            file.write(blob)
        self.files[name] = self.files[name].and_then(blob)

    def record_message(self, blob: bytes) -> None:
        """Append to the file of recorded messages."""
        self.append(self._messages, blob)

    def rows(self, table: RunTable[R]) -> list[R]:
        """The rows of a table so far."""
        return table.read(self._folder) if table.name in self.files else []

    def note(self, name: str) -> None:
        """Record the checksum of a file that was just written."""
        self.files[name] = Checksum.of((self._folder / name).read_bytes())


class Growing(Generic[R]):
    """A table that another process writes: each `look` passes its new complete rows to `take`, and
    skips invalid lines.

    If the file was cut or replaced, `forget` is called and the whole file is read again.
    """

    def __init__(
        self,
        table: RunTable[R],
        folder: Path,
        take: Callable[[R], None],
        forget: Callable[[], None],
    ) -> None:
        self._table = table
        self._path = folder / table.name
        self._take = take
        self._forget = forget
        self._position = 0
        self._last = b""

    def look(self) -> None:
        """Read new rows."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position - len(self._last))
                if file.read(len(self._last)) != self._last:
                    self._restart()
                    file.seek(0)
                for lines in self._complete_lines(file):
                    self._pass_on(lines)
        except OSError:
            self._restart()

    def _restart(self) -> None:
        if self._position:
            self._forget()
        self._position = 0
        self._last = b""

    def _complete_lines(self, file: BinaryIO) -> Iterator[bytes]:
        """The new lines in blocks, without a last one that is incomplete."""
        rest = b""
        while block := file.read(BLOCK):
            lines, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                self._position += len(lines) + 1
                self._last = (self._last + lines + newline)[-REMEMBERED:]
                yield lines

    def _pass_on(self, lines: bytes) -> None:
        with contextlib.suppress(csv.Error):
            for cells in csv.reader(lines.decode("utf-8", "replace").split("\n")):
                with contextlib.suppress(ValueError):  # the header, or a damaged line
                    self._take(self._table.row(cells))
