"""The setting `gpus` before any worker starts: it needs Ray, implies cuda for workers, and leaves
the server on the CPU.
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
def _ray_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here starts Ray."""
    monkeypatch.setattr(build, "check_installed", lambda: None)


@pytest.mark.parametrize(
    ("settings", "message"),
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
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config.experiment(SMALL | settings)


def job(**settings: Any) -> build.SimulatedRun:
    experiment = config.experiment(SMALL | settings)
    return prepare(experiment, federation_of(experiment))


def test_cuda_on_ray_needs_gpus() -> None:
    with pytest.raises(
        UsageError,
        match="Workers on Ray compute on the CPU unless --gpus says how much of a GPU each takes",
    ):
        job(device="cuda")


def test_the_server_stays_on_the_cpu_and_workers_get_their_share() -> None:
    """This needs no GPU."""
    with_gpus, without = job(gpus=0.25), job()
    assert (with_gpus.experiment.device, with_gpus.experiment.gpus) == ("cuda", 0.25)
    assert (without.experiment.device, without.experiment.gpus) == ("cpu", None)
    for prepared in (with_gpus, without):
        assert prepared.device.type == prepared.parties[0].data.train.x.device.type == "cpu"
    assert 'device = "cuda"' in with_gpus.recipe().settings
    assert 'device = "cpu"' in without.recipe().settings
    assert "gpus" not in with_gpus.recipe().settings
    assert (
        "Nothing was ever tested on cuda: compare a few rounds without --gpus first."
        in with_gpus.warnings()
    )
    again = config.experiment(with_gpus.experiment.model_dump())  # as in a resumed run
    assert prepare(again, with_gpus.federation).experiment == with_gpus.experiment


def test_gpus_is_no_difference_between_runs() -> None:
    where = {"gpus", "engine", "workers", "device", "cache", "partial_sums"}
    assert where == config.WHERE


def test_python_functions_take_gpus() -> None:
    with pytest.raises(UsageError, match="needs --engine ray"):
        comity.run("fedavg", data="digits", gpus=0.5)
