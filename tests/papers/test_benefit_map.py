"""The benefit map: its rules, its page and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from comity import papers
from comity.papers import benefit_map, pages
from comity.papers.benefit_map import MethodGain, Place
from comity.papers.cells import Cell, Figure
from comity.papers.reproduction import Reproduction

TABLE = papers.table(benefit_map.MAP)
ROWS = {row.name: row for row in TABLE.rows}


def reproduction_of(
    figures: Mapping[str, Mapping[str, tuple[Sequence[float], int]]],
) -> Reproduction:
    """A reproduction of the map with these figures (one per seed) and bytes, by column and row."""
    columns = {column.name: column for column in TABLE.columns}
    cells = [
        Cell(
            columns[c],
            ROWS[r],
            {seed: Figure(value, 20, total_bytes, 1.0) for seed, value in enumerate(values)},
        )
        for c, rows in figures.items()
        for r, (values, total_bytes) in rows.items()
    ]
    settings = {
        c: {r: TABLE.run_settings(c, ROWS[r], "reduced") for r in rows}
        for c, rows in figures.items()
    }
    return Reproduction(
        benefit_map.MAP,
        "reduced",
        "comity reproduce comity/map",
        "abc",
        60.0,
        10**8,
        {},
        settings,
        cells,
    )


ALONE = ([70.0, 71.0, 72.0], 0)
EXAMPLE = reproduction_of(
    {
        "plane-10-0.05": {
            "solo": ALONE,
            "fedavg": ([60.0, 61.5, 61.7], 1000),
            "fed-sps": ([75.0, 76.2, 76.9], 9000),
            "relay": ([74.8, 76.1, 77.0], 40),
        },
        "plane-100-10": {"solo": ALONE, "fedavg": ([60.0, 80.0, 71.0], 1000)},
        "parties-5": {
            "solo": ALONE,
            "fedavg": ([80.0, 81.1, 82.0], 1000),
            "relay": ([72.0, 73.1, 74.0], 40),
        },
    }
)


def test_gain_is_paired_by_seed_with_student_t_interval() -> None:
    gain = MethodGain("x", {0: 75.0, 1: 76.2, 2: 76.9}, {0: 70.0, 1: 71.0, 2: 72.0}, 0)
    # differences 5.0, 5.2, 4.9: mean 5.0333, deviation 0.15275; 4.3027 * 0.15275 / sqrt(3) = 0.3795
    assert gain.text == "**+5.0 ± 0.4**"
    assert gain.sign == 1
    assert MethodGain("x", {0: 60.0, 1: 80.0, 2: 71.0}, gain.solo, 0).sign == 0
    assert MethodGain("x", {2: 62.0, 1: 61.5, 0: 60.0}, gain.solo, 0).sign == -1


def test_gain_of_two_seeds_has_no_sign() -> None:
    """As claims and the board, the map has intervals from three seeds on."""
    gain = MethodGain("FedAvg", {0: 61.0, 1: 61.1}, {0: 60.0, 1: 60.1}, 1.0)
    assert gain.sign == 0
    assert gain.text == "+1.0"


def test_gain_of_one_seed_has_no_sign() -> None:
    gain = MethodGain("x", {0: 99.0}, {0: 1.0}, 0)
    assert gain.sign == 0
    assert gain.text == "+98.0"


def test_best_and_cheapest_method_of_a_place() -> None:
    places = benefit_map.places(EXAMPLE)
    small = places["plane-10-0.05"]
    assert small.best
    assert small.cheapest
    assert (small.best.method, small.cheapest.method) == ("Fed-SPS", "relay")
    five = places["parties-5"]  # relay clearly helps, but clearly less than FedAvg
    assert five.best
    assert five.cheapest
    assert five.best.method == five.cheapest.method == "FedAvg"
    assert five.best.bytes == 1000 / 5
    assert places["plane-100-10"].best is None
    assert places["plane-100-10"].cheapest is None


def test_page_of_the_map() -> None:
    text = benefit_map.page(EXAMPLE)
    assert (
        "| 10 samples, alpha 0.05 | 200 × 10 | 71.0 | **-9.9 ± 1.0** | **+5.0 ± 0.4** | **+5.0 ±"
        " 0.4** |" in text
    )
    assert "| 10 samples, alpha 0.05 | Fed-SPS (+5.0) | relay | 4 B |" in text
    assert "| 100 samples, alpha 10 | stay alone: nothing clearly helps |  |  |" in text
    assert "Of 6 figures, 4 clearly help and 1 clearly hurt" in text
    assert "## Digits" not in text


def test_picture_has_a_map_for_each_method() -> None:
    svg = benefit_map.picture(EXAMPLE)
    texts = [
        node.text for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert texts.count("FedAvg") == texts.count("relay") == 1
    assert "−9.9" in texts
    assert "(−0.7)" in texts
    assert svg == benefit_map.picture(EXAMPLE)


def test_colours_of_gains_and_losses() -> None:
    assert benefit_map.colour(0) == "#ffffff"
    assert benefit_map.colour(benefit_map.MOST) == benefit_map.colour(99) == "#2166ac"
    assert benefit_map.colour(-99) == "#d95f02"


def test_every_slice_names_columns_of_the_map() -> None:
    settings = {
        column.name: TABLE.run_settings(column.name, ROWS["solo"], "full")
        for column in TABLE.columns
    }
    by_column = {name: Place(name, of_column, {}, ()) for name, of_column in settings.items()}
    titles = [
        place.title
        for _, patterns in benefit_map.SLICES
        for place in benefit_map._matching(by_column, patterns)
    ]
    assert set(titles) == set(by_column)
    assert all(by_column[name].tested and by_column[name].at for name in by_column)
    assert by_column["plane-300-0.05"].at == (300, 0.05)


def test_file_names() -> None:
    assert set(pages.files(EXAMPLE)) == {"when-it-helps.md", "when-it-helps.svg"}
