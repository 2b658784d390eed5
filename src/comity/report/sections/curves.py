"""Accuracy, or what runs are judged by, against rounds and against bytes."""

from __future__ import annotations

import statistics
from typing import Any

from comity.report.blocks import Chart, Checkbox, Data, Section, VegaSpec
from comity.report.charts import ONLY_SHOWN, by_method, capital, count_of_bytes, fraction, shown, tip, whole_rounds
from comity.report.gather import Group, Method

FEW = 12
"""Evaluations up to which each has its mark: a single one would not be seen as a line."""
POINTS = 20_000
"""More rows than this for parties' lines are thinned: a page has to open quickly."""


def curves(group: Group) -> Section:
    """The page's second section: accuracy, or what runs are judged by, by round and by bytes."""
    section = Section("curves", f"How {group.metric.title} grows")
    data = table(group)
    if not data.columns["round"]:
        section.say("No run has been evaluated yet.", "missing")
        return section
    last = [f"{m.name} {_last(m):.1%}" for m in group.methods if any(run.curve for run in m.runs)]
    seeds = max(len(m.runs) for m in group.methods)
    band = "; bands: ± standard deviation over seeds" if seeds > 1 else ""
    alt = f"Test {group.metric.title}, mean over parties{band}. At the end: {', '.join(last)}."
    section.blocks.append(_by_round(data, group, alt))
    sent = [row["bytes"] for row in data.rows() if not row["alone"] and row["round"] > 0 and row["bytes"]]
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
            sent = statistics.fmean(run.traffic.get(t, 0.0) for run in method.runs if t in run.curve)
            rows.append(
                {
                    "method": method.name,
                    "alone": int(method.alone),
                    "party": "",
                    "round": t,
                    group.metric.name: mean,
                    "low": mean - std,
                    "high": mean + std,
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
                    rows.append({"method": method.name, "party": party, "round": t, group.metric.name: statistics.fmean(own)})
    return Data.of("curves", rows, ("method", "alone", "party", "round", group.metric.name, "low", "high", "bytes", "seeds"))


def _last(method: Method) -> float:
    return statistics.fmean(run.curve[max(run.curve)] for run in method.runs if run.curve)


def _layers(x: VegaSpec, group: Group, tips: list[VegaSpec]) -> list[VegaSpec]:
    """Band, line, and a point where the pointer is."""
    whole = {"filter": "datum.party == ''"}
    colour = by_method(group)
    y = fraction(group.metric.name, f"test {group.metric.title}")
    few = max(len(run.curve) for run in group.runs) <= FEW
    mark = {"type": "line", "point": {"size": 25}} if few else {"type": "line"}
    band: VegaSpec = {
        "transform": [whole],
        "mark": {"type": "area", "opacity": 0.15},
        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
    }
    line: VegaSpec = {"transform": [whole], "mark": mark, "encoding": {"x": x, "y": y, "color": colour}}
    near: VegaSpec = {
        "transform": [whole],
        "params": [{"name": "near", "select": {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout"}}],
        "mark": {"type": "point", "filled": True, "size": 60},
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
    x = whole_rounds()
    tips = [
        tip("method", "method"),
        tip("round", "round"),
        tip(group.metric.name, group.metric.title, ".1%"),
        tip("bytes", "bytes so far", ".3~s"),
    ]
    alone: VegaSpec = {
        "transform": [{"filter": "false"}],
        "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.45},
        "encoding": {
            "x": x,
            "y": fraction(group.metric.name, f"test {group.metric.title}"),
            "color": by_method(group),
            "detail": {"field": "party"},
            "tooltip": [tip("method", "method"), tip("party", "party"), tip(group.metric.name, group.metric.title, ".1%")],
        },
    }
    layers = _layers(x, group, tips)
    spec = {"height": 300, "params": [shown(group.names)], "transform": [ONLY_SHOWN], "layer": [alone, *layers]}
    box = Checkbox("each party's line", (("layer", 0, "transform", 0, "filter"),), "datum.party != ''", "false")
    return Chart(f"{group.metric.name}-by-round", f"{capital(group.metric.title)} by round", alt, data, spec, (box,), half=True)


def _by_bytes(data: Data, group: Group, alt: str, sent: list[float]) -> Chart:
    x = count_of_bytes("bytes", "bytes sent so far, all parties together", sent)
    tips = [
        tip("method", "method"),
        tip("round", "round"),
        tip(group.metric.name, group.metric.title, ".1%"),
        tip("bytes", "bytes so far", ".3~s"),
    ]
    still: VegaSpec = {  # training alone sends nothing: a line to beat
        "transform": [
            {"filter": "datum.alone && datum.party == ''"},
            {"joinaggregate": [{"op": "max", "field": "round", "as": "last"}]},
            {"filter": "datum.round == datum.last"},
        ],
        "mark": {"type": "rule", "strokeDash": [5, 4], "strokeWidth": 1.5},
        "encoding": {
            "y": fraction(group.metric.name, f"test {group.metric.title}"),
            "color": by_method(group),
            "tooltip": [tip("method", "method"), tip(group.metric.name, group.metric.title, ".1%")],
        },
    }
    layers = _layers(x, group, tips)
    for layer in layers:
        layer["transform"] = [*layer["transform"], {"filter": "datum.round > 0 && datum.bytes > 0 && !datum.alone"}]
    spec = {"height": 300, "params": [shown(group.names)], "transform": [ONLY_SHOWN], "layer": [*layers, still]}
    places = tuple(("layer", k, "encoding", "x", "scale", "type") for k in range(len(layers)))
    box = Checkbox("logarithmic", places, "log", "linear", ticked=True)
    words = alt + (" Training alone sends nothing: the dashed line." if group.solo else "")
    return Chart(f"{group.metric.name}-by-bytes", f"{capital(group.metric.title)} by bytes", words, data, spec, (box,), half=True)
