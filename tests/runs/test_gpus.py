"""What `gpus` means before any worker starts: it is Ray's, it means cuda there, and the server
stays on the CPU.
"""

from __future__ import annotations

from typing import Any

import pytest

import comity
from comity.errors import UsageError
from comity.runs import build, config
from comity.runs.build import federation_of, prepare

SMALL: dict[str, Any] = {
    "data": "digits",
    "parties": 3,
    "model": "linear",
    "engine": "ray",
    "workers": 2,
}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here starts Ray."""
    monkeypatch.setattr(build, "check_installed", lambda: None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gpus": 0}, "gpus must be greater than 0, not 0"),
        ({"gpus": float("inf")}, "gpus must be a number"),
        ({"gpus": 1.5}, "gpus must be a share of one, or a whole number, not 1.5"),
        (
            {"gpus": 1, "engine": "loop"},
            "needs --engine ray: elsewhere --device cuda leads to a GPU",
        ),
        ({"gpus": 1, "engine": "auto"}, "needs --engine ray"),
        ({"gpus": 1, "device": "cpu"}, "Workers with gpus compute on cuda, not on cpu"),
    ],
)
def test_what_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        config.experiment(SMALL | settings)


def job(**settings: Any) -> build.SimulatedRun:
    experiment = config.experiment(SMALL | settings)
    return prepare(experiment, federation_of(experiment))


def test_a_gpu_of_workers_needs_a_share() -> None:
    with pytest.raises(
        UsageError,
        match="Workers on Ray compute on the CPU unless --gpus says how much of a GPU each takes",
    ):
        job(device="cuda")


def test_the_server_stays_on_the_cpu_and_workers_are_told_of_theirs() -> None:
    """No GPU has to be here for it."""
    with_gpus, without = job(gpus=0.25), job()
    assert (with_gpus.experiment.device, with_gpus.experiment.gpus) == ("cuda", 0.25)
    assert (without.experiment.device, without.experiment.gpus) == ("cpu", None)
    for one in (with_gpus, without):
        assert one.device.type == one.parties[0].data.train.x.device.type == "cpu"
    assert 'device = "cuda"' in with_gpus.recipe().settings
    assert 'device = "cpu"' in without.recipe().settings
    assert "gpus" not in with_gpus.recipe().settings
    assert (
        "Nothing was ever tested on cuda: compare a few rounds without --gpus first."
        in with_gpus.warnings()
    )
    again = config.experiment(with_gpus.experiment.model_dump())  # as a resumed run has it
    assert prepare(again, with_gpus.federation).experiment == with_gpus.experiment


def test_runs_differ_in_where_they_are_computed_only() -> None:
    assert {"gpus", "engine", "workers", "device", "partial_sums"} == config.WHERE


def test_the_calls_take_it() -> None:
    with pytest.raises(UsageError, match="needs --engine ray"):
        comity.run("fedavg", data="digits", gpus=0.5)
