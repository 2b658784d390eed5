"""Pages for users: their commands run without downloaded data, and their examples are right."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from comity import cli, papers, run
from comity.data import catalogue, protocols

DOCS = Path(__file__).parents[2] / "docs"


def text(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", text(page), flags=re.DOTALL)


PAGES = [
    "get-started/install",
    "how-to/agree-on-a-schema",
    "how-to/compare",
    "how-to/equal-computation",
    "how-to/leave-one-out",
    "how-to/lora",
    "how-to/parallel-runs",
    "how-to/reproduce",
    "how-to/tables-for-papers",
    "how-to/tune",
    "how-to/watching",
    "how-to/your-data",
    "reference/data",
]
"""Pages whose commands are executed as they are, apart from the number of rounds."""
ELSEWHERE = {
    "concepts/privacy",  # needs a column of patients: tests/privacy
    "get-started/first-comparison",  # the command of the README
    "how-to/advise",  # its command is tested in tests/studies/test_advise_race.py
    "how-to/frozen-encoder",  # needs files of MNIST
}


@pytest.mark.parametrize("page", PAGES)
def test_commands_work(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_onnx: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COMITY_DATA", raising=False)
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    assert lines
    for line in lines:
        shorter = re.sub(r"--rounds \d+", "--rounds 1", line)
        monkeypatch.setattr("sys.argv", shlex.split(shorter, comments=True))
        cli.main()  # raises SystemExit on errors


def test_every_page_with_commands_is_executed() -> None:
    with_commands = {
        str(path.relative_to(DOCS).with_suffix(""))
        for path in DOCS.rglob("*.md")
        if "\n```sh\n" in path.read_text(encoding="utf-8") and path.parent.name != "tutorials"
    }
    assert with_commands == {*PAGES, *ELSEWHERE}


def test_the_example_of_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks("how-to/reproduce", "toml")
    path = tmp_path / "mine.toml"
    path.write_text(example, encoding="utf-8")
    assert papers.table(str(path)).rows[0].printed("avg") == (80.2, 0.5)
    monkeypatch.setattr(
        "sys.argv",
        ["comity", "reproduce", str(path), "--scale", "smoke", "--out", str(tmp_path / "out")],
    )
    cli.main()
    assert "| AVG | ADCOL | 80.20 ± 0.50 |" in (tmp_path / "out" / "table.md").read_text(
        encoding="utf-8"
    )


def test_the_example_of_a_patient() -> None:
    (profile,) = blocks("how-to/profile-parties", "python")
    exec(profile, {})
    (example,) = blocks("how-to/export-a-model", "python")
    *lines, last = example.strip().splitlines()
    space: dict[str, object] = {}
    exec("\n".join(lines), space)
    names, likely = eval(last, space)
    assert names == ("healthy", "ill")
    assert likely.shape == (1, 2)


def test_the_example_of_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks("how-to/watching", "python")
    (tmp_path / "printer.py").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = "comity run fedavg --parties 2 --rounds 1 --model linear --track ./printer.py --out out"
    monkeypatch.setattr("sys.argv", words.split())
    cli.main()
    assert [
        line.split()[0]
        for line in (tmp_path / "out" / "course.txt").read_text(encoding="utf-8").splitlines()
    ] == ["0", "1"]


def test_figures_of_trackers_are_those_on_the_page(tmp_path: Path) -> None:
    received: dict[str, float] = {}

    class Listener:
        def begin(self, folder: Path, settings: object) -> None:
            pass

        def round(self, t: int, figures: Mapping[str, float]) -> None:
            received.update(figures)

        def end(self, summary: object) -> None:
            pass

    run("fedavg", parties=2, rounds=1, model="linear", metric="macro_f1", track=[Listener()])
    table = text("how-to/watching").split("| figure |")[1].split("\n\n")[0]
    documented = set(re.findall(r"`(\w+/\w+)`", table))
    assert {
        name.replace("/p0", "/NAME") for name in received if not name.endswith("/p1")
    } == documented


def test_every_dataset_is_on_the_page() -> None:
    assert {str(row["name"]) for row in catalogue()} <= set(
        re.findall(r"`([\w-]+)`", text("reference/data"))
    )


def test_architecture_page_shows_the_source_of_fedavg() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
    source = (root / "src" / "comity" / "algorithms" / "fedavg.py").read_text(encoding="utf-8")
    code = source[source.index("from typing import Generic") :].rstrip()
    assert f"```python\n{code}\n```" in page


def test_every_test_protocol_is_on_the_pages() -> None:
    table = text("reference/data").split("## Test protocols\n")[1].split("\n## ")[0]
    first = re.findall(r"^\| `(\w+)", table, flags=re.MULTILINE)
    assert first == list(protocols.RULES)
    (line,) = re.findall(r"^- \*\*Test protocols\*\*: (.*)$", text("reference/overview"), re.M)
    assert re.findall(r"`(\w+)", line) == list(protocols.RULES)


def test_tests_that_the_threat_model_names_exist() -> None:
    page = text("concepts/threat-model")
    named = re.findall(r"`((?:tests/)?[\w/]+\.py)`", page)
    paths = [name if "/" in name else f"tests/adversary/{name}" for name in named]
    assert len(paths) > 15
    assert [path for path in paths if not (DOCS.parent / path).is_file()] == []


def test_tests_that_other_pages_name_exist() -> None:
    named = {
        (path.name, name)
        for path in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]
        for name in re.findall(
            r"`((?:tests|benchmarks|scripts|examples)/[\w/.-]+\.\w+)", path.read_text("utf-8")
        )
        if "NAME" not in name
    }
    assert {(page, name) for page, name in named if not (DOCS.parent / name).is_file()} == set()
