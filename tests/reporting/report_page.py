"""A parser of report.html: its elements, its text, its charts and their data; and small runs."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from comity.runs.config import experiment
from comity.runs.server_run import Quiet
from comity.studies.compare import compare
from comity.studies.method_summary import MethodSummary

ELEMENTS_WITHOUT_END = {"meta", "link", "img", "input"}
SMALL: dict[str, Any] = {
    "partition": "iid|keep(samples=40)", "parties": 3, "rounds": 2, "model": "mlp2(width=8)", "engine": "loop",
}  # fmt: skip


REGRESSION_DATA = """
import numpy as np, torch
from comity.data import Dataset
from comity.data.groups import Groups

def load():
    rng = np.random.default_rng(0)
    site = np.arange(150) % 3
    x = rng.normal(size=(150, 4)) + site[:, None]
    y = 10 + 5 * site + x @ np.array([2.0, 1.0, 0.0, -1.0]) + rng.normal(size=150) / 4
    return Dataset("days", torch.tensor(x), torch.tensor(y), 0, groups={"ward": Groups(("east", "north", "west"), site)},
                   default_partition="natural(by=ward)", scale="own", scaled=(0, 1, 2, 3))
"""


class ReportPage(HTMLParser):
    """`report.html`, parsed. Every element must be closed, in the right order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.tables_by_name: dict[str, list[list[list[str]]]] = {}
        """The same tables by name; a page with several settings has several tables of one name."""
        self.notes: list[str] = []
        self.scripts: list[str] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert not self._open, f"not closed: {self._open}"
        self.content = json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"an attribute is there twice: {tag} {attrs}"
        self.elements.append((tag, attributes))
        if tag == "table":
            self.tables.append([])
            self.tables_by_name.setdefault(str(attributes["data-name"]), []).append(self.tables[-1])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif attributes.get("role") == "note":
            self.notes.append("")
        elif tag == "script":
            self.scripts.append("")
        if tag not in ELEMENTS_WITHOUT_END:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> without a beginning"
        assert self._open.pop() == tag, f"</{tag}> out of order"

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "script":
            self.scripts[-1] += data
            return
        if inside == "style":
            return
        self.words += data
        if inside in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif inside == "p" and self.notes and self.elements[-1][1].get("role") == "note":
            self.notes[-1] += data

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements and the names of their attributes, without values and text."""
        return [(tag, tuple(attributes)) for tag, attributes in self.elements]

    @property
    def charts(self) -> dict[str, Any]:
        """Charts by their place in the page."""
        charts: dict[str, Any] = self.content["charts"]
        return charts

    def chart(self, name: str) -> dict[str, Any]:
        """The one chart of that name."""
        (match,) = (chart for chart in self.charts.values() if chart["name"] == name)
        return dict(match)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A table of data, row by row, as page.js unpacks it."""
        columns = {
            column: (
                [None if k < 0 else values["words"][k] for k in values["at"]]
                if isinstance(values, dict)
                else values
            )
            for column, values in self.content["data"][name].items()
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def table(self, first: str) -> list[dict[str, str]]:
        """The rows of the first table that has this column, by the heads of its columns."""
        (heads, *rows), *_ = [t for t in self.tables if first in t[0]]
        return [dict(zip(heads, row, strict=True)) for row in rows]

    def records(self, name: str, setting: int = 0) -> list[dict[str, str]]:
        """The rows of the table with this name, by the heads of its columns."""
        heads, *rows = self.tables_by_name[name][setting]
        return [dict(zip(heads, row, strict=True)) for row in rows]

    @property
    def sections(self) -> dict[str, list[str]]:
        """Names of the sections, by the setting in their address."""
        names: dict[str, list[str]] = {}
        for tag, attributes in self.elements:
            if tag == "section" and "data-part" in attributes:
                setting, _, name = str(attributes["id"]).rpartition("/")
                assert name == attributes["data-part"]
                names.setdefault(setting, []).append(name)
        return names

    @property
    def failed_sections(self) -> set[str]:
        """Names of the sections that could not be built."""
        sections = re.findall(
            r'<section id="[^"]*" data-part="(\w+)"(.*?)</section>', self.source, flags=re.DOTALL
        )
        assert sections
        return {name for name, body in sections if "This part cannot be shown" in body}


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def run_comparison(
    folder: Path,
    methods: Sequence[str],
    seeds: Sequence[int] = (0,),
    plain: str = "auto",
    **settings: Any,
) -> list[MethodSummary]:
    """Run a small comparison with SOLO."""
    base = experiment(SMALL | settings)
    return compare(
        base, methods, seeds, folder, lambda _: Quiet(), lambda _: None, plain=plain
    ).rows


def run_regression_comparison(folder: Path) -> None:
    """Run a small comparison on regression data: days in hospital, at three wards with different
    means.
    """
    path = folder.parent / "days.py"
    path.write_text(REGRESSION_DATA, encoding="utf-8")
    run_comparison(folder, ["fedavg"], data=str(path), partition="auto", lr=0.02)


def without_checksums(folder: Path) -> None:
    """Remove the checksums from runs, so that a test can change their files unnoticed."""
    for path in folder.rglob(".checksums.json"):
        path.unlink()
    for path in folder.rglob("env.json"):
        content = {k: v for k, v in read_json(path).items() if k not in ("crc", "config", "split")}
        path.write_text(json.dumps(content), encoding="utf-8")
