"""A comparison in four answers that a manager can repeat: does collaborating help, whom, at what cost, and how sure is that?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comity.core.metrics import METRICS
from comity.studies.answers import Answer, Estimate, Verdict
from comity.studies.standing import Standing
from comity.units import size

NEAR = 0.05
"""How much less a cheaper method may give, of a figure, to be worth a word."""
CHEAPER = 1.5
"""How many times fewer bytes make a method cheaper."""
QUESTIONS = ("Does collaborating help?", "Whom?", "At what cost?", "How sure is that?")
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
class Overall:
    """Question by question, what a comparison says of everybody together."""

    helps: str
    whom: str
    cost: str
    sure: str

    @property
    def questions(self) -> dict[str, str]:
        """Each answer by its question."""
        every = (self.helps, self.whom, self.cost, self.sure)
        return {question: said for question, said in zip(QUESTIONS, every, strict=True) if said}


def overall(rows: Sequence[Standing], answers: Sequence[Answer], seeds: int) -> Overall | None:
    """What the methods `rows` that parties could take part in say of all together; None if none of them was compared with SOLO.

    The method that is spoken of gives most on average: a federation has to agree on one.
    """
    judged = {row.algorithm: (row, row.gain) for row in rows if row.gain is not None and row.mean is not None}
    if not judged:
        return None
    best, gain = max(judged.values(), key=lambda pair: pair[1].gain)
    less = [(row, gain.gain - its.gain) for row, its in judged.values()]
    return Overall(
        _helps(best, gain, len(judged)), _whom(best, answers, seeds), _cost(best, less), _sure(best, gain, answers, seeds)
    )


def _helps(best: Standing, gain: Estimate, methods: int) -> str:
    between = f"between {100 * gain.low:.1f} and {100 * gain.high:.1f}"
    gives = f"gives {100 * gain.gain:+.1f} points of {METRICS[best.metric].title} over training alone ({between})"
    among = f", the best of {methods} methods," if methods > 1 else ""
    if gain.helped:
        return f"Yes, on average: {best.algorithm}{among} {gives}."
    if gain.hurt:
        return f"No, on average it costs: {best.algorithm}{among} {gives}."
    return f"Not clearly, on average: {best.algorithm}{among} {gives}."


def _whom(best: Standing, answers: Sequence[Answer], seeds: int) -> str:
    """Who gains and who is hurt by the best method; and what can be said of everybody by whatever method."""
    which = f"{best.judged} parties" + (f" of {seeds} seeds" if best.judged > best.parties else "")
    which = f"the {which} that can be judged" if best.judged < len(answers) else which
    said = f"Of {which} {_those(best, 'helped')} clearly by {best.algorithm}, {_those(best, 'hurt')}." if best.judged else ""
    counts = {verdict: sum(one.verdict == verdict for one in answers) for verdict in SUMMED}
    told = [f"{count} {SUMMED[verdict][count > 1]}" for verdict, count in counts.items() if count]
    return f"{said} By whichever method suits each: {', '.join(told)}.".strip() if told else said


def _those(best: Standing, how: str) -> str:
    """Who is helped, or hurt: by name if they are few."""
    names = [party for party, gain in best.gains.items() if getattr(gain, how)]
    verb = {"helped": ("gains", "gain"), "hurt": ("is clearly hurt", "are clearly hurt")}[how]
    if not names:
        return f"none {verb[0]}"
    listed = f" ({', '.join(names)})" if len(names) <= NAMED else ""
    return f"{len(names)}{listed} {verb[len(names) > 1]}"


def _cost(best: Standing, others: Sequence[tuple[Standing, float]]) -> str:
    """Bytes, and who takes far fewer and gives nearly as much: `others` come with how much less they give."""
    sent = best.bytes.get("total")
    if sent is None:
        return ""
    said = f"{size(sent)} cross in a run of {best.algorithm}, {size(sent / best.parties)} a party."
    near = [(less, row) for row, less in others if less < NEAR and sent > CHEAPER * row.bytes.get("total", sent)]
    if near:
        less, row = min(near, key=lambda pair: pair[0])
        said += (
            f" {row.algorithm} takes {sent / row.bytes['total']:.3g} times fewer bytes and gives {100 * less:.1f} points less."
        )
    return said


def _sure(best: Standing, gain: Estimate, answers: Sequence[Answer], seeds: int) -> str:
    """What the interval means, and what it cannot tell."""
    runs = f"{seeds} seeds" if seeds > 1 else "one seed, so that another start of training may change it"
    said = f"95% confidence, over the parties' test samples and {runs}."
    if not (gain.helped or gain.hurt):
        said += f" An average difference below about {50 * (gain.high - gain.low):.0f} points cannot be told from none here."
    few = [one.party for one in answers if one.verdict == "too few"]
    if few and best.gain_of_judged:
        who = ", ".join(few) if len(few) <= NAMED else f"the {len(few)} parties"
        has = "has" if len(few) == 1 else "have"
        said += f" Without {who}, which {has} too few samples to judge by, the average is {best.gain_of_judged}."
    return said
