"""`model=auto` chooses a linear model or a small network by held-out training samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import comity
from comity.data import Federation
from comity.errors import UsageError
from comity.metrics.evaluation import Answers
from comity.runs import auto_model
from comity.runs.auto_model import resolve_auto_model
from comity.runs.config import Experiment, experiment
from comity.runs.folder import RunFolder


def federation(linear: bool) -> Federation:
    """Two parties whose label is the sign of a sum of two columns, or of their product."""
    random = np.random.default_rng(0)
    x = random.normal(size=(800, 2))
    y = (x.sum(1) + random.normal(size=800) if linear else x.prod(1)) > 0
    return Federation.from_arrays(
        {"a": (x[:400], y[:400].astype(int)), "b": (x[400:], y[400:].astype(int))}, classes=2
    )


def auto(**settings: object) -> Experiment:
    return experiment(
        {"model": "auto", "rounds": 10, "lr": 0.1, "engine": "loop", "data": "arrays"} | settings
    )


def test_a_product_needs_a_network() -> None:
    resolved, reason = resolve_auto_model(auto(), federation(linear=False))
    assert resolved.model == "mlp2(width=16)"  # 354 weights; 1,218 are too many for 540 samples
    assert "is better than linear" in reason


@pytest.mark.parametrize(("more", "chosen"), [(0, "linear"), (1, "linear"), (200, "mlp2")])
def test_the_network_must_be_better_by_a_standard_error(
    more: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The linear model is right in the first half of the samples, the network in the last half and
    some more.
    """

    def predict(settings: Experiment, held_out: Federation) -> dict[str, Answers]:
        answers = {}
        for name, party in held_out.parties.items():
            truth = party.test.y.int()
            right = len(truth) // 2 + (0 if settings.model == "linear" else more)
            place = torch.arange(len(truth))
            wrong = place >= right if settings.model == "linear" else place < len(truth) - right
            answers[name] = Answers(truth, torch.where(wrong, 1 - truth, truth), None)
        return answers

    monkeypatch.setattr(auto_model, "_predict", predict)
    resolved, reason = resolve_auto_model(auto(), federation(linear=True))
    assert resolved.model.startswith(chosen)
    assert "training samples that were held out" in reason
    assert ("not clearly worse" in reason) == (more == 1 and chosen == "linear")


def test_the_choice_does_not_see_test_samples() -> None:
    data = federation(linear=False)
    flipped = {
        name: replace(party, test=replace(party.test, y=1 - party.test.y))
        for name, party in data.parties.items()
    }
    both = [
        resolve_auto_model(auto(rounds=3), fed) for fed in (data, replace(data, parties=flipped))
    ]
    assert both[0] == both[1]


def test_the_chosen_network_and_the_reason_are_in_the_run(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="model=auto"):
        result = comity.run(
            "fedavg",
            federation(linear=True),
            model="auto",
            rounds=2,
            lr=0.1,
            engine="loop",
            out=tmp_path / "run",
        )
    assert RunFolder(tmp_path / "run").read_experiment().model == "linear"
    assert any("model=auto" in warning["text"] for warning in result.summary["warnings"])


def test_another_model_is_left_as_it_is() -> None:
    settings = auto(model="mlp2")
    assert resolve_auto_model(settings, federation(linear=True)) == (settings, "")


def test_auto_is_for_tables() -> None:
    digits = comity.load("digits").partition("iid", parties=2, seed=0)
    with pytest.raises(UsageError, match="for tables"):
        resolve_auto_model(auto(), digits)
