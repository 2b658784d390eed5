"""README.md: its size, its Python example with the printed output, and its commands.

`COMITY_REGENERATE=1 pytest tests/docs/test_readme.py` writes the output again. Links are checked in
test_links.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path

import pytest
from document_commands import check_command
from harness import succeed

from comity import cli

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
MOST_BYTES = 8192
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
POINTS = 3.0
"""How far figures may differ on other processors, which round differently."""


def text() -> str:
    return README.read_text(encoding="utf-8")


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", text(), flags=re.DOTALL)
    return str(found)


def commands() -> list[list[str]]:
    """The lines of all shell blocks as words."""
    blocks = re.findall(r"```sh\n(.*?)```", text(), flags=re.DOTALL)
    return [shlex.split(line, comments=True) for each in blocks for line in each.splitlines()]


def test_it_fits_on_two_screens() -> None:
    assert README.stat().st_size <= MOST_BYTES


def test_every_block_is_python_output_or_commands() -> None:
    kinds = re.findall(r"^```(\w*)$", text(), flags=re.MULTILINE)
    assert [kind for kind in kinds if kind] == ["sh", "console", "python", "text", "sh"]


def test_the_python_example_prints_what_is_shown() -> None:
    shown = block("text")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python"), "README.md", "exec"), {})
    output = printed.getvalue()
    if os.environ.get("COMITY_REGENERATE"):
        README.write_text(text().replace(shown, output), encoding="utf-8")
    run_again = "run: COMITY_REGENERATE=1 pytest tests/docs/test_readme.py"
    assert NUMBER.sub("#", output) == NUMBER.sub("#", shown), run_again
    for new, old in zip(NUMBER.findall(output), NUMBER.findall(shown), strict=True):
        assert float(new) == pytest.approx(float(old), abs=POINTS), run_again


def test_the_advice_is_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page has three lines of it, without the seconds."""
    command, *lines = block("console").splitlines()
    words = shlex.split(command.removeprefix("$ "))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", words)
    cli.main()
    printed = " ".join(capsys.readouterr().out.split())
    figures = iter(NUMBER.findall(" ".join(lines)))
    for line in lines:
        pattern = f"({NUMBER.pattern})".join(map(re.escape, NUMBER.split(line.rstrip("."))))
        found = re.search(pattern, printed)
        assert found, line
        for new in found.groups():
            assert float(new) == pytest.approx(float(next(figures)), abs=POINTS)


def test_commands_exist() -> None:
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"`make ([\w-]+)`", text())
    for program, *words in commands():
        if program == "make":
            named += words
        else:
            assert program == "comity"
            check_command(words)
    assert {"demo", "test", "five", "docs", "demo-sites"} <= set(named)
    assert not [name for name in named if not re.search(rf"^{name}:", targets, re.MULTILINE)]


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are, but for the number of rounds; `make demo` has a test of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for party in ("north", "south"):
        rows = "\n".join(f"{k},{k % 7},{'ill' if k % 3 else 'well'}" for k in range(60))
        (tmp_path / "mine" / f"{party}.csv").write_text(f"age,dose,outcome\n{rows}\n", "utf-8")
    executed = []
    for program, *words in commands():
        if program == "comity":
            executed.append(words[0])
            line = re.sub(r"--rounds \d+", "--rounds 1", shlex.join(words))
            succeed(*shlex.split(line))
    assert executed == ["compare", "show", "data", "plan"]
    assert (tmp_path / "sites").is_dir()


def test_options_that_the_prose_names_exist() -> None:
    reference = (ROOT / "docs" / "reference").glob("*.md")
    documented = "".join(page.read_text(encoding="utf-8") for page in reference)
    named = set(re.findall(r"`(?:\w+ )?(--[\w-]+)[^`]*`", text()))
    assert named
    assert not [name for name in named if name not in documented]


def test_versions_of_the_table_are_those_of_its_sources() -> None:
    page = (ROOT / "docs" / "results" / "frameworks.md").read_text(encoding="utf-8")
    (head,) = re.findall(r"^\| \| Comity \|(.*)\|$", text(), flags=re.MULTILINE)
    versions = re.findall(r"[\w.]*\d[\w.]*", head)
    assert len(versions) == 5
    assert not [version for version in versions if version not in page]
    (date,) = re.findall(r"Checked on (\d{4}-\d\d-\d\d)", text())
    assert f"Checked on {date}" in page
    ours = re.findall(
        r"^\| ([^|]+?) \| ", text().split("## What makes")[1].split("## Meth")[0], re.MULTILINE
    )
    theirs = re.findall(r"^\| ([^|]+?) \| ", page, re.MULTILINE)
    assert [row.split(" (")[0] for row in ours[1:]] == theirs[2:]


def five_methods() -> dict[str, list[str]]:
    """The rows of the table in docs/results/five-methods.md, by method."""
    page = (ROOT / "docs" / "results" / "five-methods.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].replace("`", ""): row for row in rows}


def gain(cell: str) -> int:
    """The whole points of a gain with its interval, as in +9.6 (±13.0)."""
    return round(float(cell.split(maxsplit=1)[0]))


def test_figures_are_those_of_the_results_page() -> None:
    table = five_methods()
    few = sorted(gain(table[name][2]) for name in ("fedavg+dbe", "fedufo"))
    sentence = " ".join(text().split())
    assert f"gain {few[0]} to {few[1]} points with FedAvg+DBE or FedUFO" in sentence
    sites = re.search(r"of (\d+) sites if it averages BatchNorm's statistics", sentence)
    assert sites
    assert sites[1] == "36"
    assert f"FedAvg hurts {table['fedavg'][8].split(', ')[1]} of 36 sites" in sentence
    own = table["fedavg with --bn params_only"]
    assert own[8].endswith(", 0")  # nobody is hurt
    assert f"it hurts none, and the sites gain {gain(own[7])} points" in sentence


def test_figures_of_the_first_comparison_are_those_of_the_results_page() -> None:
    page = (ROOT / "docs" / "get-started" / "first-comparison.md").read_text(encoding="utf-8")
    table = five_methods()
    better = [table[name] for name in ("fedavg", "fedavg+dbe", "fedufo")]
    gains = sorted(gain(row[2]) for row in better)
    counts = sorted(int(row[3].split(", ")[0]) for row in better)
    assert f"{gains[0]} to {gains[-1]} points" in page
    assert f"{counts[0]} to {counts[-1]} of 60" in page


def test_figures_have_a_command() -> None:
    """Each line of results names its command or the page that has it."""
    results = text().split("Two results\n")[1].split("## What it is not")[0]
    assert "`make five`" in results
    assert "`make demo`" in results
