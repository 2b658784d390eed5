"""Who gains by collaborating, who loses, how evenly, and who helps whom."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from comity.measure.fairness import fairness
from comity.measure.gain import Gain, paired_interval
from comity.report.blocks import Chart, Data, Section, Table, VegaSpec
from comity.report.charts import by_method, fraction, heat, legend, tall, tip, word
from comity.report.gather import Group, Method, Run

SHOWN = 40
"""With more parties than this, only those at both ends are drawn."""
VERDICTS = ("gains", "level", "hurt")


@dataclass(frozen=True)
class PartyResult:
    """One party under one method, beside training alone; means over seeds, intervals over all seeds' test samples together."""

    name: str
    accuracy: float
    solo: float | None = None
    gain: float | None = None
    low: float = 0.0
    high: float = 0.0

    @property
    def verdict(self) -> Literal["gains", "level", "hurt"]:
        """Whether its interval excludes zero."""
        return "gains" if self.low > 0 else "hurt" if self.high < 0 else "level"


def between(run: Run, alone: Run) -> list[Gain]:
    """Every party's gain of one run over training alone, as far as both runs' outcomes can be read."""
    found = []
    for name, right in run.outcomes.items():
        theirs = alone.outcomes.get(name, [])
        if right and len(theirs) == len(right):
            better, worse = counted(right, theirs)
            found.append(Gain(name, (better - worse) / len(right), *paired_interval(better, worse, len(right))))
    return found


def counted(ours: list[int], theirs: list[int]) -> tuple[int, int]:
    """On how many samples one is right and the other is not, and the other way round."""
    pairs = list(zip(ours, theirs, strict=True))
    return sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)


def parties(group: Group, method: Method) -> list[PartyResult]:
    """Every party, the one that gains most first; seeds are pooled only if a party has the same samples under each."""
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
    return sorted(found, key=lambda p: (-(p.gain or 0.0), -p.accuracy))


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
        section.blocks += [_dumbbells(name, some) for name, some in compared.items()]
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


def _dumbbells(method: str, some: list[PartyResult]) -> Chart:
    """One line a party, from training alone to the method, sorted by gain."""
    judged = [p for p in some if p.gain is not None and p.solo is not None]
    rows = [
        {
            "method": method,
            "party": p.name,
            "solo": p.solo,
            "accuracy": p.accuracy,
            "gain": p.gain,
            "low": p.low,
            "high": p.high,
            "from": max((p.solo or 0) + p.low, 0.0),
            "to": min((p.solo or 0) + p.high, 1.0),
            "verdict": p.verdict,
        }
        for p in _drawn(judged)
    ]
    columns = ("method", "party", "solo", "accuracy", "gain", "low", "high", "from", "to", "verdict")
    data = Data.of(f"gains-{method}", rows, columns)
    how = {"domain": list(VERDICTS), "range": ["@good", "@grey", "@bad"]}
    colour: VegaSpec = {"field": "verdict", "type": "nominal", "scale": how, "legend": legend("top", 3)}
    tips = [
        tip("party", "party"),
        tip("solo", "alone", ".1%"),
        tip("accuracy", method, ".1%"),
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
                "encoding": {"x": fraction("from", "test accuracy"), "x2": {"field": "to"}, "color": colour},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"x": fraction("solo", "test accuracy"), "x2": {"field": "accuracy"}, "color": colour},
            },
            {
                "mark": {"type": "point", "size": 50, "fill": "@page", "stroke": "@soft"},
                "encoding": {"x": fraction("solo", "test accuracy")},
            },
            {
                "mark": {"type": "point", "size": 60, "filled": True, "opacity": 1},
                "encoding": {"x": fraction("accuracy", "test accuracy"), "color": colour},
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
    """Parties' accuracies, where there is nothing to compare them with."""
    rows = [{"method": name, "party": p.name, "accuracy": p.accuracy} for name, some in found.items() for p in _drawn(some)]
    data = Data.of("parties", rows, ("method", "party", "accuracy"))
    spec: VegaSpec = {
        "height": tall(len({row["party"] for row in rows})),
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
        "encoding": {
            "y": {**word("party", None), "sort": "-x"},
            "x": fraction("accuracy", "test accuracy"),
            "color": by_method(group, legend=len(found) > 1, only=list(found)),
            "tooltip": [tip("method", "method"), tip("party", "party"), tip("accuracy", "accuracy", ".1%")],
        },
    }
    each = "; ".join(
        f"{name}: from {min(p.accuracy for p in some):.1%} to {max(p.accuracy for p in some):.1%}" for name, some in found.items()
    )
    return Chart("parties", "Accuracy by party", f"Every party's test accuracy after the last round. {each}.", data, spec)


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
        each = [fairness(_known((run.summary or {})["accuracy"]["per_party"])) for run in method.finished]
        best, worst, tenth, std, jain = (
            statistics.fmean(getattr(even, name) for even in each) for name in ("best", "worst", "worst_tenth", "std", "jain")
        )
        rows.append([method.name, *(f"{v:.1%}" for v in (best, worst, tenth)), f"{100 * std:.1f}", f"{jain:.3f}"])
    heads = ["method", "best party", "worst party", "mean of worst tenth", "std over parties", "Jain's index"]
    return Table("fairness", "How evenly accuracy is spread", heads, rows)


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
