"""`comity resume RUN --rounds N` extends a run beyond its original number of rounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import OWN, SMALL, Nursery, comity, contents, one_sentence, rows, succeed, summary

from comity.runs.run_warnings import warning_texts


@pytest.fixture
def finished_run(here: Path) -> Path:
    """A finished run of two rounds."""
    succeed("run", "fedavg", *SMALL, "--out", here / "run")
    return here / "run"


def test_finished_run_is_extended(finished_run: Path, here: Path) -> None:
    result = succeed("resume", finished_run, "--rounds", 3)
    assert f"The run is in {finished_run}" in " ".join(result.out.split())
    succeed("run", "fedavg", *SMALL, "--rounds", 3, "--out", here / "straight")
    assert contents(finished_run) == contents(here / "straight")
    assert summary(finished_run)["rounds"] == 3
    assert {row["round"] for row in rows(finished_run / "metrics.csv")} == {"0", "1", "2", "3"}
    succeed("resume", finished_run)  # changes nothing
    succeed("resume", finished_run, "--rounds", 3)
    succeed("report", finished_run, "--quick")


def test_fewer_rounds_are_refused(finished_run: Path) -> None:
    message = one_sentence(comity("resume", finished_run, "--rounds", 1), 2)
    assert "2 rounds already" in message
    assert "rounds must be at least 1" in one_sentence(
        comity("resume", finished_run, "--rounds", 0), 2
    )


def test_python_error_names_the_command(finished_run: Path) -> None:
    import comity as api

    with pytest.raises(api.UsageError, match=r"comity resume .* --rounds 5"):
        api.run(
            "fedavg",
            parties=3,
            rounds=5,
            model="linear",
            partition="iid",
            engine="loop",
            out=finished_run,
            resume=True,
        )


def test_extending_a_run_of_a_comparison_is_noted(here: Path) -> None:
    succeed("compare", "fedavg", *SMALL, "--out", here / "both")
    assert (
        "part of a comparison"
        in succeed("resume", here / "both" / "fedavg" / "seed-0", "--rounds", 3).out
    )


def test_extending_a_run_of_a_users_method(here: Path, nursery: Nursery) -> None:
    """A changed file is refused; with --trust the summary has a warning."""
    Path("mine.py").write_text(OWN.format("pass"))
    run = here / "run"
    assert nursery.run("run", here / "mine.py", *SMALL, "--out", run).code == 0
    assert nursery.run("resume", run, "--rounds", 3).code == 0
    assert nursery.run("resume", run, "--rounds", 4).code == 0
    assert summary(run)["rounds"] == 4
    Path("mine.py").write_text(OWN.format("x = 1"))
    assert "has changed" in one_sentence(nursery.run("resume", run, "--rounds", 5), 2)
    assert summary(run)["rounds"] == 4
    assert nursery.run("resume", run, "--rounds", 5, "--trust").code == 0
    assert any("has changed" in text for text in warning_texts(summary(run), "during"))
