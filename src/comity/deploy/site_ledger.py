"""Tables of a site that only grow, and that no run can forget.

They lie in the site's folder and not in the folder of a run, so that deleting a run gives no budget
back. Rows are synced when they are written. Processes of concurrent runs take turns by a lock. Each
row carries a code that depends on all rows before it and on the site's secret, so that a row cannot
be changed or removed unnoticed. Only rows at the very end can be cut off without a trace: whoever
can write to the site's folder is trusted.
"""

from __future__ import annotations

import csv
import hmac
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from comity.deploy.file_lock import lock_file
from comity.deploy.site_store import secret_of
from comity.errors import CorruptedFile
from comity.safe_files import NO_LINK, flush_to_disk

Row = TypeVar("Row")
CODE = 16  # hexadecimal digits of a row's code


class SiteLedger(ABC, Generic[Row]):
    """A table in a site's folder."""

    file: ClassVar[str]
    """Its name."""
    columns: ClassVar[tuple[str, ...]]
    """The names of its columns, without the code."""
    content: ClassVar[str]
    """What is not known if the file is damaged, for error messages."""
    first_code: ClassVar[str] = ""
    """What the code of the first row depends on, so that rows of one table fit no other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / self.file
        self._read = 0  # bytes of the file that are counted
        self._code = self.first_code

    @abstractmethod
    def _earlier(self) -> Sequence[Row]:
        """What earlier versions of Comity wrote in the folders of runs."""

    @abstractmethod
    def _cells(self, row: Row) -> Sequence[object]:
        """A row as cells."""

    @abstractmethod
    def _row(self, cells: Sequence[str]) -> Row:
        """A row from its cells."""

    @abstractmethod
    def _count(self, rows: Sequence[Row]) -> None:
        """Add rows to what is kept in memory."""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the table's lock, with all rows of other processes counted."""
        if not self._path.exists():
            self._begin()
        with self._path.open("rb") as file:
            lock_file(file)
            if file.seek(0, os.SEEK_END) < self._read:
                raise self._damaged()
            file.seek(self._read)
            self._read_on(file.read())
            yield

    def _begin(self) -> None:
        """Begin the table with what earlier versions of Comity wrote."""
        fresh = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINK, 0o600)
        with os.fdopen(fresh, "ab") as file:
            lock_file(file)
            if os.fstat(file.fileno()).st_size:
                return  # another process was faster
            lines, _ = self._lines(self._earlier(), self.first_code)
            file.write(self._head.encode() + lines)
            file.flush()
            os.fsync(file.fileno())
        flush_to_disk(self._folder)  # the file's name

    def _append(self, rows: Sequence[Row]) -> None:
        """Write rows; they are on the disk when this returns. The lock must be held."""
        if not rows:
            return
        lines, code = self._lines(rows, self._code)
        with os.fdopen(os.open(self._path, os.O_RDWR | os.O_APPEND | NO_LINK), "r+b") as file:
            file.truncate(self._read)  # a row that a kill has cut off was never answered
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self._count(rows)
        self._read += len(lines)
        self._code = code

    @property
    def _head(self) -> str:
        return _line((*self.columns, "code"))

    def _lines(self, rows: Sequence[Row], code: str) -> tuple[bytes, str]:
        """Rows as lines, each with its code, and the last code."""
        text = ""
        for row in rows:
            cells = _line(self._cells(row)).rstrip("\n")
            code = self._next_code(code, cells)
            text += f"{cells},{code}\n"
        return text.encode(), code

    def _read_on(self, content: bytes) -> None:
        """Count the rows that were added since the last time."""
        whole = content[: content.rfind(b"\n") + 1]
        rows: list[Row] = []
        code = self._code
        lines = whole.decode(errors="replace").splitlines()
        if not self._read:
            if not lines or lines[0] != self._head.rstrip("\n"):
                raise self._damaged()
            del lines[0]
        for line in lines:
            cells, _, right = line.rpartition(",")
            code = self._next_code(code, cells)
            if not hmac.compare_digest(code, right):
                raise self._damaged()
            rows.append(self._row(next(csv.reader([cells]))))
        self._count(rows)
        self._read += len(whole)
        self._code = code

    def _next_code(self, before: str, cells: str) -> str:
        text = f"{before}\n{cells}".encode()
        return hmac.digest(secret_of(self._folder), text, "sha256").hex()[:CODE]

    def _damaged(self) -> CorruptedFile:
        return CorruptedFile(
            f"The ledger {self._path} is damaged: {self.content} in all is not known."
        )


def _line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
