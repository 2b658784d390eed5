"""The account of a run, computed again from privacy.csv by dp-accounting alone.

The epsilon of a run comes from Comity's own composition of releases (`privacy/composition.py`).
Here nothing of it is used: the rows of privacy.csv become events of Google's dp-accounting, and the
result is compared with summary.json. The recorded messages show whether rows are missing: each
reply of a party in which a release is declared has at least one.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from comity.auditing.finding import Check, Untried
from comity.auditing.view import View
from comity.privacy.account import PrivacyCharge, epsilon_for_json, format_epsilon, read_epsilon
from comity.wire.ledger import EVERYBODY

CHECK = "account"
GRID = 1e-3
"""The grid of privacy losses, which dp-accounting rounds up to."""
TOLERANCE = 2e-3
"""The relative difference to the claim that the grid and rounding may cause."""


def check_account(view: View) -> Check | Untried | None:
    """Compare the epsilons of summary.json with those that follow from privacy.csv; None if the run
    claims nothing.
    """
    privacy = view.summary.get("privacy") or {}
    if not privacy.get("unit") and not privacy.get("trusted_server"):
        return None
    if importlib.util.find_spec("dp_accounting") is None:
        return Untried(
            CHECK, "dp-accounting is not installed (pip install 'comity[privacy]' installs it)"
        )
    rows = view.folder.read_privacy()
    compared: list[tuple[str, float, float]] = []
    for against, block in (("server", privacy), ("parties", privacy.get("trusted_server"))):
        if not block or not block["unit"]:
            continue
        recomputed = epsilons([row for row in rows if row.against == against], block["delta"])
        for party, claim in block["parties"].items():
            again = recomputed.get(party, recomputed.get(EVERYBODY, 0.0))
            compared.append((party, read_epsilon(claim), again))
        for party in recomputed.keys() - block["parties"].keys() - {EVERYBODY}:
            compared.append((party, 0.0, recomputed[party]))
    if not compared:
        return None
    missing = replies_without_row(view, rows)
    wrong = [each for each in compared if _exceeds(each[2], each[1])]
    party, claimed, again = max(wrong or compared, key=lambda each: each[2])
    figures = {
        "party": party,
        "claimed": epsilon_for_json(claimed),
        "recomputed": epsilon_for_json(again),
        "replies_without_row": missing,
    }
    epsilon_text = f"epsilon {format_epsilon(again, '.3f')}"
    expected = f"{format_epsilon(claimed, '.3f')} or less, which is claimed for {party}"
    how = "Recomputed from privacy.csv by dp-accounting alone."
    if wrong:
        text = f"{how} The run claims less than its own releases add up to."
        return Check(CHECK, epsilon_text, expected, "wrong", text, figures)
    if missing:
        text = f"{how} But privacy.csv has no row for {missing:,} of the recorded replies."
        return Check(CHECK, epsilon_text, expected, "wrong", text, figures)
    return Check(CHECK, epsilon_text, expected, "right", how, figures)


def _exceeds(again: float, claimed: float) -> bool:
    return again > claimed * (1 + TOLERANCE) + 1e-6


def epsilons(rows: list[PrivacyCharge], delta: float) -> dict[str, float]:
    """Epsilon of each party in rows of privacy.csv, by dp-accounting."""
    by_party: dict[str, list[PrivacyCharge]] = defaultdict(list)
    for row in rows:
        by_party[row.party].append(row)
    cache: dict[frozenset[tuple[tuple[Any, ...], int]], float] = {}
    result = {}
    for party, charges in by_party.items():
        events = Counter(
            (
                row.mechanism,
                row.noise / row.sensitivity if row.sensitivity else 0.0,
                row.rate,
                row.drawn,
                row.drawn_of,
                row.steps,
            )
            for row in charges
        )
        history = frozenset(events.items())
        if history not in cache:
            cache[history] = _compose(events, {row.neighbours for row in charges}, delta)
        result[party] = cache[history]
    return result


def _compose(events: Mapping[tuple[Any, ...], int], neighbours: set[str], delta: float) -> float:
    """Epsilon of mechanisms, each with the number of rows that have it."""
    import dp_accounting
    from dp_accounting import pld, rdp

    relation = dp_accounting.NeighboringRelation
    fixed_size = any(drawn_of for _, _, _, _, drawn_of, _ in events)
    if any(mechanism == "none" or not noise for mechanism, noise, *_ in events) or (
        fixed_size and len(neighbours) > 1
    ):
        return math.inf
    accountant: Any = (
        rdp.RdpAccountant(neighboring_relation=relation.REPLACE_ONE)
        if fixed_size
        else pld.PLDAccountant(relation.REPLACE_SPECIAL, GRID)
    )
    for (mechanism, noise, rate, sample_size, drawn_of, steps), count in events.items():
        event: Any = (
            dp_accounting.LaplaceDpEvent(noise)
            if mechanism == "laplace"
            else dp_accounting.GaussianDpEvent(noise)
        )
        if drawn_of:
            event = dp_accounting.SampledWithoutReplacementDpEvent(drawn_of, sample_size, event)
        elif rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(rate, event)
        accountant.compose(event, steps * count)
    return float(accountant.get_epsilon(delta))


def replies_without_row(view: View, rows: list[PrivacyCharge]) -> int:
    """How many recorded replies have no row in the account, although other replies of the same
    party function have one.
    """
    charged = {(row.round, row.call, row.party) for row in rows if row.mechanism != "none"}
    functions = {function for _, function, _ in charged}
    replies = {
        (message.call.round, message.call.function, view.job.info.name(message.src))
        for message in view.messages()
        if message.kind == "reply" and message.call.function in functions
    }
    return len(replies - charged)
