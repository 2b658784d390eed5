"""Parties that join when training is over: they take no part before, and are evaluated at each
stage of joining.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from matrix import GOSSIP, ragged, run, short, tables
from plain import Trainer, assert_close, assert_equal, cross_entropy, features, first, head, stream
from torch import Tensor

import comity
from comity import cli
from comity.algorithms.dbe import OFFSET
from comity.base.record import is_record
from comity.core import Algorithm, Batch, Key, Params, trainable
from comity.core.server import Server
from comity.core.wrapper import chain
from comity.engines.loop import LoopEngine
from comity.engines.site import Site
from comity.runs import checkpoint
from comity.runs.checkpoint import Checkpoints
from comity.runs.server_run import Quiet
from comity.studies import plan
from comity.wire.codec import flatten

T = 2
PRESENT, LATE = ("north", "east"), ("south", "west")
JOINING: dict[str, Any] = {"rounds": T, "newcomers": 2, "join_epochs": 2}
PLAIN: dict[str, Any] = {"model": "mlp2(width=12)", "rounds": T, "lr": 0.1, "engine": "loop"}
STAGES = ("offered", "alone", "joined")


def plain_sgd(params: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


class CallRecorder:
    """Records the calls to each party, and the newcomers' states at their first call."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, tuple[int, ...]]] = []
        self.untouched: dict[int, Any] = {}
        self.round = 0

    def listen(self, patch: pytest.MonkeyPatch) -> None:
        """Record all calls to the engine from now on."""
        begin, function, evaluate, alone = (
            Server.begin,
            LoopEngine.run,
            LoopEngine.evaluate,
            LoopEngine.evaluate_solo,
        )

        def begin_round(server: Server, t: int) -> None:
            self.round = t
            begin(server, t)

        def run_call(
            engine: LoopEngine, call: Any, messages: Mapping[int, Any], sealed_messages: Any
        ) -> Iterator[Any]:
            assert call.round == self.round
            self.hear(engine, call.function, messages)
            return function(engine, call, messages, sealed_messages)

        def evaluate_parties(
            engine: LoopEngine, messages: Mapping[int, Any], look: Any
        ) -> Iterator[Any]:
            self.hear(engine, "evaluate", messages)
            return evaluate(engine, messages, look)

        def evaluate_alone(engine: LoopEngine, ids: Iterable[int], t: int) -> Iterator[Any]:
            assert t == self.round
            self.hear(engine, "alone", ids)
            return alone(engine, ids, t)

        patch.setattr(Server, "begin", begin_round)
        patch.setattr(LoopEngine, "run", run_call)
        patch.setattr(LoopEngine, "evaluate", evaluate_parties)
        patch.setattr(LoopEngine, "evaluate_solo", evaluate_alone)

    def hear(self, engine: LoopEngine, what: str, ids: Iterable[int]) -> None:
        self.calls.append((self.round, what, tuple(ids)))
        for i in set(ids) - {0, 1} - self.untouched.keys():
            self.untouched[i] = engine.sites[i].mine


RecordedRun = tuple[comity.Result, CallRecorder]


@pytest.fixture(scope="module")
def run_with_newcomers(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RecordedRun]:
    """A method's run in a loop with two newcomers."""

    @cache
    def run_once(text: str, **more: Any) -> RecordedRun:
        recorder = CallRecorder()
        with pytest.MonkeyPatch.context() as patch:
            recorder.listen(patch)
            return run(text, tmp_path_factory.mktemp("joined") / "run", **JOINING | more), recorder

    return run_once


def comparable(tree: Any) -> tuple[str, list[tuple[str, bytes]]]:
    """A state in a form that can be compared."""
    skeleton, tensors = flatten(tree)
    return json.dumps(skeleton), [(str(t.dtype), t.numpy().tobytes()) for t in tensors]


def before_joining(folder: Path, table: str) -> list[str]:
    """A table's lines up to round T."""
    return [
        line
        for line in (folder / table).read_text().splitlines()
        if line.partition(",")[0] != str(T + 1)
    ]


def accuracies(folder: Path) -> dict[str, dict[str, float]]:
    """Test accuracies of newcomers by stage, read from metrics.csv by hand."""
    by_party: dict[str, dict[str, float]] = {}
    with (folder / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            if row["metric"] == "accuracy" and row["split"] in [
                f"test-{stage}" for stage in STAGES
            ]:
                assert row["round"] == str(T + 1)
                by_party.setdefault(row["party"], {})[row["split"].removeprefix("test-")] = float(
                    row["value"]
                )
    return by_party


def server_state(result: comity.Result) -> Any:
    checkpoints = Checkpoints(result.folder / "checkpoints")
    checkpoints.load()
    return checkpoints.server_state()


# --- every method there is


def test_newcomers_are_not_asked_before_they_join(
    text: str, run_with_newcomers: Callable[..., RecordedRun]
) -> None:
    """A newcomer gets no call, has no row in any table, and its state is the initial one."""
    result, recorder = run_with_newcomers(text)
    job = result.job
    assert job.info.names == PRESENT
    assert job.info.newcomers == LATE
    assert job.info.sizes == tuple(ragged().sizes[:2])
    assert len(job.info.tasks) == 2
    assert {p.federation_size for p in job.parties} == {2}
    assert all(set(job.cohort(t)) <= {0, 1} for t in range(1, 50))
    for t, function, ids in recorder.calls:
        assert t > T or set(ids) <= {0, 1}, f"{function} of round {t}"
    for table in ("metrics.csv", "ledger.csv"):
        lines = before_joining(result.folder, table)
        assert len(lines) > 1
        assert not [line for line in lines if set(line.split(",")) & set(LATE)]
    assert recorder.untouched.keys() == {2, 3}
    for i, state in recorder.untouched.items():
        assert comparable(state) == comparable(
            job.algorithm.init_party(Key.root(0).fold("init"), job.parties[i])
        )


def test_rounds_are_those_of_a_federation_without_them(
    text: str, run_with_newcomers: Callable[..., RecordedRun], tmp_path: Path
) -> None:
    """The tables are equal byte for byte, and so is the summary: newcomers do not affect the
    others.
    """
    if "dp(" in text:
        pytest.skip("no two runs with other settings have the same noise")
    result, whole = run_with_newcomers(text)[0], ragged()
    smaller = replace(whole, parties={name: whole.parties[name] for name in PRESENT})
    same = {
        name: getattr(result.job.experiment, name) for name in ("model", "rounds", "lr", "engine")
    }
    alone = comity.run(text, smaller, out=tmp_path, **same)
    for table in ("metrics.csv", "ledger.csv"):
        assert before_joining(result.folder, table) == before_joining(tmp_path, table)
    assert (result.folder / "outcomes.csv").read_bytes() == (tmp_path / "outcomes.csv").read_bytes()
    for key in ("accuracy", "parties", "server_steps"):
        assert result.summary[key] == alone.summary[key]
    assert alone.summary["newcomers"] == {}


@pytest.mark.sweep("adcol", "relay-p2p")
def test_joining_is_the_same_on_processes(
    text: str, run_with_newcomers: Callable[..., RecordedRun], tmp_path: Path
) -> None:
    alone = run_with_newcomers(text)[0]
    together = run(text, tmp_path, engine="process", workers=2, **JOINING)
    assert tables(together.folder) == tables(alone.folder)
    for name in (*PRESENT, *LATE):
        assert_equal(together.model(name).theta, alone.model(name).theta)
    same = {k: v for k, v in together.summary.items() if k != "seconds"}
    assert same == {k: v for k, v in alone.summary.items() if k != "seconds"}


def test_newcomers_are_evaluated_with_their_final_model(
    text: str, run_with_newcomers: Callable[..., RecordedRun]
) -> None:
    """`result.model` of a newcomer, on its test samples, has the accuracy in the summary."""
    result = run_with_newcomers(text)[0]
    assert result.summary["newcomers"].keys() == set(LATE)
    for name in LATE:
        model, test = result.model(name), ragged().parties[name].test
        right = (model.predict(test.x) == test.y).sum().item()
        assert result.summary["newcomers"][name]["joined"] == right / len(test)


def test_what_a_warm_up_trains_is_deployed(
    text: str, run_with_newcomers: Callable[..., RecordedRun]
) -> None:
    """A method with a warm-up changes the newcomers' deployed model; any other method deploys what
    they were offered.
    """
    result, recorder = run_with_newcomers(text)
    outer, core = chain(result.job.algorithm)[0], chain(result.job.algorithm)[-1]
    welcomes = type(core).warm_up is not Algorithm.warm_up or type(core).join is not Algorithm.join
    for i, name in enumerate(LATE, start=2):
        offered = outer.deployed_model(
            recorder.untouched[i], outer.message_for(server_state(result), i), result.job.parties[i]
        )
        deployed = result.model(name).theta
        assert (
            any(not torch.equal(deployed[k], v) for k, v in trainable(offered).items()) == welcomes
        )


def test_the_summary_is_what_the_metrics_say(
    text: str, run_with_newcomers: Callable[..., RecordedRun]
) -> None:
    result = run_with_newcomers(text)[0]
    by_hand = accuracies(result.folder)
    assert result.summary["newcomers"].keys() == by_hand.keys()
    for name, accuracy in by_hand.items():
        assert accuracy.keys() == set(STAGES)
        assert result.summary["newcomers"][name] == accuracy | {
            "gain": accuracy["joined"] - accuracy["alone"]
        }
    assert (
        json.loads((result.folder / "summary.json").read_text())["newcomers"]
        == result.summary["newcomers"]
    )


def test_training_alone_does_not_depend_on_the_method(
    text: str, run_with_newcomers: Callable[..., RecordedRun]
) -> None:
    def alone(result: comity.Result) -> list[str]:
        rows = (result.folder / "metrics.csv").read_text().splitlines()
        return [row for row in rows if "-alone," in row]

    ours = run_with_newcomers(text)[0]
    solo = run_with_newcomers("solo", lr=ours.job.experiment.lr, model=ours.job.experiment.model)[0]
    assert len(alone(solo)) >= 4
    assert alone(ours) == alone(solo)


def test_joining_is_charged_to_newcomers_in_the_round_after_the_last(
    text: str, run_with_newcomers: Callable[..., RecordedRun]
) -> None:
    """Only newcomers send figures: no other party is evaluated again or sends anything."""
    result = run_with_newcomers(text)[0]
    rows = [row for row in result.ledger if row.round > T]
    assert {row.round for row in rows} == {T + 1}
    assert all(row.src in LATE for row in rows if row.dst == "server")
    evaluations = Counter(row.src for row in rows if row.kind == "eval" and row.dst == "server")
    assert evaluations == dict.fromkeys(LATE, 3)  # offered, alone, joined
    total: Counter[str] = Counter()
    for row in result.ledger:
        total[row.kind] += row.bytes
    assert {kind: result.summary["bytes"][kind] for kind in total} == total


# --- bytes by hand


FLOATS = 4
MODEL = FLOATS * (64 * 12 + 12 + 12 * 12 + 12 + 12 * 10 + 10)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("solo", {}),
        ("fedavg", {"warm_up": MODEL}),
        ("fedper", {"warm_up": MODEL - FLOATS * (12 * 10 + 10)}),
        ("scaffold", {"warm_up": 2 * MODEL}),
        ("fd", {"warm_up": FLOATS * 10 * 10 + 10}),
        ("fedavg+dbe", {"agree": FLOATS * 12, "warm_up": MODEL}),
        ("fedavg+prbm", {"warm_up": MODEL}),
        ("scaffold+mr", {"agree": FLOATS * 12, "warm_up": 2 * MODEL}),
    ],
)
def test_messages_to_newcomers_by_hand(text: str, messages: dict[str, int], tmp_path: Path) -> None:
    result = run(text, tmp_path, **PLAIN | JOINING)
    for name in LATE:
        bytes_by_call = {
            row.call: row.bytes
            for row in result.ledger
            if row.round == T + 1 and row.dst == name and row.kind == "down"
        }
        assert bytes_by_call == messages


@pytest.mark.parametrize(("text", "down"), [("solo", 0), ("fedavg", MODEL)])
def test_evaluation_bytes_of_newcomers_by_hand(text: str, down: int, tmp_path: Path) -> None:
    """Each of three evaluations sends two scores of three numbers up; the model goes down before
    and after the warm-up.
    """
    result = run(text, tmp_path, **PLAIN | JOINING)
    for name in LATE:
        rows = [row for row in result.ledger if row.round == T + 1 and row.kind == "eval"]
        assert [row.bytes for row in rows if row.src == name] == [2 * 3 * 4] * 3
        assert [row.bytes for row in rows if row.dst == name] == ([down] * 2 if down else [])


@pytest.mark.parametrize("text", ["fedavg", "solo"])
def test_steps_of_a_warm_up_count(text: str, tmp_path: Path) -> None:
    """Batches of 10: 2 rounds of an epoch, then 3 epochs of the newcomers. Their training alone is
    not counted.
    """
    result = run(text, tmp_path, **PLAIN | JOINING | {"join_epochs": 3})
    steps_per_epoch = [-(-size // 10) for size in ragged().sizes]
    assert result.summary["steps"] == 2 * (steps_per_epoch[0] + steps_per_epoch[1]) + 3 * (
        steps_per_epoch[2] + steps_per_epoch[3]
    )


# --- what they learn, without Comity


def weights_with(tree: Any, name: str) -> Params:
    """The weights in a state that have a parameter of that name."""
    if isinstance(tree, dict) and name in tree:
        return tree
    inner = (
        vars(tree).values() if is_record(tree) else tree.values() if isinstance(tree, dict) else []
    )
    return next((weights for part in inner if (weights := weights_with(part, name))), {})


def warmed_up(
    result: comity.Result, theta: Params, loss: Callable[[Params, Batch], Tensor] = cross_entropy
) -> Params:
    """West's weights after its warm-up from `theta`, by torch."""
    batches = list(stream(result, 3, T + 1, "warm_up"))
    assert len(batches) == 10 * 2  # 11 samples, ten epochs by default
    return Trainer(theta, plain_sgd).train(iter(batches), loss)


def test_fedavgs_newcomer_trains_the_received_model(tmp_path: Path) -> None:
    result = run("fedavg", tmp_path, newcomers=1, **PLAIN)
    received = result.model("north").theta
    assert_equal(received, result.model("south").theta)
    assert_close(result.model("west").theta, warmed_up(result, received))


def test_what_is_offered_is_the_received_model(tmp_path: Path) -> None:
    result = run("fedavg", tmp_path, newcomers=1, **PLAIN | {"rounds": 6})
    test = ragged().parties["west"].test
    right = (result.model("north").predict(test.x) == test.y).float().mean().item()
    accuracy = next(
        n.value
        for n in result.metrics
        if (n.party, n.split, n.metric) == ("west", "test-offered", "accuracy")
    )
    assert accuracy == pytest.approx(right)


def test_solos_newcomer_trains_the_first_weights(tmp_path: Path) -> None:
    result = run("solo", tmp_path, newcomers=1, **PLAIN)
    assert_close(result.model("west").theta, warmed_up(result, first(result)))


def loss_of(result: comity.Result, name: str, stage: str) -> float:
    """A newcomer's loss on its test samples."""
    return next(
        n.value
        for n in result.metrics
        if (n.party, n.split, n.metric) == (name, f"test-{stage}", "loss")
    )


@pytest.mark.parametrize("text", ["solo", "fedavg", "adcol", "fedavg+dbe"])
def test_alone_is_a_training_of_its_own(text: str, tmp_path: Path) -> None:
    """Ten epochs on its own data from the initial weights. All samples are in one batch, so that
    their order does not matter.
    """
    result = run(text, tmp_path, newcomers=1, batch=50, **PLAIN)
    data = ragged().parties["west"]
    whole = Batch(data.train.x, data.train.y, torch.arange(len(data.train)), 0, {})
    theta = Trainer(first(result), plain_sgd).train(iter([whole] * 10))
    expected = F.cross_entropy(head(theta, features(theta, data.test.x)), data.test.y).item()
    assert loss_of(result, "west", "alone") == pytest.approx(expected, rel=1e-5)
    assert (loss_of(result, "west", "joined") == pytest.approx(expected, rel=1e-5)) == (
        text == "solo"
    )


def test_solo_gains_exactly_nothing_by_joining(tmp_path: Path) -> None:
    """SOLO's newcomer equals the training alone, so that `gain` is exactly zero."""
    result = run("solo", tmp_path, newcomers=2, **PLAIN)
    for name in LATE:
        assert loss_of(result, name, "joined") == loss_of(result, name, "alone")


def test_dbes_newcomer_gets_the_consensus_and_a_zero_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As parties do before round 1; then eqs. 6, 8 and 9 with μ = 1, where the offset is trained
    too.
    """
    states: list[Any] = []
    function = Site.run

    def recording_run(site: Site, call: Any, *args: Any) -> Any:
        if call.function == "warm_up":
            states.append(site.mine)
        return function(site, call, *args)

    monkeypatch.setattr(Site, "run", recording_run)
    result = run("fedavg+dbe", tmp_path, newcomers=1, kappa=3, **PLAIN)
    consensus = server_state(result).extra.z
    (state,) = states
    assert consensus.abs().max() > 0
    assert torch.equal(state.extra.z, consensus)
    assert torch.equal(state.host[OFFSET], torch.zeros(12))

    def dbe_loss(theta: Params, batch: Batch) -> Tensor:
        z = features(theta, batch.x)
        loss = F.cross_entropy(head(theta, z + theta[OFFSET]), batch.y)
        return loss + 3 * 0.5 * (z.mean(0) - consensus).square().mean()

    received = {k: v for k, v in result.model("north").theta.items() if k != OFFSET}
    expected = warmed_up(result, received | {OFFSET: torch.zeros(12)}, dbe_loss)
    final_weights = result.model("west").theta
    assert final_weights[OFFSET].abs().max() > 0
    assert final_weights.keys() == expected.keys()
    assert all(torch.allclose(final_weights[k], expected[k], atol=1e-6) for k in expected)


def test_adcols_newcomer_trains_against_the_discriminator(tmp_path: Path) -> None:
    """Eq. 2 with D as it is after the last round, which has three outputs, not four."""
    result = run("adcol", tmp_path, newcomers=1, hidden=16, mu=2, **PLAIN)
    D = weights_with(server_state(result), "out.weight")
    assert len(D["out.weight"]) == 3

    def eq2(theta: Params, batch: Batch) -> Tensor:
        z = features(theta, batch.x)
        logits = F.linear(
            F.relu(F.linear(F.relu(F.linear(z, *pair("fc1"))), *pair("fc2"))), *pair("out")
        )
        uniform = torch.full_like(logits, 1 / 3)
        return F.cross_entropy(head(theta, z), batch.y) + 2 * F.kl_div(
            logits.log_softmax(1), uniform, reduction="batchmean"
        )

    def pair(layer: str) -> tuple[Tensor, Tensor]:
        return D[f"{layer}.weight"], D[f"{layer}.bias"]

    final_weights, expected = result.model("west").theta, warmed_up(result, first(result), eq2)
    assert all(torch.allclose(final_weights[k], expected[k], atol=1e-5) for k in expected)
    without = warmed_up(result, first(result))
    assert not torch.allclose(final_weights["fc2.weight"], without["fc2.weight"], atol=1e-3)


def test_fedpers_newcomer_gets_the_body_and_starts_with_the_first_head(tmp_path: Path) -> None:
    result = run("fedper", tmp_path, newcomers=1, **PLAIN)
    body = {k: v for k, v in result.model("north").theta.items() if not k.startswith("fc3")}
    assert_close(result.model("west").theta, warmed_up(result, first(result) | body))


def test_scaffolds_newcomer_is_corrected_by_the_servers_control(tmp_path: Path) -> None:
    """Algorithm 1, l.10 with c_i = 0: what it adds to each gradient is c, the gradient of Σ c·θ."""
    result = run("scaffold", tmp_path, newcomers=1, **PLAIN)
    s = server_state(result)
    assert s.c["fc3.bias"].abs().max() > 0

    def corrected_loss(theta: Params, batch: Batch) -> Tensor:
        return cross_entropy(theta, batch) + sum((c * theta[k]).sum() for k, c in s.c.items())

    final_weights, expected = result.model("west").theta, warmed_up(result, s.theta, corrected_loss)
    assert all(torch.allclose(final_weights[k], expected[k], atol=1e-6) for k in expected)


@pytest.mark.parametrize(
    ("method", "parent", "switched_off"),
    [("fedprox", "fedavg", {"mu": 0}), ("moon", "fedavg", {"mu": 0}), ("fedbn", "fedavg", {}), ("ditto", "solo", {"lam": 0}),
     ("adcol", "solo", {"mu": 0}), ("fd", "solo", {"gamma": 0})],
)  # fmt: skip
def test_newcomers_of_a_method_without_its_extra_are_its_parents(
    method: str, parent: str, switched_off: dict[str, float], tmp_path: Path
) -> None:
    ours = run(method, tmp_path / "ours", **PLAIN | JOINING | switched_off)
    theirs = run(parent, tmp_path / "theirs", **PLAIN | JOINING)
    for name in LATE:
        assert_equal(ours.model(name).theta, theirs.model(name).theta)


def test_a_newcomers_own_batch_and_rate_count_and_its_epochs_are_the_warm_ups(
    tmp_path: Path,
) -> None:
    """West has 11 samples: three batches of 4 an epoch."""
    own = {"west": {"batch": 4, "lr": 0.02, "epochs": 7}}
    result = run("fedavg", tmp_path, newcomers=1, party=own, **PLAIN)
    received = result.model("north").theta
    batches = list(stream(result, 3, T + 1, "warm_up"))
    assert [len(batch.y) for batch in batches] == [4, 4, 3] * 10
    expected = Trainer(received, lambda params: torch.optim.SGD(params, lr=0.02)).train(
        iter(batches)
    )
    assert_close(result.model("west").theta, expected)


# --- stopped and resumed


class Stop(Quiet):
    """Stops a run after round T, or when the first newcomers have replied."""

    def __init__(self, when: str) -> None:
        self.when, self.over = when, False

    def add_replies(self, count: int) -> None:
        if self.over and self.when == "while joining":
            raise KeyboardInterrupt

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        self.over = t == T
        if self.over and self.when == "before joining":
            raise KeyboardInterrupt


class Watch(Quiet):
    first = -1

    def begin(self, job: Any, first_round: int) -> None:
        self.first = first_round


@pytest.mark.sweep("scaffold+dbe", "adcol")
@pytest.mark.parametrize("when", ["before joining", "while joining"])
@pytest.mark.parametrize(
    "text",
    ["fedavg", "scaffold+dbe", "adcol", "ditto", "moon", "centralized", "solo", GOSSIP],
    ids=short,
)
def test_stopped_and_resumed(
    text: str,
    when: str,
    run_with_newcomers: Callable[..., RecordedRun],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path, progress=Stop(when), **JOINING)
    assert json.loads((tmp_path / "checkpoints" / "manifest.json").read_text())["round"] == T
    watch = Watch()
    result, straight = (
        run(text, tmp_path, resume=True, progress=watch, **JOINING),
        run_with_newcomers(text)[0],
    )
    assert watch.first == T
    assert tables(tmp_path) == tables(straight.folder)
    for name in (*PRESENT, *LATE):
        assert_equal(result.model(name).theta, straight.model(name).theta)
    same = {k: v for k, v in result.summary.items() if k != "seconds"}
    assert same == {k: v for k, v in straight.summary.items() if k != "seconds"}


def test_a_finished_run_is_not_joined_twice(
    run_with_newcomers: Callable[..., RecordedRun], tmp_path: Path
) -> None:
    run("fedavg+dbe", tmp_path, **JOINING)
    again = run("fedavg+dbe", tmp_path, resume=True, **JOINING)
    assert tables(tmp_path) == tables(run_with_newcomers("fedavg+dbe")[0].folder)
    assert again.summary["steps"] == run_with_newcomers("fedavg+dbe")[0].summary["steps"]


# --- what people type and see


def command(*args: object) -> None:
    """`comity ARGS` inside this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["comity", *map(str, args)])
        cli.main()


SMALL = (
    "--parties",
    4,
    "--rounds",
    2,
    "--model",
    "linear",
    "--partition",
    "iid",
    "--engine",
    "loop",
)


def test_the_screen_says_what_each_newcomer_gained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command(
        "run", "fedavg", *SMALL, "--newcomers", 2, "--join-epochs", 3, "--out", tmp_path / "out"
    )
    lines = capsys.readouterr().out.splitlines()
    newcomers = json.loads((tmp_path / "out" / "summary.json").read_text())["newcomers"]
    assert list(newcomers) == ["p2", "p3"]
    for name, new in newcomers.items():
        points = 100 * (new["joined"] - new["alone"])
        line = (
            f"newcomer {name}: {100 * new['offered']:.1f}% with the offered model,"
            f" {100 * new['joined']:.1f}% after its warm-up, {100 * new['alone']:.1f}% alone:"
            f" {'+' if points >= 0 else '-'}{abs(points):.1f} points by joining"
        )
        assert line in lines
    assert "mean of 2 parties" in lines[0]


def test_the_screen_has_no_newcomers_if_there_are_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command("run", "fedavg", *SMALL, "--out", tmp_path / "out")
    output = capsys.readouterr().out
    assert "newcomer p" not in output
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["newcomers"] == {}


@pytest.mark.parametrize(
    "option",
    ["--newcomers=4", "--newcomers=5", "--newcomers=-1", "--newcomers=1.5", "--newcomers=some", "--newcomers=", "--join-epochs=0",
     "--join-epochs=-3", "--join-epochs=2.5", "--opt-state=some", "--last-batch=lose", "--opt-state="],
)  # fmt: skip
def test_wrong_settings_are_one_sentence(
    option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    late = () if option.startswith("--newcomers") else ("--newcomers=1",)
    with pytest.raises(SystemExit) as exit_info:
        command("run", "fedavg", *SMALL, *late, option, "--out", tmp_path / "out")
    assert exit_info.value.code == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("comity: ")
    if option.rpartition("=")[2] in ("4", "5"):
        assert "All 4 parties would be newcomers" in message
    else:
        assert option.removeprefix("--").partition("=")[0].replace("-", "_") in message.replace(
            "-", "_"
        )
    assert not (tmp_path / "out").exists()


def test_a_misspelt_newcomer_gets_a_suggestion(
    run_with_newcomers: Callable[..., RecordedRun],
) -> None:
    with pytest.raises(comity.UsageError, match="Did you mean 'west'"):
        run_with_newcomers("fedavg")[0].model("wets")


def test_progress_does_not_count_joining_as_a_round(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command("run", "fedavg", *SMALL, "--newcomers", 2, "--out", tmp_path / "out")
    progress_output = capsys.readouterr().err
    assert "round 2/2" in progress_output
    assert "round 3/2" not in progress_output
    assert " -" not in progress_output


@pytest.mark.parametrize("method", ["fedavg", "adcol", "centralized", "fedavg+dbe"])
def test_a_newcomer_that_does_not_fit_is_refused_before_round_1(
    method: str, tmp_path: Path
) -> None:
    with pytest.raises(comity.UsageError, match="west"):
        run(method, tmp_path, newcomers=1, party={"west": {"model": "mlp2(width=9)"}}, **PLAIN)


@pytest.mark.parametrize("text", ["fedavg", "fedavg+dbe"])
def test_a_plan_counts_joining(text: str, tmp_path: Path) -> None:
    result = run(text, tmp_path, **PLAIN | JOINING)
    round_plan = plan.plan(result.job)
    assert (round_plan.total.up, round_plan.total.down) == (
        result.summary["bytes"]["up"],
        result.summary["bytes"]["down"],
    )
    if text == "fedavg":  # steps are counted as if each party function trained once
        assert round_plan.steps == result.summary["steps"]


def test_bytes_of_joining_equal_the_closed_form(
    text: str, run_with_newcomers: Callable[[str], RecordedRun]
) -> None:
    result = run_with_newcomers(text)[0]
    charged: Counter[str] = Counter()
    for row in result.ledger:
        charged[row.kind] += row.bytes if row.round > T else 0
    formula = result.job.algorithm.accounting.join_traffic(result.job.info)
    assert {kind: charged[kind] for kind in ("up", "down", "peer")} == vars(formula)
