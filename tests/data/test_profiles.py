"""Profiles of tables: exact figures equal those of pandas; protected figures tell nothing about
groups below the minimum size; and what looks wrong is found.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import comity
from comity.base.key import Key
from comity.data.importing import import_federation
from comity.data.profiles import (
    NO_PROTECTION,
    PartyProfile,
    PartyTable,
    Profile,
    ProfiledColumn,
    Protection,
    common_ranges,
    findings,
    own_ranges,
    profile_data,
    profile_table,
)
from comity.data.profiles.cells import round_count
from comity.data.profiles.edges import GRID, bin_edges, constant_range, is_range
from comity.data.profiles.profile import QUANTILES
from comity.errors import CorruptedFile

POLICY = Protection(records=10, rounding=5)
WITHOUT_ROUNDING = Protection(records=10)
"""The hardest case: nothing but the minimum group size protects."""
SEX = ProfiledColumn("sex", "words", ("female", "male", "other"))
GLUCOSE = ProfiledColumn("glucose", "number")


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hospitals: south has mmol/l, east the code 999 and other words, and many gaps."""
    folder = tmp_path_factory.mktemp("hospitals")
    draw = np.random.default_rng(0)
    for name, count in (("north", 200), ("south", 150), ("east", 180)):
        glucose = draw.normal(110, 25, count).round(1)
        age = draw.integers(20, 95, count).astype(object)
        sex = draw.choice(["male", "female"], count)
        ill = draw.random(count) < 0.3
        if name == "south":
            glucose = (glucose / 18.02).round(2)
        if name == "east":
            glucose[:15] = 999
            age[20:110] = ""
            sex = np.where(sex == "male", "m", "w")
            ill = draw.random(count) < 0.7
        pd.DataFrame(
            {"age": age, "glucose": glucose, "sex": sex, "outcome": np.where(ill, "ill", "well")}
        ).to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def imported(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> comity.Dataset:
    return import_federation(hospitals, tmp_path_factory.mktemp("in") / "data", label="outcome")


@pytest.fixture(scope="module")
def exact(imported: comity.Dataset) -> Profile:
    return profile_data(imported.partition("natural"), imported)


def test_figures_equal_those_of_pandas(exact: Profile, hospitals: Path) -> None:
    for name, party in exact.parties.items():
        table = pd.read_csv(hospitals / f"{name}.csv")
        assert party.rows == len(table)
        for column in ("age", "glucose"):
            figures = party.columns[column]
            assert figures.missing == table[column].isna().sum()
            assert figures.quantiles == pytest.approx(table[column].quantile(QUANTILES).tolist())
            assert sum(cell.rows or 0 for cell in figures.histogram) == table[column].count()
            for low, high, count in figures.histogram:
                above = table[column] >= low if low is not None else True
                below = table[column] < high if high is not None else True
                assert count == (above & below & table[column].notna()).sum(), (low, high)
        for column in ("sex", "outcome"):
            counts = table[column].value_counts()
            assert party.columns[column].counts == {
                word: counts.get(word, 0) for word in party.columns[column].counts
            }


def test_all_parties_have_the_same_bins(exact: Profile) -> None:
    edges = [
        {edge for low, high, _ in party.columns["glucose"].histogram for edge in (low, high)}
        for party in exact.parties.values()
    ]
    all_edges = set(bin_edges((50.0, 200.0))) | {None}
    assert all(own <= all_edges for own in edges)


def test_findings(exact: Profile) -> None:
    sentences = findings(exact)
    (unit,) = [text for text in sentences if "another unit" in text]
    assert unit.startswith("glucose has a median of about 6.08 at south")
    assert "as between mg/dl and mmol/l of glucose" in unit
    (code,) = [text for text in sentences if "a code for a missing value" in text]
    assert code.startswith("glucose is 999 in about 15 of 180 rows at east")
    assert [text for text in sentences if "often missing" in text] == [
        "age is often missing at east (50%); elsewhere at most 0% are."
    ]
    assert [text for text in sentences if "spelling" in text] == [
        "sex: 'm', 'w' are found only at east, where nobody seems to have 'female', 'male': another"
        " spelling?"
    ]
    assert any(text.startswith("outcome is 'well' in about") for text in sentences)


def test_findings_under_a_policy_are_the_same(imported: comity.Dataset, exact: Profile) -> None:
    protected = profile_data(imported.partition("natural"), imported, POLICY)
    assert len(findings(protected)) == len(findings(exact))


def test_quiet_without_faults() -> None:
    draw = np.random.default_rng(3)
    tables = {name: table(draw.normal(50, 10, 300)) for name in ("north", "south", "east")}
    for protection in (NO_PROTECTION, POLICY):
        assert findings(profile_of(tables, protection)) == []


def test_round_trip(exact: Profile, tmp_path: Path) -> None:
    exact.save(tmp_path / "profile.json")
    again = Profile.read(tmp_path / "profile.json")
    assert again == exact
    assert list(again.figures()) == list(exact.figures())
    assert len(exact.to_pandas()) == len(list(exact.figures()))


def test_damaged_profiles_are_refused(exact: Profile, tmp_path: Path) -> None:
    for change in (
        {"comity_profile": 2},
        {"columns": [{"name": "age"}]},
        {"parties": {"north": {"rows": -1}}},
        {"parties": 3},
    ):
        path = tmp_path / "profile.json"
        path.write_text(json.dumps(exact.to_dict() | change))
        with pytest.raises(CorruptedFile, match=r"holds no profile|damaged"):
            Profile.read(path)
    content = exact.parties["north"].to_dict()
    content["columns"]["sex"]["counts"]["male"] = float("nan")
    with pytest.raises(CorruptedFile):
        PartyProfile.from_dict(content, exact.columns)


# Edges.


def test_every_edge_is_a_round_number() -> None:
    assert is_range(50.0, 200.0)
    assert not is_range(51.0, 200.0)
    assert not is_range(200.0, 50.0)
    assert not is_range("50", None)
    for low, high in ((0.0, 1.0), (50.0, 200.0), (-20.0, 5000.0), (1e-6, 2e-6), (-1e9, 1e9)):
        edges = bin_edges((low, high))
        assert list(edges) == sorted(set(edges))
        assert len(edges) < 150
        assert all(edge == float(f"{edge:.6g}") for edge in edges)
    assert bin_edges(None) == GRID
    assert constant_range(100.0, 20.0) == (20.0, 200.0)


def test_ranges_do_not_tell_extremes() -> None:
    """Up to nine patients with any values change nothing."""
    values = np.linspace(60, 140, 60)
    usual = ranges_of(values)
    for extreme in (61.0, 0.0, -1e6, 1e9, 139.5, 7000.0):
        for few in (1, 5):
            assert ranges_of(np.concatenate([values[few:], [extreme] * few])) == usual
    assert ranges_of(values[:19])["glucose"] is None


def test_common_range_is_that_of_most_parties() -> None:
    parties: list[dict[str, Any]] = [
        {"a": (50.0, 200.0)}, {"a": (50.0, 500.0)}, {"a": (2.0, 10.0)}, {"a": None}
    ]  # fmt: skip
    assert common_ranges(parties) == {"a": (50.0, 200.0)}
    assert common_ranges(parties[1:3]) == {"a": (2.0, 500.0)}


# Protection. The site has 30 patients, and the minimum group size is 10.


def table(
    glucose: Sequence[float] | np.ndarray[Any, Any],
    sex: Sequence[int] | None = None,
    patients: Sequence[int] | None = None,
) -> PartyTable:
    values = np.asarray(glucose, np.float64)
    words = np.zeros(len(values), np.int64) if sex is None else np.asarray(sex)
    return PartyTable(
        len(values),
        {"glucose": values, "sex": words},
        None if patients is None else np.asarray(patients),
    )


def ranges_of(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    return own_ranges(None, [GLUCOSE], table(values), WITHOUT_ROUNDING)


def profile_of(tables: dict[str, PartyTable], protection: Protection) -> Profile:
    columns = (SEX, GLUCOSE)
    ranges = common_ranges(own_ranges(None, columns, t, protection) for t in tables.values())
    return Profile(
        "test",
        columns,
        {n: profile_table(columns, t, ranges, protection) for n, t in tables.items()},
    )


def protected(rows: PartyTable, protection: Protection = WITHOUT_ROUNDING) -> PartyProfile:
    return profile_table((SEX, GLUCOSE), rows, {"glucose": (50.0, 200.0)}, protection)


def spread(count: int = 30) -> np.ndarray[Any, Any]:
    return np.linspace(70, 150, count)


@pytest.mark.parametrize("few", range(10))
def test_few_words_cannot_be_told_from_none(few: int) -> None:
    """The profile is the same, whether 0 or 9 of 30 patients have a word."""
    sex = [1] * (30 - few) + [2] * few
    assert protected(table(spread(), sex)) == protected(table(spread(), [1] * 30))


@pytest.mark.parametrize("few", range(10))
def test_few_missing_values_cannot_be_told_from_none(few: int) -> None:
    values = np.full(30, 101.0)
    values[:few] = np.nan
    sex = np.where(np.arange(30) < few, -1, 1).tolist()
    assert protected(table(values, sex)) == protected(table([101.0] * 30, [1] * 30))


@pytest.mark.parametrize("few", range(10))
def test_few_present_values_cannot_be_told_from_none(few: int) -> None:
    values = np.full(30, np.nan)
    values[:few] = 101.0
    assert protected(table(values)) == protected(table([np.nan] * 30))


@pytest.mark.parametrize("value", [-1e5, 0.0, 51.0, 119.0, 137.0, 199.0, 999.0, 1e8])
@pytest.mark.parametrize("few", [1, 9])
def test_where_few_values_are_cannot_be_told(value: float, few: int) -> None:
    """Wherever some of 30 patients are, the profile is the same as if they were with the others."""
    values = np.full(30, 101.0)
    values[:few] = value
    assert protected(table(values)) == protected(table([101.0] * 30))


def test_no_figure_is_of_fewer_than_ten() -> None:
    """For random columns: every shown count has at least ten records, differences of counts too."""
    draw = np.random.default_rng(1)
    for _ in range(200):
        count = int(draw.integers(30, 80))
        values = draw.choice([draw.normal(100, 30), *draw.normal(110, 40, 12)], count)
        values[draw.random(count) < draw.choice([0, 0.1, 0.5])] = np.nan
        sex = draw.choice([-1, 0, 1, 2], count, p=draw.dirichlet([0.5] * 4))
        party = protected(table(values, sex.tolist()))
        for column, own in party.columns.items():
            histogram = [count for _, _, count in own.histogram]
            shown = [n for n in (*own.counts.values(), *histogram, own.missing) if n is not None]
            assert all(n >= 10 for n in shown), column
            rest = count - sum(shown)
            assert rest == 0 or rest >= 10, (column, own)


def test_patients_are_counted_not_rows() -> None:
    """Twelve rows of one patient are one patient."""
    sex = [2] * 12 + [1] * 40
    patients = [0] * 12 + list(range(1, 41))
    party = protected(table(spread(52), sex, patients))
    assert party.columns["sex"].counts["other"] is None
    assert protected(table(spread(52), sex)).columns["sex"].counts["other"] == 12
    values = [180.0] * 12 + [100.0] * 40
    histogram = protected(table(values, None, patients)).columns["glucose"].histogram
    assert [(low, high, n) for low, high, n in histogram if n] == [(100.0, 110.0, 52)]


def test_small_groups_together_are_counted() -> None:
    """Twelve patients in two small groups are withheld; their sum is that of enough patients."""
    sex = [0] * 6 + [2] * 6 + [1] * 30
    own = protected(table(spread(42), sex)).columns["sex"]
    assert own.counts == {"female": None, "male": 30, "other": None}


def test_rounding() -> None:
    assert [round_count(n, 5) for n in (0, 1, 12, 12.5, 13, 998)] == [0, 5, 10, 15, 15, 1000]
    assert round_count(-3.2, 5) == 0
    own = protected(table(spread(33), [1] * 21 + [0] * 12), POLICY)
    assert own.rows == 35
    assert own.columns["sex"].counts == {"female": 10, "male": 20, "other": None}
    assert all(n % 5 == 0 for *_, n in own.columns["glucose"].histogram if n is not None)


def test_noise_hides_counts() -> None:
    """Each count has the noise that was asked for, and another key has other noise."""
    protection = Protection(records=10, rounding=1, noise=4.0)
    rows = table(np.full(4000, 101.0), [1] * 2000 + [0] * 2000)

    def counts(seed: int) -> int:
        party = profile_table(
            (SEX, GLUCOSE), rows, {"glucose": (50.0, 200.0)}, protection, Key.root(seed, b"s" * 32)
        )
        return party.columns["sex"].counts["male"] or 0

    draws = np.array([counts(seed) for seed in range(150)])
    assert counts(3) == counts(3)
    assert draws.mean() == pytest.approx(2000, abs=3)
    assert 3 < draws.std() < 9  # withheld cells add theirs


def test_no_range_from_values_under_noise() -> None:
    protection = Protection(records=10, noise=4.0)
    assert own_ranges(None, [GLUCOSE], table(spread(100)), protection) == {"glucose": None}
