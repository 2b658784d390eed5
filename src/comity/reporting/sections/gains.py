"""Who gains by collaborating, who loses, how evenly, and who helps whom."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from comity.measure.caveats import few as shortened
from comity.measure.fairness import fairness
from comity.measure.gain import Gain, gains_of, paired
from comity.metrics.metrics import ACCURACY, Metric
from comity.reporting.blocks import Chart, Data, Section, Table, VegaSpec
from comity.reporting.charts import (
    capitalize_first,
    colour_by_method,
    heatmap,
    legend,
    nominal,
    percent_axis,
    rows_height,
    tooltip,
)
from comity.reporting.gather import Group, Method
from comity.reporting.readable import Run
from comity.studies.party_verdicts import Estimate, estimates, judged, named

SHOWN = 40
"""With more parties than this, only those at both ends are drawn."""
VERDICTS = ("gains", "level", "hurt")


@dataclass(frozen=True)
class PartyResult:
    """One party under one method, beside training alone: means over seeds, and the gain with the
    interval of the ranking.
    """

    name: str
    figure: float
    solo: float | None = None
    gain: Estimate | None = None

    @property
    def verdict(self) -> Literal["gains", "level", "hurt"]:
        """Whether its interval excludes zero."""
        return (
            "level"
            if self.gain is None
            else "gains"
            if self.gain.helped
            else "hurt"
            if self.gain.hurt
            else "level"
        )


def between(run: Run, alone: Run) -> list[Gain]:
    """Every party's gain of one run over another, as far as both runs' outcomes can be read; worked
    out once.
    """
    if alone.folder not in run.gains:
        run.gains[alone.folder] = _between(run, alone)
    return run.gains[alone.folder]


def _between(run: Run, alone: Run) -> list[Gain]:
    if run.metric is ACCURACY:
        both = ((name, right, alone.outcomes.get(name, [])) for name, right in run.outcomes.items())
        return [
            paired(name, right, theirs)
            for name, right, theirs in both
            if right and len(theirs) == len(right)
        ]
    theirs = {name: answers for name, answers in alone.answers.items() if name in run.answers}
    same = {
        name: its for name, its in theirs.items() if torch.equal(its.truth, run.answers[name].truth)
    }
    return gains_of(run.answers, same, run.metric)


def _without_alone(group: Group) -> str:
    """What to do where there is nothing to compare with."""
    if group.between_sites:
        return (
            "Who gains each site can tell for itself, once solo was run with the same settings:"
            " comity report SITE/runs, there."
        )
    return "To see who gains, run training alone on the same data: comity compare ... does."


def by_seed(group: Group, method: Method) -> dict[int, list[Gain]]:
    """Every party's gain over training alone, under each seed."""
    return {
        run.seed: between(run, alone)
        for run in method.finished
        if (alone := group.solo_run(run)) and alone is not run
    }


def too_few(group: Group) -> dict[int, list[str]]:
    """Whose test samples are too few to judge them by, under each seed."""
    return {
        run.seed: (run.summary or {})["too_few"]
        for run in (group.solo.finished if group.solo else ())
    }


def picked(group: Group) -> int:
    """How many methods there are to pick the best of, which intervals allow for: those that a party
    could take part in.
    """
    return max(1, sum(not (m.alone or m.pools) for m in group.methods))


def parties(group: Group, method: Method) -> list[PartyResult]:
    """Every party, the one that gains most first; every seed's, if they are not the same parties."""
    figures: dict[str, list[float]] = defaultdict(list)
    solo: dict[str, list[float]] = defaultdict(list)
    clear = judged(by_seed(group, method), too_few(group), group.same_parties)
    gained = estimates(clear, group.same_parties, picked(group), group.metric)
    for run in method.finished:
        alone = group.solo_run(run)
        for party, value in run.figures.get("per_party", {}).items():
            if value is None:  # who was never heard has no figure
                continue
            name = named(party, run.seed, group.same_parties)
            figures[name].append(value)
            if alone and name in gained:
                solo[name].append(alone.figures["per_party"][party])
    found = [
        PartyResult(
            name,
            statistics.fmean(values),
            statistics.fmean(solo[name]) if solo[name] else None,
            gained.get(name),
        )
        for name, values in figures.items()
    ]
    return sorted(
        found, key=lambda p: (-p.gain.gain if p.gain else 0.0, -group.metric.sign * p.figure)
    )


def gains(group: Group, folder: Path) -> Section:
    """The page's third section: each party beside training alone; how evenly; who helps whom."""
    section = Section("gains", "Who gains")
    methods = [m for m in group.methods if m.finished]
    if not methods:
        section.say("No run is finished, so nothing can be said of single parties yet.", "missing")
        return section
    found = {m.name: parties(group, m) for m in methods}
    compared = {
        name: known
        for name, some in found.items()
        if (known := [p for p in some if p.gain and p.solo is not None])
    }
    for name, some in compared.items():
        if hurt := [p for p in some if p.verdict == "hurt"]:
            worst = ", ".join(
                f"{p.name} ({100 * p.gain.gain:+.1f} points)" for p in hurt[:-6:-1] if p.gain
            )
            more = f" and {len(hurt) - 5} more" if len(hurt) > 5 else ""
            what = "party does" if len(hurt) == 1 else "parties do"
            section.say(
                f"Negative transfer with {name}: {len(hurt)} {what} clearly worse than alone:"
                f" {worst}{more}.",
                "warning",
            )
    if compared:
        rows = {
            name: [_row(name, p, group.metric) for p in _drawn(some)]
            for name, some in compared.items()
        }
        reach = [
            row[end]
            for some in rows.values()
            for row in some
            for end in ("from", "to", "solo", group.metric.name)
        ]
        section.blocks += [
            _dumbbells(name, some, rows[name], group.metric, reach)
            for name, some in compared.items()
        ]
        many = picked(group)
        wide = f", wide enough for the best of {many} methods to be picked" if many > 1 else ""
        section.say(
            "Hollow: training alone. Filled: the method. Bar: the 95% interval of the gain, paired"
            f" over test samples{wide}, drawn around where training alone is, and no further than a"
            " figure can go; it is clear of the hollow mark where a party clearly gains or loses."
            " Level: it is not, which is not the same as no difference." + _which(group)
        )
    else:
        section.blocks.append(_dots(group, found))
        if group.solo is None:
            section.say(_without_alone(group), "missing")
    if few := sorted(
        {
            named(party, seed, group.same_parties)
            for seed, some in too_few(group).items()
            for party in some
        }
    ):
        section.say(f"Too few test samples to judge each by itself: {shortened(few)}.")
    summaries = [summary for method in methods for summary in method.summaries]
    if withheld := sorted({party for summary in summaries for party in summary["withheld"]}):
        section.say(f"Withheld by site policy: the test figures of {shortened(withheld)}.")
    if not group.site:
        section.blocks.append(_fairness(group))
    if late := _newcomers(group):
        section.blocks.append(late)
    _who_helps(section, group, folder / group.name / "leave-one-out.csv")
    return section


def _drawn(some: list[PartyResult]) -> list[PartyResult]:
    return some if len(some) <= SHOWN else [*some[: SHOWN // 2], *some[-SHOWN // 2 :]]


def _row(method: str, party: PartyResult, metric: Metric) -> dict[str, Any]:
    """What is drawn of a party that was compared with training alone."""
    assert party.gain is not None
    assert party.solo is not None
    ends = [party.solo + metric.sign * end for end in (party.gain.low, party.gain.high)]
    ends = [min(max(end, 0.0), 1.0) for end in ends] if metric.bounded else ends
    return {
        "method": method,
        "party": party.name,
        "solo": party.solo,
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
    judged: list[PartyResult],
    rows: list[dict[str, Any]],
    metric: Metric,
    reach: list[float],
) -> Chart:
    """One line a party, from training alone to the method, sorted by gain."""
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

    def along(field: str) -> VegaSpec:
        return percent_axis(field, f"test {metric.title}", reach)

    how = {"domain": list(VERDICTS), "range": ["@good", "@grey", "@bad"]}
    colour: VegaSpec = {
        "field": "verdict",
        "type": "nominal",
        "scale": how,
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
                "encoding": {"x": along("from"), "x2": {"field": "to"}, "color": colour},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"x": along("solo"), "x2": {"field": metric.name}, "color": colour},
            },
            {
                "mark": {"type": "point", "size": 50, "fill": "@page", "stroke": "@soft"},
                "encoding": {"x": along("solo")},
            },
            {
                "mark": {"type": "point", "size": 60, "filled": True, "opacity": 1},
                "encoding": {"x": along(metric.name), "color": colour},
            },
        ],
    }
    verdicts = {v: sum(p.verdict == v for p in judged) for v in VERDICTS}
    some_only = (
        f" The {SHOWN // 2} parties at either end of {len(judged)} are drawn."
        if len(judged) > SHOWN
        else ""
    )
    alt = (
        f"{method} beside training alone, party by party: clearly gaining {verdicts['gains']},"
        f" clearly losing {verdicts['hurt']}, level {verdicts['level']}.{some_only}"
    )
    return Chart(
        f"gains-{method}",
        f"{method} beside training alone",
        alt,
        data,
        spec,
        half=True,
        method=method,
    )


def _dots(group: Group, found: dict[str, list[PartyResult]]) -> Chart:
    """Parties' figures, where there is nothing to compare them with."""
    metric = group.metric
    rows = [
        {"method": name, "party": p.name, metric.name: p.figure}
        for name, some in found.items()
        for p in _drawn(some)
    ]
    data = Data.of("parties", rows, ("method", "party", metric.name))
    spec: VegaSpec = {
        "height": rows_height(len({row["party"] for row in rows})),
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
        "encoding": {
            "y": {**nominal("party", None), "sort": "-x"},
            "x": percent_axis(metric.name, f"test {metric.title}"),
            "color": colour_by_method(group, legend=len(found) > 1, only=list(found)),
            "tooltip": [
                tooltip("method", "method"),
                tooltip("party", "party"),
                tooltip(metric.name, metric.title, ".1%"),
            ],
        },
    }
    each = "; ".join(
        f"{name}: from {min(p.figure for p in some):.1%} to {max(p.figure for p in some):.1%}"
        for name, some in found.items()
        if some
    )
    words = f"Every party's test {metric.title} after the last round. {each}."
    return Chart("parties", f"{capitalize_first(metric.title)} by party", words, data, spec)


def _which(group: Group) -> str:
    """Which seeds are drawn."""
    seeds = sorted({run.seed for run in group.runs})
    if len(seeds) == 1:
        return ""
    same = f" Means over {len(seeds)} seeds."
    return (
        same
        if group.same_parties
        else " Under each seed a party has other samples, so each stands for itself."
    )


def _known(per_party: dict[str, float | None]) -> list[float]:
    """The figures of those who were heard."""
    return [value for value in per_party.values() if value is not None]


def _fairness(group: Group) -> Table:
    rows = []
    for method in (m for m in group.methods if m.finished):
        each = [
            fairness(known)
            for run in method.finished
            if (known := _known(run.figures.get("per_party", {})))
        ]
        if not each:
            continue
        best, worst, tenth, std, jain = (
            statistics.fmean(getattr(even, name) for even in each)
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


def _newcomers(group: Group) -> Table | None:
    """What parties that came after the last round have from joining."""
    rows = []
    for method in group.methods:
        new = [(run.summary or {})["newcomers"] for run in group.comparable(method)]
        for party in dict.fromkeys(name for each in new for name in each):
            stages = [each[party] for each in new if party in each]
            *shares, gain = (
                statistics.fmean(s[k] for s in stages)
                for k in ("offered", "joined", "alone", "gain")
            )
            rows.append([method.name, party, *(f"{v:.1%}" for v in shares), f"{100 * gain:+.1f}"])
    heads = ["method", "newcomer", "as offered", "after its warm-up", "alone", "points by joining"]
    return (
        Table("newcomers", "Parties that came after the last round", heads, rows, words=2)
        if rows
        else None
    )


def _who_helps(section: Section, group: Group, path: Path) -> None:
    """A leave-one-out comparison, if one was run."""
    if not path.exists():
        return
    effects: dict[str, dict[tuple[str, str], list[tuple[float, float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    try:
        with path.open(encoding="utf-8", newline="") as file:
            told = list(csv.DictReader(file))
            first = min(int(row["seed"]) for row in told)
            for row in (
                told if group.same_parties else [row for row in told if int(row["seed"]) == first]
            ):
                three = float(row["effect"]), float(row["low"]), float(row["high"])
                if not all(map(math.isfinite, three)):
                    raise ValueError
                effects[row["method"]][row["left_out"], row["party"]].append(three)
    except (OSError, KeyError, ValueError, TypeError, csv.Error):
        effects.clear()
    if not effects:
        section.say("leave-one-out.csv is damaged: who helps whom cannot be shown.", "missing")
        return
    for method, pairs in effects.items():
        rows = []
        for (left_out, party), threes in pairs.items():
            effect, low, high = (statistics.fmean(values) for values in zip(*threes, strict=True))
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
        section.blocks.append(_matrix(method, rows))


def _matrix(method: str, rows: list[dict[str, object]]) -> Chart:
    data = Data.of(
        f"helps-{method}", rows, ("method", "left_out", "party", "effect", "points", "low", "high")
    )
    names = sorted({str(row["left_out"]) for row in rows} | {str(row["party"]) for row in rows})
    most = max(abs(float(str(row["points"]))) for row in rows) or 1.0
    value: VegaSpec = {
        "field": "points",
        "type": "quantitative",
        "title": "points",
        "format": "+.1f",
        "scale": {
            "domain": [-most, 0, most],
            "range": ["@less", "@middle", "@more"],
            "interpolate": "rgb",
        },
    }
    tips = [
        tooltip("left_out", "helper"),
        tooltip("party", "helped"),
        tooltip("effect", "effect", "+.1%"),
        tooltip("low", "95% from", "+.1%"),
        tooltip("high", "to", "+.1%"),
    ]
    spec = heatmap(
        nominal("party", "on whom", names), nominal("left_out", "effect of", names), value, tips
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
