"""Predict with this model: python predict.py NEW.csv [--out PREDICTIONS.csv] [--id COLUMN]

NEW has samples as the party has them, before any scaling: a table as csv or xlsx (with the party's
column names, in any order; cells may be missing), or an array `x` in an npz or npy file. Pictures
may also be files, or a folder of files. For each row, the output has the predicted class, its
probability, and the probability of each class, and before that the columns that identify the row:
those of --id or, without it, those that the schema has left out as identifiers. A text that a
spreadsheet would run as a formula, such as =1+1, is written with an apostrophe in front.

A row that the model cannot take is refused: it has no prediction, and a line on stderr names it and
says why. The exit code is 0 if all rows have a prediction, 3 if some were refused, and 1 if there
is no prediction at all. The script needs torch and numpy; Pillow for pictures; openpyxl for xlsx.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.preparation import (
    NUMBER,
    Encoded,
    Schema,
    Unusable,
    cell_text,
    conversion,
    encode,
    fill_missing,
    find_column,
    normalise,
    read_table,
)

HERE = Path(__file__).resolve().parent
ROWS = 512  # at a time
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")


IDENTIFIER = "looks like an identifier"
"""How the reason begins for which a schema leaves out a column that identifies rows."""
SOME_REFUSED = 3  # the exit code if some rows have no prediction


class Samples(NamedTuple):
    """The samples of a file."""

    x: NDArray[Any]
    """The samples that can be read, as numbers (NaN: missing)."""
    rows: list[int]
    """The number of each of them in the file, from 1 on."""
    refused: Mapping[int, str]
    """Why the other rows are refused, by number."""
    warnings: tuple[str, ...]
    ids: Mapping[str, Sequence[str]]
    """The columns that identify rows, by name, with a text for each row of the file."""


class Predictions(NamedTuple):
    """The predictions for the rows of a file."""

    names: list[str]
    """The names of the classes; empty if the model predicts a number."""
    values: NDArray[np.float32]
    """The probabilities of each row (rows x classes), or one number for each row."""
    rows: list[int]
    """The number of each of these rows in the file, from 1 on."""
    refused: dict[int, str]
    """Why the other rows have no prediction, by number."""
    warnings: tuple[str, ...]
    ids: Mapping[str, Sequence[str]]
    """The columns that identify rows, by name, with a text for each row of the file."""


def read_samples(
    path: Path,
    settings: Mapping[str, Any],
    schema: Schema | None,
    allow_unknown: bool,
    id_columns: Sequence[str],
) -> Samples:
    """Read the samples of a file. Raises `Unusable` if the file cannot be used at all."""
    kind = path.suffix.lower()
    if kind in (".npz", ".npy"):
        return read_array(path, settings, id_columns)
    if path.is_dir() or kind in PICTURES:
        return read_pictures(path, settings, id_columns)
    if schema is None:
        raise Unusable(f"{path} is no array (.npz, .npy), which this model takes.")
    if not path.is_file():
        raise Unusable(f"There is no file {path}.")
    table = read_sheet(path) if kind == ".xlsx" else read_table(path)
    return encode_table(path, table, schema, allow_unknown, id_columns)


Encoder = Callable[[Sequence[int | None]], Encoded]
"""Encodes some rows of a table, by number from 0 on; None is a row of missing cells."""


def encode_table(
    path: Path,
    table: Mapping[str, list[Any]],
    schema: Schema,
    allow_unknown: bool,
    id_columns: Sequence[str],
) -> Samples:
    """Encode the rows of a table by the schema, except those that do not follow it."""
    count = len(next(iter(table.values()), ()))

    def encode_rows(rows: Sequence[int | None]) -> Encoded:
        cells = {
            name: [None if row is None else column[row] for row in rows]
            for name, column in table.items()
        }
        hint = ", or take unknown words as missing with --allow-unknown"
        return encode(schema, cells, len(rows), str(path), allow_unknown=allow_unknown, hint=hint)

    encode_rows(())  # refuses a table that lacks a column
    refused = {
        # After as many empty rows as are before it, so that the message has the row's number.
        row + 1: refusal_of(encode_rows, (*[None] * row, row))
        for row in find_refused(encode_rows, range(count))
    }
    rows = [row for row in range(count) if row + 1 not in refused]
    encoded = encode_rows(rows)
    return Samples(
        encoded.x,
        [row + 1 for row in rows],
        refused,
        encoded.warnings,
        read_ids(path, table, schema, id_columns),
    )


def find_refused(encode_rows: Encoder, rows: Sequence[int]) -> list[int]:
    """The rows that an encoder refuses. Few such rows are found fast."""
    if not refusal_of(encode_rows, rows):
        return []
    if len(rows) == 1:
        return list(rows)
    half = len(rows) // 2
    return find_refused(encode_rows, rows[:half]) + find_refused(encode_rows, rows[half:])


def refusal_of(encode_rows: Encoder, rows: Sequence[int | None]) -> str:
    """Why an encoder refuses these rows; empty if it does not."""
    try:
        encode_rows(rows)
    except Unusable as why:
        return str(why)
    return ""


def read_ids(
    path: Path, table: Mapping[str, Sequence[Any]], schema: Schema, id_columns: Sequence[str]
) -> dict[str, list[str]]:
    """The columns of a table that identify its rows: those that the user names or, without these,
    those that the schema has left out as identifiers.
    """
    names = list(id_columns)
    for name in names:
        if name not in table:
            raise Unusable(f"{path} has no column {name!r} (--id); it has {', '.join(table)}.")
    if not names:
        identifiers = [name for name, why in schema.left_out.items() if why.startswith(IDENTIFIER)]
        columns = [find_column(table, name, (), str(path)) for name in identifiers]
        names = [name for name in columns if name is not None]
    return {name: [id_text(cell) for cell in table[name]] for name in names}


def id_text(cell: Any) -> str:
    """An identifier as the file has it: 0012 keeps its zeros. A number of Excel is a text."""
    return cell if isinstance(cell, str) else cell_text(cell)


def read_array(path: Path, settings: Mapping[str, Any], id_columns: Sequence[str]) -> Samples:
    """Read the samples in an npz or npy file; in an npz file, other arrays may identify them."""
    try:
        content = np.load(path, allow_pickle=False)
        arrays = dict(content) if path.suffix.lower() == ".npz" else {"x": content}
        x = arrays["x"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as why:
        raise Unusable(f"{path} holds no array called x.") from why
    x = as_samples(x, settings, path)
    ids = {}
    for name in id_columns:
        if name not in arrays or arrays[name].shape != (len(x),):
            raise Unusable(
                f"{path} has no array {name!r} (--id) with one value for each of its samples."
            )
        ids[name] = [id_text(value) for value in arrays[name].tolist()]
    return Samples(x, list(range(1, len(x) + 1)), {}, (), ids)


def read_sheet(path: Path) -> dict[str, list[Any]]:
    """Return the columns of the first sheet of an Excel file, by name."""
    try:
        import openpyxl
    except ImportError as why:
        raise Unusable(
            f"{path} can only be read with openpyxl: pip install openpyxl, or save it as csv."
        ) from why
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        rows = [
            row
            for row in book.worksheets[0].iter_rows(values_only=True)
            if any(cell is not None for cell in row)
        ]
    except Exception as why:  # openpyxl raises many kinds of errors
        raise Unusable(f"{path} is no Excel file (.xlsx) that can be read.") from why
    if len(rows) < 2:
        raise Unusable(f"{path} has no rows.")
    return {
        str(name).strip(): [row[k] for row in rows[1:]]
        for k, name in enumerate(rows[0])
        if name is not None
    }


def as_samples(x: NDArray[Any], settings: Mapping[str, Any], path: Path) -> NDArray[Any]:
    """Return an array in the shape that the model takes; pictures may have their channels last."""
    indicators = len(settings["preprocess"]["marked"])
    first, *rest = settings["shape"]
    expected = (first - indicators, *rest)
    if x.dtype.kind not in "biuf":
        raise Unusable(f"{path} holds no numbers.")
    if len(expected) == 3 and x.ndim == 3:
        x = x[:, None]
    if (
        len(expected) == 3
        and x.ndim == 4
        and x.shape[1:] != expected
        and x.shape[-1] == expected[0]
    ):
        x = x.transpose(0, 3, 1, 2)
    if x.shape[1:] != expected:
        raise Unusable(
            f"{path} has samples of shape {tuple(x.shape[1:])}, but this model takes {expected}."
        )
    most = 1 if settings["preprocess"]["divisor"] == 1 else 255
    if len(expected) == 3 and len(x) and not (x.min() >= 0 and x.max() <= most):
        raise Unusable(
            f"{path} has pictures with values from {x.min():g} to {x.max():g}, but this model takes"
            f" 0 to {most}."
        )
    return x


FAR = 6.0  # standard deviations of the training values
UNUSUAL, USUAL = 2.0, 1.5  # the same: a number in the wrong unit, and in the right one


def warn_of_units(
    schema: Schema, samples: Samples, mean: Sequence[float], std: Sequence[float]
) -> dict[str, str]:
    """Return a warning for each column with numbers that would be usual in another unit."""
    if schema.scale == "none":
        return {}
    at = 0
    unit_warnings: dict[str, str] = {}
    for column in schema.columns:
        x = samples.x[:, at]
        middle, spread = (float(c[at if len(c) > 1 else 0]) for c in (mean, std))
        at += column.width
        if column.kind != "number" or not column.convert:
            continue
        here = column.file_unit or column.unit
        factor, offset = conversion(column, here)
        in_file = (x - offset) / factor
        for unit in (column.unit, *column.convert):
            if unit == here:
                continue
            factor, offset = conversion(column, unit)
            converted = in_file * factor + offset
            rows = np.flatnonzero(
                (np.abs(x - middle) > UNUSUAL * spread)
                & (np.abs(converted - middle) <= USUAL * spread)
            )
            if rows.size:
                first = int(rows[0])
                more = f" (and {rows.size - 1} more rows)" if rows.size > 1 else ""
                unit_warnings[column.name] = (
                    f"{column.name!r} is {in_file[first]:g} in row {samples.rows[first]}{more},"
                    f" unusual in {here} but usual in {unit}: if it is in {unit}, write the unit"
                    f" into the header, as in {column.name} [{unit}]."
                )
                break
    return unit_warnings


def warn_of_outliers(
    schema: Schema, samples: Samples, scaled: NDArray[Any], explained: Mapping[str, str]
) -> list[str]:
    """Return a warning for each column with a number far from all training values.

    `explained` has the columns that have another warning.
    """
    if schema.scale == "none":
        return []
    at, outliers = 0, []
    for column in schema.columns:
        rows = np.flatnonzero(np.abs(scaled[:, at]) > FAR)
        if column.kind == "number" and column.name not in explained and rows.size:
            first = int(rows[0])
            outliers.append(
                f"{column.name!r} is {samples.x[first, at]:g} in row {samples.rows[first]}, far"
                " from all that this model learned from."
            )
        at += column.width
    return outliers


def read_pictures(path: Path, settings: Mapping[str, Any], id_columns: Sequence[str]) -> Samples:
    """Read files of pictures, in the order of their names, and resize them for the model."""
    files = (
        sorted(p for p in path.rglob("*") if p.suffix.lower() in PICTURES)
        if path.is_dir()
        else [path]
    )
    if not files:
        raise Unusable(f"{path} holds no pictures.")
    if len(settings["shape"]) != 3:
        raise Unusable(f"{path} holds pictures, but this model takes tables: name a file.")
    if id_columns:
        raise Unusable(f"{path} holds pictures, which have no column {id_columns[0]!r} (--id).")
    try:
        from PIL import Image
    except ImportError as why:
        raise Unusable(
            f"{path} can only be read with Pillow: pip install pillow, or give an npz file."
        ) from why
    channels, height, width = settings["shape"]
    pictures, rows, refused = [], [], {}
    for row, file in enumerate(files, 1):
        try:
            with Image.open(file) as picture:
                plain = picture.convert("L" if channels == 1 else "RGB")
                plain = (
                    plain
                    if plain.size == (width, height)
                    else plain.resize((width, height), Image.Resampling.BICUBIC)
                )
                pictures.append(
                    np.asarray(plain, np.uint8).reshape(height, width, -1).transpose(2, 0, 1)
                )
                rows.append(row)
        except OSError:
            refused[row] = f"{file} is no picture that can be read."
    x = np.stack(pictures) if pictures else np.zeros((0, *settings["shape"]), np.uint8)
    x = x if settings["preprocess"]["divisor"] != 1 else x / np.float32(255)
    names = [str(file.relative_to(path)) if path.is_dir() else file.name for file in files]
    return Samples(as_samples(x, settings, path), rows, refused, (), {"file": names})


def predict(path: Path, allow_unknown: bool = False, id_columns: Sequence[str] = ()) -> Predictions:
    """Predict for each row of a file that the model can take.

    Arguments:
        path: a table, an array or pictures
        allow_unknown: treat words that the model never saw as missing
        id_columns: the columns that identify rows; default: those of the schema

    Raises `Unusable` if there is no prediction for any row.
    """
    settings = json.loads((HERE / "model.json").read_text(encoding="utf-8"))
    schema = Schema.read(HERE / "schema.json") if (HERE / "schema.json").exists() else None
    samples = read_samples(path, settings, schema, allow_unknown, id_columns)
    how = settings["preprocess"]
    x = normalise(samples.x, how["divisor"], how["mean"], how["std"])
    warnings = samples.warnings
    if schema is not None:
        units = warn_of_units(schema, samples, how["mean"], how["std"])
        warnings = (
            *warnings,
            *units.values(),
            *warn_of_outliers(schema, samples, x, units),
        )
    fill = next(iter(how["fills"].values()), None)
    if fill is not None:
        x = fill_missing(x, fill, how["marked"])
    is_usable = np.asarray(np.isfinite(x).all(axis=tuple(range(1, x.ndim))))
    refused = dict(samples.refused)
    for row, usable in zip(samples.rows, is_usable, strict=True):
        if not usable:
            refused[row] = (
                f"{path} has values in row {row} that are missing or not finite, which this model"
                " cannot take."
            )
    x = x[is_usable]
    if not len(x):
        reason = refused[min(refused)] if refused else f"{path} has no rows."
        raise Unusable(
            f"All {len(refused)} rows are refused; the first: {reason}"
            if len(refused) > 1
            else reason
        )
    if not (HERE / "model.pt2").exists():
        raise Unusable(
            "This network could not be exported for torch alone: use comity.studies.export.load"
            " in Python."
        )
    model = torch.export.load(HERE / "model.pt2").module()
    with torch.no_grad():
        parts = [model(torch.from_numpy(x[at : at + ROWS])) for at in range(0, len(x), ROWS)]
    scores = torch.cat(parts)
    if settings["classes"]:
        names, values = list(settings["class_names"]), scores.softmax(1).numpy()
    else:
        mean, std = how["label"]
        names, values = [], (scores * std + mean).numpy()
    rows = [row for row in samples.rows if row not in refused]
    return Predictions(names, values, rows, refused, warnings, samples.ids)


def escape_terminal(text: str) -> str:
    """Return a text from a file, with control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""How a cell begins that spreadsheets take for a formula."""


def as_cell(text: str) -> str:
    """Return a text as a csv cell that spreadsheets do not run: one that would be a formula gets an
    apostrophe in front. Numbers stay as they are.
    """
    is_formula = text.startswith(RUN_BY_SPREADSHEETS) and not NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


def table_of(predictions: Predictions) -> list[list[object]]:
    """The rows of the csv file, the first with the names of the columns."""
    names = [escape_terminal(name) for name in predictions.names]
    ids = {
        as_cell(escape_terminal(name)): [as_cell(escape_terminal(text)) for text in texts]
        for name, texts in predictions.ids.items()
    }
    answers = ["probability", *(f"p({name})" for name in names)] if names else []
    table: list[list[object]] = [["row", *ids, "prediction", *answers]]
    for row, values in zip(predictions.rows, predictions.values, strict=True):
        if names:
            best = int(values.argmax())
            probabilities = [f"{p:.6f}" for p in values]
            cells = [as_cell(names[best]), probabilities[best], *probabilities]
        else:
            cells = [f"{values[0]:.6g}"]
        table.append([row, *(texts[row - 1] for texts in ids.values()), *cells])
    return table


def describe_refusal(row: int, why: str, ids: Mapping[str, Sequence[str]]) -> str:
    """One line about a row without a prediction, with the texts that identify it."""
    identity = ", ".join(f"{name} {texts[row - 1]}" for name, texts in ids.items())
    return f"row {row}{f' ({identity})' if identity else ''} is refused: {why}"


def main() -> None:
    """Parse the arguments, predict, and write the table."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("new", type=Path)
    options.add_argument("--out", type=Path, help="a csv file (default: print to the screen)")
    options.add_argument(
        "--id",
        action="append",
        default=[],
        metavar="COLUMN",
        help="a column to copy to the output, which identifies rows; may be repeated",
    )
    options.add_argument(
        "--allow-unknown",
        action="store_true",
        help="treat words that the model never saw as missing",
    )
    args = options.parse_args()
    try:
        predictions = predict(args.new, args.allow_unknown, args.id)
    except Unusable as why:
        sys.exit(escape_terminal(str(why)))
    for warning in predictions.warnings:
        print(escape_terminal(warning), file=sys.stderr)
    refused = predictions.refused
    for row in sorted(refused):
        line = describe_refusal(row, refused[row], predictions.ids)
        print(escape_terminal(line), file=sys.stderr)
    table = table_of(predictions)
    if args.out:
        with args.out.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(table)
        print(f"{len(table) - 1} predictions are in {args.out}")
    else:
        csv.writer(sys.stdout, lineterminator="\n").writerows(table)
    if refused:
        count = len(refused) + len(predictions.rows)
        print(f"{len(refused)} of {count} rows were refused.", file=sys.stderr)
        sys.exit(SOME_REFUSED)


if __name__ == "__main__":
    main()
