"""The verdict of a race: what to use, or what cannot be told and what it would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from comity.names import OWN_MODEL, SOLO, display_name
from comity.studies.advise.evidence import further
from comity.studies.advise.race import Race
from comity.studies.estimate import Estimate, Variances
from comity.studies.power import MOST_REPEATS, MOST_TIMES, Power, visible_difference
from comity.text import join_names
from comity.units import points

BASELINES = {
    SOLO: "training alone",
    OWN_MODEL: "each party's own model (the better of training alone and plain models)",
}
"""What gains are over, in words."""
Kind = Literal["use", "equal", "alone", "cannot tell"]


@dataclass(frozen=True)
class PartyGain:
    """A party's gain by the recommended method."""

    party: str
    gain: Estimate


@dataclass(frozen=True)
class AdviceVerdict:
    """The verdict on a federation."""

    kind: Kind
    method: str
    """The method to use; `solo` to stay alone. Where it cannot be told, the most promising one."""
    sentence: str
    gain: Estimate | None
    """The gain of the most promising method over the baseline of the race."""
    equal: tuple[str, ...] = ()
    """Methods that are equal to it within the margin."""
    open_against: tuple[str, ...] = ()
    """Methods of which it is not known whether they are better or worse."""
    worse: tuple[str, ...] = ()
    """Methods that are clearly worse than `method`."""
    parties: tuple[PartyGain, ...] = ()
    hurt: tuple[str, ...] = ()
    """The parties that are clearly hurt by `method`."""
    may_be_hurt: tuple[str, ...] = ()
    """The parties whose interval reaches below zero by more than the margin. Intervals of parties
    hold for all parties together.
    """

    def plain(self) -> dict[str, Any]:
        """Return the entry of advice.json."""
        return {
            **vars(self),
            "gain": self.gain and self.gain.interval,
            "parties": {p.party: p.gain.interval for p in self.parties},
        }


def party_gains(race: Race, method: str) -> tuple[PartyGain, ...]:
    """Return the parties' gains by a method."""
    if method == SOLO or not race.folds_of(method):
        return ()
    first = next(o for s, o in race.outcomes.items() if s.method == method and not s.half)
    gains = ((name, race.gain(method, name)) for name in first.values)
    return tuple(PartyGain(name, gain) for name, gain in gains if gain is not None)


def hurt_by(race: Race, method: str) -> list[str]:
    """Return the parties that a method clearly hurts."""
    return [p.party for p in party_gains(race, method) if p.gain.hurt]


def give_verdict(race: Race, max_hurt: int | None = None) -> AdviceVerdict:
    """Return the verdict of a race.

    Args:
        race: The finished race.
        max_hurt: How many parties a method may clearly hurt; None for any number.
    """
    finished = race.ranking
    excluded: list[str] = []
    if max_hurt is not None:  # methods that were not tested may take the place of those that were
        every = sorted(
            (a.method for a in race.arms if a.method != SOLO and race.folds_of(a.method)),
            key=lambda m: (m not in finished, -race.score(m)),
        )
        excluded = [m for m in every if len(hurt_by(race, m)) > max_hurt]
        finished = [m for m in every if m not in excluded]
    if not finished:
        why = (
            f"Every method that was tried clearly hurts more than {max_hurt} parties:"
            f" {join_names(list(map(display_name, excluded)))}."
            if excluded
            else "No method could finish its rounds."
        )
        return AdviceVerdict("alone", SOLO, f"Stay alone. {why}", None)
    best = finished[0]
    gain = race.gain(best)
    assert gain is not None
    margin, over = race.rule.margin, BASELINES[race.baseline]
    tested = [m for m in finished if m in race.finalists] or [best]
    if all(of_one is None or of_one.high < margin for of_one in map(race.gain, tested)):
        return AdviceVerdict("alone", SOLO, _stay_alone(race, tested), **_about(race, best))
    against = {  # the best minus the other; of those that left, on the fold that chose
        arm.method: difference
        for arm in race.arms
        if arm.method not in (SOLO, best, *excluded)
        and (difference := race.difference(best, arm.method)) is not None
    }
    equal = [m for m, d in against.items() if -margin < d.low and d.high < margin]
    worse = [m for m, d in against.items() if d.low > 0 and m not in equal]
    unknown = [m for m in against if m not in equal and m not in worse]
    lists: dict[str, Any] = {"open_against": tuple(unknown), "worse": tuple(worse)}
    if gain.low <= 0:
        likely = gain.gain > 0
        sentence = (
            f"It cannot be told whether collaborating helps: {_promising(race, [best])}"
            f" gains {gain} over {over}. {_needed(race, best, gain)}"
            f" {f'If you go on, try {display_name(best)}' if likely else 'For now, stay alone'}."
        )
        method = best if likely else SOLO
        return AdviceVerdict(
            "cannot tell", method, sentence, equal=tuple(equal), **lists, **_about(race, best)
        )
    if equal:
        cheapest = min([best, *equal], key=lambda m: race.arm(m).price)
        others = [m for m in (best, *equal) if m != cheapest]
        sentence = (
            f"Use {display_name(cheapest)}: {display_name(cheapest)} and {names_of(others)} are"
            f" equal within {points(margin)}, and {display_name(cheapest)} is the cheapest. It"
            f" gains {race.gain(cheapest)} over {over}."
        )
        return AdviceVerdict(
            "equal", cheapest, sentence, equal=tuple(others), **lists, **_about(race, cheapest)
        )
    sentence = f"Use {display_name(best)}: it gains {gain} over {over}."
    if unknown:
        sentence += f" Whether {names_of(unknown)} would be better or worse cannot be told."
    return AdviceVerdict("use", best, sentence, **lists, **_about(race, best))


def _about(race: Race, method: str) -> dict[str, Any]:
    """Return the fields of a verdict that say what a method does to whom."""
    parties = party_gains(race, method)
    margin = race.rule.margin
    return {
        "gain": race.gain(method),
        "parties": parties,
        "hurt": tuple(p.party for p in parties if p.gain.hurt),
        "may_be_hurt": tuple(p.party for p in parties if not p.gain.hurt and p.gain.low < -margin),
    }


def _promising(race: Race, methods: Sequence[str]) -> str:
    """Name methods as the most promising of those that were tried."""
    tried = len([arm for arm in race.arms if arm.method != SOLO])
    if tried == len(methods):
        return names_of(methods)
    return f"{names_of(methods)}, the most promising of {tried} methods on the first fold,"


def _stay_alone(race: Race, tested: Sequence[str]) -> str:
    """Say that the methods that were tested gain too little, and which others were not tested."""
    gains = {m: gain for m in tested if (gain := race.gain(m)) is not None}
    highest = max(0.0, *(gain.high for gain in gains.values()))
    each = "; ".join(f"{display_name(m)} {gain}" for m, gain in gains.items())
    figures = each if len(gains) > 1 else str(*gains.values())
    sentence = (
        f"Stay alone: {_promising(race, tested)} {'gain' if len(gains) > 1 else 'gains'} no more"
        f" than {points(highest)} over {BASELINES[race.baseline]} ({figures})."
    )
    untested = {
        arm.method: gain
        for arm in race.arms
        if arm.method not in (SOLO, *tested) and (gain := race.gain(arm.method)) is not None
    }
    seeming = max(untested, key=lambda m: untested[m].gain, default=None)
    if seeming is None or untested[seeming].gain <= race.rule.margin:
        return sentence
    name = display_name(seeming)
    return (
        f"{sentence} No other method was tested on further folds. On the first, {name} had"
        f" {untested[seeming].short} points: to test it, use --methods '{name}'."
    )


def _needed(race: Race, method: str, gain: Estimate) -> str:
    """Say how many more samples or repeats a clear answer would take, by the rule of the race."""
    assert gain.variances is not None
    samples = race.samples(method)
    folds = len(race.test_folds(method, race.baseline)) or 1
    variances = gain.variances
    now = variances.runs // folds

    def with_repeats(repeats: int) -> Variances:
        return further(variances, race.rule.noise, folds, repeats)

    def more_samples(repeats: int) -> int | None:
        power = Power.of(replace(gain, variances=with_repeats(repeats)), samples)
        return power.more_samples if power else None

    def is_clear(repeats: int) -> bool:
        return visible_difference(with_repeats(repeats)) <= abs(gain.gain)

    more = more_samples(now)
    repeats = next((r for r in range(now + 1, MOST_REPEATS + 1) if is_clear(r)), None)
    ways = [f"about {more:,} samples more than the {samples:,} of all parties"] if more else []
    ways += [f"--repeats {repeats}"] if repeats else []
    if not ways:
        both = more_samples(MOST_REPEATS)
        if both is None:
            return (
                f"Neither {MOST_TIMES} times the {samples:,} samples nor {MOST_REPEATS} repeats"
                " would probably settle it."
            )
        ways = [
            f"about {both:,} samples more than the {samples:,} of all parties together with"
            f" --repeats {MOST_REPEATS}"
        ]
    text = " or ".join(ways)
    return f"{text[0].upper()}{text[1:]} would probably settle it, if the gain is what it seems."


def names_of(methods: Sequence[str]) -> str:
    """Return the names of methods as text."""
    return join_names([display_name(m) for m in methods], most=4)
