"""Tables with one row per person: Adult and heart disease."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.files import FileLayout, FilePaths
from comity.data.formats import Table, codes, read_adult, read_csv
from comity.data.formats.common import labels
from comity.data.groups import Groups
from comity.data.importing import preprocessing_options, read_federation
from comity.data.library import Card, Entry, register
from comity.data.sets.sums import SUMS
from comity.data.tables import OWN_MEANS, read_schema

# The words of each column, in the order of the dataset's own description.
ADULT_WORDS = {
    "workclass": (
        "Private,Self-emp-not-inc,Self-emp-inc,Federal-gov,Local-gov,State-gov,Without-pay,Never-worked"
    ),
    "education": (
        "Bachelors,Some-college,11th,HS-grad,Prof-school,Assoc-acdm,Assoc-voc,9th,7th-8th,12th,Masters,1st-4th,10th,"
        "Doctorate,5th-6th,Preschool"
    ),
    "marital_status": (
        "Married-civ-spouse,Divorced,Never-married,Separated,Widowed,Married-spouse-absent,Married-AF-spouse"
    ),
    "occupation": (
        "Tech-support,Craft-repair,Other-service,Sales,Exec-managerial,Prof-specialty,Handlers-cleaners,"
        "Machine-op-inspct,Adm-clerical,Farming-fishing,Transport-moving,Priv-house-serv,Protective-serv,Armed-Forces"
    ),
    "relationship": "Wife,Own-child,Husband,Not-in-family,Other-relative,Unmarried",
    "race": "White,Asian-Pac-Islander,Amer-Indian-Eskimo,Other,Black",
    "sex": "Female,Male",
    "native_country": (
        "United-States,Cambodia,England,Puerto-Rico,Canada,Germany,Outlying-US(Guam-USVI-etc),India,Japan,Greece,"
        "South,China,Cuba,Iran,Honduras,Philippines,Italy,Poland,Jamaica,Vietnam,Mexico,Portugal,Ireland,France,Dominican-Republic,"
        "Laos,Ecuador,Taiwan,Haiti,Columbia,Hungary,Guatemala,Nicaragua,Scotland,Thailand,Yugoslavia,El-Salvador,Trinadad&Tobago,"
        "Peru,Hong,Holand-Netherlands"
    ),
}
INCOMES = ("<=50K", ">50K")
UNKNOWN = "an unknown word is a row of zeros in its columns, as in the papers"
ADULT = Card(
    name="adult",
    samples=48842,
    classes=2,
    shape=(99,),
    description=(
        "Does a person earn more than 50,000 dollars? Eight columns of words, as 99 zeros and ones"
        " (Kohavi and Becker 1996)"
    ),
    licence="CC BY 4.0",
    groups=("doctorate",),
    hub="scikit-learn/adult-census-income",
    missing=UNKNOWN,
)
ADULT_PHD = Card(
    name="adult-phd",
    samples=48842,
    classes=2,
    shape=(99,),
    description="Adult with two parties, people with and without a doctorate (AFL, Fed-SPS)",
    licence="CC BY 4.0",
    groups=("doctorate",),
    missing=UNKNOWN,
)


def one_hot(column: NDArray[Any], words: tuple[str, ...], what: str) -> NDArray[np.float32]:
    """One-hot encode a column of words; an unknown word is a row of zeros."""
    positions = codes(column, words, what)
    encoded = np.zeros((len(positions), len(words)), dtype=np.float32)
    known = np.flatnonzero(positions >= 0)
    encoded[known, positions[known]] = 1
    return encoded


def _adult(card: Card, train: Table, test: Table, default_partition: str) -> Dataset:
    words = {name: tuple(text.split(",")) for name, text in ADULT_WORDS.items()}
    rows = [
        np.concatenate([one_hot(t[c], w, t.place(c)) for c, w in words.items()], axis=1)
        for t in (train, test)
    ]
    x = np.concatenate(rows)
    y = np.concatenate(
        [labels(t.place("income"), t.codes("income", INCOMES), 2) for t in (train, test)]
    )
    doctor = np.concatenate([t["education"] == "Doctorate" for t in (train, test)])
    is_test = np.arange(len(y)) >= len(train)
    groups = {"doctorate": Groups(("non-phd", "phd"), doctor.astype(np.int64))}
    return Dataset(
        name=card.name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        classes=2,
        description=card.description,
        licence=card.licence,
        official_test=torch.from_numpy(is_test),
        mean=(0.0,),
        std=(1.0,),
        groups=groups,
        default_partition=default_partition,
        class_names=INCOMES,
    )


def _adult_layouts(card: Card, default_partition: str) -> tuple[FileLayout, ...]:
    def original(paths: FilePaths) -> Dataset:
        return _adult(
            card,
            read_adult(paths["adult.data"]),
            read_adult(paths["adult.test"]),
            default_partition,
        )

    def tables(paths: FilePaths) -> Dataset:
        return _adult(
            card,
            read_csv(paths["adult_train.csv"]),
            read_csv(paths["adult_test.csv"]),
            default_partition,
        )

    return (
        FileLayout(original, ("adult.data", "adult.test"), sums=SUMS["adult"]),
        FileLayout(tables, ("adult_train.csv", "adult_test.csv"), sums=SUMS["adult"]),
    )


register(Entry(ADULT, _adult_layouts(ADULT, "dirichlet(alpha=0.5)")))
register(Entry(ADULT_PHD, _adult_layouts(ADULT_PHD, "natural(by=doctorate)")))


# Imported with a schema, from files that come with Comity.
HEART = Card(
    name="heart",
    samples=920,
    classes=2,
    shape=(30,),
    description=(
        "Has a patient heart disease? 13 findings from four hospitals (Detrano et al. 1989)"
    ),
    licence="CC BY 4.0; name A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano",
    groups=("site",),
    missing=(
        "numbers are filled with the mean of the hospital's own training samples, with an indicator"
        " column for each; a missing word is a row of zeros"
    ),
)
HEART_FILES = Path(__file__).parent.parent / "embedded" / "heart"


def _heart() -> Dataset:
    parties = {path.stem: path for path in sorted(HEART_FILES.glob("*.csv"))}
    dataset = read_federation(parties, HEART.name, schema=read_schema(HEART_FILES / "schema.json"))
    return replace(
        dataset,
        groups={"site": dataset.groups["party"]},
        default_partition="natural(by=site)",
        description=HEART.description,
        licence=HEART.licence,
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


register(Entry(HEART, make=_heart, options=_heart_scaled))
