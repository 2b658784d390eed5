"""Charts in a notebook are pictures in the notebook's own colours: nothing in them runs, and
nothing in one can be confused with a part of another.
"""

from __future__ import annotations

import re

from comity.charts.curves import Curves
from comity.charts.themes import EITHER
from comity.notebook.pictures import show_curves

SHOWN = show_curves(Curves("Test <b> & more", {'"a"': {0: 0.1, 3: 0.5}, "b": {0: 0.2, 3: 0.75}}))


def test_there_is_a_title_and_a_description() -> None:
    assert ">Test &lt;b&gt; &amp; more by round</div>" in SHOWN
    assert (
        'role="img" aria-label="Test &lt;b&gt; &amp; more by round: &quot;a&quot; ends at 50.0%, b'
        ' ends at 75.0%."' in SHOWN
    )


def test_it_has_no_scripts_and_no_names_that_another_picture_has() -> None:
    assert not re.search(r"<script|<style|\bid=|\bon\w+=|href", SHOWN)


def test_text_has_the_notebooks_colour_and_lines_have_those_of_both_themes() -> None:
    texts = re.findall(r"<text [^>]*>", SHOWN)
    assert texts
    assert all('fill="currentColor"' in text for text in texts)
    known = {*EITHER.values(), "none"}
    assert set(re.findall(r'(?:fill|stroke)="([^"]*)"', SHOWN)) <= known


def test_without_a_value_there_is_no_picture() -> None:
    assert show_curves(Curves("Test accuracy", {"a": {}})) == ""
