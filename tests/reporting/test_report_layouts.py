"""Reports of every layout of folders, from one run without a finished round to a paper's table."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_page import SMALL, ReportPage, read_json, run_comparison

from comity import Federation, run
from comity.errors import UsageError
from comity.reporting import report
from comity.runs.config import experiment
from comity.runs.result import Result
from comity.runs.server_run import Quiet, ServerRun
from comity.studies.tune import tune
from comity.units import size, spread
from comity.wire.ledger import Ledger

SECTIONS = ["answer", "methods", "curves", "gains", "data", "space", "wire", "again"]


def quick_page(folder: Path) -> ReportPage:
    page = ReportPage(report(folder, quick=True))
    assert not page.failed_sections, page.notes
    assert all(names == SECTIONS for names in page.sections.values())
    assert list(page.sections) == (groups(page) or [""]), (
        "an address names the setting, if there are several, and the part"
    )
    assert "nan" not in page.words
    return page


def groups(page: ReportPage) -> list[str | None]:
    """Values of the select's options."""
    return [attributes["value"] for tag, attributes in page.elements if tag == "option"]


def methods(page: ReportPage) -> list[str]:
    return [
        str(attributes["value"])
        for _, attributes in page.elements
        if attributes.get("type") == "checkbox"
    ]


class Stop(Quiet):
    """Interrupts a run after a round; after -1, before the first round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def begin(self, job: ServerRun, first_round: int) -> None:
        if self.after < 0:
            raise InterruptedError

    def round(self, t: int, accuracy: float | None, ledger: Ledger) -> None:
        if t == self.after:
            raise InterruptedError


def interrupted_run(folder: Path, after: int, method: str = "fedavg", **settings: Any) -> None:
    with pytest.raises(InterruptedError):
        run(method, out=folder, progress=Stop(after), **SMALL | settings)


def finished_run(folder: Path, method: str = "fedavg", **settings: Any) -> Result:
    return run(method, out=folder, **SMALL | settings)


def test_one_run(tmp_path: Path) -> None:
    summary = finished_run(tmp_path / "it").summary
    page = quick_page(tmp_path / "it")
    assert f"fedavg has {summary['accuracy']['mean']:.1%}, averaged over parties." in page.words
    assert not methods(page), "there is nothing to choose"
    assert not groups(page)
    assert {row["party"]: row["accuracy"] for row in page.rows("parties")} == summary["accuracy"][
        "per_party"
    ]
    assert "To see who gains, run training alone" in page.words


def test_one_run_of_solo(tmp_path: Path) -> None:
    finished_run(tmp_path / "it", "solo")
    page = quick_page(tmp_path / "it")
    assert "Nothing crossed the wire" in page.words
    assert {chart["name"] for chart in page.charts.values()} == {
        "accuracy-by-round",
        "parties",
        "sizes",
    }


def test_five_methods_and_three_seeds(tmp_path: Path) -> None:
    """The best method is first, and every method has its own colour."""
    names = ["fedavg", "fedprox", "fedbabu", "scaffold"]
    run_comparison(tmp_path, names, (0, 1, 2), rounds=1)
    page = quick_page(tmp_path)
    assert methods(page) == ["solo", *names]
    colours = [
        attributes["data-colour"] for _, attributes in page.elements if "data-colour" in attributes
    ]
    assert len(set(colours)) == 5
    assert colours[0] == "@grey"
    assert {row["seeds"] for row in page.rows("curves") if row["party"] == ""} == {3}
    table_rows = page.table("accuracy")
    assert len(table_rows) == 5
    assert all("±" in row["accuracy"] for row in table_rows)
    means = [float(row["accuracy"].split("%")[0]) for row in table_rows]
    assert means == sorted(means, reverse=True)


def test_tune(tmp_path: Path) -> None:
    base = experiment(SMALL | {"algorithm": "fedprox", "rounds": 1})
    tune(base, {"mu": [0.1, 1.0]}, [0, 1], tmp_path, lambda _: Quiet())
    page = quick_page(tmp_path)
    assert methods(page) == ["mu=0.1", "mu=1.0"]
    assert "what the weakest method reaches" in page.words
    assert {row["method"] for row in page.rows("parties")} == {"mu=0.1", "mu=1.0"}
    content = json.loads((tmp_path / "tune.json").read_text(encoding="utf-8"))
    assert content["verdict"] in page.words
    assert page.table("validation") == [
        {
            "mu": str(trial["settings"]["mu"]),
            "validation": spread(trial["validations"]),
            "test": spread(trial["tests"]),
            "round": ", ".join(map(str, trial["rounds"])),
        }
        for trial in content["trials"]
    ]
    other_text = (tmp_path / "tune.json").read_text(encoding="utf-8").replace("0.1", "0.2")
    (tmp_path / "tune.json").write_text(other_text, encoding="utf-8")
    assert any("tune.json is damaged" in note for note in quick_page(tmp_path).notes)


def test_several_groups(tmp_path: Path) -> None:
    """The layout of `reproduce`: a select, each group's charts with its own data, and the paper's
    table first.
    """
    for k, name in enumerate(("digits", "others")):
        run_comparison(tmp_path / name, ["fedavg"], rounds=1 + k)
    heads = "column,row,algorithm,paper,paper_std,measured,measured_std,seeds,note"
    lines = [heads, "mean,FedAvg <1>,fedavg,48,1.5,50.123,,50.123,", "mean,other,moon,,,,,,not run"]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "others" / "leave-one-out.csv").write_text(
        "method,seed,left_out,party,effect,low,high\nfedavg,0,p0,p1,0.1,0,0.2\n", encoding="utf-8"
    )
    page = quick_page(tmp_path)
    assert groups(page) == ["setting=digits", "setting=others"]
    assert page.tables[0] == [
        ["column", "method", "paper", "measured", "difference"],
        ["mean", "FedAvg <1>", "48.00 ± 1.50", "50.12", "+2.12"],
        ["mean", "other", "", "not run", ""],
    ]
    assert max(row["round"] for row in page.rows("curves")) == 1
    assert max(row["round"] for row in page.rows("curves-g1")) == 2
    assert [c["group"] for c in page.charts.values() if c["name"] == "helps-fedavg"] == ["g1"], (
        "who helps whom there, not here"
    )
    assert len(page.charts) == len({c["data"] for c in page.charts.values()}) + 2, (
        "both curves share a table in each group"
    )


def test_folder_of_unrelated_runs(tmp_path: Path) -> None:
    """Runs with the same setting form a group, whatever the names of their folders."""
    finished_run(tmp_path / "a", "solo")
    finished_run(tmp_path / "b", "fedavg")
    finished_run(tmp_path / "c" / "d", "fedavg", rounds=1)
    page = quick_page(tmp_path)
    assert len(groups(page)) == 2
    assert all(
        str(place).startswith("setting=") and "/" not in str(place) for place in groups(page)
    )
    assert methods(page) == ["solo", "fedavg"]
    assert "fedavg beside training alone" in page.words


def test_runs_with_different_settings_are_not_averaged(tmp_path: Path) -> None:
    """Runs of one method with different settings, or with the same seed, are separate rows."""
    finished_run(tmp_path / "slow", lr=0.01)
    finished_run(tmp_path / "fast", lr=0.3)
    page = quick_page(tmp_path)
    assert sorted(methods(page)) == ["fedavg (fast)", "fedavg (slow)"]
    assert all("±" not in row["accuracy"] for row in page.table("accuracy"))
    shutil.rmtree(tmp_path / "fast")
    finished_run(tmp_path / "again", lr=0.01)
    assert sorted(methods(quick_page(tmp_path))) == ["fedavg (again)", "fedavg (slow)"]
    shutil.rmtree(tmp_path / "again")
    finished_run(tmp_path / "other seed", lr=0.01, seed=1)
    page = quick_page(tmp_path)
    assert {row["seeds"] for row in page.rows("curves") if row["party"] == ""} == {2}
    assert [row["method"] for row in page.table("accuracy")] == ["fedavg"]


def test_interrupted_run(tmp_path: Path) -> None:
    run_comparison(tmp_path, ["fedavg"], rounds=3)
    total_bytes = read_json(tmp_path / "fedavg" / "seed-0" / "summary.json")["bytes"]["total"]
    interrupted_run(tmp_path / "fedavg" / "seed-1", 1, rounds=3, seed=1)
    interrupted_run(tmp_path / "fedprox" / "seed-0", 1, "fedprox", rounds=3)
    page = quick_page(tmp_path)
    assert [note.split(":")[0] for note in page.notes if "not finished" in note] == [
        "fedavg, seed 1, is not finished", "fedprox, seed 0, is not finished",
    ]  # fmt: skip
    assert "it has 1 of 3 rounds" in page.words
    table_rows = {row["method"]: row for row in page.table("accuracy")}
    assert table_rows["fedprox"]["accuracy"] == "not finished"
    assert "±" not in table_rows["fedavg"]["accuracy"], "one finished seed has no spread"
    assert table_rows["fedavg"]["sent"] == size(total_bytes)
    drawn_bytes = {(r["method"], r["direction"]): r["bytes"] for r in page.rows("bytes")}
    assert sum(n for (m, _), n in drawn_bytes.items() if m == "fedavg") == total_bytes, (
        "half a run does not make a run cheaper"
    )
    assert max(r["round"] for r in page.rows("curves") if r["method"] == "fedprox") == 1


def test_run_interrupted_before_the_first_round(tmp_path: Path) -> None:
    interrupted_run(tmp_path / "zero", 0)
    page = quick_page(tmp_path / "zero")
    assert "it has 0 of 2 rounds" in page.words
    assert [chart["name"] for chart in page.charts.values()] == ["accuracy-by-round", "sizes"]
    interrupted_run(tmp_path / "none", -1)
    page = quick_page(tmp_path / "none")
    assert "No run has been evaluated yet." in page.words
    assert "No run is finished" in page.words


def test_comparison_without_finished_runs(tmp_path: Path) -> None:
    for method in ("solo", "fedavg"):
        interrupted_run(tmp_path / method / "seed-0", 1, method)
    page = quick_page(tmp_path)
    assert {row["accuracy"] for row in page.table("accuracy")} == {"not finished"}
    assert sum("is not finished" in note for note in page.notes) == 2


def arrays(names: tuple[str, ...], seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    return Federation.from_arrays(
        {n: (rng.normal(size=(40, 5)), rng.integers(0, 3, 40)) for n in names}, classes=3
    )


def test_federation_from_arrays(tmp_path: Path) -> None:
    federation = arrays(("north", "süd", "the east"))
    for method in ("solo", "fedavg"):
        run(method, federation, out=tmp_path / method, model="linear", rounds=2, engine="loop")
    page = ReportPage(report(tmp_path))
    assert not page.failed_sections
    assert any(
        "The data cannot be opened here" in note and "given as arrays" in note
        for note in page.notes
    )
    assert {row["party"] for row in page.rows("sizes")} == {"north", "süd", "the east"}
    assert any("its representations cannot be shown" in note for note in page.notes)


def test_same_parties_under_every_seed_are_averaged(tmp_path: Path) -> None:
    federation = arrays(("north", "south"))
    for seed in (0, 1):
        for method in ("solo", "fedavg"):
            run(
                method,
                federation,
                out=tmp_path / method / f"seed-{seed}",
                model="linear",
                rounds=2,
                engine="loop",
                seed=seed,
            )
    page = quick_page(tmp_path)
    assert "Means over 2 seeds." in page.words
    assert {row["party"] for row in page.rows("gains-fedavg")} == {"north", "south"}
    fedavg_runs, solo_runs = (
        [_outcomes(tmp_path / m / f"seed-{s}") for s in (0, 1)] for m in ("fedavg", "solo")
    )
    for row in page.rows("gains-fedavg"):
        outcomes, solo_outcomes = (
            [x for by_party in runs for x in by_party[row["party"]]]
            for runs in (fedavg_runs, solo_runs)
        )
        assert len(outcomes) == 20
        assert row["accuracy"] == pytest.approx(np.mean(outcomes))
        assert row["solo"] == pytest.approx(np.mean(solo_outcomes))
        assert row["gain"] == pytest.approx(np.mean(outcomes) - np.mean(solo_outcomes))


def _outcomes(folder: Path) -> dict[str, list[int]]:
    outcomes: dict[str, list[int]] = {}
    with (folder / "outcomes.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            outcomes.setdefault(row["party"], []).append(int(row["correct"]))
    return outcomes


NATURAL = """
import numpy as np, torch
from comity.data import Dataset
from comity.data.groups import Groups

def load():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = {x}
    return Dataset("own", x, torch.tensor(y), 3, groups={{"ward": Groups(("A 1", "B-2", "C.3"), np.arange(120) % 3)}},
                   default_partition="natural(by=ward)"{more})
"""
TABLE = "torch.tensor(rng.normal(size=(120, 4)) + np.arange(120)[:, None] % 3)"
TEXT = "torch.tensor(rng.integers(1, 30, (120, 12))).float()"


@pytest.mark.parametrize(("x", "more", "model", "chart"), [
    (TABLE, "", "linear", "features"),
    (TEXT, ", mean=(0.0,), std=(1.0,)", "fasttext(vocabulary=30,width=4)", None),
])  # fmt: skip
def test_natural_parties_with_tables_and_text(
    x: str, more: str, model: str, chart: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    path.write_text(NATURAL.format(x=x, more=more), encoding="utf-8")
    run("fedavg", out=tmp_path / "it", data=str(path), model=model, rounds=1, engine="loop")
    page = ReportPage(report(tmp_path / "it", methods=[]))
    assert not page.failed_sections
    assert [row["party"] for row in page.rows("parties")] == ["A 1", "B-2", "C.3"] or len(
        page.rows("parties")
    ) == 3
    names = {c["name"] for c in page.charts.values()}
    assert "classes" in names
    assert names & {"features", "distances"} == ({"features", "distances"} if chart else set()), (
        "words have no distances"
    )
    assert not any(tag == "img" for tag, _ in page.elements), "rows of a table are no pictures"
    assert all("cannot" not in note for note in page.notes), page.notes


def test_newcomers(tmp_path: Path) -> None:
    run_comparison(tmp_path, ["fedavg"], parties=4, newcomers=1, join_epochs=1)
    page = ReportPage(report(tmp_path, methods=[]))
    assert not page.failed_sections
    new = read_json(tmp_path / "fedavg" / "seed-0" / "summary.json")["newcomers"]["p3"]
    (row,) = [r for r in page.table("newcomer") if r["method"] == "fedavg"]
    assert row["newcomer"] == "p3"
    assert row["after its warm-up"] == f"{new['joined']:.1%}"
    assert row["points by joining"] == f"{100 * new['gain']:+.1f}"
    assert {r["party"] for r in page.rows("curves")} == {"", "p0", "p1", "p2"}
    assert {r["party"] for r in page.rows("sizes")} == {"p0", "p1", "p2", "p3"}
    assert [row["difference"] for row in page.records("closed-form")] == ["equal"] * 3, (
        "up, down and in all"
    )


def test_diverged_runs(tmp_path: Path) -> None:
    run_comparison(tmp_path, ["fedavg+dbe", "adcol", "fed-sps"], lr=1e12, rounds=1)
    summaries = [read_json(path) for path in tmp_path.rglob("summary.json")]
    assert any(s["diverged"] or s["discarded"] or s["absent"] for s in summaries)
    page = ReportPage(report(tmp_path))
    assert not page.failed_sections
    assert any("not finite" in note for note in page.notes)
    assert "nan" not in page.words.replace("LinearDiscriminant", "")
    json.dumps(page.content, allow_nan=False)


def test_many_parties(tmp_path: Path) -> None:
    """Charts show the first parties, or those at both ends, and say so; their height is limited."""
    run_comparison(
        tmp_path,
        ["fedavg"],
        parties=80,
        partition="iid",
        model="linear",
        rounds=1,
        validation=0,
        test="own(0.75)",
    )
    page = ReportPage(report(tmp_path, methods=[]))
    assert not page.failed_sections
    assert len(page.rows("gains-fedavg")) == 40
    assert (
        "40 of 80 parties are drawn: the 20 with the largest gains"
        in page.chart("gains-fedavg")["alt"]
    )
    assert len({row["party"] for row in page.rows("sizes")}) == 60
    assert "The first 60 of 80 parties are drawn." in page.chart("sizes")["alt"]
    assert len({row["party"] for row in page.rows("classes")}) == 60
    assert "The first 60 of 80 parties are drawn." in page.chart("classes")["alt"]
    assert len({row["party"] for row in page.rows("bytes-by-party")}) <= 80
    assert all(chart["spec"]["height"] <= 2500 for chart in page.charts.values())


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        report(tmp_path / "nothing")
    with pytest.raises(UsageError, match="holds no runs"):
        report(tmp_path)
    finished_run(tmp_path / "it")
    for target in (0, -0.5, 90, float("nan")):
        with pytest.raises(UsageError, match="between 0 and 1"):
            report(tmp_path / "it", target=target)
    with pytest.raises(UsageError, match="no finished method called 'fedavgg'"):
        report(tmp_path / "it", methods=["fedavgg"])
    assert not (tmp_path / "it" / "report.html").exists()
