"""CITATION.cff agrees with pyproject.toml and the files of the methods."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_citation_matches_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert CITATION["version"] == project["version"]
    assert CITATION["license"] == project["license"]
    assert CITATION["abstract"].rstrip(".") == project["description"]
    assert {"cff-version", "message", "title", "authors"} <= CITATION.keys()


@pytest.mark.parametrize(
    ("method", "who", "year"),
    [("adcol", "Li", 2023), ("fedufo", "Zhang", 2021), ("dbe", "Zhang", 2023), ("fed_sps", "Anonymous authors", None),
     ("relay", "Berdoz", 2022)],
)  # fmt: skip
def test_citation_of_the_five_papers(method: str, who: str, year: int | None) -> None:
    (paper,) = [
        p
        for p in CITATION["references"]
        if p.get("year") == year
        and p["authors"][0].get("family-names", p["authors"][0].get("name")) == who
    ]
    source = (ROOT / "src" / "comity" / "algorithms" / f"{method}.py").read_text(encoding="utf-8")
    first = " ".join(source.partition("\n\n")[0].split())
    assert "anonymous" in first if year is None else re.search(rf"{who}\b.*{year}", first)
    assert paper["title"]
