"""What methods tell of themselves: ADCOL's discriminator, Fed-SPS's overlaps, DBE's offsets."""

from __future__ import annotations

import math
import statistics

from comity.errors import describe
from comity.report.blocks import Chart, Data, Section, Spec
from comity.report.charts import PARTIES, by_method, first_of, heat, quantity, tall, tip, whole_rounds, word
from comity.report.gather import Group, Method, Run


def signs(section: Section, group: Group, reopen: bool) -> None:
    """What methods tell of themselves."""
    section.blocks += [chart for method in group.methods if (chart := _overlap(method))]
    if chart := _discriminator(group):
        section.blocks.append(chart)
    for method in group.methods:
        try:
            if reopen and method.finished and (chart := _offsets(method, method.finished[0])):
                section.blocks.append(chart)
        except Exception as why:
            section.say(f"{method.name}: its offsets cannot be read: {describe(why)}", "missing")


def _discriminator(group: Group) -> Chart | None:
    """ADCOL: can the server still tell whose a representation is?"""
    rows, names = [], []
    for method in group.methods:
        found: dict[int, list[float]] = {}
        for run in method.runs:
            for note in run.metrics:
                if note.metric == "discriminator/accuracy" and math.isfinite(note.value):
                    found.setdefault(note.round, []).append(note.value)
        if found:
            parties = len(method.runs[0].parties) or 1
            names.append(method.name)
            rows += [
                {"method": method.name, "round": t, "accuracy": statistics.fmean(v), "chance": 1 / parties}
                for t, v in sorted(found.items())
            ]
    if not rows:
        return None
    data = Data.of("discriminator", rows, ("method", "round", "accuracy", "chance"))
    x = whole_rounds()
    y = quantity("accuracy", "discriminator's accuracy", axis={"format": ".0%"}, scale={"domainMin": 0})
    tips = [tip("method", "method"), tip("round", "round"), tip("accuracy", "accuracy", ".1%")]
    spec: Spec = {
        "height": 240,
        "layer": [
            {
                "mark": {"type": "line", "point": {"size": 14}},
                "encoding": {"x": x, "y": y, "color": by_method(group, only=names), "tooltip": tips},
            },
            {
                "mark": {"type": "rule", "strokeDash": [5, 4], "color": "@soft"},
                "encoding": {"y": {"aggregate": "mean", "field": "chance"}},
            },
        ],
    }
    ends = "; ".join(f"{n} ends at {[r for r in rows if r['method'] == n][-1]['accuracy']:.1%}" for n in names)
    chance = f"{rows[0]['chance']:.1%}"
    alt = f"How often the discriminator names the party of a representation; the dashed line is chance, {chance}. {ends}."
    return Chart("discriminator", "The discriminator, towards chance", alt, data, spec, half=True)


def _overlap(method: Method) -> Chart | None:
    """Fed-SPS: where parties' data overlap, at the last round in which each pair was looked at."""
    last: dict[tuple[str, str], float] = {}
    for note in method.runs[0].metrics:
        if note.metric.startswith("overlap/") and math.isfinite(note.value):
            last[note.party, note.metric.removeprefix("overlap/")] = note.value
    if not last:
        return None
    value: Spec = {
        "field": "overlap",
        "type": "quantitative",
        "title": "overlap",
        "format": ".2f",
        "scale": {"range": ["@low", "@high"]},
    }
    tips = [tip("party", "party"), tip("peer", "peer"), tip("overlap", "overlap", ".3f")]
    everyone = list(dict.fromkeys(name for pair in last for name in pair))
    names = everyone[:PARTIES]
    rows = [{"party": a, "peer": b, "overlap": v} for (a, b), v in last.items() if a in names and b in names]
    spec = heat(word("peer", "peer", names), word("party", "party", names), value, tips)
    (a, b), most = max(last.items(), key=lambda item: item[1])
    alt = f"{method.name}: how much parties' data overlap, by adversarial samples that fool both. Most: {a} and {b}, {most:.2f}."
    alt += first_of(len(everyone))
    return Chart(
        f"overlap-{method.name}",
        f"{method.name}: whose data overlap",
        alt,
        Data.of(f"overlap-{method.name}", rows, ("party", "peer", "overlap")),
        spec,
        half=True,
        method=method.name,
    )


def _offsets(method: Method, run: Run) -> Chart | None:
    """DBE: how far each party's offset moves its representations."""
    from comity.algorithms.dbe import OFFSET as NAME
    from comity.measure.representations import offered

    if "dbe" not in method.name and "prbm" not in method.name:
        return None
    every = {model.party.name: float(model.theta[NAME].norm()) for model in offered(run.job, run.folder) if NAME in model.theta}
    norms = {party: norm for party, norm in every.items() if math.isfinite(norm)}
    if not norms:
        return None
    rows = [{"method": method.name, "party": party, "norm": norm} for party, norm in norms.items()][:PARTIES]
    spec: Spec = {
        "height": tall(len(rows)),
        "mark": {"type": "bar"},
        "encoding": {
            "y": {**word("party", None), "sort": "-x"},
            "x": quantity("norm", "Euclidean norm of the offset"),
            "color": {"value": "@c0"},
            "tooltip": [tip("party", "party"), tip("norm", "norm", ".3f")],
        },
    }
    alt = f"Norms of the parties' offsets, between {min(norms.values()):.2f} and {max(norms.values()):.2f}.{first_of(len(norms))}"
    return Chart(
        f"offsets-{method.name}",
        f"{method.name}: the parties' offsets",
        alt,
        Data.of(f"offsets-{method.name}", rows, ("method", "party", "norm")),
        spec,
        half=True,
        method=method.name,
    )
