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
    "concepts/reliability",
    "get-started/install",
    "get-started/report",
    "how-to/agree-on-a-schema",
    "how-to/audit",
    "how-to/compare",
    "how-to/disclose",
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
    "concepts/privacy": "tests/privacy",
    "get-started/first-comparison": "tests/docs/test_readme.py",
    "how-to/advise": "tests/studies/test_advise_race.py",
    "how-to/frozen-encoder": "tests/models/test_frozen.py",
    "reference/methods/adcol": "tests/docs/test_papers.py",
    "reference/methods/dbe": "tests/docs/test_papers.py",
    "reference/methods/fed-sps": "tests/docs/test_papers.py",
    "reference/methods/fedufo": "tests/docs/test_papers.py",
    "reference/methods/relay": "tests/docs/test_papers.py",
}
"""Pages whose commands are executed by other tests."""
PYTHON = {
    "CONTRIBUTING": "tests/docs/test_contributing.py",
    "README": "tests/docs/test_readme.py",
    "docs/concepts/architecture": "tests/docs/test_pages.py",
    "docs/how-to/custom-dataset": "tests/docs/test_python_pages.py",
    "docs/how-to/custom-metric": "tests/docs/test_python_pages.py",
    "docs/how-to/custom-model": "tests/docs/test_python_pages.py",
    "docs/how-to/custom-partition": "tests/docs/test_python_pages.py",
    "docs/how-to/export-a-model": "tests/docs/test_pages.py",
    "docs/how-to/profile-parties": "tests/docs/test_pages.py",
    "docs/how-to/python": "tests/docs/test_python_pages.py",
    "docs/how-to/watching": "tests/docs/test_pages.py",
    "docs/how-to/your-own": "tests/docs/test_python_pages.py",
    "docs/project/methods-code": "tests/docs/test_methods_code.py",
    "docs/tutorials/own-method": "tests/docs/test_tutorials.py",
    "docs/tutorials/thesis-table": "tests/docs/test_tutorials.py",
}
"""The tests that execute the Python of a page, or compare it with the source."""
NOT_EXECUTED = "not executed by the tests"
COMMAND = re.compile(
    r"^(?:\w+=\S+ )*(?:comity|pip|make|python|pytest|ray|docker|cp|export|\.venv/bin/\w+) ", re.M
)


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
    assert not [test for test in ELSEWHERE.values() if not (DOCS.parent / test).exists()]


def test_every_block_of_a_page_says_what_it_is() -> None:
    """A reader sees which blocks the tests execute: those with `sh`, `python` and `console` are
    executed, and one with commands that are not says so, itself or in the text above it.
    """
    wrong = []
    for path in sorted([*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")]):
        page = str(path.relative_to(DOCS.parent).with_suffix(""))
        content = path.read_text(encoding="utf-8")
        fences = list(
            re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", content, re.DOTALL | re.MULTILINE)
        )
        above = ""
        end = 0
        for fence in fences:
            above += content[end : fence.start()]
            end = fence.end()
            kind, block = fence.groups()
            marked = NOT_EXECUTED in " ".join(f"{above} {block}".split())
            if kind not in {"sh", "python", "console", "toml", "text"}:
                wrong.append((page, kind, block))
            elif kind == "text" and COMMAND.search(block) and not marked:
                wrong.append((page, "not marked", block))
            elif kind == "python" and page not in PYTHON and not marked:
                wrong.append((page, "not executed", block))
    assert wrong == []


@pytest.mark.parametrize("page", PYTHON)
def test_python_of_a_page_is_executed_by_a_test_that_names_it(page: str) -> None:
    assert "\n```python\n" in (DOCS.parent / f"{page}.md").read_text(encoding="utf-8")
    assert Path(page).name in (DOCS.parent / PYTHON[page]).read_text(encoding="utf-8")


def test_the_example_of_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks("how-to/experiment-files", "toml")
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
