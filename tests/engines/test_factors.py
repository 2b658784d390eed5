"""Transformers, whole and of low rank, on every engine: the same bits on processes, close when
stacked, exact when resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import ragged, tables, weights

import comity
from comity.core import Key
from comity.runs import checkpoint
from comity.runs.run_warnings import warning_texts
from comity.runs.server_run import Quiet

WHOLE = "vit(patch=4,width=8,heads=2)"
LOW = "vit(patch=4,width=8,heads=2,rank=2,adapt=all)"
WORDS = "transformer(vocabulary=40,width=8,heads=2,rank=2)"
MODELS = (WHOLE, LOW, WORDS)
METHODS = ("fedavg", "fedavg+dbe")
USUAL: dict[str, Any] = {"rounds": 2, "lr": 0.1, "batch": 10}


@cache
def texts() -> comity.Federation:
    """Four ragged parties with rows of words, some of them short."""
    draw = Key(2).generator()
    parties = {}
    for name, size in (("north", 41), ("east", 23), ("south", 34), ("west", 15)):
        x = torch.randint(1, 40, (size, 12), generator=draw).float()
        x[::3, 7:] = 0
        parties[name] = (x, (x[:, 0] % 3).long())
    return comity.Federation.from_arrays(parties, classes=3)


def run(text: str, model: str, out: Path, **settings: Any) -> comity.Result:
    data = texts() if model == WORDS else ragged()
    return comity.run(text, data, model=model, out=out, **USUAL | {"engine": "loop"} | settings)


@pytest.fixture(scope="module")
def on_loop(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], comity.Result]:
    """The plainest engine says what is right, once for all that ask."""

    @cache
    def made(text: str, model: str) -> comity.Result:
        return run(text, model, tmp_path_factory.mktemp("loop") / "run")

    return made


def assert_equal(one: comity.Result, other: comity.Result) -> None:
    assert tables(one.folder) == tables(other.folder)
    for party, theta in weights(one).items():
        for name, value in theta.items():
            assert torch.equal(value, weights(other)[party][name]), f"{name} of {party}"


@pytest.mark.sweep("rank=2")
@pytest.mark.parametrize("text", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_process_equals_loop(
    model: str, text: str, on_loop: Callable[[str, str], comity.Result], tmp_path: Path
) -> None:
    assert_equal(run(text, model, tmp_path, engine="process", workers=2), on_loop(text, model))


@pytest.mark.sweep("rank=2")
@pytest.mark.parametrize("text", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_stacked_stays_close(
    model: str, text: str, on_loop: Callable[[str, str], comity.Result], tmp_path: Path
) -> None:
    one, both = on_loop(text, model), run(text, model, tmp_path, engine="stacked", workers=1)
    assert warning_texts(both.summary, "during") == []
    for party, theta in weights(one).items():
        for name, value in theta.items():
            torch.testing.assert_close(
                weights(both)[party][name], value, rtol=1e-3, atol=1e-4, msg=f"{name} of {party}"
            )


@pytest.mark.parametrize("optimizer", ["sgd", "sgd(momentum=0.9)", "adam"])
def test_stacked_stays_close_whatever_the_optimizer(optimizer: str, tmp_path: Path) -> None:
    how = {"optimizer": optimizer, "lr": 0.01, "rounds": 1}
    one, both = (
        run("fedavg", LOW, tmp_path / e, engine=e, workers=1, **how) for e in ("loop", "stacked")
    )
    for party, theta in weights(one).items():
        for name, value in theta.items():
            torch.testing.assert_close(
                weights(both)[party][name], value, rtol=1e-3, atol=1e-4, msg=f"{name} of {party}"
            )


class Stop(Quiet):
    """Ctrl-C after a round."""

    def round(self, t: int, figure: float | None, ledger: Any) -> None:
        if t == 1:
            raise KeyboardInterrupt


@pytest.mark.sweep("rank=2")
@pytest.mark.parametrize("model", MODELS)
def test_resumed_is_straight(
    model: str,
    on_loop: Callable[[str, str], comity.Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    straight = on_loop("fedavg+dbe", model)
    with pytest.raises(KeyboardInterrupt):
        run("fedavg+dbe", model, tmp_path / "stopped", progress=Stop())
    assert_equal(run("fedavg+dbe", model, tmp_path / "stopped", resume=True), straight)


@pytest.mark.parametrize("model", [LOW, WORDS])
def test_records_can_be_protected(model: str, tmp_path: Path) -> None:
    result = run("fedavg+dp(noise=1)", model, tmp_path, rounds=1)
    assert result.summary["privacy"]["epsilon"] < float("inf")
