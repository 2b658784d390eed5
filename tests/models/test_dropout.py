"""Dropout is off in evaluation. In training, masks are drawn from the key of the party function, on
every engine.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import comity
from comity import models
from comity.core import Key, LearningTask, Params

SHAPE = (3, 16, 16)


@cache
def task_and_weights(name: str = "lg-cifar100") -> tuple[LearningTask, Params]:
    network = models.build(name, SHAPE, 10)
    return LearningTask(network, 10, network.cut), network.init(Key(0))


def samples(rows: int) -> Tensor:
    return torch.randn(rows, *SHAPE, generator=Key(1).generator())


def training_features(key: Key, name: str = "lg-cifar100", rows: int = 8) -> Tensor:
    """The representation in training mode."""
    task, theta = task_and_weights(name)
    with task.network.layer_stream(key):
        return task.features(theta, samples(rows), train=True)


def test_dropout_is_off_where_a_model_answers() -> None:
    task, theta = task_and_weights()
    features = task.features(theta, samples(8))
    assert torch.equal(features, task.features(theta, samples(8)))
    with task.network.layer_stream(Key(3)):
        assert torch.equal(features, task.features(theta, samples(8)))


def test_one_key_one_mask() -> None:
    assert torch.equal(training_features(Key(1)), training_features(Key(1)))
    assert not torch.equal(training_features(Key(1)), training_features(Key(2)))


def test_masks_do_not_repeat_within_a_party_function() -> None:
    task, theta = task_and_weights()
    with task.network.layer_stream(Key(1)):
        first, second = (task.features(theta, samples(8), train=True) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("name", "rate"), [("lg-cifar100", 0.6), ("lg-cifar100(drop=0.25)", 0.25)])
def test_dropout_keeps_the_mean(name: str, rate: float) -> None:
    """Spec 4.4: of the 128 values a share of 0.6 is zero, and the others are as much larger."""
    task, theta = task_and_weights(name)
    whole, part = task.features(theta, samples(256)), training_features(Key(1), name, 256)
    live = whole > 0
    nonzero = part[live] > 0
    assert 1 - nonzero.float().mean().item() == pytest.approx(rate, abs=0.02)
    assert torch.allclose(part[live][nonzero], whole[live][nonzero] / (1 - rate), rtol=1e-5)


@pytest.mark.parametrize("name", ["lg-cifar100", "lg-cifar10"])
def test_the_global_generator_is_left_alone(name: str) -> None:
    state = torch.random.get_rng_state()
    training_features(Key(1), name)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_stacks_without_dropout_do_not_touch_the_global_generator() -> None:
    state = torch.random.get_rng_state()
    with models.build("lg-cifar10", SHAPE, 10).layer_stream(Key(1)):
        assert torch.equal(torch.random.get_rng_state(), state)


def run(out: Path, engine: Any, name: str = "lg-cifar100") -> tuple[bytes, dict[str, Params]]:
    x, y = samples(60), torch.arange(60) % 10
    sizes = {"north": slice(0, 25), "east": slice(25, 38), "south": slice(38, 60)}
    fed = comity.Federation.from_arrays(
        {who: (x[rows], y[rows]) for who, rows in sizes.items()}, classes=10
    )
    more: dict[str, Any] = {"workers": 2} if engine == "process" else {}
    result = comity.run("fedavg", fed, model=name, rounds=2, lr=0.1, engine=engine, out=out, **more)
    return (result.folder / "metrics.csv").read_bytes(), {
        who: result.model(who).theta for who in sizes
    }


def test_processes_drop_what_the_loop_drops(tmp_path: Path) -> None:
    torch.manual_seed(1)
    metrics, weights = run(tmp_path / "loop", "loop")
    torch.manual_seed(2)  # what the global generator was before does not matter
    for number, engine in enumerate(("process", "loop")):
        others, theirs = run(tmp_path / str(number), engine)
        assert others == metrics
        assert all(
            torch.equal(theirs[who][k], value)
            for who, theta in weights.items()
            for k, value in theta.items()
        )
    _, gentle = run(tmp_path / "gentle", "loop", "lg-cifar100(drop=0.25)")
    assert not torch.equal(
        gentle["north"]["fc3.weight"], weights["north"]["fc3.weight"]
    )  # it did drop
