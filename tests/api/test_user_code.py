"""Users' models, datasets, partitions and metrics: they work on every engine and when resumed, and
are refused if they break their contract.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import comity as command
from harness import complaint, one_sentence, succeed
from torch import nn

import comity
from comity.metrics.custom_metrics import RESERVED
from comity.runs.folder import RunFolder
from comity.runs.server_run import Quiet
from comity.runs.summary import KINDS, blocks
from comity.runs.trust import MARK

SMALL: dict[str, Any] = {"rounds": 2, "model": "linear"}
FILE = """
import numpy as np
from torch import nn
from comity.data import Dataset

def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Tanh()), nn.Linear(9, classes)

def load():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 10
    return Dataset("drawn", rng.random((300, 1, 8, 8)) * 0.5 + 0.05 * y[:, None, None, None], y, classes=10)

def partition(y, parties, rng, *, share: float = 1.0):
    order = rng.permutation(len(y))[: int(share * len(y))]
    return np.array_split(order, parties)

def metric(truth, answer):
    "the share of answers that are off by one at most"
    return (abs(truth - answer) <= 1).mean()
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """A file with all four. Its name differs by test, as a process imports a file once."""
    path = tmp_path / f"mine_{abs(hash(tmp_path)) % 10**8}.py"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def fed() -> comity.Federation:
    return comity.load("digits").partition(
        "dirichlet(alpha=0.5)|keep(samples=60)", parties=3, seed=0
    )


def near(truth: Any, answer: Any) -> Any:
    """the share of answers that are off by one at most"""
    return (abs(truth - answer) <= 1).mean()


# All four from one file, on the command line.


class Impatient(Quiet):
    """Interrupts a run after its first round."""

    def round(self, t: int, figure: float | None, ledger: Any) -> None:
        if t == 1:
            raise KeyboardInterrupt


def test_own_pieces_on_every_engine_and_resumed(
    own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [f"--{what}={own_file}" for what in ("model", "data", "metric")] + [
        f"--partition={own_file}(share=0.9)"
    ]
    for engine in ("loop", "process", "stacked"):
        succeed(
            "run",
            "fedavg",
            *options,
            "--parties",
            4,
            "--rounds",
            3,
            "--engine",
            engine,
            "--out",
            tmp_path / engine,
        )
    rows = {
        engine: (tmp_path / engine / "metrics.csv").read_bytes()
        for engine in ("loop", "process", "stacked")
    }
    assert rows["loop"] == rows["process"]
    name = own_file.stem
    figures = [
        json.loads((tmp_path / engine / "summary.json").read_text(encoding="utf-8"))[name]["mean"]
        for engine in rows
    ]
    assert figures[2] == pytest.approx(figures[0], abs=0.02)
    assert json.loads((tmp_path / "loop" / MARK).read_text(encoding="utf-8"))["files"].keys() == {
        str(own_file)
    }
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    pieces: dict[str, Any] = {
        "model": str(own_file),
        "data": str(own_file),
        "metric": str(own_file),
        "partition": f"{own_file}(share=0.9)",
    }
    with pytest.raises(KeyboardInterrupt):
        comity.run(
            "fedavg",
            parties=4,
            rounds=3,
            engine="process",
            progress=Impatient(),
            out=tmp_path / "half",
            **pieces,
        )
    assert not (tmp_path / "half" / "summary.json").exists()
    assert name.replace("_", " ") in succeed("resume", tmp_path / "half").out
    assert (tmp_path / "half" / "metrics.csv").read_bytes() == rows["loop"]


def test_comparison_by_the_metric_of_a_file(
    own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.reporting.sections.space.SAMPLES", 24)
    result = succeed(
        "compare",
        "fedavg",
        f"--metric={own_file}",
        "--parties",
        3,
        "--rounds",
        2,
        "--model",
        "linear",
        "--out",
        tmp_path / "c",
    )
    assert f"Points of {own_file.stem.replace('_', ' ')} more than by training alone" in result.out
    comparison = comity.open(tmp_path / "c")
    assert isinstance(comparison, comity.Comparison)
    for row in comparison.rows:
        run = RunFolder(tmp_path / "c" / row.algorithm / "seed-0")
        by_hand = [
            float(near(a.truth.numpy(), a.given.numpy())) for a in run.read_answers().values()
        ]
        assert row.mean == pytest.approx(np.mean(by_hand))
    page = succeed("report", tmp_path / "c")
    assert "left out" not in page.out
    assert own_file.stem.replace("_", " ") in (tmp_path / "c" / "report.html").read_text(
        encoding="utf-8"
    )
    assert (
        own_file.stem.replace("_", " ")
        in succeed("resume", tmp_path / "c" / "fedavg" / "seed-0").out
    )


def test_foreign_metric_is_shown_but_not_executed(
    own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report shows saved figures without code, and says what it leaves out."""
    ran = tmp_path / "ran"
    own_file.write_text(
        FILE + f"\nfrom pathlib import Path\nPath({str(ran)!r}).write_text('x')\n", encoding="utf-8"
    )
    succeed(
        "compare",
        "fedavg",
        f"--metric={own_file}",
        "--parties",
        3,
        "--rounds",
        1,
        "--model",
        "linear",
        "--out",
        tmp_path / "c",
    )
    ran.unlink()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody else"))
    for name in (f"comity_user.{own_file.stem}",):
        del sys.modules[name]
    from comity.metrics.metrics import METRICS

    monkeypatch.setattr(METRICS, "custom", {})
    output = succeed("report", tmp_path / "c").out
    assert "left out" in output
    assert str(own_file) in output
    page = (tmp_path / "c" / "report.html").read_text(encoding="utf-8")
    assert own_file.stem.replace("_", " ") in page
    comparison = comity.open(tmp_path / "c")
    assert own_file.stem in repr(comparison)
    assert isinstance(comparison, comity.Comparison)
    with pytest.raises(comity.UsageError, match="trust=True"):
        comparison.results["fedavg"][0].model("p0")
    assert not ran.exists()
    trusted_comparison = comity.open(tmp_path / "c", trust=True)
    assert isinstance(trusted_comparison, comity.Comparison)
    assert trusted_comparison.results["fedavg"][0].model("p0").class_names
    assert ran.exists()


# Functions passed from Python.


def test_functions_equal_files(own_file: Path) -> None:
    names: dict[str, Any] = {}
    exec(FILE, names)
    for engine in ("loop", "process", "stacked"):
        from_functions = comity.run(
            "fedavg",
            names["load"]().partition(names["partition"], parties=3, seed=0),
            model=names["build"],
            metric=comity.metric(names["metric"], name="near"),
            rounds=2,
            engine=engine,
        )
        from_file = comity.run(
            "fedavg",
            data=str(own_file),
            partition=str(own_file),
            model=str(own_file),
            metric=str(own_file),
            parties=3,
            rounds=2,
            engine=engine,
        )
        assert [row.value for row in from_functions.metrics] == [
            row.value for row in from_file.metrics
        ]
        assert from_functions.summary["near"]["mean"] == from_file.summary[own_file.stem]["mean"]


def test_resume_needs_the_model_and_metric_again(fed: comity.Federation, tmp_path: Path) -> None:
    pair = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), nn.Linear(8, 10)
    out = tmp_path / "run"
    first = comity.run("fedavg", fed, model=pair, metric=near, rounds=2, out=out)
    assert first.summary["metric"] == "near"
    (out / "summary.json").rename(tmp_path / "summary.json")
    assert "given" in one_sentence(command("resume", out), 2)
    with pytest.raises(comity.UsageError, match="other settings"):
        comity.run(
            "fedavg",
            fed,
            model=pair,
            metric=comity.metric(lambda t, a: 0.5, name="near"),
            rounds=2,
            out=out,
            resume=True,
        )
    again = comity.run("fedavg", fed, model=pair, metric=near, rounds=2, out=out, resume=True)
    assert again.metrics == first.metrics
    reopened_run = comity.open(out)
    assert isinstance(reopened_run, comity.Result)
    assert reopened_run.summary["near"] == first.summary["near"]
    with pytest.raises(comity.UsageError, match="model was given from Python"):
        reopened_run.model("p0")
    with_model = comity.open(out, model=pair)
    assert isinstance(with_model, comity.Result)
    assert with_model.model("p0").theta["head.weight"].equal(first.model("p0").theta["head.weight"])


def test_partition_function_is_saved_in_the_split(tmp_path: Path) -> None:
    def halves(y: Any, parties: int, rng: np.random.Generator) -> Any:
        return {"low": np.flatnonzero(y < 5), "high": np.flatnonzero(y >= 5)}

    fed = comity.load("digits").partition(halves)
    assert fed.split.partition == "given:halves"
    first = comity.run("fedavg", fed, out=tmp_path / "run", **SMALL)
    (tmp_path / "run" / "summary.json").unlink()
    succeed("resume", tmp_path / "run")
    again = comity.open(tmp_path / "run")
    assert isinstance(again, comity.Result)
    assert again.model("low").theta["fc.weight"].equal(first.model("low").theta["fc.weight"])
    message = one_sentence(
        command("run", tmp_path / "run" / "config.toml", "--out", tmp_path / "new"), 2
    )
    assert "halves is a function that was passed from Python" in message


def test_open_needs_the_dataset_again(tmp_path: Path) -> None:
    federation = comity.Dataset(
        "of my own", torch.rand(90, 4), torch.arange(90) % 3, classes=3
    ).partition("iid", parties=2)
    comity.run("fedavg", federation, out=tmp_path / "run", **SMALL)
    again = comity.open(tmp_path / "run")
    assert isinstance(again, comity.Result)
    with pytest.raises(comity.UsageError, match="give the same federation again"):
        again.model("p0")
    with_it = comity.open(tmp_path / "run", federation)
    assert isinstance(with_it, comity.Result)
    assert with_it.model("p0").predict(federation.parties["p0"].test).shape == (
        len(federation.parties["p0"].test),
    )


# Broken contracts.


PARTITIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "two parties": (lambda y, n, rng: [[0, 1, 2], [2, 3]], "gave sample 2 to 'p0' and to 'p1'"),
    "twice": (lambda y, n, rng: [[0, 1, 1], [2, 3]], "gave sample 1 to 'p0' twice"),
    "empty": (lambda y, n, rng: [range(9), []], "left party 'p1' empty"),
    "beyond": (lambda y, n, rng: [range(9), [10**6]], "gave party 'p1' sample 1000000"),
    "negative": (lambda y, n, rng: [range(9), [-1]], "gave party 'p1' sample -1"),
    "no numbers": (lambda y, n, rng: [range(9), ["a"]], "must give party 'p1' a list of positions"),
    "a mask": (lambda y, n, rng: [y < 5, y >= 5], "must give party 'p0' a list of positions"),
    "nothing": (lambda y, n, rng: None, "must return a list"),
    "too few": (lambda y, n, rng: [range(9)], "returned 1 parties, not 2"),
    "names": (
        lambda y, n, rng: {"server": range(9), "b": range(9, 20)},
        "A party cannot be called 'server'",
    ),
    "fails": (lambda y, n, rng: 1 // 0, "failed: ZeroDivisionError"),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_invalid_partition_function_is_refused(name: str) -> None:
    function, expected = PARTITIONS[name]
    with pytest.raises(comity.UsageError) as why:
        comity.load("digits").partition(function, parties=2)
    assert expected in str(why.value)


METRICS: dict[str, tuple[Callable[..., Any], str]] = {
    "nan": (lambda truth, answer: float("nan"), "gave nan"),
    "above": (lambda truth, answer: 7.0, "gave 7, which is not between 0 and 1"),
    "below": (lambda truth, answer: -0.2, "gave -0.2, which is not between 0 and 1"),
    "shape": (
        lambda truth, answer: np.ones(3),
        "one number (or None), but gave an array of shape (3,)",
    ),
    "text": (lambda truth, answer: "good", "but gave 'good'"),
    "fails": (lambda truth, answer: truth[10**9], "failed: IndexError"),
    "arguments": (lambda truth: 1.0, "failed: TypeError"),
    "wrong answers only": (
        lambda truth, answer: 1.0 if (truth == answer).all() else float("inf"),
        "gave inf",
    ),
    "none for all": (lambda truth, answer: None, "have a figure by metric"),
    "scores of ten classes": (lambda truth, answer, score: 1.0, "is for two classes"),
}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_that_breaks_its_contract(
    name: str, fed: comity.Federation, tmp_path: Path
) -> None:
    function, expected = METRICS[name]
    with pytest.raises(comity.UsageError) as why:
        comity.run(
            "fedavg",
            fed,
            metric=comity.metric(function, name="mine"),
            out=tmp_path / "run",
            **SMALL,
        )
    assert expected in str(why.value)
    assert not (tmp_path / "run").exists(), "the run was started"


@pytest.mark.parametrize("engine", ["loop", "process"])
def test_metric_that_fails_during_a_run(engine: Any, fed: comity.Federation) -> None:
    """The metric fails on a model's predictions only, so it fails at a party, in any process."""

    def picky(truth: Any, answer: Any) -> Any:
        plain = (truth == answer).all() or (truth == answer[::-1]).all() or not answer.any()
        return 0.5 if plain else float("nan")

    with pytest.raises(comity.ComityError, match="metric picky gave nan"):
        comity.run("fedavg", fed, metric=picky, engine=engine, **SMALL)


@pytest.mark.parametrize("name", sorted(RESERVED | {"accuracy", "auc"}))
def test_reserved_metric_names_are_refused(name: str, fed: comity.Federation) -> None:
    with pytest.raises(comity.UsageError, match="cannot be called"):
        comity.run("fedavg", fed, metric=comity.metric(near, name=name))


def test_names_in_a_summary_are_reserved(fed: comity.Federation) -> None:
    summary = comity.run("fedavg", fed, **SMALL).summary
    metric_names = {metric.name for metric, _ in blocks(summary)} | {
        "auc",
        "sensitivity",
        "specificity",
        "r2",
        "mae",
    }
    assert set(summary) - metric_names <= RESERVED, "a metric of such a name would overwrite it"
    assert KINDS


def test_metric_that_is_negative_or_missing(fed: comity.Federation) -> None:
    @comity.metric(low=-1)
    def above(truth: Any, answer: Any) -> Any:
        """the share of right answers less that of wrong ones"""
        return (truth == answer).mean() - (truth != answer).mean()

    comparison = comity.compare(["fedavg"], fed, metric=above, **SMALL)
    for row in comparison.rows:
        assert row.mean == pytest.approx(
            2 * comparison.results[row.algorithm][0].summary["accuracy"]["mean"] - 1
        )
    assert comparison.best.mean == max(row.mean or 0 for row in comparison.rows)
    summary = comparison.results["fedavg"][0].summary
    assert summary["above"]["worst_party"] == summary["accuracy"]["worst_party"]

    def only_with_zeros(truth: Any, answer: Any) -> Any:
        return (answer[truth == 0] == 0).mean() if (truth == 0).any() else None

    block = comity.run("fedavg", fed, metric=only_with_zeros, **SMALL).summary["only_with_zeros"]
    without = [name for name, data in fed.parties.items() if not (data.test.y == 0).any()]
    assert block["missing"] == without


def test_metric_receives_scores_of_two_classes() -> None:
    x = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    fed = comity.Federation.from_arrays(
        {"a": (x, (x[:, 0] > 0).long()), "b": (x.flip(0), (x.flip(0)[:, 0] > 0).long())}
    )

    def sure(truth: Any, answer: Any, score: Any) -> Any:
        assert ((score > 0) == (answer == 1)).all()
        return (abs(score) > 0.1).mean()

    result = comity.run("fedavg", fed, metric=sure, rounds=2, model="linear")
    assert 0 < result.summary["sure"]["mean"] <= 1


MODELS: dict[str, tuple[Any, str]] = {
    "width": (
        (nn.Flatten(), nn.Linear(64, 7)),
        "one score for each of the 10 classes, but its output has shape (7,)",
    ),
    "function's width": (
        lambda s, c: (nn.Flatten(), nn.Linear(64, 7)),
        "its output has shape (7,)",
    ),
    "one module": (nn.Linear(64, 10), "must be a pair (encoder, head)"),
    "function's failure": (lambda s, c: 1 // 0, "failed: ZeroDivisionError"),
    "shape": ((nn.Linear(5, 4), nn.Linear(4, 10)), "does not fit samples of shape (1, 8, 8)"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_does_not_fit(name: str, fed: comity.Federation) -> None:
    model, expected = MODELS[name]
    with pytest.raises(comity.UsageError) as why:
        comity.run("fedavg", fed, model=model, rounds=1)
    assert expected in str(why.value)


def test_a_dataset_whose_labels_are_out_of_range(own_file: Path) -> None:
    own_file.write_text(FILE.replace("classes=10)", "classes=4)"), encoding="utf-8")
    assert "labels must be less than classes=4" in complaint(
        command("run", "fedavg", "--data", own_file), 2
    )


def test_missing_function_of_a_file_is_reported_with_its_name(
    own_file: Path, fed: comity.Federation
) -> None:
    own_file.write_text("x = 1\n", encoding="utf-8")
    for setting, function in (
        ("--metric", "metric"),
        ("--partition", "partition"),
        ("--model", "build"),
        ("--data", "load"),
    ):
        message = complaint(command("run", "fedavg", setting, own_file), 2)
        assert f"{own_file} must define {function}(...)" in message
