"""Charts of the diagnostics that the methods' classes declare (`comity.core.diagnostics`).

Comity's own methods are found by name. A user's file is not imported for these charts: its class is
consulted only where the page opens the run anyway, to check its bytes. Other values that such a
method logged under a name with a slash are drawn with that name, so that a missing file costs the
titles but not the figures.
"""

from __future__ import annotations

import math
import pkgutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from comity import algorithms
from comity.charts.chart import Chart, Data, VegaSpec
from comity.charts.curves import line_layers
from comity.charts.encodings import heatmap, nominal, quantitative, round_axis, rows_height, tooltip
from comity.core.diagnostics import CurveByRound, Diagnostic, ParameterNorms, PartyMatrix
from comity.core.server import Note
from comity.core.wrapper import chain
from comity.errors import UsageError, describe
from comity.reporting.blocks import Section
from comity.reporting.charts import MAX_PARTIES, capitalize_first, colour_by_method, first_parties
from comity.reporting.gather import Method, RunGroup
from comity.reporting.readable import Run
from comity.reporting.sections.wire import communicates
from comity.spec import parse, split
from comity.units import deviation

MOST_UNDECLARED = 12
"""The most charts of values that a method logged without declaring them."""
SPREAD = "spread over seeds"
"""A column name that no declared value can have."""


def diagnostics(section: Section, group: RunGroup, reopen: bool) -> None:
    """Add the charts of all methods: matrices, curves, and then what is read from models.

    Only with `reopen` are models and users' files opened.
    """
    pairs = [
        (method, diagnostic)
        for method in group.methods
        for diagnostic in _diagnostics_of(method, reopen)
    ]
    for method, diagnostic in pairs:
        if isinstance(diagnostic, PartyMatrix):
            _add(section, method, diagnostic, partial(_matrix, method, diagnostic))
    for curve in _distinct_curves(pairs):
        methods = [method for method, diagnostic in pairs if diagnostic == curve]
        _add(section, methods[0], curve, partial(_curve, group, methods, curve))
    for method, diagnostic in pairs:
        if isinstance(diagnostic, ParameterNorms) and reopen and method.finished:
            _add(section, method, diagnostic, partial(_norms, method, diagnostic))


def _add(
    section: Section, method: Method, diagnostic: Diagnostic, draw: Callable[[], Chart | None]
) -> None:
    """Add a chart if it has data, or the reason why it cannot be drawn."""
    try:
        if chart := draw():
            section.blocks.append(chart)
    except Exception as why:  # a checkpoint may be missing, and users may declare anything
        section.say(
            f"{method.name}: its {diagnostic.name} cannot be read: {describe(why)}", "missing"
        )


def _distinct_curves(pairs: list[tuple[Method, Diagnostic]]) -> list[CurveByRound]:
    """Return each curve once: methods that declare the same curve share a chart."""
    curves: list[CurveByRound] = []
    for _, diagnostic in pairs:
        if isinstance(diagnostic, CurveByRound) and diagnostic not in curves:
            curves.append(diagnostic)
    return curves


# Which diagnostics a method has.


def _diagnostics_of(method: Method, reopen: bool) -> list[Diagnostic]:
    """Return what a method declares, its host first, and what a user's method logged besides."""
    own_methods = {
        module.name.replace("_", "-") for module in pkgutil.iter_modules(algorithms.__path__)
    }
    names = _part_names(method)
    declared = [
        diagnostic
        for name in names
        if name in own_methods
        for diagnostic in algorithms.find(name).traits.diagnostics
    ]
    if names and own_methods.issuperset(names):
        return declared
    if reopen and method.finished and communicates(method):
        declared = _declared_by_run(method) or declared
    return [*declared, *_undeclared(method, declared)]


def _part_names(method: Method) -> list[str]:
    """Return the parts of a composition, as in fedavg and dbe of fedavg+dbe.

    The list is empty if the method's name is no composition.
    """
    spec = next((run.experiment.algorithm for run in method.runs if run.experiment), method.name)
    try:
        return [parse(part).name for part in split(spec, "+")]
    except UsageError:
        return []


def _declared_by_run(method: Method) -> list[Diagnostic]:
    """Return what the classes of an opened run declare.

    The list is empty if the run cannot be opened, which the page says elsewhere.
    """
    try:
        parts = reversed(chain(method.finished[0].job.algorithm))
        return [
            diagnostic
            for part in parts
            for diagnostic in part.traits.diagnostics
            if isinstance(diagnostic, Diagnostic)
        ]
    except Exception:
        return []


def _undeclared(method: Method, declared: list[Diagnostic]) -> list[Diagnostic]:
    """Return diagnostics for values that were logged as `name/...` and not declared.

    Values of pairs of parties become a matrix, others become curves.
    """
    by_name: dict[str, list[Note]] = {}
    for note in method.runs[0].metrics:
        if "/" in note.metric and not _is_declared(note.metric, declared):
            by_name.setdefault(note.metric.partition("/")[0], []).append(note)
    parties = set(method.runs[0].parties)
    diagnostics: list[Diagnostic] = []
    for name, notes in by_name.items():
        if all(
            note.party in parties and note.metric.partition("/")[2] in parties for note in notes
        ):
            diagnostics.append(PartyMatrix(**_default_texts(name), prefix=f"{name}/"))
        else:
            metrics = dict.fromkeys(note.metric for note in notes)
            diagnostics += [
                CurveByRound(**_default_texts(metric), metric=metric) for metric in metrics
            ]
    return diagnostics[:MOST_UNDECLARED]


def _default_texts(name: str) -> dict[str, Any]:
    """Return the texts of a diagnostic of which only the name is known."""
    return {"name": name, "title": name, "meaning": f"{name}, as it was noted", "value": "value"}


def _is_declared(metric: str, declared: list[Diagnostic]) -> bool:
    """Whether a declared diagnostic is about this metric."""
    return any(
        (isinstance(diagnostic, CurveByRound) and metric == diagnostic.metric)
        or (isinstance(diagnostic, PartyMatrix) and metric.startswith(diagnostic.prefix))
        for diagnostic in declared
    )


# How they are drawn.


def _curve(group: RunGroup, methods: list[Method], diagnostic: CurveByRound) -> Chart | None:
    """Return a chart with a line for each method, a mean over its runs, and the reference."""
    lines = {
        method.name: line for method in methods if (line := _by_round(method, diagnostic.metric))
    }
    if not lines:
        return None
    reference = {method.name: _reference(diagnostic, method) for method in methods}
    label = "chance" if diagnostic.reference == "chance" else "reference"
    rows = [
        {
            "method": name,
            "round": t,
            diagnostic.value: statistics.fmean(values),
            SPREAD: deviation(values),
        }
        | ({} if diagnostic.reference is None else {label: reference[name]})
        for name, line in lines.items()
        for t, values in line.items()
    ]
    several = any(len(method.runs) > 1 for method in methods)
    columns = (
        "method",
        "round",
        diagnostic.value,
        *([SPREAD] if several else []),
        *([] if diagnostic.reference is None else [label]),
    )
    number_format = ".1%" if diagnostic.percent else ".3g"
    axis: VegaSpec = (
        {"axis": {"format": ".0%"}, "scale": {"domainMin": 0}} if diagnostic.percent else {}
    )
    y = quantitative(diagnostic.value, diagnostic.axis_title, **axis)
    tips = [
        tooltip("method", "method"),
        tooltip("round", "round"),
        tooltip(diagnostic.value, diagnostic.value, number_format),
    ]
    tips += [tooltip(SPREAD, "± over seeds", number_format)] if several else []
    layers = line_layers(
        {
            "x": round_axis(t for line in lines.values() for t in line),
            "y": y,
            "color": colour_by_method(group, only=list(lines)),
        },
        tips,
        min(map(len, lines.values())),
    )
    alt = capitalize_first(diagnostic.meaning)
    if diagnostic.reference is not None:
        layers.append(
            {
                "mark": {"type": "rule", "strokeDash": [5, 4], "color": "@soft"},
                "encoding": {"y": {"aggregate": "mean", "field": label, "type": "quantitative"}},
            }
        )
        first = next(iter(lines))
        chance = "what naming the largest party always would reach, " if label == "chance" else ""
        alt += f"; the dashed line is {chance}{reference[first]:{number_format}}"
    ends = "; ".join(
        f"{name} ends at {_format_end(list(line.values())[-1], number_format)}"
        for name, line in lines.items()
    )
    about_spread = " ±: sample standard deviation over seeds." if several else ""
    spec: VegaSpec = {"height": 240, "layer": layers}
    return Chart(
        diagnostic.name,
        capitalize_first(diagnostic.title),
        f"{alt}. {ends}.{about_spread}",
        Data.of(diagnostic.name, rows, columns),
        spec,
        half=True,
    )


def _format_end(values: list[float], number_format: str) -> str:
    """Return the last value of a line, with its standard deviation over seeds."""
    spread = f" ± {deviation(values):{number_format}}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{number_format}}{spread}"


def _by_round(method: Method, metric: str) -> dict[int, list[float]]:
    """Return what the runs of a method logged in each round: a value for each run.

    If each party logged a value, it is their mean.
    """
    by_round: dict[int, list[float]] = {}
    for run in method.runs:
        values_by_round: dict[int, list[float]] = {}
        for note in run.metrics:
            if note.metric == metric and math.isfinite(note.value):
                values_by_round.setdefault(note.round, []).append(note.value)
        for t, values in values_by_round.items():
            by_round.setdefault(t, []).append(statistics.fmean(values))
    return dict(sorted(by_round.items()))


def _reference(diagnostic: CurveByRound, method: Method) -> float:
    """Return the value that a method's line is compared with.

    Chance is the accuracy of a guess that always names the largest party.
    """
    if diagnostic.reference != "chance":
        return float(diagnostic.reference or 0.0)
    run = method.runs[0]
    sizes = [len(run.split[party].train) for party in run.parties if party in run.split]
    return max(sizes) / sum(sizes) if sizes else 1 / (len(run.parties) or 1)


def _about_seed(method: Method, run: Run) -> str:
    """Return a sentence about the seed of a chart of one run; empty if there is one seed."""
    return f" Seed {run.seed}." if len(method.runs) > 1 else ""


def _matrix(method: Method, diagnostic: PartyMatrix) -> Chart | None:
    """Return a matrix of each pair's last value in the first run; None without values."""
    last: dict[tuple[str, str], float] = {}
    for note in method.runs[0].metrics:
        if note.metric.startswith(diagnostic.prefix) and math.isfinite(note.value):
            last[note.party, note.metric.removeprefix(diagnostic.prefix)] = note.value
    if not last:
        return None
    parties = list(dict.fromkeys(name for pair in last for name in pair))
    names = parties[:MAX_PARTIES]
    rows = [
        {"party": a, "peer": b, diagnostic.value: v}
        for (a, b), v in last.items()
        if a in names and b in names
    ]
    value: VegaSpec = {
        "field": diagnostic.value,
        "type": "quantitative",
        "title": diagnostic.axis_title,
        "format": ".2f",
        "scale": {"range": ["@low", "@high"]},
    }
    tips = [
        tooltip("party", "party"),
        tooltip("peer", "peer"),
        tooltip(diagnostic.value, diagnostic.value, ".3f"),
    ]
    spec = heatmap(nominal("peer", "peer", names), nominal("party", "party", names), value, tips)
    (a, b), most = max(last.items(), key=lambda item: item[1])
    alt = (
        f"{method.name}: {diagnostic.meaning}. Most: {a} and {b},"
        f" {most:.2f}.{_about_seed(method, method.runs[0])}"
    )
    columns = ("party", "peer", diagnostic.value)
    chart = _method_chart(method, diagnostic, alt, rows, columns, spec)
    return replace(chart, selection=first_parties(len(parties)))


def _norms(method: Method, diagnostic: ParameterNorms) -> Chart | None:
    """Return a chart with a bar for each party, from the first finished run."""
    from comity.measure.representations import deployed_models

    run = method.finished[0]
    all_norms = {
        model.party.name: float(model.theta[diagnostic.parameter].norm())
        for model in deployed_models(run.job, run.folder)
        if diagnostic.parameter in model.theta
    }
    norms = {party: norm for party, norm in all_norms.items() if math.isfinite(norm)}
    if not norms:
        return None
    rows = [
        {"method": method.name, "party": party, diagnostic.value: norm}
        for party, norm in norms.items()
    ][:MAX_PARTIES]
    spec: VegaSpec = {
        "height": rows_height(len(rows)),
        "mark": {"type": "bar"},
        "encoding": {
            "y": {**nominal("party", None), "sort": "-x"},
            "x": quantitative(diagnostic.value, diagnostic.axis_title),
            "color": {"value": "@c0"},
            "tooltip": [
                tooltip("party", "party"),
                tooltip(diagnostic.value, diagnostic.value, ".3f"),
            ],
        },
    }
    between = f"between {min(norms.values()):.2f} and {max(norms.values()):.2f}"
    alt = f"{capitalize_first(diagnostic.meaning)}, {between}.{_about_seed(method, run)}"
    columns = ("method", "party", diagnostic.value)
    chart = _method_chart(method, diagnostic, alt, rows, columns, spec)
    return replace(chart, selection=first_parties(len(norms)))


def _method_chart(
    method: Method,
    diagnostic: Diagnostic,
    alt: str,
    rows: list[dict[str, object]],
    columns: tuple[str, ...],
    spec: VegaSpec,
) -> Chart:
    """Return a chart about one method, which the page hides when the method's box is unticked."""
    name = f"{diagnostic.name}-{method.name}"
    title = f"{method.name}: {diagnostic.title}"
    return Chart(
        name, title, alt, Data.of(name, rows, columns), spec, half=True, method=method.name
    )
