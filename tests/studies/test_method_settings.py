"""Settings of single methods in a comparison, tuned methods, and one method against each."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from harness import OWN, comity, one_sentence, succeed

import comity as library
from comity.measure import gains
from comity.metrics.metrics import ACCURACY
from comity.reporting.static import ranking
from comity.studies.against import find_method
from comity.studies.method_settings import split_settings
from comity.studies.party_verdicts import average_gain

SMALL = ("--parties", "3", "--rounds", "2", "--model", "mlp2(width=8)", "--no-report")
MINE = 'scale: float = option(1.0, "an option")'


def config(run: Path) -> dict[str, Any]:
    return tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("method", "bare", "settings"),
    [
        ("fedavg", "fedavg", {}),
        ("fedper(lr=0.1)", "fedper", {"lr": 0.1}),
        ("fedprox(mu=1,lr=0.1,epochs=2)", "fedprox(mu=1)", {"lr": 0.1, "epochs": 2}),
        ("fedavg(lr=0.1)+dbe(kappa=5)", "fedavg+dbe(kappa=5)", {"lr": 0.1}),
        ("fedrep(head_epochs=2)", "fedrep(head_epochs=2)", {}),
    ],
)
def test_settings_are_split_from_a_methods_options(
    method: str, bare: str, settings: dict[str, Any]
) -> None:
    assert split_settings(method) == (bare, settings)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine_own.py").write_text(OWN.format(MINE), encoding="utf-8")
    mine = f"{folder / 'mine_own.py'}(scale=2,lr=0.02,epochs=2)"
    out = folder / "out"
    succeed(
        "compare", "fedavg", "fedper(lr=0.2)", mine, *SMALL, "--reference", "mine_own",
        "--seeds", "0,1", "--out", out,
    )  # fmt: skip
    return out


def test_methods_have_their_own_settings(compared: Path) -> None:
    by_method = {run.parent.name: config(run) for run in compared.glob("*/seed-0")}
    assert {name: settings["lr"] for name, settings in by_method.items()} == {
        "solo": 0.05,
        "fedavg": 0.05,
        "fedper(lr=0.2)": 0.2,
        "mine_own(scale=2,lr=0.02,epochs=2)": 0.02,
    }
    mine = by_method["mine_own(scale=2,lr=0.02,epochs=2)"]
    assert mine["epochs"] == 2
    assert mine["algorithm"].endswith("mine_own.py(scale=2)")


def test_reference_against_each(compared: Path) -> None:
    """The difference of the means, with the interval of the paired gains for three others."""
    against = json.loads((compared / "comparison.json").read_text())["against"]
    mine = "mine_own(scale=2,lr=0.02,epochs=2)"
    assert against["method"] == mine
    assert list(against["differences"]) == ["solo", "fedavg", "fedper(lr=0.2)"]
    expected = average_gain(
        {
            seed: gains(compared / mine / f"seed-{seed}", compared / "fedavg" / f"seed-{seed}")
            for seed in (0, 1)
        },
        3,
        ACCURACY,
    )
    assert expected
    found = against["differences"]["fedavg"]["mean"]
    assert (found["gain"], found["low"], found["high"]) == pytest.approx(
        (expected.gain, expected.low, expected.high)
    )
    comparison = library.open(compared, trust=True)
    assert isinstance(comparison, library.Comparison)
    assert comparison.against
    assert len(comparison.against.rows) == 3


def test_report_shows_the_reference_and_no_warning_of_chosen_settings(compared: Path) -> None:
    succeed("report", compared, "--quick")
    page = (compared / "report.html").read_text(encoding="utf-8")
    assert "mine_own(scale=2,lr=0.02,epochs=2) against each" in page
    assert "cannot be compared" not in page


def test_latex_for_a_paper(compared: Path) -> None:
    labels = {"mine_own": "Ours", "fedper": "FedPer"}
    text = ranking(compared, "siunitx", columns=["accuracy", "worst"], labels=labels)
    first, second = text.split("\n\n")[1:]
    assert "\\begin{tabular}{lSS}" in first
    assert "method & {accuracy (\\%, $\\pm$ SD over seeds)} & {worst (\\%)} \\\\" in first
    rows = [line for line in first.splitlines() if " & " in line][1:]
    assert {row.split(" & ")[0].strip() for row in rows} == {"solo", "fedavg", "FedPer", "Ours"}
    assert sum("\\bfseries" in row.split(" & ")[1] for row in rows) == 1
    assert "\\bfseries" in rows[0].split(" & ")[1]
    assert all(" \\pm " in row.split(" & ")[1] for row in rows)
    assert second.startswith("% Ours against each")
    assert "FedPer & " in second
    plain = ranking(compared, "latex", columns=["accuracy"])
    assert plain.count("\\textbf{") == 1


def test_wins_over_federations(compared: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(compared, tmp_path / name)
    text = ranking(tmp_path, "markdown", labels={"mine_own": "Ours"}, wins=True)
    head, _, *rows = text.split("\n\n")[1].splitlines()
    names = [cell.strip() for cell in head.strip("|").split("|")][1:]
    cells = {
        parts[0].strip(): dict(zip(names, map(str.strip, parts[1:]), strict=True))
        for row in rows
        if (parts := row.strip("|").split("|"))
    }
    for first in names:
        for second in names:
            if first == second:
                assert cells[first][second] == ""
                continue
            counts = [int(part) for part in cells[first][second].split("-")]
            assert sum(counts) == 2
            assert counts[::-1] == [int(part) for part in cells[second][first].split("-")]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--label", "other=Ours"), "no method in this folder called 'other'"),
        (("--label", "mine"), "--label takes METHOD=LABEL"),
        (("--columns", "speed"), "no column of the ranking called 'speed'"),
    ],
)
def test_wrong_names_are_refused(more: tuple[str, ...], words: str, compared: Path) -> None:
    assert words in one_sentence(comity("report", compared, "--table", "latex", *more), 2)


def test_unknown_reference_is_refused(tmp_path: Path) -> None:
    result = comity("compare", "fedavg", *SMALL, "--reference", "mine", "--out", tmp_path)
    assert "no method in this comparison called 'mine'" in one_sentence(result, 2)


def test_reference_is_found_by_its_name() -> None:
    methods = ["solo", "./a/mine.py(lr=0.1)", "fedavg(lr=0.1)", "fedavg(lr=0.2)"]
    assert find_method("mine", methods) == "./a/mine.py(lr=0.1)"
    assert find_method("fedavg(lr=0.2)", methods) == "fedavg(lr=0.2)"
    with pytest.raises(library.UsageError):
        find_method("fedavg", methods)


def test_tuned_method_is_compared_on_other_seeds(tmp_path: Path) -> None:
    succeed(
        "tune", "fedprox", *SMALL, "--grid", "lr=0.001,0.2", "--grid", "mu=0.1",
        "--seeds", "0,2", "--out", tmp_path / "tuned",
    )  # fmt: skip
    out = tmp_path / "out"
    result = succeed("compare", "fedavg", *SMALL, "--tuned", tmp_path / "tuned", "--out", out)
    assert "Compared on seeds 1, 3, which no tuning used." in result.out
    runs = sorted(run.name for run in (out / "fedprox(mu=0.1,lr=0.2)").iterdir())
    assert runs == ["seed-1", "seed-3"]
    settings = config(out / "fedprox(mu=0.1,lr=0.2)" / "seed-1")
    assert (settings["lr"], settings["algorithm"]) == (0.2, "fedprox(mu=0.1)")
    again = succeed(
        "compare", "fedavg", *SMALL[:2], *SMALL[4:], "--tuned", tmp_path / "tuned", "--seeds", "0,1",
        "--rounds", "3", "--out", tmp_path / "again",
    )  # fmt: skip
    assert "was tuned with seed 0 as well" in again.out
    assert "was tuned with rounds=2 (compared with 3)" in again.out


def test_folder_without_a_tuning_is_refused(tmp_path: Path) -> None:
    result = comity("compare", "fedavg", *SMALL, "--tuned", tmp_path)
    assert "holds no finished tuning" in one_sentence(result, 2)


def test_figures_have_labels_and_captions(compared: Path) -> None:
    succeed("report", compared, "--quick", "--figures", "svg", "--label", "mine_own=Ours")
    figures = compared / "figures"
    names = {path.name for path in figures.glob("*.svg")}
    captions = (figures / "captions.md").read_text(encoding="utf-8")
    assert names
    assert all(f"`{name}`: " in captions for name in names)
    drawn = "".join(path.read_text(encoding="utf-8") for path in figures.glob("*.svg"))
    assert "Ours" in drawn
    assert ">mine_own(scale=2,lr=0.02,epochs=2)<" not in drawn


def test_solo_with_settings_is_what_gains_are_over(tmp_path: Path) -> None:
    result = succeed("compare", "fedavg", "solo(lr=0.2)", *SMALL, "--out", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["fedavg", "solo"]
    assert config(tmp_path / "solo" / "seed-0")["lr"] == 0.2
    assert config(tmp_path / "fedavg" / "seed-0")["lr"] == 0.05
    assert "solo is trained with lr=0.2." in result.out
    message = one_sentence(comity("compare", "solo(lr=0.2)", "solo(lr=0.1)", *SMALL), 2)
    assert "give solo(lr=0.2) or solo(lr=0.1)" in message
