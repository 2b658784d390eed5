"""`precision=bf16`: passes within training steps compute in bfloat16, everything else in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import compositions, ragged, run, short, tables, weights
from plain import Trainer, cross_entropy, first, stream
from sweeps import over_methods
from torch import Tensor

from comity.base.record import leaves
from comity.core import Batch, Params, UsageError
from comity.engines.versions import PartyState
from comity.runs import build, checkpoint, config
from comity.runs.build import prepare
from comity.runs.checkpoint import Checkpoints
from comity.runs.server_run import Quiet

BF16: dict[str, Any] = {"precision": "bf16"}
MLP = {"model": "mlp2(width=12)", "rounds": 3}


def in_autocast(theta: Params, batch: Batch) -> Tensor:
    """The default loss as torch's documentation computes it in mixed precision."""
    with torch.autocast("cpu", torch.bfloat16):
        return cross_entropy(theta, batch)


@pytest.mark.parametrize(
    ("settings", "make"),
    [
        ({"lr": 0.05}, lambda params: torch.optim.SGD(params, lr=0.05)),
        (
            {"lr": 0.05, "optimizer": "sgd(momentum=0.9)"},
            lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        ),
        ({"lr": 0.01, "optimizer": "adam"}, lambda params: torch.optim.Adam(params, lr=0.01)),
    ],
)
def test_steps_are_those_of_torch_in_mixed_precision(
    settings: dict[str, Any], make: Any, tmp_path: Path
) -> None:
    """If autocast kept its rounded copies of the weights from step to step, the later steps would
    use the first weights.
    """
    result = run("solo", tmp_path, epochs=3, **BF16 | MLP | settings | {"rounds": 1})
    trainer = Trainer(first(result), make)
    expected = trainer.train(stream(result, 0, 1, "local"), in_autocast)
    exact = Trainer(first(result), make).train(stream(result, 0, 1, "local"))
    actual = result.model("north").theta
    for name, value in expected.items():
        moved = (exact[name] - first(result)[name]).norm()
        assert (actual[name] - value).norm() < 0.05 * moved, name
    assert not torch.equal(actual["fc1.weight"], exact["fc1.weight"])


@pytest.mark.parametrize("model", ["mlp2(width=12)", "lenet5(width=8)"])
def test_results_differ_from_float32(model: str, tmp_path: Path) -> None:
    low, full = (
        run("fedavg", tmp_path / precision, model=model, precision=precision)
        for precision in ("bf16", "float32")
    )
    differences = [
        (weights(low)["north"][name] - value).abs().max()
        for name, value in weights(full)["north"].items()
    ]
    assert 0 < max(differences) < 0.1


@pytest.mark.parametrize(
    "text", over_methods([t for t in compositions() if "dp" not in t]), ids=short
)
def test_loop_and_process_have_equal_bits(text: str, tmp_path: Path) -> None:
    on_loop, on_process = (
        run(text, tmp_path / engine, engine=engine, **BF16, **kinds)
        for engine, kinds in (("loop", {}), ("process", {"workers": 2}))
    )
    assert tables(on_loop.folder) == tables(on_process.folder)
    for party, theta in weights(on_loop).items():
        for name, value in theta.items():
            assert value.dtype is not torch.bfloat16
            assert torch.equal(value, weights(on_process)[party][name])


def test_weights_and_optimizer_states_are_float32(tmp_path: Path) -> None:
    result = run("solo", tmp_path, optimizer="adam", opt_state="keep", lr=0.01, **BF16 | MLP)
    checkpoints = Checkpoints(result.folder / "checkpoints")
    checkpoints.load()
    state = checkpoints.party_state(0)
    assert isinstance(state, PartyState)
    tensors = [leaf for leaf in leaves(state) if isinstance(leaf, Tensor)]
    assert len(tensors) >= 12  # moments of six tensors
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


def test_evaluation_is_in_float32(tmp_path: Path) -> None:
    """The loss of an evaluation is that of the saved weights in float32."""
    result = run("solo", tmp_path, **BF16 | MLP)
    test = ragged().parties["north"].test
    theta = result.model("north").theta
    batch = Batch(test.x, test.y, torch.arange(len(test)), 0, {})
    expected = float(cross_entropy(theta, batch))
    rows = [line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines()]
    header = rows[0]
    last = [
        row
        for row in rows
        if row[header.index("party")] == "north" and {"test", "loss"} <= set(row)
    ][-1]
    assert float(last[header.index("value")]) == pytest.approx(expected, rel=1e-5)


def test_an_interrupted_run_resumes_with_equal_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("scaffold", tmp_path / "whole", **BF16 | MLP)

    class Stop(Quiet):
        def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
            if t == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run("scaffold", tmp_path / "stopped", progress=Stop(), **BF16 | MLP)
    resumed = run("scaffold", tmp_path / "stopped", resume=True, **BF16 | MLP)
    assert tables(resumed.folder) == tables(whole.folder)
    assert resumed.job.experiment.precision == "bf16"


def test_precision_is_in_the_settings_and_the_summary(tmp_path: Path) -> None:
    run("fedavg", tmp_path / "low", **BF16 | MLP)
    run("fedavg", tmp_path / "full", **MLP)
    assert config.read(tmp_path / "low" / "config.toml").precision == "bf16"
    assert json.loads((tmp_path / "low" / "summary.json").read_text())["precision"] == "bf16"
    assert "precision" not in json.loads((tmp_path / "full" / "summary.json").read_text())


def test_settings_of_earlier_versions_mean_float32() -> None:
    assert config.experiment({}).precision == "float32"
    assert config.experiment({}).training().precision == "float32"


def test_runs_that_differ_in_precision_have_different_noise() -> None:
    """Equal noise on different weights would reveal their difference."""
    roots = [
        prepare(config.experiment({"precision": p}), ragged()).root for p in ("float32", "bf16")
    ]
    assert roots[0] != roots[1]


def test_refusals() -> None:
    with pytest.raises(UsageError, match="dp is not supported with precision=bf16"):
        prepare(config.experiment({"algorithm": "fedavg+dp(noise=1)", **BF16}), ragged())
    with pytest.raises(UsageError, match="precision=bf16 is not supported on engine stacked"):
        config.experiment({"engine": "stacked", **BF16})
    with pytest.raises(UsageError, match="precision must be one of 'float32' or 'bf16', not"):
        config.experiment({"precision": "fp16"})


def test_auto_picks_an_engine_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "cores", lambda: 1)
    settings = {"model": "mlp2", **BF16}
    assert (
        prepare(config.experiment(settings | {"precision": "float32"}), ragged()).experiment.engine
        == "stacked"
    )
    job = prepare(config.experiment(settings), ragged())
    assert job.experiment.engine == "loop"
    assert any("engine stacked" in text and "loop is used" in text for text in job.warnings())


def test_a_processor_without_the_instructions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "computes_bfloat16", lambda: False)
    job = prepare(config.experiment({"engine": "loop", **BF16}), ragged())
    assert any("no instructions for bfloat16" in text for text in job.warnings())
    full = prepare(config.experiment({"engine": "loop"}), ragged())
    assert not any("bfloat16" in text for text in full.warnings())


def test_steps_of_a_methods_own_stay_in_float32(tmp_path: Path) -> None:
    low = run("pfedme", tmp_path / "low", **BF16 | MLP)
    full = run("pfedme", tmp_path / "full", **MLP)
    assert torch.equal(weights(low)["north"]["fc1.weight"], weights(full)["north"]["fc1.weight"])
    assert any("stay in float32" in str(w) for w in low.summary["warnings"])
