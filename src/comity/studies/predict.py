"""Predict with this model: python predict.py NEW.csv [--out PREDICTIONS.csv] [--allow-unknown]

NEW has samples as the party has them, before any scaling: a table as csv or xlsx (with the party's
column names, in any order; cells may be missing), or an array `x` in an npz or npy file. Pictures
may also be files, or a folder of files. For each row, the output has the predicted class, its
probability, and the probability of each class. A class whose name a spreadsheet would run as a
formula, such as =1+1, is written with an apostrophe in front. The script needs torch and numpy;
Pillow for pictures; openpyxl for xlsx.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.preparation import (
    NUMBER,
    Schema,
    Unusable,
    encode,
    fill_missing,
    normalise,
    read_table,
)

HERE = Path(__file__).resolve().parent
ROWS = 512  # at a time
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")


def values_of(
    path: Path, settings: Mapping[str, Any], schema: Schema | None, allow_unknown: bool
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the samples of a file as numbers (NaN: missing), and warnings about them."""
    kind = path.suffix.lower()
    if kind in (".npz", ".npy"):
        try:
            content = np.load(path, allow_pickle=False)
            x = content["x"] if kind == ".npz" else content
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as why:
            raise Unusable(f"{path} holds no array called x.") from why
        return as_samples(x, settings, path), ()
    if path.is_dir() or kind in PICTURES:
        return as_samples(read_pictures(path, settings), settings, path), ()
    if schema is None:
        raise Unusable(f"{path} is no array (.npz, .npy), which this model takes.")
    if not path.is_file():
        raise Unusable(f"There is no file {path}.")
    table = read_sheet(path) if kind == ".xlsx" else read_table(path)
    hint = ", or take unknown words as missing with --allow-unknown"
    encoded = encode(
        schema,
        table,
        len(next(iter(table.values()), ())),
        str(path),
        allow_unknown=allow_unknown,
        hint=hint,
    )
    return encoded.x, encoded.warnings


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


def warn_of_outliers(schema: Schema, values: NDArray[Any], scaled: NDArray[Any]) -> list[str]:
    """Return a warning for each column with a number far from all training values."""
    if schema.scale == "none":
        return []
    at, outliers = 0, []
    for column in schema.columns:
        if column.kind == "number" and (rows := np.flatnonzero(np.abs(scaled[:, at]) > FAR)).size:
            row = int(rows[0])
            outliers.append(
                f"{column.name!r} is {values[row, at]:g} in row {row + 1}, far from all that this"
                " model learned from."
            )
        at += column.width
    return outliers


def read_pictures(path: Path, settings: Mapping[str, Any]) -> NDArray[Any]:
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
    try:
        from PIL import Image
    except ImportError as why:
        raise Unusable(
            f"{path} can only be read with Pillow: pip install pillow, or give an npz file."
        ) from why
    channels, height, width = settings["shape"]
    pictures = []
    for file in files:
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
        except OSError as why:
            raise Unusable(f"{file} is no picture that can be read.") from why
    x = np.stack(pictures)
    return x if settings["preprocess"]["divisor"] != 1 else x / np.float32(255)


def predict(
    path: Path, allow_unknown: bool = False
) -> tuple[list[str], NDArray[np.float32], tuple[str, ...]]:
    """Return the class names, the probabilities of each row (rows x classes), and warnings.

    If the model predicts a number, there are no class names, and one number per row.
    """
    settings = json.loads((HERE / "model.json").read_text(encoding="utf-8"))
    schema = Schema.read(HERE / "schema.json") if (HERE / "schema.json").exists() else None
    values, warnings = values_of(path, settings, schema, allow_unknown)
    how = settings["preprocess"]
    x = normalise(values, how["divisor"], how["mean"], how["std"])
    if schema is not None:
        warnings = (*warnings, *warn_of_outliers(schema, values, x))
    fill = next(iter(how["fills"].values()), None)
    if fill is not None:
        x = fill_missing(x, fill, how["marked"])
    if not np.isfinite(x).all():
        raise Unusable(
            f"{path} has values that are missing or not finite, which this model cannot take."
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
    if not settings["classes"]:
        mean, std = how["label"]
        return [], (scores * std + mean).numpy(), warnings
    return list(settings["class_names"]), scores.softmax(1).numpy(), warnings


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


def main() -> None:
    """Parse the arguments, predict, and write the table."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("new", type=Path)
    options.add_argument("--out", type=Path, help="a csv file (default: print to the screen)")
    options.add_argument(
        "--allow-unknown",
        action="store_true",
        help="treat words that the model never saw as missing",
    )
    args = options.parse_args()
    try:
        names, likely, warnings = predict(args.new, args.allow_unknown)
    except Unusable as why:
        sys.exit(escape_terminal(str(why)))
    for warning in warnings:
        print(escape_terminal(warning), file=sys.stderr)
    names = [escape_terminal(name) for name in names]
    rows: list[list[object]] = [
        ["row", "prediction", "probability", *(f"p({name})" for name in names)]
    ]
    if not names:
        rows = [
            ["row", "prediction"],
            *([row, f"{number[0]:.6g}"] for row, number in enumerate(likely, 1)),
        ]
        likely = likely[:0]
    for row, probabilities in enumerate(likely, 1):
        best = int(probabilities.argmax())
        formatted = [f"{p:.6f}" for p in probabilities]
        rows.append([row, as_cell(names[best]), formatted[best], *formatted])
    if args.out:
        with args.out.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
        print(f"{len(rows) - 1} predictions are in {args.out}")
    else:
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
