"""Models that never predict a class say so, and `--calibrate` changes what parties deploy: figures,
answers and exported models, on all engines and after a resume, and nothing before the last round.
"""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from harness import comity as command
from harness import one_sentence
from in_process_sites import Sites
from numpy.typing import NDArray

import comity
from comity.deploy.site_results import MODEL
from comity.errors import UsageError
from comity.runs import checkpoint
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import warning_texts
from comity.runs.server_run import Quiet
from comity.studies.export import export, load

PRIVATE: dict[str, Any] = {
    "model": "linear",
    "rounds": 4,
    "lr": 0.2,
    "noise": 0.5,
    "seed": 1,
    "engine": "loop",
}
"""DP-SGD with which the parties' models predict one class only, under an AUC of 83%."""
HOSPITALS = ("h0", "h1", "h2")


def hospital(k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """200 samples with small values, a fifth of them of class 1."""
    draw = np.random.default_rng(k)
    y = (draw.random(200) < 0.2).astype(int)
    x = draw.normal(0, 1, (200, 3))
    x[:, 0] += 1.5 * y
    x[:, 1] += 1.2 * y
    return (0.25 * x).astype("float32"), y


def federation(validation: float = 0.3) -> comity.Federation:
    parties = {name: hospital(k) for k, name in enumerate(HOSPITALS)}
    return comity.Federation.from_arrays(parties, classes=2, validation=validation)


def means(result: comity.Result) -> dict[str, float]:
    names = ("sensitivity", "specificity", "balanced_accuracy", "auc", "brier")
    return {name: result.summary[name]["mean"] for name in names}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, comity.Result]:
    """The same private run with each calibration."""
    folder = tmp_path_factory.mktemp("calibrated")
    return {
        how: comity.run("fedavg+dp", federation(), out=folder / str(k), calibrate=how, **PRIVATE)
        for k, how in enumerate(
            ("none", "threshold", "threshold(specificity=0.9)", "temperature", "platt")
        )
    }


@pytest.mark.filterwarnings("ignore")
def test_models_that_never_predict_a_class_say_so(runs: dict[str, comity.Result]) -> None:
    plain = runs["none"]
    assert means(plain)["sensitivity"] == 0
    assert means(plain)["auc"] > 0.8
    text = warning_texts(plain.summary, "after")[-1]
    assert text.startswith("At h0, h1, h2 the final model never predicts class 1")
    assert "sensitivity is 0%, which an AUC does not show" in text
    assert "--calibrate threshold" in text
    summary = json.loads((plain.folder / "summary.json").read_text(encoding="utf-8"))
    assert text in [warning["text"] for warning in summary["warnings"]]
    page = comity.report(plain.folder, quick=True).read_text(encoding="utf-8")
    assert "never predicts class 1" in page


@pytest.mark.filterwarnings("ignore")
def test_a_comparison_says_it_once_for_all_seeds(tmp_path: Path) -> None:
    settings = {name: value for name, value in PRIVATE.items() if name != "seed"}
    found = comity.compare(
        ["fedavg+dp"], federation(), out=tmp_path / "c", seeds=(1, 2), **settings
    )
    [row] = [row for row in found.rows if row.algorithm == "fedavg+dp"]
    [text] = [text for text in row.caveats if "never predicts class 1" in text]
    assert text.startswith("fedavg+dp, seeds 1, 2: At h0, h1, h2 the final model")


@pytest.mark.filterwarnings("ignore")
def test_a_threshold_mends_it_and_nothing_else_changes(runs: dict[str, comity.Result]) -> None:
    plain, calibrated = runs["none"], runs["threshold"]
    assert means(calibrated)["balanced_accuracy"] > means(plain)["balanced_accuracy"] + 0.15
    assert means(calibrated)["sensitivity"] > 0.5
    assert not [t for t in warning_texts(calibrated.summary) if "never predicts" in t]
    assert calibrated.summary["calibrate"] == "threshold"
    last = plain.summary["rounds"]
    for rows in (plain.metrics, calibrated.metrics):
        assert {row.round for row in rows} == set(range(last + 1))
    for split in ("test", "validation"):
        before, after = (
            [
                row
                for row in r.metrics
                if row.split == split and (row.round < last or split != "test")
            ]
            for r in (plain, calibrated)
        )
        assert before == after, "training, noise or validation figures are others"
    assert means(calibrated)["auc"] == pytest.approx(means(plain)["auc"])
    sent = [sum(row.bytes for row in r.ledger) for r in (plain, calibrated)]
    assert sent[0] == sent[1], "more leaves the parties than before"


def test_a_threshold_reaches_the_specificity_that_was_asked_for(
    runs: dict[str, comity.Result],
) -> None:
    """On the samples that it is chosen on. On test samples it is as uncertain as they are few."""
    result = runs["threshold(specificity=0.9)"]
    for name, data in result.job.federation.parties.items():
        model = result.model(name)
        assert model.calibration.samples == "validation"
        predicted = model.predict(data.validation)[data.validation.y == 0]
        wrong = int(predicted.sum())
        assert wrong <= 0.1 * len(predicted) < wrong + 1
    assert means(runs["none"])["specificity"] == 1
    assert 0.75 < means(result)["specificity"] < 0.95
    assert means(result)["sensitivity"] > 0.3


def test_probabilities_improve(runs: dict[str, comity.Result]) -> None:
    """A temperature changes no prediction, and a threshold makes probabilities worse."""
    assert means(runs["platt"])["brier"] < means(runs["none"])["brier"] - 0.004
    assert means(runs["threshold"])["brier"] > means(runs["none"])["brier"]
    assert means(runs["temperature"])["sensitivity"] == 0


@pytest.mark.filterwarnings("ignore")
def test_platt_mends_an_overconfident_model() -> None:
    settings: dict[str, Any] = {"model": "mlp2", "rounds": 30, "epochs": 3, "lr": 1.0}
    plain, calibrated = (
        comity.run("solo", federation(), calibrate=how, eval_every=30, **settings)
        for how in ("none", "platt")
    )
    slopes = [r.summary["calibration_slope"]["per_party"] for r in (plain, calibrated)]
    # One party's slope differs between processors; the mean over parties does not by much.
    assert fmean(slopes[0].values()) < 0.5
    assert min(slopes[1].values()) > 0.5
    assert means(calibrated)["brier"] < means(plain)["brier"] - 0.01


# The run, the model, the exported model: the same probabilities.


def predict_alone(folder: Path, samples: Path) -> NDArray[Any]:
    """The probabilities of `predict.py` beside an exported model."""
    before = sys.path[:]
    sys.path.insert(0, str(folder))
    sys.modules.pop("preparation", None)
    try:
        spec = spec_from_file_location("predict_calibrated", folder / "predict.py")
        assert spec is not None
        assert spec.loader is not None
        script = module_from_spec(spec)
        spec.loader.exec_module(script)
        likely = script.predict(samples).values
    finally:
        sys.path[:] = before
    assert isinstance(likely, np.ndarray)
    return likely


@pytest.mark.usefixtures("without_onnx")
@pytest.mark.parametrize("how", ["threshold", "temperature", "platt"])
def test_the_exported_model_gives_the_probabilities_of_the_run(
    how: str, runs: dict[str, comity.Result], tmp_path: Path
) -> None:
    result = runs[how]
    export(result, "h1", tmp_path / "out")
    score = RunFolder(result.folder).read_answers()["h1"].score
    assert score is not None
    test = result.job.federation.parties["h1"].test
    assert torch.allclose(result.model("h1").predict_proba(test)[:, 1], score.sigmoid())
    x = test.x
    np.save(tmp_path / "new.npy", x.numpy())
    alone = predict_alone(tmp_path / "out", tmp_path / "new.npy")
    assert np.allclose(alone[:, 1], score.sigmoid().numpy(), atol=1e-6)
    assert torch.allclose(load(tmp_path / "out").predict_proba(x)[:, 1], score.sigmoid())
    constants = json.loads((tmp_path / "out" / "model.json").read_text())["calibration"]
    assert constants["how"] == how
    assert constants["samples"] == "validation"
    card = (tmp_path / "out" / "card.md").read_text(encoding="utf-8")
    assert f"Calibrated by {how} on this party's validation samples" in card


def test_constants_stay_at_the_parties(runs: dict[str, comity.Result]) -> None:
    model = runs["platt"].model("h0")
    texts = [f"{value:.4f}"[:6] for value in (model.calibration.scale, model.calibration.shift)]
    for path in runs["platt"].folder.rglob("*.json"):
        assert not any(text in path.read_text(encoding="utf-8") for text in texts), path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("engine", "workers"), [("process", 2), ("stacked", None)])
def test_engines_agree(
    engine: str, workers: int | None, runs: dict[str, comity.Result], tmp_path: Path
) -> None:
    settings = PRIVATE | {"engine": engine, "workers": workers}
    other = comity.run(
        "fedavg+dp", federation(), out=tmp_path / "run", calibrate="platt", **settings
    )
    ours, theirs = (RunFolder(r.folder).read_answers() for r in (runs["platt"], other))
    for name in HOSPITALS:
        first, second = ours[name].score, theirs[name].score
        assert first is not None
        assert second is not None
        if engine == "process":
            assert torch.equal(first, second)
        assert torch.allclose(first, second, atol=1e-3)


class Stop(Quiet):
    def round(self, t: int, figure: float | None, ledger: Any) -> None:
        if t == 2:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_is_the_same(
    runs: dict[str, comity.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    folder = tmp_path / "run"
    settings = PRIVATE | {"calibrate": "threshold"}
    with pytest.raises(KeyboardInterrupt):
        comity.run("fedavg+dp", federation(), out=folder, progress=Stop(), **settings)
    comity.run("fedavg+dp", federation(), out=folder, resume=True, **settings)
    for name in ("outcomes.csv", "metrics.csv"):
        assert (folder / name).read_bytes() == (runs["threshold"].folder / name).read_bytes()


# Which samples.


@pytest.mark.filterwarnings("ignore")
def test_training_samples_are_used_only_where_no_noise_hides_them(tmp_path: Path) -> None:
    few = federation(validation=0.05)
    settings = {name: value for name, value in PRIVATE.items() if name != "noise"}
    result = comity.run("fedavg", few, calibrate="threshold", **settings)
    assert result.model("h0").calibration.samples == "train"
    text = next(t for t in warning_texts(result.summary, "before") if "calibrate" in t)
    assert "is fitted on the training samples of h0, h1, h2" in text
    assert "--validation" in text
    private = comity.run("fedavg+dp", few, calibrate="threshold", **PRIVATE)
    assert private.model("h0").calibration.samples == ""
    text = next(t for t in warning_texts(private.summary, "before") if "calibrate" in t)
    assert "leaves the models of h0, h1, h2 as they are" in text
    assert "noise" in text
    newest = comity.run("fedavg", federation(), calibrate="threshold", newcomers=1, **settings)
    assert newest.model("h2").calibration.samples == ""
    assert "newcomers" in warning_texts(newest.summary, "before")[-1]


def test_bad_settings_are_one_sentence(tmp_path: Path) -> None:
    small = ("run", "fedavg", "--out", tmp_path / "run", "--rounds", "1")
    assert "use temperature" in one_sentence(command(*small, "--calibrate", "platt"), 2)
    assert "threshold" in one_sentence(command(*small, "--calibrate", "thresold"), 2)
    with pytest.raises(UsageError, match="between 0 and 1"):
        comity.run("fedavg", federation(), calibrate="threshold(specificity=2)")
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore")
def test_temperature_is_for_any_number_of_classes() -> None:
    fed = comity.load("digits").partition("iid", parties=2, seed=0)
    plain, scaled = (
        comity.run("solo", fed, calibrate=how, rounds=3, model="linear", lr=3.0, engine="loop")
        for how in ("none", "temperature")
    )
    losses = [
        sum(
            row.value
            for row in r.metrics
            if (row.round, row.split, row.metric) == (3, "test", "loss")
        )
        for r in (plain, scaled)
    ]
    assert losses[1] < 0.7 * losses[0]
    assert scaled.summary["accuracy"]["mean"] == plain.summary["accuracy"]["mean"]


# Between sites.


@pytest.mark.usefixtures("without_onnx")
def test_sites_calibrate_their_own_models(tmp_path: Path) -> None:
    sites = Sites(tmp_path / "sites", {"north": (80, 24), "south": (70, 24)}, classes=2)
    usual: dict[str, Any] = {
        "model": "linear", "rounds": 2, "test": "official", "validation": 0.3, "lr": 0.01,
    }  # fmt: skip
    folder = sites.run("fedavg", "calibrated", calibrate="platt", **usual)
    ours = RunFolder(folder).read_answers()
    pooled = sites.pooled("fedavg", tmp_path / "pooled", calibrate="platt", **usual)
    theirs = RunFolder(pooled.folder).read_answers()
    for name in sites.names:
        first, second = ours[name].score, theirs[name].score
        assert first is not None
        assert second is not None
        assert torch.allclose(first, second, atol=1e-4)
        model = load(sites.site(name) / "runs" / "calibrated" / MODEL)
        assert model.calibration.how == "platt"
        assert model.calibration == pytest.approx(pooled.model(name).calibration)
