"""`comity advise`: what a person sees, resuming, and bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from harness import comity, complaint, succeed

FEDERATION = (
    *("advise", "--partition", "pathological(classes=2)", "--parties", "4", "--rounds", "4"),
    *("--model", "linear", "--folds", "2", "--engine", "loop", "--methods", "fedavg,ditto(lam=1)"),
)


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("advise") / "race"
    return folder, succeed(*FEDERATION, "--out", folder).out


def test_the_screen_has_the_verdict_the_race_and_its_cost(advised: tuple[Path, str]) -> None:
    folder, output = advised
    verdict = json.loads((folder / "advice.json").read_text())["verdict"]
    words = " ".join(output.split())
    assert verdict["sentence"] in words
    assert "fedavg" in output
    assert "ditto(lam=1)" in output
    assert "Gains by party: " in words
    assert "Clearly hurt: " in words
    assert "The race took" in words


def test_the_page_shows_the_race_and_loads_nothing(advised: tuple[Path, str]) -> None:
    page = (advised[0] / "advice.html").read_text()
    assert "half of the rounds" in page
    assert page.count("<polyline") == 2
    assert "fedavg, all rounds: " in page  # the tooltip of a point
    assert "http" not in page.replace("http://www.w3.org", "")


def test_the_same_command_shows_the_same_without_training(advised: tuple[Path, str]) -> None:
    folder, output = advised
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*.csv")}
    again = succeed(*FEDERATION, "--out", folder).out
    assert again[again.index("Advice") :] == output[output.index("Advice") :]
    assert before == {file: file.stat().st_mtime_ns for file in folder.rglob("*.csv")}


def test_other_settings_in_the_same_folder_are_refused(
    advised: tuple[Path, str], tmp_path: Path
) -> None:
    folder = tmp_path / "race"
    shutil.copytree(advised[0], folder)
    for file in (folder / "outcomes").glob("*.json"):
        file.unlink()
    assert "other settings" in complaint(comity(*FEDERATION, "--lr", "0.5", "--out", folder), 2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--test", "own(0.25)"), "leave out --test"),
        (("--max-bytes", "ten"), "max-bytes is a number with a unit"),
        (("--budget-time", "10"), "budget-time is a number with a unit"),
        (("--methods", "fedavg,,ditto"), "names with commas"),
        (("--methods", "fedavgg"), "Did you mean"),
        (("--margin", "0"), "margin is a number of points"),
        (("--max-bytes", "1B"), "within the limits"),
        (("--jobs", "many"), "jobs is"),
        (("--newcomers", "1"), "newcomers"),
    ],
)
def test_bad_input_gets_one_sentence(
    options: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    words = FEDERATION[:-2] if "--methods" in options else FEDERATION
    error = complaint(comity(*words, "--out", tmp_path / "race", *options), 2)
    assert sentence in error
    assert not list(tmp_path.rglob("config.toml"))
