"""Writes docs/reference/methods.md, a table of every method, from their cards:
`python docs/site/methods.py`. A test compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path

from comity import algorithms
from comity.algorithms import Card
from comity.text import markdown_table

PAGE = Path(__file__).parents[1] / "reference" / "methods.md"
PAGES = {"adcol", "fedufo", "dbe", "fed-sps", "relay"}
INTRO = """\
# All methods

Made from the methods' cards by `python docs/site/methods.py`; `comity show NAME` prints a card: idea, equations, options,
deviations. Experimental methods follow a paper that could not be read in full. `+NAME` is a wrapper, which goes around another method: `comity run fedavg+dbe`. E is the number of epochs in a round.
In the closed forms of bytes, S_t is the round's parties, S the bytes of the weights that are shared, N the number of parties, C of
classes.
"""
HEAD = (
    "method",
    "year",
    "paper",
    "personal",
    "exchanged in a round",
    "bytes over a run",
    "kept between rounds",
    "gradient steps",
)


def year(title: str) -> str:
    """When a paper came out, as its card's first line says; a yardstick has none."""
    found = re.findall(r"\b(?:19|20)\d\d\b", title)
    return found[-1] if found else ""


def row(card: Card) -> tuple[str, ...]:
    """A method's row."""
    name = f"+{card.name}" if card.wrapper else card.name
    shown = f"[{name}](methods/{card.name}.md)" if card.name in PAGES else name
    if card.experimental:
        shown += " (experimental)"
    told = card.glance
    return (
        shown,
        year(card.title),
        card.title,
        told["personal"],
        told["exchanged"],
        card.bytes,
        told["kept"],
        told["steps"],
    )


def page() -> str:
    """The whole page: methods in the order of their years, then wrappers."""
    cards = sorted(
        (algorithms.card(name) for name in algorithms.names()),
        key=lambda c: (c.wrapper, year(c.title), c.name),
    )
    return f"{INTRO}\n{markdown_table(HEAD, map(row, cards))}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
