"""Which method is best, by how much, for whom, and at what price: a table, and a sentence made from its figures."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from comity.core.metrics import ACCURACY, EXPLAINED, Metric
from comity.errors import ComityError
from comity.measure.doubts import doubts, few
from comity.measure.gain import Gain, paired_interval
from comity.measure.summary import blocks
from comity.measure.targets import Reached, common_target, reached
from comity.report.blocks import Block, Section, Table, Text
from comity.report.charts import capital
from comity.report.gather import Group, Method, Run
from comity.report.sections.absences import absences
from comity.report.sections.gains import between
from comity.studies.answers import MOST, over_seeds
from comity.studies.compare import folder_name
from comity.studies.standing import Standing, standing
from comity.units import duration, size

WORTH_SAYING = 0.001  # of a figure: what would be shown as the same says nothing


@dataclass(frozen=True)
class Ranked(Standing):
    """A method's line in the table."""

    method: Method
    reached: Reached | None

    @property
    def sure_mean(self) -> float:
        """The mean of a method that has one."""
        assert self.mean is not None
        return self.mean

    @property
    def sent(self) -> float | None:
        """All bytes that crossed in a run, evaluation left out; None where no run is finished."""
        return self.bytes.get("total")


ANSWERS = "answers"
MEASURES = "measures"


def answer(group: Group, folder: Path, target: float | None = None) -> Section:
    """The page's first section: methods ranked, the outcome in a few sentences, and what it says to each party."""
    section = Section("answer", "The answer")
    asked = target
    ranked, target = standings(group, asked)
    finished = [s for s in ranked if s.mean is not None]
    if finished:
        section.say(" ".join(sentences(group, finished)), "lead")
    for run in group.runs:
        if not run.ended:
            planned = f" of {run.experiment.rounds}" if run.experiment else ""
            section.say(
                f"{run.method}, seed {run.seed}, is not finished: it has {run.rounds_done}{planned} rounds. "
                f"Go on with: comity resume {shlex.quote(str(run.folder))}",
                "missing",
            )
        for text in doubts(run.summary) if run.summary else ():
            section.say(f"{run.method}, seed {run.seed}: {text}", "warning")
    if len(group.judged_by) > 1:
        section.say("These runs were judged by different metrics: they are shown by accuracy, which all of them have.", "missing")
    section.blocks.append(_table(ranked, group, target))
    section.blocks += _answers(group, folder / group.name / "comparison.json")
    section.blocks += _measures(group)
    section.blocks += absences(group)
    about = (
        f"{capital(group.metric.title)}: mean over parties on their own test samples after the last round, ± standard deviation "
        "over seeds. Worst: the worst party. Bytes: all that crossed in a run, evaluation left out."
    )
    if group.metric is not ACCURACY:
        about += f" {capital(group.metric.title)} is {group.metric.about}; rounds and methods are chosen by it."
    if group.solo and len(group.methods) > 1:
        each = "parties, of every seed," if len(group.solo.runs) > 1 else "parties"
        about += f" Gained, hurt: {each} whose 95 % interval against SOLO, paired over their test samples, excludes zero."
    if target is not None:
        whose = "what SOLO reaches" if group.solo and group.solo.finished else "what the weakest method reaches"
        whose = whose if asked is None else "as asked"
        seeds = ", mean of the seeds that get there" if any(len(m.runs) > 1 for m in group.methods) else ""
        about += f" Target: {target:.1%}, {whose}; rounds and bytes until a method is as good{seeds}."
    section.say(about)
    return section


def _answers(group: Group, path: Path) -> list[Block]:
    """What the comparison said to each party, if it was one of these methods by this metric."""
    if not path.exists():
        return []
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(told, dict):
            raise TypeError
        if "answers" not in told:  # of an earlier version
            return []
        rows = [[one["party"], one["says"]] for one in told["answers"]]
        methods = {folder_name(row["algorithm"]) for row in told["rows"]}
        if not all(isinstance(cell, str) for row in [*rows, [told["reading"]]] for cell in row):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ComityError):
        return [Text("comparison.json is damaged: what it says to each party cannot be shown.", "missing")]
    if told["metric"] != group.metric.name or not methods <= {run.folder.parent.name for run in group.runs}:
        return [Text("comparison.json is not of these runs: what it says to each party is left out.", "missing")]
    if not rows:
        return []
    table = Table(ANSWERS, "Does collaborating help?", ["party", "answer"], rows, words=2, folded=len(rows) > MOST)
    return [table, Text(told["reading"])]


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
    names = [m.name for m in group.methods if any(m.name in by_method for by_method in found.values())]
    rows = [[n, *(metric.text(statistics.fmean(some[n])) if n in some else "" for metric, some in found.items())] for n in names]
    without = [f"{title}: {few(sorted(parties))}" for title, parties in lacking.items() if parties]
    said = f" Without a figure, and in no mean: {'; '.join(without)}." if without else ""
    table = Table(MEASURES, "By other measures", ["method", *(metric.title for metric in found)], rows)
    return [table, Text(f"Means over parties on their own test samples after the last round.{said}")]


def standings(group: Group, target: float | None = None) -> tuple[list[Ranked], float | None]:
    """All methods, the best first, and the figure that they are timed to."""
    if target is None:
        target = _target(group)
    found = []
    for method in group.methods:
        runs = method.finished
        gains = [gain for run in runs if (alone := group.alone(run)) and alone is not run for gain in between(run, alone)]
        figures = standing(method.name, method.summaries, gains, group.metric.name)
        found.append(Ranked(**vars(figures), method=method, reached=None if target is None else _reached(runs, target)))
    return sorted(found, key=lambda s: -s.goodness), target


def _target(group: Group) -> float | None:
    final = {m.name: [run.curve[max(run.curve)] for run in m.finished if run.curve] for m in group.methods}
    if group.solo and final[group.solo.name]:
        return statistics.fmean(final[group.solo.name])
    lines = {name: {0: statistics.fmean(values)} for name, values in final.items() if values}
    return common_target(lines) if len(lines) > 1 else None


def _reached(runs: Iterable[Run], target: float) -> Reached | None:
    """Means over the seeds that get there; a hair below counts, as means of the same figures may differ by rounding."""
    found = [got for run in runs if (got := reached(run.curve, run.ledger, target - 1e-12))]
    if not found:
        return None
    return Reached(round(statistics.fmean(g.round for g in found)), round(statistics.fmean(g.bytes for g in found)))


def _table(ranked: list[Ranked], group: Group, target: float | None) -> Table:
    alone = group.solo is not None and len(group.methods) > 1
    beside = [] if group.metric in (ACCURACY, EXPLAINED) else [ACCURACY.title]
    heads = ["method", group.metric.title, *beside, "worst party", *(["gained", "hurt"] if alone else []), "bytes"]
    heads += ["rounds to target", "bytes to target"] if target is not None else []
    rows = []
    for s in ranked:
        row = [s.method.name]
        row.append(_figure(s))
        row += [f"{statistics.fmean(s.accuracy):.1%}" if s.accuracy else ""] if beside else []
        row.append("" if s.worst_mean is None else f"{s.worst_mean:.1%}")
        if alone:
            row += [f"{s.gained}/{s.judged}", f"{s.hurt}/{s.judged}"] if s.judged else ["", ""]
        row.append("" if s.sent is None else size(s.sent))
        if target is not None:
            never = "never" if s.accuracy else ""
            row += [str(s.reached.round), size(s.reached.bytes)] if s.reached else [never, never]
        rows.append([*row, "" if s.seconds is None else duration(s.seconds)])
    first = 0 if ranked[0].mean is not None else None
    minor = [head for head in [*heads[2:], "time"] if head not in ("gained", "hurt")]
    return Table("ranking", group.title, [*heads, "time"], rows, best=first, minor=minor)


def _figure(s: Ranked) -> str:
    if not s.accuracy:
        return "unreadable" if all(run.ended for run in s.method.runs) else "not finished"
    if s.mean is None:
        return "diverged"
    return f"{s.mean:.1%}" + (f" ± {100 * s.spread:.1f}" if len(s.accuracy) > 1 else "")


def sentences(group: Group, ranked: list[Ranked]) -> list[str]:
    """The winner and what it costs, from the figures alone."""
    pooled = [s for s in ranked if s.method.pools]
    ranked = [s for s in ranked if not s.method.pools] or ranked
    best, rest = ranked[0], ranked[1:]
    several = f" (± {100 * best.spread:.1f} over {len(best.accuracy)} seeds)" if len(best.accuracy) > 1 else ""
    several = several if group.metric is ACCURACY else f" {group.metric.title}{several}"
    said = [f"{best.method.name} has {best.sure_mean:.1%}{several}, averaged over parties."]
    if rest:
        second = rest[0]
        ahead = 100 * abs(best.sure_mean - second.sure_mean)
        clear = _difference(best.method, second.method, group.metric)
        if clear is None or clear[0] > 0:
            said[0] = (
                f"{best.method.name} is best with {best.sure_mean:.1%}{several}, {ahead:.1f} points ahead of "
                f"{second.method.name}."
            )
        else:
            said[0] = (
                f"{best.method.name} is first with {best.sure_mean:.1%}{several}, but {second.method.name} is not clearly "
                f"behind ({ahead:.1f} points; the 95 % interval of the difference includes zero)."
            )
    alone = next((s for s in rest if s.method.alone), None)
    if best.method.alone and rest:
        said.append("No method that collaborates does better on average than training alone.")
    elif alone and best.judged:
        loses = f"{best.hurt} clearly {'loses' if best.hurt == 1 else 'lose'}" if best.hurt else "none clearly loses"
        gain = f"{best.gained} clearly {'gains' if best.gained == 1 else 'gain'}" if best.gained else "none clearly gains"
        seeds = " (of all seeds)" if len(best.accuracy) > 1 else ""
        more = group.metric.sign * (best.sure_mean - alone.sure_mean)
        said.append(f"Against training alone it has {100 * more:+.1f} points: of {best.judged} parties{seeds} {gain}, {loses}.")
    said += _price(best, [s for s in rest if not s.method.alone], group.metric)
    said += [f"{s.method.name}, which pools the data, has {s.sure_mean:.1%}." for s in pooled if s is not best]
    return said


def _price(best: Ranked, others: list[Ranked], metric: Metric) -> list[str]:
    """Who is nearly as good for less."""
    said = []
    near = [s for s in others if best.goodness - s.goodness < 0.05]
    cheaper = [s for s in near if s.sent and best.sent and best.sent > 1.5 * s.sent]
    if cheaper and best.sent:
        s = max(cheaper, key=lambda s: s.goodness)
        said.append(
            f"{s.method.name} sends {best.sent / (s.sent or 1):.3g} times fewer bytes for "
            f"{100 * (best.goodness - s.goodness):.1f} points less."
        )
    worst = {id(s): s.worst_mean for s in [best, *others] if s.worst_mean is not None}
    kinder = [s for s in others if id(s) in worst and metric.sign * (worst[id(s)] - worst[id(best)]) > WORTH_SAYING]
    if kinder:
        s = max(kinder, key=lambda s: metric.sign * worst[id(s)])
        said.append(
            f"Of those that collaborate, {s.method.name} has the best worst party ({worst[id(s)]:.1%} against "
            f"{worst[id(best)]:.1%})."
        )
    return said


def _difference(one: Method, other: Method, metric: Metric) -> tuple[float, float] | None:
    """The 95 % interval of the difference between two methods, paired over the test samples of the seeds that both have."""
    return _in_accuracy(one, other) if metric is ACCURACY else _in_metric(one, other)


def _in_metric(one: Method, other: Method) -> tuple[float, float] | None:
    """Of the mean over parties, by another metric than accuracy."""
    seeds = []
    for run in one.finished:
        match = next((r for r in other.finished if r.seed == run.seed), None)
        if match and (gains := between(run, match)):
            mean, middle = (statistics.fmean(getattr(gain, name) for gain in gains) for name in ("gain", "middle"))
            error = math.sqrt(sum(gain.error**2 for gain in gains)) / len(gains)
            seeds.append(Gain("", mean, 0.0, 0.0, middle, error))
    if not seeds:
        return None
    found = over_seeds(seeds, methods=1)
    return found.low, found.high


def _in_accuracy(one: Method, other: Method) -> tuple[float, float] | None:
    """Of the share of all test samples together."""
    better = worse = count = 0
    for run in one.finished:
        match = next((r for r in other.finished if r.seed == run.seed), None)
        if match is None:
            continue
        for party, right in run.outcomes.items():
            theirs = match.outcomes.get(party, [])
            if len(theirs) == len(right):
                better += sum(a > b for a, b in zip(right, theirs, strict=True))
                worse += sum(a < b for a, b in zip(right, theirs, strict=True))
                count += len(right)
    return paired_interval(better, worse, count) if count else None
