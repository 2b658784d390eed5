"""Trackers receive each evaluated round once, also of resumed runs; a failing tracker does not
affect the run.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from harness import SMALL, Nursery, comity, contents, one_sentence, rows, succeed, summary

import comity as library
from comity import track
from comity.errors import UsageError
from comity.runs.server_run import Quiet

SETTINGS: dict[str, Any] = {
    "parties": 3, "rounds": 4, "eval_every": 2, "model": "linear", "partition": "iid", "engine": "loop", "seed": 0,
}  # fmt: skip


class Memory:
    """A tracker that records its calls."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.events.append(("begin", folder, settings))

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        self.events.append(("round", t, figures))

    def end(self, summary: Mapping[str, Any] | None) -> None:
        self.events.append(("end", summary))

    def rounds(self) -> list[int]:
        return [words[1] for words in self.events if words[0] == "round"]


class StopAfter(Quiet):
    """Interrupts a run after a round."""

    def __init__(self, t: int) -> None:
        self._t = t

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        if t == self._t:
            raise KeyboardInterrupt


def stop_run(folder: Path, after: int, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Interrupt a run after a round that no checkpoint has, so that it is computed again."""
    monkeypatch.setattr(
        "comity.runs.checkpoint.Checkpoints.due", lambda self: self.manifest is None
    )
    with pytest.raises(KeyboardInterrupt):
        library.run("fedavg", out=folder, progress=StopAfter(after), **SETTINGS | more)


# --- A user's tracker -------------------------------------------------------------------------------------------------


def test_tracker_receives_settings_figures_and_summary(tmp_path: Path) -> None:
    tracker = Memory()
    result = library.run("fedavg", out=tmp_path / "run", track=[tracker], **SETTINGS)
    (_, folder, settings), *course, (_, end) = tracker.events
    assert folder == tmp_path / "run"
    assert settings["algorithm"] == "fedavg"
    assert settings["rounds"] == 4
    assert end == result.summary
    assert [words[1] for words in course] == [0, 2, 4]
    figures, accuracy = course[-1][2], result.summary["accuracy"]
    assert figures["accuracy/mean"] == pytest.approx(accuracy["mean"])
    assert figures["accuracy/weighted"] == pytest.approx(accuracy["weighted"])
    assert figures["accuracy/global"] == pytest.approx(accuracy["global"])
    assert figures["accuracy/worst"] == min(accuracy["per_party"].values())
    assert figures["accuracy/best"] == max(accuracy["per_party"].values())
    for party, value in accuracy["per_party"].items():
        assert figures[f"party_accuracy/{party}"] == value
    last = [row for row in rows(tmp_path / "run" / "metrics.csv") if row["round"] == "4"]
    losses = {
        row["party"]: float(row["value"])
        for row in last
        if (row["split"], row["metric"]) == ("test", "loss")
    }
    assert {party: figures[f"party_loss/{party}"] for party in losses} == losses
    assert figures["loss/mean"] == pytest.approx(sum(losses.values()) / 3)
    validation = [
        float(row["value"])
        for row in last
        if (row["split"], row["metric"]) == ("validation", "accuracy")
    ]
    assert figures["accuracy/validation"] == pytest.approx(sum(validation) / 3)
    for _, t, round_figures in course:
        byte_counts = Counter[str]()
        for row in rows(tmp_path / "run" / "ledger.csv"):
            byte_counts[row["kind"]] += int(row["bytes"]) * (int(row["round"]) <= t)
        assert {
            kind: round_figures[f"bytes/{kind}"] for kind in ("up", "down", "peer", "setup", "eval")
        } == {kind: byte_counts[kind] for kind in ("up", "down", "peer", "setup", "eval")}


def test_tracker_of_a_resumed_run_receives_each_round_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the rounds before the interrupt, and also without a tracker then."""
    whole, late = Memory(), Memory()
    library.run("fedavg", out=tmp_path / "whole", track=[whole], **SETTINGS)
    stop_run(tmp_path / "run", 2, monkeypatch)
    library.run("fedavg", out=tmp_path / "run", resume=True, track=[late], **SETTINGS)
    assert late.rounds() == [0, 2, 4]
    assert [words for words in late.events if words[0] == "round"] == [
        words for words in whole.events if words[0] == "round"
    ]


def test_tracker_of_a_stopped_run_receives_no_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Memory()
    stop_run(tmp_path / "run", 2, monkeypatch, track=[tracker])
    assert tracker.events[-1] == ("end", None)


@pytest.mark.parametrize("when", ["begin", "round", "end"])
def test_failing_tracker_is_warned_of_once(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Memory):
        pass

    def fail(self: Broken, *args: Any) -> None:
        self.events.append((when,))
        raise OSError(28, "No space left\non device")

    setattr(Broken, when, fail)
    broken, sound = Broken(), Memory()
    with pytest.warns(
        UserWarning, match="Broken failed and is left out from now on.*No space left on device"
    ) as warnings:
        library.run("fedavg", out=tmp_path / "run", track=[broken, sound], **SETTINGS)
    assert len([warning for warning in warnings if "Broken" in str(warning.message)]) == 1
    assert [words[0] for words in broken.events].count(when) == 1
    assert sound.rounds() == [0, 2, 4]
    assert sound.events[-1][1] is not None
    library.run("fedavg", out=tmp_path / "alone", **SETTINGS)
    assert contents(tmp_path / "run") == contents(tmp_path / "alone")


def test_tracking_does_not_change_the_run(tmp_path: Path) -> None:
    for name, others in (("with", [Memory()]), ("without", [])):
        library.run("fedavg", out=tmp_path / name, track=others, **SETTINGS)
    files = ("config.toml", "metrics.csv", "ledger.csv", "outcomes.csv", "split.json")
    assert contents(tmp_path / "with", *files) == contents(tmp_path / "without", *files)


def test_newcomers_and_unfinished_models_are_no_rounds(tmp_path: Path) -> None:
    tracker = Memory()
    library.run(
        "fedbabu",
        out=tmp_path / "run",
        track=[tracker],
        newcomers=1,
        **SETTINGS | {"parties": 4, "model": "mlp2(width=8)"},
    )
    assert tracker.rounds() == [0, 2, 4]
    assert tracker.events[-2][2]["accuracy/mean"] == pytest.approx(
        summary(tmp_path / "run")["accuracy"]["mean"]
    )


FILE = """
class Mine:
    def begin(self, folder, settings):
        self.file = (folder / "mine.txt").open("w")
    def round(self, t, figures):
        self.file.write(f"{t} {figures['accuracy/mean']:.3f}\\n")
    def end(self, summary):
        self.file.close()

def tracker():
    return Mine()
"""


def test_tracker_from_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE, encoding="utf-8")
    succeed("compare", "fedavg", *SMALL, "--track", tmp_path / "mine.py", "--out", tmp_path / "out")
    for method in ("solo", "fedavg"):
        lines = (
            (tmp_path / "out" / method / "seed-0" / "mine.txt")
            .read_text(encoding="utf-8")
            .splitlines()
        )
        assert [line.split()[0] for line in lines] == ["0", "1", "2"]
        assert (
            lines[-1].split()[1]
            == f"{summary(tmp_path / 'out' / method / 'seed-0')['accuracy']['mean']:.3f}"
        )


TABLE = """
title = "One method"
source = "Nobody, Table 1"
[settings]
partition = "iid|keep(samples=20)"
parties = 2
model = "linear"
[smoke]
rounds = 1
[[columns]]
name = "mean"
title = "Mean"
measure = "mean"
[[rows]]
name = "solo"
title = "SOLO"
algorithm = "solo"
"""


@pytest.mark.parametrize("command", ["tune", "resume", "reproduce"])
def test_tracker_of_each_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "mine.py", tmp_path / "out"
    path.write_text(FILE, encoding="utf-8")
    if command == "tune":
        succeed("tune", "fedprox", *SMALL, "--grid", "mu=1", "--track", path, "--out", out)
    elif command == "reproduce":
        (tmp_path / "table.toml").write_text(TABLE, encoding="utf-8")
        succeed(
            "reproduce", tmp_path / "table.toml", "--scale", "smoke", "--track", path, "--out", out
        )
    else:
        stop_run(out, 2, monkeypatch)
        succeed("resume", out, "--track", path)
    assert list(out.rglob("mine.txt"))


def test_unknown_and_uninstalled_trackers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = one_sentence(
        comity("run", "fedavg", *SMALL, "--track", "tensorbord", "--out", tmp_path / "out"), 2
    )
    assert message == "comity: There is no tracker 'tensorbord'. Did you mean 'tensorboard'?"
    assert "There is no file" in one_sentence(
        comity("run", "fedavg", *SMALL, "--track", "./none.py"), 2
    )
    monkeypatch.setattr(track, "find_spec", lambda name: None)
    for name, display_name in (
        ("tensorboard", "TensorBoard"),
        ("mlflow", "MLflow"),
        ("wandb", "Weights & Biases"),
    ):
        message = one_sentence(
            comity("run", "fedavg", *SMALL, "--track", name, "--out", tmp_path / "out"), 2
        )
        assert message == f"comity: {display_name} is not installed: pip install 'comity[track]'."
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    with pytest.raises(UsageError, match="give the run a folder"):
        library.run("fedavg", track=["tensorboard"], **SETTINGS)


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """Every scalar in the event files of a run, in the order of writing."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    values = []
    for path in sorted((folder / "tensorboard").iterdir()):
        for raw in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(raw)
            values += [
                (v.tag, event.step, v.simple_value)
                for v in event.summary.value
                if v.HasField("simple_value")
            ]
    return values


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is interrupted twice has the scalars of an uninterrupted run."""
    pytest.importorskip("tensorboard")
    tracker = Memory()
    library.run("fedavg", out=tmp_path / "whole", track=["tensorboard", tracker], **SETTINGS)
    figures_by_round = [
        (name, t, value)
        for _, t, figures in tracker.events[1:-1]
        for name, value in figures.items()
    ]
    assert [(name, t, pytest.approx(value)) for name, t, value in figures_by_round] == scalars(
        tmp_path / "whole"
    )
    stop_run(tmp_path / "run", 2, monkeypatch, track=["tensorboard"])
    assert {t for _, t, _ in scalars(tmp_path / "run")} == {
        0
    }  # round 2 had ended, but trackers had not received it
    stop_run(tmp_path / "run", 3, monkeypatch, track=["tensorboard"], resume=True)
    assert {t for _, t, _ in scalars(tmp_path / "run")} == {0, 2}
    succeed("resume", tmp_path / "run", "--track", "tensorboard")
    assert scalars(tmp_path / "run") == scalars(tmp_path / "whole")


def test_tensorboard_of_a_killed_run(nursery: Nursery, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    settings = ("run", "fedavg", *SMALL, "--rounds", "6", "--track", "tensorboard", "--out", folder)
    result = nursery.start(
        *settings, die_at=60, die_in=str(folder), env={"COMITY_CHECKPOINT_SECONDS": "0"}
    ).wait()
    assert result.code == -signal.SIGKILL
    assert nursery.run("resume", folder, "--track", "tensorboard").code == 0
    steps = [t for name, t, _ in scalars(folder) if name == "accuracy/mean"]
    assert steps == list(range(7))


# --- MLflow -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an MLflow database, which one of two concurrent runs creates; that takes
    seconds.
    """
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    folder = tmp_path_factory.mktemp("tracked")
    assert (
        "MLflow failed"
        not in succeed(
            "compare", "fedavg", *SMALL, "--track", "mlflow", "--jobs", "2", "--out", folder
        ).out
    )
    return folder


def mlflow_run(store: Path, folder: Path) -> tuple[Any, list[tuple[int, float]]]:
    """The MLflow run of a folder, and its mean accuracies."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{store / 'mlflow.db'}")
    which = json.loads((folder / "mlflow.json").read_text(encoding="utf-8"))["run"]
    return client.get_run(which), [
        (m.step, m.value) for m in client.get_metric_history(which, "accuracy/mean")
    ]


def test_mlflow_has_one_store_for_a_comparison(store: Path) -> None:
    assert not list(store.glob("*/**/mlflow.db"))
    for method in ("solo", "fedavg"):
        folder = store / method / "seed-0"
        run, means = mlflow_run(store, folder)
        run_summary = summary(folder)
        assert (run.info.status, run.data.params["algorithm"], run.data.params["rounds"]) == (
            "FINISHED",
            method,
            "2",
        )
        assert [t for t, _ in means] == [0, 1, 2]
        assert means[-1][1] == pytest.approx(run_summary["accuracy"]["mean"])
        assert run.data.metrics["bytes/up"] == run_summary["bytes"]["up"]
        assert run.data.metrics["party_accuracy/p1"] == run_summary["accuracy"]["per_party"]["p1"]


def test_mlflow_resumes_the_same_run(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, reference = store / "again", Memory()
    stop_run(folder, 3, monkeypatch, track=["mlflow"])
    run, means = mlflow_run(store, folder)
    assert (run.info.status, [t for t, _ in means]) == ("KILLED", [0, 2])
    library.run("fedavg", out=folder, resume=True, track=["mlflow", reference], **SETTINGS)
    again, means = mlflow_run(store, folder)
    assert again.info.run_id == run.info.run_id
    assert again.info.status == "FINISHED"
    assert means == [
        (t, pytest.approx(figures["accuracy/mean"])) for _, t, figures in reference.events[1:-1]
    ]


def test_mlflow_store_of_the_environment(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is that of MLFLOW_TRACKING_URI, and party names have special characters."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "elsewhere")
    x, y = library.load("digits").x[:80].numpy(), library.load("digits").y[:80].numpy()
    sites = library.Federation.from_arrays(
        {"Süd 1.b": (x[:40], y[:40]), "north_1-x": (x[40:], y[40:])}
    )
    library.run("fedavg", sites, out=tmp_path / "run", rounds=1, model="linear", track=["mlflow"])
    assert not (tmp_path / "mlflow.db").exists()
    run, means = mlflow_run(store, tmp_path / "run")
    assert [t for t, _ in means] == [0, 1]
    assert {"party_accuracy/Süd 1.b", "party_accuracy/north_1-x"} <= set(run.data.metrics)


def test_mlflow_splits_large_requests(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comity.track.mlflow.MAX_METRICS", 4)
    monkeypatch.setattr("comity.track.mlflow.MAX_PARAMETERS", 3)
    library.run("fedavg", out=store / "pieces", track=["mlflow"], **SETTINGS)
    run, _ = mlflow_run(store, store / "pieces")
    assert {"party_loss/p2", "bytes/up", "accuracy/mean"} <= set(run.data.metrics)
    assert {"algorithm", "seed", "lr", "engine"} <= set(run.data.params)


def test_an_unreachable_store_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://nowhere")
    result = succeed("compare", "fedavg", *SMALL, "--track", "mlflow", "--out", tmp_path)
    assert (
        result.out.count(
            "Warning: MLflow failed and is left out from now on; the run itself goes on."
        )
        == 1
    )
    assert "Warning" not in result.err
    assert summary(tmp_path / "fedavg" / "seed-0")["rounds"] == 2


# --- Weights & Biases ---------------------------------------------------------------------------------------------------


def wandb_records(folder: Path) -> list[Any]:
    """The records of the only log in a run's folder.

    A process of wandb writes them. On a busy machine it is a little behind, so this waits for the
    last record.
    """
    deadline = time.monotonic() + 60
    while True:
        records = written_records(folder)
        if any(record.HasField("exit") for record in records) or time.monotonic() > deadline:
            return records
        time.sleep(0.1)


def written_records(folder: Path) -> list[Any]:
    """The records that are in the log now."""
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    (file,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    store, records = DataStore(), []
    store.open_for_scan(str(file))
    while data := store.scan_data():
        record = Record()
        record.ParseFromString(data)
        records.append(record)
    return records


def wandb_log(folder: Path) -> tuple[str, dict[str, Any], list[dict[str, Any]], int | None]:
    """The id, the config, the history and the exit code in the only log of a run's folder."""
    records = wandb_records(folder)
    (run,) = [record.run for record in records if record.HasField("run")]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    history = [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in records
        if record.HasField("history")
    ]
    ends = [record.exit.exit_code for record in records if record.HasField("exit")]
    return run.run_id, config, history, ends[-1] if ends else None


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of Weights & Biases, and a home of its own for its caches."""
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))


@pytest.mark.usefixtures("offline")
def test_wandb_logs_each_round_offline(tmp_path: Path) -> None:
    out, reference = tmp_path / "out", Memory()
    library.run("fedavg", out=out, track=["wandb", reference], **SETTINGS)
    _, config, history, exit_code = wandb_log(out)
    assert (config["algorithm"], config["rounds"], exit_code) == ("fedavg", 4, 0)
    rounds = [(t, figures) for kind, t, figures in reference.events[1:-1] if kind == "round"]
    assert [line["_step"] for line in history] == [t for t, _ in rounds] == [0, 2, 4]
    for line, (_, figures) in zip(history, rounds, strict=True):
        assert {name: line[name] for name in figures} == pytest.approx(figures)
    assert not [path for path in out.rglob("*") if path.is_symlink()]
    result = library.open(out)
    assert isinstance(result, library.Result)
    assert result.summary == summary(out), "a folder with links would be refused"


@pytest.mark.usefixtures("offline")
def test_wandb_resumes_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    stop_run(out, 3, monkeypatch, track=["wandb"])
    run, _, history, exit_code = wandb_log(out)
    assert ([line["_step"] for line in history], exit_code) == ([0, 2], 1)
    library.run("fedavg", out=out, resume=True, track=["wandb"], **SETTINGS)
    again, _, history, exit_code = wandb_log(out)
    assert again == run
    assert ([line["_step"] for line in history], exit_code) == ([0, 2, 4], 0)


@pytest.mark.usefixtures("offline")
def test_wandb_logs_every_run_of_a_comparison(tmp_path: Path) -> None:
    succeed("compare", "fedavg", *SMALL, "--track", "wandb", "--out", tmp_path / "out")
    folders = [tmp_path / "out" / method / "seed-0" for method in ("solo", "fedavg")]
    logs = [wandb_log(folder) for folder in folders]
    assert [config["algorithm"] for _, config, _, _ in logs] == ["solo", "fedavg"]
    assert len({run for run, _, _, _ in logs}) == 2
    for folder, (_, _, history, _) in zip(folders, logs, strict=True):
        assert history[-1]["accuracy/mean"] == pytest.approx(summary(folder)["accuracy"]["mean"])


@pytest.mark.usefixtures("offline")
def test_wandb_logs_nothing_of_the_machine(tmp_path: Path) -> None:
    """Neither its name, user, paths nor packages."""
    out = tmp_path / "out"
    library.run("fedavg", out=out, track=["wandb"], **SETTINGS)
    (file,) = (out / "wandb").glob("offline-run-*/run-*.wandb")
    (run,) = [record.run for record in wandb_records(out) if record.HasField("run")]
    assert run.host == ""
    assert not run.git.remote_url
    content = file.read_bytes()
    for text in (str(tmp_path), "numpy==", sys.executable):
        assert text.encode() not in content, text
    kept = [path.name for path in (out / "wandb").rglob("*") if path.is_file()]
    assert "requirements.txt" not in kept
    assert "wandb-metadata.json" not in kept
