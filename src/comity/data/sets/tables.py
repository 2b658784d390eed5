"""Tables with one row per person: Adult and heart disease."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.files import FilePaths
from comity.data.formats import RawTable, codes, read_adult, read_csv
from comity.data.formats.common import labels
from comity.data.groups import Groups
from comity.data.importing import preprocessing_options, read_federation
from comity.data.sets.common import build_dataset
from comity.data.sets.descriptions import Description, register_datasets
from comity.data.tables import OWN_MEANS, read_schema


def one_hot(column: NDArray[Any], words: tuple[str, ...], what: str) -> NDArray[np.float32]:
    """One-hot encode a column of words; an unknown word is a row of zeros."""
    positions = codes(column, words, what)
    encoded = np.zeros((len(positions), len(words)), dtype=np.float32)
    places = np.flatnonzero(positions >= 0)
    encoded[places, positions[places]] = 1
    return encoded


def _adult(card: Description, train: RawTable, test: RawTable) -> Dataset:
    rows = [
        np.concatenate(
            [
                one_hot(t[column], words, t.place(column))
                for column, words in card.column_words.items()
            ],
            axis=1,
        )
        for t in (train, test)
    ]
    x = np.concatenate(rows)
    y = np.concatenate(
        [labels(t.place("income"), t.codes("income", card.class_names), 2) for t in (train, test)]
    )
    doctor = np.concatenate([t["education"] == "Doctorate" for t in (train, test)])
    is_test = np.arange(len(y)) >= len(train)
    groups = {"doctorate": Groups(("non-phd", "phd"), doctor.astype(np.int64))}
    return build_dataset(
        card,
        torch.from_numpy(x),
        torch.from_numpy(y),
        official_test=torch.from_numpy(is_test),
        mean=(0.0,),
        std=(1.0,),
        groups=groups,
    )


def _adult_original(card: Description, paths: FilePaths) -> Dataset:
    train, test = (read_adult(path) for path in paths.values())
    return _adult(card, train, test)


def _adult_csv(card: Description, paths: FilePaths) -> Dataset:
    train, test = (read_csv(path) for path in paths.values())
    return _adult(card, train, test)


HEART_FILES = Path(__file__).parent.parent / "embedded" / "heart"


def _heart(card: Description) -> Dataset:
    """Import the files that come with Comity, with their schema."""
    parties = {path.stem: path for path in sorted(HEART_FILES.glob("*.csv"))}
    schema = read_schema(HEART_FILES / "schema.json")
    # Two rows are copies of others. They are left as they are, as in the published figures.
    dataset = read_federation(parties, card.name, schema=schema, checks=False)
    return replace(
        dataset,
        groups={"site": dataset.groups["party"]},
        default_partition=card.default_partition,
        description=card.description,
        licence=card.licence,
    )


TYPICAL_VALUES = {
    "age": (55.0, 10.0),
    "resting_pressure": (130.0, 20.0),
    "cholesterol": (220.0, 45.0),
    "max_heart_rate": (140.0, 25.0),
    "st_depression": (1.0, 1.0),
    "vessels": (1.0, 1.0),
}
"""Mean and std of typical adult patients: round figures that do not come from any records."""


def _heart_scaled(heart: Dataset, scale: Literal["own", "fixed"] = "own") -> Dataset:
    """Apply the option `scale`.

    With `fixed`, numbers are scaled by constants and missing ones replaced by them, so that no
    record influences the values of others.
    """
    if scale == "own":
        return heart
    assert heart.schema
    constants = [
        TYPICAL_VALUES.get(column.name, (column.mean, column.std))
        for column in heart.schema.columns
    ]
    columns = (
        replace(column, mean=mean, std=std)
        for column, (mean, std) in zip(heart.schema.columns, constants, strict=True)
    )
    schema = replace(heart.schema, columns=tuple(columns), scale="fixed")
    warnings = tuple(
        warning.replace(OWN_MEANS, "the schema's constants") for warning in heart.warnings
    )
    return replace(
        heart,
        **preprocessing_options(schema) | {"scaled": (), "scale": "fixed", "warnings": warnings},
    )


register_datasets(
    Path(__file__).with_suffix(".toml"),
    readers={"adult-original": _adult_original, "adult-csv": _adult_csv},
    make={"heart": _heart},
    options={"heart": _heart_scaled},
)
