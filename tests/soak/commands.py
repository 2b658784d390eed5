"""Random commands with broken values: they must end with an exit code of Comity, few lines on
stderr, and no traceback.

python tests/soak/commands.py --count 500 --seed 0

Most commands run inside this process, so that hundreds take a minute or two; every 40th runs as a
new process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch

from comity import algorithms, cli
from comity.models.zoo import ZOO
from comity.runs.config import Experiment

CODES = (0, 1, 2, 130)
SECONDS = 30
LINES = 5  # on stderr, without lines of progress
BROKEN = [
    "", " ", "0", "-1", "1", "2", "3", "1e30", "-1e30", "nan", "inf", "-inf", str(2**63), str(10**400), "9" * 5000, "0.5", "1.5",
    "x", "x" * 3000, "été", "\udcff\udcfe", "\u202e", "[bold]x[/bold]", "[/]", "%s", "{0}", "../..", "/", ".", "/dev/null",
    "/dev/full", "/dev/zero", "/proc/self/mem", "none", "null", "true", "a,b,c", ",", "=", "(", ")", "()", "a=b", "a(b=c", "+",
    "|", "--help", "-", "\n", "\t", "\x1b[31m", "x/" * 200, "broken.toml", "deep.toml", "huge.toml", "bytes.toml", "here", "run",
    "file.csv", "blank.npz",
]  # fmt: skip
RIGHT = {
    "data": ["digits", "here"], "partition": ["iid", "dirichlet(alpha=0.5)", "shard"], "parties": ["2", "3"],
    "model": ["linear", "mlp2"],
    "optimizer": ["adam", "sgd(momentum=0.9)"], "test": ["common", "matched", "own(0.5)"], "augment": ["none"], "cut": ["fc1"],
    "device": ["cpu"], "engine": ["stacked", "loop", "process"], "bn": ["all"], "opt_state": ["keep"], "without": ["p1"],
    "lr": ["0.1"], "participation": ["0.5"], "validation": ["0.2"],
}  # fmt: skip
SMALL = ["--rounds=1", "--parties=2", "--model=mlp2(width=4)", "--steps=1", "--engine=loop"]
COMMANDS = [
    "run",
    "compare",
    "tune",
    "plan",
    "resume",
    "list",
    "show",
    "data",
    "report",
    "measure",
    "export",
    "watch",
    "reproduce",
]


def write_files(folder: Path) -> None:
    """Write damaged files that commands may be given."""
    (folder / "broken.toml").write_text("rounds = [1, 2", encoding="utf-8")
    (folder / "deep.toml").write_text("a = " + "[" * 50_000, encoding="utf-8")
    (folder / "huge.toml").write_text(
        f"rounds = {'9' * 5000}\nseed = 0x{'f' * 5000}", encoding="utf-8"
    )
    (folder / "bytes.toml").write_bytes(b"data = '\xff\xfe'\n\0")
    (folder / "here").mkdir()
    (folder / "here" / "a.csv").write_bytes(b"x,label\n\xff,1\n")
    (folder / "file.csv").write_text("x,label\n1,2\n", encoding="utf-8")
    (folder / "blank.npz").write_bytes(b"")
    (folder / "run").mkdir()
    (folder / "run" / "config.toml").write_text("rounds = 1", encoding="utf-8")
    (folder / "run" / "manifest.json").write_text("[" * 50_000, encoding="utf-8")


def _options(method: str) -> list[str]:
    """The names of a method's own options, if there is such a method."""
    return list(algorithms.options(algorithms.find(method))) if method in algorithms.names() else []


def draw_command(draw: random.Random) -> list[str]:
    """A random command, most of whose values are valid."""

    def broken() -> str:
        return draw.choice(BROKEN)

    def method() -> str:
        name = draw.choice(algorithms.names()) if draw.random() < 0.95 else broken()
        if draw.random() < 0.2:
            return f"{name}({draw.choice([*_options(name), broken()])}={broken()})"
        return (
            f"{name}+{draw.choice([*algorithms.names(), broken()])}"
            if draw.random() < 0.2
            else name
        )

    def setting() -> str:
        name = draw.choice(
            [n for n in Experiment.model_fields if n not in ("algorithm", "set", "party")]
        )
        value = draw.choice(RIGHT.get(name, ["1"])) if draw.random() < 0.7 else broken()
        return f"--{name.replace('_', '-')}={value}"

    def options() -> Iterator[str]:
        for _ in range(draw.randrange(3)):
            match draw.randrange(10):
                case 0:
                    yield (
                        f"--set={draw.choice(['mu', 'hidden', 'lam', 'dbe.kappa', broken()])}={broken()}"
                    )
                case 1:
                    yield (
                        f"--party=p{draw.randrange(3)}.{draw.choice(['model', 'lr', 'peers', broken()])}={broken()}"
                    )
                case 2:
                    yield (
                        f"--model={draw.choice(sorted(ZOO))}({draw.choice(['width', 'projection', 'scale'])}={broken()})"
                    )
                case 3:
                    yield (
                        f"--partition={draw.choice(['dirichlet', 'shard', 'pathological', 'quantity'])}({broken()}={broken()})"
                    )
                case _:
                    yield setting()

    def small() -> list[str]:
        """Random options, and those that keep a run small unless a random option replaces them."""
        values = list(options())
        flags = {text.partition("=")[0] for text in values}
        return [*(text for text in SMALL if text.partition("=")[0] not in flags), *values]

    match command := draw.choice(COMMANDS):
        case "run" | "plan" | "tune":
            grid = (
                [f"--grid={draw.choice(['lr', 'mu', broken()])}={broken()}"]
                if command == "tune"
                else []
            )
            return [
                command,
                method(),
                *small(),
                *grid,
                *(["--out=out"] if command != "plan" else []),
            ]
        case "compare":
            return [command, method(), method(), *small(), "--no-report", "--out=out"]
        case "data":
            what = draw.choice(["inspect", "import", "prepare", broken()])
            values = (
                list(options())
                if what == "inspect"
                else [broken(), *([f"--out={broken()}"] if what == "import" else [])]
            )
            return [command, what, *values]
        case "watch":
            return (
                [command, broken(), "--once"]
                if draw.random() < 0.5
                else [command, "--bogus", broken()]
            )
        case _:
            return [
                command,
                *(broken() for _ in range(draw.randrange(3))),
                *([f"--{broken()}"] if draw.random() < 0.2 else []),
            ]


class TooLongError(BaseException):
    """A command did not end in time. Not an Exception, so that no code catches it."""


def run_inside(args: list[str]) -> tuple[int, str]:
    """Exit code and stderr of a command inside this process."""

    def late(number: int, frame: FrameType | None) -> NoReturn:
        raise TooLongError

    errors = io.StringIO()
    sys.argv = ["comity", *args]
    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    code: object = 0
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            cli.main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return (code if isinstance(code, int) else 1), errors.getvalue()


def run_apart(args: list[str]) -> tuple[int, str]:
    """Exit code and stderr of a command in a new process."""
    command = [sys.executable, "-m", "comity.cli", *args]
    result = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
    )
    return result.returncode, result.stderr


def fault_in(code: int, errors: str) -> str:
    """What is wrong with an exit code and stderr; empty if nothing is."""
    lines = [line for line in errors.splitlines() if "  round " not in line]
    if code not in CODES:
        return f"exit code {code}"
    if "Traceback" in errors or "Error in " in errors:
        return "an unexpected exception"
    if len(lines) > LINES or max(map(len, lines), default=0) > 2100:
        return f"{len(lines)} lines"
    return "no error message" if code and not lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(arguments.seed)
    ends: Counter[object] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.count):
            folder_of_command = Path(folder) / str(number)
            folder_of_command.mkdir()
            os.chdir(folder_of_command)
            write_files(folder_of_command)
            args = draw_command(draw)
            began = time.monotonic()
            try:
                code, errors = (run_apart if number % 40 == 39 else run_inside)(args)
                fault = fault_in(code, errors)
            except (TooLongError, subprocess.TimeoutExpired):
                code, errors, fault = -1, "", f"still running after {SECONDS} s"
            except BaseException as why:
                code, errors, fault = -1, repr(why), "an exception was raised"
            ends["wrong" if fault else code] += 1
            if fault:
                print(
                    f"{number}: {[a[:80] for a in args]}: {fault} ({time.monotonic() - began:.1f}"
                    f" s): {errors[-600:]}",
                    flush=True,
                )
            os.chdir(folder)
    print(
        f"{arguments.count} commands: "
        + ", ".join(f"{n} ended with {end}" for end, n in sorted(ends.items(), key=str))
    )
    sys.exit(ends["wrong"] > 0)


if __name__ == "__main__":
    main()
