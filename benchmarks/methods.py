"""What each method costs beside its simplest relative: rounds (training and aggregation),
interleaved.

    python benchmarks/methods.py [--rounds 11] [--model mlp2 lenet5]

DBE and FedUFO against FedAvg, the relay against SOLO. ADCOL against SOLO and its discriminator: the
training of it, which is the part of its round that is not spent at parties, and a pass through it
and back for each local batch. The relay a second time against SOLO and its uploads (a pass over all
data after training), so that its steps are compared. Fed-SPS against its own arithmetic: all passes
through networks, those of attacks included. Local epochs are those of each method's paper; 10 of 20
parties take part. On engine `loop`, and on what `auto` chooses.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from bare import BATCH, LR

from comity import Federation
from comity.algorithms.adcol import Adcol
from comity.algorithms.relay import Relay
from comity.components import attack, overlap
from comity.components.divergence import kl_from_uniform
from comity.engines.allocator import keep_freed_memory
from comity.runs import config
from comity.runs.build import prepare
from comity.runs.server_run import Quiet
from comity.training import descent

PARTIES, COHORT, SAMPLES = 20, 10, 70
PAIRS = (
    ("fedavg+dbe", "fedavg", 1, 1.05),
    ("relay", "solo", 1, 1.10),
    ("adcol", "solo", 10, 1.25),
    ("fedufo", "fedavg", 10, 3.2),
)
"""Method, relative, local epochs as in its paper, and the goal."""


class Clock:
    """Time spent in some functions, an outer call of them counted once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside += 1
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside -= 1
                if not self._inside:
                    self.seconds += time.perf_counter() - begin

        return timed

    def around_iterator(
        self, function: Callable[..., Iterator[Any]]
    ) -> Callable[..., Iterator[Any]]:
        """The time until each item is there, not what is done with it."""

        def timed(*args: Any, **kwargs: Any) -> Iterator[Any]:
            items = function(*args, **kwargs)
            following = self.around(lambda: next(items, None))
            while (item := following()) is not None:
                yield item

        return timed


class Federated:
    """A method with its parties, round by round."""

    def __init__(
        self, algorithm: str, model: str, data: Federation, engine: str, epochs: int
    ) -> None:
        settings = {
            "algorithm": algorithm,
            "model": model,
            "batch": BATCH,
            "lr": LR,
            "engine": engine,
            "rounds": 20,
        }
        settings |= {"epochs": epochs, "participation": COHORT / PARTIES}
        self.job = prepare(config.experiment(settings), data)
        self.engine = self.job.experiment.engine
        self._engine = self.job.engine()
        self._net = self.job.server(self._engine, Quiet())
        self.parties = Clock()
        self._engine.run = self.parties.around_iterator(self._engine.run)
        self.s = self.job.algorithm.init_server(self.job.root.fold("init"), self.job.info)
        self.s = self.job.algorithm.start(self.s, self._net)
        self._t = 0

    def round(self) -> tuple[float, float]:
        """Seconds of a round, and those of them at the server."""
        self._t += 1
        self._net.begin(self._t)
        before, begin = self.parties.seconds, time.perf_counter()
        self.s = self.job.algorithm.round(self.s, self._net, self._t)
        seconds = time.perf_counter() - begin
        self._net.ledger.take()
        self._net.take_notes()
        return seconds, seconds - (self.parties.seconds - before)

    def close(self) -> None:
        self._engine.close()


def federation() -> Federation:
    draw = torch.Generator().manual_seed(1)
    tiny = (torch.zeros(1, 1, 28, 28), torch.zeros(1, dtype=torch.long))

    def own() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(SAMPLES, 1, 28, 28, generator=draw), torch.randint(
            0, 10, (SAMPLES,), generator=draw
        )

    return Federation.from_arrays(
        {f"p{i}": (own(), tiny) for i in range(PARTIES)}, validation=0.0, classes=10
    )


def pair(
    method: str, relative: str, model: str, data: Federation, engine: str, rounds: int, epochs: int
) -> tuple[list[float], str]:
    """Ratios of neighbouring rounds."""
    ours, theirs = (Federated(name, model, data, engine, epochs) for name in (method, relative))
    ratios = []
    for _ in range(rounds + 1):
        seconds, server = ours.round()
        simple, _ = theirs.round()
        if method == "adcol":
            simple += server + judged(ours, epochs)
        ratios.append(seconds / simple)
    where = f"{ours.engine} / {theirs.engine}" if engine == "auto" else engine
    ours.close()
    theirs.close()
    return ratios[1:], where


def judged(adcol: Federated, epochs: int) -> float:
    """Seconds that D takes in a round's local steps: a pass forwards and one back to the
    representations for each batch.
    """
    method, task = adcol.job.algorithm, adcol.job.info.task
    assert isinstance(method, Adcol)
    disc, D = method.discriminator(task.width, PARTIES), adcol.s.D
    z = torch.randn(BATCH, task.width, requires_grad=True)
    begin = time.perf_counter()
    for _ in range(COHORT * epochs * SAMPLES // BATCH):
        torch.autograd.grad(kl_from_uniform(disc.logits(D, z)), z)
    seconds = time.perf_counter() - begin
    return seconds / (adcol.job.experiment.workers or 1)


def relay_steps(model: str, data: Federation, rounds: int) -> list[float]:
    """The relay's rounds against SOLO's and the seconds of its own uploads."""
    clock, kept = Clock(), Relay.upload
    Relay.upload = clock.around(kept)
    try:
        ours, theirs = (Federated(name, model, data, "loop", 1) for name in ("relay", "solo"))
        ratios = []
        for _ in range(rounds + 1):
            before = clock.seconds
            seconds, server = ours.round()
            ratios.append(seconds / (theirs.round()[0] + server + clock.seconds - before))
    finally:
        Relay.upload = kept
    return ratios[1:]


def fed_sps(model: str, data: Federation, rounds: int) -> list[float]:
    """Rounds against the passes through networks in them: steps on weights, steps on samples,
    losses that select.
    """
    clock = Clock()
    patches: list[tuple[Any, str]] = [
        (descent.Descent, "step"), (attack, "_slope"), (overlap, "gradient"), (overlap, "losses"), (overlap, "in_chunks"),
    ]  # fmt: skip
    kept = [getattr(owner, name) for owner, name in patches]
    for (owner, name), function in zip(patches, kept, strict=True):
        setattr(owner, name, clock.around(function))
    try:
        ours = Federated("fed-sps", model, data, "loop", epochs=1)
        ratios = []
        for _ in range(rounds + 1):
            before = clock.seconds
            seconds, _ = ours.round()
            ratios.append(seconds / (clock.seconds - before))
    finally:
        for (owner, name), function in zip(patches, kept, strict=True):
            setattr(owner, name, function)
    return ratios[1:]


def main() -> None:
    torch.set_num_threads(1)
    gc.freeze()
    keep_freed_memory()
    cli = argparse.ArgumentParser()
    cli.add_argument("--rounds", type=int, default=11)
    cli.add_argument("--model", nargs="+", default=["mlp2", "lenet5"])
    args = cli.parse_args()
    print(
        f"{'model':8}{'method':12}{'against':13}{'engine':19}{'ratio':>7}{'quartiles':>16}{'goal':>7}"
    )
    data = federation()

    def show(
        model: str, method: str, against: str, engine: str, ratios: list[float], goal: float
    ) -> None:
        low, middle, high = statistics.quantiles(ratios, n=4)
        spread = f"{low:.2f} to {high:.2f}"
        print(
            f"{model:8}{method:12}{against:13}{engine:19}{middle:7.2f}{spread:>16}{goal:7.2f}",
            flush=True,
        )

    for model in args.model:
        steps = relay_steps(model, data, args.rounds)
        show(model, "relay", "solo+upload", "loop", steps, 1.10)
        for method, relative, epochs, goal in PAIRS:
            for engine in ("loop", "auto"):
                ratios, where = pair(method, relative, model, data, engine, args.rounds, epochs)
                show(model, method, relative, where, ratios, goal)
        show(model, "fed-sps", "arithmetic", "loop", fed_sps(model, data, args.rounds), 1.3)


if __name__ == "__main__":
    main()
