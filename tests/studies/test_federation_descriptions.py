"""Descriptions of federations, and the shipped board."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comity.errors import CorruptedFile
from comity.papers.reproduce import federation_for
from comity.runs.build import prepare
from comity.runs.config import experiment
from comity.studies.board import Description, describe, read_board


def described(**settings: Any) -> Description:
    chosen = {"algorithm": "solo", "data": "digits", "parties": 4, "rounds": 1, "engine": "loop"}
    of_run = experiment({**chosen, "validation": 0, **settings})
    return describe(prepare(of_run, federation_for(of_run)))


def test_label_skew_and_inputs_are_told_apart() -> None:
    alike = described(partition="iid|keep(samples=50)")
    labels = described(partition="shard(per_party=2,by_class=true)|keep(samples=50)", parties=5)
    inputs = described(partition="iid|keep(samples=50)|shift(kinds=none,invert)")
    assert alike.label_skew is not None
    assert labels.label_skew is not None
    assert inputs.label_skew is not None
    assert alike.label_skew < 0.15
    assert labels.label_skew > 0.7
    assert inputs.label_skew < 0.15
    assert alike.input_difference < 0.1
    assert inputs.input_difference > 0.2


def test_sizes() -> None:
    unequal = described(partition="quantity(beta=0.3,min=20)|keep(fraction=0.5)")
    assert unequal.parties == 4
    assert unequal.least_samples < unequal.samples
    assert described(partition="iid|keep(samples=50)").least_samples == 50


@pytest.mark.parametrize(
    ("model", "network", "batchnorm"),
    [
        ("linear", "linear", False),
        ("mlp2(width=16)", "mlp", False),
        ("fedbn-cnn(scale=0.03)", "cnn", True),
    ],
)
def test_kind_of_network(model: str, network: str, batchnorm: bool) -> None:
    about = described(partition="iid|keep(samples=20)", model=model)
    assert (about.network, about.batchnorm) == (network, batchnorm)
    if model == "linear":
        assert about.parameters == 64 * 10 + 10


def test_methods_do_not_change_the_description() -> None:
    split = "iid|keep(samples=20)"
    assert described(partition=split) == described(partition=split, algorithm="fedavg+dbe")


def test_damaged_board_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    for content in ("", "{}", '{"format": 7}'):
        path.write_text(content, encoding="utf-8")
        read_board.cache_clear()
        with pytest.raises(CorruptedFile, match="is missing or damaged: install Comity again"):
            read_board(path)
    read_board.cache_clear()
