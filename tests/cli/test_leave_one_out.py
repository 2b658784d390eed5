"""`compare --leave-one-out`, `--without`, and `comity.leave_one_out`."""

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
from harness import SMALL, comity, contents, one_sentence, rows, succeed, summary

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
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Folder, stdout and stderr of `COMMAND --leave-one-out`."""
    folder = tmp_path_factory.mktemp("left")
    result = succeed(*COMMAND, "--leave-one-out", "--out", folder)
    return folder, result.out, result.err


def outcomes(folder: Path) -> dict[str, list[int]]:
    by_party: dict[str, list[int]] = defaultdict(list)
    for row in rows(folder / "outcomes.csv"):
        by_party[row["party"]].append(int(row["correct"]))
    return by_party


def stamps(folder: Path) -> dict[Path, int]:
    return {
        p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and p.parent != folder
    }


def test_folders_and_settings_of_the_runs(study: tuple[Path, str, str]) -> None:
    """Runs of all parties are in METHOD/seed-N, the others below leave-one-out; config.toml and the
    summary name the party that is left out.
    """
    folder = study[0]
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


def test_ordinary_runs_and_table_are_unchanged(
    study: tuple[Path, str, str], tmp_path: Path
) -> None:
    plain = succeed(*COMMAND, "--out", tmp_path).out.splitlines()
    for run in ("fedavg/seed-0", "fedprox(mu=0.1)+dbe/seed-1"):
        assert contents(study[0] / run) == contents(tmp_path / run)
    ours = json.loads((study[0] / "comparison.json").read_text(encoding="utf-8"))["rows"]
    theirs = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))["rows"]
    assert [{k: v for k, v in r.items() if k != "seconds"} for r in ours] == [
        {k: v for k, v in r.items() if k != "seconds"} for r in theirs
    ]
    assert not list(tmp_path.glob("leave-one-out*"))
    assert not any("who helps whom" in line for line in plain)


def test_every_effect_and_interval(study: tuple[Path, str, str]) -> None:
    """acc_i(all) - acc_i(without j), paired over i's test samples, with the interval of Agresti and
    Min.
    """
    folder = study[0]
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
    content = json.loads((folder / "leave-one-out.json").read_text(encoding="utf-8"))
    assert content["seeds"] == [0, 1]
    assert [{k: str(v) for k, v in r.items()} for r in content["rows"]] == table


def test_progress_and_printed_table(study: tuple[Path, str, str]) -> None:
    folder, out, err = study
    assert (
        err.splitlines()[0]
        == "Leaving one party out takes 12 more runs: one for each of 3 parties and 2 methods, with"
        " 2 seeds."
    )
    progress_lines = re.findall(
        r"^ ?(\d+)/18 (\S+)((?: without p\d)? seed \d)  round 2/2", err, re.MULTILINE
    )
    assert ("8", "fedavg", " without p1 seed 0") in progress_lines
    assert sorted({int(turn) for turn, *_ in progress_lines}) == list(range(1, 19)), (
        "6 whole runs and 12 without a party"
    )
    table = rows(folder / "leave-one-out.csv")
    for method in METHODS:
        lines = out[out.index(f"{method}: who helps whom") :].splitlines()[2:5]
        for line in lines:
            name, gave, helped, hurt, *_ = line.split()
            party_rows = [r for r in table if (r["method"], r["left_out"]) == (method, name)]
            assert gave == f"{100 * statistics.fmean(float(r['effect']) for r in party_rows):+.1f}"
            assert helped == f"{sum(float(r['low']) > 0 for r in party_rows)}/4"
            assert hurt == f"{sum(float(r['high']) < 0 for r in party_rows)}/4"
        assert {line.split()[0] for line in lines} == {"p0", "p1", "p2"}
        assert [float(line.split()[1]) for line in lines] == sorted(
            (float(line.split()[1]) for line in lines), reverse=True
        )
    assert "solo: who" not in out


def test_repeated_command_computes_nothing(study: tuple[Path, str, str]) -> None:
    folder, out, _ = study
    before, table = stamps(folder), (folder / "leave-one-out.csv").read_bytes()
    assert succeed(*COMMAND, "--leave-one-out", "--out", folder).out == out
    assert stamps(folder) == before
    assert (folder / "leave-one-out.csv").read_bytes() == table


def test_run_without_a_party_equals_run_with_without(
    study: tuple[Path, str, str], tmp_path: Path
) -> None:
    succeed("run", "fedavg", *SMALL, "--seed", "1", "--without", "p1", "--out", tmp_path / "alone")
    assert contents(tmp_path / "alone") == contents(study[0] / "leave-one-out/fedavg/p1/seed-1")


def test_interrupted_study_is_resumed(study: tuple[Path, str, str], here: Path) -> None:
    command = ("compare", "fedavg", *SMALL, "--leave-one-out", "--out", "cut")
    succeed(*command)
    table, run_folder = (
        (here / "cut" / "leave-one-out.csv").read_bytes(),
        here / "cut/leave-one-out/fedavg/p1/seed-0",
    )
    assert (
        table.splitlines()[1:7] == (study[0] / "leave-one-out.csv").read_bytes().splitlines()[1:7]
    )
    finished_time = (run_folder.parents[1] / "p0/seed-0/metrics.csv").stat().st_mtime_ns
    for path in [
        run_folder / "summary.json",
        run_folder / "outcomes.csv",
        *(run_folder / "checkpoints").iterdir(),
    ]:
        path.unlink()  # killed before its first checkpoint
    (here / "cut" / "leave-one-out.csv").unlink()
    succeed("resume", run_folder)
    assert (run_folder / "outcomes.csv").exists()
    (run_folder / "summary.json").unlink()  # killed again, just before its end
    succeed(*command)
    assert (here / "cut" / "leave-one-out.csv").read_bytes() == table
    assert contents(run_folder) == contents(study[0] / "leave-one-out/fedavg/p1/seed-0")
    assert (run_folder.parents[1] / "p0/seed-0/metrics.csv").stat().st_mtime_ns == finished_time


def test_only_some_are_left_out(here: Path) -> None:
    result = succeed(
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
    assert "takes 2 more runs: one for each of 2 parties and 1 method." in result.err
    pairs = {(r["left_out"], r["party"]) for r in rows(here / "o" / "leave-one-out.csv")}
    assert pairs == {("p2", "p0"), ("p0", "p2")}
    config = tomllib.loads(
        (here / "o/leave-one-out/fedavg/p2/seed-0/config.toml").read_text(encoding="utf-8")
    )
    assert config["without"] == ["p1", "p2"]
    assert "fedavg without p2  round" in result.err


def test_newcomers_are_neither_left_out_nor_judged(here: Path) -> None:
    succeed("compare", "fedavg", *SMALL, "--newcomers", "1", "--leave-one-out", "--out", "o")
    assert {(r["left_out"], r["party"]) for r in rows(here / "o" / "leave-one-out.csv")} == {
        ("p0", "p1"),
        ("p1", "p0"),
    }
    assert set(summary(here / "o/leave-one-out/fedavg/p0/seed-0")["newcomers"]) == {"p2"}


FLAG = "--leave-one-out"


@pytest.mark.parametrize(
    ("args", "expected"),
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
def test_invalid_arguments_are_refused(args: tuple[str, ...], expected: str, here: Path) -> None:
    for name in ("leave-one-out", "choosy"):
        (here / f"{name}.py").write_text(CHOOSY, encoding="utf-8")
    before = sorted(here.rglob("*"))
    assert expected in one_sentence(comity("compare", *SMALL, *args, "--out", "out"), 2)
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
    output = succeed("data", "inspect", "--parties", "3", "--without", "p1").out
    whole = succeed("data", "inspect", "--parties", "3").out
    assert output.splitlines() == [
        line for line in whole.splitlines() if not line.startswith("p1 ")
    ]
    assert len(output.splitlines()) == len(whole.splitlines()) - 1
    assert "2 parties" in succeed("plan", "fedavg", *SMALL, "--without", "p1").out


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
    """Three classes around three corners; `swap` permutes the labels."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = 3 * np.eye(3)[y] + rng.normal(size=(count, 3))
    return x, (y + 1) % 3 if swap else y


@pytest.fixture(scope="module")
def federation() -> library.Federation:
    """tiny has six training samples and a large test set; Good Twin has many samples of the same
    distribution, and odd as many with permuted labels.
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
    (contributions,) = parts(effects.values()).values()
    by = {part.left_out: part for part in contributions}
    assert by["Good Twin"].helps == ("tiny", good.effect)
    assert by["odd"].hurts is not None
    assert contributions[0].mean >= contributions[1].mean >= contributions[2].mean


def test_effects_are_zero_without_exchange(federation: library.Federation) -> None:
    """Fed-SPS with beta=0 is SOLO: every effect is zero, since runs without a party are equal bit
    for bit.
    """
    effects = library.leave_one_out("fed-sps(beta=0)", federation, seeds=[0, 3], **SETTINGS)
    assert len(effects) == 12
    assert {e.effect for e in effects} == {0.0}
    assert all(e.low < 0 < e.high for e in effects)


def test_repeated_call_runs_only_what_is_missing(
    federation: library.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call: dict[str, Any] = {"out": tmp_path, "leave_out": ["odd", "Good Twin"], **SETTINGS}
    first = library.leave_one_out(["fedavg", "solo"], federation, **call)
    assert {e.left_out for e in first} == {"odd", "Good Twin"}
    assert {e.method for e in first} == {"fedavg"}
    (folder,) = (tmp_path / "leave-one-out" / "fedavg").glob("good-twin-*")
    (folder / "seed-0" / "summary.json").unlink()
    left_out_per_run = []
    monkeypatch.setattr(
        parallel,
        "run_once",
        lambda e, *more: left_out_per_run.append(e.without) or run_once(e, *more),
    )
    assert library.leave_one_out(["fedavg", "solo"], federation, **call) == first
    assert left_out_per_run == [None, ("odd",), ("Good Twin",)]
    assert (folder / "seed-0" / "summary.json").exists()


def test_invalid_calls_are_refused(federation: library.Federation) -> None:
    for bad, expected in (([], "a list of names"), (["solo"], "nothing is exchanged")):
        with pytest.raises(UsageError, match=expected):
            library.leave_one_out(bad, federation, **SETTINGS)
    with pytest.raises(UsageError, match="Did you mean 'odd'"):
        library.leave_one_out("fedavg", federation, leave_out=["od"], **SETTINGS)


def test_largest_effects_are_means_over_seeds() -> None:
    def row(seed: int, party: str, effect: float, low: float, high: float) -> Effect:
        return Effect("m", seed, "j", party, 0.5, 0.5 - effect, effect, low, high)

    rows = [
        row(0, "a", 0.3, 0.2, 0.4), row(1, "a", -0.1, -0.2, 0.1),  # significant once, 0.1 on average
        row(0, "b", 0.2, 0.1, 0.3), row(1, "b", 0.2, 0.1, 0.3),  # significant twice
        row(0, "c", 0.9, -0.1, 1.0), row(1, "c", 0.9, -0.1, 1.0),  # never significant
        row(0, "d", -0.3, -0.4, -0.2), row(1, "d", 0.1, 0.0, 0.2),
        # significant in both directions: the mean counts
        row(0, "e", 0.2, 0.1, 0.3), row(1, "e", -0.6, -0.7, -0.5),
    ]  # fmt: skip
    ((part,),) = parts(rows).values()
    assert part.helps == ("b", pytest.approx(0.2))
    assert part.hurts == ("e", pytest.approx(-0.2))
    assert (part.helped, part.hurt, part.effects) == (4, 2, 10)
    assert part.mean == pytest.approx(statistics.fmean(r.effect for r in rows))
