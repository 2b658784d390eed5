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
    assert "Gains by party, with intervals that hold for all 4 together: " in words
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


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--lr", "0.5"), "holds a race with lr=0.05, not 0.5"),
        (("--rounds", "5"), "holds a race with rounds=4, not 5"),
        (("--metric", "macro_f1"), "holds a race with metric=accuracy, not macro_f1"),
        (("--data", "heart"), "holds a race with data=digits, not heart"),
        (("--seed", "1"), "holds a race with seed=0, not 1"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    options: tuple[str, ...], sentence: str, advised: tuple[Path, str]
) -> None:
    """The outcomes of the folder would otherwise be shown as those of the new command."""
    assert sentence in complaint(comity(*without(options[0]), *options, "--out", advised[0]), 2)


def without(option: str) -> tuple[str, ...]:
    """Return the command without an option, which may be given once."""
    if option not in FEDERATION:
        return FEDERATION
    at = FEDERATION.index(option)
    return FEDERATION[:at] + FEDERATION[at + 2 :]


def test_a_damaged_race_file_is_named(advised: tuple[Path, str], tmp_path: Path) -> None:
    folder = tmp_path / "race"
    shutil.copytree(advised[0], folder)
    (folder / "race.json").write_text("{}")
    assert "race.json is damaged" in complaint(comity(*FEDERATION, "--out", folder), 1)


def test_an_option_that_no_method_has_is_refused(tmp_path: Path) -> None:
    words = (*without("--methods"), "--set", "nonsense=3", "--out", tmp_path / "race")
    assert "None of the methods has an option called 'nonsense'" in complaint(comity(*words), 2)


def test_the_command_for_the_final_model_has_the_same_data(tmp_path: Path) -> None:
    """The partition follows the seed, so the command repeats it."""
    output = succeed(
        *("advise", "--parties", "3", "--rounds", "8", "--model", "linear", "--folds", "2"),
        *("--partition", "iid|keep(samples=12)", "--methods", "fedavg", "--engine", "loop"),
        *("--seed", "3", "--lr", "0.2", "--out", tmp_path / "race"),
    ).out
    command = output[output.index("comity run fedavg") :].splitlines()[0]
    assert "--seed 3" in command
    assert "--partition 'iid|keep(samples=12)'" in command


def test_on_tables_gains_are_over_each_party_s_own_model(tmp_path: Path) -> None:
    output = succeed(
        *("advise", "--data", "heart", "--rounds", "2", "--methods", "fedavg", "--folds", "2"),
        *("--model", "mlp2(width=8)", "--out", tmp_path / "race"),
    ).out
    assert "over each party's own model" in " ".join(output.split())
    assert json.loads((tmp_path / "race" / "advice.json").read_text())["baseline"] == "own-model"
    assert (tmp_path / "race" / "plain-linear" / "fold-2" / "summary.json").exists()


def test_on_tables_each_party_s_best_model_of_its_own_is_named(tmp_path: Path) -> None:
    output = succeed(
        *("advise", "--data", "heart", "--rounds", "2", "--methods", "fedavg", "--folds", "2"),
        *("--model", "mlp2(width=8)", "--repeats", "2", "--out", tmp_path / "race"),
    ).out
    words = " ".join(output.split())
    own = json.loads((tmp_path / "race" / "advice.json").read_text())["own_models"]
    assert len(own) == 4
    sentence = words[words.index("Best of its own models") :]
    assert all(party in sentence for party in own)
    assert "linear model: " in sentence or "gradient boosting: " in sentence
    assert (tmp_path / "race" / "own-model" / "fold-2-repeat-2" / "summary.json").exists()


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
