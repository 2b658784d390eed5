"""Memory of the server of a run between sites: how many copies of a model it has for each site.

    python benchmarks/server_memory.py [--sites 2 6] [--width 3000]

The sites run in a process of their own, and hand their replies over all at once, as NVIDIA FLARE does
where sites reply at the same time. What FLARE itself needs is not measured. Prints the peak of the
server's memory (VmHWM) above that before the first round, and what each further site adds, in
copies of the model.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from in_process_sites import HUB, OPEN, Sites

from comity.deploy.handler import RequestHandler
from comity.deploy.server import FAILURE, RUNS, serve
from comity.runs.folder import RunFolder

MEGABYTE = 1e6


class Piped:
    """A transport to request handlers in another process."""

    def __init__(self, names: list[str], pipe: Connection) -> None:
        self.names = names
        self._pipe = pipe
        self.baseline = 0.0
        self._calls = 0

    def ask(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        self._calls += 1
        if self._calls == 3:  # after the introduction and the beginning
            Path("/proc/self/clear_refs").write_text("5")
            self.baseline = memory("VmRSS")
        sent = dict(requests)  # FLARE keeps each request until its reply is there
        self._pipe.send_bytes(str(len(sent)).encode())
        for name, request in sent.items():
            self._pipe.send_bytes(name.encode())
            self._pipe.send_bytes(request)
        replies = [(name, self._pipe.recv_bytes()) for name in sent]
        while replies:
            yield replies.pop()


def answer(handlers: Mapping[str, RequestHandler], pipe: Connection) -> None:
    """Answer requests until the pipe is closed. Replies leave when all have arrived."""
    while True:
        try:
            count = int(pipe.recv_bytes())
        except EOFError:
            return
        requests = [(pipe.recv_bytes().decode(), pipe.recv_bytes()) for _ in range(count)]
        for name, request in requests:
            pipe.send_bytes(handlers[name].answer(request))


def memory(what: str) -> float:
    """The memory of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024 / MEGABYTE


def peak(count: int, width: int, report: Connection) -> None:
    """Send the peak of the server's memory in a run of one round, and the size of its model."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = {f"site{i}": (30, 12) for i in range(count)}
        sites = Sites(Path(folder), sizes, OPEN | {"export = true": "export = false"})
        ours, theirs = multiprocessing.Pipe()
        handlers = {name: sites.handler(name) for name in sites.names}
        child = multiprocessing.get_context("fork").Process(target=answer, args=(handlers, theirs))
        child.start()
        theirs.close()
        transport = Piped(sites.names, ours)
        settings = {"algorithm": "fedavg", "model": f"mlp2(width={width})", "rounds": 1}
        order = {"run": "memory", "settings": settings | {"data": "sites", "partition": "natural"}}
        hub = sites.folder / "hub"
        serve(transport, order, hub, identity=sites.root.identity(HUB))
        highest = memory("VmHWM") - transport.baseline
        ours.close()
        child.join(10)
        child.terminate()
        run = hub / RUNS / "memory"
        if (run / FAILURE).exists():
            raise SystemExit((run / FAILURE).read_text())
        model = max(row.bytes for row in RunFolder(run).read_ledger()) / MEGABYTE
    report.send((highest, model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs=2, default=(2, 6))
    parser.add_argument("--width", type=int, default=3000)
    options = parser.parse_args()
    peaks = []
    for count in options.sites:
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=peak, args=(count, options.width, theirs))
        process.start()
        highest, model = ours.recv()
        process.join()
        peaks.append(highest)
        print(f"{count} sites, model of {model:.0f} MB: {highest:,.0f} MB at the peak")
    few, many = options.sites
    print(
        f"each further site: {(peaks[1] - peaks[0]) / (many - few) / model:.1f} copies of the model"
    )


if __name__ == "__main__":
    main()
