"""advice.html: the advice of `comity advise` and the race behind it. The file loads nothing."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from comity.names import SOLO, display_name
from comity.privacy.account import format_epsilon
from comity.safe_files import write_atomically
from comity.studies.advise.advise import Advice
from comity.studies.advise.verdict import BASELINES
from comity.text import join_names
from comity.units import duration, points, size

PAGE = "advice.html"
METHOD_HEADS = ("method", "gain", "folds", "sent", "epsilon", "left")
WIDTH, HEIGHT, LEFT, BELOW = 640.0, 260.0, 46.0, 34.0
"""The size of the drawing of a race, and the room for its axes."""
COLOURS = ("#3b6fd4", "#d4572f", "#2f9e62", "#9a4fc4", "#b8860b", "#118a9c", "#c43d76", "#667085")
DASHES = ("none", "6 3", "2 3")


def write_advice_page(advice: Advice) -> Path:
    """Write advice.html beside advice.json, and return its path."""
    path = advice.folder / PAGE
    write_atomically(path, page(advice))
    return path


def method_rows(advice: Advice) -> list[list[str]]:
    """Return a row for each method: its gain, what it was tried on, its costs, why it left."""
    race = advice.race
    left = {departure.method: departure for departure in race.departures}
    methods = [c.method for c in advice.candidates if c.method != SOLO]
    order = sorted(
        methods,
        key=lambda m: (
            m != advice.verdict.method,
            m in left,
            -len(race.folds_of(m)),
            -race.score(m),
        ),
    )
    rows = []
    for method in order:
        candidate = advice.candidate(method)
        folds = race.folds_of(method)
        gain = race.gain(method) or race.gain(method, half=True)
        half = any(step.method == method for step in race.outcomes)
        why = f"{left[method].when}: {left[method].why}" if method in left else ""
        rows.append(
            [
                display_name(method),
                gain.short if gain else "",
                str(len(folds)) if folds else "1/2" if half else "0",
                size(candidate.bytes) if candidate.bytes >= 0 else "not known",
                format_epsilon(candidate.epsilon or 0.0),
                why,
            ]
        )
    rows += [
        [display_name(o.method), "", "", "", "", f"cannot run: {o.why}"] for o in advice.left_out
    ]
    return rows


OWN_MODEL_WORDS = {
    "plain-linear": "linear model",
    "plain-boosting": "gradient boosting",
    SOLO: "the network, trained alone",
}


def own_model_lines(advice: Advice, most: int) -> list[str]:
    """Return lines about the best model that each party trains alone, where there are several."""
    parties: dict[str, list[str]] = {}
    unsure = []
    for party, folds_of_model in advice.own_models.items():
        model = next(iter(folds_of_model))
        parties.setdefault(OWN_MODEL_WORDS.get(model, model), []).append(party)
        if len(folds_of_model) > 1:
            unsure.append(party)
    if not parties:
        return []
    of_models = "; ".join(f"{m}: {join_names(p, most=most)}" for m, p in parties.items())
    line = f"Best of its own models, within each party's training samples: {of_models}."
    if unsure:
        line += f" Not on all folds at {join_names(unsure, most=most)}."
    return [line]


def party_lines(advice: Advice, most: int) -> list[str]:
    """Return lines about the parties: who gains, who is hurt."""
    verdict = advice.verdict
    if not verdict.parties:
        return []
    parties = sorted(verdict.parties, key=lambda p: -p.gain.gain)
    listed = parties if len(parties) <= most else [*parties[: most // 2], *parties[-(most // 2) :]]
    figures = ", ".join(f"{p.party} {p.gain.short}" for p in listed)
    more = (
        f" ({len(parties) - len(listed)} between them are not shown)" if len(parties) > most else ""
    )
    lines = [
        f"Gains by party, with intervals that hold for all {len(parties)} together:"
        f" {figures}{more}."
    ]
    hurt = join_names(verdict.hurt) if verdict.hurt else "nobody"
    lines.append(
        f"Clearly hurt: {hurt}. Perhaps hurt by more than {points(advice.race.rule.margin)}:"
        f" {join_names(verdict.may_be_hurt) if verdict.may_be_hurt else 'nobody'}."
    )
    return lines


def page(advice: Advice) -> str:
    """Return the content of advice.html."""
    from jinja2 import Environment

    assets = files("comity.reporting")
    template = (assets / "advice.html").read_text(encoding="utf-8")
    race = advice.race
    facts = {
        "Advice": advice.verdict.sentence,
        "Cost of the race": f"{race.spent:.1f} runs, where one of each method is"
        f" {len(race.arms)}; {duration(advice.seconds)}",
        "Gains": f"over {BASELINES[race.baseline]}",
    }
    if advice.similar:
        facts["Similar federations"] = (
            f"{advice.similar} in the prior, which counts for {race.prior.folds:g} folds in who"
            " goes on"
        )
    note = (
        "Intervals are paired over test samples, and allow for the noise of training. The method"
        " that was chosen by the first fold is tested on the others, so that its interval of 95%"
        " needs no correction for the number of methods. The intervals of the other methods are"
        f" those of the first fold and hold for all {len(race.arms) - 1} together. Intervals of"
        " parties hold for all parties together."
    )
    text = (
        Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            title="Advice",
            css=(assets / "page.css").read_text(encoding="utf-8"),
            facts=facts,
            heads=METHOD_HEADS,
            rows=method_rows(advice),
            parties=_party_rows(advice),
            lines=party_lines(advice, len(advice.verdict.parties) or 1)[1:],
            own_models=own_model_lines(advice, len(advice.own_models)),
            chart=drawing(advice),
            command=advice.command,
            warnings=race.warnings,
            note=note,
            version=version("comity"),
        )
    )
    return text.encode("utf-8", "replace").decode()  # names may hold lone surrogates


def _party_rows(advice: Advice) -> list[list[str]]:
    return [
        [
            p.party,
            f"{100 * p.gain.gain:+.1f}",
            f"{100 * p.gain.low:+.1f} to {100 * p.gain.high:+.1f}",
        ]
        for p in advice.verdict.parties
    ]


def drawing(advice: Advice) -> dict[str, Any]:
    """Return the drawing of the race: each method's gain at each look."""
    rungs = advice.race.rungs
    ends = [v for rung in rungs for g in rung.gains.values() for v in (g.low, g.high)] or [0.0]
    low, high = min(0.0, *ends), max(0.0, *ends)
    span = (high - low) or 0.01

    def y(value: float) -> float:
        return round((high - value) / span * (HEIGHT - BELOW - 10) + 8, 1)

    def x(k: int, offset: float = 0.0) -> float:
        slot = (WIDTH - LEFT) / max(1, len(rungs))
        return round(LEFT + slot * (k + 0.5 + 0.6 * offset), 1)

    methods = list(dict.fromkeys(m for rung in rungs for m in rung.gains))
    lines = []
    for k, method in enumerate(methods):
        offset = (k + 0.5) / len(methods) - 0.5
        points = [
            {
                "x": x(r, offset),
                "y": y(rung.gains[method].gain),
                "low": y(rung.gains[method].low),
                "high": y(rung.gains[method].high),
                "text": f"{display_name(method)}, {rung.name}: {rung.gains[method]}",
            }
            for r, rung in enumerate(rungs)
            if method in rung.gains
        ]
        lines.append(
            {
                "name": display_name(method),
                "colour": COLOURS[k % len(COLOURS)],
                "dash": DASHES[k // len(COLOURS) % len(DASHES)],
                "points": points,
                "path": " ".join(f"{p['x']},{p['y']}" for p in points),
            }
        )
    step = next((s for s in (0.02, 0.05, 0.1, 0.2, 0.5) if span / s <= 8), 1.0)
    first = int(low / step) - 1
    ticks = [
        {"y": y(step * t), "text": f"{100 * step * t:+.0f}" if t else "0"}
        for t in range(first, int(high / step) + 2)
        if low <= step * t <= high
    ]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "zero": y(0.0),
        "lines": lines,
        "ticks": ticks,
        "rungs": [{"x": x(k), "text": rung.name} for k, rung in enumerate(rungs)],
        "alt": "Gains at each look of the race, in points; the table below has the last figures.",
    }
