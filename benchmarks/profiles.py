"""Where the time of a round goes, operation by operation: the bare loop's round and ours, in one
process.

    python benchmarks/profiles.py {cnn4,mlp2,linear,lenet5} [--engine loop|stacked] [--rows 10]

By torch's profiler, which slows small operations down: read the shares, not the milliseconds.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable

import torch
from bare import BATCH, LR, WORKS, Bare, data_of
from torch.profiler import ProfilerActivity, profile

from comity import Federation
from comity.engines.allocator import keep_freed_memory
from comity.runs import config
from comity.runs.build import prepare
from comity.runs.server_run import Quiet


def shown(title: str, action: Callable[[], object], rows: int) -> None:
    """The operations that take longest themselves."""
    action()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        action()
    found = sorted(seen.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(e.self_cpu_time_total for e in found)
    print(f"{title}: {total / 1e3:.0f} ms under the profiler")
    for e in found[:rows]:
        print(f"  {e.self_cpu_time_total / total:6.1%}  {e.count:6} x  {e.key}")


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("work", choices=list(WORKS))
    cli.add_argument("--engine", choices=["loop", "stacked"], default="loop")
    cli.add_argument("--rows", type=int, default=10)
    args = cli.parse_args()
    torch.set_num_threads(1)
    gc.freeze()
    keep_freed_memory()
    data = data_of(args.work)
    tiny = (torch.zeros(1, 1, 28, 28), torch.zeros(1, dtype=torch.long))
    federation = Federation.from_arrays(
        {f"p{i}": (d, tiny) for i, d in enumerate(data)}, validation=0.0, classes=10
    )
    settings = {
        "algorithm": "fedavg",
        "model": args.work,
        "batch": BATCH,
        "lr": LR,
        "engine": args.engine,
        "workers": 1,
    }
    job = prepare(config.experiment(settings), federation)
    server = job.server(job.engine(), Quiet())
    s = job.algorithm.init_server(job.root.fold("init"), job.info)
    server.begin(1)
    shown("bare loop", Bare(args.work, data, 1).round, args.rows)
    shown(f"Comity, {args.engine}", lambda: job.algorithm.round(s, server, 1), args.rows)


if __name__ == "__main__":
    main()
