"""What it costs to ask sites through NVIDIA FLARE: a real server and real sites on this machine,
mutual TLS on loopback.

    python benchmarks/sites.py --echo [--sites 3] [--times 30] [--megabytes 1 10 100]
    python benchmarks/sites.py --rounds [--sites 3]

`--echo` asks all sites at once with a request that they send back as it is: an empty one, then
larger ones. Prints medians and quartiles of the seconds until the last answer is there, and how
many megabytes a second that is, both ways and all sites together. Also how long it takes from
submitting a job to its first answers, and from its last ones to its end, and the memory of
processes.

`--rounds` compares ten rounds of FedAvg (cnn4, a thousand pictures of MNIST a site, evaluated each
round) with the same on `--engine process` with as many workers: the rounds' own seconds, of
timing.csv. What comes before the first round and after the last is told apart. Both are run twice,
in turn, and the quicker counts: whatever else the machine does makes them slower only.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deploy" / "flare"))

from deployment import Deployment
from real_sites import RealSites

from comity.runs.folder import RunFolder


def echo(sites: int, times: int, megabytes: list[float]) -> None:
    """Requests of several sizes, there and back."""
    sizes = [0.0, *megabytes]
    steps: list[dict[str, Any]] = [{"ask": "echo", "times": 3}]
    for size in sizes:
        fewer = max(3, int(times / max(1.0, size / 3)))
        steps.append(
            {"ask": f"echo {size:g}", "bytes": int(size * 1e6), "times": fewer, "seconds": 600}
        )
    with tempfile.TemporaryDirectory(prefix="comity-sites-") as folder:
        place = Deployment(Path(folder), [f"site-{k}" for k in range(sites)])
        try:
            place.restore()
            run(place, [*steps, {"ask": "echo last", "after": "go"}])
        finally:
            place.close()
        done = place.steps()
    for size in sizes:
        took = [step["took"] for step in done if step["ask"] == f"echo {size:g}"]
        low, middle, high = statistics.quantiles(took, n=4)
        speed = f"{2 * sites * size / middle:8.0f} MB/s" if size else ""
        print(
            f"{size:6g} MB there and back, {sites} sites: {middle:7.3f} s [{low:.3f}, {high:.3f}]"
            f" of {len(took)}{speed}"
        )


def rounds(sites: int) -> None:
    """Rounds between sites against rounds between processes."""
    settings = {"model": "cnn4", "rounds": 10, "lr": 0.05, "test": "official"}
    with tempfile.TemporaryDirectory(prefix="comity-sites-") as folder:
        place = RealSites(Path(folder), {f"site-{k}": (1000, 200) for k in range(sites)}, "mnist")
        try:
            place.restore()
            with place.jobs() as jobs:
                place.wait_for(jobs)
            between, here = [], []
            for turn in range(2):
                here.append(_processes(place, Path(folder) / f"process-{turn}", settings))
                between.append(_between(place, Path(folder) / f"sites-{turn}", settings))
        finally:
            place.close()
    for part in ("train", "evaluate", "round"):
        there, near = min(one[part] for one in between), min(one[part] for one in here)
        print(
            f"{part:10}: {there:7.3f} s at {sites} sites, {near:7.3f} s in {sites} processes:"
            f" {there / near:5.2f} times"
        )


def _processes(place: RealSites, out: Path, settings: dict[str, Any]) -> dict[str, float]:
    begun = time.monotonic()
    place.sites.pooled("fedavg", out, **settings, engine="process", workers=len(place.names))
    return _took("process", RunFolder(out), time.monotonic() - begun)


def _between(place: RealSites, out: Path, settings: dict[str, Any]) -> dict[str, float]:
    begun = time.monotonic()
    order = place.submit("fedavg", out, deadline=600, **settings)
    order.wait_for_round(8, 600)
    for name in ("server", place.names[0]):
        print(
            f"{name}: {place.job_process(name).memory_info().rss / 1e6:.0f} MB in the job's process"
        )
    order.summary(600)
    return _took("sites", RunFolder(out), time.monotonic() - begun)


def _took(what: str, run: RunFolder, whole: float) -> dict[str, float]:
    """The median seconds of a round, by part."""
    rows = [row for row in run.read_timing() if row.round > 0]
    parts = {
        part: statistics.median(getattr(row, part) for row in rows)
        for part in ("train", "evaluate")
    }
    in_rounds = sum(row.train + row.evaluate + row.checkpoint for row in rows)
    print(f"{what}: {whole:.1f} s in all, of which {in_rounds:.1f} s in {len(rows)} rounds")
    return parts | {
        "round": statistics.median(row.train + row.evaluate + row.checkpoint for row in rows)
    }


def run(place: Deployment, steps: list[dict[str, Any]]) -> None:
    """One job, and how long it takes around its exchanges."""
    with place.jobs() as jobs:
        place.wait_for(jobs)
        begun = time.monotonic()
        job = jobs.submit({"steps": steps})
        place.wait_for_steps(1)
        print(f"submitted to first answers: {time.monotonic() - begun:.1f} s")
        place.wait_until_asked(steps[-2]["ask"], 3600)
        place.wait_for_steps(sum(step.get("times", 1) for step in steps[:-1]), 3600)
        for name in ("server", place.names[0]):
            held = [process.memory_info().rss / 1e6 for process in place.tree(name)]
            print(
                f"{name}: MB in its command, FLARE's process and the job's:",
                *(f"{one:.0f}" for one in held),
            )
        place.go("go")
        place.wait_for_steps(sum(step.get("times", 1) for step in steps))
        begun = time.monotonic()
        print(f"{jobs.wait(job)} {time.monotonic() - begun:.1f} s after the last answer")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--echo", action="store_true", help="requests that come back as they are")
    parser.add_argument(
        "--rounds", action="store_true", help="ten rounds of FedAvg, against as many processes"
    )
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--megabytes", type=float, nargs="*", default=[1, 10, 100])
    asked = parser.parse_args()
    if not (asked.echo or asked.rounds):
        parser.error("nothing to measure: --echo or --rounds")
    if asked.echo:
        echo(asked.sites, asked.times, asked.megabytes)
    if asked.rounds:
        rounds(asked.sites)


if __name__ == "__main__":
    main()
