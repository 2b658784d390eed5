"""`comity demo`: each federation ends with a question, an answer, the evidence and the advice."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
from harness import comity, complaint, frames, one_sentence, succeed

from comity.cli import demo, screen
from comity.names import SOLO
from comity.runs.config import experiment
from comity.studies.compare import experiment_of

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
    monkeypatch.setattr(demo.FederationProgress, "line_interval", 0.0)
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
    following = [re.search(r": ([^:;]*), round.*; next: (.*)", line) for line in progress]
    pairs = list(dict.fromkeys(match.groups() for match in following if match))
    assert pairs[:3] == [
        ("solo", "fedavg"), ("fedavg", "fedprox"), ("fedprox", "Another federation"),
    ]  # fmt: skip
    assert pairs[3] == ("solo, fold 1 of 2", "fedavg, fold 1 of 2")
    assert pairs[-1] == ("fedavg, fold 2 of 2", "the page")

    before = written(out)
    again = succeed("demo", "--out", out)
    assert f"The runs in {out} are finished, and are shown again." in again.out
    assert written(out) == before
    assert again.out.splitlines()[1:] == lines


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
    update = demo.FederationProgress.update

    def interrupt(self: demo.FederationProgress, t: int, rounds: int) -> None:
        update(self, t, rounds)
        if self._number == 3 and t == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo.FederationProgress, "update", interrupt)
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
