"""Comparisons by cross-validation: the runs of all folds become one result per repeat.

Under `test=folds(K)`, the seeds of a repeat are K consecutive seeds, and each tests on another fold
(see `comity.data.protocols.Folds`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comity.data import Federation
from comity.errors import UsageError
from comity.measure.cross_validation import FoldRun, cross_validated_gains, pooled_figures
from comity.measure.gain import Gain
from comity.metrics.metrics import ACCURACY, METRICS, Metric, has_too_few
from comity.names import OWN_MODELS
from comity.privacy.account import read_epsilon
from comity.runs.caveats import one_class, one_class_in_folds
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import RunWarning, read_warnings
from comity.runs.summary import no_round_counted
from comity.studies.party_verdicts import Parties, SampleCounts

BLOCKS = ("accuracy", "r2")
"""The blocks of a summary that every comparison uses, beside that of the chosen metric."""
SMALL_PARTY = 400
"""Tables in which a party has fewer samples are compared by cross-validation by default."""
DEFAULT_FOLDS = 5


def default_folds(federation: Federation) -> tuple[int, str]:
    """Return the number of folds with which these data are compared if nobody chose one, and a
    sentence that says why: 5 for small tables, otherwise 1 and an empty sentence.
    """
    smallest = min(
        len(p.train) + len(p.validation) + len(p.test) for p in federation.parties.values()
    )
    if federation.schema is None or not DEFAULT_FOLDS <= smallest < SMALL_PARTY:
        return 1, ""
    return DEFAULT_FOLDS, (
        f"Small tables (a party has {smallest} rows): {DEFAULT_FOLDS}-fold cross-validation, so"
        f" that every row is tested on once. It takes {DEFAULT_FOLDS} runs of each method;"
    )


def fold_seeds(folds: int, repeats: int, first: int = 0) -> list[int]:
    """Return the seeds of cross-validation, from repeat `first` on.

    Examples:
        >>> fold_seeds(3, repeats=2)
        [0, 1, 2, 3, 4, 5]
    """
    return list(range(first * folds, (first + repeats) * folds))


def check_seeds(seeds: Sequence[int], folds: int) -> None:
    """Raise UsageError if the seeds do not test on every fold of each repeat."""
    repeats = {seed // folds for seed in seeds}
    missing = sorted({seed for r in repeats for seed in fold_seeds(folds, 1, r)} - set(seeds))
    if missing:
        raise UsageError(
            f"With {folds} folds, seed s tests on fold s mod {folds}, and every fold is needed:"
            f" seed {missing[0]} is missing. Use --folds {folds} and --repeats in place of --test"
            " and --seeds."
        )


def by_repeat(seeds: Iterable[int], folds: int) -> dict[int, list[int]]:
    """Return the seeds of each repeat, by its first seed."""
    repeats: dict[int, list[int]] = {}
    for seed in sorted(seeds):
        repeats.setdefault(seed // folds * folds, []).append(seed)
    return repeats


def read_fold_runs(folders: Mapping[int, Path]) -> list[FoldRun]:
    """Read the predictions of finished runs, whose folders are given by seed."""
    return [
        FoldRun(
            seed,
            RunFolder(folder).read_answers(),
            {name: part.test for name, part in RunFolder(folder).read_split().parties.items()},
        )
        for seed, folder in folders.items()
    ]


def pool_parties(parties: Mapping[int, Parties], folds: int) -> dict[int, Parties]:
    """Return the parties of each repeat. Their test samples are those of all folds."""
    pooled = {}
    for first, seeds in by_repeat(parties, folds).items():
        of_repeat = [parties[seed] for seed in seeds]
        names = [n for n in of_repeat[0].counts if all(n in fold.counts for fold in of_repeat)]
        counts = {name: _pool_counts([fold.counts[name] for fold in of_repeat]) for name in names}
        pooled[first] = Parties(counts, of_repeat[0].shares, of_repeat[0].class_names)
    return pooled


def _pool_counts(counts: Sequence[SampleCounts]) -> SampleCounts:
    return SampleCounts(
        tuple(round(statistics.fmean(n)) for n in zip(*(c.train for c in counts), strict=True)),
        tuple(sum(n) for n in zip(*(c.test for c in counts), strict=True)),
        any(c.too_few for c in counts),
        any(c.withheld for c in counts),
    )


def find_too_few(parties: Mapping[int, Parties], metric: Metric) -> dict[int, list[str]]:
    """Return the parties with too few samples in all folds together, by repeat."""
    return {
        first: [
            name
            for name, counts in of_repeat.counts.items()
            if counts.too_few or has_too_few(counts.test, metric)
        ]
        for first, of_repeat in parties.items()
    }


def pool_summaries(
    summaries: Sequence[Mapping[str, Any]],
    runs: Sequence[FoldRun],
    too_few: Mapping[int, Collection[str]],
    folds: int,
    metric: Metric,
) -> list[dict[str, Any]]:
    """Return one summary of a method per repeat, with the figures of all folds together.

    Args:
        summaries: The summaries of all runs.
        runs: The predictions of the same runs.
        too_few: The parties with too few samples, by repeat.
        folds: The number of folds.
        metric: The metric of the comparison.
    """
    by_seed = {summary["seed"]: summary for summary in summaries}
    trained = not any(map(no_round_counted, summaries))
    amounts = any(answers.amounts for answers in runs[0].answers.values())
    # Where the label is a number, the block of accuracy has no figures.
    names = {metric.name, *BLOCKS} - ({ACCURACY.name} if amounts else set())
    figures = {
        name: pooled_figures(runs, folds, METRICS[name])
        for name in names
        if trained and by_seed[runs[0].seed].get(name)
    }
    pooled = []
    for k, (first, seeds) in enumerate(by_repeat(by_seed, folds).items()):
        of_repeat = [by_seed[seed] for seed in seeds]
        blocks = {name: _block(values[k]) for name, values in figures.items()}
        more = {"seed": first, "repeat": k + 1, "too_few": list(too_few.get(first, ()))}
        pooled.append({**of_repeat[0], **blocks, **_costs(of_repeat), **more})
    return pooled


def _block(figures: Mapping[str, float]) -> dict[str, Any]:
    """Return the parties' figures as a block of a summary; their mean is None if a model has
    diverged.
    """
    complete = figures and all(map(math.isfinite, figures.values()))
    return {
        "mean": statistics.fmean(figures.values()) if complete else None,
        "per_party": {name: v if math.isfinite(v) else None for name, v in figures.items()},
    }


def _costs(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a run costs, in the mean over folds, its rounds, and all warnings."""
    kinds = summaries[0]["bytes"]
    privacy = [block for summary in summaries if (block := summary.get("privacy"))]
    return {
        "bytes": {
            kind: statistics.fmean(summary["bytes"].get(kind, 0) for summary in summaries)
            for kind in kinds
        },
        "seconds": {"total": sum(summary["seconds"]["total"] for summary in summaries)},
        **{
            name: statistics.fmean(summary[name] for summary in summaries)
            for name in ("steps", "server_steps")
            if all(name in summary for summary in summaries)
        },
        "rounds": max(summary["rounds"] for summary in summaries),
        "warnings": [asdict(warning) for warning in _warnings(summaries)],
        "newcomers": {k: v for summary in summaries for k, v in summary["newcomers"].items()},
        "privacy": max(privacy, key=lambda block: read_epsilon(block["epsilon"]), default=None),
    }


def _warnings(summaries: Sequence[Mapping[str, Any]]) -> list[RunWarning]:
    """Return the warnings of all folds. Those on classes that are never predicted are one."""
    of_folds = {text for summary in summaries for text in one_class(summary)}
    warnings = [warning for summary in summaries for warning in read_warnings(summary)]
    unique = dict.fromkeys(warning for warning in warnings if warning.text not in of_folds)
    if summaries[0]["algorithm"] in OWN_MODELS:  # the advice is for methods
        return list(unique)
    return [*unique, *(RunWarning("after", text) for text in one_class_in_folds(summaries))]


def pooled_gains(
    now: Sequence[FoldRun], before: Sequence[FoldRun], folds: int, metric: Metric, same: bool
) -> dict[int, list[Gain]]:
    """Return the parties' gains of one method over another.

    Where parties are the `same` in all repeats, these are pooled under the first seed. Otherwise
    there is one entry per repeat.
    """
    seeds_of_all = [run.seed for run in now]
    groups = {min(seeds_of_all): seeds_of_all} if same else by_repeat(seeds_of_all, folds)
    return {
        key: cross_validated_gains(
            [run for run in now if run.seed in seeds],
            [run for run in before if run.seed in seeds],
            folds,
            metric,
        )
        for key, seeds in groups.items()
    }
