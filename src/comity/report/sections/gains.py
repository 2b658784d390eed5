"""Who gains by collaborating, who loses, how evenly, and who helps whom."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from comity.core.metrics import ACCURACY, Metric
from comity.measure.fairness import fairness
from comity.measure.gain import Gain, counted, gains_of, paired, paired_interval
from comity.report.blocks import Chart, Data, Section, Table, VegaSpec
from comity.report.charts import by_method, capital, fraction, heat, legend, tall, tip, word
from comity.report.gather import Group, Method, Run
from comity.studies.answers import over_seeds

SHOWN = 40
"""With more parties than this, only those at both ends are drawn."""
VERDICTS = ("gains", "level", "hurt")


@dataclass(frozen=True)
class PartyResult:
    """One party under one method, beside training alone: means over seeds.

    Intervals of accuracy are over all seeds' test samples together; of another metric, as in the answers of a comparison.
    """

    name: str
    figure: float
    solo: float | None = None
    gain: float | None = None
    low: float = 0.0
    high: float = 0.0

    @property
    def verdict(self) -> Literal["gains", "level", "hurt"]:
        """Whether its interval excludes zero."""
        return "gains" if self.low > 0 else "hurt" if self.high < 0 else "level"


def between(run: Run, alone: Run) -> list[Gain]:
    """Every party's gain of one run over another, as far as both runs' outcomes can be read; worked out once."""
    if alone.folder not in run.gains:
        run.gains[alone.folder] = _between(run, alone)
    return run.gains[alone.folder]


def _between(run: Run, alone: Run) -> list[Gain]:
    if run.metric is ACCURACY:
        both = ((name, right, alone.outcomes.get(name, [])) for name, right in run.outcomes.items())
        return [paired(name, right, theirs) for name, right, theirs in both if right and len(theirs) == len(right)]
    theirs = {name: answers for name, answers in alone.answers.items() if name in run.answers}
    same = {name: its for name, its in theirs.items() if torch.equal(its.truth, run.answers[name].truth)}
    return gains_of(run.answers, same, run.metric)


def parties(group: Group, method: Method) -> list[PartyResult]:
    """Every party, the one that gains most first; seeds are pooled only if a party has the same samples under each."""
    found = _by_accuracy(group, method) if group.metric is ACCURACY else _by_metric(group, method)
    return sorted(found, key=lambda p: (-(p.gain or 0.0), -group.metric.sign * p.figure))


def _by_metric(group: Group, method: Method) -> list[PartyResult]:
    """Everybody's figures by another metric than accuracy."""
    figures: dict[str, list[float]] = defaultdict(list)
    solo: dict[str, list[float]] = defaultdict(list)
    gained: dict[str, list[Gain]] = defaultdict(list)
    for run in group.comparable(method):
        for name, value in run.figures.get("per_party", {}).items():
            figures[name].append(value)
        alone = group.alone(run)
        if alone is None or alone is run:
            continue
        for gain in between(run, alone):
            gained[gain.party].append(gain)
            solo[gain.party].append(alone.figures["per_party"][gain.party])
    found = []
    for name, values in figures.items():
        party = PartyResult(name, statistics.fmean(values))
        if name in gained:
            told = over_seeds(gained[name], methods=1)
            party = PartyResult(name, statistics.fmean(values), statistics.fmean(solo[name]), told.gain, told.low, told.high)
        found.append(party)
    return found


def _by_accuracy(group: Group, method: Method) -> list[PartyResult]:
    """Everybody's accuracies."""
    accuracy: dict[str, list[float]] = defaultdict(list)
    ours: dict[str, list[int]] = defaultdict(list)
    theirs: dict[str, list[int]] = defaultdict(list)
    for run in group.comparable(method):
        for name, value in (run.summary or {})["accuracy"]["per_party"].items():
            if value is not None:  # who was never heard has no figure
                accuracy[name].append(value)
        alone = group.alone(run)
        if alone is None or alone is run:
            continue
        for name, right in run.outcomes.items():
            if right and len(alone.outcomes.get(name, [])) == len(right):
                ours[name] += right
                theirs[name] += alone.outcomes[name]
    found = []
    for name, values in accuracy.items():
        party = PartyResult(name, statistics.fmean(values))
        if name in ours:
            better, worse = counted(ours[name], theirs[name])
            low, high = paired_interval(better, worse, len(ours[name]))
            solo = statistics.fmean(theirs[name])
            gain = (better - worse) / len(ours[name])
            party = PartyResult(name, statistics.fmean(values), solo, gain, low, high)
        found.append(party)
    return found


def gains(group: Group, folder: Path) -> Section:
    """The page's third section: each party beside training alone; how evenly; who helps whom."""
    section = Section("gains", "Who gains")
    methods = [m for m in group.methods if m.finished]
    if not methods:
        section.say("No run is finished, so nothing can be said of single parties yet.", "missing")
        return section
    found = {m.name: parties(group, m) for m in methods}
    compared = {name: some for name, some in found.items() if any(p.gain is not None for p in some)}
    for name, some in compared.items():
        if hurt := [p for p in some if p.verdict == "hurt"]:
            worst = ", ".join(
                f"{p.name} ({100 * (p.gain or 0):+.1f} points)" for p in sorted(hurt, key=lambda p: p.gain or 0)[:5]
            )
            more = f" and {len(hurt) - 5} more" if len(hurt) > 5 else ""
            what = "party does" if len(hurt) == 1 else "parties do"
            section.say(f"Negative transfer with {name}: {len(hurt)} {what} clearly worse than alone: {worst}{more}.", "warning")
    if compared:
        section.blocks += [_dumbbells(name, some, group.metric) for name, some in compared.items()]
        section.say(
            "Hollow: training alone. Filled: the method. Bar: the 95 % interval of the gain, paired over test samples, laid off "
            "from training alone; it is clear of the hollow mark where a party clearly gains or loses." + _which(group)
        )
    else:
        section.blocks.append(_dots(group, found))
        if group.solo is None:
            section.say("To see who gains, run training alone on the same data: comity compare ... does.", "missing")
    section.blocks.append(_fairness(group))
    if late := _newcomers(group):
        section.blocks.append(late)
    _who_helps(section, group, folder / group.name / "leave-one-out.csv")
    return section


def _drawn(some: list[PartyResult]) -> list[PartyResult]:
    return some if len(some) <= SHOWN else [*some[: SHOWN // 2], *some[-SHOWN // 2 :]]


def _dumbbells(method: str, some: list[PartyResult], metric: Metric) -> Chart:
    """One line a party, from training alone to the method, sorted by gain."""
    axis = f"test {metric.title}"
    judged = [p for p in some if p.gain is not None and p.solo is not None]
    rows = [
        {
            "method": method,
            "party": p.name,
            "solo": p.solo,
            metric.name: p.figure,
            "gain": p.gain,
            "low": p.low,
            "high": p.high,
            "from": max((p.solo or 0) + p.low, 0.0),
            "to": min((p.solo or 0) + p.high, 1.0),
            "verdict": p.verdict,
        }
        for p in _drawn(judged)
    ]
    columns = ("method", "party", "solo", metric.name, "gain", "low", "high", "from", "to", "verdict")
    data = Data.of(f"gains-{method}", rows, columns)
    how = {"domain": list(VERDICTS), "range": ["@good", "@grey", "@bad"]}
    colour: VegaSpec = {"field": "verdict", "type": "nominal", "scale": how, "legend": legend("top", 3)}
    tips = [
        tip("party", "party"),
        tip("solo", "alone", ".1%"),
        tip(metric.name, method, ".1%"),
        tip("gain", "gain", "+.1%"),
        tip("low", "95 % from", "+.1%"),
        tip("high", "to", "+.1%"),
    ]
    y = word("party", None)
    spec: VegaSpec = {
        "height": tall(len(rows)),
        "encoding": {"y": y, "tooltip": tips},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 8, "opacity": 0.22},
                "encoding": {"x": fraction("from", axis), "x2": {"field": "to"}, "color": colour},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"x": fraction("solo", axis), "x2": {"field": metric.name}, "color": colour},
            },
            {
                "mark": {"type": "point", "size": 50, "fill": "@page", "stroke": "@soft"},
                "encoding": {"x": fraction("solo", axis)},
            },
            {
                "mark": {"type": "point", "size": 60, "filled": True, "opacity": 1},
                "encoding": {"x": fraction(metric.name, axis), "color": colour},
            },
        ],
    }
    verdicts = {v: sum(p.verdict == v for p in judged) for v in VERDICTS}
    some_only = f" The {SHOWN // 2} parties at either end of {len(judged)} are drawn." if len(judged) > SHOWN else ""
    alt = (
        f"{method} beside training alone, party by party: {verdicts['gains']} clearly gain, {verdicts['hurt']} clearly lose, "
        f"{verdicts['level']} are level.{some_only}"
    )
    return Chart(f"gains-{method}", f"{method} beside training alone", alt, data, spec, half=True, method=method)


def _dots(group: Group, found: dict[str, list[PartyResult]]) -> Chart:
    """Parties' figures, where there is nothing to compare them with."""
    metric = group.metric
    rows = [{"method": name, "party": p.name, metric.name: p.figure} for name, some in found.items() for p in _drawn(some)]
    data = Data.of("parties", rows, ("method", "party", metric.name))
    spec: VegaSpec = {
        "height": tall(len({row["party"] for row in rows})),
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
        "encoding": {
            "y": {**word("party", None), "sort": "-x"},
            "x": fraction(metric.name, f"test {metric.title}"),
            "color": by_method(group, legend=len(found) > 1, only=list(found)),
            "tooltip": [tip("method", "method"), tip("party", "party"), tip(metric.name, metric.title, ".1%")],
        },
    }
    each = "; ".join(
        f"{name}: from {min(p.figure for p in some):.1%} to {max(p.figure for p in some):.1%}"
        for name, some in found.items()
        if some
    )
    words = f"Every party's test {metric.title} after the last round. {each}."
    return Chart("parties", f"{capital(metric.title)} by party", words, data, spec)


def _which(group: Group) -> str:
    """Which seeds are drawn."""
    seeds = sorted({run.seed for run in group.runs})
    if len(seeds) == 1:
        return ""
    return " All seeds are pooled." if group.same_parties else f" Seed {seeds[0]}: under another, a party has other samples."


def _known(per_party: dict[str, float | None]) -> list[float]:
    """The figures of those who were heard."""
    return [value for value in per_party.values() if value is not None]


def _fairness(group: Group) -> Table:
    rows = []
    for method in (m for m in group.methods if m.finished):
        each = [fairness(known) for run in method.finished if (known := _known(run.figures.get("per_party", {})))]
        if not each:
            continue
        best, worst, tenth, std, jain = (
            statistics.fmean(getattr(even, name) for even in each) for name in ("best", "worst", "worst_tenth", "std", "jain")
        )
        rows.append([method.name, *(f"{v:.1%}" for v in (best, worst, tenth)), f"{100 * std:.1f}", f"{jain:.3f}"])
    heads = ["method", "best party", "worst party", "mean of worst tenth", "std over parties", "Jain's index"]
    return Table("fairness", f"How evenly {group.metric.title} is spread", heads, rows)


def _newcomers(group: Group) -> Table | None:
    """What parties that came after the last round have from joining."""
    rows = []
    for method in group.methods:
        new = [(run.summary or {})["newcomers"] for run in group.comparable(method)]
        for party in dict.fromkeys(name for each in new for name in each):
            stages = [each[party] for each in new if party in each]
            *shares, gain = (statistics.fmean(s[k] for s in stages) for k in ("offered", "joined", "alone", "gain"))
            rows.append([method.name, party, *(f"{v:.1%}" for v in shares), f"{100 * gain:+.1f}"])
    heads = ["method", "newcomer", "as offered", "after its warm-up", "alone", "points by joining"]
    return Table("newcomers", "Parties that came after the last round", heads, rows, words=2) if rows else None


def _who_helps(section: Section, group: Group, path: Path) -> None:
    """A leave-one-out comparison, if one was run."""
    if not path.exists():
        return
    effects: dict[str, dict[tuple[str, str], list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    try:
        with path.open(encoding="utf-8", newline="") as file:
            told = list(csv.DictReader(file))
            first = min(int(row["seed"]) for row in told)
            for row in told if group.same_parties else [row for row in told if int(row["seed"]) == first]:
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
    data = Data.of(f"helps-{method}", rows, ("method", "left_out", "party", "effect", "points", "low", "high"))
    names = sorted({str(row["left_out"]) for row in rows} | {str(row["party"]) for row in rows})
    most = max(abs(float(str(row["points"]))) for row in rows) or 1.0
    value: VegaSpec = {
        "field": "points",
        "type": "quantitative",
        "title": "points",
        "format": "+.1f",
        "scale": {"domain": [-most, 0, most], "range": ["@less", "@middle", "@more"], "interpolate": "rgb"},
    }
    tips = [
        tip("left_out", "helper"),
        tip("party", "helped"),
        tip("effect", "effect", "+.1%"),
        tip("low", "95 % from", "+.1%"),
        tip("high", "to", "+.1%"),
    ]
    spec = heat(word("party", "on whom", names), word("left_out", "effect of", names), value, tips)
    best = max(rows, key=lambda r: float(str(r["effect"])))
    alt = (
        f"{method}: how much each party's presence changes the others' accuracy, in points. The largest help is "
        f"{best['left_out']}'s to {best['party']}, {100 * float(str(best['effect'])):+.1f} points."
    )
    return Chart(f"helps-{method}", f"{method}: who helps whom", alt, data, spec, half=True, method=method)
