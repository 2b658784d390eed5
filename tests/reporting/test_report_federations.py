"""Several federations on one page: wins, ties and losses, and the critical-difference diagram."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from report_page import ReportPage, read_json, run_comparison
from scipy.stats import friedmanchisquare, rankdata

from comity.errors import UsageError
from comity.reporting import report
from comity.reporting.gather import gather
from comity.reporting.static import ranking

METHODS = ("solo", "fedavg", "fedprox(mu=5)")


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five federations with three methods each, and one method more in the first of them."""
    folder = tmp_path_factory.mktemp("five")
    for k in range(5):
        more = ["fedper"] if k == 0 else []
        run_comparison(folder / f"federation-{k}", [*METHODS[1:], *more], (k,), lr=0.2, rounds=3)
    return folder


def accuracies(folder: Path) -> dict[str, list[float]]:
    """Accuracy of each method in each federation."""
    return {
        method: [
            read_json(folder / f"federation-{k}" / method / f"seed-{k}" / "summary.json")[
                "accuracy"
            ]["mean"]
            for k in range(5)
        ]
        for method in METHODS
    }


def test_wins_on_the_page_are_those_of_the_command(five: Path) -> None:
    page = ReportPage(report(five, quick=True))
    rows = page.records("wins")
    assert [row["method"] for row in rows] == [*METHODS, "fedper"]
    lines = [line for line in ranking(five, "markdown", wins=True).splitlines() if "|" in line]
    for row, line in zip(rows, lines[2:], strict=True):
        assert list(row.values()) == [cell.strip() for cell in line.strip("|").split("|")]
    for row in rows[:3]:
        for other in set(METHODS) - {row["method"]}:
            assert sum(map(int, row[other].split("-"))) == 5
    assert sum(map(int, rows[3]["solo"].split("-"))) == 1
    assert "Bonferroni-corrected for 6 pairs of methods" in page.words


def test_critical_difference_diagram(five: Path) -> None:
    page = ReportPage(report(five, quick=True))
    chart = page.chart("critical-difference")
    figures = accuracies(five)
    ranks = [rankdata([-value for value in row]) for row in zip(*figures.values(), strict=True)]
    expected = {method: sum(row[k] for row in ranks) / 5 for k, method in enumerate(figures)}
    drawn = {
        row["method"]: row["rank"]
        for row in page.rows("critical-difference")
        if row["part"] == "method"
    }
    assert drawn == pytest.approx(expected)
    caption = chart["alt"]
    for words in (
        "over 5 federations",
        "Friedman's test at alpha = 0.05",
        f"p = {friedmanchisquare(*figures.values()).pvalue:.2g}",
        "Nemenyi's",
        "CD = 1.48",
        "Left out, as they have no figure in some federation: fedper.",
        *(f"{method} {rank:.2f}" for method, rank in expected.items()),
    ):
        assert words in caption
    assert caption in page.words
    assert caption in ranking(five, "markdown", wins=True)


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_diagram_as_a_file(five: Path, kind: str, tmp_path: Path) -> None:
    shutil.copytree(five, tmp_path / "copy")
    labels = {"fedprox": "Ours & others", "solo": "SOLO"}
    report(tmp_path / "copy", quick=True, figures=kind, labels=labels)
    figures = tmp_path / "copy" / "figures"
    path = figures / f"critical-difference.{kind}"
    assert path.stat().st_size > 1000
    captions = (figures / "captions.md").read_text(encoding="utf-8")
    assert "`critical-difference." in captions
    if kind == "svg":
        text = path.read_text(encoding="utf-8")
        assert "Ours &amp; others" in text
        assert "CD = 1.48" in text
        assert "NaN" not in text


def test_wins_that_take_long_are_left_to_the_command(
    five: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intervals of other metrics are bootstrapped, which a page does only for few of them."""
    for name in ("north", "south"):
        settings: dict[str, Any] = {
            "data": "heart",
            "partition": "auto",
            "parties": 4,
            "metric": "auc",
        }
        run_comparison(tmp_path / name, ["fedavg"], model="linear", rounds=1, **settings)
    assert ReportPage(report(tmp_path, quick=True)).records("wins")
    monkeypatch.setattr("comity.reporting.federations.MOST_BOOTSTRAPS", 7)
    page = ReportPage(report(tmp_path, quick=True))
    assert "wins" not in page.tables_by_name
    assert any("--wins" in note for note in page.notes)
    assert ReportPage(report(five, quick=True)).records("wins"), "accuracy needs no bootstrap"


def test_few_federations_have_no_diagram(five: Path, tmp_path: Path) -> None:
    for k in range(2):
        shutil.copytree(five / f"federation-{k}", tmp_path / f"federation-{k}")
    page = ReportPage(report(tmp_path, quick=True))
    assert page.records("wins")
    sentence = "it needs 5 federations or more, and here are 2."
    assert any(sentence in note for note in page.notes)
    assert not any(chart["name"] == "critical-difference" for chart in page.charts.values())
    assert sentence in ranking(tmp_path, "latex", wins=True)


def test_methods_with_other_names_need_a_label(five: Path, tmp_path: Path) -> None:
    """A method whose settings differ between federations counts as one by its label."""
    shutil.copytree(five, tmp_path / "copy")
    for k in range(5):
        folder = tmp_path / "copy" / f"federation-{k}"
        (folder / "fedprox(mu=5)").rename(folder / f"fedprox(mu={k})")
    text = ranking(tmp_path / "copy", "markdown", wins=True)
    assert "it needs 3 methods or more" in text
    assert "--label" in text
    text = ranking(tmp_path / "copy", "markdown", wins=True, labels={"fedprox": "FedProx"})
    assert "mean ranks of 3 methods" in text


def test_one_federation_has_nothing_over_federations(five: Path) -> None:
    page = ReportPage(report(five / "federation-0", quick=True, out=five / "one.html"))
    assert "wins" not in page.tables_by_name
    assert "critical-difference" not in page.words


def test_labels_are_checked(five: Path) -> None:
    with pytest.raises(UsageError, match="no method in this folder called 'fedporx'"):
        report(five, quick=True, labels={"fedporx": "Ours"})
    with pytest.raises(UsageError, match="both labelled 'Ours'"):
        report(five, quick=True, labels={"fedavg": "Ours", "fedprox": "Ours"})


def test_plus_minus_says_what_it_means(five: Path, tmp_path: Path) -> None:
    """± is the standard deviation over seeds in one column, and half of an interval in another."""
    run_comparison(tmp_path, ["fedavg"], (0, 1))
    for kind, head in (("siunitx", "{{{}}}"), ("latex", "{}")):
        text = ranking(tmp_path, kind, columns=["accuracy", "over SOLO", "worst"])
        (heads,) = [line for line in text.splitlines() if line.strip().startswith("method")]
        percent = "\\%, " if kind == "siunitx" else ""
        assert head.format(f"accuracy ({percent}$\\pm$ SD over seeds)") in heads
        assert head.format("over SOLO ($\\pm$ half of 95\\% interval)") in heads
    assert gather(five)


def test_figures_say_which_parties_are_drawn(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"parties": 80, "partition": "iid", "model": "linear", "rounds": 1}
    run_comparison(tmp_path, ["fedavg"], validation=0, test="own(0.75)", **settings)
    page = ReportPage(report(tmp_path, methods=[], figures="svg"))
    expected = {
        "sizes": "The first 60 of 80 parties are drawn.",
        "classes": "The first 60 of 80 parties are drawn.",
        "distances": "parties are drawn",
        "bytes-by-party": "The first 60 of 80 parties are drawn.",
        "gains-fedavg": "40 of 80 parties are drawn: the 20 with the largest gains",
    }
    for name, words in expected.items():
        assert words in page.chart(name)["alt"]
        assert page.chart(name)["alt"] in page.words
        svg = (tmp_path / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert words.split(":")[0] in svg.replace("</tspan>", " ").replace("</text>", " ")
