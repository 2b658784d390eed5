"""The process engine equals the loop engine: equal tables, byte for byte, and equal weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from matrix import (
    BATCHNORM,
    GOSSIP,
    VARIANTS,
    compositions,
    methods,
    ragged,
    run,
    short,
    tables,
    weights,
    wrappers,
)
from sweeps import over_methods
from torch import nn

import comity
from comity.core import Params
from comity.engines.loop import LoopEngine

Outcome = tuple[dict[str, bytes], dict[str, Params], dict[str, Any]]


def outcome(result: comity.Result) -> Outcome:
    """Tables, weights, and the summary, with the steps of parties and server."""
    summary = {k: v for k, v in result.summary.items() if k != "seconds"}
    return tables(result.folder), weights(result), summary


@cache
def on_loop(text: str, settings: tuple[tuple[str, Any], ...] = ()) -> Outcome:
    """Outcome on the loop engine, the reference."""
    with TemporaryDirectory() as folder:
        return outcome(run(text, Path(folder) / "run", **dict(settings)))


def assert_equal(result: comity.Result, expected: Outcome) -> None:
    actual = outcome(result)
    assert actual[2] == expected[2]
    for name, blob in actual[0].items():
        assert blob == expected[0][name], f"{name} differs"
    for party, theta in actual[1].items():
        assert theta.keys() == expected[1][party].keys()
        for name, value in theta.items():
            assert torch.equal(value, expected[1][party][name]), f"{name} of {party} differs"


def test_matrix_contains_every_algorithm() -> None:
    texts = compositions()
    assert set(texts) >= {
        "fedavg+dbe", "scaffold+dbe", "fedprox+dbe", "fedavg+mr", "scaffold+mr", "fedprox+mr", "fedper+mr", "fedavg+prbm",
        "scaffold+prbm", "fedprox+prbm", *methods(),
    }  # fmt: skip
    for wrapper in wrappers():
        assert any(text.endswith(f"+{wrapper}") for text in texts), f"no composition with {wrapper}"


@pytest.mark.parametrize(
    "text", over_methods([*compositions(), GOSSIP], quick=("scaffold+dbe",)), ids=short
)
def test_process_equals_loop(text: str, tmp_path: Path) -> None:
    result = run(text, tmp_path, engine="process", workers=2)
    assert result.job.experiment.engine == "process"
    assert_equal(result, on_loop(text))


@pytest.mark.sweep("relay-p2p-3", "scaffold+dbe-1", "adcol-3")
@pytest.mark.parametrize("workers", [1, 3])
def test_process_equals_loop_with_any_number_of_workers(
    text: str, workers: int, tmp_path: Path
) -> None:
    result = run(text, tmp_path, engine="process", workers=workers)
    assert result.job.experiment.workers == workers
    assert_equal(result, on_loop(text))


@pytest.mark.sweep("scaffold+dbe", "relay-p2p", "adcol")
def test_process_equals_loop_when_half_take_part(text: str, tmp_path: Path) -> None:
    half = {"participation": 0.5, "rounds": 3}
    assert_equal(
        run(text, tmp_path, engine="process", workers=3, **half), on_loop(text, tuple(half.items()))
    )


@pytest.mark.long
@pytest.mark.parametrize("text", VARIANTS)
def test_process_equals_loop_with_method_variants(text: str, tmp_path: Path) -> None:
    settings = VARIANTS[text] | {"rounds": 3}
    assert_equal(
        run(text, tmp_path, engine="process", workers=2, **settings),
        on_loop(text, tuple(settings.items())),
    )


@pytest.mark.sweep("scaffold+dbe")
@pytest.mark.parametrize("bn", ["params_only", "none"])
@pytest.mark.parametrize("text", ["fedavg", "scaffold+dbe"])
def test_process_equals_loop_under_other_batchnorm_policies(
    text: str, bn: str, tmp_path: Path
) -> None:
    assert_equal(
        run(text, tmp_path, engine="process", workers=2, bn=bn), on_loop(text, (("bn", bn),))
    )


@pytest.mark.parametrize("text", ["fedavg+dbe", "adcol"])
def test_process_equals_loop_on_mlp2(text: str, tmp_path: Path) -> None:
    plain = {"model": "mlp2", "optimizer": "sgd(momentum=0.9,decay=1e-4)"}
    assert_equal(
        run(text, tmp_path, engine="process", workers=2, **plain),
        on_loop(text, tuple(plain.items())),
    )


def test_process_equals_loop_with_different_architectures(tmp_path: Path) -> None:
    """ADCOL needs equal representation widths: fc2 of the CNN and east's MLP both have width 31."""
    party_settings = {
        "party": {
            "east": {"model": "mlp2(width=31)", "epochs": 2},
            "west": {"lr": 0.01, "batch": 5},
        }
    }
    loop_run = run("adcol", tmp_path / "loop", **party_settings)
    assert set(loop_run.model("east").theta) != set(loop_run.model("north").theta)
    assert_equal(
        run("adcol", tmp_path / "process", engine="process", workers=2, **party_settings),
        outcome(loop_run),
    )


@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
def test_process_equals_loop_with_user_modules(text: str, tmp_path: Path) -> None:
    """BatchNorm of user modules has an integer buffer that counts batches."""
    pair = (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU()),
        nn.Linear(9, 10),
    )
    loop_run = run(text, tmp_path / "loop", model=pair)
    process_run = run(text, tmp_path / "process", model=pair, engine="process", workers=3)
    assert_equal(process_run, outcome(loop_run))


def test_user_dropout_draws_from_keys(tmp_path: Path) -> None:
    """No draw comes from torch's global generator, so its state does not change a run."""
    pair = (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(30, 10),
    )
    torch.manual_seed(1)
    first = run("fedavg", tmp_path / "first", model=pair)
    torch.manual_seed(2)
    assert_equal(run("fedavg", tmp_path / "second", model=pair), outcome(first))
    process_run = run("fedavg", tmp_path / "process", model=pair, engine="process", workers=2)
    assert_equal(process_run, outcome(first))


@pytest.mark.parametrize("text", ["fedavg", "adcol"])
def test_repeated_run_is_equal(text: str, tmp_path: Path) -> None:
    """No state is kept between runs, and torch's global generator has no effect."""
    torch.manual_seed(12345)
    assert_equal(run(text, tmp_path), on_loop(text))


@pytest.mark.parametrize("text", ["fedavg", "scaffold+dbe"])
def test_different_seeds_give_different_runs(text: str, tmp_path: Path) -> None:
    result = run(text, tmp_path, seed=1)
    expected = on_loop(text)
    assert tables(result.folder)["metrics.csv"] != expected[0]["metrics.csv"]
    assert not torch.equal(
        weights(result)["north"]["fc3.weight"], expected[1]["north"]["fc3.weight"]
    )


def test_order_of_replies_does_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replies that arrive in reverse order give equal bits: they are reduced in party order."""
    function, evaluate = LoopEngine.run, LoopEngine.evaluate
    reply_orders: list[list[int]] = []

    def run_in_reverse(
        engine: LoopEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        replies = list(function(engine, call, dict(reversed(messages.items())), sealed_messages))
        reply_orders.append([i for i, _ in replies])
        return iter(replies)

    def evaluate_in_reverse(engine: LoopEngine, messages: Any, request: Any) -> Iterator[Any]:
        return evaluate(engine, dict(reversed(messages.items())), request)

    expected = {
        text: on_loop(text) for text in ("fedavg", "scaffold", "adcol", "fedavg+dbe", "centralized")
    }
    monkeypatch.setattr(LoopEngine, "run", run_in_reverse)
    monkeypatch.setattr(LoopEngine, "evaluate", evaluate_in_reverse)
    for text, expected_outcome in expected.items():
        assert_equal(run(text, tmp_path / text), expected_outcome)
    assert [3, 2, 1, 0] in reply_orders


def test_federation_has_different_sizes_and_batchnorm() -> None:
    """The properties of the test federation that make these tests meaningful."""
    assert sorted(ragged().sizes) != ragged().sizes
    job = comity.run("solo", ragged(), model=BATCHNORM, rounds=1, engine="loop").job
    assert job.info.task.norm_names
