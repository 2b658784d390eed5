"""`comity resume RUN --rounds N`: a run goes on for longer than it was asked to at first."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import OWN, SMALL, Nursery, comity, contents, one_sentence, rows, summary, works

from comity.runs.run_warnings import warning_texts


@pytest.fixture
def finished(here: Path) -> Path:
    """A finished run of two rounds."""
    works("run", "fedavg", *SMALL, "--out", here / "run")
    return here / "run"


def test_a_finished_run_goes_on(finished: Path, here: Path) -> None:
    ended = works("resume", finished, "--rounds", 3)
    assert f"The run is in {finished}" in " ".join(ended.out.split())
    works("run", "fedavg", *SMALL, "--rounds", 3, "--out", here / "straight")
    assert contents(finished) == contents(here / "straight")
    assert summary(finished)["rounds"] == 3
    assert {row["round"] for row in rows(finished / "metrics.csv")} == {"0", "1", "2", "3"}
    works("resume", finished)  # is left as it is
    works("resume", finished, "--rounds", 3)
    works("report", finished, "--quick")


def test_not_for_fewer_rounds(finished: Path) -> None:
    said = one_sentence(comity("resume", finished, "--rounds", 1), 2)
    assert "2 rounds already" in said
    assert "rounds must be at least 1" in one_sentence(comity("resume", finished, "--rounds", 0), 2)


def test_python_names_the_command(finished: Path) -> None:
    import comity as api

    with pytest.raises(api.UsageError, match=r"comity resume .* --rounds 5"):
        api.run(
            "fedavg",
            parties=3,
            rounds=5,
            model="linear",
            partition="iid",
            engine="loop",
            out=finished,
            resume=True,
        )


def test_a_run_of_a_comparison_says_so(here: Path) -> None:
    works("compare", "fedavg", *SMALL, "--out", here / "both")
    assert (
        "part of a comparison"
        in works("resume", here / "both" / "fedavg" / "seed-0", "--rounds", 3).out
    )


def test_the_users_own_method_needs_no_trust(here: Path, nursery: Nursery) -> None:
    """Unless its file has changed; then the summary says so."""
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
