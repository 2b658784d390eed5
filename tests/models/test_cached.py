"""Cached representations: with a frozen encoder, a party's representations are computed once, and
nothing else changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from frozen_models import SHARE_THE_ENCODER, model
from matrix import TUNED, compositions, ragged, run, short, tables, weights
from sweeps import over_methods
from torch import Tensor, nn

from comity import algorithms
from comity.models.represented import Represented
from comity.runs import config
from comity.runs.build import prepare
from comity.runs.represented_parties import uses_raw_inputs

RAW = ("affine-robust", "centralized", "fed-sps", "fedmeta")
"""Methods that change or send samples."""


class Counting(nn.Sequential):
    """An encoder that counts the samples that it sees."""

    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).seen += len(x)
        return super().forward(x)


def counting() -> tuple[nn.Module, nn.Module]:
    encoder, head = model("all")
    Counting.seen = 0
    return Counting(*encoder).requires_grad_(False), head


@pytest.mark.parametrize("text", over_methods(compositions()), ids=short)
def test_every_method_agrees_up_to_rounding(text: str, tmp_path: Path) -> None:
    if text.startswith(SHARE_THE_ENCODER):
        pytest.skip("it shares nothing if the encoder is frozen")
    text = "fedmeta(first_order=true)" if text == "fedmeta" else text
    assert uses_raw_inputs(algorithms.compose(text)) == text.startswith(RAW)
    cached, whole = (
        run(text, tmp_path / str(cache), model=model("all"), cache=cache, rounds=2)
        for cache in (True, False)
    )
    for name, theta in weights(whole).items():
        torch.testing.assert_close(weights(cached)[name], theta, rtol=1e-3, atol=1e-4)
    assert [tuple(row) for row in cached.ledger] == [tuple(row) for row in whole.ledger]


@pytest.mark.parametrize("text", ["fedavg", "relay", "fedproto", "adcol(hidden=8)"])
def test_processes_and_a_loop_have_equal_bits(text: str, tmp_path: Path) -> None:
    alone = run(text, tmp_path / "loop", model=model("all"))
    other = run(text, tmp_path / "process", model=model("all"), engine="process", workers=2)
    assert tables(alone.folder) == tables(other.folder)


def test_the_encoder_sees_each_sample_once(tmp_path: Path) -> None:
    samples = sum(
        len(part)
        for data in ragged().parties.values()
        for part in (data.train, data.validation, data.test)
    )
    run("fedavg", tmp_path / "cached", model=counting(), rounds=3)
    cached = Counting.seen
    run("fedavg", tmp_path / "whole", model=counting(), rounds=3, cache=False)
    assert cached <= samples + 8  # and zeros to find shapes with
    assert Counting.seen > 3 * samples


def test_augmented_samples_are_represented_anew(tmp_path: Path) -> None:
    result = run("fedavg", tmp_path, model=model("all"), augment="flip", rounds=1)
    assert not any(isinstance(p.task.network, Represented) for p in result.job.trained_parties())


def test_an_encoder_that_is_trained_in_part_is_not_cached(tmp_path: Path) -> None:
    job = prepare(config.experiment({"engine": "loop"}), ragged(), model("part"))
    assert job.trained_parties() == job.parties


def test_a_users_method_may_look_at_samples() -> None:
    assert uses_raw_inputs(algorithms.compose(TUNED))
    assert uses_raw_inputs(algorithms.compose("adcol(objective=simsiam)"))


def test_models_of_the_result_take_samples(tmp_path: Path) -> None:
    result = run("fedavg", tmp_path, model=model("all"), rounds=1)
    test = ragged().parties["south"].test
    accuracy = float((result.model("south").predict(test) == test.y).float().mean())
    assert result.summary["accuracy"]["per_party"]["south"] == pytest.approx(accuracy, abs=1e-6)


def test_the_setting_is_where_a_run_is_computed_and_not_what(tmp_path: Path) -> None:
    """Noise does not depend on it."""
    settings: dict[str, Any] = {"algorithm": "fedavg+dp(noise=1)", "model": "linear"}
    first, second = (
        prepare(config.experiment(settings | {"cache": cache, "engine": "loop"}), ragged())
        for cache in (True, False)
    )
    assert first.root == second.root
    json.dumps(first.experiment.model_dump())
