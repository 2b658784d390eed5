"""What a report says to do next, with a command that works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import succeed
from method_rows import row

import comity
from comity.reporting.sections.decision import next_step
from comity.studies.estimate import Estimate
from comity.studies.export import export
from comity.studies.overall_verdict import overall_verdict

CLEAR = Estimate(0.05, 0.02, 0.08)


def sentence(run: Path, folds: int) -> str:
    """What to do next after a comparison in which fedavg gains."""
    rows = [row("fedavg", CLEAR)]
    method = SimpleNamespace(name="fedavg", finished=[SimpleNamespace(folder=run)])
    group: Any = SimpleNamespace(site=None, folds=folds, methods=[method])
    verdict = overall_verdict(rows, [], 1, folds)
    assert verdict is not None
    return next_step(verdict, rows, group, run)


def test_after_cross_validation_a_final_model_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_onnx: None
) -> None:
    """Exporting the run of a fold would give a model that never saw a fifth of the samples."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "fold"
    comity.run("fedavg", data="heart", rounds=1, model="linear", test="folds(5)", out=run)
    text = sentence(run, folds=5)
    assert "Train a final model" in text
    commands = re.findall(r"comity ((?:run|export) .*?)(?=, and|\.$)", text)
    assert len(commands) == 2, text
    for command in commands:
        succeed(*shlex.split(command.replace("NAME", "hungarian")))
    assert (tmp_path / "final" / "exported" / "hungarian" / "predict.py").is_file()


def test_a_single_run_is_exported(tmp_path: Path) -> None:
    assert sentence(tmp_path / "run", folds=1) == (
        f"Export a party's model: comity export {tmp_path / 'run'} --party NAME."
    )


def test_export_says_that_a_class_is_never_predicted(tmp_path: Path, without_onnx: None) -> None:
    draw = np.random.default_rng(0)
    parties = {
        name: (draw.normal(size=(80, 3)).astype("float32"), np.arange(80) % 10 // 9)
        for name in ("north", "village")
    }
    federation = comity.Federation.from_arrays(parties)
    result = comity.run("fedavg", federation, rounds=5, model="linear")
    (text,) = [text for text in export(result, "village", tmp_path / "model") if "class" in text]
    assert text.startswith("village's model predicted the same class for all its test samples")
    assert "sensitivity is 0%" in text
    assert "--calibrate threshold" in text
