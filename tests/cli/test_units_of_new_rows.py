"""An exported model notices new rows in another unit, and carries identifiers of patients along."""

from __future__ import annotations

import csv
import random
import subprocess
import sys
from pathlib import Path

import pytest
from harness import succeed


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of north, which measures glucose in mg/dl, and of south, with mmol/l."""
    root = tmp_path_factory.mktemp("units")
    draw = random.Random(0)
    (root / "in").mkdir()
    for name, factor in (("north", 1.0), ("south", 18.02)):
        lines = ["patient_id,glucose,age,readmitted"]
        for k in range(120):
            glucose = draw.gauss(150, 40)
            label = "yes" if glucose > 150 else "no"
            lines.append(f"{name}{k // 2},{glucose / factor:.2f},{draw.randint(30, 90)},{label}")
        (root / "in" / f"{name}.csv").write_text("\n".join(lines) + "\n")
    succeed(
        "data", "import", root / "in", "--label", "readmitted", "--group", "patient_id",
        "--unit", "glucose=mg/dl", "--unit", "south:glucose=mmol/l", "--convert",
        "glucose:mmol/l=18.02", "--out", root / "sites",
    )  # fmt: skip
    succeed(
        "run", "fedavg", "--data", root / "sites", "--rounds", 1, "--model", "linear",
        "--out", root / "run",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comity.studies.export.find_spec", lambda name: None)
        for name in ("north", "south"):
            succeed("export", root / "run", "--party", name, "--out", root / name)
    return root


def predict(model: Path, header: str, *rows: str) -> tuple[list[list[str]], str]:
    """The predictions for these rows, and the warnings."""
    new = model / "new.csv"
    new.write_text("\n".join([header, *rows]) + "\n")
    run = subprocess.run(
        [sys.executable, model / "predict.py", new], capture_output=True, text=True, check=True
    )
    return list(csv.reader(run.stdout.splitlines())), run.stderr


def test_rows_in_another_unit_are_noticed(models: Path) -> None:
    rows, warnings = predict(models / "north", "patient_id,glucose,age", "N1,8.3,60", "N2,140,55")
    assert "'glucose' is 8.3 in row 1, unusual in mg/dl but usual in mmol/l" in warnings
    assert "glucose [mmol/l]" in warnings
    assert rows[0][:2] == ["row", "patient_id"], "identifiers are copied without --id"
    assert [row[1] for row in rows[1:]] == ["N1", "N2"]


def test_a_unit_in_the_header_is_converted(models: Path) -> None:
    _, warnings = predict(models / "north", "patient_id,glucose [mmol/l],age", "N1,8.3,60")
    assert warnings == ""


def test_a_hospital_with_a_unit_of_its_own_may_have_the_common_one(models: Path) -> None:
    _, warnings = predict(models / "south", "patient_id,glucose,age", "S1,150,60", "S2,160,60")
    assert "'glucose' is 150 in row 1 (and 1 more rows), unusual in mmol/l" in warnings
    assert "usual in mg/dl" in warnings
    _, warnings = predict(models / "south", "patient_id,glucose,age", "S1,8.3,60")
    assert warnings == ""
