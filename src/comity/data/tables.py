"""Parties' tables: reading, a common schema, and encoding as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.base.samples import Ints
from comity.data.formats import RawTable, read_csv, read_parquet, read_xlsx
from comity.data.inspection import missing_by_column
from comity.data.party_files import TABLES, common_kind, file_ending, find_party_files
from comity.data.patients import number_patients
from comity.data.preparation import (
    Column,
    Schema,
    Unusable,
    conversion,
    encode,
    find_column,
    fold_case,
    read_cells,
    split_header,
)
from comity.data.schema import (
    ColumnOptions,
    MissingLabel,
    apply_options,
    check_known_columns,
    check_labelled,
    convert_medians,
    describe_table,
    encode_labels,
    find_label,
    identifies_person,
    label_texts,
    merge_schemas,
    missing_label_error,
)
from comity.data.table_checks import (
    SEVERAL_ROWS,
    Parties,
    PartyRows,
    check_tables,
    described_class_warnings,
    described_column_warnings,
    described_median_warnings,
    described_word_warnings,
    duplicate_warnings,
    first_copies,
    unused_number_warnings,
    value_warnings,
)
from comity.errors import ErrorCollector, UsageError, UsageErrors, unknown
from comity.text import join_names


def read_schema(path: Path) -> Schema:
    """Read a schema file; like `Schema.read`, but raises UsageError."""
    try:
        return Schema.read(path)
    except Unusable as error:
        raise UsageError(str(error)) from error


class CommonSchema(NamedTuple):
    """The common schema of parties, and warnings about what their descriptions show."""

    schema: Schema
    warnings: list[str]


def agreed_schema(sources: Sequence[Path], **options: Any) -> Schema:
    """The schema of `common_schema`, without warnings."""
    return common_schema(sources, **options).schema


def common_schema(
    sources: Sequence[Path], *, skip_unlabelled: bool = False, **column_options: Any
) -> CommonSchema:
    """The common schema of parties' tables and of schemas that parties have made of their tables.

    Args:
        sources: tables, folders of tables, and schema files (`.json`).
        skip_unlabelled: ignore rows without a label.
        **column_options: see `ColumnOptions`.

    Raises:
        UsageError: if the tables or schemas contradict each other.
    """
    parties: dict[str, Schema] = {}
    files: dict[str, Path] = {}
    for source in sources:
        if source.suffix == ".json":
            parties[source.stem] = read_schema(source)
        else:
            files |= find_party_files(source)
    if parties and "label" not in column_options:
        label_name = next(iter(parties.values())).label
        column_options["label"] = column_options.get("rename", {}).get(label_name, label_name)
    options = _inherit_options(ColumnOptions(**column_options), parties, column_options)
    if files and common_kind(files) != TABLES:
        raise UsageError("A schema is for tables: arrays and pictures need none.")
    errors = ErrorCollector()
    tables = read_tables(files, errors)
    if skip_unlabelled:
        tables = drop_unlabelled(tables, options.label_schema(), errors).tables
    if len(parties) + len(files) > 1 and not errors.sentences:
        with errors.collect():
            check_known_columns(options, _column_names(parties.values()) | _headers(tables))
        _check_known_parties(options, {*parties, *files})
    descriptions: dict[str, Schema] = {}
    for name, schema in parties.items():
        with errors.collect():
            descriptions[name] = apply_options(schema, options.at(name))
    descriptions |= _describe_tables(tables, options, errors)
    schema = _merge_descriptions(descriptions, options, errors)
    warnings = [
        *described_word_warnings(descriptions, schema),
        *described_column_warnings(descriptions),
        *described_class_warnings(descriptions, schema),
        # Of tables alone, `value_warnings` compares the numbers themselves.
        *(described_median_warnings(_medians_by_column(descriptions, schema)) if parties else ()),
        *repeated_person_warnings(schema, tables),
        *_described_value_warnings(schema, tables),
    ]
    return CommonSchema(schema, warnings)


def _medians_by_column(
    descriptions: Mapping[str, Schema], common: Schema
) -> dict[str, dict[str, float]]:
    """By column, then by party with a description of its own: the rounded median."""
    columns = {fold_case(column.name): column for column in common.columns}
    medians: dict[str, dict[str, float]] = {}
    for party, schema in descriptions.items():
        for column in schema.columns:
            if (target := columns.get(fold_case(column.name))) and column.rounded_medians:
                low_and_high = convert_medians(column, target).rounded_medians
                if low_and_high and low_and_high[0] == low_and_high[1]:
                    medians.setdefault(target.name, {})[party] = low_and_high[0]
    return medians


def _described_value_warnings(schema: Schema, tables: Mapping[str, RawTable]) -> list[str]:
    """The warnings of an import about values and copies, of tables that are only described."""
    errors = ErrorCollector()
    labelled = drop_unlabelled(tables, schema, errors).tables
    parties: dict[str, PartyRows] = {}
    for name, table in labelled.items():
        with errors.collect():
            own_schema = schema.at(name)
            x, y = _encode_rows(own_schema, table, strict=False), encode_labels(own_schema, table)
            parties[name] = PartyRows(x, y, table.rows)
    errors.check()
    if not parties:
        return []
    in_files = _rows_in_file_units(schema, labelled, parties, strict=False)
    return [
        *value_warnings(schema, parties, in_files),
        *unused_number_warnings(schema, parties),
        *duplicate_warnings(schema, parties),
    ]


def repeated_person_warnings(schema: Schema, tables: Mapping[str, RawTable]) -> list[str]:
    """Warnings about columns, not used as inputs, in which identifiers of patients are repeated."""
    used = {schema.label, *schema.label_also_called} | {
        name for column in schema.columns for name in (column.name, *column.also_called)
    }
    repeating: dict[str, list[str]] = {}
    for party, table in tables.items():
        for name in table.names:
            if name in used or not identifies_person(name, schema.left_out):
                continue
            texts = read_cells(Column(name, "words"), schema, table[name])
            count, distinct = sum(map(bool, texts)), len({*texts} - {""})
            if 1 < distinct < count:
                places = repeating.setdefault(name, [])
                places.append(f"{party} ({count} rows, {distinct} values)")
    return [
        f"{name} repeats at {join_names(places)}: {SEVERAL_ROWS}? If so, import with --group"
        f" {name}, which keeps a patient's rows together."
        for name, places in repeating.items()
    ]


def _headers(tables: Mapping[str, RawTable]) -> set[str]:
    """All names of columns in tables, with and without the units in brackets."""
    headers = {name for table in tables.values() for name in table.names}
    return headers | {split_header(name)[0] for name in headers}


def _check_known_parties(options: ColumnOptions, parties: Iterable[str]) -> None:
    """Refuse options about a party that is not there."""
    names = sorted(parties)
    for party in options.parties:
        if party not in names:
            raise unknown("party called", party, names)


def _describe_tables(
    tables: Mapping[str, RawTable], options: ColumnOptions, errors: ErrorCollector
) -> dict[str, Schema]:
    """The descriptions of all tables that can be described."""
    descriptions = {}
    without_label = []
    for name, table in tables.items():
        with errors.collect():
            try:
                descriptions[name] = describe_table(table, options.at(name), errors)
            except MissingLabel as error:
                without_label.append(error)
    if without_label:
        with errors.collect():
            raise missing_label_error(options.label, without_label)
    return descriptions


def _merge_descriptions(
    descriptions: Mapping[str, Schema], options: ColumnOptions, errors: ErrorCollector
) -> Schema:
    """Merge the descriptions, and raise all errors so far together with those of merging."""
    if descriptions:
        with errors.collect():
            schema = merge_schemas(descriptions, options, is_complete=not errors.sentences)
            if not errors.sentences:
                return schema
    errors.check()
    raise AssertionError("without a schema there is an error")


def _column_names(schemas: Iterable[Schema]) -> set[str]:
    """All column names of the schemas."""
    return {
        name
        for s in schemas
        for name in (s.label, *s.left_out, *(column.name for column in s.columns))
    }


def _inherit_options(
    options: ColumnOptions, parties: Mapping[str, Schema], given_options: Mapping[str, Any]
) -> ColumnOptions:
    """Take options that all schemas share from them, if the user has not given these options."""
    for name in ("merge_case", "scale"):
        values = {getattr(schema, name) for schema in parties.values()}
        if name not in given_options and len(values) == 1 and values != {False}:
            shared = {name: values.pop()}
            if shared[name] == "fixed" and "constants" not in given_options:
                shared["constants"] = _common_constants(parties)
            options = replace(options, **shared)
        elif name not in given_options and len(values) > 1:
            raise UsageError(
                f"The schemas differ in {name}: choose a value with --{name.replace('_', '-')}."
            )
    return options


def _common_constants(parties: Mapping[str, Schema]) -> dict[str, tuple[float, float]]:
    """The constants of schemas of scale fixed, which must agree."""
    constants: dict[str, tuple[float, float]] = {}
    for party, schema in parties.items():
        for column in schema.columns:
            own = (column.mean, column.std)
            if column.kind == "number" and constants.setdefault(column.name, own) != own:
                mean, std = constants[column.name]
                raise UsageError(
                    f"The column {column.name!r} is scaled by {column.mean:g} and {column.std:g} at"
                    f" party {party!r}, but by {mean:g} and {std:g} at another: they must agree."
                )
    return constants


READERS = {".parquet": read_parquet, ".xlsx": read_xlsx}


def read_tables(paths: Mapping[str, Path], errors: ErrorCollector) -> dict[str, RawTable]:
    """Read the parties' tables; those that cannot be read are left out."""
    tables = {}
    for name, path in paths.items():
        with errors.collect():
            tables[name] = READERS.get(file_ending(path), _read_csv)(path)
    return tables


def _read_csv(path: Path) -> RawTable:
    return read_csv(path, delimiter=None)


class LabelledTables(NamedTuple):
    """Tables without unlabelled rows, and warnings about the rows that were left out."""

    tables: dict[str, RawTable]
    warnings: list[str]


def drop_unlabelled(
    tables: Mapping[str, RawTable], label_schema: Schema, errors: ErrorCollector
) -> LabelledTables:
    """Leave out rows without a label; `label_schema` gives its name and missing values."""
    labelled = {}
    for name, table in tables.items():
        with errors.collect():
            labelled[name] = _drop_unlabelled_rows(table, label_schema.at(name))
    dropped = {
        name: len(tables[name]) - len(table)
        for name, table in labelled.items()
        if len(table) < len(tables[name])
    }
    counts = ", ".join(f"{name} {count}" for name, count in dropped.items())
    return LabelledTables(
        labelled,
        [f"{sum(dropped.values())} rows without a label were left out ({counts})."]
        if dropped
        else [],
    )


def _drop_unlabelled_rows(table: RawTable, label_schema: Schema) -> RawTable:
    name = find_label(table, label_schema)
    if name is None:  # the error is raised where the label is needed
        return table
    has_label = np.array([text != "" for text in label_texts(table[name], label_schema)])
    if not has_label.any():
        raise UsageError(f"{table.path} has no label in any row of {name!r}.")
    return table.take(np.flatnonzero(has_label))


class PatientTables(NamedTuple):
    """Tables without the column that identifies patients, and the numbers of each row's patient."""

    tables: dict[str, RawTable]
    patients: dict[str, Ints]


def take_patients(
    tables: Mapping[str, RawTable], column: str, codes: Schema, errors: ErrorCollector
) -> PatientTables:
    """Take the column that identifies patients out of all tables.

    Args:
        tables: the parties' tables.
        column: the name of the column.
        codes: a schema with the parties' codes of missing values.
        errors: where errors are collected: a table does not have the column, or a row names no
            patient. Such a table is left out.
    """
    others: dict[str, RawTable] = {}
    patients: dict[str, Ints] = {}
    for party, table in tables.items():
        with errors.collect():
            others[party], patients[party] = _take_patients(table, column, codes.at(party))
    return PatientTables(others, patients)


def _take_patients(table: RawTable, column: str, codes: Schema) -> tuple[RawTable, Ints]:
    """Take the column that identifies patients out of one table."""
    columns = dict(zip(table.names, table.columns, strict=True))
    try:
        name = find_column(columns, column, (), str(table.path))
    except Unusable as error:
        raise UsageError(str(error)) from error
    if name is None:
        raise UsageError(
            f"{table.path} has no column {column!r} that identifies patients; it has"
            f" {join_names(table.names)}."
        )
    texts = read_cells(Column(name, "words"), codes, columns[name])
    if "" in texts:
        raise UsageError(
            f"{table.path} has no {name!r} in row {texts.index('') + 1}: each row needs the"
            " identifier of its patient."
        )
    other_places = [place for place, other in enumerate(table.names) if other != name]
    others = RawTable(
        table.path,
        [table.names[k] for k in other_places],
        [table.columns[k] for k in other_places],
        table.rows,
    )
    return others, number_patients(texts)


def infer_schema(
    tables: Mapping[str, RawTable], options: ColumnOptions, errors: ErrorCollector
) -> Schema:
    """Infer a schema: each table is described by itself, then the descriptions are merged.

    The result is the same as that of parties that describe their tables alone.

    Raises:
        UsageError: all errors that were collected before, and those of the tables.
    """
    # A single party may get options about other parties' columns.
    if len(tables) > 1 and not errors.sentences:
        with errors.collect():
            check_known_columns(options, _headers(tables))
        with errors.collect():
            _check_known_parties(options, tables)
    descriptions = _describe_tables(tables, options, errors)
    for name in descriptions:
        with errors.collect():
            check_labelled(options.label_schema().at(name), tables[name])
    return _merge_descriptions(descriptions, options, errors)


class EncodedTables(NamedTuple):
    """All parties' rows and labels as numbers, and warnings for the user."""

    x: dict[str, NDArray[np.float32]]
    y: dict[str, NDArray[Any]]
    warnings: list[str]
    kept_rows: dict[str, NDArray[np.int64]]
    """The positions of each party's rows in its table, without dropped copies."""


def encode_tables(
    schema: Schema,
    tables: Mapping[str, RawTable],
    strict: bool,
    errors: ErrorCollector,
    checks: bool = True,
    drop_copies: bool = False,
    patients: Mapping[str, Ints] | None = None,
) -> EncodedTables:
    """Encode all parties' rows by a schema.

    Args:
        schema: the common schema.
        tables: the parties' tables.
        strict: refuse values that the schema does not allow, because it was agreed on before.
        errors: errors that were collected before.
        checks: look for faults in the tables.
        drop_copies: keep only the first of rows that are equal in all columns that are used.
        patients: the number of each row's patient; rows of different patients are no copies.

    Raises:
        UsageError: all errors that were collected before, and those of the tables.
    """
    x: dict[str, NDArray[np.float32]] = {}
    y: dict[str, NDArray[Any]] = {}
    for name, table in tables.items():
        with errors.collect():
            x[name] = _encode_rows(schema.at(name), table, strict)
        with errors.collect():
            y[name] = encode_labels(schema.at(name), table)
    for name, values in x.items():
        with errors.collect():
            _check_has_values(schema, tables[name], values)
    errors.check()
    kept_rows = {name: np.arange(len(labels)) for name, labels in y.items()}
    counts = {}
    if drop_copies:
        of_patients = patients or {}
        kept_rows = {
            name: first_copies(schema, PartyRows(x[name], labels), of_patients.get(name))
            for name, labels in y.items()
        }
        counts = {name: len(labels) - len(kept_rows[name]) for name, labels in y.items()}
        x = {name: values[kept_rows[name]] for name, values in x.items()}
        y = {name: labels[kept_rows[name]] for name, labels in y.items()}
        tables = {name: table.take(kept_rows[name]) for name, table in tables.items()}
    warnings = [*_missing_value_warnings(schema, x), *_notation_warnings(schema, tables)]
    if dropped := [f"{name} {count}" for name, count in counts.items() if count]:
        warnings.append(f"copies of rows were left out ({', '.join(dropped)}).")
    if not checks:
        return EncodedTables(x, y, warnings, kept_rows)
    parties = {name: PartyRows(x[name], y[name], table.rows) for name, table in tables.items()}
    in_files = _rows_in_file_units(schema, tables, parties, strict)
    return EncodedTables(x, y, [*warnings, *check_tables(schema, parties, in_files)], kept_rows)


def _rows_in_file_units(
    schema: Schema, tables: Mapping[str, RawTable], parties: Parties, strict: bool
) -> Parties | None:
    """The parties' rows with the numbers of their files; None if no number is converted."""
    if not any(column.convert for column in schema.columns):
        return None
    unconverted = _without_conversions(schema)
    return {
        name: rows._replace(x=_encode_rows(unconverted.at(name), tables[name], strict))
        for name, rows in parties.items()
    }


def _check_has_values(schema: Schema, table: RawTable, x: NDArray[np.float32]) -> None:
    """Refuse a table that has no value in any column that is used."""
    if len(x) and min(missing_by_column(schema, x).values()) == 1:
        columns = join_names(column.name for column in schema.columns)
        raise UsageError(
            f"{table.path} has no value in any of the columns that are used ({columns}), so"
            f" there is nothing to learn from; it has {join_names(table.names)}: name its columns"
            " with --rename, or leave the file out."
        )


def _encode_rows(schema: Schema, table: RawTable, strict: bool) -> NDArray[np.float32]:
    """Encode the rows of one table."""
    columns = dict(zip(table.names, table.columns, strict=True))
    try:
        return encode(schema, columns, len(table), str(table.path), strict=strict).x
    except Unusable as error:
        raise UsageErrors(error.args) from error


def _without_conversions(schema: Schema) -> Schema:
    """The schema with factors of 1, so that numbers stay those of the files."""
    columns = [
        replace(column, convert=dict.fromkeys(column.convert, 1.0)) for column in schema.columns
    ]
    return replace(schema, columns=tuple(columns))


def _notation_warnings(schema: Schema, parties: Iterable[str]) -> list[str]:
    """A warning if a schema has codes and units of parties, but not of one that is imported."""
    absent = [name for name in parties if schema.parties and name not in schema.parties]
    if not absent:
        return []
    return [
        f"the schema has missing values and units of {join_names(schema.parties)} only: if"
        f" {join_names(absent)} is one of them, give its file that name."
    ]


OWN_MEANS = "the mean of the party's own training samples"


def _missing_value_warnings(
    schema: Schema, parties: Mapping[str, NDArray[np.float32]]
) -> list[str]:
    """A warning about missing values, and about parties that lack a column altogether."""
    by_party = {name: missing_by_column(schema, x) for name, x in parties.items()}
    cells = sum(len(x) for x in parties.values()) * len(schema.columns)
    share = sum(sum(by_party[name].values()) * len(x) for name, x in parties.items()) / cells
    if not share:
        return []
    absent_columns = {
        name: [column for column, missing_share in columns.items() if missing_share == 1]
        for name, columns in by_party.items()
    }
    absences = "".join(
        f"; {name} never has {join_names(columns)}"
        for name, columns in absent_columns.items()
        if columns
    )
    filling = "the schema's constants" if schema.scale == "fixed" else OWN_MEANS
    return [
        f"{share:.0%} of all values are missing{absences}: numbers are filled with {filling}, "
        "with an indicator column for each; a missing word is a row of zeros."
    ]


MOST_WORDS_LISTED = 8
"""Number of words per column that a summary lists."""


def summarize_schema(schema: Schema, is_given: bool = False) -> list[str]:
    """Sentences about the encoding of the columns, for the user who imports tables.

    `is_given`: the schema was given, so that there is no hint about how to change it.
    """
    hint = "" if is_given else " (to use it, say what it is with --kind: number or words)"
    lines = [
        f"{name!r} is left out: it {why}{hint if '--group' not in why else ''}."
        for name, why in schema.left_out.items()
    ]
    if numbers := [column.name for column in schema.columns if column.kind != "words"]:
        lines.append(f"Numbers: {join_names(numbers)}.")
    if words := [
        f"{column.name} ({join_names(column.words, MOST_WORDS_LISTED)})"
        for column in schema.columns
        if column.kind == "words"
    ]:
        lines.append(f"Words, one-hot encoded (all 0 where missing): {'; '.join(words)}.")
    return [*lines, *_summarize_changes(schema), SCALING_SENTENCES[schema.scale]]


def _summarize_changes(schema: Schema) -> list[str]:
    """Sentences about columns, words and numbers that are changed on reading."""
    renamed = [
        f"{other} to {name}"
        for name, others in (
            *((column.name, column.also_called) for column in schema.columns),
            (schema.label, schema.label_also_called),
        )
        for other in others
        if fold_case(other) != fold_case(name)
    ]
    converted = []
    for column in schema.columns:
        for unit in column.convert:
            factor, offset = conversion(column, unit)
            added = f" and {offset:+g}" if offset else ""
            where = [p for p, n in schema.parties.items() if n.units.get(column.name) == unit]
            at = f" at {join_names(where)}" if where else ""
            rule = f"{factor:g} times{added}"
            converted.append(f"{column.name} from {unit} to {column.unit}{at} ({rule})")
    words = [
        f"{name}: {join_names([f'{word} as {meaning}' for word, meaning in spellings.items()])}"
        for name, spellings in (
            *((column.name, column.also_written) for column in schema.columns),
            (schema.label, schema.label_also_written),
        )
        if spellings
    ]
    codes = [
        f"{', '.join(texts)} in {column} of {party}"
        for party, notation in schema.parties.items()
        for column, texts in notation.also_missing.items()
    ]
    codes += [
        f"{', '.join(column.also_missing)} in {column.name}"
        for column in schema.columns
        if column.also_missing
    ]
    return [
        f"{what}: {'; '.join(changes)}."
        for what, changes in (
            ("Renamed", renamed),
            ("Converted", converted),
            ("Words replaced", words),
            ("Read as missing", codes),
        )
        if changes
    ]


SCALING_SENTENCES = {
    "own": (
        "Numbers are standardised by the mean and standard deviation of each party's own training"
        " samples (to switch this off: --scale none)."
    ),
    "shared": (
        "Numbers are standardised by the mean and standard deviation of all parties' training"
        " samples: each party sends its sums and squares for that, which are charged."
    ),
    "fixed": "Numbers are scaled by the constants of the schema.",
    "none": (
        "Numbers are not scaled: networks learn badly from numbers of different magnitudes"
        " (to scale them: --scale own)."
    ),
}
