"""Values that somebody else has chosen: a record that overflows, and a class name that is a
formula.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import comity
from comity.base.finite import is_finite
from comity.core.participation import NOT_FINITE
from comity.runs.folder import RunFolder
from comity.studies import predict
from comity.studies.export import export
from comity.training.dp_sgd import add_clipped
from comity.training.task import Batch

SETTINGS: dict[str, Any] = {"rounds": 2, "batch": 20, "engine": "loop"}


def parties(huge: float = 0.0) -> dict[str, tuple[Any, Any]]:
    generator = np.random.default_rng(0)
    found = {}
    for name in ("east", "west"):
        x = generator.normal(size=(60, 1, 16, 16)).astype(np.float32)
        found[name] = (x, np.arange(60) % 2)
    if huge:
        found["east"][0][:, 0, 0, 0] = huge
    return found


@pytest.mark.parametrize("huge", [1e25, 3e38, -1e25])
@pytest.mark.parametrize("model", ["linear", "mlp2(width=8)", "cnn4"])
def test_a_record_that_overflows_adds_nothing(huge: float, model: str) -> None:
    """The sum is that of the other records, up to rounding."""
    federation = comity.Federation.from_arrays(parties())
    result = comity.run("fedavg", federation, rounds=1, model=model, engine="loop")
    task, trained = result.job.info.task, result.model("east").theta
    theta = {name: value.detach().requires_grad_() for name, value in trained.items()}
    clean = federation.parties["east"].train
    x, y = torch.as_tensor(clean.x[:6]).clone(), torch.as_tensor(clean.y[:6])
    x[2, ..., 0] = huge
    every = torch.arange(6)
    others = every[every != 2]
    for clip in (0.5, 1e6):
        sums = []
        for rows in (every, others):
            total = {name: torch.zeros_like(value) for name, value in theta.items()}
            batch = Batch(x[rows], y[rows], rows, 0, {})
            add_clipped(total, task.loss, theta, batch, clip, 1.0)
            sums.append(torch.cat([value.flatten() for value in total.values()]))
        assert sums[0].isfinite().all()
        torch.testing.assert_close(sums[0], sums[1], rtol=1e-4, atol=1e-6)
        alone = {name: torch.zeros_like(value) for name, value in theta.items()}
        add_clipped(alone, task.loss, theta, Batch(x[2:3], y[2:3], every[:1], 0, {}), clip, 1.0)
        assert torch.cat([value.flatten() for value in alone.values()]).norm() <= clip


@pytest.mark.parametrize("model", ["linear", "mlp2(width=8)", "cnn4"])
def test_a_huge_record_leaves_private_replies_finite(model: str, tmp_path: Path) -> None:
    """What is claimed to be spent is spent on replies that count."""
    arrays = parties()
    arrays["east"][0][7, 0, 0, 0] = 1e25
    result = comity.run(
        "fedavg+dp",
        comity.Federation.from_arrays(arrays),
        out=tmp_path / "run",
        noise=1.0,
        model=model,
        **SETTINGS,
    )
    assert result.summary["privacy"]["epsilon"] < 100
    absences = RunFolder(tmp_path / "run").read_absences()
    assert [row for row in absences if row.how == NOT_FINITE] == []
    assert is_finite(result.model("east").theta)


def test_a_party_whose_replies_never_count_spends_and_says_so() -> None:
    with pytest.warns(UserWarning, match="All replies of east had values that are not finite"):
        result = comity.run(
            "fedavg+dp",
            comity.Federation.from_arrays(parties()),
            noise=100.0,
            model="mlp2(width=8)",
            party={"east": {"lr": 3e38}},
            **SETTINGS,
        )
    assert {row.party for row in result.privacy} == {"east", "west"}
    assert result.summary["privacy"]["epsilon"] > 0


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("＝1+1", "'＝1+1"),
        ("-1.5", "-1.5"),
        ("+2e-3", "+2e-3"),
        ("ill", "ill"),
        ("'", "'"),
        ("", ""),
    ],
)
def test_a_text_that_is_a_formula_becomes_a_text(text: str, cell: str) -> None:
    assert predict.as_cell(text) == cell


@pytest.mark.usefixtures("without_onnx")
def test_predictions_hold_no_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "\n".join(f"{k % 7},{k % 5},{'=1+1' if k % 2 else '-1.5'}" for k in range(60))
    (tmp_path / "hospital.csv").write_text(f"a,b,label\n{rows}\n", encoding="utf-8")
    from comity.data.importing import import_federation

    federation = import_federation(
        tmp_path / "hospital.csv", tmp_path / "data", label="label"
    ).partition("natural(min=1)")
    result = comity.run("solo", federation, rounds=1, model="linear", engine="loop")
    export(result, federation.names[0], tmp_path / "model")
    assert "=1+1" in federation.class_names
    monkeypatch.setattr(predict, "HERE", tmp_path / "model")
    out = tmp_path / "out.csv"
    monkeypatch.setattr(
        sys, "argv", ["predict.py", str(tmp_path / "hospital.csv"), "--out", str(out)]
    )
    predict.main()
    with out.open(encoding="utf-8", newline="") as file:
        heads, *lines = csv.reader(file)
    cells = {line[1] for line in lines}
    assert cells <= {"'=1+1", "-1.5"}
    assert not any(cell.startswith(("=", "+", "@")) for line in [heads, *lines] for cell in line)
    assert "predictions are in" in capsys.readouterr().out
