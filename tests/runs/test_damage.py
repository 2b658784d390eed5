"""A run's files are what the run wrote, or it is said: nobody reads a figure that was changed on
the way.
"""

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
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped, and the same one finished."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            comity.run(METHOD, out=folder / "stopped", progress=Stop(), **SETTINGS)
    comity.run(METHOD, out=folder / "finished", **SETTINGS)
    return folder


@pytest.fixture
def stopped(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "stopped", tmp_path / "stopped"))


@pytest.fixture
def finished(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "finished", tmp_path / "finished"))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name != ".lock"
    }


def resumed(folder: Path) -> comity.Result:
    return resume_in(reopen(folder), folder, Quiet())


def manifest_of(folder: Path) -> dict[str, Any]:
    return without_crc(
        json.loads((folder / "checkpoints" / "manifest.json").read_text(encoding="utf-8"))
    )


def write_manifest(folder: Path, told: dict[str, Any]) -> None:
    (folder / "checkpoints" / "manifest.json").write_text(
        json.dumps(with_crc(told)), encoding="utf-8"
    )


def nines(text: str) -> str:
    """Every row's last figure begins with a 9, or with an 8 where it began with a 9."""
    heads, *rows = text.split("\n")
    return "\n".join([heads, *(re.sub(r",(.)([^,]*)$", _other_digit, row) for row in rows)])


def _other_digit(found: re.Match[str]) -> str:
    return f",{8 if found[1] == '9' else 9}{found[2]}"


def zeroed(text: str) -> str:
    return "\0" * len(text)


def swapped(text: str) -> str:
    """Two rows have changed places."""
    heads, *rows = text.split("\n")
    return "\n".join([heads, *rows[1::-1], *rows[2:]])


DAMAGES: list[Callable[[str], str]] = [nines, zeroed, swapped]


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
def test_changed_rows_are_noticed_before_anything_is_cut(
    name: str, how: Callable[[str], str], stopped: Path
) -> None:
    damage(stopped / name, how)
    for other in TABLE_NAMES:  # rows behind the checkpoint, which a resume that goes well would cut
        with (stopped / other).open("a", encoding="utf-8") as table:
            table.write("2,rows,of,a,later,round\n")
    before = contents(stopped)
    with pytest.raises(ComityError, match=rf"{name} is damaged: it is not what was written"):
        resumed(stopped)
    assert contents(stopped) == before


def test_a_table_that_is_too_short_costs_the_others_nothing(stopped: Path) -> None:
    with (stopped / TABLE_NAMES[0]).open("a", encoding="utf-8") as table:
        table.write("2,rows,of,a,later,round\n")
    (stopped / TABLE_NAMES[-1]).write_text("", encoding="utf-8")
    before = contents(stopped)
    with pytest.raises(ComityError, match=rf"{TABLE_NAMES[-1]} is damaged: it is shorter"):
        resumed(stopped)
    assert contents(stopped) == before


def test_checksums_are_kept_up_without_reading(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of the files, at each checkpoint and at the end."""
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    assert manifest_of(stopped)["files"].keys() == set(TABLE_NAMES)
    resumed(stopped)
    told = json.loads((stopped / ".checksums.json").read_text(encoding="utf-8"))
    names = [*TABLE_NAMES, "outcomes.csv", "summary.json"]
    assert told["files"] == {
        name: list(Checksum.of((stopped / name).read_bytes())) for name in names
    }
    RunFolder(stopped).check()


def test_a_run_of_an_earlier_version_goes_on_and_says_so(stopped: Path, made: Path) -> None:
    told = manifest_of(stopped)
    told["lengths"] = {name: length for name, (length, _) in told.pop("files").items()}
    write_manifest(stopped, told)
    kept = {
        k: v
        for k, v in json.loads((stopped / "env.json").read_text()).items()
        if k not in ("crc", "split", "cpu")
    }
    (stopped / "env.json").write_text(json.dumps(kept), encoding="utf-8")
    result = resumed(stopped)
    assert warning_texts(result.summary, "during") == [rounds_of.UNCHECKED]
    for name in ("metrics.csv", "ledger.csv", "outcomes.csv"):
        assert (stopped / name).read_bytes() == (made / "finished" / name).read_bytes()
    assert all(crc is not None for _, crc in manifest_of(stopped)["files"].values())


def test_a_run_of_an_earlier_version_without_a_table_of_today(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = manifest_of(stopped)
    del told["files"]["timing.csv"]
    (stopped / "timing.csv").unlink()
    write_manifest(stopped, told)
    resumed(stopped)
    assert [row.round for row in RunFolder(stopped).read_timing()] == [2, 3]


def test_outcomes_changed_before_the_summary_was_written(finished: Path) -> None:
    """All rounds are over, so they are not written again."""
    (finished / "summary.json").unlink()
    damage(finished / "outcomes.csv", lambda text: text.replace(",0\n", ",1\n", 3))
    with pytest.raises(ComityError, match=r"outcomes\.csv is damaged"):
        resumed(finished)
    with pytest.raises(ComityError, match=r"outcomes\.csv is damaged"):
        conventions.run_figures(finished)


@pytest.mark.parametrize("name", ["split.json", "env.json", "config.toml"])
def test_what_a_run_began_with_was_changed(name: str, stopped: Path, finished: Path) -> None:
    def other_digit(text: str) -> str:
        at = text.rindex("1")
        return f"{text[:at]}2{text[at + 1 :]}"

    for folder in (stopped, finished):
        damage(folder / name, other_digit)
        assert RunFolder(folder).damaged() == [name]
        with pytest.raises(ComityError, match=name.replace(".", r"\.")):
            resumed(folder)


# --- a finished run


@pytest.mark.parametrize("how", DAMAGES, ids=lambda how: how.__name__)
@pytest.mark.parametrize("name", [*TABLE_NAMES, "outcomes.csv"])
def test_changed_tables_of_a_finished_run(
    name: str, how: Callable[[str], str], finished: Path
) -> None:
    damage(finished / name, how)
    run = RunFolder(finished)
    assert run.damaged() == [name]
    with pytest.raises(ComityError, match=f"{name} is damaged"):
        {
            "metrics.csv": run.read_metrics, "ledger.csv": run.read_ledger, "timing.csv": run.read_timing,
            "outcomes.csv": run.read_outcomes,
        }.get(name, run.check)()  # fmt: skip
    with pytest.raises(ComityError, match=f"{name} is damaged"):
        resumed(finished)
    with pytest.raises(ComityError, match=f"{name} is damaged"):
        run_once(run.read_experiment(), reopen(finished).federation, finished, Quiet())
    page = report(finished, quick=True).read_text(encoding="utf-8")
    assert re.search(f"{name} (is damaged|and summary.json do not agree)", page)
    for kind, mark in (("markdown", ">"), ("latex", "%")):
        assert re.search(
            f"{mark} finished: {name} (is damaged|and summary.json do not agree)",
            ranking(finished, kind),
        )


def test_a_lost_table_of_a_finished_run(finished: Path) -> None:
    (finished / "ledger.csv").unlink()
    with pytest.raises(ComityError, match=r"ledger\.csv cannot be read"):
        resumed(finished)
    assert "ledger.csv is missing" in report(finished, quick=True).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "place", [("accuracy", "mean"), ("bytes", "up"), ("seconds", "total"), ("steps",)]
)
def test_a_summary_with_another_figure(place: tuple[str, ...], finished: Path) -> None:
    path = finished / "summary.json"
    told = inner = json.loads(path.read_text(encoding="utf-8"))
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = 7
    path.write_text(json.dumps(told), encoding="utf-8")
    for reading in (RunFolder(finished).read_summary, lambda: resumed(finished)):
        with pytest.raises(ComityError, match=r"summary\.json"):
            reading()
    assert "summary.json is damaged" in report(finished, quick=True).read_text(encoding="utf-8")


@pytest.mark.parametrize("how", ["lost", "another", "unmarked"])
def test_the_checksums_themselves(how: str, finished: Path) -> None:
    """Without them nobody can know; a run of an earlier version never had any."""
    path = finished / ".checksums.json"
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
        RunFolder(finished).read_summary,
        RunFolder(finished).read_ledger,
        lambda: resumed(finished),
    ):
        with pytest.raises(ComityError, match=r"checksums\.json cannot be read"):
            reading()
    assert ".checksums.json is " in report(finished, quick=True).read_text(encoding="utf-8")


def test_a_finished_run_of_an_earlier_version(finished: Path) -> None:
    (finished / ".checksums.json").unlink()
    kept = {
        k: v
        for k, v in json.loads((finished / "env.json").read_text()).items()
        if k not in ("crc", "split", "cpu")
    }
    (finished / "env.json").write_text(json.dumps(kept), encoding="utf-8")
    assert RunFolder(finished).damaged() == []
    assert resumed(finished).summary["rounds"] == 3


def test_killed_before_the_summary(finished: Path, made: Path) -> None:
    """Checksums are there, the summary is not: the run goes on from its last checkpoint, and both
    are written again.
    """
    (finished / "summary.json").unlink()
    resumed(finished)
    RunFolder(finished).check()
    for name in ("metrics.csv", "ledger.csv", "outcomes.csv"):
        assert (finished / name).read_bytes() == (made / "finished" / name).read_bytes()


def test_the_summary_is_read_as_it_was_returned(tmp_path: Path) -> None:
    result = comity.run(METHOD, out=tmp_path / "run", **SETTINGS)
    assert RunFolder(tmp_path / "run").read_summary() == result.summary


def test_measures_are_checked(finished: Path) -> None:
    run = RunFolder(finished)
    run.write_measures({"layers": {}, "samples": 12})
    assert run.read_measures() == {"layers": {}, "samples": 12}
    damage(run.measures, lambda text: text.replace("12", "21", 1))
    with pytest.raises(ComityError, match=r"measures\.json"):
        run.read_measures()
    assert "measures.json is damaged" in report(finished, quick=True).read_text(encoding="utf-8")


def test_a_finished_run_is_left_alone(finished: Path, made: Path) -> None:
    """Nothing is cut and nothing written again: killed in the middle of that, it would seem
    damaged.
    """
    before = contents(finished)
    result = comity.run(METHOD, out=finished, resume=True, **SETTINGS)
    assert contents(finished) == before
    assert result.summary == RunFolder(made / "finished").read_summary()
    shutil.rmtree(finished / "checkpoints")  # which are no longer needed for it
    comity.run(METHOD, out=finished, resume=True, **SETTINGS)
    assert contents(finished).items() <= before.items()


def test_a_model_that_was_taken_along(finished: Path, tmp_path: Path) -> None:
    """Another weight, or class names that have changed places, would be another model."""
    taken = tmp_path / "taken"
    export(resumed(finished), "p0", taken)
    load_exported(taken)
    for name, how in (
        ("weights.safetensors", flipped),
        ("model.json", lambda blob: blob.replace(b'"3"', b'"4"', 1)),
    ):
        before = (taken / name).read_bytes()
        (taken / name).write_bytes(how(before))
        assert (taken / name).read_bytes() != before
        with pytest.raises(ComityError, match="or a damaged one"):
            load_exported(taken)
        (taken / name).write_bytes(before)


def flipped(blob: bytes) -> bytes:
    return blob[:-1] + bytes([blob[-1] ^ 1])


# --- checkpoints


@pytest.mark.parametrize("whose", ["server", "party"])
def test_a_changed_state_is_not_continued_from(whose: str, stopped: Path) -> None:
    """One bit of a weight: the file has its length, and can be decoded."""
    told = manifest_of(stopped)
    saved = Saved(*(told["server"] if whose == "server" else told["parties"][0]))
    path = stopped / "checkpoints" / saved.file
    blob = flipped(path.read_bytes())
    decode(blob)
    path.write_bytes(blob)
    before = contents(stopped)
    with pytest.raises(CorruptedFile, match=f"{saved.file} is not what was written"):
        resumed(stopped)
    assert contents(stopped) == before


def test_all_is_on_the_disk_before_the_manifest_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    synced: dict[tuple[int, int], int] = {}
    seen = []
    fsync, replace = os.fsync, os.replace

    def noted(descriptor: int) -> None:
        about = os.fstat(descriptor)
        synced[about.st_dev, about.st_ino] = -1 if stat.S_ISDIR(about.st_mode) else about.st_size
        fsync(descriptor)

    def on_disk(path: Path, length: int) -> bool:
        about = path.stat()
        return synced.get((about.st_dev, about.st_ino)) == length

    def watched(temporary: str, name: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        folder = Path(os.readlink(f"/proc/self/fd/{src_dir_fd}"))
        fresh, path = folder / temporary, folder / name
        if path.name == "manifest.json":
            told = json.loads(fresh.read_text(encoding="utf-8"))
            states = [Saved(*saved) for saved in (told["server"], *told["parties"])]
            assert all(on_disk(path.parent / saved.file, saved.bytes) for saved in states)
            assert all(
                on_disk(path.parent.parent / name, length)
                for name, (length, _) in told["files"].items()
            )
            assert on_disk(fresh, fresh.stat().st_size)
            seen.append(len(states))
        replace(temporary, name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        synced.pop((path.parent.stat().st_dev, path.parent.stat().st_ino), None)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", watched)
    comity.run(METHOD, out=tmp_path / "run", **SETTINGS)
    assert seen == [1, 2, 3, 3]  # in round 1 one reply is lost, and with it the state
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoints"):  # and so are the new names
        assert on_disk(folder, -1)


def test_a_manifest_without_its_checksum(stopped: Path) -> None:
    """Nobody could tell whether it is what was written."""
    path = stopped / "checkpoints" / "manifest.json"
    path.write_text(json.dumps(manifest_of(stopped)), encoding="utf-8")
    with pytest.raises(CorruptedFile, match=r"manifest\.json cannot be read"):
        resumed(stopped)


def test_what_is_not_ours_stays_in_the_folder_of_checkpoints(stopped: Path) -> None:
    folder = stopped / "checkpoints"
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    (folder / "party-x-1.safetensors").write_text("mine", encoding="utf-8")
    (folder / "inner").mkdir()
    (folder / "party-0-0.safetensors").mkdir()
    resumed(stopped)
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
def test_a_manifest_that_leads_elsewhere(name: str, whose: str, stopped: Path) -> None:
    told = manifest_of(stopped)
    saved = told["server"] if whose == "server" else told["parties"][0]
    shutil.copy(stopped / "checkpoints" / saved[1], stopped / "state")
    saved[1] = name
    write_manifest(stopped, told)
    with pytest.raises(ComityError, match="The checkpoint is damaged"):
        resumed(stopped)


def test_a_state_that_is_a_link(tmp_path: Path) -> None:
    """It could lead anywhere, for reading and for writing."""
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


def test_a_state_that_is_huge_or_never_ends(tmp_path: Path) -> None:
    """Its length is looked at before it is read."""
    with (tmp_path / "server-1.safetensors").open("wb") as file:
        file.truncate(1 << 43)  # no disk is needed for that
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
    """Less than 2 % of the time, however slow it is."""
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
    ("change", "said"),
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
def test_other_versions_are_said(
    change: dict[str, Any], said: str, stopped: Path, made: Path
) -> None:
    """The run goes on; whoever reads the summary later is told as well."""
    path = stopped / "env.json"
    path.write_text(
        json.dumps(with_crc(RunFolder(stopped).read_environment() | change)), encoding="utf-8"
    )
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        result = comity.run(METHOD, out=stopped, resume=True, **SETTINGS)
    told = warning_texts(json.loads((stopped / "summary.json").read_text("utf-8")), "during")
    assert (
        warning_texts(result.summary, "during")
        == told
        == [str(w.message) for w in heard if "begun with" in str(w.message)]
    )
    assert len(told) == bool(said)
    assert all(said in warning for warning in told)
    assert (stopped / "metrics.csv").read_bytes() == (
        made / "finished" / "metrics.csv"
    ).read_bytes()


def test_a_mended_python_is_the_same() -> None:
    now = environment.here()
    assert not environment.changed_since(now | {"python": now["python"].rpartition(".")[0] + ".99"})
    assert not environment.changed_since({})  # of a version that wrote less


def test_an_engine_that_a_run_was_not_begun_with(stopped: Path) -> None:
    with pytest.warns(
        UserWarning,
        match="was started with engine=loop and continues with it; engine=stacked is ignored",
    ):
        comity.run(METHOD, out=stopped, resume=True, **SETTINGS | {"engine": "stacked"})
    assert RunFolder(stopped).read_experiment().engine == "loop"


def test_a_run_with_other_settings_is_still_refused(stopped: Path) -> None:
    with pytest.raises(UsageError, match="other settings"):
        comity.run(METHOD, out=stopped, resume=True, **SETTINGS | {"lr": 0.5})
