"""The result of a reproduced table: all figures of all seeds, with the settings, the code and the
cost.

Run folders are large. The pages in `docs/results` are generated from one small file per table,
`result.json`, which a reproduction writes beside its runs, and from the paper's table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comity import papers
from comity.checksums import read_json, with_crc
from comity.errors import ComityError
from comity.papers import PaperTable, Scale
from comity.papers.cells import Cell, Figure
from comity.safe_files import write_atomically

RESULT = "result.json"


@dataclass(frozen=True)
class Reproduction:
    """A reproduced table of a paper."""

    name: str
    """The name of the table, as in dbe/table9."""
    scale: Scale
    command: str
    code: str
    """The commits that the runs were made with."""
    seconds: float
    """The total wall-clock time of all runs."""
    memory: int
    """The peak memory of one run, in bytes."""
    changes: Mapping[str, Any]
    """Settings of the user, which override those of the table."""
    settings: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """The settings, by the names of run and row."""
    cells: Sequence[Cell]
    processors: str = ""
    """The processors that the runs were made on; empty in files of earlier versions."""
    warning: str = ""
    """For a table that was joined from parts: how far these agree."""

    @property
    def table(self) -> PaperTable:
        """The paper's table."""
        return papers.table(self.name)

    @property
    def origin(self) -> str:
        """The command and the code of the runs, as text for a page."""
        on = f" on {self.processors}" if self.processors else ""
        return f"`{self.command}`, run at {self.code}{on}. {self.warning}".rstrip()

    @property
    def seeds(self) -> list[int]:
        """All seeds."""
        return sorted({seed for cell in self.cells for seed in cell.figures})

    @property
    def as_printed(self) -> bool:
        """Whether the runs have the settings of the full scale.

        These are the paper's, except for the constants that the table marks with `differs`.
        """
        return not self._differing("full", {})

    def changed(self) -> list[str]:
        """Return the names of the settings that are not those of the full scale in some run."""
        rows = {row.name: row for row in self.table.rows}
        names: dict[str, None] = {}
        for run, by_row in self.settings.items():
            for row, settings in by_row.items():
                if row not in rows:
                    continue
                full = _plain(self.table.run_settings(run, rows[row], "full"))
                own = _plain(settings)
                names |= dict.fromkeys(
                    name for name in {**full, **own} if full.get(name) != own.get(name)
                )
        return [name for name in names if name not in papers.NO_CONSTANTS]

    def stale(self) -> list[str]:
        """Return the runs whose settings in the table's file have changed since they ran."""
        return self._differing(self.scale, self.changes)

    def _differing(self, scale: Scale, changes: Mapping[str, Any]) -> list[str]:
        """Return the runs whose settings differ from those of the table at a scale.

        The frequency of evaluation is ignored.
        """
        table = self.table
        rows = {row.name: row for row in table.rows}
        run_names = {column.runs for column in table.columns}
        differing = []
        for run, by_row in self.settings.items():
            for row, settings in by_row.items():
                expected = (
                    {**table.run_settings(run, rows[row], scale), **changes}
                    if row in rows and run in run_names
                    else {}
                )
                if _plain({**expected, "eval_every": 0}) != _plain({**settings, "eval_every": 0}):
                    differing.append(f"{run}, {row}")
        return differing

    def write(self, path: Path) -> None:
        """Write it to a file."""
        plain = {
            name: value for name, value in vars(self).items() if name not in ("cells", "warning")
        }
        plain["remark"] = self.warning  # the name of the field in the file
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
    """Read a reproduction from its file.

    Raises ComityError if the file cannot be read, or does not fit the paper's table.
    """
    try:
        plain = read_json(path)
    except OSError as why:
        raise ComityError(f"{path} cannot be read ({why.strerror}).") from why
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
        processors=plain.get("processors", ""),
        warning=plain.get("warning", plain.get("remark", "")),
    )


def _plain(value: Any) -> Any:
    """Convert to the types of JSON: keys become texts, tuples become lists."""
    return json.loads(json.dumps(value))


def _shortened(figure: Figure) -> dict[str, Any]:
    """Return a figure as a dict, with rounded values."""
    plain = asdict(figure)
    plain["curve"] = {t: round(value, 3) for t, value in figure.curve.items()}
    plain["loss"] = {t: round(value, 4) for t, value in figure.loss.items()}
    plain["seconds"] = round(figure.seconds, 1)
    for name in ("steps", "server_steps"):
        if plain[name] is None:
            del plain[name]  # files from before steps were counted stay as they are
    return plain


def _figure(plain: Mapping[str, Any]) -> Figure:
    def line(name: str) -> dict[int, float]:
        return {int(t): value for t, value in plain[name].items()}

    return Figure(**{**plain, "curve": line("curve"), "loss": line("loss")})
