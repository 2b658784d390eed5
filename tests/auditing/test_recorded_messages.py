"""Recorded messages of a run: all that its server saw, complete after an interruption; runs without
recording are unchanged.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import comity
from comity.base.record import Cipher, Sealed, payload, unseal
from comity.checksums import with_crc, without_crc
from comity.cli import main
from comity.runs import checkpoint
from comity.runs.folder import RunFolder
from comity.runs.recording import RecordedMessage
from comity.runs.server_run import Quiet
from comity.units import size

SMALL: dict[str, Any] = {
    "parties": 3,
    "partition": "iid",
    "model": "mlp2(width=8)",
    "rounds": 3,
    "batch": 100,
}


def messages(folder: Path) -> list[RecordedMessage]:
    return list(RunFolder(folder).read_messages())


def test_recorded_bytes_are_those_of_the_ledger(tmp_path: Path) -> None:
    result = comity.run("fedavg", out=tmp_path, record_messages=True, **SMALL)
    recorded_messages = messages(tmp_path)
    assert (
        sum(payload(m.content) for m in recorded_messages if m.kind == "reply")
        == result.summary["bytes"]["up"]
    )
    assert (
        sum(payload(m.content) * len(m.to) for m in recorded_messages if m.kind == "message")
        == result.summary["bytes"]["down"]
    )
    assert [m.call.round for m in recorded_messages if m.kind == "message"] == [1, 2, 3], (
        "a message to all parties is not recorded once"
    )
    assert {m.src for m in recorded_messages if m.kind == "reply"} == {0, 1, 2}


def test_recorded_replies_average_to_the_server_model(tmp_path: Path) -> None:
    result = comity.run("fedavg", out=tmp_path, record_messages=True, **SMALL)
    replies = [
        m.content.theta for m in messages(tmp_path) if m.kind == "reply" and m.call.round == 3
    ]
    sizes = torch.tensor(result.job.info.sizes, dtype=torch.float64)
    mean = (
        sum(theta["fc1.weight"].double() * n for theta, n in zip(replies, sizes, strict=True))
        / sizes.sum()
    )
    assert torch.allclose(mean.float(), result.model("p0").theta["fc1.weight"], atol=1e-7)


def test_sealed_messages_are_recorded_sealed_and_unsealed(tmp_path: Path) -> None:
    result = comity.run("fed-sps", out=tmp_path, record_messages=True, **SMALL | {"rounds": 1})
    recorded_messages = messages(tmp_path)
    sealed_messages = [
        sealed
        for m in recorded_messages
        if m.kind == "reply" and m.call.function == "send"
        for sealed in m.content.values()
    ]
    assert sealed_messages
    assert all(isinstance(sealed, Sealed) and sealed.size > 0 for sealed in sealed_messages)
    assert all(
        isinstance(unseal(sealed), Cipher) and not len(unseal(sealed).blob)
        for sealed in sealed_messages
    )
    unsealed_messages = [m for m in recorded_messages if m.kind == "sealed"]
    assert sum(payload(m.content) for m in unsealed_messages) == result.summary["bytes"]["peer"]
    assert {(m.src, m.to) for m in unsealed_messages} == {
        (i, (j,)) for i in range(3) for j in range(3) if i != j
    }


def test_recording_does_not_change_the_run(tmp_path: Path) -> None:
    recorded_run, without = tmp_path / "with", tmp_path / "without"
    comity.run("fedavg", out=recorded_run, record_messages=True, engine="loop", **SMALL)
    comity.run("fedavg", out=without, engine="loop", **SMALL)
    assert not (without / "messages").exists()
    assert "record_messages" not in json.loads((without / "env.json").read_text())
    for name in ("config.toml", "metrics.csv", "ledger.csv", "outcomes.csv", "split.json"):
        assert (recorded_run / name).read_bytes() == (without / name).read_bytes(), name


class Kill(Quiet):
    """Kills its own process during a round, two rounds after the last checkpoint."""

    def __init__(self) -> None:
        self.now = 0

    def round(self, t: int, figure: float | None, ledger: Any) -> None:
        self.now = t
        if t == 1:
            checkpoint.EVERY_SECONDS = math.inf

    def add_replies(self, count: int) -> None:
        if self.now == 2:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("method", ["scaffold+dbe", "fed-sps"])
def test_killed_and_resumed_run_records_the_same_messages(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    calm_run, killed_run = tmp_path / "calm", tmp_path / "killed"
    how = SMALL | {"record_messages": True, "engine": "loop"}
    comity.run(method, out=calm_run, **how)
    fork = multiprocessing.get_context("fork")
    victim = fork.Process(
        target=comity.run, args=(method,), kwargs={"out": killed_run, "progress": Kill(), **how}
    )
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    manifest = RunFolder(killed_run).checkpoints().load()
    assert manifest is not None
    assert (
        RunFolder(killed_run).messages.stat().st_size > manifest.files["messages/recording"].length
    ), "there is nothing to cut"
    comity.run(method, out=killed_run, resume=True, **how)
    assert RunFolder(killed_run).messages.read_bytes() == RunFolder(calm_run).messages.read_bytes()


def test_extended_run_records_the_same_messages(tmp_path: Path) -> None:
    from comity.runs.extend import extend

    comity.run("fedavg", out=tmp_path / "long", record_messages=True, **SMALL)
    comity.run("fedavg", out=tmp_path / "made", record_messages=True, **SMALL | {"rounds": 2})
    extend(tmp_path / "made", 3)
    comity.run("fedavg", out=tmp_path / "made", resume=True, **SMALL)
    assert (
        RunFolder(tmp_path / "made").messages.read_bytes()
        == RunFolder(tmp_path / "long").messages.read_bytes()
    )


class StopAfterRound1(Quiet):
    def round(self, t: int, figure: float | None, ledger: Any) -> None:
        if t == 1:
            raise KeyboardInterrupt


def move_to_tape(folder: Path) -> None:
    """Move the recording to where earlier versions had it."""
    (folder / "tape").mkdir()
    (folder / "messages" / "recording").rename(folder / "tape" / "messages")
    (folder / "messages").rmdir()
    for path in (folder / ".checksums.json", folder / "checkpoints" / "manifest.json"):
        if path.exists():
            content = without_crc(json.loads(path.read_text(encoding="utf-8")))
            content["files"]["tape/messages"] = content["files"].pop("messages/recording")
            path.write_text(json.dumps(with_crc(content)), encoding="utf-8")


def test_a_recording_of_an_earlier_version_is_audited(tmp_path: Path) -> None:
    comity.run("fedavg", out=tmp_path / "now", record_messages=True, **SMALL)
    shutil.copytree(tmp_path / "now", tmp_path / "before")
    move_to_tape(tmp_path / "before")
    assert len(messages(tmp_path / "before")) == len(messages(tmp_path / "now"))
    attacks = []
    for folder in (tmp_path / "now", tmp_path / "before"):
        comity.audit(folder)
        content = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        attacks.append(content["runs"][0]["attacks"])
    assert attacks[0] == attacks[1]
    assert attacks[0]


def test_a_run_that_began_with_a_tape_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    settings = SMALL | {"record_messages": True, "engine": "loop"}
    comity.run("scaffold", out=tmp_path / "now", **settings)
    with pytest.raises(KeyboardInterrupt):
        comity.run("scaffold", out=tmp_path / "before", progress=StopAfterRound1(), **settings)
    move_to_tape(tmp_path / "before")
    comity.run("scaffold", out=tmp_path / "before", resume=True, **settings)
    assert not (tmp_path / "before" / "messages").exists()
    assert (tmp_path / "before" / "tape" / "messages").read_bytes() == (
        tmp_path / "now" / "messages" / "recording"
    ).read_bytes()
    assert len(messages(tmp_path / "before")) == len(messages(tmp_path / "now"))
    RunFolder(tmp_path / "before").check()


def test_damaged_recorded_messages_are_not_read(tmp_path: Path) -> None:
    comity.run("fedavg", out=tmp_path, record_messages=True, **SMALL)
    path = RunFolder(tmp_path).messages
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 1
    path.write_bytes(blob)
    with pytest.raises(comity.ComityError, match="damaged"):
        messages(tmp_path)


@pytest.mark.parametrize("how", [{"engine": "process"}, {"engine": "ray"}, {"workers": 2}])
def test_recording_with_several_processes_is_refused(how: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(comity.UsageError, match="Messages are recorded in one process"):
        comity.run("fedavg", out=tmp_path / "run", record_messages=True, **SMALL, **how)
    assert not (tmp_path / "run").exists()


def test_recording_cannot_begin_on_resume(tmp_path: Path) -> None:
    comity.run("fedavg", out=tmp_path, **SMALL)
    with pytest.raises(comity.UsageError, match="does not record its messages"):
        comity.run("fedavg", out=tmp_path, resume=True, record_messages=True, **SMALL)
    with pytest.raises(comity.UsageError, match="has no recorded messages"):
        messages(tmp_path)


def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: object
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["comity", *map(str, args)])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


FEW = ("--parties", 2, "--rounds", 1, "--model", "linear", "--batch", 100)


def test_size_of_recorded_messages_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = command(
        capsys, monkeypatch, "run", "fedavg", *FEW, "--record-messages", "--out", tmp_path / "run"
    )
    large = RunFolder(tmp_path / "run").messages.stat().st_size
    assert code == 0
    assert f"It is {size(large)}." in out
    code, out, _ = command(
        capsys,
        monkeypatch,
        "compare",
        "fedavg",
        *FEW,
        "--record-messages",
        "--out",
        tmp_path / "all",
    )
    assert code == 0
    assert "All messages are recorded" in out
    assert RunFolder(tmp_path / "all" / "fedavg" / "seed-0").recorded


def test_recording_between_sites_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = command(
        capsys, monkeypatch, "run", "fedavg", *FEW, "--record-messages", "--federation", tmp_path
    )
    assert code != 0
    assert "messages between real sites are not recorded" in err
    assert err.count("\n") == 1
