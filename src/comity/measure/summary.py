"""`summary.json`: a run in a few figures. Every party is kept; means are named by how they are
taken.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from comity.core.participation import Absence
from comity.core.server import Note
from comity.errors import ComityError
from comity.measure.figures import by_round, carried, is_figure, mean
from comity.metrics.metrics import ACCURACY, EXPLAINED, METRICS, Metric, fitting
from comity.wire.ledger import SERVER

if TYPE_CHECKING:
    from comity.runs.server_run import ServerRun

RUNAWAY = 1e6  # a mean cross entropy, of which ln(classes) is what a guess costs
KINDS = ("up", "down", "peer", "setup", "eval")


def _best(
    chooser: dict[int, float], test: dict[int, dict[str, float]], sizes: dict[str, int]
) -> dict[str, Any] | None:
    """The first round that is best by `chooser`, and the test figures there; rounds in which not
    all were heard are left out.
    """
    rounds = [
        t for t in chooser if len(test.get(t, ())) == len(sizes) and math.isfinite(chooser[t])
    ]
    if not rounds:
        return None
    t = max(rounds, key=lambda t: (chooser[t], -t))
    return {"round": t, "mean": mean(test[t]), "weighted": mean(test[t], sizes)}


def at_the_end(rows: list[Note], metric: Metric, tests: dict[str, int]) -> dict[str, Any] | None:
    """The block of a metric: parties' last figures on their test samples, in one; None if nobody
    has any.

    `tests` are the parties and their test samples. Who has no figure (no sample of a class, never
    heard, diverged) is `missing`; if one that was heard has diverged there is no mean, as a mean of
    the others would flatter.
    """
    test = by_round(rows, "test", metric.name)
    if not test:
        return None
    last = carried(test)[max(test)]
    known = {party: value for party, value in last.items() if math.isfinite(value)}
    average = mean(known) if len(known) == len(last) else None
    return {
        "mean": average,
        "weighted": None if average is None else mean(known, tests),
        "std": None
        if average is None
        else math.sqrt(sum((v - average) ** 2 for v in known.values()) / len(known)),
        "best_party": max(known, key=lambda p: metric.sign * known[p], default=None),
        "worst_party": min(known, key=lambda p: metric.sign * known[p], default=None),
        "per_party": known,
        "missing": [party for party in tests if party not in known],
    }


def has_diverged(block: Mapping[str, Any]) -> bool:
    """Whether a metric's block has no mean because of a model that has diverged, not for want of
    figures.
    """
    return block.get("mean") is None and "missing" in block


def over_rounds(
    rows: list[Note], metric: Metric, final: int, tests: dict[str, int], validations: dict[str, int]
) -> dict[str, Any]:
    """What else is told of a metric that was asked for in all rounds: the best of them by
    validation and by test samples.

    A party that was not heard after the last round, `final`, stands in the block with its last
    figure, and `as_of` says of which round that is. `tests` are those who can have a figure.
    """
    test = by_round(rows, "test", metric.name)
    validation = by_round(rows, "validation", metric.name)
    unfinished = by_round(rows, "test-unfinished", metric.name)
    heard = {party: t for t in sorted(test) for party in test[t]}
    pooled = {
        row.round: row.value
        for row in rows
        if (row.party, row.split, row.metric) == (SERVER, "pooled", metric.name)
    }
    return {
        "as_of": {party: heard.get(party) for party in tests if heard.get(party) != final},
        "global": pooled.get(final),
        "unfinished": _finite(mean(unfinished[max(unfinished)])) if unfinished else None,
        "best_round": _best(
            {t: metric.sign * mean(v, validations) for t, v in validation.items()}, test, tests
        ),
        "best_on_test": _best(
            {t: metric.sign * mean(v, tests) for t, v in test.items()}, test, tests
        ),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def no_accuracy(as_of: Mapping[str, int | None], tests: Iterable[str]) -> dict[str, Any]:
    """The accuracy block of a run without one: it has all names that one has, and no figures.

    That is a run that predicts a number, or one in which no party told a figure.
    """
    names = (
        "mean",
        "weighted",
        "std",
        "best_party",
        "worst_party",
        "global",
        "unfinished",
        "best_round",
        "best_on_test",
    )
    return dict.fromkeys(names) | {"per_party": dict.fromkeys(tests), "as_of": dict(as_of)}


def accuracy(
    rows: list[Note], final: int, tests: dict[str, int], validations: dict[str, int]
) -> dict[str, Any]:
    """The accuracy block, in which everybody stands: who has no figure with None."""
    block = at_the_end(rows, ACCURACY, tests)
    if block is None:
        return no_accuracy(dict.fromkeys(tests), tests)
    del block["missing"]
    block["per_party"] = {party: block["per_party"].get(party) for party in tests}
    return block | over_rounds(rows, ACCURACY, final, tests, validations)


def _beside_accuracy(
    job: ServerRun, rows: list[Note], final: int, tests: dict[str, int], validations: dict[str, int]
) -> dict[str, Any]:
    """The blocks of all other metrics that fit; that of AUC has one name, however many classes
    there are.
    """
    found: dict[str, Any] = {}
    for metric in dict.fromkeys(
        [*fitting(job.info.task.classes), job.metric]
    ):  # which may be the user's own
        block = None if metric is ACCURACY else at_the_end(rows, metric, tests)
        if block and metric is job.metric:
            # A site's policy may have changed since it said whether its samples have a figure.
            with_figure = {row.party for row in rows if is_figure(row, metric=metric.name)}
            with_figure.update(job.judged("test"))
            judged = {party: count for party, count in tests.items() if party in with_figure}
            block |= over_rounds(rows, metric, final, judged, validations)
        found["auc" if metric.name == "auc_micro" else metric.name] = block
    found.pop(ACCURACY.name, None)
    return found


def absent(rows: Iterable[Absence]) -> dict[str, dict[str, int]]:
    """By party and way: how many calls it missed."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = found.setdefault(row.party, {})
        counts[row.how] = counts.get(row.how, 0) + 1
    return found


def _diverged(rows: list[Note]) -> list[str]:
    """The parties whose last loss is not a number, or so large that the model has run away."""
    last = {row.party: row.value for row in rows if row.metric == "loss"}
    return sorted(party for party, value in last.items() if not value < RUNAWAY)


def _newcomers(rows: list[Note], metric: str) -> dict[str, dict[str, float]]:
    """What each newcomer was offered, what it has after its warm-up, what it would have alone, and
    what it gained by joining.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        split, _, stage = row.split.partition("-")
        if row.metric == metric and split == "test" and stage in ("offered", "alone", "joined"):
            found[row.party][stage] = row.value
    whole = {
        party: got for party, got in found.items() if len(got) == 3
    }  # who was not heard is in the table of absences
    return {party: got | {"gain": got["joined"] - got["alone"]} for party, got in whole.items()}


def blocks(summary: Mapping[str, Any]) -> list[tuple[Metric, dict[str, Any]]]:
    """The metrics of which a summary has figures, with their blocks; runs of earlier versions have
    fewer.
    """
    two = "sensitivity" in summary  # whose AUC is no micro average
    keys = {
        metric: metric.name
        for metric in METRICS.values()
        if metric.name not in ("auc", "auc_micro")
    }
    keys[METRICS["auc" if two else "auc_micro"]] = "auc"
    if (chosen := METRICS.own.get(str(summary.get("metric")))) is not None:
        keys[chosen] = chosen.name
    return [(metric, summary[key]) for metric, key in keys.items() if summary.get(key)]


def summarise(
    job: ServerRun,
    rows: list[Note],
    absences: Iterable[Absence],
    total: Counter[str],
    made: dict[str, Any],
    seconds: dict[str, float],
    needs_figures: bool = True,
) -> dict[str, Any]:
    """All that `summary.json` holds; `made` are the rounds, the steps, and remarks on how they were
    made.

    With `needs_figures`, raises `ComityError` if no party told a figure of its test samples.
    """
    parties = job.initial_party_infos
    charged = {kind: total[kind] for kind in KINDS}
    tests = {name: said.test for name, said in parties.items()}
    validations = {name: said.validation for name, said in parties.items()}
    others = _beside_accuracy(job, rows, made["rounds"], tests, validations)
    classes = job.info.task.classes
    main = ACCURACY if classes else EXPLAINED
    if needs_figures and not any(is_figure(row, metric=main.name) for row in rows):
        raise ComityError("No party was ever heard, or told a figure: there is nothing to sum up.")
    if classes:
        right = accuracy(rows, made["rounds"], tests, validations)
    else:
        explained = others[EXPLAINED.name]
        right = no_accuracy(explained["as_of"] if explained else dict.fromkeys(tests), tests)
    return {
        "algorithm": job.experiment.algorithm,
        "dataset": job.experiment.data,
        "partition": job.experiment.partition,
        "parties": len(job.info.names),
        "without": list(job.experiment.without or ()),
        "seed": job.experiment.seed,
        "model": job.experiment.model,
        "metric": job.metric.name,
        "accuracy": right,
        **others,
        "newcomers": _newcomers(rows, main.name),
        "diverged": _diverged(rows),
        "classes": list(job.class_names),
        "cautions": job.method_warnings(),
        "too_few": [name for name, said in parties.items() if said.too_few],
        "absent": absent(absences),
        "bytes": charged | {"total": sum(charged.values()) - charged["eval"]},
        "seconds": {
            name: round(seconds.get(name, 0.0), 4)
            for name in ("setup", "train", "evaluate", "total")
        },
        **made,
    }
