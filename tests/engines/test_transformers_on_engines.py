"""Transformers, with full and low-rank weights, on every engine: equal bits on processes, equal up
to rounding when stacked, and equal bits when resumed.
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

FULL_RANK = "vit(patch=4,width=8,heads=2)"
LOW_RANK = "vit(patch=4,width=8,heads=2,rank=2,adapt=all)"
TEXT_MODEL = "transformer(vocabulary=40,width=8,heads=2,rank=2)"
MODELS = (FULL_RANK, LOW_RANK, TEXT_MODEL)
METHODS = ("fedavg", "fedavg+dbe")
USUAL: dict[str, Any] = {"rounds": 2, "lr": 0.1, "batch": 10}


@cache
def texts() -> comity.Federation:
    """Four parties of different sizes whose samples are token sequences, some of them padded."""
    draw = Key(2).generator()
    parties = {}
    for name, size in (("north", 41), ("east", 23), ("south", 34), ("west", 15)):
        x = torch.randint(1, 40, (size, 12), generator=draw).float()
        x[::3, 7:] = 0
        parties[name] = (x, (x[:, 0] % 3).long())
    return comity.Federation.from_arrays(parties, classes=3)


def run(text: str, model: str, out: Path, **settings: Any) -> comity.Result:
    data = texts() if model == TEXT_MODEL else ragged()
    return comity.run(text, data, model=model, out=out, **USUAL | {"engine": "loop"} | settings)


@pytest.fixture(scope="module")
def on_loop(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], comity.Result]:
    """Runs on the loop engine, the reference; each method and model is run once."""

    @cache
    def run_once(text: str, model: str) -> comity.Result:
        return run(text, model, tmp_path_factory.mktemp("loop") / "run")

    return run_once


def assert_equal(result: comity.Result, expected: comity.Result) -> None:
    assert tables(result.folder) == tables(expected.folder)
    for party, theta in weights(result).items():
        for name, value in theta.items():
            assert torch.equal(value, weights(expected)[party][name]), f"{name} of {party}"


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
def test_stacked_is_close_to_loop(
    model: str, text: str, on_loop: Callable[[str, str], comity.Result], tmp_path: Path
) -> None:
    loop_run, stacked_run = (
        on_loop(text, model),
        run(text, model, tmp_path, engine="stacked", workers=1),
    )
    assert warning_texts(stacked_run.summary, "during") == []
    for party, theta in weights(loop_run).items():
        for name, value in theta.items():
            torch.testing.assert_close(
                weights(stacked_run)[party][name],
                value,
                rtol=1e-3,
                atol=1e-4,
                msg=f"{name} of {party}",
            )


@pytest.mark.parametrize("optimizer", ["sgd", "sgd(momentum=0.9)", "adam"])
def test_stacked_is_close_to_loop_with_every_optimizer(optimizer: str, tmp_path: Path) -> None:
    how = {"optimizer": optimizer, "lr": 0.01, "rounds": 1}
    loop_run, stacked_run = (
        run("fedavg", LOW_RANK, tmp_path / e, engine=e, workers=1, **how)
        for e in ("loop", "stacked")
    )
    for party, theta in weights(loop_run).items():
        for name, value in theta.items():
            torch.testing.assert_close(
                weights(stacked_run)[party][name],
                value,
                rtol=1e-3,
                atol=1e-4,
                msg=f"{name} of {party}",
            )


class Stop(Quiet):
    """Interrupts a run after round 1."""

    def round(self, t: int, figure: float | None, ledger: Any) -> None:
        if t == 1:
            raise KeyboardInterrupt


@pytest.mark.sweep("rank=2")
@pytest.mark.parametrize("model", MODELS)
def test_resumed_run_equals_uninterrupted_run(
    model: str,
    on_loop: Callable[[str, str], comity.Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    uninterrupted_run = on_loop("fedavg+dbe", model)
    with pytest.raises(KeyboardInterrupt):
        run("fedavg+dbe", model, tmp_path / "stopped", progress=Stop())
    assert_equal(run("fedavg+dbe", model, tmp_path / "stopped", resume=True), uninterrupted_run)


@pytest.mark.parametrize("model", [LOW_RANK, TEXT_MODEL])
def test_dp_sgd_on_transformers(model: str, tmp_path: Path) -> None:
    result = run("fedavg+dp(noise=1)", model, tmp_path, rounds=1)
    assert result.summary["privacy"]["epsilon"] < float("inf")
