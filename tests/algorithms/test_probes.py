"""Methods that use the core in unusual ways.

They are a custom step (pFedMe), N models mixed at each party (APPLE), sealed messages between
parties (Fed-SPS) and different architectures (relay). `tests/engines/` shows for all methods that
engines agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import comity
from comity.base.record import leaves, payload, unseal
from comity.core import Sealed, seal
from comity.engines.loop import LoopEngine

METHODS = ("pfedme", "apple", "fed-sps")
TABLES = ("metrics.csv", "ledger.csv", "outcomes.csv")
SETTINGS: dict[str, Any] = {"rounds": 2, "batch": 32, "lr": 0.05, "model": "fedbn-cnn(scale=0.06)"}


@pytest.fixture(scope="module")
def federation() -> comity.Federation:
    return comity.load("digits").partition("quantity(beta=1)", parties=4, seed=1)


@pytest.fixture(scope="module")
def few() -> comity.Federation:
    """The same with few samples, for tests that need no learning."""
    return comity.load("digits").partition("quantity(beta=1)|keep(fraction=0.2)", parties=4, seed=1)


def tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in TABLES]


@pytest.mark.parametrize("method", METHODS)
class TestProbe:
    def test_it_learns(self, method, federation):
        result = comity.run(
            method, federation, engine="loop", **SETTINGS | {"rounds": 6, "model": "mlp2"}
        )
        assert result.summary["accuracy"]["mean"] > 0.4  # chance is 0.1

    def test_messages_and_sealed_messages_are_not_written_to(self, method, few, monkeypatch):
        function = LoopEngine.run
        calls = []

        def checking_run(self, call, messages, sealed_messages):
            message_leaves = [
                *leaves(list(messages.values())),
                *leaves([unseal(p) for p in sealed_messages.values()]),
            ]
            before = [t.clone() for t in message_leaves if isinstance(t, torch.Tensor)]
            yield from function(self, call, messages, sealed_messages)
            after = [t for t in message_leaves if isinstance(t, torch.Tensor)]
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            calls.append(call.function)

        monkeypatch.setattr(LoopEngine, "run", checking_run)
        comity.run(method, few, engine="loop", **SETTINGS)
        assert calls.count("local") == SETTINGS["rounds"]


def test_relay_trains_different_architectures_together(federation, tmp_path):
    party = {"p1": {"model": "mlp2(width=84)"}, "p2": {"model": "mlp2(width=84)"}}
    settings = SETTINGS | {
        "model": "lenet5",
        "party": party,
        "rounds": 6,
        "optimizer": "adam",
        "lr": 0.003,
    }
    result = comity.run("relay", federation, out=tmp_path / "run", engine="loop", **settings)
    assert result.model("p0").task.network.name == "lenet5"
    assert result.model("p1").task.network.name == "mlp2"
    assert result.model("p1").theta.keys() == result.model("p2").theta.keys()
    result2 = comity.run(
        "relay", federation, out=tmp_path / "two", engine="process", workers=2, **settings
    )
    assert tables(tmp_path / "run") == tables(tmp_path / "two")
    assert result2.summary["accuracy"]["mean"] > 0.4


@pytest.mark.parametrize(("method", "word"), [("fedavg", "architecture"), ("adcol", "width")])
def test_what_does_not_fit_is_refused_before_round_1(method, word, federation):
    with pytest.raises(comity.UsageError, match=word):
        comity.run(method, federation, model="lenet5", party={"p1": {"model": "mlp2"}})


def test_a_sealed_message_adds_no_bytes_to_the_reply_that_carries_it():
    sealed = seal({"w": torch.zeros(10)}, to=1)
    assert isinstance(sealed, Sealed)
    assert payload([sealed, torch.zeros(2)]) == 8
