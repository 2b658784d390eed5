"""Partial sums: workers add up their parties' replies. Models equal those of a run without partial
sums up to rounding; everything that is not a sum is equal to the byte.
"""

from __future__ import annotations

import json
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
from comity.base.record import meta_like, payload, record
from comity.core import Averaging, Model, Params, UsageError
from comity.core.aggregate import AveragedReplies
from comity.core.runner import SUMMED
from comity.core.wrapper import check_can_be_summed
from comity.engines.loop import Sequential
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
from comity.runs.run_warnings import warning_texts
from comity.runs.server_run import Quiet
from comity.studies.plan import plan as planned
from comity.wire.bundles import pack, unpack
from comity.wire.sealing import KEY, RUN, Lock, SharedSecret

TOLERANCE = 2.0**-23
"""Largest error of a mean per party, in units of the largest value (documented in
docs/how-to/clusters.md).

The error of a sum of n floats, in any order, is below n · 2⁻²⁴ of what is added; this bounds the
difference of two such sums.
"""
TOLERANCE_THREE_ROUNDS = 1e-5
"""Largest difference of models after three rounds of four parties."""
CLUSTERS = Path(__file__).parents[2] / "docs" / "how-to" / "clusters.md"
QUICK: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 3}
SUMS: dict[str, Any] = {"engine": "process", "workers": 2, "partial_sums": True}


def can_be_summed(text: str) -> bool:
    try:
        check_can_be_summed(algorithms.compose(text), text)
    except UsageError:
        return False
    return True


@cache
def methods_with_sums() -> list[str]:
    """Every method that supports partial sums and sends messages."""
    return [text for text in compositions() if text != "solo" and can_be_summed(text)]


def assert_close(result: comity.Result, expected: comity.Result) -> None:
    """Ledgers, absences and privacy tables are equal; metrics and models are equal up to rounding."""
    for name in ("ledger.csv", "absences.csv", "privacy.csv"):
        actual_file, expected_file = result.folder / name, expected.folder / name
        assert actual_file.exists() == expected_file.exists()
        assert not actual_file.exists() or actual_file.read_bytes() == expected_file.read_bytes(), (
            name
        )
    for row, expected_row in zip(result.metrics, expected.metrics, strict=True):
        assert row[:4] == expected_row[:4]
        if expected_row.metric == "loss":
            assert row.value == pytest.approx(expected_row.value, rel=1e-4, abs=1e-5), row
    for party, theta in weights(expected).items():
        for name, value in weights(result)[party].items():
            deviation = (value - theta[name]).abs().max()
            assert deviation <= TOLERANCE_THREE_ROUNDS * max(1.0, float(theta[name].abs().max())), (
                f"{name} of {party} is off by {deviation}"
            )
    for name in ("steps", "discarded", "absent", "bytes", "privacy"):
        assert result.summary[name] == expected.summary[name]


# --- methods


@pytest.mark.parametrize("text", over_methods(methods_with_sums()), ids=short)
def test_every_averaging_method_is_close_to_loop(text: str, tmp_path: Path) -> None:
    result = run(text, tmp_path / "sums", **QUICK, **SUMS)
    assert SUMMED in warning_texts(result.summary, "during"), (
        "its rounds are marked by @only_averages, and do not use server.mean"
    )
    assert_close(result, run(text, tmp_path / "loop", **QUICK))


def test_documented_methods_support_partial_sums() -> None:
    """Every method that docs/how-to/clusters.md lists supports partial sums."""
    page = CLUSTERS.read_text(encoding="utf-8")
    names_in_page = page.partition("only average the replies. These are ")[2].partition(".")[0]
    names = set(names_in_page.replace(" and ", ", ").replace("\n", " ").split(", "))
    assert {"fedavg", "fedprox", "scaffold"} <= names
    assert names <= {text.partition("(")[0] for text in methods_with_sums() if "+" not in text}
    assert {"fedavg+dbe", "fedavg+dp(noise=1)", "fedavg+serveropt", "scaffold+dbe"} <= set(
        methods_with_sums()
    )


def test_batchnorm_statistics_are_averaged(tmp_path: Path) -> None:
    assert_close(run("scaffold", tmp_path / "sums", **SUMS), run("scaffold", tmp_path / "loop"))


@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
def test_one_worker_equals_loop(text: str, tmp_path: Path) -> None:
    """The only sum is added up in party order, as on the loop engine."""
    with_sums, on_loop = (
        run(text, tmp_path / "sums", **QUICK, **SUMS | {"workers": 1}),
        run(text, tmp_path / "loop", **QUICK),
    )
    assert tables(with_sums.folder) == tables(on_loop.folder)


@pytest.mark.parametrize(("common", "own"), [(0.0, 1.0), (0.05, 0.001), (0.05, 0.0)])
def test_thousand_parties_stay_within_the_tolerance(common: float, own: float) -> None:
    """For models that share nothing, much, or everything (then all rounding errors have one sign)."""
    draw = torch.Generator().manual_seed(0)
    exact_mean, mean_of_sums, halves = Averaging(), Averaging(), (Averaging(), Averaging())
    base = common * torch.randn(5_000, generator=draw)
    largest = 0.0
    for i in range(1_000):
        theta = {"w": base + own * torch.randn(5_000, generator=draw)}
        largest = max(largest, float(theta["w"].abs().max()))
        exact_mean.add(theta, weight=50.0)
        halves[i % 2].add(theta, weight=50.0)
    for half in halves:
        mean_of_sums.add_sum(half.total(), half.weight)
    assert (
        0
        < (mean_of_sums.value()["w"] - exact_mean.value()["w"]).abs().max()
        <= 1_000 * TOLERANCE * largest
    )


# --- absent parties


@pytest.mark.parametrize("text", ["fedavg", "scaffold+dbe"])
def test_planned_absences(text: str, tmp_path: Path) -> None:
    """A worker leaves the replies that will be lost out of its sum; those parties keep their old
    states.
    """
    settings = QUICK | {"absent": plan(tmp_path, *EVENTS)}
    result = run(text, tmp_path / "sums", **settings, **SUMS)
    assert {a.how for a in absences(result)} >= {"lost", "offline"}
    assert_close(result, run(text, tmp_path / "loop", **settings))


def test_scaffold_control_variates_keep_their_mean(tmp_path: Path) -> None:
    """c = mean of all c_i (l.17), although one reply was lost and another is not finite."""
    settings = QUICK | {
        "absent": plan(tmp_path, "north,2,local,lost"),
        "party": {"east": {"lr": 1e20}},
    }
    result = run("scaffold", tmp_path / "run", **settings, **SUMS)
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
def test_replies_that_are_not_finite_are_in_no_sum(text: str, tmp_path: Path) -> None:
    settings = QUICK | {"epochs": 2, "party": {"east": {"lr": 1e20}}}
    result = run(text, tmp_path / "sums", **settings, **SUMS)
    assert result.summary["absent"]["east"] == {"nonfinite": 3}
    assert_close(result, run(text, tmp_path / "loop", **settings))


def test_worker_without_counted_replies_sends_no_sum(tmp_path: Path) -> None:
    """With two parties, north (the larger) is the only party of the first worker."""
    settings = QUICK | {
        "without": ["south", "west"],
        "absent": plan(tmp_path, "north,1,local,lost"),
    }
    assert_close(
        run("fedavg", tmp_path / "sums", **settings, **SUMS),
        run("fedavg", tmp_path / "loop", **settings),
    )


def test_on_nonfinite_stop_raises_the_usual_error(tmp_path: Path) -> None:
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
            **SUMS,
        )


@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
def test_round_with_too_few_replies_is_discarded(text: str, tmp_path: Path) -> None:
    settings = QUICK | {"absent": plan(tmp_path, "east,2,local,lost"), "min_replies": 4}
    result = run(text, tmp_path / "sums", **settings, **SUMS)
    assert [entry["round"] for entry in result.summary["discarded"]] == [2]
    assert_close(result, run(text, tmp_path / "loop", **settings))


def test_round_with_an_overflowing_sum_is_discarded(tmp_path: Path) -> None:
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
    result = run(str(big), tmp_path / "run", **QUICK, **SUMS)
    assert [entry["round"] for entry in result.summary["discarded"]] == [1, 2, 3]


# --- resuming, and the order in which sums arrive


@pytest.mark.sweep("True-scaffold", "False-fedavg")
@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
@pytest.mark.parametrize("half", [False, True])
def test_resumed_run_equals_uninterrupted_run(
    text: str, half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint says which worker has each party; parties without a state are assigned again
    in the same way.
    """
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    settings = QUICK | SUMS | {"rounds": 5, "participation": 0.5 if half else 1.0}
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
        self.payload_bytes = 0

    def _exchange(
        self, requests: Mapping[int, WorkerRequest], is_open: Callable[[int], bool] = always_open
    ) -> Iterator[tuple[int, WorkerReply]]:
        for w in sorted(requests, reverse=self._backwards):
            for message in self._all[w].handle(unpack(*pack(requests[w]))):
                header, bundle = pack(message)
                self.payload_bytes += bundle.nbytes
                yield w, unpack(header, bundle)

    def _notify(self, asks: Mapping[int, WorkerRequest]) -> None:
        for w, ask in asks.items():
            list(self._all[w].handle(ask))


@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
def test_order_of_workers_does_not_matter(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three workers, because the sum of two is equal in both orders."""
    settings = QUICK | SUMS | {"workers": 3}
    tables_by_order = {"process": tables(run(text, tmp_path / "process", **settings).folder)}
    for backwards in (False, True):
        monkeypatch.setattr(
            SimulatedRun,
            "engine",
            lambda job, backwards=backwards: InProcessWorkers(job, backwards),
        )
        tables_by_order[str(backwards)] = tables(
            run(text, tmp_path / str(backwards), **settings).folder
        )
    assert tables_by_order["False"] == tables_by_order["True"] == tables_by_order["process"]


def test_each_worker_sends_one_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker sends one sum instead of one reply per party; the ledger counts the replies."""
    engines: dict[bool, InProcessWorkers] = {}

    def create_engine(job: SimulatedRun) -> InProcessWorkers:
        return engines.setdefault(job.experiment.partial_sums, InProcessWorkers(job))

    monkeypatch.setattr(SimulatedRun, "engine", create_engine)
    for sums in (False, True):
        run("fedavg", tmp_path / str(sums), **QUICK | SUMS | {"rounds": 1, "partial_sums": sums})
    job = prepare(config.experiment({"algorithm": "fedavg", **QUICK}), ragged())
    model = payload(job.algorithm.init_server(job.root.fold("init"), job.info))
    assert engines[False].payload_bytes - engines[True].payload_bytes == pytest.approx(
        2 * model, rel=0.1
    )  # four replies, two sums


def test_integers_come_from_the_first_party() -> None:
    """As in a mean without partial sums."""
    first_sum, second_sum, mean = (
        AveragedReplies[Model](),
        AveragedReplies[Model](),
        AveragedReplies[Model](),
    )

    def reply(i: int) -> Model:
        return Model({"w": torch.tensor([float(i)]), "count~": torch.tensor([10 + i])})

    for i in (1, 3):
        first_sum.add(i, reply(i), weight=1.0)
    for i in (0, 2):
        second_sum.add(i, reply(i), weight=3.0)
    parts = [
        part
        for part in (first_sum.total(), second_sum.total(), AveragedReplies[Model]().total())
        if part
    ]
    for part in sorted(parts, key=lambda part: part.heard[0]):
        mean.add_sum(part)
    value, parties = mean.value()
    assert value.theta == {"w": torch.tensor([(1 + 3 + 3 * 2) / 8]), "count~": torch.tensor([10])}
    assert parties == [0, 1, 2, 3]


def test_repeated_request_gives_the_same_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker replies once all of its parties are done, so a repeated request gives equal bytes."""
    job = prepare(config.experiment({"algorithm": "fedavg", **QUICK, **SUMS}), ragged())
    engine = InProcessWorkers(job)
    reply_counts: list[int] = []
    exchange = engine._exchange

    def exchange_twice(asks: Mapping[int, WorkerRequest]) -> Iterator[tuple[int, WorkerReply]]:
        first, repeated = list(exchange(asks)), list(exchange(asks))
        reply_counts.append(len(first))
        assert [pack(message)[1].tobytes() for _, message in first] == [
            pack(m)[1].tobytes() for _, m in repeated
        ]
        yield from repeated

    monkeypatch.setattr(engine, "_exchange", exchange_twice)
    server = job.server(engine, Quiet())
    server.begin(1)
    server.begin_exchanges()
    job.algorithm.round(job.algorithm.init_server(job.root.fold("init"), job.info), server, 1)
    assert reply_counts == [2], "one message a worker"


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


# --- combinations without partial sums


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "adcol",
            "adcol cannot have partial sums: its rounds do more with replies than average them",
        ),
        ("q-ffl", "q-ffl cannot have partial sums: its rounds do more with replies"),
        (
            "fedavg+median",
            "fedavg.median cannot have partial sums: median takes the place of the mean",
        ),
        (
            "fedavg+dp(level=party,noise=1)",
            "dp takes the place of the mean, and needs each reply by itself",
        ),
    ],
)
def test_methods_that_need_each_reply_are_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        run(text, tmp_path / "run", **QUICK, **SUMS)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ["auto", "loop", "stacked"])
def test_engines_without_workers_are_refused(engine: str) -> None:
    with pytest.raises(
        UsageError, match="partial_sums are sums at workers, and need --engine process or ray"
    ):
        config.experiment({"partial_sums": True, "engine": engine})


def test_partial_sums_must_be_a_boolean() -> None:
    for value in (1, "on", "true"):
        with pytest.raises(UsageError, match="partial_sums must be true or false, not"):
            config.experiment({"partial_sums": value, "engine": "process"})
    experiment = config.experiment({"partial_sums": True, "engine": "process"})
    assert "partial_sums = true" in config.write(experiment)
    with pytest.raises(UsageError, match="rounds cannot be true"):
        config.experiment({"rounds": True})


def test_comparison_with_solo(tmp_path: Path) -> None:
    """SOLO sends nothing, so it is not refused."""
    comparison = comity.compare(["fedavg"], ragged(), out=tmp_path, **QUICK, **SUMS)
    assert len(comparison.rows) == 2


def test_plan_needs_no_workers() -> None:
    settings = {"algorithm": "fedavg", **QUICK, **SUMS}
    assert json.dumps(vars(planned(prepare(config.experiment(settings), ragged()))), default=str)


@record
class Judged(Model):
    """A reply with a value beside its weights."""

    loss: float


@record
class Two:
    """A reply of two models."""

    one: Params
    other: Params


def test_replies_that_cannot_be_averaged_are_refused() -> None:
    theta = {"w": torch.ones(1)}
    for reply, why in (
        (theta, "but a dict is none"),
        (Judged(theta, 0.5), r"but Judged.loss holds no parameters: go through server\.replies"),
    ):
        with pytest.raises(ComityError, match=why):
            AveragedReplies[Any]().add(0, reply, 1.0)
    mean = AveragedReplies[Any]()
    mean.add(0, Model(theta), 1.0)
    with pytest.raises(ComityError, match="must be of one type to be averaged, but one is a Two"):
        mean.add(1, Two(theta, theta), 1.0)

    class OtherAggregation(Averaging):
        """Not a plain mean."""

    with pytest.raises(
        ComityError,
        match="A wrapper takes the place of the mean of a model, but Two has several fields",
    ):
        AveragedReplies[Any](OtherAggregation).add(0, Two(theta, theta), 1.0)
