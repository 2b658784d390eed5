"""A run's folder: how it is recognised, and how its tables are read: complete, damaged or growing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import comity
from comity.checksums import Checksum
from comity.core.participation import Absence
from comity.core.server import Note
from comity.errors import ComityError, UsageError
from comity.metrics.evaluation import Answers
from comity.privacy.account import PrivacyCharge
from comity.runs.folder import NEVER_OVERWRITTEN, RunFolder
from comity.runs.tables import (
    ABSENCES,
    LEDGER,
    METRICS,
    PRIVACY,
    TABLES,
    TIMING,
    Growing,
    Timing,
    Writer,
)
from comity.wire.ledger import Charge


def test_a_folder_with_settings_only_is_no_run(tmp_path: Path) -> None:
    """A user may have a config.toml elsewhere: it is neither resumed nor overwritten."""
    (tmp_path / "config.toml").write_text("mine = true", encoding="utf-8")
    assert not RunFolder(tmp_path).has_run
    with pytest.raises(UsageError, match=r"already has a config\.toml"):
        RunFolder(tmp_path).check_free()
    with pytest.raises(UsageError, match=r"holds no run: it has no env\.json"):
        RunFolder(tmp_path).check_begun()
    with pytest.raises(UsageError, match=r"already has a config\.toml"):
        comity.run(
            "solo", data="digits", parties=2, model="linear", rounds=1, out=tmp_path, resume=True
        )


def test_a_run_has_begun_with_its_settings(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(UsageError, match=r"holds no run: it has no config\.toml"):
        folder.check_begun()
    folder.begin("seed = 1\n", {"code": "a commit"}, split="{}")
    folder.check_begun()
    assert folder.has_run
    assert folder.remains
    assert not folder.is_finished
    assert folder.read_experiment().seed == 1
    assert folder.read_environment() == {"code": "a commit"}
    folder.check_free()  # no round is finished, so that another run may replace it


def test_only_a_run_without_a_finished_round_is_replaced(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin("seed = 1\n", {"code": "a commit"}, split="{}")
    folder.tables().create()
    assert folder.has_no_round
    (tmp_path / "mine.txt").touch()
    assert not folder.has_no_round, "the folder has something else"
    (tmp_path / "mine.txt").unlink()
    timing = (tmp_path / "timing.csv").read_text(encoding="utf-8")
    (tmp_path / "timing.csv").write_text(f"{timing}0,0.1,0.1,0.1,5\n", encoding="utf-8")
    assert folder.has_no_round, "round 0 is the start"
    (tmp_path / "timing.csv").write_text(f"{timing}1,0.1,0.1,0.1,5\n", encoding="utf-8")
    assert not folder.has_no_round
    with pytest.raises(UsageError, match="already holds a run"):
        folder.check_free()
    folder.clear()
    assert (tmp_path / "timing.csv").exists()
    (tmp_path / "timing.csv").write_text(timing, encoding="utf-8")
    folder.clear()
    assert not [path for path in tmp_path.iterdir() if path.name != ".lock"]


@pytest.mark.parametrize("name", NEVER_OVERWRITTEN)
def test_nothing_is_overwritten(name: str, tmp_path: Path) -> None:
    RunFolder(tmp_path).check_free()
    (tmp_path / name).touch()
    with pytest.raises(UsageError, match=f"already has a {name}"):
        RunFolder(tmp_path).check_free()


def test_a_name_that_no_folder_can_have(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / ("x" * 300))
    assert not folder.has_run
    with pytest.raises(UsageError, match="holds no run"):
        folder.check_begun()


def test_outcomes_are_read_as_they_were_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    single = torch.tensor([1])
    folder.write_outcomes(
        {
            "north": Answers(torch.tensor([2, 0]), torch.tensor([2, 1]), None),
            "south": Answers(single, single, None),
        }
    )
    assert (
        folder.outcomes.read_text()
        == "party,sample,correct,truth,answer\nnorth,0,1,2,2\nnorth,1,0,0,1\nsouth,0,1,1,1\n"
    )
    assert folder.read_outcomes() == {"north": [1, 0], "south": [1]}
    assert folder.read_answers()["north"].given.tolist() == [2, 1]
    assert folder.read_answers()["north"].score is None


def test_scores_are_read_back_exactly(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    score = torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(
        -20, 5
    ).repeat(200)
    score[:3] = torch.tensor([math.inf, -math.inf, 0.0])
    truth = torch.arange(5000) % 2
    folder.write_outcomes({"north": Answers(truth, (score > 0).long(), score)})
    again = folder.read_answers()["north"]
    assert again.score is not None
    assert torch.equal(again.score, score)
    assert torch.equal(again.scores(2).argmax(1), again.given)


def test_outcomes_of_an_earlier_version_have_no_answers(tmp_path: Path) -> None:
    (tmp_path / "outcomes.csv").write_text("party,sample,correct\nnorth,0,1\n", encoding="utf-8")
    assert RunFolder(tmp_path).read_outcomes() == {"north": [1]}
    with pytest.raises(ComityError, match="earlier version"):
        RunFolder(tmp_path).read_answers()


@pytest.mark.parametrize(
    "row", ["north,0,1,0,1", "north,0,1,1", "north,0,1,1,x", "north,0,1,-1,-1", "north,0,1,1,1,x"]
)
def test_invalid_answers_are_refused(row: str, tmp_path: Path) -> None:
    score = ",score" * (row.count(",") == 5)
    (tmp_path / "outcomes.csv").write_text(
        f"party,sample,correct,truth,answer{score}\n{row}\n", encoding="utf-8"
    )
    with pytest.raises(ComityError, match=r"outcomes\.csv cannot be read"):
        RunFolder(tmp_path).read_answers()


@pytest.mark.parametrize(
    "text",
    [
        "party,sample,correct\nnorth,0,1\nnorth,1",
        "party,sample,correct\nnorth,0,x\n",
        "party\nnorth\n",
    ],
)
def test_truncated_outcomes_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "outcomes.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ComityError, match=r"outcomes\.csv cannot be read"):
        RunFolder(tmp_path).read_outcomes()


# --- tables

NOTES = [
    Note(0, "north", "test", "accuracy", 0.25),
    Note(1, "north", "test", "accuracy", 0.1 + 0.2),
]
CHARGES = [Charge(1, "local", "north", "server", "up", 12)]
TIMES = [Timing(0, 0.5, 0.25, 0.0, 1024)]
PRIVACY_CHARGES = [
    PrivacyCharge(
        1,
        "local",
        "p1",
        "A.x, A.y",
        "record",
        "gaussian",
        1.0,
        0.1 + 0.2,
        1 / 3,
        7,
        2.5,
        1e-5,
        "blank",
        "server",
        0,
        0,
    ),
    PrivacyCharge(
        1, "local", "a, b", "A.z", "", "none", 0.0, 0.0, 1.0, 1, math.inf, 1e-5, "", "server", 0, 0
    ),
]
AWAY = [Absence("p1", 1, "local", "lost", 0), Absence("a, b", 2, "evaluate", "offline", 1)]


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    writer = Writer(tmp_path)
    writer.create()
    writer.add(METRICS, NOTES)
    writer.add(LEDGER, CHARGES)
    writer.add(TIMING, TIMES)
    writer.add(ABSENCES, [])
    assert not (tmp_path / ABSENCES.name).exists(), "the table exists only if a party was absent"
    writer.add(ABSENCES, AWAY)
    writer.add(PRIVACY, PRIVACY_CHARGES)
    assert writer.files == {
        table.name: Checksum.of((tmp_path / table.name).read_bytes()) for table in TABLES
    }
    return RunFolder(tmp_path)


def test_tables_are_read_as_they_were_written(run_folder: RunFolder) -> None:
    assert run_folder.read_metrics() == NOTES
    assert run_folder.read_ledger() == CHARGES
    assert run_folder.read_timing() == TIMES
    assert run_folder.read_absences() == AWAY
    assert run_folder.read_privacy() == PRIVACY_CHARGES


def test_tables_without_rows_are_whole(tmp_path: Path) -> None:
    Writer(tmp_path).create()
    assert RunFolder(tmp_path).read_metrics() == []


@pytest.mark.parametrize(
    ("damage", "intact_rows"),
    [
        (lambda text: text[:-1], 1),  # the last line has no newline: its figure may be incomplete
        (lambda text: text.replace("0.25", "x"), 0),
        (lambda text: text.replace("0,north", "0,no,rth"), 0),
        (lambda text: text + "2,north\n3,north,test,accuracy,0.5\n", 2),
        (lambda text: text.removeprefix("round,"), 2),
        (lambda text: "", 0),
    ],
)
def test_a_damaged_table_is_refused_or_read_as_far_as_it_goes(
    damage: object, intact_rows: int, run_folder: RunFolder
) -> None:
    assert callable(damage)
    path = run_folder.path / "metrics.csv"
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ComityError, match=r"metrics\.csv is damaged"):
        run_folder.read_metrics()
    salvaged = METRICS.salvage(run_folder.path)
    assert salvaged.rows == NOTES[:intact_rows]
    assert salvaged.damaged or salvaged.open_end


def test_a_table_that_is_not_text_is_damaged(run_folder: RunFolder) -> None:
    (run_folder.path / "metrics.csv").write_bytes(b"\xff\xfe\n")
    assert METRICS.salvage(run_folder.path).damaged


def test_a_growing_table_is_read_by_the_same_rules(run_folder: RunFolder) -> None:
    rows: list[Note] = []
    growing = Growing(METRICS, run_folder.path, rows.append, rows.clear)
    growing.look()
    assert rows == NOTES == METRICS.salvage(run_folder.path).rows
    with (run_folder.path / "metrics.csv").open("a", encoding="utf-8") as file:
        file.write("2,north,test\n2,north,test,accuracy,1\n")
    growing.look()
    assert rows == [*NOTES, Note(2, "north", "test", "accuracy", 1.0)]


# --- commands


def test_a_damaged_table_of_a_finished_run_is_refused(tmp_path: Path) -> None:
    comity.run("solo", data="digits", parties=2, model="linear", rounds=1, out=tmp_path / "run")
    table = tmp_path / "run" / "metrics.csv"
    table.write_text(table.read_text(encoding="utf-8")[:-8], encoding="utf-8")
    from comity.measure import conventions

    with pytest.raises(ComityError, match=r"metrics\.csv is damaged"):
        conventions.run_figures(tmp_path / "run")
