"""The page and the picture of `comity/map`: in which settings which method helps.

All conclusions on the page are computed from the figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any
from xml.sax.saxutils import escape

from comity.measure.seeds import interval_over_seeds
from comity.names import SOLO
from comity.papers.reproduction import Reproduction
from comity.spec import parse, split
from comity.text import markdown_table
from comity.units import size

MAP = "comity/map"
BY_CHANCE = 0.025
"""The probability that a 95% interval lies above zero without any effect; as likely below."""
SLICES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Samples and label skew", ("plane-*",)),
    ("Feature shift", ("plane-30-10", "plane-100-10", "shift-*")),
    ("Number of parties", ("parties-5", "plane-30-0.3", "parties-30", "parties-100")),
    ("Digits", ("digits-*",)),
)
"""The tables of the page, with the patterns of their columns; a column may be in two."""


@dataclass(frozen=True)
class MethodGain:
    """A method and SOLO in one place of the map."""

    method: str
    values: Mapping[int, float]
    """The parties' mean accuracy in percent, by seed."""
    solo: Mapping[int, float]
    bytes: float
    """The bytes per party, mean over seeds."""

    @property
    def gains(self) -> list[float]:
        """The gains over SOLO in points, for the seeds that both have."""
        return _differences(self.values, self.solo)

    @property
    def mean(self) -> float:
        """The mean gain over seeds."""
        return statistics.fmean(self.gains)

    @property
    def sign(self) -> int:
        """1 or -1 if the 95% interval of the gain over seeds lies above or below zero, else 0."""
        return _sign(self.gains)

    @property
    def text(self) -> str:
        """The gain and half the width of its interval, in bold where the sign is clear."""
        interval = interval_over_seeds(self.gains)
        if interval is None:
            return f"{self.mean:+.1f}"
        low, high = interval
        text = f"{self.mean:+.1f} ± {(high - low) / 2:.1f}"
        return f"**{text}**" if self.sign else text


@dataclass(frozen=True)
class Place:
    """One place of the map: a setting, SOLO's accuracy, and the gains of all methods."""

    title: str
    settings: Mapping[str, Any]
    solo: Mapping[int, float]
    methods: Sequence[MethodGain]

    @property
    def best(self) -> MethodGain | None:
        """The method with the largest gain among those that clearly help."""
        return max(
            (method for method in self.methods if method.sign > 0),
            key=lambda method: method.mean,
            default=None,
        )

    @property
    def cheapest(self) -> MethodGain | None:
        """The method with the fewest bytes among those that clearly help and are not clearly worse
        than the best.
        """
        if (best := self.best) is None:
            return None
        near = [
            method
            for method in self.methods
            if method.sign > 0 and _sign(_differences(best.values, method.values)) <= 0
        ]
        return min([best, *near], key=lambda method: method.bytes)

    @property
    def tested(self) -> int:
        """The number of test samples of each party."""
        return int(_number(parse(str(self.settings["test"])).options["size"]))

    @property
    def at(self) -> tuple[float, float]:
        """Its coordinates on the plane: training samples per party, and alpha."""
        options = {
            spec.name: spec.options
            for spec in map(parse, split(str(self.settings["partition"]), "|"))
        }
        return _number(options["keep"]["samples"]), _number(options["mixture"]["alpha"])


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value


def _differences(values: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    return [values[seed] - base[seed] for seed in values if seed in base]


def _sign(differences: Sequence[float]) -> int:
    """Return the sign of the 95% interval; 0 if it contains zero, or there are too few seeds."""
    interval = interval_over_seeds(differences)
    if interval is None:
        return 0
    low, high = interval
    return 1 if low > 0 else -1 if high < 0 else 0


def places(reproduction: Reproduction) -> dict[str, Place]:
    """Return the places of the map by column, where SOLO and at least one method were run."""
    by_column: dict[str, Place] = {}
    for name in dict.fromkeys(cell.column.name for cell in reproduction.cells):
        here = {
            cell.row.name: cell
            for cell in reproduction.cells
            if cell.column.name == name and cell.figures
        }
        if SOLO not in here or len(here) < 2:
            continue
        values = {
            row: {seed: figure.value for seed, figure in cell.figures.items()}
            for row, cell in here.items()
        }
        settings = reproduction.settings[here[SOLO].column.runs][SOLO]
        methods = []
        for row, cell in here.items():
            if row != SOLO and _differences(values[row], values[SOLO]):
                total = statistics.fmean(figure.bytes for figure in cell.figures.values())
                per_party = total / int(settings["parties"])
                methods.append(MethodGain(cell.row.title, values[row], values[SOLO], per_party))
        by_column[name] = Place(here[SOLO].column.title, settings, values[SOLO], methods)
    return by_column


def page(reproduction: Reproduction) -> str:
    """Return the page: what was run, tables of gains and recommendations, and their certainty."""
    all_places = places(reproduction)
    seeds = len(reproduction.seeds)
    table = reproduction.table
    parts = [
        f"# {table.title}",
        reproduction.origin,
        f"{len(all_places)} settings, seeds {', '.join(map(str, reproduction.seeds))}.",
        table.notes,
        (
            "The tables have the parties' mean accuracy in points above SOLO, and half the width"
            " of its 95% interval over seeds (Student's t, paired by seed). **Bold**: the interval"
            f" does not hold zero, the method clearly helps or hurts. Over {seeds} seeds"
            " intervals are wide: what is not bold may still be there."
        ),
        (
            "![The gain over SOLO by samples a party and label skew, a map a"
            " method](when-it-helps.svg)"
        ),
    ]
    for title, patterns in SLICES:
        if selected := _matching(all_places, patterns):
            parts += [f"## {title}", _gains(selected), _recommendations(selected)]
    return (
        "\n\n".join([*parts, "## How sure is that?", *_certainty(list(all_places.values()))]) + "\n"
    )


def _matching(by_column: Mapping[str, Place], patterns: Sequence[str]) -> list[Place]:
    return [
        place for pattern in patterns for name, place in by_column.items() if fnmatch(name, pattern)
    ]


def numeric_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown whose columns after the first are numbers."""
    return markdown_table(heads, rows, numeric=range(1, len(heads)))


def _titles(selected: Sequence[Place]) -> list[str]:
    return list(dict.fromkeys(gain.method for place in selected for gain in place.methods))


def _gains(selected: Sequence[Place]) -> str:
    titles = _titles(selected)
    rows = []
    for place in selected:
        by_method = {gain.method: gain.text for gain in place.methods}
        tested = f"{place.tested} × {place.settings['parties']}"
        rows.append(
            [
                place.title,
                tested,
                f"{statistics.fmean(place.solo.values()):.1f}",
                *(by_method.get(title, "") for title in titles),
            ]
        )
    return numeric_table(["setting", "tested on (a party × parties)", "SOLO", *titles], rows)


def _recommendations(selected: Sequence[Place]) -> str:
    """Return a table with the best method that clearly helps, and the cheapest as good as it."""
    rows = []
    for place in selected:
        best, cheapest = place.best, place.cheapest
        if best is None or cheapest is None:
            rows.append([place.title, "stay alone: nothing clearly helps", "", ""])
        else:
            rows.append(
                [
                    place.title,
                    f"{best.method} ({best.mean:+.1f})",
                    cheapest.method,
                    size(round(cheapest.bytes)),
                ]
            )
    return numeric_table(
        ["setting", "best that clearly helps", "cheapest within noise of it", "its bytes a party"],
        rows,
    )


def _certainty(selected: Sequence[Place]) -> list[str]:
    """Return how often each method helps and hurts, and how often that is expected by chance."""
    all_gains = [gain for place in selected for gain in place.methods]
    rows = []
    for title in _titles(selected):
        of_method = [gain for gain in all_gains if gain.method == title]
        up, down = (sum(gain.sign == sign for gain in of_method) for sign in (1, -1))
        per_party = statistics.median(gain.bytes for gain in of_method)
        mean = statistics.fmean(gain.mean for gain in of_method)
        rows.append(
            [
                title,
                f"{up} of {len(of_method)}",
                f"{down} of {len(of_method)}",
                f"{mean:+.1f}",
                size(round(per_party)),
            ]
        )
    up, down = (sum(gain.sign == sign for gain in all_gains) for sign in (1, -1))
    heads = [
        "method",
        "clearly helps",
        "clearly hurts",
        "mean gain, all settings",
        "bytes a party, median setting",
    ]
    chance = BY_CHANCE * len(all_gains)
    text = (
        f"Of {len(all_gains)} figures, {up} clearly help and {down} clearly hurt; if no method did"
        f" anything, about {chance:.0f} of each would come out so by chance. The best of several is"
        " named after looking, so its gain is flattered: trust what neighbouring settings repeat."
    )
    return [numeric_table(heads, rows), text]


# The picture is a file of the repository, which a test compares with the data. It is written as
# plain SVG and not by `comity.charts`, so that equal figures give equal bytes: the SVG that
# vl-convert writes depends on its version and on the machine's fonts.

BLUE, WHITE, ORANGE = (33, 102, 172), (255, 255, 255), (217, 95, 2)
"""Colours for help, no effect and hurt that people with red-green blindness can distinguish."""
MOST = 15
"""The gain in points at which colours are saturated."""
ACROSS = 3
CELL = (58, 34)
PANEL = 292
FONT = "font-family='Helvetica, Arial, sans-serif'"


def picture(reproduction: Reproduction) -> str:
    """Return one map per method over samples per party and label skew, coloured by the gain."""
    plane = [place for name, place in places(reproduction).items() if fnmatch(name, "plane-*")]
    samples, alphas = (sorted({place.at[axis] for place in plane}) for axis in (0, 1))
    titles = _titles(plane)
    at = {(gain.method, *place.at): gain for place in plane for gain in place.methods}
    high = 46 + CELL[1] * len(samples)
    wide, tall = 12 + PANEL * ACROSS, 58 + (high + 20) * -(-len(titles) // ACROSS) + 46
    elements = [
        _text(12, 24, "Accuracy above training alone (SOLO), in points", 17, "font-weight='bold'"),
        _text(
            12,
            44,
            "rows: training samples a party; columns: label skew, alpha (small: a party has few"
            " classes)",
            13,
            fill="#444",
        ),
    ]
    for k, title in enumerate(titles):
        x, y = 12 + PANEL * (k % ACROSS), 62 + (high + 20) * (k // ACROSS)
        elements.append(_text(x + 42, y + 16, title, 15, "font-weight='bold'"))
        elements += [
            _text(x + 42 + CELL[0] * (j + 0.5), y + 36, f"{a:g}", 12, "text-anchor='middle'")
            for j, a in enumerate(alphas)
        ]
        for i, n in enumerate(samples):
            elements.append(
                _text(
                    x + 36, y + 43 + CELL[1] * (i + 0.5) + 4, f"{n:,.0f}", 12, "text-anchor='end'"
                )
            )
            for j, a in enumerate(alphas):
                elements += _square(
                    x + 42 + CELL[0] * j, y + 43 + CELL[1] * i, at.get((title, n, a))
                )
    elements += _legend(12, tall - 30, len(reproduction.seeds))
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{wide}' height='{tall}' viewBox='0 0"
        f" {wide} {tall}' role='img' {FONT}>"
    )
    about = "<title>Gain over SOLO by samples a party and label skew, for each method</title>"
    return (
        "\n".join(
            [
                head,
                about,
                f"<rect width='{wide}' height='{tall}' fill='#fff'/>",
                *elements,
                "</svg>",
            ]
        )
        + "\n"
    )


def colour(gain: float) -> str:
    """Return the colour of a gain: blue above zero, orange below, white at zero."""
    saturation = min(1.0, abs(gain) / MOST)
    end = BLUE if gain > 0 else ORANGE
    return "#" + "".join(
        f"{round(w + saturation * (c - w)):02x}" for w, c in zip(WHITE, end, strict=True)
    )


def _text(x: float, y: float, text: str, points: int, more: str = "", fill: str = "#111") -> str:
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='{points}' fill='{fill}' {more}>{escape(text)}</text>"
    )


def _square(x: float, y: float, gain: MethodGain | None) -> list[str]:
    """Return a cell: bold where the sign is clear, else in brackets; a dash where nothing ran."""
    inner = f"x='{x + 1:g}' y='{y + 1:g}' width='{CELL[0] - 2}' height='{CELL[1] - 2}'"
    middle = x + CELL[0] / 2, y + CELL[1] / 2 + 5
    if gain is None:
        return [
            f"<rect {inner} fill='#fff' stroke='#ddd'/>",
            _text(*middle, "–", 13, "text-anchor='middle'", "#888"),
        ]
    text, weight = (f"{gain.mean:+.1f}", "bold") if gain.sign else (f"({gain.mean:+.1f})", "normal")
    fill = "#fff" if gain.mean > 0.6 * MOST else "#111"
    more = f"text-anchor='middle' font-weight='{weight}'"
    return [
        f"<rect {inner} fill='{colour(gain.mean)}' stroke='#ddd'/>",
        _text(*middle, text.replace("-", "−"), 13, more, fill),
    ]


def _legend(x: float, y: float, seeds: int) -> list[str]:
    bars = []
    for k, gain in enumerate(range(-MOST, MOST + 1, 5)):
        bars.append(
            f"<rect x='{x + 34 * k:g}' y='{y:g}' width='34' height='18' fill='{colour(gain)}'"
            " stroke='#ddd'/>"
        )
        text = f"{gain:+d}".replace("-", "−").replace("+0", "0")
        bars.append(
            _text(
                x + 34 * k + 17,
                y + 13,
                text,
                11,
                "text-anchor='middle'",
                "#fff" if gain > 0.6 * MOST else "#111",
            )
        )
    text_below = (
        f"bold: clear, by the 95% interval over {seeds} paired seeds; (in brackets): may be chance;"
        " –: not run"
    )
    return [*bars, _text(x + 34 * 7 + 16, y + 13, text_below, 13, fill="#444")]
