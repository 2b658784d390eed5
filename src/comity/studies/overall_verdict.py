"""The overall verdict of a comparison, a few sentences for each question: whether collaborating
helps, whom, at what cost, how certain that is, and what would settle it where it is not clear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comity.metrics.metrics import METRICS
from comity.studies.estimate import OVER_OWN_MODEL, Estimate, Verdict
from comity.studies.method_summary import MethodSummary
from comity.studies.party_verdicts import PartyVerdict, describe_folds
from comity.studies.power import Power
from comity.units import duration, size

NEAR = 0.05
"""The largest difference in gain at which a cheaper method is mentioned."""
CHEAPER = 1.5
"""The factor in bytes from which on a method counts as cheaper."""
WHOM = "Whom?"
SURE = "How sure is that?"
QUESTIONS = (
    "Does collaborating help?",
    WHOM,
    "At what cost?",
    SURE,
    "What would settle it?",
)
POINT = 0.01
MOSTLY = 0.4
"""The change of the mean gain without one party, of its size, from which on it is mentioned."""
ENOUGH_SEEDS = 5
"""With fewer seeds, their variance is too uncertain to say that nothing would settle it."""
_NUMBERS = {2: "Two", 3: "Three", 4: "Four"}
MOST_NAMED = 3
"""The most parties that a sentence names; more are counted."""
SUMMED: dict[Verdict, tuple[str, str]] = {
    "gains": ("gains clearly by some method", "gain clearly by some method"),
    "level": ("sees no clear difference", "see no clear difference"),
    "alone": ("is better alone", "are better alone"),
    "too few": ("has too few samples to say", "have too few samples to say"),
    "not judged": ("was not judged", "were not judged"),
}


@dataclass(frozen=True)
class OverallVerdict:
    """The verdict of a comparison for all parties together, by question."""

    method: str
    """The method with the largest mean gain, which the verdict is about."""
    helps: str
    whom: str
    cost: str
    sure: str
    settle: str = ""
    """How many more samples or runs would probably settle what is not clear."""

    @property
    def questions(self) -> dict[str, str]:
        """The answers by question, without empty ones."""
        answers = (self.helps, self.whom, self.cost, self.sure, self.settle)
        return {question: text for question, text in zip(QUESTIONS, answers, strict=True) if text}


def best_on_average(rows: Sequence[MethodSummary]) -> tuple[MethodSummary, Estimate] | None:
    """Return the method with the largest mean gain, and that gain; None without any gain."""
    candidates = [(row, row.gain) for row in rows if row.gain is not None and row.mean is not None]
    return max(candidates, key=lambda pair: pair[1].gain, default=None)


def overall_verdict(
    rows: Sequence[MethodSummary],
    answers: Sequence[PartyVerdict],
    seeds: int,
    folds: int = 1,
    samples: int = 0,
) -> OverallVerdict | None:
    """Return the overall verdict; None if no method was compared with the baseline.

    Args:
        rows: The methods in which parties could take part.
        answers: The verdicts of the parties.
        seeds: The number of seeds, or of repeats of cross-validation.
        folds: The number of folds of cross-validation; 1 without it.
        samples: The number of samples of all parties that are tested on; 0 if it is not known.
    """
    first = best_on_average(rows)
    if first is None:
        return None
    best, gain = first
    others = [row for row in rows if row.gain is not None and row is not best]
    return OverallVerdict(
        best.algorithm,
        _helps(best, gain, len(others) + 1, answers, seeds * folds),
        _whom(best, others, answers, seeds),
        _cost(best, gain, others, folds),
        _sure(best, gain, len(others) + 1, answers, _tested_on(seeds, folds)),
        _settle(gain, answers, samples, seeds if folds == 1 else 0),
    )


def _helps(
    best: MethodSummary, gain: Estimate, methods: int, answers: Sequence[PartyVerdict], seeds: int
) -> str:
    between = (
        f"between {100 * gain.low:.1f} and {100 * gain.high:.1f}{'' if seeds > 1 else '; one seed'}"
    )
    among = f", the best of {methods} methods," if methods > 1 else ""
    what = METRICS[best.metric].title
    alone = "each party's own model" if best.baseline == OVER_OWN_MODEL else "training alone"
    sentence = (
        f"{best.algorithm}{among} gives {100 * gain.gain:+.1f} points of {what} over {alone}"
        f" ({between})"
    )
    begin = (
        "Yes, on average"
        if gain.helped
        else "No, on average it costs"
        if gain.hurt
        else "Not clearly, on average"
    )
    rests_on = _without_few(best, answers) or _without_one(best, gain, answers)
    return f"{begin}: {sentence}.{rests_on}"


def _without_few(best: MethodSummary, answers: Sequence[PartyVerdict]) -> str:
    """Return a sentence on the mean gain without parties that have too few samples, if any."""
    excluded = [answer.party for answer in answers if answer.verdict == "too few"]
    if not excluded or best.gain_of_judged is None:
        return ""
    who = ", ".join(excluded) if len(excluded) <= MOST_NAMED else f"{len(excluded)} parties"
    if best.gain_of_judged == best.gain:
        one = len(excluded) == 1
        return (
            f" {who}, which {'has' if one else 'have'} too few samples to judge by,"
            f" {'is' if one else 'are'} not in this mean."
        )
    return (
        f" Without {who}, which {'has' if len(excluded) == 1 else 'have'} too few samples to"
        f" judge by: {best.gain_of_judged}."
    )


def _without_one(best: MethodSummary, gain: Estimate, answers: Sequence[PartyVerdict]) -> str:
    """Return a sentence on the mean gain without the party that it mostly rests on, if any."""
    samples = {answer.party: answer.samples for answer in answers}
    for party, without in best.gain_without.items():
        changed = abs(without.gain - gain.gain)
        is_large = changed >= POINT and changed > MOSTLY * abs(gain.gain)
        if is_large or ((gain.helped or gain.hurt) and without.verdict != gain.verdict):
            count = f" ({samples[party]:,} samples)" if samples.get(party) else ""
            return (
                f" Each party counts equally, whatever its size; without {party}{count}: {without}."
            )
    return ""


def _whom(
    best: MethodSummary,
    others: Sequence[MethodSummary],
    answers: Sequence[PartyVerdict],
    seeds: int,
) -> str:
    """Say who gains and who is hurt by the best method and by others, and count the verdicts."""
    which = f"{best.judged} parties" + (f" of {seeds} seeds" if best.judged > best.parties else "")
    if best.judged < len(answers):
        which = f"the {which} that can be judged" if best.judged > 1 else "the only judged party"
    sentences = []
    if best.judged:
        sentences.append(
            f"Of {which} {_those(best, 'helped')} clearly by {best.algorithm},"
            f" {_those(best, 'hurt')}."
        )
    if hurting := [f"{row.algorithm} ({row.hurt})" for row in others if row.hurt]:
        sentences.append(f"Other methods clearly hurt some: {', '.join(hurting)}.")
    counts = {verdict: sum(a.verdict == verdict for a in answers) for verdict in SUMMED}
    if phrases := [
        f"{count} {SUMMED[verdict][count > 1]}" for verdict, count in counts.items() if count
    ]:
        sentences.append(f"If each could choose its own method: {', '.join(phrases)}.")
    return " ".join(sentences)


def _those(best: MethodSummary, how: str) -> str:
    """Say how many parties are helped, or hurt, with their names if they are few."""
    names = [party for party, gain in best.gains.items() if getattr(gain, how)]
    verb = {"helped": ("gains", "gain"), "hurt": ("is clearly hurt", "are clearly hurt")}[how]
    if not names:
        return f"none {verb[0]}"
    listed = f" ({', '.join(names)})" if len(names) <= MOST_NAMED else ""
    return f"{len(names)}{listed} {verb[len(names) > 1]}"


def _cost(best: MethodSummary, gain: Estimate, others: Sequence[MethodSummary], folds: int) -> str:
    """Say how many bytes and seconds the best method takes, and which method that takes fewer bytes
    gives nearly as much.
    """
    total = best.bytes.get("total")
    if total is None:
        return ""
    # Bytes between parties are sent by one party and received by another.
    per_party = (total + best.bytes.get("peer", 0.0)) / best.parties
    text = (
        f"{size(total)} are sent in a run of {best.algorithm}; a party sends and receives"
        f" {size(per_party)}."
    )
    if best.seconds is not None:
        runs = f"The runs of all {folds} folds" if folds > 1 else "A run"
        text += f" {runs} took {duration(best.seconds)} here."
    less = [
        (gain.gain - row.gain.gain, row)
        for row in others
        if row.gain and row.mean is not None and row.bytes.get("total")
    ]
    near = [
        (points, row)
        for points, row in less
        if points < NEAR and total > CHEAPER * row.bytes["total"]
    ]
    if near:
        points, row = min(near, key=lambda pair: pair[0])
        text += (
            f" {row.algorithm} takes {total / row.bytes['total']:.3g} times less and gives"
            f" {100 * points:.1f} points less."
        )
    return text


def _tested_on(seeds: int, folds: int) -> str:
    """Say which samples and runs an interval is over."""
    if folds > 1:
        return f"all of the parties' samples ({describe_folds(folds, seeds)})"
    if seeds > 1:
        return f"the parties' test samples and {seeds} seeds"
    return "the parties' test samples and one seed, so that another start of training may change it"


def _sure(
    best: MethodSummary,
    gain: Estimate,
    methods: int,
    answers: Sequence[PartyVerdict],
    tested_on: str,
) -> str:
    """Say what the intervals mean, and which differences are too small to be seen."""
    picked = (
        f", Bonferroni-corrected for choosing the best of {methods} methods" if methods > 1 else ""
    )
    text = f"The intervals are at 95% confidence{picked}, over {tested_on}."
    narrow = best.gain_of_judged if _without_few(best, answers) and best.gain_of_judged else gain
    if not (gain.helped or gain.hurt):
        text += (
            f" An average difference below about {50 * (narrow.high - narrow.low):.0f} points"
            " cannot be told from none here."
        )
    return text


def _settle(gain: Estimate, answers: Sequence[PartyVerdict], samples: int, seeds: int) -> str:
    """Say what would show the mean gain, and those of the parties, where they are not clear.

    The number of runs that it takes is known only after a few: `seeds` is their number, or 0 under
    cross-validation.
    """
    sentences = []
    power = None if gain.helped or gain.hurt else Power.of(gain, samples)
    unclear = [answer.power for answer in answers if answer.power]
    no_remedy = bool(power and not power.remedies)
    no_remedy_at_parties = bool(unclear) and not any(p.remedies for p in unclear)
    few_seeds = 1 < seeds < ENOUGH_SEEDS
    if power and power.remedies:
        now = f" over all parties (now {samples:,})" if power.more_samples else ""
        sentences.append(
            f"The average difference would probably show with {' or '.join(power.remedies)}{now}."
        )
    elif power and not few_seeds:
        sentences.append(
            "The average difference is so small that no realistic number of samples or runs would"
            " show it."
        )
    if few_seeds and (no_remedy or no_remedy_at_parties):
        sentences.append(
            f"{_NUMBERS[seeds]} seeds are too few to say what would settle it; use five or more."
        )
    if unclear and not (few_seeds and no_remedy_at_parties):
        sentences.append(_settle_parties(answers))
    return " ".join(sentences)


def _settle_parties(answers: Sequence[PartyVerdict]) -> str:
    """Say what single parties need: each of few, a range of many."""
    unclear = {answer.party: answer.power for answer in answers if answer.power}
    resolvable = {party: power for party, power in unclear.items() if power.remedies}
    without = len(unclear) - len(resolvable)
    if not resolvable:
        return (
            "Single parties: no realistic number of samples would show a gain as small as theirs."
        )
    if len(resolvable) <= MOST_NAMED:
        needs = [f"{party} needs {' or '.join(p.remedies)}" for party, p in resolvable.items()]
        rest = f"; {without} more would need unrealistically many" if without else ""
        return f"Single parties: {'; '.join(needs)}{rest}."
    numbers = [power.more_samples for power in resolvable.values() if power.more_samples]
    text = f"Single parties: {len(resolvable)} of {len(unclear)} without a clear difference need"
    if numbers:
        kind = next(iter(resolvable.values())).kind_of_samples
        return f"{text} more {kind}, between {min(numbers):,} and {max(numbers):,} each."
    return f"{text} more runs."
