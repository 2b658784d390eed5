"""What the page's charts share: the methods' colours, and words around charts."""

from __future__ import annotations

from collections.abc import Container, Sequence

from comity.charts.chart import VegaSpec
from comity.reporting.gather import RunGroup

DISTINGUISHABLE = 8
"""How many colours of methods, or shapes of points, a reader can tell apart."""
MAX_PARTIES = 60
"""The most parties in a chart that has a line for each: more do not fit."""


def method_colours(group: RunGroup) -> dict[str, str]:
    """Return the colour of each method, which is the same on the whole page. SOLO is grey."""
    numbers = _assign_colours(group.page or [group])
    return {m.name: "@grey" if m.alone else f"@c{numbers[m.name]}" for m in group.methods}


def _assign_colours(groups: Sequence[RunGroup]) -> dict[str, int]:
    """Return a colour number for each method of a page.

    If the colours do not suffice, methods that never occur in the same group share one first.
    """
    numbers: dict[str, int] = {}
    for name in dict.fromkeys(m.name for group in groups for m in group.others):
        neighbours = {
            numbers.get(m.name) for group in groups if name in group.names for m in group.others
        }
        used = list(numbers.values())
        numbers[name] = min(
            range(DISTINGUISHABLE),
            key=lambda number: (number in neighbours, used.count(number), number),
        )
    return numbers


def colour_by_method(
    group: RunGroup, legend: bool = False, only: Sequence[str] | None = None
) -> VegaSpec:
    """Return the colour encoding by method, for all methods of a group or `only` some of them.

    The page needs no `legend`, since its boxes are one. A figure in a file does.
    """
    colours = {
        method: colour
        for method, colour in method_colours(group).items()
        if only is None or method in only
    }
    scale: VegaSpec = {"domain": list(colours), "range": list(colours.values())}
    return {
        "field": "method",
        "type": "nominal",
        "scale": scale,
        "legend": {"title": None} if legend else None,
    }


def capitalize_first(title: str) -> str:
    """Return the text with its first letter in upper case and the rest unchanged."""
    return title[:1].upper() + title[1:]


def first_parties(count: int, most: int = MAX_PARTIES) -> str:
    """Return a sentence about a chart that shows only the first parties; empty if it shows all."""
    return f"The first {most} of {count} parties are drawn." if count > most else ""


def unique_name(name: str, used: Container[str]) -> str:
    """Return the name, with a number appended if it is in use.

    Names are not unique by themselves: users choose the names of their methods' diagnostics.
    """
    candidate = name
    count = 1
    while candidate in used:
        count += 1
        candidate = f"{name}-{count}"
    return candidate
