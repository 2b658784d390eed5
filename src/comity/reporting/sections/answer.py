"""The first two sections: the answer, for a decision, and the methods, in sentences and in a
ranking.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from comity.algorithms import card, names
from comity.errors import ComityError, UsageError
from comity.measure.targets import TargetReached, common_target, reach_target
from comity.metrics.metrics import ACCURACY, EXPLAINED, TWO, Metric
from comity.reporting.blocks import Block, Facts, Section, Table, Text
from comity.reporting.charts import capitalize_first
from comity.reporting.folds import gains_in_folds
from comity.reporting.gather import Method, RunGroup
from comity.reporting.readable import Run
from comity.reporting.sections.absences import absences
from comity.reporting.sections.decision import (
    NEXT,
    PLAIN,
    PLAIN_QUESTION,
    next_step,
    plain_models,
    samples_tested,
)
from comity.reporting.sections.gains import (
    correction_note,
    count_choices,
    gains_between,
    gains_by_seed,
    summaries_of,
    too_few,
)
from comity.reporting.sections.reliability import reliability
from comity.runs.config import WHERE
from comity.runs.run_warnings import read_warnings, warning_texts
from comity.runs.summary import blocks
from comity.spec import parse, split
from comity.studies.against import HEADS, AgainstEach
from comity.studies.compare import folder_name
from comity.studies.compare_warnings import compare_steps
from comity.studies.estimate import CUT, OVER_OWN_MODEL, OVER_SOLO, Estimate
from comity.studies.method_summary import (
    MethodSummary,
    columns,
    figure_of,
    method_summary,
    optional_columns,
)
from comity.studies.overall_verdict import SUMMED, SURE, WHOM, OverallVerdict, overall_verdict
from comity.studies.party_verdicts import MOST, PartyVerdict, average_gain
from comity.studies.power import Power
from comity.text import join_names, shell_line
from comity.units import size

WORTH_SAYING = 0.001
"""Differences up to this are not mentioned: the page would show both figures as equal."""


@dataclass(frozen=True)
class Ranked(MethodSummary):
    """A method's row of the ranking."""

    method: Method
    reached: list[TargetReached]
    """When the target was reached, for each seed that reached it."""

    @property
    def sure_mean(self) -> float:
        """The mean, of a method that has one."""
        assert self.mean is not None
        return self.mean


MATTER = ("over SOLO", "over own model", "gained", "hurt")
"""The columns of the ranking that compare with the baseline. A narrow screen shows them first."""
IDEA = re.compile(r"Idea: (.*?)(?:\n\n|$)", re.DOTALL)
TARGET = ("rounds to target", "bytes to target")
AGAINST = "against"
ANSWERS = "answers"
IDEAS = "ideas"
MEASURES = "measures"


def answer(group: RunGroup, folder: Path) -> Section:
    """Return the first section, which fits one screen and one printed page: the answer for all
    parties and for each one.

    Args:
        group: the runs
        folder: the folder of the report
    """
    section = Section("answer", "The answer")
    _add_unfinished(section, group)
    ranked, _ = rank_methods(group)
    comparison = _read_comparison(section, group, folder / group.name / "comparison.json")
    finished = [row for row in ranked if row.mean is not None]
    if finished:
        _add_outcome(section, group, finished, comparison, folder)
    return section


def methods(group: RunGroup, folder: Path, target: float | None = None) -> Section:
    """Return the second section: the ranking of the methods, and all warnings.

    Args:
        group: the runs
        folder: the folder of the report
        target: accuracy to which rounds and bytes are counted (default: the accuracy of SOLO)
    """
    section = Section("methods", "The methods")
    ranked, resolved_target = rank_methods(group, target)
    path = folder / group.name / "comparison.json"
    comparison = _read_comparison(Section("", ""), group, path)
    finished = [row for row in ranked if row.mean is not None]
    if finished and _verdict(group, finished, comparison):
        section.say(" ".join(sentences(group, finished)))
    section.blocks.append(_ranking(ranked, group, resolved_target))
    section.say(_explain_columns(group, resolved_target, target is not None))
    if any(row.gain and row.gain.is_cut for row in ranked):
        section.say(CUT)
    for text in _warnings(group, ranked, comparison):
        section.say(text, "warning")
    if against := comparison.against:
        title = f"{against.method} against each"
        section.blocks.append(Table(AGAINST, title, HEADS, against.rows))
        section.say(against.reading)
    section.blocks += [*_ideas(group), *_other_metrics(group), *reliability(group)]
    section.blocks += absences(group)
    return section


def _verdict(
    group: RunGroup, finished: Sequence[Ranked], comparison: ComparisonAnswers
) -> OverallVerdict | None:
    """Return the overall verdict; None if there is no training alone to compare with."""
    collaborative = [
        row
        for row in finished
        if not (row.method.alone or row.method.pools or row.algorithm.startswith(PLAIN))
    ]
    seeds = max(len(row.figure) for row in finished)
    return overall_verdict(
        collaborative, comparison.answers, seeds, group.folds, samples_tested(group)
    )


def _add_outcome(
    section: Section,
    group: RunGroup,
    finished: list[Ranked],
    comparison: ComparisonAnswers,
    folder: Path,
) -> None:
    """Add the result in words.

    With SOLO to compare with, these are questions and answers; otherwise a sentence about the best
    method. Below follow the answers to the parties.
    """
    verdict = _verdict(group, finished, comparison)
    if verdict:
        section.headline = verdict.helps
        section.blocks.append(Facts(_questions(verdict, group, finished, comparison, folder)))
    else:
        section.say(" ".join(sentences(group, finished)), "lead")
    if group.site and not group.baseline:
        command = shell_line("comity", "report", group.runs[0].folder.parent)
        section.say(
            "Only a comparison with training alone can show whether learning together helps this"
            f" site. If solo was run with the same settings, {command} compares them,"
            " here at the site."
        )
    if comparison.answers:
        method = verdict.method if verdict else ""
        section.blocks.append(_party_answers(comparison.answers, method))
        section.say(comparison.reading)


def _questions(
    verdict: OverallVerdict,
    group: RunGroup,
    finished: Sequence[Ranked],
    comparison: ComparisonAnswers,
    folder: Path,
) -> dict[str, str]:
    """Return the questions of the first screen with their answers."""
    (helps, sentence), *rest = verdict.questions.items()
    others = dict(rest)
    if group.site:
        others.pop(WHOM, None)  # a site's own folder knows no other party
    if count := len(_warnings(group, finished, comparison)):
        plural = "s" if count > 1 else ""
        others[SURE] += f" Before you rely on this, read the {count} warning{plural} below."
    questions = {
        helps: sentence,
        PLAIN_QUESTION: plain_models(finished),
        **others,
        NEXT: next_step(verdict, finished, group, folder),
    }
    return {question: text for question, text in questions.items() if text}


def _add_unfinished(section: Section, group: RunGroup) -> None:
    """Say which runs are not finished, and whether their metrics differ."""
    for run in group.runs:
        if not run.has_ended:
            total = f" of {run.experiment.rounds}" if run.experiment else ""
            section.say(
                f"{run.method}, seed {run.seed}, is not finished: it has {run.last_round}{total}"
                f" rounds. Go on with: {shell_line('comity', 'resume', run.folder)}",
                "missing",
            )
    if len(group.chosen_metrics) > 1:
        section.say(
            "These runs were judged by different metrics: they are shown by accuracy, which all of"
            " them have.",
            "missing",
        )


def _warnings(
    group: RunGroup, ranked: Sequence[Ranked], comparison: ComparisonAnswers
) -> list[str]:
    """Return the warnings about the settings, about the results, and about the comparison of
    methods.
    """
    # Methods on the same data have the same early warnings.
    early = [
        text for m in group.methods for s in m.summaries for text in warning_texts(s, "before")
    ]
    late = [text for row in ranked for text in row.caveats]
    return [*dict.fromkeys(early), *late, *(comparison.warnings or _step_warnings(group))]


def _step_warnings(group: RunGroup) -> list[str]:
    """Return the warnings about the steps of the methods, once for all seeds."""
    if group.site:  # a site knows its own steps only
        return []
    trained = [method for method in group.methods if not method.of_scikit_learn]
    return compare_steps({method.name: method.summaries for method in trained}, False)


def _differing_settings(group: RunGroup, expected: Collection[str]) -> list[str]:
    """Return a sentence for each setting, except method and seed, in which the runs differ.

    Runs of a comparison differ if one of them was extended afterwards. They may differ in the
    `expected` settings: those in which methods were compared on purpose.
    """
    ignored = {"algorithm", "seed", "set", *WHERE, *expected}
    runs_by_value: dict[str, dict[str, list[str]]] = {}
    for run in group.runs:
        if run.experiment:
            for name, value in run.experiment.model_dump(exclude=ignored).items():
                label = f"{run.method}, seed {run.seed}"
                runs_by_value.setdefault(name, {}).setdefault(str(value), []).append(label)
    sentences = []
    for name, runs in runs_by_value.items():
        if len(runs) > 1:
            values = "; ".join(f"{value}: {join_names(labels)}" for value, labels in runs.items())
            sentences.append(f"These runs cannot be compared, as they differ in {name} ({values}).")
    return sentences


def _explain_columns(group: RunGroup, target: float | None, requested: bool) -> str:
    """Return the explanation of the ranking's columns.

    `requested` says whether the user named the target.
    """
    title = capitalize_first(group.metric.title)
    runs = "repeats" if group.folds > 1 else "seeds"
    samples = "all of their samples" if group.folds > 1 else "their own test samples"
    about = (
        f"{title}: mean over parties on {samples} after the last round, ± standard deviation over"
        f" {runs}. Worst: the worst party, mean over {runs}. Steps: gradient evaluations of a party"
        " in a run, mean over parties. Sent: all bytes of a run, evaluation left out. Time: of a"
        f" run here{', over all folds' if group.folds > 1 else ''}."
    )
    if group.site:
        about = (
            f"{title}: on this site's own test samples after the last round. Sent: what left this"
            " site and what came to it, evaluation left out."
        )
    if group.metric is not ACCURACY:
        about += f" {title} is {group.metric.about}; methods are ranked by it."
    classes: list[str] = next((run.summary["classes"] for run in group.runs if run.summary), [])
    if len(classes) == TWO:
        about += f" Class 1 is {classes[1]!r}, class 0 {classes[0]!r}."
    over = "over SOLO: points more than by training alone"
    if group.over == OVER_OWN_MODEL:
        over = (
            "over own model: points more than by each party's own model, the best of those that it"
            " trains alone by cross-validation on its training samples"
        )
    if group.baseline and len(group.methods) > 1 and group.site:
        about += (
            " Over SOLO: points more than by training alone, with half of its 95% interval's width,"
            " paired over test samples."
        )
    elif group.baseline and len(group.methods) > 1:
        parties_text = "parties" if group.same_parties else "parties of every seed"
        about += (
            f" {capitalize_first(over)}, mean over parties, with half of its"
            f" 95% interval's width. Gained, hurt: {parties_text} whose own interval excludes zero."
            f" Intervals are paired over test samples{correction_note(group)}."
        )
    if target is not None:
        origin = "what the weakest method reaches"
        if requested:
            origin = "as asked"
        elif group.baseline and group.baseline.finished:
            origin = f"what {'SOLO' if group.over == OVER_SOLO else 'own models'} reaches"
        several = any(len(m.runs) > 1 for m in group.methods)
        seeds = "; of several seeds, those that get there are counted" if several else ""
        about += (
            f" Target: {target:.1%}, {origin}; rounds and bytes until a method is as good for the"
            f" first time{seeds}."
        )
    return about


@dataclass(frozen=True)
class ComparisonAnswers:
    """The answers of a comparison to the parties, and how to read them."""

    answers: list[PartyVerdict]
    reading: str = ""
    warnings: tuple[str, ...] = ()
    """The warnings about several of its runs."""
    against: AgainstEach | None = None
    """One method against each of the others."""


def _read_comparison(section: Section, group: RunGroup, path: Path) -> ComparisonAnswers:
    """Return the answers in `comparison.json`, if it is about these methods and this metric.

    What is wrong with the file is added to the section.
    """
    if not path.exists():
        return ComparisonAnswers([])
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError("not an object")
        if "answers" not in content:  # written by an earlier version
            return ComparisonAnswers([])
        comparison = ComparisonAnswers(
            [_parse_answer(entry) for entry in content["answers"]],
            content["reading"],
            tuple(warning.text for warning in read_warnings(content, {})),
            TypeAdapter(AgainstEach | None).validate_python(content.get("against")),
        )
        methods = {folder_name(row["algorithm"]) for row in content["rows"]}
        if not isinstance(comparison.reading, str):
            raise TypeError("not a text")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ComityError):
        section.say(
            "comparison.json is damaged: what it says to each party cannot be shown.", "missing"
        )
        return ComparisonAnswers([])
    own_settings = content.get("settings") or {}
    expected = {name for settings in own_settings.values() for name in settings}
    if content.get("equal_steps") is True:
        expected.add("rounds")
    for text in _differing_settings(group, expected):
        section.say(text, "warning")
    has_methods = methods <= {run.folder.parent.name for run in group.runs}
    same_runs = has_methods and _has_same_figures(group, content["rows"])
    if content["metric"] != group.metric.name or not same_runs:
        section.say(
            "comparison.json is not of these runs: what it says to each party is left out.",
            "missing",
        )
        return ComparisonAnswers([])
    return comparison


def _has_same_figures(group: RunGroup, rows: Sequence[dict[str, Any]]) -> bool:
    """Whether the finished runs still have the figures that the comparison was computed from."""
    figures = {
        m.runs[0].folder.parent.name: [
            figure_of(run.summary or {}, group.metric.name) for run in m.finished
        ]
        for m in group.methods
    }
    pairs = ((figures[folder_name(row["algorithm"])], row["figure"]) for row in rows)
    return all(now == then for now, then in pairs if len(now) == len(then))


def _parse_answer(entry: dict[str, Any]) -> PartyVerdict:
    """Return the answer to one party from its entry in `comparison.json`."""
    is_text = isinstance(entry["party"], str) and isinstance(entry["says"], str)
    if not is_text or entry["verdict"] not in SUMMED:
        raise TypeError("not an answer")
    estimates = {
        str(method): Estimate(
            float(estimate["gain"]), float(estimate["low"]), float(estimate["high"])
        )
        for method, estimate in entry["methods"].items()
    }
    power = TypeAdapter(Power | None).validate_python(entry.get("power"))
    return PartyVerdict(
        entry["party"],
        entry["verdict"],
        entry["says"],
        entry["method"],
        estimates,
        power,
        TypeAdapter(int | None).validate_python(entry.get("samples")),
    )


def _party_answers(answers: Sequence[PartyVerdict], method: str) -> Table:
    """Return a table of the parties' answers.

    If there is an overall best `method`, a column shows each party's gain by it, since a federation
    has to agree on one method.
    """
    heads = ["party", "answer"]
    rows = [[verdict.party, verdict.says] for verdict in answers]
    minor = []
    if method:
        minor = [f"{method} gives"]
        rows = [
            [*row, str(verdict.methods.get(method, ""))]
            for row, verdict in zip(rows, answers, strict=True)
        ]
    if any(verdict.power for verdict in answers):
        minor += ["hardly shows below", "what would settle it"]
        rows = [
            [*row, *_power_cells(verdict.power)] for row, verdict in zip(rows, answers, strict=True)
        ]
    heads += minor
    return Table(
        ANSWERS,
        "Party by party",
        heads,
        rows,
        words=len(heads),
        folded=len(rows) > MOST,
        minor=minor,
    )


def _power_cells(power: Power | None) -> list[str]:
    """Return the smallest visible difference, and what would settle the question."""
    if power is None:
        return ["", ""]
    return [f"{100 * power.visible:.1f} points", " or ".join(power.remedies)]


def _ideas(group: RunGroup) -> list[Block]:
    """Return a table of what each method does, from the cards of Comity's own methods.

    Files of users are not opened for it.
    """
    rows = []
    own_methods = set(names())
    for method in group.methods:
        spec = next((run.experiment.algorithm for run in method.runs if run.experiment), "")
        try:
            parts = [parse(part).name for part in split(spec, "+")]
            cards = [card(part) for part in parts] if own_methods.issuperset(parts) else []
        except UsageError:
            cards = []
        matches = [IDEA.search(method_card.text) for method_card in cards]
        ideas = [" ".join(match[1].split()) for match in matches if match]
        if ideas:
            rows.append([method.name, " ".join(ideas)])
    if not rows:
        return []
    return [Table(IDEAS, "What the methods do", ["method", "idea"], rows, words=2, folded=True)]


def _other_metrics(group: RunGroup) -> list[Block]:
    """Return a table of the metrics except the ranking's: means over parties and seeds."""
    means: dict[Metric, dict[str, list[float]]] = {}
    missing: dict[str, set[str]] = {}
    for method in group.methods:
        for summary in method.summaries:
            for metric, block in blocks(summary):
                if metric in (group.metric, ACCURACY):
                    continue
                missing.setdefault(metric.title, set()).update(block.get("missing", ()))
                if block["mean"] is not None:
                    means.setdefault(metric, {}).setdefault(method.name, []).append(block["mean"])
    if not means:
        return []
    rows = [
        [name, *(_mean_cell(metric, by_method.get(name)) for metric, by_method in means.items())]
        for name in group.names
        if any(name in by_method for by_method in means.values())
    ]
    heads = ["method", *(metric.title for metric in means)]
    table = Table(MEASURES, "By other measures", heads, rows, folded=True)
    about = "Means over parties on their own test samples after the last round."
    if group.site:
        about = "On this site's own test samples after the last round."
    lacking = [
        f"{title}: {join_names(sorted(parties))}" for title, parties in missing.items() if parties
    ]
    if lacking:
        about += f" Without a figure, and in no mean: {'; '.join(lacking)}."
    return [table, Text(about)]


def _mean_cell(metric: Metric, values: list[float] | None) -> str:
    return metric.text(statistics.fmean(values)) if values else ""


def rank_methods(group: RunGroup, target: float | None = None) -> tuple[list[Ranked], float | None]:
    """Return all methods, the best first, and the target to which rounds and bytes are counted.

    Without a target, it is the accuracy of SOLO, or that of the weakest method.
    """
    if target is None:
        target = _default_target(group)
    rows = []
    for method in group.methods:
        summary = method_summary(
            method.name,
            summaries_of(group, method),
            gains_by_seed(group, method),
            too_few(group),
            group.same_parties,
            count_choices(group),
            group.metric.name,
            group.over,
        )
        reached_target = [] if target is None else _find_reached(method.finished, target)
        rows.append(Ranked(**vars(summary), method=method, reached=reached_target))
    return sorted(rows, key=lambda row: -row.goodness), target


def _default_target(group: RunGroup) -> float | None:
    final = {
        m.name: [run.curve[max(run.curve)] for run in m.finished if run.curve]
        for m in group.methods
    }
    if group.baseline and final[group.baseline.name]:
        return statistics.fmean(final[group.baseline.name])
    lines = {name: {0: statistics.fmean(values)} for name, values in final.items() if values}
    return common_target(lines) if len(lines) > 1 else None


def _find_reached(runs: Iterable[Run], target: float) -> list[TargetReached]:
    """Return when the target was reached, for each run that reached it.

    A tolerance allows for rounding: means of the same figures may differ in their last bits.
    """
    results = (reach_target(run.curve, run.ledger, target - 1e-12) for run in runs)
    return [result for result in results if result]


def _target_cells(row: Ranked) -> list[str]:
    """Return rounds and bytes to the target.

    They are means over seeds only if all seeds reached the target: those that did are the luckier
    ones.
    """
    if not row.reached:
        return ["never", "never"]
    runs = len(row.method.finished)
    if len(row.reached) < runs:
        return [f"{len(row.reached)} of {runs} runs", ""]
    rounds = statistics.fmean(result.round for result in row.reached)
    mean_bytes = statistics.fmean(result.bytes for result in row.reached)
    return [str(round(rounds)), size(mean_bytes)]


def _ranking(ranked: list[Ranked], group: RunGroup, target: float | None) -> Table:
    """Return the ranking: the table that `compare` prints, with the columns of the target."""
    optional = optional_columns(ranked)
    heads, rows = columns(_ranking_cells(row, group, target, optional) for row in ranked)
    best = 0 if ranked[0].mean is not None else None
    minor = [head for head in heads[2:] if head not in MATTER]
    return Table("ranking", group.title, heads, rows, best=best, minor=minor)


def _ranking_cells(
    row: Ranked, group: RunGroup, target: float | None, optional: Collection[str]
) -> dict[str, str]:
    """Return a method's cells by column."""
    if not row.figure:
        state = "unreadable" if all(run.has_ended for run in row.method.runs) else "not finished"
        return {"method": row.method.name, group.metric.title: state}
    cells = row.cells(len(row.figure) > 1, optional) | {"method": row.method.name}
    omitted: set[str] = set()
    if group.baseline is None or len(group.methods) == 1:
        omitted.update(MATTER)
    if group.site:  # a site knows no other party, and the time is the server's
        omitted.update(("gained", "hurt", "worst", "time"))
    cells = {head: cell for head, cell in cells.items() if head not in omitted}
    last = {"time": cells.pop("time")} if "time" in cells else {}
    if target is not None:
        cells |= dict(zip(TARGET, _target_cells(row), strict=True))
    return cells | last


def sentences(group: RunGroup, ranked: list[Ranked]) -> list[str]:
    """Return sentences about the ranking.

    They say which method is best, by how much and how clearly, which has the best worst party, and
    what pooling the data would give.
    """
    pooled = [row for row in ranked if row.method.pools]
    ranked = [row for row in ranked if not row.method.pools] or ranked
    best, rest = ranked[0], ranked[1:]
    texts = [_about_best(group, best, rest)]
    alone = next((row for row in ranked if row.method.alone and row.accuracy), None)
    if group.metric not in (ACCURACY, EXPLAINED) and alone and best is not alone:
        best_accuracy = statistics.fmean(best.accuracy)
        alone_accuracy = statistics.fmean(alone.accuracy)
        if best_accuracy < alone_accuracy - WORTH_SAYING:
            name = alone.method.name if alone.method.of_scikit_learn else "training alone"
            texts.append(
                f"But its accuracy is {best_accuracy:.1%}, less than {alone_accuracy:.1%} by"
                f" {name}."
            )
    if best.method.alone and rest:
        texts.append(
            f"No method that collaborates does better on average than {best.method.name}, which"
            " each party trains alone."
        )
    texts += _about_worst_party([row for row in ranked if not row.method.alone], group.metric)
    texts += [
        f"{row.method.name}, which pools the data, has {row.sure_mean:.1%}."
        for row in pooled
        if row is not best
    ]
    return texts


def _about_best(group: RunGroup, best: Ranked, rest: list[Ranked]) -> str:
    """Return a sentence about the best method and its lead over the second."""
    name = best.method.name
    figure = f"{best.sure_mean:.1%}"
    if group.metric is not ACCURACY:
        figure += f" {group.metric.title}"
    if len(best.accuracy) > 1:
        runs = "repeats" if group.folds > 1 else "seeds"
        figure += f" (± {100 * best.spread:.1f} over {len(best.accuracy)} {runs})"
    if not rest:
        place = f"on {group.site}'s own test samples" if group.site else "averaged over parties"
        return f"{name} has {figure}, {place}."
    second = rest[0]
    points = 100 * abs(best.sure_mean - second.sure_mean)
    difference = difference_between(group, best.method, second.method, len(rest))
    if difference is None or difference.helped:
        return f"{name} is best with {figure}, {points:.1f} points ahead of {second.method.name}."
    return (
        f"{name} is first with {figure}, but {second.method.name} is not clearly behind"
        f" ({points:.1f} points; the 95% interval of the difference includes zero)."
    )


def _about_worst_party(collaborative: list[Ranked], metric: Metric) -> list[str]:
    """Return a sentence about the method with the best worst party, if it is not the best one."""
    with_worst = [
        (metric.sign * row.worst_mean, row) for row in collaborative if row.worst_mean is not None
    ]
    if not with_worst or with_worst[0][1] is not collaborative[0]:
        return []
    first_worst, first = with_worst[0]
    best_worst, fairest = max(with_worst, key=lambda pair: pair[0])
    if best_worst - first_worst <= WORTH_SAYING:
        return []
    return [
        f"Of those that collaborate, {fairest.method.name} has the best worst party"
        f" ({fairest.worst_mean:.1%} against {first.worst_mean:.1%} of {first.method.name})."
    ]


def difference_between(
    group: RunGroup, first: Method, second: Method, rivals: int
) -> Estimate | None:
    """Return how far the first method is ahead of the second, on average over parties.

    The difference is paired over the test samples of both. Its interval allows for the choice of
    the first among `rivals` others.
    """
    if group.folds > 1:
        return average_gain(gains_in_folds(group, first, second), rivals, group.metric)
    matching = {run.seed: run for run in second.finished}
    gains = {
        run.seed: gains_between(run, matching[run.seed])
        for run in first.finished
        if run.seed in matching
    }
    return average_gain(gains, rivals, group.metric)
