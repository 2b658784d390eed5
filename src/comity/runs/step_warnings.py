"""Warnings about a run's gradient evaluations: where parties or the server take several times those
of plain local training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from comity.names import display_name
from comity.training.gradient_count import SEVERAL

STEPS = "steps (gradient evaluations)"


@dataclass(frozen=True)
class RoundSteps:
    """The gradient evaluations of a round, on average over the rounds of a run."""

    party: float
    """Of a party that takes part."""
    plain: float
    """Of such a party, if it trained once: the experiment's epochs or steps."""
    server: float

    @staticmethod
    def of(summary: Mapping[str, Any]) -> RoundSteps | None:
        """Return those of a summary; None if nobody trained or if they are not known, as in the
        summaries of earlier versions and in those of single sites.
        """
        party_rounds, rounds = summary.get("party_rounds"), summary["rounds"]
        if not party_rounds or not rounds or not summary.get("plain_steps"):
            return None
        return RoundSteps(
            summary["steps"] / party_rounds,
            summary["plain_steps"] / party_rounds,
            summary["server_steps"] / rounds,
        )


def step_warnings(summary: Mapping[str, Any]) -> list[str]:
    """Return the warnings about a run's steps, a sentence each."""
    steps = RoundSteps.of(summary)
    if steps is None:
        return []
    advice = ": 'comity compare --equal-steps' gives all methods the same number"
    return [*party_warnings(steps, advice), *server_warnings(steps, summary)]


def party_warnings(steps: RoundSteps, advice: str = "") -> list[str]:
    """Return a sentence if a party takes several times the steps of plain local training.

    `advice` is added to its end.
    """
    if steps.party < SEVERAL * steps.plain:
        return []
    return [
        f"A party takes {steps.party:,.0f} {STEPS} a round, {steps.party / steps.plain:.3g} times"
        f" the {steps.plain:,.0f} of one local training{advice}."
    ]


def server_warnings(steps: RoundSteps, summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence if the server takes several times the steps of a party.

    A server that trains in place of the parties, which then take no steps, gets none.
    """
    if not steps.party or steps.server < SEVERAL * steps.party:
        return []
    method = display_name(summary["algorithm"])
    return [
        f"The server takes {steps.server:,.0f} {STEPS} a round, {steps.server / steps.party:.3g}"
        f" times the {steps.party:,.0f} of a party: 'comity show {method}' lists the options that"
        " limit them."
    ]
