"""Names come from folders, files and people: whatever they are, they stay text. And the page asks
nobody for anything.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import vl_convert
from written import SMALL, Written, compared, without_checksums

from comity import run
from comity.charts.chart import Chart
from comity.reporting import build_sections, report
from comity.reporting.gather import gather
from comity.reporting.static import figure

EVIL = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' || true || '",
    "back\\slash \\u003c \\' \\\" \\",
    "two\nlines\r\nand\ttabs",
    "{{ 7 * 7 }} {% raw %} ${x} <!-- ]]>",
    "ünï 方法 \u202eright\u202c \U0001f600 \u2028",
    "lone \ud800 surrogate",
    "",
    "solo ",
    "__proto__",
    "constructor",
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    compared(folder, ["fed-sps"])
    return folder


def renamed(folder: Path, old: str, new: str) -> None:
    """Another name for a party, in all files of all runs."""

    def other(text: str) -> str:
        return new if text == old else text.replace(f"/{old}", f"/{new}")

    without_checksums(folder)
    for path in folder.rglob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            table = [[other(cell) for cell in row] for row in csv.reader(file)]
        with path.open("w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
    for path in [*folder.rglob("summary.json"), *folder.rglob("split.json")]:
        path.write_text(
            path.read_text(encoding="utf-8").replace(f'"{old}":', f"{json.dumps(new)}:"),
            encoding="utf-8",
        )
    told = folder / "comparison.json"
    text = told.read_text(encoding="utf-8").replace(
        f'"party": "{old}"', f'"party": {json.dumps(new)}'
    )
    told.write_text(text, encoding="utf-8")


def drawn(folder: Path) -> dict[str, str]:
    """Every chart as svg."""
    found = {}
    for group in gather(folder):
        for section in build_sections(group, folder, [], None, True, False):
            for block in section.blocks:
                if isinstance(block, Chart):
                    found[block.name] = vl_convert.vegalite_to_svg(figure(block, group))
    return found


@pytest.mark.parametrize("name", EVIL)
def test_a_partys_name(name: str, plain: Path, tmp_path: Path) -> None:
    """The page has the same elements and attributes as with a harmless name."""
    folder = Path(shutil.copytree(plain, tmp_path / "it"))
    renamed(folder, "p1", name)
    before, after = Written(report(plain, quick=True)), Written(report(folder, quick=True))
    if name.isprintable() and name:
        assert after.shape == before.shape
        assert name in after.content["data"]["bytes-by-party"]["party"]["words"]
        assert name in after.content["data"]["sizes"]["party"]["words"] or name == "__proto__"
    assert not after.broken
    assert len(after.scripts) == 3
    assert set(after.content) == {"charts", "data", "themes", "config"}


FOLDERS = [name for name in EVIL if "/" not in name and name and "\ud800" not in name]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_methods_name(name: str, plain: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / name))
    (folder / "fed-sps").rename(folder / name)
    told = (folder / "comparison.json").read_text(encoding="utf-8")
    (folder / "comparison.json").write_text(
        told.replace('"algorithm": "fed-sps"', '"algorithm": "solo"'), encoding="utf-8"
    )
    before, after = Written(report(plain, quick=True)), Written(report(folder, quick=True))
    assert after.shape == before.shape
    assert not after.broken
    box = [given for tag, given in after.elements if given.get("type") == "checkbox"]
    assert [given["value"] for given in box] == ["solo", name.replace("\r\n", "\n")]


@pytest.mark.long
def test_charts_with_all_these_names(plain: Path, tmp_path: Path) -> None:
    """Expressions, sorting and scales take names as they are: nothing is lost, nothing breaks."""
    folder = Path(shutil.copytree(plain, tmp_path / "it"))
    for old, new in (("p0", EVIL[2]), ("p1", EVIL[3]), ("p2", EVIL[1])):
        renamed(folder, old, new)
    (folder / "fed-sps").rename(folder / EVIL[2])
    before, after = drawn(plain), drawn(folder)
    assert len(after) == len(before)

    def counted(svg: str) -> list[int]:
        return [
            len(re.findall("aria-roledescription", svg)),
            svg.count("<path"),
            svg.count("<line"),
        ]

    assert [counted(svg) for svg in after.values()] == [counted(svg) for svg in before.values()]
    sizes = after["sizes"]
    assert "back\\slash" in sizes
    assert "&#39; || true" in sizes or "' || true" in sizes


DATA = """
import numpy as np, torch
from comity.data import Dataset
from comity.data.groups import Groups

def load():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = rng.normal(size=(90, 4)) + y[:, None]
    return Dataset("evil", torch.tensor(x), torch.tensor(y), 3, warnings=(NAMES[0], NAMES[4]), class_names=tuple(NAMES[1:4]),
                   groups={"site": Groups(("northern", "southern"), np.arange(90) % 2)}, default_partition="natural(by=site)")
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_data_with_notes_and_class_names(tmp_path: Path) -> None:
    pages = []
    for k, names in enumerate((["note one", "a", "b", "c", "note two"], EVIL)):
        path = tmp_path / f"data{k}.py"
        path.write_text(f"NAMES = {names!r}\n{DATA}", encoding="utf-8")
        run(
            "fedavg",
            out=tmp_path / f"r{k}",
            data=str(path),
            model="linear",
            rounds=1,
            engine="loop",
        )
        pages.append(Written(report(tmp_path / f"r{k}", methods=[])))
        assert names[0] in pages[k].words
        assert {row["class"] for row in pages[k].rows("classes")} == set(names[1:4])
    assert pages[0].shape == pages[1].shape
    assert len(pages[1].notes) == 1, "only that there is no SOLO"


def test_nothing_is_asked_of_anyone(plain: Path, library: str) -> None:
    page = Written(report(plain, methods=["fed-sps"]))
    for tag, given in page.elements:
        for name, value in given.items():
            assert not name.startswith("on"), f"{tag} {name}"
            if name in ("src", "href", "srcset", "action", "data", "poster", "formaction"):
                assert str(value).startswith(("#", "data:")), f"{tag} {name}={value}"
        assert tag not in ("iframe", "object", "embed", "base", "form")
    pictures = [given for tag, given in page.elements if tag == "img"]
    assert len(pictures) == 3
    assert all(given["alt"] for given in pictures)
    (style,) = re.findall(r"<style>(.*?)</style>", page.source, flags=re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    shell = page.source.replace(library, "")
    assert len(shell) < len(page.source) - 500_000
    assert set(re.findall(r"https?://[^\s\"'<]+", shell)) <= {
        "https://vega.github.io/schema/vega-lite/v6.json"
    }  # a name only


def test_the_folders_own_name(tmp_path: Path) -> None:
    """In the title, and in the commands to copy, where a shell must understand it."""
    folder = tmp_path / 'it\'s <b>"mine"'
    run("fedavg", out=folder, **SMALL)
    page = Written(report(folder, quick=True))
    assert f"comity report {shlex.quote(str(folder))}" in page.words
    assert not any(tag == "b" for tag, _ in page.elements)
