"""Comparisons by cross-validation: what a person sees, and figures that can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import succeed
from sklearn.metrics import r2_score, roc_auc_score

import comity
from comity.data import Federation
from comity.errors import UsageError
from comity.measure.cross_validation import FoldRun, cross_validated_gains, out_of_fold
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import METRICS
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.studies.compare import title
from comity.studies.finished import Comparison, open_comparison
from comity.studies.party_verdicts import combine_seeds

SMALL: dict[str, Any] = {"rounds": 2, "model": "linear", "progress": False}


def hospitals(rows: int = 40, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in ("north", "south", "west"):
        x = rng.normal(size=(rows, 4)).astype(np.float32)
        y = (x[:, 0] + rng.normal(size=rows) > 0).astype(np.int64)
        arrays[name] = (x, y)
    return Federation.from_arrays(arrays)


def test_every_sample_is_tested_on_once(tmp_path: Path) -> None:
    comparison = comity.compare(["fedavg"], hospitals(), folds=4, out=tmp_path, **SMALL)
    tested = [
        position
        for seed in range(4)
        for position in RunFolder(tmp_path / "fedavg" / f"seed-{seed}")
        .read_split()
        .parties["north"]
        .test
    ]
    assert sorted(tested) == list(range(40))
    assert comparison.findings.folds == 4
    assert len(comparison.rows[0].figure) == 1
    assert "4-fold cross-validation" in comparison.reading


def test_the_figure_is_that_of_all_predictions(tmp_path: Path) -> None:
    comparison = comity.compare(["fedavg"], hospitals(), folds=4, out=tmp_path, **SMALL)
    right = {"north": [], "south": [], "west": []}  # type: dict[str, list[int]]
    for seed in range(4):
        for party, of_fold in (
            RunFolder(tmp_path / "fedavg" / f"seed-{seed}").read_outcomes().items()
        ):
            right[party] += of_fold
    by_hand = np.mean([np.mean(of_party) for of_party in right.values()])
    row = next(row for row in comparison.rows if row.algorithm == "fedavg")
    assert row.figure[0] == pytest.approx(by_hand)
    solo = comparison.rows[0].figure[0]
    assert row.gain is not None
    assert solo is not None
    assert row.gain.gain == pytest.approx(by_hand - solo)


def test_a_second_repeat_has_other_folds_and_narrows_the_interval(tmp_path: Path) -> None:
    federation = hospitals()
    once = comity.compare(["fedavg"], federation, folds=4, out=tmp_path / "a", **SMALL)
    twice = comity.compare(["fedavg"], federation, folds=4, repeats=2, out=tmp_path / "b", **SMALL)
    assert twice.findings.repeats == 2
    assert len(twice.rows[1].figure) == 2
    assert once.rows[1].figure[0] == twice.rows[1].figure[0]
    split = [
        RunFolder(tmp_path / "b" / "fedavg" / f"seed-{seed}").read_split().parties["north"].test
        for seed in (0, 4)
    ]
    assert split[0] != split[1]


def test_a_finished_comparison_can_be_opened_and_reported(tmp_path: Path) -> None:
    federation = hospitals()
    comity.compare(["fedavg"], federation, folds=3, out=tmp_path, **SMALL)
    again = comity.open(tmp_path)
    assert isinstance(again, Comparison)
    assert again.findings.folds == 3
    page = again.report().read_text()
    assert "3-fold cross-validation" in page
    content = json.loads((tmp_path / "comparison.json").read_text())
    assert content["folds"] == 3
    gain = again.rows[1].gain
    assert gain is not None
    assert gain.short in page


def test_a_model_of_a_fold_can_be_used_again(tmp_path: Path) -> None:
    federation = hospitals()
    comparison = comity.compare(["fedavg"], federation, folds=3, out=tmp_path, **SMALL)
    model = comparison.results["fedavg"][2].model("north")
    assert model.predict(federation.parties["north"].test).shape[0] == 10


def test_python_chooses_the_folds_of_the_command_line(tmp_path: Path) -> None:
    options = ["--data", "heart", "--rounds", "1", "--model", "linear", "--plain", "none"]
    succeed("compare", "fedavg", *options, "--out", tmp_path / "typed", "--no-report")
    small: dict[str, Any] = {"data": "heart", "plain": "none", **SMALL, "rounds": 1}
    with pytest.warns(UserWarning, match="5-fold cross-validation.*folds=1 makes it one"):
        called = comity.compare(["fedavg"], out=tmp_path / "called", **small)
    in_folder = open_comparison(tmp_path / "typed")
    assert called.findings.folds == in_folder.findings.folds == 5
    assert called.findings.seeds == in_folder.findings.seeds
    assert called.rows[1].figure == in_folder.rows[1].figure


@pytest.mark.parametrize("choice", [{"folds": 1}, {"seeds": [0]}, {"test": "own(0.25)"}])
def test_a_choice_replaces_the_default_folds(choice: dict[str, Any], tmp_path: Path) -> None:
    small: dict[str, Any] = {"data": "heart", "plain": "none", **SMALL, "rounds": 1}
    assert comity.compare(["fedavg"], out=tmp_path, **small, **choice).findings.folds == 1


def test_equal_methods_are_equal_in_every_fold(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="same here: all parties .* in every round of every fold"):
        comity.compare(["fedavg", "fedprox(mu=0)"], hospitals(), folds=2, out=tmp_path, **SMALL)


def test_missing_folds_are_refused() -> None:
    federation = comity.load("digits").partition("iid", parties=2, test="folds(3)")
    with pytest.raises(UsageError, match="seed 2 is missing"):
        comity.compare(["fedavg"], federation, seeds=[0, 1], **SMALL)


def test_seeds_and_folds_are_refused_together() -> None:
    with pytest.raises(UsageError, match="either seeds, or folds"):
        comity.compare(["fedavg"], hospitals(), seeds=[0, 1], folds=3, **SMALL)


def predictions(rng: np.random.Generator, folds: int, n: int, signal: float) -> list[FoldRun]:
    """Two classes; each fold's model has its own scale and offset of scores."""
    y = np.arange(n) % 2
    order = np.arange(n)
    runs = []
    for k in range(folds):
        at = order[k::folds]
        score = (signal * y[at] + rng.normal(size=len(at))) * (1 + 3 * k) + 5 * k
        answers = Answers(
            torch.tensor(y[at]).int(), torch.tensor(score > 0).int(), torch.tensor(score).float()
        )
        runs.append(FoldRun(k, {"p": answers}, {"p": at.tolist()}))
    return runs


def test_auc_over_folds_is_the_mean_of_the_folds() -> None:
    rng = np.random.default_rng(1)
    y = np.tile([0, 0, 1, 1], 15)
    runs, by_fold = [], []
    for k in range(3):
        at = np.arange(20 * k, 20 * k + 20)
        score = (y[at] + rng.normal(size=20)) * (1 + 3 * k) + 5 * k
        by_fold.append(roc_auc_score(y[at], score))
        answers = Answers(
            torch.tensor(y[at]).int(), torch.tensor(score > 0).int(), torch.tensor(score)
        )
        runs.append(FoldRun(k, {"p": answers}, {"p": at.tolist()}))
    pooled = out_of_fold(runs, 3)["p"][0]
    assert pooled.value(METRICS["auc"]) == pytest.approx(np.mean(by_fold))


def test_r2_is_that_of_all_predictions_together() -> None:
    rng = np.random.default_rng(2)
    truth = rng.normal(size=30)
    guess = truth + 0.5 * rng.normal(size=30)
    runs = [
        FoldRun(
            k,
            {"p": Answers(torch.tensor(truth[k::3]), torch.tensor(guess[k::3]), None)},
            {"p": list(range(k, 30, 3))},
        )
        for k in range(3)
    ]
    value = out_of_fold(runs, 3)["p"][0].value(METRICS["r2"])
    assert value == pytest.approx(r2_score(truth, guess))


def test_an_accuracy_gain_has_the_interval_of_paired_proportions() -> None:
    """Without differences between folds, the interval is that of Agresti and Min."""
    rng = np.random.default_rng(3)
    now, before = predictions(rng, 2, 60, 3.0), predictions(rng, 2, 60, 0.5)
    gain = cross_validated_gains(now, before, 2, METRICS["accuracy"])[0]
    right = [
        torch.cat([run.answers["p"].right for run in runs]).int().tolist() for runs in (now, before)
    ]
    from comity.measure.gain import paired_gain

    expected = paired_gain("p", *right)
    assert gain.gain == pytest.approx(expected.gain)
    assert gain.error == pytest.approx(expected.error)


def test_runs_that_differ_widen_the_interval() -> None:
    """One fold's model fails: its samples do not explain that, so training varies."""
    rng = np.random.default_rng(4)
    y = np.arange(100) % 2
    before = predictions(rng, 5, 100, 2.0)
    runs = []
    for k in range(5):
        at = np.arange(100)[k::5]
        good = y[at] if k else 1 - y[at]
        answers = Answers(
            torch.tensor(y[at]).int(), torch.tensor(good).int(), torch.tensor(good - 0.5)
        )
        runs.append(FoldRun(k, {"p": answers}, {"p": at.tolist()}))
    gain = cross_validated_gains(runs, before, 5, METRICS["accuracy"])[0]
    assert gain.folds is not None
    assert gain.folds.between > 0
    estimate = combine_seeds([gain], 1)
    assert estimate.high - estimate.low > 2 * (gain.high - gain.low)


def test_runs_of_folds_are_not_called_seeds() -> None:
    base = Experiment(algorithm="fedavg", data="heart", test="folds(5)")
    titles = [title(base.but(seed=seed), True) for seed in (0, 4, 5)]
    assert titles == ["fedavg fold 1", "fedavg fold 5", "fedavg fold 1 of repeat 2"]
    assert title(base.but(test="own(0.25)", seed=2), True) == "fedavg seed 2"
