"""Runs side by side: what they leave is what they leave one by one, whatever ends them, and one
display shows all.
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
    Ended,
    Nursery,
    comity,
    complaint,
    contents,
    frames,
    on_terminal,
    one_sentence,
    rounds,
    states,
    wait_for,
    works,
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
"""Long enough to be met under way."""


def runs_in(folder: Path) -> list[Path]:
    return sorted(path.parent.relative_to(folder) for path in folder.rglob("summary.json"))


def assert_same(folder: Path, reference: Path) -> None:
    """All runs, to the last byte of what may not differ."""
    assert runs_in(folder) == runs_in(reference) != []
    for run in runs_in(folder):
        assert contents(folder / run) == contents(reference / run), run
        assert states(folder / run) == states(reference / run), run
        assert {p.name for p in (folder / run).iterdir()} == {
            p.name for p in (reference / run).iterdir()
        }


def untimed(ended: Ended, folder: Path) -> list[str]:
    """What a command said, without where, and without how long it took."""
    return re.sub(
        r" +\d[\d.]* (s|ms|min)\b", "", ended.out.replace(str(folder), "FOLDER")
    ).splitlines()


# --- The same as one after the other ----------------------------------------------------------------------------------


@pytest.mark.sweep("process", "loop")
@pytest.mark.parametrize("engine", ["stacked", "loop", "process", "auto"])
def test_a_comparison_is_the_same(engine: str, tmp_path: Path) -> None:
    args = ("compare", *METHODS, *FEW, "--engine", engine, "--seeds", "0,1", "--out")
    one = works(
        *args, tmp_path / "one", *(() if engine in ("loop", "process") else ("--workers", "1"))
    )
    two = works(*args, tmp_path / "two", "--jobs", "2")
    assert_same(tmp_path / "two", tmp_path / "one")
    assert untimed(two, tmp_path / "two") == untimed(one, tmp_path / "one")
    config = (tmp_path / "two" / "fedavg" / "seed-0" / "config.toml").read_text(encoding="utf-8")
    assert f'engine = "{ {"auto": "stacked"}.get(engine, engine) }"' in config


def test_a_tuning_is_the_same(tmp_path: Path) -> None:
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
    one = works(*args, "--out", tmp_path / "one")
    two = works(*args, "--out", tmp_path / "two", "--jobs", "3")
    assert_same(tmp_path / "two", tmp_path / "one")
    assert untimed(two, tmp_path / "two") == untimed(one, tmp_path / "one")
    assert (tmp_path / "two" / "tune.json").read_bytes() == (
        tmp_path / "one" / "tune.json"
    ).read_bytes()


@pytest.mark.long
def test_a_papers_table_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    works(*args, tmp_path / "one")
    works(*args, tmp_path / "two", "--jobs", "auto")
    assert_same(tmp_path / "two", tmp_path / "one")
    assert (tmp_path / "two" / "table.csv").read_bytes() == (
        tmp_path / "one" / "table.csv"
    ).read_bytes()


def test_leaving_parties_out_is_the_same(tmp_path: Path) -> None:
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
    works(*args, tmp_path / "one")
    said = works(*args, tmp_path / "two", "--jobs", "2").err
    assert_same(tmp_path / "two", tmp_path / "one")
    assert (tmp_path / "two" / "leave-one-out.csv").read_bytes() == (
        tmp_path / "one" / "leave-one-out.csv"
    ).read_bytes()
    assert said.splitlines()[-1] == "4/4 done"


def test_from_python_with_a_network_of_ones_own(tmp_path: Path) -> None:
    from torch import nn

    fed = library.load("digits").partition("iid|keep(samples=40)", parties=3, seed=0)
    seen: list[str] = []

    def watched(title: str) -> Quiet:
        seen.append(title)
        return Quiet()

    settings: dict[str, Any] = {
        "rounds": 2,
        "model": lambda shape, classes: (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 8)),
            nn.Linear(8, 10),
        ),
    }
    made = [
        library.compare(
            ["fedavg"],
            fed,
            out=tmp_path / str(jobs),
            jobs=jobs,
            progress=watched,
            workers=1,
            **settings,
        )
        for jobs in (1, 2)
    ]
    assert_same(tmp_path / "2", tmp_path / "1")
    assert sorted(seen[2:]) == sorted(seen[:2]) == ["fedavg", "solo"]
    assert made[0].answers == made[1].answers
    with pytest.raises(UsageError, match="One object cannot show"):
        library.compare(["fedavg"], fed, jobs=2, progress=Quiet(), **settings)  # type: ignore[arg-type]


# --- Which is next ----------------------------------------------------------------------------------------------------


class Watch(Quiet):
    """Who counts how many runs are under way."""

    now = most = 0

    def __init__(self) -> None:
        Watch.now += 1
        Watch.most = max(Watch.most, Watch.now)

    def end(self) -> None:
        Watch.now -= 1


def made(costs: dict[str, Cost], out: Path, jobs: int = 2) -> tuple[list[str], list[str], int]:
    """Tiny runs of these costs: the order in which they were begun and in which they came, and how
    many were under way.
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

    def watched(title: str) -> Watch:
        titles.append(title)
        return Watch()

    found = [done["algorithm"] for done in run_all(plans, cached_federations(), watched, jobs=jobs)]
    return titles, found, Watch.most


def test_the_longest_first_and_the_order_kept(tmp_path: Path) -> None:
    costs = {"solo": Cost(1), "fedavg": Cost(4), "scaffold": Cost(2), "fedprox": Cost(3)}
    titles, found, most = made(costs, tmp_path)
    assert titles[:2] == ["fedavg", "fedprox"]  # later ones by what these took
    assert sorted(titles) == sorted(costs)
    assert found == list(costs)
    assert most == 2
    assert made(costs, tmp_path)[1] == list(costs), "and once more, when all are finished"


def test_no_more_than_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {
        "solo": Cost(1, memory=2 << 30),
        "fedavg": Cost(2, memory=3 << 30),
        "scaffold": Cost(3, memory=50 << 30),
    }
    monkeypatch.setattr(parallel, "available_memory", lambda: 4 << 30)
    titles, found, most = made(costs, tmp_path / "little", jobs=3)
    assert (titles, found, most) == (["fedavg", "solo", "scaffold"], list(costs), 1)
    monkeypatch.setattr(parallel, "available_memory", lambda: 6 << 30)
    assert made(costs, tmp_path / "more", jobs=3)[2] == 2
    monkeypatch.setattr(parallel, "available_memory", lambda: None)
    assert made(costs, tmp_path / "unknown", jobs=3)[2] == 3


def test_data_that_are_not_there_yet_take_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that a run under way has are there."""
    monkeypatch.setattr(parallel, "available_memory", lambda: 5 << 30)
    costs = {
        "solo": Cost(1, memory=1 << 30, data=3 << 30),
        "fedavg": Cost(2, memory=1 << 30, data=3 << 30),
    }
    assert made(costs, tmp_path)[2] == 2


def test_memory_as_the_system_tells() -> None:
    free, most = machine.available_memory(), machine.total_memory()
    assert free is not None
    assert most is not None
    assert 0 < free < most
    assert 1 << 20 < machine.private_memory(os.getpid()) < most
    assert machine.private_memory(2**30) == 0


def test_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: 7)
    assert [parse_jobs(given) for given in (1, "3", "auto")] == [1, 3, 7]
    assert with_one_worker(experiment({"workers": 2}), 1).workers == 2
    assert with_one_worker(experiment({}), 2).workers == 1


@pytest.mark.parametrize("wrong", ["0", "-1", "x", "1.5", "", "٣"])
@pytest.mark.parametrize(
    "command",
    [("compare", "fedavg"), ("tune", "fedprox", "--grid", "mu=0,1"), ("reproduce", "dbe/table5")],
)
def test_what_is_no_number_of_jobs(command: tuple[str, ...], wrong: str, here: Path) -> None:
    assert "a number from 1 or auto" in one_sentence(comity(*command, "--jobs", wrong), 2)
    assert not list(here.iterdir())


def test_jobs_or_workers(here: Path) -> None:
    said = one_sentence(comity("compare", "fedavg", *SMALL, "--workers", "2", "--jobs", "2"), 2)
    assert "give either jobs or workers" in said
    assert not list(here.iterdir())
    for wrong in (0, True, 1.5, "many"):
        with pytest.raises(UsageError, match="a number from 1 or auto"):
            library.tune("fedprox", grid={"mu": [1]}, jobs=wrong)  # type: ignore[arg-type]


# --- However it ends --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calm")
    works("compare", *LONG, "--no-report", "--out", folder)
    return folder


def under_way(nursery: Nursery, out: Path) -> Any:
    """A comparison in which two runs have come some rounds far, and go no further."""
    child = nursery.start(
        "compare", *LONG, "--jobs", "2", "--no-report", "--out", out, env=OFTEN, stop_after=3
    )
    wait_for(
        lambda: sum(rounds(out / method / "seed-0") >= 2 for method in ("solo", *METHODS)) == 2
    )
    return child


def finish(nursery: Nursery, out: Path, calm: Path) -> None:
    child = nursery.start("compare", *LONG, "--jobs", "2", "--no-report", "--out", out, env=OFTEN)
    ended = child.wait()
    assert ended.code == 0, ended.err
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
    said = complaint(child.wait(), 1)
    assert re.search(r"The run (solo|fedavg|scaffold) was ended by SIGKILL", said)
    assert f"--out {tmp_path}" in said
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
    """Ctrl-C reaches all processes of a terminal, and so does a batch system's SIGTERM."""
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
    """It has the name of the run and of the file, and the others can go on."""
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
    said = complaint(comity(*args), 1)
    assert "mine: ZeroDivisionError in local (mine.py:" in said
    assert f"--out {tmp_path / 'out'}" in said
    with pytest.raises(ComityError, match=r"mine: ZeroDivisionError") as why:
        library.compare(
            [str(tmp_path / "mine.py")], parties=3, rounds=1, model="linear", engine="loop", jobs=2
        )
    assert "1 // (party.id - 1)" in str(why.value.__cause__), "where it was is not told"


def test_a_refusal_is_one(tmp_path: Path) -> None:
    """A folder in which something lies already."""
    (tmp_path / "fedavg" / "seed-0").mkdir(parents=True)
    (tmp_path / "fedavg" / "seed-0" / "ledger.csv").touch()
    said = complaint(comity("compare", "fedavg", *SMALL, "--jobs", "2", "--out", tmp_path), 2)
    assert said.startswith("comity: fedavg: ")
    assert "already has a ledger.csv" in said


# --- What is said, and who else hears it ------------------------------------------------------------------------------


def test_lines_without_a_terminal(tmp_path: Path) -> None:
    lines = works("compare", "fedavg", *SMALL, "--jobs", "2", "--out", tmp_path).err.splitlines()
    assert [line for line in lines if "done" in line][-1] == "2/2 done"
    assert any(re.match(r"[12]/2 fedavg  round 2/2  accuracy \d+\.\d%", line) for line in lines)
    assert any(re.match(r"1/2 done(, [\d.]+ s left)?$", line) for line in lines)


def test_one_display_on_a_terminal(nursery: Nursery, tmp_path: Path) -> None:
    args = ("compare", *LONG, "--jobs", "2", "--no-report", "--out", tmp_path)
    code, shown = on_terminal(nursery, *args, columns=100, round_seconds=0.02)
    assert code == 0
    seen = frames(shown)
    bars = [line for line in seen if re.search(r"round \d+/30  accuracy|\d/3 done", line)]
    assert all(len(line) <= 100 and "…" not in line for line in bars)
    assert any(re.search(r"^all runs .* [12]/3 done, [\d.]+ s left", line) for line in bars)
    moved = 0
    for method in ("solo", *METHODS):
        numbers = [
            int(found[1])
            for line in bars
            if (found := re.search(rf"^{method} .*round (\d+)/30  accuracy \d", line))
        ]
        assert numbers
        assert numbers == sorted(numbers)
        moved += (
            len(set(numbers)) > 1
        )  # how many rounds are seen depends on how fast the machine is
    assert moved
    places = [(bars[k].split()[0], bars[k + 1].split()[0]) for k in range(len(bars) - 1)]
    assert any({*pair} <= {"solo", *METHODS} and len({*pair}) == 2 for pair in places), (
        "never two at a time"
    )
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor stays hidden"


def test_what_a_run_prints_is_printed_beside_the_display(nursery: Nursery, tmp_path: Path) -> None:
    talk = (
        "def message_for(self, theta, i):\n        import warnings\n        print('so far')\n      "
        "  warnings.warn('take care')\n"
    )
    (tmp_path / "mine.py").write_text(
        OWN.format(talk + "        return super().message_for(theta, i)"), encoding="utf-8"
    )
    args = ("compare", tmp_path / "mine.py", *SMALL, "--jobs", "2", "--no-report", "--out")
    ended = nursery.run(*args, tmp_path / "one")
    assert ended.code == 0, ended.err
    assert "so far\n" in ended.out
    assert "take care" in ended.err
    seen = frames(on_terminal(nursery, *args, tmp_path / "two", columns=100)[1])
    assert "so far" in seen


TRACKER = """
import os

class Told:
    def __init__(self):
        self.made = os.getpid()

    def begin(self, folder, settings):
        self.folder = folder

    def round(self, t, figures):
        if t == 2 and self.folder.parent.name == "solo":
            raise ValueError("too far")

    def end(self, summary):
        (self.folder / "told.txt").write_text(f"{self.made == os.getpid()} {summary['rounds']}")

def tracker():
    return Told()
"""


def test_trackers_by_name_follow_each_run_in_its_process(tmp_path: Path) -> None:
    (tmp_path / "tracker.py").write_text(TRACKER, encoding="utf-8")
    args = ("compare", "fedavg", *SMALL, "--track", tmp_path / "tracker.py", "--jobs", "2", "--out")
    said = works(*args, tmp_path / "out").out
    assert (tmp_path / "out" / "fedavg" / "seed-0" / "told.txt").read_text(
        encoding="utf-8"
    ) == "True 2"
    assert not (tmp_path / "out" / "solo" / "seed-0" / "told.txt").exists()
    assert said.count("Warning: Told failed and is left out") == 1


def test_a_tracker_that_is_an_object_is_refused(tmp_path: Path) -> None:
    class Mine:
        def begin(self, folder: Path, settings: Any) -> None: ...
        def round(self, t: int, figures: Any) -> None: ...
        def end(self, summary: Any) -> None: ...

    with pytest.raises(UsageError, match="The tracker Mine is an object"):
        library.compare(
            ["fedavg"], parties=2, rounds=1, model="linear", track=[Mine()], jobs=2, out=tmp_path
        )
    assert not list(tmp_path.iterdir())
