"""`--metric`: the metric by which rounds, settings and methods are chosen, in the files, on the
screen and in the report.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from html import unescape
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from harness import comity, one_sentence, rows, succeed, summary

import comity as library
from comity.measure.gain import gains
from comity.metrics.metrics import ELIGIBLE, METRICS, Metric
from comity.runs.config import experiment
from comity.runs.folder import RunFolder
from comity.runs.server_run import Quiet
from comity.studies.compare import compare
from comity.studies.party_verdicts import combine_seeds
from comity.studies.tune import tune

HOSPITALS = '''"""Three hospitals that see few healthy patients, and one that sees almost none."""

import numpy as np
import torch

from comity.data import Dataset
from comity.data.groups import Groups


def load():
    draw = np.random.default_rng(0)
    of = np.arange(320) % 4
    y = (draw.random(320) < 0.7).astype(np.int64)
    y[(of == 3)] = 1
    y[3:35:4] = 0
    x = draw.normal(size=(320, 5)) + 0.6 * y[:, None]
    names = ("north", "south", "east", "west")
    return Dataset("hospitals", torch.from_numpy(x), torch.from_numpy(y), 2, mean=(0.0,), std=(1.0,),
                   groups={"site": Groups(names, of)}, default_partition="natural(by=site)", class_names=("healthy", "ill"))
'''  # fmt: skip


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "hospitals.py"
    path.write_text(HOSPITALS, encoding="utf-8")
    return path


def small(data: Path) -> dict[str, Any]:
    return {
        "data": str(data),
        "model": "linear",
        "rounds": 4,
        "validation": 0.2,
        "engine": "loop",
        "lr": 0.02,
    }


@pytest.fixture(scope="module")
def comparison_run(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("compared")
    options = [f"--{name}={value}" for name, value in small(hospitals).items()]
    result = succeed(
        "compare",
        "fedavg",
        "fedprox",
        *options,
        "--metric",
        "balanced-accuracy",
        "--seeds",
        "0,1",
        "--out",
        folder,
    )
    return folder, result.out


def figures(run: Path, t: int, split: str, metric: str) -> dict[str, float]:
    """The values of all parties in a round, from metrics.csv."""
    key = (str(t), split, metric)
    return {
        r["party"]: float(r["value"])
        for r in rows(run / "metrics.csv")
        if (r["round"], r["split"], r["metric"]) == key
    }


# --- a run


def test_chosen_metric_is_in_every_round_and_all_metrics_in_the_last(
    comparison_run: tuple[Path, str],
) -> None:
    table = rows(comparison_run[0] / "fedavg" / "seed-0" / "metrics.csv")
    keys = {
        (int(row["round"]), row["split"], row["metric"]) for row in table if row["party"] == "north"
    }
    always = {
        (t, split, name)
        for t in range(5)
        for split in ("validation", "test")
        for name in ("accuracy", "loss")
    }
    metric_keys = {
        (t, split, "balanced_accuracy") for t in range(5) for split in ("validation", "test")
    }
    assert keys == always | metric_keys | {
        (4, "test", name)
        for name in (
            *("auc", "macro_f1", "sensitivity", "specificity"),
            *("brier", "calibration_slope", "calibration_intercept"),
        )
    }


def test_with_accuracy_the_last_round_alone_has_more_rows(hospitals: Path, tmp_path: Path) -> None:
    library.run("fedavg", out=tmp_path, **small(hospitals))
    extra_rows = [
        row for row in rows(tmp_path / "metrics.csv") if row["metric"] not in ("accuracy", "loss")
    ]
    assert {row["round"] for row in extra_rows} == {"4"}
    assert {row["split"] for row in extra_rows} == {"test"}


def test_metric_does_not_change_the_models(
    comparison_run: tuple[Path, str], hospitals: Path, tmp_path: Path
) -> None:
    """Models do not depend on the metric: the rows of a run by accuracy and its outcomes are
    equal.
    """
    library.run("fedavg", out=tmp_path, **small(hospitals))
    other = comparison_run[0] / "fedavg" / "seed-0"
    assert set((tmp_path / "metrics.csv").read_text().splitlines()) <= set(
        (other / "metrics.csv").read_text().splitlines()
    )
    assert (tmp_path / "outcomes.csv").read_bytes() == (other / "outcomes.csv").read_bytes()


def test_summary_has_a_block_per_metric(comparison_run: tuple[Path, str]) -> None:
    folder = comparison_run[0] / "fedavg" / "seed-0"
    run_summary = summary(folder)
    assert run_summary["metric"] == "balanced_accuracy"
    last = figures(folder, 4, "test", "auc")
    assert run_summary["auc"]["per_party"] == pytest.approx(last)
    for name in (name for name in ELIGIBLE if METRICS[name].fits(2)):
        block = run_summary[name]
        assert {"mean", "weighted", "std", "best_party", "worst_party", "per_party"} <= set(block)
        assert block["mean"] == pytest.approx(fmean(block["per_party"].values()))
        assert block["per_party"][block["worst_party"]] == min(block["per_party"].values())
    assert set(run_summary["balanced_accuracy"]) >= {"best_round", "best_on_test", "as_of"}
    assert "best_round" not in run_summary["auc"]


def test_best_round_is_chosen_by_the_metric_on_validation_data(
    comparison_run: tuple[Path, str],
) -> None:
    folder = comparison_run[0] / "fedavg" / "seed-0"
    sizes = {
        name: len(share.validation)
        for name, share in RunFolder(folder).read_split().parties.items()
    }
    means = {}
    for t in range(5):
        by_party = figures(folder, t, "validation", "balanced_accuracy")
        means[t] = sum(by_party[p] * sizes[p] for p in by_party) / sum(sizes[p] for p in by_party)
    assert summary(folder)["balanced_accuracy"]["best_round"]["round"] == max(
        means, key=lambda t: (means[t], -t)
    )


def test_engines_agree(hospitals: Path, tmp_path: Path) -> None:
    settings = small(hospitals) | {"metric": "auc", "rounds": 2}
    results = {}
    for engine, workers in (("loop", None), ("process", 2), ("stacked", 1)):
        more: dict[str, Any] = {"engine": engine} | (
            {} if workers is None else {"workers": workers}
        )
        results[engine] = library.run("fedavg", out=tmp_path / engine, **settings | more)
    assert (tmp_path / "loop" / "metrics.csv").read_bytes() == (
        tmp_path / "process" / "metrics.csv"
    ).read_bytes()
    loop, stacked = (
        [row for row in results[e].metrics if row.metric != "loss"] for e in ("loop", "stacked")
    )
    assert [row[:4] for row in loop] == [row[:4] for row in stacked]
    assert [row.value for row in loop] == pytest.approx([row.value for row in stacked], abs=0.05)


# --- less is better


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Metric:
    """A metric of which less is better: the error rate."""
    metric = Metric(
        "wrong",
        "share wrong",
        "what is not right",
        lambda *g: 1 - METRICS["accuracy"].figures(*g),
        higher=False,
    )
    monkeypatch.setitem(METRICS, "wrong", metric)
    monkeypatch.setattr("comity.runs.config.ELIGIBLE", (*ELIGIBLE, "wrong"))
    return metric


@pytest.mark.usefixtures("wrong")
def test_choices_by_error_rate_equal_those_by_accuracy(hospitals: Path, tmp_path: Path) -> None:
    """Best rounds, patience, tuned values, ranks and verdicts by error rate are those by
    accuracy.
    """

    def choices(metric: str) -> dict[str, Any]:
        base = experiment(
            small(hospitals) | {"metric": metric, "rounds": 6, "patience": 2, "lr": 0.3}
        )
        comparison = compare(
            base, ["fedavg", "scaffold"], [0], tmp_path / metric, lambda _: Quiet(), lambda _: None
        )
        trials = tune(
            base, {"lr": [0.001, 0.1]}, [0], tmp_path / metric / "grid", lambda _: Quiet()
        )
        run_summary = summary(tmp_path / metric / "fedavg" / "seed-0")
        return {
            "rounds": run_summary["rounds"],
            "best": (
                run_summary[metric]["best_round"]["round"],
                run_summary[metric]["worst_party"],
                run_summary[metric]["best_party"],
            ),
            "tuned": [trial.settings for trial in trials.trials],
            "ranks": [
                row.algorithm for row in sorted(comparison.rows, key=lambda row: -row.goodness)
            ],
            "verdicts": [answer.verdict for answer in comparison.answers],
        }

    assert choices("wrong") == choices("accuracy")


# --- what is refused, before anything runs


def test_a_metric_that_is_not_known(tmp_path: Path) -> None:
    message = one_sentence(
        comity("run", "fedavg", "--metric", "balanced", "--out", tmp_path / "run"), 2
    )
    assert message == "comity: There is no metric 'balanced'. Did you mean 'balanced_accuracy'?"
    assert "Known: accuracy, auc," in one_sentence(
        comity("run", "fedavg", "--metric", "kappa", "--out", tmp_path / "run"), 2
    )
    assert not (tmp_path / "run").exists()


def test_a_metric_that_does_not_fit(tmp_path: Path) -> None:
    message = one_sentence(
        comity("compare", "fedavg", "--metric", "auc", "--out", tmp_path / "run"), 2
    )
    assert "metric auc is for two classes, but these data have 10" in message
    assert not (tmp_path / "run").exists()


def test_metric_without_a_value_at_any_party_is_refused(tmp_path: Path) -> None:
    x, y = [[0.0], [1.0]] * 20, [1] * 40
    fed = library.Federation.from_arrays({"a": (x, y), "b": (x, y)}, classes=2)
    with pytest.raises(
        library.ComityError, match="No party's test samples have a figure by metric auc"
    ):
        library.run("fedavg", fed, model="linear", metric="auc", out=tmp_path / "run")
    parties = {"a": ((x, y), (x, [0, 1] * 20)), "b": ((x, y), (x, [0, 1] * 20))}
    fed = library.Federation.from_arrays(parties, classes=2)
    with pytest.raises(
        library.ComityError, match="No party's validation samples have a figure by metric auc"
    ):
        library.run("fedavg", fed, model="linear", metric="auc", patience=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    result = library.run(
        "fedavg", fed, model="linear", metric="auc", rounds=1
    )  # without patience no round is chosen during the run
    assert result.summary["auc"]["best_round"] is None


# --- a comparison


def test_comparison_table_has_the_metric_and_accuracy(comparison_run: tuple[Path, str]) -> None:
    folder, out = comparison_run
    assert re.search(r"method +balanced accuracy +over SOLO +gained +hurt +worst +accuracy", out)
    content = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert content["metric"] == "balanced_accuracy"
    for row in content["rows"]:
        summaries = [summary(folder / row["algorithm"] / f"seed-{seed}") for seed in (0, 1)]
        assert row["figure"] == [item["balanced_accuracy"]["mean"] for item in summaries]
        assert row["accuracy"] == [item["accuracy"]["mean"] for item in summaries]
        assert f"{fmean(row['figure']):.1%}" in out
    ours, solo = (folder / method / "seed-0" for method in ("fedavg", "solo"))
    seeds = ("seed-0", "seed-1")
    both = [
        gains(folder / "fedavg" / seed, folder / "solo" / seed, "balanced_accuracy")
        for seed in seeds
    ]
    (row,) = (row for row in content["rows"] if row["algorithm"] == "fedavg")
    few = {"west"}  # has too few healthy patients
    by_party = {
        g.party: [other for seed_gains in both for other in seed_gains if other.party == g.party]
        for g in both[0]
        if g.party not in few
    }
    combined = {
        party: combine_seeds(some, methods=len(content["rows"]) - 1)
        for party, some in by_party.items()
    }
    assert row["gains"] == {party: asdict(item) for party, item in combined.items()}
    assert (row["gained"], row["judged"]) == (sum(item.low > 0 for item in combined.values()), 3)
    assert row["gain"]["gain"] == pytest.approx(
        fmean(g.gain for seed_gains in both for g in seed_gains)
    )
    per_party = [summary(run)["balanced_accuracy"]["per_party"] for run in (ours, solo)]
    assert {g.party: g.gain for g in both[0]} == pytest.approx(
        {p: per_party[0][p] - per_party[1][p] for p in per_party[0]}
    )


def test_each_party_has_a_printed_verdict(comparison_run: tuple[Path, str]) -> None:
    folder, out = comparison_run
    content = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert [answer["party"] for answer in content["answers"]] == ["north", "south", "east", "west"]
    for answer in content["answers"]:
        text = f"{answer['party']}: {answer['says']}"
        [line] = [line for line in out.splitlines() if line.startswith(text)]
        assert (line != text) == (answer["power"] is not None), "what its samples can show"
    west = content["answers"][3]
    assert west["verdict"] == "too few"
    assert re.fullmatch(
        r"too few samples of 'healthy' to say \(\d to test on, \d to train on\)", west["says"]
    )
    assert content["reading"] in out
    assert "mean over 2 seeds" in content["reading"]


def test_parties_that_differ_by_seed_have_a_verdict_per_seed(tmp_path: Path) -> None:
    base = experiment(
        {
            "parties": 3,
            "rounds": 1,
            "model": "linear",
            "partition": "iid|keep(samples=60)",
            "engine": "loop",
        }
    )
    comparison = compare(
        base, ["fedavg", "centralized"], [3, 4], tmp_path, lambda _: Quiet(), lambda _: None
    )
    assert "under each seed a party has other samples" in comparison.reading
    assert [answer.party for answer in comparison.answers] == [
        f"p{k} (seed {seed})" for seed in (3, 4) for k in range(3)
    ]
    assert [set(answer.methods) for answer in comparison.answers] == [
        {"fedavg"}
    ] * 6  # centralized is not recommended to a party


def test_runs_of_another_metric_are_refused(
    comparison_run: tuple[Path, str], hospitals: Path
) -> None:
    options = [f"--{name}={value}" for name, value in small(hospitals).items()]
    result = comity(
        "compare",
        "fedavg",
        *options,
        "--metric",
        "auc",
        "--seeds",
        "0,1",
        "--out",
        comparison_run[0],
    )
    assert "holds a comparison with metric=balanced_accuracy (not auc)" in one_sentence(result, 2)


# --- the screen and the page


def test_resume_and_watch_print_the_metric(comparison_run: tuple[Path, str]) -> None:
    run = comparison_run[0] / "fedavg" / "seed-0"
    run_summary = summary(run)
    result = succeed("resume", run)
    assert result.out.startswith(
        f"fedavg: balanced accuracy {run_summary['balanced_accuracy']['mean']:.1%} (mean of 4 parties),"
        " worst "
    )
    assert f"also: accuracy {run_summary['accuracy']['mean']:.1%}, macro F1" in result.out
    output = succeed("watch", run, "--once").out
    assert (
        f"balanced accuracy {run_summary['balanced_accuracy']['mean']:.1%} after round 4; the highest"
        " was " in output
    )
    assert re.search(
        r"state +round +balanced accuracy +worst", succeed("watch", comparison_run[0], "--once").out
    )


def test_report_uses_the_metric(comparison_run: tuple[Path, str], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(comparison_run[0], tmp_path / "it"))
    succeed("report", folder, "--quick")
    page = unescape((folder / "report.html").read_text(encoding="utf-8"))
    content = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert "cannot be shown" not in page
    assert "How balanced accuracy grows" in page
    assert "balanced_accuracy-by-round" in page
    assert "By other measures" in page
    for answer in content["answers"]:
        assert answer["says"] in page
    best = max(content["rows"], key=lambda row: fmean(row["figure"]))
    assert re.search(
        rf"{re.escape(best['algorithm'])} is (best|first) with {fmean(best['figure']):.1%} balanced"
        r" accuracy",
        page,
    )
    table = succeed("report", folder, "--table", "markdown").out
    assert table.splitlines()[2].startswith(
        "| method | balanced accuracy | over SOLO | gained | hurt | worst | accuracy | steps | sent |"
    )


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"answers": [{"party": 3}]}', '{"answers": 3, "rows": []}']
)
def test_report_mentions_a_damaged_comparison(
    text: str, comparison_run: tuple[Path, str], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(comparison_run[0], tmp_path / "it"))
    (folder / "comparison.json").write_text(text, encoding="utf-8")
    succeed("report", folder, "--quick")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "comparison.json is damaged" in page
    assert "This part cannot be shown" not in page


def test_runs_that_chose_different_metrics_are_shown_by_accuracy(
    comparison_run: tuple[Path, str], hospitals: Path, tmp_path: Path
) -> None:
    shutil.copytree(comparison_run[0] / "solo" / "seed-0", tmp_path / "solo" / "seed-0")
    library.run("fedavg", out=tmp_path / "fedavg" / "seed-0", **small(hospitals))
    succeed("report", tmp_path, "--quick")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "judged by different metrics: they are shown by accuracy" in page
    assert "How accuracy grows" in page


def test_diverged_models_have_no_rank_and_no_verdict(hospitals: Path, tmp_path: Path) -> None:
    """Scores that are NaN have no order; no mean of the other values takes their place."""
    settings = small(hospitals) | {
        "model": "mlp2(width=8)",
        "lr": 1e22,
        "batch": 1000,
        "rounds": 1,
        "metric": "auc",
    }
    options = [f"--{name}={value}" for name, value in settings.items()]
    result = succeed("compare", "fedavg", *options, "--out", tmp_path)
    assert ",auc,nan" in (tmp_path / "fedavg" / "seed-0" / "metrics.csv").read_text()
    assert summary(tmp_path / "fedavg" / "seed-0")["auc"]["mean"] is None
    assert re.search(r"fedavg \* +diverged", result.out)
    assert "north: not judged" in result.out
    assert "nan" not in result.out + result.err + succeed("watch", tmp_path, "--once").out
    succeed("report", tmp_path, "--quick")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "This part cannot be shown" not in page
    assert "diverged" in page
    assert "no AUC: a model has diverged" in succeed("resume", tmp_path / "fedavg" / "seed-0").out
