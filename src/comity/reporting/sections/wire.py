"""The section on communication: bytes by direction, kind of message, round and party, and by the
closed form.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from comity.charts.chart import Chart, Data, VegaSpec
from comity.charts.curves import line_layers
from comity.charts.encodings import (
    KEEP_SHOWN,
    bytes_axis,
    legend,
    log_checkbox,
    nominal,
    round_axis,
    rows_height,
    shown_methods_param,
    tooltip,
)
from comity.core.party import Traffic
from comity.core.wrapper import chain
from comity.errors import describe
from comity.reporting.blocks import Section, Table
from comity.reporting.charts import MAX_PARTIES, colour_by_method, first_parties
from comity.reporting.gather import Method, RunGroup
from comity.reporting.sections.privacy import class_means, privacy
from comity.runs.build import SimulatedRun
from comity.studies.plan import traffic
from comity.units import deviation, size
from comity.wire.ledger import EVERYBODY, SERVER, Charge

K = TypeVar("K")
KINDS = ("up", "down", "peer", "setup")
"""Directions in the ledger that are drawn. Evaluation is not."""
DIRECTIONS = {
    "up": "to the server",
    "down": "from the server",
    "peer": "between parties",
    "setup": "before round 1",
}


def wire(group: RunGroup, reopen: bool = True) -> Section:
    """Return the sixth section: bytes.

    `reopen` allows opening the runs, which the closed form needs.
    """
    section = Section("wire", "What crossed the wire")
    communicating = [method for method in group.methods if communicates(method)]
    if not communicating:
        section.say("Nothing crossed the wire: every party trained alone.")
        return section
    charts = (
        _totals(communicating, group),
        _rounds(communicating, group),
        None if group.site else _parties(communicating, group),
    )
    section.blocks += [chart for chart in charts if chart]
    section.blocks.append(_kinds(communicating))
    section.blocks += privacy(communicating)
    for sentence in class_means(communicating):
        section.say(sentence)
    if reopen:
        _add_closed_form(section, communicating)
    return section


def communicates(method: Method) -> bool:
    """Whether any bytes were sent in training."""
    return any(
        row.kind in ("up", "down", "peer") and row.bytes
        for run in method.runs
        for row in run.ledger
    )


def _mean_bytes(method: Method, keys: Callable[[Charge], Iterable[K]]) -> dict[K, float]:
    """Return bytes by the keys of the ledger's rows, as a mean over the finished runs.

    If no run is finished, it is the mean over all runs. Evaluation is not counted.
    """
    totals: dict[K, float] = defaultdict(float)
    runs = method.finished or method.runs
    for run in runs:
        for row in run.ledger:
            if row.kind != "eval":
                for key in keys(row):
                    totals[key] += row.bytes / len(runs)
    return totals


def _spread(method: Method) -> str:
    """Return the standard deviation of all bytes over seeds; empty if all seeds have the same."""
    totals = [sum(row.bytes for row in run.ledger if row.kind != "eval") for run in method.finished]
    return f" ± {size(deviation(totals))}" if len(set(totals)) > 1 else ""


def _counted_parties(group: RunGroup) -> str:
    """Return whose bytes are counted."""
    return f"{group.site} alone" if group.site else "all parties"


def _totals(methods: list[Method], group: RunGroup) -> Chart:
    rows = []
    for method in methods:
        totals = _mean_bytes(method, lambda row: [row.kind])
        rows += [
            {"method": method.name, "direction": DIRECTIONS[kind], "bytes": totals[kind]}
            for kind in KINDS
            if totals.get(kind)
        ]
    data = Data.of("bytes", rows, ("method", "direction", "bytes"))
    colour: VegaSpec = {
        "field": "direction",
        "type": "nominal",
        "title": None,
        "legend": legend("top", 4),
        "scale": {
            "domain": [DIRECTIONS[k] for k in KINDS],
            "range": ["@c0", "@c5", "@c2", "@grey"],
        },
    }
    spec: VegaSpec = {
        "height": rows_height(len(methods), 28),
        "mark": {"type": "bar"},
        "encoding": {
            "y": nominal("method", None),
            "x": bytes_axis("bytes", "bytes of a whole run"),
            "color": colour,
            "tooltip": [
                tooltip("method", "method"),
                tooltip("direction", "direction"),
                tooltip("bytes", "bytes", ",.0f"),
            ],
        },
    }
    about_spread = " ±: sample standard deviation over seeds." if any(map(_spread, methods)) else ""
    totals_text = "; ".join(
        f"{m.name} {size(sum(_mean_bytes(m, lambda row: [row.kind]).values()))}{_spread(m)}"
        for m in methods
    )
    alt = (
        f"Bytes of a whole run of {_counted_parties(group)}, by direction:"
        f" {totals_text}.{about_spread}"
    )
    return Chart("bytes", "Bytes of a run", alt, data, spec, half=True)


def _rounds(methods: list[Method], group: RunGroup) -> Chart | None:
    rows: list[dict[str, Any]] = []
    for method in methods:
        by_round = _mean_bytes(method, lambda row: [(row.round, row.kind)])
        rows += [
            {"method": method.name, "round": t, "direction": DIRECTIONS.get(k, k), "bytes": n}
            for (t, k), n in sorted(by_round.items())
            if t > 0 and n
        ]
    if not rows:
        return None
    data = Data.of("bytes-by-round", rows, ("method", "round", "direction", "bytes"))
    names = [m.name for m in methods]
    y = bytes_axis("bytes", "bytes in a round", [row["bytes"] for row in rows])
    used = {row["direction"] for row in rows}
    encoding: VegaSpec = {
        "x": round_axis(row["round"] for row in rows),
        "y": y,
        "color": colour_by_method(group, only=names),
        "strokeDash": {
            "field": "direction",
            "type": "nominal",
            "title": None,
            "legend": legend("top", 4),
            "scale": {"domain": [name for name in DIRECTIONS.values() if name in used]},
        },
    }
    tips = [
        tooltip("method", "method"),
        tooltip("direction", "direction"),
        tooltip("round", "round"),
        tooltip("bytes", "bytes", ",.0f"),
    ]
    points = Counter((row["method"], row["direction"]) for row in rows)
    layers = line_layers(encoding, tips, min(points.values()))
    spec: VegaSpec = {
        "height": 220,
        "params": [shown_methods_param(names)],
        "transform": [KEEP_SHOWN],
        "layer": layers,
    }
    box = log_checkbox(y, *(("layer", k, "encoding", "y") for k in range(len(layers))))
    alt = (
        f"Bytes in each round of {_counted_parties(group)}, by method and direction."
        f" {_describe_changes(rows, names)}"
    )
    return Chart("bytes-by-round", "Bytes by round", alt, data, spec, (box,), half=True)


def _describe_changes(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Return a sentence about the methods whose bytes change from round to round."""
    changing = []
    for name in names:
        amounts_by_direction: dict[str, set[float]] = defaultdict(set)
        for row in rows:
            if row["method"] == name:
                amounts_by_direction[row["direction"]].add(round(row["bytes"], 3))
        if any(len(amounts) > 1 for amounts in amounts_by_direction.values()):
            changing.append(name)
    if not changing:
        return "Every method sends as much in one round as in another."
    text = f"From round to round it changes with {', '.join(changing)}"
    if len(changing) < len(names):
        return f"{text}; the others send as much in one round as in another."
    return f"{text}."


def _parties(methods: list[Method], group: RunGroup) -> Chart | None:
    """Return a chart of what each party sent and received; None if ledgers have only sums."""
    no_parties = (SERVER, EVERYBODY)

    def parties_of(row: Charge) -> list[str]:
        return [name for name in (row.src, row.dst) if name not in no_parties]

    bytes_of = {m.name: _mean_bytes(m, parties_of) for m in methods}
    parties = list(dict.fromkeys(party for by_party in bytes_of.values() for party in by_party))
    if not parties:
        return None
    rows: list[dict[str, Any]] = [
        {"method": name, "party": party, "bytes": by_party[party]}
        for name, by_party in bytes_of.items()
        for party in parties[:MAX_PARTIES]
        if by_party.get(party)
    ]
    data = Data.of("bytes-by-party", rows, ("method", "party", "bytes"))
    x = bytes_axis("bytes", "bytes sent and received in a run", [row["bytes"] for row in rows])
    names = [m.name for m in methods]
    spec: VegaSpec = {
        "height": rows_height(len({row["party"] for row in rows}), 16),
        "params": [shown_methods_param(names)],
        "transform": [KEEP_SHOWN],
        "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
        "encoding": {
            "y": nominal("party", None),
            "x": x,
            "color": colour_by_method(group, only=names),
            "tooltip": [
                tooltip("method", "method"),
                tooltip("party", "party"),
                tooltip("bytes", "bytes", ",.0f"),
            ],
        },
    }
    box = log_checkbox(x, ("encoding", "x"))
    alt = "What each party sent and received in a whole run."
    positions = first_parties(len(parties))
    return Chart(
        "bytes-by-party", "Bytes by party", alt, data, spec, (box,), half=True, selection=positions
    )


def _kinds(methods: list[Method]) -> Table:
    """Return a table of bytes by the party function that a message belongs to."""
    rows = []
    for method in methods:
        by_call = _mean_bytes(method, lambda row: [(row.call, row.kind)])
        rows += [
            [method.name, call, DIRECTIONS.get(kind, kind), size(n)]
            for (call, kind), n in by_call.items()
            if n
        ]
    mean = ", mean over seeds" if any(len(method.finished) > 1 for method in methods) else ""
    heads = ["method", "call", "direction", f"bytes{mean}"]
    return Table("messages", "Bytes by kind of message", heads, rows, words=3, folded=True)


def _add_closed_form(section: Section, methods: list[Method]) -> None:
    """Add tables of the bytes by the methods' closed forms, beside those in the ledgers.

    The ledger is that of a method's first finished run.
    """
    formulas: list[list[str]] = []
    rows: list[list[str]] = []
    setup_bytes: list[int] = []
    for method in methods:
        if not method.finished:
            continue
        run = method.finished[0]
        try:
            expected = _expected_bytes(run.job)
        except Exception as why:  # the page must not be lost for one table
            section.say(
                f"The closed form of {method.name} cannot be evaluated: {describe(why)}", "missing"
            )
            continue
        parts = reversed(chain(run.job.algorithm))
        part_formulas = dict.fromkeys(
            part.traits.bytes_formula for part in parts if part.traits.bytes_formula
        )
        formulas.append([method.name, "; ".join(part_formulas)])
        ledger_bytes = {
            kind: sum(row.bytes for row in run.ledger if row.kind == kind) for kind in KINDS
        }
        setup_bytes.append(ledger_bytes.pop("setup"))
        rows += [[method.name, *cells] for cells in _compare_bytes(expected, ledger_bytes)]
    if not rows:
        return
    several = any(len(method.runs) > 1 for method in methods)
    seed = f", seed {methods[0].finished[0].seed}" if several else ""
    heads = ["method", "direction", "bytes expected", "bytes measured", "difference"]
    title = f"Bytes of a whole run: closed form beside ledger{seed}"
    section.blocks += [
        Table("closed-form", title, heads, rows, words=2, folded=True),
        Table(
            "formulas",
            "The closed forms",
            ["method", "closed form"],
            formulas,
            words=2,
            folded=True,
        ),
    ]
    about = (
        "A closed form gives all bytes of a run: every round and party, all directions together."
        " S_t are the parties of round t, S is the bytes of what is shared of a model; comity show"
        " METHOD explains a method's other symbols."
    )
    if most := max(setup_bytes):
        about += f" It does not include the setup before round 1, here up to {size(most)}."
    section.say(about)


def _expected_bytes(job: SimulatedRun) -> Traffic:
    """Return the bytes of a whole run by the method's closed form."""
    start, rounds = traffic(job)
    total = sum(rounds, start)
    if job.info.newcomers:
        total += job.algorithm.accounting.join_traffic(job.info)
    return total


def _compare_bytes(expected: Traffic, ledger_bytes: Mapping[str, int]) -> list[list[str]]:
    """Return rows of direction, bytes expected, bytes measured, and their difference."""
    pairs = {
        DIRECTIONS[kind]: (getattr(expected, kind), count)
        for kind, count in ledger_bytes.items()
        if count or getattr(expected, kind)
    }
    totals = [sum(counts) for counts in zip(*pairs.values(), strict=True)] or [0, 0]
    pairs["in all"] = (totals[0], totals[1])
    return [
        [
            direction,
            f"{formula:,d}",
            f"{count:,d}",
            "equal" if count == formula else f"{count - formula:+,d}",
        ]
        for direction, (formula, count) in pairs.items()
    ]
