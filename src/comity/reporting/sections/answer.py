"""Which method is best, by how much, for whom, and at what price: a table, and a sentence made from
its figures.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comity.algorithms import card, names
from comity.errors import ComityError, UsageError
from comity.measure.caveats import caveats, few
from comity.measure.summary import blocks
from comity.measure.targets import Reached, common_target, reached
from comity.metrics.metrics import ACCURACY, EXPLAINED, TWO, Metric
from comity.reporting.blocks import Block, Facts, Section, Table, Text
from comity.reporting.charts import capitalize_first
from comity.reporting.gather import Group, Method
from comity.reporting.readable import Run
from comity.reporting.sections.absences import absences
from comity.reporting.sections.gains import between, by_seed, picked, too_few
from comity.runs.config import WHERE
from comity.spec import parse, split
from comity.studies.compare import folder_name
from comity.studies.method_summary import MethodSummary, columns, method_summary
from comity.studies.overall_verdict import SUMMED, WHOM, overall
from comity.studies.party_verdicts import MOST, Estimate, PartyVerdict, on_average
from comity.units import size

WORTH_SAYING = 0.001  # of a figure: what would be shown as the same says nothing


@dataclass(frozen=True)
class Ranked(MethodSummary):
    """A method's line in the table."""

    method: Method
    reached: list[Reached]
    """When each seed that gets to the target is there."""

    @property
    def sure_mean(self) -> float:
        """The mean of a method that has one."""
        assert self.mean is not None
        return self.mean

    @property
    def sent(self) -> float | None:
        """All bytes that crossed in a run, evaluation left out; None where no run is finished."""
        return self.bytes.get("total")


MATTER = ("over SOLO", "gained", "hurt")
"""The columns of the ranking that compare with training alone: a narrow screen shows these first.
"""
IDEA = re.compile(r"Idea: (.*?)(?:\n\n|$)", re.DOTALL)
TARGET = ("rounds to target", "bytes to target")
ANSWERS = "answers"
IDEAS = "ideas"
MEASURES = "measures"


def answer(group: Group, folder: Path, target: float | None = None) -> Section:
    """The page's first section: what it says of all and to each party, in words; then methods
    ranked.
    """
    section = Section("answer", "The answer")
    asked = target
    ranked, target = rank_methods(group, asked)
    told = _answers(section, group, folder / group.name / "comparison.json")
    _say_outcome(section, group, [s for s in ranked if s.mean is not None], told)
    _say_warnings(section, group)
    section.blocks.append(_table(ranked, group, target))
    section.say(_about(group, target, asked is not None))
    section.blocks += [*_ideas(group), *_measures(group), *absences(group)]
    return section


def _say_outcome(section: Section, group: Group, finished: list[Ranked], told: Told) -> None:
    """What came out: question by question where there is training alone to compare with, else who
    is first; then for each.
    """
    if not finished:
        return
    joint = [s for s in finished if not (s.method.alone or s.method.pools)]
    found = overall(joint, told.answers, max(len(s.figure) for s in finished))
    if found:
        section.headline = found.helps
        asked = found.questions
        if group.site:
            asked.pop(WHOM, None)  # itself, and it knows of nobody else
        section.blocks.append(Facts(asked))
    section.say(" ".join(sentences(group, finished)), "plain" if found else "lead")
    if group.site and not group.solo:
        section.say(
            "Whether learning together helps this site, training alone tells: if solo was run with"
            f" the same settings, comity report {shlex.quote(str(group.runs[0].folder.parent))}"
            " compares them, here at the site."
        )
    if told.answers:
        section.blocks.append(_party_by_party(told.answers, found.method if found else ""))
        section.say(told.reading)


def _say_warnings(section: Section, group: Group) -> None:
    """What a reader of these figures must know: what is not finished, what was said before the
    runs, what happened in them.
    """
    for run in group.runs:
        if not run.ended:
            planned = f" of {run.experiment.rounds}" if run.experiment else ""
            section.say(
                f"{run.method}, seed {run.seed}, is not finished: it has {run.last_round}{planned}"
                f" rounds. Go on with: comity resume {shlex.quote(str(run.folder))}",
                "missing",
            )
    before = [text for run in group.runs if run.summary for text in run.summary["cautions"]]
    for text in dict.fromkeys(
        before
    ):  # each once: what concerns the data is not said by each method again
        section.say(text, "warning")
    for run in group.runs:
        for text in caveats(run.summary) if run.summary else ():
            section.say(f"{run.method}, seed {run.seed}: {text}", "warning")
    if len(group.chosen_metrics) > 1:
        section.say(
            "These runs were judged by different metrics: they are shown by accuracy, which all of"
            " them have.",
            "missing",
        )


def _unlike(group: Group) -> list[str]:
    """A sentence for each setting, but for method and seed, in which a comparison's runs differ:
    one of them may have gone on.
    """
    settings: dict[str, dict[str, list[str]]] = {}
    for run in group.runs:
        if run.experiment:
            for name, value in run.experiment.model_dump(
                exclude={"algorithm", "seed", "set", *WHERE}
            ).items():
                settings.setdefault(name, {}).setdefault(str(value), []).append(
                    f"{run.method}, seed {run.seed}"
                )
    unlike = {name: values for name, values in settings.items() if len(values) > 1}
    told = {
        name: "; ".join(f"{value}: {few(who)}" for value, who in values.items())
        for name, values in unlike.items()
    }
    return [
        f"These runs cannot be compared, as they differ in {name} ({each})."
        for name, each in told.items()
    ]


def _about(group: Group, target: float | None, asked: bool) -> str:
    """What the columns of the ranking mean."""
    about = (
        f"{capitalize_first(group.metric.title)}: mean over parties on their own test samples after the last"
        " round, ± standard deviation over seeds. Worst: the worst party, mean over seeds. Sent:"
        " all bytes of a run, evaluation left out. Time: of a run here."
    )
    if group.site:
        about = (
            f"{capitalize_first(group.metric.title)}: on this site's own test samples after the last round."
            " Sent: what left this site and what came to it, evaluation left out."
        )
    if group.metric is not ACCURACY:
        about += f" {capitalize_first(group.metric.title)} is {group.metric.about}; methods are ranked by it."
    classes: list[str] = next((run.summary["classes"] for run in group.runs if run.summary), [])
    if len(classes) == TWO:
        about += f" Class 1 is {classes[1]!r}, class 0 {classes[0]!r}."
    if group.solo and len(group.methods) > 1 and group.site:
        about += (
            " Over SOLO: points more than by training alone, with half of its 95% interval's width,"
            " paired over test samples."
        )
    elif group.solo and len(group.methods) > 1:
        each = "parties" if group.same_parties else "parties of every seed"
        wide = (
            f", wide enough for the best of {picked(group)} methods to be picked"
            if picked(group) > 1
            else ""
        )
        about += (
            " Over SOLO: points more than by training alone, mean over parties, with half of its"
            f" 95% interval's width{wide}. Gained, hurt: {each} whose own interval excludes zero."
            " All are paired over test samples."
        )
    if target is not None:
        whose = (
            "what SOLO reaches"
            if group.solo and group.solo.finished
            else "what the weakest method reaches"
        )
        whose = "as asked" if asked else whose
        seeds = (
            "; of several seeds, those that get there are counted"
            if any(len(m.runs) > 1 for m in group.methods)
            else ""
        )
        about += (
            f" Target: {target:.1%}, {whose}; rounds and bytes until a method is as good for the"
            f" first time{seeds}."
        )
    return about


@dataclass(frozen=True)
class Told:
    """What the comparison said to each party, and how it is to be read."""

    answers: list[PartyVerdict]
    reading: str = ""


def _answers(section: Section, group: Group, path: Path) -> Told:
    """What the comparison said to each party, if it was one of these methods by this metric; what
    is wrong with it is said.
    """
    if not path.exists():
        return Told([])
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(told, dict):
            raise TypeError
        if "answers" not in told:  # of an earlier version
            return Told([])
        found = Told([_answer(one) for one in told["answers"]], told["reading"])
        methods = {folder_name(row["algorithm"]) for row in told["rows"]}
        if not isinstance(found.reading, str):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ComityError):
        section.say(
            "comparison.json is damaged: what it says to each party cannot be shown.", "missing"
        )
        return Told([])
    for text in _unlike(group):
        section.say(text, "warning")
    same = methods <= {run.folder.parent.name for run in group.runs} and _as_told(
        group, told["rows"]
    )
    if told["metric"] != group.metric.name or not same:
        section.say(
            "comparison.json is not of these runs: what it says to each party is left out.",
            "missing",
        )
        return Told([])
    return found


def _as_told(group: Group, rows: Sequence[dict[str, Any]]) -> bool:
    """Whether the runs that are finished still have the figures that the comparison was made of."""
    figures = {
        m.runs[0].folder.parent.name: [run.figures.get("mean") for run in m.finished]
        for m in group.methods
    }
    told = ((figures[folder_name(row["algorithm"])], row["figure"]) for row in rows)
    return all(now == then for now, then in told if len(now) == len(then))


def _answer(told: dict[str, Any]) -> PartyVerdict:
    """One party's answer as it was written down."""
    if not (
        isinstance(told["party"], str)
        and isinstance(told["says"], str)
        and told["verdict"] in SUMMED
    ):
        raise TypeError
    gives = {
        str(method): Estimate(*(float(one[k]) for k in ("gain", "low", "high")))
        for method, one in told["methods"].items()
    }
    return PartyVerdict(told["party"], told["verdict"], told["says"], told["method"], gives)


def _party_by_party(answers: Sequence[PartyVerdict], foremost: str) -> Table:
    """Each party's answer and, as a federation has to agree on one method, what the foremost gives
    it.
    """
    beside = [f"{foremost} gives"] if foremost else []
    rows = [
        [one.party, one.says, *([str(one.methods.get(foremost, ""))] if foremost else [])]
        for one in answers
    ]
    heads = ["party", "answer", *beside]
    return Table(
        ANSWERS,
        "Party by party",
        heads,
        rows,
        words=len(heads),
        folded=len(rows) > MOST,
        minor=beside,
    )


def _ideas(group: Group) -> list[Block]:
    """What each of Comity's own methods does, from its card; a user's file is not opened for that."""
    rows = []
    ours = set(names())
    for method in group.methods:
        told = next((run.experiment.algorithm for run in method.runs if run.experiment), "")
        try:
            parts = [parse(part).name for part in split(told, "+")]
            cards = [card(part) for part in parts] if ours.issuperset(parts) else []
        except UsageError:
            cards = []
        ideas = [" ".join(found[1].split()) for one in cards if (found := IDEA.search(one.text))]
        rows += [[method.name, " ".join(ideas)]] if ideas else []
    return (
        [Table(IDEAS, "What the methods do", ["method", "idea"], rows, words=2, folded=True)]
        if rows
        else []
    )


def _measures(group: Group) -> list[Block]:
    """All metrics but the one of the ranking: means over parties and seeds."""
    found: dict[Metric, dict[str, list[float]]] = {}
    lacking: dict[str, set[str]] = {}
    for method in group.methods:
        for summary in method.summaries:
            for metric, block in blocks(summary):
                if metric in (group.metric, ACCURACY):
                    continue
                lacking.setdefault(metric.title, set()).update(block.get("missing", ()))
                if block["mean"] is not None:
                    found.setdefault(metric, {}).setdefault(method.name, []).append(block["mean"])
    if not found:
        return []
    names = [
        m.name for m in group.methods if any(m.name in by_method for by_method in found.values())
    ]
    rows = [
        [
            n,
            *(
                metric.text(statistics.fmean(some[n])) if n in some else ""
                for metric, some in found.items()
            ),
        ]
        for n in names
    ]
    without = [f"{title}: {few(sorted(parties))}" for title, parties in lacking.items() if parties]
    said = f" Without a figure, and in no mean: {'; '.join(without)}." if without else ""
    table = Table(
        MEASURES,
        "By other measures",
        ["method", *(metric.title for metric in found)],
        rows,
        folded=True,
    )
    whose = (
        "On this site's own test samples"
        if group.site
        else "Means over parties on their own test samples"
    )
    return [table, Text(f"{whose} after the last round.{said}")]


def rank_methods(group: Group, target: float | None = None) -> tuple[list[Ranked], float | None]:
    """All methods, the best first, and the figure that they are timed to."""
    if target is None:
        target = _target(group)
    found = []
    for method in group.methods:
        gained = by_seed(group, method)
        few, same, many = too_few(group), group.same_parties, picked(group)
        figures = method_summary(
            method.name, method.summaries, gained, few, same, many, group.metric.name
        )
        found.append(
            Ranked(
                **vars(figures),
                method=method,
                reached=[] if target is None else _reached(method.finished, target),
            )
        )
    return sorted(found, key=lambda s: -s.goodness), target


def _target(group: Group) -> float | None:
    final = {
        m.name: [run.curve[max(run.curve)] for run in m.finished if run.curve]
        for m in group.methods
    }
    if group.solo and final[group.solo.name]:
        return statistics.fmean(final[group.solo.name])
    lines = {name: {0: statistics.fmean(values)} for name, values in final.items() if values}
    return common_target(lines) if len(lines) > 1 else None


def _reached(runs: Iterable[Run], target: float) -> list[Reached]:
    """The seeds that get there; a hair below counts, as means of the same figures may differ by
    rounding.
    """
    return [got for run in runs if (got := reached(run.curve, run.ledger, target - 1e-12))]


def _to_target(s: Ranked) -> list[str]:
    """Rounds and bytes to the target: a mean over seeds only if all get there, as those that do are
    the luckier ones.
    """
    if not s.reached:
        return ["never", "never"]
    rounds, sent = (
        statistics.fmean(getattr(got, name) for got in s.reached) for name in ("round", "bytes")
    )
    if len(s.reached) < len(s.figure):
        return [f"{len(s.reached)} of {len(s.figure)} seeds", ""]
    return [str(round(rounds)), size(sent)]


def _table(ranked: list[Ranked], group: Group, target: float | None) -> Table:
    """The table of a comparison, as it is on the screen, with when methods reach the target."""
    heads, rows = columns(_line(s, group, target) for s in ranked)
    first = 0 if ranked[0].mean is not None else None
    minor = [head for head in heads[2:] if head not in MATTER]
    return Table("ranking", group.title, heads, rows, best=first, minor=minor)


def _line(s: Ranked, group: Group, target: float | None) -> dict[str, str]:
    """A method's line, by column."""
    if not s.figure:
        state = "unreadable" if all(run.ended for run in s.method.runs) else "not finished"
        return {"method": s.method.name, group.metric.title: state}
    line = s.cells(len(s.figure) > 1) | {"method": s.method.name}
    if group.solo is None or len(group.methods) == 1:
        line = {head: cell for head, cell in line.items() if head not in MATTER}
    if group.site:  # there is no other party, and the time is the server's
        line = {
            head: cell
            for head, cell in line.items()
            if head not in ("gained", "hurt", "worst", "time")
        }
    taken = {head: line.pop(head) for head in ("time",) if head in line}
    return line | ({} if target is None else dict(zip(TARGET, _to_target(s), strict=True))) | taken


def sentences(group: Group, ranked: list[Ranked]) -> list[str]:
    """Who is first, by how much and how clearly; who is kindest to its worst party; what pooling
    would give.
    """
    pooled = [s for s in ranked if s.method.pools]
    ranked = [s for s in ranked if not s.method.pools] or ranked
    best, rest = ranked[0], ranked[1:]
    several = (
        f" (± {100 * best.spread:.1f} over {len(best.accuracy)} seeds)"
        if len(best.accuracy) > 1
        else ""
    )
    several = several if group.metric is ACCURACY else f" {group.metric.title}{several}"
    whose = f"on {group.site}'s own test samples" if group.site else "averaged over parties"
    said = [f"{best.method.name} has {best.sure_mean:.1%}{several}, {whose}."]
    if rest:
        second = rest[0]
        ahead = 100 * abs(best.sure_mean - second.sure_mean)
        clear = _difference(best.method, second.method, len(rest), group.metric)
        if clear is None or clear.helped:
            said[0] = (
                f"{best.method.name} is best with {best.sure_mean:.1%}{several}, {ahead:.1f} points"
                f" ahead of {second.method.name}."
            )
        else:
            said[0] = (
                f"{best.method.name} is first with {best.sure_mean:.1%}{several}, but"
                f" {second.method.name} is not clearly behind ({ahead:.1f} points; the 95% interval"
                " of the difference includes zero)."
            )
    alone = next((s for s in ranked if s.method.alone and s.accuracy), None)
    if group.metric not in (ACCURACY, EXPLAINED) and alone and best is not alone:
        ours, theirs = statistics.fmean(best.accuracy), statistics.fmean(alone.accuracy)
        if ours < theirs - WORTH_SAYING:
            said.append(
                f"But its accuracy is {ours:.1%}, less than {theirs:.1%} by training alone."
            )
    if best.method.alone and rest:
        said.append("No method that collaborates does better on average than training alone.")
    said += _kinder([s for s in ranked if not s.method.alone], group.metric)
    said += [
        f"{s.method.name}, which pools the data, has {s.sure_mean:.1%}."
        for s in pooled
        if s is not best
    ]
    return said


def _kinder(joint: list[Ranked], metric: Metric) -> list[str]:
    """Which of the methods that collaborate has the best worst party, if that is not the first of
    them.
    """
    known = [(metric.sign * s.worst_mean, s) for s in joint if s.worst_mean is not None]
    if not known or known[0][1] is not joint[0]:
        return []
    most, kindest = max(known, key=lambda pair: pair[0])
    if most - known[0][0] <= WORTH_SAYING:
        return []
    return [
        f"Of those that collaborate, {kindest.method.name} has the best worst party"
        f" ({kindest.worst_mean:.1%} against {joint[0].worst_mean:.1%} of {joint[0].method.name})."
    ]


def _difference(one: Method, other: Method, rivals: int, metric: Metric) -> Estimate | None:
    """How far the first of several is ahead of the second, on average over parties, paired over the
    test samples of both.
    """
    matching = {run.seed: run for run in other.finished}
    gained = {
        run.seed: between(run, matching[run.seed]) for run in one.finished if run.seed in matching
    }
    return on_average(gained, rivals, metric)
