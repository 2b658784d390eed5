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
from comity.studies.estimate import Estimate, Variances
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


def test_export_says_that_a_model_is_of_one_fold(tmp_path: Path, without_onnx: None) -> None:
    run = tmp_path / "fold"
    settings: dict[str, Any] = {"data": "heart", "rounds": 1, "model": "linear"}
    result = comity.run("fedavg", test="folds(5)", out=run, **settings)
    texts = export(result, "hungarian", tmp_path / "model")
    (text,) = [text for text in texts if "cross-validation" in text]
    (command,) = re.findall(r"'comity (run .*)'", text)
    assert str(run / "config.toml") in command
    assert "own(0.1)" in command
    whole = comity.run("fedavg", out=tmp_path / "whole", **settings)
    texts = export(whole, "hungarian", tmp_path / "of whole")
    assert not [text for text in texts if "cross-validation" in text]


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


UNCLEAR = Estimate(-0.01, -0.06, 0.04, Variances(0.025**2))


def own_models(folder: Path, counts: dict[str, dict[str, int]], folds: int) -> Any:
    """Runs of a comparison in which parties have chosen own models."""
    choices = [
        {party: {"model": model} for party, of_party in counts.items() for model in of_party}
    ]
    return SimpleNamespace(
        site=None,
        folds=folds,
        methods=[
            SimpleNamespace(
                name=name,
                finished=[SimpleNamespace(folder=folder / name / "seed-0", amounts={})],
                summaries=[{"own_models": own} for own in choices if name == "own-model"],
            )
            for name in ("fedavg", "solo", "plain-linear", "plain-boosting", "own-model")
        ],
    )


@pytest.mark.parametrize(
    ("gain", "begins"),
    [(UNCLEAR, "Train alone for now"), (Estimate(-0.05, -0.08, -0.02), "Train each party alone")],
)
def test_training_alone_names_the_model_of_each_party(
    tmp_path: Path, gain: Estimate, begins: str
) -> None:
    """Plain models led by 20 points over SOLO, and nothing said which model to train alone."""
    counts = {"alba": {"plain-linear": 1}, "berg": {"plain-linear": 1}, "cava": {"solo": 1}}
    group = own_models(tmp_path, counts, folds=1)
    rows = [row("fedavg", gain)]
    verdict = overall_verdict(rows, [], 1)
    assert verdict is not None
    text = next_step(verdict, rows, group, tmp_path)
    assert text.startswith(begins)
    linear, solo = (tmp_path / name / "seed-0" for name in ("plain-linear", "solo"))
    assert f"alba, berg with plain-linear (comity export {linear} --party NAME)" in text
    assert f"cava with solo (comity export {solo} --party NAME)" in text
    folds = next_step(verdict, rows, own_models(tmp_path, counts, folds=5), tmp_path)
    assert f"with plain-linear (comity export {linear} --party NAME)" in folds
    assert f"cava with solo (comity run {solo / 'config.toml'} --test 'own(0.1)'" in folds


def test_a_party_that_is_hurt_is_pointed_to_its_own_model(tmp_path: Path) -> None:
    group = own_models(tmp_path, {"alba": {"solo": 1}, "berg": {"plain-boosting": 1}}, folds=1)
    rows = [row("fedavg", CLEAR, berg=Estimate(-0.05, -0.08, -0.02))]
    verdict = overall_verdict(rows, [], 1)
    assert verdict is not None
    text = next_step(verdict, rows, group, tmp_path)
    run = tmp_path / "plain-boosting" / "seed-0"
    assert "berg, clearly hurt, should keep a model of their own." in text
    assert f"berg with plain-boosting (comity export {run} --party NAME)" in text
    assert "alba" not in text
