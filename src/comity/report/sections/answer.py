"""Which method is best, by how much, for whom, and at what price: a table, and a sentence made from its figures."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from comity.measure.doubts import doubts
from comity.measure.gain import paired_interval
from comity.measure.targets import Reached, common_target, reached
from comity.report.blocks import Section, Table
from comity.report.gather import Group, Method, Run
from comity.report.sections.absences import absences
from comity.report.sections.gains import between
from comity.studies.standing import Standing, standing
from comity.units import duration, size


@dataclass(frozen=True)
class Ranked(Standing):
    """A method's line in the table."""

    method: Method
    reached: Reached | None

    @property
    def sent(self) -> float | None:
        """All bytes that crossed in a run, evaluation left out; None where no run is finished."""
        return self.bytes.get("total")


def answer(group: Group, target: float | None = None) -> Section:
    """The page's first section: methods ranked, and the outcome in a few sentences."""
    section = Section("answer", "The answer")
    asked = target
    ranked, target = standings(group, asked)
    finished = [s for s in ranked if s.accuracy]
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
    section.blocks.append(_table(ranked, group, target))
    section.blocks += absences(group)
    about = (
        "Accuracy: mean over parties on their own test samples after the last round, ± standard deviation over seeds. "
        "Worst: the worst party. Bytes: all that crossed in a run, evaluation left out."
    )
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


def standings(group: Group, target: float | None = None) -> tuple[list[Ranked], float | None]:
    """All methods, the best first, and the accuracy that they are timed to."""
    if target is None:
        target = _target(group)
    found = []
    for method in group.methods:
        runs = method.finished
        gains = [gain for run in runs if (alone := group.alone(run)) and alone is not run for gain in between(run, alone)]
        figures = standing(method.name, method.summaries, gains)
        found.append(Ranked(**vars(figures), method=method, reached=None if target is None else _reached(runs, target)))
    return sorted(found, key=lambda s: -s.mean), target


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
    heads = ["method", "accuracy", "worst party", *(["gained", "hurt"] if alone else []), "bytes"]
    heads += ["rounds to target", "bytes to target"] if target is not None else []
    rows = []
    for s in ranked:
        row = [s.method.name]
        row.append(_accuracy(s))
        row.append(f"{statistics.fmean(s.worst):.1%}" if s.worst else "")
        if alone:
            row += [f"{s.gained}/{s.judged}", f"{s.hurt}/{s.judged}"] if s.judged else ["", ""]
        row.append("" if s.sent is None else size(s.sent))
        if target is not None:
            never = "never" if s.accuracy else ""
            row += [str(s.reached.round), size(s.reached.bytes)] if s.reached else [never, never]
        rows.append([*row, "" if s.seconds is None else duration(s.seconds)])
    return Table("ranking", group.title, [*heads, "time"], rows, best=0 if ranked[0].accuracy else None)


def _accuracy(s: Ranked) -> str:
    if not s.accuracy:
        return "unreadable" if all(run.ended for run in s.method.runs) else "not finished"
    return f"{s.mean:.1%}" + (f" ± {100 * s.spread:.1f}" if len(s.accuracy) > 1 else "")


def sentences(group: Group, ranked: list[Ranked]) -> list[str]:
    """The winner and what it costs, from the figures alone."""
    pooled = [s for s in ranked if s.method.pools]
    ranked = [s for s in ranked if not s.method.pools] or ranked
    best, rest = ranked[0], ranked[1:]
    several = f" (± {100 * best.spread:.1f} over {len(best.accuracy)} seeds)" if len(best.accuracy) > 1 else ""
    said = [f"{best.method.name} has {best.mean:.1%}{several}, averaged over parties."]
    if rest:
        second = rest[0]
        ahead = 100 * (best.mean - second.mean)
        clear = _difference(best.method, second.method)
        if clear is None or clear[0] > 0:
            said[0] = (
                f"{best.method.name} is best with {best.mean:.1%}{several}, {ahead:.1f} points ahead of {second.method.name}."
            )
        else:
            said[0] = (
                f"{best.method.name} is first with {best.mean:.1%}{several}, but {second.method.name} is not clearly "
                f"behind ({ahead:.1f} points; the 95 % interval of the difference includes zero)."
            )
    alone = next((s for s in rest if s.method.alone), None)
    if best.method.alone and rest:
        said.append("No method that collaborates does better on average than training alone.")
    elif alone and best.judged:
        loses = f"{best.hurt} clearly {'loses' if best.hurt == 1 else 'lose'}" if best.hurt else "none clearly loses"
        gain = f"{best.gained} clearly {'gains' if best.gained == 1 else 'gain'}" if best.gained else "none clearly gains"
        seeds = " (of all seeds)" if len(best.accuracy) > 1 else ""
        said.append(
            f"Against training alone it has {100 * (best.mean - alone.mean):+.1f} points: of {best.judged} parties{seeds} "
            f"{gain}, {loses}."
        )
    said += _price(best, [s for s in rest if not s.method.alone])
    said += [f"{s.method.name}, which pools the data, has {s.mean:.1%}." for s in pooled if s is not best]
    return said


def _price(best: Ranked, others: list[Ranked]) -> list[str]:
    """Who is nearly as good for less."""
    said = []
    cheaper = [s for s in others if s.sent and best.sent and best.sent > 1.5 * s.sent and best.mean - s.mean < 0.05]
    if cheaper and best.sent:
        s = max(cheaper, key=lambda s: s.mean)
        said.append(
            f"{s.method.name} sends {best.sent / (s.sent or 1):.3g} times fewer bytes for "
            f"{100 * (best.mean - s.mean):.1f} points less."
        )
    kinder = [s for s in others if best.worst and s.worst and statistics.fmean(s.worst) > statistics.fmean(best.worst)]
    if kinder:
        s = max(kinder, key=lambda s: statistics.fmean(s.worst))
        said.append(
            f"Of those that collaborate, {s.method.name} has the best worst party ({statistics.fmean(s.worst):.1%} against "
            f"{statistics.fmean(best.worst):.1%})."
        )
    return said


def _difference(one: Method, other: Method) -> tuple[float, float] | None:
    """The 95 % interval of the difference over all test samples of the seeds that both have, paired."""
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
