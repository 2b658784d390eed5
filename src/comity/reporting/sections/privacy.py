"""The privacy table: the guarantee of each method, from the accounts of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comity.algorithms import compose, names
from comity.core.class_means import describe_smallest_mean, smallest_class_means
from comity.core.release import UNITS
from comity.errors import UsageError
from comity.privacy.account import INFINITE, read_epsilon
from comity.reporting.blocks import Table
from comity.reporting.gather import Method
from comity.spec import parse, split

HEADS = ["method", "epsilon", "protected", "from whom", "delta", "left without noise"]
"""Epsilon is near the left edge, where a narrow window shows it."""


def privacy(methods: list[Method]) -> list[Table]:
    """Return a table of the guarantees to the party that has the weakest one, over all seeds.

    The list is empty if no run has a privacy account.
    """
    rows = []
    for method in methods:
        accounts = [account for summary in method.summaries if (account := summary.get("privacy"))]
        if accounts:
            rows.append([method.name, *_weakest(accounts, "everybody else")])
        if trusted := [block["trusted_server"] for block in accounts if block["trusted_server"]]:
            observers = "other parties, if the server is trusted"
            rows.append([method.name, *_weakest(trusted, observers)])
    if not rows:
        return []
    title = "What is guaranteed to a party"
    return [Table("privacy", title, HEADS, rows, words=6, figures=("epsilon", "delta"))]


def class_means(methods: list[Method]) -> list[str]:
    """Return a sentence for each method whose parties send class means without noise: how few
    records a mean may be of, by the options of the method.

    Files of users are not opened for it.
    """
    sentences = []
    own_methods = set(names())
    for method in methods:
        experiment = next((run.experiment for run in method.runs if run.experiment), None)
        if experiment is None:
            continue
        try:
            parts = [parse(part).name for part in split(experiment.algorithm, "+")]
            if not own_methods.issuperset(parts):
                continue
            algorithm = compose(experiment.algorithm, experiment.set)
        except UsageError:
            continue
        sizes = smallest_class_means(algorithm)
        unprotected = {
            name.rpartition(" (")[0]
            for summary in method.summaries
            for name in summary.get("privacy", {}).get("unprotected", ())
        }
        if least := min((size for name, size in sizes.items() if name in unprotected), default=0):
            sentences.append(f"{method.name}: {describe_smallest_mean(algorithm, least)}.")
    return sentences


def _weakest(blocks: list[Mapping[str, Any]], observers: str) -> list[str]:
    """Return the cells of the weakest guarantee of several runs."""
    worst = max(blocks, key=lambda block: read_epsilon(block["epsilon"]))
    unprotected = list(dict.fromkeys(name for block in blocks for name in block["unprotected"]))
    if worst["epsilon"] == INFINITE:
        return [INFINITE, "nothing", observers, "", ", ".join(unprotected)]
    if not worst["unit"]:
        return ["0", "everything: nothing left a party", observers, "", ""]
    return [
        f"{worst['epsilon']:.3g}",
        UNITS[worst["unit"]],
        observers,
        f"{worst['delta']:g}",
        ", ".join(unprotected),
    ]
