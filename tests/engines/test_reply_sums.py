"""Workers add up the replies that a method only averages. Everything is equal to the bit on all
engines that run parties one by one, for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from absences import EVENTS, absences, plan
from interruptions import Interrupt
from matrix import compositions, ragged, run, short, tables, weights
from sweeps import over_methods

import comity
from comity import algorithms
from comity.base.record import meta_like, payload
from comity.core import Model, UsageError
from comity.core.wrapper import check_can_be_summed
from comity.engines import reply_sums
from comity.engines.loop import LoopEngine, Sequential
from comity.engines.site_store import SiteStore
from comity.engines.workers import (
    Worker,
    WorkerReply,
    WorkerRequest,
    WorkersEngine,
    always_open,
)
from comity.errors import ComityError
from comity.runs import checkpoint, config
from comity.runs.build import SimulatedRun, prepare
from comity.runs.folder import RunFolder
from comity.runs.run import reopen, resume_in
from comity.runs.server_run import Quiet
from comity.wire.bundles import pack, unpack
from comity.wire.sealing import KEY, RUN, Lock, SharedSecret

CLUSTERS = Path(__file__).parents[2] / "docs" / "how-to" / "clusters.md"
QUICK: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 3}
PROCESS: dict[str, Any] = {"engine": "process", "workers": 2}
LINEAR: dict[str, Any] = {"model": "linear", "rounds": 3}


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Few parties are divided into ranges, too, as many are. Returns the calls whose replies
    workers added up.
    """
    monkeypatch.setattr(reply_sums, "PARTIES_PER_RANGE", 1)
    added: list[str] = []
    original = WorkersEngine.add_replies

    def add_replies(engine: WorkersEngine, call: Any, *arguments: Any) -> Any:
        results = original(engine, call, *arguments)
        added.extend([call.function] if results is not None else [])
        return results

    monkeypatch.setattr(WorkersEngine, "add_replies", add_replies)
    return added


def can_be_summed(text: str) -> bool:
    try:
        check_can_be_summed(algorithms.compose(text), text)
    except UsageError:
        return False
    return True


@cache
def methods_with_sums() -> list[str]:
    """Every method whose rounds only average, and that sends messages."""
    return [text for text in compositions() if text != "solo" and can_be_summed(text)]


def assert_equal(result: comity.Result, expected: comity.Result) -> None:
    """Tables, models and what the summary counts are equal."""
    assert tables(result.folder) == tables(expected.folder)
    for party, theta in weights(expected).items():
        for name, value in weights(result)[party].items():
            assert torch.equal(value, theta[name]), f"{name} of {party} differs"
    for name in ("steps", "discarded", "absent", "bytes", "privacy", "warnings"):
        assert result.summary[name] == expected.summary[name]


@cache
def many_parties() -> comity.Federation:
    """Parties of different sizes: enough that two workers get ranges."""
    draw = torch.Generator().manual_seed(5)

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 6, generator=draw), torch.arange(count) % 3

    return comity.Federation.from_arrays(
        {f"p{i:02}": (samples(5 + i * 7 % 11), samples(3)) for i in range(37)},
        validation=0.0,
        classes=3,
    )


def run_many(text: str, folder: Path, **more: Any) -> comity.Result:
    settings = {**LINEAR, "engine": "loop", "lr": 0.1} | more
    return comity.run(text, many_parties(), out=folder, **settings)


# --- methods


@pytest.mark.parametrize("text", over_methods(methods_with_sums()), ids=short)
def test_every_averaging_method_equals_loop(text: str, tmp_path: Path, ranges: list[str]) -> None:
    result = run(text, tmp_path / "process", **QUICK, **PROCESS)
    assert ranges, "its rounds are marked by @only_averages, and do not use server.mean"
    assert_equal(result, run(text, tmp_path / "loop", **QUICK))


def test_documented_methods_only_average() -> None:
    """Every method that docs/how-to/clusters.md lists."""
    page = CLUSTERS.read_text(encoding="utf-8")
    names_in_page = page.partition("only average the replies. These are ")[2].partition(".")[0]
    names = set(names_in_page.replace(" and ", ", ").replace("\n", " ").split(", "))
    assert {"fedavg", "fedprox", "scaffold"} <= names
    assert names <= {text.partition("(")[0] for text in methods_with_sums() if "+" not in text}
    assert {"fedavg+dbe", "fedavg+dp(noise=1)", "fedavg+serveropt", "scaffold+dbe"} <= set(
        methods_with_sums()
    )


def test_batchnorm_statistics_are_averaged(tmp_path: Path, ranges: list[str]) -> None:
    result = run("scaffold", tmp_path / "process", **PROCESS)
    assert ranges
    assert_equal(result, run("scaffold", tmp_path / "loop"))


@pytest.mark.parametrize("text", ["fedavg", "scaffold+dbe"])
def test_any_number_of_workers_equals_loop(text: str, tmp_path: Path) -> None:
    more = {"absent": "random(offline=0.1,lost=0.1)", "participation": 0.9}
    expected = tables(run_many(text, tmp_path / "loop", **more).folder)
    for workers in (1, 2, 3, 7):
        where = {"engine": "process", "workers": workers}
        result = run_many(text, tmp_path / str(workers), **where, **more)
        assert tables(result.folder) == expected


@pytest.mark.parametrize("text", ["fedavg+median", "fedavg+dp(level=party,noise=1)", "q-ffl"])
def test_methods_that_need_each_reply_get_each(
    text: str, tmp_path: Path, ranges: list[str]
) -> None:
    result = run(text, tmp_path / "process", **QUICK, **PROCESS)
    assert not ranges
    assert_equal(result, run(text, tmp_path / "loop", **QUICK))


def test_recording_messages_changes_nothing(tmp_path: Path) -> None:
    """Also on the batched engine, which adds up replies by blocks."""
    for engine in ("loop", "stacked"):
        where = {"engine": engine, "workers": 1}
        plain = run_many("fedavg", tmp_path / f"{engine}-plain", **where)
        recorded = run_many("fedavg", tmp_path / engine, record_messages=True, **where)
        assert tables(plain.folder) == tables(recorded.folder)
        assert (recorded.folder / "messages").exists()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("text", ["fedavg", "scaffold", "fedavg+dbe"])
def test_batched_engine_is_close_to_loop(text: str, workers: int, tmp_path: Path) -> None:
    more = {"absent": "random(offline=0.1,lost=0.1)", "party": {"p03": {"lr": 1e30}}, "epochs": 2}
    result = run_many(text, tmp_path / "stacked", engine="stacked", workers=workers, **more)
    expected = run_many(text, tmp_path / "loop", **more)
    for name in ("ledger.csv", "absences.csv"):
        assert (result.folder / name).read_bytes() == (expected.folder / name).read_bytes()
    assert result.summary["absent"]["p03"] == expected.summary["absent"]["p03"]
    for party, theta in weights(expected).items():
        for name, value in weights(result)[party].items():
            assert torch.allclose(value, theta[name], atol=1e-5), f"{name} of {party}"


# --- absent parties


@pytest.mark.parametrize("text", ["fedavg", "scaffold+dbe"])
def test_planned_absences(text: str, tmp_path: Path, ranges: list[str]) -> None:
    """A worker leaves the replies that will be lost out of its sum; those parties keep their old
    states.
    """
    settings = QUICK | {"absent": plan(tmp_path, *EVENTS)}
    result = run(text, tmp_path / "process", **settings, **PROCESS)
    assert ranges
    assert {a.how for a in absences(result)} >= {"lost", "offline"}
    assert_equal(result, run(text, tmp_path / "loop", **settings))


def test_scaffold_control_variates_keep_their_mean(tmp_path: Path, ranges: list[str]) -> None:
    """c = mean of all c_i (l.17), although one reply was lost and another is not finite."""
    settings = QUICK | {
        "absent": plan(tmp_path, "north,2,local,lost"),
        "party": {"east": {"lr": 1e20}},
    }
    result = run("scaffold", tmp_path / "run", **settings, **PROCESS)
    assert ranges
    assert {(a.party, a.how) for a in absences(result)} == {
        ("north", "lost"),
        ("east", "nonfinite"),
    }
    server = RunFolder(result.folder).checkpoints()
    server.load()
    c = server.server_state().c
    for name, value in c.items():
        mean = torch.stack([result.state(p).c[name] for p in ragged().names]).mean(0)
        assert (value - mean).abs().max() < 1e-6


@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
def test_replies_that_are_not_finite_are_in_no_sum(
    text: str, tmp_path: Path, ranges: list[str]
) -> None:
    settings = QUICK | {"epochs": 2, "party": {"east": {"lr": 1e20}}}
    result = run(text, tmp_path / "process", **settings, **PROCESS)
    assert ranges
    assert result.summary["absent"]["east"] == {"nonfinite": 3}
    assert_equal(result, run(text, tmp_path / "loop", **settings))


def test_worker_without_counted_replies_sends_no_sum(tmp_path: Path, ranges: list[str]) -> None:
    """With two parties, north (the larger) is the only party of the first worker."""
    settings = QUICK | {
        "without": ["south", "west"],
        "absent": plan(tmp_path, "north,1,local,lost"),
    }
    assert_equal(
        run("fedavg", tmp_path / "process", **settings, **PROCESS),
        run("fedavg", tmp_path / "loop", **settings),
    )
    assert ranges


def test_on_nonfinite_stop_raises_the_usual_error(tmp_path: Path, ranges: list[str]) -> None:
    """The error is that of every other engine, although the server never receives the reply."""
    sentence = (
        r"east has values that are not finite in round 1 \(theta\.fc1\.weight of its reply, after"
        r" local\): give it a smaller lr"
    )
    with pytest.raises(ComityError, match=sentence):
        run(
            "fedavg",
            tmp_path,
            on_nonfinite="stop",
            epochs=2,
            party={"east": {"lr": 1e20}},
            **QUICK,
            **PROCESS,
        )
    assert ranges


@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
def test_round_with_too_few_replies_is_discarded(
    text: str, tmp_path: Path, ranges: list[str]
) -> None:
    settings = QUICK | {"absent": plan(tmp_path, "east,2,local,lost"), "min_replies": 4}
    result = run(text, tmp_path / "process", **settings, **PROCESS)
    assert ranges
    assert [entry["round"] for entry in result.summary["discarded"]] == [2]
    assert_equal(result, run(text, tmp_path / "loop", **settings))


def test_round_with_an_overflowing_sum_is_discarded(tmp_path: Path, ranges: list[str]) -> None:
    big = tmp_path / "big.py"
    big.write_text(
        "import torch\n"
        "from comity.core import *\n"
        "from comity.algorithms.fedavg import FedAvg\n"
        "@algorithm\n"
        "class Big(FedAvg):\n"
        "    @on_party\n"
        "    async def local(self, mine, m, party, key):\n"
        "        return mine, Model({k: torch.full_like(v, 3e38) for k, v in m.theta.items()})\n"
    )
    result = run(str(big), tmp_path / "run", **QUICK, **PROCESS)
    assert ranges
    assert [entry["round"] for entry in result.summary["discarded"]] == [1, 2, 3]


# --- resuming, and the order in which sums arrive


@pytest.mark.sweep("True-scaffold", "False-fedavg")
@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
@pytest.mark.parametrize("half", [False, True])
def test_resumed_run_equals_uninterrupted_run(
    text: str, half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    settings = QUICK | PROCESS | {"rounds": 5, "participation": 0.5 if half else 1.0}
    uninterrupted_run = run(text, tmp_path / "straight", **settings)
    for during in (1, 3):
        folder = tmp_path / f"stopped-{during}"
        with pytest.raises(KeyboardInterrupt):
            run(text, folder, progress=Interrupt(during), **settings)
        resumed_run = resume_in(reopen(folder, ragged()), folder, Interrupt(-1))
        assert tables(folder) == tables(uninterrupted_run.folder)
        assert resumed_run.summary["warnings"] == uninterrupted_run.summary["warnings"]


class InProcessWorkers(WorkersEngine):
    """Workers within this process, asked in ascending or descending order; messages are bytes, as
    on a cluster.
    """

    def __init__(self, job: SimulatedRun, backwards: bool = False) -> None:
        workers = job.experiment.workers or 1
        super().__init__({p.id: len(p.data.train) for p in job.parties}, workers)
        self._backwards = backwards
        lock = Lock(SharedSecret(bytes(KEY)), bytes(RUN))
        self._all = [
            Worker(SiteStore(job.algorithm, job.parties, job.root), Sequential(), lock)
            for _ in range(workers)
        ]
        self.sum_bytes = 0

    def _exchange(
        self, requests: Mapping[int, WorkerRequest], is_open: Callable[[int], bool] = always_open
    ) -> Iterator[tuple[int, WorkerReply]]:
        for w in sorted(requests, reverse=self._backwards):
            for message in self._all[w].handle(unpack(*pack(requests[w]))):
                header, bundle = pack(message)
                self.sum_bytes += bundle.nbytes if message.get("sums") else 0
                yield w, unpack(header, bundle)

    def _notify(self, asks: Mapping[int, WorkerRequest]) -> None:
        for w, ask in asks.items():
            list(self._all[w].handle(ask))


@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
def test_order_of_workers_does_not_matter(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tables(run_many(text, tmp_path / "loop").folder)
    for backwards in (False, True):
        monkeypatch.setattr(
            SimulatedRun,
            "engine",
            lambda job, backwards=backwards: InProcessWorkers(job, backwards),
        )
        where = {"engine": "process", "workers": 2}
        result = run_many(text, tmp_path / str(backwards), **where)
        assert tables(result.folder) == expected


def test_only_sums_cross(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker sends a few sums instead of a reply per party; the ledger counts the replies."""
    engines: list[InProcessWorkers] = []

    def create_engine(job: SimulatedRun) -> InProcessWorkers:
        engines.append(InProcessWorkers(job))
        return engines[-1]

    monkeypatch.setattr(SimulatedRun, "engine", create_engine)
    where = {"engine": "process", "workers": 2, "rounds": 1, "model": "mlp2"}
    result = run_many("fedavg", tmp_path / "sums", **where)
    job = prepare(config.experiment({"algorithm": "fedavg", **where}), many_parties())
    model = payload(job.algorithm.init_server(job.root.fold("init"), job.info))
    assert model < engines[0].sum_bytes <= 9 * model
    assert result.summary["bytes"]["up"] == 37 * model


def test_scattered_replies_cross_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few parties the largest goes to the least loaded worker. Then nearly all sums would be
    single replies, which cross as they are ready.
    """
    asked: list[str] = []
    original = WorkersEngine.add_replies

    def add_replies(engine: WorkersEngine, *arguments: Any) -> Any:
        results = original(engine, *arguments)
        asked.append("sums" if results is not None else "replies")
        return results

    monkeypatch.setattr(WorkersEngine, "add_replies", add_replies)
    result = run("fedavg", tmp_path / "process", **QUICK, **PROCESS)
    assert asked == ["replies"] * 3
    assert_equal(result, run("fedavg", tmp_path / "loop", **QUICK))


def test_repeated_request_gives_the_same_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: list[str]
) -> None:
    """A worker sends its sums once all of its parties are done, so a request that is sent again
    gives equal bytes, and each result counts once.
    """
    job = prepare(config.experiment({"algorithm": "fedavg", **QUICK, **PROCESS}), ragged())
    engine = InProcessWorkers(job)
    requested: list[int] = []
    exchange = engine._exchange

    def exchange_twice(asks: Mapping[int, WorkerRequest]) -> Iterator[tuple[int, WorkerReply]]:
        first, repeated = list(exchange(asks)), list(exchange(asks))
        requested.append(len(asks))
        assert [pack(message)[1].tobytes() for _, message in first] == [
            pack(m)[1].tobytes() for _, m in repeated
        ]
        # The first worker is lost before its sums arrive, and is asked again.
        lost = [(w, reply | {"sums": [], "last": False}) for w, reply in first if w == 0]
        yield from [*lost, *repeated]

    monkeypatch.setattr(engine, "_exchange", exchange_twice)
    server = job.server(engine, Quiet())
    server.begin(1)
    server.begin_exchanges()
    state = job.algorithm.init_server(job.root.fold("init"), job.info)
    after = job.algorithm.round(state, server, 1)
    assert requested == [2]
    assert ranges == ["local"]
    on_loop = LoopEngine(SiteStore(job.algorithm, job.parties, job.root), Sequential())
    expected_server = job.server(on_loop, Quiet())
    expected_server.begin(1)
    expected_server.begin_exchanges()
    expected = job.algorithm.round(state, expected_server, 1)
    assert all(torch.equal(after[k], expected[k]) for k in expected)
    assert server.ledger.rows == expected_server.ledger.rows
    assert server.steps == expected_server.steps


# --- replies without values (on torch's meta device)


def test_meta_reply_has_the_payload_size_and_no_values() -> None:
    reply = Model(
        {"w": torch.ones(3, 5), "half": torch.ones(7, dtype=torch.float16), "none": torch.zeros(0)}
    )
    header, bundle = pack({"meta": meta_like(reply), "whole": torch.ones(2)})
    content = unpack(header, bundle)
    assert payload(content["meta"]) == payload(reply) == 74
    assert {name: (value.shape, value.dtype) for name, value in content["meta"].theta.items()} == {
        name: (value.shape, value.dtype) for name, value in reply.theta.items()
    }
    assert all(value.is_meta for value in content["meta"].theta.values())
    assert torch.equal(content["whole"], torch.ones(2))
    assert bundle.nbytes == 64


# --- folders of earlier versions


def test_setting_of_earlier_versions_is_ignored(tmp_path: Path) -> None:
    """A run that was begun with partial sums goes on as any other."""
    old = config.experiment({"partial_sums": True, "engine": "process", "workers": 2})
    assert old == config.experiment({"engine": "process", "workers": 2})
    assert "partial_sums" not in config.write(old)
    file = tmp_path / "config.toml"
    file.write_text('algorithm = "fedavg"\npartial_sums = false\n')
    assert config.read(file) == config.experiment({"algorithm": "fedavg"})
