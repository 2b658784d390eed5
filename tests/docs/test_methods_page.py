"""The page of all methods is generated from their cards, and every card has a line for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from comity import algorithms

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", algorithms.names())
def test_every_card_has_a_line_for_the_table(name: str) -> None:
    card = algorithms.card(name)
    assert list(card.glance) == ["personal", "exchanged", "kept", "steps"]
    assert card.bytes
    assert card.title.endswith((".", "?", ")"))


def test_page_matches_the_cards() -> None:
    spec = importlib.util.spec_from_file_location(
        "methods_page", ROOT / "docs" / "site" / "methods.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), (
        "run: python docs/site/methods.py"
    )
