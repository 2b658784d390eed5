"""The section of learning curves: the metric against rounds and against bytes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from comity.charts.chart import Chart, Checkbox, Data, VegaSpec
from comity.charts.curves import FEW, line_layers
from comity.charts.encodings import (
    BYTES_AS_TEXT,
    KEEP_SHOWN,
    bytes_axis,
    log_checkbox,
    percent_axis,
    round_axis,
    shown_methods_param,
    tooltip,
)
from comity.reporting.blocks import Section
from comity.reporting.charts import capitalize_first, colour_by_method
from comity.reporting.gather import Method, RunGroup
from comity.text import join_names
from comity.units import deviation

MOST_BANDS = 3
"""The most methods whose bands are drawn at first: more of them cover each other and the lines."""
BANDS = 0.15
"""The opacity of bands."""
MAX_ROWS = 20_000
"""The parties' lines are thinned to about this many rows, so that the page opens quickly."""


def curves(group: RunGroup) -> Section:
    """Return the second section: the metric by round and by bytes."""
    section = Section("curves", f"How {group.metric.title} grows")
    data = curves_data(group)
    if not data.columns["round"]:
        if any(run.has_ended for run in group.runs):
            section.say("No figures by round are known here.", "missing")
        else:
            section.say("No run has been evaluated yet.", "missing")
        return section
    ends = [f"{m.name} {_last_figure(m)}" for m in group.methods if any(r.curve for r in m.runs)]
    over = group.kind_of_runs
    band = f"; bands and ±: sample standard deviation over {over}" if has_seeds(group) else ""
    scope = f"of {group.site}" if group.site else "mean over parties"
    alt = f"Test {group.metric.title}, {scope}{band}. At the end: {', '.join(ends)}."
    section.blocks.append(_by_round(data, group, alt))
    byte_counts = [
        row["bytes"]
        for row in data.rows()
        if not row["alone"] and row["round"] > 0 and row["bytes"]
    ]
    if byte_counts:
        section.blocks.append(_by_bytes(data, group, alt, byte_counts))
    return section


def curves_data(group: RunGroup) -> Data:
    """Return the rows of each method's mean over parties and seeds, and those of each party.

    The column `party` is empty in rows of means.
    """
    rows: list[dict[str, Any]] = []
    party_lines = sum(len(run.parties) for m in group.methods for run in m.runs[:1])
    for method in group.methods:
        rounds = sorted({t for run in method.runs for t in run.curve})
        rows += [_mean_row(group, method, t) for t in rounds]
        step = max(1, party_lines * len(rounds) // MAX_ROWS + 1)
        thinned = [t for k, t in enumerate(rounds) if k % step == 0 or t == rounds[-1]]
        rows += _party_rows(group, method, thinned)
    columns = (
        "method",
        "alone",
        "party",
        "round",
        group.metric.name,
        "low",
        "high",
        "spread",
        "bytes",
        "seeds",
    )
    return Data.of("curves", rows, columns)


def _mean_row(group: RunGroup, method: Method, t: int) -> dict[str, Any]:
    """Return the mean over parties and seeds of a method after round t."""
    runs = [run for run in method.runs if t in run.curve]
    values = [run.curve[t] for run in runs]
    mean = statistics.fmean(values)
    std = deviation(values)
    return {
        "method": method.name,
        "alone": int(method.alone),
        "party": "",
        "round": t,
        group.metric.name: mean,
        "low": mean - std,
        "high": mean + std,
        "spread": std,
        "bytes": statistics.fmean(run.traffic.get(t, 0.0) for run in runs),
        "seeds": len(values),
    }


def _party_rows(group: RunGroup, method: Method, rounds: list[int]) -> list[dict[str, Any]]:
    """Return each party's mean over seeds; under the first seed, if parties differ between them."""
    runs = method.runs if group.same_parties else method.runs[:1]
    rows = []
    for party in dict.fromkeys(party for run in runs for party in run.parties):
        for t in rounds:
            values = [run.parties[party][t] for run in runs if t in run.parties.get(party, {})]
            if values:
                mean = statistics.fmean(values)
                rows.append(
                    {"method": method.name, "party": party, "round": t, group.metric.name: mean}
                )
    return rows


def has_seeds(group: RunGroup) -> bool:
    """Whether some method was run under several seeds."""
    return any(len(m.runs) > 1 for m in group.methods)


def _last_figure(method: Method) -> str:
    """Return the metric after the last evaluation, with its standard deviation over seeds."""
    values = [run.curve[max(run.curve)] for run in method.runs if run.curve]
    spread = f" ± {100 * deviation(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1%}{spread}"


def _first_round(group: RunGroup) -> int:
    """Return the first round to draw.

    With many rounds, it is 1: the evaluation before training says little and stretches the axis.
    """
    return int(max(len(run.curve) for run in group.runs) > FEW)


def _y_axis(data: Data, group: RunGroup) -> VegaSpec:
    """Return the common axis of both charts, over all means that are drawn and their bands."""
    first = _first_round(group)
    ends = [
        row[name]
        for row in data.rows()
        for name in ("low", "high")
        if row[name] is not None and row["round"] >= first
    ]
    return percent_axis(group.metric.name, f"test {group.metric.title}", ends)


def _layers(
    x: VegaSpec, y: VegaSpec, group: RunGroup, transform: Sequence[VegaSpec] = ()
) -> list[VegaSpec]:
    """Return the layers of the means over parties: bands over seeds, lines, and points."""
    only_means = {"filter": f"datum.party == '' && datum.round >= {_first_round(group)}"}
    tips = [
        tooltip("method", "method"),
        tooltip("round", "round"),
        tooltip(group.metric.name, group.metric.title, ".1%"),
    ]
    if has_seeds(group):
        over = group.kind_of_runs
        tips += [tooltip("spread", f"± over {over}", ".1%"), tooltip("seeds", over, "d")]
    tips.append(tooltip("sent", "sent so far"))
    return line_layers(
        {"x": x, "y": y, "color": colour_by_method(group)},
        tips,
        min(len(run.curve) for run in group.runs if run.curve),
        ("low", "high"),
        [only_means, *transform, BYTES_AS_TEXT],
    )


def _by_round(data: Data, group: RunGroup, alt: str) -> Chart:
    x = round_axis(data.columns["round"])
    y = _y_axis(data, group)
    party_lines: VegaSpec = {
        "transform": [{"filter": "false"}],
        "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.45},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour_by_method(group),
            "detail": {"field": "party"},
            "tooltip": [tooltip("method", "method"), tooltip("party", "party")],
        },
    }
    layers = [party_lines, *_layers(x, y, group)]
    spec: VegaSpec = {
        "height": 300,
        "params": [shown_methods_param(group.names)],
        "transform": [KEEP_SHOWN],
        "layer": layers,
    }
    means_domain = y["scale"]["domain"]
    values = [value for value in data.columns[group.metric.name] if value is not None]
    values += means_domain
    parties_domain = [min(values), max(values)]
    axes = (
        (("layer", k, "encoding", "y", "scale", "domain"), parties_domain, means_domain)
        for k in range(len(spec["layer"]))
    )
    box = Checkbox(
        "each party's line",
        ((("layer", 0, "transform", 0, "filter"), "datum.party != ''", "false"), *axes),
    )
    own = () if group.site else (box,)  # the line of a single site is the mean
    boxes = (*own, *_band_boxes(group, 1))
    return Chart(
        f"{group.metric.name}-by-round",
        f"{capitalize_first(group.metric.title)} by round",
        alt,
        data,
        spec,
        boxes,
        half=True,
    )


def _band_boxes(group: RunGroup, layer: int) -> tuple[Checkbox, ...]:
    """Return the box that shows bands, which are in that layer; none without bands."""
    if not has_seeds(group):
        return ()
    path = ("layer", layer, "mark", "opacity")
    return (Checkbox("bands", ((path, BANDS, 0.0),), len(group.methods) <= MOST_BANDS),)


def _by_bytes(data: Data, group: RunGroup, alt: str, byte_counts: list[float]) -> Chart:
    scope = f"to and from {group.site}" if group.site else "all parties together"
    x = bytes_axis("bytes", f"bytes sent so far, {scope}", byte_counts)
    y = _y_axis(data, group)
    solo_line: VegaSpec = {  # SOLO sends nothing, so its result is a horizontal line
        "transform": [
            {"filter": "datum.alone && datum.party == ''"},
            {"joinaggregate": [{"op": "max", "field": "round", "as": "last"}]},
            {"filter": "datum.round == datum.last"},
        ],
        "mark": {"type": "rule", "strokeDash": [5, 4], "strokeWidth": 1.5},
        "encoding": {
            "y": y,
            "color": colour_by_method(group),
            "tooltip": [
                tooltip("method", "method"),
                tooltip("round", "round"),
                tooltip(group.metric.name, group.metric.title, ".1%"),
            ],
        },
    }
    senders = {"filter": "datum.round > 0 && datum.bytes > 0 && !datum.alone"}
    layers = _layers(x, y, group, [senders])
    spec = {
        "height": 300,
        "params": [shown_methods_param(group.names)],
        "transform": [KEEP_SHOWN],
        "layer": [*layers, solo_line],
    }
    box = log_checkbox(x, *(("layer", k, "encoding", "x") for k in range(len(layers))))
    alone = [method.name for method in group.methods if method.alone]
    if alone:
        lines = "the dashed line" if len(alone) == 1 else "a dashed line each"
        alt += f" Without bytes in their rounds: {join_names(alone)}, {lines}."
    return Chart(
        f"{group.metric.name}-by-bytes",
        f"{capitalize_first(group.metric.title)} by bytes",
        alt,
        data,
        spec,
        (box, *_band_boxes(group, 0)),
        half=True,
    )
