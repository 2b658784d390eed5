"""Tables: one row a person, some columns numbers and some words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.files import Found, Way
from comity.data.formats import Table, codes, read_adult, read_csv, read_heart
from comity.data.formats.common import bad, labels
from comity.data.formats.uci import HEART as HEART_COLUMNS
from comity.data.formats.uci import HOSPITALS
from comity.data.groups import Groups
from comity.data.library import Card, Entry, register
from comity.data.sets.sums import SUMS

# The words of each column, in the order of the dataset's own description.
ADULT_WORDS = {
    "workclass": "Private,Self-emp-not-inc,Self-emp-inc,Federal-gov,Local-gov,State-gov,Without-pay,Never-worked",
    "education": "Bachelors,Some-college,11th,HS-grad,Prof-school,Assoc-acdm,Assoc-voc,9th,7th-8th,12th,Masters,1st-4th,10th,"
    "Doctorate,5th-6th,Preschool",
    "marital_status": "Married-civ-spouse,Divorced,Never-married,Separated,Widowed,Married-spouse-absent,Married-AF-spouse",
    "occupation": "Tech-support,Craft-repair,Other-service,Sales,Exec-managerial,Prof-specialty,Handlers-cleaners,"
    "Machine-op-inspct,Adm-clerical,Farming-fishing,Transport-moving,Priv-house-serv,Protective-serv,Armed-Forces",
    "relationship": "Wife,Own-child,Husband,Not-in-family,Other-relative,Unmarried",
    "race": "White,Asian-Pac-Islander,Amer-Indian-Eskimo,Other,Black",
    "sex": "Female,Male",
    "native_country": "United-States,Cambodia,England,Puerto-Rico,Canada,Germany,Outlying-US(Guam-USVI-etc),India,Japan,Greece,"
    "South,China,Cuba,Iran,Honduras,Philippines,Italy,Poland,Jamaica,Vietnam,Mexico,Portugal,Ireland,France,Dominican-Republic,"
    "Laos,Ecuador,Taiwan,Haiti,Columbia,Hungary,Guatemala,Nicaragua,Scotland,Thailand,Yugoslavia,El-Salvador,Trinadad&Tobago,"
    "Peru,Hong,Holand-Netherlands",
}
INCOMES = ("<=50K", ">50K")
UNKNOWN = "an unknown word is a row of zeros in its columns, as in the papers"
ADULT = Card(
    name="adult",
    samples=48842,
    classes=2,
    shape=(99,),
    description="Does a person earn more than 50,000 dollars? Eight columns of words, as 99 zeros and ones (Kohavi and Becker "
    "1996)",
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
    """A column of words as zeros and ones; unknown is all zeros."""
    at = codes(column, words, what)
    made = np.zeros((len(at), len(words)), dtype=np.float32)
    known = np.flatnonzero(at >= 0)
    made[known, at[known]] = 1
    return made


def _adult(card: Card, train: Table, test: Table, home: str) -> Dataset:
    words = {name: tuple(text.split(",")) for name, text in ADULT_WORDS.items()}
    rows = [np.concatenate([one_hot(t[c], w, t.place(c)) for c, w in words.items()], axis=1) for t in (train, test)]
    x = np.concatenate(rows)
    y = np.concatenate([labels(t.place("income"), t.codes("income", INCOMES), 2) for t in (train, test)])
    doctor = np.concatenate([t["education"] == "Doctorate" for t in (train, test)])
    held = np.arange(len(y)) >= len(train)
    groups = {"doctorate": Groups(("non-phd", "phd"), doctor.astype(np.int64))}
    return Dataset(
        name=card.name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        classes=2,
        description=card.description,
        licence=card.licence,
        official_test=torch.from_numpy(held),
        mean=(0.0,),
        std=(1.0,),
        groups=groups,
        home=home,
        class_names=INCOMES,
    )


def _adult_ways(card: Card, home: str) -> tuple[Way, ...]:
    def original(found: Found) -> Dataset:
        return _adult(card, read_adult(found["adult.data"]), read_adult(found["adult.test"]), home)

    def tables(found: Found) -> Dataset:
        return _adult(card, read_csv(found["adult_train.csv"]), read_csv(found["adult_test.csv"]), home)

    return (
        Way(original, ("adult.data", "adult.test"), sums=SUMS["adult"]),
        Way(tables, ("adult_train.csv", "adult_test.csv"), sums=SUMS["adult"]),
    )


register(Entry(ADULT, _adult_ways(ADULT, "dirichlet(alpha=0.5)")))
register(Entry(ADULT_PHD, _adult_ways(ADULT_PHD, "natural(by=doctorate)")))


# Numbers with a mean and a spread: round figures of adults with chest pain, not statistics of these data.
HEART_NUMBERS = {
    "age": (54, 9),
    "trestbps": (130, 20),
    "chol": (240, 50),
    "thalach": (140, 25),
    "oldpeak": (1, 1),
    "ca": (0.7, 0.9),
}
HEART_YES = ("sex", "fbs", "exang")
HEART_KINDS = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
HEART_FINDINGS = (*HEART_NUMBERS, *HEART_YES, *HEART_KINDS)
HEART_FILES = tuple(f"processed.{site}.data" for site in HOSPITALS)
HEART_SITES = {"va": "va_long_beach"}  # what the file names are short for
HEART = Card(
    name="heart",
    samples=920,
    classes=2,
    shape=(38,),
    description="Has a patient heart disease? 13 findings from four hospitals (Detrano et al. 1989)",
    licence="CC BY 4.0; name A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano",
    groups=("site",),
    missing="filled with the mean of the hospital's own training samples (a fixed middle value where it never measured "
    "it); a column each says what was filled",
)


def _heart(numbers: dict[str, NDArray[np.float64]], y: NDArray[np.int64], site: NDArray[Any]) -> Dataset:
    """13 findings as 22 columns; a blood pressure or cholesterol of 0 was not measured."""
    for name in ("trestbps", "chol"):
        numbers[name] = np.where(numbers[name] == 0, np.nan, numbers[name])
    columns = [numbers[name] for name in (*HEART_NUMBERS, *HEART_YES)]
    columns += [np.where(np.isnan(numbers[n]), np.nan, numbers[n] == kind) for n, kinds in HEART_KINDS.items() for kind in kinds]
    plain = [(0.0, 1.0)] * (len(columns) - len(HEART_NUMBERS))
    mean, std = zip(*HEART_NUMBERS.values(), *plain, strict=True)
    sites, of = np.unique(site, return_inverse=True)
    empty = [
        f"{site} has no {', '.join(lacking)}"
        for k, site in enumerate(sites)
        if (lacking := [n for n, v in numbers.items() if np.isnan(v[of == k]).all()])
    ]
    share = np.mean([np.isnan(v).mean() for v in numbers.values()])
    notes = (f"heart: {share:.0%} of all values are missing{'; ' + '; '.join(empty) if empty else ''}: {HEART.missing}.",)
    x = torch.tensor(np.stack(columns, 1), dtype=torch.float32)
    sick = torch.from_numpy((y > 0).astype(np.int64))
    mine = {"site": Groups(tuple(map(str, sites)), of)}
    return Dataset(
        name=HEART.name,
        x=x,
        y=sick,
        classes=2,
        description=HEART.description,
        licence=HEART.licence,
        official_test=None,
        mean=tuple(map(float, mean)),
        std=tuple(map(float, std)),
        groups=mine,
        home="natural(by=site)",
        missing="impute",
        class_names=("no disease", "disease"),
        notes=notes,
    )


def _heart_csv(found: Found) -> Dataset:
    table = read_csv(found["heart_disease_4_hospitals.csv"])
    if (table["site"] == "").any():
        raise bad(table.path, "has rows without a site")
    num = labels(table.place("num"), table.numeric("num"), 5, what="num")
    return _heart({name: table.numeric(name) for name in HEART_FINDINGS}, num, table["site"])


def _heart_original(found: Found) -> Dataset:
    made = read_heart(found[HEART_FILES[0]].parent)
    names = np.array([HEART_SITES.get(name, name) for name in HOSPITALS])[made.site]
    return _heart({name: made.x[:, k] for k, name in enumerate(HEART_COLUMNS[:-1])}, made.y, names)


register(
    Entry(
        HEART,
        (
            Way(_heart_original, HEART_FILES),
            Way(_heart_csv, ("heart_disease_4_hospitals.csv",), sums=SUMS["heart"]),
        ),
    )
)
