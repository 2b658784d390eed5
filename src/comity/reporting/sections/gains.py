"""The section on parties: which gain or lose by collaborating, fairness, and who helps whom."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from comity.charts.chart import Chart, Data, VegaSpec
from comity.charts.encodings import (
    diverging,
    heatmap,
    legend,
    nominal,
    percent_axis,
    rows_height,
    tooltip,
)
from comity.measure.fairness import fairness
from comity.measure.gain import Gain, gains_from_answers, paired_gain
from comity.metrics.metrics import ACCURACY, Metric
from comity.reporting.blocks import Section, Table
from comity.reporting.charts import capitalize_first, colour_by_method
from comity.reporting.folds import gains_in_folds, summaries_in_folds, too_few_in_folds
from comity.reporting.gather import Method, RunGroup
from comity.reporting.readable import Run
from comity.studies.estimate import OVER_OWN_MODEL, Estimate
from comity.studies.party_verdicts import describe_folds, estimates, party_label, without_few
from comity.text import join_names

MOST_DRAWN = 40
"""With more parties than this, only those with the largest and the smallest gains are drawn."""
VERDICTS = ("gains", "level", "hurt")


@dataclass(frozen=True)
class PartyFigures:
    """A party's figure under a method and under the baseline: means over seeds, and the gain."""

    name: str
    figure: float
    alone: float | None = None
    gain: Estimate | None = None

    @property
    def verdict(self) -> Literal["gains", "level", "hurt"]:
        """Whether the interval of the gain is above zero, below it, or includes it."""
        if self.gain is None:
            return "level"
        if self.gain.helped:
            return "gains"
        return "hurt" if self.gain.hurt else "level"


def gains_between(run: Run, other: Run) -> list[Gain]:
    """Return every party's gain of a run over another, where the outcomes of both are readable.

    The result is cached.
    """
    if other.folder not in run.gains:
        run.gains[other.folder] = _compute_gains(run, other)
    return run.gains[other.folder]


def _compute_gains(run: Run, other: Run) -> list[Gain]:
    if run.metric is ACCURACY:
        pairs = (
            (name, right, other.outcomes.get(name, [])) for name, right in run.outcomes.items()
        )
        return [
            paired_gain(name, right, other_right)
            for name, right, other_right in pairs
            if right and len(other_right) == len(right)
        ]
    same_samples = {
        name: answers
        for name, answers in other.answers.items()
        if name in run.answers and torch.equal(answers.truth, run.answers[name].truth)
    }
    return gains_from_answers(run.answers, same_samples, run.metric)


def _suggest_solo(group: RunGroup) -> str:
    """Return what to do where there is no SOLO to compare with."""
    if group.between_sites:
        return (
            "Each site can see whether it gains, once solo was run with the same settings: comity"
            " report SITE/runs, at the site."
        )
    return "To see who gains, run training alone on the same data: comity compare ... does."


def gains_by_seed(group: RunGroup, method: Method) -> dict[int, list[Gain]]:
    """Return every party's gain over the baseline, by seed; in cross-validation, over all folds."""
    if group.folds > 1:
        return gains_in_folds(group, method, group.baseline)
    return {
        run.seed: _reported_gains(run) or gains_between(run, baseline)
        for run in method.finished
        if (baseline := group.baseline_run(run)) and baseline is not run
    }


def _reported_gains(run: Run) -> list[Gain]:
    """Return the gains that sites have computed over what they have alone, if they report any."""
    reported = (run.summary or {}).get("gained", {})
    return [Gain(party, **figures) for party, figures in reported.items()]


def too_few(group: RunGroup) -> dict[int, list[str]]:
    """Return the parties with too few test samples for a verdict of their own, by seed."""
    if group.folds > 1:
        return too_few_in_folds(group)
    runs = group.baseline.finished if group.baseline else ()
    return {run.seed: (run.summary or {})["too_few"] for run in runs}


def summaries_of(group: RunGroup, method: Method) -> list[dict[str, Any]]:
    """Return the summaries of a method's finished runs; under cross-validation, one per repeat."""
    if group.folds > 1:
        return summaries_in_folds(group, method, too_few(group))
    return method.summaries


def _figures_by_party(group: RunGroup, summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the page's metric of each party that was evaluated."""
    block = summary.get(group.metric.name) or {}
    return {
        party: value for party, value in block.get("per_party", {}).items() if value is not None
    }


def count_choices(group: RunGroup) -> int:
    """Return the number of methods to choose the best from, for the correction of intervals.

    SOLO and pooling the data are no choices for a party that wants to collaborate.
    """
    return max(1, sum(not (m.alone or m.pools) for m in group.methods))


def correction_note(group: RunGroup) -> str:
    """Return a phrase about the correction of intervals; empty if there is one method."""
    choices = count_choices(group)
    if choices == 1:
        return ""
    return f" and Bonferroni-corrected for choosing the best of {choices} methods"


def party_results(group: RunGroup, method: Method) -> list[PartyFigures]:
    """Return the parties' results, the largest gain first.

    If parties differ between seeds, those of every seed are in the list.
    """
    figures: dict[str, list[float]] = defaultdict(list)
    alone: dict[str, list[float]] = defaultdict(list)
    clear = without_few(gains_by_seed(group, method), too_few(group), group.same_parties)
    gained = estimates(clear, group.same_parties, count_choices(group), group.metric)
    figures_alone = {
        summary["seed"]: _figures_by_party(group, summary)
        for summary in (summaries_of(group, group.baseline) if group.baseline else ())
    }
    for summary in summaries_of(group, method):
        seed = summary["seed"]
        for party, value in _figures_by_party(group, summary).items():
            name = party_label(party, seed, group.same_parties)
            figures[name].append(value)
            if name in gained and party in figures_alone.get(seed, {}):
                alone[name].append(figures_alone[seed][party])
    results = [
        PartyFigures(
            name,
            statistics.fmean(values),
            statistics.fmean(alone[name]) if alone[name] else None,
            gained.get(name),
        )
        for name, values in figures.items()
    ]
    return sorted(
        results, key=lambda p: (-p.gain.gain if p.gain else 0.0, -group.metric.sign * p.figure)
    )


def gains(group: RunGroup, folder: Path) -> Section:
    """Return the third section: the parties' gains, fairness, newcomers, who helps whom."""
    section = Section("gains", "Who gains")
    methods = [m for m in group.methods if m.finished]
    if not methods:
        section.say("No run is finished, so nothing can be said of single parties yet.", "missing")
        return section
    results = {m.name: party_results(group, m) for m in methods}
    collaborative = {m.name for m in methods if not m.alone}
    compared = {
        name: with_gain
        for name, parties in results.items()
        if name in collaborative
        and (with_gain := [p for p in parties if p.gain and p.alone is not None])
    }
    for name, parties in compared.items():
        _warn_of_negative_transfer(section, name, parties)
    if compared:
        _add_dumbbells(section, group, compared)
    else:
        section.blocks.append(_dots(group, results))
        if group.baseline is None:
            section.say(_suggest_solo(group), "missing")
    small = {
        party_label(party, seed, group.same_parties)
        for seed, parties in too_few(group).items()
        for party in parties
    }
    if small:
        section.say(f"Too few test samples to judge each by itself: {join_names(sorted(small))}.")
    summaries = [summary for method in methods for summary in method.summaries]
    if withheld := sorted({party for summary in summaries for party in summary["withheld"]}):
        section.say(f"Withheld by site policy: the test figures of {join_names(withheld)}.")
    if not group.site:
        section.blocks.append(_fairness(group))
    if newcomers := _newcomers(group):
        section.blocks.append(newcomers)
    _add_leave_one_out(section, group, folder / group.name / "leave-one-out.csv")
    return section


def _warn_of_negative_transfer(section: Section, method: str, parties: list[PartyFigures]) -> None:
    """Add a warning if some parties are clearly worse than alone."""
    hurt = [p for p in parties if p.verdict == "hurt"]
    if not hurt:
        return
    worst = ", ".join(f"{p.name} ({100 * p.gain.gain:+.1f} points)" for p in hurt[:-6:-1] if p.gain)
    more = f" and {len(hurt) - 5} more" if len(hurt) > 5 else ""
    subject = "party does" if len(hurt) == 1 else "parties do"
    section.say(
        f"Negative transfer with {method}: {len(hurt)} {subject} clearly worse than alone:"
        f" {worst}{more}.",
        "warning",
    )


def _add_dumbbells(
    section: Section, group: RunGroup, compared: dict[str, list[PartyFigures]]
) -> None:
    """Add a chart for each method, all with the same axis, and how to read them."""
    metric = group.metric
    rows = {
        name: [_dumbbell_row(name, p, metric) for p in _drawn_parties(parties)]
        for name, parties in compared.items()
    }
    ends = ("from", "to", "solo", metric.name)
    values = [row[end] for method_rows in rows.values() for row in method_rows for end in ends]
    section.blocks += [
        _dumbbells(name, parties, rows[name], metric, values) for name, parties in compared.items()
    ]
    alone = "each party's own model" if group.over == OVER_OWN_MODEL else "training alone"
    section.say(
        f"Hollow: {alone}. Filled: the method. Bar: the 95% interval of the gain, paired over test"
        f" samples{correction_note(group)}, drawn around the result of {alone}, and no further"
        " than a figure can go; it is clear of the hollow mark where a party clearly gains or"
        " loses. Level: it is not, which is not the same as no difference." + _about_seeds(group)
    )


def _drawn_parties(parties: list[PartyFigures]) -> list[PartyFigures]:
    if len(parties) <= MOST_DRAWN:
        return parties
    half = MOST_DRAWN // 2
    return [*parties[:half], *parties[-half:]]


def _describe_drawn(parties: int, figures: str) -> str:
    """Return a sentence about a chart that shows only some parties; empty if it shows all."""
    if parties <= MOST_DRAWN:
        return ""
    half = MOST_DRAWN // 2
    return (
        f"{MOST_DRAWN} of {parties} parties are drawn: the {half} with the largest {figures} and"
        f" the {half} with the smallest."
    )


def _dumbbell_row(method: str, party: PartyFigures, metric: Metric) -> dict[str, Any]:
    """Return the chart's row of a party that was compared with SOLO."""
    assert party.gain is not None
    assert party.alone is not None
    ends = [party.alone + metric.sign * end for end in (party.gain.low, party.gain.high)]
    ends = [min(max(end, 0.0), 1.0) for end in ends] if metric.bounded else ends
    return {
        "method": method,
        "party": party.name,
        "solo": party.alone,
        metric.name: party.figure,
        "gain": party.gain.gain,
        "low": party.gain.low,
        "high": party.gain.high,
        "points": 100 * party.gain.gain,
        "from_points": 100 * party.gain.low,
        "to_points": 100 * party.gain.high,
        "from": min(ends),
        "to": max(ends),
        "verdict": party.verdict,
    }


def _dumbbells(
    method: str,
    parties: list[PartyFigures],
    rows: list[dict[str, Any]],
    metric: Metric,
    axis_values: list[float],
) -> Chart:
    """Return a chart with a line for each party, from SOLO to the method, sorted by gain."""
    points = ("points", "from_points", "to_points")
    columns = (
        "method",
        "party",
        "solo",
        metric.name,
        "gain",
        "low",
        "high",
        *points,
        "from",
        "to",
        "verdict",
    )
    data = Data.of(f"gains-{method}", rows, columns)

    def x_axis(field: str) -> VegaSpec:
        return percent_axis(field, f"test {metric.title}", axis_values)

    scale = {"domain": list(VERDICTS), "range": ["@good", "@grey", "@bad"]}
    colour: VegaSpec = {
        "field": "verdict",
        "type": "nominal",
        "scale": scale,
        "legend": legend("top", 3),
    }
    tips = [
        tooltip("party", "party"),
        tooltip("solo", "alone", ".1%"),
        tooltip(metric.name, method, ".1%"),
        tooltip("points", "gain, points", "+.1f"),
        tooltip("from_points", "95% from", "+.1f"),
        tooltip("to_points", "to", "+.1f"),
    ]
    y = nominal("party", None)
    spec: VegaSpec = {
        "height": rows_height(len(rows)),
        "encoding": {"y": y, "tooltip": tips},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 8, "opacity": 0.22},
                "encoding": {"x": x_axis("from"), "x2": {"field": "to"}, "color": colour},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"x": x_axis("solo"), "x2": {"field": metric.name}, "color": colour},
            },
            {
                "mark": {"type": "point", "size": 50, "fill": "@page", "stroke": "@soft"},
                "encoding": {"x": x_axis("solo")},
            },
            {
                "mark": {"type": "point", "size": 60, "filled": True, "opacity": 1},
                "encoding": {"x": x_axis(metric.name), "color": colour},
            },
        ],
    }
    counts = {verdict: sum(p.verdict == verdict for p in parties) for verdict in VERDICTS}
    alt = (
        f"{method} beside training alone, party by party: clearly gaining {counts['gains']},"
        f" clearly losing {counts['hurt']}, level {counts['level']}."
    )
    return Chart(
        f"gains-{method}",
        f"{method} beside training alone",
        alt,
        data,
        spec,
        half=True,
        selection=_describe_drawn(len(parties), "gains"),
        method=method,
    )


def _dots(group: RunGroup, results: dict[str, list[PartyFigures]]) -> Chart:
    """Return a chart of the parties' figures, for runs without SOLO."""
    metric = group.metric
    rows = [
        {"method": name, "party": p.name, metric.name: p.figure}
        for name, parties in results.items()
        for p in _drawn_parties(parties)
    ]
    data = Data.of("parties", rows, ("method", "party", metric.name))
    spec: VegaSpec = {
        "height": rows_height(len({row["party"] for row in rows})),
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
        "encoding": {
            "y": {**nominal("party", None), "sort": "-x"},
            "x": percent_axis(metric.name, f"test {metric.title}"),
            "color": colour_by_method(group, legend=len(results) > 1, only=list(results)),
            "tooltip": [
                tooltip("method", "method"),
                tooltip("party", "party"),
                tooltip(metric.name, metric.title, ".1%"),
            ],
        },
    }
    ranges = "; ".join(
        f"{name}: from {min(p.figure for p in parties):.1%} to {max(p.figure for p in parties):.1%}"
        for name, parties in results.items()
        if parties
    )
    alt = f"Every party's test {metric.title} after the last round. {ranges}."
    title = f"{capitalize_first(metric.title)} by party"
    most = max(map(len, results.values()))
    by_method = " of each method" if len(results) > 1 else ""
    sentence = _describe_drawn(most, f"figures{by_method}")
    return Chart("parties", title, alt, data, spec, selection=sentence)


def _about_seeds(group: RunGroup) -> str:
    """Return a sentence about the seeds that are drawn; empty if there is one."""
    seeds = {run.seed for run in group.runs}
    if len(seeds) == 1:
        return ""
    if group.folds > 1:
        repeats = len(seeds) // group.folds
        return f" Of all samples of a party, by {describe_folds(group.folds, repeats)}."
    if group.same_parties:
        return f" Means over {len(seeds)} seeds."
    return " Under each seed a party has other samples, so each stands for itself."


def _without_none(per_party: dict[str, float | None]) -> list[float]:
    return [value for value in per_party.values() if value is not None]


def _fairness(group: RunGroup) -> Table:
    rows = []
    for method in (m for m in group.methods if m.finished):
        by_seed = [
            fairness(figures)
            for run in method.finished
            if (figures := _without_none(run.figures.get("per_party", {})))
        ]
        if not by_seed:
            continue
        best, worst, tenth, std, jain = (
            statistics.fmean(getattr(measures, name) for measures in by_seed)
            for name in ("best", "worst", "worst_tenth", "std", "jain")
        )
        rows.append(
            [
                method.name,
                *(f"{v:.1%}" for v in (best, worst, tenth)),
                f"{100 * std:.1f}",
                f"{jain:.3f}",
            ]
        )
    heads = [
        "method",
        "best party",
        "worst party",
        "mean of worst tenth",
        "std over parties",
        "Jain's index",
    ]
    return Table("fairness", f"How evenly {group.metric.title} is spread", heads, rows)


def _newcomers(group: RunGroup) -> Table | None:
    """Return a table of what parties gain that join after the last round; None without any."""
    rows = []
    for method in group.methods:
        by_seed = [(run.summary or {})["newcomers"] for run in group.comparable(method)]
        for party in dict.fromkeys(name for newcomers in by_seed for name in newcomers):
            stages = [newcomers[party] for newcomers in by_seed if party in newcomers]
            *shares, gain = (
                statistics.fmean(s[k] for s in stages)
                for k in ("offered", "joined", "alone", "gain")
            )
            rows.append([method.name, party, *(f"{v:.1%}" for v in shares), f"{100 * gain:+.1f}"])
    heads = ["method", "newcomer", "as offered", "after its warm-up", "alone", "points by joining"]
    if not rows:
        return None
    return Table("newcomers", "Parties that came after the last round", heads, rows, words=2)


def _add_leave_one_out(section: Section, group: RunGroup, path: Path) -> None:
    """Add the matrices of a leave-one-out study, if there is one."""
    if not path.exists():
        return
    try:
        effects = _read_effects(path, all_seeds=group.same_parties)
    except (OSError, KeyError, ValueError, TypeError, csv.Error):
        effects = {}
    if not effects:
        section.say("leave-one-out.csv is damaged: who helps whom cannot be shown.", "missing")
        return
    for method, pairs in effects.items():
        rows = []
        for (left_out, party), by_seed in pairs.items():
            effect, low, high = (statistics.fmean(values) for values in zip(*by_seed, strict=True))
            rows.append(
                {
                    "method": method,
                    "left_out": left_out,
                    "party": party,
                    "effect": effect,
                    "points": 100 * effect,
                    "low": low,
                    "high": high,
                }
            )
        section.blocks.append(_effects_matrix(method, rows))


Effects = dict[str, dict[tuple[str, str], list[tuple[float, float, float]]]]
"""By method and by (party left out, other party): effect, low and high end, for each seed."""


def _read_effects(path: Path, all_seeds: bool) -> Effects:
    """Return the effects in `leave-one-out.csv`, under all seeds or the first."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    first = min(int(row["seed"]) for row in rows)
    effects: Effects = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if all_seeds or int(row["seed"]) == first:
            figures = float(row["effect"]), float(row["low"]), float(row["high"])
            if not all(map(math.isfinite, figures)):
                raise ValueError("an effect is not finite")
            effects[row["method"]][row["left_out"], row["party"]].append(figures)
    return effects


def _effects_matrix(method: str, rows: list[dict[str, object]]) -> Chart:
    data = Data.of(
        f"helps-{method}", rows, ("method", "left_out", "party", "effect", "points", "low", "high")
    )
    names = sorted({str(row["left_out"]) for row in rows} | {str(row["party"]) for row in rows})
    most = max(abs(float(str(row["points"]))) for row in rows) or 1.0
    tips = [
        tooltip("left_out", "helper"),
        tooltip("party", "helped"),
        tooltip("effect", "effect", "+.1%"),
        tooltip("low", "95% from", "+.1%"),
        tooltip("high", "to", "+.1%"),
    ]
    spec = heatmap(
        nominal("party", "on whom", names),
        nominal("left_out", "effect of", names),
        diverging("points", most),
        tips,
    )
    best = max(rows, key=lambda r: float(str(r["effect"])))
    alt = (
        f"{method}: how much each party's presence changes the others' accuracy, in points. The"
        f" largest help is {best['left_out']}'s to {best['party']},"
        f" {100 * float(str(best['effect'])):+.1f} points."
    )
    return Chart(
        f"helps-{method}", f"{method}: who helps whom", alt, data, spec, half=True, method=method
    )
