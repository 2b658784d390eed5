"""Folders that somebody else has made: links in them lead nowhere, and what a site writes is for
the site alone.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from harness import SMALL, CommandResult, comity, one_sentence, succeed
from in_process_sites import Sites, ended

from comity.data import prepared
from comity.data.importing import import_federation
from comity.errors import UsageError
from comity.runs import checkpoint
from comity.runs import folder as folder_module
from comity.runs.checkpoint import Manifest
from comity.runs.folder import RunFolder
from comity.safe_files import (
    TEMPORARY,
    check_no_links,
    create_file,
    make_folder,
    open_to_append,
    open_to_update,
    readers_of,
    write_atomically,
)

VICTIM = "what the user has written\n"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o000, 0o077], ids=["022", "000", "077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield int(request.param)
    os.umask(before)


# --- The functions that write


def test_a_replaced_link_leaves_its_target(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text(VICTIM)
    (tmp_path / "summary.json").symlink_to(victim)
    (tmp_path / "summary.json.new").symlink_to(victim)
    write_atomically(tmp_path / "summary.json", "{}")
    assert victim.read_text() == VICTIM
    assert not (tmp_path / "summary.json").is_symlink()
    assert (tmp_path / "summary.json").read_text() == "{}"


def test_temporary_names_cannot_be_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    flags = []
    opened = os.open

    def watched(path: str, how: int, *rest: int, **more: int) -> int:
        if TEMPORARY.fullmatch(str(path)):
            seen.append(str(path))
            flags.append(how)
            assert "dir_fd" in more
        return opened(path, how, *rest, **more)

    monkeypatch.setattr(os, "open", watched)
    for _ in range(20):
        write_atomically(tmp_path / "a.json", "{}")
    assert len(set(seen)) == 20
    assert all(how & os.O_EXCL and how & os.O_NOFOLLOW for how in flags)
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_write_leaves_nothing_behind_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "a.json").write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*a\.json"):
        write_atomically(tmp_path / "a.json", "{}")
    assert os.listdir(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "before"


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_files_that_grow_follow_no_link(link: Callable[[Path, Path], None], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text(VICTIM)
    link(victim, tmp_path / "metrics.csv")
    for opened in (open_to_append, open_to_update):
        for create in (False, True):
            with pytest.raises(UsageError, match=r"metrics\.csv is not written to, because"):
                opened(tmp_path / "metrics.csv", create=create)
    with create_file(tmp_path / "metrics.csv") as file:
        file.write(b"new")
    assert victim.read_text() == VICTIM
    assert (tmp_path / "metrics.csv").read_bytes() == b"new"


def test_a_pipe_does_not_stop_anything(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.csv")
    for opened in (open_to_append, open_to_update):
        with pytest.raises(UsageError, match="is not written to"):
            opened(tmp_path / "metrics.csv")
    with pytest.raises(UsageError, match="is a pipe or a device"):
        check_no_links(tmp_path)


def test_a_folder_may_be_a_link_but_hold_none(tmp_path: Path) -> None:
    (tmp_path / "real" / "inside").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "real")
    check_no_links(tmp_path / "out")
    (tmp_path / "real" / "inside" / "x").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"out/inside/x is a symbolic link"):
        check_no_links(tmp_path / "out")
    (tmp_path / "real" / "figures").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="figures is a link or a file"):
        make_folder(tmp_path / "out" / "figures")


def test_nothing_is_more_open_than_its_folder(tmp_path: Path, umask: int) -> None:
    closed, usual = tmp_path / "closed", tmp_path / "usual"
    closed.mkdir(mode=0o700)
    usual.mkdir()
    for folder, file_mode, folder_mode in (
        (closed, 0o600, 0o700),
        (usual, 0o666 & ~umask, 0o777 & ~umask),
    ):
        write_atomically(folder / "a", "")
        create_file(folder / "b").close()
        open_to_append(folder / "c", create=True).close()
        make_folder(folder / "d")
        assert {mode(folder / name) for name in "abc"} == {file_mode}
        assert mode(folder / "d") == folder_mode
    write_atomically(usual / "secret", b"", private=True)
    assert mode(usual / "secret") == 0o600


# --- Runs


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with recorded messages, an unfinished one, and a comparison."""
    folder = tmp_path_factory.mktemp("originals")
    succeed("run", "fedavg", *SMALL, "--record-messages", "--out", folder / "finished")
    shutil.copytree(folder / "finished", folder / "stopped")
    for name in ("summary.json", ".checksums.json"):
        (folder / "stopped" / name).unlink()
    succeed("compare", "fedavg", *SMALL, "--out", folder / "compared")
    return folder


NAMES = (
    "config.toml", "env.json", "split.json", "parties.json", "absent-plan.csv", "trust.json",
    "metrics.csv", "ledger.csv", "timing.csv", "absences.csv", "privacy.csv", "outcomes.csv",
    "measures.json", "summary.json", ".checksums.json", ".lock", "audit.json", "audit.html",
    "report.html", "mlflow.json", "disclosure-p0.html", "disclosure-p0.pdf", "messages/recording",
    "checkpoints/manifest.json", "checkpoints/server-2.safetensors",
    "checkpoints/party-0-2.safetensors", "figures/curves.pdf",
)  # fmt: skip
"""What Comity writes into the folder of a run."""
COMMANDS: dict[str, tuple[object, ...]] = {
    "resume": ("resume",),
    "extend": ("resume", "--rounds", "3"),
    "report": ("report", "--quick"),
    "disclose": ("disclose", "--party", "p0"),
    "audit": ("audit",),
    "measure": ("measure",),
    "export": ("export", "--party", "p0"),
}


def run_on(folder: Path, command: str) -> CommandResult:
    first, *rest = COMMANDS[command]
    if command == "export":
        return comity(first, folder, *rest, "--out", folder.parent / "exported")
    return comity(first, folder, *rest)


@pytest.mark.usefixtures("without_onnx")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_a_stranger_s_link_leads_nowhere(
    state: str, command: str, originals: Path, tmp_path: Path
) -> None:
    """For each name that Comity writes, and the names that it once wrote to before renaming."""
    for number, name in enumerate(f"{name}{end}" for name in NAMES for end in ("", ".new")):
        folder = tmp_path / str(number) / "run"
        shutil.copytree(originals / state, folder)
        victim = folder.parent / "victim"
        victim.write_text(VICTIM)
        link = folder / name
        link.parent.mkdir(exist_ok=True)
        if link.exists():  # as far as can be: the link leads to what was there
            shutil.copyfile(link, victim)
        before = victim.read_bytes()
        link.unlink(missing_ok=True)
        link.symlink_to(victim)
        complaint = one_sentence(run_on(folder, command), 2)
        assert f"{link} is a symbolic link" in complaint
        assert victim.read_bytes() == before
        shutil.rmtree(folder.parent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "command"),
    [("stopped", "resume"), *(("finished", name) for name in ("extend", "report", "disclose"))],
)
def test_no_link_is_followed_even_if_it_is_overlooked(
    state: str, command: str, originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may place a link after the folder was checked."""
    for module in (folder_module, import_module("comity.reporting.gather")):
        monkeypatch.setattr(module, "check_no_links", lambda folder: None)
    names = [name for name in NAMES if (command == "disclose") == name.startswith("disclosure")]
    for number, name in enumerate(names):
        folder = tmp_path / str(number) / "run"
        shutil.copytree(originals / state, folder)
        link = folder / name
        link.parent.mkdir(exist_ok=True)
        victims = {folder.parent / "one": link, folder.parent / "two": folder / f"{name}.new"}
        for victim in victims:
            victim.write_text(VICTIM)
        if link.exists():
            link.replace(folder.parent / "one")
        before = [victim.read_bytes() for victim in victims]
        for victim, planted in victims.items():
            planted.symlink_to(victim)
        run_on(folder, command)
        assert [victim.read_bytes() for victim in victims] == before, name
        shutil.rmtree(folder.parent)


@pytest.mark.parametrize(
    "name", ["checkpoints", "messages", "figures", "tensorboard", "audit-pictures"]
)
def test_a_stranger_s_folder_leads_nowhere(name: str, originals: Path, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(originals / "stopped", folder)
    elsewhere.mkdir()
    if (folder / name).exists():
        shutil.rmtree(elsewhere)
        shutil.move(folder / name, elsewhere)
    before = sorted(elsewhere.rglob("*"))
    (folder / name).symlink_to(elsewhere)
    for command in COMMANDS:
        assert f"{folder / name} is a symbolic link" in one_sentence(run_on(folder, command), 2)
    assert sorted(elsewhere.rglob("*")) == before


def test_a_file_with_another_name_is_not_continued(originals: Path, tmp_path: Path) -> None:
    folder, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(originals / "stopped", folder)
    for name in ("metrics.csv", "ledger.csv", "timing.csv", "messages/recording"):
        with (folder / name).open("ab") as file:
            file.write(b"rows beyond the checkpoint, which a resumed run cuts\n")
        os.link(folder / name, victim)
        before = victim.read_bytes()
        assert "it has another name" in one_sentence(comity("resume", folder), 1, 2)
        assert victim.read_bytes() == before
        victim.unlink()
    succeed("resume", folder)


def test_a_new_run_follows_no_link(tmp_path: Path) -> None:
    """Into a folder that is there already, and holds nothing but links."""
    victim, elsewhere = tmp_path / "victim", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in NAMES:
        if "/" in name:
            continue
        folder = tmp_path / "out"
        folder.mkdir()
        victim.write_text(VICTIM)
        (folder / name).symlink_to(victim)
        (folder / f"{name}.new").symlink_to(victim)
        comity("run", "fedavg", *SMALL, "--out", folder)
        assert victim.read_text() == VICTIM, name
        shutil.rmtree(folder)
    for name in ("checkpoints", "messages"):
        folder.mkdir()
        (folder / name).symlink_to(elsewhere)
        ended = comity("run", "fedavg", *SMALL, "--record-messages", "--out", folder)
        assert f"already has a {name}" in one_sentence(ended, 2)
        assert not list(elsewhere.iterdir())
        shutil.rmtree(folder)


def test_a_comparison_follows_no_link(originals: Path, tmp_path: Path) -> None:
    out, elsewhere, victim = (tmp_path / name for name in ("out", "elsewhere", "victim"))
    command = ("compare", "fedavg", *SMALL, "--out", out)
    shutil.copytree(originals / "compared", out)
    for name in ("comparison.json", "comparison.json.new", "report.html", "report.html.new"):
        (out / name).unlink(missing_ok=True)
        victim.write_text(VICTIM)
        (out / name).symlink_to(victim)
    succeed(*command)
    succeed("report", out, "--quick")
    assert victim.read_text() == VICTIM
    assert json.loads((out / "comparison.json").read_text())
    for name in ("fedavg", "fedavg/seed-0"):
        shutil.rmtree(out / name)
        elsewhere.mkdir()
        (out / name).symlink_to(elsewhere)
        assert f"{out / name} is a symbolic link" in one_sentence(comity(*command), 2)
        assert not list(elsewhere.iterdir())
        (out / name).unlink()
        elsewhere.rmdir()
        succeed(*command)
    (out / "figures").symlink_to(tmp_path / "nowhere")
    ended = comity("report", out, "--quick", "--figures", "svg")
    assert f"{out / 'figures'} is a link" in one_sentence(ended, 2)


def test_the_user_s_own_folder_may_be_a_link(tmp_path: Path) -> None:
    """As ~/runs often is, to another disk."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")
    succeed("run", "fedavg", *SMALL, "--out", tmp_path / "runs")
    succeed("resume", tmp_path / "runs")
    succeed("disclose", tmp_path / "runs", "--party", "p0")
    succeed("report", tmp_path / "runs", "--quick")
    succeed("compare", "fedavg", *SMALL, "--out", tmp_path / "runs" / "compared")
    assert (tmp_path / "scratch" / "compared" / "comparison.json").exists()


def test_what_a_killed_process_left_is_removed(originals: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(originals / "stopped", folder)
    for place in (folder, folder / "checkpoints"):
        (place / ".0123456789abcdef.new").write_text("half")
    succeed("resume", folder)
    assert not list(folder.rglob("*.new"))


def test_files_outside_the_folder_are_no_files_of_the_run(tmp_path: Path) -> None:
    succeed("run", "fedavg", *SMALL, "--out", tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / checkpoint.MANIFEST
    values = json.loads(path.read_text())
    for name in ("../victim", str(tmp_path / "victim")):
        with pytest.raises(ValueError, match="outside"):
            Manifest.read(values | {"files": {name: [0, 0]}})
    manifest = RunFolder(tmp_path / "run").checkpoints().load()
    assert manifest is not None


def test_a_simulation_keeps_the_user_s_umask(tmp_path: Path, umask: int) -> None:
    succeed("run", "fedavg", *SMALL, "--out", tmp_path / "run")
    for path in (tmp_path / "run").rglob("*"):
        assert mode(path) == (0o777 if path.is_dir() else 0o666) & ~umask, path


# --- Sites and their data


@pytest.mark.usefixtures("without_onnx")
def test_everything_at_a_site_is_for_the_site_alone(tmp_path: Path, umask: int) -> None:
    sites = Sites(tmp_path / "sites", {"east": (60, 20), "west": (40, 20)})
    ended(sites.run("fedavg+dp(noise=1)", "together", rounds=1, model="linear", test="official"))
    site = sites.site("east")
    assert mode(site) == 0o700
    assert {path.name for path in site.iterdir()} >= {"runs", "secret"}
    inside = list((site / "runs").rglob("*"))
    assert {"config.toml", "model.pt2", "report.html", "view.safetensors"} <= {
        path.name for path in inside
    }
    for path in (site / "runs", site / "secret", *inside):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    assert mode(sites.folder / "hub" / "secret") == 0o600


def arrays(path: Path) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    np.savez(path, x=x, y=y)


@pytest.mark.parametrize(
    ("source", "parent", "allowed"),
    [
        (0o644, 0o755, 0o777),
        (0o600, 0o755, 0o700),
        (0o640, 0o755, 0o770),
        (0o644, 0o700, 0o700),
        (0o644, 0o750, 0o770),
    ],
)
def test_imported_data_are_no_more_open_than_their_source(
    source: int, parent: int, allowed: int, umask: int, tmp_path: Path
) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):  # those that pytest made for the user alone
        if folder.owner() == tmp_path.owner():
            folder.chmod(0o755)
    hospitals = tmp_path / "hospitals"
    hospitals.mkdir()
    for name in ("a", "b"):
        arrays(hospitals / f"{name}.npz")
        (hospitals / f"{name}.npz").chmod(0o644)
    (hospitals / "b.npz").chmod(source)  # one closed file closes the whole
    hospitals.chmod(parent)
    assert readers_of(hospitals / "b.npz", os.getgid()) == allowed
    import_federation(hospitals, tmp_path / "out")
    assert mode(tmp_path / "out") == allowed & mode(tmp_path) & ~umask
    for path in (tmp_path / "out").iterdir():
        assert mode(path) == mode(tmp_path / "out") & 0o666, path
    assert len(prepared.read(tmp_path / "out").y) == 80
    (hospitals / "b.npz").chmod(0o644)
