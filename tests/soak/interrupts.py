"""Ctrl-C and SIGTERM at random moments of a command's first seconds: the command must end with one
sentence and the signal's exit code, without a traceback.

python tests/soak/interrupts.py --moments 50 --seed 0

Both ways to start are tried: `python -m comity.cli`, and the script `comity` that pip writes.
Workers start at the end of that time. No Python program can handle a signal that arrives before
Python itself has started; such cases are counted separately.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

SCRIPT = "import re, sys; from comity.cli import main; sys.exit(main())"  # as pip writes it
WAYS = {"python -m": ["-m", "comity.cli"], "script": ["-c", SCRIPT]}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
COMMAND = (
    "run",
    "fedavg",
    "--rounds=100000",
    "--engine=process",
    "--workers=2",
    "--model=linear",
    "--parties=4",
    "--out",
)


def interrupt_at(
    moment: float, way: list[str], which: signal.Signals, whole_group: bool
) -> tuple[str, str]:
    """Send a command a signal after `moment` seconds. Returns how it ended, `well`, `unborn`
    (killed before Python had started) or `badly`, and details.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *way, *COMMAND, f"{folder}/run"]
        child = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=folder,
        )
        time.sleep(moment)
        (os.killpg if whole_group else os.kill)(child.pid, which)
        try:
            errors = child.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return "badly", "still running after 30 s"
    lines = [line for line in errors.splitlines() if "  round " not in line]
    if (child.returncode, lines) == (-which, []):
        return "unborn", ""
    if (
        child.returncode == CODES[which]
        and len(lines) == 1
        and lines[0].startswith("comity: Stopped")
    ):
        return "well", lines[0]
    return "badly", f"exit code {child.returncode}, {errors!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--until", type=float, default=4.0, help="seconds after the start")
    parser.add_argument(
        "--from",
        type=float,
        default=0.05,
        dest="begin",
        help="seconds: Python itself takes some 20 ms to start",
    )
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    ends: Counter[tuple[str, str]] = Counter()
    for number in range(arguments.moments):
        name = draw.choice(sorted(WAYS))
        which = draw.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM])
        moment = draw.uniform(arguments.begin, arguments.until)
        end, detail = interrupt_at(moment, WAYS[name], which, whole_group=draw.random() < 0.5)
        ends[which.name, end] += 1
        if end == "badly":
            print(f"{number}: {which.name} after {moment:.3f} s, {name}: {detail}", flush=True)
    for (which_name, end), count in sorted(ends.items()):
        print(f"{which_name}: {count} ended {end}")
    sys.exit(any(end == "badly" for _, end in ends))


if __name__ == "__main__":
    main()
