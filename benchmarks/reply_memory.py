"""The memory files of the process engine in one round, against the number of parties.

    python benchmarks/reply_memory.py [--parties 50 200] [--model "mlp2(width=1000)"]

Every party replies with a model of some megabytes, in a message of its own. FedAvg reduces each
reply in its turn; the server of q-FFL keeps all. Prints the most bytes that the two workers' memory
files had at one time, and the most files.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

import comity
from comity.engines import workers
from comity.engines.process import ProcessEngine


def memory_files(process_id: int) -> dict[int, int]:
    """The sizes of a process' memory files for messages, by inode."""
    sizes = {}
    for entry in Path(f"/proc/{process_id}/fd").iterdir():
        try:
            if os.readlink(entry).startswith("/memfd:comity"):
                status = entry.stat()
                sizes[status.st_ino] = status.st_size
        except FileNotFoundError:
            continue
    return sizes


def most(method: str, parties: int, model: str) -> tuple[int, int]:
    """The most bytes and the most files during one round."""
    draw = torch.Generator().manual_seed(1)

    def samples() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(6, 8, generator=draw), torch.arange(6) % 3

    data = {f"p{i}": (samples(), samples()) for i in range(parties)}
    federation = comity.Federation.from_arrays(data, validation=0.0, classes=3)
    receive = ProcessEngine._receive
    seen = [(0, 0)]

    def receive_and_look(self: ProcessEngine, w: int) -> Any:
        reply = receive(self, w)
        files: dict[int, int] = {}
        for process in self._processes:
            files |= memory_files(process.pid or 0)
        seen.append((sum(files.values()), len(files)))
        return reply

    setattr(ProcessEngine, "_receive", receive_and_look)  # noqa: B010 - types do not allow it
    workers.FLUSH_SECONDS = 0.0
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings: dict[str, Any] = {"engine": "process", "workers": 2, "rounds": 1}
            comity.run(method, federation, model=model, out=Path(folder) / "run", **settings)
    finally:
        setattr(ProcessEngine, "_receive", receive)  # noqa: B010
    return max(size for size, _ in seen), max(count for _, count in seen)


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--parties", type=int, nargs="+", default=[50, 200])
    cli.add_argument("--model", default="mlp2(width=1000)")
    args = cli.parse_args()
    print(f"{'method':8}{'parties':>9}{'MB':>7}{'files':>7}")
    for method in ("fedavg", "q-ffl"):
        for parties in args.parties:
            size, count = most(method, parties, args.model)
            print(f"{method:8}{parties:9}{size / 1e6:7.0f}{count:7}", flush=True)


if __name__ == "__main__":
    main()
