"""The step after a method's last round (finish): models are evaluated before and after it, its
costs are counted, and it can be resumed.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import TUNED, ragged, run, tables
from plain import Trainer, assert_close, assert_equal, stream

from comity import cli
from comity.runs import checkpoint
from comity.runs.server_run import Quiet
from comity.studies import plan

PLAIN: dict[str, Any] = {"model": "mlp2(width=12)", "rounds": 3, "lr": 0.1, "engine": "loop"}


def rows(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / table).open() as file:
        return list(csv.DictReader(file))


def test_models_are_tuned_from_the_last_average(tmp_path: Path) -> None:
    """By torch: FedAvg's model, then two epochs of plain SGD on the party's own batches."""
    result, parent = (
        run(TUNED, tmp_path / "a", tune_epochs=2, **PLAIN),
        run("fedavg", tmp_path / "b", **PLAIN),
    )
    for i, name in enumerate(ragged().names):
        trainer = Trainer(parent.model(name).theta, lambda params: torch.optim.SGD(params, lr=0.1))
        assert_close(
            result.model(name).theta, trainer.train(stream(result, i, 3, "tune", epochs=2))
        )


def test_figures_before_finish_are_the_parents(tmp_path: Path) -> None:
    """Without its finish the method is FedAvg: it has the same rounds, and its last figures stand
    beside those of the tuned models.
    """
    result, parent = run(TUNED, tmp_path / "a", **PLAIN), run("fedavg", tmp_path / "b", **PLAIN)
    assert result.summary["accuracy"]["unfinished"] == parent.summary["accuracy"]["mean"]
    assert parent.summary["accuracy"]["unfinished"] is None
    metrics = [r for r in rows(tmp_path / "a", "metrics.csv") if r["metric"] == "accuracy"]
    raw = [float(r["value"]) for r in metrics if r["split"] == "test-unfinished"]
    assert len(raw) == 4
    assert result.summary["accuracy"]["unfinished"] == pytest.approx(sum(raw) / 4)


def test_the_last_figures_are_those_of_tuned_models(tmp_path: Path) -> None:
    result = run(TUNED, tmp_path, tune_epochs=5, **PLAIN)
    outcomes = rows(tmp_path, "outcomes.csv")
    right = {}
    for name in ragged().names:
        test = ragged().parties[name].test
        correct = (result.model(name).predict(test.x) == test.y).int().tolist()
        assert [int(r["correct"]) for r in outcomes if r["party"] == name] == correct
        right[name] = sum(correct) / len(test)
    assert result.summary["accuracy"]["per_party"] == right
    assert result.summary["accuracy"]["mean"] == pytest.approx(sum(right.values()) / 4)
    assert result.summary["accuracy"]["mean"] != result.summary["accuracy"]["unfinished"]


@pytest.mark.parametrize("eval_every", [1, 2, 5])
def test_models_are_evaluated_before_and_after_finish(eval_every: int, tmp_path: Path) -> None:
    result = run(TUNED, tmp_path, eval_every=eval_every, **PLAIN)
    evaluated_rounds = {n.round for n in result.metrics if n.split == "test"}
    assert evaluated_rounds == {t for t in range(4) if t % eval_every == 0 or t == 3}
    assert {n.round for n in result.metrics if n.split == "test-unfinished"} == {3}


def test_finishing_is_counted_in_the_last_round(tmp_path: Path) -> None:
    result = run(TUNED, tmp_path, **PLAIN)
    model = 4 * (64 * 12 + 12 + 12 * 12 + 12 + 12 * 10 + 10)
    tuned = [row for row in result.ledger if row.call == "tune"]
    assert [(row.round, row.src, row.dst, row.kind, row.bytes) for row in tuned] == [
        (3, "server", name, "down", model) for name in ragged().names
    ]
    round_plan = plan.plan(result.job)
    assert (round_plan.total.up, round_plan.total.down) == (
        result.summary["bytes"]["up"],
        result.summary["bytes"]["down"],
    )


def test_steps_of_finishing_count(tmp_path: Path) -> None:
    result = run(TUNED, tmp_path, tune_epochs=2, **PLAIN)
    assert result.summary["steps"] == (3 + 2) * sum(-(-size // 10) for size in ragged().sizes)


class Stop(Quiet):
    """Stops a run when the first party has been tuned."""

    def __init__(self) -> None:
        self.replies_left = 10**9

    def add_replies(self, count: int) -> None:
        self.replies_left -= count
        if self.replies_left < 0:
            raise KeyboardInterrupt

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        if t == 2:
            self.replies_left = (
                3 + 3
            )  # the last round's replies, and the evaluation before the finish


def test_process_and_resume_equal_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With newcomers after the finish. A run stopped during the finish tunes its parties once, not
    twice.
    """
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    settings = {"rounds": 3, "newcomers": 1, "join_epochs": 2}
    whole = run(TUNED, tmp_path / "loop", **settings)
    with pytest.raises(KeyboardInterrupt):
        run(TUNED, tmp_path / "cut", progress=Stop(), **settings)
    assert (
        json.loads((tmp_path / "cut" / "checkpoints" / "manifest.json").read_text())["round"] == 2
    )
    others = [
        run(TUNED, tmp_path / "process", engine="process", workers=2, **settings),
        run(TUNED, tmp_path / "cut", resume=True, **settings),
    ]
    for other in others:
        assert tables(other.folder) == tables(whole.folder)
        for name in ragged().names:
            assert_equal(other.model(name).theta, whole.model(name).theta)
    assert whole.summary["newcomers"].keys() == {"west"}


def test_the_screen_shows_the_accuracy_before_finish(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = [
        "--parties",
        "3",
        "--rounds",
        "2",
        "--model",
        "linear",
        "--partition",
        "iid",
        "--engine",
        "loop",
    ]
    output_lines = {}
    for method in (TUNED, "fedavg"):
        monkeypatch.setattr(
            sys,
            "argv",
            ["comity", "run", method, *usual, "--out", str(tmp_path / Path(method).stem)],
        )
        cli.main()
        output_lines[method] = capsys.readouterr().out.splitlines()
    before = output_lines["fedavg"][0].partition("accuracy ")[2].partition(" ")[0]
    assert f"before the method's last step (finish): {before}" in output_lines[TUNED]
    assert not [line for line in output_lines["fedavg"] if "fine-tuning" in line]
