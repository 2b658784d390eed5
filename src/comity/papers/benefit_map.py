"""When does which method help? The page and the picture of `comity/map`, made of its figures and of
nothing else.

All conclusions are drawn by rules, so that none can be older than the figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any
from xml.sax.saxutils import escape

from comity.measure.seeds import interval_over_seeds
from comity.papers.reproduction import Reproduction
from comity.spec import parse, split
from comity.units import size

MAP = "comity/map"
SOLO = "solo"
BY_CHANCE = 0.025
"""How often a 95% interval lies above zero where nothing is, and as often below."""
SLICES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Samples and label skew", ("plane-*",)),
    ("Feature shift", ("plane-30-10", "plane-100-10", "shift-*")),
    ("Number of parties", ("parties-5", "plane-30-0.3", "parties-30", "parties-100")),
    ("Digits", ("digits-*",)),
)
"""The map's tables: which columns each has, in this order; a column may stand in two."""


@dataclass(frozen=True)
class Help:
    """A method beside SOLO in one place of the map."""

    method: str
    values: Mapping[int, float]
    """The parties' mean accuracy in percent, by seed."""
    solo: Mapping[int, float]
    bytes: float
    """A party's part of all that crossed, mean over seeds."""

    @property
    def gains(self) -> list[float]:
        """Points above SOLO, by the seeds that both have."""
        return _less(self.values, self.solo)

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.gains)

    @property
    def sign(self) -> int:
        """1 if it clearly helps, -1 if it clearly hurts: if the 95% interval over seeds does not
        hold zero.
        """
        return _side(self.gains)

    @property
    def shown(self) -> str:
        """The gain and half of its interval's width, bold where the sign is clear."""
        if len(self.gains) < 2:
            return f"{self.mean:+.1f}"
        low, high = interval_over_seeds(self.gains)
        text = f"{self.mean:+.1f} ± {(high - low) / 2:.1f}"
        return f"**{text}**" if self.sign else text


@dataclass(frozen=True)
class Place:
    """One place of the map: a setting, SOLO there, and every method beside it."""

    title: str
    settings: Mapping[str, Any]
    solo: Mapping[int, float]
    methods: Sequence[Help]

    @property
    def best(self) -> Help | None:
        """The method with the largest gain of those that clearly help."""
        return max(
            (one for one in self.methods if one.sign > 0), key=lambda one: one.mean, default=None
        )

    @property
    def cheapest(self) -> Help | None:
        """Of those that clearly help and are not clearly worse than the best, the one that sends
        least.
        """
        if (best := self.best) is None:
            return None
        near = [
            one
            for one in self.methods
            if one.sign > 0 and _side(_less(best.values, one.values)) <= 0
        ]
        return min([best, *near], key=lambda one: one.bytes)

    @property
    def tested(self) -> int:
        """On how many samples each party is tested."""
        return int(_number(parse(str(self.settings["test"])).options["size"]))

    @property
    def at(self) -> tuple[float, float]:
        """Where it lies on the plane: samples a party, and alpha."""
        given = {
            spec.name: spec.options
            for spec in map(parse, split(str(self.settings["partition"]), "|"))
        }
        return _number(given["keep"]["samples"]), _number(given["mixture"]["alpha"])


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value


def _less(one: Mapping[int, float], two: Mapping[int, float]) -> list[float]:
    return [one[seed] - two[seed] for seed in one if seed in two]


def _side(differences: Sequence[float]) -> int:
    """On which side of zero the 95% interval lies; 0 if it holds zero, or one seed is all there is."""
    if len(differences) < 2:
        return 0
    low, high = interval_over_seeds(differences)
    return 1 if low > 0 else -1 if high < 0 else 0


def places(made: Reproduction) -> dict[str, Place]:
    """The map's places by column, as far as SOLO and a method were run there."""
    found: dict[str, Place] = {}
    for name in dict.fromkeys(cell.column.name for cell in made.cells):
        here = {
            cell.row.name: cell for cell in made.cells if cell.column.name == name and cell.figures
        }
        if SOLO not in here or len(here) < 2:
            continue
        values = {
            row: {seed: one.value for seed, one in cell.figures.items()}
            for row, cell in here.items()
        }
        settings = made.settings[here[SOLO].column.runs][SOLO]
        methods = []
        for row, cell in here.items():
            if row != SOLO and _less(values[row], values[SOLO]):
                each = statistics.fmean(one.bytes for one in cell.figures.values()) / int(
                    settings["parties"]
                )
                methods.append(Help(cell.row.title, values[row], values[SOLO], each))
        found[name] = Place(here[SOLO].column.title, settings, values[SOLO], methods)
    return found


def page(made: Reproduction) -> str:
    """The page: what was run, a table a slice, what to use where, and how sure that is."""
    found = places(made)
    table = made.table
    parts = [
        f"# {table.title}",
        made.origin,
        f"{len(found)} settings, seeds {', '.join(map(str, made.seeds))}.",
        table.notes,
        (
            "The tables have the parties' mean accuracy in points above SOLO, and half the width"
            " of its 95% interval over seeds (Student's t, paired by seed). **Bold**: the interval"
            f" does not hold zero, the method clearly helps or hurts. Over {len(made.seeds)} seeds"
            " intervals are wide: what is not bold may still be there."
        ),
        (
            "![The gain over SOLO by samples a party and label skew, a map a"
            " method](when-it-helps.svg)"
        ),
    ]
    for title, patterns in SLICES:
        if mine := _of(found, patterns):
            parts += [f"## {title}", _gains(mine), _use(mine)]
    return "\n\n".join([*parts, "## How sure is that?", *_sure(list(found.values()))]) + "\n"


def _of(found: Mapping[str, Place], patterns: Sequence[str]) -> list[Place]:
    return [
        place for pattern in patterns for name, place in found.items() if fnmatch(name, pattern)
    ]


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, rule, *rows])


def _titles(every: Sequence[Place]) -> list[str]:
    return list(dict.fromkeys(one.method for place in every for one in place.methods))


def _gains(mine: Sequence[Place]) -> str:
    titles = _titles(mine)
    rows = []
    for place in mine:
        by = {one.method: one.shown for one in place.methods}
        tested = f"{place.tested} × {place.settings['parties']}"
        rows.append(
            [
                place.title,
                tested,
                f"{statistics.fmean(place.solo.values()):.1f}",
                *(by.get(title, "") for title in titles),
            ]
        )
    return _markdown(["setting", "tested on (a party × parties)", "SOLO", *titles], rows)


def _use(mine: Sequence[Place]) -> str:
    """What to use where: the best that clearly helps, and the cheapest that is as good as far as
    seeds can tell.
    """
    rows = []
    for place in mine:
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
    return _markdown(
        ["setting", "best that clearly helps", "cheapest within noise of it", "its bytes a party"],
        rows,
    )


def _sure(every: Sequence[Place]) -> list[str]:
    """By method, how often it helps and hurts, and how much of that chance would do."""
    all_of = [one for place in every for one in place.methods]
    rows = []
    for title in _titles(every):
        mine = [one for one in all_of if one.method == title]
        up, down = (sum(one.sign == sign for one in mine) for sign in (1, -1))
        sent = statistics.median(one.bytes for one in mine)
        mean = statistics.fmean(one.mean for one in mine)
        rows.append(
            [
                title,
                f"{up} of {len(mine)}",
                f"{down} of {len(mine)}",
                f"{mean:+.1f}",
                size(round(sent)),
            ]
        )
    up, down = (sum(one.sign == sign for one in all_of) for sign in (1, -1))
    heads = [
        "method",
        "clearly helps",
        "clearly hurts",
        "mean gain, all settings",
        "bytes a party, median setting",
    ]
    chance = BY_CHANCE * len(all_of)
    told = (
        f"Of {len(all_of)} figures, {up} clearly help and {down} clearly hurt; if no method did"
        f" anything, about {chance:.0f} of each would come out so by chance. The best of several is"
        " named after looking, so its gain is flattered: trust what neighbouring settings repeat."
    )
    return [_markdown(heads, rows), told]


# The picture. Plain SVG, so that equal figures are equal bytes.

BLUE, WHITE, ORANGE = (33, 102, 172), (255, 255, 255), (217, 95, 2)
"""Helps, nothing, hurts: told apart by people who do not see red and green apart, too."""
MOST = 15
"""Points at which colours are full."""
ACROSS = 3
CELL = (58, 34)
PANEL = 292
FONT = "font-family='Helvetica, Arial, sans-serif'"


def picture(made: Reproduction) -> str:
    """A map a method over samples a party and label skew, coloured by the gain over SOLO."""
    plane = [place for name, place in places(made).items() if fnmatch(name, "plane-*")]
    samples, alphas = (sorted({place.at[axis] for place in plane}) for axis in (0, 1))
    titles = _titles(plane)
    at = {(one.method, *place.at): one for place in plane for one in place.methods}
    high = 46 + CELL[1] * len(samples)
    wide, tall = 12 + PANEL * ACROSS, 58 + (high + 20) * -(-len(titles) // ACROSS) + 46
    drawn = [
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
        drawn.append(_text(x + 42, y + 16, title, 15, "font-weight='bold'"))
        drawn += [
            _text(x + 42 + CELL[0] * (j + 0.5), y + 36, f"{a:g}", 12, "text-anchor='middle'")
            for j, a in enumerate(alphas)
        ]
        for i, n in enumerate(samples):
            drawn.append(
                _text(
                    x + 36, y + 43 + CELL[1] * (i + 0.5) + 4, f"{n:,.0f}", 12, "text-anchor='end'"
                )
            )
            for j, a in enumerate(alphas):
                drawn += _square(x + 42 + CELL[0] * j, y + 43 + CELL[1] * i, at.get((title, n, a)))
    drawn += _legend(12, tall - 30, len(made.seeds))
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{wide}' height='{tall}' viewBox='0 0"
        f" {wide} {tall}' role='img' {FONT}>"
    )
    about = "<title>Gain over SOLO by samples a party and label skew, for each method</title>"
    return (
        "\n".join(
            [head, about, f"<rect width='{wide}' height='{tall}' fill='#fff'/>", *drawn, "</svg>"]
        )
        + "\n"
    )


def colour(gain: float) -> str:
    """White at nothing, blue where it helps, orange where it hurts."""
    part = min(1.0, abs(gain) / MOST)
    end = BLUE if gain > 0 else ORANGE
    return "#" + "".join(
        f"{round(w + part * (c - w)):02x}" for w, c in zip(WHITE, end, strict=True)
    )


def _text(x: float, y: float, text: str, points: int, more: str = "", fill: str = "#111") -> str:
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='{points}' fill='{fill}' {more}>{escape(text)}</text>"
    )


def _square(x: float, y: float, one: Help | None) -> list[str]:
    """A place: bold where the sign is clear, in brackets where it is not, a dash where nothing was
    run.
    """
    inner = f"x='{x + 1:g}' y='{y + 1:g}' width='{CELL[0] - 2}' height='{CELL[1] - 2}'"
    middle = x + CELL[0] / 2, y + CELL[1] / 2 + 5
    if one is None:
        return [
            f"<rect {inner} fill='#fff' stroke='#ddd'/>",
            _text(*middle, "–", 13, "text-anchor='middle'", "#888"),
        ]
    text, weight = (f"{one.mean:+.1f}", "bold") if one.sign else (f"({one.mean:+.1f})", "normal")
    fill = "#fff" if one.mean > 0.6 * MOST else "#111"
    more = f"text-anchor='middle' font-weight='{weight}'"
    return [
        f"<rect {inner} fill='{colour(one.mean)}' stroke='#ddd'/>",
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
    told = (
        f"bold: clear, by the 95% interval over {seeds} paired seeds; (in brackets): may be chance;"
        " –: not run"
    )
    return [*bars, _text(x + 34 * 7 + 16, y + 13, told, 13, fill="#444")]
