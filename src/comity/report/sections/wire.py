"""What crossed the wire: by direction, by kind of message, by round, by party; and what the closed
form says.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from comity.core.wrapper import chain
from comity.errors import describe
from comity.report.blocks import Chart, Data, Section, Table, VegaSpec
from comity.report.charts import (
    ONLY_SHOWN,
    PARTIES,
    by_method,
    count_of_bytes,
    first_of,
    legend,
    line_of_points,
    logarithmic,
    shown,
    tall,
    tip,
    whole_rounds,
    word,
)
from comity.report.gather import Group, Method
from comity.report.sections.privacy import privacy
from comity.units import size
from comity.wire.ledger import EVERYBODY, SERVER

KINDS = ("up", "down", "peer", "setup")
"""Directions in the ledger that are drawn; evaluation is not."""
NAMES = {
    "up": "to the server",
    "down": "from the server",
    "peer": "between parties",
    "setup": "before round 1",
}


def wire(group: Group, reopen: bool = True) -> Section:
    """The page's sixth section: bytes in all ways; `reopen` allows to open runs for the closed
    form.
    """
    section = Section("wire", "What crossed the wire")
    talking = [method for method in group.methods if talks(method)]
    if not talking:
        section.say("Nothing crossed the wire: every party trained alone.")
        return section
    charts = (
        _totals(talking, group),
        _rounds(talking, group),
        None if group.site else _parties(talking, group),
    )
    section.blocks += [chart for chart in charts if chart]
    section.blocks.append(_kinds(talking))
    section.blocks += privacy(talking)
    if reopen:
        _closed_form(section, talking)
    return section


def talks(method: Method) -> bool:
    """Whether anything crossed the wire in training."""
    return any(
        row.kind in ("up", "down", "peer") and row.bytes
        for run in method.runs
        for row in run.ledger
    )


def _mean(method: Method, key: Any) -> dict[Any, float]:
    """Bytes by some key of the ledger's rows, mean over finished runs (or all, while none is);
    evaluation is left out.
    """
    found: dict[Any, float] = defaultdict(float)
    runs = method.finished or method.runs
    for run in runs:
        for row in run.ledger:
            if row.kind != "eval":
                for what in key(row):
                    found[what] += row.bytes / len(runs)
    return found


def _spread(method: Method) -> str:
    """How much runs under other seeds differ in all their bytes; nothing if they do not."""
    totals = [sum(row.bytes for row in run.ledger if row.kind != "eval") for run in method.finished]
    return f" ± {size(statistics.pstdev(totals))}" if len(set(totals)) > 1 else ""


def _whose(group: Group) -> str:
    """Who sent and received what is shown."""
    return f"{group.site} alone" if group.site else "all parties"


def _totals(methods: list[Method], group: Group) -> Chart:
    rows = []
    for method in methods:
        total = _mean(method, lambda row: [row.kind])
        rows += [
            {"method": method.name, "direction": NAMES[kind], "bytes": total[kind]}
            for kind in KINDS
            if total.get(kind)
        ]
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
            "tooltip": [
                tip("method", "method"),
                tip("direction", "direction"),
                tip("bytes", "bytes", ",.0f"),
            ],
        },
    }
    over = " ±: standard deviation over seeds." if any(_spread(m) for m in methods) else ""
    each = "; ".join(
        f"{m.name} {size(sum(_mean(m, lambda row: [row.kind]).values()))}{_spread(m)}"
        for m in methods
    )
    alt = f"Bytes of a whole run of {_whose(group)}, by direction: {each}.{over}"
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
    encoding: VegaSpec = {
        "x": whole_rounds(row["round"] for row in rows),
        "y": y,
        "color": by_method(group, only=names),
        "strokeDash": {
            "field": "direction",
            "type": "nominal",
            "title": None,
            "legend": legend("top", 4),
            "scale": {
                "domain": [d for d in NAMES.values() if any(row["direction"] == d for row in rows)]
            },
        },
    }
    tips = [
        tip("method", "method"),
        tip("direction", "direction"),
        tip("round", "round"),
        tip("bytes", "bytes", ",.0f"),
    ]
    spec: VegaSpec = {
        "height": 220,
        "params": [shown(names)],
        "transform": [ONLY_SHOWN],
        "layer": line_of_points(encoding, tips, 30),
    }
    box = logarithmic(*(("layer", k, "encoding", "y") for k in range(2)))
    alt = f"Bytes in each round of {_whose(group)}, by method and direction. {_evenly(rows, names)}"
    return Chart("bytes-by-round", "Bytes by round", alt, data, spec, (box,), half=True)


def _evenly(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Who sends as much in one round as in another."""
    changing = []
    for name in names:
        each: dict[str, set[float]] = defaultdict(set)
        for row in rows:
            if row["method"] == name:
                each[row["direction"]].add(round(row["bytes"], 3))
        changing += [name] if any(len(amounts) > 1 for amounts in each.values()) else []
    if not changing:
        return "Every method sends as much in one round as in another."
    return f"From round to round it changes with {', '.join(changing)}" + (
        "; the others send as much in one round as in another."
        if len(changing) < len(names)
        else "."
    )


def _parties(methods: list[Method], group: Group) -> Chart | None:
    """What each party sent and received; nothing where all are added up."""
    others = (SERVER, EVERYBODY)
    bytes_of = {
        m.name: _mean(m, lambda row: [party for party in (row.src, row.dst) if party not in others])
        for m in methods
    }
    parties = list(dict.fromkeys(party for each in bytes_of.values() for party in each))
    if not parties:
        return None
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
            "x": count_of_bytes(
                "bytes", "bytes sent and received in a run", [row["bytes"] for row in rows]
            ),
            "color": by_method(group, only=names),
            "tooltip": [
                tip("method", "method"),
                tip("party", "party"),
                tip("bytes", "bytes", ",.0f"),
            ],
        },
    }
    box = logarithmic(("encoding", "x"))
    alt = f"What each party sent and received in a whole run.{first_of(len(parties))}"
    return Chart("bytes-by-party", "Bytes by party", alt, data, spec, (box,), half=True)


def _kinds(methods: list[Method]) -> Table:
    """By the work that a message belongs to."""
    rows = []
    for method in methods:
        each = _mean(method, lambda row: [(row.call, row.kind)])
        rows += [
            [method.name, work, NAMES.get(kind, kind), size(n)]
            for (work, kind), n in each.items()
            if n
        ]
    mean = ", mean over seeds" if any(len(method.finished) > 1 for method in methods) else ""
    heads = ["method", "work", "direction", f"bytes{mean}"]
    return Table("messages", "Bytes by kind of message", heads, rows, words=3, folded=True)


def _closed_form(section: Section, methods: list[Method]) -> None:
    """What a method's closed form says its first finished run sends, beside what the ledger
    counted.
    """
    from comity.studies.plan import traffic

    formulas: list[list[str]] = []
    rows: list[list[str]] = []
    before: dict[str, int] = {}
    for method in methods:
        if not method.finished:
            continue
        run = method.finished[0]
        try:
            job = run.job
            start, rounds = traffic(job)
            total = sum(rounds, start)
            if job.info.newcomers:
                total += job.algorithm.accounting.join_traffic(job.info)
        except Exception as why:  # a page is not lost for one table
            section.say(
                f"The closed form of {method.name} cannot be evaluated: {describe(why)}", "missing"
            )
            continue
        parts = reversed(chain(job.algorithm))
        formulas.append(
            [
                method.name,
                "; ".join(
                    dict.fromkeys(
                        part.traits.bytes_formula for part in parts if part.traits.bytes_formula
                    )
                ),
            ]
        )
        counted = {kind: sum(row.bytes for row in run.ledger if row.kind == kind) for kind in KINDS}
        before[method.name] = counted.pop("setup")
        both = {
            NAMES[kind]: (getattr(total, kind), n)
            for kind, n in counted.items()
            if n or getattr(total, kind)
        }
        both["in all"] = (
            sum(expected for expected, _ in both.values()),
            sum(n for _, n in both.values()),
        )
        rows += [
            [
                method.name,
                direction,
                f"{expected:,d}",
                f"{n:,d}",
                "equal" if n == expected else f"{n - expected:+,d}",
            ]
            for direction, (expected, n) in both.items()
        ]
    if not rows:
        return
    seed = (
        f", seed {methods[0].finished[0].seed}"
        if any(len(method.runs) > 1 for method in methods)
        else ""
    )
    heads = ["method", "direction", "bytes expected", "bytes measured", "difference"]
    section.blocks.append(
        Table(
            "closed-form",
            f"Bytes of a whole run: closed form beside ledger{seed}",
            heads,
            rows,
            words=2,
            folded=True,
        )
    )
    section.blocks.append(
        Table(
            "formulas",
            "The closed forms",
            ["method", "closed form"],
            formulas,
            words=2,
            folded=True,
        )
    )
    settled = max(before.values())
    section.say(
        "A closed form gives all bytes of a run: every round and party, all directions together."
        " S_t are the parties of round t, S is the bytes of what is shared of a model; comity show"
        " METHOD explains a method's other letters."
        + (
            f" What parties settle before round 1, up to {size(settled)} here, is no part of it."
            if settled
            else ""
        )
    )
