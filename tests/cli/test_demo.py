"""`comity demo`: each federation ends with a question, an answer, the evidence and the advice."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import ESCAPE, comity, complaint, frames, one_sentence, succeed

from comity.cli import demo, screen
from comity.names import SOLO
from comity.runs.config import experiment
from comity.studies.compare import experiment_of
from comity.studies.estimate import Estimate
from comity.wire.ledger import Ledger

SETTINGS = {"parties": 4, "rounds": 2, "model": "linear", "partition": "iid", "engine": "loop"}
TINY = (
    demo.DemoFederation(
        "1-one",
        "One federation",
        "Is it better together?",
        ("fedavg", "fedprox"),
        SETTINGS,
        candidates=("fedavg",),
        advice_folds=2,
    ),
    demo.DemoFederation(
        "2-two",
        "Another federation",
        "And in folds?",
        ("fedavg",),
        SETTINGS,
        folds=2,
        candidates=("fedavg",),
        advice_folds=2,
    ),
)
RACE = 4
"""The runs behind an advice: training alone and one method, on two folds."""
RUNS = ["solo", "fedavg", "fedprox", "solo, fold 1 of 2"]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small federations in place of the three, with their page."""
    monkeypatch.setattr(demo, "FEDERATIONS", TINY)
    monkeypatch.setattr(demo.RunsProgress, "line_interval", 0.0)
    monkeypatch.setenv("COMITY_REPORT", "1")


def written(folder: Path) -> dict[Path, int]:
    """When each summary of a run was written."""
    return {path: os.stat(path).st_mtime_ns for path in folder.rglob("summary.json")}


@pytest.mark.usefixtures("tiny")
def test_the_demo_from_beginning_to_end(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    first = succeed("demo", "--out", out)
    lines = first.out.splitlines()
    labels = [line.partition(":")[0] for line in lines if re.match(r"[A-Z]\w+:", line)]
    assert labels == ["Question", "Answer", "Evidence", "Advice"] * 2 + ["Next"]
    assert lines[0] == "1 of 2: One federation"
    assert "Question: Is it better together?" in lines
    for method in ("solo", "fedavg", "fedprox"):
        assert any(line.startswith(f"{method} ") for line in lines)
    assert (out / "report.html").stat().st_size > 100_000
    assert f"The report is in {out / 'report.html'}" in lines
    assert len(written(out)) == 3 + 2 * 2 + 2 * RACE

    progress = first.err.splitlines()
    progress = [line for line in progress if "advice: " not in line]
    following = [re.search(r": ([^:;]*), round.*; next: (.*)", line) for line in progress]
    pairs = list(dict.fromkeys(match.groups() for match in following if match))
    assert pairs[:3] == [("solo", "fedavg"), ("fedavg", "fedprox"), ("fedprox", "advice")]
    assert pairs[3] == ("solo, fold 1 of 2", "fedavg, fold 1 of 2")
    assert pairs[-1] == ("fedavg, fold 2 of 2", "advice")

    before = written(out)
    again = succeed("demo", "--out", out)
    assert f"The runs in {out} are finished, and are shown again." in again.out
    assert written(out) == before
    assert again.out.splitlines()[1:] == lines


@pytest.mark.usefixtures("tiny")
def test_progress_of_the_advice(tmp_path: Path) -> None:
    """It has the number of the run, what comes next, and the time left."""
    progress = succeed("demo", "--out", tmp_path / "demo").err.splitlines()
    lines = [line for line in progress if "advice: " in line]
    runs = 2 * 3  # half of the rounds, all of them, and the second fold, for two methods each
    assert {f"run {k} of {runs}" for k in range(1, runs + 1)} == {
        re.split("[,:]", line)[0] for line in lines
    }
    nexts = list(dict.fromkeys(line.partition("; next: ")[2] for line in lines))
    assert nexts == ["advice, all rounds", "advice, fold 2 of 2", "Another federation", "the page"]
    assert any(re.search(r"fedavg, fold 1, half of the rounds, round 1 of 1; ", x) for x in lines)
    last = ": plain models on tables, and intervals; next: "
    last_lines = [line for line in progress if last in line]
    assert [line.partition(last)[2] for line in last_lines] == [
        "advice", "Another federation", "advice", "the page",
    ]  # fmt: skip
    assert last_lines[0].startswith("all 3 runs are finished")
    lines_with_time = [
        line for line in lines if re.search(r", about [1-9]\d* s left: advice: ", line)
    ]
    assert lines_with_time


def test_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the work took 10 seconds, so the other half takes 10: a run of double cost."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = demo.RunsProgress([("a", 1.0), ("b", 1.0), ("c", 2.0), ("d", 2.0)], "end", 1)
    assert progress.share == pytest.approx(1 / 6)
    run = progress("b")
    progress.update(run, 0, 4, 0.0)
    assert progress.seconds_left() is None
    now[0] = 2.0
    progress.update(run, 4, 4, 1.0)
    assert progress.seconds_left() == pytest.approx(8.0)  # the run that was finished before is free
    progress("c")
    now[0] = 6.0
    progress("d")
    assert progress.share == pytest.approx(4 / 6)
    assert progress.seconds_left() == pytest.approx(4.0)


def advice_of(low: float, high: float) -> Any:
    gain = Estimate((low + high) / 2, low, high)
    return SimpleNamespace(verdict=SimpleNamespace(gain=gain))


def findings_of(method: str, low: float, high: float) -> Any:
    gain = Estimate((low + high) / 2, low, high)
    row = SimpleNamespace(algorithm=method, gain=gain)
    return SimpleNamespace(overall=SimpleNamespace(method=method), rows=[row])


@pytest.mark.parametrize(
    ("answer", "advice", "reason"),
    [
        ((0.01, 0.05), (0.01, 0.05), None),
        ((0.01, 0.05), (-0.01, 0.05), "includes zero"),
        ((-0.01, 0.05), (0.01, 0.05), "includes zero"),
        ((0.01, 0.05), (-0.05, -0.01), "contradict each other"),
    ],
)
def test_advice_that_differs_from_the_answer_says_why(
    answer: tuple[float, float], advice: tuple[float, float], reason: str | None
) -> None:
    federation = demo.FEDERATIONS[1]
    for method in ("fedavg", "fedufo"):
        text = demo.explain_advice(federation, findings_of(method, *answer), advice_of(*advice))
        assert "the first of 4 folds" in text
        assert "on the other 3" in text
        assert ("fedufo was left out to save time" in text) == (method == "fedufo")
        for phrase in ("includes zero", "contradict each other"):
            assert (phrase in text) == (phrase == reason)


def test_gains_are_over_own_models_where_there_are_any(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On tables, gains are over each party's own model, and their column is shown."""
    hospitals = demo.DemoFederation(
        "1-one",
        "Hospitals",
        "?",
        ("fedavg",),
        {"data": "heart", "rounds": 1, "model": "linear", "engine": "loop"},
        candidates=("fedavg",),
        advice_folds=2,
    )
    monkeypatch.setattr(demo, "FEDERATIONS", (hospitals,))
    lines = succeed("demo", "--out", tmp_path / "demo").out.splitlines()
    (head,) = [line for line in lines if line.startswith("method ")]
    (row,) = [line for line in lines if line.startswith("fedavg ")]
    assert "over own model" in head
    assert "over SOLO" not in head
    assert re.search(r"[+-]\d+\.\d \(±\d+\.\d\)", row)


def test_a_long_command_can_be_copied_from_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(screen, "out", screen.Screen(file=text, force_terminal=True, width=40))
    words = [
        "comity",
        "run",
        "fedavg",
        "--data",
        "my data",
        "--model",
        "cnn(width=0.5)",
        "--lr",
        "1",
    ]
    demo.print_command(shlex.join(words))
    lines = ESCAPE.sub("", text.getvalue()).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 40
    script = "printf '%s\\n' " + "\n".join(lines)
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert shell.stdout.splitlines() == words


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_has_colours_and_whole_words(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.StringIO()
    console = screen.Screen(file=text, force_terminal=True, width=columns, color_system="256")
    errors = screen.Screen(
        file=text, force_terminal=True, width=columns, color_system="256", stderr=True
    )
    errors.file = text
    monkeypatch.setattr(screen, "out", console)
    monkeypatch.setattr(screen, "err", errors)
    monkeypatch.chdir(tmp_path)
    succeed("demo")
    output = text.getvalue()
    assert "\x1b[1m" in output
    shown = frames(output)
    assert max(map(len, shown)) <= columns
    assert any("; next: fedavg" in line for line in shown)
    monkeypatch.setattr(screen, "out", screen.Screen(file=(piped := io.StringIO()), width=80))
    succeed("demo")
    plain = set(re.split(r"\s+", piped.getvalue().replace(":", "")))
    sentences = [line for line in shown if re.match(r"(Question|Answer|Evidence| {10})", line)]
    words = {word for line in sentences for word in line.replace(":", "").split()}
    assert sentences
    assert words <= plain | {"Question", "Answer", "Evidence"}, words - plain


@pytest.mark.usefixtures("tiny")
def test_ctrl_c_in_the_middle_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "demo"
    show_round = demo._RunProgress.round

    def interrupt(self: demo._RunProgress, t: int, figure: float | None, ledger: Ledger) -> None:
        show_round(self, t, figure, ledger)
        if self.place == 2 and t == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo._RunProgress, "round", interrupt)
        stopped = comity("demo", "--out", out, "--rounds", "3")
    assert stopped.code == 130
    assert stopped.err.splitlines()[-1] == (
        f"comity: Stopped; resume from the last checkpoint with: comity demo --out {out} --rounds 3"
    )
    finished = written(out)
    assert [path.parts[-3] for path in sorted(finished)] == ["fedavg", "solo"]
    succeed("demo", "--out", out, "--rounds", "3")
    assert {path: when for path, when in written(out).items() if path in finished} == finished
    assert len(written(out)) == 7 + 2 * RACE


@pytest.mark.usefixtures("tiny")
def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine", encoding="utf-8")
    message = one_sentence(comity("demo", "--out", tmp_path), 2)
    assert "has files that are not of a demo: choose another folder" in message
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "mine"
    message = one_sentence(comity("demo", "--out", tmp_path / "report.html"), 2)
    assert "is a file: choose a folder" in message


@pytest.mark.usefixtures("tiny")
def test_other_settings_than_before_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    succeed("demo", "--out", out)
    assert str(out) in complaint(comity("demo", "--out", out, "--rounds", "3"), 2)


@pytest.mark.parametrize("federation", demo.FEDERATIONS, ids=lambda f: f.folder)
def test_the_settings_of_the_demo_are_valid(federation: demo.DemoFederation) -> None:
    base = experiment(federation.settings)
    for method in (SOLO, *federation.methods):
        experiment_of(base, method, 0)
    assert len(federation.seeds) == federation.folds
    statistics = [m for m in federation.methods if "bn" in m]
    assert ("fedbn" in base.model) == bool(statistics), "both readings of BatchNorm are compared"
