"""Ray on this machine: against the process engine, and with many parties.

python clusters.py against     rounds of both engines in turn, in one process: the ratio of their seconds
python clusters.py parties     1,000 and 100,000 parties: seconds to deal, to prepare, to start, of a round; memory
python clusters.py sums        what it would save if workers added up their parties' replies: bytes and seconds between two nodes
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from comity.core.aggregate import Averaging
from comity.core.record import Model, payload
from comity.engines.bundles import packed, unpacked
from comity.engines.engine import Engine
from comity.engines.ray_cluster import ADDRESS, LOCAL
from comity.engines.workers import FLUSH_BYTES
from comity.experiments import config
from comity.experiments.build import Job, federation_of, prepare
from comity.experiments.evaluation import evaluate
from comity.experiments.outline import Quiet

WORKS: list[dict[str, Any]] = [
    {"model": "cnn4", "parties": 10, "partition": "iid|keep(samples=100)"},
    {"model": "mlp2", "parties": 40, "partition": "iid|keep(samples=70)"},
    {"model": "linear", "parties": 300, "partition": "iid|keep(samples=20)"},
]
COUNTS = (1_000, 100_000)


class Sender:
    """A worker on another node that has the weights of so many parties' models: they leave as replies do, or as their sum."""

    def __init__(self, weights: dict[str, tuple[int, ...]], count: int) -> None:
        torch.set_num_threads(1)
        draw = torch.Generator().manual_seed(count)
        self.theta = {name: torch.randn(shape, generator=draw) for name, shape in weights.items()}
        self.count = count

    def each(self) -> Iterator[Any]:
        """All replies, in messages of some megabytes."""
        most = max(1, FLUSH_BYTES // payload(self.theta))
        for begin in range(0, self.count, most):
            own = range(begin, min(begin + most, self.count))
            yield packed({i: Model({name: value.clone() for name, value in self.theta.items()}) for i in own})

    def total(self) -> Iterator[Any]:
        """One sum of them all."""
        mean = Averaging()
        for i in range(self.count):
            mean.add(self.theta, weight=i + 1.0)
        yield packed({0: Model(mean.value())})


def sums(counts: list[int], rounds: int) -> None:
    """Replies of mlp2 from two workers on one node to the server on another, each by itself or added up by worker; no training.

    Beside them, a whole round of FedAvg with 50 samples a party on the same two nodes, as it is.
    """
    os.environ.update(LOCAL)
    import ray
    from ray.cluster_utils import Cluster

    with TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        cluster.add_node(num_cpus=2)
        os.environ[ADDRESS] = cluster.address
        try:
            _sums(counts, rounds)
        finally:
            ray.shutdown()
            cluster.shutdown()


def _sums(counts: list[int], rounds: int) -> None:
    import ray

    heads = ("parties", "MB each", "MB sums", "s each", "quartiles", "s sums", "quartiles", "round s", "off by")
    print("".join(f"{head:>15}" for head in heads))
    for count in counts:
        settings = {
            "data": "mnist", "model": "mlp2", "parties": count, "partition": "iid|keep(samples=50)", "algorithm": "fedavg",
            "engine": "ray", "workers": 2,
        }  # fmt: skip
        experiment = config.experiment(settings)
        running = Running(prepare(experiment, federation_of(experiment)))
        try:
            running.round()
            whole = statistics.median(running.round() for _ in range(3))
            shapes = {name: tuple(value.shape) for name, value in running.state.items()}
        finally:
            running.engine.close()
        if not ray.is_initialized():
            ray.init(log_to_driver=False, configure_logging=False, logging_level="critical")
        senders = [ray.remote(num_cpus=1)(Sender).remote(shapes, count // 2) for _ in range(2)]
        seconds: dict[str, list[float]] = {"each": [], "total": []}
        sent = {"each": 0, "total": 0}
        for _ in range(rounds + 1):
            for way, took in seconds.items():
                sent[way] = 0
                begin = time.perf_counter()
                mean = Averaging()
                for stream in [getattr(sender, way).options(num_returns="streaming").remote() for sender in senders]:
                    for message in stream:
                        header, bundle = ray.get(message)
                        sent[way] += len(header) + bundle.nbytes
                        for reply in unpacked(header, bundle).values():
                            payload(reply)
                            mean.add(reply.theta, weight=1.0)
                mean.value()
                took.append(time.perf_counter() - begin)
        for sender in senders:
            ray.kill(sender)
        told = f"{count:15,}" + "".join(f"{sent[way] / 1e6:15.1f}" for way in seconds)
        for way in seconds:
            low, middle, high = statistics.quantiles(seconds[way][1:], n=4)
            told += f"{middle:15.2f}{f'{low:.2f} to {high:.2f}':>15}"
        print(f"{told}{whole:15.2f}{_off_by(count):15.1e}", flush=True)


def _off_by(count: int) -> float:
    """How far a mean of two sums is from one that is added up in party order, in units of the largest value."""
    draw = torch.Generator().manual_seed(0)
    models = [{"w": torch.randn(100_000, generator=draw)} for _ in range(count)]
    whole, halves = Averaging(), [Averaging(), Averaging()]
    for i, theta in enumerate(models):
        whole.add(theta, weight=50.0)
        halves[i % 2].add(theta, weight=50.0)
    both = Averaging()
    for half in halves:
        both.add(half.value(), weight=1.0)
    one, other = whole.value()["w"], both.value()["w"]
    return float((one - other).abs().max() / one.abs().max())


class Running:
    """A job on its engine, between two rounds."""

    def __init__(self, job: Job, engine: Engine | None = None) -> None:
        begin = time.perf_counter()
        self.job = job
        self.engine = engine or job.engine()
        self.net = job.net(self.engine, Quiet())
        self.state = job.algorithm.server(job.root.fold("init"), self.net.info)
        self.start = time.perf_counter() - begin
        self.t = 0

    def round(self) -> float:
        """Seconds of a round: letters, trainings, replies, the average."""
        begin = time.perf_counter()
        self.t += 1
        self.net.begin(self.t)
        self.net.open()
        self.state = self.job.algorithm.round(self.state, self.net, self.t)
        self.engine.settle(self.net.settle())
        self.net.ledger.take()
        return time.perf_counter() - begin

    def evaluate(self, final: bool) -> float:
        """Seconds of an evaluation: of all if it is the last, else of the share that the settings say."""
        begin = time.perf_counter()
        evaluate(self.job, self.net, self.engine, self.state, final=final)
        self.net.take_notes()
        return time.perf_counter() - begin


def _proportional(pid: int) -> float:
    """A process' memory in MB; shared pages count as its share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:"))


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += _family(int(child))
    return found


def against(rounds: int) -> None:
    """Both engines have two workers; the first round of each is not counted."""
    print(f"{'model':8}{'parties':>8}{'ray : process':>15}{'quartiles':>16}{'start s':>9}{'(process)':>11}")
    for work in WORKS:
        common = {"data": "mnist", "algorithm": "fedavg", "workers": 2, "rounds": rounds, **work}
        federation = federation_of(config.experiment(common))
        there = {e: Running(prepare(config.experiment({**common, "engine": e}), federation)) for e in ("process", "ray")}
        try:
            for one in there.values():
                one.round()
            seconds = [{name: one.round() for name, one in there.items()} for _ in range(rounds)]
        finally:
            for one in there.values():
                one.engine.close()
        low, middle, high = statistics.quantiles([s["ray"] / s["process"] for s in seconds], n=4)
        starts = f"{there['ray'].start:9.1f}{there['process'].start:11.1f}"
        print(f"{work['model']:8}{work['parties']:8,}{middle:15.2f}{f'{low:.2f} to {high:.2f}':>16}{starts}", flush=True)


def parties(counts: list[int], engine: str) -> None:
    """Linear models of 16 numbers, three or four samples a party; a hundredth trains and evaluates, once all do."""
    heads = ("parties", "deal s", "prepare s", "start s", "1% s", "eval 1% s", "all s", "eval all s", "MB here", "MB a worker")
    print("".join(f"{head:>13}" for head in heads))
    for count in counts:
        os.environ["COMITY_MANY"] = str(count)
        settings = {
            "data": str(Path(__file__).with_name("many.py")), "partition": "iid", "parties": count, "validation": 0,
            "algorithm": "fedavg", "model": "linear", "engine": engine, "workers": 2, "participation": 0.01, "eval_share": 0.01,
        }  # fmt: skip
        experiment = config.experiment(settings)
        begin = time.perf_counter()
        federation = federation_of(experiment)
        dealt = time.perf_counter()
        job = prepare(experiment, federation)
        prepared = time.perf_counter()
        few = Running(job)
        try:
            small = statistics.median(few.round() for _ in range(3))
            looked = few.evaluate(final=False)
            whole = Running(prepare(experiment.but(participation=1.0), federation), few.engine)
            large, last = whole.round(), whole.evaluate(final=True)
            memory = sorted(map(_proportional, _family(os.getpid())[1:]))[-2:]
            figures = [dealt - begin, prepared - dealt, few.start, small, looked, large, last]
            row = "".join(f"{seconds:13.2f}" for seconds in figures)
            print(f"{count:13,}{row}{_proportional(os.getpid()):13.0f}{statistics.mean(memory):13.0f}", flush=True)
        finally:
            few.engine.close()


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("what", choices=["against", "parties", "sums"])
    cli.add_argument("--rounds", type=int, default=9)
    cli.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    cli.add_argument("--engine", default="ray")
    args = cli.parse_args()
    torch.set_num_threads(1)
    if args.what == "against":
        against(args.rounds)
    elif args.what == "sums":
        sums([100, 1_000] if args.counts == list(COUNTS) else args.counts, args.rounds)
    else:
        parties(args.counts, args.engine)


if __name__ == "__main__":
    main()
