"""A run's tables (`metrics.csv`, `ledger.csv`, `timing.csv`): they grow by whole rounds and can be cut back."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from comity.core.ledger import Charge
from comity.core.net import Note
from comity.errors import ComityError

COLUMNS = {
    "metrics.csv": Note._fields,
    "ledger.csv": Charge._fields,
    "timing.csv": ("round", "train", "evaluate", "checkpoint", "memory"),
}


class Tables:
    """The open tables of a run."""

    def __init__(self, folder: Path) -> None:
        self._paths = {name: folder / name for name in COLUMNS}
        self.lengths: dict[str, int] = {}

    def create(self) -> None:
        """Begin all tables with their headings."""
        for name, columns in COLUMNS.items():
            text = ",".join(columns) + "\n"
            self._paths[name].write_text(text, encoding="utf-8")
            self.lengths[name] = len(text.encode())

    def cut(self, lengths: dict[str, int]) -> None:
        """Go back to the rows that a checkpoint knows of."""
        for name, path in self._paths.items():
            try:
                if path.stat().st_size < lengths[name]:
                    raise ComityError(f"{path} is shorter than its checkpoint says: it was changed from outside.")
                os.truncate(path, lengths[name])
            except OSError as why:
                raise ComityError(f"{path} cannot be continued ({why.strerror}).") from why
            self.lengths[name] = lengths[name]

    def add(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Append rows in one write."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        blob = text.getvalue().encode()
        with self._paths[name].open("ab") as file:
            file.write(blob)
        self.lengths[name] += len(blob)


def read_metrics(folder: Path) -> list[Note]:
    """All rows of a run's metrics."""
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        return [Note(int(r[0]), r[1], r[2], r[3], float(r[4])) for r in rows]


def read_ledger(folder: Path) -> list[Charge]:
    """All rows of a run's ledger."""
    with (folder / "ledger.csv").open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        return [Charge(int(r[0]), r[1], r[2], r[3], r[4], int(r[5])) for r in rows]
