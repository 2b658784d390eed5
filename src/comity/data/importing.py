"""People's own federation: a folder with one file or one sub-folder a party becomes a dataset that `--data` takes.

A party is `north.npz` (arrays), `south.csv`, `.csv.gz`, `.xlsx` or `.parquet` (a table with one row a sample), or a folder `east`
with a folder of pictures a class. Its file name is its name. All parties must bring the same kind of data. Tables may differ in
columns, their order, words and separators: a schema says what becomes of them (`schema.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data import prepared
from comity.data.dataset import Dataset
from comity.data.formats import (
    Table,
    numeric,
    picture_files,
    read_csv,
    read_image,
    read_images,
    read_npz,
    read_parquet,
    read_xlsx,
)
from comity.data.formats.common import bad, few, inside, labels, present, same_length
from comity.data.groups import Groups
from comity.data.inspection import far_from_all, missing_by_column
from comity.data.preparation import Schema, Unusable, encode, folded
from comity.data.schema import Wishes, check_named, describe, labels_by, labels_of, merge, said_of
from comity.data.sets.common import planes
from comity.data.split import check_name
from comity.errors import Refusal

KINDS = {".npz": "arrays", ".csv": "a table", ".csv.gz": "a table", ".xlsx": "a table", ".parquet": "a table"}
TABLES = "a table"
PICTURES = "pictures"
ENDINGS = ".npz, .csv, .csv.gz, .xlsx or .parquet"
LEAST = 4  # samples: what the partition `natural` asks of a party
Array = NDArray[Any]


class Contribution(NamedTuple):
    """What one party brings: samples, their labels as they were found (numbers or words), and which are for testing."""

    path: Path
    x: Array
    y: Array
    test: NDArray[np.bool_]


@dataclass(frozen=True)
class Brought:
    """What all parties bring, in one shape, and what a user should know of it."""

    parties: dict[str, Contribution]
    about: str
    notes: tuple[str, ...] = ()
    schema: Schema | None = None
    """Of tables; their labels are numbers already."""


def import_federation(source: Path, out: Path, *, name: str | None = None, **how: Any) -> Dataset:
    """Bring the parties of a folder, or the one of a file, into one dataset, written to `out`, which must not exist yet.

    `how` is as for `read_federation`.
    """
    if out.exists():
        raise Refusal(f"{out} is there already: choose another folder, or remove it.")
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise Refusal(f"{out} would lie among the parties of {source}: choose a folder outside it.")
    prepared.save(read_federation(parties_in(source), name or _stem(source), **how), out)
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

    `size` is the pixels a side that pictures are brought to; `classes` how many there are, where no party has the last of them.
    Tables follow `schema`, or one is made of them as is said `about_columns` (`label`, `columns`, `drop`, ...: see `Wishes`).
    Their numbers are scaled unless told otherwise: `scale` is `own`, `shared` or `none`; arrays are used as they are unless
    told otherwise, and pictures always.
    """
    if schema is not None and (about_columns or scale):
        raise Refusal("A schema says all about the columns: leave out the other options, or change the schema.")
    kind = _one_kind(found)
    if kind != TABLES:
        _check_no_columns(kind, about_columns | {"schema": schema, "skip_unlabelled": skip_unlabelled})
    asked = Wishes(**about_columns | ({} if scale is None else {"scale": scale}))
    if size is not None and kind != PICTURES:
        raise Refusal(f"size is for pictures, but these parties bring {kind}.")
    if kind == PICTURES:
        if scale not in (None, "none"):
            raise Refusal("scale is for tables and signals: pictures are used as they are.")
        brought = Brought(_pictures(found, size), "pictures by class")
    elif kind == "arrays":
        brought = Brought({name: _arrays(path) for name, path in found.items()}, "arrays")
    else:
        label = asked.label if schema is None else schema.label
        tables = tables_of(found, label, skip_unlabelled)
        brought = _tables(tables, schema or schema_of(tables, asked), strict=schema is not None)
        if skip_unlabelled:
            brought = replace(brought, notes=(*brought.notes, *_skipped(tables_of(found, label), tables)))
    return _dataset(name, brought, classes, scale or "none")


def _check_no_columns(kind: str, said: Mapping[str, Any]) -> None:
    """Refuse what is said of columns where there are none."""
    if named := next((name for name, value in said.items() if value not in (None, False)), None):
        raise Refusal(f"{named} is for tables, but these parties bring {kind}.")


def read_schema(path: Path) -> Schema:
    """A schema from its file."""
    try:
        return Schema.read(path)
    except Unusable as why:
        raise Refusal(str(why)) from why


def agreed_schema(sources: Sequence[Path], *, skip_unlabelled: bool = False, **about_columns: Any) -> Schema:
    """One schema of parties' tables, in folders or files, and of the schemas that parties made of theirs."""
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
    wishes = _as_before(Wishes(**about_columns), parties, about_columns)
    if files and _one_kind(files) != TABLES:
        raise Refusal("A schema is for tables: arrays and pictures need none.")
    tables = tables_of(files, wishes.label, skip_unlabelled)
    if len(parties) + len(tables) > 1:
        check_named(wishes, _known(parties.values()) | {name for table in tables.values() for name in table.names})
    described = {name: said_of(schema, wishes) for name, schema in parties.items()}
    return merge(described | {name: describe(table, wishes) for name, table in tables.items()}, wishes)


def _known(schemas: Iterable[Schema]) -> set[str]:
    """All names of columns in parties' schemas."""
    return {name for s in schemas for name in (s.label, *s.left_out, *(column.name for column in s.columns))}


def _as_before(wishes: Wishes, parties: Mapping[str, Schema], said: Mapping[str, Any]) -> Wishes:
    """What all the schemas that are to become one say alike is not asked again."""
    for name in ("missing", "merge_case", "scale"):
        told = {getattr(schema, name) for schema in parties.values()}
        if name not in said and len(told) == 1 and told != {False}:
            wishes = replace(wishes, **{name: told.pop()})
        elif name not in said and len(told) > 1:
            raise Refusal(f"The schemas differ in {name}: say which it is to be, with --{name.replace('_', '-')}.")
    return wishes


def parties_in(source: Path) -> dict[str, Path]:
    """The parties' files or folders, by name: those of a folder, or the one that is named."""
    if source.is_dir():
        return _parties(source)
    if not source.exists() and not source.suffix:
        raise Refusal(f"There is no folder {source}.")
    path = present(source)
    if not (ending := _ending(path)):
        raise bad(path, f"is no party's file: it must be {ENDINGS}")
    name = path.name[: -len(ending)]
    check_name(name)
    return {name: path}


def _stem(source: Path) -> str:
    name = source.resolve().name
    return name[: -len(_ending(source))] if source.is_file() else name


def _one_kind(found: Mapping[str, Path]) -> str:
    """What all parties bring."""
    kinds = {name: _kind(path) for name, path in found.items()}
    first, kind = next(iter(kinds.items()))
    for name, other in kinds.items():
        if other != kind:
            raise Refusal(f"Party {name!r} brings {other} but party {first!r} {kind}: all parties must bring the same.")
    return kind


def _parties(root: Path) -> dict[str, Path]:
    """The parties' files or folders, by name."""
    if (root / "dataset.json").exists():
        raise bad(root, "is a dataset of Comity's already: use it as it is, with --data")
    found: dict[str, Path] = {}
    for path in inside(root):
        ending = _ending(path)
        if path.name.startswith("~$") or path.name.lower() in ("thumbs.db", "desktop.ini"):
            continue  # what Excel and file managers leave behind
        if path.suffix.lower() == ".xls":
            raise bad(path, "is an Excel file of the old kind: save it as .xlsx")
        if path.is_file() and not ending:
            raise bad(path, f"is no party's file: it must be {ENDINGS}, or a folder of pictures")
        name = path.name if path.is_dir() else path.name[: -len(ending)]
        check_name(name)
        if name in found:
            raise Refusal(f"Party {name!r} has two files, {found[name].name} and {path.name}: keep one of them.")
        found[name] = path
    if not found:
        raise bad(root, "is empty: put one file or folder a party into it")
    return found


def _ending(path: Path) -> str:
    """What a file's name ends with, if it can be a party's."""
    return next((ending for ending in KINDS if path.name.lower().endswith(ending)), "")


def _kind(path: Path) -> str:
    return PICTURES if path.is_dir() else KINDS[_ending(path)]


# Arrays.


def _arrays(path: Path) -> Contribution:
    """`x` and `y`, and where it has them `x_test` and `y_test`."""
    held = read_npz(path, missing=True)
    for wanted in ("x", "y", *(["x_test", "y_test"] if {"x_test", "y_test"} & set(held) else [])):
        if wanted not in held:
            raise bad(path, f"has no array called {wanted}; it has {few(held)}")
    parts = [(held["x"], held["y"])] + ([(held["x_test"], held["y_test"])] if "x_test" in held else [])
    made = []
    for x, y in parts:
        if x.dtype.kind not in "biuf" or x.ndim < 2:
            raise bad(path, f"has samples of shape {x.shape} and type {x.dtype}, but a row of numbers a sample is needed")
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
        raise bad(path, f"has samples of shape {made[0].shape[1:]} but test samples of shape {made[-1].shape[1:]}")
    y = np.concatenate([y for _, y in parts])
    return Contribution(path, np.concatenate(made), y, np.arange(len(y)) >= len(made[0]))


# Pictures.


def _pictures(found: Mapping[str, Path], size: int | None) -> dict[str, Contribution]:
    """One folder a class in each party's folder, all brought to one size."""
    files: dict[str, list[Path]] = {}
    for name, path in found.items():
        inner = inside(path)
        stray = next((p for p in inner if not p.is_dir()), None)
        if stray is not None or not inner:
            raise bad(stray or path, "is not in a folder of its class" if stray else "is empty: it must have one folder a class")
        files[name] = [picture for kind in inner for picture in picture_files(kind)]
    wanted = (size, size) if size is not None else _common_size(files)
    kinds = {name: np.array([picture.parent.name for picture in mine]) for name, mine in files.items()}
    return {
        name: Contribution(found[name], read_images(mine, wanted), kinds[name], np.zeros(len(mine), np.bool_))
        for name, mine in files.items()
    }


def _common_size(files: Mapping[str, list[Path]]) -> tuple[int, int]:
    """Height and width of all pictures; they must agree."""
    sizes = {path: read_image(path).shape[1:] for mine in files.values() for path in mine}
    first, (height, width) = next(iter(sizes.items()))
    for path, (h, w) in sizes.items():
        if (h, w) != (height, width):
            raise bad(path, f"has {h} x {w} pixels but {first} {height} x {width}: say with size what to bring them all to")
    return height, width


# Tables.


READERS = {".parquet": read_parquet, ".xlsx": read_xlsx}


def tables_of(found: Mapping[str, Path], label: str, skip_unlabelled: bool = False) -> dict[str, Table]:
    """The parties' tables; without the rows that have no label, if they are to be skipped."""
    read = {name: READERS.get(_ending(path), _csv)(path) for name, path in found.items()}
    return {name: _labelled(table, label) for name, table in read.items()} if skip_unlabelled else read


def _skipped(before: Mapping[str, Table], after: Mapping[str, Table]) -> list[str]:
    """Whose rows without a label were left out."""
    lost = {name: len(before[name]) - len(after[name]) for name in before if len(after[name]) < len(before[name])}
    told = ", ".join(f"{name} {count}" for name, count in lost.items())
    return [f"{sum(lost.values())} rows without a label were left out ({told})."] if lost else []


def _csv(path: Path) -> Table:
    return read_csv(path, delimiter=None)


def _labelled(table: Table, label: str) -> Table:
    name = next((name for name in table.names if folded(name) == folded(label)), None)
    if name is None:
        return table
    there = np.array([text != "" for text in labels_of(table[name], Schema((), label, ()))])
    if not there.any():
        raise bad(table.path, f"has no label in any row of {name!r}")
    return Table(table.path, table.names, [column[there] for column in table.columns])


def schema_of(tables: Mapping[str, Table], wishes: Wishes) -> Schema:
    """One schema of everybody's tables: each is described by itself, as whoever is alone would do it."""
    if len(tables) > 1:  # who is alone may be told of others' columns
        check_named(wishes, {name for table in tables.values() for name in table.names})
    return merge({name: describe(table, wishes) for name, table in tables.items()}, wishes)


def _tables(tables: Mapping[str, Table], schema: Schema, strict: bool) -> Brought:
    """Everybody's rows as the schema says, and what there is to say of that."""
    parties = {}
    for name, table in tables.items():
        columns = dict(zip(table.names, table.columns, strict=True))
        try:
            encoded = encode(schema, columns, len(table), str(table.path), strict=strict)
        except Unusable as why:
            raise Refusal(str(why)) from why
        parties[name] = Contribution(Path(table.path), encoded.x, labels_by(schema, table), np.zeros(len(table), np.bool_))
    names = few(column.name for column in schema.columns)
    values = {name: party.x for name, party in parties.items()}
    notes = [*_missing(schema, values), *far_from_all(schema, values)]
    return Brought(parties, f"tables with the columns {names}", tuple(notes), schema)


def _missing(schema: Schema, parties: Mapping[str, Array]) -> list[str]:
    """How much is missing, and who lacks a column altogether."""
    by_party = {name: missing_by_column(schema, x) for name, x in parties.items()}
    cells = sum(len(x) for x in parties.values()) * len(schema.columns)
    share = sum(sum(by_party[name].values()) * len(x) for name, x in parties.items()) / cells
    if not share:
        return []
    never = {name: [column for column, one in columns.items() if one == 1] for name, columns in by_party.items()}
    lacking = "".join(f"; {name} never has {few(columns)}" for name, columns in never.items() if columns)
    return [
        f"{share:.0%} of all values are missing{lacking}: numbers are filled with the mean of the party's own training samples, "
        "and a column each says where; a missing word is a row of zeros."
    ]


SHOWN = 8  # words of a column


def about_schema(schema: Schema) -> list[str]:
    """What whoever imports should know of what becomes of the columns."""
    lines = [
        f"{name!r} is left out: it {why} (to use it: --kind '{name}=words', or number)." for name, why in schema.left_out.items()
    ]
    if plain := [column.name for column in schema.columns if column.kind != "words"]:
        lines.append(f"Numbers: {few(plain)}.")
    if words := [f"{column.name} ({few(column.words, SHOWN)})" for column in schema.columns if column.kind == "words"]:
        lines.append(f"Words, each of which became a column of 0 and 1 (none set where it is missing): {'; '.join(words)}.")
    return [*lines, SCALED[schema.scale]]


SCALED = {
    "own": "Numbers are standardised, each party's by the mean and spread of its own training samples (not so: --scale none).",
    "shared": "Numbers are standardised by the mean and spread of everybody's training samples: each party's sums and squares "
    "are sent for that, and charged.",
    "fixed": "Numbers are scaled by the constants of the schema.",
    "none": "Numbers are used as they are: networks learn badly from numbers of different sizes (--scale own).",
}


# From what they bring to one dataset.


def _dataset(name: str, brought: Brought, classes: int | None, scale: str) -> Dataset:
    """All parties' samples, one party after the other."""
    parties, schema = brought.parties, brought.schema
    _check(parties)
    answers, names = _named(schema, parties, classes) if schema else _answers(parties, classes)
    x = np.concatenate([party.x for party in parties.values()])
    y = np.concatenate(answers)
    test = np.concatenate([party.test for party in parties.values()])
    kinds = max(len(schema.classes), classes or 0) if schema else len(names) or classes or int(y.max()) + 1
    if schema and not schema.classes:
        kinds = 0
    elif kinds < 2:
        raise Refusal("All samples have the same label, so there is nothing to learn.")
    if kinds > max(len(y), classes or 0):
        raise Refusal(f"The labels run up to {kinds - 1}, but there are only {len(y)} samples: number the classes 0, 1, 2, ...")
    of = np.repeat(np.arange(len(parties)), [len(party.y) for party in parties.values()])
    empty = np.isnan(x) if x.dtype != np.uint8 else np.zeros((1, 1), np.bool_)
    notes = [*brought.notes, *_told(parties, y, kinds, empty & (schema is None), test)]
    more: dict[str, Any] = {} if x.ndim == 4 else {"mean": (0.0,), "std": (1.0,)}
    if schema:
        more |= _prepared_by(schema)
    elif scale != "none":
        flags = np.isin(x, (0, 1)).all((0, *range(2, x.ndim)))
        more |= {"scale": scale, "scaled": tuple(np.flatnonzero(~flags).tolist())}
        notes.append(SCALED[scale])
    return Dataset(
        name=name,
        x=torch.from_numpy(np.ascontiguousarray(x)),
        y=torch.from_numpy(y),
        classes=kinds,
        description=f"Imported: {brought.about}",
        licence="that of whoever brought it",
        official_test=torch.from_numpy(test) if test.any() else None,
        groups={"party": Groups(tuple(parties), of)},
        home="natural(by=party)",
        missing="impute" if empty.any() or (schema and schema.marked) else "refuse",
        class_names=names,
        notes=tuple(f"{name}: {note}" for note in notes),
        **more,
    )


def _prepared_by(schema: Schema) -> dict[str, Any]:
    """What a dataset does to its values, as the schema says."""
    if schema.scale in ("own", "shared"):
        return {"schema": schema, "scale": schema.scale, "scaled": schema.scaled}
    if schema.scale == "none":
        return {"schema": schema}
    constants = [(c.mean, c.std) if c.kind == "number" else (0.0, 1.0) for c in schema.columns for _ in range(c.width)]
    return {"schema": schema, "mean": tuple(m for m, _ in constants), "std": tuple(s for _, s in constants)}


def _named(
    schema: Schema, parties: Mapping[str, Contribution], classes: int | None
) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """Labels by their numbers in the schema, and their names where these are words."""
    words = () if schema.classes == tuple(map(str, range(len(schema.classes)))) else schema.classes
    if classes is not None and not schema.classes:
        raise Refusal(f"The label {schema.label!r} is a number that is to be predicted: leave out classes.")
    if classes is not None and classes != len(schema.classes) and (words or classes < len(schema.classes)):
        raise Refusal(f"The parties' labels are {len(schema.classes)} words, not {classes}: leave out classes.")
    return [party.y for party in parties.values()], words


def _check(parties: dict[str, Contribution]) -> None:
    """All parties must agree in shape and in whether they have a test part."""
    first, model = next(iter(parties.items()))
    for name, party in parties.items():
        if party.x.shape[1:] != model.x.shape[1:]:
            raise Refusal(
                f"The samples of party {name!r} have shape {party.x.shape[1:]} but those of party {first!r} "
                f"{model.x.shape[1:]}: they must agree."
            )
        if party.x.dtype != model.x.dtype:
            raise Refusal(
                f"The samples of party {name!r} are of type {party.x.dtype} but those of party {first!r} of type "
                f"{model.x.dtype}: they must agree."
            )
        if party.test.any() != model.test.any():
            has, lacks = (name, first) if party.test.any() else (first, name)
            raise Refusal(f"Party {has!r} has a test part but party {lacks!r} has none: give all of them one, or none.")
        if party.x.dtype == np.uint8:
            continue
        if np.isinf(party.x).any():
            raise Refusal(f"Party {name!r} has infinite values: remove or fill them.")
        if party.x.ndim > 2 and np.isnan(party.x).any():
            raise Refusal(f"Party {name!r} has values that are missing, which can be filled in tables only: fill them.")


def _numbers(values: Array) -> bool:
    """Whether labels are numbers, or text that reads as such."""
    try:
        numeric(values)
    except Refusal:
        return False
    return True


def _answers(parties: dict[str, Contribution], classes: int | None) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """Labels as classes: numbers as they are, words in sorted order over all parties."""
    texts = [name for name, party in parties.items() if not _numbers(party.y)]
    if not texts:
        return [labels(party.path, numeric(party.y), classes) for party in parties.values()], ()
    for name, party in parties.items():
        if name not in texts:
            raise Refusal(f"The labels of party {name!r} are numbers but those of party {texts[0]!r} words: they must agree.")
        if (party.y == "").any():
            raise bad(party.path, f"has no label in row {int(np.argmax(party.y == '')) + 1}")
    names = sorted({str(word) for party in parties.values() for word in party.y})
    if classes is not None and classes != len(names):
        raise Refusal(f"The parties' labels are {len(names)} words, not {classes}: leave out classes.")
    return [np.searchsorted(names, party.y.astype(str)).astype(np.int64) for party in parties.values()], tuple(names)


def _told(
    parties: dict[str, Contribution], y: NDArray[np.int64], classes: int, empty: NDArray[np.bool_], test: NDArray[np.bool_]
) -> list[str]:
    """What a user should know: what is missing, unused or small."""
    notes = []
    if empty.any():
        notes.append(
            f"{empty.mean():.1%} of all values are missing: filled with the mean of the party's own training samples, "
            "and a column each says what was filled."
        )
    unused = sorted(set(range(classes)) - set(y.tolist()))
    if unused:
        notes.append(f"no sample has the label {', '.join(map(str, unused[:10]))}{' and others' if len(unused) > 10 else ''}.")
    small = [name for name, party in parties.items() if (~party.test).sum() < LEAST]
    if small:
        notes.append(f"{few(small)} with fewer than {LEAST} samples take no part, unless --partition 'natural(min=1)'.")
    if test.any():
        notes.append("each party has a test part of its own, which --test official uses; own(0.25) puts it to the rest.")
    return notes
