"""A run's files are what the run wrote: every changed file is detected before its figures are used."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import comity
from comity.checksums import Checksum, with_crc, without_crc
from comity.engines.saved import Saved, read_state, write_state
from comity.errors import ComityError, CorruptedFile, UsageError
from comity.measure import conventions
from comity.reporting import report
from comity.reporting.static import ranking
from comity.runs import checkpoint, environment
from comity.runs import loop as rounds_of
from comity.runs.folder import RunFolder
from comity.runs.run import reopen, resume_in
from comity.runs.run_warnings import warning_texts
from comity.runs.server_run import Quiet
from comity.runs.tables import TABLES
from comity.studies.export import export
from comity.studies.export import load as load_exported
from comity.studies.parallel import run_once
from comity.wire.codec import decode

SETTINGS: dict[str, Any] = {
    "data": "digits", "partition": "iid|keep(samples=40)", "parties": 2, "model": "linear", "rounds": 3, "engine": "loop",
    "absent": "random(lost=0.3)",
}  # fmt: skip
METHOD = "scaffold"  # its parties keep states
TABLE_NAMES = [table.name for table in TABLES]


class Stop(Quiet):
    """Ctrl-C after round 1."""

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        if t == 1:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def original_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run, and the same run finished."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            comity.run(METHOD, out=folder / "stopped", progress=Stop(), **SETTINGS)
    comity.run(METHOD, out=folder / "finished", **SETTINGS)
    return folder


@pytest.fixture
def stopped_run(original_runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original_runs / "stopped", tmp_path / "stopped"))


@pytest.fixture
def finished_run(original_runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original_runs / "finished", tmp_path / "finished"))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name != ".lock"
    }


def resume_run(folder: Path) -> comity.Result:
    return resume_in(reopen(folder), folder, Quiet())


def manifest_of(folder: Path) -> dict[str, Any]:
    return without_crc(
        json.loads((folder / "checkpoints" / "manifest.json").read_text(encoding="utf-8"))
    )


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / "checkpoints" / "manifest.json").write_text(
        json.dumps(with_crc(manifest)), encoding="utf-8"
    )


def nines(text: str) -> str:
    """Every row's last figure begins with a 9, or with an 8 where it began with a 9."""
    heads, *rows = text.split("\n")
    return "\n".join([heads, *(re.sub(r",(.)([^,]*)$", _other_digit, row) for row in rows)])


def _other_digit(match: re.Match[str]) -> str:
    return f",{8 if match[1] == '9' else 9}{match[2]}"


def zero_values(text: str) -> str:
    return "\0" * len(text)


def swap_rows(text: str) -> str:
    """Two rows swapped."""
    heads, *rows = text.split("\n")
    return "\n".join([heads, *rows[1::-1], *rows[2:]])


DAMAGES: list[Callable[[str], str]] = [nines, zero_values, swap_rows]


def damage(path: Path, how: Callable[[str], str]) -> None:
    before = path.read_text(encoding="utf-8")
    after = (
        how(before) if before.count("\n") > 2 or path.suffix != ".csv" else before.swapcase()
    )  # a table without rows
    assert after != before
    path.write_text(after, encoding="utf-8")


# --- a run that was stopped


@pytest.mark.parametrize("how", DAMAGES, ids=lambda how: how.__name__)
@pytest.mark.parametrize("name", TABLE_NAMES)
def test_changed_rows_are_detected_before_anything_is_truncated(
    name: str, how: Callable[[str], str], stopped_run: Path
) -> None:
    damage(stopped_run / name, how)
    for other in TABLE_NAMES:  # rows after the checkpoint, which a successful resume would remove
        with (stopped_run / other).open("a", encoding="utf-8") as table:
            table.write("2,rows,of,a,later,round\n")
    before = contents(stopped_run)
    with pytest.raises(ComityError, match=rf"{name} is damaged: it is not what was written"):
        resume_run(stopped_run)
    assert contents(stopped_run) == before


def test_a_table_that_is_too_short_leaves_the_others_unchanged(stopped_run: Path) -> None:
    with (stopped_run / TABLE_NAMES[0]).open("a", encoding="utf-8") as table:
        table.write("2,rows,of,a,later,round\n")
    (stopped_run / TABLE_NAMES[-1]).write_text("", encoding="utf-8")
    before = contents(stopped_run)
    with pytest.raises(ComityError, match=rf"{TABLE_NAMES[-1]} is damaged: it is shorter"):
        resume_run(stopped_run)
    assert contents(stopped_run) == before


def test_checksums_are_updated_without_reading_files(
    stopped_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They equal the files' checksums at each checkpoint and at the end."""
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    assert manifest_of(stopped_run)["files"].keys() == set(TABLE_NAMES)
    resume_run(stopped_run)
    checksums = json.loads((stopped_run / ".checksums.json").read_text(encoding="utf-8"))
    names = [*TABLE_NAMES, "outcomes.csv", "summary.json"]
    assert checksums["files"] == {
        name: list(Checksum.of((stopped_run / name).read_bytes())) for name in names
    }
    RunFolder(stopped_run).check()


def test_a_run_of_an_earlier_version_resumes_with_a_warning(
    stopped_run: Path, original_runs: Path
) -> None:
    manifest = manifest_of(stopped_run)
    manifest["lengths"] = {name: length for name, (length, _) in manifest.pop("files").items()}
    write_manifest(stopped_run, manifest)
    environment_fields = {
        k: v
        for k, v in json.loads((stopped_run / "env.json").read_text()).items()
        if k not in ("crc", "split", "cpu")
    }
    (stopped_run / "env.json").write_text(json.dumps(environment_fields), encoding="utf-8")
    result = resume_run(stopped_run)
    assert warning_texts(result.summary, "during") == [rounds_of.UNCHECKED]
    for name in ("metrics.csv", "ledger.csv", "outcomes.csv"):
        assert (stopped_run / name).read_bytes() == (original_runs / "finished" / name).read_bytes()
    assert all(crc is not None for _, crc in manifest_of(stopped_run)["files"].values())


def test_a_run_of_an_earlier_version_without_a_table_of_today(
    stopped_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = manifest_of(stopped_run)
    del manifest["files"]["timing.csv"]
    (stopped_run / "timing.csv").unlink()
    write_manifest(stopped_run, manifest)
    resume_run(stopped_run)
    assert [row.round for row in RunFolder(stopped_run).read_timing()] == [2, 3]


def test_outcomes_changed_before_the_summary_was_written(finished_run: Path) -> None:
    """All rounds are done, so outcomes are not written again."""
    (finished_run / "summary.json").unlink()
    damage(finished_run / "outcomes.csv", lambda text: text.replace(",0\n", ",1\n", 3))
    with pytest.raises(ComityError, match=r"outcomes\.csv is damaged"):
        resume_run(finished_run)
    with pytest.raises(ComityError, match=r"outcomes\.csv is damaged"):
        conventions.run_figures(finished_run)


@pytest.mark.parametrize("name", ["split.json", "env.json", "config.toml"])
def test_changed_input_files_of_a_run_are_detected(
    name: str, stopped_run: Path, finished_run: Path
) -> None:
    def other_digit(text: str) -> str:
        at = text.rindex("1")
        return f"{text[:at]}2{text[at + 1 :]}"

    for folder in (stopped_run, finished_run):
        damage(folder / name, other_digit)
        assert RunFolder(folder).damaged() == [name]
        with pytest.raises(ComityError, match=name.replace(".", r"\.")):
            resume_run(folder)


# --- a finished run


@pytest.mark.parametrize("how", DAMAGES, ids=lambda how: how.__name__)
@pytest.mark.parametrize("name", [*TABLE_NAMES, "outcomes.csv"])
def test_changed_tables_of_a_finished_run(
    name: str, how: Callable[[str], str], finished_run: Path
) -> None:
    damage(finished_run / name, how)
    run = RunFolder(finished_run)
    assert run.damaged() == [name]
    with pytest.raises(ComityError, match=f"{name} is damaged"):
        {
            "metrics.csv": run.read_metrics, "ledger.csv": run.read_ledger, "timing.csv": run.read_timing,
            "outcomes.csv": run.read_outcomes,
        }.get(name, run.check)()  # fmt: skip
    with pytest.raises(ComityError, match=f"{name} is damaged"):
        resume_run(finished_run)
    with pytest.raises(ComityError, match=f"{name} is damaged"):
        run_once(run.read_experiment(), reopen(finished_run).federation, finished_run, Quiet())
    page = report(finished_run, quick=True).read_text(encoding="utf-8")
    assert re.search(f"{name} (is damaged|and summary.json do not agree)", page)
    for kind, mark in (("markdown", ">"), ("latex", "%")):
        assert re.search(
            f"{mark} finished: {name} (is damaged|and summary.json do not agree)",
            ranking(finished_run, kind),
        )


def test_a_lost_table_of_a_finished_run(finished_run: Path) -> None:
    (finished_run / "ledger.csv").unlink()
    with pytest.raises(ComityError, match=r"ledger\.csv cannot be read"):
        resume_run(finished_run)
    assert "ledger.csv is missing" in report(finished_run, quick=True).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "place", [("accuracy", "mean"), ("bytes", "up"), ("seconds", "total"), ("steps",)]
)
def test_a_summary_with_another_figure(place: tuple[str, ...], finished_run: Path) -> None:
    path = finished_run / "summary.json"
    summary = inner = json.loads(path.read_text(encoding="utf-8"))
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = 7
    path.write_text(json.dumps(summary), encoding="utf-8")
    for reading in (RunFolder(finished_run).read_summary, lambda: resume_run(finished_run)):
        with pytest.raises(ComityError, match=r"summary\.json"):
            reading()
    assert "summary.json is damaged" in report(finished_run, quick=True).read_text(encoding="utf-8")


@pytest.mark.parametrize("how", ["lost", "another", "unmarked"])
def test_damaged_checksums_are_detected(how: str, finished_run: Path) -> None:
    """A missing checksum file is an error, except for runs of earlier versions, which had none."""
    path = finished_run / ".checksums.json"
    if how == "lost":
        path.unlink()
    else:
        damage(
            path,
            lambda text: (
                text.replace('"crc"', '"crd"') if how == "unmarked" else text.replace("[", "[1", 1)
            ),
        )
    for reading in (
        RunFolder(finished_run).read_summary,
        RunFolder(finished_run).read_ledger,
        lambda: resume_run(finished_run),
    ):
        with pytest.raises(ComityError, match=r"checksums\.json cannot be read"):
            reading()
    assert ".checksums.json is " in report(finished_run, quick=True).read_text(encoding="utf-8")


def test_a_finished_run_of_an_earlier_version(finished_run: Path) -> None:
    (finished_run / ".checksums.json").unlink()
    environment_fields = {
        k: v
        for k, v in json.loads((finished_run / "env.json").read_text()).items()
        if k not in ("crc", "split", "cpu")
    }
    (finished_run / "env.json").write_text(json.dumps(environment_fields), encoding="utf-8")
    assert RunFolder(finished_run).damaged() == []
    assert resume_run(finished_run).summary["rounds"] == 3


def test_killed_before_the_summary(finished_run: Path, original_runs: Path) -> None:
    """Checksums exist but the summary does not: the run continues from its last checkpoint and
    writes both again.
    """
    (finished_run / "summary.json").unlink()
    resume_run(finished_run)
    RunFolder(finished_run).check()
    for name in ("metrics.csv", "ledger.csv", "outcomes.csv"):
        assert (finished_run / name).read_bytes() == (
            original_runs / "finished" / name
        ).read_bytes()


def test_the_summary_is_read_as_it_was_returned(tmp_path: Path) -> None:
    result = comity.run(METHOD, out=tmp_path / "run", **SETTINGS)
    assert RunFolder(tmp_path / "run").read_summary() == result.summary


def test_damaged_measures_are_detected(finished_run: Path) -> None:
    run = RunFolder(finished_run)
    run.write_measures({"layers": {}, "samples": 12})
    assert run.read_measures() == {"layers": {}, "samples": 12}
    damage(run.measures, lambda text: text.replace("12", "21", 1))
    with pytest.raises(ComityError, match=r"measures\.json"):
        run.read_measures()
    assert "measures.json is damaged" in report(finished_run, quick=True).read_text(
        encoding="utf-8"
    )


def test_resuming_a_finished_run_writes_nothing(finished_run: Path, original_runs: Path) -> None:
    """Nothing is truncated or written again: a kill during that would leave a damaged run."""
    before = contents(finished_run)
    result = comity.run(METHOD, out=finished_run, resume=True, **SETTINGS)
    assert contents(finished_run) == before
    assert result.summary == RunFolder(original_runs / "finished").read_summary()
    shutil.rmtree(finished_run / "checkpoints")  # which a finished run does not need
    comity.run(METHOD, out=finished_run, resume=True, **SETTINGS)
    assert contents(finished_run).items() <= before.items()


def test_a_damaged_exported_model_is_refused(finished_run: Path, tmp_path: Path) -> None:
    """A changed weight or swapped class names would be another model."""
    exported_folder = tmp_path / "taken"
    export(resume_run(finished_run), "p0", exported_folder)
    load_exported(exported_folder)
    for name, how in (
        ("weights.safetensors", flip_byte),
        ("model.json", lambda blob: blob.replace(b'"3"', b'"4"', 1)),
    ):
        before = (exported_folder / name).read_bytes()
        (exported_folder / name).write_bytes(how(before))
        assert (exported_folder / name).read_bytes() != before
        with pytest.raises(ComityError, match="or a damaged one"):
            load_exported(exported_folder)
        (exported_folder / name).write_bytes(before)


def flip_byte(blob: bytes) -> bytes:
    return blob[:-1] + bytes([blob[-1] ^ 1])


# --- checkpoints


@pytest.mark.parametrize("whose", ["server", "party"])
def test_a_changed_state_is_not_continued_from(whose: str, stopped_run: Path) -> None:
    """One bit of a weight: the file has its length, and can be decoded."""
    manifest = manifest_of(stopped_run)
    saved = Saved(*(manifest["server"] if whose == "server" else manifest["parties"][0]))
    path = stopped_run / "checkpoints" / saved.file
    blob = flip_byte(path.read_bytes())
    decode(blob)
    path.write_bytes(blob)
    before = contents(stopped_run)
    with pytest.raises(CorruptedFile, match=f"{saved.file} is not what was written"):
        resume_run(stopped_run)
    assert contents(stopped_run) == before


def test_files_are_synced_before_the_manifest_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    synced: dict[tuple[int, int], int] = {}
    state_counts = []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(descriptor: int) -> None:
        about = os.fstat(descriptor)
        synced[about.st_dev, about.st_ino] = -1 if stat.S_ISDIR(about.st_mode) else about.st_size
        fsync(descriptor)

    def on_disk(path: Path, length: int) -> bool:
        about = path.stat()
        return synced.get((about.st_dev, about.st_ino)) == length

    def checking_replace(temporary: str, name: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        folder = Path(os.readlink(f"/proc/self/fd/{src_dir_fd}"))
        fresh, path = folder / temporary, folder / name
        if path.name == "manifest.json":
            manifest = json.loads(fresh.read_text(encoding="utf-8"))
            states = [Saved(*saved) for saved in (manifest["server"], *manifest["parties"])]
            assert all(on_disk(path.parent / saved.file, saved.bytes) for saved in states)
            assert all(
                on_disk(path.parent.parent / name, length)
                for name, (length, _) in manifest["files"].items()
            )
            assert on_disk(fresh, fresh.stat().st_size)
            state_counts.append(len(states))
        replace(temporary, name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        synced.pop((path.parent.stat().st_dev, path.parent.stat().st_ino), None)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", checking_replace)
    comity.run(METHOD, out=tmp_path / "run", **SETTINGS)
    assert state_counts == [1, 2, 3, 3]  # in round 1 one reply is lost, and with it the state
    for folder in (
        tmp_path / "run",
        tmp_path / "run" / "checkpoints",
    ):  # the directories are synced, too
        assert on_disk(folder, -1)


def test_a_manifest_without_its_checksum(stopped_run: Path) -> None:
    """Nobody could tell whether it is what was written."""
    path = stopped_run / "checkpoints" / "manifest.json"
    path.write_text(json.dumps(manifest_of(stopped_run)), encoding="utf-8")
    with pytest.raises(CorruptedFile, match=r"manifest\.json cannot be read"):
        resume_run(stopped_run)


def test_other_files_in_the_checkpoint_folder_are_kept(stopped_run: Path) -> None:
    folder = stopped_run / "checkpoints"
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    (folder / "party-x-1.safetensors").write_text("mine", encoding="utf-8")
    (folder / "inner").mkdir()
    (folder / "party-0-0.safetensors").mkdir()
    resume_run(stopped_run)
    strangers = {
        "notes.txt",
        "party-x-1.safetensors",
        "inner",
        "party-0-0.safetensors",
    }
    assert {p.name for p in folder.iterdir()} - strangers == {
        "manifest.json", "server-3.safetensors", "party-0-3.safetensors", "party-1-3.safetensors",
    }  # fmt: skip
    assert strangers <= {p.name for p in folder.iterdir()}


@pytest.mark.parametrize(
    "name",
    [
        "../state",
        "/etc/hostname",
        "..",
        "",
        "a/server-1.safetensors",
        "server-1.safetensors/../../x",
    ],
)
@pytest.mark.parametrize("whose", ["server", "party"])
def test_a_manifest_with_a_path_outside_is_refused(
    name: str, whose: str, stopped_run: Path
) -> None:
    manifest = manifest_of(stopped_run)
    saved = manifest["server"] if whose == "server" else manifest["parties"][0]
    shutil.copy(stopped_run / "checkpoints" / saved[1], stopped_run / "state")
    saved[1] = name
    write_manifest(stopped_run, manifest)
    with pytest.raises(ComityError, match="The checkpoint is damaged"):
        resume_run(stopped_run)


def test_a_state_that_is_a_symlink_is_refused(tmp_path: Path) -> None:
    """A symlink could make Comity read or write any file."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "checkpoints" / "server-1.safetensors").symlink_to(tmp_path / "secret")
    with pytest.raises(ComityError, match="cannot be read"):
        read_state(
            tmp_path / "checkpoints", Saved(-1, "server-1.safetensors", 6, zlib.crc32(b"secret"))
        )
    saved = write_state(tmp_path / "checkpoints", "server-1.safetensors", -1, b"other")
    assert (tmp_path / "checkpoints" / saved.file).read_bytes() == b"other"
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_a_state_that_is_huge_or_endless_is_refused(tmp_path: Path) -> None:
    """The length is checked before the file is read."""
    with (tmp_path / "server-1.safetensors").open("wb") as file:
        file.truncate(1 << 43)  # a sparse file
    with pytest.raises(ComityError, match="is not what was written"):
        read_state(tmp_path, Saved(-1, "server-1.safetensors", 12, 0))
    with pytest.raises(ComityError, match="more than this machine's memory"):
        read_state(tmp_path, Saved(-1, "server-1.safetensors", 1 << 43, 0))
    os.mkfifo(tmp_path / "server-2.safetensors")
    with pytest.raises(ComityError, match="is not what was written"):
        read_state(tmp_path, Saved(-1, "server-2.safetensors", 12, 0))


def test_a_slow_disk_makes_checkpoints_rarer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints take less than 2 % of the time, however slow the disk is."""
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    states = checkpoint.Checkpoints(tmp_path)
    for took, wait in ((0.0, 5), (0.1, 5), (0.4, 20), (10, 500)):
        states.last, states.took = now, took
        now += wait - 0.01
        assert not states.due()
        now += 0.02
        assert states.due()


# --- other versions, another machine


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"torch": "2.0.1"}, "begun with torch 2.0.1 and went on with torch "),
        ({"numpy": "1.0", "code": "version 0.1"}, "begun with version 0.1 and numpy 1.0 and went on with "),
        ({"cpu": "ABACUS"}, "begun with kernels for ABACUS and went on with kernels for "),
        ({"machine": "abacus", "system": "Rome"}, "begun with Rome and abacus and went on with "),
        ({"python": "2.7.1"}, "begun with Python 2.7.1 and went on with Python "),
        ({"cores": 4096}, ""),
    ],
    ids=str,
)  # fmt: skip
def test_changed_versions_are_warned_about(
    change: dict[str, Any], expected: str, stopped_run: Path, original_runs: Path
) -> None:
    """The run continues; its summary has the warning as well."""
    path = stopped_run / "env.json"
    path.write_text(
        json.dumps(with_crc(RunFolder(stopped_run).read_environment() | change)), encoding="utf-8"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = comity.run(METHOD, out=stopped_run, resume=True, **SETTINGS)
    version_warnings = warning_texts(
        json.loads((stopped_run / "summary.json").read_text("utf-8")), "during"
    )
    assert (
        warning_texts(result.summary, "during")
        == version_warnings
        == [str(w.message) for w in caught if "begun with" in str(w.message)]
    )
    assert len(version_warnings) == bool(expected)
    assert all(expected in warning for warning in version_warnings)
    assert (stopped_run / "metrics.csv").read_bytes() == (
        original_runs / "finished" / "metrics.csv"
    ).read_bytes()


def test_a_python_patch_release_is_no_change() -> None:
    now = environment.here()
    assert not environment.changed_since(now | {"python": now["python"].rpartition(".")[0] + ".99"})
    assert not environment.changed_since({})  # the environment of a version that recorded less


def test_resume_with_another_engine_keeps_the_runs_engine(stopped_run: Path) -> None:
    with pytest.warns(
        UserWarning,
        match="was started with engine=loop and continues with it; engine=stacked is ignored",
    ):
        comity.run(METHOD, out=stopped_run, resume=True, **SETTINGS | {"engine": "stacked"})
    assert RunFolder(stopped_run).read_experiment().engine == "loop"


def test_a_run_with_other_settings_is_still_refused(stopped_run: Path) -> None:
    with pytest.raises(UsageError, match="other settings"):
        comity.run(METHOD, out=stopped_run, resume=True, **SETTINGS | {"lr": 0.5})
