"""Workers that add up what their parties reply: the same run up to rounding, and to the byte
whatever is no sum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
from comity.engines.workers import Worker, WorkerReply, WorkerRequest, WorkersEngine
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
"""How far a mean may be off for each party in it, in units of the largest value that is averaged:
docs/clusters.md says so, too.

The sum of n floats is off by less than n · 2⁻²⁴ of what is added, in whichever order; this is for
two of them.
"""
THREE_ROUNDS = 1e-5
"""How far models may be off after three rounds of four parties."""
CLUSTERS = Path(__file__).parents[2] / "docs" / "clusters.md"
QUICK: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 3}
SUMS: dict[str, Any] = {"engine": "process", "workers": 2, "partial_sums": True}


def can_be_summed(text: str) -> bool:
    try:
        check_can_be_summed(algorithms.compose(text), text)
    except UsageError:
        return False
    return True


@cache
def summed() -> list[str]:
    """Every method that has partial sums, and exchanges something."""
    return [text for text in compositions() if text != "solo" and can_be_summed(text)]


def assert_close(ours: comity.Result, right: comity.Result) -> None:
    """What crossed, who was heard and what it gives away are the same; figures and models are, up
    to rounding.
    """
    for name in ("ledger.csv", "absences.csv", "privacy.csv"):
        here, there = ours.folder / name, right.folder / name
        assert here.exists() == there.exists()
        assert not here.exists() or here.read_bytes() == there.read_bytes(), name
    for mine, other in zip(ours.metrics, right.metrics, strict=True):
        assert mine[:4] == other[:4]
        if other.metric == "loss":
            assert mine.value == pytest.approx(other.value, rel=1e-4, abs=1e-5), mine
    for party, theta in weights(right).items():
        for name, value in weights(ours)[party].items():
            off = (value - theta[name]).abs().max()
            assert off <= THREE_ROUNDS * max(1.0, float(theta[name].abs().max())), (
                f"{name} of {party} is off by {off}"
            )
    for name in ("steps", "discarded", "absent", "bytes", "privacy"):
        assert ours.summary[name] == right.summary[name]


# --- methods


@pytest.mark.parametrize("text", over_methods(summed()), ids=short)
def test_every_method_that_only_averages_is_close_to_a_loop(text: str, tmp_path: Path) -> None:
    ours = run(text, tmp_path / "sums", **QUICK, **SUMS)
    assert SUMMED in warning_texts(ours.summary, "during"), (
        "its rounds are marked by @only_averages, and do not use server.mean"
    )
    assert_close(ours, run(text, tmp_path / "loop", **QUICK))


def test_which_methods_those_are() -> None:
    """All that docs/clusters.md lists, and methods that came since."""
    page = CLUSTERS.read_text(encoding="utf-8")
    listed = page.partition("only average the replies. These are ")[2].partition(".")[0]
    names = set(listed.replace(" and ", ", ").replace("\n", " ").split(", "))
    assert {"fedavg", "fedprox", "scaffold"} <= names
    assert names <= {text.partition("(")[0] for text in summed() if "+" not in text}
    assert {"fedavg+dbe", "fedavg+dp(noise=1)", "fedavg+serveropt", "scaffold+dbe"} <= set(summed())


def test_batchnorms_statistics_are_averaged_too(tmp_path: Path) -> None:
    assert_close(run("scaffold", tmp_path / "sums", **SUMS), run("scaffold", tmp_path / "loop"))


@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
def test_one_worker_has_the_bits_of_a_loop(text: str, tmp_path: Path) -> None:
    """Its only sum is added up in party order, as a loop's is."""
    ours, right = (
        run(text, tmp_path / "sums", **QUICK, **SUMS | {"workers": 1}),
        run(text, tmp_path / "loop", **QUICK),
    )
    assert tables(ours.folder) == tables(right.folder)


@pytest.mark.parametrize(("common", "own"), [(0.0, 1.0), (0.05, 0.001), (0.05, 0.0)])
def test_a_thousand_parties_stay_within_the_tolerance(common: float, own: float) -> None:
    """Of models that have nothing in common, much, and everything: then all roundings go one way."""
    draw = torch.Generator().manual_seed(0)
    whole, both, halves = Averaging(), Averaging(), (Averaging(), Averaging())
    base = common * torch.randn(5_000, generator=draw)
    largest = 0.0
    for i in range(1_000):
        theta = {"w": base + own * torch.randn(5_000, generator=draw)}
        largest = max(largest, float(theta["w"].abs().max()))
        whole.add(theta, weight=50.0)
        halves[i % 2].add(theta, weight=50.0)
    for half in halves:
        both.add_sum(half.total(), half.weight)
    assert 0 < (both.value()["w"] - whole.value()["w"]).abs().max() <= 1_000 * TOLERANCE * largest


# --- who is not heard


@pytest.mark.parametrize("text", ["fedavg", "scaffold+dbe"])
def test_planned_absences(text: str, tmp_path: Path) -> None:
    """A worker is told whose reply will be lost, and leaves it out of its sum; the party goes back
    to what it was.
    """
    given = QUICK | {"absent": plan(tmp_path, *EVENTS)}
    ours = run(text, tmp_path / "sums", **given, **SUMS)
    assert {a.how for a in absences(ours)} >= {"lost", "offline"}
    assert_close(ours, run(text, tmp_path / "loop", **given))


def test_scaffolds_variates_stay_in_balance(tmp_path: Path) -> None:
    """c = mean of all c_i (l.17), though a reply was lost and another one is no number."""
    given = QUICK | {
        "absent": plan(tmp_path, "north,2,local,lost"),
        "party": {"east": {"lr": 1e20}},
    }
    result = run("scaffold", tmp_path / "run", **given, **SUMS)
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
    given = QUICK | {"epochs": 2, "party": {"east": {"lr": 1e20}}}
    ours = run(text, tmp_path / "sums", **given, **SUMS)
    assert ours.summary["absent"]["east"] == {"nonfinite": 3}
    assert_close(ours, run(text, tmp_path / "loop", **given))


def test_a_worker_none_of_whose_replies_count_has_no_sum(tmp_path: Path) -> None:
    """North, the largest, is alone at the first worker when only two take part."""
    given = QUICK | {"without": ["south", "west"], "absent": plan(tmp_path, "north,1,local,lost")}
    assert_close(
        run("fedavg", tmp_path / "sums", **given, **SUMS), run("fedavg", tmp_path / "loop", **given)
    )


def test_a_run_can_stop_there(tmp_path: Path) -> None:
    """With the sentence of every other engine, though the server never has the reply."""
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
def test_a_round_with_too_few_is_void(text: str, tmp_path: Path) -> None:
    given = QUICK | {"absent": plan(tmp_path, "east,2,local,lost"), "min_replies": 4}
    ours = run(text, tmp_path / "sums", **given, **SUMS)
    assert [void["round"] for void in ours.summary["discarded"]] == [2]
    assert_close(ours, run(text, tmp_path / "loop", **given))


def test_a_sum_that_overflows_makes_a_round_void(tmp_path: Path) -> None:
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
    assert [void["round"] for void in result.summary["discarded"]] == [1, 2, 3]


# --- resume, and the order in which sums come


@pytest.mark.sweep("True-scaffold", "False-fedavg")
@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
@pytest.mark.parametrize("half", [False, True])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    text: str, half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where parties live is in the checkpoint; those that keep nothing are dealt again as they
    were.
    """
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    given = QUICK | SUMS | {"rounds": 5, "participation": 0.5 if half else 1.0}
    straight = run(text, tmp_path / "straight", **given)
    for during in (1, 3):
        folder = tmp_path / f"stopped-{during}"
        with pytest.raises(KeyboardInterrupt):
            run(text, folder, progress=Interrupt(during), **given)
        again = resume_in(reopen(folder, ragged()), folder, Interrupt(-1))
        assert tables(folder) == tables(straight.folder)
        assert again.summary["warnings"] == straight.summary["warnings"]


class InTurns(WorkersEngine):
    """Workers in this process that are asked in one order or the other; what passes are bytes, as
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
        self.passed = 0

    def _exchange(self, asks: Mapping[int, WorkerRequest]) -> Iterator[tuple[int, WorkerReply]]:
        for w in sorted(asks, reverse=self._backwards):
            for message in self._all[w].handle(unpack(*pack(asks[w]))):
                header, bundle = pack(message)
                self.passed += bundle.nbytes
                yield w, unpack(header, bundle)

    def _notify(self, asks: Mapping[int, WorkerRequest]) -> None:
        for w, ask in asks.items():
            list(self._all[w].handle(ask))


@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
def test_sums_are_averaged_in_one_order_however_they_come(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three, as the sum of two is the same in both orders."""
    given = QUICK | SUMS | {"workers": 3}
    found = {"process": tables(run(text, tmp_path / "process", **given).folder)}
    for backwards in (False, True):
        monkeypatch.setattr(
            SimulatedRun, "engine", lambda job, backwards=backwards: InTurns(job, backwards)
        )
        found[str(backwards)] = tables(run(text, tmp_path / str(backwards), **given).folder)
    assert found["False"] == found["True"] == found["process"]


def test_one_sum_a_worker_crosses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a reply a party; the ledger counts what each party gave."""
    engines: dict[bool, InTurns] = {}

    def made(job: SimulatedRun) -> InTurns:
        return engines.setdefault(job.experiment.partial_sums, InTurns(job))

    monkeypatch.setattr(SimulatedRun, "engine", made)
    for sums in (False, True):
        run("fedavg", tmp_path / str(sums), **QUICK | SUMS | {"rounds": 1, "partial_sums": sums})
    job = prepare(config.experiment({"algorithm": "fedavg", **QUICK}), ragged())
    model = payload(job.algorithm.init_server(job.root.fold("init"), job.info))
    assert engines[False].passed - engines[True].passed == pytest.approx(
        2 * model, rel=0.1
    )  # four replies, two sums


def test_whole_numbers_come_from_the_first_party() -> None:
    """As in a mean of replies that are added up in one place."""
    one, other, mean = AveragedReplies[Model](), AveragedReplies[Model](), AveragedReplies[Model]()

    def reply(i: int) -> Model:
        return Model({"w": torch.tensor([float(i)]), "count~": torch.tensor([10 + i])})

    for i in (1, 3):
        one.add(i, reply(i), weight=1.0)
    for i in (0, 2):
        other.add(i, reply(i), weight=3.0)
    parts = [
        part for part in (one.total(), other.total(), AveragedReplies[Model]().total()) if part
    ]
    for part in sorted(parts, key=lambda part: part.heard[0]):
        mean.add_sum(part)
    value, heard = mean.value()
    assert value.theta == {"w": torch.tensor([(1 + 3 + 3 * 2) / 8]), "count~": torch.tensor([10])}
    assert heard == [0, 1, 2, 3]


def test_a_lost_worker_is_asked_again_for_its_whole_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing before it is done with all of its parties: whatever an ask leaves behind, it
    is the same again.
    """
    job = prepare(config.experiment({"algorithm": "fedavg", **QUICK, **SUMS}), ragged())
    engine = InTurns(job)
    says: list[int] = []
    exchange = engine._exchange

    def twice(asks: Mapping[int, WorkerRequest]) -> Iterator[tuple[int, WorkerReply]]:
        first, again = list(exchange(asks)), list(exchange(asks))
        says.append(len(first))
        assert [pack(message)[1].tobytes() for _, message in first] == [
            pack(m)[1].tobytes() for _, m in again
        ]
        yield from again

    monkeypatch.setattr(engine, "_exchange", twice)
    server = job.server(engine, Quiet())
    server.begin(1)
    server.begin_exchanges()
    job.algorithm.round(job.algorithm.init_server(job.root.fold("init"), job.info), server, 1)
    assert says == [2], "one message a worker"


# --- hollow replies


def test_a_hollow_reply_weighs_what_it_weighed_and_tells_nothing() -> None:
    reply = Model(
        {"w": torch.ones(3, 5), "half": torch.ones(7, dtype=torch.float16), "none": torch.zeros(0)}
    )
    header, bundle = pack({"hollow": meta_like(reply), "whole": torch.ones(2)})
    there = unpack(header, bundle)
    assert payload(there["hollow"]) == payload(reply) == 74
    assert {name: (value.shape, value.dtype) for name, value in there["hollow"].theta.items()} == {
        name: (value.shape, value.dtype) for name, value in reply.theta.items()
    }
    assert all(value.is_meta for value in there["hollow"].theta.values())
    assert torch.equal(there["whole"], torch.ones(2))
    assert bundle.nbytes == 64


# --- where there are none


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
def test_so_are_engines_without_workers(engine: str) -> None:
    with pytest.raises(
        UsageError, match="partial_sums are sums at workers, and need --engine process or ray"
    ):
        config.experiment({"partial_sums": True, "engine": engine})


def test_it_is_on_or_off() -> None:
    for given in (1, "on", "true"):
        with pytest.raises(UsageError, match="partial_sums must be true or false, not"):
            config.experiment({"partial_sums": given, "engine": "process"})
    made = config.experiment({"partial_sums": True, "engine": "process"})
    assert "partial_sums = true" in config.write(made)
    with pytest.raises(UsageError, match="rounds cannot be true"):
        config.experiment({"rounds": True})


def test_a_comparison_has_solo_beside_it(tmp_path: Path) -> None:
    """SOLO sends nothing: there is nothing to add up, and nothing to refuse."""
    made = comity.compare(["fedavg"], ragged(), out=tmp_path, **QUICK, **SUMS)
    assert len(made.rows) == 2


def test_a_plan_is_made_without_workers() -> None:
    settings = {"algorithm": "fedavg", **QUICK, **SUMS}
    assert json.dumps(vars(planned(prepare(config.experiment(settings), ragged()))), default=str)


@record
class Judged(Model):
    """A reply with something beside its weights."""

    loss: float


@record
class Two:
    """A reply of two models."""

    one: Params
    other: Params


def test_what_has_no_mean_is_said_in_a_sentence() -> None:
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

    class Otherwise(Averaging):
        """Not a plain mean."""

    with pytest.raises(
        ComityError,
        match="A wrapper takes the place of the mean of a model, but Two has several fields",
    ):
        AveragedReplies[Any](Otherwise).add(0, Two(theta, theta), 1.0)
