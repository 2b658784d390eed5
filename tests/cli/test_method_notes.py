"""What `compare` and `run` print about methods and parties: methods with equal results, names of
users' methods, parties that are left out, untested devices.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from harness import OWN, SMALL, Nursery, comity, succeed

import comity as api


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Folder, stdout and stderr of a comparison with equal methods, one of them a user's."""
    home = tmp_path_factory.mktemp("same")
    (home / "mine.py").write_text(OWN.format("pass"))
    methods = (
        "fedavg",
        "fedbn",
        home / "mine.py",
        "fedprox(mu=0)",
        "fedprox(mu=1)",
        "relay(lambda_kd=0,lambda_disc=0)",
    )
    result = comity("compare", *methods, *SMALL, "--seeds", "0,1", "--out", home / "runs")
    assert result.code == 0, result.err
    return home, " ".join(result.out.split()), result.err


def test_equal_methods_are_noted(comparison: tuple[Path, str, str]) -> None:
    home, output, _ = comparison
    expected = [
        (
            "solo and relay(lambda_kd=0,lambda_disc=0) are the same here: all parties have equal"
            " figures in every round, under each of 2 seeds."
        ),
        (
            "fedavg, fedbn, mine and fedprox(mu=0) are the same here: all parties have equal"
            " figures in every round, under each of 2 seeds."
        ),
    ]
    assert json.loads((home / "runs" / "comparison.json").read_text())["warnings"] == [
        {"when": "after", "text": text, "round": None} for text in expected
    ]
    for text in expected:
        assert output.count(text) == 1
    assert "fedprox(mu=1) are" not in output


def test_warnings_explain_equal_methods(comparison: tuple[Path, str, str]) -> None:
    assert "Warning: fedbn: the model has no BatchNorm" in comparison[1]
    assert "Warning: fedprox(mu=0): with mu=0 there is no proximal term" in comparison[1]
    assert not api.run("fedbn", model="fedbn-cnn(scale=0.06)", rounds=1, parties=2).job.warnings()


def test_different_methods_have_no_note(here: Path) -> None:
    output = succeed("compare", "fedavg", "scaffold", *SMALL, "--out", "runs").out
    assert "are the same" not in output
    assert json.loads(Path("runs/comparison.json").read_text())["warnings"] == []


def test_own_methods_are_shown_by_name(comparison: tuple[Path, str, str], nursery: Nursery) -> None:
    home, output, progress = comparison
    assert "mine.py" not in output.replace(str(home / "runs"), "")
    assert "mine.py" not in progress
    result = nursery.run("run", home / "mine.py", *SMALL, "--out", home / "run")
    assert result.code == 0
    for text in (result.out, result.err, nursery.run("watch", "--once", home / "run").out):
        assert "mine" in text
        assert "mine.py" not in text
    assert nursery.run("report", home / "run", "--quick").code == 0
    page = (home / "run" / "report.html").read_text()
    assert ">mine<" in page
    assert str(home / "mine.py") in (home / "run" / "config.toml").read_text()


def test_parties_of_the_data_that_are_left_out_are_named(here: Path) -> None:
    small = ("--data", "heart", "--model", "linear", "--rounds", "1")
    names = api.load("heart").partition("auto").names
    output = " ".join(
        succeed("run", "fedavg", *small, "--parties", "2", "--out", "run").out.split()
    )
    assert (
        f"{len(names) - 2} of the data's natural parties are left out: {', '.join(names[2:])}."
        in output
    )
    assert "are left out" not in succeed("run", "fedavg", *small, "--out", "all").out


def test_gpu_is_refused_or_warned_of(here: Path) -> None:
    import torch

    from comity.runs.build import federation_of, prepare
    from comity.runs.config import experiment

    for device, is_available in (
        ("cuda", torch.cuda.is_available()),
        ("mps", torch.backends.mps.is_available()),
    ):
        if not is_available:
            result = comity("run", "fedavg", *SMALL, "--device", device)
            assert result.code == 2
            assert f"There is no {device} device here: use --device auto or cpu." in result.err
    config = experiment({"parties": 2, "rounds": 1, "model": "linear"})
    job = prepare(config.but(device="cpu"), federation_of(config))
    assert not job.warnings()
    on_cuda = replace(job, experiment=job.experiment.but(device="cuda"))
    assert on_cuda.warnings() == [
        "Nothing was ever tested on cuda: compare a few rounds with --device cpu first."
    ]
    assert "untested" in " ".join(succeed("run", "--help").out.split())


def test_error_for_a_folder_of_runs_names_a_run(comparison: tuple[Path, str, str]) -> None:
    result = comity("export", comparison[0] / "runs", "--party", "p0")
    assert result.code == 2
    assert str(comparison[0] / "runs" / "fedavg" / "seed-0") in result.err
