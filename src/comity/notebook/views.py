"""Results, comparisons, trials, federations and datasets as a notebook shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from comity.errors import ComityError
from comity.measure import conventions
from comity.measure.caveats import caveats
from comity.metrics.metrics import ACCURACY, METRICS
from comity.notebook.html import curves, page, sentences, some, table
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
    """What a run was of, in a line."""
    parties = f"{summary['parties']} {'party' if summary['parties'] == 1 else 'parties'}"
    rounds = f"{summary['rounds']} {'round' if summary['rounds'] == 1 else 'rounds'}"
    return f"{summary['dataset']}, {summary['partition']}, {parties}, {rounds}"


def judged_by(result: Result) -> Metric:
    """What a run was judged by, known by its name from then on."""
    folder = RunFolder(result.folder)
    try:
        return metric_of(folder, folder.read_experiment())
    except ComityError:  # the folder is gone or damaged, which whoever reads its tables will hear
        name = str(result.summary.get("metric"))
        return METRICS[name] if name in METRICS or name in METRICS.custom else ACCURACY


def figure(summary: Mapping[str, Any], metric: Metric) -> str:
    """A run's mean, in words."""
    block = summary.get(metric.name) or {}
    if block.get("mean") is None:
        return f"{metric.title} {'diverged' if has_diverged(block) else 'not told by any party'}"
    return f"{metric.title} {block['mean']:.1%}"


def of_result(result: Result) -> str:
    """A run: who has what, and how it came about."""
    summary, metric = result.summary, judged_by(result)
    known = {
        name: value
        for name, value in (summary.get(metric.name) or {}).get("per_party", {}).items()
        if value is not None
    }
    ranked = sorted(known, key=lambda name: -metric.sign * known[name])
    shown, more = some(ranked)
    rows = [[name, f"{known[name]:.1%}"] for name in shown]
    if more:
        rows.insert(len(rows) // 2, [f"… {more} more", ""])
    lines = _lines(result.metrics, metric)
    sent = summary["bytes"]
    below = [
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
    return page(title, parties, curves(lines, f"Test {metric.title}"), sentences(below))


def _lines(rows: Sequence[Note], metric: Metric) -> dict[str, dict[int, float]]:
    """The mean over parties, and whoever has least at the end."""
    each = conventions.party_curves(rows, metric.name)
    worst = min(each, key=lambda name: metric.sign * each[name][max(each[name])], default=None)
    lines = {"mean over parties": conventions.curve(rows, metric=metric.name)}
    return lines | ({f"{worst}, the worst": each[worst]} if worst and len(each) > 1 else {})


def of_comparison(made: Comparison) -> str:
    """A comparison: the ranking, the answers, the curves."""
    from comity.studies.method_summary import columns
    from comity.studies.party_verdicts import format_verdicts

    first = next(iter(next(iter(made.results.values())).values()))
    metric = judged_by(first)
    several = len(made.seeds) > 1
    ranked = sorted(made.rows, key=lambda row: -row.goodness)
    lines = {
        row.algorithm: conventions.mean_curve(
            [
                conventions.curve(result.metrics, metric=metric.name)
                for result in made.results[row.algorithm].values()
            ]
        )
        for row in made.rows
    }
    seeds = f", {len(made.seeds)} seeds" if several else ""
    answers = [
        [one.partition(": ")[0], one.partition(": ")[2]] for one in format_verdicts(made.answers)
    ]
    return page(
        f"{setting(first.summary)}{seeds}",
        sentences(
            f"{question} {said}"
            for question, said in (made.overall.questions if made.overall else {}).items()
        ),
        table(*columns(row.cells(several) for row in ranked)),
        curves(lines, f"Test {metric.title}"),
        table(["party", "answer"], answers, words=2, folded=(1,)) if answers else "",
        sentences([made.reading] if answers else []),
        sentences(f"* {text}" for row in made.rows for text in row.caveats),
    )


def of_tuning(made: Tuning) -> str:
    """The trials, the best first."""
    names = list(made.trials[0].settings)
    rows = [
        [
            *(str(trial.settings[name]) for name in names),
            spread(trial.validations),
            spread(trial.tests) + " *" * bool(trial.caveats),
        ]
        for trial in made.trials
    ]
    return page(
        f"{made.algorithm}: test and validation {METRICS[made.metric].title}, best by validation"
        " first",
        table([*names, "validation", "test"], rows, words=len(names)),
        sentences([made.verdict]),
        sentences(f"* {text}" for trial in made.trials for text in trial.caveats),
    )


def of_federation(fed: Federation) -> str:
    """Parties by class counts; of which class a party has most is darkest."""
    counts = fed.counts()
    names, more = some(fed.names, 20)
    wide = 0 < fed.classes <= MOST_CLASSES
    display_name = list(fed.class_names) or [str(k) for k in range(fed.classes)]
    heads = ["party", "train", "validation", "test", *(display_name if wide else [])]
    rows, shades = [], []
    for name in names:
        data = fed.parties[name]
        mine = counts[fed.names.index(name)].tolist()
        most = max(1, *mine)
        rows.append(
            [
                name,
                *(str(len(part)) for part in (data.train, data.validation, data.test)),
                *(map(str, mine) if wide else []),
            ]
        )
        shades.append([0.0] * 4 + [0.6 * count / most for count in mine])
    kinds = f"{fed.classes} classes" if fed.classes else "a number to predict"
    below = [f"… and {more} parties between them."] if more else []
    below += ["The columns by class count training samples."] if wide else []
    return page(
        f"{fed.name}, {fed.split.partition}: {len(fed.names)} parties, samples of shape"
        f" {fed.shape}, {kinds}",
        table(heads, rows, shade=lambda r, k: shades[r][k]),
        sentences([*below, *fed.warnings]),
    )


def of_dataset(data: Dataset) -> str:
    """What is in a dataset, and how to deal it to parties."""
    display_name = list(data.class_names) or [str(k) for k in range(data.classes)]
    counts = (
        []
        if data.amounts or data.classes > MOST_CLASSES
        else torch.bincount(data.y, minlength=data.classes).tolist()
    )
    groups = [f"Natural parties by {by}: {len(group.names)}." for by, group in data.groups.items()]
    kinds = f"{data.classes} classes" if data.classes else "a number to predict"
    how = (
        f"Not yet dealt to parties: dataset.partition('{data.default_partition}', parties=10,"
        " seed=0)."
    )
    return page(
        f"{data.name}: {len(data):,} samples of shape {data.shape}, {kinds}",
        table(["class", *display_name], [["samples", *map(str, counts)]]) if counts else "",
        sentences([data.description, *groups, *data.warnings, how]),
    )
