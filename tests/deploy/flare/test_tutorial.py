"""The commands of the tutorial about real sites, as printed, on this machine."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from deployment import free_port

from comity.deploy.flare.processes import descendants, end_all

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "real-sites.md"
COMITY = [sys.executable, "-m", "comity.cli"]
STARTED = {"serve": "Serving at", "start": "takes part until"}
"""What a command that runs until Ctrl-C prints when it is ready."""
MOST_SECONDS = 240


def lines() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def run(words: list[str], folder: Path) -> str:
    """The output of a command, which must succeed."""
    result = subprocess.run(
        [*COMITY, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_SECONDS,
    )
    assert result.returncode == 0, f"{words}: {result.stdout[-500:]} {result.stderr[-1000:]}"
    return result.stdout


def start(words: list[str], folder: Path, stack: ExitStack) -> None:
    """Start a command that runs until Ctrl-C, and wait until it is ready."""
    log = folder / f"{'-'.join(words)}.txt"
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [*COMITY, *words], cwd=folder, stdout=out, stderr=subprocess.STDOUT
        )
    stack.callback(end, process)
    until = time.monotonic() + MOST_SECONDS
    while STARTED[words[1]] not in log.read_text(encoding="utf-8"):
        assert process.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < until, log.read_text(encoding="utf-8")
        time.sleep(0.2)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process as Ctrl-C does, and whatever it has started."""
    children = [child.pid for child in descendants([process.pid])]
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    end_all(children)


def test_the_tutorial_runs(tmp_path: Path) -> None:
    address = f"localhost:{free_port()}"
    fingerprint = ""
    with ExitStack() as stack:
        for line in lines():
            typed = line.replace("localhost:8102", address).replace("FINGERPRINT", fingerprint)
            program, *words = shlex.split(typed, comments=True)
            assert program == "comity"
            if words[0] == "deploy" and words[1] in STARTED:
                start(words, tmp_path, stack)
                continue
            output = run(words, tmp_path)
            if found := re.search(r"SHA256:[0-9A-F:]+", output):
                fingerprint = fingerprint or found[0]
    assert fingerprint
    assert (tmp_path / "result" / "metrics.csv").is_file()
    assert os.listdir(tmp_path / "cleveland" / "runs")
