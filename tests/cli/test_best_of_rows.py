"""`best_of`: a row of a paper's table that is, for each seed, the best of other rows on validation
samples.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from harness import comity, one_sentence, succeed

from comity import papers
from comity.errors import ComityError, UsageError
from comity.papers import MethodRow
from comity.papers.best_of import best_run, choose_runs, describe_choice, validation_score
from comity.papers.reproduce import RunOutcome
from comity.runs.tables import METRICS

TABLE = """
title = "One method, its constant chosen"
source = "Nobody, Table 2"
claims = ["fedprox > solo"]
[settings]
data = "digits"
partition = "iid|keep(samples=40)"
parties = 2
model = "linear"
rounds = 3
validation = 0.3
eval_every = 1
[[columns]]
name = "mean"
title = "Mean"
measure = "mean"
run = "digits"
[[columns]]
name = "both"
title = "Both"
measure = "party:p0,p1"
run = "digits"
[[columns]]
name = "nobody"
title = "Somebody is missing"
measure = "party:p0,p7"
run = "digits"
[[rows]]
name = "fedprox"
title = "FedProx, chosen"
algorithm = "fedprox"
best_of = ["weak", "strong"]
[[rows]]
name = "weak"
title = "weak"
algorithm = "fedprox(mu=0.01)"
[[rows]]
name = "strong"
title = "strong"
algorithm = "fedprox(mu=100)"
settings = {lr = 0.000001}
[[rows]]
name = "solo"
title = "SOLO"
algorithm = "solo"
"""


def write_run(
    folder: Path, seed: int, rounds: int, validation: dict[int, list[float]], test: float = 0.0
) -> RunOutcome:
    """Write a run with these validation accuracies: by round, one for each party."""
    folder.mkdir(parents=True)
    lines = ["round,party,split,metric,value"]
    for t, figures in validation.items():
        for i, value in enumerate(figures):
            lines += [f"{t},p{i},validation,accuracy,{value}", f"{t},p{i},test,accuracy,{test}"]
    (folder / METRICS.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return RunOutcome(folder, {"seed": seed, "rounds": rounds})


def test_choice_averages_validation_accuracy_over_the_last_tenth_of_rounds(tmp_path: Path) -> None:
    early = {t: [0.9, 0.9] for t in range(1, 19)}
    first = write_run(
        tmp_path / "one" / "seed-0", 0, 20, {**early, 19: [0.5, 0.7], 20: [0.4, 0.8]}, test=1.0
    )
    second = write_run(
        tmp_path / "two" / "seed-0", 0, 20, {1: [0.1, 0.1], 19: [0.6, 0.7], 20: [0.5, 0.7]}
    )
    assert validation_score(first.folder, 20) == pytest.approx(0.6)
    assert validation_score(second.folder, 20) == pytest.approx(0.625)
    assert best_run([first, second]) is second
    same = write_run(tmp_path / "three" / "seed-0", 0, 20, {19: [0.6, 0.7], 20: [0.5, 0.7]})
    assert best_run([same, second]) is same  # the first of equal ones
    assert best_run([second, same]) is second


def test_choice_is_made_per_seed_that_all_candidates_have(tmp_path: Path) -> None:
    row = MethodRow(name="m", title="M", algorithm="solo", best_of=("a", "b"))
    runs = {
        name: [
            write_run(tmp_path / name / f"seed-{s}", s, 1, {1: [figure]})
            for s, figure in enumerate(figures)
        ]
        for name, figures in {"a": (0.2, 0.9, 0.5), "b": (0.4, 0.3)}.items()
    }
    best = choose_runs(
        [row, MethodRow(name="a", title="A", algorithm="solo")],
        {("run", name): outcomes for name, outcomes in runs.items()},
    )
    assert best == {("run", "m"): [runs["b"][0], runs["a"][1]]}
    assert (
        describe_choice(row, best["run", "m"])
        == "chosen on validation samples: b (seed 0), a (seed 1)"
    )
    assert describe_choice(row, []) == "not all of a, b were run"


def test_without_validation_samples_nothing_is_chosen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a" / "seed-0", 0, 1, {})
    with pytest.raises(
        UsageError, match="has no validation samples to choose by: validation must be more than 0"
    ):
        best_run([run, run])


def test_best_of_row_of_a_reproduced_table(tmp_path: Path) -> None:
    path, out = tmp_path / "own.toml", tmp_path / "out"
    path.write_text(TABLE, encoding="utf-8")
    succeed(
        "reproduce", path, "--scale", "full", "--rows", "fedprox", "--seeds", "0,1", "--out", out
    )  # its candidates are run as well
    cells = {
        (r["column"], r["row"]): r
        for r in csv.DictReader((out / "table.csv").open(encoding="utf-8"))
    }
    assert {row for _, row in cells} == {"fedprox", "weak", "strong"}
    assert cells["mean", "fedprox"]["seeds"] == cells["mean", "weak"]["seeds"]
    assert cells["mean", "strong"]["seeds"] != cells["mean", "weak"]["seeds"]
    assert (
        cells["mean", "fedprox"]["note"]
        == "chosen on validation samples: weak (seed 0), weak (seed 1)"
    )
    assert (
        cells["both", "weak"]["seeds"] == cells["mean", "weak"]["seeds"]
    )  # there are no other parties
    assert cells["nobody", "weak"]["note"].startswith("There is no party called 'p7'")
    assert not (out / "digits" / "fedprox").exists()
    path.write_text(TABLE.replace("validation = 0.3", "validation = 0"), encoding="utf-8")
    message = one_sentence(
        comity(
            "reproduce", path, "--scale", "full", "--rows", "fedprox", "--out", tmp_path / "none"
        ),
        1,
        2,
    )
    assert (
        "The row fedprox is chosen on validation samples, so validation must be more than 0."
        in message
    )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("candidates", ['["weak"]', '["weak", "nobody"]', '["weak", "fedprox"]'])
def test_candidates_are_two_or_more_other_rows(candidates: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(TABLE.replace('["weak", "strong"]', candidates), encoding="utf-8")
    with pytest.raises(
        ComityError,
        match="best_of of fedprox must name two or more other rows that are runs themselves",
    ):
        papers.table(str(path))
