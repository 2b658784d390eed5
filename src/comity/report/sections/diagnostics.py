"""What methods tell of themselves: charts of the diagnostics that their classes declare
(`comity.core.diagnostics`).

Comity's own methods are found by name. A file of a user's own is not imported for the sake of these
charts: its class is asked only where the page opens the run anyway, to check its bytes. Whatever
else such a method noted under a name with a slash is drawn plainly, so that a file that is gone
costs the titles, not the figures.
"""

from __future__ import annotations

import math
import pkgutil
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from comity import algorithms
from comity.core.diagnostics import CurveByRound, Diagnostic, ParameterNorms, PartyMatrix
from comity.core.server import Note
from comity.core.wrapper import chain
from comity.errors import UsageError, describe
from comity.report.blocks import Chart, Data, Section, VegaSpec
from comity.report.charts import (
    PARTIES,
    by_method,
    first_of,
    heat,
    line_of_points,
    quantity,
    tall,
    tip,
    whole_rounds,
    word,
)
from comity.report.gather import Group, Method
from comity.report.readable import Run
from comity.report.sections.wire import talks
from comity.spec import parse, split

UNDECLARED = 12
"""At most so many charts of figures that a method noted without declaring them: there may be any
number.
"""
SPREAD = "spread over seeds"
"""A column that no declared value can be called."""


def diagnostics(section: Section, group: Group, reopen: bool) -> None:
    """Add the charts of all methods: matrices, then curves, then what is read from models, which
    only `reopen` allows.
    """
    told = [(method, one) for method in group.methods for one in _of(method, reopen)]
    for method, one in told:
        if isinstance(one, PartyMatrix):
            _add(section, method, one, partial(_matrix, method, one))
    for curve in _once(told):
        methods = [method for method, one in told if one == curve]
        _add(section, methods[0], curve, partial(_curve, group, methods, curve))
    for method, one in told:
        if isinstance(one, ParameterNorms) and reopen and method.finished:
            _add(section, method, one, partial(_norms, method, one))


def _add(
    section: Section, method: Method, one: Diagnostic, draw: Callable[[], Chart | None]
) -> None:
    """A chart, if there are figures for it; one that cannot be made becomes a sentence."""
    try:
        if chart := draw():
            section.blocks.append(chart)
    except (
        Exception
    ) as why:  # a checkpoint that is gone, a declaration of a user's that makes no sense
        section.say(f"{method.name}: its {one.name} cannot be read: {describe(why)}", "missing")


def _once(told: list[tuple[Method, Diagnostic]]) -> list[CurveByRound]:
    """Methods that declare the same curve share its chart."""
    found: list[CurveByRound] = []
    for _, one in told:
        if isinstance(one, CurveByRound) and one not in found:
            found.append(one)
    return found


# Which diagnostics a method has.


def _of(method: Method, reopen: bool) -> list[Diagnostic]:
    """What a method declares, its host first; and what a method that is not Comity's own noted
    beside it.
    """
    ours = {module.name.replace("_", "-") for module in pkgutil.iter_modules(algorithms.__path__)}
    names = _names(method)
    declared = [
        one for name in names if name in ours for one in algorithms.find(name).traits.diagnostics
    ]
    if names and ours.issuperset(names):
        return declared
    if reopen and method.finished and talks(method):
        declared = _asked(method) or declared
    return [*declared, *_undeclared(method, declared)]


def _names(method: Method) -> list[str]:
    """The parts of a composition, as in fedavg and dbe of fedavg+dbe; none if its name cannot be
    read.
    """
    known = next((run.experiment.algorithm for run in method.runs if run.experiment), method.name)
    try:
        return [parse(part).name for part in split(known, "+")]
    except UsageError:
        return []


def _asked(method: Method) -> list[Diagnostic]:
    """What the classes of an opened run declare; nothing if it cannot be opened, which the page
    says elsewhere.
    """
    try:
        parts = reversed(chain(method.finished[0].job.algorithm))
        return [
            one for part in parts for one in part.traits.diagnostics if isinstance(one, Diagnostic)
        ]
    except Exception:
        return []


def _undeclared(method: Method, declared: list[Diagnostic]) -> list[Diagnostic]:
    """Plain diagnostics of what was noted as `name/...` and not declared: pairs of parties as a
    matrix, others as curves.
    """
    by_name: dict[str, list[Note]] = {}
    for note in method.runs[0].metrics:
        if "/" in note.metric and not _covered(note.metric, declared):
            by_name.setdefault(note.metric.partition("/")[0], []).append(note)
    parties = set(method.runs[0].parties)
    found: list[Diagnostic] = []
    for name, notes in by_name.items():
        if all(
            note.party in parties and note.metric.partition("/")[2] in parties for note in notes
        ):
            found.append(PartyMatrix(**_plain(name), prefix=f"{name}/"))
        else:
            metrics = dict.fromkeys(note.metric for note in notes)
            found += [CurveByRound(**_plain(metric), metric=metric) for metric in metrics]
    return found[:UNDECLARED]


def _plain(name: str) -> dict[str, Any]:
    """What can be said of figures of which nothing is known but their name."""
    return {"name": name, "title": name, "meaning": f"{name}, as it was noted", "value": "value"}


def _covered(metric: str, declared: list[Diagnostic]) -> bool:
    """Whether a declared diagnostic is about this metric."""
    return any(
        (isinstance(one, CurveByRound) and metric == one.metric)
        or (isinstance(one, PartyMatrix) and metric.startswith(one.prefix))
        for one in declared
    )


# How they are drawn.


def _curve(group: Group, methods: list[Method], one: CurveByRound) -> Chart | None:
    """A line a method, means over its runs; and the figure to compare with."""
    lines = {method.name: line for method in methods if (line := _by_round(method, one.metric))}
    if not lines:
        return None
    reference = {method.name: _reference(one, method) for method in methods}
    label = "chance" if one.reference == "chance" else "reference"
    rows = [
        {
            "method": name,
            "round": t,
            one.value: statistics.fmean(values),
            SPREAD: statistics.pstdev(values),
        }
        | ({} if one.reference is None else {label: reference[name]})
        for name, line in lines.items()
        for t, values in line.items()
    ]
    several = any(len(method.runs) > 1 for method in methods)
    columns = (
        "method",
        "round",
        one.value,
        *([SPREAD] if several else []),
        *([] if one.reference is None else [label]),
    )
    form = ".1%" if one.percent else ".3g"
    how: VegaSpec = {"axis": {"format": ".0%"}, "scale": {"domainMin": 0}} if one.percent else {}
    y = quantity(one.value, one.axis_title, **how)
    tips = [tip("method", "method"), tip("round", "round"), tip(one.value, one.value, form)]
    tips += [tip(SPREAD, "± over seeds", form)] if several else []
    layers = line_of_points(
        {
            "x": whole_rounds(t for line in lines.values() for t in line),
            "y": y,
            "color": by_method(group, only=list(lines)),
        },
        tips,
        40,
    )
    alt = _sentence(one.meaning)
    if one.reference is not None:
        layers.append(
            {
                "mark": {"type": "rule", "strokeDash": [5, 4], "color": "@soft"},
                "encoding": {"y": {"aggregate": "mean", "field": label, "type": "quantitative"}},
            }
        )
        first = next(iter(lines))
        chance = "what naming the largest party always would reach, " if label == "chance" else ""
        alt += f"; the dashed line is {chance}{reference[first]:{form}}"
    ends = "; ".join(
        f"{name} ends at {_end(list(line.values())[-1], form)}" for name, line in lines.items()
    )
    over = " ±: standard deviation over seeds." if several else ""
    spec: VegaSpec = {"height": 240, "layer": layers}
    return Chart(
        one.name,
        _sentence(one.title),
        f"{alt}. {ends}.{over}",
        Data.of(one.name, rows, columns),
        spec,
        half=True,
    )


def _end(values: list[float], form: str) -> str:
    """A line's last figure, with its spread over seeds."""
    spread = f" ± {statistics.pstdev(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{form}}{spread}"


def _by_round(method: Method, metric: str) -> dict[int, list[float]]:
    """What a method's runs noted in each round: a figure a run, the mean over parties if each noted
    its own.
    """
    found: dict[int, list[float]] = {}
    for run in method.runs:
        noted: dict[int, list[float]] = {}
        for note in run.metrics:
            if note.metric == metric and math.isfinite(note.value):
                noted.setdefault(note.round, []).append(note.value)
        for t, values in noted.items():
            found.setdefault(t, []).append(statistics.fmean(values))
    return dict(sorted(found.items()))


def _reference(one: CurveByRound, method: Method) -> float:
    """The figure that a method's line is compared with; by chance, the largest party is named
    always.
    """
    if one.reference != "chance":
        return float(one.reference or 0.0)
    run = method.runs[0]
    sizes = [len(run.split[party].train) for party in run.parties if party in run.split]
    return max(sizes) / sum(sizes) if sizes else 1 / (len(run.parties) or 1)


def _which(method: Method, run: Run) -> str:
    """Whose figures a chart of one run shows, where there are several."""
    return f" Seed {run.seed}." if len(method.runs) > 1 else ""


def _matrix(method: Method, one: PartyMatrix) -> Chart | None:
    """Party by peer, at the last round in which each pair was looked at, in the first run."""
    last: dict[tuple[str, str], float] = {}
    for note in method.runs[0].metrics:
        if note.metric.startswith(one.prefix) and math.isfinite(note.value):
            last[note.party, note.metric.removeprefix(one.prefix)] = note.value
    if not last:
        return None
    everyone = list(dict.fromkeys(name for pair in last for name in pair))
    names = everyone[:PARTIES]
    rows = [
        {"party": a, "peer": b, one.value: v}
        for (a, b), v in last.items()
        if a in names and b in names
    ]
    value: VegaSpec = {
        "field": one.value,
        "type": "quantitative",
        "title": one.axis_title,
        "format": ".2f",
        "scale": {"range": ["@low", "@high"]},
    }
    tips = [tip("party", "party"), tip("peer", "peer"), tip(one.value, one.value, ".3f")]
    spec = heat(word("peer", "peer", names), word("party", "party", names), value, tips)
    (a, b), most = max(last.items(), key=lambda item: item[1])
    alt = (
        f"{method.name}: {one.meaning}. Most: {a} and {b},"
        f" {most:.2f}.{first_of(len(everyone))}{_which(method, method.runs[0])}"
    )
    return _about(method, one, alt, rows, ("party", "peer", one.value), spec)


def _norms(method: Method, one: ParameterNorms) -> Chart | None:
    """A bar a party, in the first finished run."""
    from comity.measure.representations import offered

    run = method.finished[0]
    every = {
        model.party.name: float(model.theta[one.parameter].norm())
        for model in offered(run.job, run.folder)
        if one.parameter in model.theta
    }
    norms = {party: norm for party, norm in every.items() if math.isfinite(norm)}
    if not norms:
        return None
    rows = [
        {"method": method.name, "party": party, one.value: norm} for party, norm in norms.items()
    ][:PARTIES]
    spec: VegaSpec = {
        "height": tall(len(rows)),
        "mark": {"type": "bar"},
        "encoding": {
            "y": {**word("party", None), "sort": "-x"},
            "x": quantity(one.value, one.axis_title),
            "color": {"value": "@c0"},
            "tooltip": [tip("party", "party"), tip(one.value, one.value, ".3f")],
        },
    }
    between = f"between {min(norms.values()):.2f} and {max(norms.values()):.2f}"
    alt = f"{_sentence(one.meaning)}, {between}.{first_of(len(norms))}{_which(method, run)}"
    return _about(method, one, alt, rows, ("method", "party", one.value), spec)


def _about(
    method: Method,
    one: Diagnostic,
    alt: str,
    rows: list[dict[str, object]],
    columns: tuple[str, ...],
    spec: VegaSpec,
) -> Chart:
    """A chart about one method: it bears the method's name, and goes when the method's box is not
    ticked.
    """
    name = f"{one.name}-{method.name}"
    title = f"{method.name}: {one.title}"
    return Chart(
        name, title, alt, Data.of(name, rows, columns), spec, half=True, method=method.name
    )


def _sentence(text: str) -> str:
    """With a capital letter in front."""
    return text[:1].upper() + text[1:]
