"""Faults that several hospitals share: label words, units, mixed notations, single codes."""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import comity as command
from harness import succeed

from comity.data import load
from comity.data.conversions import Spread, rounded_medians_differ, unit_groups
from comity.data.importing import import_federation
from comity.data.table_checks import check_label_words, class_word_warnings, find_codes
from comity.data.word_meanings import differing_words, parties_apart
from comity.errors import UsageError

HEADER = ["age", "sex", "glucose", "readmitted"]
NAMES = ("alba", "berg", "cava", "dorf", "elm")
Row = list[Any]


def hospital(seed: int, change: Callable[[int, Row], None] | None = None, rows: int = 60) -> Any:
    draw = random.Random(seed)
    lines = []
    for k in range(rows):
        row: Row = [
            draw.randint(30, 90),
            draw.choice(["female", "male"]),
            round(draw.gauss(120, 25), 3),
            draw.choice(["no", "yes"]),
        ]
        if change is not None:
            change(k, row)
        lines.append(row)
    return lines


def write(folder: Path, changes: dict[str, Callable[[int, Row], None]] | None = None) -> Path:
    """Five hospitals' files, with changes by party."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(NAMES):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([HEADER, *hospital(seed, (changes or {}).get(name))])
    return folder


def other_labels(k: int, row: Row) -> None:
    row[3] = {"yes": "Readmitted", "no": "Not readmitted"}[row[3]]


def mixed_labels(k: int, row: Row) -> None:
    row[3] = "Readmitted" if row[3] == "yes" and k % 2 else row[3]


def millimoles(k: int, row: Row) -> None:
    row[2] = round(row[2] / 18.02, 2)


def words(result: Any) -> str:
    return " ".join((result.out + result.err).split())


# Label words.


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        (
            {"cava": other_labels, "dorf": other_labels},
            ["--word 'readmitted:Not readmitted=no'", "--word 'readmitted:Readmitted=yes'"],
        ),
        ({"dorf": mixed_labels}, ["--word 'readmitted:Readmitted=yes'"]),
    ],
    ids=["two of five", "one mixes"],
)
def test_label_words_of_several_parties_are_refused(
    changes: Any, options: list[str], tmp_path: Path
) -> None:
    source = write(tmp_path / "in", changes)
    refused = command(
        "data", "import", source, "--label", "readmitted", "--out", tmp_path / "refused"
    )
    assert refused.code == 2
    assert not (tmp_path / "refused").exists()
    for option in options:
        assert option in words(refused)
    typed = [word for option in options for word in shlex.split(option)]
    succeed("data", "import", source, "--label", "readmitted", *typed, "--out", tmp_path / "out")
    assert load(str(tmp_path / "out")).class_names == ("no", "yes")


def test_label_words_of_descriptions_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"cava": other_labels, "dorf": other_labels})
    for name in NAMES:
        succeed(
            "data", "schema", source / f"{name}.csv", "--label", "readmitted", "--out",
            tmp_path / f"{name}.json",
        )  # fmt: skip
    descriptions = [tmp_path / f"{name}.json" for name in NAMES]
    refused = command("data", "schema", *descriptions, "--out", tmp_path / "schema.json")
    assert refused.code == 2
    assert "--word 'readmitted:Not readmitted=no' --word 'readmitted:Readmitted=yes'" in words(
        refused
    )
    assert not (tmp_path / "schema.json").exists()


def test_a_class_of_one_description_is_named(tmp_path: Path) -> None:
    def third_class(k: int, row: Row) -> None:
        row[3] = "transferred" if k % 9 == 0 else row[3]

    source = write(tmp_path / "in", {"dorf": third_class})
    for name in NAMES:
        succeed(
            "data", "schema", source / f"{name}.csv", "--label", "readmitted", "--out",
            tmp_path / f"{name}.json",
        )  # fmt: skip
    descriptions = [tmp_path / f"{name}.json" for name in NAMES]
    merged = succeed("data", "schema", *descriptions, "--out", tmp_path / "schema.json")
    assert "only dorf has the label 'transferred': is it a class of its own?" in words(merged)


TWO = {"no", "yes"}


@pytest.mark.parametrize(
    ("parties", "typed"),
    [
        # Groups without a common word, and of one common word.
        ({"a": TWO, "b": TWO, "c": {"X", "Z"}, "d": {"X"}}, "'l:X=...' --word 'l:Z=...'"),
        ({"a": TWO, "b": TWO, "c": {"no", "X"}, "d": {"no", "X"}}, "'l:X=...'"),
        ({"a": TWO, "b": {"no"}, "c": {"no", "X"}, "d": TWO}, "'l:X=...'"),
        # Two translations at once; and one party alone with two notations.
        ({"a": TWO, "b": {"ja", "nein"}, "c": TWO, "d": {"ja"}, "e": {"yes"}}, "'l:ja=yes'"),
        ({"a": {"n", "y", "no", "yes"}}, "'l:n=no' --word 'l:y=yes'"),
    ],
)
def test_refused_label_words(parties: dict[str, set[str]], typed: str) -> None:
    with pytest.raises(UsageError) as refusal:
        check_label_words("l", parties)
    assert typed in str(refusal.value)


@pytest.mark.parametrize(
    "parties",
    [
        {"a": TWO, "b": TWO},
        {"a": {"yes"}, "b": {"no"}},
        {"a": {"I", "II"}, "b": {"II", "III"}, "c": {"III", "I"}},
        {"a": {"mild", "severe", "none"}, "b": {"mild", "severe"}, "c": {"none", "mild"}},
        {"a": {"0", "1"}, "b": {"2", "3"}},
        {"a": {"absent", "equivocal", "positive"}},
    ],
)
def test_labels_that_are_classes(parties: dict[str, set[str]]) -> None:
    check_label_words("l", parties)


def test_a_third_class_of_several_parties_is_named() -> None:
    three = {*TWO, "lost"}
    (sentence,) = class_word_warnings("l", {"a": TWO, "b": TWO, "c": three, "d": three, "e": TWO})
    assert "most parties have the labels 'no', 'yes' only, but c, d also 'lost'" in sentence
    assert not class_word_warnings("l", {"a": three, "b": three, "c": TWO})


def test_arrays_with_other_label_words_are_named(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for name, classes in (("a", ["no", "yes"]), ("b", ["no", "yes"]), ("c", ["nein", "ja"])):
        x = np.random.default_rng(0).normal(size=(20, 3))
        np.savez(source / f"{name}.npz", x=x, y=np.array(classes * 10))
    result = succeed("data", "import", source, "--out", tmp_path / "out")
    assert "the labels are no, yes at a, b but ja, nein at c" in words(result)


# Words of columns.


def test_mixed_notations_of_one_party_get_a_full_mapping() -> None:
    full = {"Female", "Male"}
    parties = {"a": full, "b": {"m", "w"}, "c": full, "d": {*full, "f", "m"}}
    assert differing_words(parties, "sex") == {"f": "Female", "m": "Male", "w": "Female"}
    assert differing_words({"a": {*full, "f", "m"}}, "sex") == {"f": "Female", "m": "Male"}
    # Different words of one party mostly mean different things.
    assert differing_words({"a": {"none", "negative", "positive"}}) == {}
    assert differing_words({"a": {"normal", "no", "yes"}, "b": {"no", "yes"}}) == {}


def test_groups_of_parties_are_found() -> None:
    two, other = {"no", "yes"}, {"X", "Y"}
    parties = {"a": two, "b": other, "c": two, "d": {"X"}, "e": {"no"}}
    assert parties_apart(parties) == [["a", "c", "e"], ["b", "d"]]
    assert parties_apart(parties | {"f": {"X", "no"}}) == []


# Units.


@pytest.mark.parametrize("others", [("berg", "dorf"), ("alba", "cava", "elm")])
def test_a_unit_of_several_parties_is_named(others: tuple[str, ...], tmp_path: Path) -> None:
    source = write(tmp_path / "in", dict.fromkeys(others, millimoles))
    result = succeed("data", "import", source, "--label", "readmitted", "--out", tmp_path / "out")
    text = words(result)
    most, fewest = sorted(
        (", ".join(others), ", ".join(n for n in NAMES if n not in others)), key=len, reverse=True
    )
    assert f"at {fewest}, but about" in text
    assert f"at {most} (numbers cannot show which side is right)" in text
    typed = shlex.split(text[text.index("--unit") : text.index(", or write")])
    succeed(
        "data", "import", source, "--label", "readmitted", *typed, "--out", tmp_path / "repaired"
    )
    repaired = load(str(tmp_path / "repaired"))
    glucose, of = repaired.x.numpy()[:, -1], repaired.groups["party"].of
    medians = [float(np.median(glucose[of == k])) for k in range(len(NAMES))]
    assert max(medians) / min(medians) < 1.3
    inspected = succeed("data", "inspect", "--data", tmp_path / "out")
    assert f"at {fewest}, but about" in words(inspected)
    profiled = succeed("data", "profile", "--data", tmp_path / "out", "--out", tmp_path / "page")
    assert f"at {fewest} and" in words(profiled)
    assert "as between mg/dl and mmol/l of glucose: another unit?" in words(profiled)


def test_a_column_of_zeros_at_one_party_is_no_unit(tmp_path: Path) -> None:
    def zeros(k: int, row: Row) -> None:
        row[2] = 0

    source = write(tmp_path / "in", {"dorf": zeros})
    data = import_federation(source, tmp_path / "out", label="readmitted")
    (sentence,) = [warning for warning in data.warnings if "glucose is about 0 at dorf" in warning]
    assert "does 0 mean missing? If so, say --missing 'dorf:glucose=0'" in sentence


def near(middle: float) -> Spread:
    return Spread(0.6 * middle, middle, 1.5 * middle)


@pytest.mark.parametrize(
    ("medians", "groups"),
    [
        ([6.5, 120, 6.7, 118, 125], ["ac", "bde"]),
        ([1.0, 88, 88, 1.1, 0.9, 90], ["ade", "bcf"]),
        ([6.5, 120, 6.7, 2000, 2100, 125], ["ac", "bf", "de"]),
        ([100, 120, 90, 140, 150], ["abcde"]),  # hospitals differ
        ([10, 20, 40, 80, 160], ["abcde"]),  # no gap is larger than the others
        ([0, 0, 120, 118], ["cd"]),
    ],
)
def test_groups_of_units(medians: list[float], groups: list[str]) -> None:
    parties = {name: near(middle) for name, middle in zip("abcdef", medians, strict=False)}
    assert ["".join(group) for group in unit_groups("value", parties)] == groups


def test_parties_whose_numbers_overlap_have_one_unit() -> None:
    wide = {
        name: Spread(1, middle, 200) for name, middle in zip("abcd", (8, 9, 80, 90), strict=True)
    }
    assert unit_groups("crp", wide) == [["a", "b", "c", "d"]]


# Codes.


def test_one_row_of_a_well_known_code_suffices(tmp_path: Path) -> None:
    def one_code(k: int, row: Row) -> None:
        row[2] = -9 if k == 7 else row[2]

    source = write(tmp_path / "in", {"dorf": one_code})
    result = succeed("data", "import", source, "--label", "readmitted", "--out", tmp_path / "out")
    assert "glucose of dorf is -9 in 1 row, but" in words(result)
    assert "--missing 'dorf:glucose=-9'" in words(result)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([*range(20, 80), -9], -9),
        ([*range(100, 300), 9999], 9999),
        ([*range(-20, 20), -999], -999),
        ([*range(20, 80), 99], None),  # an age
        ([*range(-8, 8), -9], None),  # a value like the others
        ([1, 2, 3, 1, 2, 3, 9], None),  # a grade
        ([*range(20, 80), -1], None),
        ([*range(1500, 2400, 9), *[0] * 400], None),  # a rare income
        ([*range(20, 80), 777], None),
    ],
)
def test_single_codes(values: list[float], code: float | None) -> None:
    found = find_codes(np.array(values, np.float32))
    assert found == ({} if code is None else {code: 1})


def test_rare_incomes_are_no_typing_errors(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    incomes = [*[0] * 190, *draw.integers(500, 9000, 39).tolist(), 14_000]
    for last, is_wrong in ((14_000, False), (990_000, True)):
        lines = [f"{income},{'ny'[k % 2]}" for k, income in enumerate([*incomes[:-1], last])]
        (tmp_path / f"{last}.csv").write_text("\n".join(["income,label", *lines]) + "\n")
        data = import_federation(tmp_path / f"{last}.csv", tmp_path / f"out-{last}")
        assert any("a typing error?" in warning for warning in data.warnings) == is_wrong


# Descriptions.


def test_faulty_values_are_named_where_a_file_is_described(tmp_path: Path) -> None:
    def faults(k: int, row: Row) -> None:
        row[2] = {0: -9, 1: 999}.get(k % 9, row[2])
        if k == 5:
            row[0] = 1000
        if k == 6:
            row[3] = ""  # a label is missing

    source = write(tmp_path / "in", {"dorf": faults})
    described = succeed(
        "data", "schema", source / "dorf.csv", "--label", "readmitted", "--out",
        tmp_path / "dorf.json",
    )  # fmt: skip
    text = words(described)
    assert "glucose of dorf is -9 in 7 rows and 999 in 7 rows" in text
    assert "age is 1000 in row 6 of dorf" in text
    assert "in common" not in text
    repaired = succeed(
        "data", "schema", source / "dorf.csv", "--label", "readmitted", "--missing",
        "dorf:glucose=-9,999", "--drop", "age", "--out", tmp_path / "repaired.json",
    )  # fmt: skip
    assert "Warning" not in words(repaired)


def test_faulty_values_of_several_described_files_are_compared(tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"dorf": millimoles})
    described = succeed(
        "data", "schema", source, "--label", "readmitted", "--out", tmp_path / "all.json"
    )
    assert "at dorf, but between" in words(described)
    assert "--unit 'dorf:glucose=mmol/l'" in words(described)


# Rows that several parties have.


def with_shared_rows(folder: Path, count: int = 20) -> Path:
    """Elm has rows of alba, berg one of its rows twice."""
    write(folder)
    files = {name: (folder / f"{name}.csv").read_text().splitlines() for name in NAMES}
    files["elm"] += files["alba"][1 : 1 + count]
    files["berg"] += [files["berg"][1]]
    for name, lines in files.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def contents_by_part(data: Any, federation: Any, *parts: str) -> set[bytes]:
    """The rows that any party has in these parts."""
    rows = {
        position
        for share in federation.split.parties.values()
        for part in parts
        for position in getattr(share, part)
    }
    return {data.x[k].numpy().tobytes() + bytes([int(data.y[k])]) for k in rows}


@pytest.mark.parametrize(
    "options",
    [
        {"spec": "auto"},
        {"spec": "auto", "test": "folds(5)"},
        {"spec": "auto", "test": "common"},
        {"spec": "auto", "validation": 0.0},
        {"spec": "dirichlet(alpha=1)", "parties": 4},
    ],
    ids=str,
)
def test_no_party_trains_on_what_another_one_is_tested_on(
    options: dict[str, Any], tmp_path: Path
) -> None:
    data = import_federation(
        with_shared_rows(tmp_path / "in"), tmp_path / "out", label="readmitted"
    )
    assert data.shared_rows is not None
    tested: list[int] = []
    for seed in range(5):
        federation = data.partition(**options, seed=seed)
        parts = [contents_by_part(data, federation, p) for p in ("train", "validation", "test")]
        assert not parts[0] & parts[2]
        assert not parts[1] & parts[2]
        assert not parts[0] & parts[1]
        tested += [k for share in federation.split.parties.values() for k in share.test]
    if options.get("test") == "folds(5)":
        assert sorted(tested) == list(range(len(data)))


def test_shared_rows_do_not_change_other_splits(tmp_path: Path) -> None:
    """Without shared rows nothing is stored, and of a party without them the split is the same."""
    source = write(tmp_path / "plain")
    plain = import_federation(source, tmp_path / "out", label="readmitted")
    assert plain.shared_rows is None
    assert not (tmp_path / "out" / "shared_rows.npy").exists()
    shared = import_federation(
        with_shared_rows(tmp_path / "in"), tmp_path / "shared", label="readmitted"
    )
    parts = [data.partition("auto", seed=3).split.parties for data in (plain, shared)]
    assert parts[0]["alba"] == parts[1]["alba"]
    assert "elm are identical to rows of alba" in " ".join(shared.warnings)


def test_tables_of_few_words_have_no_shared_rows(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for seed, name in enumerate(NAMES):
        draw = random.Random(seed)
        lines = [f"{draw.choice('ab')},{draw.choice('cd')},{draw.choice('yn')}" for _ in range(50)]
        (source / f"{name}.csv").write_text("\n".join(["first,second,label", *lines]) + "\n")
    data = import_federation(source, tmp_path / "out")
    assert (data.copies, data.shared_rows) == (None, None)
    assert not any("identical" in warning for warning in data.warnings)


def test_a_party_that_has_only_rows_of_others_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in")
    alba = (source / "alba.csv").read_text().splitlines()
    (source / "elm.csv").write_text("\n".join(alba) + "\n")
    data = import_federation(source, tmp_path / "out", label="readmitted")
    data.partition("auto")  # all rows: the parts are those of alba
    parts = data.partition("auto").split.parties
    alba_test = {data.x[k].numpy().tobytes() for k in parts["alba"].test}
    assert {data.x[k].numpy().tobytes() for k in parts["elm"].test} == alba_test
    trained = [1 + k for k in parts["alba"].train[:5]]
    (source / "elm.csv").write_text("\n".join([alba[0], *(alba[k] for k in trained)]) + "\n")
    few = import_federation(source, tmp_path / "few", label="readmitted")
    with pytest.raises(UsageError, match="'elm' has no test samples left"):
        few.partition("auto")


# Units at separate sites.


def describe(source: Path, out: Path, **options: tuple[str, ...]) -> list[Path]:
    """Each hospital's description of its own file, with options by party."""
    out.mkdir(exist_ok=True)
    for name in NAMES:
        succeed(
            "data", "schema", source / f"{name}.csv", "--label", "readmitted",
            *options.get(name, ()), "--out", out / f"{name}.json",
        )  # fmt: skip
    return [out / f"{name}.json" for name in NAMES]


def medians_in(path: Path) -> dict[str, list[float]]:
    columns = json.loads(path.read_text(encoding="utf-8"))["columns"]
    return {c["name"]: c["rounded_medians"] for c in columns if "rounded_medians" in c}


def test_a_description_has_rounded_medians_that_are_shown(tmp_path: Path) -> None:
    source = write(tmp_path / "in")
    description = succeed(
        "data", "schema", source / "alba.csv", "--label", "readmitted", "--out", tmp_path / "a.json"
    )
    assert medians_in(tmp_path / "a.json") == {"age": [64, 64], "glucose": [128, 128]}
    assert re.search(r"glucose +number .* 128", description.out)
    assert "to leave them out, say --no-medians" in words(description)
    without = succeed(
        "data", "schema", source / "alba.csv", "--label", "readmitted", "--no-medians", "--out",
        tmp_path / "b.json",
    )  # fmt: skip
    assert medians_in(tmp_path / "b.json") == {}
    assert "128" not in without.out
    # Of few rows nothing is told, and constants need none.
    lines = (source / "alba.csv").read_text().splitlines()
    (tmp_path / "few.csv").write_text("\n".join(lines[:9]) + "\n")
    succeed(
        "data", "schema", tmp_path / "few.csv", "--label", "readmitted", "--out",
        tmp_path / "c.json",
    )  # fmt: skip
    assert medians_in(tmp_path / "c.json") == {}
    succeed(
        "data", "schema", tmp_path / "a.json", "--constant", "age=60,15", "--constant",
        "glucose=120,30", "--out", tmp_path / "d.json",
    )  # fmt: skip
    assert medians_in(tmp_path / "d.json") == {}


def test_medians_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    columns = {
        "change": draw.normal(0.3, 1, 80),
        "crp": np.exp(draw.normal(1, 2, 80)),
        "weight": draw.normal(70, 10, 80),
    }
    rows = zip(*columns.values(), strict=True)
    lines = [f"{','.join(map(str, row))},{'ny'[k % 2]}" for k, row in enumerate(rows)]
    (tmp_path / "a.csv").write_text("\n".join([",".join([*columns, "label"]), *lines]) + "\n")
    succeed("data", "schema", tmp_path / "a.csv", "--out", tmp_path / "a.json")
    assert medians_in(tmp_path / "a.json") == {"weight": [64, 64]}


def test_an_import_has_no_medians_in_its_schema(tmp_path: Path) -> None:
    data = import_federation(write(tmp_path / "in"), tmp_path / "out", label="readmitted")
    assert data.schema is not None
    assert not any(column.rounded_medians for column in data.schema.columns)


def test_a_unit_is_named_where_descriptions_are_merged(tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"berg": millimoles, "dorf": millimoles})
    files = describe(source, tmp_path / "own")
    merged = succeed("data", "schema", *files, "--out", tmp_path / "schema.json")
    text = words(merged)
    assert (
        "the median of glucose is about 8 at berg, dorf, but about 128 at alba, cava, elm" in text
    )
    typed = shlex.split(text[text.index("--unit") : text.index(", or write")])
    repaired = succeed("data", "schema", *files, *typed, "--out", tmp_path / "repaired.json")
    assert "the median of glucose" not in words(repaired)
    assert medians_in(tmp_path / "repaired.json")["glucose"] == [128, 128]


FAR_FROM_MEDIANS = (
    r"glucose is about \d\.\d+ at dorf, far from the medians in the schema, about 128: mmol/l"
    r" instead of mg/dl\?"
)


def test_a_unit_at_a_separate_site_is_named(tmp_path: Path) -> None:
    """The site brings a file that nobody has described, or changed its export since."""
    agreed = tmp_path / "schema.json"
    files = describe(write(tmp_path / "in"), tmp_path / "own")
    succeed("data", "schema", *files, "--out", agreed)
    source = write(tmp_path / "later", {"dorf": millimoles})
    imported = succeed(
        "data", "import", source / "dorf.csv", "--schema", agreed, "--out", tmp_path / "out"
    )
    assert re.search(FAR_FROM_MEDIANS, words(imported))
    other = succeed(
        "data", "import", source / "elm.csv", "--schema", agreed, "--out", tmp_path / "elm"
    )
    assert "far from" not in words(other)


def test_a_unit_is_named_where_a_site_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nvflare")
    agreed = tmp_path / "schema.json"
    files = describe(write(tmp_path / "in"), tmp_path / "own")
    succeed("data", "schema", *files, "--out", agreed)
    source = write(tmp_path / "later", {"dorf": millimoles})
    monkeypatch.chdir(tmp_path)
    succeed("deploy", "init", "hub", "--server", "localhost:8102", "--schema", agreed)
    joined = succeed("deploy", "join", "hub/invite.json", "--data", source / "dorf.csv")
    assert re.search(FAR_FROM_MEDIANS, words(joined))


@pytest.mark.parametrize("medians", [[0, 2], [4, 2], [1], ["a", "b"]])
def test_medians_in_a_schema_are_checked(medians: list[Any], tmp_path: Path) -> None:
    source = write(tmp_path / "in")
    (path,) = describe(source, tmp_path / "own")[:1]
    content = json.loads(path.read_text(encoding="utf-8"))
    content["columns"][0]["rounded_medians"] = medians
    path.write_text(json.dumps(content), encoding="utf-8")
    refused = command(
        "data", "import", source / "alba.csv", "--schema", path, "--out", tmp_path / "out"
    )
    assert refused.code == 2
    assert "rounded_medians of 'age' must be two numbers above 0" in words(refused)


@pytest.mark.parametrize(
    ("column", "lower", "upper", "differ"),
    [
        ("value", 8, 64, True),
        ("value", 8, 32, False),
        ("body_temp", 32, 128, True),  # °C and °F
        ("age", 16, 64, False),  # children
        ("weight", 64, 128, False),
    ],
)
def test_rounded_medians(column: str, lower: float, upper: float, differ: bool) -> None:
    assert rounded_medians_differ(column, lower, upper) is differ


def test_labels_from_1_of_a_single_site_are_noticed_with_what_to_type(tmp_path: Path) -> None:
    """Sites that describe their tables alone agree on all numbers from 0."""
    file = tmp_path / "north.csv"
    rows = [f"{k * 0.37 % 1:.3f},{k % 10 + 1}" for k in range(100)]
    file.write_text("x,grade\n" + "\n".join(rows) + "\n", encoding="utf-8")
    about = ("data", "schema", file, "--label", "grade")
    result = command(*about, "--out", tmp_path / "a.json")
    assert "no row has the grade 0, and the classes are 0 to 10" in " ".join(result.out.split())
    result = command(*about, "--kind", "grade=words", "--out", tmp_path / "b.json")
    assert result.out.startswith("grade: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10")
    assert "no row has" not in result.err + result.out
