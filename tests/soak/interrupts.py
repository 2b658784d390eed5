"""Ctrl-C and SIGTERM at random moments of a command's first seconds: one sentence and the signal's
exit code, never a traceback.

python tests/soak/interrupts.py --moments 50 --seed 0

Both ways to start are tried: `python -m comity.cli`, and what pip writes into the script `comity`.
Workers are starting at the end of that time. What comes before Python itself has started cannot be
answered by any program in Python: it is counted apart.
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


def stopped_at(
    moment: float, way: list[str], which: signal.Signals, whole_group: bool
) -> tuple[str, str]:
    """How a command ended that was sent a signal then: `well`, `unborn` (by the signal itself,
    before Python) or `badly`.
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
            said = child.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return "badly", "still running after 30 s"
    lines = [line for line in said.splitlines() if "  round " not in line]
    if (child.returncode, lines) == (-which, []):
        return "unborn", ""
    if (
        child.returncode == CODES[which]
        and len(lines) == 1
        and lines[0].startswith("comity: Stopped")
    ):
        return "well", lines[0]
    return "badly", f"exit code {child.returncode}, {said!r}"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--moments", type=int, default=50)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--until", type=float, default=4.0, help="seconds after the start")
    asked.add_argument(
        "--from",
        type=float,
        default=0.05,
        dest="begin",
        help="seconds: Python itself takes some 20 ms to start",
    )
    given = asked.parse_args()
    draw = random.Random(given.seed)
    ends: Counter[tuple[str, str]] = Counter()
    for number in range(given.moments):
        name = draw.choice(sorted(WAYS))
        which = draw.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM])
        moment = draw.uniform(given.begin, given.until)
        end, said = stopped_at(moment, WAYS[name], which, whole_group=draw.random() < 0.5)
        ends[which.name, end] += 1
        if end == "badly":
            print(f"{number}: {which.name} after {moment:.3f} s, {name}: {said}", flush=True)
    for (which_name, end), count in sorted(ends.items()):
        print(f"{which_name}: {count} ended {end}")
    sys.exit(any(end == "badly" for _, end in ends))


if __name__ == "__main__":
    main()
