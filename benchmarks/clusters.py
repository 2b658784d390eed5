"""Ray on this machine: against the process engine, and with many parties.

python clusters.py against     rounds of both engines in turn, in one process: the ratio of their seconds
python clusters.py parties     1,000 and 100,000 parties: seconds to deal, to prepare, to start, of a round; memory
python clusters.py sums        rounds with partial sums and without, in turn, on two nodes: bytes to the server, and seconds
python clusters.py rounding    how far a mean of two partial sums is from one in party order, and both from the exact one
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from comity.core.aggregate import Averaging
from comity.engines.engine import Engine
from comity.engines.ray_cluster import ADDRESS, LOCAL
from comity.engines.ray_engine import RayEngine
from comity.engines.workers import WorkerReply
from comity.runs import config
from comity.runs.build import SimulatedRun, federation_of, prepare
from comity.runs.evaluation import evaluate
from comity.runs.server_run import Quiet

WORKS: list[dict[str, Any]] = [
    {"model": "cnn4", "parties": 10, "partition": "iid|keep(samples=100)"},
    {"model": "mlp2", "parties": 40, "partition": "iid|keep(samples=70)"},
    {"model": "linear", "parties": 300, "partition": "iid|keep(samples=20)"},
]
COUNTS = (1_000, 100_000)
FEWER = [100, 1_000]


class Counting(RayEngine):
    """An engine that counts what its workers send."""

    sent = 0

    def _receive(self, message: Any) -> WorkerReply:
        import ray

        header, bundle = ray.get(message)
        self.sent += len(header) + bundle.nbytes
        return super()._receive(message)


def sums(counts: list[int], rounds: int) -> None:
    """FedAvg on mlp2 with 50 samples a party, one step a round or five; both workers on the node
    where the server is not.
    """
    os.environ.update(LOCAL)
    import ray
    from ray.cluster_utils import Cluster

    with TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        cluster.add_node(num_cpus=4)  # two for each way
        os.environ[ADDRESS] = cluster.address
        try:
            heads = (
                "parties", "steps", "MB each", "MB sums", "s each", "s sums", "cpu each", "cpu sums", "each : sums",
            )  # fmt: skip
            print("".join(f"{head:>12}" for head in heads) + f"{'quartiles':>14}{'off by':>10}")
            for count in counts:
                for steps in (1, 5):
                    print(_sums(count, steps, rounds), flush=True)
        finally:
            ray.shutdown()
            cluster.shutdown()


def _sums(count: int, steps: int, rounds: int) -> str:
    """A row: the first round of each way is not counted, but for how far their means are apart."""
    settings = {
        "data": "mnist", "model": "mlp2", "parties": count, "partition": "iid|keep(samples=50)", "algorithm": "fedavg",
        "engine": "ray", "workers": 2, "steps": steps,
    }  # fmt: skip
    federation = federation_of(config.experiment(settings))
    ways: list[Running] = []
    engines: list[Counting] = []
    try:
        for added in (False, True):
            job = prepare(config.experiment({**settings, "partial_sums": added}), federation)
            engines.append(
                Counting(job.recipe(), {p.id: len(p.data.train) for p in job.parties}, 2)
            )
            ways.append(Running(job, engines[-1]))
        for way in ways:
            way.round()
        each, added_up = (way.state for way in ways)
        most = max(float(value.abs().max()) for value in each.values())
        off = max(float((each[name] - added_up[name]).abs().max()) for name in each) / most
        sent = [engine.sent / 1e6 for engine in engines]
        taken = [[_timed(way) for way in ways] for _ in range(rounds)]
    finally:
        for engine in reversed(engines):  # the first has brought the connection
            engine.close()
    low, middle, high = statistics.quantiles([each[1] / added[1] for each, added in taken], n=4)
    medians = [
        statistics.median(pair[way][kind] for pair in taken) for kind in (0, 1) for way in (0, 1)
    ]
    told = "".join(f"{figure:12.1f}" for figure in sent) + "".join(
        f"{median:12.2f}" for median in medians
    )
    return f"{count:12,}{steps:12}{told}{middle:12.2f}{f'{low:.2f} to {high:.2f}':>14}{off:10.1e}"


def _timed(way: Running) -> tuple[float, float]:
    """Seconds of a round, and seconds of the processor that all processes took, Ray's own among
    them.
    """
    before = sum(map(_processor, _family(os.getpid())))
    took = way.round()
    return took, sum(map(_processor, _family(os.getpid()))) - before


def _processor(pid: int) -> float:
    """Seconds of the processor that a process has had."""
    cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")


def rounding(counts: list[int]) -> None:
    """Models of 2,000 numbers that have nothing in common, much, or everything; all in units of the
    largest that is averaged.
    """
    print("".join(f"{head:>14}" for head in ("parties", "models", "apart", "in order", "sums")))
    for count in counts:
        for kind, common, own in (
            ("unlike", 0.0, 1.0),
            ("alike", 0.05, 0.001),
            ("the same", 0.05, 0.0),
        ):
            draw = torch.Generator().manual_seed(0)
            base = common * torch.randn(2_000, generator=draw)
            whole, both, halves = Averaging(), Averaging(), (Averaging(), Averaging())
            exact, largest = torch.zeros(2_000, dtype=torch.float64), 0.0
            for i in range(count):
                theta = {"w": base + own * torch.randn(2_000, generator=draw)}
                exact += theta["w"].double() / count
                largest = max(largest, float(theta["w"].abs().max()))
                whole.add(theta, weight=50.0)
                halves[i % 2].add(theta, weight=50.0)
            for half in halves:
                both.add_sum(half.total(), half.weight)
            one, other = (mean.value()["w"].double() for mean in (whole, both))
            off = [
                float(gap.abs().max()) / largest
                for gap in (one - other, one - exact, other - exact)
            ]
            print(f"{count:14,}{kind:>14}" + "".join(f"{each:14.1e}" for each in off), flush=True)


class Running:
    """A job on its engine, between two rounds."""

    def __init__(self, job: SimulatedRun, engine: Engine | None = None) -> None:
        begin = time.perf_counter()
        self.job = job
        self.engine = engine or job.engine()
        self.server = job.server(self.engine, Quiet())
        self.state = job.algorithm.init_server(job.root.fold("init"), self.server.info)
        self.start = time.perf_counter() - begin
        self.t = 0

    def round(self) -> float:
        """Seconds of a round: letters, trainings, replies, the average."""
        begin = time.perf_counter()
        self.t += 1
        self.server.begin(self.t)
        self.server.begin_exchanges()
        self.state = self.job.algorithm.round(self.state, self.server, self.t)
        self.engine.commit(self.server.commit())
        self.server.ledger.take()
        return time.perf_counter() - begin

    def evaluate(self, final: bool) -> float:
        """Seconds of an evaluation: of all if it is the last, else of the share that the settings
        say.
        """
        begin = time.perf_counter()
        evaluate(self.job, self.server, self.engine, self.state, final=final)
        self.server.take_notes()
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
    print(
        f"{'model':8}{'parties':>8}{'ray : process':>15}{'quartiles':>16}{'start s':>9}{'(process)':>11}"
    )
    for function in WORKS:
        common = {
            "data": "mnist",
            "algorithm": "fedavg",
            "workers": 2,
            "rounds": rounds,
            **function,
        }
        federation = federation_of(config.experiment(common))
        there = {
            e: Running(prepare(config.experiment({**common, "engine": e}), federation))
            for e in ("process", "ray")
        }
        try:
            for one in there.values():
                one.round()
            seconds = [{name: one.round() for name, one in there.items()} for _ in range(rounds)]
        finally:
            for one in there.values():
                one.engine.close()
        low, middle, high = statistics.quantiles([s["ray"] / s["process"] for s in seconds], n=4)
        starts = f"{there['ray'].start:9.1f}{there['process'].start:11.1f}"
        print(
            f"{function['model']:8}{function['parties']:8,}{middle:15.2f}{f'{low:.2f} to {high:.2f}':>16}{starts}",
            flush=True,
        )


def parties(counts: list[int], engine: str) -> None:
    """Linear models of 16 numbers, three or four samples a party; a hundredth trains and evaluates,
    once all do.
    """
    heads = (
        "parties",
        "deal s",
        "prepare s",
        "start s",
        "1% s",
        "eval 1% s",
        "all s",
        "eval all s",
        "MB here",
        "MB a worker",
    )
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
            print(
                f"{count:13,}{row}{_proportional(os.getpid()):13.0f}{statistics.mean(memory):13.0f}",
                flush=True,
            )
        finally:
            few.engine.close()


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("what", choices=["against", "parties", "sums", "rounding"])
    cli.add_argument("--rounds", type=int, default=9)
    cli.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    cli.add_argument("--engine", default="ray")
    args = cli.parse_args()
    torch.set_num_threads(1)
    if args.what == "against":
        against(args.rounds)
    elif args.what == "sums":
        sums(FEWER if args.counts == list(COUNTS) else args.counts, args.rounds)
    elif args.what == "rounding":
        rounding(FEWER if args.counts == list(COUNTS) else args.counts)
    else:
        parties(args.counts, args.engine)


if __name__ == "__main__":
    main()
