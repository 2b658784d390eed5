"""Reliability curves of the methods: over all parties, and for each party with enough samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from comity.charts.chart import Chart
from comity.charts.reliability import reliability_curve
from comity.measure.cross_validation import out_of_fold
from comity.metrics.evaluation import Answers
from comity.metrics.reliability import BIN_SAMPLES, ReliabilityBin, reliability_bins
from comity.names import OWN_MODEL
from comity.reporting.blocks import Block, Text
from comity.reporting.charts import colour_by_method
from comity.reporting.folds import fold_runs
from comity.reporting.gather import Method, RunGroup
from comity.text import join_names

ENOUGH = 4 * BIN_SAMPLES
"""The fewest test samples of a party with a curve of its own."""
MOST_PARTIES = 8
"""The most parties with a curve of their own."""


def reliability(group: RunGroup) -> list[Block]:
    """Return the charts, and how to read them; empty if there are no probabilities of two classes,
    or if site policies withhold all outcomes.
    """
    answers = {
        method.name: _answers_of(group, method)
        for method in group.methods
        if method.name != OWN_MODEL  # its curve would be that of one of the others at each party
    }
    answers = {name: of_method for name, of_method in answers.items() if of_method}
    curves = {
        name: bins
        for name, of_method in answers.items()
        if (bins := _bins(list(of_method.values())))
    }
    if not curves:
        return []
    everyone = dict.fromkeys(party for of_method in answers.values() for party in of_method)
    several = len(everyone) > 1
    charts = [_chart(group, "reliability", "all parties together" if several else "", curves)]
    by_party = {
        party: of_party
        for party in everyone
        if several and (of_party := _curves_of_party(answers, party))
    }
    visible = list(by_party)[:MOST_PARTIES]
    charts += [_chart(group, f"reliability-{p}", p, by_party[p], half=True) for p in visible]
    return [*charts, Text(_about(group, len(everyone), len(by_party), len(visible)))]


def _curves_of_party(
    answers: Mapping[str, Mapping[str, Answers]], party: str
) -> dict[str, list[ReliabilityBin]]:
    """Return a party's curve by each method; empty if it has too few samples."""
    return {
        name: bins
        for name, of_method in answers.items()
        if party in of_method
        and len(of_method[party].truth) >= ENOUGH
        and (bins := _bins([of_method[party]]))
    }


def _answers_of(group: RunGroup, method: Method) -> dict[str, Answers]:
    """Return the predictions of a method's first run by party; under cross-validation, those of
    its first repeat, so that each sample counts once. Only predictions with probabilities of two
    classes are returned.
    """
    if group.folds > 1:
        runs = fold_runs(group, method)[: group.folds]
        pooled = out_of_fold(runs, group.folds) if runs else {}
        answers = {party: repeats[0].answers for party, repeats in pooled.items()}
    else:
        answers = method.finished[0].answers if method.finished else {}
    return {party: a for party, a in answers.items() if a.score is not None and len(a.truth)}


def _bins(answers: list[Answers]) -> list[ReliabilityBin]:
    scores = [a.score for a in answers if a.score is not None]
    return reliability_bins(torch.cat(scores), torch.cat([a.truth for a in answers]))


def _chart(
    group: RunGroup,
    name: str,
    whose: str,
    curves: Mapping[str, list[ReliabilityBin]],
    half: bool = False,
) -> Chart:
    rows: list[dict[str, Any]] = [
        {"method": method, **asdict(point)} for method, bins in curves.items() for point in bins
    ]
    data, spec = reliability_curve(
        name, rows, group.names, colour_by_method(group, only=list(curves))
    )
    title = f"Reliability: {whose}" if whose else "Reliability"
    off = [
        f"{method} {sum(not b.low <= b.predicted <= b.high for b in bins)} of {len(bins)}"
        for method, bins in curves.items()
    ]
    alt = (
        "Observed frequency against predicted probability of"
        f" {_class_name(group)}, with 95% Wilson intervals. Bins whose interval excludes the"
        f" predicted probability: {join_names(off)}."
    )
    return Chart(name, title, alt, data, spec, half=half)


def _class_name(group: RunGroup) -> str:
    classes: list[str] = next((run.summary["classes"] for run in group.runs if run.summary), [])
    return f"{classes[1]!r}" if len(classes) == 2 else "class 1"


def _about(group: RunGroup, parties: int, own: int, curves: int) -> str:
    """Return how to read the charts, and what they are of."""
    which = "test samples"
    if group.folds > 1:
        which = "all samples, each predicted by a model of the other folds"
        if any(len(m.finished) > group.folds for m in group.methods):
            which += " (of the first repeat)"
    elif any(len(m.finished) > 1 for m in group.methods):
        which += " of the first seed"
    text = (
        f"Reliability: on {which}, in bins of about equally many samples. On the dashed line,"
        " probabilities are as they should be; below it, they are too high."
    )
    if curves < own:
        text += f" {curves} of {own} parties are drawn."
    elif own < parties and parties > 1:
        text += f" Single parties are drawn from {ENOUGH} samples on."
    all_parties = {party for run in group.runs for party in run.parties}
    if not group.site and len(all_parties) > parties:
        text += " Parties whose site policy withholds outcomes are not in these charts."
    return text
