"""`--metric`: what rounds, settings and methods are chosen and judged by, from the settings to the
screen and the page.
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
from harness import comity, one_sentence, rows, summary, works

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
def compared(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("compared")
    options = [f"--{name}={value}" for name, value in small(hospitals).items()]
    ended = works(
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
    return folder, ended.out


def figures(run: Path, t: int, split: str, metric: str) -> dict[str, float]:
    """Everybody's figures in a round, from metrics.csv."""
    wanted = (str(t), split, metric)
    return {
        r["party"]: float(r["value"])
        for r in rows(run / "metrics.csv")
        if (r["round"], r["split"], r["metric"]) == wanted
    }


# --- a run


def test_the_chosen_one_is_told_of_every_round_and_all_at_the_end(
    compared: tuple[Path, str],
) -> None:
    told = rows(compared[0] / "fedavg" / "seed-0" / "metrics.csv")
    found = {
        (int(row["round"]), row["split"], row["metric"]) for row in told if row["party"] == "north"
    }
    each = {
        (t, split, name)
        for t in range(5)
        for split in ("validation", "test")
        for name in ("accuracy", "loss")
    }
    chosen = {(t, split, "balanced_accuracy") for t in range(5) for split in ("validation", "test")}
    assert found == each | chosen | {
        (4, "test", name) for name in ("auc", "macro_f1", "sensitivity", "specificity")
    }


def test_with_accuracy_the_last_round_alone_has_more_rows(hospitals: Path, tmp_path: Path) -> None:
    library.run("fedavg", out=tmp_path, **small(hospitals))
    told = [
        row for row in rows(tmp_path / "metrics.csv") if row["metric"] not in ("accuracy", "loss")
    ]
    assert {row["round"] for row in told} == {"4"}
    assert {row["split"] for row in told} == {"test"}


def test_what_it_is_judged_by_changes_nothing_else(
    compared: tuple[Path, str], hospitals: Path, tmp_path: Path
) -> None:
    """The same models come of it: every row that a run by accuracy has, and its answers, are the
    same bytes.
    """
    library.run("fedavg", out=tmp_path, **small(hospitals))
    other = compared[0] / "fedavg" / "seed-0"
    assert set((tmp_path / "metrics.csv").read_text().splitlines()) <= set(
        (other / "metrics.csv").read_text().splitlines()
    )
    assert (tmp_path / "outcomes.csv").read_bytes() == (other / "outcomes.csv").read_bytes()


def test_the_summary_has_a_block_for_each(compared: tuple[Path, str]) -> None:
    folder = compared[0] / "fedavg" / "seed-0"
    found = summary(folder)
    assert found["metric"] == "balanced_accuracy"
    last = figures(folder, 4, "test", "auc")
    assert found["auc"]["per_party"] == pytest.approx(last)
    for name in (name for name in ELIGIBLE if METRICS[name].fits(2)):
        block = found[name]
        assert {"mean", "weighted", "std", "best_party", "worst_party", "per_party"} <= set(block)
        assert block["mean"] == pytest.approx(fmean(block["per_party"].values()))
        assert block["per_party"][block["worst_party"]] == min(block["per_party"].values())
    assert set(found["balanced_accuracy"]) >= {"best_round", "best_on_test", "as_of"}
    assert "best_round" not in found["auc"]


def test_the_best_round_is_chosen_by_it_on_validation_data(compared: tuple[Path, str]) -> None:
    folder = compared[0] / "fedavg" / "seed-0"
    sizes = {
        name: len(share.validation)
        for name, share in RunFolder(folder).read_split().parties.items()
    }
    means = {}
    for t in range(5):
        mine = figures(folder, t, "validation", "balanced_accuracy")
        means[t] = sum(mine[p] * sizes[p] for p in mine) / sum(sizes[p] for p in mine)
    assert summary(folder)["balanced_accuracy"]["best_round"]["round"] == max(
        means, key=lambda t: (means[t], -t)
    )


def test_engines_agree(hospitals: Path, tmp_path: Path) -> None:
    settings = small(hospitals) | {"metric": "auc", "rounds": 2}
    found = {}
    for engine, workers in (("loop", None), ("process", 2), ("stacked", 1)):
        more: dict[str, Any] = {"engine": engine} | (
            {} if workers is None else {"workers": workers}
        )
        found[engine] = library.run("fedavg", out=tmp_path / engine, **settings | more)
    assert (tmp_path / "loop" / "metrics.csv").read_bytes() == (
        tmp_path / "process" / "metrics.csv"
    ).read_bytes()
    one, other = (
        [row for row in found[e].metrics if row.metric != "loss"] for e in ("loop", "stacked")
    )
    assert [row[:4] for row in one] == [row[:4] for row in other]
    assert [row.value for row in one] == pytest.approx([row.value for row in other], abs=0.05)


# --- less is better


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Metric:
    """A metric of which less is better: the share of samples that are wrong."""
    made = Metric(
        "wrong",
        "share wrong",
        "what is not right",
        lambda *g: 1 - METRICS["accuracy"].figures(*g),
        higher=False,
    )
    monkeypatch.setitem(METRICS, "wrong", made)
    monkeypatch.setattr("comity.runs.config.ELIGIBLE", (*ELIGIBLE, "wrong"))
    return made


@pytest.mark.usefixtures("wrong")
def test_where_less_is_better_all_choices_are_those_of_its_opposite(
    hospitals: Path, tmp_path: Path
) -> None:
    """Rounds, patience, the tuned value, ranks and answers by the share wrong are those by
    accuracy.
    """

    def chosen(metric: str) -> dict[str, Any]:
        base = experiment(
            small(hospitals) | {"metric": metric, "rounds": 6, "patience": 2, "lr": 0.3}
        )
        made = compare(
            base, ["fedavg", "scaffold"], [0], tmp_path / metric, lambda _: Quiet(), lambda _: None
        )
        trials = tune(
            base, {"lr": [0.001, 0.1]}, [0], tmp_path / metric / "grid", lambda _: Quiet()
        )
        told = summary(tmp_path / metric / "fedavg" / "seed-0")
        return {
            "rounds": told["rounds"],
            "best": (
                told[metric]["best_round"]["round"],
                told[metric]["worst_party"],
                told[metric]["best_party"],
            ),
            "tuned": [trial.settings for trial in trials.trials],
            "ranks": [row.algorithm for row in sorted(made.rows, key=lambda row: -row.goodness)],
            "verdicts": [answer.verdict for answer in made.answers],
        }

    assert chosen("wrong") == chosen("accuracy")


# --- what is refused, before anything runs


def test_a_metric_that_is_not_known(tmp_path: Path) -> None:
    said = one_sentence(
        comity("run", "fedavg", "--metric", "balanced", "--out", tmp_path / "run"), 2
    )
    assert said == "comity: There is no metric 'balanced'. Did you mean 'balanced_accuracy'?"
    assert "Known: accuracy, auc," in one_sentence(
        comity("run", "fedavg", "--metric", "kappa", "--out", tmp_path / "run"), 2
    )
    assert not (tmp_path / "run").exists()


def test_a_metric_that_does_not_fit(tmp_path: Path) -> None:
    said = one_sentence(
        comity("compare", "fedavg", "--metric", "auc", "--out", tmp_path / "run"), 2
    )
    assert "metric auc is for two classes, but these data have 10" in said
    assert not (tmp_path / "run").exists()


def test_a_metric_that_nobody_has(tmp_path: Path) -> None:
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
    )  # without patience nothing is chosen
    assert result.summary["auc"]["best_round"] is None


# --- a comparison


def test_the_table_ranks_by_it_with_accuracy_beside_it(compared: tuple[Path, str]) -> None:
    folder, out = compared
    assert re.search(r"method +balanced accuracy +over SOLO +gained +hurt +worst +accuracy", out)
    told = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert told["metric"] == "balanced_accuracy"
    for row in told["rows"]:
        found = [summary(folder / row["algorithm"] / f"seed-{seed}") for seed in (0, 1)]
        assert row["figure"] == [one["balanced_accuracy"]["mean"] for one in found]
        assert row["accuracy"] == [one["accuracy"]["mean"] for one in found]
        assert f"{fmean(row['figure']):.1%}" in out
    ours, solo = (folder / method / "seed-0" for method in ("fedavg", "solo"))
    seeds = ("seed-0", "seed-1")
    both = [
        gains(folder / "fedavg" / seed, folder / "solo" / seed, "balanced_accuracy")
        for seed in seeds
    ]
    (row,) = (row for row in told["rows"] if row["algorithm"] == "fedavg")
    few = {"west"}  # has too few healthy patients
    mine = {
        g.party: [other for each in both for other in each if other.party == g.party]
        for g in both[0]
        if g.party not in few
    }
    told_of = {
        party: combine_seeds(some, methods=len(told["rows"]) - 1) for party, some in mine.items()
    }
    assert row["gains"] == {party: asdict(one) for party, one in told_of.items()}
    assert (row["gained"], row["judged"]) == (sum(one.low > 0 for one in told_of.values()), 3)
    assert row["gain"]["gain"] == pytest.approx(fmean(g.gain for each in both for g in each))
    per_party = [summary(run)["balanced_accuracy"]["per_party"] for run in (ours, solo)]
    assert {g.party: g.gain for g in both[0]} == pytest.approx(
        {p: per_party[0][p] - per_party[1][p] for p in per_party[0]}
    )


def test_each_party_has_its_line_in_words(compared: tuple[Path, str]) -> None:
    folder, out = compared
    told = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert [one["party"] for one in told["answers"]] == ["north", "south", "east", "west"]
    for one in told["answers"]:
        assert f"{one['party']}: {one['says']}" in out.splitlines()
    west = told["answers"][3]
    assert west["verdict"] == "too few"
    assert re.fullmatch(
        r"too few samples of 'healthy' to say \(\d to test on, \d to train on\)", west["says"]
    )
    assert told["reading"] in out
    assert "mean over 2 seeds" in told["reading"]


def test_where_parties_differ_by_seed_each_is_told_of_by_its_seed(tmp_path: Path) -> None:
    base = experiment(
        {
            "parties": 3,
            "rounds": 1,
            "model": "linear",
            "partition": "iid|keep(samples=60)",
            "engine": "loop",
        }
    )
    made = compare(
        base, ["fedavg", "centralized"], [3, 4], tmp_path, lambda _: Quiet(), lambda _: None
    )
    assert "under each seed a party has other samples" in made.reading
    assert [answer.party for answer in made.answers] == [
        f"p{k} (seed {seed})" for seed in (3, 4) for k in range(3)
    ]
    assert [set(answer.methods) for answer in made.answers] == [
        {"fedavg"}
    ] * 6  # nobody is told to pool the data


def test_runs_of_another_metric_are_not_taken(compared: tuple[Path, str], hospitals: Path) -> None:
    options = [f"--{name}={value}" for name, value in small(hospitals).items()]
    ended = comity(
        "compare", "fedavg", *options, "--metric", "auc", "--seeds", "0,1", "--out", compared[0]
    )
    assert "holds a run with other settings" in one_sentence(ended, 2)


# --- the screen and the page


def test_the_end_of_a_run_and_watch_name_it(compared: tuple[Path, str]) -> None:
    run = compared[0] / "fedavg" / "seed-0"
    found = summary(run)
    ended = works("resume", run)
    assert ended.out.startswith(
        f"fedavg: balanced accuracy {found['balanced_accuracy']['mean']:.1%} (mean of 4 parties),"
        " worst "
    )
    assert f"also: accuracy {found['accuracy']['mean']:.1%}, macro F1" in ended.out
    shown = works("watch", run, "--once").out
    assert (
        f"balanced accuracy {found['balanced_accuracy']['mean']:.1%} after round 4; the highest"
        " was " in shown
    )
    assert re.search(
        r"state +round +balanced accuracy +worst", works("watch", compared[0], "--once").out
    )


def test_the_page_is_by_it(compared: tuple[Path, str], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(compared[0], tmp_path / "it"))
    works("report", folder, "--quick")
    page = unescape((folder / "report.html").read_text(encoding="utf-8"))
    told = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert "cannot be shown" not in page
    assert "How balanced accuracy grows" in page
    assert "balanced_accuracy-by-round" in page
    assert "By other measures" in page
    for one in told["answers"]:
        assert one["says"] in page
    best = max(told["rows"], key=lambda row: fmean(row["figure"]))
    assert re.search(
        rf"{re.escape(best['algorithm'])} is (best|first) with {fmean(best['figure']):.1%} balanced"
        r" accuracy",
        page,
    )
    drawn = works("report", folder, "--table", "markdown").out
    assert drawn.splitlines()[2].startswith(
        "| method | balanced accuracy | over SOLO | gained | hurt | worst | accuracy | sent |"
    )


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"answers": [{"party": 3}]}', '{"answers": 3, "rows": []}']
)
def test_a_damaged_comparison_is_told_on_the_page(
    text: str, compared: tuple[Path, str], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(compared[0], tmp_path / "it"))
    (folder / "comparison.json").write_text(text, encoding="utf-8")
    works("report", folder, "--quick")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "comparison.json is damaged" in page
    assert "This part cannot be shown" not in page


def test_runs_that_chose_different_metrics_are_shown_by_accuracy(
    compared: tuple[Path, str], hospitals: Path, tmp_path: Path
) -> None:
    shutil.copytree(compared[0] / "solo" / "seed-0", tmp_path / "solo" / "seed-0")
    library.run("fedavg", out=tmp_path / "fedavg" / "seed-0", **small(hospitals))
    works("report", tmp_path, "--quick")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "judged by different metrics: they are shown by accuracy" in page
    assert "How accuracy grows" in page


def test_models_that_diverged_have_no_rank_and_no_answer(hospitals: Path, tmp_path: Path) -> None:
    """Scores that are no numbers have no order: nowhere does a mean of the others stand for them."""
    settings = small(hospitals) | {
        "model": "mlp2(width=8)",
        "lr": 1e22,
        "batch": 1000,
        "rounds": 1,
        "metric": "auc",
    }
    options = [f"--{name}={value}" for name, value in settings.items()]
    ended = works("compare", "fedavg", *options, "--out", tmp_path)
    assert ",auc,nan" in (tmp_path / "fedavg" / "seed-0" / "metrics.csv").read_text()
    assert summary(tmp_path / "fedavg" / "seed-0")["auc"]["mean"] is None
    assert re.search(r"fedavg \* +diverged", ended.out)
    assert "north: not judged" in ended.out
    assert "nan" not in ended.out + ended.err + works("watch", tmp_path, "--once").out
    works("report", tmp_path, "--quick")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "This part cannot be shown" not in page
    assert "diverged" in page
    assert "no AUC: a model has diverged" in works("resume", tmp_path / "fedavg" / "seed-0").out
