"""Breaks important lines one at a time, and checks that the tests notice.

    python benchmarks/mutants.py [--only TEXT] [--why] [--jobs 2] [--seconds 300]

`mutant_list.py` has the mutants: each is one changed text in one file, with the guarantee that it
breaks and the tests that must fail then. Every job works on a copy of src/ of its own, so that the
working tree stays as it is. The tests run once without a change, because a test that always fails
notices nothing.

A mutant is killed if one of its tests fails. All others are errors: the tests pass (SURVIVED), they
cannot be run, they take too long, or the text of the mutant is no longer in its file. Each of them
is named at the end, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not long")
PASSED, FAILED, NO_TESTS = 0, 1, 5  # exit codes of pytest
KILLED, SURVIVED, GONE = "killed", "SURVIVED", "the old text is gone"
LAST_LINES = 15


class Outcome(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    verdict: str
    seconds: float
    output: str = ""
    """What the tests printed."""


class Copy:
    """A copy of the source tree, to which one mutant at a time is applied."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        # Compiled once. A changed file is newer than its compiled form, which is then not used.
        compileall.compile_dir(folder, quiet=2)

    def run_tests(self, tests: Iterable[str], seconds: float) -> tuple[int | None, str]:
        """The exit code of pytest with this copy, None after so many seconds, and its output."""
        paths = [str(self._folder), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "250",  # pytest's summary has the reason of a failure where there is room
        }
        try:
            done = subprocess.run(
                [*PYTEST, *tests],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            return None, ""
        return done.returncode, done.stdout

    def check_used(self) -> None:
        """Raise an error if Python would import Comity from another place."""
        environment = os.environ | {"PYTHONPATH": str(self._folder)}
        program = [sys.executable, "-c", "import comity; print(comity.__file__)"]
        place = subprocess.run(
            program, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, encoding="utf-8"
        ).stdout.strip()
        if not Path(place).is_relative_to(self._folder):
            raise SystemExit(f"The tests would import {place} instead of the copy with a mutant.")

    def try_mutant(self, mutant: Mutant, seconds: float) -> Outcome:
        """Apply a mutant, run its tests, and restore the file."""
        begin = time.monotonic()
        original, mutated = SOURCE / mutant.file, self._folder / mutant.file
        text = original.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            return Outcome(mutant, GONE, 0.0)
        mutated.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            code, output = self.run_tests(shlex.split(mutant.tests), seconds)
        finally:
            shutil.copy2(original, mutated)
        return Outcome(mutant, _verdict(code, seconds), time.monotonic() - begin, output)


def _verdict(code: int | None, seconds: float) -> str:
    if code is None:
        return f"the tests took more than {seconds:g} s"
    if code == NO_TESTS:
        return "there are no such tests"
    return {PASSED: SURVIVED, FAILED: KILLED}.get(code, "the tests could not be run")


def try_all(mutants: Iterable[Mutant], jobs: int, seconds: float) -> Iterator[Outcome]:
    """The outcomes of all mutants, in their order."""
    with tempfile.TemporaryDirectory(prefix="comity-mutants-") as folder:
        copies: Queue[Copy] = Queue()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number)))
        _check_unchanged(copies.queue[0], mutants, seconds)

        def try_one(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                return copy.try_mutant(mutant, seconds)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(try_one, mutants)


def _check_unchanged(copy: Copy, mutants: Iterable[Mutant], seconds: float) -> None:
    """End the program if a test fails without any mutant."""
    copy.check_used()
    tests = dict.fromkeys(word for mutant in mutants for word in shlex.split(mutant.tests))
    # A file covers its single tests.
    tests = {test: None for test in tests if "::" not in test or test.split("::")[0] not in tests}
    code, output = copy.run_tests(tests, 10 * seconds)
    if code != PASSED:
        print(output)
        raise SystemExit("Without a mutant, the tests do not pass either.")
    print("Without a mutant, all tests pass.", flush=True)


def _failures(output: str) -> list[str]:
    """The lines of pytest's summary that name a test."""
    return [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    reader.add_argument("--only", default="", help="only mutants whose name or file contains this")
    reader.add_argument("--jobs", type=int, default=2, help="mutants at a time (2)")
    reader.add_argument("--why", action="store_true", help="show which test failed, and how")
    reader.add_argument("--seconds", type=float, default=300, help="the longest time of one (300)")
    options = reader.parse_args()
    mutants = [m for m in MUTANTS if options.only in m.breaks or options.only in m.file]
    if not mutants:
        reader.error(f"No mutant's name or file contains {options.only!r}.")
    begin = time.monotonic()
    others: list[Outcome] = []
    for outcome in try_all(mutants, options.jobs, options.seconds):
        mutant = outcome.mutant
        print(f"{outcome.verdict:9} {outcome.seconds:5.1f} s  {mutant.breaks}", flush=True)
        if outcome.verdict != KILLED:
            others.append(outcome)
        elif options.why:
            print("\n".join(f"    {line}" for line in _failures(outcome.output)), flush=True)
    minutes = (time.monotonic() - begin) / 60
    killed = len(mutants) - len(others)
    print(f"\n{killed} of {len(mutants)} mutants were killed in {minutes:.1f} minutes.")
    for outcome in others:
        mutant = outcome.mutant
        print(f"\n{outcome.verdict}: {mutant.breaks}\n  {mutant.file}, {mutant.tests}")
        if outcome.verdict not in (SURVIVED, GONE):
            print("\n".join(outcome.output.splitlines()[-LAST_LINES:]))
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
