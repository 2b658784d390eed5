"""`summary.json`: a run in a few figures. Every party is kept; means are named by how they are taken."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from comity.core.attendance import Absence
from comity.core.ledger import SERVER
from comity.core.net import Note
from comity.errors import ComityError
from comity.measure.accuracy import by_round, carried, mean

if TYPE_CHECKING:
    from comity.experiments.build import Job

RUNAWAY = 1e6  # a mean cross entropy, of which ln(classes) is what a guess costs
KINDS = ("up", "down", "peer", "setup", "eval")


def _best(chooser: dict[int, float], test: dict[int, dict[str, float]], sizes: dict[str, int]) -> dict[str, Any] | None:
    """The first round that is best by `chooser`, and the test accuracy there; rounds in which not all were heard are left out."""
    rounds = [t for t in chooser if len(test.get(t, ())) == len(sizes)]
    if not rounds:
        return None
    t = max(rounds, key=lambda t: (chooser[t], -t))
    return {"round": t, "mean": mean(test[t]), "weighted": mean(test[t], sizes)}


def accuracy(rows: list[Note], final: int, tests: dict[str, int], validations: dict[str, int]) -> dict[str, Any]:
    """The accuracy block: the figures of the last round, `final`, and the best rounds by validation and by test.

    A party that was not heard after the last round stands there with its last figure, and `as_of` says of which round that is.
    """
    test = by_round(rows, "test")
    validation = by_round(rows, "validation")
    unfinished = by_round(rows, "test-unfinished")
    if not test:
        raise ComityError("No party was ever heard: there is no accuracy to sum up.")
    heard = {party: t for t in sorted(test) for party in test[t]}
    last = carried(test)[max(test)]
    average = mean(last)
    pooled = {row.round: row.value for row in rows if (row.party, row.split, row.metric) == (SERVER, "pooled", "accuracy")}
    return {
        "mean": average,
        "weighted": mean(last, tests),
        "std": math.sqrt(sum((v - average) ** 2 for v in last.values()) / len(last)),
        "best_party": max(last, key=lambda p: last[p]),
        "worst_party": min(last, key=lambda p: last[p]),
        "per_party": {party: last.get(party) for party in tests},
        "as_of": {party: heard.get(party) for party in tests if heard.get(party) != final},
        "global": pooled.get(final),
        "unfinished": mean(unfinished[max(unfinished)]) if unfinished else None,
        "best_round": _best({t: mean(v, validations) for t, v in validation.items()}, test, tests),
        "best_on_test": _best({t: mean(v, tests) for t, v in test.items()}, test, tests),
    }


def absent(rows: Iterable[Absence]) -> dict[str, dict[str, int]]:
    """By party and way: how many calls it missed."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = found.setdefault(row.party, {})
        counts[row.how] = counts.get(row.how, 0) + 1
    return found


def _auc(rows: list[Note]) -> dict[str, Any] | None:
    """The area under the ROC curve at the end; a party whose test samples are of one class has none."""
    rows = [row for row in rows if row.metric in ("auc", "auc_micro") and row.split == "test"]
    found = {row.party: row.value for row in rows if math.isfinite(row.value)}  # who diverged has none either
    return {"mean": mean(found) if len(found) == len(rows) else None, "per_party": found} if rows else None


def _diverged(rows: list[Note]) -> list[str]:
    """The parties whose last loss is not a number, or so large that the model has run away."""
    last = {row.party: row.value for row in rows if row.metric == "loss"}
    return sorted(party for party, value in last.items() if not value < RUNAWAY)


def _newcomers(rows: list[Note]) -> dict[str, dict[str, float]]:
    """What each newcomer was offered, what it has after its warm-up, what it would have alone, and what it gained by joining."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        split, _, stage = row.split.partition("-")
        if row.metric == "accuracy" and split == "test" and stage in ("offered", "alone", "joined"):
            found[row.party][stage] = row.value
    whole = {party: got for party, got in found.items() if len(got) == 3}  # who was not heard is in the table of absences
    return {party: got | {"gain": got["joined"] - got["alone"]} for party, got in whole.items()}


def summarise(
    job: Job,
    rows: list[Note],
    absences: Iterable[Absence],
    total: Counter[str],
    made: dict[str, Any],
    seconds: dict[str, float],
) -> dict[str, Any]:
    """All that `summary.json` holds; `made` are the rounds, the steps, and remarks on how they were made."""
    parties = {p.name: p.data for p in job.parties if p.name in job.info.names}
    charged = {kind: total[kind] for kind in KINDS}
    return {
        "algorithm": job.experiment.algorithm,
        "dataset": job.experiment.data,
        "partition": job.experiment.partition,
        "parties": len(job.info.names),
        "without": list(job.experiment.without or ()),
        "seed": job.experiment.seed,
        "model": job.experiment.model,
        "metric": "accuracy",
        "accuracy": accuracy(
            rows, made["rounds"], {n: len(d.test) for n, d in parties.items()}, {n: len(d.validation) for n, d in parties.items()}
        ),
        "auc": _auc(rows),
        "newcomers": _newcomers(rows),
        "diverged": _diverged(rows),
        "absent": absent(absences),
        "bytes": charged | {"total": sum(charged.values()) - charged["eval"]},
        "seconds": {name: round(seconds.get(name, 0.0), 4) for name in ("setup", "train", "evaluate", "total")},
        **made,
    }
