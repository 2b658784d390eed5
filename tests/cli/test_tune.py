"""`comity tune` compares like with like, and says how sure its choice is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean

import pytest
from harness import SMALL, rows, summary, works

from comity.measure.seeds import interval_over_seeds
from comity.studies.tune import Trial, Trials

GRID = ("tune", "fedprox", "--grid", "mu=0,30", *SMALL, "--partition", "dirichlet(alpha=0.3)")


def figures(folder: Path, split: str, t: int) -> list[float]:
    """Everyone's accuracy after a round, out of the table."""
    return [
        float(row["value"])
        for row in rows(folder / "metrics.csv")
        if (row["round"], row["split"], row["metric"]) == (str(t), split, "accuracy")
        and row["party"] != "server"
    ]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("tune") / "grid"
    return folder, works(*GRID, "--seeds", "0,1", "--out", folder).out


def test_both_figures_are_means_over_parties_at_the_round_chosen(tuned: tuple[Path, str]) -> None:
    folder, said = tuned
    told = json.loads((folder / "tune.json").read_text())
    assert [trial["name"] for trial in told["trials"]] == sorted(
        ("mu=0", "mu=30"),
        key=lambda name: -next(t["validation"] for t in told["trials"] if t["name"] == name),
    )
    for trial in told["trials"]:
        runs = [folder / trial["name"] / f"seed-{seed}" for seed in (0, 1)]
        chosen = [summary(run)["accuracy"]["best_round"]["round"] for run in runs]
        assert trial["rounds"] == chosen
        for split, key in (("validation", "validations"), ("test", "tests")):
            means = [fmean(figures(run, split, t)) for run, t in zip(runs, chosen, strict=True)]
            assert trial[key] == pytest.approx(means)
            shown = f"{fmean(means):.1%} ± {100 * abs(means[0] - means[1]) / 2:.1f}"
            (line,) = [
                line for line in said.splitlines() if line.startswith(f"{trial['settings']['mu']} ")
            ]
            assert shown in line
    assert "mean over parties" in " ".join(said.split())


def test_the_choice_says_how_far_the_next_is(tuned: tuple[Path, str]) -> None:
    said = " ".join(tuned[1].split())
    assert "Chosen on validation data: mu=0. The next is mu=30," in said
    assert "95% interval over 2 seeds, paired" in said
    assert f"comity report {tuned[0]}" in said


def test_one_seed_says_that_it_is_one(here: Path) -> None:
    said = " ".join(works(*GRID, "--out", here / "grid").out.split())
    assert "one seed cannot tell" in said
    assert "±" not in said


def trial(mu: float, *validations: float) -> Trial:
    return Trial({"mu": mu}, validations, validations, (1,) * len(validations))


def test_differences_are_paired_over_seeds() -> None:
    """Seeds differ by far more than settings do, but the settings always in the same way."""
    sure = Trials([trial(1, 0.5, 0.7, 0.9), trial(2, 0.489, 0.69, 0.891)], "accuracy", (0, 1, 2))
    assert "1.0 points behind" in sure.verdict
    assert "chance" not in sure.verdict
    unsure = Trials([trial(1, 0.5, 0.7, 0.9), trial(2, 0.55, 0.65, 0.87)], "accuracy", (0, 1, 2))
    assert "within chance" in unsure.verdict


def test_the_interval_is_students() -> None:
    low, high = interval_over_seeds([1.0, 2.0, 3.0])
    half = 4.302652729911275 / math.sqrt(3)  # t(0.975, 2) of the tables, standard deviation 1
    assert (low, high) == pytest.approx((2 - half, 2 + half))
