"""Regression, where the label is a number: squared error, R² and mean absolute error. Methods that
need classes refuse.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score

import comity
from comity import algorithms
from comity.base.key import Key
from comity.data import Dataset
from comity.data.groups import Groups
from comity.data.importing import import_federation
from comity.errors import UsageError
from comity.measure.study import study
from comity.metrics.metrics import METRICS
from comity.reporting import report
from comity.studies.export import export, load

RUN: dict[str, Any] = {"rounds": 3, "model": "mlp2(width=8)", "lr": 0.05, "engine": "loop"}
CLASSES = {
    "ccvr",
    "relay",
    "relay-p2p",
    "fd",
    "fedgen",
    "fedufo",
    "feduad",
    "fedrod",
    "fed-sps",
    "fedproto",
    "fedtgp",
    "gpfl",
}
CLASSES |= {"fada", "fml"}


def table() -> Dataset:
    """Days in hospital, at three hospitals whose levels differ."""
    draw = Key(3).generator()
    x = torch.randn(120, 3, generator=draw) * torch.tensor([10.0, 1.0, 100.0]) + torch.tensor(
        [50.0, 0.0, 1000.0]
    )
    of = np.arange(120) % 3
    y = (
        10
        + (x[:, 0] - 50) / 2
        + x[:, 1]
        + 5.0 * torch.from_numpy(of)
        + 0.3 * torch.randn(120, generator=draw)
    )
    groups = {"site": Groups(("east", "north", "south"), of)}
    return Dataset(
        "days",
        x,
        y,
        0,
        groups=groups,
        default_partition="natural(by=site)",
        mean=(0.0,),
        std=(1.0,),
        scale="own",
        scaled=(0, 1, 2),
    )


@pytest.mark.parametrize("engine", ["loop", "stacked", "process"])
def test_figures_are_scikit_learns_in_the_labels_own_unit(engine: str, tmp_path: Path) -> None:
    data = table()
    fed = data.partition("auto")
    result = comity.run(
        "fedavg", fed, out=tmp_path / "run", **(RUN | {"engine": engine, "workers": 1})
    )
    assert result.summary["metric"] == "r2"
    assert result.summary["accuracy"]["mean"] is None
    for party in fed.names:
        rows = list(fed.split.parties[party].test)
        predictions = result.model(party).predict(data.x[rows])
        truth = data.y[rows]
        assert result.summary["r2"]["per_party"][party] == pytest.approx(
            r2_score(truth, predictions), abs=1e-5
        )
        assert result.summary["mae"]["per_party"][party] == pytest.approx(
            mean_absolute_error(truth, predictions), abs=1e-4
        )
    assert not [row for row in result.metrics if row.metric == "accuracy"]
    assert {row.metric for row in result.metrics if row.round == 1} == {"r2", "loss"}


def test_engines_agree(tmp_path: Path) -> None:
    fed = table().partition("auto")
    runs = {
        e: comity.run("scaffold", fed, out=tmp_path / e, **(RUN | {"engine": e}))
        for e in ("loop", "process", "stacked")
    }
    assert (tmp_path / "loop" / "metrics.csv").read_bytes() == (
        tmp_path / "process" / "metrics.csv"
    ).read_bytes()
    stacked = [row.value for row in runs["stacked"].metrics]
    assert stacked == pytest.approx([row.value for row in runs["loop"].metrics], rel=1e-3, abs=1e-4)


def test_every_method_runs_or_says_why_not(tmp_path: Path) -> None:
    fed = table().partition("auto")
    refused = set()
    wrapped_methods = {
        name: f"fedavg+{name}" for name in ("dbe", "prbm", "median", "trimmed", "serveropt")
    }
    wrapped_methods |= {
        "mr": "fedper+mr",
        "dp": "fedavg+dp(noise=1)",
        "krum": "fedavg+krum(f=0)",
        "ldp": "adcol+ldp(noise=1)",
    }
    for name in (wrapped_methods.get(name, name) for name in algorithms.names()):
        try:
            result = comity.run(name, fed, out=tmp_path / name, **(RUN | {"rounds": 1}))
        except UsageError as why:
            assert str(why).endswith("but the label of these data is a number, not a class.")  # noqa: PT017 - or the test ends
            refused.add(name)
        else:
            assert result.summary["r2"]["mean"] is not None
    assert refused == CLASSES


def test_it_learns(tmp_path: Path) -> None:
    fed = table().partition("auto")
    result = comity.run("fedavg", fed, out=tmp_path, **(RUN | {"rounds": 30, "model": "linear"}))
    assert result.summary["r2"]["mean"] > 0.9


def test_arrays_with_no_classes() -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))
    fed = comity.Federation.from_arrays(
        {"a": (x, 3 * x[:, 0]), "b": (x, 3 * x[:, 0] + 0.5)}, classes=0
    )
    assert fed.counts().tolist() == [[len(fed.parties[name].train)] for name in ("a", "b")]
    result = comity.run("fedavg", fed, rounds=20, model="linear")
    assert result.model("a").predict(np.array([[1.0, 0.0]])).item() == pytest.approx(3, abs=0.5)
    with pytest.raises(UsageError, match="predicts a number, which has no classes"):
        result.model("a").predict_proba(x)
    with pytest.raises(UsageError, match="must be whole numbers"):
        comity.Federation.from_arrays({"a": (x, 3 * x[:, 0])})


@pytest.mark.parametrize(
    "partition", ["dirichlet(alpha=1)", "pathological(classes=2)", "shard", "iid|concept"]
)
def test_partitions_that_need_classes(partition: str) -> None:
    with pytest.raises(
        UsageError, match="partitions by class, but the label of these data is a number"
    ):
        table().partition(partition, parties=3)


def test_metrics_that_do_not_fit() -> None:
    fed = table().partition("auto")
    with pytest.raises(UsageError, match="metric auc is for classes"):
        comity.run("fedavg", fed, metric="auc", **RUN)
    digits = comity.load("digits").partition("iid|keep(samples=30)", parties=2)
    with pytest.raises(
        UsageError, match="metric r2 is for labels that are numbers, but these data have 10 classes"
    ):
        comity.run("fedavg", digits, metric="r2", rounds=1)


def test_a_model_that_predicts_the_mean_has_r2_of_zero() -> None:
    y = torch.tensor([1.0, 2.0, 6.0])
    assert METRICS["r2"].of(torch.full((3, 1), 3.0), y) == pytest.approx(0)
    assert METRICS["r2"].of(y[:, None], y) == pytest.approx(1)
    assert METRICS["r2"].of(y[:1, None], y[:1]) is None
    assert METRICS["mae"].of(torch.full((3, 1), 3.0), y) == pytest.approx(2)


@pytest.mark.usefixtures("without_onnx")
def test_from_csv_files_to_a_prediction(tmp_path: Path) -> None:
    data = table()
    (tmp_path / "in").mkdir()
    for k, name in enumerate(("east", "north", "south")):
        with (tmp_path / "in" / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            out = csv.writer(file)
            out.writerow(["age", "score", "level", "days"])
            out.writerows(
                [*map(float, x), float(y)] for x, y in zip(data.x[k::3], data.y[k::3], strict=True)
            )
    imported = import_federation(tmp_path / "in", tmp_path / "out", label="days")
    assert imported.classes == 0
    fed = imported.partition("auto")
    theirs = data.partition("auto")
    for name in fed.names:
        assert torch.allclose(fed.parties[name].train.x, theirs.parties[name].train.x, atol=1e-5)
        assert torch.allclose(fed.parties[name].train.y, theirs.parties[name].train.y, atol=1e-5)
    result = comity.run("fedavg+dbe", data=str(tmp_path / "out"), out=tmp_path / "run", **RUN)
    export(result, "south", tmp_path / "model")
    rows = data.x[2::3][:4]
    expected = result.model("south").predict(rows.tolist())
    assert torch.equal(load(tmp_path / "model").predict(rows.tolist()), expected)
    assert "R² " in (tmp_path / "model" / "card.md").read_text(encoding="utf-8")
    assert report(tmp_path / "run", quick=True).stat().st_size > 0


def test_the_report_page(tmp_path: Path) -> None:
    """It ranks by R², has no accuracy column, and shows the error in the label's unit."""
    for method in ("solo", "fedavg"):
        comity.run(method, table().partition("auto"), out=tmp_path / "c" / method / "seed-0", **RUN)
    page = report(tmp_path / "c", quick=True).read_text(encoding="utf-8")
    visible_page = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert "do not agree" not in visible_page
    heads = re.findall(r"<th[^>]*>(.*?)</th>", visible_page)
    assert "R²" in heads
    assert "accuracy" not in heads
    (error,) = {h for h in heads if "error" in h}
    assert error == "mean absolute error"
    after = visible_page[visible_page.index(error) :]
    (solo,) = re.findall(r">solo</t[dh]>\s*<td[^>]*>([^<]*)<", after)[:1]
    assert float(solo) > 0, "a number, not a share"


def test_studies_by_accuracy_or_class_are_refused(tmp_path: Path) -> None:
    """Otherwise they would silently report an effect of +0.0 for every party."""
    fed = table().partition("auto")
    comity.run("fedavg", fed, out=tmp_path / "run", **RUN)
    with pytest.raises(UsageError, match="measure describes representations by the classes"):
        study(tmp_path / "run", federation=fed)
    with pytest.raises(
        UsageError, match="leave-one-out tells what a party gives others in accuracy, but the label"
    ):
        comity.leave_one_out("fedavg", fed, **RUN)


def test_trackers_receive_r2() -> None:
    figures_received: dict[str, float] = {}

    class Listener:
        def begin(self, folder: Path, settings: object) -> None:
            pass

        def round(self, t: int, figures: Mapping[str, float]) -> None:
            figures_received.update(figures)

        def end(self, summary: object) -> None:
            pass

    comity.run("fedavg", table().partition("auto"), track=[Listener()], **RUN)
    assert {"r2/mean", "loss/mean", "party_r2/east"} <= figures_received.keys()
    assert not any("accuracy" in name for name in figures_received)


def test_many_distinct_integers_need_an_explicit_kind(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = [f"{k % 7 + 0.5},{k % 30}" for k in range(60)]
    (tmp_path / "in" / "a.csv").write_text("\n".join(["x,days", *lines]), encoding="utf-8")
    with pytest.raises(
        UsageError,
        match="has 30 different numbers: say --kind 'days=number' to predict it as a number",
    ):
        import_federation(tmp_path / "in", tmp_path / "out", label="days")
    assert (
        import_federation(
            tmp_path / "in", tmp_path / "n", label="days", kinds={"days": "number"}
        ).classes
        == 0
    )
    assert (
        import_federation(
            tmp_path / "in", tmp_path / "w", label="days", kinds={"days": "words"}
        ).classes
        == 30
    )
