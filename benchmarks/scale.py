"""What many parties cost: seconds of a round and memory, from ten parties to ten thousand.

    # 1,000 parties with personal models against 100, the same cohort
    python benchmarks/scale.py personal [--rounds 7]
    # linear models, 10 to 10,000 parties, all of them and a tenth
    python benchmarks/scale.py parties [--rounds 5] [--plot FILE]
    # a cohort of 1,000 of up to 100,000 parties, by processor time
    python benchmarks/scale.py cohort [--rounds 10]

Each federation lives in a process of its own (with two workers), and they take turns round by
round. Seconds are those of training and aggregation. Memory is the proportional set size (pages
that processes share are divided among them) of all processes after the last round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PERSONAL = ("fedper", "fedavg+dbe", "ditto")
COUNTS = (10, 30, 100, 300, 1000, 3000, 10000)
COHORT, FEDERATIONS = 1000, (1000, 10_000, 100_000)


class Child:
    """A federation in a process of its own, which does a round when told to."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        ask = [sys.executable, __file__, "child", json.dumps(settings)]
        self._process = subprocess.Popen(
            ask, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.start: float = self._answer()["start"]
        self.seconds: list[float] = []
        self.memory = 0.0
        self.round()  # warms up
        self.seconds.clear()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def round(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        found = self._answer()
        self.seconds.append(found["seconds"])
        self.memory = found["memory"]

    def close(self) -> None:
        self._process.communicate("")


def child(settings: dict[str, Any]) -> None:
    """Build a federation, then do a round for every line that comes."""
    import gc

    import torch
    from contest import tree

    from comity import Federation
    from comity.engines.allocator import keep_freed_memory
    from comity.runs import config
    from comity.runs.build import prepare
    from comity.runs.server_run import Quiet

    torch.set_num_threads(1)
    begin = time.perf_counter()
    parties, samples = settings.pop("parties"), settings.pop("samples")
    draw = torch.Generator().manual_seed(1)
    tiny = (torch.zeros(1, 1, 28, 28), torch.zeros(1, dtype=torch.long))

    def data() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(samples, 1, 28, 28, generator=draw), torch.randint(
            0, 10, (samples,), generator=draw
        )

    federation = Federation.from_arrays(
        {f"p{i}": (data(), tiny) for i in range(parties)}, validation=0.0, classes=10
    )
    job = prepare(
        config.experiment({"batch": 10, "lr": 0.005, "rounds": 20, "workers": 2} | settings),
        federation,
    )
    gc.freeze()
    keep_freed_memory()
    engine = job.engine()
    server = job.server(engine, Quiet())
    s = job.algorithm.start(job.algorithm.init_server(job.root.fold("init"), job.info), server)
    print(json.dumps({"start": time.perf_counter() - begin}), flush=True)
    for t, _ in enumerate(sys.stdin, 1):
        begin = time.perf_counter()
        server.begin(t)
        s = job.algorithm.round(s, server, t)
        server.ledger.take()
        seconds = time.perf_counter() - begin
        print(
            json.dumps({"seconds": seconds, "memory": sum(map(_proportional, tree(_pid())))}),
            flush=True,
        )
    engine.close()


def _pid() -> int:
    import os

    return os.getpid()


def _proportional(pid: int) -> float:
    """A process' memory in MB; shared pages count as its share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:"))


def personal(rounds: int) -> None:
    """Does a round cost what its cohort costs, or what the federation costs?"""
    print(
        f"{'algorithm':12}{'100 of 1,000 : 100 of 100':>28}{'quartiles':>16}{'MB':>8}{'MB (100)':>10}"
    )
    for algorithm in PERSONAL:
        common = {"algorithm": algorithm, "model": "mlp2", "samples": 70}
        few, many = Child(**common, parties=100), Child(**common, parties=1000, participation=0.1)
        for _ in range(rounds):
            few.round()
            many.round()
        ratios = [b / a for a, b in zip(few.seconds, many.seconds, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{algorithm:12}{middle:28.2f}{f'{low:.2f} to {high:.2f}':>16}{many.memory:8.0f}{few.memory:10.0f}",
            flush=True,
        )
        few.close()
        many.close()


def parties(rounds: int, path: Path | None) -> None:
    """Linear models of 28x28 images, ten samples a party."""
    rows = []
    print(f"{'parties':>8}{'cohort':>8}{'ms a round':>12}{'ms a party':>12}{'start s':>9}{'MB':>7}")
    for share in (1.0, 0.1):
        for count in COUNTS:
            one = Child(
                algorithm="fedavg", model="linear", samples=10, parties=count, participation=share
            )
            for _ in range(rounds):
                one.round()
            one.close()
            seconds, cohort = statistics.median(one.seconds), max(1, round(share * count))
            rows.append(
                {
                    "parties": count,
                    "share": share,
                    "seconds": seconds,
                    "MB": one.memory,
                    "start": one.start,
                }
            )
            each = 1e3 * seconds / cohort
            print(
                f"{count:8,}{cohort:8,}{1e3 * seconds:12.1f}{each:12.3f}{one.start:9.1f}{one.memory:7.0f}",
                flush=True,
            )
    if path:
        path.write_bytes(plot(rows))


def cohort(rounds: int) -> None:
    """Linear models of 16 numbers, 1,000 parties in a round: seconds of one processor for each
    part. The final evaluation has all metrics.
    """
    print(f"{'parties':>9}{'arrays':>9}{'prepare':>9}{'a round':>9}{'evaluate all':>14}{'MB':>7}")
    for count in FEDERATIONS:
        ask = [sys.executable, __file__, "one", json.dumps({"parties": count, "rounds": rounds})]
        subprocess.run(ask, check=True)


def one(parties: int, rounds: int) -> None:
    """A row of `cohort`, in a process of its own."""
    import gc

    import torch

    from comity import Federation
    from comity.engines.allocator import keep_freed_memory
    from comity.runs import config
    from comity.runs.build import prepare
    from comity.runs.evaluation import evaluate
    from comity.runs.server_run import Quiet

    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(1)
    times = [time.process_time()]

    def lap() -> float:
        times.append(time.process_time())
        return times[-1] - times[-2]

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 16, generator=draw), torch.arange(count) % 3

    data = {f"p{i}": (samples(10), samples(3)) for i in range(parties)}
    lap()
    federation = Federation.from_arrays(data, validation=0.0, classes=3)
    from_arrays = lap()
    settings = {"algorithm": "fedavg", "model": "linear", "batch": 10, "engine": "stacked"}
    settings |= {"workers": 1, "rounds": rounds, "participation": COHORT / parties}
    job = prepare(config.experiment(settings), federation)
    prepared = lap()
    gc.freeze()
    keep_freed_memory()
    engine = job.engine()
    server = job.server(engine, Quiet())
    server.begin(0)
    s = job.algorithm.start(job.algorithm.init_server(job.root.fold("init"), job.info), server)
    seconds = []
    for t in range(1, rounds + 1):
        server.begin(t)
        lap()
        s = job.algorithm.round(s, server, t)
        seconds.append(lap())
        server.ledger.take()
    evaluate(job, server, engine, s, final=True)
    evaluated = lap()
    print(
        f"{parties:9,}{from_arrays:9.2f}{prepared:9.2f}{statistics.median(seconds):9.2f}"
        f"{evaluated:14.2f}{_proportional(_pid()):7.0f}",
        flush=True,
    )
    engine.close()


def plot(rows: list[dict[str, float]]) -> bytes:
    """Two log-log panels as SVG: seconds of a round and memory against parties."""
    from comity.charts.chart import Chart, Data
    from comity.charts.encodings import quantitative
    from comity.charts.render import complete, picture

    who = {1.0: "all take part", 0.1: "a tenth takes part"}
    scale = {"domain": list(who.values()), "range": ["@c0", "@c1"]}
    colour = {"field": "who", "type": "nominal", "title": None, "scale": scale}
    log = {"type": "log"}

    def panel(field: str, title: str) -> dict[str, Any]:
        return {
            "width": 300,
            "height": 220,
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": quantitative("parties", "parties", scale=log),
                "y": quantitative(field, title, scale=log),
                "color": colour,
            },
        }

    data = Data.of(
        "scale",
        [row | {"who": who[row["share"]]} for row in rows],
        ("who", "parties", "seconds", "MB"),
    )
    spec = {"hconcat": [panel("seconds", "seconds of a round"), panel("MB", "memory, MB")]}
    title = "Seconds of a round and memory against the number of parties"
    return picture(complete(Chart("scale", title, title, data, spec)), "svg")


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("what", choices=["personal", "parties", "cohort", "child", "one"])
    cli.add_argument("settings", nargs="?")
    cli.add_argument("--rounds", type=int, default=7)
    cli.add_argument("--plot", type=Path)
    args = cli.parse_args()
    if args.what == "child":
        child(json.loads(args.settings))
    elif args.what == "one":
        one(**json.loads(args.settings))
    elif args.what == "cohort":
        cohort(args.rounds)
    elif args.what == "personal":
        personal(args.rounds)
    else:
        parties(args.rounds, args.plot)


if __name__ == "__main__":
    main()
