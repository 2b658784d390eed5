"""The papers' tables as data: one TOML file a table or figure, with the setting, the methods and
the printed numbers.

A run's settings are the table's, then its column's, then its row's; the scale's come last, in the
same order.
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

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from comity.errors import ComityError, unknown

HERE = Path(__file__).parent
Scale = Literal["smoke", "reduced", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "reduced", "full")
Settings = dict[str, Any]


class _Entry(BaseModel):
    """A column or row: its name in files and on the command line, its title for people, and its
    part of the runs' settings.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    settings: Settings = Field(default_factory=dict)
    reduced: Settings = Field(default_factory=dict)
    smoke: Settings = Field(default_factory=dict)

    def at(self, scale: Scale) -> Settings:
        """What replaces the settings at a scale; nothing at the paper's own, full."""
        return {"full": {}, "reduced": self.reduced, "smoke": self.smoke}[scale]


class Column(_Entry):
    """A column of a paper's table: what is measured, and on which run."""

    measure: str
    run: str = ""
    """Columns of one run share it: they only measure different things."""

    @property
    def runs(self) -> str:
        """The name of its run: its own name, unless it shares another column's."""
        return self.run or self.name


class Grid(BaseModel):
    """Columns that differ in a few values only, written once: one column for each combination of
    the axes' values.

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
        """All of them, the last axis' values changing fastest; a setting that is an axis alone
        keeps its kind.
        """
        made = []
        for values in itertools.product(*self.axes.values()):
            at = dict(zip(self.axes, values, strict=True))
            settings = {name: _filled(value, at) for name, value in self.settings.items()}
            made.append(
                Column(
                    name=_put(self.name, at),
                    title=_put(self.title, at),
                    measure=self.measure,
                    settings=settings,
                )
            )
        return made


def _filled(value: Any, at: Mapping[str, Any]) -> Any:
    if not isinstance(value, str):
        return value
    alone = value.removeprefix("{").removesuffix("}")
    return at[alone] if value == f"{{{alone}}}" and alone in at else _put(value, at)


def _put(text: str, at: Mapping[str, Any]) -> str:
    for axis, value in at.items():
        text = text.replace(f"{{{axis}}}", str(value))
    if left := re.search(r"\{\w+\}", text):
        raise ValueError(f"{left[0]} is no axis of the grid: {', '.join(at)}")
    return text


class MethodRow(_Entry):
    """A row of a paper's table: a method, and what the paper prints for it by column; a pair is a
    mean and its deviation.
    """

    algorithm: str
    best_of: tuple[str, ...] = ()
    """Rows of the same table, one of which this row stands for: for each seed the one that is best
    on validation samples.
    """
    paper: dict[str, float | tuple[float, float]] = Field(default_factory=dict)

    def printed(self, column: str) -> tuple[float | None, float | None]:
        """The paper's figure and standard deviation, as far as it gives them."""
        given = self.paper.get(column)
        return given if isinstance(given, tuple) else (given, None)


class Table(BaseModel):
    """A table of a paper: its setting, its columns and rows, and the printed numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    source: str
    trials: int = 1
    notes: str = ""
    claims: tuple[str, ...] = ()
    headlines: dict[str, str] = Field(default_factory=dict)
    """Of these claims the few that the paper stands for, each with a sentence for people."""
    findings: str = ""
    """What we make of what came out; the last words on the table's page."""
    settings: Settings = Field(default_factory=dict)
    reduced: Settings = Field(default_factory=dict)
    smoke: Settings = Field(default_factory=dict)
    grids: tuple[Grid, ...] = ()
    columns: tuple[Column, ...]
    """Those that are written out, then the grids'."""
    rows: tuple[MethodRow, ...]

    @model_validator(mode="after")
    def _candidates_are_runs(self) -> Table:
        """A row that is the best of others names at least two, which are runs themselves."""
        runs = {row.name for row in self.rows if not row.best_of}
        for row in self.rows:
            if row.best_of and not (len(row.best_of) > 1 and runs.issuperset(row.best_of)):
                raise ValueError(
                    f"best_of of {row.name} must name two or more other rows that are runs"
                    " themselves"
                )
        return self

    @model_validator(mode="after")
    def _headlines_are_claims(self) -> Table:
        """What the paper stands for is among its claims."""
        if other := next((claim for claim in self.headlines if claim not in self.claims), None):
            raise ValueError(f"the headline {other} is none of the claims")
        return self

    @model_validator(mode="before")
    @classmethod
    def _with_grids(cls, given: Any) -> Any:
        """The grids' columns beside the others; no name twice, as runs' folders are called so."""
        if not isinstance(given, dict) or "grids" not in given:
            return given
        grids = [Grid.model_validate(grid) for grid in given["grids"]]
        columns = [Column.model_validate(column) for column in given.get("columns", ())]
        columns += [column for grid in grids for column in grid.columns()]
        names = [column.name for column in columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two columns are called {twice}")
        return given | {"grids": grids, "columns": columns}

    def at(self, scale: Scale) -> Settings:
        """What replaces the settings at a scale; `seeds`, `columns` and `rows` are about the table
        itself.
        """
        return {"full": {}, "reduced": self.reduced, "smoke": self.smoke}[scale]

    def seeds(self, scale: Scale) -> int:
        """Under how many seeds each method is run."""
        many: int = self.at(scale).get("seeds", self.trials)
        return many

    def chosen(self, scale: Scale) -> tuple[list[Column], list[MethodRow]]:
        """The columns and rows of a scale."""
        asked = self.at(scale)
        columns = [c for c in self.columns if c.name in asked.get("columns", [c.name])]
        return columns, [r for r in self.rows if r.name in asked.get("rows", [r.name])]

    def with_candidates(self, rows: Sequence[MethodRow]) -> list[MethodRow]:
        """Some rows and those that the best is chosen of, in the table's order."""
        wanted = {name for row in rows for name in (row.name, *row.best_of)}
        return [row for row in self.rows if row.name in wanted]

    def run_settings(self, run: str, row: MethodRow, scale: Scale) -> Settings:
        """The settings of one run of a row."""
        mine = [c for c in self.columns if c.runs == run]
        layers: list[Mapping[str, Any]] = [self.settings, *(c.settings for c in mine), row.settings]
        layers += [self.at(scale), *(c.at(scale) for c in mine), row.at(scale)]
        made = {
            name: value
            for layer in layers
            for name, value in layer.items()
            if name not in ("seeds", "columns", "rows")
        }
        return made | {"algorithm": row.algorithm}


@dataclass(frozen=True)
class Claim:
    """An ordering that a paper asserts: `better` above `worse`, in every column or in one."""

    text: str

    @cached_property
    def parts(self) -> tuple[str, str, str]:
        """The better row, the worse row, and the column ("" for all)."""
        order, _, column = self.text.partition("@")
        better, _, worse = order.partition(">")
        return better.strip(), worse.strip(), column.strip()

    def covers(self, order: str, column: str) -> bool:
        """Whether "better > worse" in that column is a part of it."""
        better, worse, only = self.parts
        return order == f"{better} > {worse}" and only in ("", column)


def names() -> list[str]:
    """All papers' tables by name, as in dbe/table5."""
    found = sorted(
        HERE.glob("*/*.toml"),
        key=lambda p: (p.parent.name, p.stem.rstrip("0123456789abc"), _number(p.stem), p.stem),
    )
    return [f"{path.parent.name}/{path.stem}" for path in found]


def _number(stem: str) -> int:
    return int("".join(c for c in stem if c.isdigit()) or 0)


def table(name: str) -> Table:
    """A table by its name, or by the path of a TOML file of a user's own."""
    path = Path(name) if name.endswith(".toml") else HERE / f"{name}.toml"
    if not name.endswith(".toml") and name not in names():
        raise unknown("experiment", name, names())
    try:
        return Table.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
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
    """What `comity list experiments` shows."""
    rows: list[dict[str, object]] = []
    for name in names():
        made = table(name)
        rows.append(
            {
                "name": name,
                "rows": len(made.rows),
                "columns": len(made.columns),
                "description": made.title,
                "source": made.source,
            }
        )
    return rows
