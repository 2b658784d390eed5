"""What crossed the wire: by direction, by kind of message, by round, by party; and what the closed form says."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from comity.core.ledger import SERVER
from comity.errors import describe
from comity.report.blocks import Chart, Checkbox, Data, Section, Table, VegaSpec
from comity.report.charts import (
    ONLY_SHOWN,
    PARTIES,
    by_method,
    count_of_bytes,
    first_of,
    legend,
    shown,
    tall,
    tip,
    whole_rounds,
    word,
)
from comity.report.gather import Group, Method
from comity.units import size

KINDS = ("up", "down", "peer", "setup")
"""Directions in the ledger that are drawn; evaluation is not."""
NAMES = {"up": "to the server", "down": "from the server", "peer": "between parties", "setup": "before round 1"}


def wire(group: Group, reopen: bool = True) -> Section:
    """The page's sixth section: bytes in all ways; `reopen` allows to open runs for the closed form."""
    section = Section("wire", "What crossed the wire")
    talking = [method for method in group.methods if talks(method)]
    if not talking:
        section.say("Nothing crossed the wire: every party trained alone.")
        return section
    charts = (_totals(talking), _rounds(talking, group), _parties(talking, group))
    section.blocks += [chart for chart in charts if chart]
    section.blocks.append(_kinds(talking))
    if reopen:
        section.blocks.append(_closed_form(section, talking))
    return section


def talks(method: Method) -> bool:
    """Whether anything crossed the wire in training."""
    return any(row.kind in ("up", "down", "peer") and row.bytes for run in method.runs for row in run.ledger)


def _mean(method: Method, key: Any) -> dict[Any, float]:
    """Bytes by some key of the ledger's rows, mean over finished runs (or all, while none is); evaluation is left out."""
    found: dict[Any, float] = defaultdict(float)
    runs = method.finished or method.runs
    for run in runs:
        for row in run.ledger:
            if row.kind != "eval":
                for what in key(row):
                    found[what] += row.bytes / len(runs)
    return found


def _totals(methods: list[Method]) -> Chart:
    rows = []
    for method in methods:
        total = _mean(method, lambda row: [row.kind])
        rows += [{"method": method.name, "direction": NAMES[kind], "bytes": total[kind]} for kind in KINDS if total.get(kind)]
    data = Data.of("bytes", rows, ("method", "direction", "bytes"))
    colour: VegaSpec = {
        "field": "direction",
        "type": "nominal",
        "title": None,
        "legend": legend("top", 4),
        "scale": {"domain": [NAMES[k] for k in KINDS], "range": ["@c0", "@c5", "@c2", "@grey"]},
    }
    spec: VegaSpec = {
        "height": tall(len(methods), 28),
        "mark": {"type": "bar"},
        "encoding": {
            "y": word("method", None),
            "x": count_of_bytes("bytes", "bytes of a whole run"),
            "color": colour,
            "tooltip": [tip("method", "method"), tip("direction", "direction"), tip("bytes", "bytes", ",.0f")],
        },
    }
    alt = (
        "Bytes of a whole run, by direction: "
        + "; ".join(f"{m.name} {size(sum(_mean(m, lambda row: [row.kind]).values()))}" for m in methods)
        + "."
    )
    return Chart("bytes", "Bytes of a run", alt, data, spec, half=True)


def _rounds(methods: list[Method], group: Group) -> Chart | None:
    rows: list[dict[str, Any]] = []
    for method in methods:
        each = _mean(method, lambda row: [(row.round, row.kind)])
        rows += [
            {"method": method.name, "round": t, "direction": NAMES.get(k, k), "bytes": n}
            for (t, k), n in sorted(each.items())
            if t > 0 and n
        ]
    if not rows:
        return None
    data = Data.of("bytes-by-round", rows, ("method", "round", "direction", "bytes"))
    names = [m.name for m in methods]
    y = count_of_bytes("bytes", "bytes in a round", [row["bytes"] for row in rows])
    spec: VegaSpec = {
        "height": 220,
        "params": [shown(names)],
        "transform": [ONLY_SHOWN],
        "mark": {"type": "line", "point": {"size": 12}},
        "encoding": {
            "x": whole_rounds(),
            "y": y,
            "color": by_method(group, only=names),
            "strokeDash": {
                "field": "direction",
                "type": "nominal",
                "title": None,
                "legend": legend("top", 4),
                "scale": {"domain": [d for d in NAMES.values() if any(row["direction"] == d for row in rows)]},
            },
            "tooltip": [
                tip("method", "method"),
                tip("direction", "direction"),
                tip("round", "round"),
                tip("bytes", "bytes", ",.0f"),
            ],
        },
    }
    box = Checkbox("logarithmic", (("encoding", "y", "scale", "type"),), "log", "linear", ticked=True)
    alt = "Bytes in each round, by method and direction; most methods send as much in one round as in another."
    return Chart("bytes-by-round", "Bytes by round", alt, data, spec, (box,), half=True)


def _parties(methods: list[Method], group: Group) -> Chart:
    """What each party sent and received."""
    bytes_of = {m.name: _mean(m, lambda row: [party for party in (row.src, row.dst) if party != SERVER]) for m in methods}
    parties = list(dict.fromkeys(party for each in bytes_of.values() for party in each))
    rows: list[dict[str, Any]] = [
        {"method": name, "party": party, "bytes": each[party]}
        for name, each in bytes_of.items()
        for party in parties[:PARTIES]
        if each.get(party)
    ]
    data = Data.of("bytes-by-party", rows, ("method", "party", "bytes"))
    names = [m.name for m in methods]
    spec: VegaSpec = {
        "height": tall(len({row["party"] for row in rows}), 16),
        "params": [shown(names)],
        "transform": [ONLY_SHOWN],
        "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
        "encoding": {
            "y": word("party", None),
            "x": count_of_bytes("bytes", "bytes sent and received in a run", [row["bytes"] for row in rows]),
            "color": by_method(group, only=names),
            "tooltip": [tip("method", "method"), tip("party", "party"), tip("bytes", "bytes", ",.0f")],
        },
    }
    box = Checkbox("logarithmic", (("encoding", "x", "scale", "type"),), "log", "linear", ticked=True)
    alt = f"What each party sent and received in a whole run.{first_of(len(parties))}"
    return Chart("bytes-by-party", "Bytes by party", alt, data, spec, (box,), half=True)


def _kinds(methods: list[Method]) -> Table:
    """By the work that a message belongs to."""
    rows = []
    for method in methods:
        each = _mean(method, lambda row: [(row.work, row.kind)])
        rows += [[method.name, work, NAMES.get(kind, kind), size(n)] for (work, kind), n in each.items() if n]
    return Table("messages", "By kind of message", ["method", "work", "direction", "bytes"], rows, words=3, folded=True)


def _closed_form(section: Section, methods: list[Method]) -> Table:
    from comity.studies.plan import traffic

    rows = []
    for method in methods:
        if not method.finished:
            continue
        run = method.finished[0]
        try:
            job = run.job
            start, rounds = traffic(job)
            total = sum(rounds, start)
            if job.info.newcomers:
                total += job.algorithm.join_traffic(job.info)
        except Exception as why:  # a page is not lost for one table
            section.say(f"The closed form of {method.name} cannot be evaluated: {describe(why)}", "missing")
            continue
        measured = {kind: sum(row.bytes for row in run.ledger if row.kind == kind) for kind in ("up", "down", "peer")}
        for kind, counted in measured.items():
            expected = getattr(total, kind)
            if counted or expected:
                same = "equal" if counted == expected else f"{counted - expected:+,d}"
                rows.append([method.name, NAMES[kind], job.algorithm.bytes_formula, f"{expected:,d}", f"{counted:,d}", same])
    heads = ["method", "direction", "closed form", "bytes expected", "bytes measured", "difference"]
    seed = f" (seed {methods[0].runs[0].seed})" if len(methods[0].runs) > 1 else ""
    return Table("closed-form", f"The closed form beside the ledger{seed}", heads, rows, words=3)
