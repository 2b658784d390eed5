"""Legibility of reports: names instead of indices, one colour per method, common scales, and titles
that the data support.
"""

from __future__ import annotations

import base64
import csv
import re
import statistics
import struct
import zlib
from dataclasses import replace
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from report_page import ReportPage, read_json, run_comparison, run_regression_comparison

from comity.data import load
from comity.reporting import report
from comity.reporting.charts import DISTINGUISHABLE, method_colours
from comity.reporting.gather import Method, RunGroup, gather
from comity.reporting.readable import Run
from comity.reporting.sections.answer import rank_methods, sentences

KINDS = ("none", "invert", "rotate", "noise", "contrast", "blur")


@pytest.fixture(scope="module")
def heart(tmp_path_factory: pytest.TempPathFactory) -> ReportPage:
    folder = tmp_path_factory.mktemp("heart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comity.reporting.page.library", lambda: "")
        patch.setattr("comity.reporting.sections.space.SAMPLES", 48)
        run_comparison(
            folder,
            ["fedavg"],
            data="heart",
            partition="auto",
            parties=4,
            model="mlp2(width=4)",
            metric="auc",
            rounds=1,
        )
        return ReportPage(report(folder))


@pytest.fixture(scope="module")
def sensors(tmp_path_factory: pytest.TempPathFactory) -> ReportPage:
    """One page with two settings: feature skew (shifted images) and label skew."""
    folder = tmp_path_factory.mktemp("sensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comity.reporting.page.library", lambda: "")
        patch.setattr("comity.reporting.sections.space.SAMPLES", 48)
        shift = f"iid|shift(kinds={','.join(KINDS)})|keep(samples=60)"
        run_comparison(
            folder / "feature skew", ["fedavg", "adcol", "fedavg+dbe"], partition=shift, parties=6
        )
        run_comparison(
            folder / "label-skew",
            ["fedprox", "adcol", "fedavg"],
            partition="dirichlet(alpha=0.3)|keep(samples=60)",
        )
        return ReportPage(report(folder, methods=["adcol", "fedavg"]))


def test_a_more_accurate_model_is_called_by_its_name(heart: ReportPage) -> None:
    """A plain model of one party is not SOLO, whose accuracy is another one."""
    (group,) = gather(heart.path.parent)
    rows = {row.algorithm: row for row in rank_methods(group)[0]}
    best = replace(rows["fedavg"], accuracy=[0.7])
    plain, solo = (
        replace(rows[name], accuracy=[value])
        for name, value in (("plain-linear", 0.9), ("solo", 0.8))
    )
    by_plain = " ".join(sentences(group, [best, plain, solo]))
    assert "its accuracy is 70.0%, less than 90.0% by plain-linear." in by_plain
    by_solo = " ".join(sentences(group, [best, solo, plain]))
    assert "its accuracy is 70.0%, less than 80.0% by training alone." in by_solo


# Names.


def hospital_means(column: str) -> dict[str, float]:
    """Mean of a column over the training samples of each hospital, from Comity's own files. Samples
    are numbered through the files, one after another.
    """
    split = load("heart").partition("auto", parties=4, seed=0).split
    means = {}
    first = 0
    for party, share in split.parties.items():
        text = (files("comity.data") / "embedded" / "heart" / f"{party}.csv").read_text(
            encoding="utf-8"
        )
        cells = [row[column] for row in csv.DictReader(text.splitlines())]
        train_cells = [cells[k - first] for k in share.train]
        means[party] = statistics.fmean(float(cell) for cell in train_cells if cell)
        first += len(cells)
    return means


def test_features_have_their_names_and_their_figures(heart: ReportPage) -> None:
    rows = heart.rows("features")
    feature_names = {row["feature"] for row in rows}
    assert {"age", "chest_pain=asymptomatic", "cholesterol missing"} <= feature_names
    assert not [name for name in feature_names if re.fullmatch(r"x\d+", name)]
    for column in ("age", "max_heart_rate"):
        drawn_means = {row["party"]: row["mean"] for row in rows if row["feature"] == column}
        assert drawn_means == pytest.approx(hospital_means(column), rel=1e-4), (
            "in the column's own unit"
        )


def test_imputed_values_have_no_mean(heart: ReportPage) -> None:
    """Switzerland has no cholesterol values: its imputed values are not shown as a mean."""
    cholesterol = {
        row["party"]: row["mean"]
        for row in heart.rows("features")
        if row["feature"] == "cholesterol"
    }
    assert "switzerland" not in cholesterol
    vessels = {
        row["party"]: row["mean"] for row in heart.rows("features") if row["feature"] == "vessels"
    }
    expected_means = hospital_means("vessels")
    assert all(
        vessels[party] == pytest.approx(expected_means[party], rel=1e-4) for party in vessels
    )
    assert vessels


def test_answers_of_all_settings_are_first_and_linked(
    sensors: ReportPage, heart: ReportPage
) -> None:
    verdicts = {
        name: read_json(path)["overall"]["helps"] for name, path in sensors_comparisons(sensors)
    }
    linked_answers = dict(
        re.findall(r'<dt><a href="#([^"]+)">[^<]*</a></dt><dd>([^<]*)<p', sensors.source)
    )
    assert {place: unescape(text) for place, text in linked_answers.items()} == verdicts
    assert 'class="settings"' not in heart.source, "of one setting there is nothing to choose from"
    (facts,) = re.findall(r'<dl class="facts">(.*?)</dl>', heart.source, flags=re.DOTALL)
    questions = [unescape(text) for text in re.findall(r"<dt>([^<]*)</dt>", facts)]
    assert questions == [
        "Does collaborating help?",
        "What does a plain model of one's own do?",
        "Whom?",
        "At what cost?",
        "How sure is that?",
        "What would settle it?",
        "What to do next?",
    ]


def sensors_comparisons(page: ReportPage) -> list[tuple[str, Path]]:
    """The address of each setting of the page, and the path of its comparison."""
    folder = page.path.parent
    return [
        (f"setting={name.replace(' ', '-')}", folder / name / "comparison.json")
        for name in ("feature skew", "label-skew")
    ]


def test_classes_have_one_name_on_the_whole_page(heart: ReportPage) -> None:
    assert {row["class"] for row in heart.rows("classes")} == {"healthy", "ill"}
    maps = [name for name in heart.content["data"] if name.startswith("space-")]
    assert maps
    for name in maps:
        assert {row["class"] for row in heart.rows(name)} == {"healthy", "ill"}


def test_shift_of_a_party_is_named_beside_its_data(sensors: ReportPage) -> None:
    shift_names = ["as it is", *KINDS[1:]]
    list_of_shifts = ", ".join(f"p{k} {shift}" for k, shift in enumerate(shift_names))
    assert f"Parties see things differently: {list_of_shifts}." in sensors.words
    for k, shift in enumerate(shift_names):
        assert f"p{k}: {shift}" in sensors.words, "beside its samples"
    assert {(row["party"], row["shift"]) for row in sensors.rows("sizes")} == {
        (f"p{k}", shift) for k, shift in enumerate(shift_names)
    }
    (most_distant,) = re.findall(
        r"Farthest apart are p\d \(([a-z ]+)\) and p\d \(([a-z ]+)\)", sensors.words
    )
    assert set(most_distant) <= set(shift_names)


def pixels(source: str) -> list[int]:
    """Pixel values of one of the page's grey PNG images, which have 8 bits and no filter."""
    body = base64.b64decode(source.partition(",")[2])
    width, height, depth, colour = struct.unpack(">IIBB", body[16:26])
    assert (depth, colour) == (8, 0)
    at, compressed = 8, b""
    while at < len(body):
        (length,) = struct.unpack(">I", body[at : at + 4])
        compressed += body[at + 8 : at + 8 + length] if body[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + length
    lines = zlib.decompress(compressed)
    scanlines = [lines[k * (width + 1) + 1 : (k + 1) * (width + 1)] for k in range(height)]
    tile = width // 12
    return [
        value for line in scanlines for k, value in enumerate(line) if k % tile != tile - 1
    ]  # without the grey between samples


def test_one_scale_for_all_strips(sensors: ReportPage) -> None:
    """All strips use one grey scale: reduced contrast is drawn as reduced contrast."""
    strips = [
        pixels(str(attributes["src"])) for tag, attributes in sensors.elements if tag == "img"
    ][: len(KINDS)]
    reach = {kind: (min(strip), max(strip)) for kind, strip in zip(KINDS, strips, strict=True)}
    assert reach["none"] == reach["invert"] == reach["rotate"] == (0, 255)
    low, high = reach["contrast"]
    assert (low, high) == (round(0.3 * 255), round(0.7 * 255))


# Colours.


def test_a_method_has_one_colour_on_the_whole_page(sensors: ReportPage) -> None:
    colours_of: dict[str, set[str]] = {}
    boxes: list[str] = []
    for _, attributes in sensors.elements:
        if attributes.get("type") == "checkbox":
            boxes.append(str(attributes["value"]))
        elif "data-colour" in attributes:
            colours_of.setdefault(boxes[-1], set()).add(str(attributes["data-colour"]))
    assert set(colours_of) == {"solo", "fedavg", "adcol", "fedavg+dbe", "fedprox"}
    for chart in sensors.charts.values():
        for method, colour in scales(chart["spec"]):
            colours_of[method].add(colour)
    assert {method: len(colours) for method, colours in colours_of.items()} == dict.fromkeys(
        colours_of, 1
    )
    assert len({next(iter(colours)) for colours in colours_of.values()}) == len(colours_of)


def scales(part: Any) -> list[tuple[str, str]]:
    """Pairs of method and colour in the scales of a chart."""
    if isinstance(part, list):
        return [pair for child in part for pair in scales(child)]
    if not isinstance(part, dict):
        return []
    is_scale = part.get("field") == "method" and "scale" in part
    pairs = (
        list(zip(part["scale"]["domain"], part["scale"]["range"], strict=True)) if is_scale else []
    )
    return pairs + [pair for child in part.values() for pair in scales(child)]


def test_more_methods_than_colours() -> None:
    """Methods of one setting have different colours while there are enough colours."""
    page: list[RunGroup] = []
    for k in range(3):
        names = ["common", *(f"m{k}-{j}" for j in range(DISTINGUISHABLE - 1))]
        page.append(
            RunGroup(f"g{k}", [Method(name, [Run(Path(name), name)]) for name in names], page)
        )
    colours = [method_colours(group) for group in page]
    assert all(len(set(by_method.values())) == DISTINGUISHABLE for by_method in colours)
    assert len({by_method["common"] for by_method in colours}) == 1


# Axes.


def domains(spec: Any, axis: str) -> list[Any]:
    """The domain of an axis in each layer of a chart that has the axis."""
    layers = spec.get("layer", [spec])
    return [
        layer["encoding"][axis]["scale"]["domain"]
        for layer in layers
        if axis in layer.get("encoding", {})
    ]


def test_both_curves_have_one_axis(heart: ReportPage) -> None:
    ends = [
        end
        for name in ("auc-by-round", "auc-by-bytes")
        for end in domains(heart.chart(name)["spec"], "y")
    ]
    assert len(ends) >= 7
    assert all(end == ends[0] for end in ends)
    values = [row["auc"] for row in heart.rows("curves") if row["party"] == ""]
    assert ends[0] == [min(values), max(values)]


def test_before_and_after_have_one_map(heart: ReportPage) -> None:
    before, after = (heart.chart(f"space-fedavg-{when}")["spec"] for when in ("before", "after"))
    for axis in ("x", "y"):
        assert domains(before, axis) == domains(after, axis)
    rows = heart.rows("space-fedavg")
    assert domains(before, "x")[0] == [min(row["x"] for row in rows), max(row["x"] for row in rows)]


# Sentences.


def test_title_and_caption_of_the_discriminator(sensors: ReportPage) -> None:
    """The title claims no trend; the caption explains the values and the dashed line."""
    charts = [chart for chart in sensors.charts.values() if chart["name"] == "discriminator"]
    assert [chart["title"] for chart in charts] == ["How often the discriminator is right"] * 2
    rows = sensors.rows("discriminator")
    assert "to name the largest party always is right as often as its share" in sensors.words
    assert (
        f"what naming the largest party always would reach, {rows[0]['chance']:.1%}"
        in charts[0]["alt"]
    )
    assert f"adcol ends at {rows[-1]['accuracy']:.1%}" in charts[0]["alt"]


def test_caption_of_bytes_by_round_names_methods_that_change(sensors: ReportPage) -> None:
    rows = sensors.rows("bytes-by-round")
    (alt, _) = (
        chart["alt"] for chart in sensors.charts.values() if chart["name"] == "bytes-by-round"
    )
    methods_that_change = set()
    for method in {row["method"] for row in rows}:
        for direction in {row["direction"] for row in rows}:
            byte_counts = {
                row["bytes"]
                for row in rows
                if (row["method"], row["direction"]) == (method, direction)
            }
            methods_that_change |= {method} if len(byte_counts) > 1 else set()
    assert ("Every method sends as much in one round as in another." in alt) == (
        not methods_that_change
    )
    assert all(name in alt for name in methods_that_change)


def test_technical_sections_are_folded(sensors: ReportPage) -> None:
    folded_parts = re.findall(r'data-part="(\w+)"[^>]*>\s*<details class="part">', sensors.source)
    assert folded_parts == ["space", "again"] * 2
    assert list(sensors.sections) == ["setting=feature-skew", "setting=label-skew"]


def test_columns_of_the_ranking_on_a_narrow_screen(heart: ReportPage) -> None:
    (body,) = re.findall(r'<table data-name="ranking">(.*?)</table>', heart.source, flags=re.DOTALL)
    always_visible = re.findall(r'<th class="(?:word|figure)"[^>]*>([^<]*)</th>', body)
    assert always_visible == ["method", "AUC", "over own model", "gained", "hurt"]


def test_report_of_regression_data(tmp_path: Path) -> None:
    run_regression_comparison(tmp_path / "amounts")
    page = ReportPage(report(tmp_path / "amounts"))
    assert not page.failed_sections, page.notes
    assert not page.notes or all("cannot" not in note for note in page.notes)
    medians = {row["party"]: row["median"] for row in page.rows("labels")}
    assert medians["east"] < medians["north"] < medians["west"], (
        "in the label's own unit, not scaled by each party"
    )
    assert 5 < medians["east"] < 15
    assert any(chart["name"].startswith("space-") for chart in page.charts.values())
    split = read_json(tmp_path / "amounts" / "solo" / "seed-0" / "split.json")["parties"]
    assert {row["party"] for row in page.rows("sizes")} == set(split)
