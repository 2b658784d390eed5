"""What came of a paper's table, small enough to keep: all figures of all seeds, with the settings,
the code and the cost.

Run folders are large. What the pages in `docs/results` are made of is a file a table,
`result.json`, which a reproduction leaves beside its runs; from it and from the paper's table alone
a page can be written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comity import papers
from comity.checksums import with_crc, without_crc
from comity.errors import ComityError, CorruptedFile
from comity.papers import Scale, Table
from comity.papers.cells import Cell, Figure
from comity.runs.checkpoint import write_atomically

RESULT = "result.json"


@dataclass(frozen=True)
class Reproduction:
    """A paper's table as it was run."""

    name: str
    """As in dbe/table9."""
    scale: Scale
    command: str
    code: str
    """The commits that its runs were made with."""
    seconds: float
    """Of all runs together, by the clock."""
    memory: int
    """The most that one of its processes took, in bytes."""
    changes: Mapping[str, Any]
    """Settings of whoever ran it, in place of the table's."""
    settings: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """By the runs' names and by row."""
    cells: Sequence[Cell]
    warning: str = ""
    """Where it was put together of parts: how far those agree."""

    @property
    def table(self) -> Table:
        """The paper's table."""
        return papers.table(self.name)

    @property
    def origin(self) -> str:
        """What it was made by, for a page."""
        return f"`{self.command}`, run at {self.code}. {self.warning}".rstrip()

    @property
    def seeds(self) -> list[int]:
        """All that were used."""
        return sorted({seed for cell in self.cells for seed in cell.figures})

    @property
    def as_printed(self) -> bool:
        """Whether its setting is the paper's own, as far as that is known."""
        return not self._differing("full", {})

    def stale(self) -> list[str]:
        """The runs whose settings in the table's file are no longer what they were run with."""
        return self._differing(self.scale, self.changes)

    def _differing(self, scale: Scale, changes: Mapping[str, Any]) -> list[str]:
        """The runs whose settings are not those of the table at a scale; how often they were
        evaluated does not matter.
        """
        table = self.table
        rows = {row.name: row for row in table.rows}
        known = {column.runs for column in table.columns}
        found = []
        for run, mine in self.settings.items():
            for row, settings in mine.items():
                asked = (
                    {**table.run_settings(run, rows[row], scale), **changes}
                    if row in rows and run in known
                    else {}
                )
                if _plain({**asked, "eval_every": 0}) != _plain({**settings, "eval_every": 0}):
                    found.append(f"{run}, {row}")
        return found

    def write(self, path: Path) -> None:
        """Keep it as a file."""
        plain = {name: value for name, value in self.__dict__.items() if name != "cells"}
        plain["cells"] = [
            {
                "column": cell.column.name,
                "row": cell.row.name,
                "why": cell.why,
                "figures": {seed: _shortened(figure) for seed, figure in cell.figures.items()},
            }
            for cell in self.cells
        ]
        write_atomically(
            path, json.dumps(with_crc(_plain(plain)), indent=None, separators=(",", ":")) + "\n"
        )


def read(path: Path) -> Reproduction:
    """A reproduction from its file."""
    try:
        plain = without_crc(json.loads(path.read_text(encoding="utf-8")))
    except OSError as why:
        raise ComityError(f"{path} cannot be read ({why.strerror}).") from why
    except ValueError as why:
        raise CorruptedFile(f"{path} is damaged: {why}.") from why
    table = papers.table(plain["name"])
    columns = {column.name: column for column in table.columns}
    rows = {row.name: row for row in table.rows}
    try:
        cells = [
            Cell(
                columns[cell["column"]],
                rows[cell["row"]],
                {int(seed): _figure(figure) for seed, figure in cell["figures"].items()},
                cell["why"],
            )
            for cell in plain["cells"]
        ]
    except KeyError as why:
        raise ComityError(
            f"{path} has a row or column {why} that {plain['name']} no longer has: run it again."
        ) from why
    about = ("name", "scale", "command", "code", "seconds", "memory", "changes", "settings")
    return Reproduction(
        **{name: plain[name] for name in about},
        cells=cells,
        warning=plain.get("warning", plain.get("remark", "")),
    )


def _plain(value: Any) -> Any:
    """As JSON has it: names are texts, tuples are lists."""
    return json.loads(json.dumps(value))


def _shortened(figure: Figure) -> dict[str, Any]:
    """A figure with as many digits as anybody reads."""
    made = asdict(figure)
    made["curve"] = {t: round(value, 3) for t, value in figure.curve.items()}
    made["loss"] = {t: round(value, 4) for t, value in figure.loss.items()}
    made["seconds"] = round(figure.seconds, 1)
    return made


def _figure(plain: Mapping[str, Any]) -> Figure:
    def line(name: str) -> dict[int, float]:
        return {int(t): value for t, value in plain[name].items()}

    return Figure(**{**plain, "curve": line("curve"), "loss": line("loss")})
