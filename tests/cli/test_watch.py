"""`comity watch` shows the content of a run's files in any state, and does not affect the run."""

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
    succeed,
    summary,
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
    succeed("run", "fedavg", *SMALL, "--rounds", "4", "--eval-every", "2", "--out", folder)
    return folder


def until(true: object, seconds: float = 30) -> None:
    """Wait until `true()` is true."""
    assert callable(true)
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"still false after {seconds} s"
        time.sleep(0.01)


def updated_monitor(folder: Path) -> RunMonitor:
    monitor = RunMonitor(folder)
    monitor.update()
    return monitor


# --- A finished run ---------------------------------------------------------------------------------------------------


def test_a_finished_run(run: Path) -> None:
    result = succeed("watch", run)
    run_summary, output = summary(run), result.out
    accuracy, timing = run_summary["accuracy"], rows(run / "timing.csv")
    assert output.startswith("fedavg on digits, iid, 3 parties, seed 0\nfinished: 4 rounds in ")
    assert f"accuracy {accuracy['mean']:.1%} after round 4" in output
    assert (
        f"the highest was {accuracy['best_on_test']['mean']:.1%} after round"
        f" {accuracy['best_on_test']['round']}" in output
    )
    low, high = accuracy["worst_party"], accuracy["best_party"]
    assert (
        f"worst party {low} {accuracy['per_party'][low]:.1%}, best party {high}"
        f" {accuracy['per_party'][high]:.1%}" in output
    )
    assert (
        f"up {size(run_summary['bytes']['up'])}, down {size(run_summary['bytes']['down'])}, peer 0 B"
        in output
    )
    assert f"peak memory {size(max(int(row['memory']) for row in timing))}" in output
    assert "mean accuracy" in output
    assert output == succeed("watch", run, "--once").out
    assert result.err == ""


def test_all_figures_of_a_run(run: Path) -> None:
    monitor, run_summary = updated_monitor(run), summary(run)
    test = [
        row
        for row in rows(run / "metrics.csv")
        if (row["split"], row["metric"]) == ("test", "accuracy")
    ]
    assert monitor.curve == pytest.approx(
        {
            t: sum(float(row["value"]) for row in test if row["round"] == str(t)) / 3
            for t in (0, 2, 4)
        }
    )
    assert monitor.party_figures == run_summary["accuracy"]["per_party"]
    assert {kind: monitor.bytes[kind] for kind in ("up", "down", "peer", "setup", "eval")} == {
        kind: n for kind, n in run_summary["bytes"].items() if kind != "total"
    }
    assert (monitor.state, monitor.last_round, monitor.rounds, monitor.seconds_left) == (
        "finished",
        4,
        4,
        None,
    )
    timing = [
        sum(float(row[c]) for c in ("train", "evaluate", "checkpoint"))
        for row in rows(run / "timing.csv")[1:]
    ]
    assert monitor.seconds_per_round == pytest.approx(sum(timing) / 4)


def test_a_folder_of_runs(tmp_path: Path) -> None:
    succeed("compare", "fedavg", *SMALL, "--seeds", "2,10", "--out", tmp_path / "deep" / "compared")
    (tmp_path / "deep" / "config.toml").write_text("not = 'a run'", encoding="utf-8")
    output = succeed("watch", tmp_path).out.splitlines()
    heads = output[0].split()
    assert heads == ["run", "state", "round", "accuracy", "worst", "sent", "per", "round"]
    names = [
        f"deep/compared/{method}/seed-{seed}" for method in ("fedavg", "solo") for seed in (2, 10)
    ]
    assert [line.split()[0] for line in output[1:5]] == names
    for name, line in zip(names, output[1:5], strict=True):
        run_summary = summary(tmp_path / name)
        worst = run_summary["accuracy"]["per_party"][run_summary["accuracy"]["worst_party"]]
        assert line.split()[1:5] == [
            "finished",
            "2/2",
            f"{run_summary['accuracy']['mean']:.1%}",
            f"{worst:.1%}",
        ]
        assert f" {size(run_summary['bytes']['total'])} " in line
    assert "mean accuracy" in output
    assert all(
        f"{mark} {name}" in "\n".join(output) for mark, name in zip("*o+x", names, strict=True)
    )


def test_nothing_to_watch(tmp_path: Path) -> None:
    assert "holds no run" in one_sentence(comity("watch", tmp_path), 2)
    assert "holds no run" in one_sentence(comity("watch", tmp_path / "nowhere", "--once"), 2)


# --- Files that are being written -------------------------------------------------------------------------------------


class Table:
    """A file that a test writes, and the rows that `tables.Growing` reads from it."""

    def __init__(self, path: Path) -> None:
        self.path, self.times = path, 0
        self.rows: list[list[str]] = []
        self.tail = tables.Growing(
            tables.RunTable(path.name, ("number", "word"), list),
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


def test_only_new_rows_are_read(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.add("".join(f"{k},x\n" for k in range(100_000)))
    table.tail.look()
    assert len(table.rows) == 100_000
    table.rows.clear()
    table.add("new,x\n")
    before = Path("/proc/self/io").read_text(encoding="ascii")
    table.tail.look()
    after = Path("/proc/self/io").read_text(encoding="ascii")
    bytes_read = [int(re.findall(r"rchar: (\d+)", text)[0]) for text in (before, after)]
    assert table.rows == [["new", "x"]]
    assert bytes_read[1] - bytes_read[0] < 50_000


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
    table.add("2,other\n3,other\n4,other\n")  # longer than it was at the last look
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
    monitor = updated_monitor(tmp_path)
    assert (monitor.state, monitor.curve, monitor.bytes["up"], monitor.memory) == (
        "finished",
        {0: 0.5},
        12,
        5,
    )
    assert "damaged: " in succeed("watch", tmp_path).out, "it advises to resume a damaged run"


def test_incomplete_round_is_not_shown(tmp_path: Path) -> None:
    """metrics.csv may have a part of a round's rows; the mean of some parties is not shown."""
    (tmp_path / "metrics.csv").write_text(
        "0,a,test,accuracy,0.2\n0,b,test,accuracy,0.4\n1,a,test,accuracy,1\n", encoding="utf-8"
    )
    (tmp_path / "timing.csv").write_text("0,1,1,1,5\n", encoding="utf-8")
    monitor = updated_monitor(tmp_path)
    assert monitor.curve == pytest.approx({0: 0.3})
    assert monitor.party_figures == {"a": 0.2, "b": 0.4}
    with (tmp_path / "metrics.csv").open("a", encoding="utf-8") as file:
        file.write("1,b,test,accuracy,0.5\n")
    with (tmp_path / "timing.csv").open("a", encoding="utf-8") as file:
        file.write("1,1,1,1,5\n")
    monitor.update()
    assert monitor.curve == pytest.approx({0: 0.3, 1: 0.75})
    assert monitor.party_figures == {"a": 1.0, "b": 0.5}


@pytest.mark.parametrize(
    "missing", ["metrics.csv", "ledger.csv", "timing.csv", "summary.json", ".lock", "split.json"]
)
def test_any_file_may_be_missing(missing: str, run: Path, tmp_path: Path) -> None:
    for path in run.iterdir():
        if path.is_file() and path.name != missing:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    output = succeed("watch", tmp_path).out
    assert output.startswith("fedavg on digits")
    assert ("stopped: round 4 of 4" in output) == (missing == "summary.json")


def test_a_run_that_is_only_beginning(run: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "env.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    assert "stopped: round 0 of 4; resume with" in succeed("watch", tmp_path).out
    with RunFolder(tmp_path).locked():
        assert succeed("watch", tmp_path).out.splitlines()[1] == "running: round 0 of 4"


# --- The lock ---------------------------------------------------------------------------------------------------------


def test_run_folder_lock(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path).is_locked()
    with RunFolder(tmp_path).locked():
        assert RunFolder(tmp_path).is_locked()
        with pytest.raises(ComityError, match="Another process"), RunFolder(tmp_path).locked():
            pass
    assert not RunFolder(tmp_path).is_locked()
    assert not RunFolder(tmp_path / "nowhere").is_locked()


def test_brief_shared_lock_does_not_stop_a_run_from_starting(tmp_path: Path) -> None:
    """A process that checks the lock holds it for an instant."""
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with RunFolder(tmp_path).locked():
            assert RunFolder(tmp_path).is_locked()


# --- While it runs ----------------------------------------------------------------------------------------------------


def test_running_killed_resumed(nursery: Nursery, tmp_path: Path) -> None:
    """One monitor shows all states: running, stopped with the command to resume, cut back, and
    running again.
    """
    folder = tmp_path / "a run"
    child = nursery.start(
        "run", "fedavg", *LONG, "--out", folder, env={"COMITY_CHECKPOINT_SECONDS": "0.1"}
    )
    folder_monitor = FolderMonitor(tmp_path)
    until(lambda: (folder / "timing.csv").is_file() and len(rows(folder / "timing.csv")) > 30)
    (monitor,) = folder_monitor.find_runs()
    monitor.update()
    assert monitor.state == "running"
    assert monitor.seconds_left is not None
    assert monitor.seconds_left > 0
    assert 30 <= monitor.last_round < 2000
    child.signal(signal.SIGKILL)
    child.wait()
    monitor.update()
    assert monitor.state == "stopped"
    assert (
        "".join(text.plain for text in watch.describe_run(monitor)).count(
            f"resume with: comity resume '{folder}'"
        )
        == 1
    )
    killed_at = monitor.last_round
    again = nursery.start("resume", folder, env={"COMITY_CHECKPOINT_SECONDS": "0.1"})
    until(
        lambda: (
            monitor.update(),
            monitor.state == "running" and monitor.last_round > killed_at + 10,
        )[1]
    )
    again.signal(signal.SIGINT)
    again.wait()
    monitor.update()
    new = updated_monitor(folder)
    assert (monitor.curve, monitor.bytes, monitor.party_figures) == (
        new.curve,
        new.bytes,
        new.party_figures,
    )
    assert monitor.last_round == new.last_round
    assert folder_monitor.find_runs() == [monitor]


def test_watching_changes_nothing(nursery: Nursery, tmp_path: Path) -> None:
    settings = ("run", "fedavg", *SMALL, "--rounds", "20", "--out")
    child = nursery.start(*settings, tmp_path / "watched")
    monitor = RunMonitor(tmp_path / "watched")
    until(lambda: (monitor.update(), child.poll() is not None)[1])
    nursery.run(*settings, tmp_path / "alone")
    assert child.code == 0
    assert contents(tmp_path / "watched") == contents(tmp_path / "alone")


def test_live_from_before_the_beginning_to_ctrl_c(nursery: Nursery, tmp_path: Path) -> None:
    """The folder is empty at first; then a run appears and is shown until Ctrl-C, which ends only
    `watch`.
    """
    running: list[Child] = []

    def act(watcher: Child, output: str) -> None:
        if not running and "Waiting for a run" in output:
            running.append(
                nursery.start("run", "fedavg", *LONG, "--out", tmp_path / "runs" / "one")
            )
        numbers = {int(number) for number in re.findall(r"running.*?: round (\d+) of 2000", output)}
        if len(numbers) > 2:
            watcher.signal(signal.SIGINT)  # more than once

    code, output = on_terminal(nursery, "watch", tmp_path / "runs", on_output=act, columns=100)
    assert code == 0
    assert running[0].poll() is None, "the run ended, too"
    running[0].signal(signal.SIGKILL)
    running[0].wait()
    lines = frames(output)
    assert any(re.match(r"one +[\d.]+ (s|min) left +\d+/2000", line) for line in lines)
    assert any(
        re.match(r"running: round \d+ of 2000, \S+ s per round, [\d.]+ (s|min) left", line)
        for line in lines
    )
    assert any(0x2800 < ord(sign) < 0x2900 for sign in output)
    assert "Traceback" not in output
    assert "comity: " not in output
    assert output.endswith("\x1b[?25h"), "the cursor stays hidden"


def test_live_ends_with_the_run(run: Path, nursery: Nursery) -> None:
    code, output = on_terminal(nursery, "watch", run)
    assert code == 0
    assert any(line.startswith("finished: 4 rounds") for line in frames(output))


def test_ctrl_c_before_the_first_run(nursery: Nursery, tmp_path: Path) -> None:
    def act(watcher: Child, output: str) -> None:
        if "Waiting" in output:
            watcher.signal(signal.SIGINT)

    code, output = on_terminal(nursery, "watch", tmp_path / "later", columns=200, on_output=act)
    assert code == 0
    assert frames(output)[-1].startswith("Waiting for a run in")


def test_many_runs_fit_the_screen(run: Path, tmp_path: Path) -> None:
    for k in range(40):
        shutil.copytree(run, tmp_path / f"run-{k}")
    (tmp_path / "run-30" / "summary.json").unlink()
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    for part in watch.view(FolderMonitor(tmp_path).find_runs(), tmp_path, console, max_lines=24):
        console.print(part)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= 24
    assert any("run-30" in line and "stopped" in line for line in lines)
    assert any(re.search(r"and \d\d more", line) for line in lines)
    assert len(succeed("watch", tmp_path).out.splitlines()) > 40


def test_long_names(run: Path, tmp_path: Path) -> None:
    """In full without a terminal; on a terminal only their ends, where they differ."""
    names = [f"{'long-' * 30}{k}" for k in range(2)]
    for name in names:
        (tmp_path / name).mkdir()
        for file in run.iterdir():
            if file.is_file():
                (tmp_path / name / file.name).write_bytes(file.read_bytes())
    assert [line.split()[0] for line in succeed("watch", tmp_path).out.splitlines()[1:3]] == names
    console = Console(file=io.StringIO(), width=80, height=24)
    for part in watch.view(FolderMonitor(tmp_path).find_runs(), tmp_path, console, max_lines=24):
        console.print(part)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[0][-6:] for line in lines[1:3]] == ["long-0", "long-1"]
