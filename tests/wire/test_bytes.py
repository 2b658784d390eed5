"""The ledger counts every message and equals each method's closed form, and private values are in
no message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from closed_forms import assert_closed_forms, by_round
from matrix import GOSSIP, ragged, run
from sweeps import over_methods
from torch import Tensor, nn

import comity
from comity.algorithms.dbe import OFFSET
from comity.base.call import CallId
from comity.base.record import unseal
from comity.components.averaged import AveragesWeights
from comity.core import Sealed, payload, seal
from comity.core.wrapper import chain
from comity.engines.loop import LoopEngine
from comity.runs.summary import KINDS

SETTINGS: dict[str, dict[str, Any]] = {
    "half": {"participation": 0.5, "rounds": 4},
    "params_only": {"bn": "params_only"},
    "mlp2": {"model": "mlp2(width=12)"},
    "seldom-evaluated": {"eval_every": 3, "rounds": 4, "model": "mlp2(width=12)"},
}


class MessageRecorder:
    """Records all messages to and replies from parties, and the states of parties after each reply."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[tuple[CallId, Any]] = []
        self.replies: list[tuple[CallId, Any, Any]] = []
        function, evaluate = LoopEngine.run, LoopEngine.evaluate

        def run_and_record(
            engine: LoopEngine,
            call: CallId,
            messages: Mapping[int, Any],
            sealed_messages: Mapping[Any, Sealed],
        ) -> Iterator[Any]:
            self.messages += [(call, message.content) for message in messages.values()] + [
                (call, sealed) for sealed in sealed_messages.values()
            ]
            for i, result in function(engine, call, messages, sealed_messages):
                self.replies.append((call, result.reply, engine.sites[i].mine))
                yield i, result

        def evaluate_and_record(
            engine: LoopEngine, messages: Mapping[int, Any], request: Any
        ) -> Iterator[Any]:
            call = CallId("evaluate", -1, -1, 0)
            self.messages += [(call, message.content) for message in messages.values()]
            for i, evaluation in evaluate(engine, messages, request):
                self.replies.append((call, evaluation, engine.sites[i].mine))
                yield i, evaluation

        monkeypatch.setattr(LoopEngine, "run", run_and_record)
        monkeypatch.setattr(LoopEngine, "evaluate", evaluate_and_record)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> MessageRecorder:
    return MessageRecorder(monkeypatch)


class RecordedRun(NamedTuple):
    """A run, and a recorder of all its messages."""

    result: comity.Result
    recorder: MessageRecorder


@pytest.fixture(scope="module")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RecordedRun]:
    """A function that runs a method with the default settings, once for all tests."""

    @cache
    def run_once(text: str) -> RecordedRun:
        with pytest.MonkeyPatch.context() as patch:
            recorder = MessageRecorder(patch)
            return RecordedRun(run(text, tmp_path_factory.mktemp("watched") / "run"), recorder)

    return run_once


def test_ledger_equals_the_closed_form(
    text: str, recorded_run: Callable[[str], RecordedRun]
) -> None:
    assert_closed_forms(recorded_run(text).result)


def test_ledger_equals_the_closed_form_with_half_the_parties_and_private_batchnorm(
    text: str, tmp_path: Path
) -> None:
    assert_closed_forms(run(text, tmp_path, bn="none", participation=0.5))


@pytest.mark.sweep("-half")
@pytest.mark.parametrize("setting", SETTINGS)
def test_ledger_equals_the_closed_form_in_other_settings(
    text: str, setting: str, tmp_path: Path
) -> None:
    assert_closed_forms(run(text, tmp_path, **SETTINGS[setting]))


@pytest.mark.parametrize(
    ("text", "settings"),
    over_methods([
        ("adcol", {"disc": "linear"}),
        ("adcol", {"hidden": 7, "sampling": 0.3}),
        ("adcol", {"cut": "fc1", "disc_steps": 0}),
        ("adcol", {"cut": "conv2"}),
        ("adcol", {"past": 3, "rounds": 4}),
        ("adcol", {"slots": "cohort", "participation": 0.5, "rounds": 3}),
        ("adcol", {"slots": "cohort", "hidden": 7, "sampling": 0.3}),
        ("adcol", {"aggregate": "predictor"}),
        ("adcol", {"aggregate": "predictor", "cut": "fc1", "bn": "none", "participation": 0.5}),
        ("adcol", {"aggregate": "model"}),
        ("adcol", {"aggregate": "model", "bn": "params_only"}),
        ("adcol", {"rep_mode": "last_epoch"}),
        ("adcol", {"disc": "conv"}),
        ("adcol", {"disc": "deep", "hidden": 9}),
        ("adcol", {"objective": "simsiam"}),
        ("adcol", {"objective": "simsiam", "aggregate": "model"}),
        ("adcol", {"model": "fedbn-cnn(scale=0.06,projection=12)", "aggregate": "predictor"}),
        ("fedper", {"cut": "fc1"}),
        ("fedavg+dbe", {"set": {"dbe.cut": "conv1"}}),
        ("fedavg+dbe", {"cut": "fc1"}),
        ("fedavg+dbe", {"set": {"dbe.init_mean": "ema"}}),
        ("fedavg+dbe", {"set": {"dbe.init_mean": "ema", "dbe.cut": "conv2", "dbe.init_epochs": 2}}),
        ("scaffold+dbe", {"set": {"dbe.cut": "fc1"}, "bn": "none"}),
        ("fedbn+dbe", {"participation": 0.5}),
        ("fedper+mr", {"cut": "fc1"}),
        ("fedper+mr", {"set": {"mr.cut": "fc1"}}),
    ]),
)  # fmt: skip
def test_ledger_equals_the_closed_form_with_method_settings(
    text: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    assert_closed_forms(run(text, tmp_path, **settings))


def modules() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU()), nn.Linear(
        9, 10
    )


@pytest.mark.parametrize("text", ["fedavg", "fedbn", "scaffold", "scaffold+dbe", "fedper+mr"])
def test_ledger_equals_the_closed_form_with_integer_buffers(text: str, tmp_path: Path) -> None:
    assert_closed_forms(run(text, tmp_path, model=modules()))


def test_bytes_of_fedavg_with_integer_buffers(tmp_path: Path) -> None:
    """(64*9 + 9) + 2*9 + 2*9 + (9*10 + 10) floats and one int64: 4 * 721 + 8 bytes per model, for
    four parties, in both directions.
    """
    totals = by_round(run("fedavg", tmp_path, model=modules(), rounds=1))
    assert totals[1]["up"] == totals[1]["down"] == 4 * (4 * 721 + 8)


def test_rows_are_well_formed(text: str, recorded_run: Callable[[str], RecordedRun]) -> None:
    """Rows have known names and kinds and positive bytes, in the order of rounds; the summary has
    their sums.
    """
    result = recorded_run(text).result
    names = set(ragged().names)
    calls = {"introduce", "evaluate"} | {
        name for a in chain(result.job.algorithm) for name in dir(a)
    }
    assert (result.folder / "ledger.csv").read_text().startswith("round,call,src,dst,kind,bytes\n")
    rounds = [row.round for row in result.ledger]
    assert rounds == sorted(rounds)
    for row in result.ledger:
        assert row.kind in KINDS
        assert row.bytes > 0
        assert row.call in calls
        assert (row.src in names) == (row.kind == "peer" or row.dst == "server")
        assert (row.dst in names) == (row.kind == "peer" or row.src == "server")
        if row.kind in ("up", "down"):
            assert (row.kind == "up") == (row.dst == "server")
    total: Counter[str] = Counter()
    for row in result.ledger:
        total[row.kind] += row.bytes
    summary_bytes = result.summary["bytes"]
    assert {kind: summary_bytes[kind] for kind in KINDS} == {kind: total[kind] for kind in KINDS}
    assert summary_bytes["total"] == sum(total.values()) - total["eval"]


def test_bytes_of_the_setup(tmp_path: Path) -> None:
    """Each party sends its name (5 characters for north and south, 4 for east and west) and one
    number, and gets two numbers.
    """
    totals = by_round(run("solo", tmp_path, rounds=1))
    assert totals[0]["setup"] == (5 + 4 + 5 + 4) + 4 * 4 + 4 * 8
    assert not totals[1]["setup"]


# --- contents of messages


def names_in(tree: Any) -> set[str]:
    """All keys of all dicts in a message, including sealed messages."""
    if isinstance(tree, dict):
        return {str(k) for k in tree} | {n for v in tree.values() for n in names_in(v)}
    if isinstance(tree, list | tuple):
        return {n for v in tree for n in names_in(v)}
    if isinstance(tree, Sealed):
        return names_in(unseal(tree))
    if is_dataclass(tree):
        return {n for f in fields(tree) for n in names_in(getattr(tree, f.name))}
    return set()


def tensors_in(tree: Any, sealed: bool = True) -> list[Tensor]:
    """All tensors of a message or a state, with or without those in sealed messages."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Sealed):
        return tensors_in(unseal(tree)) if sealed else []
    if is_dataclass(tree):
        tree = [getattr(tree, f.name) for f in fields(tree)]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return (
        [t for v in tree for t in tensors_in(v, sealed)] if isinstance(tree, list | tuple) else []
    )


def numbers_in(tree: Any, sealed: bool = True) -> int:
    """The number of plain numbers in a message, without keys of dicts."""
    if isinstance(tree, Sealed):
        return numbers_in(unseal(tree)) if sealed else 0
    if is_dataclass(tree):
        tree = [getattr(tree, f.name) for f in fields(tree)]
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return sum(numbers_in(v, sealed) for v in tree)
    return int(isinstance(tree, int | float))


def weight(message: Any, sealed: bool = True) -> int:
    """Bytes of a message, counted independently of `payload`."""
    return sum(t.nbytes for t in tensors_in(message, sealed)) + 4 * numbers_in(message, sealed)


@pytest.mark.sweep("params_only")
@pytest.mark.parametrize("bn", ["all", "params_only", "none"])
def test_private_names_are_in_no_message(
    text: str, bn: str, recorder: MessageRecorder, tmp_path: Path
) -> None:
    """Offsets, heads, BatchNorm: names that a method or a BatchNorm policy keeps private are in no
    message, including evaluation.
    """
    result = run(text, tmp_path, bn=bn)
    core, task = chain(result.job.algorithm)[-1], result.job.info.task
    private_names = {OFFSET}
    if isinstance(core, AveragesWeights):
        private_names |= core.private_names(task)
        expected = {"all": 0, "params_only": 10, "none": 20}[
            bn
        ]  # five BatchNorm layers with four tensors each
        assert len(private_names & task.norm_names) >= (
            expected if task.norm_names else 0
        )  # a network for DP-SGD has none
    assert recorder.messages
    assert recorder.replies
    for _, message, *_ in [*recorder.messages, *recorder.replies]:
        assert not names_in(message) & private_names


def test_replies_contain_no_samples_and_no_private_weights(
    text: str, recorded_run: Callable[[str], RecordedRun]
) -> None:
    """No reply contains samples, except of methods that declare it; where models are private, no
    reply contains their weights.
    """
    result, recorder = recorded_run(text)
    shares, shape = chain(result.job.algorithm)[-1].traits.shares, result.job.info.shape
    if "samples" in result.job.algorithm.traits.leaves:
        assert any(
            tuple(t.shape[1:]) == shape
            for _, reply, _ in recorder.replies
            for t in tensors_in(reply)
        )
        return
    for call, reply, state in recorder.replies:
        sent_tensors = tensors_in(reply)
        assert not [t for t in sent_tensors if tuple(t.shape[1:]) == shape], (
            f"{call.function} sent samples"
        )
        if shares in ("nothing", "representations", "means"):
            state_tensors = [t for t in tensors_in(state) if t.numel() > 1]
            assert state_tensors
            assert not [
                t
                for t in sent_tensors
                for w in state_tensors
                if t.shape == w.shape and torch.equal(t, w)
            ], f"{call.function} sent weights"


def test_offsets_are_in_no_message(recorder: MessageRecorder, tmp_path: Path) -> None:
    """Each party has its own offset, and no tensor in a message equals it. This shows that the test
    above checks something.
    """
    result = run("fedavg+dbe", tmp_path)
    offsets = [result.model(name).theta[OFFSET] for name in ragged().names]
    assert all(o.abs().max() > 0 for o in offsets)
    assert not torch.equal(offsets[0], offsets[1])
    states = [state.host[OFFSET] for call, _, state in recorder.replies if call.function == "local"]
    sent_tensors = [t for _, reply, _ in recorder.replies for t in tensors_in(reply)] + [
        t for _, m in recorder.messages for t in tensors_in(m)
    ]
    assert not [
        o
        for o in (*offsets, *states)
        for t in sent_tensors
        if o.any() and t.shape == o.shape and torch.equal(t, o)
    ]


def test_every_message_is_charged(text: str, recorded_run: Callable[[str], RecordedRun]) -> None:
    """The bytes of all recorded tensors and numbers equal those in the ledger."""
    result, recorder = recorded_run(text)
    totals = by_round(result)
    expected: dict[int, Counter[str]] = {t: Counter() for t in totals}
    for call, message in recorder.messages:
        if call.function != "evaluate":
            kind = "peer" if isinstance(message, Sealed) else "down"
            expected[call.round][kind] += weight(message)
    for call, reply, _ in recorder.replies:
        if call.function != "evaluate":
            expected[call.round]["up"] += weight(reply, sealed=False)
    for t in totals:
        for kind in ("up", "down", "peer"):
            assert totals[t][kind] == expected[t][kind], f"{kind} of round {t}"


def test_sealed_messages_are_charged_once_per_pair(tmp_path: Path) -> None:
    """In each round, four models go around a ring of four pairs. The server only sends each party
    the id of the next.
    """
    result = run(GOSSIP, tmp_path)
    size = result.job.info.task.bytes()
    for t in (1, 2):
        rows = [row for row in result.ledger if row.round == t and row.kind not in ("eval", "down")]
        assert [row.bytes for row in result.ledger if row.round == t and row.kind == "down"] == [
            4
        ] * 4
        ring = {("north", "east"), ("east", "south"), ("south", "west"), ("west", "north")}
        assert {(row.src, row.dst) for row in rows} == ring
        assert [row.bytes for row in rows] == [size] * 4
        assert {row.kind for row in rows} == {"peer"}


def test_payload_of_each_type() -> None:
    """Tensors count their bytes, a number 4, a boolean 1, a string its UTF-8 bytes; keys and sealed
    messages count nothing.
    """
    message = {
        "x": torch.zeros(3, 2),
        "n": [7, 0.5],
        "k": torch.zeros(2, dtype=torch.int64),
        "ok": True,
        "word": "né",
    }
    assert payload(message) == 24 + 8 + 16 + 1 + 3
    assert payload({"sealed": seal(torch.zeros(1000), to=1), "none": None}) == 0
    assert payload(torch.zeros(100)[:3]) == 12, "a view counts only its own elements"
