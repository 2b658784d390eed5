"""Two tables of UCI as they come: Adult, and Heart Disease with its four hospitals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.data.formats.common import Labels, Source, bad, folder_of, labels
from comity.data.formats.table import Table, read_csv

ADULT = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
)
ADULT_NUMBERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
INCOMES = ("<=50K", ">50K")

HEART = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
UNKNOWN = -9  # how these hospitals write what they do not know, where they do not write ?


class Heart(NamedTuple):
    """13 features a patient (NaN where missing), `num` (0 none, 1-4 disease), and the hospital by its place in HOSPITALS."""

    x: NDArray[np.float64]
    y: Labels
    site: Labels


def read_adult(path: Source) -> Table:
    """`adult.data` or `adult.test`, as str; `income` is <=50K or >50K in both, without the dot that the test file has."""
    held = read_csv(path, header=ADULT, ignore=("|",))
    table = Table(path, held.names, [*held.columns[:-1], np.strings.rstrip(held["income"], ".")])
    for name in ADULT_NUMBERS:
        table.numeric(name)
    table.codes("income", INCOMES)
    for name in (*ADULT_NUMBERS, "income"):
        if (table[name] == "").any():
            raise bad(table.place(name), f"is missing in row {int(np.argmax(table[name] == '')) + 1}")
    return table


def read_heart_site(path: Source) -> tuple[NDArray[np.float64], Labels]:
    """The features and `num` of one hospital, as in `processed.cleveland.data`."""
    table = read_csv(path, header=HEART)
    values = np.stack([table.numeric(name) for name in HEART], axis=1)
    values[values == UNKNOWN] = np.nan
    return values[:, :-1], labels(path, values[:, -1], classes=5, what="num")


def read_heart(folder: Source) -> Heart:
    """All four hospitals, from the folder that holds their `processed.*.data` (or `.data.gz`)."""
    root = folder_of(folder)
    files = [root / f"processed.{name}.data" for name in HOSPITALS]
    packed = [file.with_name(f"{file.name}.gz") for file in files]
    parts = [read_heart_site(file if file.exists() or not gz.exists() else gz) for file, gz in zip(files, packed, strict=True)]
    site = np.repeat(np.arange(len(parts), dtype=np.int64), [len(y) for _, y in parts])
    return Heart(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), site)
