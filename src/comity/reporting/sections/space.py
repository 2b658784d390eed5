"""The section on representations: maps before and after local training, how well they reveal the
party, and the methods' diagnostics.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from comity.base.key import Key
from comity.charts.chart import Chart, Data, VegaSpec
from comity.charts.encodings import SHAPES, fitting_legend, quantitative, tooltip
from comity.errors import describe
from comity.measure.representations import CUT, OFFSET, Representation, extract
from comity.measure.separability import LEAST, separability
from comity.reporting.blocks import Section, Table
from comity.reporting.charts import DISTINGUISHABLE
from comity.reporting.gather import Method, RunGroup
from comity.reporting.plane import map_to_plane
from comity.reporting.sections.data import class_names
from comity.reporting.sections.diagnostics import diagnostics

SAMPLES = 400
"""How many points a map has, of all parties together."""
WIDTH = 256
"""Wider representations are projected to this many values."""
WHEN = {"before": "before local training", "after": "after local training"}


def space(
    group: RunGroup, methods: Sequence[Method], seconds: float | None = None, reopen: bool = True
) -> Section:
    """Return the fifth section: maps of representations, layer measures, methods' diagnostics.

    Args:
        group: the runs
        methods: the methods whose representations are drawn
        seconds: CPU seconds after which no further map is started (default: no limit)
        reopen: allow the diagnostics to open data and models
    """
    section = Section(
        "space",
        "The representation space",
        folded="what models make of samples, for those who study methods",
    )
    begin = time.process_time()
    probe_rows = []
    maps: list[list[Chart]] = []
    late: list[str] = []
    for method in methods:
        if seconds is not None and time.process_time() - begin > seconds:
            late.append(method.name)
            continue
        run = method.finished[0]
        try:
            representations = extract(
                run.job, run.folder, [CUT], split="test", samples=SAMPLES, seed=0, width=WIDTH
            )
            maps.append(_maps(method.name, representations, class_names(run.job.federation)))
            probe_rows += _probe_rows(method.name, representations)
        except Exception as why:  # diverged models or missing data must not hide other methods
            section.say(
                f"{method.name}: its representations cannot be shown: {describe(why)}", "missing"
            )
    if late:
        section.say(
            f"No map was drawn of {', '.join(late)}, as the page had taken long enough; ask for it"
            f" with: comity report DIR --methods {','.join(late)}",
            "missing",
        )
    # Methods with two maps come first, so that the maps of a method are side by side.
    section.blocks += [chart for charts in sorted(maps, key=len, reverse=True) for chart in charts]
    if probe_rows:
        _add_probes(section, methods, probe_rows)
    _add_measures(section, group)
    diagnostics(section, group, reopen)
    if not section.blocks:
        section.say("There is nothing to show of the chosen methods.", "missing")
    return section


def _add_probes(section: Section, methods: Sequence[Method], rows: list[list[str]]) -> None:
    """Add the table of probes that name the party, and how to read maps and probes."""
    heads = ["method", "when", "a new probe names the party", "largest party's share"]
    title = "Can a new probe tell whose representation it is?"
    section.blocks.append(Table("separability", title, heads, rows, words=2))
    seed = ""
    if any(len(method.runs) > 1 for method in methods):
        first = min(run.seed for method in methods for run in method.finished[:1])
        seed = f" Models of seed {first}."
    section.say(
        f"Up to {SAMPLES} test samples of all parties together, t-SNE of the method's own"
        " representation; before and after are mapped together, so that they can be compared."
        " A party's own model has no before. The probe is linear, learns from some of these"
        " samples and is judged on others; to name the largest party always is right as often"
        f" as its share.{seed}"
    )


def _maps(method: str, representations: list[Representation], names: list[str]) -> list[Chart]:
    """Return the maps before and after local training, both from one t-SNE.

    `names` are those of the classes; without them, labels are numbers.
    """
    with_offset = [r for r in representations if r.layer.endswith(OFFSET)]
    representations = with_offset or representations  # with the offset, they are what the head gets
    if len({r.features.shape[1] for r in representations}) > 1:
        return []  # the parties' representations differ in width: there is no common space
    points = map_to_plane(torch.cat([r.features for r in representations]).numpy()).tolist()
    rows: list[dict[str, Any]] = []
    for r in representations:
        for label in r.labels.tolist():
            x, y = points[len(rows)]
            rows.append(
                {
                    "method": method,
                    "when": r.when,
                    "party": r.party,
                    "class": names[label] if names else float(label),
                    "x": x,
                    "y": y,
                }
            )
    data = Data.of(f"space-{method}", rows, ("method", "when", "party", "class", "x", "y"))
    parties = list(dict.fromkeys(r.party for r in representations))
    present = {row["class"] for row in rows}
    classes = [name for name in names if name in present]
    return [
        _scatter(method, when, data, parties, classes)
        for when in WHEN
        if any(r.when == when for r in representations)
    ]


def _scatter(method: str, when: str, data: Data, parties: list[str], classes: list[str]) -> Chart:
    with_shapes = len(parties) <= DISTINGUISHABLE
    shape: VegaSpec = (
        {
            "shape": {
                "field": "party",
                "type": "nominal",
                "sort": None,
                "scale": {"domain": parties, "range": SHAPES[: len(parties)]},
                "legend": fitting_legend(parties, "party", 8) | {"symbolFillColor": "@soft"},
            }
        }
        if with_shapes
        else {}
    )
    by_class: VegaSpec = {
        "field": "class",
        "type": "nominal",
        "scale": {"domain": classes, "scheme": "tableau10" if len(classes) <= 10 else "tableau20"},
        "legend": fitting_legend(classes, "class", 10) if 0 < len(classes) <= 20 else None,
    }
    by_number = quantitative(
        "class", "label", legend={"orient": "bottom"}, scale={"range": ["@c4", "@c0"]}
    )
    spec: VegaSpec = {
        "height": 320,
        "transform": [{"filter": f"datum.when == '{when}'"}],
        "mark": {"type": "point", "filled": True, "size": 32, "opacity": 0.8, "aria": False},
        "encoding": {
            "x": _map_axis(data, "x"),
            "y": _map_axis(data, "y"),
            "color": by_class if classes else by_number,
            **shape,
            "tooltip": [
                tooltip("class", "class") if classes else tooltip("class", "label, scaled", ".3~g"),
                tooltip("party", "party"),
            ],
        },
    }
    alt = f"A map of {method}'s representations {WHEN[when]}: points of " + (
        "one colour are of one class" if classes else "like colours have like labels"
    )
    alt += ", of one shape of one party." if with_shapes else "."
    return Chart(
        f"space-{method}-{when}",
        f"{method}, {WHEN[when]}",
        alt,
        data,
        spec,
        half=True,
        method=method,
    )


def _map_axis(data: Data, name: str) -> VegaSpec:
    """Return an axis of a map, over the points before and after local training."""
    values = data.columns[name]
    return quantitative(
        name,
        None,
        axis=None,
        scale={"domain": [min(values), max(values)], "nice": False, "padding": 6},
    )


def _probe_rows(method: str, representations: list[Representation]) -> list[list[str]]:
    """Return how often a new linear probe names the party, by layer, before and after training."""
    rows = []
    for layer in dict.fromkeys(r.layer for r in representations):
        for when, description in WHEN.items():
            sets = [
                r.features
                for r in representations
                if (r.when, r.layer) == (when, layer) and len(r.labels) >= LEAST
            ]
            if len(sets) > 1 and len({s.shape[1] for s in sets}) == 1:
                probe = separability(sets, Key.root(0).fold("report"))
                offset = ", with its offset" if layer.endswith(OFFSET) else ""
                rows.append(
                    [method, description + offset, f"{probe.accuracy:.0%}", f"{probe.chance:.0%}"]
                )
    return rows


def _add_measures(section: Section, group: RunGroup) -> None:
    """Add the results of `comity measure` by layer, or how to get them."""
    rows = []
    for method in group.methods:
        for run in method.runs:
            try:
                layer_rows = _layer_rows(run.measures or {})
                rows += [[method.name, str(run.seed), *cells] for cells in layer_rows]
            except Exception as why:
                section.say(
                    f"measures.json of {method.name}, seed {run.seed}, is damaged: {describe(why)}",
                    "missing",
                )
    if rows:
        heads = [
            "method",
            "seed",
            "layer",
            "when",
            "MDL, nats",
            "MDL, bits",
            "Fréchet distance",
            "probe names the party",
        ]
        section.blocks.append(
            Table("layers", "Layer by layer (comity measure)", heads, rows, words=4)
        )
    else:
        section.say(
            "Description length (MDL) and distances layer by layer appear here after: comity"
            " measure RUN_DIR"
        )


def _layer_rows(measures: dict[str, Any]) -> list[list[str]]:
    """Return the cells of each layer, before and after local training."""
    rows = []
    for layer, entry in (measures.get("layers") or {}).items():
        for when, description in WHEN.items():
            if when in entry:
                mdl = entry[when]["mdl"] or {}
                distances = entry[when]["frechet"] or {}
                probe = entry[when]["separability"] or {}
                cells = [
                    _format(mdl.get("nats"), ".0f"),
                    _format(mdl.get("bits"), ".0f"),
                    _format(distances.get("mean"), ".1f"),
                    _format(probe.get("accuracy"), ".1%"),
                ]
                rows.append([layer, description, *cells])
    return rows


def _format(value: float | None, number_format: str) -> str:
    return "" if value is None else f"{value:{number_format}}"
