"""Schemas of tables: kinds of columns, missing values, and a common schema of several parties."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import comity
from comity.data import load
from comity.data.importing import import_federation
from comity.data.preparation import Column, Schema, Unusable, encode, fill_missing, normalise
from comity.data.tables import agreed_schema, read_schema, summarize_schema
from comity.errors import UsageError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def schema_of(folder: Path, **about: Any) -> Schema:
    return agreed_schema([folder], **about)


def kinds(schema: Schema) -> dict[str, str]:
    return {column.name: column.kind for column in schema.columns}


# --- kinds of columns


def rows(header: str, *lines: str, times: int = 1) -> str:
    return "\n".join([header, *lines * times]) + "\n"


def test_kinds_of_columns(tmp_path: Path) -> None:
    lines = [
        f"{1000 + k},{k % 7 + 0.5},{k % 2},{'m' if k % 3 else 'f'},2024-01-{k % 28 + 1:02},thing"
        f" {k},{k},{k % 2}"
        for k in range(30)
    ]
    write(tmp_path / "a.csv", rows("case_id,age,smokes,sex,admitted,note,row,label", *lines))
    schema = schema_of(tmp_path)
    assert kinds(schema) == {"age": "number", "smokes": "flag", "sex": "words"}
    assert {
        name: why.partition(":")[0].partition(",")[0] for name, why in schema.left_out.items()
    } == {
        "case_id": "looks like an identifier",
        "admitted": "looks like dates",
        "note": "looks like an identifier",
        "row": "looks like an identifier",
    }
    assert any(
        "'case_id' is left out" in line and "--kind" in line for line in summarize_schema(schema)
    ), "the message does not say what to type"
    assert not any("--kind" in line for line in summarize_schema(schema, is_given=True)), (
        "an option is suggested that has no effect"
    )
    with_options = schema_of(tmp_path, kinds={"row": "number", "smokes": "words"}, drop=("sex",))
    assert kinds(with_options) == {"age": "number", "smokes": "words", "row": "number"}
    assert kinds(schema_of(tmp_path, columns=("age", "sex"))) == {"age": "number", "sex": "words"}


def test_free_text_is_left_out(tmp_path: Path) -> None:
    long = "a long remark about what happened on the ward that night as number"
    write(
        tmp_path / "a.csv",
        rows("x,remark,label", *[f"{k % 5 + 0.5},{long} {k % 15},{k % 2}" for k in range(30)]),
    )
    assert "free text" in schema_of(tmp_path).left_out["remark"]


@pytest.mark.parametrize(
    "word", ["NA", "N/A", "nan", "NaN", "null", "NULL", "-", ".", "", "?", " na "]
)
def test_words_for_missing_values(word: str, tmp_path: Path) -> None:
    write(
        tmp_path / "in" / "a.csv",
        rows("age,sex,label", f"{word},m,yes", f"2.5,{word},no", "3.5,f,no"),
    )
    data = import_federation(tmp_path / "in", tmp_path / "out")
    assert data.x[:, 0].isnan().tolist() == [True, False, False]
    assert data.x[:, 1:].tolist() == [[0, 1], [0, 0], [1, 0]]


def test_more_words_for_missing(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", rows("age,sex,label", "-9,m,yes", "2.5,unknown,no", "3.5,f,no"))
    schema = schema_of(tmp_path, missing=("-9", "unknown"))
    assert [column.may_be_missing for column in schema.columns] == [True, True]
    assert schema.columns[1].words == ("f", "m")


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
def test_separators_and_decimal_commas(separator: str, tmp_path: Path) -> None:
    comma = separator == ","
    cells = [["age", "sex", "label"], ["3.5" if comma else "3,5", "m", "yes"], ["4", "f", "no"]]
    write(tmp_path / "in" / "a.csv", "\n".join(separator.join(line) for line in cells))
    data = import_federation(tmp_path / "in", tmp_path / "out")
    assert data.x[:, 0].tolist() == [3.5, 4.0]
    assert data.class_names == ("no", "yes")


def test_excel(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for line in (
        ["age", "sex", "label", None],
        [63, "m", "yes", None],
        [None, "f", "no", None],
        [None] * 4,
        [2.5, "m", "no", None],
    ):
        book.active.append(line)
    (tmp_path / "in").mkdir()
    book.save(tmp_path / "in" / "a.xlsx")
    data = import_federation(tmp_path / "in", tmp_path / "out")
    assert data.x[:, 0].nan_to_num(-1).tolist() == [63, -1, 2.5]
    assert data.x[:, 1:].tolist() == [[0, 1], [1, 0], [0, 1]]


def test_words_that_differ_in_case_only(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", rows("sex,x,label", "M,1.5,dead", "f,2.5,alive"))
    write(tmp_path / "in" / "b.csv", rows("sex,x,label", "m,1.5,Dead ", "f,2.5,ALIVE"))
    with pytest.raises(
        UsageError,
        match="'M' and 'm', which differ in case or blanks only: say --merge-case if they are one",
    ):
        schema_of(tmp_path / "in")
    schema = schema_of(tmp_path / "in", merge_case=True)
    assert (schema.classes, schema.columns[0].words) == (("alive", "dead"), ("f", "m"))
    two = schema_of(tmp_path / "in", merge_case=False)
    assert (two.classes, two.columns[0].words) == (
        ("ALIVE", "Dead", "alive", "dead"),
        ("M", "f", "m"),
    )
    data = import_federation(tmp_path / "in", tmp_path / "out", merge_case=True)
    assert data.y.tolist() == [1, 0, 1, 0]
    assert data.x[:, :2].tolist() == [[0, 1], [1, 0]] * 2


def test_a_column_that_one_party_lacks(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", rows("age,ward,label", "1.5,A,yes", "2.5,B,no"))
    write(tmp_path / "in" / "b.csv", rows("label,age", "yes,1.5", "no,"))
    data = import_federation(tmp_path / "in", tmp_path / "out")
    assert data.x[2:].nan_to_num(-1).tolist() == [[1.5, 0, 0], [-1, 0, 0]]
    assert any("b never has ward" in note for note in data.warnings)
    assert data.schema is not None
    assert [column.may_be_missing for column in data.schema.columns] == [True, True]


def test_other_names_of_columns(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", rows("age,outcome", "1.5,yes", "2.5,no"))
    write(tmp_path / "in" / "b.csv", rows("Ausgang,Alter", "yes,1.5", "no,3.5"))
    with pytest.raises(UsageError, match=r"b\.csv has no column called 'outcome'"):
        schema_of(tmp_path / "in", label="outcome")
    data = import_federation(
        tmp_path / "in",
        tmp_path / "out",
        label="outcome",
        rename={"Alter": "age", "Ausgang": "outcome"},
    )
    assert data.x[:, 0].tolist() == [1.5, 2.5, 1.5, 3.5]
    assert data.schema is not None
    assert data.schema.columns[0].also_called == ("Alter",)


def test_names_of_columns_that_differ_in_case_are_one(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", rows("age,label", "1.5,yes", "2.5,no"))
    write(tmp_path / "b.csv", rows("Age ,LABEL", "1.5,yes", "2.5,no"))
    schema = schema_of(tmp_path)
    assert kinds(schema) == {"age": "number"}
    assert schema.label_also_called == ("LABEL",)


def test_two_columns_that_become_one_are_refused(tmp_path: Path) -> None:
    """One of them would be lost silently."""
    write(tmp_path / "a.csv", rows("age,Alter,label", "1.5,2.5,yes", "2.5,3.5,no"))
    with pytest.raises(
        UsageError,
        match=r"a\.csv has the columns 'age' and 'Alter', and either may be 'age': remove one",
    ):
        schema_of(tmp_path, rename={"Alter": "age"})
    write(tmp_path / "a.csv", rows("age,Age,label", "1.5,2.5,yes", "2.5,3.5,no"))
    with pytest.raises(
        UsageError,
        match=r"a\.csv has the columns 'age' and 'Age', and either may be 'age': remove one",
    ):
        schema_of(tmp_path)


def test_rows_without_a_label_by_other_names_and_words(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", rows("age,Ausgang", "1.5,yes", "2.5,n.d.", "3.5,no"))
    how: dict[str, Any] = {
        "label": "outcome",
        "rename": {"Ausgang": "outcome"},
        "missing": ("n.d.",),
        "skip_unlabelled": True,
    }
    assert import_federation(tmp_path / "in", tmp_path / "out", **how).y.tolist() == [1, 0]


def test_rows_without_a_label(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", rows("age,label", "1.5,yes", "2.5,NA", "3.5,no"))
    with pytest.raises(
        UsageError, match=r"no label in row 2 of 'label': fill it in, or say --skip-unlabelled"
    ):
        import_federation(tmp_path / "in", tmp_path / "out")
    assert import_federation(
        tmp_path / "in", tmp_path / "out", skip_unlabelled=True
    ).y.tolist() == [1, 0]


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.csv", rows("age,sex,label", "1.5,m,yes", "2.5,f,no"))
    for wrong in (
        {"drop": ("sx",)},
        {"rename": {"Altr": "age"}},
        {"columns": ("age", "sx")},
        {"kinds": {"sx": "words"}},
    ):
        with pytest.raises(UsageError, match=r"There is no column called '(sx|Altr)'"):
            schema_of(tmp_path, **wrong)


def test_options_of_merged_schemas(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", rows("age,note,label", "1.5,x,yes", "2.5,y,no"))
    write(tmp_path / "b.csv", rows("Alter,note,label", "1.5,x,yes", "2.5,z,no"))
    for name in ("a", "b"):
        agreed_schema([tmp_path / f"{name}.csv"]).write(tmp_path / f"{name}.json")
    both = [tmp_path / "a.json", tmp_path / "b.json"]
    merged = agreed_schema(both, drop=("note",), rename={"Alter": "age"}, units={"age": "years"})
    assert [(c.name, c.also_called, c.unit, c.may_be_missing) for c in merged.columns] == [
        ("age", ("Alter",), "years", False)
    ]
    with pytest.raises(UsageError, match="use --kind where the file is described"):
        agreed_schema(both, kinds={"age": "words"})
    with pytest.raises(UsageError, match="There is no column called 'nte'"):
        agreed_schema(both, drop=("nte",))


def test_labels_that_are_words_at_one_party_and_numbers_at_another(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", rows("age,label", "1.5,dead", "2.5,alive"))
    write(tmp_path / "b.csv", rows("age,label", "1.5,0", "2.5,1"))
    with pytest.raises(
        UsageError, match="of party 'b' is 0, 1 but that of party 'a' alive, dead: they must agree"
    ):
        schema_of(tmp_path)


def test_words_that_stand_for_others(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", rows("sex,label", "m,dead", "f,alive", "male,dead"))
    write(tmp_path / "in" / "b.csv", rows("sex,label", "female,1", "male,0"))
    words = {"sex": {"m": "male", "f": "female"}, "label": {"1": "dead", "0": "alive"}}
    data = import_federation(tmp_path / "in", tmp_path / "out", words=words)
    assert data.class_names == ("alive", "dead")
    assert data.y.tolist() == [1, 0, 1, 1, 0]
    assert data.x.tolist() == [[0, 1], [1, 0], [0, 1], [1, 0], [0, 1]]
    for name in ("a", "b"):
        agreed_schema([tmp_path / "in" / f"{name}.csv"]).write(tmp_path / f"{name}.json")
    later = agreed_schema([tmp_path / "a.json", tmp_path / "b.json"], words=words)
    assert later == data.schema, "the option has another effect when schemas are merged"
    with pytest.raises(UsageError, match="There is no column called 'sx'"):
        schema_of(tmp_path / "in", words={"sx": {"m": "male"}, "label": words["label"]})


def test_labels_coded_from_one(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", rows("age,label", "1.5,1", "2.5,2", "3.5,2"))
    data = import_federation(
        tmp_path / "in", tmp_path / "out", kinds={"label": "words"}, positive="1"
    )
    assert (data.classes, data.class_names, data.y.tolist()) == (2, ("2", "1"), [1, 0, 0])


def test_a_number_that_names_rows(tmp_path: Path) -> None:
    lines = [f"{731846 + 17 * (k * 7 % 60)},{k % 7 + 0.5},{k % 2}" for k in range(60)]
    write(tmp_path / "a.csv", rows("Fall,age,label", *lines))
    assert "identifier" in schema_of(tmp_path).left_out["Fall"]


def test_a_typing_error_is_named(tmp_path: Path) -> None:
    lines = [f"{430 if k == 4 else 30 + k},{k % 2}" for k in range(40)]
    write(tmp_path / "in" / "a.csv", rows("age,label", *lines))
    data = import_federation(tmp_path / "in", tmp_path / "out", kinds={"age": "number"})
    assert any(
        "age is 430 in row 5 of a, but from 31.95 to 68.05 in most: a typing error?" in note
        for note in data.warnings
    )


def test_skipped_rows_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", rows("age,label", "1.5,yes", "2.5,NA", "3.5,no"))
    data = import_federation(tmp_path / "in", tmp_path / "out", skip_unlabelled=True)
    assert any("1 rows without a label were left out (a 1)." in note for note in data.warnings)


# --- separate and pooled imports

CELLS = {
    "age": st.sampled_from(["31", "45.5", "70", "", "NA"]),
    "sex": st.sampled_from(["m", "f", "?"]),
    "flag": st.sampled_from(["0", "1", ""]),
    "ward": st.sampled_from(["A", "B", "C 1"]),
    "outcome": st.sampled_from(["dead", "alive"]),
}


@st.composite
def federations(draw: st.DrawFn) -> dict[str, tuple[list[str], str, list[list[str]]]]:
    parties_by_name = {}
    for name in draw(
        st.lists(
            st.sampled_from(["north", "south", "east", "west"]), min_size=1, max_size=4, unique=True
        )
    ):
        columns = draw(
            st.permutations(
                [
                    *draw(st.sets(st.sampled_from(["age", "sex", "flag", "ward"]), min_size=1)),
                    "outcome",
                ]
            )
        )
        lines = draw(st.lists(st.tuples(*(CELLS[c] for c in columns)), min_size=5, max_size=8))
        parties_by_name[name] = (
            list(columns),
            draw(st.sampled_from([",", ";", "\t"])),
            [list(line) for line in lines],
        )
    return parties_by_name


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(parties=federations())
@example(
    parties={
        "north": (["sex", "flag", "age", "outcome"], ",", [["m", "0", "31", "dead"]] * 5),
        "south": (["ward", "sex", "flag", "outcome"], ",", [["A", "m", "", "dead"]] * 5),
        "east": (["age", "outcome"], ",", [["31", "dead"]] * 4 + [["31", "alive"]]),
    }
)  # a column that is empty at one party only
def test_separate_imports_equal_the_pooled_import(
    parties: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("federation")
    (here / "in").mkdir()
    for name, (columns, separator, lines) in parties.items():
        with (here / "in" / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=separator).writerows([columns, *lines])
    try:
        pooled = import_federation(here / "in", here / "pooled", label="outcome")
    except UsageError as error:
        assert "same label" in str(error) or "no column but" in str(error)  # noqa: PT017 - which refusal it is is the point
        return
    descriptions = []
    for name in sorted(parties):
        descriptions.append(here / f"{name}.json")
        try:
            agreed_schema([here / "in" / f"{name}.csv"], label="outcome").write(descriptions[-1])
        except UsageError as error:
            assert "no column but" in str(error)  # noqa: PT017 - a party with empty columns only has nothing to tell
            return
    schema = agreed_schema(descriptions)
    assert schema == pooled.schema
    x = []
    for name in sorted(parties):
        alone = import_federation(
            here / "in" / f"{name}.csv", here / f"alone-{name}", schema=schema
        )
        x.append(alone.x.numpy())
        assert alone.class_names == pooled.class_names
        assert alone.shape == pooled.shape
        ours = load(str(here / f"alone-{name}")).partition("auto").parties[name]
        theirs = load(str(here / "pooled")).partition("auto").parties[name]
        for part in ("train", "validation", "test"):
            assert (
                getattr(ours, part).x.numpy().tobytes() == getattr(theirs, part).x.numpy().tobytes()
            )
    assert np.concatenate(x).tobytes() == pooled.x.numpy().tobytes()


def test_a_schema_is_a_file_that_people_can_change(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", rows("pressure,label", "120,yes", "0,no", "80,no", "90,yes"))
    agreed_schema([tmp_path / "in"]).write(tmp_path / "schema.json")
    content = json.loads((tmp_path / "schema.json").read_text(encoding="utf-8"))
    assert content["columns"] == [{"name": "pressure", "kind": "number"}]
    content["columns"][0] |= {
        "also_missing": ["0"],
        "may_be_missing": True,
        "mean": 100.0,
        "std": 20.0,
    }
    content["scale"] = "fixed"
    (tmp_path / "schema.json").write_text(json.dumps(content), encoding="utf-8")
    data = import_federation(
        tmp_path / "in", tmp_path / "out", schema=read_schema(tmp_path / "schema.json")
    )
    assert data.x[:, 0].isnan().tolist() == [False, True, False, False]
    assert (data.mean, data.std) == ((100.0,), (20.0,))
    party = data.partition("auto", validation=0.0, test="own(0.25)").parties["a"]
    assert set(party.train.x[:, 0].tolist() + party.test.x[:, 0].tolist()) >= {1.0, -1.0} - {None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": 3}, "holds no valid schema"),
        ({"comity_schema": 9}, "another version"),
        ({"scale": "all"}, "there is no scale called 'all'"),
        ({"classes": ["a", "a"]}, "'a' is in it twice"),
        ({"columns": [{"name": "x", "kind": "colour"}]}, "there is no kind called 'colour'"),
        ({"columns": [{"name": "x", "kind": "number", "std": 0}]}, "std more than 0"),
        ({"colour": 1}, "holds no valid schema"),
    ],
)
def test_invalid_schema_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", rows("x,label", "1.5,yes", "2.5,no"))
    content = agreed_schema([tmp_path / "in"]).to_dict()
    (tmp_path / "schema.json").write_text(json.dumps(content | change), encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        read_schema(tmp_path / "schema.json")


def test_a_damaged_schema_is_noticed(tmp_path: Path) -> None:
    """Swapped words of a column would change the data of all patients."""
    write(tmp_path / "in" / "a.csv", rows("sex,label", "m,yes", "f,no", times=4))
    import_federation(tmp_path / "in", tmp_path / "out")
    text = (tmp_path / "out" / "schema.json").read_text(encoding="utf-8")
    (tmp_path / "out" / "schema.json").write_text(text.replace('"no"', '"nope"'), encoding="utf-8")
    with pytest.raises(UsageError, match="has changed since it was written"):
        load(str(tmp_path / "out"))


# --- new rows

SCHEMA = Schema(
    (
        Column("age", "number", also_called=("Alter",)),
        Column("sex", "words", ("f", "m")),
        Column("ward", "words", ("A", "B"), may_be_missing=True),
        Column("pressure", "number", may_be_missing=True, also_missing=("0",)),
    ),
    "outcome",
    ("alive", "dead"),
)


def test_new_rows_in_any_order_and_by_other_names() -> None:
    encoded = encode(
        SCHEMA, {"sex": ["m", "f"], "Alter": ["50", "60.5"], "pressure": ["0", 120]}, 2, "new.csv"
    )
    assert np.array_equal(
        encoded.x,
        np.array([[50, 0, 1, 0, 0, np.nan], [60.5, 1, 0, 0, 0, 120]], np.float32),
        equal_nan=True,
    )
    assert encoded.warnings == ("new.csv has no column 'ward': it is taken as missing.",)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"age": ["5o"], "sex": ["m"]},
            "The column 'age' of new.csv has '5o' in row 1, which is not a number",
        ),
        (
            {"age": ["50"], "sex": ["x"]},
            "The column 'sex' of new.csv has 'x' in row 1, which is not one of its words (f, m)",
        ),
        (
            {"age": ["50"]},
            "new.csv has no column 'sex', which was never missing before; it has age.",
        ),
        (
            {"sex": ["m"]},
            "new.csv has no column 'age' (also called Alter), which was never missing before",
        ),
        (
            {"age": ["50"], "Sex": ["m"], "SEX": ["m"]},
            "has the columns 'Sex' and 'SEX', and either may be 'sex'",
        ),
        ({"age": ["1e999"], "sex": ["m"]}, "has '1e999' in row 1, which is not a number"),
    ],
)
def test_invalid_new_rows_are_refused(table: dict[str, list[str]], message: str) -> None:
    with pytest.raises(Unusable) as caught:
        encode(SCHEMA, table, 1, "new.csv")
    assert message in str(caught.value)
    assert str(caught.value).endswith(".")


def test_cell_that_was_never_missing_before_is_warned_of() -> None:
    warning, _, _ = encode(SCHEMA, {"age": ["", "3"], "sex": ["m", "f"]}, 2, "new.csv").warnings
    assert (
        warning
        == "The column 'age' of new.csv is missing in row 1, which it never was before: it is"
        " treated like other missing values."
    )
    with pytest.raises(Unusable, match="let all parties agree on a schema"):
        encode(SCHEMA, {"age": ["", "3"], "sex": ["m", "f"]}, 2, "new.csv", strict=True)


@given(
    x=st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32) | st.just(float("nan")), min_size=3, max_size=3),
        min_size=1,
        max_size=5,
    ),
    mean=st.tuples(*[st.floats(-100, 100)] * 3),
    std=st.tuples(*[st.floats(0.01, 100)] * 3),
)
def test_numpy_and_torch_preprocessing_are_equal_bit_for_bit(x: Any, mean: Any, std: Any) -> None:
    from comity.data.federation import Preprocess

    fill = (0.1, -0.2, 3.0)
    ours = Preprocess(1.0, mean, std, (0, 2), {"north": fill})(torch.tensor(x, dtype=torch.float32))
    alone = fill_missing(normalise(np.array(x, np.float32), 1.0, mean, std), fill, (0, 2))
    assert ours.numpy().tobytes() == alone.tobytes()


# --- predictions from Python


def test_predict_takes_raw_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    lines = [
        f"{30 + k * 7 % 40},{'m' if k % 3 else ''},{'yes' if k % 40 > 20 else 'no'}"
        for k in range(80)
    ]
    write(tmp_path / "in" / "a.csv", rows("age,sex,label", *lines[:40]))
    write(tmp_path / "in" / "b.csv", rows("age,sex,label", *lines[40:]))
    data = import_federation(tmp_path / "in", tmp_path / "out")
    fed = data.partition("auto")
    model = comity.run("fedavg+dbe", fed, rounds=2, model="mlp2(width=8)").model("b")
    rows_of_b = list(fed.split.parties["b"].test)
    expected = model.logits(fed.parties["b"].test.x).softmax(1)
    cells = [lines[row].split(",")[:2] for row in rows_of_b]
    frame = pandas.DataFrame(
        {
            "sex": [sex or None for _, sex in cells],
            "age": [float(age) for age, _ in cells],
            "more": 1,
        }
    )
    for samples in (
        frame,
        {"age": [age for age, _ in cells], "sex": [sex for _, sex in cells]},
        cells,
        fed.parties["b"].test,
    ):
        assert torch.equal(model.predict_proba(samples), expected)
        assert torch.equal(model.predict(samples), expected.argmax(1))
    with pytest.raises(UsageError, match="has 'x' in row 1, which is not one of its words"):
        model.predict([["50", "x"]])
    with pytest.raises(UsageError, match="rows of 2 cells: age, sex"):
        model.predict([[1.0, 2.0, 3.0]])


def test_pictures_that_are_prepared_already_are_refused() -> None:
    """Normalising them twice would lower the accuracy silently."""
    digits = comity.load("digits")
    fed = digits.partition("iid|keep(samples=40)", parties=2, seed=0)
    model = comity.run("fedavg", fed, rounds=1, model="linear").model("p0")
    test = fed.parties["p0"].test
    raw = digits.x[list(fed.split.parties["p0"].test)]
    for samples in (raw, raw.numpy(), raw.tolist(), raw[:, 0].numpy(), test):
        assert torch.equal(model.predict(samples), model.logits(test.x).argmax(1))
    with pytest.raises(
        UsageError,
        match=(
            r"values from -1 to 1, but this model takes them as the party has them, from 0 to 1\."
        ),
    ):
        model.predict(test.x)
    with pytest.raises(
        UsageError, match=r"have the shape \(1, 4, 4\), but this model takes \(1, 8, 8\)"
    ):
        model.predict(np.zeros((2, 4, 4)))
