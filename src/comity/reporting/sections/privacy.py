"""What was given away, on the page: by method, what the account of its runs says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comity.core.release import UNITS
from comity.privacy.account import INFINITE, read_epsilon
from comity.reporting.blocks import Table
from comity.reporting.gather import Method

HEADS = ["method", "epsilon", "protected", "from whom", "delta", "left without noise"]
"""Epsilon stands where a narrow window shows it."""


def privacy(methods: list[Method]) -> list[Table]:
    """A table of what is guaranteed to the party that has least of it, over all seeds; none if no
    run has an account.
    """
    rows = []
    for method in methods:
        told = [
            account for run in method.finished if (account := (run.summary or {}).get("privacy"))
        ]
        if told:
            rows.append([method.name, *_row(told, "everybody else")])
        if trusted := [block["trusted_server"] for block in told if block["trusted_server"]]:
            rows.append([method.name, *_row(trusted, "other parties, if the server is trusted")])
    return (
        [
            Table(
                "privacy",
                "What is guaranteed to a party",
                HEADS,
                rows,
                words=6,
                figures=("epsilon", "delta"),
            )
        ]
        if rows
        else []
    )


def _row(blocks: list[Mapping[str, Any]], whom: str) -> list[str]:
    """The worst of several runs."""
    worst = max(blocks, key=lambda block: read_epsilon(block["epsilon"]))
    bare = list(dict.fromkeys(name for block in blocks for name in block["unprotected"]))
    if worst["epsilon"] == INFINITE:
        return ["infinite", "nothing", whom, "", ", ".join(bare)]
    if not worst["unit"]:
        return ["0", "everything: nothing left a party", whom, "", ""]
    return [
        f"{worst['epsilon']:.3g}",
        UNITS[worst["unit"]],
        whom,
        f"{worst['delta']:g}",
        ", ".join(bare),
    ]
