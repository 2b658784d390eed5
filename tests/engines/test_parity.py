"""One algorithm, every place: equal tables byte for byte and equal weights, wherever the parties
live.
"""

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
    """Tables, weights, and the summary (steps, the server's too)."""
    summary = {k: v for k, v in result.summary.items() if k != "seconds"}
    return tables(result.folder), weights(result), summary


@cache
def on_loop(text: str, settings: tuple[tuple[str, Any], ...] = ()) -> Outcome:
    """The plainest engine says what is right."""
    with TemporaryDirectory() as folder:
        return outcome(run(text, Path(folder) / "run", **dict(settings)))


def assert_equal(result: comity.Result, expected: Outcome) -> None:
    ours = outcome(result)
    assert ours[2] == expected[2]
    for name, blob in ours[0].items():
        assert blob == expected[0][name], f"{name} differs"
    for party, theta in ours[1].items():
        assert theta.keys() == expected[1][party].keys()
        for name, value in theta.items():
            assert torch.equal(value, expected[1][party][name]), f"{name} of {party} differs"


def test_the_matrix_holds_every_algorithm() -> None:
    made = compositions()
    assert set(made) >= {
        "fedavg+dbe", "scaffold+dbe", "fedprox+dbe", "fedavg+mr", "scaffold+mr", "fedprox+mr", "fedper+mr", "fedavg+prbm",
        "scaffold+prbm", "fedprox+prbm", *methods(),
    }  # fmt: skip
    for wrapper in wrappers():
        assert any(text.endswith(f"+{wrapper}") for text in made), f"nothing goes into {wrapper}"


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
def test_process_equals_loop_under_a_methods_variants(text: str, tmp_path: Path) -> None:
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


def test_process_equals_loop_with_an_architecture_of_its_own(tmp_path: Path) -> None:
    """ADCOL asks for one width only: the CNN's fc2 is 31 wide at this scale, and so is east's MLP."""
    own = {
        "party": {
            "east": {"model": "mlp2(width=31)", "epochs": 2},
            "west": {"lr": 0.01, "batch": 5},
        }
    }
    alone = run("adcol", tmp_path / "loop", **own)
    assert set(alone.model("east").theta) != set(alone.model("north").theta)
    assert_equal(
        run("adcol", tmp_path / "process", engine="process", workers=2, **own), outcome(alone)
    )


@pytest.mark.parametrize("text", ["fedavg", "scaffold"])
def test_process_equals_loop_with_a_users_modules(text: str, tmp_path: Path) -> None:
    """Their BatchNorm counts batches in whole numbers."""
    pair = (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU()),
        nn.Linear(9, 10),
    )
    alone = run(text, tmp_path / "loop", model=pair)
    together = run(text, tmp_path / "process", model=pair, engine="process", workers=3)
    assert_equal(together, outcome(alone))


def test_a_users_dropout_draws_from_keys_too(tmp_path: Path) -> None:
    """Promise 5: no draw comes from a global generator, so equal runs are equal wherever the global
    stream stands.
    """
    pair = (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(30, 10),
    )
    torch.manual_seed(1)
    first = run("fedavg", tmp_path / "first", model=pair)
    torch.manual_seed(2)
    assert_equal(run("fedavg", tmp_path / "second", model=pair), outcome(first))
    together = run("fedavg", tmp_path / "process", model=pair, engine="process", workers=2)
    assert_equal(together, outcome(first))


@pytest.mark.parametrize("text", ["fedavg", "adcol"])
def test_a_second_run_is_the_first(text: str, tmp_path: Path) -> None:
    """Nothing is remembered between runs, and the global random stream plays no part."""
    torch.manual_seed(12345)
    assert_equal(run(text, tmp_path), on_loop(text))


@pytest.mark.parametrize("text", ["fedavg", "scaffold+dbe"])
def test_another_seed_is_another_run(text: str, tmp_path: Path) -> None:
    result = run(text, tmp_path, seed=1)
    expected = on_loop(text)
    assert tables(result.folder)["metrics.csv"] != expected[0]["metrics.csv"]
    assert not torch.equal(
        weights(result)["north"]["fc3.weight"], expected[1]["north"]["fc3.weight"]
    )


def test_the_order_of_replies_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Parties that answer in reverse give the same bits: replies are reduced in party order."""
    function, evaluate = LoopEngine.run, LoopEngine.evaluate
    seen: list[list[int]] = []

    def worked(engine: LoopEngine, call: Any, messages: Any, sealed_messages: Any) -> Iterator[Any]:
        answers = list(function(engine, call, dict(reversed(messages.items())), sealed_messages))
        seen.append([i for i, _ in answers])
        return iter(answers)

    def evaluated(engine: LoopEngine, messages: Any, look: Any) -> Iterator[Any]:
        return evaluate(engine, dict(reversed(messages.items())), look)

    expected = {
        text: on_loop(text) for text in ("fedavg", "scaffold", "adcol", "fedavg+dbe", "centralized")
    }
    monkeypatch.setattr(LoopEngine, "run", worked)
    monkeypatch.setattr(LoopEngine, "evaluate", evaluated)
    for text, right in expected.items():
        assert_equal(run(text, tmp_path / text), right)
    assert [3, 2, 1, 0] in seen


def test_the_federation_is_ragged_and_has_batchnorm() -> None:
    """What makes this matrix worth running."""
    assert sorted(ragged().sizes) != ragged().sizes
    job = comity.run("solo", ragged(), model=BATCHNORM, rounds=1, engine="loop").job
    assert job.info.task.norm_names
