"""Trackers: each evaluated round once, whatever happened to the run; and a run that does not care
what becomes of them.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from harness import SMALL, Nursery, comity, contents, one_sentence, rows, summary, works

import comity as library
from comity import track
from comity.errors import UsageError
from comity.runs.server_run import Quiet

SETTINGS: dict[str, Any] = {
    "parties": 3, "rounds": 4, "eval_every": 2, "model": "linear", "partition": "iid", "engine": "loop", "seed": 0,
}  # fmt: skip


class Memory:
    """A tracker of one's own."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.said.append(("begin", folder, settings))

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        self.said.append(("round", t, figures))

    def end(self, summary: Mapping[str, Any] | None) -> None:
        self.said.append(("end", summary))

    def rounds(self) -> list[int]:
        return [words[1] for words in self.said if words[0] == "round"]


class StopAfter(Quiet):
    """Ctrl-C when a round is over."""

    def __init__(self, t: int) -> None:
        self._t = t

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        if t == self._t:
            raise KeyboardInterrupt


def stopped(folder: Path, after: int, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """A run that was stopped after a round which no checkpoint has: it is computed again."""
    monkeypatch.setattr(
        "comity.runs.checkpoint.Checkpoints.due", lambda self: self.manifest is None
    )
    with pytest.raises(KeyboardInterrupt):
        library.run("fedavg", out=folder, progress=StopAfter(after), **SETTINGS | more)


# --- One's own --------------------------------------------------------------------------------------------------------


def test_what_a_tracker_hears(tmp_path: Path) -> None:
    mine = Memory()
    result = library.run("fedavg", out=tmp_path / "run", track=[mine], **SETTINGS)
    (_, folder, settings), *course, (_, end) = mine.said
    assert folder == tmp_path / "run"
    assert settings["algorithm"] == "fedavg"
    assert settings["rounds"] == 4
    assert end == result.summary
    assert [words[1] for words in course] == [0, 2, 4]
    figures, got = course[-1][2], result.summary["accuracy"]
    assert figures["accuracy/mean"] == pytest.approx(got["mean"])
    assert figures["accuracy/weighted"] == pytest.approx(got["weighted"])
    assert figures["accuracy/global"] == pytest.approx(got["global"])
    assert figures["accuracy/worst"] == min(got["per_party"].values())
    assert figures["accuracy/best"] == max(got["per_party"].values())
    for party, value in got["per_party"].items():
        assert figures[f"party_accuracy/{party}"] == value
    last = [row for row in rows(tmp_path / "run" / "metrics.csv") if row["round"] == "4"]
    losses = {
        row["party"]: float(row["value"])
        for row in last
        if (row["split"], row["metric"]) == ("test", "loss")
    }
    assert {party: figures[f"party_loss/{party}"] for party in losses} == losses
    assert figures["loss/mean"] == pytest.approx(sum(losses.values()) / 3)
    chosen = [
        float(row["value"])
        for row in last
        if (row["split"], row["metric"]) == ("validation", "accuracy")
    ]
    assert figures["accuracy/validation"] == pytest.approx(sum(chosen) / 3)
    for _, t, told in course:
        sent = Counter[str]()
        for row in rows(tmp_path / "run" / "ledger.csv"):
            sent[row["kind"]] += int(row["bytes"]) * (int(row["round"]) <= t)
        assert {
            kind: told[f"bytes/{kind}"] for kind in ("up", "down", "peer", "setup", "eval")
        } == {kind: sent[kind] for kind in ("up", "down", "peer", "setup", "eval")}


def test_a_resumed_run_tells_all_its_rounds_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of before, and also if nobody followed it then."""
    whole, late = Memory(), Memory()
    library.run("fedavg", out=tmp_path / "whole", track=[whole], **SETTINGS)
    stopped(tmp_path / "run", 2, monkeypatch)
    library.run("fedavg", out=tmp_path / "run", resume=True, track=[late], **SETTINGS)
    assert late.rounds() == [0, 2, 4]
    assert [words for words in late.said if words[0] == "round"] == [
        words for words in whole.said if words[0] == "round"
    ]


def test_a_stopped_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Memory()
    stopped(tmp_path / "run", 2, monkeypatch, track=[mine])
    assert mine.said[-1] == ("end", None)


@pytest.mark.parametrize("when", ["begin", "round", "end"])
def test_a_tracker_that_fails_is_told_of_once(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Memory):
        pass

    def fail(self: Broken, *given: Any) -> None:
        self.said.append((when,))
        raise OSError(28, "No space left\non device")

    setattr(Broken, when, fail)
    broken, sound = Broken(), Memory()
    with pytest.warns(
        UserWarning, match="Broken failed and is left out from now on.*No space left on device"
    ) as warned:
        library.run("fedavg", out=tmp_path / "run", track=[broken, sound], **SETTINGS)
    assert len([one for one in warned if "Broken" in str(one.message)]) == 1
    assert [words[0] for words in broken.said].count(when) == 1
    assert sound.rounds() == [0, 2, 4]
    assert sound.said[-1][1] is not None
    library.run("fedavg", out=tmp_path / "alone", **SETTINGS)
    assert contents(tmp_path / "run") == contents(tmp_path / "alone")


def test_it_is_not_part_of_the_experiment(tmp_path: Path) -> None:
    for name, others in (("with", [Memory()]), ("without", [])):
        library.run("fedavg", out=tmp_path / name, track=others, **SETTINGS)
    files = ("config.toml", "metrics.csv", "ledger.csv", "outcomes.csv", "split.json")
    assert contents(tmp_path / "with", *files) == contents(tmp_path / "without", *files)


def test_newcomers_and_unfinished_models_are_no_rounds(tmp_path: Path) -> None:
    mine = Memory()
    library.run(
        "fedbabu",
        out=tmp_path / "run",
        track=[mine],
        newcomers=1,
        **SETTINGS | {"parties": 4, "model": "mlp2(width=8)"},
    )
    assert mine.rounds() == [0, 2, 4]
    assert mine.said[-2][2]["accuracy/mean"] == pytest.approx(
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


def test_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE, encoding="utf-8")
    works("compare", "fedavg", *SMALL, "--track", tmp_path / "mine.py", "--out", tmp_path / "out")
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
paper = {mean = 10}
"""


@pytest.mark.parametrize("command", ["tune", "resume", "reproduce"])
def test_all_commands_that_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, out = tmp_path / "mine.py", tmp_path / "out"
    mine.write_text(FILE, encoding="utf-8")
    if command == "tune":
        works("tune", "fedprox", *SMALL, "--grid", "mu=1", "--track", mine, "--out", out)
    elif command == "reproduce":
        (tmp_path / "table.toml").write_text(TABLE, encoding="utf-8")
        works(
            "reproduce", tmp_path / "table.toml", "--scale", "smoke", "--track", mine, "--out", out
        )
    else:
        stopped(out, 2, monkeypatch)
        works("resume", out, "--track", mine)
    assert list(out.rglob("mine.txt"))


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = one_sentence(
        comity("run", "fedavg", *SMALL, "--track", "tensorbord", "--out", tmp_path / "out"), 2
    )
    assert said == "comity: There is no tracker 'tensorbord'. Did you mean 'tensorboard'?"
    assert "There is no file" in one_sentence(
        comity("run", "fedavg", *SMALL, "--track", "./none.py"), 2
    )
    monkeypatch.setattr(track, "find_spec", lambda name: None)
    for name, display_name in (("tensorboard", "TensorBoard"), ("mlflow", "MLflow")):
        said = one_sentence(
            comity("run", "fedavg", *SMALL, "--track", name, "--out", tmp_path / "out"), 2
        )
        assert said == f"comity: {display_name} is not installed: pip install 'comity[track]'."
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    with pytest.raises(UsageError, match="give the run a folder"):
        library.run("fedavg", track=["tensorboard"], **SETTINGS)


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """Every scalar that any event file of a run holds, as it was written."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    found = []
    for path in sorted((folder / "tensorboard").iterdir()):
        for raw in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(raw)
            found += [
                (v.tag, event.step, v.simple_value)
                for v in event.summary.value
                if v.HasField("simple_value")
            ]
    return found


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped twice ends with the very scalars of one that was not."""
    pytest.importorskip("tensorboard")
    mine = Memory()
    library.run("fedavg", out=tmp_path / "whole", track=["tensorboard", mine], **SETTINGS)
    told = [
        (name, t, value) for _, t, figures in mine.said[1:-1] for name, value in figures.items()
    ]
    assert [(name, t, pytest.approx(value)) for name, t, value in told] == scalars(
        tmp_path / "whole"
    )
    stopped(tmp_path / "run", 2, monkeypatch, track=["tensorboard"])
    assert {t for _, t, _ in scalars(tmp_path / "run")} == {
        0
    }  # round 2 was over, but its trackers had not heard yet
    stopped(tmp_path / "run", 3, monkeypatch, track=["tensorboard"], resume=True)
    assert {t for _, t, _ in scalars(tmp_path / "run")} == {0, 2}
    works("resume", tmp_path / "run", "--track", "tensorboard")
    assert scalars(tmp_path / "run") == scalars(tmp_path / "whole")


def test_tensorboard_of_a_killed_run(nursery: Nursery, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    settings = ("run", "fedavg", *SMALL, "--rounds", "6", "--track", "tensorboard", "--out", folder)
    ended = nursery.start(
        *settings, die_at=60, die_in=str(folder), env={"COMITY_CHECKPOINT_SECONDS": "0"}
    ).wait()
    assert ended.code == -signal.SIGKILL
    assert nursery.run("resume", folder, "--track", "tensorboard").code == 0
    steps = [t for name, t, _ in scalars(folder) if name == "accuracy/mean"]
    assert steps == list(range(7))


# --- MLflow -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose database is made once, by one of two runs that begin side by side: that takes
    some seconds.
    """
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    folder = tmp_path_factory.mktemp("tracked")
    assert (
        "MLflow failed"
        not in works(
            "compare", "fedavg", *SMALL, "--track", "mlflow", "--jobs", "2", "--out", folder
        ).out
    )
    return folder


def logged(store: Path, folder: Path) -> tuple[Any, list[tuple[int, float]]]:
    """MLflow's run of a folder, and its mean accuracies."""
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
        run, means = logged(store, folder)
        got = summary(folder)
        assert (run.info.status, run.data.params["algorithm"], run.data.params["rounds"]) == (
            "FINISHED",
            method,
            "2",
        )
        assert [t for t, _ in means] == [0, 1, 2]
        assert means[-1][1] == pytest.approx(got["accuracy"]["mean"])
        assert run.data.metrics["bytes/up"] == got["bytes"]["up"]
        assert run.data.metrics["party_accuracy/p1"] == got["accuracy"]["per_party"]["p1"]


def test_mlflow_goes_on_with_the_same_run(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, reference = store / "again", Memory()
    stopped(folder, 3, monkeypatch, track=["mlflow"])
    run, means = logged(store, folder)
    assert (run.info.status, [t for t, _ in means]) == ("KILLED", [0, 2])
    library.run("fedavg", out=folder, resume=True, track=["mlflow", reference], **SETTINGS)
    again, means = logged(store, folder)
    assert again.info.run_id == run.info.run_id
    assert again.info.status == "FINISHED"
    assert means == [
        (t, pytest.approx(figures["accuracy/mean"])) for _, t, figures in reference.said[1:-1]
    ]


def test_mlflow_elsewhere(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store that MLFLOW_TRACKING_URI names, with all that a party's name may have."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "elsewhere")
    x, y = library.load("digits").x[:80].numpy(), library.load("digits").y[:80].numpy()
    sites = library.Federation.from_arrays(
        {"Süd 1.b": (x[:40], y[:40]), "north_1-x": (x[40:], y[40:])}
    )
    library.run("fedavg", sites, out=tmp_path / "run", rounds=1, model="linear", track=["mlflow"])
    assert not (tmp_path / "mlflow.db").exists()
    run, means = logged(store, tmp_path / "run")
    assert [t for t, _ in means] == [0, 1]
    assert {"party_accuracy/Süd 1.b", "party_accuracy/north_1-x"} <= set(run.data.metrics)


def test_mlflow_takes_more_than_it_takes_at_once(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.track.mlflow.MAX_METRICS", 4)
    monkeypatch.setattr("comity.track.mlflow.MAX_PARAMETERS", 3)
    library.run("fedavg", out=store / "pieces", track=["mlflow"], **SETTINGS)
    run, _ = logged(store, store / "pieces")
    assert {"party_loss/p2", "bytes/up", "accuracy/mean"} <= set(run.data.metrics)
    assert {"algorithm", "seed", "lr", "engine"} <= set(run.data.params)


def test_an_unreachable_store_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://nowhere")
    ended = works("compare", "fedavg", *SMALL, "--track", "mlflow", "--out", tmp_path)
    assert (
        ended.out.count(
            "Warning: MLflow failed and is left out from now on; the run itself goes on."
        )
        == 1
    )
    assert "Warning" not in ended.err
    assert summary(tmp_path / "fedavg" / "seed-0")["rounds"] == 2
