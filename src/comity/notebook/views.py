"""HTML views of results, comparisons and tunings, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from comity.charts.curves import Curves
from comity.core.server import Note
from comity.html import page, sentences, shorten, table, view
from comity.measure import conventions
from comity.metrics.metrics import METRICS, Metric
from comity.notebook.pictures import show_curves
from comity.runs.description import chosen_metric, figure, setting
from comity.runs.result import Result
from comity.runs.run_warnings import warning_texts
from comity.studies.finished import Comparison, Tuning
from comity.studies.method_summary import columns, optional_columns
from comity.studies.party_verdicts import format_verdicts
from comity.units import duration, size, spread


@view.register
def view_result(result: Result) -> str:
    """Return the view of a run: the parties' figures, the curve, the costs and the warnings."""
    summary, metric = result.summary, chosen_metric(result.folder, result.summary)
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
    traffic = summary["bytes"]
    details = [
        (
            f"up {size(traffic['up'])}, down {size(traffic['down'])}, peer {size(traffic['peer'])},"
            f" {summary['steps']:,} steps, {duration(summary['seconds']['total'])}."
        ),
        *warning_texts(summary, "during", "after"),
    ]
    title = (
        f"{summary['algorithm']}: {figure(summary, metric)} (mean over parties); {setting(summary)}"
    )
    parties = table(["party", f"test {metric.title}"], rows)
    chart = show_curves(Curves(f"Test {metric.title}", lines))
    return page(title, parties, chart, sentences(details))


def _lines(rows: Sequence[Note], metric: Metric) -> dict[str, dict[int, float]]:
    """Return the curves of the mean over parties and of the party that is worst at the end."""
    lines = {"mean over parties": conventions.curve(rows, metric=metric.name)}
    by_party = conventions.party_curves(rows, metric.name)
    if len(by_party) > 1:
        final = {name: metric.sign * line[max(line)] for name, line in by_party.items()}
        worst = min(final, key=lambda name: final[name])
        lines[f"{worst}, the worst"] = by_party[worst]
    return lines


@view.register
def view_comparison(comparison: Comparison) -> str:
    """Return the view of a comparison: the answers, the ranking and the curves."""
    first = next(iter(next(iter(comparison.results.values())).values()))
    metric = chosen_metric(first.folder, first.summary)
    several = comparison.findings.repeats > 1
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
    phrase = comparison.findings.runs_phrase
    seeds = f", {phrase}" if phrase else ""
    questions = comparison.overall.questions if comparison.overall else {}
    answers = []
    for line in format_verdicts(comparison.answers):
        party, _, text = line.partition(": ")
        answers.append([party, text])
    return page(
        f"{setting(first.summary)}{seeds}",
        sentences(f"{question} {reply}" for question, reply in questions.items()),
        table(*columns(row.cells(several, optional_columns(ranked)) for row in ranked)),
        show_curves(Curves(f"Test {metric.title}", lines)),
        table(["party", "answer"], answers, words=2, folded=(1,)) if answers else "",
        sentences([comparison.reading] if answers else []),
        sentences(f"* {text}" for row in comparison.rows for text in row.caveats),
        sentences(warning.text for warning in comparison.findings.warnings),
    )


@view.register
def view_tuning(tuning: Tuning) -> str:
    """Return the view of a tuning: its trials, the best first."""
    names = list(tuning.trials[0].settings)
    rows = [
        [
            *(str(trial.settings[name]) for name in names),
            spread(trial.validations),
            spread(trial.tests) + " *" * bool(trial.caveats),
            f"{trial.mean_steps:,.0f}",
        ]
        for trial in tuning.trials
    ]
    title = METRICS[tuning.metric].title
    return page(
        f"{tuning.algorithm}: test and validation {title}, best by validation first",
        table([*names, "validation", "test", "steps"], rows, words=len(names)),
        sentences(filter(None, [tuning.verdict, tuning.result.unequal_steps])),
        sentences(f"* {text}" for trial in tuning.trials for text in trial.caveats),
    )
