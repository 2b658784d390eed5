"""Seconds from the start of Python to the end of a first round on the embedded digits, in a process
of its own each time.

python benchmarks/startup.py [--repeats 3]
"""

from __future__ import annotations

import argparse
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
net = job.net(engine, Quiet())
net.begin(1)
job.algorithm.round(job.algorithm.init_server(job.root.fold("init"), job.info), net, 1)
engine.close()
"""


def seconds(code: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begin


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--repeats", type=int, default=3)
    for _ in range(cli.parse_args().repeats):
        bare, first = seconds("import torch"), seconds(FIRST)
        print(f"{first:.1f} s, {first / bare:.2f} of 'import torch'")


if __name__ == "__main__":
    main()
