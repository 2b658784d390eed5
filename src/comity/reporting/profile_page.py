"""profile.html: the profiles of all parties side by side, in one file that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from comity.data.profiles import Profile, ProfiledColumn, findings
from comity.data.profiles.findings import missing_share
from comity.data.profiles.profile import QUANTILES, WORDS, Bin, bin_text
from comity.safe_files import write_atomically

PAGE, DATA = "profile.html", "profile.json"
WITHHELD = "withheld"
HEIGHT = 20.0
"""The height of a histogram, in units of its drawing."""
WITHHELD_HEIGHT = 1.5
TICKS = 4
READING = (
    "The bins of a column are the same for all parties, and are drawn with equal widths. They begin"
    " at round numbers, and are wider far from the usual values."
)
PROTECTED = (
    " Counts of few records are withheld (grey), and may be part of the count beside them."
    " Quantiles are read off the histogram."
)


def write_profile(profile: Profile, folder: Path) -> Path:
    """Write profile.json and profile.html to a folder, and return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    profile.save(folder / DATA)
    write_atomically(folder / PAGE, page(profile))
    return folder / PAGE


def page(profile: Profile) -> str:
    """The content of profile.html."""
    from jinja2 import Environment

    assets = files("comity.reporting")
    template = (assets / "profile.html").read_text(encoding="utf-8")
    protections = {str(party.protection) for party in profile.parties.values()}
    is_protected = protections != {"exact"}
    facts = {
        "Rows": ", ".join(f"{name} {p.rows:,}" for name, p in profile.parties.items()) or "none",
        "Figures": "; ".join(
            f"{name}: {party.protection}" for name, party in profile.parties.items()
        )
        if len(protections) > 1
        else next(iter(protections), "none"),
    }
    text = (
        Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            title=f"Profile of {profile.name}",
            css=(assets / "page.css").read_text(encoding="utf-8"),
            facts=facts,
            findings=findings(profile),
            refusals=[f"{name} sent no profile: {why}" for name, why in profile.refusals.items()],
            columns=[_column(profile, column) for column in profile.columns],
            withheld=WITHHELD,
            note=READING + (PROTECTED if is_protected else ""),
            version=version("comity"),
        )
    )
    return text.encode("utf-8", "replace").decode()  # names may hold lone surrogates


def _column(profile: Profile, column: ProfiledColumn) -> dict[str, Any]:
    unit = f" ({column.unit})" if column.unit else ""
    title = f"{column.name}{unit}" + (", the label" if column.is_label else "")
    rows = _word_rows if column.kind == WORDS else _number_rows
    heads, cells = rows(profile, column)
    return {"title": title, "heads": heads, "rows": cells}


def _word_rows(profile: Profile, column: ProfiledColumn) -> tuple[list[str], list[list[str]]]:
    """One row for each word, one column for each party."""

    def cell(party: str, count: int | None) -> str:
        rows = profile.parties[party].rows
        return WITHHELD if count is None else f"{count:,} ({min(1, count / max(1, rows)):.0%})"

    by_party = {name: party.columns[column.name] for name, party in profile.parties.items()}
    rows = [
        [word, *(cell(name, own.counts[word]) for name, own in by_party.items())]
        for word in column.words
    ]
    missing = ["missing", *(cell(name, own.missing) for name, own in by_party.items())]
    return ["", *by_party], rows if column.is_label else [*rows, missing]


def _number_rows(profile: Profile, column: ProfiledColumn) -> tuple[list[str], list[list[Any]]]:
    """One row for each party: missing values, quantiles and the histogram."""
    by_party = {name: party.columns[column.name] for name, party in profile.parties.items()}
    axis = Axis([cell for own in by_party.values() for cell in own.histogram])
    rows: list[list[Any]] = []
    for name, own in by_party.items():
        share = missing_share(profile.parties[name], column.name)
        quantiles = [*own.quantiles, *[None] * len(QUANTILES)][: len(QUANTILES)]
        rows.append(
            [
                name,
                WITHHELD if share is None else f"{share:.0%}",
                *("·" if value is None else f"{value:.4g}" for value in quantiles),
                axis.draw(own.histogram),
            ]
        )
    return ["", "missing", *(f"{q:.0%}" for q in QUANTILES), "histogram"], rows


class Axis:
    """The horizontal axis of a column's histograms: one slot of equal width for each bin.

    Args:
        cells: the bins of all parties
    """

    def __init__(self, cells: Sequence[Bin]) -> None:
        edges = sorted({e for low, high, _ in cells for e in (low, high) if e is not None})
        with_rows = [cell for cell in cells if cell.rows]
        lowest = min((self._low(edges, cell) for cell in with_rows), default=0)
        highest = max((self._high(edges, cell) for cell in with_rows), default=1)
        self._edges = edges
        self._first, self._width = lowest, highest - lowest

    @staticmethod
    def _low(edges: Sequence[float], cell: Bin) -> int:
        return 0 if cell.low is None else edges.index(cell.low) + 1

    @staticmethod
    def _high(edges: Sequence[float], cell: Bin) -> int:
        return len(edges) + 1 if cell.high is None else edges.index(cell.high) + 1

    def draw(self, histogram: Sequence[Bin]) -> dict[str, Any]:
        """The bars of a party's histogram. Their areas are the shares of its values."""
        places = [
            (
                max(0, self._low(self._edges, cell) - self._first),
                min(self._width, self._high(self._edges, cell) - self._first),
                cell,
            )
            for cell in histogram
        ]
        visible = [(left, right, cell) for left, right, cell in places if right > left]
        heights = [(cell.rows or 0) / (right - left) for left, right, cell in visible]
        tallest = max(heights, default=0.0) or 1.0
        bars: list[dict[str, Any]] = []
        for (left, right, cell), height in zip(visible, heights, strict=True):
            is_shown = cell.rows is not None
            tall = HEIGHT * height / tallest if is_shown else WITHHELD_HEIGHT
            rows = f"{cell.rows:,} rows" if is_shown else WITHHELD
            bars.append(
                {
                    "x": left,
                    "width": round(right - left - 0.06, 2),
                    "y": round(HEIGHT - tall, 2),
                    "height": round(tall, 2),
                    "shown": is_shown,
                    "text": f"{bin_text(cell.low, cell.high)}: {rows}",
                }
            )
        return {
            "width": self._width,
            "bars": bars,
            "ticks": self._ticks(),
            "alt": "; ".join(bar["text"] for bar in bars if bar["shown"]) or "no values",
        }

    def _ticks(self) -> list[str]:
        """Some edges, from the first slot to the last one."""
        slots = [round(self._first + self._width * k / TICKS) for k in range(TICKS + 1)]
        edges: list[float | None] = [None, *self._edges, None]
        return [
            "" if (edge := edges[min(slot, len(edges) - 1)]) is None else f"{edge:g}"
            for slot in slots
        ]
