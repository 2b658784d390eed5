"""What the guarantees of a site cost in a call: authentication, digest, ledger and stored reply.

    python benchmarks/site_safety.py [--rounds 20]

One site answers calls of fedavg+dp in this process, once with a model of a few hundred weights and
once with one of millions. Each part is timed by processor time and given as a share of the whole
call, with the bytes that it adds to a request and to the disk. The disk is synced as in a real run,
and the time of waiting for it is given apart.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from in_process_sites import Sites
from malicious_server import MaliciousServer

from comity.base.record import Model
from comity.deploy.release_ledger import ReleaseLedger
from comity.deploy.sent_ledger import SentLedger
from comity.deploy.session import RequestAuthenticator
from comity.deploy.site_calls import SiteCalls
from comity.deploy.site_store import Replies

PARTS: dict[str, tuple[type, str]] = {
    "authenticate the request": (RequestAuthenticator, "open"),
    "digest of the request": (SiteCalls, "_request_digest"),
    "charge the ledger": (ReleaseLedger, "charge"),
    "charge the bytes": (SentLedger, "charge"),
    "store the reply": (Replies, "write"),
}
MODELS = {"linear": "linear", "mlp2(width=2000)": "mlp2(width=2000)"}


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"{_processor()}, {rounds} calls each")
    for model in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            measure(model, Path(folder), rounds)


def measure(model: str, folder: Path, rounds: int) -> None:
    """Time the parts of calls with one model."""
    sites = Sites(folder / "sites", {"north": (200, 20), "east": (100, 20)})
    settings = {"model": model, "rounds": rounds, "batch": 32, "test": "official", "lr": 0.1}
    server = MaliciousServer(sites, "north", "cost", "fedavg+dp(noise=4)", **settings)
    server.begin()
    active = server.handler._run.active  # type: ignore[union-attr]
    theta = {k: torch.zeros(shape) for k, (shape, _) in active.site.party.task.shapes.items()}
    spent: dict[str, float] = defaultdict(float)
    waiting: dict[str, float] = defaultdict(float)
    with ExitStack() as stack:
        for name, (owner, method) in PARTS.items():
            timed = _timed(getattr(owner, method), spent, name)
            stack.enter_context(patch.object(owner, method, timed))
        stack.enter_context(patch.object(os, "fsync", _waited(os.fsync, waiting)))
        begin = time.process_time()
        for t in range(1, rounds + 1):
            server.call("local", Model(theta), round=t, depth=1)
        whole = time.process_time() - begin
    size = sum(value.nbytes for value in theta.values())
    print(f"\n{model}: {sum(v.numel() for v in theta.values()):,} weights, {size:,} bytes a reply")
    for name in PARTS:
        print(f"  {name:28} {spent[name] / whole:7.1%} of a call")
    files = (sites.site("north") / name for name in ("releases.csv", "sent.csv"))
    ledger = sum(file.stat().st_size for file in files)
    print(
        f"  {'waiting for the disk':28} {waiting['fsync'] / whole:7.1%} of a call's processor time"
    )
    print(f"  bytes added to a request: 48; to the ledgers: {ledger // rounds} a call")


def _timed(function: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.process_time() - begin

    return timed


def _waited(sync: Callable[[int], None], waiting: dict[str, float]) -> Callable[[int], None]:
    def waited(descriptor: int) -> None:
        begin = time.perf_counter()
        sync(descriptor)
        waiting["fsync"] += time.perf_counter() - begin

    return waited


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"


if __name__ == "__main__":
    main()
