"""Methods that are the same here say so; users' own are shown by name; parties that are left out
are named.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from harness import OWN, SMALL, Nursery, comity, works

import comity as api


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """FedAvg under three names, one of them a user's."""
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
    ended = comity("compare", *methods, *SMALL, "--seeds", "0,1", "--out", home / "runs")
    assert ended.code == 0, ended.err
    return home, " ".join(ended.out.split()), ended.err


def test_methods_that_are_the_same_here_say_so(compared: tuple[Path, str, str]) -> None:
    home, said, _ = compared
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
        assert said.count(text) == 1
    assert "fedprox(mu=1) are" not in said


def test_methods_say_why_before_they_run(compared: tuple[Path, str, str]) -> None:
    assert "Warning: fedbn: the model has no BatchNorm" in compared[1]
    assert "Warning: fedprox(mu=0): with mu=0 there is no proximal term" in compared[1]
    assert not api.run("fedbn", model="fedbn-cnn(scale=0.06)", rounds=1, parties=2).job.warnings()


def test_different_methods_are_not_the_same(here: Path) -> None:
    said = works("compare", "fedavg", "scaffold", *SMALL, "--out", "runs").out
    assert "are the same" not in said
    assert json.loads(Path("runs/comparison.json").read_text())["warnings"] == []


def test_own_methods_are_shown_by_name(compared: tuple[Path, str, str], nursery: Nursery) -> None:
    home, said, progress = compared
    assert "mine.py" not in said.replace(str(home / "runs"), "")
    assert "mine.py" not in progress
    ended = nursery.run("run", home / "mine.py", *SMALL, "--out", home / "run")
    assert ended.code == 0
    for text in (ended.out, ended.err, nursery.run("watch", "--once", home / "run").out):
        assert "mine" in text
        assert "mine.py" not in text
    assert nursery.run("report", home / "run", "--quick").code == 0
    page = (home / "run" / "report.html").read_text()
    assert ">mine<" in page
    assert str(home / "mine.py") in (home / "run" / "config.toml").read_text()


def test_parties_of_the_data_that_are_left_out_are_named(here: Path) -> None:
    small = ("--data", "heart", "--model", "linear", "--rounds", "1")
    names = api.load("heart").partition("auto").names
    said = " ".join(works("run", "fedavg", *small, "--parties", "2", "--out", "run").out.split())
    assert (
        f"{len(names) - 2} of the data's natural parties are left out: {', '.join(names[2:])}."
        in said
    )
    assert "are left out" not in works("run", "fedavg", *small, "--out", "all").out


def test_a_gpu_is_refused_or_said_to_be_untested(here: Path) -> None:
    import torch

    from comity.runs.build import federation_of, prepare
    from comity.runs.config import experiment

    for device, there in (
        ("cuda", torch.cuda.is_available()),
        ("mps", torch.backends.mps.is_available()),
    ):
        if not there:
            ended = comity("run", "fedavg", *SMALL, "--device", device)
            assert ended.code == 2
            assert f"There is no {device} device here: use --device auto or cpu." in ended.err
    asked = experiment({"parties": 2, "rounds": 1, "model": "linear"})
    job = prepare(asked.but(device="cpu"), federation_of(asked))
    assert not job.warnings()
    on_cuda = replace(job, experiment=job.experiment.but(device="cuda"))
    assert on_cuda.warnings() == [
        "Nothing was ever tested on cuda: compare a few rounds with --device cpu first."
    ]
    assert "untested" in " ".join(works("run", "--help").out.split())


def test_a_folder_of_runs_names_them(compared: tuple[Path, str, str]) -> None:
    ended = comity("export", compared[0] / "runs", "--party", "p0")
    assert ended.code == 2
    assert str(compared[0] / "runs" / "fedavg" / "seed-0") in ended.err
