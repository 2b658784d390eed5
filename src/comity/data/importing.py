"""People's own federation: a folder with one file or one sub-folder a party becomes a dataset that `--data` takes.

A party is `north.npz` (arrays), `south.csv`, `.csv.gz` or `.parquet` (a table with one row a sample), or a folder `east` with
a folder of pictures a class. Its file name is its name. All parties must bring the same kind of data, in the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data import prepared
from comity.data.dataset import Dataset
from comity.data.formats import Table, numeric, picture_files, read_csv, read_image, read_images, read_npz, read_parquet
from comity.data.formats.common import bad, few, folder_of, inside, labels, same_length, shown
from comity.data.groups import Groups
from comity.data.sets.common import planes
from comity.data.split import check_name
from comity.errors import Refusal

KINDS = {".npz": "arrays", ".csv": "a table", ".csv.gz": "a table", ".parquet": "a table"}
PICTURES = "pictures"
WORDS = 256  # a column with more different words is a name or a date, not a kind
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


def import_federation(
    source: Path,
    out: Path,
    *,
    name: str | None = None,
    label: str = "label",
    size: int | None = None,
    classes: int | None = None,
    scale: Literal["none", "own"] = "none",
) -> Dataset:
    """Bring the parties of a folder into one dataset, written to `out`, which must not exist yet.

    `label` is the column of a table that holds the classes; `size` the pixels a side that pictures are brought to; `classes`
    how many there are, where no party has the last of them. Values are used as they are, unless `scale="own"`: then each
    party's columns are standardised with the mean and spread of that party's own file.
    """
    if out.exists():
        raise Refusal(f"{out} is there already: choose another folder, or remove it.")
    root = folder_of(source)
    if out.resolve().is_relative_to(root.resolve()):
        raise Refusal(f"{out} would lie among the parties of {source}: choose a folder outside it.")
    if scale not in ("none", "own"):
        raise Refusal(f"scale must be none or own, not {shown(scale)}.")
    brought = _read(root, label, size)
    if scale == "own":
        brought = _scaled(brought)
    prepared.save(_dataset(name or root.resolve().name, brought, classes), out)
    return prepared.read(out)


def _read(root: Path, label: str, size: int | None) -> Brought:
    """Everybody's files, by what they are."""
    found = _parties(root)
    kinds = {name: _kind(path) for name, path in found.items()}
    first, kind = next(iter(kinds.items()))
    for name, other in kinds.items():
        if other != kind:
            raise Refusal(f"Party {name!r} brings {other} but party {first!r} {kind}: all parties must bring the same.")
    if kind == PICTURES:
        return Brought(_pictures(found, size), "pictures by class")
    if size is not None:
        raise Refusal(f"size is for pictures, but the parties of {root} bring {kind}.")
    if kind == "arrays":
        return Brought({name: _arrays(path) for name, path in found.items()}, "arrays")
    return _tables({name: _table(path) for name, path in found.items()}, label)


def _parties(root: Path) -> dict[str, Path]:
    """The parties' files or folders, by name."""
    if (root / "dataset.json").exists():
        raise bad(root, "is a dataset of Comity's already: use it as it is, with --data")
    found: dict[str, Path] = {}
    for path in inside(root):
        ending = _ending(path)
        if path.is_file() and not ending:
            raise bad(path, "is no party's file: it must be .npz, .csv, .csv.gz or .parquet, or a folder of pictures")
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


def _pictures(found: dict[str, Path], size: int | None) -> dict[str, Contribution]:
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


def _table(path: Path) -> Table:
    return read_parquet(path) if _ending(path) == ".parquet" else read_csv(path)


def _tables(tables: dict[str, Table], label: str) -> Brought:
    """Columns of numbers as they are, columns of words as zeros and ones, over all words that any party has."""
    first, model = next(iter(tables.items()))
    for name, table in tables.items():
        lost = next((c for c in (label, *model.names) if c not in table), None)
        if lost is not None:
            raise Refusal(f"The table of party {name!r} has no column called {shown(lost)}; it has {few(table.names)}.")
        extra = next((c for c in table.names if c not in model), None)
        if extra is not None:
            raise Refusal(f"The table of party {name!r} has a column {shown(extra)}, which that of party {first!r} has not.")
    columns = [c for c in model.names if c != label]
    if not columns:
        raise Refusal(f"The table of party {first!r} has no column but {shown(label)}, so there is nothing to learn from.")
    words = {c: _words({name: table[c] for name, table in tables.items()}, c) for c in columns}
    parties = {}
    for name, table in tables.items():
        x = np.concatenate([_encoded(table, c, words[c]) for c in columns], axis=1)
        parties[name] = Contribution(Path(table.path), x, table[label], np.zeros(len(x), np.bool_))
    many = {c: len(w) for c, w in words.items() if w}
    told = few(f"{c} ({n})" for c, n in many.items())
    notes = (f"words became a column of 0 and 1 each, for all words that any party has (none set where one is missing): {told}.",)
    return Brought(parties, f"tables with the columns {few(columns)}", notes if many else ())


def _words(parts: Mapping[str, Array], column: str) -> tuple[str, ...]:
    """All words of a column in any party; none if it is made of numbers."""
    texts = {name: values for name, values in parts.items() if not _numbers(values)}
    if not texts:
        return ()
    plain = next((name for name, values in parts.items() if name not in texts and (values.astype(str) != "").any()), None)
    if plain is not None:
        other, values = next(iter(texts.items()))
        word = next(str(v) for v in values if not _numbers(np.array([v])))
        raise Refusal(f"The column {column!r} of party {other!r} has {shown(word)}, but that of party {plain!r} only numbers.")
    found = sorted({str(v) for values in parts.values() for v in values} - {""})
    if len(found) > WORDS:
        raise Refusal(
            f"The column {column!r} has {len(found)} different words, more than {WORDS}, so it names no kinds: remove "
            "it, or make numbers of it."
        )
    return tuple(found)


def _numbers(values: Array) -> bool:
    """Whether a column is made of numbers, or of text that reads as such."""
    try:
        numeric(values)
    except Refusal:
        return False
    return True


def _encoded(table: Table, column: str, words: tuple[str, ...]) -> NDArray[np.float32]:
    """A column as numbers, or one column a word."""
    if not words:
        return table.numeric(column).astype(np.float32)[:, None]
    is_word: NDArray[np.bool_] = table[column].astype(str)[:, None] == np.array(words)
    return is_word.astype(np.float32)


# From what they bring to one dataset.


def _scaled(brought: Brought) -> Brought:
    """Each party's features with mean 0 and spread 1, by its own training samples; zeros and ones stay what they are."""
    made = {}
    for name, party in brought.parties.items():
        if party.x.dtype == np.uint8 or party.x.ndim > 3:
            raise Refusal("scale is for tables and signals: pictures are used as they are.")
        over = (0, *range(2, party.x.ndim))  # a signal's channel is one feature
        learn = party.x[~party.test].astype(np.float64)
        count = (~np.isnan(learn)).sum(over, keepdims=True).clip(1)
        mean = np.nansum(learn, over, keepdims=True) / count
        std = np.sqrt(np.nansum((learn - mean) ** 2, over, keepdims=True) / count)
        flags = np.isin(learn, (0, 1)).all(over, keepdims=True)
        mean = np.where(flags, 0, mean)
        std = np.where(flags | (std == 0), 1, std)
        made[name] = party._replace(x=((party.x - mean) / std).astype(np.float32))
    told = (
        "columns were standardised at import with the mean and spread of each party's own file (of its training part where "
        "it has a test part)."
    )
    return replace(brought, parties=made, notes=(*brought.notes, told))


def _dataset(name: str, brought: Brought, classes: int | None) -> Dataset:
    """All parties' samples, one party after the other."""
    parties = brought.parties
    _check(parties)
    answers, names = _answers(parties, classes)
    x = np.concatenate([party.x for party in parties.values()])
    y = np.concatenate(answers)
    test = np.concatenate([party.test for party in parties.values()])
    kinds = len(names) or classes or int(y.max()) + 1
    if kinds < 2:
        raise Refusal("All samples have the same label, so there is nothing to learn.")
    if kinds > max(len(y), classes or 0):
        raise Refusal(f"The labels run up to {kinds - 1}, but there are only {len(y)} samples: number the classes 0, 1, 2, ...")
    of = np.repeat(np.arange(len(parties)), [len(party.y) for party in parties.values()])
    empty = np.isnan(x) if x.dtype != np.uint8 else np.zeros((1, 1), np.bool_)
    notes = [*brought.notes, *_told(parties, y, kinds, empty, test)]
    constants: dict[str, Any] = {} if x.ndim == 4 else {"mean": (0.0,), "std": (1.0,)}
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
        missing="impute" if empty.any() else "refuse",
        class_names=names,
        notes=tuple(f"{name}: {note}" for note in notes),
        **constants,
    )


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
