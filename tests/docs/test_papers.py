"""The pages of the papers: they name every option, their commands run, and the files they name
exist.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from comity import algorithms, cli

ROOT = Path(__file__).parents[2]
PAGES = {
    "adcol": ["adcol"],
    "fedufo": ["fedufo", "feduad"],
    "dbe": ["dbe", "prbm", "mr"],
    "fed-sps": ["fed-sps"],
    "relay": ["relay", "relay-p2p"],
}


def text(page: str) -> str:
    return (ROOT / "docs" / "reference" / "methods" / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_option_is_on_the_page(page: str) -> None:
    documented = set(re.findall(r"`(\w+)`", text(page)))
    options = {
        name for method in PAGES[page] for name in algorithms.options(algorithms.find(method))
    }
    assert options
    assert not options - documented


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    page_text = text(page)
    for name in re.findall(r"`((?:algorithms|components)/[\w/]+\.py)`", page_text):
        assert (ROOT / "src" / "comity" / name).is_file(), name
    for name in re.findall(r"`((?:tests/\w+/)?test_\w+\.py)`", page_text):
        assert list((ROOT / "tests").rglob(Path(name).name)), name
    for module, name in re.findall(r"`components/(\w+)\.([A-Za-z_]+)`", page_text):
        if name != "py":
            assert hasattr(__import__(f"comity.components.{module}", fromlist=[name]), name), (
                f"{module}.{name}"
            )


@pytest.mark.sweep("fedufo", "relay")
@pytest.mark.parametrize("page", PAGES)
def test_commands_on_a_page_work(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", text(page), flags=re.DOTALL)
        for line in block.splitlines()
    ]
    assert lines
    for k, line in enumerate(lines):
        shorter = re.sub(
            r"--seeds \S+",
            "--seeds 0",
            re.sub(r"--epochs \S+", "--epochs 1", re.sub(r"--rounds \S+", "", line)),
        )
        fewer = re.sub(r'--partition "(.+?)"', r'--partition "\1|keep(fraction=0.3)"', shorter)
        program, *words = shlex.split(fewer, comments=True)
        words += [] if "--partition" in words else ["--partition", "iid|keep(fraction=0.3)"]
        assert program == "comity"
        monkeypatch.setattr(
            "sys.argv", [program, *words, "--rounds", "1", "--out", str(tmp_path / str(k))]
        )
        cli.main()  # raises SystemExit on errors
        assert any((tmp_path / str(k)).rglob("summary.json")), line
