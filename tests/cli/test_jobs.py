"""`--jobs`: concurrent runs leave the same files as sequential ones, also after a kill, and share
one display.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from harness import (
    OFTEN,
    OWN,
    SMALL,
    CommandResult,
    Nursery,
    comity,
    complaint,
    contents,
    frames,
    on_terminal,
    one_sentence,
    rounds,
    states,
    succeed,
    wait_for,
)

import comity as library
from comity import machine
from comity.errors import ComityError, UsageError
from comity.runs.config import experiment
from comity.runs.server_run import Quiet
from comity.studies import parallel
from comity.studies.parallel import (
    Cost,
    PlannedRun,
    cached_federations,
    parse_jobs,
    run_all,
    with_one_worker,
)

METHODS = ("fedavg", "scaffold")
FEW = ("--parties", "4", "--rounds", "2", "--model", "linear", "--partition", "iid", "--steps", "5")
LONG = (
    *METHODS,
    "--parties",
    "4",
    "--partition",
    "iid",
    "--model",
    "linear",
    "--steps",
    "4",
    "--rounds",
    "30",
    "--engine",
    "loop",
)
"""Runs that are long enough to be interrupted."""


def runs_in(folder: Path) -> list[Path]:
    return sorted(path.parent.relative_to(folder) for path in folder.rglob("summary.json"))


def assert_same(folder: Path, reference: Path) -> None:
    """Both folders have the same runs with equal tables, states and file names."""
    assert runs_in(folder) == runs_in(reference) != []
    for run in runs_in(folder):
        assert contents(folder / run) == contents(reference / run), run
        assert states(folder / run) == states(reference / run), run
        assert {p.name for p in (folder / run).iterdir()} == {
            p.name for p in (reference / run).iterdir()
        }


def output_without_times(result: CommandResult, folder: Path) -> list[str]:
    """The output of a command without folder names and durations."""
    return re.sub(
        r" +\d[\d.]* (s|ms|min)\b", "", result.out.replace(str(folder), "FOLDER")
    ).splitlines()


# --- Equal to sequential runs -----------------------------------------------------------------------------------------


@pytest.mark.sweep("process", "loop")
@pytest.mark.parametrize("engine", ["stacked", "loop", "process", "auto"])
def test_concurrent_comparison_equals_sequential(engine: str, tmp_path: Path) -> None:
    args = ("compare", *METHODS, *FEW, "--engine", engine, "--seeds", "0,1", "--out")
    sequential = succeed(
        *args, tmp_path / "one", *(() if engine in ("loop", "process") else ("--workers", "1"))
    )
    concurrent = succeed(*args, tmp_path / "two", "--jobs", "2")
    assert_same(tmp_path / "two", tmp_path / "one")
    assert output_without_times(concurrent, tmp_path / "two") == output_without_times(
        sequential, tmp_path / "one"
    )
    config = (tmp_path / "two" / "fedavg" / "seed-0" / "config.toml").read_text(encoding="utf-8")
    assert f'engine = "{ {"auto": "stacked"}.get(engine, engine) }"' in config


def test_concurrent_tuning_equals_sequential(tmp_path: Path) -> None:
    args = (
        "tune",
        "fedprox",
        "--grid",
        "mu=0,1",
        "--grid",
        "partition=iid,dirichlet(alpha=1)",
        *SMALL[:6],
        "--engine",
        "loop",
    )
    sequential = succeed(*args, "--out", tmp_path / "one")
    concurrent = succeed(*args, "--out", tmp_path / "two", "--jobs", "3")
    assert_same(tmp_path / "two", tmp_path / "one")
    assert output_without_times(concurrent, tmp_path / "two") == output_without_times(
        sequential, tmp_path / "one"
    )
    assert (tmp_path / "two" / "tune.json").read_bytes() == (
        tmp_path / "one" / "tune.json"
    ).read_bytes()


@pytest.mark.long
def test_concurrent_reproduction_equals_sequential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMITY_DATA", raising=False)
    args = (
        "reproduce",
        "relay/table1",
        "--scale",
        "smoke",
        "--rows",
        "fl,ours",
        "--seeds",
        "0,1",
        "--no-report",
        "--out",
    )
    succeed(*args, tmp_path / "one")
    succeed(*args, tmp_path / "two", "--jobs", "auto")
    assert_same(tmp_path / "two", tmp_path / "one")
    assert (tmp_path / "two" / "table.csv").read_bytes() == (
        tmp_path / "one" / "table.csv"
    ).read_bytes()


def test_concurrent_leave_one_out_equals_sequential(tmp_path: Path) -> None:
    args = (
        "compare",
        "fedavg",
        *SMALL,
        "--leave-one-out",
        "--leave-out",
        "p1,p2",
        "--no-report",
        "--out",
    )
    succeed(*args, tmp_path / "one")
    progress = succeed(*args, tmp_path / "two", "--jobs", "2").err
    assert_same(tmp_path / "two", tmp_path / "one")
    assert (tmp_path / "two" / "leave-one-out.csv").read_bytes() == (
        tmp_path / "one" / "leave-one-out.csv"
    ).read_bytes()
    assert progress.splitlines()[-1] == "4/4 done"


def test_concurrent_comparison_from_python_with_a_custom_model(tmp_path: Path) -> None:
    from torch import nn

    fed = library.load("digits").partition("iid|keep(samples=40)", parties=3, seed=0)
    titles: list[str] = []

    def quiet_progress(title: str) -> Quiet:
        titles.append(title)
        return Quiet()

    settings: dict[str, Any] = {
        "rounds": 2,
        "model": lambda shape, classes: (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 8)),
            nn.Linear(8, 10),
        ),
    }
    comparisons = [
        library.compare(
            ["fedavg"],
            fed,
            out=tmp_path / str(jobs),
            jobs=jobs,
            progress=quiet_progress,
            workers=1,
            **settings,
        )
        for jobs in (1, 2)
    ]
    assert_same(tmp_path / "2", tmp_path / "1")
    assert sorted(titles[2:]) == sorted(titles[:2]) == ["fedavg", "solo"]
    assert comparisons[0].answers == comparisons[1].answers
    with pytest.raises(UsageError, match="One object cannot show"):
        library.compare(["fedavg"], fed, jobs=2, progress=Quiet(), **settings)  # type: ignore[arg-type]


# --- Scheduling -------------------------------------------------------------------------------------------------------


class Watch(Quiet):
    """Counts the concurrent runs."""

    now = most = 0

    def __init__(self) -> None:
        Watch.now += 1
        Watch.most = max(Watch.most, Watch.now)

    def end(self) -> None:
        Watch.now -= 1


def run_planned(
    costs: dict[str, Cost], out: Path, jobs: int = 2
) -> tuple[list[str], list[str], int]:
    """Run tiny runs of these costs. Returns the order in which they started, the order of their
    results, and the largest number of concurrent runs.
    """
    base = experiment(
        {"parties": 2, "rounds": 1, "model": "linear", "partition": "iid", "steps": 2, "workers": 1}
    )
    plans = [
        PlannedRun(method, base.but(algorithm=method), out / method, cost)
        for method, cost in costs.items()
    ]
    titles: list[str] = []
    Watch.now = Watch.most = 0

    def counting_progress(title: str) -> Watch:
        titles.append(title)
        return Watch()

    algorithms = [
        summary["algorithm"]
        for summary in run_all(plans, cached_federations(), counting_progress, jobs=jobs)
    ]
    return titles, algorithms, Watch.most


def test_longest_run_starts_first_and_results_keep_their_order(tmp_path: Path) -> None:
    costs = {"solo": Cost(1), "fedavg": Cost(4), "scaffold": Cost(2), "fedprox": Cost(3)}
    titles, algorithms, most = run_planned(costs, tmp_path)
    assert titles[:2] == ["fedavg", "fedprox"]  # the later ones depend on how long these took
    assert sorted(titles) == sorted(costs)
    assert algorithms == list(costs)
    assert most == 2
    assert run_planned(costs, tmp_path)[1] == list(costs), (
        "another order when all runs are finished"
    )


def test_concurrent_runs_are_limited_by_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = {
        "solo": Cost(1, memory=2 << 30),
        "fedavg": Cost(2, memory=3 << 30),
        "scaffold": Cost(3, memory=50 << 30),
    }
    monkeypatch.setattr(parallel, "available_memory", lambda: 4 << 30)
    titles, algorithms, most = run_planned(costs, tmp_path / "little", jobs=3)
    assert (titles, algorithms, most) == (["fedavg", "solo", "scaffold"], list(costs), 1)
    monkeypatch.setattr(parallel, "available_memory", lambda: 6 << 30)
    assert run_planned(costs, tmp_path / "more", jobs=3)[2] == 2
    monkeypatch.setattr(parallel, "available_memory", lambda: None)
    assert run_planned(costs, tmp_path / "unknown", jobs=3)[2] == 3


def test_memory_of_data_counts_only_until_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that another run has loaded already take no more memory."""
    monkeypatch.setattr(parallel, "available_memory", lambda: 5 << 30)
    costs = {
        "solo": Cost(1, memory=1 << 30, data=3 << 30),
        "fedavg": Cost(2, memory=1 << 30, data=3 << 30),
    }
    assert run_planned(costs, tmp_path)[2] == 2


def test_memory_of_the_machine() -> None:
    free, most = machine.available_memory(), machine.total_memory()
    assert free is not None
    assert most is not None
    assert 0 < free < most
    assert 1 << 20 < machine.private_memory(os.getpid()) < most
    assert machine.private_memory(2**30) == 0


def test_parse_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: 7)
    assert [parse_jobs(text) for text in (1, "3", "auto")] == [1, 3, 7]
    assert with_one_worker(experiment({"workers": 2}), 1).workers == 2
    assert with_one_worker(experiment({}), 2).workers == 1


@pytest.mark.parametrize("wrong", ["0", "-1", "x", "1.5", "", "٣"])
@pytest.mark.parametrize(
    "command",
    [("compare", "fedavg"), ("tune", "fedprox", "--grid", "mu=0,1"), ("reproduce", "dbe/table5")],
)
def test_invalid_number_of_jobs_is_refused(
    command: tuple[str, ...], wrong: str, here: Path
) -> None:
    assert "a number from 1 or auto" in one_sentence(comity(*command, "--jobs", wrong), 2)
    assert not list(here.iterdir())


def test_jobs_with_workers_is_refused(here: Path) -> None:
    message = one_sentence(comity("compare", "fedavg", *SMALL, "--workers", "2", "--jobs", "2"), 2)
    assert "give either jobs or workers" in message
    assert not list(here.iterdir())
    for wrong in (0, True, 1.5, "many"):
        with pytest.raises(UsageError, match="a number from 1 or auto"):
            library.tune("fedprox", grid={"mu": [1]}, jobs=wrong)  # type: ignore[arg-type]


# --- Kills, interrupts and errors -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calm")
    succeed("compare", *LONG, "--no-report", "--out", folder)
    return folder


def under_way(nursery: Nursery, out: Path) -> Any:
    """Start a comparison in which two runs stop at some round."""
    child = nursery.start(
        "compare", *LONG, "--jobs", "2", "--no-report", "--out", out, env=OFTEN, stop_after=3
    )
    wait_for(
        lambda: sum(rounds(out / method / "seed-0") >= 2 for method in ("solo", *METHODS)) == 2
    )
    return child


def finish(nursery: Nursery, out: Path, calm: Path) -> None:
    child = nursery.start("compare", *LONG, "--jobs", "2", "--no-report", "--out", out, env=OFTEN)
    result = child.wait()
    assert result.code == 0, result.err
    assert child.all_gone()
    assert_same(out, calm)


def test_kill_the_main_process(nursery: Nursery, calm: Path, tmp_path: Path) -> None:
    child = under_way(nursery, tmp_path)
    runs = child.workers()
    assert len(runs) == 2
    child.signal(signal.SIGKILL)
    assert child.wait().code == -signal.SIGKILL
    assert child.all_gone(4), "a run outlives the main process"
    assert len(runs_in(tmp_path)) < 3
    finish(nursery, tmp_path, calm)


def test_kill_a_run(nursery: Nursery, calm: Path, tmp_path: Path) -> None:
    child = under_way(nursery, tmp_path)
    os.kill(child.workers()[0], signal.SIGKILL)
    message = complaint(child.wait(), 1)
    assert re.search(r"The run (solo|fedavg|scaffold) was ended by SIGKILL", message)
    assert f"--out {tmp_path}" in message
    assert child.all_gone(4)
    finish(nursery, tmp_path, calm)


@pytest.mark.sweep("SIGINT-True")
@pytest.mark.parametrize(
    ("which", "group", "code"),
    [("SIGINT", True, 130), ("SIGINT", False, 130), ("SIGTERM", True, 143)],
)
def test_interrupt(
    which: str, group: bool, code: int, nursery: Nursery, calm: Path, tmp_path: Path
) -> None:
    """Ctrl-C reaches all processes of a terminal, as does the SIGTERM of a batch system."""
    child = under_way(nursery, tmp_path)
    begin = time.monotonic()
    child.signal(signal.Signals[which], group=group)
    assert f"--out {tmp_path}" in complaint(child.wait(), code)
    assert child.all_gone(1)
    assert time.monotonic() - begin < 4
    if group:
        finish(nursery, tmp_path, calm)


FAILING = "async def local(self, mine, m, party, key):\n        return 1 // (party.id - 1), m"


def test_an_error_in_a_users_file(tmp_path: Path) -> None:
    """The error names the run and the file, and how to continue the other runs."""
    (tmp_path / "mine.py").write_text(OWN.format(FAILING), encoding="utf-8")
    args = (
        "compare",
        tmp_path / "mine.py",
        *LONG[:-2],
        "--jobs",
        "2",
        "--engine",
        "loop",
        "--out",
        tmp_path / "out",
    )
    message = complaint(comity(*args), 1)
    assert "mine: ZeroDivisionError in local (mine.py:" in message
    assert f"--out {tmp_path / 'out'}" in message
    with pytest.raises(ComityError, match=r"mine: ZeroDivisionError") as why:
        library.compare(
            [str(tmp_path / "mine.py")], parties=3, rounds=1, model="linear", engine="loop", jobs=2
        )
    assert "1 // (party.id - 1)" in str(why.value.__cause__), "the cause does not show the line"


def test_existing_files_are_refused_with_the_name_of_the_run(tmp_path: Path) -> None:
    """A run's folder already has a table."""
    (tmp_path / "fedavg" / "seed-0").mkdir(parents=True)
    (tmp_path / "fedavg" / "seed-0" / "ledger.csv").touch()
    message = complaint(comity("compare", "fedavg", *SMALL, "--jobs", "2", "--out", tmp_path), 2)
    assert message.startswith("comity: fedavg: ")
    assert "already has a ledger.csv" in message


# --- Output and trackers ----------------------------------------------------------------------------------------------


def test_lines_without_a_terminal(tmp_path: Path) -> None:
    lines = succeed("compare", "fedavg", *SMALL, "--jobs", "2", "--out", tmp_path).err.splitlines()
    assert [line for line in lines if "done" in line][-1] == "2/2 done"
    assert any(re.match(r"[12]/2 fedavg  round 2/2  accuracy \d+\.\d%", line) for line in lines)
    assert any(re.match(r"1/2 done(, [\d.]+ s left)?$", line) for line in lines)


def test_one_display_on_a_terminal(nursery: Nursery, tmp_path: Path) -> None:
    args = ("compare", *LONG, "--jobs", "2", "--no-report", "--out", tmp_path)
    code, output = on_terminal(nursery, *args, columns=100, round_seconds=0.02)
    assert code == 0
    lines = frames(output)
    bars = [line for line in lines if re.search(r"round \d+/30  accuracy|\d/3 done", line)]
    assert all(len(line) <= 100 and "…" not in line for line in bars)
    assert any(re.search(r"^all runs .* [12]/3 done, [\d.]+ s left", line) for line in bars)
    changed_bars = 0
    for method in ("solo", *METHODS):
        numbers = [
            int(match[1])
            for line in bars
            if (match := re.search(rf"^{method} .*round (\d+)/30  accuracy \d", line))
        ]
        assert numbers
        assert numbers == sorted(numbers)
        changed_bars += len(set(numbers)) > 1  # how many rounds are visible depends on the machine
    assert changed_bars
    places = [(bars[k].split()[0], bars[k + 1].split()[0]) for k in range(len(bars) - 1)]
    assert any({*pair} <= {"solo", *METHODS} and len({*pair}) == 2 for pair in places), (
        "never two at a time"
    )
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l"), "the cursor stays hidden"


def test_output_of_a_run_is_printed_above_the_display(nursery: Nursery, tmp_path: Path) -> None:
    talk = (
        "def message_for(self, theta, i):\n        import warnings\n        print('so far')\n      "
        "  warnings.warn('take care')\n"
    )
    (tmp_path / "mine.py").write_text(
        OWN.format(talk + "        return super().message_for(theta, i)"), encoding="utf-8"
    )
    args = ("compare", tmp_path / "mine.py", *SMALL, "--jobs", "2", "--no-report", "--out")
    result = nursery.run(*args, tmp_path / "one")
    assert result.code == 0, result.err
    assert "so far\n" in result.out
    assert "take care" in result.err
    lines = frames(on_terminal(nursery, *args, tmp_path / "two", columns=100)[1])
    assert "so far" in lines


TRACKER = """
import os

class Recorder:
    def __init__(self):
        self.pid = os.getpid()

    def begin(self, folder, settings):
        self.folder = folder

    def round(self, t, figures):
        if t == 2 and self.folder.parent.name == "solo":
            raise ValueError("too far")

    def end(self, summary):
        (self.folder / "end.txt").write_text(f"{self.pid == os.getpid()} {summary['rounds']}")

def tracker():
    return Recorder()
"""


def test_trackers_by_name_follow_each_run_in_its_process(tmp_path: Path) -> None:
    (tmp_path / "tracker.py").write_text(TRACKER, encoding="utf-8")
    args = ("compare", "fedavg", *SMALL, "--track", tmp_path / "tracker.py", "--jobs", "2", "--out")
    output = succeed(*args, tmp_path / "out").out
    assert (tmp_path / "out" / "fedavg" / "seed-0" / "end.txt").read_text(
        encoding="utf-8"
    ) == "True 2"
    assert not (tmp_path / "out" / "solo" / "seed-0" / "end.txt").exists()
    assert output.count("Warning: Recorder failed and is left out") == 1


def test_a_tracker_that_is_an_object_is_refused(tmp_path: Path) -> None:
    class OwnTracker:
        def begin(self, folder: Path, settings: Any) -> None: ...
        def round(self, t: int, figures: Any) -> None: ...
        def end(self, summary: Any) -> None: ...

    with pytest.raises(UsageError, match="The tracker OwnTracker is an object"):
        library.compare(
            ["fedavg"],
            parties=2,
            rounds=1,
            model="linear",
            track=[OwnTracker()],
            jobs=2,
            out=tmp_path,
        )
    assert not list(tmp_path.iterdir())
