"""Faults in hospitals' tables: identifiers of patients, copies, other names and missing labels."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import comity as command
from harness import succeed

from comity.data.importing import import_federation
from comity.data.inspection import inspect
from comity.data.tables import agreed_schema, common_schema
from comity.errors import UsageError

HEADER = "patient_id,age,sex,glucose,readmitted"


def write(folder: Path, name: str, rows: list[list[Any]], header: str = HEADER) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def rows(identifiers: list[Any], seed: int = 0, words: tuple[str, str] = ("no", "yes")) -> Any:
    draw = random.Random(seed)
    return [
        [
            identifier,
            draw.randint(30, 90),
            draw.choice(["male", "female"]),
            round(draw.gauss(120, 25), 2),
            words[k % 2],
        ]
        for k, identifier in enumerate(identifiers)
    ]


def hospitals(folder: Path) -> Path:
    """West has 80 patients in 188 rows, east one row for each patient."""
    west = [f"W{k % 80:03}" for k in range(188)]
    write(folder, "west", rows(west, 1))
    write(folder, "east", rows(list(range(1, 61)), 2))
    return folder


def test_identifiers_of_several_rows_are_not_words(tmp_path: Path) -> None:
    source = hospitals(tmp_path / "in") / "west.csv"
    schema, warnings = common_schema([source], label="readmitted")
    assert "W000" not in schema.to_text()
    why = schema.left_out["patient_id"]
    assert why == "looks like an identifier: 80 different values in 188 rows"
    assert any("west (188 rows, 80 values)" in w and "--group patient_id" in w for w in warnings)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mrn", [f"{k // 3}" for k in range(90)]),  # whole numbers
        ("surname", [f"Name{chr(97 + k % 26)}" for k in range(60)]),
        ("code", [f"X{k // 2}" for k in range(80)]),  # codes with digits
        ("patient_id", [f"V{k}" for k in range(13)]),  # a small hospital
    ],
)
def test_values_that_identify_patients_do_not_leave(
    tmp_path: Path, name: str, values: list[str]
) -> None:
    source = write(tmp_path, "a", rows(values), HEADER.replace("patient_id", name))
    schema = agreed_schema([source], label="readmitted")
    assert [column.name for column in schema.columns] == ["age", "sex", "glucose"]
    assert schema.left_out[name].startswith("looks like an identifier")
    kept = agreed_schema([source], label="readmitted", kinds={name: "words"})
    assert name in [column.name for column in kept.columns]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("patient_age", [f"{30 + k % 50}" for k in range(200)]),
        ("ward_id", [f"ward{k % 4}" for k in range(200)]),
        ("case", [f"{k % 2}" for k in range(200)]),
        ("diagnosis", [f"E{k % 12}.9" for k in range(200)]),
    ],
)
def test_columns_with_such_names_but_few_values_are_used(
    tmp_path: Path, name: str, values: list[str]
) -> None:
    source = write(tmp_path, "a", rows(values), HEADER.replace("patient_id", name))
    schema = agreed_schema([source], label="readmitted")
    assert name in [column.name for column in schema.columns]


def test_repeated_patients_are_noticed_at_import(tmp_path: Path) -> None:
    source = hospitals(tmp_path / "in")
    data = import_federation(source, tmp_path / "out", label="readmitted")
    sentence = "patient_id repeats at west (188 rows, 80 values): several rows of one patient?"
    assert any(sentence in warning and "--group patient_id" in warning for warning in data.warnings)
    assert data.schema is not None
    assert data.schema.left_out["patient_id"] == (
        "looks like an identifier: 80 different values in 188 rows (at west)"
    )
    assert any(c.startswith(sentence) for c in inspect(data.partition("auto"), data).caveats)
    grouped = import_federation(
        source, tmp_path / "grouped", label="readmitted", group="patient_id"
    )
    assert not any("repeats" in warning for warning in grouped.warnings)
    assert grouped.schema is not None
    assert grouped.schema.left_out["patient_id"].startswith("looks like an identifier")


def test_a_table_without_any_used_column_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", "north", rows(list(range(40))))
    write(
        tmp_path / "in",
        "east",
        [[k, f"2024-01-{k % 28 + 1:02}", "no"] for k in range(40)],
        "patient_id,admitted,readmitted",
    )
    with pytest.raises(UsageError) as caught:
        import_federation(tmp_path / "in", tmp_path / "out", label="readmitted")
    assert "east.csv has no value in any of the columns that are used (age, sex, glucose)" in str(
        caught.value
    )
    assert not (tmp_path / "out").exists()


def test_a_renamed_column_gets_its_option(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for seed, name in enumerate(("east", "north", "west")):
        write(source, name, rows(list(range(40)), seed))
    write(source, "south", rows(list(range(40)), 5), HEADER.replace("age", "Alter"))
    sentence = "Alter is only at south, which lacks age, glucose: one column?"
    sentence = (
        "Alter is only at south, which lacks age: one column? If so, say --rename 'Alter=age'."
    )
    data = import_federation(source, tmp_path / "out", label="readmitted")
    assert any(sentence in warning for warning in data.warnings)
    assert sentence in common_schema([source], label="readmitted").warnings
    renamed = import_federation(
        source, tmp_path / "renamed", label="readmitted", rename={"Alter": "age"}
    )
    assert not any("one column?" in warning for warning in renamed.warnings)


def test_copies_can_be_dropped(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for seed, name in enumerate(("north", "south")):
        table = rows([f"{name}{k}" for k in range(40)], seed)
        write(source, name, [*table, *table[:6]] if name == "north" else table)
    data = import_federation(source, tmp_path / "out", label="readmitted")
    assert any(
        "6 rows of north are equal to other rows there in all columns that are used, as row 41 to"
        " row 1 (counted below the header)"
        in warning
        and "--drop-copies" in warning
        for warning in data.warnings
    )
    dropped = import_federation(source, tmp_path / "dropped", label="readmitted", drop_copies=True)
    assert len(data) == 86
    assert len(dropped) == 80
    assert any("copies of rows were left out (north 6)" in text for text in dropped.warnings)
    assert dropped.copies is None


def test_equal_rows_of_two_patients_are_no_copies(tmp_path: Path) -> None:
    table = rows([f"N{k}" for k in range(40)])
    write(tmp_path / "in", "north", [*table, table[0], ["other", *table[1][1:]]])
    data = import_federation(
        tmp_path / "in", tmp_path / "out", label="readmitted", group="patient_id", drop_copies=True
    )
    assert len(data) == 41
    assert data.patients is not None
    assert np.array_equal(data.patients, np.arange(41))


def test_merged_words_need_no_advice(tmp_path: Path) -> None:
    numbers = list(range(40))
    write(tmp_path / "in", "north", rows(numbers))
    for seed, name in enumerate(("east", "west"), start=1):
        capitals = [[*row[:2], row[2].title(), *row[3:]] for row in rows(numbers, seed)]
        write(tmp_path / "in", name, capitals)
    german = {"male": "m", "female": "w"}
    write(tmp_path / "in", "south", [[*r[:2], german[r[2]], *r[3:]] for r in rows(numbers, 3)])
    options: Any = {"label": "readmitted", "merge_case": True}
    (warning,) = common_schema([tmp_path / "in"], **options).warnings
    assert "--word 'sex:m=male' --word 'sex:w=female'" in warning
    options["words"] = {"sex": {"m": "male", "w": "female"}}
    assert common_schema([tmp_path / "in"], **options).warnings == []


def test_a_wrong_label_is_one_error_that_names_likely_columns(tmp_path: Path) -> None:
    for seed, name in enumerate(("east", "north", "south", "west")):
        write(tmp_path / "in", name, rows(list(range(40)), seed))
    for run in (
        lambda: import_federation(tmp_path / "in", tmp_path / "out", label="outcome"),
        lambda: agreed_schema([tmp_path / "in"], label="outcome"),
    ):
        with pytest.raises(UsageError) as caught:
            run()
        text = str(caught.value)
        assert text.count("has no column") + text.count("have no column") == 1
        assert "east.csv, north.csv, south.csv, west.csv have no column called 'outcome'" in text
        assert "they have readmitted, sex, " in text


def test_numbers_and_words_as_labels_get_the_real_words(tmp_path: Path) -> None:
    write(tmp_path / "in", "north", rows(list(range(40))))
    write(tmp_path / "in", "south", rows(list(range(40)), words=("0", "1")))
    with pytest.raises(UsageError, match="--word 'readmitted:1=yes'"):
        import_federation(tmp_path / "in", tmp_path / "out", label="readmitted")


def test_the_import_says_what_was_changed(tmp_path: Path) -> None:
    table = rows(list(range(40)))
    write(tmp_path / "in", "north", table)
    header = HEADER.replace("age", "Alter")
    south = [
        [*row[:2], {"male": "m", "female": "w"}[row[2]], round(row[3] / 18.02, 2), row[4]]
        for row in table
    ]
    write(tmp_path / "in", "south", south, header)
    result = succeed(
        "data", "import", tmp_path / "in", "--label", "readmitted", "--rename", "Alter=age",
        "--word", "sex:m=male", "--word", "sex:w=female", "--unit", "glucose=mg/dl", "--unit",
        "south:glucose=mmol/l", "--convert", "glucose:mmol/l=18.02", "--missing", "north:age=-9",
        "--drop", "patient_id", "--out", tmp_path / "out",
    )  # fmt: skip
    text = " ".join(result.out.split())
    for part in (
        "Dropped: patient_id.",
        "Renamed: Alter to age.",
        "Converted: glucose from mmol/l to mg/dl at south (18.02 times).",
        "Words replaced: sex: m as male, w as female.",
        "Read as missing: -9 in age of north.",
    ):
        assert part in text, text
    again = command(
        "data", "import", tmp_path / "in", "--label", "nothing", "--drop-copies", "--out",
        tmp_path / "x",
    )  # fmt: skip
    assert again.code == 2


def test_row_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    table = rows([f"N{k}" for k in range(40)])
    unlabelled = [*table[0][:-1], ""]
    write(tmp_path / "in", "north", [unlabelled, *table, table[4]])
    data = import_federation(
        tmp_path / "in", tmp_path / "out", label="readmitted", skip_unlabelled=True
    )
    assert any("as row 42 to row 6 (counted below" in warning for warning in data.warnings)


def test_a_party_of_one_class_is_named(tmp_path: Path) -> None:
    write(tmp_path / "in", "north", rows(list(range(40))))
    write(tmp_path / "in", "village", rows(list(range(20)), 1, words=("no", "no")))
    data = import_federation(tmp_path / "in", tmp_path / "out", label="readmitted")
    assert any("village has samples of 'no' only" in warning for warning in data.warnings)
    caveats = inspect(data.partition("auto"), data).caveats
    (caveat,) = [caveat for caveat in caveats if caveat.startswith("village trains")]
    assert "no sample of 'yes'" in caveat
    assert "--metric" not in caveat, "AUC does not exist there"


def test_a_saved_web_page_is_not_a_table(tmp_path: Path) -> None:
    (tmp_path / "west.csv").write_text("<!DOCTYPE html><html><body>404</body></html>\n")
    with pytest.raises(UsageError, match="is a web page or another kind of markup, not a table"):
        import_federation(tmp_path, tmp_path.parent / "no", label="readmitted")
