"""A comparison in four answers that a manager can repeat: does collaborating help, whom, at what
cost, and how sure is that?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comity.metrics.metrics import METRICS
from comity.studies.method_summary import MethodSummary
from comity.studies.party_verdicts import Estimate, PartyVerdict, Verdict
from comity.units import size

NEAR = 0.05
"""How much less a cheaper method may give, of a figure, to be worth a word."""
CHEAPER = 1.5
"""How many times fewer bytes make a method cheaper."""
WHOM = "Whom?"
QUESTIONS = ("Does collaborating help?", WHOM, "At what cost?", "How sure is that?")
NAMED = 3
"""So many parties are named in a sentence; more are counted."""
SUMMED: dict[Verdict, tuple[str, str]] = {
    "gains": ("gains clearly by some method", "gain clearly by some method"),
    "level": ("sees no clear difference", "see no clear difference"),
    "alone": ("is better alone", "are better alone"),
    "too few": ("has too few samples to say", "have too few samples to say"),
    "not judged": ("was not judged", "were not judged"),
}


@dataclass(frozen=True)
class OverallVerdict:
    """Question by question, what a comparison says of everybody together."""

    method: str
    """The one that is spoken of: it gives most on average, as a federation has to agree on one."""
    helps: str
    whom: str
    cost: str
    sure: str

    @property
    def questions(self) -> dict[str, str]:
        """Each answer by its question."""
        every = (self.helps, self.whom, self.cost, self.sure)
        return {question: said for question, said in zip(QUESTIONS, every, strict=True) if said}


def foremost(rows: Sequence[MethodSummary]) -> tuple[MethodSummary, Estimate] | None:
    """The method that gives most on average, and what it gives; None if none was compared with
    SOLO.
    """
    judged = [(row, row.gain) for row in rows if row.gain is not None and row.mean is not None]
    return max(judged, key=lambda pair: pair[1].gain, default=None)


def overall(
    rows: Sequence[MethodSummary], answers: Sequence[PartyVerdict], seeds: int
) -> OverallVerdict | None:
    """What methods that parties could take part in say of all together; None if none of them was
    compared with SOLO.
    """
    first = foremost(rows)
    if first is None:
        return None
    best, gain = first
    others = [row for row in rows if row.gain is not None and row is not best]
    return OverallVerdict(
        best.algorithm,
        _helps(best, gain, len(others) + 1, answers, seeds),
        _whom(best, others, answers, seeds),
        _cost(best, gain, others),
        _sure(best, gain, len(others) + 1, answers, seeds),
    )


def _helps(
    best: MethodSummary, gain: Estimate, methods: int, answers: Sequence[PartyVerdict], seeds: int
) -> str:
    between = (
        f"between {100 * gain.low:.1f} and {100 * gain.high:.1f}{'' if seeds > 1 else '; one seed'}"
    )
    among = f", the best of {methods} methods," if methods > 1 else ""
    what = METRICS[best.metric].title
    said = (
        f"{best.algorithm}{among} gives {100 * gain.gain:+.1f} points of {what} over training alone"
        f" ({between})"
    )
    begin = (
        "Yes, on average"
        if gain.helped
        else "No, on average it costs"
        if gain.hurt
        else "Not clearly, on average"
    )
    return f"{begin}: {said}.{_without_few(best, answers)}"


def _without_few(best: MethodSummary, answers: Sequence[PartyVerdict]) -> str:
    """What the average is without those who have too few samples to judge by, if there are such,
    and others.
    """
    few = [one.party for one in answers if one.verdict == "too few"]
    if not few or best.gain_of_judged is None:
        return ""
    who = ", ".join(few) if len(few) <= NAMED else f"{len(few)} parties"
    return (
        f" Without {who}, which {'has' if len(few) == 1 else 'have'} too few samples to judge by:"
        f" {best.gain_of_judged}."
    )


def _whom(
    best: MethodSummary,
    others: Sequence[MethodSummary],
    answers: Sequence[PartyVerdict],
    seeds: int,
) -> str:
    """Who gains and who is hurt, by the best method and by the others; and what can be said by
    whatever method suits each.
    """
    which = f"{best.judged} parties" + (f" of {seeds} seeds" if best.judged > best.parties else "")
    which = f"the {which} that can be judged" if best.judged < len(answers) else which
    said = []
    if best.judged:
        said.append(
            f"Of {which} {_those(best, 'helped')} clearly by {best.algorithm},"
            f" {_those(best, 'hurt')}."
        )
    if hurting := [f"{row.algorithm} ({row.hurt})" for row in others if row.hurt]:
        said.append(f"Other methods clearly hurt some: {', '.join(hurting)}.")
    counts = {verdict: sum(one.verdict == verdict for one in answers) for verdict in SUMMED}
    if told := [
        f"{count} {SUMMED[verdict][count > 1]}" for verdict, count in counts.items() if count
    ]:
        said.append(f"If each could choose its own method: {', '.join(told)}.")
    return " ".join(said)


def _those(best: MethodSummary, how: str) -> str:
    """Who is helped, or hurt: by name if they are few."""
    names = [party for party, gain in best.gains.items() if getattr(gain, how)]
    verb = {"helped": ("gains", "gain"), "hurt": ("is clearly hurt", "are clearly hurt")}[how]
    if not names:
        return f"none {verb[0]}"
    listed = f" ({', '.join(names)})" if len(names) <= NAMED else ""
    return f"{len(names)}{listed} {verb[len(names) > 1]}"


def _cost(best: MethodSummary, gain: Estimate, others: Sequence[MethodSummary]) -> str:
    """Bytes, and who takes far fewer and gives nearly as much."""
    sent = best.bytes.get("total")
    if sent is None:
        return ""
    each = (
        sent + best.bytes.get("peer", 0.0)
    ) / best.parties  # what goes between parties is sent by one and received by another
    said = (
        f"{size(sent)} are sent in a run of {best.algorithm}; a party sends and receives"
        f" {size(each)}."
    )
    less = [
        (gain.gain - row.gain.gain, row)
        for row in others
        if row.gain and row.mean is not None and row.bytes.get("total")
    ]
    near = [
        (points, row)
        for points, row in less
        if points < NEAR and sent > CHEAPER * row.bytes["total"]
    ]
    if near:
        points, row = min(near, key=lambda pair: pair[0])
        said += (
            f" {row.algorithm} takes {sent / row.bytes['total']:.3g} times less and gives"
            f" {100 * points:.1f} points less."
        )
    return said


def _sure(
    best: MethodSummary, gain: Estimate, methods: int, answers: Sequence[PartyVerdict], seeds: int
) -> str:
    """What the interval means, and what it cannot tell."""
    runs = (
        f"{seeds} seeds"
        if seeds > 1
        else "one seed, so that another start of training may change it"
    )
    picked = f", wide enough for the best of {methods} methods to be picked" if methods > 1 else ""
    said = (
        f"The intervals are at 95% confidence{picked}, over the parties' test samples and {runs}."
    )
    narrow = best.gain_of_judged if _without_few(best, answers) and best.gain_of_judged else gain
    if not (gain.helped or gain.hurt):
        said += (
            f" An average difference below about {50 * (narrow.high - narrow.low):.0f} points"
            " cannot be told from none here."
        )
    return said
