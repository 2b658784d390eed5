"""The Adult table of UCI in its original files."""

from __future__ import annotations

import numpy as np

from comity.data.formats.common import Source, file_error
from comity.data.formats.table import RawTable, read_csv

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


def read_adult(path: Source) -> RawTable:
    """Read `adult.data` or `adult.test` as str.

    `income` is <=50K or >50K in both; the dot at its end in the test file is removed.
    """
    raw = read_csv(path, header=ADULT, ignore=("|",))
    table = RawTable(path, raw.names, [*raw.columns[:-1], np.strings.rstrip(raw["income"], ".")])
    for name in ADULT_NUMBERS:
        table.numeric(name)
    table.codes("income", INCOMES)
    for name in (*ADULT_NUMBERS, "income"):
        if (table[name] == "").any():
            raise file_error(
                table.place(name), f"is missing in row {int(np.argmax(table[name] == '')) + 1}"
            )
    return table
