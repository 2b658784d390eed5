"""How long Comity takes to start: `comity --help`, `import comity`, and a first round on the embedded
digits, in a process of its own each time.

Wall-clock seconds, and processor seconds, which another load on the machine changes less. The
fastest of the repeats is printed.

python benchmarks/startup.py [--repeats 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

FIRST = """
import comity
from comity.runs import config
from comity.runs.build import federation_of, prepare
from comity.runs.server_run import Quiet

experiment = config.experiment({"algorithm": "fedavg", "parties": 10})
job = prepare(experiment, federation_of(experiment))
engine = job.engine()
server = job.server(engine, Quiet())
server.begin(1)
job.algorithm.round(job.algorithm.init_server(job.root.fold("init"), job.info), server, 1)
engine.close()
"""


STARTS = {
    "python": ["-c", "pass"],
    "comity --help": ["-m", "comity.cli", "--help"],
    "comity --version": ["-m", "comity.cli", "--version"],
    "import comity": ["-c", "import comity"],
    "import torch": ["-c", "import torch"],
    "comity compare --help": ["-m", "comity.cli", "compare", "--help"],
    "first round": ["-c", FIRST],
}


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Return the wall-clock and the processor seconds of a new Python process."""
    begin, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system
    return time.perf_counter() - begin, used - before.children_user - before.children_system


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--repeats", type=int, default=3)
    repeats = cli.parse_args().repeats
    for name, arguments in STARTS.items():
        measured = [seconds(arguments) for _ in range(repeats)]
        wall, processor = (min(values) for values in zip(*measured, strict=True))
        print(f"{name:<24} {wall:6.2f} s, {processor:6.2f} s of the processor", flush=True)


if __name__ == "__main__":
    main()
