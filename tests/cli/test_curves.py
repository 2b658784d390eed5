"""Text plots: every value is drawn where the axis says, on any terminal; output to a program has
none.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from harness import ESCAPE, SMALL, Nursery, comity, frames, on_terminal, succeed, summary
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from comity.charts.curves import Curves, Line, percent_scale
from comity.cli import text_plot
from comity.cli.text_plot import COLOURS, MARKS, draw


def curves(lines: Mapping[str, Line], rounds: int = 0) -> Curves:
    return Curves("mean accuracy", lines, rounds)


def text(lines: Mapping[str, Line], rounds: int = 0, **how: object) -> list[str]:
    return [row.plain for row in draw(curves(lines, rounds), **how)]  # type: ignore[arg-type]


def console(encoding: str = "utf-8", colours: bool = True) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(
        file=file, width=80, force_terminal=colours, color_system="standard" if colours else None
    )


def test_plain_plot_of_five_points() -> None:
    """From 0 to 100 in four rounds, one character for each point."""
    plot = text({"a": {t: t / 4 for t in range(5)}}, width=5, height=5, plain=True)
    assert [row.rstrip() for row in plot] == [
        "mean accuracy",
        " 100% +    *",
        "  75% +   *",
        "  50% +  *",
        "  25% + *",
        "   0% +*",
        "      +-----",
        "       0 2 4  round",
    ]


def test_braille_dots_of_two_lines() -> None:
    """Two characters of two by four dots each: a line from top to bottom, and a level line at the
    top.
    """
    canvas = text_plot.Canvas(2, 1, plain=False)
    canvas.polyline([(0, 0), (1, 1)], 0)
    assert canvas.line(0).plain == "⠑⢄"
    canvas.polyline([(0, 0), (1, 0)], 1)
    assert canvas.line(0).plain == "⠉⠉"  # the later line is in front


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40), st.booleans())
@example([0.0] * 5 + [0.890625] + [0.0] * 23, False)
def test_every_value_is_where_the_axis_says(values: list[float], plain: bool) -> None:
    """At each point's column there is a character whose row is at most one row away from the
    value.
    """
    plot = text({"a": dict(enumerate(values))}, width=60, plain=plain)
    field = [
        row for row in plot[1:] if re.match(r" *(\d+%)? [|+│┤]", row) and not row.endswith("--")
    ]
    marks = {
        k: int(match[1]) for k, row in enumerate(field) if (match := re.match(r" *(\d+)% ", row))
    }
    top, bottom = marks[0], marks[len(field) - 1]
    assert top - bottom >= 5
    assert bottom <= 100 * min(values)
    assert 100 * max(values) <= top
    assert len({b - a for a, b in zip(list(marks), list(marks)[1:], strict=False)}) == 1
    high = (top - bottom) / (len(field) - 1)
    for t, value in enumerate(values):
        dots = 1 if plain else 2  # per character, horizontally
        column = 7 + round(t / (len(values) - 1) * (60 * dots - 1)) // dots
        near = [
            k
            for k, row in enumerate(field)
            if row[column] != " " and abs(top - k * high - 100 * value) <= high
        ]
        assert near, f"{value} is not drawn at round {t}"


@pytest.mark.parametrize(
    ("low", "high", "axis"),
    [(0, 100, (0, 100, 25)), (12, 92, (0, 100, 20)), (95, 95.3, (94, 100, 2)), (100, 100, (94, 100, 2)), (0, 0, (0, 6, 2)),
     (50, 60, (50, 60, 5)), (88.1, 91.9, (88, 94, 2)), (-310, 50, (-400, 100, 100))],
)  # fmt: skip
def test_the_axis_ends_on_round_figures(
    low: float, high: float, axis: tuple[int, int, int]
) -> None:
    assert percent_scale([low / 100, high / 100]) == axis


def test_one_evaluation_is_no_curve() -> None:
    assert draw(curves({"a": {3: 0.5}})) == []
    assert draw(curves({})) == []
    assert "b" not in "".join(text({"a": {0: 0.1, 1: 0.5}, "b": {1: 0.4}})[-1:])


def test_values_that_are_not_finite_are_left_out() -> None:
    assert text({"a": {0: 0.1, 1: float("nan"), 2: 0.5}}) == text({"a": {0: 0.1, 2: 0.5}})
    assert draw(curves({"a": {0: float("nan"), 1: float("inf")}})) == []


def test_a_span_of_more_than_a_hundred_points() -> None:
    """Explained variance has no least value."""
    drawn = text({"a": {0: -3.1, 1: 0.5}})
    assert [row.split()[0] for row in drawn if "%" in row] == [
        "100%",
        "0%",
        "-100%",
        "-200%",
        "-300%",
        "-400%",
    ]


def test_only_evaluated_rounds_are_points() -> None:
    """A line with values in rounds 0 and 8 is straight between them."""
    sparse, dense = ({t: t / 8 for t in range(0, 9, step)} for step in (8, 1))
    assert text({"a": sparse}, width=9, height=9, plain=True) == text(
        {"a": dense}, width=9, height=9, plain=True
    )


def test_several_have_colours_and_a_legend() -> None:
    lines = {"solo": {0: 0.1, 9: 0.4}, "fedavg": {0: 0.1, 9: 0.8}}
    plot = draw(curves(lines))
    assert plot[-1].plain.split() == ["━━", "solo", "40.0%", "━━", "fedavg", "80.0%"]
    for row, value in (("40%", COLOURS[0]), ("80%", COLOURS[1])):
        line = next(text for text in plot if text.plain.strip().startswith(row))
        assert {str(span.style) for span in line.spans if line.plain[span.start] != " "} >= {value}
    legend = "".join(text(lines, plain=True)[-1:])
    assert f"{MARKS[0]} solo 40.0%" in legend
    assert f"{MARKS[1]} fedavg 80.0%" in legend


def test_only_the_best_eight_of_eleven_curves_are_drawn() -> None:
    lines = {f"m{k}": {0: 0.0, 1: k / 20} for k in range(11)}
    plot = text(lines)
    assert plot[-1].strip() == "the best 8 of 11 by their last value"
    assert set(re.findall(r"m\d+", "".join(plot))) == {f"m{k}" for k in range(3, 11)}


def test_the_axis_reaches_the_last_round_to_come() -> None:
    plot = text({"a": {0: 0.0, 10: 1.0}}, rounds=40)
    assert plot[-1].split() == ["0", "20", "40", "round"]
    assert all(row[7 + 16 :].strip() == "" for row in plot[1:9])


@pytest.mark.parametrize(
    ("screen", "term", "braille"),
    [(console(), "xterm", True), (console("ascii"), "xterm", False), (console("latin-1"), "xterm", False),
     (console(), "linux", False), (console(), "dumb", False), (console(colours=False), "xterm", True)],
    ids=["able", "ascii", "latin-1", "linux console", "dumb", "no colours"],
)  # fmt: skip
def test_ascii_plot_without_unicode_support(
    screen: Console, term: str, braille: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    plot = "".join(row.plain for row in text_plot.plot_for(screen, curves({"a": {0: 0.1, 5: 0.9}})))
    assert plot
    assert any(ord(sign) >= 0x2800 for sign in plot) == braille
    assert plot.isascii() != braille


def test_without_colours_curves_have_different_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    lines = {"a": {0: 0.1, 5: 0.9}, "b": {0: 0.1, 5: 0.5}}
    assert "".join(
        row.plain for row in text_plot.plot_for(console(colours=False), curves(lines))
    ).isascii()
    assert not "".join(row.plain for row in text_plot.plot_for(console(), curves(lines))).isascii()


def test_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for width in (10, 29, 30, 50, 200):
        plot = text_plot.plot_for(
            Console(width=width, file=io.StringIO()), curves({"a": {0: 0.1, 100: 0.9}})
        )
        assert all(row.cell_len <= width for row in plot)
        assert bool(plot) == (width >= 30)


# --- At the end of a run ----------------------------------------------------------------------------------------------


def test_curve_is_drawn_on_a_terminal_only(nursery: Nursery, tmp_path: Path) -> None:
    code, output = on_terminal(nursery, "run", "fedavg", *SMALL, "--out", tmp_path / "run")
    assert code == 0
    lines = frames(output)
    assert "mean accuracy" in lines
    assert any(0x2800 < ord(sign) < 0x2900 for sign in output)
    assert next(line for line in lines if line.endswith(" round")).split() == [
        "0",
        "1",
        "2",
        "round",
    ]
    last = ESCAPE.sub("", output).splitlines()[-15:]
    assert all(
        len(line) <= 80 for line in last if not line.startswith("The run is in")
    )  # the folder's name may be long
    code, again = on_terminal(nursery, "resume", tmp_path / "run")
    assert (code, "mean accuracy" in frames(again)) == (0, True)
    result = nursery.run("resume", tmp_path / "run")
    assert len(result.out.splitlines()) == 4
    assert result.out.splitlines()[-1] == f"The run is in {tmp_path / 'run'}"


def test_compare_draws_a_curve_for_each_method(nursery: Nursery, tmp_path: Path) -> None:
    succeed("compare", "fedavg", *SMALL, "--seeds", "0,1", "--out", tmp_path)
    code, output = on_terminal(
        nursery, "compare", "fedavg", *SMALL, "--seeds", "0,1", "--out", tmp_path
    )
    assert code == 0
    legend = next(line for line in frames(output) if "━━ solo" in line)
    for method in ("solo", "fedavg"):
        means = [summary(tmp_path / method / f"seed-{seed}")["accuracy"]["mean"] for seed in (0, 1)]
        assert f"{method} {sum(means) / 2:.1%}" in legend
    assert (
        "mean accuracy"
        not in comity("compare", "fedavg", *SMALL, "--seeds", "0,1", "--out", tmp_path).out
    )
