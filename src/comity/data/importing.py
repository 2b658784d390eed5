"""Import users' data: a folder with one file or folder per party becomes a dataset for `--data`.

A party is a file `north.npz` (arrays), a file `south.csv`, `.csv.gz`, `.tsv`, `.tab`, `.xlsx` or
`.parquet` (a table with one row per sample), or a folder `east` with one folder of pictures per
class. The file name is the party's name. All parties must bring the same kind of data. Tables may
differ in columns, their order, words and separators: a schema determines how they are encoded
(`schema.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from comity.base.samples import Ints
from comity.data import prepared
from comity.data.dataset import MOST_NAMED, Dataset, unused_classes
from comity.data.formats import numeric, picture_files, read_image, read_images, read_npz
from comity.data.formats.common import (
    check_same_length,
    file_error,
    labels,
    list_folder,
)
from comity.data.groups import Groups
from comity.data.party_files import PICTURES, TABLES, common_kind, find_party_files, source_name
from comity.data.patients import merge_units, number_patients
from comity.data.preparation import Schema
from comity.data.schema import IDENTIFIER, ColumnOptions
from comity.data.sets.common import channels_first
from comity.data.table_checks import (
    PartyRows,
    differing_class_warnings,
    number_copies,
    number_shared_rows,
)
from comity.data.tables import (
    SCALING_SENTENCES,
    drop_unlabelled,
    encode_tables,
    infer_schema,
    read_tables,
    repeated_person_warnings,
    take_patients,
)
from comity.errors import ErrorCollector, UsageError
from comity.text import join_names

GROUPS = f"{IDENTIFIER}: it names the patient of each row (--group)"
"""Why the column that `group` names is left out; exported models copy it to predictions."""
SMALLEST_PARTY = 4
"""Default minimum of samples of a party in the partition `natural`."""
Array = NDArray[Any]


class Contribution(NamedTuple):
    """One party's samples, their labels as in the file (numbers or words), and a test mask."""

    path: Path
    x: Array
    y: Array
    test: NDArray[np.bool_]
    patients: Ints | None = None
    """The number of each sample's patient in this file, if a column names patients."""
    copies: Ints | None = None
    """The number of each row's content, if some rows of a table are copies of others."""


@dataclass(frozen=True)
class ImportedParties:
    """The samples of all parties, and warnings for the user."""

    parties: dict[str, Contribution]
    description: str
    warnings: tuple[str, ...] = ()
    schema: Schema | None = None
    """The schema of tables, whose labels are already encoded; None for other data."""
    shared_rows: Ints | None = None
    """The number of each row's content over all parties, if they have rows in common."""


def import_federation(
    source: Path, out: Path, *, name: str | None = None, **options: Any
) -> Dataset:
    """Import the parties of a folder, or the party of a file, and write the dataset to `out`.

    Args:
        source: a folder with one file or folder per party, or one file.
        out: folder for the dataset, which must not exist.
        name: name of the dataset. Default: the name of the source.
        **options: see `read_federation`.

    Returns:
        The dataset as read back from `out`.

    Raises:
        UsageError: if `out` exists, or the files cannot be imported.
    """
    if out.exists():
        raise UsageError(f"{out} is there already: choose another folder, or remove it.")
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise UsageError(
            f"{out} would lie among the parties of {source}: choose a folder outside it."
        )
    files = find_party_files(source)
    dataset = read_federation(files, name or source_name(source), **options)
    prepared.save(dataset, out, files.values())
    return prepared.read(out)


def read_federation(
    paths: Mapping[str, Path],
    name: str,
    *,
    size: int | None = None,
    classes: int | None = None,
    scale: str | None = None,
    schema: Schema | None = None,
    skip_unlabelled: bool = False,
    group: str | None = None,
    checks: bool = True,
    drop_copies: bool = False,
    **column_options: Any,
) -> Dataset:
    """Read the parties' files or folders into one dataset.

    Args:
        paths: the parties' files or folders, by name.
        name: name of the dataset.
        size: side length in pixels to which pictures are resized.
        classes: number of classes, if no party has the last of them.
        scale: `own`, `shared` or `none`. Default: `own` for tables, `none` for arrays. Pictures
            are never scaled.
        schema: schema of the tables. Default: a schema is inferred from all tables.
        skip_unlabelled: leave out rows of tables without a label.
        group: the column of tables, or the array of npz files, that identifies the patient of each
            sample. It is not an input of the model. Only the numbers of the patients are kept.
        checks: look for faults in tables (`table_checks`), and let copies of a row stay together.
        drop_copies: keep only the first of a table's rows that are equal in all columns that are
            used, and of one patient if `group` names patients.
        **column_options: options for the inferred schema (`label`, `columns`, `drop`, ...: see
            `ColumnOptions`).

    Raises:
        UsageError: if the files cannot be read or do not fit together.
    """
    if schema is not None and (column_options or scale):
        hint = ""
        if scale or column_options.get("constants"):
            hint = (
                "; to scale numbers by constants, make the schema with 'comity data schema"
                " --constant COLUMN=MEAN,STD'"
            )
        raise UsageError(
            "A schema determines all columns, and how they are scaled: leave out the other options,"
            f" or change the schema{hint}."
        )
    kind = common_kind(paths)
    if kind != TABLES:
        _refuse_column_options(
            kind,
            column_options
            | {"schema": schema, "skip_unlabelled": skip_unlabelled, "drop_copies": drop_copies},
        )
    options = ColumnOptions(**column_options | ({} if scale is None else {"scale": scale}))
    if group is not None and kind == PICTURES:
        raise UsageError(
            "group names a column of a table, or an array of an npz file, but these parties bring"
            " pictures."
        )
    if size is not None and kind != PICTURES:
        raise UsageError(f"size is for pictures, but these parties bring {kind}.")
    if kind == PICTURES:
        if scale not in (None, "none"):
            raise UsageError("scale is for tables and signals: pictures are used as they are.")
        imported = ImportedParties(_read_pictures(paths, size), "pictures by class")
    elif kind == "arrays":
        errors = ErrorCollector()
        contributions = {}
        for party, path in paths.items():
            with errors.collect():
                contributions[party] = _read_arrays(path, group)
        errors.check()
        imported = ImportedParties(contributions, "arrays")
    else:
        imported = _read_all_tables(
            paths, options, schema, skip_unlabelled, group, checks, drop_copies
        )
    common_classes = classes is not None or schema is not None
    return _dataset(
        name,
        imported if common_classes else _with_present_classes(imported),
        classes,
        scale or "none",
    )


def _read_all_tables(
    paths: Mapping[str, Path],
    options: ColumnOptions,
    schema: Schema | None,
    skip_unlabelled: bool,
    group: str | None,
    checks: bool,
    drop_copies: bool,
) -> ImportedParties:
    """Read all tables and encode them by the given schema, or by one inferred from them."""
    errors = ErrorCollector()
    tables = read_tables(paths, errors)
    codes = schema or options.label_schema()
    skip_warnings: list[str] = []
    if skip_unlabelled:
        tables, skip_warnings = drop_unlabelled(tables, codes, errors)
    patients: dict[str, Ints] = {}
    if group is not None:
        if schema and group in (schema.label, *(column.name for column in schema.columns)):
            raise UsageError(
                f"The schema uses {group!r}, which would identify patients: make a schema with"
                f" --drop {group}."
            )
        tables, patients = take_patients(tables, group, codes, errors)
        options = replace(options, drop=tuple(name for name in options.drop if name != group))
    common_schema = schema or infer_schema(tables, options, errors)
    if group is not None and schema is None:
        left_out = {**common_schema.left_out, group: GROUPS}
        common_schema = replace(common_schema, left_out=left_out)
    x, y, warnings, kept_rows = encode_tables(
        common_schema, tables, schema is not None, errors, checks, drop_copies, patients
    )
    patients = {name: number_patients(of[kept_rows[name]]) for name, of in patients.items()}
    if checks and group is None:
        warnings += repeated_person_warnings(common_schema, tables)
    parties = {
        name: Contribution(
            paths[name],
            x[name],
            y[name],
            np.zeros(len(y[name]), np.bool_),
            patients.get(name),
            number_copies(common_schema, PartyRows(x[name], y[name])) if checks else None,
        )
        for name in tables
    }
    description = (
        f"tables with the columns {join_names(column.name for column in common_schema.columns)}"
    )
    rows = {name: PartyRows(x[name], y[name]) for name in tables}
    return ImportedParties(
        parties,
        description,
        (*warnings, *skip_warnings),
        common_schema,
        number_shared_rows(common_schema, rows) if checks else None,
    )


def _with_present_classes(imported: ImportedParties) -> ImportedParties:
    """Return tables whose labels are whole numbers with the classes that occur in them.

    Parties that describe their tables alone agree on all numbers up to the largest, since none of
    them knows which occur elsewhere.
    """
    schema, parties = imported.schema, imported.parties
    if not schema or not schema.classes:  # a number to predict
        return imported
    if schema.classes != tuple(map(str, range(len(schema.classes)))):
        return imported
    mapped, names, warnings = _map_gaps([party.y for party in parties.values()])
    if not names:
        return imported
    relabelled = {
        name: party._replace(y=y) for (name, party), y in zip(parties.items(), mapped, strict=True)
    }
    return replace(
        imported,
        parties=relabelled,
        schema=replace(schema, classes=names),
        warnings=(*imported.warnings, *warnings),
    )


def _map_gaps(
    numbers: list[NDArray[np.int64]],
) -> tuple[list[NDArray[np.int64]], tuple[str, ...], list[str]]:
    """Number the labels that occur from 0 without gaps.

    Returns:
        The parties' labels, the names of the classes, and a sentence for the user. Names and
        sentence are empty if all numbers from 0 to the largest occur.
    """
    samples = sum(map(len, numbers))
    present = np.unique(np.concatenate(numbers)) if samples else np.empty(0, np.int64)
    if len(present) < 2 or len(present) == present[-1] + 1:
        return numbers, (), []
    largest = int(present[-1])
    if 2 * len(present) > samples:
        raise UsageError(
            f"The labels run up to {largest}, but there are only {samples} samples: number the"
            " classes 0, 1, 2, ..."
        )
    missing = np.setdiff1d(np.arange(largest), present)
    warning = (
        f"no sample has the label {join_names(map(str, missing), MOST_NAMED)}: the"
        f" {len(present)} labels that occur are the classes, named {_span(present)}. If there are"
        f" classes 0 to {largest}, say so with --classes {largest + 1}."
    )
    return [np.searchsorted(present, y) for y in numbers], tuple(map(str, present)), [warning]


def _span(present: NDArray[np.int64]) -> str:
    """Labels as a phrase: "1 to 10", or each of them."""
    if len(present) == present[-1] - present[0] + 1 and len(present) > 2:
        return f"{present[0]} to {present[-1]}"
    return join_names(map(str, present), MOST_NAMED)


def _refuse_column_options(kind: str, options: Mapping[str, Any]) -> None:
    """Refuse options about columns for data without columns."""
    if option := next(
        (name for name, value in options.items() if value not in (None, False)), None
    ):
        raise UsageError(f"{option} is for tables, but these parties bring {kind}.")


# Arrays.


def _read_arrays(path: Path, group: str | None) -> Contribution:
    """Read `x` and `y`, and `x_test` and `y_test` if the file has them."""
    arrays = read_npz(path, missing=True)
    for key in ("x", "y", *(["x_test", "y_test"] if {"x_test", "y_test"} & set(arrays) else [])):
        if key not in arrays:
            raise file_error(path, f"has no array called {key}; it has {join_names(arrays)}")
    parts = [(arrays["x"], arrays["y"])] + (
        [(arrays["x_test"], arrays["y_test"])] if "x_test" in arrays else []
    )
    converted = []
    for x, y in parts:
        if x.dtype.kind not in "biuf" or x.ndim < 2:
            raise file_error(
                path,
                f"has samples of shape {x.shape} and type {x.dtype}, but each sample must be a row"
                " of numbers",
            )
        if y.ndim != 1:
            raise file_error(
                path, f"has labels of shape {y.shape}, but one label per sample is needed"
            )
        check_same_length(path, samples=x, labels=y)
        if not len(y):
            raise file_error(path, "holds no samples")
        if x.dtype == np.uint8 and x.ndim > 2:
            converted.append(channels_first(x))
        else:
            converted.append((channels_first(x) if x.ndim == 4 else x).astype(np.float32))
    if converted[0].shape[1:] != converted[-1].shape[1:]:
        raise file_error(
            path,
            f"has samples of shape {converted[0].shape[1:]} but test samples of shape"
            f" {converted[-1].shape[1:]}",
        )
    y = np.concatenate([y for _, y in parts])
    return Contribution(
        path,
        np.concatenate(converted),
        y,
        np.arange(len(y)) >= len(converted[0]),
        None if group is None else _patients_of_arrays(path, arrays, group),
    )


def _patients_of_arrays(path: Path, arrays: Mapping[str, Array], group: str) -> Ints:
    """The patients that the array `group` identifies, and `group`_test for the test part."""
    endings = ("", "_test") if "x_test" in arrays else ("",)
    parts = []
    for ending in endings:
        if (key := f"{group}{ending}") not in arrays:
            raise file_error(path, f"has no array called {key}; it has {join_names(arrays)}")
        values = arrays[key]
        if values.shape != arrays[f"y{ending}"].shape or values.dtype.kind not in "iuUS":
            raise file_error(
                path,
                f"has {key} of shape {values.shape} and type {values.dtype}, but each sample needs"
                " a whole number or a text that identifies its patient",
            )
        parts.append(values)
    return number_patients(np.concatenate(parts))


# Pictures.


def _misplacement(file: Path, folder: Path) -> str:
    """The message about a file in a party's folder that is not in a class folder."""
    if file.suffix in (".csv", ".tsv", ".tab", ".xlsx", ".parquet", ".npz"):
        beside = folder.with_suffix(file.suffix)
        return (
            "is a table, but a party's folder must hold pictures: give each party one file, here"
            f" {beside}"
        )
    return "is not in a folder of its class"


def _read_pictures(paths: Mapping[str, Path], size: int | None) -> dict[str, Contribution]:
    """Read each party's pictures from one folder per class, resized to the same size."""
    files: dict[str, list[Path]] = {}
    for name, path in paths.items():
        inner = list_folder(path)
        misplaced = next((p for p in inner if not p.is_dir()), None)
        if misplaced is not None or not inner:
            raise file_error(
                misplaced or path,
                _misplacement(misplaced, path)
                if misplaced
                else "is empty: it must have one folder per class",
            )
        files[name] = [picture for kind in inner for picture in picture_files(kind)]
    target_size = (size, size) if size is not None else _common_size(files)
    kinds = {
        name: np.array([picture.parent.name for picture in pictures])
        for name, pictures in files.items()
    }
    return {
        name: Contribution(
            paths[name],
            read_images(pictures, target_size),
            kinds[name],
            np.zeros(len(pictures), np.bool_),
        )
        for name, pictures in files.items()
    }


def _common_size(files: Mapping[str, list[Path]]) -> tuple[int, int]:
    """Height and width of all pictures; refuse different sizes."""
    sizes = {path: read_image(path).shape[1:] for pictures in files.values() for path in pictures}
    first, (height, width) = next(iter(sizes.items()))
    for path, (h, w) in sizes.items():
        if (h, w) != (height, width):
            raise file_error(
                path,
                f"has {h} x {w} pixels but {first} {height} x {width}: give the size to resize"
                " them to with size",
            )
    return height, width


# From the parties' samples to one dataset.


def _dataset(name: str, imported: ImportedParties, classes: int | None, scale: str) -> Dataset:
    """Concatenate all parties' samples to a dataset."""
    parties, schema = imported.parties, imported.schema
    _check_parties(parties)
    if schema:
        party_labels, class_names = _schema_labels(schema, parties, classes)
        gaps: list[str] = []
    else:
        party_labels, class_names, gaps = _class_labels(parties, classes)
    x = np.concatenate([party.x for party in parties.values()])
    y = np.concatenate(party_labels)
    test = np.concatenate([party.test for party in parties.values()])
    class_count = (
        max(len(schema.classes), classes or 0)
        if schema
        else len(class_names) or classes or int(y.max()) + 1
    )
    if schema and not schema.classes:
        class_count = 0
    elif class_count < 2:
        raise UsageError("All samples have the same label, so there is nothing to learn.")
    if class_count > max(len(y), classes or 0):
        raise UsageError(
            f"The labels run up to {class_count - 1}, but there are only {len(y)} samples: number"
            " the classes 0, 1, 2, ..."
        )
    party_numbers = np.repeat(np.arange(len(parties)), [len(party.y) for party in parties.values()])
    patients = _all_patients(parties)
    is_missing = np.isnan(x) if x.dtype != np.uint8 else np.zeros((1, 1), np.bool_)
    warnings = [
        *imported.warnings,
        *gaps,
        *_import_warnings(parties, y, class_count, is_missing & (schema is None), test),
    ]
    if class_names and schema is None:
        words = {
            name: {class_names[k] for k in np.unique(own_labels).tolist()}
            for name, own_labels in zip(parties, party_labels, strict=True)
        }
        warnings += differing_class_warnings(words)
    names = class_names or tuple(map(str, range(class_count)))
    for party, own_labels in zip(parties, party_labels, strict=True):
        if class_count and len(present := np.unique(own_labels)) == 1:
            warnings.append(
                f"{party} has samples of {names[int(present[0])]!r} only: alone it cannot learn"
                " another class, and AUC and sensitivity do not exist there."
            )
    if patients is not None:
        warnings.append(
            f"the samples are of {int(patients.max()) + 1} patients: all samples of a patient stay"
            " in one part of a split, and +dp protects them together."
        )
    options: dict[str, Any] = {} if x.ndim == 4 else {"mean": (0.0,), "std": (1.0,)}
    if schema:
        options |= preprocessing_options(schema)
    elif scale != "none":
        flags = np.isin(x, (0, 1)).all((0, *range(2, x.ndim)))
        options |= {"scale": scale, "scaled": tuple(np.flatnonzero(~flags).tolist())}
        warnings.append(SCALING_SENTENCES[scale])
    return Dataset(
        name=name,
        x=torch.from_numpy(np.ascontiguousarray(x)),
        y=torch.from_numpy(y),
        classes=class_count,
        description=f"Imported: {imported.description}",
        licence="that of the imported files",
        official_test=torch.from_numpy(test) if test.any() else None,
        groups={"party": Groups(tuple(parties), party_numbers)},
        default_partition="natural(by=party)",
        missing="impute" if is_missing.any() or (schema and schema.indicator_columns) else "refuse",
        class_names=class_names,
        warnings=tuple(f"{name}: {warning}" for warning in warnings),
        patients=patients,
        copies=_all_copies(parties),
        shared_rows=imported.shared_rows,
        **options,
    )


def _all_patients(parties: Mapping[str, Contribution]) -> Ints | None:
    """The number of each sample's patient over all parties; None without patients.

    The same identifier at two parties is taken for two patients: each party protects its own.
    """
    numbers: list[Ints] = []
    total = 0
    for party in parties.values():
        if party.patients is None:
            return None
        numbers.append(party.patients + total)
        total += int(party.patients.max()) + 1
    return np.concatenate(numbers)


def _all_copies(parties: Mapping[str, Contribution]) -> Ints | None:
    """The number of each row's content over all parties; None without copies.

    Equal rows of two parties have two numbers: each party splits its own rows. That their parts
    agree is a matter of `shared_rows`.
    """
    if all(party.copies is None for party in parties.values()):
        return None
    numbers: list[Ints] = []
    total = 0
    for party in parties.values():
        own = np.arange(len(party.y)) if party.copies is None else party.copies
        numbers.append(own + total)
        total += int(own.max()) + 1
    return np.concatenate(numbers)


def preprocessing_options(schema: Schema) -> dict[str, Any]:
    """The arguments of `Dataset` for the preprocessing of a schema."""
    if schema.scale in ("own", "shared"):
        return {"schema": schema, "scale": schema.scale, "scaled": schema.scaled}
    if schema.scale == "none":
        return {"schema": schema}
    constants = [
        (c.mean, c.std) if c.kind == "number" else (0.0, 1.0)
        for c in schema.columns
        for _ in range(c.width)
    ]
    return {
        "schema": schema,
        "mean": tuple(m for m, _ in constants),
        "std": tuple(s for _, s in constants),
    }


def _schema_labels(
    schema: Schema, parties: Mapping[str, Contribution], classes: int | None
) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """The parties' labels, and the class names if the classes are words."""
    words = () if schema.classes == tuple(map(str, range(len(schema.classes)))) else schema.classes
    if classes is not None and not schema.classes:
        raise UsageError(
            f"The label {schema.label!r} is a number that is to be predicted: leave out classes."
        )
    if (
        classes is not None
        and classes != len(schema.classes)
        and (words or classes < len(schema.classes))
    ):
        raise UsageError(
            f"The parties' labels are {len(schema.classes)} words, not {classes}: leave out"
            " classes."
        )
    return [party.y for party in parties.values()], words


def _check_parties(parties: dict[str, Contribution]) -> None:
    """Check that all parties have the same shape and type, and all or none a test part."""
    first, model = next(iter(parties.items()))
    for name, party in parties.items():
        if party.x.shape[1:] != model.x.shape[1:]:
            raise UsageError(
                f"The samples of party {name!r} have shape {party.x.shape[1:]} but those of party"
                f" {first!r} {model.x.shape[1:]}: they must agree."
            )
        if party.x.dtype != model.x.dtype:
            raise UsageError(
                f"The samples of party {name!r} are of type {party.x.dtype} but those of party"
                f" {first!r} of type {model.x.dtype}: they must agree."
            )
        if party.test.any() != model.test.any():
            has, lacks = (name, first) if party.test.any() else (first, name)
            raise UsageError(
                f"Party {has!r} has a test part but party {lacks!r} has none: give all of them one,"
                " or none."
            )
        if party.x.dtype == np.uint8:
            continue
        if np.isinf(party.x).any():
            raise UsageError(f"Party {name!r} has infinite values: remove or fill them.")
        if party.x.ndim > 2 and np.isnan(party.x).any():
            raise UsageError(
                f"Party {name!r} has missing values, which can be imputed in tables only: fill them"
                " in."
            )


def _are_numbers(values: Array) -> bool:
    """Whether labels are numbers, or text that can be read as numbers."""
    try:
        numeric(values)
    except UsageError:
        return False
    return True


def _class_labels(
    parties: dict[str, Contribution], classes: int | None
) -> tuple[list[NDArray[np.int64]], tuple[str, ...], list[str]]:
    """Class labels: words numbered in sorted order over all parties, numbers as they are, or
    without gaps if some do not occur and `classes` does not say that there are such classes.

    Returns:
        The parties' labels, the names of the classes, and sentences for the user.
    """
    texts = [name for name, party in parties.items() if not _are_numbers(party.y)]
    if not texts:
        numbers = [labels(party.path, numeric(party.y), classes) for party in parties.values()]
        return _map_gaps(numbers) if classes is None else (numbers, (), [])
    for name, party in parties.items():
        if name not in texts:
            raise UsageError(
                f"The labels of party {name!r} are numbers but those of party {texts[0]!r} words:"
                " they must agree."
            )
        if (party.y == "").any():
            raise file_error(party.path, f"has no label in row {int(np.argmax(party.y == '')) + 1}")
    names = sorted({str(word) for party in parties.values() for word in party.y})
    if classes is not None and classes != len(names):
        raise UsageError(
            f"The parties' labels are {len(names)} words, not {classes}: leave out classes."
        )
    return (
        [
            np.searchsorted(names, party.y.astype(str)).astype(np.int64)
            for party in parties.values()
        ],
        tuple(names),
        [],
    )


def _import_warnings(
    parties: dict[str, Contribution],
    y: NDArray[np.int64],
    classes: int,
    is_missing: NDArray[np.bool_],
    test: NDArray[np.bool_],
) -> list[str]:
    """Warnings about missing values, unused classes, small parties and test parts."""
    warnings = []
    if is_missing.any():
        warnings.append(
            f"{is_missing.mean():.1%} of all values are missing: replaced by the mean of the"
            " party's own training samples, with an indicator column for each feature."
        )
    if unused := unused_classes(y, classes):
        warnings.append(unused)
    small = [name for name, party in parties.items() if _units_to_learn(party) < SMALLEST_PARTY]
    if small:
        units = "samples" if next(iter(parties.values())).patients is None else "patients"
        warnings.append(
            f"{join_names(small)} with fewer than {SMALLEST_PARTY} {units} take no part; to include"
            " them, use --partition 'natural(min=1)'."
        )
    if test.any():
        warnings.append(
            "each party has its own test part, which --test official uses; with own(0.25) it is"
            " pooled with the other samples."
        )
    return warnings


def _units_to_learn(party: Contribution) -> int:
    """How many samples, or patients, a party has outside its test part; copies count once."""
    units = merge_units(party.patients, party.copies)
    if units is None:
        return int((~party.test).sum())
    return len(np.unique(units[~party.test]))
