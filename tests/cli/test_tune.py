"""`comity tune`: its figures, and its verdict on the best setting."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest
from harness import SMALL, rows, succeed, summary

from comity.measure.seeds import interval_over_seeds
from comity.studies.tune import Trial, Trials

GRID = ("tune", "fedprox", "--grid", "mu=0,30", *SMALL, "--partition", "dirichlet(alpha=0.3)")


def figures(folder: Path, split: str, t: int) -> list[float]:
    """The accuracies of all parties after a round, from metrics.csv."""
    return [
        float(row["value"])
        for row in rows(folder / "metrics.csv")
        if (row["round"], row["split"], row["metric"]) == (str(t), split, "accuracy")
        and row["party"] != "server"
    ]


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("tune") / "grid"
    return folder, succeed(*GRID, "--seeds", "0,1", "--out", folder).out


def test_figures_are_means_over_parties_at_the_chosen_round(tuning: tuple[Path, str]) -> None:
    folder, output = tuning
    result = json.loads((folder / "tune.json").read_text())
    assert [trial["name"] for trial in result["trials"]] == sorted(
        ("mu=0", "mu=30"),
        key=lambda name: -next(t["validation"] for t in result["trials"] if t["name"] == name),
    )
    for trial in result["trials"]:
        runs = [folder / trial["name"] / f"seed-{seed}" for seed in (0, 1)]
        best_rounds = [summary(run)["accuracy"]["best_round"]["round"] for run in runs]
        assert trial["rounds"] == best_rounds
        for split, key in (("validation", "validations"), ("test", "tests")):
            means = [
                fmean(figures(run, split, t)) for run, t in zip(runs, best_rounds, strict=True)
            ]
            assert trial[key] == pytest.approx(means)
            cell = f"{fmean(means):.1%} ± {100 * stdev(means):.1f}"
            (line,) = [
                line
                for line in output.splitlines()
                if line.startswith(f"{trial['settings']['mu']} ")
            ]
            assert cell in line
    assert "mean over parties" in " ".join(output.split())


def test_verdict_has_the_distance_to_the_second_best(tuning: tuple[Path, str]) -> None:
    output = " ".join(tuning[1].split())
    assert "Chosen on validation data: mu=0. The next is mu=30," in output
    assert "whether that is more than chance, 2 seeds cannot tell" in output
    assert f"comity report {tuning[0]}" in output


def test_verdict_of_one_seed(here: Path) -> None:
    output = " ".join(succeed(*GRID, "--out", here / "grid").out.split())
    assert "one seed cannot tell" in output
    assert "±" not in output


def trial(mu: float, *validations: float) -> Trial:
    return Trial({"mu": mu}, validations, validations, (1,) * len(validations))


def test_differences_are_paired_over_seeds() -> None:
    """Seeds differ far more than settings, but the difference of the settings is the same for each."""
    sure = Trials([trial(1, 0.5, 0.7, 0.9), trial(2, 0.489, 0.69, 0.891)], "accuracy", (0, 1, 2))
    assert "1.0 points behind" in sure.verdict
    assert "chance" not in sure.verdict
    unsure = Trials([trial(1, 0.5, 0.7, 0.9), trial(2, 0.55, 0.65, 0.87)], "accuracy", (0, 1, 2))
    assert "within chance" in unsure.verdict


def test_two_seeds_have_no_interval() -> None:
    few = Trials([trial(1, 0.5, 0.7), trial(2, 0.489, 0.69)], "accuracy", (0, 1))
    assert "2 seeds cannot tell" in few.verdict
    assert "interval" not in few.verdict


def test_equal_differences_under_all_seeds_are_no_proof() -> None:
    """Of 24 validation samples, two more are right under each seed."""
    variance = 0.25 / 24
    trials = [
        replace(trial(mu, *validations), sampling=(variance,) * 3)
        for mu, validations in ((1, (0.5, 0.625, 0.5)), (2, (0.4167, 0.5417, 0.4167)))
    ]
    text = Trials(trials, "accuracy", (0, 1, 2)).verdict
    half = 1.96 * math.sqrt(2 * variance)
    assert "8.3 points behind on them (95% interval over 3 seeds and the validation" in text
    assert f"{8.33 - 100 * half:+.1f} to {8.33 + 100 * half:+.1f}" in text
    assert "within chance" in text
    other_samples = Trials(trials, "accuracy", (0, 1, 2), same_samples=False).verdict
    assert f"{8.33 - 100 * half / math.sqrt(3):+.1f} to" in other_samples


def test_the_verdict_by_another_metric_names_what_its_interval_lacks() -> None:
    trials = [trial(1, 0.5, 0.7, 0.9), trial(2, 0.489, 0.69, 0.891)]
    assert "does not contain the sampling error of the validation samples" in (
        Trials(trials, "auc", (0, 1, 2)).verdict
    )


def test_sampling_variance_is_that_of_the_validation_samples(tuning: tuple[Path, str]) -> None:
    folder = tuning[0]
    for entry in json.loads((folder / "tune.json").read_text())["trials"]:
        run = folder / entry["name"] / "seed-0"
        shares = json.loads((run / "split.json").read_text())["parties"]
        accuracies = figures(run, "validation", entry["rounds"][0])
        assert len(accuracies) == len(shares) == 3
        by_hand = 0.0
        for accuracy, share in zip(accuracies, shares.values(), strict=True):
            count = len(share["validation"])
            smoothed = (accuracy * count + 1) / (count + 2)
            by_hand += smoothed * (1 - smoothed) / count / 9
        assert entry["sampling"][0] == pytest.approx(by_hand)


def test_interval_is_student_t() -> None:
    low, high = interval_over_seeds([1.0, 2.0, 3.0]) or (0.0, 0.0)
    half = 4.302652729911275 / math.sqrt(3)  # t(0.975, 2) of the tables, standard deviation 1
    assert (low, high) == pytest.approx((2 - half, 2 + half))
