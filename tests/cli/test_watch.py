"""comity watch: what it shows is what the files say, whatever state they are in; runs do not notice
that they are watched.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from harness import (
    SMALL,
    Child,
    Nursery,
    comity,
    contents,
    frames,
    on_terminal,
    one_sentence,
    rows,
    summary,
    works,
)
from rich.console import Console

from comity.cli import watch
from comity.cli.run_monitor import FolderMonitor, RunMonitor
from comity.errors import ComityError
from comity.runs import tables
from comity.runs.folder import RunFolder
from comity.units import size

LONG = (
    "--parties",
    "4",
    "--rounds",
    "2000",
    "--model",
    "linear",
    "--partition",
    "iid",
    "--engine",
    "loop",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched") / "run"
    works("run", "fedavg", *SMALL, "--rounds", "4", "--eval-every", "2", "--out", folder)
    return folder


def until(true: object, seconds: float = 30) -> None:
    """Wait until it is true."""
    assert callable(true)
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never was"
        time.sleep(0.01)


def followed(folder: Path) -> RunMonitor:
    made = RunMonitor(folder)
    made.update()
    return made


# --- A finished run ---------------------------------------------------------------------------------------------------


def test_a_finished_run(run: Path) -> None:
    ended = works("watch", run)
    got, shown = summary(run), ended.out
    accuracy, timing = got["accuracy"], rows(run / "timing.csv")
    assert shown.startswith("fedavg on digits, iid, 3 parties, seed 0\nfinished: 4 rounds in ")
    assert f"accuracy {accuracy['mean']:.1%} after round 4" in shown
    assert (
        f"the highest was {accuracy['best_on_test']['mean']:.1%} after round"
        f" {accuracy['best_on_test']['round']}" in shown
    )
    low, high = accuracy["worst_party"], accuracy["best_party"]
    assert (
        f"worst party {low} {accuracy['per_party'][low]:.1%}, best party {high}"
        f" {accuracy['per_party'][high]:.1%}" in shown
    )
    assert f"up {size(got['bytes']['up'])}, down {size(got['bytes']['down'])}, peer 0 B" in shown
    assert f"peak memory {size(max(int(row['memory']) for row in timing))}" in shown
    assert "mean accuracy" in shown
    assert shown == works("watch", run, "--once").out
    assert ended.err == ""


def test_all_figures_of_a_run(run: Path) -> None:
    found, got = followed(run), summary(run)
    test = [
        row
        for row in rows(run / "metrics.csv")
        if (row["split"], row["metric"]) == ("test", "accuracy")
    ]
    assert found.curve == pytest.approx(
        {
            t: sum(float(row["value"]) for row in test if row["round"] == str(t)) / 3
            for t in (0, 2, 4)
        }
    )
    assert found.party_figures == got["accuracy"]["per_party"]
    assert {kind: found.bytes[kind] for kind in ("up", "down", "peer", "setup", "eval")} == {
        kind: n for kind, n in got["bytes"].items() if kind != "total"
    }
    assert (found.state, found.last_round, found.rounds, found.seconds_left) == (
        "finished",
        4,
        4,
        None,
    )
    timing = [
        sum(float(row[c]) for c in ("train", "evaluate", "checkpoint"))
        for row in rows(run / "timing.csv")[1:]
    ]
    assert found.seconds_per_round == pytest.approx(sum(timing) / 4)


def test_a_folder_of_runs(tmp_path: Path) -> None:
    works("compare", "fedavg", *SMALL, "--seeds", "2,10", "--out", tmp_path / "deep" / "compared")
    (tmp_path / "deep" / "config.toml").write_text("not = 'a run'", encoding="utf-8")
    shown = works("watch", tmp_path).out.splitlines()
    heads = shown[0].split()
    assert heads == ["run", "state", "round", "accuracy", "worst", "sent", "per", "round"]
    names = [
        f"deep/compared/{method}/seed-{seed}" for method in ("fedavg", "solo") for seed in (2, 10)
    ]
    assert [line.split()[0] for line in shown[1:5]] == names
    for name, line in zip(names, shown[1:5], strict=True):
        got = summary(tmp_path / name)
        worst = got["accuracy"]["per_party"][got["accuracy"]["worst_party"]]
        assert line.split()[1:5] == [
            "finished",
            "2/2",
            f"{got['accuracy']['mean']:.1%}",
            f"{worst:.1%}",
        ]
        assert f" {size(got['bytes']['total'])} " in line
    assert "mean accuracy" in shown
    assert all(
        f"{mark} {name}" in "\n".join(shown) for mark, name in zip("*o+x", names, strict=True)
    )


def test_nothing_to_watch(tmp_path: Path) -> None:
    assert "holds no run" in one_sentence(comity("watch", tmp_path), 2)
    assert "holds no run" in one_sentence(comity("watch", tmp_path / "nowhere", "--once"), 2)


# --- Files that are being written -------------------------------------------------------------------------------------


class Table:
    """A file that a test writes, and what a growing table hands on of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.times = path, 0
        self.rows: list[list[str]] = []
        self.tail = tables.Growing(
            tables.Table(path.name, ("number", "word"), list),
            path.parent,
            self.rows.append,
            self.forget,
        )

    def forget(self) -> None:
        self.rows.clear()
        self.times += 1

    def add(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table.csv")


def test_a_half_written_line_waits(table: Table) -> None:
    table.tail.look()
    assert table.rows == []
    table.add('1,a\n2,"b,c"\n3,')
    table.tail.look()
    assert table.rows == [["1", "a"], ["2", "b,c"]]
    table.add("grün")
    table.tail.look()
    assert len(table.rows) == 2
    table.add("\n")
    table.tail.look()
    assert table.rows[2:] == [["3", "grün"]]
    assert table.times == 0


def test_what_was_read_is_not_read_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.add("".join(f"{k},x\n" for k in range(100_000)))
    table.tail.look()
    assert len(table.rows) == 100_000
    table.rows.clear()
    table.add("new,x\n")
    before = Path("/proc/self/io").read_text(encoding="ascii")
    table.tail.look()
    after = Path("/proc/self/io").read_text(encoding="ascii")
    read = [int(re.findall(r"rchar: (\d+)", text)[0]) for text in (before, after)]
    assert table.rows == [["new", "x"]]
    assert read[1] - read[0] < 50_000


def test_blocks_are_put_together(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comity.runs.tables.BLOCK", 7)
    text = "".join(f"{k},{'ü' * (k % 9)}\n" for k in range(50))
    table.add(text + "half")
    table.tail.look()
    assert table.rows == [line.split(",") for line in text.splitlines()]


def test_a_file_that_is_cut_back_is_read_again(table: Table) -> None:
    table.add("1,a\n2,b\n3,c\n")
    table.tail.look()
    os.truncate(table.path, 4)
    table.tail.look()
    assert (table.rows, table.times) == ([["1", "a"]], 1)
    table.add("2,b\n3,d\n")
    table.tail.look()
    assert (table.rows, table.times) == ([["1", "a"], ["2", "b"], ["3", "d"]], 1)
    os.truncate(table.path, 4)
    table.add("2,other\n3,other\n4,other\n")  # longer than it was before anybody looked
    table.tail.look()
    assert (table.rows[1:], table.times) == ([[str(k), "other"] for k in (2, 3, 4)], 2)
    table.path.unlink()
    table.tail.look()
    assert (table.rows, table.times) == ([], 3)


def test_damaged_rows_are_passed_over(run: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "env.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    (tmp_path / "metrics.csv").write_bytes(
        b"round,party\n0,a,test,accuracy,0.5\n0,b,test,acc\n\xff\xfe\n0,c,test,accuracy,x\n"
    )
    (tmp_path / "ledger.csv").write_bytes(b"0,work,a,server,up,12\n0,work,a,server,up\n")
    (tmp_path / "timing.csv").write_bytes(b"round,train\n0,1,1,1,5\n")
    (tmp_path / "summary.json").write_text("{", encoding="utf-8")
    found = followed(tmp_path)
    assert (found.state, found.curve, found.bytes["up"], found.memory) == (
        "finished",
        {0: 0.5},
        12,
        5,
    )
    assert "damaged: " in works("watch", tmp_path).out, (
        "and no advice to go on with what cannot be read"
    )


def test_a_round_counts_when_it_is_whole(tmp_path: Path) -> None:
    """Rows of metrics.csv may be there in part: the mean of some parties is nobody's accuracy."""
    (tmp_path / "metrics.csv").write_text(
        "0,a,test,accuracy,0.2\n0,b,test,accuracy,0.4\n1,a,test,accuracy,1\n", encoding="utf-8"
    )
    (tmp_path / "timing.csv").write_text("0,1,1,1,5\n", encoding="utf-8")
    found = followed(tmp_path)
    assert found.curve == pytest.approx({0: 0.3})
    assert found.party_figures == {"a": 0.2, "b": 0.4}
    with (tmp_path / "metrics.csv").open("a", encoding="utf-8") as file:
        file.write("1,b,test,accuracy,0.5\n")
    with (tmp_path / "timing.csv").open("a", encoding="utf-8") as file:
        file.write("1,1,1,1,5\n")
    found.update()
    assert found.curve == pytest.approx({0: 0.3, 1: 0.75})
    assert found.party_figures == {"a": 1.0, "b": 0.5}


@pytest.mark.parametrize(
    "missing", ["metrics.csv", "ledger.csv", "timing.csv", "summary.json", ".lock", "split.json"]
)
def test_any_file_may_be_missing(missing: str, run: Path, tmp_path: Path) -> None:
    for path in run.iterdir():
        if path.is_file() and path.name != missing:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    shown = works("watch", tmp_path).out
    assert shown.startswith("fedavg on digits")
    assert ("stopped: round 4 of 4" in shown) == (missing == "summary.json")


def test_a_run_that_is_only_beginning(run: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "env.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    assert "stopped: round 0 of 4; resume with" in works("watch", tmp_path).out
    with RunFolder(tmp_path).locked():
        assert works("watch", tmp_path).out.splitlines()[1] == "running: round 0 of 4"


# --- The lock ---------------------------------------------------------------------------------------------------------


def test_held(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path).is_locked()
    with RunFolder(tmp_path).locked():
        assert RunFolder(tmp_path).is_locked()
        with pytest.raises(ComityError, match="Another process"), RunFolder(tmp_path).locked():
            pass
    assert not RunFolder(tmp_path).is_locked()
    assert not RunFolder(tmp_path / "nowhere").is_locked()


def test_a_glance_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    """Whoever looks at the lock holds it for an instant."""
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with RunFolder(tmp_path).locked():
            assert RunFolder(tmp_path).is_locked()


# --- While it runs ----------------------------------------------------------------------------------------------------


def test_running_killed_resumed(nursery: Nursery, tmp_path: Path) -> None:
    """One pair of eyes sees it all: running, stopped with the command to go on, cut back, and
    running again.
    """
    folder = tmp_path / "a run"
    child = nursery.start(
        "run", "fedavg", *LONG, "--out", folder, env={"COMITY_CHECKPOINT_SECONDS": "0.1"}
    )
    known = FolderMonitor(tmp_path)
    until(lambda: (folder / "timing.csv").is_file() and len(rows(folder / "timing.csv")) > 30)
    (found,) = known.find_runs()
    found.update()
    assert found.state == "running"
    assert found.seconds_left is not None
    assert found.seconds_left > 0
    assert 30 <= found.last_round < 2000
    child.signal(signal.SIGKILL)
    child.wait()
    found.update()
    assert found.state == "stopped"
    assert (
        "".join(text.plain for text in watch.describe_run(found)).count(
            f"resume with: comity resume '{folder}'"
        )
        == 1
    )
    killed_at = found.last_round
    again = nursery.start("resume", folder, env={"COMITY_CHECKPOINT_SECONDS": "0.1"})
    until(
        lambda: (found.update(), found.state == "running" and found.last_round > killed_at + 10)[1]
    )
    again.signal(signal.SIGINT)
    again.wait()
    found.update()
    new = followed(folder)
    assert (found.curve, found.bytes, found.party_figures) == (
        new.curve,
        new.bytes,
        new.party_figures,
    )
    assert found.last_round == new.last_round
    assert known.find_runs() == [found]


def test_watching_changes_nothing(nursery: Nursery, tmp_path: Path) -> None:
    settings = ("run", "fedavg", *SMALL, "--rounds", "20", "--out")
    child = nursery.start(*settings, tmp_path / "watched")
    found = RunMonitor(tmp_path / "watched")
    until(lambda: (found.update(), child.poll() is not None)[1])
    nursery.run(*settings, tmp_path / "alone")
    assert child.code == 0
    assert contents(tmp_path / "watched") == contents(tmp_path / "alone")


def test_live_from_before_the_beginning_to_ctrl_c(nursery: Nursery, tmp_path: Path) -> None:
    """Nothing is there at first; then a run appears, goes on, and is shown until Ctrl-C ends the
    watching alone.
    """
    running: list[Child] = []

    def act(watcher: Child, shown: str) -> None:
        if not running and "Waiting for a run" in shown:
            running.append(
                nursery.start("run", "fedavg", *LONG, "--out", tmp_path / "runs" / "one")
            )
        numbers = {int(found) for found in re.findall(r"running.*?: round (\d+) of 2000", shown)}
        if len(numbers) > 2:
            watcher.signal(signal.SIGINT)  # more than once, as impatient people do

    code, shown = on_terminal(nursery, "watch", tmp_path / "runs", seen=act, columns=100)
    assert code == 0
    assert running[0].poll() is None, "the run ended, too"
    running[0].signal(signal.SIGKILL)
    running[0].wait()
    seen = frames(shown)
    assert any(re.match(r"one +[\d.]+ (s|min) left +\d+/2000", line) for line in seen)
    assert any(
        re.match(r"running: round \d+ of 2000, \S+ s per round, [\d.]+ (s|min) left", line)
        for line in seen
    )
    assert any(0x2800 < ord(sign) < 0x2900 for sign in shown)
    assert "Traceback" not in shown
    assert "comity: " not in shown
    assert shown.endswith("\x1b[?25h"), "the cursor stays hidden"


def test_live_ends_with_the_run(run: Path, nursery: Nursery) -> None:
    code, shown = on_terminal(nursery, "watch", run)
    assert code == 0
    assert any(line.startswith("finished: 4 rounds") for line in frames(shown))


def test_ctrl_c_before_there_is_anything(nursery: Nursery, tmp_path: Path) -> None:
    def act(watcher: Child, shown: str) -> None:
        if "Waiting" in shown:
            watcher.signal(signal.SIGINT)

    code, shown = on_terminal(nursery, "watch", tmp_path / "later", columns=200, seen=act)
    assert code == 0
    assert frames(shown)[-1].startswith("Waiting for a run in")


def test_many_runs_fit_the_screen(run: Path, tmp_path: Path) -> None:
    for k in range(40):
        shutil.copytree(run, tmp_path / f"run-{k}")
    (tmp_path / "run-30" / "summary.json").unlink()
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    for part in watch.view(FolderMonitor(tmp_path).find_runs(), tmp_path, console, max_lines=24):
        console.print(part)
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(shown) <= 24
    assert any("run-30" in line and "stopped" in line for line in shown)
    assert any(re.search(r"and \d\d more", line) for line in shown)
    assert len(works("watch", tmp_path).out.splitlines()) > 40


def test_long_names(run: Path, tmp_path: Path) -> None:
    """In full for programs; for people their ends, since that is where they differ."""
    names = [f"{'long-' * 30}{k}" for k in range(2)]
    for name in names:
        (tmp_path / name).mkdir()
        for file in run.iterdir():
            if file.is_file():
                (tmp_path / name / file.name).write_bytes(file.read_bytes())
    assert [line.split()[0] for line in works("watch", tmp_path).out.splitlines()[1:3]] == names
    console = Console(file=io.StringIO(), width=80, height=24)
    for part in watch.view(FolderMonitor(tmp_path).find_runs(), tmp_path, console, max_lines=24):
        console.print(part)
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= 80 for line in shown)
    assert [line.split()[0][-6:] for line in shown[1:3]] == ["long-0", "long-1"]
