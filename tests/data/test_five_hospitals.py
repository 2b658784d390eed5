"""Five hospitals' messy files: every planted fault is noticed before training, the printed advice
repairs it, and the repaired federation trains. The same at separate sites, each with its own file.
"""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import CommandResult, comity, succeed, summary
from in_process_sites import Root, Sites

from comity.data import Dataset, load
from comity.data.table_checks import Values, split_columns
from comity.deploy.policy import write as write_policy
from comity.deploy.server import SCHEMA
from comity.reporting import report
from comity.runs.folder import RunFolder

LABEL = ("--label", "readmitted")
HEADER = ["row_id", "age", "sex", "glucose", "creatinine", "smoker", "discharge", "readmitted"]
NAMES = ("city", "east", "north", "south", "west")
ROWS = {"city": 40, "east": 90, "north": 120, "south": 80, "west": 100}


def patient(number: int, draw: random.Random) -> list[Any]:
    """A row without faults, in the order of HEADER."""
    age, glucose = draw.randint(30, 90), round(draw.gauss(120, 25), 1)
    risk = (age - 60) / 15 + (glucose - 120) / 30 + draw.gauss(0, 1)
    return [
        10_000 + number,
        age,
        draw.choice(["male", "female"]),
        glucose,
        round(draw.gauss(1.0, 0.2), 2),
        draw.choice(["yes", "no"]),
        draw.choice(["A", "B", "C"]),
        "yes" if risk > 0 else "no",
    ]


def write(path: Path, rows: list[list[Any]], separator: str = ",", names: Any = HEADER) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([names, *rows])


def plant(folder: Path, typing_error: bool = False) -> Path:
    """Write the five files with their faults; `typing_error` adds a cell that is no number."""
    folder.mkdir()
    draw = random.Random(7)
    files = {name: [patient(k, draw) for k in range(ROWS[name])] for name in NAMES}
    for row in files["south"]:  # another unit, and German words
        row[3] = round(row[3] / 18.02, 2)
        row[2] = {"male": "m", "female": "w"}[row[2]]
    for k, row in enumerate(files["east"]):  # codes for missing values
        row[3] = -9 if k % 9 == 0 else row[3]
        row[4] = 999 if k % 12 == 5 else row[4]
    for row in (*files["south"], *files["west"]):  # other label words at two of five
        row[-1] = {"yes": "Readmitted", "no": "Not readmitted"}[row[-1]]
    for row in (*files["city"], *files["west"]):  # another unit at two of five
        row[4] = round(row[4] * 88.42, 1)
    for row in files["north"][5::7]:  # two notations in one file
        row[2] = {"male": "m", "female": "f"}[row[2]]
    files["city"][3][1] = -9  # a single code
    files["west"] += [[20_000 + k, *row[1:]] for k, row in enumerate(files["west"][:6])]  # copies
    for row in files["city"]:  # a code that is known only after the label
        row[6] = "R" if row[-1] == "yes" else "H"
    files["east"] += [[30_000 + k, *row[1:]] for k, row in enumerate(files["north"][:3])]
    if typing_error:
        files["north"][4][3] = "12o"
    for name, rows in files.items():
        ending = "tsv" if name == "south" else "csv"
        write(folder / f"{name}.{ending}", rows, "\t" if name == "south" else ",")
    return folder


def advice(result: CommandResult, *options: str) -> list[str]:
    """The options that the sentences on the screen say to type."""
    text = " ".join((result.out + result.err).split())
    found = re.findall(rf"({'|'.join(options)}) ('[^']*')", text)
    return [word for option, value in found for word in (option, *shlex.split(value))]


def sentences(result: CommandResult) -> list[str]:
    return [" ".join(line.split()) for line in result.out.splitlines()]


def numbers(data: Dataset, column: str) -> Values:
    """The values of one column of numbers."""
    assert data.schema is not None
    return split_columns(data.schema, data.x.numpy())[column][1][:, 0]


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    files = plant(tmp_path / "in", typing_error=True)
    (files / "notes.csv").write_text("a,b\n1\n")
    result = comity("data", "import", files, *LABEL, "--out", tmp_path / "out")
    assert result.code == 2
    lines = result.err.splitlines()
    assert len(lines) == 3, result.err
    assert all(line.startswith("comity: ") for line in lines)
    for part in (
        "notes.csv has 1 cells in line 2, but 2 columns",
        "north.csv has '12o' in row 5, but numbers in most",
        "The label 'readmitted' is no, yes at city, east, north but Not readmitted, Readmitted at"
        " south, west",
    ):
        assert any(part in line for line in lines), part
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("five") / "in")


@pytest.fixture(scope="module")
def label_advice(hospitals: Path) -> list[str]:
    """What the refusal of the label words says to type."""
    result = comity("data", "import", hospitals, *LABEL, "--out", hospitals.parent / "refused")
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    options = advice(result, "--word")
    assert options == [
        "--word",
        "readmitted:Not readmitted=no",
        "--word",
        "readmitted:Readmitted=yes",
    ]
    return options


@pytest.fixture(scope="module")
def first_import(hospitals: Path, label_advice: list[str]) -> CommandResult:
    out = hospitals.parent / "first"
    return succeed("data", "import", hospitals, *LABEL, *label_advice, "--out", out)


FAULTS = {
    "code -9": (
        r"glucose of east is -9 in 10 rows, but from [\d.]+ to [\d.]+ in the others: if that means"
        r" missing, say --missing 'east:glucose=-9', or write"
        r' "parties": \{"east": \{"also_missing": \{"glucose": \["-9"\]\}\}\} in the schema'
    ),
    "code 999": r"creatinine of east is 999 in 8 rows, .* say --missing 'east:creatinine=999'",
    "one code": r"age of city is -9 in 1 row, .* say --missing 'city:age=-9'",
    "unit of two": (
        r"creatinine is about 8\d\.?\d* at city, west, but about [01]\.?\d* at east, north, south"
        r" \(numbers cannot show which side is right\): µmol/l instead of mg/dl\? To convert it, say"
        r" --unit 'creatinine=mg/dl' --unit 'city:creatinine=µmol/l' --unit"
        r" 'west:creatinine=µmol/l' --convert 'creatinine:µmol/l=0.01131'"
    ),
    "unit": (
        r"glucose is about 6\.\d+ at south, but between [\d.]+ and [\d.]+ elsewhere: mmol/l instead"
        r" of mg/dl\? To convert it, say --unit 'glucose=mg/dl' --unit 'south:glucose=mmol/l'"
        r" --convert 'glucose:mmol/l=18.02'"
    ),
    "leak": r"discharge alone separates the classes at city: is it known before the label is\?",
    "copies": (
        r"6 rows of west are equal to other rows there in all columns that are used, as row 101 to"
        r" row 1 \(counted below the header\): copies stay in .* --drop-copies"
    ),
    "shared rows": r"3 rows of north are identical to rows of east: the same people\?",
    "words": (
        r"sex is female, male at city, east, west but f, female, m, male at north but m, w at south:"
        r" if words mean the same, say --word 'sex:f=female' --word 'sex:m=male' --word"
        r" 'sex:w=female', or write"
        r' "also_written": \{"f": "female", "m": "male", "w": "female"\} in its column of the schema'
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_at_import(fault: str, first_import: CommandResult) -> None:
    assert any(re.search(FAULTS[fault], line) for line in sentences(first_import)), first_import.out


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_by_inspect(
    fault: str, first_import: CommandResult, hospitals: Path
) -> None:
    result = succeed("data", "inspect", "--data", hospitals.parent / "first")
    assert any(re.search(FAULTS[fault], line) for line in sentences(result)), result.out


@pytest.fixture(scope="module")
def repaired(hospitals: Path, label_advice: list[str], first_import: CommandResult) -> Path:
    """The federation that is imported with all that was advised."""
    options = advice(first_import, "--missing", "--unit", "--convert", "--word", "--drop")
    out = hospitals.parent / "repaired"
    result = succeed(
        "data", "import", hospitals, *LABEL, *label_advice, *options, "--positive", "yes",
        "--out", out,
    )  # fmt: skip
    for fault, pattern in FAULTS.items():
        is_left = fault in ("copies", "shared rows")  # the files still have them
        found = any(re.search(pattern, line) for line in sentences(result))
        assert found == is_left, f"{fault}: {result.out}"
    return out


def test_advice_repairs_the_data(repaired: Path) -> None:
    data = load(str(repaired))
    assert data.class_names == ("no", "yes")
    assert data.schema is not None
    columns = {column.name: column for column in data.schema.columns}
    assert columns["sex"].words == ("female", "male")
    assert "discharge" not in columns
    glucose = numbers(data, "glucose")
    parties = data.groups["party"]
    medians = {
        name: float(np.nanmedian(glucose[parties.of == k])) for k, name in enumerate(parties.names)
    }
    assert all(100 < median < 140 for median in medians.values()), medians
    is_missing = np.isnan(glucose)
    assert is_missing.sum() == 10
    assert set(parties.of[is_missing]) == {parties.names.index("east")}


def test_copies_stay_in_one_part(repaired: Path) -> None:
    data = load(str(repaired))
    assert data.copies is not None
    for seed in range(5):
        for part in data.partition("auto", seed=seed).split.parties.values():
            train, validation, test = (
                set(data.copies[list(positions)].tolist())
                for positions in (part.train, part.validation, part.test)
            )
            assert not train & (validation | test)
            assert not validation & test


def test_no_hospital_trains_on_what_another_one_is_tested_on(repaired: Path) -> None:
    """Three rows of north are at east, too."""
    data = load(str(repaired))
    assert data.shared_rows is not None
    assert len(data) - len(set(data.shared_rows.tolist())) == 3
    for seed in range(5):
        parties = data.partition("auto", seed=seed).split.parties.values()
        trained = {k for share in parties for k in data.shared_rows[list(share.train)].tolist()}
        tested = {k for share in parties for k in data.shared_rows[list(share.test)].tolist()}
        assert not trained & tested


def test_the_repaired_federation_trains(repaired: Path, tmp_path: Path) -> None:
    succeed(
        "run", "fedavg", "--data", repaired, "--rounds", "2", "--model", "linear", "--engine",
        "loop", "--out", tmp_path / "run",
    )  # fmt: skip
    per_party = summary(tmp_path / "run")["accuracy"]["per_party"]
    assert per_party.keys() == set(NAMES)
    assert all(np.isfinite(value) for value in per_party.values())


# Separate sites.


LABEL_WORDS = ("--word", "readmitted:Readmitted=yes", "--word", "readmitted:Not readmitted=no")
OWN_OPTIONS = {
    "city": ("--unit", "creatinine=µmol/l", "--missing", "age=-9"),
    "east": ("--missing", "glucose=-9", "--missing", "creatinine=999"),
    "north": ("--word", "sex:f=female", "--word", "sex:m=male"),
    "south": (
        "--unit", "glucose=mmol/l", "--word", "sex:m=male", "--word", "sex:w=female", *LABEL_WORDS
    ),
    "west": ("--unit", "creatinine=µmol/l", *LABEL_WORDS),
}  # fmt: skip


@pytest.fixture(scope="module")
def agreed(hospitals: Path) -> Path:
    """The schema of five descriptions, each made where its file is."""
    folder = hospitals.parent / "descriptions"
    folder.mkdir()
    for file in sorted(hospitals.iterdir()):
        name = file.stem
        succeed(
            "data", "schema", file, *LABEL, "--drop", "discharge", *OWN_OPTIONS.get(name, ()),
            "--out", folder / f"{name}.json",
        )  # fmt: skip
    descriptions = [folder / f"{name}.json" for name in NAMES]
    out = hospitals.parent / "schema.json"
    succeed(
        "data", "schema", *descriptions, "--unit", "glucose=mg/dl", "--convert",
        "glucose:mmol/l=18.02", "--unit", "creatinine=mg/dl", "--convert",
        "creatinine:µmol/l=0.01131", "--positive", "yes", "--out", out,
    )  # fmt: skip
    return out


def test_codes_and_units_stay_those_of_their_party(agreed: Path) -> None:
    schema = json.loads(agreed.read_text(encoding="utf-8"))
    assert schema["missing"] == []
    assert schema["parties"] == {
        "city": {"also_missing": {"age": ["-9"]}, "units": {"creatinine": "µmol/l"}},
        "east": {"also_missing": {"glucose": ["-9"], "creatinine": ["999"]}},
        "north": {},
        "south": {"units": {"glucose": "mmol/l"}},
        "west": {"units": {"creatinine": "µmol/l"}},
    }
    medians = {c["name"]: c["rounded_medians"] for c in schema["columns"] if c["kind"] == "number"}
    assert medians == {"age": [64, 64], "glucose": [128, 128], "creatinine": [1, 1]}


def test_sites_import_what_the_pooled_import_has(
    agreed: Path, repaired: Path, hospitals: Path, tmp_path: Path
) -> None:
    pooled = load(str(repaired))
    parties = pooled.groups["party"]
    for file in sorted(hospitals.iterdir()):
        succeed("data", "import", file, "--schema", agreed, "--out", tmp_path / file.stem)
        alone = load(str(tmp_path / file.stem))
        expected = pooled.x[parties.of == parties.names.index(file.stem)].numpy()
        assert alone.schema is not None
        assert alone.x.numpy().tobytes() == expected.tobytes()


def test_each_site_checks_its_own_data_where_it_joins(
    agreed: Path, hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the parties' notation in the schema, codes and scaling constants show the faults."""
    pytest.importorskip("nvflare")
    content = json.loads(agreed.read_text(encoding="utf-8"))
    content["scale"] = "fixed"
    constants = {"age": (60.0, 15.0), "glucose": (120.0, 30.0), "creatinine": (1.0, 0.3)}
    for column in content["columns"]:
        if column["name"] in constants:
            column["mean"], column["std"] = constants[column["name"]]
    del content["parties"]
    (tmp_path / "careless.json").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    succeed("deploy", "init", "hub", "--server", "localhost:8102", "--schema", "careless.json")
    expected = {
        "east": [FAULTS["code -9"], FAULTS["code 999"], r"8 values of creatinine at east, as 999"],
        "south": [r"glucose is about 6\.\d+ at south, far from the schema's mean 120 .* mmol/l"],
        "west": [FAULTS["copies"]],
        "north": [],
    }
    for name, patterns in expected.items():
        file = next(hospitals.glob(f"{name}.*"))
        result = succeed("deploy", "join", "hub/invite.json", "--data", file)
        lines = sentences(result)
        for pattern in patterns:
            assert any(re.search(pattern, line) for line in lines), f"{pattern}: {result.out}"
        words = ("standard deviation", "copies", "missing, say", "another unit")
        if not patterns:
            assert not any(word in result.out for word in words), result.out
        # Nothing of the warnings is in what the site sends to the operator.
        assert b"copies" not in Path(f"{name}.request.zip").read_bytes()


def test_a_schema_without_fault_needs_no_word_at_the_sites(
    agreed: Path, hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site is known by its name, whatever its file is called."""
    pytest.importorskip("nvflare")
    monkeypatch.chdir(tmp_path)
    succeed("deploy", "init", "hub", "--server", "localhost:8102", "--schema", agreed)
    file = tmp_path / "export-2024.tsv"
    file.write_bytes((hospitals / "south.tsv").read_bytes())
    result = succeed("deploy", "join", "hub/invite.json", "--data", file, "--name", "south")
    assert "missing" not in result.out
    glucose = numbers(load(str(tmp_path / "south" / "data")), "glucose")
    assert 100 < float(np.median(glucose)) < 140


def test_faults_are_named_where_sites_only_describe_their_files(
    hospitals: Path, tmp_path: Path
) -> None:
    """No site shows a row, and the schema is merged before anything is imported."""
    for name in NAMES:
        file = next(hospitals.glob(f"{name}.*"))
        succeed("data", "schema", file, *LABEL, "--out", tmp_path / f"{name}.json")
    descriptions = [tmp_path / f"{name}.json" for name in NAMES]
    refused = comity("data", "schema", *descriptions, "--out", tmp_path / "schema.json")
    assert refused.code == 2
    assert "but Not readmitted, Readmitted at south, west" in " ".join(refused.err.split())
    assert not (tmp_path / "schema.json").exists()
    merged = succeed(
        "data", "schema", *descriptions, *advice(refused, "--word"), "--out",
        tmp_path / "schema.json",
    )  # fmt: skip
    for pattern in (
        FAULTS["words"],
        r"the median of glucose is about 8 at south, but about 128 at city, east, north, west",
        r"the median of creatinine is about (64|128) at city, west, but about 1 at east, north",
    ):
        assert any(re.search(pattern, line) for line in sentences(merged)), merged.out


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("east", ["code -9", "code 999"]),
        ("city", ["one code", "leak"]),
        ("west", ["copies"]),
    ],
)
def test_a_site_sees_faults_where_it_describes_its_file(
    name: str, faults: list[str], hospitals: Path, tmp_path: Path
) -> None:
    file = next(hospitals.glob(f"{name}.*"))
    described = succeed("data", "schema", file, *LABEL, "--out", tmp_path / "own.json")
    for fault in faults:
        assert any(re.search(FAULTS[fault], line) for line in sentences(described)), described.out


def test_a_leak_is_named_where_its_site_imports(hospitals: Path, tmp_path: Path) -> None:
    """Only the rows of city show it, and only city has them."""
    city = next(hospitals.glob("city.*"))
    succeed("data", "schema", city, *LABEL, "--out", tmp_path / "city.json")
    result = succeed(
        "data", "import", city, "--schema", tmp_path / "city.json", "--out", tmp_path / "city"
    )
    assert any(re.search(FAULTS["leak"], line) for line in sentences(result)), result.out


# To the answers.


@pytest.fixture(scope="module")
def compared(repaired: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The comparison of the repaired federation, and its screen."""
    out = tmp_path_factory.mktemp("answers") / "compared"
    result = succeed(
        "compare", "fedavg", "--data", repaired, "--rounds", "2", "--model", "linear", "--metric",
        "auc", "--engine", "loop", "--out", out,
    )  # fmt: skip
    return out, result.out


def test_small_tables_are_compared_by_cross_validation(compared: tuple[Path, str]) -> None:
    out, screen = compared
    assert "5-fold cross-validation" in screen
    content = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert content["folds"] == 5
    runs = [RunFolder(out / "fedavg" / f"seed-{seed}") for seed in range(5)]
    for name in NAMES:
        tested = [k for run in runs for k in run.read_split().parties[name].test]
        assert len(tested) == len(set(tested)) >= ROWS[name]


def test_every_hospital_has_an_answer(compared: tuple[Path, str]) -> None:
    out, screen = compared
    content = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert [answer["party"] for answer in content["answers"]] == list(NAMES)
    text = " ".join(screen.split())
    for answer in content["answers"]:
        assert answer["verdict"] in ("gains", "level", "alone"), answer
        assert f"{answer['party']}: {answer['says']}" in text
        assert (answer["power"] is not None) == (answer["verdict"] == "level")
        if power := answer["power"]:
            gain = abs(answer["methods"]["fedavg"]["gain"])
            assert gain < power["visible"]
            assert f"a difference below {100 * power['visible']:.1f} points hardly shows" in text
    for question in ("Does collaborating help?", "At what cost?", "How sure is that?"):
        assert question in screen


def test_the_page_begins_with_the_decision(compared: tuple[Path, str]) -> None:
    succeed("report", compared[0], "--quick")
    page = (compared[0] / "report.html").read_text(encoding="utf-8")
    first = page[page.index('data-part="answer"') : page.index('data-part="methods"')]
    for part in ("Does collaborating help?", "Whom?", "At what cost?", "How sure is that?",
                 "What to do next?", *NAMES):  # fmt: skip
        assert part in first
    assert "took" in first
    assert 'class="warning"' not in first, "details are further below"


class Hospitals(Sites):
    """Sites whose data were imported there, each by the schema that all agreed on."""

    def __init__(self, folder: Path, files: Path, schema: Path) -> None:
        self.folder = folder
        self.root = Root()
        self.names = list(NAMES)
        for name in NAMES:
            self.site(name).mkdir(parents=True)
            file = next(files.glob(f"{name}.*"))
            succeed("data", "import", file, "--schema", schema, "--out", self.site(name) / "data")
            write_policy(self.site(name), name, "data")
        (folder / "hub").mkdir()
        (folder / "hub" / SCHEMA).write_bytes(schema.read_bytes())


def test_five_sites_get_answers_without_pooling(
    agreed: Path, hospitals: Path, tmp_path: Path
) -> None:
    """The story at separate sites ends with an answer for every hospital, over the best model that
    it trains alone.
    """
    sites = Hospitals(tmp_path, hospitals, agreed)
    findings = sites.compare(
        ["fedavg"], tmp_path / "out", rounds=2, model="linear", metric="auc", validation=0.1
    )
    assert findings.baseline == "own model"
    result = RunFolder(tmp_path / "out" / "fedavg" / "seed-0").read_summary()
    assert result is not None
    assert result["classes"] == ["no", "yes"]
    answers = {answer.party: answer for answer in findings.answers}
    assert answers.keys() == set(NAMES)
    judged = {name for name, a in answers.items() if a.verdict in ("gains", "level", "alone")}
    assert judged >= {"east", "north", "south", "west"}, answers
    for name in judged:
        assert "fedavg" in answers[name].says
        assert findings.own_models[name], "each is named the model of its own"
        (model,) = findings.own_models[name]
        assert f"({model})" in answers[name].says
    for question in ("Does collaborating help?", "Whom?", "How sure is that?"):
        assert findings.overall
        assert question in findings.overall.questions
    page = report(tmp_path / "out").read_text(encoding="utf-8")
    first = page[page.index('data-part="answer"') : page.index('data-part="methods"')]
    assert all(name in first for name in NAMES)
