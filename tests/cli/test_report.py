"""`comity report`, and the report at the end of `compare` and `reproduce`, which is optional and
whose failure loses no result.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness import SMALL, comity, one_sentence, succeed

from comity import reporting
from comity.reporting.sections import space


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared") / "c"
    succeed("compare", "fedavg", *SMALL, "--out", folder)
    return folder


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw maps of few samples, which is quick."""
    monkeypatch.setattr(space, "SAMPLES", 24)


@pytest.fixture
def folder(comparison: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(comparison, tmp_path / "it"))


def compare_again(folder: Path, *more: object) -> str:
    """Repeat the comparison; its runs are finished, so it only writes the report."""
    return succeed("compare", "fedavg", *SMALL, "--out", folder, *more).out


def test_compare_ends_with_a_page(folder: Path) -> None:
    output = compare_again(folder, "--report")
    assert output.splitlines()[-1] == f"The report is in {folder / 'report.html'}"
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_page_is_left_out_by_option_or_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_REPORT", "0")
    assert "report" not in compare_again(folder)
    monkeypatch.delenv("COMITY_REPORT")
    assert "report" not in compare_again(folder, "--no-report")
    assert not (folder / "report.html").exists()
    assert "The report is in" in compare_again(folder)


def test_failed_report_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "report.html").mkdir()
    lines = compare_again(folder, "--report").splitlines()
    assert lines[-1].startswith("Warning: The report cannot be written: Is a directory")
    assert any(line.startswith("fedavg ") for line in lines)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("something\nunforeseen")

    monkeypatch.setattr(reporting, "report", fail)
    assert "Warning: The report cannot be written: RuntimeError" in compare_again(
        folder, "--report"
    )


def test_interrupt_while_the_report_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reporting, "report", interrupt)
    message = one_sentence(comity("compare", "fedavg", *SMALL, "--out", folder, "--report"), 130)
    assert f"comity report {folder}" in message


def test_reproduce_ends_with_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMITY_DATA", raising=False)
    table = tmp_path / "own.toml"
    table.write_text(OWN, encoding="utf-8")
    out = tmp_path / "out"
    assert (
        "report"
        not in succeed("reproduce", table, "--scale", "smoke", "--out", out, "--no-report").out
    )
    output = succeed("reproduce", table, "--scale", "smoke", "--out", out, "--report").out
    assert output.splitlines()[-1] == f"The report is in {out / 'report.html'}"
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Paper beside measured" in page
    assert page.index("Paper beside measured") < page.index("The answer</h2>")


OWN = """
title = "Two methods"
source = "Nobody, Table 1"
[settings]
data = "digits"
partition = "iid|keep(samples=20)"
parties = 2
model = "linear"
rounds = 1
validation = 0
[stated]
data = "section 1"
partition = "section 1"
parties = "section 1"
test = "section 1"
model = "section 1"
rounds = "section 1"
epochs = "section 1"
batch = "section 1"
optimizer = "section 1"
lr = "section 1"
validation = "section 1"
[smoke]
rounds = 1
[[columns]]
name = "mean"
title = "Mean"
measure = "mean"
run = "digits"
[[rows]]
name = "solo"
title = "SOLO"
algorithm = "solo"
paper = {mean = 10}
[[rows]]
name = "fedavg"
title = "FedAvg"
algorithm = "fedavg"
paper = {mean = 50}
"""


def test_report_command(folder: Path) -> None:
    output = succeed("report", folder, "--quick").out
    assert output == f"The report is in {folder / 'report.html'}\n"
    other = folder / "other.html"
    assert f"The report is in {other}" in succeed("report", folder, "--quick", "--out", other).out
    assert "What samples look like" not in other.read_text(encoding="utf-8")


def test_samples_can_be_kept_off_the_page(folder: Path) -> None:
    succeed("report", folder, "--methods", "fedavg", "--no-samples")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "What samples look like" not in page
    assert "Who holds which classes" in page
    assert "fedavg, after local training" in page
    assert "solo, after local training" not in page


def test_figures_and_tables(folder: Path) -> None:
    output = succeed("report", folder, "--quick", "--figures", "svg").out
    assert f"The figures are in {folder / 'figures'}" in output
    assert len(list((folder / "figures").glob("*.svg"))) >= 6
    table = succeed("report", folder, "--table", "markdown").out
    assert [line[:9] for line in table.splitlines()[2:4]] == ["| method ", "| --- | -"]
    assert succeed("report", folder, "--table", "latex").out.count("\\\\") == 3


@pytest.mark.parametrize(("arguments", "expected"), [
    (["--figures", "gif"], "Figures are pdf, svg, png, not 'gif'."),
    (["--table", "html"], "A table is printed as markdown, latex or siunitx, not 'html'."),
    (["--target", "90"], "A target is an accuracy between 0 and 1, not 90."),
    (["--methods", "fedavgg"], "There is no finished method called 'fedavgg'. Did you mean 'fedavg'?"),
])  # fmt: skip
def test_invalid_options_are_refused(folder: Path, arguments: list[str], expected: str) -> None:
    assert expected in one_sentence(comity("report", folder, "--quick", *arguments), 2)
    assert not (folder / "report.html").exists()


def test_wrong_folders(folder: Path, tmp_path: Path) -> None:
    assert "is not a folder" in one_sentence(comity("report", tmp_path / "nothing"), 2)
    assert "is not a folder" in one_sentence(comity("report", folder / "comparison.json"), 2)
    (tmp_path / "empty").mkdir()
    assert "holds no runs" in one_sentence(comity("report", tmp_path / "empty"), 2)
    one_sentence(
        comity("report", folder, "--quick", "--out", tmp_path / "no" / "such" / "page.html"), 1
    )
