"""Runs side by side against one after the other: `comity compare --jobs 2` and without, in turn,
whole commands by the clock.

    python benchmarks/jobs.py [--repeats 3] [--jobs 2] [--scale 1.0]

`mlp2` compares five methods with a small network on digits, `cnn4` with a convolutional one on
digits made larger. Without --jobs each run has as many workers as there are cores. Printed are the
medians and their ratio, and the smallest and largest ratio of a pair: a machine that does other
things at the same time shows in these, and less in what was computed, the time of processors.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

LARGER = '''"""Digits at 28 x 28."""

import torch.nn.functional as F

import comity
from comity.data import Dataset


def load():
    small = comity.load("digits")
    return Dataset("larger", F.interpolate(small.x.float(), size=28), small.y, classes=10)
'''
METHODS = ("fedavg", "fedavg+dbe", "scaffold", "fedprox")
WORKS = {
    "mlp2": (40, ("--parties", "20", "--partition", "iid")),
    "cnn4": (
        2,
        ("--parties", "10", "--partition", "iid", "--data", "larger.py", "--model", "cnn4"),
    ),
}
"""Rounds, and settings."""


def seconds(
    rounds: int, settings: tuple[str, ...], more: list[str], home: Path
) -> tuple[float, float]:
    """A whole comparison by the clock, and what all its processes computed."""
    out = Path(tempfile.mkdtemp(dir=home))
    command = [
        sys.executable,
        "-m",
        "comity.cli",
        "compare",
        *METHODS,
        "--rounds",
        str(rounds),
        *settings,
        *more,
    ]
    before, begin = _computed(), time.perf_counter()
    subprocess.run(
        [*command, "--no-report", "--out", str(out)], check=True, capture_output=True, cwd=home
    )
    return time.perf_counter() - begin, _computed() - before


def _computed() -> float:
    """Seconds of processors that processes took which have ended by now."""
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--repeats", type=int, default=3)
    cli.add_argument("--jobs", default="2")
    cli.add_argument("--scale", type=float, default=1.0, help="of the number of rounds")
    args = cli.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "larger.py").write_text(LARGER, encoding="utf-8")
        for function, (rounds, settings) in WORKS.items():
            pairs = []
            for _ in range(args.repeats):
                both = [
                    seconds(max(1, round(args.scale * rounds)), settings, more, home)
                    for more in ([], ["--jobs", args.jobs])
                ]
                pairs.append(both)
            for what, k in (("by the clock", 0), ("computed", 1)):
                alone, beside = (
                    statistics.median(one[k] for one in times) for times in zip(*pairs, strict=True)
                )
                ratios = sorted(two[k] / one[k] for one, two in pairs)
                print(
                    f"{function} {what}: {alone:.1f} s one after the other, {beside:.1f} s side by"
                    f" side: {beside / alone:.2f} (pairs {ratios[0]:.2f} to {ratios[-1]:.2f})",
                    flush=True,
                )
    print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
