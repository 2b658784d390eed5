"""False alarms and missed units of the checks of tables, on real tables without known faults.

    python benchmarks/table_alarms.py [--rows 8000] [--draws 10]

The tables are heart's four hospitals, Adult by each of its columns of words and by chance, and the
tables of scikit-learn by chance. Each is written as one file per party. Warnings about codes, units,
words and rows of two parties are counted at the import, at the merging of descriptions, and at a site
that imports alone by the merged schema. Then the numbers of two of five parties are multiplied by the
factor of a conversion, in every column whose median is positive, and it is counted in how many columns
that is noticed.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets

from comity.data.files import data_folders
from comity.data.importing import read_federation
from comity.data.tables import common_schema

Rows = list[list[str]]
Federation = dict[str, Rows]
"""By party: the rows."""
ALARMS = {
    "code": r"if that means missing",
    "typing error": r"a typing error\?",
    "unit": r"another unit\?|instead of|far from the medians",
    "words": r"if words mean the same|in common",
    "label words": r"say which words mean the same|class of its own|most parties have the labels",
    "shared rows": r"identical to rows of",
}
FEWEST = 30
"""Rows of the smallest party."""
MOST_COLUMNS = 20
"""Wider tables are left out where each column is converted in turn."""
FACTORS = (18.02, 88.42, 10.0, 2.54, 2.205)


def main() -> None:
    """Print a table of alarms, and one of missed units."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=8000, help="rows of Adult")
    options.add_argument("--draws", type=int, default=10, help="random divisions of each table")
    args = options.parse_args()
    for name, header, label, federation in federations(args.rows, args.draws):
        found = alarms(header, label, federation)
        print(f"{name:34} {len(federation):3} parties ", dict(found) or "none", flush=True)
    noticed: Counter[float] = Counter()
    tried: Counter[float] = Counter()
    for name, header, label, federation in federations(args.rows, 1):
        if "by chance" in name and len(header) <= MOST_COLUMNS:
            for factor, is_noticed in converted(header, label, federation):
                tried[factor] += 1
                noticed[factor] += is_noticed
    for factor in FACTORS:
        print(f"factor {factor:6}: noticed in {noticed[factor]} of {tried[factor]} columns")


def find(name: str) -> Path:
    return next(path for folder in data_folders() if (path := folder / name).exists())


def federations(most: int, draws: int) -> Iterator[tuple[str, list[str], str, Federation]]:
    """Name, header, label and rows by party of each federation."""
    with find("heart_disease_4_hospitals.csv").open(encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    yield "heart by hospital", *by_column(header, rows, "site", "num")
    with gzip.open(find("adult_train.csv.gz"), "rt", encoding="utf-8") as text:
        header, *rows = list(csv.reader(text))
    rows = rows[:most]
    for name in ("workclass", "marital_status", "occupation", "race", "sex", "relationship"):
        yield f"adult by {name}", *by_column(header, rows, name, "income")
    tables = {"adult": (header, rows, "income")}
    for name in ("breast_cancer", "wine", "iris"):
        data = getattr(datasets, f"load_{name}")()
        names = [*map(str, data.feature_names), "label"]
        words = [str(data.target_names[k]) for k in data.target]
        content = [[*map(repr, x.tolist()), y] for x, y in zip(data.data, words, strict=True)]
        tables[name] = (names, content, "label")
    for name, (names, content, label) in tables.items():
        for seed in range(draws):
            order = np.random.default_rng(seed).permutation(len(content))
            parts = np.array_split(order, 5)
            federation = {f"p{k}": [content[i] for i in part] for k, part in enumerate(parts)}
            yield f"{name} by chance, draw {seed}", names, label, federation


def by_column(
    header: list[str], rows: Rows, by: str, label: str
) -> tuple[list[str], str, Federation]:
    """A table with one party for each word of a column, which is left out."""
    place = header.index(by)
    federation: Federation = {}
    for row in rows:
        name = re.sub(r"\W+", "-", row[place]).strip("-") or "unknown"
        federation.setdefault(name, []).append([*row[:place], *row[place + 1 :]])
    large = {name: rows for name, rows in federation.items() if len(rows) >= FEWEST}
    return [*header[:place], *header[place + 1 :]], label, large


def write(folder: Path, header: list[str], federation: Federation) -> dict[str, Path]:
    files = {}
    for name, rows in federation.items():
        files[name] = folder / f"{name}.csv"
        with files[name].open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    return files


def alarms(header: list[str], label: str, federation: Federation) -> Counter[str]:
    """How many warnings of each kind there are, each with where it was shown."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write(folder, header, federation)
        options: dict[str, Any] = {"label": label, "merge_case": False}
        count(found, read_federation(files, "t", **options).warnings, "import")
        descriptions = []
        for party, file in files.items():
            described = common_schema([file], medians=True, **options)
            descriptions.append(folder / f"{party}.json")
            described.schema.write(descriptions[-1])
        merged = common_schema(descriptions, **options)
        count(found, merged.warnings, "merge")
        for party, file in files.items():
            alone = read_federation({party: file}, "t", schema=merged.schema)
            count(found, [w for w in alone.warnings if "far from the medians" in w], "site")
    return found


def count(found: Counter[str], warnings: tuple[str, ...] | list[str], where: str) -> None:
    for warning in warnings:
        for kind, pattern in ALARMS.items():
            if re.search(pattern, warning):
                found[f"{kind} ({where})"] += 1


def converted(
    header: list[str], label: str, federation: Federation
) -> Iterator[tuple[float, bool]]:
    """For each column and factor: whether other units at two of five parties are noticed."""
    for place, column in enumerate(header):
        cells = [row[place] for rows in federation.values() for row in rows]
        numbers = [float(cell) for cell in cells if re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell)]
        is_number = len(numbers) > len(cells) / 2 and len({*numbers}) > 10
        if column == label or not is_number or np.median(numbers) <= 0:
            continue
        for factor in FACTORS:
            other = {
                name: [[*r[:place], repr(float(r[place]) * factor), *r[place + 1 :]] for r in rows]
                if name in ("p1", "p3")
                else rows
                for name, rows in federation.items()
            }
            with tempfile.TemporaryDirectory() as folder:
                files = write(Path(folder), header, other)
                warnings = read_federation(files, "t", label=label).warnings
            yield factor, any(f"{column} is about" in warning for warning in warnings)


if __name__ == "__main__":
    main()
