"""HTML views of results, comparisons, tunings, federations and datasets, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from comity.errors import ComityError
from comity.measure import conventions
from comity.measure.caveats import caveats
from comity.metrics.metrics import ACCURACY, METRICS
from comity.notebook.html import curves, page, sentences, shorten, table
from comity.runs.folder import RunFolder
from comity.runs.run_metric import metric_of
from comity.runs.summary import has_diverged
from comity.units import duration, size, spread

if TYPE_CHECKING:
    from comity.core.server import Note
    from comity.data import Dataset, Federation
    from comity.metrics.metrics import Metric
    from comity.runs.result import Result
    from comity.studies.finished import Comparison, Tuning

MOST_CLASSES = 20


def setting(summary: Mapping[str, Any]) -> str:
    """Return a run's setting in one line: data, partition, parties and rounds."""
    parties = f"{summary['parties']} {'party' if summary['parties'] == 1 else 'parties'}"
    rounds = f"{summary['rounds']} {'round' if summary['rounds'] == 1 else 'rounds'}"
    return f"{summary['dataset']}, {summary['partition']}, {parties}, {rounds}"


def chosen_metric(result: Result) -> Metric:
    """Return the metric that a run chose."""
    folder = RunFolder(result.folder)
    try:
        return metric_of(folder, folder.read_experiment())
    except ComityError:  # the folder is missing or damaged; reading its tables will say so
        name = str(result.summary.get("metric"))
        return METRICS[name] if name in METRICS or name in METRICS.custom else ACCURACY


def figure(summary: Mapping[str, Any], metric: Metric) -> str:
    """Return the name and the mean of a run's metric, or why it has none."""
    block = summary.get(metric.name) or {}
    if block.get("mean") is None:
        return (
            f"{metric.title} {'diverged' if has_diverged(block) else 'not reported by any party'}"
        )
    return f"{metric.title} {block['mean']:.1%}"


def of_result(result: Result) -> str:
    """Return the view of a run: the parties' figures, the curve, the costs and the warnings."""
    summary, metric = result.summary, chosen_metric(result)
    figures = {
        name: value
        for name, value in (summary.get(metric.name) or {}).get("per_party", {}).items()
        if value is not None
    }
    ranked = sorted(figures, key=lambda name: -metric.sign * figures[name])
    names, more = shorten(ranked)
    rows = [[name, f"{figures[name]:.1%}"] for name in names]
    if more:
        rows.insert(len(rows) // 2, [f"… {more} more", ""])
    lines = _lines(result.metrics, metric)
    sent = summary["bytes"]
    details = [
        (
            f"up {size(sent['up'])}, down {size(sent['down'])}, peer {size(sent['peer'])},"
            f" {summary['steps']:,} steps, {duration(summary['seconds']['total'])}."
        ),
        *summary.get("remarks", ()),
        *caveats(summary),
    ]
    title = (
        f"{summary['algorithm']}: {figure(summary, metric)} (mean over parties); {setting(summary)}"
    )
    parties = table(["party", f"test {metric.title}"], rows)
    return page(title, parties, curves(lines, f"Test {metric.title}"), sentences(details))


def _lines(rows: Sequence[Note], metric: Metric) -> dict[str, dict[int, float]]:
    """Return the curves of the mean over parties and of the party that is worst at the end."""
    lines = {"mean over parties": conventions.curve(rows, metric=metric.name)}
    by_party = conventions.party_curves(rows, metric.name)
    if len(by_party) > 1:
        final = {name: metric.sign * line[max(line)] for name, line in by_party.items()}
        worst = min(final, key=lambda name: final[name])
        lines[f"{worst}, the worst"] = by_party[worst]
    return lines


def of_comparison(comparison: Comparison) -> str:
    """Return the view of a comparison: the answers, the ranking and the curves."""
    from comity.studies.method_summary import columns
    from comity.studies.party_verdicts import format_verdicts as verdict_lines

    first = next(iter(next(iter(comparison.results.values())).values()))
    metric = chosen_metric(first)
    several = len(comparison.seeds) > 1
    ranked = sorted(comparison.rows, key=lambda row: -row.goodness)
    lines = {
        row.algorithm: conventions.mean_curve(
            [
                conventions.curve(result.metrics, metric=metric.name)
                for result in comparison.results[row.algorithm].values()
            ]
        )
        for row in comparison.rows
    }
    seeds = f", {len(comparison.seeds)} seeds" if several else ""
    questions = comparison.overall.questions if comparison.overall else {}
    answers = []
    for line in verdict_lines(comparison.answers):
        party, _, text = line.partition(": ")
        answers.append([party, text])
    return page(
        f"{setting(first.summary)}{seeds}",
        sentences(f"{question} {reply}" for question, reply in questions.items()),
        table(*columns(row.cells(several) for row in ranked)),
        curves(lines, f"Test {metric.title}"),
        table(["party", "answer"], answers, words=2, folded=(1,)) if answers else "",
        sentences([comparison.reading] if answers else []),
        sentences(f"* {text}" for row in comparison.rows for text in row.caveats),
    )


def of_tuning(tuning: Tuning) -> str:
    """Return the view of a tuning: its trials, the best first."""
    names = list(tuning.trials[0].settings)
    rows = [
        [
            *(str(trial.settings[name]) for name in names),
            spread(trial.validations),
            spread(trial.tests) + " *" * bool(trial.caveats),
        ]
        for trial in tuning.trials
    ]
    title = METRICS[tuning.metric].title
    return page(
        f"{tuning.algorithm}: test and validation {title}, best by validation first",
        table([*names, "validation", "test"], rows, words=len(names)),
        sentences([tuning.verdict]),
        sentences(f"* {text}" for trial in tuning.trials for text in trial.caveats),
    )


def of_federation(fed: Federation) -> str:
    """Return the view of a federation: the parties' class counts, shaded by the largest class."""
    counts = fed.counts()
    names, more = shorten(fed.names, 20)
    by_class = 0 < fed.classes <= MOST_CLASSES
    class_names = list(fed.class_names) or [str(k) for k in range(fed.classes)]
    heads = ["party", "train", "validation", "test", *(class_names if by_class else [])]
    rows, shades = [], []
    for name in names:
        data = fed.parties[name]
        party_counts = counts[fed.names.index(name)].tolist()
        most = max(1, *party_counts)
        sizes = [str(len(part)) for part in (data.train, data.validation, data.test)]
        rows.append([name, *sizes, *(map(str, party_counts) if by_class else [])])
        shades.append([0.0] * 4 + [0.6 * count / most for count in party_counts])
    label = f"{fed.classes} classes" if fed.classes else "a number to predict"
    details = [f"… and {more} parties between them."] if more else []
    details += ["The columns by class count training samples."] if by_class else []
    return page(
        f"{fed.name}, {fed.split.partition}: {len(fed.names)} parties, samples of shape"
        f" {fed.shape}, {label}",
        table(heads, rows, shade=lambda r, k: shades[r][k]),
        sentences([*details, *fed.warnings]),
    )


def of_dataset(data: Dataset) -> str:
    """Return the view of a dataset: its classes and groups, and how to partition it."""
    class_names = list(data.class_names) or [str(k) for k in range(data.classes)]
    counts = (
        []
        if data.amounts or data.classes > MOST_CLASSES
        else torch.bincount(data.y, minlength=data.classes).tolist()
    )
    groups = [f"Natural parties by {by}: {len(group.names)}." for by, group in data.groups.items()]
    label = f"{data.classes} classes" if data.classes else "a number to predict"
    next_step = f"Not yet split between parties: dataset.partition('{data.default_partition}', parties=10, seed=0)."
    return page(
        f"{data.name}: {len(data):,} samples of shape {data.shape}, {label}",
        table(["class", *class_names], [["samples", *map(str, counts)]]) if counts else "",
        sentences([data.description, *groups, *data.warnings, next_step]),
    )
