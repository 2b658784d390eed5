"""What models make of samples: representations before and after local training, whose they are, and
methods' own diagnostics.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from comity.base.key import Key
from comity.errors import describe
from comity.measure.representations import CUT, OFFSET, Representation, extract
from comity.measure.separability import LEAST, separability
from comity.reporting.blocks import Chart, Data, Section, Table, VegaSpec
from comity.reporting.charts import DISTINGUISHABLE, SHAPES, fitting_legend, quantitative, tooltip
from comity.reporting.gather import Group, Method
from comity.reporting.plane import map_to_plane
from comity.reporting.sections.data import class_names
from comity.reporting.sections.diagnostics import diagnostics

SAMPLES = 400
"""Points in a map, of all parties together."""
WIDTH = 256
"""Values to which wider representations are projected."""
WHEN = {"before": "before local training", "after": "after local training"}


def space(
    group: Group, chosen: Sequence[Method], seconds: float | None = None, reopen: bool = True
) -> Section:
    """The page's fifth section: maps of the chosen methods' representations (no further one is
    begun after so many `seconds`), what `comity measure` found, and methods' own diagnostics;
    `reopen` allows to open data and models.
    """
    section = Section(
        "space",
        "The representation space",
        folded="what models make of samples, for those who study methods",
    )
    begin = time.process_time()
    told = []
    maps: list[list[Chart]] = []
    late: list[str] = []
    for method in chosen:
        if seconds is not None and time.process_time() - begin > seconds:
            late.append(method.name)
            continue
        run = method.finished[0]
        try:
            found = extract(
                run.job, run.folder, [CUT], split="test", samples=SAMPLES, seed=0, width=WIDTH
            )
            maps.append(_maps(method.name, found, class_names(run.job.federation)))
            told += _told_apart(method.name, found)
        except Exception as why:  # a model that diverged, data that are elsewhere: the other methods can still be shown
            section.say(
                f"{method.name}: its representations cannot be shown: {describe(why)}", "missing"
            )
    if late:
        who = f"No map was drawn of {', '.join(late)}, as the page had taken long enough"
        section.say(
            f"{who}; ask for it with: comity report DIR --methods {','.join(late)}", "missing"
        )
    section.blocks += [
        chart for some in sorted(maps, key=len, reverse=True) for chart in some
    ]  # pairs stay side by side
    if told:
        heads = ["method", "when", "a new probe names the party", "largest party's share"]
        section.blocks.append(
            Table(
                "separability",
                "Can a new probe tell whose representation it is?",
                heads,
                told,
                words=2,
            )
        )
        seeds = {run.seed for method in chosen for run in method.finished[:1]}
        which = (
            f" Models of seed {min(seeds)}."
            if any(len(method.runs) > 1 for method in chosen)
            else ""
        )
        section.say(
            f"Up to {SAMPLES} test samples of all parties together, t-SNE of the method's own"
            " representation; before and after are mapped together, so that they can be compared."
            " A party's own model has no before. The probe is linear, learns from some of these"
            " samples and is judged on others; to name the largest party always is right as often"
            f" as its share.{which}"
        )
    _measured(section, group)
    diagnostics(section, group, reopen)
    if not section.blocks:
        section.say("There is nothing to show of the chosen methods.", "missing")
    return section


def _maps(method: str, found: list[Representation], names: list[str]) -> list[Chart]:
    """One map a time, both from one t-SNE; without names of classes, labels are numbers."""
    if any(r.layer.endswith(OFFSET) for r in found):  # what the head gets
        found = [r for r in found if r.layer.endswith(OFFSET)]
    if len({r.features.shape[1] for r in found}) > 1:
        return []  # parties' representations differ in width: there is no common space
    flat = map_to_plane(torch.cat([r.features for r in found]).numpy())
    rows: list[dict[str, Any]] = []
    at = 0
    for r in found:
        for label in r.labels.tolist():
            rows.append(
                {
                    "method": method,
                    "when": r.when,
                    "party": r.party,
                    "class": names[label] if names else float(label),
                    "x": float(flat[at, 0]),
                    "y": float(flat[at, 1]),
                }
            )
            at += 1
    data = Data.of(f"space-{method}", rows, ("method", "when", "party", "class", "x", "y"))
    parties = list(dict.fromkeys(r.party for r in found))
    seen = {row["class"] for row in rows}
    classes = [name for name in names if name in seen]
    return [
        _scatter(method, when, data, parties, classes)
        for when in WHEN
        if any(r.when == when for r in found)
    ]


def _scatter(method: str, when: str, data: Data, parties: list[str], classes: list[str]) -> Chart:
    few = len(parties) <= DISTINGUISHABLE
    shape: VegaSpec = (
        {
            "shape": {
                "field": "party",
                "type": "nominal",
                "sort": None,
                "scale": {"domain": parties, "range": SHAPES[: len(parties)]},
                "legend": fitting_legend(parties, "party", 8) | {"symbolFillColor": "@soft"},
            }
        }
        if few
        else {}
    )
    by_class: VegaSpec = {
        "field": "class",
        "type": "nominal",
        "scale": {"domain": classes, "scheme": "tableau10" if len(classes) <= 10 else "tableau20"},
        "legend": fitting_legend(classes, "class", 10) if 0 < len(classes) <= 20 else None,
    }
    by_amount = quantitative(
        "class", "label", legend={"orient": "bottom"}, scale={"range": ["@c4", "@c0"]}
    )
    spec: VegaSpec = {
        "height": 320,
        "transform": [{"filter": f"datum.when == '{when}'"}],
        "mark": {"type": "point", "filled": True, "size": 32, "opacity": 0.8, "aria": False},
        "encoding": {
            "x": _side(data, "x"),
            "y": _side(data, "y"),
            "color": by_class if classes else by_amount,
            **shape,
            "tooltip": [
                tooltip("class", "class") if classes else tooltip("class", "label, scaled", ".3~g"),
                tooltip("party", "party"),
            ],
        },
    }
    alt = f"A map of {method}'s representations {WHEN[when]}: points of " + (
        "one colour are of one class" if classes else "like colours have like labels"
    )
    alt += ", of one shape of one party." if few else "."
    return Chart(
        f"space-{method}-{when}",
        f"{method}, {WHEN[when]}",
        alt,
        data,
        spec,
        half=True,
        method=method,
    )


def _side(data: Data, name: str) -> VegaSpec:
    """An axis of a map, long enough for before and after."""
    values = data.columns[name]
    return quantitative(
        name,
        None,
        axis=None,
        scale={"domain": [min(values), max(values)], "nice": False, "padding": 6},
    )


def _told_apart(method: str, found: list[Representation]) -> list[list[str]]:
    rows = []
    for layer in dict.fromkeys(r.layer for r in found):
        for when, words in WHEN.items():
            sets = [
                r.features
                for r in found
                if (r.when, r.layer) == (when, layer) and len(r.labels) >= LEAST
            ]
            if len(sets) > 1 and len({s.shape[1] for s in sets}) == 1:
                probe = separability(sets, Key.root(0).fold("report"))
                what = f"{words}, with its offset" if layer.endswith(OFFSET) else words
                rows.append([method, what, f"{probe.accuracy:.0%}", f"{probe.chance:.0%}"])
    return rows


def _measured(section: Section, group: Group) -> None:
    """What `comity measure` found, layer by layer, where it was asked."""
    rows = []
    for method in group.methods:
        for run in method.runs:
            try:
                rows += [
                    [method.name, str(run.seed), *line] for line in _layers(run.measures or {})
                ]
            except Exception as why:
                section.say(
                    f"measures.json of {method.name}, seed {run.seed}, is damaged: {describe(why)}",
                    "missing",
                )
    if rows:
        heads = [
            "method",
            "seed",
            "layer",
            "when",
            "MDL, nats",
            "MDL, bits",
            "Fréchet distance",
            "probe names the party",
        ]
        section.blocks.append(
            Table("layers", "Layer by layer (comity measure)", heads, rows, words=4)
        )
    else:
        section.say(
            "Description length (MDL) and distances layer by layer appear here after: comity"
            " measure RUN_DIR"
        )


def _layers(measures: dict[str, Any]) -> list[list[str]]:
    rows = []
    for layer, entry in (measures.get("layers") or {}).items():
        for when, words in WHEN.items():
            if when in entry:
                mdl = entry[when]["mdl"] or {}
                probe = entry[when]["separability"] or {}
                figures = [_figure(mdl.get(unit), ".0f") for unit in ("nats", "bits")]
                spread = entry[when]["frechet"] or {}
                figures += [
                    _figure(spread.get("mean"), ".1f"),
                    _figure(probe.get("accuracy"), ".1%"),
                ]
                rows.append([layer, words, *figures])
    return rows


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"
