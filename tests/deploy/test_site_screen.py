"""The screen of a site: one line of progress, one sentence for an error, and FLARE's lines in a
file.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from comity.cli import screen
from comity.cli.screen import Screen
from comity.cli.site_screen import SiteScreen
from comity.deploy.flare import output, processes
from comity.deploy.flare.output import FlareOutput
from comity.errors import ComityError

ROUNDS = [
    f"2026-11-17 14:23:{t % 60:02} round {t} of 100: local is done, 8.46 kB leave, {t} kB in all"
    for t in range(1, 101)
]
LINES = [
    "2026-11-17 14:23:24 lead@comity.local asks for run feef8036b5e6f412",
    "2026-11-17 14:23:24 accepted: run feef8036b5e6f412 (rounds 100); there would leave weights",
    *ROUNDS,
    "2026-11-17 14:24:26 run feef8036b5e6f412 is over after 100 rounds",
]
UNREACHABLE = (
    "2026-11-18 18:42:37,418 - CoreCell - ERROR - [ME=:north O=:north D=server F=:north T=server"
    " CH=task TP=heart_beat SCH=? STP=? SEQ=?] cannot send to 'server': target_unreachable\n"
)


def shown(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], terminal: bool, seconds: float = 1.0
) -> str:
    """What a site's screen shows of a log, if its lines are `seconds` apart."""
    stream, now = io.StringIO(), iter(range(10_000))
    console = Screen(file=stream, force_terminal=terminal, width=120)
    assert isinstance(console, Console)
    monkeypatch.setattr(screen, "out", console)
    shows = SiteScreen(Path("north/log.txt"), clock=lambda: next(now) * seconds)
    for line in lines:
        shows.show(line)
    shows.close()
    return stream.getvalue()


def test_rounds_are_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is overwritten: no line break is between two rounds."""
    text = shown(monkeypatch, LINES, terminal=True)
    assert "run feef8036b5e6f412: round 57 of 100, 57 kB sent" in text
    between = text.split("round 57 of 100")[1].split("round 58 of 100")[0]
    assert "\n" not in between
    assert text.count("\n") <= 5
    assert text.rstrip().endswith("is over after 100 rounds")


def test_rounds_are_few_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, LINES, terminal=False, seconds=0.5).splitlines()
    assert lines[:2] == LINES[:2]
    assert lines[2] == "2026-11-17 14:23:01 run feef8036b5e6f412: round 1 of 100, 1 kB sent"
    assert lines[-1] == LINES[-1]
    assert len(lines) == 4
    slow = shown(monkeypatch, LINES, terminal=False, seconds=30).splitlines()
    assert 4 < len(slow) < 60, "at most one line a minute"


def test_an_error_is_one_sentence_with_the_path_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "2026-11-17 14:23:24 failed: Traceback (most recent call last):",
        '  File "/opt/comity/site_run.py", line 1, in f',
        "ValueError: figure 0.25",
        "2026-11-17 14:23:25 refused: north does not allow fedavg (methods).",
    ]
    assert shown(monkeypatch, lines, terminal=False).splitlines() == [
        "2026-11-17 14:23:24 failed: north/log.txt says why.",
        "2026-11-17 14:23:25 refused: north does not allow fedavg (methods).",
    ]


def test_repeated_errors_of_flare_are_one_sentence(tmp_path: Path) -> None:
    """FLARE says every ten seconds that the server is gone; the file has all lines."""
    sentences: list[str] = []
    now = 0.0
    reader = FlareOutput(tmp_path, sentences.append, clock=lambda: now)
    for _ in range(20):
        reader.add("2026-11-18 18:42:37,417 - CoreCell - WARNING - [ME=:north] no connection\n")
        reader.add(UNREACHABLE)
        now += 10
    assert sentences == [
        "The server cannot be reached; the connection is tried again until it is back. NVIDIA"
        f" FLARE's log is {tmp_path / 'log.txt'}"
    ]
    assert (tmp_path / "console.txt").read_text().count("\n") == 40
    now += 600
    reader.add(UNREACHABLE)
    assert len(sentences) == 2


def test_other_errors_of_flare_are_reported_without_their_context(tmp_path: Path) -> None:
    sentences: list[str] = []
    reader = FlareOutput(tmp_path, sentences.append)
    reader.add("Traceback (most recent call last):\n")
    reader.add(
        "2026-11-18 18:42:37,417 - ClientRunner - ERROR - [identity=north, run=1] - no such class\n"
    )
    assert sentences == [
        f"NVIDIA FLARE reports: no such class. NVIDIA FLARE's log is {tmp_path / 'log.txt'}"
    ]


def test_the_file_of_flares_lines_is_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "LARGEST", 100)
    reader = FlareOutput(tmp_path, lambda sentence: None)
    for number in range(60):
        reader.add(f"line {number} of about thirty bytes\n")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["console.txt", "console.txt.1", "console.txt.2", "console.txt.3"]
    assert all(path.stat().st_size <= 140 for path in tmp_path.iterdir())
    assert "line 59" in "".join(path.read_text() for path in tmp_path.iterdir())


def test_what_flare_prints_does_not_reach_the_screen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in place of FLARE's prints warnings and an error, and ends. Other children of the
    caller are left alone.
    """
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(processes, "needs_flare", lambda: None)
    kit = tmp_path / "kit"
    kit.mkdir(mode=0o700)  # as in a site's folder
    (kit / "startup").mkdir()
    (tmp_path / "chatty.py").write_text(
        "import sys\n"
        "print('2026-11-18 18:42:37,417 - CoreCell - WARNING - raw line')\n"
        f"sys.stderr.write({UNREACHABLE!r})\n"
        "sys.exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ComityError, match=r"kit/log\.txt may say why"):
        processes._run(tmp_path, kit, ["chatty"], [], processes._print)
    assert other.poll() is None
    other.communicate(b"\n", timeout=10)
    captured = capfd.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("The server cannot be reached")
    assert captured.out.count("\n") == 1
    assert "raw line" in (kit / "console.txt").read_text()
    assert (kit / "console.txt").stat().st_mode & 0o077 == 0
