"""Rounds of this version against another's, interleaved: did a change cost anything?

    git worktree add ../before COMMIT
    python benchmarks/versions.py ../before/src [--rounds 11] [--only fedprox]

Two processes take turns, each with its own version of Comity on the same random images: a round
here, a round there, so that a busy moment of the machine hits both. Prints the median of the ratios
(this / other) with its quartiles, of processor time but for engine `process`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
WORKS = (  # method, model, engine, parties
    ("fedavg", "mlp2", "loop", 20),
    ("fedavg", "mlp2", "stacked", 100),
    ("fedavg", "linear", "loop", 300),
    ("fedavg", "linear", "stacked", 500),
    ("fedavg", "lenet5", "loop", 10),
    ("fedavg", "cnn4", "loop", 3),
    ("fedavg", "mlp2", "process", 40),
    ("fedprox", "mlp2", "loop", 20),
    ("fedprox", "mlp2", "stacked", 100),
    ("ditto", "mlp2", "stacked", 50),
    ("scaffold", "mlp2", "stacked", 50),
    ("moon", "mlp2", "stacked", 50),
    ("fedavg+dbe", "mlp2", "loop", 20),
    ("fedavg+dbe", "mlp2", "stacked", 50),
    ("adcol", "mlp2", "stacked", 20),
    ("relay", "mlp2", "stacked", 50),
    ("relay(m_down=3)", "mlp2", "stacked", 50),
    ("fedgen(gen_steps=5)", "mlp2", "stacked", 50),
    ("apfl", "mlp2", "stacked", 50),
    ("feduad", "mlp2", "stacked", 8),
    ("fedufo(stage_one=0)", "mlp2", "stacked", 8),
    ("fed-sps", "mlp2", "loop", 8),
    ("fed-sps", "mlp2", "stacked", 8),
)
SAMPLES = 70


def found(*names: str) -> Any:
    """The first of these modules that there is."""
    for name in names:
        with contextlib.suppress(ImportError):
            return import_module(name)
    raise SystemExit(f"There is no {names[0]} here.")


def serve(settings: dict[str, Any]) -> None:
    """In a process of its own: a round for each line that comes in, its seconds for an answer."""
    warnings.simplefilter("ignore")
    import torch

    import comity

    # The later names are those of earlier versions.
    build = found("comity.runs.build", "comity.experiments.build")
    progress = found("comity.runs.server_run", "comity.experiments.outline")
    config = found("comity.runs.config", "comity.experiments.config")
    allocator = found("comity.engines.allocator")

    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(1)
    tiny = (torch.zeros(1, 1, 28, 28), torch.zeros(1, dtype=torch.long))

    def images() -> tuple[Any, Any]:
        return torch.randn(SAMPLES, 1, 28, 28, generator=draw), torch.randint(
            0, 10, (SAMPLES,), generator=draw
        )

    parties = {f"p{i}": (images(), tiny) for i in range(settings.pop("parties"))}
    federation = comity.Federation.from_arrays(parties, validation=0.0, classes=10)
    job = build.prepare(
        config.experiment(settings | {"batch": 10, "lr": 0.005, "rounds": 50}), federation
    )
    gc.freeze()  # as a run does
    allocator.keep_freed_memory()
    engine = job.engine()
    make_server = job.server if hasattr(job, "server") else job.net
    server = make_server(engine, progress.Quiet())
    clock = time.perf_counter if settings["engine"] == "process" else time.process_time
    server.begin(0)
    algorithm = job.algorithm
    init = algorithm.init_server if hasattr(algorithm, "init_server") else algorithm.server
    s = algorithm.start(init(job.root.fold("init"), job.info), server)
    print("ready", flush=True)
    for t, _ in enumerate(sys.stdin, 1):
        server.begin(t)
        begin = clock()
        s = job.algorithm.round(s, server, t)
        print(clock() - begin, flush=True)
        server.ledger.take()
        server.notes.clear()
    engine.close()


class Version:
    """A process with one version of the sources."""

    def __init__(self, source: Path, settings: dict[str, Any]) -> None:
        surroundings = dict(os.environ, PYTHONPATH=str(source), OMP_NUM_THREADS="1")
        asked = [sys.executable, str(HERE), "--serve", json.dumps(settings)]
        self._process = subprocess.Popen(
            asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=surroundings
        )
        if self._line() != "ready":
            raise SystemExit(f"{source} does not run {settings['algorithm']}.")

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def round(self) -> float:
        """Seconds of one more round."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def compare(other: Path, settings: dict[str, Any], rounds: int) -> list[float]:
    """Ratios of neighbouring rounds, the first of each left out."""
    ours = Version(HERE.parents[1] / "src", settings)
    theirs = Version(other, settings)
    ratios = []
    for k in range(rounds + 1):
        order = (ours, theirs) if k % 2 else (theirs, ours)
        seconds = {version: version.round() for version in order}
        ratios.append(seconds[ours] / seconds[theirs])
    ours.close()
    theirs.close()
    return ratios[1:]


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("other", type=Path, nargs="?")
    cli.add_argument("--rounds", type=int, default=11)
    cli.add_argument("--only", default="")
    cli.add_argument("--serve")
    args = cli.parse_args()
    if args.serve:
        serve(json.loads(args.serve))
        return
    if args.other is None:
        cli.error("name the other version's src folder")
    print(f"{'method':22}{'model':8}{'engine':9}{'parties':>8}{'ratio':>8}   quartiles")
    for method, model, engine, parties in WORKS:
        if args.only not in f"{method} {model} {engine}":
            continue
        workers = {"loop": None, "stacked": 1, "process": 2}[engine]
        settings = {
            "algorithm": method,
            "model": model,
            "engine": engine,
            "workers": workers,
            "parties": parties,
        }
        low, middle, high = statistics.quantiles(compare(args.other, settings, args.rounds), n=4)
        print(
            f"{method:22}{model:8}{engine:9}{parties:>8}{middle:8.2f}   {low:.2f} to {high:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
