"""Nothing leaves a party uncounted: the ledger equals each method's closed form, and what is
private never crosses.
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
    "seldom-judged": {"eval_every": 3, "rounds": 4, "model": "mlp2(width=12)"},
}


class Wire:
    """Everything that went in and out of parties, and their states afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[tuple[CallId, Any]] = []
        self.replies: list[tuple[CallId, Any, Any]] = []
        function, evaluate = LoopEngine.run, LoopEngine.evaluate

        def worked(
            engine: LoopEngine,
            call: CallId,
            messages: Mapping[int, Any],
            sealed_messages: Mapping[Any, Sealed],
        ) -> Iterator[Any]:
            self.messages += [(call, message.content) for message in messages.values()] + [
                (call, sealed) for sealed in sealed_messages.values()
            ]
            for i, answer in function(engine, call, messages, sealed_messages):
                self.replies.append((call, answer.reply, engine.sites[i].mine))
                yield i, answer

        def evaluated(engine: LoopEngine, messages: Mapping[int, Any], look: Any) -> Iterator[Any]:
            call = CallId("evaluate", -1, -1, 0)
            self.messages += [(call, message.content) for message in messages.values()]
            for i, evaluation in evaluate(engine, messages, look):
                self.replies.append((call, evaluation, engine.sites[i].mine))
                yield i, evaluation

        monkeypatch.setattr(LoopEngine, "run", worked)
        monkeypatch.setattr(LoopEngine, "evaluate", evaluated)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(monkeypatch)


class Watched(NamedTuple):
    """A run, and everything that crossed the wire in it."""

    result: comity.Result
    wire: Wire


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Watched]:
    """A method's run with the usual settings, made once for all tests that look at it."""

    @cache
    def made(text: str) -> Watched:
        with pytest.MonkeyPatch.context() as patch:
            wire = Wire(patch)
            return Watched(run(text, tmp_path_factory.mktemp("watched") / "run"), wire)

    return made


def test_ledger_equals_the_closed_form(text: str, watched: Callable[[str], Watched]) -> None:
    assert_closed_forms(watched(text).result)


def test_ledger_equals_the_closed_form_when_half_take_part_and_keep_batchnorm(
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
        ("adcol", {"cut": "fc1", "disc_epochs": 0}),
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
def test_ledger_equals_the_closed_form_under_a_methods_own_settings(
    text: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    assert_closed_forms(run(text, tmp_path, **settings))


def modules() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU()), nn.Linear(
        9, 10
    )


@pytest.mark.parametrize("text", ["fedavg", "fedbn", "scaffold", "scaffold+dbe", "fedper+mr"])
def test_ledger_equals_the_closed_form_with_whole_number_buffers(text: str, tmp_path: Path) -> None:
    assert_closed_forms(run(text, tmp_path, model=modules()))


def test_fedavg_by_hand_with_whole_number_buffers(tmp_path: Path) -> None:
    """(64*9 + 9) + 2*9 + 2*9 + (9*10 + 10) floats and one int64: 4 * 721 + 8 bytes a model, four
    parties, both ways.
    """
    charged = by_round(run("fedavg", tmp_path, model=modules(), rounds=1))
    assert charged[1]["up"] == charged[1]["down"] == 4 * (4 * 721 + 8)


def test_rows_are_well_formed(text: str, watched: Callable[[str], Watched]) -> None:
    """Known names, known kinds, whole positive bytes, in the order of rounds; the summary adds them
    up.
    """
    result = watched(text).result
    names = set(ragged().names)
    works = {"introduce", "evaluate"} | {
        name for a in chain(result.job.algorithm) for name in dir(a)
    }
    assert (result.folder / "ledger.csv").read_text().startswith("round,call,src,dst,kind,bytes\n")
    rounds = [row.round for row in result.ledger]
    assert rounds == sorted(rounds)
    for row in result.ledger:
        assert row.kind in KINDS
        assert row.bytes > 0
        assert row.call in works
        assert (row.src in names) == (row.kind == "peer" or row.dst == "server")
        assert (row.dst in names) == (row.kind == "peer" or row.src == "server")
        if row.kind in ("up", "down"):
            assert (row.kind == "up") == (row.dst == "server")
    total: Counter[str] = Counter()
    for row in result.ledger:
        total[row.kind] += row.bytes
    said = result.summary["bytes"]
    assert {kind: said[kind] for kind in KINDS} == {kind: total[kind] for kind in KINDS}
    assert said["total"] == sum(total.values()) - total["eval"]


def test_setup_by_hand(tmp_path: Path) -> None:
    """Each party sends its name and one number, and gets two: north, south 5 letters, east, west 4."""
    charged = by_round(run("solo", tmp_path, rounds=1))
    assert charged[0]["setup"] == (5 + 4 + 5 + 4) + 4 * 4 + 4 * 8
    assert not charged[1]["setup"]


# --- what crosses


def names_in(tree: Any) -> set[str]:
    """All keys of all dicts in a message, parcels included."""
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
    """All tensors of a message or a state, with or without those in parcels."""
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
    """How many plain numbers a message holds, not counting the keys of dicts."""
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
    """Bytes of a message by its own reckoning."""
    return sum(t.nbytes for t in tensors_in(message, sealed)) + 4 * numbers_in(message, sealed)


@pytest.mark.sweep("params_only")
@pytest.mark.parametrize("bn", ["all", "params_only", "none"])
def test_kept_names_never_cross(text: str, bn: str, wire: Wire, tmp_path: Path) -> None:
    """Offsets, heads, BatchNorm: whatever a method or a policy keeps at home is in no message,
    evaluation included.
    """
    result = run(text, tmp_path, bn=bn)
    core, task = chain(result.job.algorithm)[-1], result.job.info.task
    home = {OFFSET}
    if isinstance(core, AveragesWeights):
        home |= core.private_names(task)
        expected = {"all": 0, "params_only": 10, "none": 20}[
            bn
        ]  # five BatchNorm layers with four tensors each
        assert len(home & task.norm_names) >= (
            expected if task.norm_names else 0
        )  # a private network has none
    assert wire.messages
    assert wire.replies
    for _, message, *_ in [*wire.messages, *wire.replies]:
        assert not names_in(message) & home


def test_personal_weights_and_data_do_not_cross_under_any_name(
    text: str, watched: Callable[[str], Watched]
) -> None:
    """No reply holds samples (but of methods that say so), and where models stay at home no reply
    holds their values.
    """
    result, wire = watched(text)
    shares, shape = chain(result.job.algorithm)[-1].traits.shares, result.job.info.shape
    if "samples" in result.job.algorithm.traits.leaves:
        assert any(
            tuple(t.shape[1:]) == shape for _, reply, _ in wire.replies for t in tensors_in(reply)
        )
        return
    for call, reply, state in wire.replies:
        sent = tensors_in(reply)
        assert not [t for t in sent if tuple(t.shape[1:]) == shape], f"{call.function} sent samples"
        if shares in ("nothing", "representations", "means"):
            own = [t for t in tensors_in(state) if t.numel() > 1]
            assert own
            assert not [t for t in sent for w in own if t.shape == w.shape and torch.equal(t, w)], (
                f"{call.function} sent weights"
            )


def test_offsets_exist_and_stay(wire: Wire, tmp_path: Path) -> None:
    """The test above looks for something that is there: each party has an offset of its own, and no
    tensor sent equals it.
    """
    result = run("fedavg+dbe", tmp_path)
    offsets = [result.model(name).theta[OFFSET] for name in ragged().names]
    assert all(o.abs().max() > 0 for o in offsets)
    assert not torch.equal(offsets[0], offsets[1])
    states = [state.host[OFFSET] for call, _, state in wire.replies if call.function == "local"]
    sent = [t for _, reply, _ in wire.replies for t in tensors_in(reply)] + [
        t for _, m in wire.messages for t in tensors_in(m)
    ]
    assert not [
        o
        for o in (*offsets, *states)
        for t in sent
        if o.any() and t.shape == o.shape and torch.equal(t, o)
    ]


def test_every_message_is_charged(text: str, watched: Callable[[str], Watched]) -> None:
    """Weigh tensors and numbers as they pass: the ledger has neither more nor less."""
    result, wire = watched(text)
    charged = by_round(result)
    passed: dict[int, Counter[str]] = {t: Counter() for t in charged}
    for call, message in wire.messages:
        if call.function != "evaluate":
            kind = "peer" if isinstance(message, Sealed) else "down"
            passed[call.round][kind] += weight(message)
    for call, reply, _ in wire.replies:
        if call.function != "evaluate":
            passed[call.round]["up"] += weight(reply, sealed=False)
    for t in charged:
        for kind in ("up", "down", "peer"):
            assert charged[t][kind] == passed[t][kind], f"{kind} of round {t}"


def test_peers_are_charged_once_on_their_edge(tmp_path: Path) -> None:
    """Four models around a ring a round, on four edges; no byte of them goes up or down, only who
    comes next to each.
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


def test_payload_by_hand() -> None:
    """Tensors by their bytes, 4 for a number, 1 for a truth value, the letters of a word; nothing
    for names and parcels.
    """
    message = {
        "x": torch.zeros(3, 2),
        "n": [7, 0.5],
        "k": torch.zeros(2, dtype=torch.int64),
        "ok": True,
        "word": "né",
    }
    assert payload(message) == 24 + 8 + 16 + 1 + 3
    assert payload({"parcel": seal(torch.zeros(1000), to=1), "none": None}) == 0
    assert payload(torch.zeros(100)[:3]) == 12, "a view does not weigh its base"
