"""Every example is short, runs, draws the figure that it names, and is on the page of examples with
that figure.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "examples.md"


def module_in(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GALLERY: Any = module_in(ROOT / "docs" / "site" / "examples.py")
SHORT = ("hospital_tables", "peer_to_peer", "private")
LONG = ("sensors", "writers", "text_lora", "public_encoder")


def test_the_page_has_every_example_with_its_picture() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in GALLERY.NAMES:
        assert f"](../examples/{name}.py)" in page or f"`examples/{name}.py`" in page, name
    pictures = [PAGE.parent / link for link in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)]
    assert {path.stem for path in pictures} <= set(GALLERY.NAMES)
    assert len(pictures) >= 7
    for path in pictures:
        assert path.read_text(encoding="utf-8").startswith("<svg"), path


@pytest.mark.parametrize("name", GALLERY.NAMES)
def test_an_example_is_short_and_says_how_to_run_it(name: str) -> None:
    text = GALLERY.script(name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert f"python examples/{name}.py [folder]" in text


def check_example(name: str, out: Path) -> None:
    module = module_in(GALLERY.script(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one round is too few for most
        module.main(out, rounds=1)
    assert GALLERY.figure(name, out).read_text(encoding="utf-8").startswith("<svg")
    assert list(out.rglob("report.html"))


@pytest.mark.parametrize("name", SHORT)
def test_an_example_draws_its_picture(name: str, tmp_path: Path) -> None:
    check_example(name, tmp_path / "out")


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_a_longer_example_draws_its_picture(name: str, tmp_path: Path) -> None:
    check_example(name, tmp_path / "out")


@pytest.mark.sites
@pytest.mark.skipif(
    not os.environ.get("COMITY_SITES"), reason="needs NVIDIA FLARE: make test-sites"
)
def test_the_example_between_sites(tmp_path: Path) -> None:
    check_example("at_sites", tmp_path / "out")


def test_each_example_is_tested_once() -> None:
    assert sorted((*SHORT, *LONG, "at_sites")) == sorted(GALLERY.NAMES)
