"""Accuracy, or what runs are judged by, against rounds and against bytes."""

from __future__ import annotations

import statistics
from typing import Any

from comity.reporting.blocks import Chart, Checkbox, Data, Section, VegaSpec
from comity.reporting.charts import (
    BYTES_AS_TEXT,
    KEEP_SHOWN,
    bytes_axis,
    capitalize_first,
    colour_by_method,
    log_checkbox,
    percent_axis,
    round_axis,
    shown_methods_param,
    tooltip,
)
from comity.reporting.gather import Group, Method

FEW = 12
"""Evaluations up to which each has its mark: a single one would not be seen as a line."""
POINTS = 20_000
"""More rows than this for parties' lines are thinned: a page has to open quickly."""


def curves(group: Group) -> Section:
    """The page's second section: accuracy, or what runs are judged by, by round and by bytes."""
    section = Section("curves", f"How {group.metric.title} grows")
    data = table(group)
    if not data.columns["round"]:
        no_figures = any(run.ended for run in group.runs)
        section.say(
            "No figures by round are known here."
            if no_figures
            else "No run has been evaluated yet.",
            "missing",
        )
        return section
    last = [f"{m.name} {_last(m)}" for m in group.methods if any(run.curve for run in m.runs)]
    band = "; bands and ±: standard deviation over seeds" if several(group) else ""
    whose = f"of {group.site}" if group.site else "mean over parties"
    alt = f"Test {group.metric.title}, {whose}{band}. At the end: {', '.join(last)}."
    section.blocks.append(_by_round(data, group, alt))
    sent = [
        row["bytes"]
        for row in data.rows()
        if not row["alone"] and row["round"] > 0 and row["bytes"]
    ]
    if sent:
        section.blocks.append(_by_bytes(data, group, alt, sent))
    return section


def table(group: Group) -> Data:
    """Every method's mean over parties and seeds, with party empty; and every party's line."""
    rows: list[dict[str, Any]] = []
    lines = sum(len(run.parties) for m in group.methods for run in m.runs[:1])
    for method in group.methods:
        rounds = sorted({t for run in method.runs for t in run.curve})
        for t in rounds:
            values = [run.curve[t] for run in method.runs if t in run.curve]
            mean = statistics.fmean(values)
            std = statistics.pstdev(values)
            sent = statistics.fmean(
                run.traffic.get(t, 0.0) for run in method.runs if t in run.curve
            )
            rows.append(
                {
                    "method": method.name,
                    "alone": int(method.alone),
                    "party": "",
                    "round": t,
                    group.metric.name: mean,
                    "low": mean - std,
                    "high": mean + std,
                    "spread": std,
                    "bytes": sent,
                    "seeds": len(values),
                }
            )
        step = max(1, lines * len(rounds) // POINTS + 1)
        kept = [t for k, t in enumerate(rounds) if k % step == 0 or t == rounds[-1]]
        drawn = method.runs if group.same_parties else method.runs[:1]
        for party in dict.fromkeys(p for run in drawn for p in run.parties):
            for t in kept:
                own = [run.parties[party][t] for run in drawn if t in run.parties.get(party, {})]
                if own:
                    rows.append(
                        {
                            "method": method.name,
                            "party": party,
                            "round": t,
                            group.metric.name: statistics.fmean(own),
                        }
                    )
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


def several(group: Group) -> bool:
    """Whether some method was run under several seeds."""
    return any(len(m.runs) > 1 for m in group.methods)


def _last(method: Method) -> str:
    """What it has after its last evaluation."""
    found = [run.curve[max(run.curve)] for run in method.runs if run.curve]
    spread = f" ± {100 * statistics.pstdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.1%}{spread}"


def _first(group: Group) -> int:
    """The first round that is drawn: where there are many, not the one before training, which says
    nothing and takes the room.
    """
    return int(max(len(run.curve) for run in group.runs) > FEW)


def _y(data: Data, group: Group) -> VegaSpec:
    """The axis that both charts have, whatever of the curves each shows: that of all means that are
    drawn, with their bands.
    """
    first = _first(group)
    reach = [
        row[name]
        for row in data.rows()
        for name in ("low", "high")
        if row[name] is not None and row["round"] >= first
    ]
    return percent_axis(group.metric.name, f"test {group.metric.title}", reach)


def _layers(x: VegaSpec, y: VegaSpec, group: Group) -> list[VegaSpec]:
    """Band, line, and points that answer the pointer.

    Not by a selection that is `nearest`: Vega-Lite's tooltips know nothing of words there, and say
    "undefined".
    """
    whole = {"filter": f"datum.party == '' && datum.round >= {_first(group)}"}
    colour = colour_by_method(group)
    tips = [
        tooltip("method", "method"),
        tooltip("round", "round"),
        tooltip(group.metric.name, group.metric.title, ".1%"),
    ]
    if several(group):
        tips += [tooltip("spread", "± over seeds", ".1%"), tooltip("seeds", "seeds", "d")]
    tips.append(tooltip("sent", "sent so far"))
    few = max(len(run.curve) for run in group.runs) <= FEW
    mark = {"type": "line", "point": {"size": 25}} if few else {"type": "line"}
    band: VegaSpec = {
        "transform": [whole],
        "mark": {"type": "area", "opacity": 0.15},
        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
    }
    line: VegaSpec = {
        "transform": [whole],
        "mark": mark,
        "encoding": {"x": x, "y": y, "color": colour},
    }
    near: VegaSpec = {
        "transform": [whole, BYTES_AS_TEXT],
        "params": [
            {
                "name": "near",
                "select": {"type": "point", "on": "pointerover", "clear": "pointerout"},
            }
        ],
        "mark": {"type": "point", "filled": True, "size": 140},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "tooltip": tips,
            "opacity": {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0},
        },
    }
    return [band, line, near]


def _by_round(data: Data, group: Group, alt: str) -> Chart:
    x = round_axis(data.columns["round"])
    y = _y(data, group)
    alone: VegaSpec = {
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
    layers = [alone, *_layers(x, y, group)]
    spec: VegaSpec = {
        "height": 300,
        "params": [shown_methods_param(group.names)],
        "transform": [KEEP_SHOWN],
        "layer": layers,
    }
    means = y["scale"]["domain"]
    everybody = [value for value in data.columns[group.metric.name] if value is not None] + means
    wide = [min(everybody), max(everybody)]
    axes = (
        (("layer", k, "encoding", "y", "scale", "domain"), wide, means)
        for k in range(len(spec["layer"]))
    )
    box = Checkbox(
        "each party's line",
        ((("layer", 0, "transform", 0, "filter"), "datum.party != ''", "false"), *axes),
    )
    boxes = () if group.site else (box,)  # its line is the mean
    return Chart(
        f"{group.metric.name}-by-round",
        f"{capitalize_first(group.metric.title)} by round",
        alt,
        data,
        spec,
        boxes,
        half=True,
    )


def _by_bytes(data: Data, group: Group, alt: str, sent: list[float]) -> Chart:
    whose = f"to and from {group.site}" if group.site else "all parties together"
    x = bytes_axis("bytes", f"bytes sent so far, {whose}", sent)
    y = _y(data, group)
    still: VegaSpec = {  # training alone sends nothing: a line to beat
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
    layers = _layers(x, y, group)
    for layer in layers:
        layer["transform"] = [
            *layer["transform"],
            {"filter": "datum.round > 0 && datum.bytes > 0 && !datum.alone"},
        ]
    spec = {
        "height": 300,
        "params": [shown_methods_param(group.names)],
        "transform": [KEEP_SHOWN],
        "layer": [*layers, still],
    }
    box = log_checkbox(*(("layer", k, "encoding", "x") for k in range(len(layers))))
    words = alt + (
        " Training alone, which sends nothing in its rounds: the dashed line." if group.solo else ""
    )
    return Chart(
        f"{group.metric.name}-by-bytes",
        f"{capitalize_first(group.metric.title)} by bytes",
        words,
        data,
        spec,
        (box,),
        half=True,
    )
