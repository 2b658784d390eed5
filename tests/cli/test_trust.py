"""Code that a run's folder names is executed only if this user's Comity made the folder, or with
`--trust`.
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
from harness import CommandResult, comity, complaint, one_sentence, succeed, summary

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
    """A new user, and reports without maps of representations."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr("comity.reporting.PATIENCE", -1.0)


def become_somebody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody else"))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that names no code."""
    folder = tmp_path_factory.mktemp("honest") / "run"
    succeed("run", "fedavg", *SMALL, "--out", folder)
    return folder


Setting = tuple[str, str]
SETTINGS: list[Setting] = [
    ("algorithm = ", 'algorithm = "{evil}"'),
    ("algorithm = ", 'algorithm = "{evil}(mu=1)+dbe"'),
    ("algorithm = ", 'algorithm = "fedavg+{evil}"'),
    ("data = ", 'data = "{evil}"'),
    ("model = ", 'model = "{evil}"'),
    ("model = ", 'model = "{evil}(width=1)"'),
    ("partition = ", 'partition = "{evil}"'),
    ("partition = ", 'partition = "{evil}(share=0.5)|shift"'),
    ("metric = ", 'metric = "{evil}"'),
    ("", '[party.p1]\nmodel = "{evil}"'),
]


@pytest.fixture
def foreign_run(honest: Path, tmp_path: Path) -> Path:
    """A run's folder of somebody else; it names no code yet."""
    return Path(shutil.copytree(honest, tmp_path / "gift"))


def poison(foreign_run: Path, setting: Setting = SETTINGS[4]) -> Path:
    """Make a foreign run's settings name a file, which writes `ran` when it is executed. Returns
    the file. Everything that needs no secret is consistent.
    """
    evil = (
        foreign_run
        / f"evil_{len(list(foreign_run.parent.glob('*')))}_{foreign_run.parent.name.replace('-', '_')}.py"
    )
    evil.write_text(EVIL.format(marker=str(foreign_run.parent / "ran")), encoding="utf-8")
    begin, line = setting
    new_line = line.format(evil=evil)
    lines = (foreign_run / "config.toml").read_text(encoding="utf-8").splitlines()
    new_lines = [
        new_line if begin and old_line.startswith(begin) else old_line for old_line in lines
    ]
    text = "\n".join(new_lines + ([] if begin else ["", new_line])) + "\n"
    (foreign_run / "config.toml").write_text(text, encoding="utf-8")
    content = json.loads((foreign_run / "env.json").read_text(encoding="utf-8"))
    (foreign_run / "env.json").write_text(
        json.dumps(with_crc(without_crc(content) | {"config": digest(text)})), encoding="utf-8"
    )
    (foreign_run / MARK).write_text(
        json.dumps({"files": {str(evil): "0" * 64}, "code": "0" * 64}), encoding="utf-8"
    )
    return evil


def export_run(folder: Path, *more: str) -> CommandResult:
    """Run `comity export`, the quickest command that opens a run."""
    shutil.rmtree(folder / "exported", ignore_errors=True)
    return comity("export", folder, "--party", "p1", *more)


def has_run(foreign_run: Path) -> bool:
    return (foreign_run.parent / "ran").exists()


def remove_summary(foreign_run: Path) -> None:
    (foreign_run / "summary.json").unlink()


pytestmark = pytest.mark.usefixtures("without_onnx")
QUICK = mdl.Settings(points=2, seeds=1, steps=2)
CALLS: dict[str, Callable[[Path, bool], object]] = {
    "study": lambda foreign_run, trust: study(foreign_run, samples=24, mdl=None, trust=trust),
    "description_length": lambda foreign_run, trust: description_length(
        foreign_run, "fc", 24, settings=QUICK, trust=trust
    ),
    "representations": lambda foreign_run, trust: representations(
        foreign_run, samples=24, trust=trust
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_that_name_code_are_refused(setting: Setting, foreign_run: Path) -> None:
    evil = poison(foreign_run, setting)
    message = one_sentence(export_run(foreign_run), 2)
    assert str(evil) in message
    assert "--trust" in message
    assert not has_run(foreign_run)


@pytest.mark.parametrize(
    "command", [("measure", "--samples", "24"), ("export", "--party", "p1"), ("resume",)]
)
def test_commands_refuse_foreign_code_without_trust(
    command: tuple[str, ...], foreign_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mdl, "CHEAP", QUICK)
    evil = poison(foreign_run)
    if command[0] == "resume":
        remove_summary(foreign_run)
    message = one_sentence(comity(command[0], foreign_run, *command[1:]), 2)
    assert str(evil) in message
    assert not has_run(foreign_run)
    succeed(command[0], foreign_run, *command[1:], "--trust")
    assert has_run(foreign_run)


@pytest.mark.parametrize(
    "command", [("run", "--out", "new"), ("tune", "--grid", "lr=0.1", "--out", "new"), ("plan",)]
)
def test_config_of_a_foreign_run_is_refused_without_trust(
    command: tuple[str, ...], foreign_run: Path, here: Path, own_file: Path
) -> None:
    """Reports print a command with config.toml; a user's own file of settings may name code."""
    evil = poison(foreign_run)
    assert str(evil) in one_sentence(
        comity(command[0], foreign_run / "config.toml", *command[1:]), 2
    )
    assert not has_run(foreign_run)
    succeed(command[0], foreign_run / "config.toml", *command[1:], "--trust")
    assert has_run(foreign_run)
    Path("mine.toml").write_text(
        f'model = "{own_file}"\nrounds = 1\npartition = "iid|keep(samples=40)"', encoding="utf-8"
    )
    succeed("run", "mine.toml", "--out", "first")
    succeed("run", "first/config.toml", "--out", "second")


@pytest.mark.parametrize("name", CALLS)
def test_python_functions_refuse_foreign_code_without_trust(name: str, foreign_run: Path) -> None:
    poison(foreign_run)
    with pytest.raises(UsageError, match="trust=True"):
        CALLS[name](foreign_run, False)
    assert not has_run(foreign_run)
    CALLS[name](foreign_run, True)
    assert has_run(foreign_run)


def test_report_leaves_out_what_needs_foreign_code(foreign_run: Path) -> None:
    evil = poison(foreign_run)
    result = succeed("report", foreign_run)
    (warning,) = [line for line in result.out.splitlines() if line.startswith("Warning: ")]
    assert "left out" in warning
    assert str(evil) in warning
    assert "--trust" in warning
    assert not has_run(foreign_run)
    page = (foreign_run / "report.html").read_text(encoding="utf-8")
    for heading in ("Bytes by round", "How much each party has", "Bytes by party"):
        assert heading in page
    assert "Who holds which classes" not in page
    assert succeed("report", foreign_run, "--quick").out.count("Warning") == 0, (
        "it warns although nothing is left out"
    )
    assert succeed("report", foreign_run, "--table", "markdown").out
    assert not has_run(foreign_run)
    assert "Warning" not in succeed("report", foreign_run, "--trust").out
    assert has_run(foreign_run)
    assert "Who holds which classes" in (foreign_run / "report.html").read_text(encoding="utf-8")


def test_watch_and_list_run_no_foreign_code(foreign_run: Path) -> None:
    poison(foreign_run)
    succeed("watch", foreign_run, "--once")
    succeed("watch", foreign_run.parent, "--once")
    succeed("list", "algorithms")
    assert not has_run(foreign_run)


def test_comparison_beside_a_foreign_run_runs_no_foreign_code(
    foreign_run: Path, tmp_path: Path
) -> None:
    """Neither the comparison nor its report executes code that another run in the folder names."""
    evil = poison(foreign_run)
    (tmp_path / "out" / "fedprox").mkdir(parents=True)
    shutil.move(foreign_run, tmp_path / "out" / "fedprox" / "seed-0")
    message = complaint(comity("compare", "fedprox", *SMALL, "--out", tmp_path / "out"), 2)
    assert "other settings" in message
    result = succeed("compare", "fedavg", *SMALL, "--out", tmp_path / "out", "--report")
    assert str(evil) in result.out
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """The user's own file; its name differs by test, as a process imports a file once."""
    path = tmp_path / f"mine_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(EVIL.format(marker=str(tmp_path / "ran")), encoding="utf-8")
    return path


def test_own_run_needs_no_trust(own_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    succeed(
        "run",
        own_file,
        "--model",
        own_file,
        *SMALL[:4],
        *SMALL[6:],
        "--data",
        own_file,
        "--out",
        out,
    )
    remove_summary(out)
    succeed("resume", out)
    assert export_run(out).code == 0
    assert "Warning" not in succeed("report", out).out.replace("There is no SOLO", "")
    assert load(out / "exported" / "p1").predict(np.zeros((1, 1, 8, 8)))
    # The mark is valid for a copy, too: it does not depend on the path.
    shutil.copytree(out, tmp_path / "copy")
    assert export_run(tmp_path / "copy").code == 0


def test_runs_of_studies_are_marked_as_own(own_file: Path, tmp_path: Path) -> None:
    succeed(
        "compare", own_file, *SMALL, "--leave-one-out", "--leave-out", "p0", "--out", tmp_path / "c"
    )
    succeed("tune", own_file, "--grid", "lr=0.1,0.2", *SMALL, "--out", tmp_path / "t")
    run_folders = [
        path.parent
        for path in tmp_path.rglob("config.toml")
        if str(own_file) in path.read_text(encoding="utf-8")
    ]
    assert len(run_folders) >= 4
    assert all((folder / MARK).is_file() for folder in run_folders)
    assert export_run(run_folders[0]).code == 0
    assert not list((tmp_path / "c" / "solo").rglob(MARK)), "there is nothing to trust"


def test_run_of_another_user_needs_trust(
    own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed("run", own_file, *SMALL, "--out", tmp_path / "out")
    become_somebody_else(monkeypatch, tmp_path)
    message = one_sentence(export_run(tmp_path / "out"), 2)
    assert str(own_file) in message
    assert export_run(tmp_path / "out", "--trust").code == 0


@pytest.mark.parametrize("what", ["settings", "files", "code", "no JSON", "a list", "nothing"])
def test_forged_mark_is_refused(
    what: str, own_file: Path, foreign_run: Path, tmp_path: Path
) -> None:
    """The mark of one run is not valid for another."""
    succeed("run", own_file, *SMALL, "--out", tmp_path / "out")
    own = json.loads((tmp_path / "out" / MARK).read_text(encoding="utf-8"))
    (tmp_path / "ran").unlink()
    evil = poison(foreign_run)
    forged_mark = {
        "settings": json.dumps(own),
        "files": json.dumps(own | {"files": {str(evil): own["files"][str(own_file)]}}),
        "code": json.dumps({"files": own["files"], "code": None}),
        "no JSON": "{",
        "a list": "[]",
        "nothing": "",
    }[what]
    (foreign_run / MARK).write_text(forged_mark, encoding="utf-8")
    assert str(evil) in one_sentence(export_run(foreign_run), 2)
    assert not has_run(foreign_run)


def forget(own_file: Path) -> None:
    """Let this process import the file again."""
    del sys.modules[f"comity_user.{own_file.stem}"]


def test_changed_code_is_refused_without_trust(own_file: Path, tmp_path: Path) -> None:
    """Resume and compare are refused; with --trust the run keeps a warning."""
    out = tmp_path / "out" / own_file.stem / "seed-0"
    succeed("run", own_file, *SMALL, "--out", out)
    remove_summary(out)
    forget(own_file)
    own_file.write_text(own_file.read_text(encoding="utf-8") + "\n# better\n", encoding="utf-8")
    message = one_sentence(comity("resume", out), 2)
    assert f"{own_file} has changed since" in message
    assert "--trust" in message
    message = complaint(comity("compare", own_file, *SMALL, "--out", tmp_path / "out"), 2)
    assert f"{own_file} has changed since" in message
    with pytest.raises(UsageError, match="has changed since"):
        api.run(str(own_file), out=out, resume=True, **HOW)
    result = succeed("resume", out, "--trust")
    assert f"{own_file} has changed since" in result.out
    assert any("has changed since" in warning for warning in warning_texts(summary(out), "during"))


def test_file_named_in_a_python_call_is_trusted(
    own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that the call names is trusted in any folder."""
    api.run(str(own_file), out=tmp_path / "out", **HOW)
    become_somebody_else(monkeypatch, tmp_path)
    remove_summary(tmp_path / "out")
    api.run(str(own_file), out=tmp_path / "out", resume=True, **HOW)


def run_predict(script: Path, *args: object) -> CommandResult:
    """`python predict.py ARGS`, inside this process."""
    out = io.StringIO()
    before, sys.argv = sys.argv, [str(script), *map(str, args)]
    try:
        with contextlib.redirect_stdout(out):
            sys.modules.pop("preparation", None)
            sys.path.insert(0, str(script.parent))
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        return CommandResult(1, out.getvalue(), str(end.code))
    finally:
        sys.argv = before
        sys.path.remove(str(script.parent))
    return CommandResult(0, out.getvalue(), "")


def test_exported_model_with_foreign_code(
    own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed("run", "fedavg", "--model", own_file, *SMALL[:4], *SMALL[6:], "--out", tmp_path / "out")
    succeed("export", tmp_path / "out", "--party", "p1", "--out", tmp_path / "gift")
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8)))
    script, samples = tmp_path / "gift" / "predict.py", tmp_path / "x.npy"
    ours = run_predict(script, samples)
    assert ours.out.count("\n") == 3
    become_somebody_else(monkeypatch, tmp_path)
    forget(own_file)
    (tmp_path / "ran").unlink()
    with pytest.raises(UsageError, match="trust=True") as error:
        load(tmp_path / "gift")
    assert str(own_file) in str(error.value)
    assert run_predict(script, samples) == ours, (
        "the script needs the user's file, although the network is beside it"
    )
    assert not (tmp_path / "ran").exists()
    assert len(load(tmp_path / "gift", trust=True).predict(np.zeros((1, 1, 8, 8)))) == 1
    assert (tmp_path / "ran").exists()


def test_secret_is_readable_by_its_user_only(own_file: Path, tmp_path: Path) -> None:
    succeed("run", own_file, *SMALL, "--out", tmp_path / "out")
    (secret,) = state_folder().iterdir()
    assert secret.stat().st_mode & 0o777 == stat.S_IRUSR | stat.S_IWUSR
    assert len(secret.read_bytes()) == 32
    assert secret.read_bytes().hex() not in (tmp_path / "out" / MARK).read_text(encoding="utf-8")


@pytest.mark.parametrize("how", ["a file in its place", "damaged", "no home"])
def test_without_a_secret_own_runs_need_trust(
    how: str, own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs start; opening them needs --trust, and the message says why."""
    if how == "a file in its place":
        (tmp_path / "user").write_text("", encoding="utf-8")
    elif how == "damaged":
        (tmp_path / "user" / "comity").mkdir(parents=True)
        (tmp_path / "user" / "comity" / "secret").write_bytes(b"short")
    else:
        monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
        monkeypatch.setenv("HOME", "/dev/null")
    succeed("run", own_file, *SMALL, "--out", tmp_path / "out")
    remove_summary(tmp_path / "out")
    message = one_sentence(comity("resume", tmp_path / "out"), 2)
    assert str(own_file) in message
    assert str(state_folder()) in message
    succeed("resume", tmp_path / "out", "--trust")


def test_concurrent_runs_share_one_secret() -> None:
    with ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(lambda _: _secret(), range(64)))) == 1
    assert len(list(state_folder().iterdir())) == 1


def test_compiled_file_is_not_executed(foreign_run: Path) -> None:
    """Python would import a .pyc with the time and size of the source file."""
    evil = poison(foreign_run)
    harmless_source = evil.read_text(encoding="utf-8").replace("ran", "new")
    time = evil.stat().st_mtime_ns
    py_compile.compile(str(evil), cfile=importlib.util.cache_from_source(str(evil)))
    evil.write_text(harmless_source, encoding="utf-8")
    os.utime(evil, ns=(time, time))
    assert export_run(foreign_run, "--trust").code == 0
    assert not has_run(foreign_run)


def test_modules_that_import_users_files() -> None:
    """`trust.code_of` must know every setting by which these modules import users' files."""
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
        "names.py",  # only looks at names
        "papers/reproduce.py",  # likewise
        "runs/loop.py",  # likewise
        "track/__init__.py",
        "deploy/policy.py",  # refuses them
    }
    assert is_code("./mine.py")
    assert not is_code("mlp2(width=8)")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_file_changed_while_in_use_is_warned_of(own_file: Path, tmp_path: Path) -> None:
    """It is imported once, so that all runs of a comparison use one version; a change is warned
    of.
    """
    api.run(str(own_file), **HOW)
    own_file.write_text(own_file.read_text(encoding="utf-8") + "\n# better\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="the earlier version is used"):
        api.run(str(own_file), out=tmp_path / "out", **HOW)
    assert export_run(tmp_path / "out").code == 0
    forget(own_file)
    assert "has changed since" in one_sentence(export_run(tmp_path / "out"), 2), (
        "the mark is not that of the executed version"
    )
