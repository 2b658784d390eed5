"""From the files of four hospitals to predictions for a new patient, with commands only."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import comity, one_sentence, succeed

from comity.data import load
from comity.runs.folder import RunFolder
from comity.runs.result import Result
from comity.runs.run import reopen

ABOUT = (
    "--label",
    "outcome",
    "--merge-case",
    "--rename",
    "Alter=age",
    "--unit",
    "age=years",
    "--positive",
    "dead",
)
RUN = ("--rounds", "3", "--model", "mlp2(width=8)", "--engine", "loop")
ALONE = """
import runpy, sys
sys.modules["comity"] = None  # an import of it fails
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def patients(count: int, draw: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(count):
        age, pressure, sex = draw.randint(30, 90), round(draw.gauss(130, 20), 1), draw.choice("mf")
        dead = (age - 60) / 10 + (pressure - 130) / 20 + (sex == "m") + draw.gauss(0, 1) > 0.5
        yield {
            "id": 1000 + number, "age": age, "pressure": pressure, "sex": sex, "ward": draw.choice("ABC"),
            "admitted": f"2024-0{draw.randint(1, 9)}-1{draw.randint(0, 9)}", "outcome": "dead" if dead else "alive",
        }  # fmt: skip


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files with different columns, names, orders, separators, words and missing cells."""
    folder = tmp_path_factory.mktemp("mine") / "hospitals"
    folder.mkdir()
    draw = random.Random(0)
    with (folder / "north.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(["id", "age", "sex", "pressure", "ward", "admitted", "outcome"])
        for p in patients(60, draw):
            age = p["age"] if draw.random() > 0.1 else draw.choice(["NA", "?", "-"])
            out.writerow(
                [p["id"], age, p["sex"], p["pressure"], p["ward"], p["admitted"], p["outcome"]]
            )
    lines = ["Outcome;sex;Alter;pressure"]
    for p in patients(50, draw):
        lines.append(f"{p['outcome']};{p['sex']};{p['age']};{str(p['pressure']).replace('.', ',')}")
    (folder / "south.csv").write_text("\n".join(lines), encoding="utf-8")
    lines = ["pressure\tage\tsex\toutcome\tward"]
    for p in patients(40, draw):
        outcome = p["outcome"].title() if draw.random() < 0.3 else p["outcome"]
        lines.append(
            f"{p['pressure']}\t{p['age']}\t{p['sex']}\t{outcome}\t{draw.choice(['A', 'B', 'null'])}"
        )
    (folder / "east.csv").write_text("\n".join(lines), encoding="utf-8")
    book = pytest.importorskip("openpyxl").Workbook()
    book.active.append(["sex", "age", "pressure", "ward", "outcome"])
    for p in patients(50, draw):
        book.active.append(
            [
                p["sex"],
                p["age"],
                p["pressure"],
                p["ward"] if draw.random() > 0.2 else None,
                p["outcome"],
            ]
        )
    book.save(folder / "west.xlsx")
    return folder


@pytest.fixture(scope="module")
def imported_data(hospitals: Path) -> Path:
    out = hospitals.parent / "imported"
    succeed("data", "import", hospitals, *ABOUT, "--out", out)
    return out


def test_import_reports_ambiguous_words_and_left_out_columns(
    hospitals: Path, tmp_path: Path
) -> None:
    message = one_sentence(
        comity(
            "data",
            "import",
            hospitals,
            "--label",
            "outcome",
            "--rename",
            "Alter=age",
            "--out",
            tmp_path / "x",
        ),
        2,
    )
    assert "'Alive' and 'alive', which differ in case or blanks only: say --merge-case" in message
    message = succeed("data", "import", hospitals, *ABOUT, "--out", tmp_path / "y").out
    for part in (
        "200 samples of 4 parties (east, north, south, west), 2 classes (alive, dead)",
        "south never has ward",
        "'id' is left out: it looks like an identifier",
        "'admitted' is left out: it looks like dates",
        "Numbers are standardised by the mean and standard deviation of each party's own",
    ):
        assert part in " ".join(message.split())


def test_separate_imports_by_schema_equal_the_joint_import(
    hospitals: Path, imported_data: Path, tmp_path: Path
) -> None:
    """Hospitals exchange only descriptions of their files; the imported data are equal byte for
    byte.
    """
    files = sorted(hospitals.iterdir())
    for file in files:
        out = tmp_path / f"{file.stem}.json"
        # Where all files are in one place, no medians need to be exchanged.
        succeed("data", "schema", file, *ABOUT[:-2], "--no-medians", "--out", out)
    descriptions = [tmp_path / f"{file.stem}.json" for file in files]
    succeed(
        "data", "schema", *descriptions, "--positive", "dead", "--out", tmp_path / "schema.json"
    )
    assert (tmp_path / "schema.json").read_bytes() == (imported_data / "schema.json").read_bytes()
    x = []
    for file in files:
        succeed(
            "data",
            "import",
            file,
            "--schema",
            tmp_path / "schema.json",
            "--out",
            tmp_path / file.stem,
        )
        x.append(np.load(tmp_path / file.stem / "x.npy"))
    assert np.concatenate(x).tobytes() == np.load(imported_data / "x.npy").tobytes()


def test_inspect(imported_data: Path) -> None:
    output = succeed("data", "inspect", "--data", imported_data).out
    for part in (
        "alive",
        "dead",
        "missing",
        "5th, middle, 95th",
        "Warning: south never has ward.",
    ):
        assert part in output


@pytest.fixture(scope="module")
def model(imported_data: Path) -> Path:
    """The exported model of south."""
    root = imported_data.parent
    succeed(
        "compare",
        "fedavg",
        "fedavg+dbe",
        "--data",
        imported_data,
        *RUN,
        "--folds",
        1,
        "--out",
        root / "compared",
        "--no-report",
    )
    succeed(
        "export",
        root / "compared" / "fedavg+dbe" / "seed-0",
        "--party",
        "south",
        "--out",
        root / "model",
    )
    return root / "model"


def run_of(model: Path) -> Result:
    folder = model.parent / "compared" / "fedavg+dbe" / "seed-0"
    summary = RunFolder(folder).read_summary()
    assert summary is not None
    return Result(folder, reopen(folder), summary)


def predict_without_comity(model: Path, *args: object) -> subprocess.CompletedProcess[str]:
    """Run `python predict.py ARGS` in a process that cannot import Comity."""
    command = [sys.executable, "-c", ALONE, str(model / "predict.py"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def predicted_lines(model: Path, *args: object) -> list[str]:
    """The lines that `predict.py ARGS` prints, run in this process while Comity cannot be
    imported.
    """
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        for name in [*sys.modules]:
            if name.partition(".")[0] == "comity":
                patch.setitem(sys.modules, name, None)
        patch.delitem(sys.modules, "preparation", raising=False)
        patch.setattr(sys, "argv", ["predict.py", *map(str, args)])
        patch.syspath_prepend(str(model))
        runpy.run_path(str(model / "predict.py"), run_name="__main__")
    sys.modules.pop("preparation", None)
    return out.getvalue().splitlines()


def test_prediction_for_a_new_patient(hospitals: Path, model: Path, tmp_path: Path) -> None:
    """Rows with the hospital's own names, order and decimal commas and without a label get the
    predictions of the run's model.
    """
    head, *lines = (hospitals / "south.csv").read_text(encoding="utf-8").splitlines()
    new = [head.partition(";")[2], *(line.partition(";")[2] for line in lines)]
    new[3] = "m;;120,5"  # a missing age, which occurs at other hospitals only
    (tmp_path / "new.csv").write_text("\n".join(new), encoding="utf-8")
    result = predict_without_comity(model, tmp_path / "new.csv", "--out", tmp_path / "said.csv")
    assert result.returncode == 0, result.stderr
    assert "no column 'ward': it is taken as missing" in result.stderr
    with (tmp_path / "said.csv").open(encoding="utf-8", newline="") as file:
        predictions = list(csv.DictReader(file))
    south_model = run_of(model).model("south")
    cells = [line.replace(",", ".").split(";") for line in new[1:]]
    expected = south_model.predict_proba(
        {
            "sex": [c[0] for c in cells],
            "age": [c[1] for c in cells],
            "pressure": [c[2] for c in cells],
        }
    )
    assert [row["prediction"] for row in predictions] == [
        ("alive", "dead")[k] for k in expected.argmax(1)
    ]
    assert [float(row["p(dead)"]) for row in predictions] == pytest.approx(
        expected[:, 1].tolist(), abs=1e-6
    )
    data = load(str(model.parent / "imported"))
    fed = data.partition("auto")
    inside = south_model.logits(fed.parties["south"].test.x).softmax(1)
    first = int(np.flatnonzero(data.groups["party"].of == 2)[0])
    at = [row - first for row in fed.split.parties["south"].test]
    others = expected[[k for k in at if k != 2]], inside[[n for n, k in enumerate(at) if k != 2]]
    torch.testing.assert_close(
        *others, rtol=0, atol=1e-6
    )  # some processors round differently with other batch sizes


def test_prediction_for_a_new_patient_in_excel(model: Path, tmp_path: Path) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    for row in (["Alter", "sex", "pressure"], [63, "m", 120.5], [50, "f", None]):
        book.active.append(row)
    book.save(tmp_path / "new.xlsx")
    lines = predicted_lines(model, tmp_path / "new.xlsx")
    expected = (
        run_of(model).model("south").predict_proba([[120.5, 63, "m", None], [None, 50, "f", None]])
    )
    assert [float(line.split(",")[-1]) for line in lines[1:]] == pytest.approx(
        expected[:, 1].tolist(), abs=1e-6
    )


def test_onnx_model_has_the_same_logits(model: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model / "model.onnx")
    south_model = run_of(model).model("south")
    x = run_of(model).job.federation.parties["south"].test.x
    (scores,) = session.run(None, {"samples": x.numpy()})
    assert np.abs(scores - south_model.logits(x).numpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,sex,pressure\n50,x,120\n", "has 'x' in row 1, which is not one of its words (f, m)"),
        (
            "age,pressure\n50,120\n",
            "has no column 'sex', which was never missing before; it has age, pressure.",
        ),
        (
            "age,sex,pressure\nfifty,m,120\n",
            "The column 'age' of new.csv has 'fifty' in row 1, which is not a number",
        ),
        ("age,sex,pressure\n50,m\n", "has 2 cells in row 1, but 3 columns"),
        ("age,sex,pressure\n", "has no rows"),
        ("", "has no rows"),
    ],
)
def test_invalid_rows_are_refused(
    text: str, message: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["predict.py", "new.csv"])
    monkeypatch.syspath_prepend(str(model))
    sys.modules.pop("preparation", None)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(model / "predict.py"), run_name="__main__")
    assert message in str(end.value.code)
    assert str(end.value.code).endswith(".")
    assert "\n" not in str(end.value.code)


NEW_ROWS = """id,age,sex,pressure
0012,50,m,120
0013,fifty,m,120
=1+1,60,f,130
0015,70,x,110
0016,61,f,
"""


def test_refused_rows_are_named_and_the_others_predicted(model: Path, tmp_path: Path) -> None:
    """Ids are carried along, each refused row is named with its reason, and the exit code is 3."""
    (tmp_path / "new.csv").write_text(NEW_ROWS, encoding="utf-8")
    out = tmp_path / "said.csv"
    result = predict_without_comity(model, tmp_path / "new.csv", "--out", out)
    assert result.returncode == 3, result.stderr
    with out.open(encoding="utf-8", newline="") as file:
        predictions = list(csv.DictReader(file))
    assert list(predictions[0])[:4] == ["row", "id", "prediction", "probability"]
    assert [(row["row"], row["id"]) for row in predictions] == [
        ("1", "0012"),
        ("3", "'=1+1"),
        ("5", "0016"),
    ]
    lines = result.stderr.splitlines()
    refusals = [line for line in lines if "is refused" in line]
    assert refusals[0].startswith("row 2 (id 0013) is refused: The column 'age' of ")
    assert "has 'fifty' in row 2, which is not a number" in refusals[0]
    assert refusals[1].startswith("row 4 (id 0015) is refused: The column 'sex' of ")
    assert "has 'x' in row 4, which is not one of its words (f, m)" in refusals[1]
    assert len(refusals) == 2
    assert lines[-1] == "2 of 5 rows were refused."
    expected = run_of(model).model("south").predict_proba([[120, 50, "m", None]])
    assert float(predictions[0]["p(dead)"]) == pytest.approx(float(expected[0, 1]), abs=1e-6)


def test_named_id_columns(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "id,bed,age,sex,pressure\n7,a 1,50,m,120\n8,b 2,60,f,130\n"
    (tmp_path / "new.csv").write_text(rows, encoding="utf-8")
    lines = predicted_lines(model, tmp_path / "new.csv", "--id", "bed", "--id", "id")
    assert lines[0].startswith("row,bed,id,prediction,")
    assert [line.split(",")[:3] for line in lines[1:]] == [["1", "a 1", "7"], ["2", "b 2", "8"]]
    with pytest.raises(SystemExit, match=r"has no column 'room' \(--id\); it has id, bed, age"):
        predicted_lines(model, tmp_path / "new.csv", "--id", "room")
    capsys.readouterr()


def test_all_rows_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age,sex,pressure\nx,m,1\ny,m,1\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"All 2 rows are refused; the first: .* in row 1, which"):
        predicted_lines(model, tmp_path / "new.csv")


def test_model_card_matches_the_run(model: Path) -> None:
    card = (model / "card.md").read_text(encoding="utf-8")
    summary = run_of(model).summary
    assert (
        f"On its own 12 test samples: accuracy {summary['accuracy']['per_party']['south']:.1%},"
        " balanced accuracy" in card
    )
    assert "It predicts outcome: one of alive, dead." in card
    assert "Numbers are scaled by south's own training samples" in card
    assert "| age | number | years | yes |" in card
    assert "| sex | one of f, m |  | no |" in card
    description = json.loads((model / "model.json").read_text(encoding="utf-8"))
    fed = run_of(model).job.federation
    mean, std = fed.preprocess.own["south"]
    assert (description["preprocess"]["mean"], description["preprocess"]["std"]) == (
        [*mean],
        [*std],
    )
    assert description["preprocess"]["own"] == {}, "values of another party are exported"


def test_prediction_for_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    for party in ("east", "west"):
        for k, kind in enumerate(("bright", "dark")):
            for n in range(6):
                path = tmp_path / "in" / party / kind / f"{n}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image.fromarray(
                    draw.integers(100 * (1 - k), 256 - 100 * k, (8, 8, 3), dtype=np.uint8)
                ).save(path)
    succeed("data", "import", tmp_path / "in", "--out", tmp_path / "out")
    small = ("--rounds", "1", "--model", "lenet5", "--engine", "loop", "--validation", "0")
    succeed("run", "fedavg", "--data", tmp_path / "out", *small, "--out", tmp_path / "run")
    succeed("export", tmp_path / "run", "--party", "east", "--out", tmp_path / "model")
    probabilities = [
        float(line.split(",")[-1])
        for line in predicted_lines(tmp_path / "model", tmp_path / "in" / "east")[1:]
    ]
    (tmp_path / "in" / "east" / "dark" / "3.png").write_bytes(b"no picture")
    result = predict_without_comity(tmp_path / "model", tmp_path / "in" / "east")
    assert result.returncode == 3
    lines = result.stdout.splitlines()
    assert lines[0].startswith("row,file,prediction,")
    assert [line.split(",")[1] for line in lines[9:]] == [f"dark/{n}.png" for n in (2, 4, 5)]
    assert "row 10 (file dark/3.png) is refused: " in result.stderr
    assert "1 of 12 rows were refused." in result.stderr
    east_model = Result(tmp_path / "run", reopen(tmp_path / "run"), {}).model("east")
    assert probabilities == pytest.approx(
        east_model.predict_proba(load(str(tmp_path / "out")).x[:12])[:, 1].tolist(), abs=1e-6
    )


def test_split_files_imported_again_equal_the_dataset(tmp_path: Path) -> None:
    """`data split` writes one file per hospital; imported by the schema they are the dataset
    again.
    """
    succeed("data", "split", "--data", "heart", "--out", tmp_path / "dealt")
    assert sorted(p.name for p in (tmp_path / "dealt").iterdir()) == [
        "cleveland.csv", "hungarian.csv", "switzerland.csv", "va_long_beach.csv",
    ]  # fmt: skip
    heart = load("heart")
    assert heart.schema is not None
    heart.schema.write(tmp_path / "schema.json")
    succeed(
        "data",
        "import",
        tmp_path / "dealt",
        "--schema",
        tmp_path / "schema.json",
        "--out",
        tmp_path / "again",
    )
    again = load(str(tmp_path / "again"))
    assert again.x.numpy().tobytes() == heart.x.numpy().tobytes()
    assert torch.equal(again.y, heart.y)
