"""People's own federation: a folder with one file or one sub-folder a party becomes a dataset that
`--data` takes.

A party is `north.npz` (arrays), `south.csv`, `.csv.gz`, `.xlsx` or `.parquet` (a table with one row
a sample), or a folder `east` with a folder of pictures a class. Its file name is its name. All
parties must bring the same kind of data. Tables may differ in columns, their order, words and
separators: a schema says what becomes of them (`schema.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data import prepared
from comity.data.dataset import Dataset
from comity.data.formats import numeric, picture_files, read_image, read_images, read_npz
from comity.data.formats.common import bad, inside, join_names, labels, same_length
from comity.data.groups import Groups
from comity.data.party_files import PICTURES, TABLES, one_kind, parties_in, stem
from comity.data.preparation import Schema
from comity.data.schema import ColumnOptions
from comity.data.sets.common import planes
from comity.data.tables import SCALED, encode_tables, labelled, read_tables, schema_of
from comity.errors import UsageError

LEAST = 4  # samples: what the partition `natural` asks of a party
Array = NDArray[Any]


class Contribution(NamedTuple):
    """What one party brings: samples, their labels as they were found (numbers or words), and which
    are for testing.
    """

    path: Path
    x: Array
    y: Array
    test: NDArray[np.bool_]


@dataclass(frozen=True)
class Brought:
    """What all parties bring, in one shape, and what a user should know of it."""

    parties: dict[str, Contribution]
    about: str
    warnings: tuple[str, ...] = ()
    schema: Schema | None = None
    """Of tables; their labels are numbers already."""


def import_federation(source: Path, out: Path, *, name: str | None = None, **how: Any) -> Dataset:
    """Bring the parties of a folder, or the one of a file, into one dataset, written to `out`,
    which must not exist yet.

    `how` is as for `read_federation`.
    """
    if out.exists():
        raise UsageError(f"{out} is there already: choose another folder, or remove it.")
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise UsageError(
            f"{out} would lie among the parties of {source}: choose a folder outside it."
        )
    prepared.save(read_federation(parties_in(source), name or stem(source), **how), out)
    return prepared.read(out)


def read_federation(
    found: Mapping[str, Path],
    name: str,
    *,
    size: int | None = None,
    classes: int | None = None,
    scale: str | None = None,
    schema: Schema | None = None,
    skip_unlabelled: bool = False,
    **about_columns: Any,
) -> Dataset:
    """What parties' files or folders hold, as one dataset.

    `size` is the pixels a side that pictures are brought to; `classes` how many there are, where no
    party has the last of them. Tables follow `schema`, or one is made of them as is said
    `about_columns` (`label`, `columns`, `drop`, ...: see `ColumnOptions`). Their numbers are scaled unless
    told otherwise: `scale` is `own`, `shared` or `none`; arrays are used as they are unless told
    otherwise, and pictures always.
    """
    if schema is not None and (about_columns or scale):
        raise UsageError(
            "A schema says all about the columns: leave out the other options, or change the"
            " schema."
        )
    kind = one_kind(found)
    if kind != TABLES:
        _check_no_columns(
            kind, about_columns | {"schema": schema, "skip_unlabelled": skip_unlabelled}
        )
    asked = ColumnOptions(**about_columns | ({} if scale is None else {"scale": scale}))
    if size is not None and kind != PICTURES:
        raise UsageError(f"size is for pictures, but these parties bring {kind}.")
    if kind == PICTURES:
        if scale not in (None, "none"):
            raise UsageError("scale is for tables and signals: pictures are used as they are.")
        brought = Brought(_pictures(found, size), "pictures by class")
    elif kind == "arrays":
        brought = Brought({name: _arrays(path) for name, path in found.items()}, "arrays")
    else:
        brought = _tables(found, asked, schema, skip_unlabelled)
    return _dataset(name, brought, classes, scale or "none")


def _tables(
    found: Mapping[str, Path], asked: ColumnOptions, schema: Schema | None, skip_unlabelled: bool
) -> Brought:
    """Everybody's tables as numbers, by a schema that was given or the one that they have in
    common.
    """
    tables = read_tables(found)
    skipped: list[str] = []
    if skip_unlabelled:
        tables, skipped = labelled(tables, schema or asked.about_label())
    agreed = schema or schema_of(tables, asked)
    x, y, warnings = encode_tables(agreed, tables, strict=schema is not None)
    parties = {
        name: Contribution(found[name], x[name], y[name], np.zeros(len(y[name]), np.bool_))
        for name in tables
    }
    about = f"tables with the columns {join_names(column.name for column in agreed.columns)}"
    return Brought(parties, about, (*warnings, *skipped), agreed)


def _check_no_columns(kind: str, said: Mapping[str, Any]) -> None:
    """Refuse what is said of columns where there are none."""
    if named := next((name for name, value in said.items() if value not in (None, False)), None):
        raise UsageError(f"{named} is for tables, but these parties bring {kind}.")


# Arrays.


def _arrays(path: Path) -> Contribution:
    """`x` and `y`, and where it has them `x_test` and `y_test`."""
    held = read_npz(path, missing=True)
    for wanted in ("x", "y", *(["x_test", "y_test"] if {"x_test", "y_test"} & set(held) else [])):
        if wanted not in held:
            raise bad(path, f"has no array called {wanted}; it has {join_names(held)}")
    parts = [(held["x"], held["y"])] + (
        [(held["x_test"], held["y_test"])] if "x_test" in held else []
    )
    made = []
    for x, y in parts:
        if x.dtype.kind not in "biuf" or x.ndim < 2:
            raise bad(
                path,
                f"has samples of shape {x.shape} and type {x.dtype}, but a row of numbers a sample"
                " is needed",
            )
        if y.ndim != 1:
            raise bad(path, f"has labels of shape {y.shape}, but one a sample is needed")
        same_length(path, samples=x, labels=y)
        if not len(y):
            raise bad(path, "holds no samples")
        if x.dtype == np.uint8 and x.ndim > 2:
            made.append(planes(x))
        else:
            made.append((planes(x) if x.ndim == 4 else x).astype(np.float32))
    if made[0].shape[1:] != made[-1].shape[1:]:
        raise bad(
            path,
            f"has samples of shape {made[0].shape[1:]} but test samples of shape"
            f" {made[-1].shape[1:]}",
        )
    y = np.concatenate([y for _, y in parts])
    return Contribution(path, np.concatenate(made), y, np.arange(len(y)) >= len(made[0]))


# Pictures.


def _misplaced(file: Path, folder: Path) -> str:
    """Why a file is not where a party's pictures are."""
    if file.suffix in (".csv", ".xlsx", ".parquet", ".npz"):
        beside = folder.with_suffix(file.suffix)
        return (
            "is a table, but a party's folder holds pictures: give each party one file, here"
            f" {beside}"
        )
    return "is not in a folder of its class"


def _pictures(found: Mapping[str, Path], size: int | None) -> dict[str, Contribution]:
    """One folder a class in each party's folder, all brought to one size."""
    files: dict[str, list[Path]] = {}
    for name, path in found.items():
        inner = inside(path)
        stray = next((p for p in inner if not p.is_dir()), None)
        if stray is not None or not inner:
            raise bad(
                stray or path,
                _misplaced(stray, path) if stray else "is empty: it must have one folder a class",
            )
        files[name] = [picture for kind in inner for picture in picture_files(kind)]
    wanted = (size, size) if size is not None else _common_size(files)
    kinds = {
        name: np.array([picture.parent.name for picture in mine]) for name, mine in files.items()
    }
    return {
        name: Contribution(
            found[name], read_images(mine, wanted), kinds[name], np.zeros(len(mine), np.bool_)
        )
        for name, mine in files.items()
    }


def _common_size(files: Mapping[str, list[Path]]) -> tuple[int, int]:
    """Height and width of all pictures; they must agree."""
    sizes = {path: read_image(path).shape[1:] for mine in files.values() for path in mine}
    first, (height, width) = next(iter(sizes.items()))
    for path, (h, w) in sizes.items():
        if (h, w) != (height, width):
            raise bad(
                path,
                f"has {h} x {w} pixels but {first} {height} x {width}: say with size what to bring"
                " them all to",
            )
    return height, width


# From what they bring to one dataset.


def _dataset(name: str, brought: Brought, classes: int | None, scale: str) -> Dataset:
    """All parties' samples, one party after the other."""
    parties, schema = brought.parties, brought.schema
    _check(parties)
    answers, names = _named(schema, parties, classes) if schema else _answers(parties, classes)
    x = np.concatenate([party.x for party in parties.values()])
    y = np.concatenate(answers)
    test = np.concatenate([party.test for party in parties.values()])
    kinds = (
        max(len(schema.classes), classes or 0)
        if schema
        else len(names) or classes or int(y.max()) + 1
    )
    if schema and not schema.classes:
        kinds = 0
    elif kinds < 2:
        raise UsageError("All samples have the same label, so there is nothing to learn.")
    if kinds > max(len(y), classes or 0):
        raise UsageError(
            f"The labels run up to {kinds - 1}, but there are only {len(y)} samples: number the"
            " classes 0, 1, 2, ..."
        )
    of = np.repeat(np.arange(len(parties)), [len(party.y) for party in parties.values()])
    empty = np.isnan(x) if x.dtype != np.uint8 else np.zeros((1, 1), np.bool_)
    warnings = [*brought.warnings, *_told(parties, y, kinds, empty & (schema is None), test)]
    more: dict[str, Any] = {} if x.ndim == 4 else {"mean": (0.0,), "std": (1.0,)}
    if schema:
        more |= prepared_by(schema)
    elif scale != "none":
        flags = np.isin(x, (0, 1)).all((0, *range(2, x.ndim)))
        more |= {"scale": scale, "scaled": tuple(np.flatnonzero(~flags).tolist())}
        warnings.append(SCALED[scale])
    return Dataset(
        name=name,
        x=torch.from_numpy(np.ascontiguousarray(x)),
        y=torch.from_numpy(y),
        classes=kinds,
        description=f"Imported: {brought.about}",
        licence="that of whoever brought it",
        official_test=torch.from_numpy(test) if test.any() else None,
        groups={"party": Groups(tuple(parties), of)},
        default_partition="natural(by=party)",
        missing="impute" if empty.any() or (schema and schema.marked) else "refuse",
        class_names=names,
        warnings=tuple(f"{name}: {note}" for note in warnings),
        **more,
    )


def prepared_by(schema: Schema) -> dict[str, Any]:
    """What a dataset does to its values, as the schema says."""
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


def _named(
    schema: Schema, parties: Mapping[str, Contribution], classes: int | None
) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """Labels by their numbers in the schema, and their names where these are words."""
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


def _check(parties: dict[str, Contribution]) -> None:
    """All parties must agree in shape and in whether they have a test part."""
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
                f"Party {name!r} has values that are missing, which can be filled in tables only:"
                " fill them."
            )


def _numbers(values: Array) -> bool:
    """Whether labels are numbers, or text that reads as such."""
    try:
        numeric(values)
    except UsageError:
        return False
    return True


def _answers(
    parties: dict[str, Contribution], classes: int | None
) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """Labels as classes: numbers as they are, words in sorted order over all parties."""
    texts = [name for name, party in parties.items() if not _numbers(party.y)]
    if not texts:
        return [labels(party.path, numeric(party.y), classes) for party in parties.values()], ()
    for name, party in parties.items():
        if name not in texts:
            raise UsageError(
                f"The labels of party {name!r} are numbers but those of party {texts[0]!r} words:"
                " they must agree."
            )
        if (party.y == "").any():
            raise bad(party.path, f"has no label in row {int(np.argmax(party.y == '')) + 1}")
    names = sorted({str(word) for party in parties.values() for word in party.y})
    if classes is not None and classes != len(names):
        raise UsageError(
            f"The parties' labels are {len(names)} words, not {classes}: leave out classes."
        )
    return [
        np.searchsorted(names, party.y.astype(str)).astype(np.int64) for party in parties.values()
    ], tuple(names)


def _told(
    parties: dict[str, Contribution],
    y: NDArray[np.int64],
    classes: int,
    empty: NDArray[np.bool_],
    test: NDArray[np.bool_],
) -> list[str]:
    """What a user should know: what is missing, unused or small."""
    warnings = []
    if empty.any():
        warnings.append(
            f"{empty.mean():.1%} of all values are missing: filled with the mean of the party's own"
            " training samples, and a column each says what was filled."
        )
    unused = sorted(set(range(classes)) - set(y.tolist()))
    if unused:
        warnings.append(
            "no sample has the label"
            f" {', '.join(map(str, unused[:10]))}{' and others' if len(unused) > 10 else ''}."
        )
    small = [name for name, party in parties.items() if (~party.test).sum() < LEAST]
    if small:
        warnings.append(
            f"{join_names(small)} with fewer than {LEAST} samples take no part, unless --partition"
            " 'natural(min=1)'."
        )
    if test.any():
        warnings.append(
            "each party has a test part of its own, which --test official uses; own(0.25) puts it"
            " to the rest."
        )
    return warnings
