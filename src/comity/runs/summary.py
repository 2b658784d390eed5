"""The content of `summary.json`: the main figures of a run, of each party and averaged."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from comity.core.participation import Absence
from comity.core.server import Note
from comity.errors import ComityError
from comity.metrics.metrics import ACCURACY, EXPLAINED, METRICS, Metric, metrics_for
from comity.runs.config import is_calibrated
from comity.runs.figures import by_round, carry_forward, is_figure, mean
from comity.runs.run_warnings import RunWarning, add_warnings
from comity.runs.server_run import ServerRun
from comity.runs.step_warnings import step_warnings
from comity.wire.ledger import SERVER

RUNAWAY = 1e6  # a mean cross entropy far above ln(classes), that of a guess
KINDS = ("up", "down", "peer", "setup", "eval")


def _best(
    criterion: dict[int, float], test: dict[int, dict[str, float]], sizes: dict[str, int]
) -> dict[str, Any] | None:
    """Return the first round with the highest `criterion`, and the mean test figures of that round.

    Rounds without test figures of all parties are left out; None if no round remains.
    """
    rounds = [
        t for t in criterion if len(test.get(t, ())) == len(sizes) and math.isfinite(criterion[t])
    ]
    if not rounds:
        return None
    t = max(rounds, key=lambda t: (criterion[t], -t))
    return {"round": t, "mean": mean(test[t]), "weighted": mean(test[t], sizes)}


def final_block(rows: list[Note], metric: Metric, tests: dict[str, int]) -> dict[str, Any] | None:
    """Return the block of a metric: the parties' last test figures, and their mean.

    `tests` has the number of test samples of each party. Parties without a finite figure (the
    metric is not defined, the party never reported, or its model diverged) are `missing`. If the
    model of a reporting party has diverged, the mean is None: a mean of the others would be too
    good. The block is None if no party has a figure.
    """
    test = by_round(rows, "test", metric.name)
    if not test:
        return None
    last = carry_forward(test)[max(test)]
    finite = {party: value for party, value in last.items() if math.isfinite(value)}
    average = mean(finite) if len(finite) == len(last) else None
    return {
        "mean": average,
        "weighted": None if average is None else mean(finite, tests),
        "std": None
        if average is None
        else math.sqrt(sum((v - average) ** 2 for v in finite.values()) / len(finite)),
        "best_party": max(finite, key=lambda p: metric.sign * finite[p], default=None),
        "worst_party": min(finite, key=lambda p: metric.sign * finite[p], default=None),
        "per_party": finite,
        "missing": [party for party in tests if party not in finite],
    }


def no_round_counted(summary: Mapping[str, Any]) -> bool:
    """Return whether all rounds of a run were discarded: its models are the initial ones."""
    discarded = {row["round"] for row in summary.get("discarded", summary.get("void", ()))}
    rounds = range(1, summary["rounds"] + 1)
    return len(rounds) > 0 and discarded.issuperset(rounds)


def has_diverged(block: Mapping[str, Any]) -> bool:
    """Return whether a metric's block has no mean because a model has diverged."""
    return block.get("mean") is None and "missing" in block


def over_rounds(
    rows: list[Note], metric: Metric, final: int, tests: dict[str, int], validations: dict[str, int]
) -> dict[str, Any]:
    """Return the further entries of a metric that was evaluated in all rounds.

    They are the best rounds by validation and by test samples, and more. A party that did not
    report after the last round, `final`, is in the block with its last figure, and `as_of` has the
    round of that figure. `tests` has the parties for which the metric is defined.
    """
    test = by_round(rows, "test", metric.name)
    validation = by_round(rows, "validation", metric.name)
    unfinished = by_round(rows, "test-unfinished", metric.name)
    last_round = {party: t for t in sorted(test) for party in test[t]}
    pooled = {
        row.round: row.value
        for row in rows
        if (row.party, row.split, row.metric) == (SERVER, "pooled", metric.name)
    }
    return {
        "as_of": {
            party: last_round.get(party) for party in tests if last_round.get(party) != final
        },
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
    """Return the accuracy block of a run without accuracy: all its keys, with None as values.

    Such a run predicts a number, or no party reported a figure.
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
    """Return the accuracy block, with all parties: None for a party without a figure."""
    block = final_block(rows, ACCURACY, tests)
    if block is None:
        return no_accuracy(dict.fromkeys(tests), tests)
    del block["missing"]
    block["per_party"] = {party: block["per_party"].get(party) for party in tests}
    return block | over_rounds(rows, ACCURACY, final, tests, validations)


def _other_metrics(
    job: ServerRun, rows: list[Note], final: int, tests: dict[str, int], validations: dict[str, int]
) -> dict[str, Any]:
    """Return the blocks of all other metrics that fit; that of micro AUC is called `auc`, too."""
    all_blocks: dict[str, Any] = {}
    # The metric of the run may be a custom one.
    for metric in dict.fromkeys([*metrics_for(job.info.task.classes), job.metric]):
        block = None if metric is ACCURACY else final_block(rows, metric, tests)
        if block and metric is job.metric:
            # A site policy may have changed since the party said for which splits it is defined.
            with_figure = {row.party for row in rows if is_figure(row, metric=metric.name)}
            with_figure.update(job.parties_with_metric("test"))
            test_counts = {party: count for party, count in tests.items() if party in with_figure}
            block |= over_rounds(rows, metric, final, test_counts, validations)
        all_blocks["auc" if metric.name == "auc_micro" else metric.name] = block
    all_blocks.pop(ACCURACY.name, None)
    return all_blocks


def count_absences(rows: Iterable[Absence]) -> dict[str, dict[str, int]]:
    """Return how many calls each party missed, by the kind of absence."""
    by_party: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = by_party.setdefault(row.party, {})
        counts[row.how] = counts.get(row.how, 0) + 1
    return by_party


def _diverged(rows: list[Note]) -> list[str]:
    """Return the parties whose last loss is not finite, or at least `RUNAWAY`."""
    last = {row.party: row.value for row in rows if row.metric == "loss"}
    return sorted(party for party, value in last.items() if not value < RUNAWAY)


def _newcomers(rows: list[Note], metric: str) -> dict[str, dict[str, float]]:
    """Return each newcomer's figures by a metric, and its gain by joining.

    The figures are of the model that it was offered, of training alone, and after its warm-up.
    """
    stages: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        split, _, stage = row.split.partition("-")
        if row.metric == metric and split == "test" and stage in ("offered", "alone", "joined"):
            stages[row.party][stage] = row.value
    # A newcomer that missed a call is in the table of absences.
    return {
        party: figures | {"gain": figures["joined"] - figures["alone"]}
        for party, figures in stages.items()
        if len(figures) == 3
    }


def blocks(summary: Mapping[str, Any]) -> list[tuple[Metric, dict[str, Any]]]:
    """Return the metrics that a summary has blocks of, with these blocks.

    Summaries of earlier versions have fewer metrics.
    """
    two_classes = "sensitivity" in summary  # then `auc` is no micro average
    keys = {
        metric: metric.name
        for metric in METRICS.values()
        if metric.name not in ("auc", "auc_micro")
    }
    keys[METRICS["auc" if two_classes else "auc_micro"]] = "auc"
    if (custom := METRICS.custom.get(str(summary.get("metric")))) is not None:
        keys[custom] = custom.name
    return [(metric, summary[key]) for metric, key in keys.items() if summary.get(key)]


def summarise(
    job: ServerRun,
    rows: list[Note],
    absences: Iterable[Absence],
    total: Counter[str],
    course: dict[str, Any],
    seconds: dict[str, float],
    warnings: Iterable[RunWarning] = (),
    *,
    needs_figures: bool = True,
) -> dict[str, Any]:
    """Return the content of `summary.json`.

    Args:
        job: The run.
        rows: The rows of metrics.csv.
        absences: The rows of absences.csv.
        total: The bytes by kind.
        course: The entries about the course of the run: rounds, steps and others.
        seconds: The time by phase.
        warnings: The warnings during the run. Those before it and those about its steps are added
            here, and the callers add others after it, which depend on how the run was concluded.
        needs_figures: Raise ComityError if no party reported a figure of its test samples.
    """
    parties = job.initial_party_infos
    charged = {kind: total[kind] for kind in KINDS}
    tests = {name: info.test for name, info in parties.items()}
    validations = {name: info.validation for name, info in parties.items()}
    others = _other_metrics(job, rows, course["rounds"], tests, validations)
    classes, precision = job.info.task.classes, job.experiment.precision
    main = ACCURACY if classes else EXPLAINED
    if needs_figures and not any(is_figure(row, metric=main.name) for row in rows):
        raise ComityError("No party reported a figure of its test samples, so there is no summary.")
    if classes:
        accuracy_block = accuracy(rows, course["rounds"], tests, validations)
    else:
        explained = others[EXPLAINED.name]
        as_of = explained["as_of"] if explained else dict.fromkeys(tests)
        accuracy_block = no_accuracy(as_of, tests)
    summary: dict[str, Any] = {
        "algorithm": job.experiment.algorithm,
        "dataset": job.experiment.data,
        "partition": job.experiment.partition,
        "parties": len(job.info.names),
        "without": list(job.experiment.without or ()),
        "seed": job.experiment.seed,
        "model": job.experiment.model,
        "metric": job.metric.name,
        **({"precision": precision} if precision != "float32" else {}),
        **({"calibrate": job.experiment.calibrate} if is_calibrated(job.experiment) else {}),
        "accuracy": accuracy_block,
        **others,
        "newcomers": _newcomers(rows, main.name),
        "diverged": _diverged(rows),
        "classes": list(job.class_names),
        "too_few": [name for name, info in parties.items() if info.too_few],
        "absent": count_absences(absences),
        "bytes": charged | {"total": sum(charged.values()) - charged["eval"]},
        "seconds": {
            name: round(seconds.get(name, 0.0), 4)
            for name in ("setup", "train", "evaluate", "total")
        },
        **course,
    }
    if "server_steps" in course:  # a site counts its own steps only
        summary["plain_steps"] = job.cost.plain_steps(course["rounds"])
        summary["party_rounds"] = job.cost.party_rounds(course["rounds"])
    if job.context.initial_weights:
        summary["initial_weights"] = [start.entry for start in job.context.initial_weights]
    before = [RunWarning("before", text) for text in job.method_warnings()]
    after = [RunWarning("after", text) for text in step_warnings(summary)]
    add_warnings(summary, [*before, *warnings, *after])
    return summary
