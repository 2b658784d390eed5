"""Commands, a run's folder with its tables and summary, TOML files, and the Python API."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from harness import SMALL, comity, contents, one_sentence, process, rows, succeed, summary

import comity as library
from comity.cli import screen
from comity.spec import parse

pytestmark = pytest.mark.quick

FILES = {
    "config.toml", "split.json", "metrics.csv", "ledger.csv", "summary.json", "checkpoints", "env.json", "timing.csv",
    "outcomes.csv", "privacy.csv",
}  # fmt: skip
HEADS = {
    "metrics.csv": "round,party,split,metric,value",
    "ledger.csv": "round,call,src,dst,kind,bytes",
    "timing.csv": "round,train,evaluate,checkpoint,memory",
    "outcomes.csv": "party,sample,correct,truth,answer",
    "privacy.csv": (
        "round,call,party,release,unit,mechanism,sensitivity,noise,rate,steps,epsilon,delta,neighbours,against,"
        "drawn,drawn_of"
    ),
}
RUNS: dict[str, tuple[str, ...]] = {
    "fedavg": ("fedavg", "--parties", "4", "--rounds", "5", "--model", "linear"),
    "dbe": ("fedavg+dbe", "--parties", "4", "--rounds", "3", "--partition", "pathological(classes=3)"),
    "sampled": ("scaffold", "--parties", "5", "--rounds", "5", "--participation", "0.4", "--eval-every", "2", "--steps", "7",
                "--model", "linear", "--seed", "3"),
    "adcol": ("adcol", "--parties", "3", "--rounds", "2", "--model", "mlp2(width=32)", "--test", "matched",
              "--partition", "iid|shift(kinds=none,invert,noise)", "--set", "hidden=16"),
    "processes": ("fedprox+mr", "--parties", "3", "--rounds", "2", "--engine", "process", "--workers", "2", "--validation", "0",
                  "--test", "common", "--set", "mr.mu=0.5", "--model", "mlp2(width=16)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def run_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of `RUNS`, by name."""
    folder = tmp_path_factory.mktemp("contracts")
    for name, args in RUNS.items():
        succeed("run", *args, "--out", folder / name)
    return {name: folder / name for name in RUNS}


@pytest.fixture(params=RUNS)
def folder(request: pytest.FixtureRequest, run_folders: dict[str, Path]) -> Path:
    return run_folders[request.param]


def shares(folder: Path) -> dict[str, dict[str, Any]]:
    parties: dict[str, dict[str, Any]] = json.loads(
        (folder / "split.json").read_text(encoding="utf-8")
    )["parties"]
    return parties


def accuracies(folder: Path, split: str) -> dict[int, dict[str, float]]:
    by_round: dict[int, dict[str, float]] = defaultdict(dict)
    for row in rows(folder / "metrics.csv"):
        if (row["split"], row["metric"]) == (split, "accuracy") and row["party"] != "server":
            by_round[int(row["round"])][row["party"]] = float(row["value"])
    return dict(by_round)


def weighted_mean(values: dict[str, float], sizes: dict[str, int]) -> float:
    return sum(v * sizes[p] for p, v in values.items()) / sum(sizes[p] for p in values)


# --- A run's folder ---------------------------------------------------------------------------------------------------


def test_the_folder_has_its_files_and_nothing_else(folder: Path) -> None:
    assert {p.name for p in folder.iterdir() if not p.name.startswith(".")} == FILES


def test_tables_have_exactly_their_columns(folder: Path) -> None:
    for name, head in HEADS.items():
        text = (folder / name).read_text(encoding="utf-8")
        assert text.endswith("\n")
        assert text.splitlines()[0] == head
        assert all(line.count(",") == head.count(",") for line in text.splitlines())


def test_no_pickle_in_checkpoints(folder: Path) -> None:
    assert {p.suffix for p in (folder / "checkpoints").iterdir()} == {".json", ".safetensors"}


def test_env_names_versions_and_machine(folder: Path) -> None:
    env = json.loads((folder / "env.json").read_text(encoding="utf-8"))
    assert {"comity", "python", "torch", "numpy", "machine"} <= set(env)


def test_config_is_resolved(folder: Path) -> None:
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    assert config["seed"] == summary(folder)["seed"]
    assert config["engine"] in ("loop", "process", "stacked")
    assert config["device"] == "cpu"
    assert config["rounds"] == summary(folder)["rounds"]


def test_metrics_rows(folder: Path) -> None:
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    parties, last = set(shares(folder)), config["rounds"]
    expected = {t for t in range(last + 1) if t % config["eval_every"] == 0} | {last}
    table = rows(folder / "metrics.csv")
    assert {int(r["round"]) for r in table if r["split"] == "test"} == expected
    assert {r["split"] for r in table} <= {"train", "validation", "test", "pooled"}
    assert {r["party"] for r in table} <= parties | {"server"}
    for values in accuracies(folder, "test").values():
        assert set(values) == parties
        assert all(0 <= v <= 1 for v in values.values())
    numbers = [int(r["round"]) for r in table]
    assert numbers == sorted(numbers)
    keys = Counter((r["round"], r["party"], r["split"], r["metric"]) for r in table)
    assert max(keys.values()) == 1, "a row occurs twice"
    assert all(math.isfinite(float(r["value"])) for r in table)


def test_ledger_rows(folder: Path) -> None:
    ends = {*shares(folder), "server"}
    for row in rows(folder / "ledger.csv"):
        assert {row["src"], row["dst"]} <= ends
        assert row["src"] != row["dst"]
        assert row["kind"] in ("up", "down", "peer", "setup", "eval")
        assert int(row["bytes"]) > 0
        if row["kind"] in ("up", "down"):
            assert (row["dst"] if row["kind"] == "up" else row["src"]) == "server"


def test_outcomes_are_the_last_accuracies(folder: Path) -> None:
    right: dict[str, list[int]] = defaultdict(list)
    for row in rows(folder / "outcomes.csv"):
        assert int(row["sample"]) == len(right[row["party"]])
        right[row["party"]].append(int(row["correct"]))
    assert {p: len(r) for p, r in right.items()} == {
        p: len(s["test"]) for p, s in shares(folder).items()
    }
    assert {p: statistics.fmean(r) for p, r in right.items()} == pytest.approx(
        summary(folder)["accuracy"]["per_party"]
    )


def test_split_json_gives_no_sample_twice(folder: Path) -> None:
    training_indices = [i for s in shares(folder).values() for i in (*s["train"], *s["validation"])]
    assert len(training_indices) == len(set(training_indices))
    assert not {i for s in shares(folder).values() for i in s["test"]} & set(training_indices)


# --- summary.json -----------------------------------------------------------------------------------------------------


def test_summary_has_every_key_with_its_type(folder: Path) -> None:
    run_summary = summary(folder)
    kinds = {"algorithm": str, "dataset": str, "partition": str, "parties": int, "rounds": int, "seed": int, "model": str,
             "metric": str, "accuracy": dict, "bytes": dict, "seconds": dict, "steps": int}  # fmt: skip
    assert set(kinds) <= set(run_summary)
    for name, kind in kinds.items():
        assert type(run_summary[name]) is kind, name
    block = run_summary["accuracy"]
    for name in ("mean", "weighted", "std"):
        assert type(block[name]) is float
    assert block["global"] is None or type(block["global"]) is float
    assert type(block["best_party"]) is type(block["worst_party"]) is str
    for name in ("best_round", "best_on_test"):
        best = block[name]
        assert best is None or {k: type(v) for k, v in best.items()} == {
            "round": int,
            "mean": float,
            "weighted": float,
        }
    assert {k: type(v) for k, v in run_summary["bytes"].items()} == dict.fromkeys(
        ("up", "down", "peer", "setup", "eval", "total"), int
    )
    assert {"setup", "train", "evaluate", "total"} <= set(run_summary["seconds"])
    assert all(isinstance(v, float) and v >= 0 for v in run_summary["seconds"].values())


def test_summary_names_the_settings_of_the_run(run_folders: dict[str, Path]) -> None:
    run_summary = summary(run_folders["sampled"])
    expected = {"algorithm": "scaffold", "dataset": "digits", "partition": "dirichlet(alpha=0.5)", "parties": 5, "rounds": 5,
                "seed": 3, "model": "linear", "metric": "accuracy"}  # fmt: skip
    assert {k: run_summary[k] for k in expected} == expected


def test_summary_accuracies_follow_from_the_tables(folder: Path) -> None:
    accuracy = summary(folder)["accuracy"]
    parts = shares(folder)
    sizes = {name: {p: len(s[name]) for p, s in parts.items()} for name in ("validation", "test")}
    test, validation = accuracies(folder, "test"), accuracies(folder, "validation")
    last = test[max(test)]
    assert accuracy["per_party"] == last
    assert accuracy["mean"] == pytest.approx(statistics.fmean(last.values()))
    assert accuracy["weighted"] == pytest.approx(weighted_mean(last, sizes["test"]))
    assert accuracy["std"] == pytest.approx(statistics.pstdev(last.values()))
    assert last[accuracy["best_party"]] == max(last.values())
    assert last[accuracy["worst_party"]] == min(last.values())
    for name, chooser, by in (
        ("best_round", validation, "validation"),
        ("best_on_test", test, "test"),
    ):
        if not chooser:
            assert accuracy[name] is None
            continue
        score = {t: weighted_mean(v, sizes[by]) for t, v in chooser.items()}
        best = min(t for t in score if score[t] == max(score.values()))
        assert accuracy[name]["round"] == best
        assert accuracy[name]["mean"] == pytest.approx(statistics.fmean(test[best].values()))
        assert accuracy[name]["weighted"] == pytest.approx(weighted_mean(test[best], sizes["test"]))


def test_global_accuracy_only_where_there_is_one_model(run_folders: dict[str, Path]) -> None:
    accuracy = summary(run_folders["fedavg"])["accuracy"]
    assert accuracy["global"] == pytest.approx(
        accuracy["weighted"]
    )  # each sample is in the test set of one party
    pooled_rows = [r for r in rows(run_folders["fedavg"] / "metrics.csv") if r["split"] == "pooled"]
    assert {r["party"] for r in pooled_rows} == {"server"}
    assert float(pooled_rows[-1]["value"]) == accuracy["global"]
    assert summary(run_folders["dbe"])["accuracy"]["global"] is None
    assert summary(run_folders["adcol"])["accuracy"]["global"] is None


def test_summary_bytes_are_the_ledgers(folder: Path) -> None:
    total: Counter[str] = Counter()
    for row in rows(folder / "ledger.csv"):
        total[row["kind"]] += int(row["bytes"])
    byte_counts = summary(folder)["bytes"]
    assert {k: v for k, v in byte_counts.items() if k != "total"} == {
        k: total[k] for k in ("up", "down", "peer", "setup", "eval")
    }
    assert byte_counts["total"] == total.total() - total["eval"]


def test_summary_steps(run_folders: dict[str, Path]) -> None:
    sizes = [len(s["train"]) for s in shares(run_folders["fedavg"]).values()]
    assert summary(run_folders["fedavg"])["steps"] == 5 * sum(math.ceil(n / 10) for n in sizes)
    assert (
        summary(run_folders["sampled"])["steps"] == 5 * 2 * 7
    )  # two of five parties per round, seven steps each
    sizes = [len(s["train"]) for s in shares(run_folders["dbe"]).values()]
    assert summary(run_folders["dbe"])["steps"] == (3 + 1) * sum(
        math.ceil(n / 10) for n in sizes
    )  # one epoch before round 1


def test_summary_seconds_add_up(folder: Path) -> None:
    seconds = summary(folder)["seconds"]
    assert seconds["total"] >= seconds["setup"] + seconds["train"] + seconds["evaluate"] - 0.001
    timing = rows(folder / "timing.csv")
    for name in ("train", "evaluate"):
        assert seconds[name] == pytest.approx(sum(float(r[name]) for r in timing), abs=0.002)


def test_participation_draws_that_share_of_the_parties(run_folders: dict[str, Path]) -> None:
    senders: dict[int, set[str]] = defaultdict(set)
    for row in rows(run_folders["sampled"] / "ledger.csv"):
        if row["kind"] == "up":
            senders[int(row["round"])].add(row["src"])
    assert {t: len(who) for t, who in senders.items()} == dict.fromkeys(range(1, 6), 2)
    assert len({frozenset(who) for who in senders.values()}) > 1


# --- Equal settings give equal runs -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_saved_config_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    succeed("run", folder / "config.toml", "--out", tmp_path / "again")
    names = ("metrics.csv", "ledger.csv", "outcomes.csv", "split.json", "config.toml")
    assert contents(tmp_path / "again", *names) == contents(folder, *names)


@pytest.mark.slow
def test_the_saved_config_in_a_real_process(run_folders: dict[str, Path], tmp_path: Path) -> None:
    result = process(
        "run", run_folders["dbe"] / "config.toml", "--out", tmp_path / "again", cwd=tmp_path
    )
    assert result.code == 0, result.err
    assert contents(tmp_path / "again") == contents(run_folders["dbe"])


@pytest.mark.slow
def test_engines_give_the_same_bytes(run_folders: dict[str, Path], tmp_path: Path) -> None:
    succeed(
        "run",
        run_folders["processes"] / "config.toml",
        "--engine",
        "loop",
        "--out",
        tmp_path / "loop",
    )
    assert contents(tmp_path / "loop") == contents(run_folders["processes"])
    for engine, workers in (("loop", ()), ("process", ("--workers", "3"))):
        succeed(
            "run",
            run_folders["dbe"] / "config.toml",
            "--engine",
            engine,
            *workers,
            "--out",
            tmp_path / f"dbe-{engine}",
        )
    assert contents(tmp_path / "dbe-process") == contents(tmp_path / "dbe-loop")


def test_options_override_a_file(run_folders: dict[str, Path], tmp_path: Path) -> None:
    succeed(
        "run",
        run_folders["adcol"] / "config.toml",
        "--rounds",
        "1",
        "--set",
        "mu=0.25",
        "--out",
        tmp_path / "other",
    )
    config = tomllib.loads((tmp_path / "other" / "config.toml").read_text(encoding="utf-8"))
    assert (config["rounds"], config["set"]) == (1, {"hidden": 16, "mu": 0.25})


@pytest.mark.slow
def test_party_settings_on_the_command_line_and_in_a_file(tmp_path: Path) -> None:
    """Settings on the command line and in the saved file give the same tables; the command line
    overrides the file.
    """
    args = (
        "run",
        "relay",
        "--model",
        "lenet5",
        "--parties",
        "3",
        "--rounds",
        "1",
        "--partition",
        "iid",
    )
    ways = (
        "--party",
        "p1.model=mlp2(width=84)",
        "--party",
        "p1.lr=0.01",
        "--party",
        "p0.peers=p1,p2",
    )
    succeed(*args, *ways, "--out", tmp_path / "typed")
    config = tomllib.loads((tmp_path / "typed" / "config.toml").read_text(encoding="utf-8"))
    assert config["party"] == {
        "p1": {"model": "mlp2(width=84)", "lr": 0.01},
        "p0": {"peers": ["p1", "p2"]},
    }
    succeed("run", tmp_path / "typed" / "config.toml", "--out", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "typed")
    succeed(
        "run",
        tmp_path / "typed" / "config.toml",
        "--party",
        "p1.lr=0.1",
        "--party",
        "p2.batch=5",
        "--out",
        tmp_path / "over",
    )
    config = tomllib.loads((tmp_path / "over" / "config.toml").read_text(encoding="utf-8"))
    assert config["party"]["p1"] == {"model": "mlp2(width=84)", "lr": 0.1}
    assert config["party"]["p2"] == {"batch": 5}


@pytest.mark.slow
def test_newcomers_and_warnings_are_on_the_screen(tmp_path: Path) -> None:
    args = (
        "--partition",
        "pathological(classes=2)",
        "--parties",
        "4",
        "--rounds",
        "1",
        "--newcomers",
        "1",
    )
    result = succeed("run", "adcol", *args, "--set", "hidden=8", "--out", tmp_path / "run")
    assert "Warning: adcol is meant for parties whose inputs differ" in result.out
    assert "with the offered model" in " ".join(result.out.split())
    table = succeed("compare", "fedavg", *args, "--out", tmp_path / "both").out
    assert "newcomers" in table


def test_card_names_the_choices_of_an_option() -> None:
    text = " ".join(succeed("show", "fed-sps").out.split())
    assert "one of strict, geq, all" in text


def test_a_saved_split_is_followed(run_folders: dict[str, Path], tmp_path: Path) -> None:
    args = (
        "--parties",
        4,
        "--rounds",
        5,
        "--model",
        "linear",
        "--partition",
        run_folders["fedavg"] / "split.json",
    )
    succeed("run", "fedavg", *args, "--out", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(run_folders["fedavg"])


def test_another_seed_is_another_run(run_folders: dict[str, Path], tmp_path: Path) -> None:
    succeed(
        "run", run_folders["fedavg"] / "config.toml", "--seed", "1", "--out", tmp_path / "other"
    )
    assert contents(tmp_path / "other", "split.json") != contents(
        run_folders["fedavg"], "split.json"
    )


def test_the_python_api_gives_the_same_bytes(run_folders: dict[str, Path], tmp_path: Path) -> None:
    federation = library.load("digits").partition("pathological(classes=3)", parties=4, seed=0)
    result = library.run("fedavg+dbe", federation, rounds=3, seed=0, kappa=50, out=tmp_path / "api")
    assert contents(tmp_path / "api") == contents(run_folders["dbe"])
    expected = summary(run_folders["dbe"])
    assert {k: v for k, v in result.summary.items() if k != "seconds"} == {
        k: expected[k] for k in expected if k != "seconds"
    }
    assert len(result.metrics) == len(rows(run_folders["dbe"] / "metrics.csv"))
    assert (
        sum(charge.bytes for charge in result.ledger if charge.kind != "eval")
        == expected["bytes"]["total"]
    )
    for name, data in federation.parties.items():
        right = (result.model(name).predict(data.test) == data.test.y).float().mean().item()
        assert right == pytest.approx(expected["accuracy"]["per_party"][name])


def test_python_api_from_arrays(tmp_path: Path) -> None:
    source = library.load("digits")
    x, y = source.x.numpy(), source.y.numpy()
    parties = {"north": (x[:300], y[:300]), "south": (x[300:500], y[300:500])}
    federation = library.Federation.from_arrays(parties)
    result = library.run("fedavg", federation, rounds=1, model="linear")
    assert set(result.summary["accuracy"]["per_party"]) == {"north", "south"}
    assert result.model("north").logits(federation.parties["north"].test.x).shape[1] == 10


# --- Where results go -------------------------------------------------------------------------------------------------


def test_without_out_runs_get_folders_of_their_own(here: Path) -> None:
    for _ in range(2):
        succeed("run", "fedavg", *SMALL)
    runs = sorted(p.parent.relative_to(here) for p in here.rglob("summary.json"))
    assert [p.parts[0] for p in runs] == ["runs", "runs"]
    assert contents(here / runs[0]) == contents(here / runs[1])


def test_a_run_is_never_overwritten(run_folders: dict[str, Path]) -> None:
    before = {
        p: (p.read_bytes(), p.stat().st_mtime_ns)
        for p in run_folders["fedavg"].rglob("*")
        if p.is_file()
    }
    message = one_sentence(comity("run", "fedavg", *SMALL, "--out", run_folders["fedavg"]), 2)
    assert f"comity resume {run_folders['fedavg']}" in message
    assert {
        p: (p.read_bytes(), p.stat().st_mtime_ns)
        for p in run_folders["fedavg"].rglob("*")
        if p.is_file()
    } == before


def test_an_empty_folder_may_be_used(here: Path) -> None:
    (here / "out").mkdir()
    succeed("run", "fedavg", *SMALL, "--out", "out")
    assert (here / "out" / "summary.json").exists()


def test_resume_of_a_finished_run_does_nothing(folder: Path) -> None:
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}
    result = succeed("resume", folder)
    assert f"{summary(folder)['accuracy']['mean']:.1%}" in result.out
    assert {
        p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    } == before


# --- compare ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("compare")
    result = succeed(
        "compare", "fedavg", "fedprox(mu=0.1)+dbe", *SMALL, "--seeds", "0,1", "--out", folder
    )
    return folder, result.out


def stamps(folder: Path) -> dict[Path, int]:
    return {
        p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and p.parent != folder
    }


@pytest.mark.slow
def test_compare_layout(comparison: tuple[Path, str]) -> None:
    folder, _ = comparison
    runs = {str(p.parent.relative_to(folder)) for p in folder.rglob("summary.json")}
    assert runs == {
        f"{m}/seed-{s}" for m in ("solo", "fedavg", "fedprox(mu=0.1)+dbe") for s in (0, 1)
    }
    for run in folder.glob("*/seed-*"):
        absent_files = {"privacy.csv"} if run.parent.name == "solo" else set()
        assert {p.name for p in run.iterdir() if not p.name.startswith(".")} == FILES - absent_files
        assert f"seed-{summary(run)['seed']}" == run.name
        assert summary(run)["algorithm"] == run.parent.name


@pytest.mark.slow
def test_compare_uses_one_split_a_seed(comparison: tuple[Path, str]) -> None:
    folder, _ = comparison
    for seed in (0, 1):
        assert len({p.read_bytes() for p in folder.glob(f"*/seed-{seed}/split.json")}) == 1


@pytest.mark.slow
def test_compare_prints_a_row_for_each_method(comparison: tuple[Path, str]) -> None:
    folder, out = comparison
    for method in ("solo", "fedavg", "fedprox(mu=0.1)+dbe"):
        (line,) = [text for text in out.splitlines() if text.split()[:1] == [method]]
        mean = statistics.fmean(
            summary(p.parent)["accuracy"]["mean"] for p in folder.glob(f"{method}/*/summary.json")
        )
        assert f"{mean:.1%}" in line
    assert str(folder) in out


def test_a_run_of_compare_is_the_run_alone(comparison: tuple[Path, str], tmp_path: Path) -> None:
    succeed("run", "fedavg", *SMALL, "--seed", "1", "--out", tmp_path / "alone")
    assert contents(tmp_path / "alone") == contents(comparison[0] / "fedavg" / "seed-1")


@pytest.mark.slow
def test_compare_again_computes_nothing(comparison: tuple[Path, str]) -> None:
    folder, out = comparison
    before = stamps(folder)
    again = succeed(
        "compare", "fedavg", "fedprox(mu=0.1)+dbe", *SMALL, "--seeds", "0,1", "--out", folder
    )
    assert stamps(folder) == before
    assert again.out == out


@pytest.mark.slow
def test_compare_again_on_another_engine_computes_nothing(comparison: tuple[Path, str]) -> None:
    before = stamps(comparison[0])
    succeed("compare", "fedavg", *SMALL[:-1], "process", "--seeds", "0,1", "--out", comparison[0])
    assert stamps(comparison[0]) == before


@pytest.mark.slow
def test_compare_with_another_method_adds_it(comparison: tuple[Path, str], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(comparison[0], tmp_path / "compared"))
    before = stamps(folder)
    succeed("compare", "fedavg", "fedbn", *SMALL, "--seeds", "0,1", "--out", folder)
    after = stamps(folder)
    assert {p: after[p] for p in before} == before
    for seed in (0, 1):
        assert (folder / "fedbn" / f"seed-{seed}" / "summary.json").exists()


@pytest.mark.slow
def test_compare_with_fewer_seeds_than_in_its_folder_refuses(
    comparison: tuple[Path, str],
) -> None:
    folder, _ = comparison
    before = stamps(folder)
    message = one_sentence(
        comity("compare", "fedavg", "fedbn", *SMALL, "--seeds", "0", "--out", folder), 2
    )
    assert "seeds=0, 1 (not 0)" in message
    assert stamps(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        ("--rounds", "3"),
        ("--lr", "0.1"),
        ("--partition", "shard"),
        ("--parties", "4"),
        ("--model", "mlp2"),
    ],
)
def test_compare_with_other_settings_refuses(
    comparison: tuple[Path, str], change: tuple[str, ...]
) -> None:
    folder, _ = comparison
    before = stamps(folder)
    message = one_sentence(
        comity("compare", "fedavg", *SMALL, *change, "--seeds", "0,1", "--out", folder), 2
    )
    assert "--out" in message
    assert stamps(folder) == before


@pytest.mark.slow
def test_interrupted_comparison_is_resumed(here: Path) -> None:
    succeed("compare", "fedavg", *SMALL, "--out", "whole")
    succeed("compare", "fedavg", *SMALL, "--out", "cut")
    (here / "cut" / "fedavg" / "seed-0" / "summary.json").unlink()
    (here / "cut" / "fedavg" / "seed-0" / "outcomes.csv").unlink()
    for path in (here / "cut" / "fedavg" / "seed-0" / "checkpoints").iterdir():
        path.unlink()  # killed before its first checkpoint
    succeed("compare", "fedavg", *SMALL, "--out", "cut")
    assert contents(here / "cut" / "fedavg" / "seed-0") == contents(
        here / "whole" / "fedavg" / "seed-0"
    )


@pytest.mark.slow
def test_compare_applies_a_setting_to_the_methods_that_have_it(here: Path) -> None:
    succeed(
        "compare",
        "fedavg",
        "fedprox",
        "fedavg+dbe",
        *SMALL,
        "--set",
        "fedprox.mu=0.5",
        "--set",
        "kappa=1",
        "--out",
        "c",
    )
    sets = {}
    for path in here.glob("c/*/seed-0/config.toml"):
        sets[path.parent.parent.name] = tomllib.loads(path.read_text(encoding="utf-8")).get(
            "set", {}
        )
    assert sets.pop("fedprox") in ({"fedprox": {"mu": 0.5}}, {"fedprox.mu": 0.5})
    assert sets == {"solo": {}, "fedavg": {}, "fedavg+dbe": {"kappa": 1}}


# --- tune, plan, list, show, data inspect -----------------------------------------------------------------------------


@pytest.mark.slow
def test_tune_chooses_on_validation_data(here: Path) -> None:
    result = succeed(
        "tune",
        "fedprox",
        "--grid",
        "mu=0,30",
        "--grid",
        "lr=0.001,0.1",
        *SMALL,
        "--seeds",
        "0,1",
        "--out",
        "t",
    )
    summaries = sorted(here.glob("t/*/seed-*/summary.json"))
    assert len(summaries) == 8
    assert len({summary(p.parent)["steps"] for p in summaries if p.parent.name == "seed-0"}) == 1
    best: dict[str, list[float]] = defaultdict(list)
    for path in summaries:
        at = summary(path.parent)["accuracy"]["best_round"]["round"]
        best[path.parent.parent.name].append(
            statistics.fmean(accuracies(path.parent, "validation")[at].values())
        )
    winner = max(best, key=lambda name: statistics.fmean(best[name]))
    assert "Chosen on validation data" in result.out
    match = re.search(r"data: (.*?)\. The next is", result.out.replace("\n", " "))
    assert match is not None
    assert match[1].replace(", ", ",") == winner
    assert len([line for line in result.out.splitlines() if line.count("%") == 3]) == 4


@pytest.mark.parametrize("name", RUNS)
def test_planned_bytes_are_those_of_the_ledger(
    name: str, run_folders: dict[str, Path], here: Path
) -> None:
    result = succeed("plan", *RUNS[name])
    (line,) = [line for line in result.out.splitlines() if line.startswith("whole run")]
    byte_counts = summary(run_folders[name])["bytes"]
    expected = [screen.size(byte_counts[kind]) for kind in ("up", "down", "peer")]
    assert line.removeprefix("whole run").split() == " ".join(expected).split()
    assert "closed form: " in result.out
    assert not list(here.iterdir())


def test_plan_of_a_file(run_folders: dict[str, Path], here: Path) -> None:
    assert "whole run" in succeed("plan", run_folders["adcol"] / "config.toml").out


NAMES = {
    "algorithms": {
        "adcol",
        "centralized",
        "dbe",
        "fedavg",
        "fedbn",
        "fedper",
        "fedprox",
        "mr",
        "prbm",
        "scaffold",
        "solo",
    },
    "datasets": {"digits"},
    "models": {"linear", "mlp2", "lenet5", "cnn4", "fedbn-cnn"},
    "partitions": {"iid", "dirichlet", "mixture", "pathological", "shard", "quantity", "lognormal"},
}


@pytest.mark.parametrize("what", NAMES)
def test_list(what: str) -> None:
    listing = json.loads(succeed("list", what, "--json").out)
    assert isinstance(listing, list)
    assert NAMES[what] <= {item["name"] for item in listing}
    output = succeed("list", what).out
    assert all(
        re.search(rf"^{re.escape(item['name'])}\b", output, re.MULTILINE) for item in listing
    )


@pytest.mark.parametrize("name", sorted(NAMES["algorithms"]))
def test_show(name: str) -> None:
    card = " ".join(succeed("show", name).out.split())
    assert "Idea: " in card
    assert "Symbols: " in card
    assert "Deviations: " in card
    assert "Bytes: " in card


def test_show_names_options_with_their_defaults() -> None:
    lines = succeed("show", "fedprox+dbe").out.splitlines()
    assert any(line.split()[:2] == ["kappa", "paper"] for line in lines)
    assert sum(line.split()[:1] == ["mu"] for line in lines) == 2


def test_data_inspect(here: Path, run_folders: dict[str, Path]) -> None:
    out = succeed("data", "inspect", "--parties", 4).out
    for name, share in shares(run_folders["fedavg"]).items():
        (line,) = [line for line in out.splitlines() if line.split()[:1] == [name]]
        cells = line.split()[1:]
        assert cells[:3] == [str(len(share[part])) for part in ("train", "validation", "test")]
        assert sum(0 if c == "·" else int(c) for c in cells[3:]) == len(share["train"])
    assert not list(here.iterdir())


def test_data_inspect_shows_shifts(here: Path) -> None:
    out = succeed(
        "data", "inspect", "--parties", 2, "--partition", "iid|shift(kinds=none,invert)"
    ).out
    assert [line.split()[1] for line in out.splitlines() if re.match(r"p\d", line)] == [
        "none",
        "invert",
    ]


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("run",),
        ("compare",),
        ("tune",),
        ("plan",),
        ("resume",),
        ("list",),
        ("show",),
        ("data",),
        ("data", "inspect"),
    ],
)
def test_help(args: tuple[str, ...]) -> None:
    result = succeed(*args, "--help")
    assert "Usage: " in result.out
    assert not result.err


def test_without_arguments_the_help_is_shown() -> None:
    result = comity()
    assert "Usage: " in result.out + result.err
    assert "comity: Usage" not in result.err


# --- TOML files -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_file_with_set(here: Path) -> None:
    Path("x.toml").write_text(
        'algorithm = "fedprox+dbe"\nparties = 3\nrounds = 1\nmodel = "mlp2(width=16)"\npartition ='
        ' "iid"\n[set]\ndbe.kappa = 7\nfedprox.mu = 0.5\n',
        encoding="utf-8",
    )
    succeed("run", "x.toml", "--out", "file")
    line = (
        "fedprox(mu=0.5)+dbe(kappa=7)",
        "--parties",
        3,
        "--rounds",
        1,
        "--model",
        "mlp2(width=16)",
        "--partition",
        "iid",
    )
    succeed("run", *line, "--out", "line")
    options = ("--set", "dbe.kappa=7", "--set", "fedprox.mu=0.5")
    succeed("run", "fedprox+dbe", *line[1:], *options, "--out", "options")
    succeed(
        "run",
        "fedprox+dbe",
        *line[1:],
        "--set",
        "dbe.kappa=8",
        "--set",
        "fedprox.mu=0.5",
        "--out",
        "another",
    )
    assert contents(here / "file") == contents(here / "line") == contents(here / "options")
    assert contents(here / "file") != contents(here / "another")
    succeed("run", "file/config.toml", "--out", "again")
    assert contents(here / "again") == contents(here / "file")


@pytest.mark.slow
def test_a_file_with_parties_of_their_own(here: Path) -> None:
    Path("x.toml").write_text(
        'algorithm = "adcol"\nparties = 4\nrounds = 2\nmodel = "mlp2(width=24)"\n'
        '[party.p3]\nmodel = "lenet5(width=24)"\nlr = 0.01\n[party.p1]\nsteps = 3\nbatch = 2\n',
        encoding="utf-8",
    )
    succeed("run", "x.toml", "--out", "a")
    succeed("run", "a/config.toml", "--out", "b")
    assert contents(here / "a") == contents(here / "b")
    config = tomllib.loads(Path("a/config.toml").read_text(encoding="utf-8"))
    assert config["party"] == {
        "p3": {"model": "lenet5(width=24)", "lr": 0.01},
        "p1": {"steps": 3, "batch": 2},
    }
    sizes = {p: len(s["train"]) for p, s in shares(here / "a").items()}
    assert summary(here / "a")["steps"] == 2 * (
        sum(math.ceil(sizes[p] / 10) for p in ("p0", "p2", "p3")) + 3
    )


def test_averaging_different_architectures_is_refused(here: Path) -> None:
    Path("x.toml").write_text(
        'algorithm = "fedavg+dbe"\nparties = 4\n[party.p3]\nmodel = "lenet5"\n', encoding="utf-8"
    )
    message = one_sentence(comity("run", "x.toml", "--out", "out"), 2)
    assert "p3" in message
    assert "lenet5" in message
    assert "one architecture" in message


@pytest.mark.slow
def test_a_file_of_a_users_own(here: Path) -> None:
    Path("mine_contract.py").write_text(
        '"""Mine."""\n'
        "from comity.algorithms.fedavg import FedAvg\nfrom comity.core import algorithm, option\n\n"
        "@algorithm\nclass Mine(FedAvg):\n    speed: float = option(1.0, 'nothing')\n",
        encoding="utf-8",
    )
    Path("net_contract.py").write_text(
        "from torch import nn\n\ndef build(shape, classes):\n    return nn.Sequential(nn.Flatten(),"
        " nn.Linear(64, 8), nn.ReLU()), nn.Linear(8, classes)\n",
        encoding="utf-8",
    )
    Path("data_contract.py").write_text(
        "import torch\nfrom comity.data import Dataset\n\ndef load():\n    g ="
        " torch.Generator().manual_seed(0)\n    y = torch.arange(300) % 3\n    x = (torch.rand(300,"
        " 1, 8, 8, generator=g) + y.view(-1, 1, 1, 1)) / 3\n    return Dataset('toy', x, y, 3)\n",
        encoding="utf-8",
    )
    args = (
        "./mine_contract.py",
        "--model",
        "./net_contract.py",
        "--data",
        "./data_contract.py",
        *SMALL[:4],
        "--set",
        "speed=2",
    )
    succeed("run", *args, "--out", "a")
    succeed("run", "a/config.toml", "--out", "b")
    assert contents(here / "a") == contents(here / "b")
    assert succeed("show", "./mine_contract.py").out.startswith("Mine.")
    succeed("compare", "./mine_contract.py", *SMALL, "--out", "c")
    assert summary(here / "c" / "mine_contract" / "seed-0")["algorithm"].endswith(
        "mine_contract.py"
    )


def test_a_run_of_a_users_file_is_resumed_from_anywhere(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine_anywhere.py").write_text(
        "from comity.algorithms.fedavg import FedAvg\nfrom comity.core import algorithm\n\n"
        "@algorithm\nclass Mine(FedAvg):\n    pass\n",
        encoding="utf-8",
    )
    succeed("run", "./mine_anywhere.py", *SMALL, "--out", "a")
    Path("a/summary.json").unlink()
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    succeed("resume", "../a")
    assert Path("../a/summary.json").exists()


def test_a_users_file_with_options_stays_inside_out(here: Path) -> None:
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    path = elsewhere / "mine_options.py"
    path.write_text(
        "from comity.algorithms.fedavg import FedAvg\nfrom comity.core import algorithm, option\n\n"
        "@algorithm\nclass Mine(FedAvg):\n    speed: float = option(1.0, 'nothing')\n",
        encoding="utf-8",
    )
    succeed("compare", f"{path}(speed=2)", *SMALL, "--out", "c")
    succeed("run", f"{path}(speed=2)", *SMALL)
    assert {p.name for p in elsewhere.iterdir()} <= {"mine_options.py", "__pycache__"}
    assert len(list((here / "c").glob("*/seed-0/summary.json"))) == 2
    assert len(list((here / "runs").glob("*/summary.json"))) == 1


# --- Names ------------------------------------------------------------------------------------------------------------


def test_an_ambiguous_setting_names_both(here: Path) -> None:
    message = one_sentence(comity("run", "fedprox+dbe", *SMALL, "--set", "mu=1", "--out", "out"), 2)
    assert "fedprox.mu" in message
    assert "dbe.mu" in message
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("args", "suggestion"),
    [
        (("run", "fedavgg"), "fedavg"),
        (("run", "scafold"), "scaffold"),
        (("run", "fedavg+dbee"), "dbe"),
        (("compare", "fedavg", "fedpro"), "fedprox"),
        (("tune", "fedprx", "--grid", "mu=1"), "fedprox"),
        (("plan", "adcoll"), "adcol"),
        (("show", "fedbm"), "fedbn"),
        (("list", "modls"), "models"),
        (("run", "fedavg", "--data", "digit"), "digits"),
        (("run", "fedavg", "--model", "mlp"), "mlp2"),
        (("run", "fedavg", "--partition", "dirichlt(alpha=1)"), "dirichlet"),
        (("run", "fedavg", "--partition", "dirichlet(alfa=1)"), "alpha"),
        (("run", "fedavg", "--partition", "iid|shift(kinds=invrt)"), "invert"),
        (("run", "fedavg", "--test", "owned"), "own"),
        (("run", "fedavg", "--optimizer", "adm"), "adam"),
        (("run", "fedavg", "--optimizer", "sgd(momentun=0.9)"), "momentum"),
        (("run", "fedavg+dbe", "--set", "kapa=1"), "kappa"),
        (("run", "fedavg+dbe", "--set", "dbe.kapa=1"), "kappa"),
        (("run", "fedavg+dbe", "--set", "dbx.kappa=1"), "dbe"),
        (("run", "fedavg", "--partys", "3"), "--parties"),
        (("rum", "fedavg"), "run"),
        (("data", "inspec"), "inspect"),
    ],
)
def test_a_wrong_name_gets_a_suggestion(args: tuple[str, ...], suggestion: str, here: Path) -> None:
    message = one_sentence(comity(*args), 2)
    assert len(re.findall(rf"(?<![\w-]){suggestion}(?![\w-])", message)) == 1
    assert not list(here.iterdir())


def test_specs_round_trip() -> None:
    for text in ("dirichlet(alpha=0.1,min=10)", "iid", "own(0.25)", "shift(kinds=rotate,invert)"):
        assert str(parse(text)) == text
