"""What a reader reads: names instead of numbers, one colour a method, one scale for what is
compared, titles that are true.
"""

from __future__ import annotations

import base64
import csv
import re
import statistics
import struct
import zlib
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from written import Written, amounts, compared, loaded

from comity.data import load
from comity.reporting import report
from comity.reporting.charts import DISTINGUISHABLE, method_colours
from comity.reporting.gather import Group, Method
from comity.reporting.readable import Run

KINDS = ("none", "invert", "rotate", "noise", "contrast", "blur")


@pytest.fixture(scope="module")
def heart(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("heart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comity.reporting.page.library", lambda: "")
        patch.setattr("comity.reporting.sections.space.SAMPLES", 48)
        compared(
            folder,
            ["fedavg"],
            data="heart",
            partition="auto",
            parties=4,
            model="mlp2(width=4)",
            metric="auc",
            rounds=1,
        )
        return Written(report(folder))


@pytest.fixture(scope="module")
def sensors(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Two settings on one page: sensors that see differently, and classes that are shared out
    unevenly.
    """
    folder = tmp_path_factory.mktemp("sensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comity.reporting.page.library", lambda: "")
        patch.setattr("comity.reporting.sections.space.SAMPLES", 48)
        shift = f"iid|shift(kinds={','.join(KINDS)})|keep(samples=60)"
        compared(
            folder / "feature skew", ["fedavg", "adcol", "fedavg+dbe"], partition=shift, parties=6
        )
        compared(
            folder / "label-skew",
            ["fedprox", "adcol", "fedavg"],
            partition="dirichlet(alpha=0.3)|keep(samples=60)",
        )
        return Written(report(folder, methods=["adcol", "fedavg"]))


# Names.


def hospital_means(column: str) -> dict[str, float]:
    """Of the training samples of each hospital, from the files that come with Comity; they stand
    one after another.
    """
    split = load("heart").partition("auto", parties=4, seed=0).split
    found = {}
    first = 0
    for party, share in split.parties.items():
        text = (files("comity.data") / "embedded" / "heart" / f"{party}.csv").read_text(
            encoding="utf-8"
        )
        cells = [row[column] for row in csv.DictReader(text.splitlines())]
        mine = [cells[k - first] for k in share.train]
        found[party] = statistics.fmean(float(cell) for cell in mine if cell)
        first += len(cells)
    return found


def test_features_have_their_names_and_their_figures(heart: Written) -> None:
    rows = heart.rows("features")
    named = {row["feature"] for row in rows}
    assert {"age", "chest_pain=asymptomatic", "cholesterol missing"} <= named
    assert not [name for name in named if re.fullmatch(r"x\d+", name)]
    for column in ("age", "max_heart_rate"):
        drawn = {row["party"]: row["mean"] for row in rows if row["feature"] == column}
        assert drawn == pytest.approx(hospital_means(column), rel=1e-4), "in the column's own unit"


def test_what_was_filled_in_is_no_ones_mean(heart: Written) -> None:
    """Switzerland never measured cholesterol: what models get in its place must not look like a
    finding.
    """
    drawn = {
        row["party"]: row["mean"]
        for row in heart.rows("features")
        if row["feature"] == "cholesterol"
    }
    assert "switzerland" not in drawn
    vessels = {
        row["party"]: row["mean"] for row in heart.rows("features") if row["feature"] == "vessels"
    }
    measured = hospital_means("vessels")
    assert all(vessels[party] == pytest.approx(measured[party], rel=1e-4) for party in vessels)
    assert vessels


def test_each_settings_answer_stands_first_and_leads_there(
    sensors: Written, heart: Written
) -> None:
    told = {name: loaded(path)["overall"]["helps"] for name, path in sensors_comparisons(sensors)}
    found = dict(
        re.findall(r'<dt><a href="#([^"]+)">[^<]*</a></dt><dd>([^<]*)</dd>', sensors.source)
    )
    assert {place: unescape(text) for place, text in found.items()} == told
    assert 'class="settings"' not in heart.source, "of one setting there is nothing to choose from"
    (facts,) = re.findall(r'<dl class="facts">(.*?)</dl>', heart.source, flags=re.DOTALL)
    asked = re.findall(r"<dt>([^<]*)</dt>", facts)
    assert asked == ["Does collaborating help?", "Whom?", "At what cost?", "How sure is that?"]


def sensors_comparisons(page: Written) -> list[tuple[str, Path]]:
    """Where each setting of the page is, and its comparison."""
    folder = page.path.parent
    return [
        (f"setting={name.replace(' ', '-')}", folder / name / "comparison.json")
        for name in ("feature skew", "label-skew")
    ]


def test_classes_have_one_name_on_the_whole_page(heart: Written) -> None:
    assert {row["class"] for row in heart.rows("classes")} == {"healthy", "ill"}
    maps = [name for name in heart.content["data"] if name.startswith("space-")]
    assert maps
    for name in maps:
        assert {row["class"] for row in heart.rows(name)} == {"healthy", "ill"}


def test_a_partys_shift_is_named_wherever_its_data_are(sensors: Written) -> None:
    told = ["as it is", *KINDS[1:]]
    each = ", ".join(f"p{k} {how}" for k, how in enumerate(told))
    assert f"Parties see things differently: {each}." in sensors.words
    for k, how in enumerate(told):
        assert f"p{k}: {how}" in sensors.words, "beside its samples"
    assert {(row["party"], row["shift"]) for row in sensors.rows("sizes")} == {
        (f"p{k}", how) for k, how in enumerate(told)
    }
    (far,) = re.findall(
        r"Farthest apart are p\d \(([a-z ]+)\) and p\d \(([a-z ]+)\)", sensors.words
    )
    assert set(far) <= set(told)


def pixels(source: str) -> list[int]:
    """The values of a grey PNG of ours: no filter, eight bits."""
    body = base64.b64decode(source.partition(",")[2])
    width, height, depth, colour = struct.unpack(">IIBB", body[16:26])
    assert (depth, colour) == (8, 0)
    at, packed = 8, b""
    while at < len(body):
        (many,) = struct.unpack(">I", body[at : at + 4])
        packed += body[at + 8 : at + 8 + many] if body[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + many
    lines = zlib.decompress(packed)
    whole = [lines[k * (width + 1) + 1 : (k + 1) * (width + 1)] for k in range(height)]
    tile = width // 12
    return [
        value for line in whole for k, value in enumerate(line) if k % tile != tile - 1
    ]  # without the grey between samples


def test_one_scale_for_all_strips(sensors: Written) -> None:
    """Two fifths of the contrast are two fifths of the contrast, and black is black everywhere."""
    strips = [pixels(str(given["src"])) for tag, given in sensors.elements if tag == "img"][
        : len(KINDS)
    ]
    reach = {kind: (min(strip), max(strip)) for kind, strip in zip(KINDS, strips, strict=True)}
    assert reach["none"] == reach["invert"] == reach["rotate"] == (0, 255)
    low, high = reach["contrast"]
    assert (low, high) == (round(0.3 * 255), round(0.7 * 255))


# Colours.


def test_a_method_has_one_colour_on_the_whole_page(sensors: Written) -> None:
    found: dict[str, set[str]] = {}
    boxes: list[str] = []
    for _, given in sensors.elements:
        if given.get("type") == "checkbox":
            boxes.append(str(given["value"]))
        elif "data-colour" in given:
            found.setdefault(boxes[-1], set()).add(str(given["data-colour"]))
    assert set(found) == {"solo", "fedavg", "adcol", "fedavg+dbe", "fedprox"}
    for chart in sensors.charts.values():
        for method, colour in scales(chart["spec"]):
            found[method].add(colour)
    assert {method: len(colours) for method, colours in found.items()} == dict.fromkeys(found, 1)
    assert len({next(iter(colours)) for colours in found.values()}) == len(found)


def scales(part: Any) -> list[tuple[str, str]]:
    """Which methods a chart gives which colours."""
    if isinstance(part, list):
        return [pair for one in part for pair in scales(one)]
    if not isinstance(part, dict):
        return []
    own = part.get("field") == "method" and "scale" in part
    pairs = list(zip(part["scale"]["domain"], part["scale"]["range"], strict=True)) if own else []
    return pairs + [pair for one in part.values() for pair in scales(one)]


def test_more_methods_than_colours() -> None:
    """Those that meet in a setting are told apart as long as there are colours."""
    page: list[Group] = []
    for k in range(3):
        names = ["common", *(f"m{k}-{j}" for j in range(DISTINGUISHABLE - 1))]
        page.append(Group(f"g{k}", [Method(name, [Run(Path(name), name)]) for name in names], page))
    colours = [method_colours(group) for group in page]
    assert all(len(set(some.values())) == DISTINGUISHABLE for some in colours)
    assert len({some["common"] for some in colours}) == 1


# Axes of what is compared.


def domains(spec: Any, axis: str) -> list[Any]:
    """An axis's ends in all layers of a chart that have it."""
    layers = spec.get("layer", [spec])
    return [
        one["encoding"][axis]["scale"]["domain"]
        for one in layers
        if axis in one.get("encoding", {})
    ]


def test_both_curves_have_one_axis(heart: Written) -> None:
    ends = [
        end
        for name in ("auc-by-round", "auc-by-bytes")
        for end in domains(heart.chart(name)["spec"], "y")
    ]
    assert len(ends) >= 7
    assert all(end == ends[0] for end in ends)
    drawn = [row["auc"] for row in heart.rows("curves") if row["party"] == ""]
    assert ends[0] == [min(drawn), max(drawn)]


def test_before_and_after_have_one_map(heart: Written) -> None:
    before, after = (heart.chart(f"space-fedavg-{when}")["spec"] for when in ("before", "after"))
    for axis in ("x", "y"):
        assert domains(before, axis) == domains(after, axis)
    rows = heart.rows("space-fedavg")
    assert domains(before, "x")[0] == [min(row["x"] for row in rows), max(row["x"] for row in rows)]


# Sentences.


def test_what_the_discriminators_title_says(sensors: Written) -> None:
    """Its title claims no course; the caption says what is counted, and what the dashed line is."""
    charts = [chart for chart in sensors.charts.values() if chart["name"] == "discriminator"]
    assert [chart["title"] for chart in charts] == ["How often the discriminator is right"] * 2
    rows = sensors.rows("discriminator")
    assert "to name the largest party always is right as often as its share" in sensors.words
    assert (
        f"what naming the largest party always would reach, {rows[0]['chance']:.1%}"
        in charts[0]["alt"]
    )
    assert f"adcol ends at {rows[-1]['accuracy']:.1%}" in charts[0]["alt"]


def test_bytes_by_round_say_who_changes(sensors: Written) -> None:
    rows = sensors.rows("bytes-by-round")
    (alt, _) = (
        chart["alt"] for chart in sensors.charts.values() if chart["name"] == "bytes-by-round"
    )
    changing = set()
    for method in {row["method"] for row in rows}:
        for direction in {row["direction"] for row in rows}:
            amounts = {
                row["bytes"]
                for row in rows
                if (row["method"], row["direction"]) == (method, direction)
            }
            changing |= {method} if len(amounts) > 1 else set()
    assert ("Every method sends as much in one round as in another." in alt) == (not changing)
    assert all(name in alt for name in changing)


def test_researchers_parts_are_folded_and_named(sensors: Written) -> None:
    folded = re.findall(r'data-part="(\w+)"[^>]*>\s*<details class="part">', sensors.source)
    assert folded == ["space", "again"] * 2
    assert list(sensors.sections) == ["setting=feature-skew", "setting=label-skew"]


def test_the_ranking_says_what_a_narrow_screen_may_leave_out(heart: Written) -> None:
    (body,) = re.findall(r'<table data-name="ranking">(.*?)</table>', heart.source, flags=re.DOTALL)
    kept = re.findall(r'<th class="(?:word|figure)"[^>]*>([^<]*)</th>', body)
    assert kept == ["method", "AUC", "over SOLO", "gained", "hurt"]


def test_a_number_to_be_predicted(tmp_path: Path) -> None:
    amounts(tmp_path / "amounts")
    page = Written(report(tmp_path / "amounts"))
    assert not page.broken, page.notes
    assert not page.notes or all("cannot" not in note for note in page.notes)
    medians = {row["party"]: row["median"] for row in page.rows("labels")}
    assert medians["east"] < medians["north"] < medians["west"], (
        "in the label's own unit, not scaled by each party"
    )
    assert 5 < medians["east"] < 15
    assert any(chart["name"].startswith("space-") for chart in page.charts.values())
    split = loaded(tmp_path / "amounts" / "solo" / "seed-0" / "split.json")["parties"]
    assert {row["party"] for row in page.rows("sizes")} == set(split)
