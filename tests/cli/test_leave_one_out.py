"""Who helps whom: `compare --leave-one-out`, `--without`, and the same from Python."""

from __future__ import annotations

import json
import math
import re
import statistics
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import SMALL, comity, contents, one_sentence, rows, summary, works

import comity as library
from comity.errors import UsageError
from comity.studies import parallel
from comity.studies.leave_one_out import Effect, parts, party_folder
from comity.studies.parallel import run_once

COLUMNS = [
    "method",
    "seed",
    "left_out",
    "party",
    "accuracy_with",
    "accuracy_without",
    "effect",
    "low",
    "high",
]
METHODS = ("fedavg", "fedprox(mu=0.1)+dbe")
COMMAND = ("compare", *METHODS, "solo", *SMALL, "--seeds", "0,1")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("left")
    ended = works(*COMMAND, "--leave-one-out", "--out", folder)
    return folder, ended.out, ended.err


def outcomes(folder: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows(folder / "outcomes.csv"):
        found[row["party"]].append(int(row["correct"]))
    return found


def stamps(folder: Path) -> dict[Path, int]:
    return {
        p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and p.parent != folder
    }


def test_where_the_runs_are(left: tuple[Path, str, str]) -> None:
    """Ordinary runs where they always are, the others where no pattern of ordinary runs finds them;
    all say what they are.
    """
    folder = left[0]
    whole = {f"{m}/seed-{s}" for m in ("solo", *METHODS) for s in (0, 1)}
    smaller = {
        f"leave-one-out/{m}/p{j}/seed-{s}" for m in METHODS for j in range(3) for s in (0, 1)
    }
    assert {
        str(p.parent.relative_to(folder)) for p in folder.rglob("summary.json")
    } == whole | smaller
    assert {str(p.relative_to(folder)) for p in folder.glob("*/seed-*")} == whole
    for run in whole | smaller:
        config = tomllib.loads((folder / run / "config.toml").read_text(encoding="utf-8"))
        missing = [run.split("/")[2]] if run in smaller else []
        assert config.get("without", []) == missing == summary(folder / run)["without"]
        assert config["parties"] == 3
        assert summary(folder / run)["parties"] == 3 - len(missing)
    for seed in (0, 1):
        assert len({p.read_bytes() for p in folder.rglob(f"seed-{seed}/split.json")}) == 1


def test_ordinary_runs_and_their_table_are_what_they_are_without_it(
    left: tuple[Path, str, str], tmp_path: Path
) -> None:
    plain = works(*COMMAND, "--out", tmp_path).out.splitlines()
    for run in ("fedavg/seed-0", "fedprox(mu=0.1)+dbe/seed-1"):
        assert contents(left[0] / run) == contents(tmp_path / run)
    ours = json.loads((left[0] / "comparison.json").read_text(encoding="utf-8"))["rows"]
    theirs = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))["rows"]
    assert [{k: v for k, v in r.items() if k != "seconds"} for r in ours] == [
        {k: v for k, v in r.items() if k != "seconds"} for r in theirs
    ]
    assert not list(tmp_path.glob("leave-one-out*"))
    assert not any("who helps whom" in line for line in plain)


def test_every_effect_by_hand(left: tuple[Path, str, str]) -> None:
    """acc_i(all) - acc_i(without j), paired over i's test samples (the interval of Agresti and Min,
    written out).
    """
    folder = left[0]
    table = rows(folder / "leave-one-out.csv")
    assert list(table[0]) == COLUMNS
    which = {(r["method"], r["seed"], r["left_out"], r["party"]) for r in table}
    names = ("p0", "p1", "p2")
    assert which == {
        (m, s, j, i) for m in METHODS for s in ("0", "1") for j in names for i in names if i != j
    }
    assert len(table) == len(which)
    for row in table:
        run = f"{row['method']}/seed-{row['seed']}"
        with_it = outcomes(folder / run)[row["party"]]
        smaller = folder / "leave-one-out" / row["method"] / row["left_out"] / f"seed-{row['seed']}"
        without = outcomes(smaller)[row["party"]]
        assert float(row["accuracy_with"]) == pytest.approx(statistics.fmean(with_it))
        assert float(row["accuracy_without"]) == pytest.approx(statistics.fmean(without))
        assert float(row["effect"]) == pytest.approx(
            statistics.fmean(with_it) - statistics.fmean(without)
        )
        assert float(row["accuracy_with"]) == pytest.approx(
            summary(folder / run)["accuracy"]["per_party"][row["party"]]
        )
        b = 0.5 + sum(x > y for x, y in zip(with_it, without, strict=True))
        c = 0.5 + sum(x < y for x, y in zip(with_it, without, strict=True))
        n = len(with_it) + 2
        half = 1.959963984540054 * math.sqrt(b + c - (b - c) ** 2 / n) / n
        assert (float(row["low"]), float(row["high"])) == pytest.approx(
            ((b - c) / n - half, (b - c) / n + half)
        )
    made = json.loads((folder / "leave-one-out.json").read_text(encoding="utf-8"))
    assert made["seeds"] == [0, 1]
    assert [{k: str(v) for k, v in r.items()} for r in made["rows"]] == table


def test_what_is_said(left: tuple[Path, str, str]) -> None:
    folder, out, err = left
    assert (
        err.splitlines()[0]
        == "Leaving one party out takes 12 more runs: one for each of 3 parties and 2 methods, with"
        " 2 seeds."
    )
    numbered = re.findall(
        r"^ ?(\d+)/18 (\S+)((?: without p\d)? seed \d)  round 2/2", err, re.MULTILINE
    )
    assert ("8", "fedavg", " without p1 seed 0") in numbered
    assert sorted({int(turn) for turn, *_ in numbered}) == list(range(1, 19)), (
        "6 whole runs and 12 without a party"
    )
    table = rows(folder / "leave-one-out.csv")
    for method in METHODS:
        lines = out[out.index(f"{method}: who helps whom") :].splitlines()[2:5]
        for line in lines:
            name, gave, helped, hurt, *_ = line.split()
            mine = [r for r in table if (r["method"], r["left_out"]) == (method, name)]
            assert gave == f"{100 * statistics.fmean(float(r['effect']) for r in mine):+.1f}"
            assert helped == f"{sum(float(r['low']) > 0 for r in mine)}/4"
            assert hurt == f"{sum(float(r['high']) < 0 for r in mine)}/4"
        assert {line.split()[0] for line in lines} == {"p0", "p1", "p2"}
        assert [float(line.split()[1]) for line in lines] == sorted(
            (float(line.split()[1]) for line in lines), reverse=True
        )
    assert "solo: who" not in out


def test_again_computes_nothing(left: tuple[Path, str, str]) -> None:
    folder, out, _ = left
    before, table = stamps(folder), (folder / "leave-one-out.csv").read_bytes()
    assert works(*COMMAND, "--leave-one-out", "--out", folder).out == out
    assert stamps(folder) == before
    assert (folder / "leave-one-out.csv").read_bytes() == table


def test_a_smaller_run_is_the_run_alone(left: tuple[Path, str, str], tmp_path: Path) -> None:
    works("run", "fedavg", *SMALL, "--seed", "1", "--without", "p1", "--out", tmp_path / "alone")
    assert contents(tmp_path / "alone") == contents(left[0] / "leave-one-out/fedavg/p1/seed-1")


def test_it_goes_on_where_it_was_stopped(left: tuple[Path, str, str], here: Path) -> None:
    command = ("compare", "fedavg", *SMALL, "--leave-one-out", "--out", "cut")
    works(*command)
    table, stopped = (
        (here / "cut" / "leave-one-out.csv").read_bytes(),
        here / "cut/leave-one-out/fedavg/p1/seed-0",
    )
    assert table.splitlines()[1:7] == (left[0] / "leave-one-out.csv").read_bytes().splitlines()[1:7]
    done = (stopped.parents[1] / "p0/seed-0/metrics.csv").stat().st_mtime_ns
    for path in [
        stopped / "summary.json",
        stopped / "outcomes.csv",
        *(stopped / "checkpoints").iterdir(),
    ]:
        path.unlink()  # killed before its first checkpoint
    (here / "cut" / "leave-one-out.csv").unlink()
    works("resume", stopped)
    assert (stopped / "outcomes.csv").exists()
    (stopped / "summary.json").unlink()  # and again, now at the very end
    works(*command)
    assert (here / "cut" / "leave-one-out.csv").read_bytes() == table
    assert contents(stopped) == contents(left[0] / "leave-one-out/fedavg/p1/seed-0")
    assert (stopped.parents[1] / "p0/seed-0/metrics.csv").stat().st_mtime_ns == done


def test_only_some_are_left_out(here: Path) -> None:
    ended = works(
        "compare",
        "fedavg",
        *SMALL,
        "--leave-one-out",
        "--leave-out",
        "p2, p0",
        "--without",
        "p1",
        "--out",
        "o",
    )
    assert "takes 2 more runs: one for each of 2 parties and 1 method." in ended.err
    found = {(r["left_out"], r["party"]) for r in rows(here / "o" / "leave-one-out.csv")}
    assert found == {("p2", "p0"), ("p0", "p2")}
    config = tomllib.loads(
        (here / "o/leave-one-out/fedavg/p2/seed-0/config.toml").read_text(encoding="utf-8")
    )
    assert config["without"] == ["p1", "p2"]
    assert "fedavg without p2  round" in ended.err


def test_newcomers_are_neither_left_out_nor_judged(here: Path) -> None:
    works("compare", "fedavg", *SMALL, "--newcomers", "1", "--leave-one-out", "--out", "o")
    assert {(r["left_out"], r["party"]) for r in rows(here / "o" / "leave-one-out.csv")} == {
        ("p0", "p1"),
        ("p1", "p0"),
    }
    assert set(summary(here / "o/leave-one-out/fedavg/p0/seed-0")["newcomers"]) == {"p2"}


FLAG = "--leave-one-out"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("fedavg", FLAG, "--leave-out", "p11"), "no party called 'p11'. Did you mean 'p1'?"),
        (("fedavg", FLAG, "--leave-out", ""), "no party called ''"),
        (("fedavg", "--leave-out", "p1"), "--leave-one-out"),
        (("solo", FLAG), "nothing is exchanged"),
        (("fedavg", FLAG, "--parties", "1"), "at least two"),
        (("fedavg", FLAG, "--newcomers", "2"), "at least two"),
        (
            ("fedavg", FLAG, "--newcomers", "1", "--leave-out", "p2"),
            "p2 joins when the others have finished",
        ),
        (("fedavg", "--without", "p11"), "Did you mean 'p1'?"),
        (("fedavg", "--without", "p0,p1,p2"), "nobody is there from the start"),
        (("fedavg", FLAG, "--set", "kappa=1"), "None of the methods"),
        (("./leave-one-out.py", FLAG), "another name"),
        (("./choosy.py", FLAG), "choosy.py cannot run without p0: choosy needs three parties."),
    ],
)
def test_refused(args: tuple[str, ...], said: str, here: Path) -> None:
    for name in ("leave-one-out", "choosy"):
        (here / f"{name}.py").write_text(CHOOSY, encoding="utf-8")
    before = sorted(here.rglob("*"))
    assert said in one_sentence(comity("compare", *SMALL, *args, "--out", "out"), 2)
    assert [
        p for p in sorted(here.rglob("*")) if p not in before and "__pycache__" not in p.parts
    ] == []


CHOOSY = '''"""Choosy."""
from comity.algorithms.fedavg import FedAvg
from comity.core import *


@algorithm
class Choosy(FedAvg):
    def check(self, info: Info) -> None:
        if len(info.names) < 3:
            raise UsageError("choosy needs three parties.")
'''


def test_without_for_inspect_and_plan(here: Path) -> None:
    shown = works("data", "inspect", "--parties", "3", "--without", "p1").out
    whole = works("data", "inspect", "--parties", "3").out
    assert shown.splitlines() == [line for line in whole.splitlines() if not line.startswith("p1 ")]
    assert len(shown.splitlines()) == len(whole.splitlines()) - 1
    assert "2 parties" in works("plan", "fedavg", *SMALL, "--without", "p1").out


@pytest.mark.parametrize(
    ("name", "folder"),
    [("p3", "p3"), ("site_3-b", "site_3-b"), ("North", r"north-[0-9a-f]{8}"), ("north", "north"), ("seed-0", "seed-0"),
     ("St. Gallen", None), ("日本", None), ("𠮷" * 64, None), ("x" * 64, None), ("a.b", None)],
)  # fmt: skip
def test_folders_of_parties(name: str, folder: str | None) -> None:
    assert re.fullmatch(folder or r"[a-z0-9_-]{1,40}-[0-9a-f]{8}", party_folder(name))
    assert party_folder(name) != party_folder(name + "2")


def test_names_that_differ_by_case_or_dots_have_folders_of_their_own() -> None:
    names = ["a", "A", "a b", "a.b", "a-b", "ä", "ö", "x" * 64, "x" * 63]
    assert len({party_folder(name) for name in names}) == len(names)


# --- From Python ------------------------------------------------------------------------------------------------------


def clusters(count: int, seed: int, swap: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Three classes around three corners; `swap` names them otherwise."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = 3 * np.eye(3)[y] + rng.normal(size=(count, 3))
    return x, (y + 1) % 3 if swap else y


@pytest.fixture(scope="module")
def federation() -> library.Federation:
    """Tiny has six samples and a large test part; Good Twin has many of the same kind, and odd as
    many with other names.
    """
    return library.Federation.from_arrays(
        {
            "tiny": (clusters(6, 0), clusters(150, 1)),
            "Good Twin": (clusters(90, 2), clusters(30, 3)),
            "odd": (clusters(90, 4, swap=True), clusters(30, 5, swap=True)),
        },
        validation=0.0,
    )


SETTINGS: dict[str, Any] = {"model": "linear", "rounds": 2, "lr": 0.1, "engine": "loop"}


@pytest.mark.parametrize("method", ["fedavg", "centralized"])
def test_good_data_help_and_permuted_labels_hurt(
    method: str, federation: library.Federation
) -> None:
    effects = {
        (e.left_out, e.party): e for e in library.leave_one_out(method, federation, **SETTINGS)
    }
    assert len(effects) == 6
    good, bad = effects["Good Twin", "tiny"], effects["odd", "tiny"]
    assert good.low > 0.1
    assert bad.high < -0.1
    assert good.effect == pytest.approx(good.accuracy_with - good.accuracy_without)
    (method_summary,) = parts(effects.values()).values()
    by = {part.left_out: part for part in method_summary}
    assert by["Good Twin"].helps == ("tiny", good.effect)
    assert by["odd"].hurts is not None
    assert method_summary[0].mean >= method_summary[1].mean >= method_summary[2].mean


def test_one_party_has_nothing_from_who_sends_nothing(federation: library.Federation) -> None:
    """Fed-SPS without its pull is SOLO: every effect is zero, since the others' runs are the same
    bit for bit.
    """
    effects = library.leave_one_out("fed-sps(beta=0)", federation, seeds=[0, 3], **SETTINGS)
    assert len(effects) == 12
    assert {e.effect for e in effects} == {0.0}
    assert all(e.low < 0 < e.high for e in effects)


def test_the_same_call_goes_on(
    federation: library.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call: dict[str, Any] = {"out": tmp_path, "leave_out": ["odd", "Good Twin"], **SETTINGS}
    first = library.leave_one_out(["fedavg", "solo"], federation, **call)
    assert {e.left_out for e in first} == {"odd", "Good Twin"}
    assert {e.method for e in first} == {"fedavg"}
    (folder,) = (tmp_path / "leave-one-out" / "fedavg").glob("good-twin-*")
    (folder / "seed-0" / "summary.json").unlink()
    begun = []
    monkeypatch.setattr(
        parallel, "run_once", lambda e, *more: begun.append(e.without) or run_once(e, *more)
    )
    assert library.leave_one_out(["fedavg", "solo"], federation, **call) == first
    assert begun == [None, ("odd",), ("Good Twin",)]
    assert (folder / "seed-0" / "summary.json").exists()


def test_a_call_that_makes_no_sense(federation: library.Federation) -> None:
    for bad, said in (([], "a list of names"), (["solo"], "nothing is exchanged")):
        with pytest.raises(UsageError, match=said):
            library.leave_one_out(bad, federation, **SETTINGS)
    with pytest.raises(UsageError, match="Did you mean 'odd'"):
        library.leave_one_out("fedavg", federation, leave_out=["od"], **SETTINGS)


def test_who_helps_whom_most_is_told_over_seeds() -> None:
    def row(seed: int, party: str, effect: float, low: float, high: float) -> Effect:
        return Effect("m", seed, "j", party, 0.5, 0.5 - effect, effect, low, high)

    rows = [
        row(0, "a", 0.3, 0.2, 0.4), row(1, "a", -0.1, -0.2, 0.1),  # sure once, 0.1 on average
        row(0, "b", 0.2, 0.1, 0.3), row(1, "b", 0.2, 0.1, 0.3),  # sure twice
        row(0, "c", 0.9, -0.1, 1.0), row(1, "c", 0.9, -0.1, 1.0),  # never sure
        row(0, "d", -0.3, -0.4, -0.2), row(1, "d", 0.1, 0.0, 0.2),
        # sure of both: what it is on average counts
        row(0, "e", 0.2, 0.1, 0.3), row(1, "e", -0.6, -0.7, -0.5),
    ]  # fmt: skip
    ((part,),) = parts(rows).values()
    assert part.helps == ("b", pytest.approx(0.2))
    assert part.hurts == ("e", pytest.approx(-0.2))
    assert (part.helped, part.hurt, part.effects) == (4, 2, 10)
    assert part.mean == pytest.approx(statistics.fmean(r.effect for r in rows))
