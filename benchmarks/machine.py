"""What the machine can do: single-precision GEMM and memory bandwidth of one process, and of two at
the same time.

    python benchmarks/machine.py

One torch thread a process. GEMM multiplies matrices of 512 x 512, which fit into the cache; memory
scales 200 MB in place (read and written once each), which do not.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time

import torch

REPEATS = 15


def gemm() -> float:
    """GFLOP/s."""
    a, b, out = torch.randn(512, 512), torch.randn(512, 512), torch.empty(512, 512)

    def many() -> None:
        for _ in range(20):
            torch.mm(a, b, out=out)

    return 20 * 2 * 512**3 / _seconds(many) / 1e9


def memory() -> float:
    """GB/s, reading and writing counted."""
    big = torch.randn(50_000_000)
    return 2 * big.nbytes / _seconds(lambda: big.mul_(1.0)) / 1e9


def _seconds(action: object) -> float:
    assert callable(action)
    action()
    taken = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def _measured(what: str) -> float:
    torch.set_num_threads(1)
    return {"gemm": gemm, "memory": memory}[what]()


def main() -> None:
    with multiprocessing.get_context("fork").Pool(2) as both:
        for what, unit in (("gemm", "GFLOP/s"), ("memory", "GB/s")):
            alone = both.apply(_measured, (what,))
            first, second = (
                task.get() for task in [both.apply_async(_measured, (what,)) for _ in range(2)]
            )
            print(
                f"{what:8}{alone:7.1f} {unit} alone, {first:.1f} and {second:.1f} at the same time"
            )


if __name__ == "__main__":
    main()
