"""Hostile names of parties, methods, classes and folders stay text in a report, and a report loads
nothing from the network.
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
from report_page import SMALL, ReportPage, run_comparison, without_checksums

from comity import run
from comity.charts.chart import Chart
from comity.reporting import build_sections, report
from comity.reporting.gather import gather
from comity.reporting.static import figure

HOSTILE_NAMES = [
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
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    run_comparison(folder, ["fed-sps"])
    return folder


def rename_party(folder: Path, old: str, new: str) -> None:
    """Rename a party in all files of all runs."""

    def replace_name(text: str) -> str:
        return new if text == old else text.replace(f"/{old}", f"/{new}")

    without_checksums(folder)
    for path in folder.rglob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            table = [[replace_name(cell) for cell in row] for row in csv.reader(file)]
        with path.open("w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
    for path in [*folder.rglob("summary.json"), *folder.rglob("split.json")]:
        path.write_text(
            path.read_text(encoding="utf-8").replace(f'"{old}":', f"{json.dumps(new)}:"),
            encoding="utf-8",
        )
    comparison_path = folder / "comparison.json"
    text = comparison_path.read_text(encoding="utf-8").replace(
        f'"party": "{old}"', f'"party": {json.dumps(new)}'
    )
    comparison_path.write_text(text, encoding="utf-8")


def chart_svgs(folder: Path) -> dict[str, str]:
    """Every chart as SVG, by its name."""
    svgs = {}
    for group in gather(folder):
        for section in build_sections(group, folder, [], None, True, False):
            for block in section.blocks:
                if isinstance(block, Chart):
                    svgs[block.name] = vl_convert.vegalite_to_svg(figure(block, group.names))
    return svgs


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_party_name_stays_text(name: str, plain_folder: Path, tmp_path: Path) -> None:
    """The page has the same elements and attributes as with a harmless name."""
    folder = Path(shutil.copytree(plain_folder, tmp_path / "it"))
    rename_party(folder, "p1", name)
    before, after = (
        ReportPage(report(plain_folder, quick=True)),
        ReportPage(report(folder, quick=True)),
    )
    if name.isprintable() and name:
        assert after.shape == before.shape
        assert name in after.content["data"]["bytes-by-party"]["party"]["words"]
        assert name in after.content["data"]["sizes"]["party"]["words"] or name == "__proto__"
    assert not after.failed_sections
    assert len(after.scripts) == 3
    assert set(after.content) == {"charts", "data", "themes", "config"}


FOLDERS = [name for name in HOSTILE_NAMES if "/" not in name and name and "\ud800" not in name]


@pytest.mark.parametrize("name", FOLDERS)
def test_hostile_method_name_stays_text(name: str, plain_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(plain_folder, tmp_path / name))
    (folder / "fed-sps").rename(folder / name)
    comparison_text = (folder / "comparison.json").read_text(encoding="utf-8")
    (folder / "comparison.json").write_text(
        comparison_text.replace('"algorithm": "fed-sps"', '"algorithm": "solo"'), encoding="utf-8"
    )
    before, after = (
        ReportPage(report(plain_folder, quick=True)),
        ReportPage(report(folder, quick=True)),
    )
    assert after.shape == before.shape
    assert not after.failed_sections
    checkboxes = [
        attributes for tag, attributes in after.elements if attributes.get("type") == "checkbox"
    ]
    assert [attributes["value"] for attributes in checkboxes] == [
        "solo",
        name.replace("\r\n", "\n"),
    ]


@pytest.mark.long
def test_charts_with_hostile_names(plain_folder: Path, tmp_path: Path) -> None:
    """With hostile names, charts draw as many shapes as with plain names."""
    folder = Path(shutil.copytree(plain_folder, tmp_path / "it"))
    for old, new in (("p0", HOSTILE_NAMES[2]), ("p1", HOSTILE_NAMES[3]), ("p2", HOSTILE_NAMES[1])):
        rename_party(folder, old, new)
    (folder / "fed-sps").rename(folder / HOSTILE_NAMES[2])
    before, after = chart_svgs(plain_folder), chart_svgs(folder)
    assert len(after) == len(before)

    def shape_counts(svg: str) -> list[int]:
        return [
            len(re.findall("aria-roledescription", svg)),
            svg.count("<path"),
            svg.count("<line"),
        ]

    assert [shape_counts(svg) for svg in after.values()] == [
        shape_counts(svg) for svg in before.values()
    ]
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
def test_hostile_warnings_and_class_names_stay_text(tmp_path: Path) -> None:
    pages = []
    for k, names in enumerate((["note one", "a", "b", "c", "note two"], HOSTILE_NAMES)):
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
        pages.append(ReportPage(report(tmp_path / f"r{k}", methods=[])))
        assert names[0] in pages[k].words
        assert {row["class"] for row in pages[k].rows("classes")} == set(names[1:4])
    assert pages[0].shape == pages[1].shape
    assert len(pages[1].notes) == 1, "only that there is no SOLO"


def test_page_loads_nothing_from_the_network(plain_folder: Path, library: str) -> None:
    page = ReportPage(report(plain_folder, methods=["fed-sps"]))
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} {name}"
            if name in ("src", "href", "srcset", "action", "data", "poster", "formaction"):
                assert str(value).startswith(("#", "data:")), f"{tag} {name}={value}"
        assert tag not in ("iframe", "object", "embed", "base", "form")
    pictures = [attributes for tag, attributes in page.elements if tag == "img"]
    assert len(pictures) == 3
    assert all(attributes["alt"] for attributes in pictures)
    (style,) = re.findall(r"<style>(.*?)</style>", page.source, flags=re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    shell = page.source.replace(library, "")
    assert len(shell) < len(page.source) - 500_000
    assert set(re.findall(r"https?://[^\s\"'<]+", shell)) <= {
        "https://vega.github.io/schema/vega-lite/v6.json"
    }  # a name only


def test_hostile_folder_name_stays_text(tmp_path: Path) -> None:
    """In the title, and in the commands to copy, where it is quoted for a shell."""
    folder = tmp_path / 'it\'s <b>"mine"'
    run("fedavg", out=folder, **SMALL)
    page = ReportPage(report(folder, quick=True))
    assert f"comity report {shlex.quote(str(folder))}" in page.words
    assert not any(tag == "b" for tag, _ in page.elements)
