"""Tables and sentences as HTML for notebooks, in light and dark themes.

`view` renders an object. Folders register how their objects look: an object of a lower folder can
so be shown with what only a higher folder knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import singledispatch
from html import escape

CELL = "padding:2px 7px;text-align:{};border:0;background:transparent;white-space:nowrap"


@singledispatch
def view(value: object) -> str:
    """Return an object as HTML. Without a registered view, that is its text."""
    return page(repr(value))


def page(title: str, *parts: str) -> str:
    """Return a title with parts below it."""
    return (
        '<div style="font-size:90%"><div'
        f' style="font-weight:bold">{escape(title)}</div>{"".join(parts)}</div>'
    )


def sentences(texts: Iterable[str]) -> str:
    """Return sentences below each other, in a fainter colour."""
    return "".join(f'<div style="opacity:.8;max-width:60em">{escape(text)}</div>' for text in texts)


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: int = 1,
    shade: Callable[[int, int], float] | None = None,
    folded: Collection[int] = (),
) -> str:
    """Return a table.

    Args:
        heads: the heads of the columns
        rows: the rows of cells
        words: how many columns at the left hold words instead of figures
        shade: returns the opacity of a cell's background, from 0 to 1, by row and column
        folded: columns whose text may wrap
    """

    def cell(k: int, text: str, tag: str, opacity: float = 0.0) -> str:
        style = CELL.format("left" if k < words else "right")
        style += f";background:rgba(47,125,225,{opacity:.2f})" if opacity else ""
        style += ";white-space:normal" if k in folded else ""
        return f'<{tag} style="{style}">{escape(text)}</{tag}>'

    head = "".join(cell(k, text, "th") for k, text in enumerate(heads))
    body = "".join(
        "<tr>"
        + "".join(cell(k, text, "td", shade(r, k) if shade else 0.0) for k, text in enumerate(row))
        + "</tr>"
        for r, row in enumerate(rows)
    )
    return (
        '<table style="border-collapse:collapse;margin:4px 0"><thead style="border-bottom:1px'
        f' solid currentColor"><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def shorten(names: Sequence[str], most: int = 12) -> tuple[list[str], int]:
    """Return the first and the last of many names, and how many are left out between them."""
    if len(names) <= most:
        return list(names), 0
    return [*names[: most // 2], *names[-(most // 2) :]], len(names) - most // 2 * 2
