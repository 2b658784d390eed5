"""Parties' tables: read as they are, brought under one schema, and made numbers of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.data.formats import Table, read_csv, read_parquet, read_xlsx
from comity.data.formats.common import join_names
from comity.data.inspection import far_from_all, missing_by_column
from comity.data.party_files import TABLES, ending_of, one_kind, parties_in
from comity.data.preparation import Schema, Unusable, encode
from comity.data.schema import (
    ColumnOptions,
    apply_options,
    check_named,
    describe,
    label_in,
    labels_by,
    labels_of,
    merge,
)
from comity.errors import UsageError


def read_schema(path: Path) -> Schema:
    """A schema from its file."""
    try:
        return Schema.read(path)
    except Unusable as why:
        raise UsageError(str(why)) from why


def agreed_schema(
    sources: Sequence[Path], *, skip_unlabelled: bool = False, **about_columns: Any
) -> Schema:
    """One schema of parties' tables, in folders or files, and of the schemas that parties made of
    theirs.
    """
    parties: dict[str, Schema] = {}
    files: dict[str, Path] = {}
    for source in sources:
        if source.suffix == ".json":
            parties[source.stem] = read_schema(source)
        else:
            files |= parties_in(source)
    if parties and "label" not in about_columns:
        theirs = next(iter(parties.values())).label
        about_columns["label"] = about_columns.get("rename", {}).get(theirs, theirs)
    options = _as_before(ColumnOptions(**about_columns), parties, about_columns)
    if files and one_kind(files) != TABLES:
        raise UsageError("A schema is for tables: arrays and pictures need none.")
    tables = read_tables(files)
    if skip_unlabelled:
        tables = labelled(tables, options.about_label()).tables
    if len(parties) + len(tables) > 1:
        check_named(
            options,
            _known(parties.values()) | {name for table in tables.values() for name in table.names},
        )
    described = {name: apply_options(schema, options) for name, schema in parties.items()}
    return merge(
        described | {name: describe(table, options) for name, table in tables.items()}, options
    )


def _known(schemas: Iterable[Schema]) -> set[str]:
    """All names of columns in parties' schemas."""
    return {
        name
        for s in schemas
        for name in (s.label, *s.left_out, *(column.name for column in s.columns))
    }


def _as_before(
    options: ColumnOptions, parties: Mapping[str, Schema], said: Mapping[str, Any]
) -> ColumnOptions:
    """What all the schemas that are to become one say alike is not asked again."""
    for name in ("missing", "merge_case", "scale"):
        told = {getattr(schema, name) for schema in parties.values()}
        if name not in said and len(told) == 1 and told != {False}:
            options = replace(options, **{name: told.pop()})
        elif name not in said and len(told) > 1:
            raise UsageError(
                f"The schemas differ in {name}: say which it is to be, with"
                f" --{name.replace('_', '-')}."
            )
    return options


READERS = {".parquet": read_parquet, ".xlsx": read_xlsx}


def read_tables(found: Mapping[str, Path]) -> dict[str, Table]:
    """The parties' tables."""
    return {name: READERS.get(ending_of(path), _csv)(path) for name, path in found.items()}


def _csv(path: Path) -> Table:
    return read_csv(path, delimiter=None)


class Labelled(NamedTuple):
    """Tables without the rows that have no label, and what is to be said of these."""

    tables: dict[str, Table]
    warnings: list[str]


def labelled(tables: Mapping[str, Table], how: Schema) -> Labelled:
    """The rows that have a label; `how` says what the label is called, and what stands for a
    missing one.
    """
    kept = {name: _labelled(table, how) for name, table in tables.items()}
    lost = {
        name: len(table) - len(kept[name])
        for name, table in tables.items()
        if len(kept[name]) < len(table)
    }
    told = ", ".join(f"{name} {count}" for name, count in lost.items())
    return Labelled(
        kept, [f"{sum(lost.values())} rows without a label were left out ({told})."] if lost else []
    )


def _labelled(table: Table, how: Schema) -> Table:
    name = label_in(table, how)
    if name is None:  # which is said by whoever needs it
        return table
    there = np.array([text != "" for text in labels_of(table[name], how)])
    if not there.any():
        raise UsageError(f"{table.path} has no label in any row of {name!r}.")
    return Table(table.path, table.names, [column[there] for column in table.columns])


def schema_of(tables: Mapping[str, Table], options: ColumnOptions) -> Schema:
    """One schema of everybody's tables: each is described by itself, as whoever is alone would do
    it.
    """
    if len(tables) > 1:  # who is alone may be told of others' columns
        check_named(options, {name for table in tables.values() for name in table.names})
    return merge({name: describe(table, options) for name, table in tables.items()}, options)


class Numbers(NamedTuple):
    """Everybody's rows and labels as numbers, and what there is to say of them."""

    x: dict[str, NDArray[np.float32]]
    y: dict[str, NDArray[Any]]
    warnings: list[str]


def encode_tables(schema: Schema, tables: Mapping[str, Table], strict: bool) -> Numbers:
    """Everybody's rows as the schema says; if it is somebody else's (`strict`), what it does not
    allow for is refused.
    """
    x, y = {}, {}
    for name, table in tables.items():
        columns = dict(zip(table.names, table.columns, strict=True))
        try:
            encoded = encode(schema, columns, len(table), str(table.path), strict=strict)
        except Unusable as why:
            raise UsageError(str(why)) from why
        x[name], y[name] = encoded.x, labels_by(schema, table)
    return Numbers(x, y, [*_missing(schema, x), *far_from_all(schema, x)])


OWN_MEANS = "the mean of the party's own training samples"


def _missing(schema: Schema, parties: Mapping[str, NDArray[np.float32]]) -> list[str]:
    """How much is missing, and who lacks a column altogether."""
    by_party = {name: missing_by_column(schema, x) for name, x in parties.items()}
    cells = sum(len(x) for x in parties.values()) * len(schema.columns)
    share = sum(sum(by_party[name].values()) * len(x) for name, x in parties.items()) / cells
    if not share:
        return []
    never = {
        name: [column for column, one in columns.items() if one == 1]
        for name, columns in by_party.items()
    }
    lacking = "".join(
        f"; {name} never has {join_names(columns)}" for name, columns in never.items() if columns
    )
    filling = "the schema's constants" if schema.scale == "fixed" else OWN_MEANS
    return [
        f"{share:.0%} of all values are missing{lacking}: numbers are filled with {filling}, "
        "and a column each says where; a missing word is a row of zeros."
    ]


SHOWN = 8  # words of a column


def summarize_schema(schema: Schema, given: bool = False) -> list[str]:
    """What whoever imports should know of what becomes of the columns; of a schema that was `given`
    nothing can be changed.
    """
    hint = "" if given else " (to use it, say what it is with --kind: number or words)"
    lines = [f"{name!r} is left out: it {why}{hint}." for name, why in schema.left_out.items()]
    if plain := [column.name for column in schema.columns if column.kind != "words"]:
        lines.append(f"Numbers: {join_names(plain)}.")
    if words := [
        f"{column.name} ({join_names(column.words, SHOWN)})"
        for column in schema.columns
        if column.kind == "words"
    ]:
        lines.append(
            "Words, each of which became a column of 0 and 1 (none set where it is missing):"
            f" {'; '.join(words)}."
        )
    return [*lines, SCALED[schema.scale]]


SCALED = {
    "own": (
        "Numbers are standardised, each party's by the mean and spread of its own training samples"
        " (not so: --scale none)."
    ),
    "shared": (
        "Numbers are standardised by the mean and spread of everybody's training samples: each"
        " party's sums and squares are sent for that, and charged."
    ),
    "fixed": "Numbers are scaled by the constants of the schema.",
    "none": (
        "Numbers are used as they are: networks learn badly from numbers of different sizes"
        " (--scale own)."
    ),
}
