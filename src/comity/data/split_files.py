"""Write each party's samples of a split to a file of its own (`comity data split`)."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from comity.data.dataset import Dataset
from comity.data.federation import Federation
from comity.data.library import load
from comity.data.preparation import Schema
from comity.errors import UsageError

PATIENT = "patient_id"
"""The column or array with the number of each sample's patient."""


def write_party_files(federation: Federation, data: str, out: Path) -> list[Path]:
    """Write one file per party to a new folder.

    Samples of an imported table become a csv file with the original columns. Other samples become
    an npz file with `x` and `y` (training and validation) and `x_test` and `y_test`. Values are
    those of the dataset, before scaling. If the dataset names patients, the column or array
    `patient_id` holds their numbers, for an import with `--group patient_id`.

    Args:
        federation: the parties to write, with their split.
        data: name or path of the dataset that the split belongs to.
        out: the folder, which must not exist.

    Returns:
        The paths of the files.

    Raises:
        UsageError: if `out` exists, or the split has feature shifts.
    """
    if out.exists():
        raise UsageError(f"{out} is there already: choose another --out.")
    if any(share.shift for share in federation.split.parties.values()):
        raise UsageError(
            "Samples with a feature shift cannot be written to files: leave out the shift."
        )
    dataset = load(data)
    names = dataset.class_names or tuple(map(str, range(dataset.classes)))
    out.mkdir(parents=True)
    paths = []
    for name in federation.names:
        share = federation.split.parties[name]
        train, test = sorted(share.train + share.validation), sorted(share.test)
        labels = share.labels or tuple(range(dataset.classes))
        y = np.array(labels)[dataset.y.numpy()]
        if dataset.schema:
            path = out / f"{name}.csv"
            _write_table(path, dataset, dataset.schema, sorted(train + test), [names[k] for k in y])
        else:
            path = out / f"{name}.npz"
            arrays = {"x": dataset.x.numpy(), "y": y}
            if dataset.patients is not None:
                arrays[PATIENT] = dataset.patients
            parts = {key: values[train] for key, values in arrays.items()}
            parts |= {f"{key}_test": values[test] for key, values in arrays.items()}
            np.savez_compressed(path, **parts)
        paths.append(path)
    return paths


def _write_table(
    path: Path, dataset: Dataset, schema: Schema, rows: list[int], labels: list[str]
) -> None:
    """Write rows with the original columns; missing values become empty cells."""
    x = dataset.x.numpy()
    patients = [] if dataset.patients is None else [PATIENT]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*patients, *(column.name for column in schema.columns), schema.label])
        for row in rows:
            cells = [] if dataset.patients is None else [str(dataset.patients[row])]
            start = 0
            for column in schema.columns:
                values = x[row, start : start + column.width]
                start += column.width
                if column.kind == "words":
                    cells.append(column.words[int(values.argmax())] if values.any() else "")
                else:
                    cells.append(_text(values[0]))
            writer.writerow([*cells, labels[row]])


def _text(value: np.float32) -> str:
    """The shortest text of a number that reads back as the same number; "" if missing."""
    if np.isnan(value):
        return ""
    return str(int(value)) if value == int(value) else str(value)
