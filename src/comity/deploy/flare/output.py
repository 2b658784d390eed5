"""What NVIDIA FLARE's processes print: all of it goes to a file, and errors to the screen, in one
sentence each.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from comity.safe_files import open_to_append

CONSOLE = "console.txt"  # in a kit, beside FLARE's own log.txt
LARGEST = 5 << 20  # bytes of the file before it is renamed to console.txt.1
KEPT = 3  # renamed files
REPEAT_AFTER = 600.0  # seconds after which the same error is shown again
ERROR = re.compile(
    r"\S+ \S+ - (?P<logger>\S+) - (?:ERROR|CRITICAL) - (?:\[[^\]]*\](?: - )? *)*(?P<text>.*)"
)
UNREACHABLE = re.compile(r"cannot send to 'server'|no connection to server|target_unreachable")
REFUSED = re.compile(r"register_client unauthenticated|failed to register|Failed to register")


class FlareOutput:
    """Writes the lines that FLARE prints to a file, and reports errors among them.

    The same error is reported again only after ten minutes: FLARE repeats itself every few seconds.

    Arguments:
        kit: the startup kit, in which the file is
        report: is called with one sentence about an error
        clock: returns the time in seconds
    """

    def __init__(
        self,
        kit: Path,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = kit / CONSOLE
        self._log = kit / "log.txt"
        self._report = report
        self._clock = clock
        self._reported: dict[str, float] = {}

    def add(self, line: str, report: bool = True) -> None:
        """Write a line to the file and, with `report`, report it if it is an error."""
        self._write(line)
        if report and (sentence := self._sentence(line.rstrip("\n"))):
            kind, now = re.sub(r"[0-9a-f-]{8,}|\d+", "#", sentence), self._clock()
            if now - self._reported.get(kind, -REPEAT_AFTER) >= REPEAT_AFTER:
                self._reported[kind] = now
                self._report(f"{sentence} NVIDIA FLARE's log is {self._log}")

    def _sentence(self, line: str) -> str:
        """One sentence about an error; empty if the line is none."""
        match = ERROR.fullmatch(line)
        if match is None:
            return ""
        if UNREACHABLE.search(line):
            return "The server cannot be reached; the connection is tried again until it is back."
        if REFUSED.search(line):
            return (
                "The server does not let this site in: its certificate was revoked, or is that of"
                " another federation."
            )
        text = match["text"].strip()
        return f"NVIDIA FLARE reports: {text[:300]}{'' if text.endswith('.') else '.'}"

    def _write(self, line: str) -> None:
        """Append to the file. Errors of the disk are ignored: they must not end a run."""
        try:
            if self._path.exists() and self._path.stat().st_size > LARGEST:
                self._rotate()
            with open_to_append(self._path, create=True) as file:
                file.write(line.encode("utf-8", "replace"))
        except OSError:
            return

    def _rotate(self) -> None:
        """Rename console.txt to console.txt.1, that to console.txt.2, and so on."""
        names = [CONSOLE, *(f"{CONSOLE}.{number}" for number in range(1, KEPT + 1))]
        for newer, older in reversed(list(pairwise(names))):
            if (path := self._path.with_name(newer)).exists():
                os.replace(path, self._path.with_name(older))
