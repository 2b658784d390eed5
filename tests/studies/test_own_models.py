"""A comparison on tables is with each party's own best model, chosen on its training samples."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from harness import comity as command
from harness import one_sentence, succeed

import comity
from comity.components.own_models import choose
from comity.data import Federation
from comity.errors import UsageError
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import METRICS
from comity.names import OWN_MODELS
from comity.reporting.static import ranking
from comity.runs.folder import RunFolder
from comity.studies import own_models
from comity.studies.export import export
from comity.studies.export import load as load_exported
from comity.studies.export_plain import chosen_run, open_plain
from comity.studies.finished import Comparison
from comity.studies.own_models import parse_plain, plain_models_for

SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "model": "mlp2(width=8)",
    "engine": "loop",
    "lr": 0.01,
    "progress": False,
}
COLUMNS = ["age", "dose", "length"]


def table(rows: int, seed: int, slopes: tuple[float, ...]) -> tuple[pandas.DataFrame, Any]:
    """A party's table, whose label is a sum of its columns with little noise."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, len(COLUMNS)))
    y = x @ np.array(slopes) + 0.05 * random.normal(size=rows)
    return pandas.DataFrame(x, columns=COLUMNS), y


def regression(test: str = "own(0.25)") -> Federation:
    """Three parties, of which `north` has the opposite of the others' slopes."""
    return Federation.from_arrays(
        {
            "north": table(60, 0, (-1.0, 2.0, 0.5)),
            "south": table(60, 1, (1.0, -2.0, -0.5)),
            "west": table(60, 2, (1.0, -2.0, -0.5)),
        },
        classes=0,
        test=test,
    )


def classification() -> Federation:
    """Three parties: one has both classes, and each of the others has one of them."""
    x, score = table(80, 0, (1.0, -2.0, 0.5))
    y = (np.asarray(score) > 0).astype(int)
    few = {
        name: (x[y == label][:20], y[y == label][:20]) for name, label in (("ill", 1), ("ok", 0))
    }
    return Federation.from_arrays({"both": (x, y), **few}, classes=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comparison") / "runs"


@pytest.fixture(scope="module")
def comparison(folder: Path) -> Comparison:
    return comity.compare(["fedavg"], regression(), out=folder, **SETTINGS)


def test_a_party_whose_own_regression_is_better_is_told_so(comparison: Comparison) -> None:
    verdicts = {answer.party: answer for answer in comparison.answers}
    assert verdicts["north"].verdict == "alone"
    assert verdicts["north"].says.startswith("better alone (plain-linear); fedavg, which costs it")
    assert comparison.overall
    assert "over each party's own model" in comparison.overall.helps
    assert "its own model" in comparison.reading


def test_rows_of_own_models_have_figures_and_no_cost(comparison: Comparison) -> None:
    rows = {row.algorithm: row for row in comparison.rows}
    assert list(rows) == ["solo", *OWN_MODELS, "fedavg"]
    assert rows["plain-linear"].mean is not None
    assert rows["plain-linear"].mean > 0.9 > (rows["solo"].mean or 0)
    for name in OWN_MODELS:
        assert rows[name].steps == 0
        assert rows[name].bytes["total"] == 0
    assert rows["own-model"].gain is None
    assert rows["solo"].gain is not None
    assert rows["solo"].gain.hurt
    assert "over own model" in rows["fedavg"].cells(several=False)
    assert "over SOLO" not in rows["fedavg"].cells(several=False)


def test_comparison_json_names_the_baseline_and_the_choices(
    comparison: Comparison, folder: Path
) -> None:
    plain = json.loads((folder / "comparison.json").read_text())
    assert plain["baseline"] == "own model"
    assert plain["own_models"] == {name: {"plain-linear": 1} for name in ("north", "south", "west")}
    assert {row["baseline"] for row in plain["rows"]} == {"own model"}
    again = comity.open(folder)
    assert isinstance(again, Comparison)
    assert again.findings == comparison.findings


def test_predictions_of_the_own_model_are_those_of_the_chosen_one(
    comparison: Comparison, folder: Path
) -> None:
    own = RunFolder(folder / "own-model" / "seed-0").read_answers()
    linear = RunFolder(folder / "plain-linear" / "seed-0").read_answers()
    solo = RunFolder(folder / "solo" / "seed-0").read_answers()
    for name, answers in own.items():
        assert torch.equal(answers.given, linear[name].given)
        assert torch.equal(answers.truth, solo[name].truth)


def test_a_comparison_is_continued_with_equal_bits(
    comparison: Comparison, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "runs"
    shutil.copytree(folder, copy)
    outcomes = copy / "own-model" / "seed-0" / "outcomes.csv"
    before = outcomes.read_bytes()
    (copy / "own-model" / "seed-0" / "summary.json").unlink()
    shutil.rmtree(copy / "plain-boosting")
    again = comity.compare(["fedavg"], regression(), out=copy, **SETTINGS)
    assert outcomes.read_bytes() == before
    for name in OWN_MODELS:
        now, then = (RunFolder(path / name / "seed-0").read_metrics() for path in (copy, folder))
        assert now == then
    assert again.answers == comparison.answers

    monkeypatch.setattr(own_models, "fit", None)  # finished runs are not trained again
    comity.compare(["fedavg"], regression(), out=copy, **SETTINGS)


def test_a_changed_file_of_a_plain_model_is_refused(
    folder: Path, tmp_path: Path, comparison: Comparison
) -> None:
    copy = tmp_path / "runs"
    shutil.copytree(folder, copy)
    outcomes = copy / "plain-linear" / "seed-0" / "outcomes.csv"
    outcomes.write_text(outcomes.read_text().replace("north,0", "north,1", 1))
    with pytest.raises(comity.ComityError, match="outcomes"):
        comity.compare(["fedavg"], regression(), out=copy, **SETTINGS)


def test_the_page_has_the_gain_over_the_own_model(comparison: Comparison, tmp_path: Path) -> None:
    page = comparison.report(tmp_path / "report.html").read_text()
    assert "over own model" in page
    assert "plain-boosting" in page
    assert "over SOLO" not in page
    assert "Negative transfer with plain" not in page


def test_no_file_of_a_table_comparison_is_reported_as_damaged(
    comparison: Comparison, tmp_path: Path
) -> None:
    """Plain models and own models send nothing, so their ledgers have no rows."""
    page = comparison.report(tmp_path / "report.html").read_text()
    assert "is damaged" not in page


def test_wins_are_of_the_named_methods_and_solo(comparison: Comparison, folder: Path) -> None:
    table = ranking(folder, "markdown", wins=True)
    heads = [line for line in table.splitlines() if line.startswith("| method")]
    assert heads == ["| method | solo | fedavg |"]
    assert "Bonferroni-corrected for 1 pair of methods" in table


def test_an_own_model_cannot_be_reopened_for_its_weights(comparison: Comparison) -> None:
    with pytest.raises(UsageError, match="scikit-learn trained"):
        _ = comparison.results["plain-linear"][0].job


def test_the_choice_does_not_see_test_samples(tmp_path: Path) -> None:
    federation = regression()
    parties = {
        name: replace(data, test=replace(data.test, y=data.test.y.flip(0)))
        for name, data in federation.parties.items()
    }
    choices = [
        RunFolder(out / "own-model" / "seed-0").read_summary()
        for out, fed in (
            (tmp_path / "a", federation),
            (tmp_path / "b", replace(federation, parties=parties)),
        )
        if comity.compare(["fedavg"], fed, out=out, plain="linear", **SETTINGS)
    ]
    assert choices[0]
    assert choices[1]
    assert choices[0]["own_models"] == choices[1]["own_models"]
    assert choices[0]["r2"] != choices[1]["r2"]


def test_cross_validation_chooses_in_every_fold(tmp_path: Path) -> None:
    comparison = comity.compare(
        ["fedavg"],
        regression("folds(3)"),
        folds=3,
        out=tmp_path / "runs",
        plain="linear",
        **SETTINGS,
    )
    assert [row.algorithm for row in comparison.rows] == [
        "solo",
        "plain-linear",
        "own-model",
        "fedavg",
    ]
    assert comparison.findings.own_models["north"] == {"plain-linear": 3}
    assert {answer.party: answer.verdict for answer in comparison.answers}["north"] == "alone"


def test_parties_of_one_class_are_compared(tmp_path: Path) -> None:
    comparison = comity.compare(["fedavg"], classification(), out=tmp_path / "runs", **SETTINGS)
    rows = {row.algorithm: row for row in comparison.rows}
    summary = comparison.results["own-model"][0].summary
    assert summary["accuracy"]["per_party"]["ill"] == 1.0
    assert summary["accuracy"]["per_party"]["ok"] == 1.0
    assert rows["plain-linear"].mean is not None
    assert "auc" in summary


def test_without_plain_models_gains_are_over_solo(tmp_path: Path) -> None:
    comparison = comity.compare(
        ["fedavg"], regression(), out=tmp_path / "runs", plain="none", **SETTINGS
    )
    assert [row.algorithm for row in comparison.rows] == ["solo", "fedavg"]
    assert comparison.findings.baseline == "SOLO"
    assert "over SOLO" in comparison.rows[1].cells(several=False)
    assert all("(plain" not in answer.says for answer in comparison.answers)


def test_which_plain_models_are_trained() -> None:
    digits = comity.load("digits").partition("iid", parties=2, seed=0)
    assert plain_models_for("auto", digits) == ()
    assert plain_models_for("auto", regression()) == ("plain-linear", "plain-boosting")
    with pytest.raises(UsageError, match="for tables"):
        plain_models_for("linear", digits)
    with pytest.raises(UsageError, match="not 'forest'"):
        parse_plain("linear,forest")


def test_the_names_of_own_models_are_reserved() -> None:
    with pytest.raises(UsageError, match="plain-linear is not a method"):
        comity.compare(["plain-linear"], regression(), **SETTINGS)


def test_a_wrong_choice_on_the_command_line_is_one_sentence(tmp_path: Path) -> None:
    result = command("compare", "fedavg", "--plain", "forest", "--out", str(tmp_path / "runs"))
    assert "plain must be auto, none, or some of linear, boosting" in one_sentence(result, 2)


def test_the_best_of_held_out_predictions_is_chosen() -> None:
    truth = torch.tensor([0, 1] * 10, dtype=torch.int32)
    good = Answers(truth, truth, (truth - 0.5).float())
    bad = Answers(truth, 1 - truth, (0.5 - truth).float())
    folds = np.arange(20) // 4
    for metric in ("accuracy", "auc", "brier"):
        choice = choose({"plain-linear": bad, "solo": good}, folds, METRICS[metric])
        assert choice.model == "solo"
    assert choose({"plain-linear": good, "solo": good}, folds, METRICS["auc"]).model == (
        "plain-linear"
    )


def test_where_the_metric_is_not_defined_accuracy_chooses() -> None:
    truth = torch.ones(10, dtype=torch.int32)
    right = Answers(truth, truth, torch.ones(10))
    wrong = Answers(truth, 0 * truth, -torch.ones(10))
    choice = choose({"plain-linear": wrong, "solo": right}, np.arange(10) % 5, METRICS["auc"])
    assert choice.model == "solo"
    assert choice.scores == {"plain-linear": None, "solo": None}


def test_a_method_that_cannot_train_a_linear_model_is_left_out_by_name(tmp_path: Path) -> None:
    settings = SETTINGS | {"model": "linear"}
    with pytest.warns(UserWarning, match="fedper is left out: Nothing of linear would be shared"):
        comparison = comity.compare(
            ["fedavg", "fedper"], regression(), out=tmp_path / "runs", plain="none", **settings
        )
    assert [row.algorithm for row in comparison.rows] == ["solo", "fedavg"]
    with pytest.raises(UsageError, match=r"No method is left .* fedper is left out"):
        comity.compare(["fedper"], regression(), plain="none", **settings)
    with pytest.raises(UsageError, match="noise"):  # its own mistake is not the network's
        comity.compare(["fedavg+dp"], regression(), plain="none", **settings)


def exported_figures(folder: Path, party: str, out: Path, federation: Federation) -> Any:
    """The content of model.json of a plain model, and its predictions for the party's samples."""
    export(open_plain(folder, federation), party, out)
    settings = json.loads((out / "model.json").read_text())
    return settings, load_exported(out)


@pytest.mark.parametrize("kind", ["plain-linear", "plain-boosting"])
def test_an_exported_plain_model_has_the_figures_of_its_run(
    comparison: Comparison, folder: Path, tmp_path: Path, kind: str, without_onnx: None
) -> None:
    federation = regression()
    settings, model = exported_figures(
        folder / kind / "seed-0", "north", tmp_path / "out", federation
    )
    test = federation.parties["north"].test
    errors = (model.logits(test.x)[:, 0] - test.y).square().sum()
    r2 = 1 - float(errors / (test.y - test.y.mean()).square().sum())
    assert settings["test_figures"]["r2"] == pytest.approx(r2, abs=1e-4)
    card = (tmp_path / "out" / "card.md").read_text()
    assert f"Model: {kind}: " in card
    assert "learned from this party's data: treat" in card, "others have no part in it"
    assert not list((tmp_path / "out").glob("*.pkl"))


def test_after_cross_validation_a_plain_model_is_trained_on_all_samples(
    tmp_path: Path, without_onnx: None
) -> None:
    federation = regression("folds(3)")
    runs = tmp_path / "runs"
    comity.compare(["fedavg"], federation, seeds=[0, 1, 2], out=runs, plain="linear", **SETTINGS)
    settings, _ = exported_figures(
        runs / "plain-linear" / "seed-0", "north", tmp_path / "out", federation
    )
    of_folds = [
        RunFolder(runs / "plain-linear" / f"seed-{k}").read_answers()["north"] for k in range(3)
    ]
    truth = torch.cat([answers.truth for answers in of_folds])
    errors = (torch.cat([answers.given for answers in of_folds]) - truth).square().sum()
    r2 = 1 - float(errors / (truth - truth.mean()).square().sum())
    assert settings["train_samples"] == 60
    assert "In 3-fold cross-validation over its 60 samples" in settings["tested"]
    assert settings["test_figures"]["r2"] == pytest.approx(r2)


def test_an_own_model_is_exported_from_the_run_that_was_chosen(
    comparison: Comparison, folder: Path
) -> None:
    own = folder / "own-model" / "seed-0"
    assert chosen_run(own, "north") == folder.resolve() / "plain-linear" / "seed-0"
    assert chosen_run(folder / "solo" / "seed-0", "north") == folder / "solo" / "seed-0"
    with pytest.raises(UsageError, match="no party called 'nort'"):
        chosen_run(own, "nort")


def test_a_plain_model_predicts_without_comity(
    tmp_path: Path, hospitals_table: Path, without_onnx: None
) -> None:
    runs = tmp_path / "runs"
    settings = ("--data", hospitals_table, "--rounds", "1", "--folds", "1", "--no-report")
    succeed("compare", "fedavg", *settings, "--model", "linear", "--out", runs)
    model = tmp_path / "model"
    succeed("export", runs / "plain-boosting" / "seed-0", "--party", "north", "--out", model)
    (tmp_path / "new.csv").write_text("age,dose\n50,1.5\n61,0.2\n")
    script = f"import sys; sys.modules['comity'] = sys.modules['sklearn'] = None; import runpy; sys.path.insert(0, {str(model)!r}); sys.argv = ['predict.py', {str(tmp_path / 'new.csv')!r}]; runpy.run_path({str(model / 'predict.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert done.stdout.startswith("row,prediction,probability,p(")


@pytest.fixture(scope="module")
def hospitals_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parties' files with a label in words, imported."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "in").mkdir()
    random = np.random.default_rng(0)
    for name in ("north", "south"):
        age, dose = random.uniform(30, 90, 60), random.uniform(0, 3, 60)
        ill = age / 30 + dose + random.normal(size=60) > 3.5
        lines = [
            f"{a:.1f},{d:.2f},{'ill' if i else 'well'}"
            for a, d, i in zip(age, dose, ill, strict=True)
        ]
        (folder / "in" / f"{name}.csv").write_text("\n".join(["age,dose,outcome", *lines]))
    succeed("data", "import", folder / "in", "--label", "outcome", "--out", folder / "data")
    return folder / "data"
