"""The papers' tables as data: one TOML file per table or figure, with the setting, the methods and
the printed numbers.

The settings of a run are those of the table, overridden by those of its column and of its row. The
settings of the scale override them, in the same order.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from comity.errors import ComityError, unknown
from comity.runs.config import relative_to
from comity.spec import parse, split

HERE = Path(__file__).parent
Scale = Literal["smoke", "reduced", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "reduced", "full")
Settings = dict[str, Any]
Kind = Literal["stated", "chosen", "differs"]
"""Where a constant comes from: the paper, us, or us against the paper."""
KINDS: tuple[Kind, ...] = ("stated", "chosen", "differs")
BASIC = ("data", "partition", "test", "model", "rounds", "epochs", "batch", "optimizer", "lr")
"""Settings that every run has, so that they are marked even where a file leaves the default."""
NO_CONSTANTS = ("eval_every", "engine", "workers")
"""Settings that do not change what is learned."""


class _Entry(BaseModel):
    """A column or row: its name in files and commands, its title on pages, and its settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    settings: Settings = Field(default_factory=dict)
    reduced: Settings = Field(default_factory=dict)
    smoke: Settings = Field(default_factory=dict)

    def at(self, scale: Scale) -> Settings:
        """Return the settings that a scale overrides; none at the scale of the paper, full."""
        return {"full": {}, "reduced": self.reduced, "smoke": self.smoke}[scale]


class Column(_Entry):
    """A column of a paper's table: its measure, and the run that it is measured on."""

    measure: str
    run: str = ""
    """The name of the run, for columns with different measures of the same run."""
    derived: bool = False
    """Whether its printed figures are computed from those of other columns: the paper does not
    print them.
    """

    @property
    def runs(self) -> str:
        """The name of its run; by default, the name of the column."""
        return self.run or self.name


class Grid(BaseModel):
    """Columns that differ in a few values only: one for each combination of the axes' values.

    `{axis}` in a name, a title or a setting stands for the axis' value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    measure: str
    axes: dict[str, Annotated[tuple[str | int | float, ...], Field(min_length=1)]] = Field(
        min_length=1
    )
    settings: Settings = Field(default_factory=dict)

    def columns(self) -> list[Column]:
        """Return the columns; the values of the last axis change fastest.

        A setting that is `{axis}` and nothing else gets the value with its type.
        """
        columns = []
        for values in itertools.product(*self.axes.values()):
            at = dict(zip(self.axes, values, strict=True))
            settings = {name: _fill(value, at) for name, value in self.settings.items()}
            columns.append(
                Column(
                    name=_fill_in(self.name, at),
                    title=_fill_in(self.title, at),
                    measure=self.measure,
                    settings=settings,
                )
            )
        return columns


def _fill(value: Any, at: Mapping[str, Any]) -> Any:
    if not isinstance(value, str):
        return value
    axis = value.removeprefix("{").removesuffix("}")
    return at[axis] if value == f"{{{axis}}}" and axis in at else _fill_in(value, at)


def _fill_in(text: str, at: Mapping[str, Any]) -> str:
    for axis, value in at.items():
        text = text.replace(f"{{{axis}}}", str(value))
    if unknown_axis := re.search(r"\{\w+\}", text):
        raise ValueError(f"{unknown_axis[0]} is no axis of the grid: {', '.join(at)}")
    return text


class MethodRow(_Entry):
    """A row of a paper's table: a method, and the printed figures by column.

    A pair is a mean and its standard deviation.
    """

    algorithm: str
    best_of: tuple[str, ...] = ()
    """Rows of the same table. For each seed, this row stands for the best of them on validation
    samples.
    """
    paper: dict[str, float | tuple[float, float]] = Field(default_factory=dict)
    repeats: str = ""
    """The table of the same paper that these figures are printed in, if it is not this one."""

    @property
    def constants(self) -> list[str]:
        """The names of the row's own settings, and of its method's options, as in fed-sps.alpha."""
        specs = [parse(part) for part in split(self.algorithm, "+")]
        options = [f"{spec.name}.{option}" for spec in specs for option in spec.options]
        options += [
            name if "." in name else f"{specs[0].name}.{name}"
            for name in self.settings.get("set", ())
        ]
        return [*(name for name in self.settings if name != "set"), *options]

    def printed(self, column: str) -> tuple[float | None, float | None]:
        """Return the printed figure and its standard deviation; None where there is none."""
        figure = self.paper.get(column)
        return figure if isinstance(figure, tuple) else (figure, None)


class Copied(BaseModel):
    """Printed figures that the paper has taken from another paper."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    """The other paper."""
    where: str
    """Where the paper says so."""
    rows: tuple[str, ...] = Field(min_length=1)
    columns: tuple[str, ...] = ()
    """Empty for all columns."""

    def covers(self, row: str, column: str) -> bool:
        """Return whether the figure of a row in a column is copied."""
        return row in self.rows and (not self.columns or column in self.columns)


class PaperTable(BaseModel):
    """A table of a paper: its setting, its columns and rows, and the printed numbers.

    `stated`, `chosen` and `differs` say of each constant where it comes from. A constant is a
    setting, as in `lr`, or an option of a method, as in `fed-sps.alpha`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    source: str
    trials: int = 1
    notes: str = ""
    claims: tuple[str, ...] = ()
    headlines: dict[str, str] = Field(default_factory=dict)
    """The main claims of the paper, each with a sentence that explains it."""
    findings: str = ""
    """Our interpretation of the result, at the end of the table's page."""
    settings: Settings = Field(default_factory=dict)
    stated: dict[str, str] = Field(default_factory=dict)
    """Constants that the paper states, each with the place."""
    chosen: dict[str, str] = Field(default_factory=dict)
    """Constants that the paper leaves open, each with the reason for our choice."""
    differs: dict[str, str] = Field(default_factory=dict)
    """Constants that the paper states otherwise, each with its value or the reason for ours."""
    copied: tuple[Copied, ...] = ()
    reduced: Settings = Field(default_factory=dict)
    smoke: Settings = Field(default_factory=dict)
    grids: tuple[Grid, ...] = ()
    columns: tuple[Column, ...]
    """The explicit columns, followed by those of the grids."""
    rows: tuple[MethodRow, ...]
    _folder: Path = PrivateAttr(default=Path())
    """The folder of the table's file, which paths in the table are relative to."""

    @model_validator(mode="after")
    def _candidates_are_runs(self) -> PaperTable:
        """Check that `best_of` names at least two rows without `best_of`."""
        runs = {row.name for row in self.rows if not row.best_of}
        for row in self.rows:
            if row.best_of and not (len(row.best_of) > 1 and runs.issuperset(row.best_of)):
                raise ValueError(
                    f"best_of of {row.name} must name two or more other rows that are runs"
                    " themselves"
                )
        return self

    @model_validator(mode="after")
    def _headlines_are_claims(self) -> PaperTable:
        """Check that the headlines are claims."""
        if other := next((claim for claim in self.headlines if claim not in self.claims), None):
            raise ValueError(f"the headline {other} is none of the claims")
        return self

    @model_validator(mode="after")
    def _constants_are_marked(self) -> PaperTable:
        """Check that each constant is marked once; a table without printed figures needs none."""
        marks = [name for kind in KINDS for name in getattr(self, kind)]
        if twice := next((name for name in marks if marks.count(name) > 1), None):
            raise ValueError(f"the constant {twice} is marked twice")
        if not marks and not any(row.paper for row in self.rows):
            return self
        if missing := [name for name in self.constants if name not in marks]:
            raise ValueError(
                f"nothing says where {', '.join(missing)} {'come' if missing[1:] else 'comes'}"
                " from: write it under [stated], with the place in the paper, under [chosen], with"
                " the reason, or under [differs], with what the paper states"
            )
        return self

    @model_validator(mode="after")
    def _copied_cells_exist(self) -> PaperTable:
        """Check that `copied` names rows and columns of the table."""
        existing = {entry.name for entry in (*self.rows, *self.columns)}
        for copied in self.copied:
            if other := next(
                (name for name in (*copied.rows, *copied.columns) if name not in existing), None
            ):
                raise ValueError(f"copied names {other}, which is neither a row nor a column")
        return self

    @model_validator(mode="before")
    @classmethod
    def _with_grids(cls, values: Any) -> Any:
        """Add the columns of the grids; names must be unique, as they are folder names."""
        if not isinstance(values, dict) or "grids" not in values:
            return values
        grids = [Grid.model_validate(grid) for grid in values["grids"]]
        columns = [Column.model_validate(column) for column in values.get("columns", ())]
        columns += [column for grid in grids for column in grid.columns()]
        names = [column.name for column in columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two columns are called {twice}")
        return values | {"grids": grids, "columns": columns}

    @property
    def constants(self) -> tuple[str, ...]:
        """The names of all constants of the full scale: settings, and options of methods.

        Options that a column sets (`set`) have the name that they have there.
        """
        names = dict.fromkeys(BASIC)
        for settings in (self.settings, *(column.settings for column in self.columns)):
            names |= dict.fromkeys(_constants(settings))
        for row in self.rows:
            names |= dict.fromkeys(row.constants)
        if "steps" in names:
            names.pop("epochs")
        return tuple(name for name in names if name not in NO_CONSTANTS)

    def constants_of(self, kind: Kind, rows: Sequence[MethodRow]) -> list[str]:
        """Return the constants of a kind that concern some rows: all settings, since a row has the
        default of what it does not set, and the options of its methods, except those that only
        other rows set.
        """
        rows = self.with_candidates(rows)
        methods = {parse(part).name for row in rows for part in split(row.algorithm, "+")}
        others = {name for row in self.rows for name in row.constants}
        others -= {name for row in rows for name in row.constants}

        def concerns(name: str) -> bool:
            method, dot, _ = name.rpartition(".")
            return not dot or (method in methods and name not in others)

        return [name for name in getattr(self, kind) if concerns(name)]

    def source_of(self, row: str, column: str) -> Copied | None:
        """Return the paper that a printed figure was copied from; None if it was not."""
        return next((copied for copied in self.copied if copied.covers(row, column)), None)

    def at(self, scale: Scale) -> Settings:
        """Return the settings that a scale overrides.

        Their entries `seeds`, `columns` and `rows` concern the table, not the runs.
        """
        return {"full": {}, "reduced": self.reduced, "smoke": self.smoke}[scale]

    def seeds(self, scale: Scale) -> int:
        """Return the number of seeds of each method."""
        count: int = self.at(scale).get("seeds", self.trials)
        return count

    def select(self, scale: Scale) -> tuple[list[Column], list[MethodRow]]:
        """Return the columns and rows of a scale."""
        overrides = self.at(scale)
        columns = [c for c in self.columns if c.name in overrides.get("columns", [c.name])]
        return columns, [r for r in self.rows if r.name in overrides.get("rows", [r.name])]

    def with_candidates(self, rows: Sequence[MethodRow]) -> list[MethodRow]:
        """Return rows and the candidates of their `best_of`, in the order of the table."""
        names = {name for row in rows for name in (row.name, *row.best_of)}
        return [row for row in self.rows if row.name in names]

    def run_settings(self, run: str, row: MethodRow, scale: Scale) -> Settings:
        """Return the settings of one run of a row."""
        columns = [c for c in self.columns if c.runs == run]
        layers: list[Mapping[str, Any]] = [self.settings, *(c.settings for c in columns)]
        layers += [row.settings, self.at(scale), *(c.at(scale) for c in columns), row.at(scale)]
        settings = {
            name: value
            for layer in layers
            for name, value in layer.items()
            if name not in ("seeds", "columns", "rows")
        }
        return relative_to(self._folder, settings | {"algorithm": row.algorithm})


def _constants(settings: Settings) -> list[str]:
    """Return the names of settings, with those of the options that they set."""
    return [*(name for name in settings if name != "set"), *settings.get("set", ())]


@dataclass(frozen=True)
class Claim:
    """An ordering that a paper claims: a better and a worse row, in every column or in one."""

    text: str

    @cached_property
    def parts(self) -> tuple[str, str, str]:
        """The better row, the worse row, and the column ("" for all)."""
        order, _, column = self.text.partition("@")
        better, _, worse = order.partition(">")
        return better.strip(), worse.strip(), column.strip()

    def covers(self, order: str, column: str) -> bool:
        """Return whether the claim includes "better > worse" in that column."""
        better, worse, only = self.parts
        return order == f"{better} > {worse}" and only in ("", column)


def names() -> list[str]:
    """Return the names of all tables, as in dbe/table5."""
    paths = sorted(
        HERE.glob("*/*.toml"),
        key=lambda p: (p.parent.name, p.stem.rstrip("0123456789abc"), _number(p.stem), p.stem),
    )
    return [f"{path.parent.name}/{path.stem}" for path in paths]


def _number(stem: str) -> int:
    return int("".join(c for c in stem if c.isdigit()) or 0)


def table(name: str) -> PaperTable:
    """Return a table by its name, or by the path of a user's TOML file.

    Raises UsageError if the name is unknown, and ComityError if the file is not valid.
    """
    path = Path(name) if name.endswith(".toml") else HERE / f"{name}.toml"
    if not name.endswith(".toml") and name not in names():
        raise unknown("experiment", name, names())
    try:
        content = PaperTable.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        content._folder = path.parent
        return content
    except (OSError, UnicodeDecodeError) as why:
        raise ComityError(f"{path} cannot be read.") from why
    except tomllib.TOMLDecodeError as why:
        raise ComityError(f"{path} is not valid TOML: {why}.") from why
    except ValidationError as why:
        first = why.errors()[0]
        raise ComityError(
            f"{path} is not a paper's table: {'.'.join(map(str, first['loc']))}: {first['msg']}."
        ) from why


def catalogue() -> list[dict[str, object]]:
    """Return the rows that `comity list experiments` prints."""
    rows: list[dict[str, object]] = []
    for name in names():
        paper_table = table(name)
        rows.append(
            {
                "name": name,
                "rows": len(paper_table.rows),
                "columns": len(paper_table.columns),
                "description": paper_table.title,
                "source": paper_table.source,
            }
        )
    return rows
