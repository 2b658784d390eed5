"""Methods over several federations: wins, ties and losses, and a critical-difference diagram."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

from comity.charts.chart import Chart
from comity.charts.critical_difference import critical_difference_diagram
from comity.measure.mean_ranks import (
    ALPHA,
    FEWEST_FEDERATIONS,
    FEWEST_METHODS,
    MeanRanks,
    mean_ranks,
)
from comity.metrics.metrics import ACCURACY
from comity.reporting.blocks import Block, Table, Text
from comity.reporting.gather import Method, RunGroup
from comity.reporting.labels import Labels, method_label
from comity.reporting.sections.answer import difference_between
from comity.studies.method_summary import figure_of
from comity.text import join_names

MOST_BOOTSTRAPS = 100
"""The most bootstrap intervals that a page is worth: some ten seconds."""
NO_DIAGRAM = "There is no critical-difference diagram: "
ONE_LABEL = (
    " A method that has other settings in each federation counts as one if it has a label:"
    " comity report DIR --label fedper=FedPer"
)


def over_federations(groups: Sequence[RunGroup], labels: Labels) -> list[Block]:
    """Return what several federations say together; nothing, if they have no methods in common."""
    if len(groups) < 2 or any(group.site for group in groups):
        return []
    by_label = _methods_by_label(groups, labels)
    shared = [set(one) & set(other) for one, other in combinations(by_label, 2)]
    if not any(len(names) > 1 for names in shared):
        return []
    diagram = critical_difference(groups, labels)
    if sum(map(_count_bootstraps, groups)) > MOST_BOOTSTRAPS:
        words = (
            "Wins, ties and losses between methods are not on this page, as their intervals take"
            " long to compute for metrics other than accuracy. Print them with: comity report DIR"
            " --wins"
        )
        return [Text(words, "missing"), diagram]
    table = win_matrix(groups, labels)
    return [table, Text(win_reading(table)), diagram]


def _count_bootstraps(group: RunGroup) -> int:
    """Return how many intervals of single parties need a bootstrap, to compare all methods."""
    if group.metric is ACCURACY:  # its interval has a closed form
        return 0
    parties = sum(len(run.amounts) for run in group.methods[0].runs)
    methods = [method for method in group.methods if not method.of_scikit_learn]
    return _count_pairs(len(methods)) * parties


def win_matrix(groups: Sequence[RunGroup], labels: Labels) -> Table:
    """Return how often each method (row) is clearly better than each other one (column), not
    clearly different, and clearly worse, over groups: federations that methods were compared on.

    Differences are means over parties, paired over test samples, with 95% intervals that are
    Bonferroni-corrected for all pairs of methods. Methods with one label count as one: a method
    may have other settings in each federation.
    """
    by_label = _methods_by_label(groups, labels)
    names = list(dict.fromkeys(name for methods in by_label for name in methods))
    pairs = _count_pairs(len(names))
    cells: dict[tuple[str, str], str] = {}
    for first, second in combinations(names, 2):
        wins, ties, losses = 0, 0, 0
        for group, methods in zip(groups, by_label, strict=True):
            if not {first, second} <= methods.keys():
                continue
            if estimate := difference_between(group, methods[first], methods[second], pairs):
                wins += estimate.helped
                losses += estimate.hurt
                ties += not (estimate.helped or estimate.hurt)
        if wins or ties or losses:
            cells[first, second] = f"{wins}-{ties}-{losses}"
            cells[second, first] = f"{losses}-{ties}-{wins}"
    rows = [[first, *(cells.get((first, second), "") for second in names)] for first in names]
    title = (
        "Wins, ties and losses of the row against the column over"
        f" {len(groups)} federation{'s' if len(groups) > 1 else ''}"
    )
    return Table("wins", title, ["method", *names], rows)


def win_reading(table: Table) -> str:
    """Return how to read the matrix of wins."""
    pairs = _count_pairs(len(table.rows))
    return (
        "A win is a federation in which the row's method is clearly better than the column's: the"
        " 95% interval of the difference, mean over parties and paired over their test samples,"
        f" excludes zero. Intervals are Bonferroni-corrected for {pairs} pair{'s' * (pairs > 1)} of"
        " methods. A tie is no clear difference. An empty cell: no federation has both."
    )


def critical_difference(groups: Sequence[RunGroup], labels: Labels) -> Chart | Text:
    """Return the diagram of mean ranks over federations, or a sentence that says why there is none.

    Methods that have no figure in some federation are left out.
    """
    by_label = _methods_by_label(groups, labels)
    names = list(dict.fromkeys(name for methods in by_label for name in methods))
    if len(groups) < FEWEST_FEDERATIONS:
        return Text(
            f"{NO_DIAGRAM}it needs {FEWEST_FEDERATIONS} federations or more, and here"
            f" {'is' if len(groups) == 1 else 'are'} {len(groups)}.",
            "missing",
        )
    figures = {
        name: complete_figures
        for name in names
        if (complete_figures := _figures(name, groups, by_label))
    }
    if len(figures) < FEWEST_METHODS:
        return Text(
            f"{NO_DIAGRAM}it needs {FEWEST_METHODS} methods or more that have a figure in each of"
            f" the {len(groups)} federations, and here {'is' if len(figures) == 1 else 'are'}"
            f" {len(figures)}.{ONE_LABEL}",
            "missing",
        )
    result = mean_ranks(figures)
    data, spec = critical_difference_diagram(result.ranks, result.alike, result.critical_difference)
    title = f"Mean ranks over {len(groups)} federations"
    return Chart(
        "critical-difference",
        title,
        _caption(result, groups, set(names) - set(figures)),
        data,
        spec,
    )


def _caption(result: MeanRanks, groups: Sequence[RunGroup], omitted: set[str]) -> str:
    """Return which tests were made, of what, and with which outcome."""
    metrics = {group.metric.title for group in groups}
    metric = f"test {metrics.pop()}" if len(metrics) == 1 else "the metric of each federation"
    ranks = ", ".join(f"{name} {rank:.2f}" for name, rank in result.ranks.items())
    outcome = (
        f"some methods differ. Nemenyi's test at alpha = {ALPHA}: a bar joins methods that are not"
        " clearly different, whose mean ranks differ by less than the critical difference"
        f" CD = {result.critical_difference:.2f}."
        if result.differ
        else "no difference between methods is clear, so the bar joins all of them (Nemenyi's"
        f" critical difference would be CD = {result.critical_difference:.2f})."
    )
    left_out = (
        f" Left out, as they have no figure in some federation: {join_names(sorted(omitted))}."
        if omitted
        else ""
    )
    return (
        f"Critical-difference diagram over {result.federations} federations: mean ranks of"
        f" {len(result.ranks)} methods by {metric}, mean over parties and seeds; 1 is best:"
        f" {ranks}. Friedman's test at alpha = {ALPHA} (chi-square {result.chi_square:.2f},"
        f" p = {result.p:.2g}): {outcome}{left_out}"
    )


def _methods_by_label(groups: Sequence[RunGroup], labels: Labels) -> list[dict[str, Method]]:
    """Return the methods of each federation by their labels: those that were named, and SOLO, but
    not the models of scikit-learn that are added on tables.
    """
    return [
        {method_label(m.name, labels): m for m in group.methods if not m.of_scikit_learn}
        for group in groups
    ]


def _figures(
    name: str, groups: Sequence[RunGroup], by_label: Sequence[dict[str, Method]]
) -> list[float]:
    """Return a method's figure in each federation, higher is better; empty if one is missing."""
    figures = []
    for group, methods in zip(groups, by_label, strict=True):
        summaries = methods[name].summaries if name in methods else []
        by_seed = [figure_of(summary, group.metric.name) for summary in summaries]
        present = [figure for figure in by_seed if figure is not None]
        if not present or len(present) < len(by_seed):
            return []
        figures.append(group.metric.sign * statistics.fmean(present))
    return figures


def _count_pairs(methods: int) -> int:
    return max(1, methods * (methods - 1) // 2)
