"""A stranger's folder runs no code: what it names runs only where this user's Comity made the
folder, or after `--trust`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import py_compile
import runpy
import shutil
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Ended, comity, complaint, one_sentence, summary, works

import comity as api
from comity.checksums import with_crc, without_crc
from comity.errors import UsageError
from comity.measure import mdl
from comity.measure.representations import representations
from comity.measure.study import description_length, study
from comity.plugins import is_code
from comity.runs.environment import digest
from comity.runs.run_warnings import warning_texts
from comity.runs.trust import MARK, _secret, state_folder
from comity.studies.export import load

SMALL = (
    "--parties",
    "3",
    "--rounds",
    "1",
    "--model",
    "linear",
    "--partition",
    "iid|keep(samples=40)",
    "--engine",
    "loop",
)
HOW: dict[str, Any] = {
    "parties": 3,
    "rounds": 1,
    "model": "linear",
    "partition": "iid|keep(samples=40)",
    "engine": "loop",
}
EVIL = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from comity.algorithms.fedavg import FedAvg
from comity.core import *
from comity.data import load as known
from comity.models import build as build_known

@algorithm
class Mine(FedAvg): pass

def build(shape, classes): return build_known("linear", shape, classes)
def load(): return known("digits")
def metric(truth, answer): return (truth == answer).mean()
def partition(y, parties, rng, share: float = 1.0): return [range(k, len(y), parties) for k in range(parties)]
"""


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who has never used Comity before, and has no patience with maps of representations."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr("comity.reporting.PATIENCE", -1.0)


def become_somebody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody else"))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of what Comity has itself."""
    folder = tmp_path_factory.mktemp("honest") / "run"
    works("run", "fedavg", *SMALL, "--out", folder)
    return folder


Setting = tuple[str, str]
SETTINGS: list[Setting] = [
    ("algorithm = ", 'algorithm = "{evil}"'),
    ("algorithm = ", 'algorithm = "{evil}(mu=1)+dbe"'),
    ("algorithm = ", 'algorithm = "fedavg+{evil}"'),
    ("data = ", 'data = "{evil}"'),
    ("model = ", 'model = "{evil}"'),
    ("partition = ", 'partition = "{evil}"'),
    ("partition = ", 'partition = "{evil}(share=0.5)|shift"'),
    ("metric = ", 'metric = "{evil}"'),
    ("", '[party.p1]\nmodel = "{evil}"'),
]


@pytest.fixture
def gift(honest: Path, tmp_path: Path) -> Path:
    """A run's folder that somebody else made; nothing in it names code yet."""
    return Path(shutil.copytree(honest, tmp_path / "gift"))


def poisoned(gift: Path, setting: Setting = SETTINGS[4]) -> Path:
    """A file that a gift's settings name, which leaves `ran` where it was run. A stranger can write
    all that takes no secret.
    """
    evil = gift / f"evil_{len(list(gift.parent.glob('*')))}_{gift.parent.name.replace('-', '_')}.py"
    evil.write_text(EVIL.format(marker=str(gift.parent / "ran")), encoding="utf-8")
    begin, line = setting
    named = line.format(evil=evil)
    lines = (gift / "config.toml").read_text(encoding="utf-8").splitlines()
    kept = [named if begin and one.startswith(begin) else one for one in lines]
    text = "\n".join(kept + ([] if begin else ["", named])) + "\n"
    (gift / "config.toml").write_text(text, encoding="utf-8")
    told = json.loads((gift / "env.json").read_text(encoding="utf-8"))
    (gift / "env.json").write_text(
        json.dumps(with_crc(without_crc(told) | {"config": digest(text)})), encoding="utf-8"
    )
    (gift / MARK).write_text(
        json.dumps({"files": {str(evil): "0" * 64}, "code": "0" * 64}), encoding="utf-8"
    )
    return evil


def opened(folder: Path, *more: str) -> Ended:
    """`comity export` of a run, the quickest command that opens one."""
    shutil.rmtree(folder / "exported", ignore_errors=True)
    return comity("export", folder, "--party", "p1", *more)


def has_run(gift: Path) -> bool:
    return (gift.parent / "ran").exists()


def unfinished(gift: Path) -> None:
    (gift / "summary.json").unlink()


pytestmark = pytest.mark.usefixtures("without_onnx")
QUICK = mdl.Settings(points=2, seeds=1, steps=2)
CALLS: dict[str, Callable[[Path, bool], object]] = {
    "study": lambda gift, trust: study(gift, samples=24, mdl=None, trust=trust),
    "description_length": lambda gift, trust: description_length(
        gift, "fc", 24, settings=QUICK, trust=trust
    ),
    "representations": lambda gift, trust: representations(gift, samples=24, trust=trust),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_that_can_name_code(setting: Setting, gift: Path) -> None:
    evil = poisoned(gift, setting)
    said = one_sentence(opened(gift), 2)
    assert str(evil) in said
    assert "--trust" in said
    assert not has_run(gift)


@pytest.mark.parametrize(
    "command", [("measure", "--samples", "24"), ("export", "--party", "p1"), ("resume",)]
)
def test_commands(command: tuple[str, ...], gift: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdl, "CHEAP", QUICK)
    evil = poisoned(gift)
    if command[0] == "resume":
        unfinished(gift)
    said = one_sentence(comity(command[0], gift, *command[1:]), 2)
    assert str(evil) in said
    assert not has_run(gift)
    works(command[0], gift, *command[1:], "--trust")
    assert has_run(gift)


@pytest.mark.parametrize(
    "command", [("run", "--out", "new"), ("tune", "--grid", "lr=0.1", "--out", "new"), ("plan",)]
)
def test_the_settings_of_a_strangers_run(
    command: tuple[str, ...], gift: Path, here: Path, mine: Path
) -> None:
    """They are what a page tells to type for the same outcome; one's own file of settings names
    what it likes.
    """
    evil = poisoned(gift)
    assert str(evil) in one_sentence(comity(command[0], gift / "config.toml", *command[1:]), 2)
    assert not has_run(gift)
    works(command[0], gift / "config.toml", *command[1:], "--trust")
    assert has_run(gift)
    Path("mine.toml").write_text(
        f'model = "{mine}"\nrounds = 1\npartition = "iid|keep(samples=40)"', encoding="utf-8"
    )
    works("run", "mine.toml", "--out", "first")
    works("run", "first/config.toml", "--out", "second")


@pytest.mark.parametrize("name", CALLS)
def test_python(name: str, gift: Path) -> None:
    poisoned(gift)
    with pytest.raises(UsageError, match="trust=True"):
        CALLS[name](gift, False)
    assert not has_run(gift)
    CALLS[name](gift, True)
    assert has_run(gift)


def test_a_page_shows_what_needs_no_code(gift: Path) -> None:
    evil = poisoned(gift)
    ended = works("report", gift)
    (said,) = [line for line in ended.out.splitlines() if line.startswith("Warning: ")]
    assert "left out" in said
    assert str(evil) in said
    assert "--trust" in said
    assert not has_run(gift)
    page = (gift / "report.html").read_text(encoding="utf-8")
    for shown in ("Bytes by round", "How much each party has", "Bytes by party"):
        assert shown in page
    assert "Who holds which classes" not in page
    assert works("report", gift, "--quick").out.count("Warning") == 0, "nothing is left out of it"
    assert works("report", gift, "--table", "markdown").out
    assert not has_run(gift)
    assert "Warning" not in works("report", gift, "--trust").out
    assert has_run(gift)
    assert "Who holds which classes" in (gift / "report.html").read_text(encoding="utf-8")


def test_looking_on_runs_nothing(gift: Path) -> None:
    poisoned(gift)
    works("watch", gift, "--once")
    works("watch", gift.parent, "--once")
    works("list", "algorithms")
    assert not has_run(gift)


def test_a_comparison_beside_a_strangers_runs(gift: Path, tmp_path: Path) -> None:
    """Neither going on in the folder nor the page at the end runs what a run there names."""
    evil = poisoned(gift)
    (tmp_path / "out" / "fedprox").mkdir(parents=True)
    shutil.move(gift, tmp_path / "out" / "fedprox" / "seed-0")
    said = complaint(comity("compare", "fedprox", *SMALL, "--out", tmp_path / "out"), 2)
    assert "other settings" in said
    ended = works("compare", "fedavg", *SMALL, "--out", tmp_path / "out", "--report")
    assert str(evil) in ended.out
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The user's own file; each test has one of another name, as a process imports a file once."""
    path = tmp_path / f"mine_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(EVIL.format(marker=str(tmp_path / "ran")), encoding="utf-8")
    return path


def test_ones_own_run_needs_no_flag(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    works("run", mine, "--model", mine, *SMALL[:4], *SMALL[6:], "--data", mine, "--out", out)
    unfinished(out)
    works("resume", out)
    assert opened(out).code == 0
    assert "Warning" not in works("report", out).out.replace("There is no SOLO", "")
    assert load(out / "exported" / "p1").predict(np.zeros((1, 1, 8, 8)))
    # A copy is as good: what the mark vouches for is what it says, not where it lies.
    shutil.copytree(out, tmp_path / "copy")
    assert opened(tmp_path / "copy").code == 0


def test_the_runs_of_studies_are_ones_own(mine: Path, tmp_path: Path) -> None:
    works("compare", mine, *SMALL, "--leave-one-out", "--leave-out", "p0", "--out", tmp_path / "c")
    works("tune", mine, "--grid", "lr=0.1,0.2", *SMALL, "--out", tmp_path / "t")
    found = [
        path.parent
        for path in tmp_path.rglob("config.toml")
        if str(mine) in path.read_text(encoding="utf-8")
    ]
    assert len(found) >= 4
    assert all((folder / MARK).is_file() for folder in found)
    assert opened(found[0]).code == 0
    assert not list((tmp_path / "c" / "solo").rglob(MARK)), "there is nothing to trust"


def test_somebody_elses_run(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works("run", mine, *SMALL, "--out", tmp_path / "out")
    become_somebody_else(monkeypatch, tmp_path)
    said = one_sentence(opened(tmp_path / "out"), 2)
    assert str(mine) in said
    assert opened(tmp_path / "out", "--trust").code == 0


@pytest.mark.parametrize("what", ["settings", "files", "code", "no JSON", "a list", "nothing"])
def test_a_mark_that_was_tampered_with(what: str, mine: Path, gift: Path, tmp_path: Path) -> None:
    """One's own mark vouches for nothing else."""
    works("run", mine, *SMALL, "--out", tmp_path / "out")
    own = json.loads((tmp_path / "out" / MARK).read_text(encoding="utf-8"))
    (tmp_path / "ran").unlink()
    evil = poisoned(gift)
    forged = {
        "settings": json.dumps(own),
        "files": json.dumps(own | {"files": {str(evil): own["files"][str(mine)]}}),
        "code": json.dumps({"files": own["files"], "code": None}),
        "no JSON": "{",
        "a list": "[]",
        "nothing": "",
    }[what]
    (gift / MARK).write_text(forged, encoding="utf-8")
    assert str(evil) in one_sentence(opened(gift), 2)
    assert not has_run(gift)


def forget(mine: Path) -> None:
    """A process imports a file once: be as one that has not."""
    del sys.modules[f"comity_user.{mine.stem}"]


def test_code_that_has_changed(mine: Path, tmp_path: Path) -> None:
    """Neither resumed nor compared without a word; and with one, the run says so for ever."""
    out = tmp_path / "out" / mine.stem / "seed-0"
    works("run", mine, *SMALL, "--out", out)
    unfinished(out)
    forget(mine)
    mine.write_text(mine.read_text(encoding="utf-8") + "\n# better\n", encoding="utf-8")
    said = one_sentence(comity("resume", out), 2)
    assert f"{mine} has changed since" in said
    assert "--trust" in said
    said = complaint(comity("compare", mine, *SMALL, "--out", tmp_path / "out"), 2)
    assert f"{mine} has changed since" in said
    with pytest.raises(UsageError, match="has changed since"):
        api.run(str(mine), out=out, resume=True, **HOW)
    ended = works("resume", out, "--trust")
    assert f"{mine} has changed since" in ended.out
    assert any("has changed since" in warning for warning in warning_texts(summary(out), "during"))


def test_going_on_from_python_with_what_one_names(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names the file in the call has said that it may run, in whosever folder."""
    api.run(str(mine), out=tmp_path / "out", **HOW)
    become_somebody_else(monkeypatch, tmp_path)
    unfinished(tmp_path / "out")
    api.run(str(mine), out=tmp_path / "out", resume=True, **HOW)


def predicted(script: Path, *args: object) -> Ended:
    """`python predict.py ARGS`, inside this process."""
    out = io.StringIO()
    before, sys.argv = sys.argv, [str(script), *map(str, args)]
    try:
        with contextlib.redirect_stdout(out):
            sys.modules.pop("preparation", None)
            sys.path.insert(0, str(script.parent))
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        return Ended(1, out.getvalue(), str(end.code))
    finally:
        sys.argv = before
        sys.path.remove(str(script.parent))
    return Ended(0, out.getvalue(), "")


def test_exported_models(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works("run", "fedavg", "--model", mine, *SMALL[:4], *SMALL[6:], "--out", tmp_path / "out")
    works("export", tmp_path / "out", "--party", "p1", "--out", tmp_path / "gift")
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8)))
    script, samples = tmp_path / "gift" / "predict.py", tmp_path / "x.npy"
    ours = predicted(script, samples)
    assert ours.out.count("\n") == 3
    become_somebody_else(monkeypatch, tmp_path)
    forget(mine)
    (tmp_path / "ran").unlink()
    with pytest.raises(UsageError, match="trust=True") as refused:
        load(tmp_path / "gift")
    assert str(mine) in str(refused.value)
    assert predicted(script, samples) == ours, (
        "the script needs nobody's code: the network lies beside it"
    )
    assert not (tmp_path / "ran").exists()
    assert len(load(tmp_path / "gift", trust=True).predict(np.zeros((1, 1, 8, 8)))) == 1
    assert (tmp_path / "ran").exists()


def test_the_secret_is_the_users(mine: Path, tmp_path: Path) -> None:
    works("run", mine, *SMALL, "--out", tmp_path / "out")
    (kept,) = state_folder().iterdir()
    assert kept.stat().st_mode & 0o777 == stat.S_IRUSR | stat.S_IWUSR
    assert len(kept.read_bytes()) == 32
    assert kept.read_bytes().hex() not in (tmp_path / "out" / MARK).read_text(encoding="utf-8")


@pytest.mark.parametrize("how", ["a file in its place", "damaged", "no home"])
def test_where_no_secret_can_be_kept(
    how: str, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are made all the same; opening them takes the flag, and the sentence says why."""
    if how == "a file in its place":
        (tmp_path / "user").write_text("", encoding="utf-8")
    elif how == "damaged":
        (tmp_path / "user" / "comity").mkdir(parents=True)
        (tmp_path / "user" / "comity" / "secret").write_bytes(b"short")
    else:
        monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
        monkeypatch.setenv("HOME", "/dev/null")
    works("run", mine, *SMALL, "--out", tmp_path / "out")
    unfinished(tmp_path / "out")
    said = one_sentence(comity("resume", tmp_path / "out"), 2)
    assert str(mine) in said
    assert str(state_folder()) in said
    works("resume", tmp_path / "out", "--trust")


def test_runs_that_begin_together_have_one_secret() -> None:
    with ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(lambda _: _secret(), range(64)))) == 1
    assert len(list(state_folder().iterdir())) == 1


def test_a_compiled_file_is_not_what_runs(gift: Path) -> None:
    """A .pyc beside a harmless file, with its time and size, would be what Python imports."""
    evil = poisoned(gift)
    escape_terminal = evil.read_text(encoding="utf-8").replace("ran", "new")
    time = evil.stat().st_mtime_ns
    py_compile.compile(str(evil), cfile=importlib.util.cache_from_source(str(evil)))
    evil.write_text(escape_terminal, encoding="utf-8")
    os.utime(evil, ns=(time, time))
    assert opened(gift, "--trust").code == 0
    assert not has_run(gift)


def test_who_may_run_users_files() -> None:
    """Whatever imports a user's file finds it by a name that `trust.code_of` knows."""
    source = Path(api.__file__).parent
    users = {
        str(p.relative_to(source))
        for p in source.rglob("*.py")
        if "comity.plugins import" in p.read_text(encoding="utf-8")
    }
    assert users == {
        "algorithms/__init__.py",
        "metrics/custom_metrics.py",
        "data/dataset.py",
        "data/library.py",
        "data/custom_partitions.py",
        "data/partitions.py",
        "runs/build.py",  # likewise
        "runs/config.py",
        "runs/run_metric.py",
        "runs/trust.py",
        "models/__init__.py",
        "names.py",  # which only looks at names
        "track/__init__.py",
        "deploy/policy.py",  # to refuse them
    }
    assert is_code("./mine.py")
    assert not is_code("mlp2(width=8)")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_file_that_changes_while_a_process_uses_it(mine: Path, tmp_path: Path) -> None:
    """It is imported once, so that all runs of a comparison are of one code; and whoever edits it
    hears that.
    """
    api.run(str(mine), **HOW)
    mine.write_text(mine.read_text(encoding="utf-8") + "\n# better\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="the earlier version is used"):
        api.run(str(mine), out=tmp_path / "out", **HOW)
    assert opened(tmp_path / "out").code == 0
    forget(mine)
    assert "has changed since" in one_sentence(opened(tmp_path / "out"), 2), (
        "the mark is of what ran"
    )
