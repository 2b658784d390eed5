"""Whole federated rounds: Comity against peers from PyPI and the bare loop, interleaved round by
round.

    python benchmarks/peers.py [--rounds 5] [--mode both] [--peer pfl fluke flower] [--work cnn4-20 mlp2-100 ...]

Every contestant trains the same networks on as many parties, samples and steps: FedAvg weighted by
samples, batches of 10, one local epoch, plain SGD. Mode `train` is training and aggregation. In
mode `whole` all parties also test the new global model on data of their own after each round, and
frameworks log as they do by default; for Comity that is a user's whole run, with metrics, ledger
and checkpoints on disk. Each uses two processors as it does best: two processes of one thread
(bare, Comity, pfl), two Ray actors (Flower), or one process (fluke). Peers live in virtual
environments of their own, see `venvs.py`.

All contestants of a work are started one after the other and stand still (SIGSTOP) while others
have their turn. Before each of a contestant's rounds the bare loop does one: the ratio of these two
neighbours is what counts, and the median and the quartiles over all rounds are printed. First
rounds warm up and are not counted. Start-up is the time from a process' start until it is ready,
and what its first round took longer than the median of the others: some put off until then what
others do before. Memory is the sum of the peaks of all processes of a contestant, in which shared
pages count for each. PSS is what they hold after a round (the largest sum over the rounds), in
which a page that two processes share counts for each of them by half.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import venvs
from contest import tree
from works import TRIALS, WORKS

HERE = Path(__file__).resolve().parent
PEERS = ["pfl", "fluke", "flower"]
PATIENCE = 1800.0
"""Seconds that a round, or a start, may take."""


class Failure(Exception):
    """Why a contestant is out, in a sentence."""


@dataclass
class Contestant:
    """A process that does a round when told to, and stands still otherwise."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    start: float = 0.0
    warm_up: float = 0.0
    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """To the bare loop's round just before."""
    memory: float = 0.0
    resident: float = 0.0

    def hear(self) -> dict[str, float]:
        """The next thing it says."""
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        if not ready:
            raise Failure(f"it said nothing for {PATIENCE:.0f} seconds")
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise Failure(f"it ended: {venvs.last_line(self.log.read_text(errors='replace'))}")
        heard: dict[str, float] = json.loads(line)
        return heard

    def send(self, what: str) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):  # it will be heard that it ended
            self.process.stdin.write(what.encode() + b"\n")
            self.process.stdin.flush()

    def signal(self, which: int) -> None:
        """To all its processes."""
        gone = self.process.poll() is not None
        for pid in tree(self.process.pid)[gone:]:
            with suppress(ProcessLookupError):
                os.kill(pid, which)

    def round(self) -> float:
        """Seconds of one round."""
        self.signal(signal.SIGCONT)
        self.send("go")
        heard = self.hear()
        self.signal(signal.SIGSTOP)
        self.memory = max(self.memory, heard["memory"])
        self.resident = max(self.resident, heard["resident"])
        return heard["seconds"]

    @property
    def start_up(self) -> float:
        """Seconds until everything goes as it will go on."""
        return self.start + max(0.0, self.warm_up - statistics.median(self.seconds))


@contextmanager
def running(name: str, work: str, mode: str, rounds: int) -> Iterator[Contestant]:
    """A contestant, ready and standing still; at the end it is gone, with everything below it."""
    interpreter = sys.executable if name in ("bare", "comity") else venvs.python(name)
    with tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".log") as log:
        command = [interpreter, HERE / f"peer_{name}.py", work, mode, str(rounds + 1)]
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": log,
            "bufsize": 0,
        }
        process = subprocess.Popen(command, cwd=HERE, start_new_session=True, **pipes)
        contestant = Contestant(name, process, Path(log.name))
        try:
            contestant.start = contestant.hear()["ready"]
            contestant.signal(signal.SIGSTOP)
            yield contestant
        finally:
            contestant.signal(signal.SIGCONT)
            contestant.send("stop")
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            contestant.signal(signal.SIGKILL)
            process.wait()


def compete(work: str, mode: str, names: list[str], rounds: int) -> list[Contestant]:
    """All rounds of a work; who fails is out, and the others go on."""
    with ExitStack() as stack:
        field: list[Contestant] = []
        for name in names:
            try:
                field.append(stack.enter_context(running(name, work, mode, rounds)))
            except (Failure, RuntimeError, OSError, subprocess.SubprocessError) as why:
                if name == "bare":
                    raise Failure(why) from why
                print(f"{work}: {name} is out: {why}", flush=True)
        bare = field[0]
        bare.warm_up = bare.round()
        for t in range(rounds + 1):
            for contestant in field[1:]:
                floor = bare.round()
                try:
                    taken = contestant.round()
                except Failure as why:
                    print(f"{work}: {contestant.name} is out in round {t}: {why}", flush=True)
                    contestant.signal(signal.SIGKILL)
                    field = [other for other in field if other is not contestant]
                    continue
                bare.seconds.append(floor)
                if t:
                    contestant.seconds.append(taken)
                    contestant.ratios.append(taken / floor)
                else:
                    contestant.warm_up = taken
        return field


def show(work: str, field: list[Contestant]) -> str:
    """A work's lines of the table; returns how Comity fares, in a sentence."""
    bare, middles = field[0], {}
    print(f"{work:16}{'bare':10}{1:8.2f}   {'':16}{1:10.2f}{bare.memory:10.0f}{bare.resident:8.0f}")
    for contestant in field[1:]:
        low, middle, high = statistics.quantiles(contestant.ratios, n=4, method="inclusive")
        middles[contestant.name] = middle
        start, spread = contestant.start_up / bare.start_up, f"{low:.2f} to {high:.2f}"
        print(
            f"{work:16}{contestant.name:10}{middle:8.2f}  "
            f" {spread:16}{start:10.2f}{contestant.memory:10.0f}{contestant.resident:8.0f}",
            flush=True,
        )
    ours = middles.pop("comity", None)
    if not ours or not middles:
        return f"{work}: there is nobody to compare with."
    fastest = min(middles, key=middles.__getitem__)
    times, word = max((middles[fastest] / ours, "faster"), (ours / middles[fastest], "slower"))
    return f"{work}: Comity is {times:.1f}x {word} than the fastest peer ({fastest})"


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--rounds", type=int, default=5)
    cli.add_argument("--work", nargs="+", choices=[*WORKS, *TRIALS], default=list(WORKS))
    cli.add_argument("--peer", nargs="*", choices=PEERS, default=PEERS)
    cli.add_argument("--mode", choices=["train", "whole", "both"], default="both")
    args = cli.parse_args()
    if args.rounds < 2:
        cli.error("at least two rounds are needed for quartiles")
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # so that contestants are not left behind, standing still
    for mode in ("train", "whole") if args.mode == "both" else (args.mode,):
        print(
            f"mode {mode}:"
            f" {'training and aggregation' if mode == 'train' else 'with evaluation and all that a run does'}"
        )
        print(
            f"{'work':16}{'contestant':10}{'ratio':>8}  "
            f" {'quartiles':16}{'start-up':>10}{'memory MB':>10}{'PSS MB':>8}",
            flush=True,
        )
        verdicts = []
        for work in args.work:
            try:
                verdicts.append(
                    show(work, compete(work, mode, ["bare", "comity", *args.peer], args.rounds))
                )
            except Failure as why:
                print(f"{work} is left out, since the bare loop failed: {why}", flush=True)
        print("", *verdicts, "", sep="\n", flush=True)


if __name__ == "__main__":
    main()
