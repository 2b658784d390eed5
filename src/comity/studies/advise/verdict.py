"""The verdict of a race: what to use, or what cannot be told and what it would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from comity.names import display_name
from comity.studies.advise.race import SOLO, Race
from comity.studies.estimate import Estimate
from comity.studies.power import Power
from comity.text import join_names

Kind = Literal["use", "equal", "alone", "cannot tell"]


@dataclass(frozen=True)
class PartyGain:
    """A party's gain by the recommended method over training alone."""

    party: str
    gain: Estimate


@dataclass(frozen=True)
class Verdict:
    """The verdict on a federation."""

    kind: Kind
    method: str
    """The method to use; `solo` to stay alone. Where it cannot be told, the most promising one."""
    sentence: str
    gain: Estimate | None
    """The gain of the most promising method over training alone."""
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
    """The parties whose interval reaches below zero by more than the margin."""

    def plain(self) -> dict[str, Any]:
        """Return the entry of advice.json."""
        return {
            **vars(self),
            "gain": self.gain and self.gain.interval,
            "parties": {p.party: p.gain.interval for p in self.parties},
        }


def party_gains(race: Race, method: str) -> tuple[PartyGain, ...]:
    """Return the parties' gains by a method over training alone."""
    folds = race.folds_of(method)
    if not folds or method == SOLO:
        return ()
    first = next(o for s, o in race.outcomes.items() if s.method == method and not s.half)
    gains = ((name, race.difference(method, SOLO, party=name)) for name in first.values)
    return tuple(PartyGain(name, gain) for name, gain in gains if gain is not None)


def hurt_by(race: Race, method: str) -> list[str]:
    """Return the parties that a method clearly hurts."""
    return [p.party for p in party_gains(race, method) if p.gain.hurt]


def give_verdict(race: Race, max_hurt: int | None = None) -> Verdict:
    """Return the verdict of a race.

    Args:
        race: The finished race.
        max_hurt: How many parties a method may clearly hurt; None for any number.
    """
    finished = [m for m in race.ranking if m != SOLO and race.folds_of(m)]
    excluded: list[str] = []
    if max_hurt is not None:
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
        return Verdict("alone", SOLO, f"Stay alone. {why}", None)
    best = finished[0]
    gain = race.difference(best, SOLO)
    assert gain is not None
    parties = party_gains(race, best)
    margin = race.rule.margin
    common: dict[str, Any] = {
        "gain": gain,
        "parties": parties,
        "hurt": tuple(p.party for p in parties if p.gain.hurt),
        "may_be_hurt": tuple(p.party for p in parties if not p.gain.hurt and p.gain.low < -margin),
    }
    if gain.high < margin:
        return Verdict(
            "alone",
            SOLO,
            f"Stay alone: even {display_name(best)}, the best of the methods, gains no more than"
            f" {100 * gain.high:.1f} points ({gain}).",
            **common,
        )
    against = {  # the best minus the other, also of those that left
        arm.method: difference
        for arm in race.arms
        if arm.method not in (SOLO, best, *excluded)
        and (difference := race.difference(best, arm.method)) is not None
    }
    equal = _equal(race, best, against)
    clearly = [d.method for d in race.departures if d.clearly]
    worse = [m for m, d in against.items() if d.low > 0 or (m in clearly and m not in equal)]
    open_against = [m for m in against if m not in equal and m not in worse]
    if gain.low <= 0:
        return Verdict(
            "cannot tell",
            best if gain.gain > 0 else SOLO,
            f"It cannot be told whether collaborating helps: {display_name(best)}, the most"
            f" promising method, gains {gain}. {_needed(gain, race.samples(best))} Until then,"
            f" {f'use {display_name(best)}' if gain.gain > 0 else 'stay alone'}.",
            equal=tuple(equal),
            open_against=tuple(open_against),
            worse=tuple(dict.fromkeys(worse)),
            **common,
        )
    shown = f"it gains {gain} over training alone"
    lists: dict[str, Any] = {
        "open_against": tuple(open_against),
        "worse": tuple(dict.fromkeys(worse)),
    }
    if equal:
        cheapest = min([best, *equal], key=lambda m: race.arm(m).price)
        others = [m for m in (best, *equal) if m != cheapest]
        names = join_names([display_name(m) for m in (cheapest, *others)])
        if cheapest != best:
            parties = party_gains(race, cheapest)
            common |= {
                "gain": race.difference(cheapest, SOLO),
                "parties": parties,
                "hurt": tuple(p.party for p in parties if p.gain.hurt),
                "may_be_hurt": tuple(
                    p.party for p in parties if not p.gain.hurt and p.gain.low < -margin
                ),
            }
        points = f"{100 * margin:g} point" + ("" if margin == 0.01 else "s")
        return Verdict(
            "equal",
            cheapest,
            f"Use {display_name(cheapest)}: {names} are equal within {points}, and"
            f" {display_name(cheapest)} is the cheapest.",
            equal=tuple(others),
            **lists,
            **common,
        )
    unclear = ""
    if open_against:
        some = names_of(open_against)
        unclear = f" Whether {some} would be better or worse cannot be told."
    return Verdict("use", best, f"Use {display_name(best)}: {shown}.{unclear}", **lists, **common)


def _equal(race: Race, best: str, against: Mapping[str, Estimate]) -> list[str]:
    """Return the methods that are equal to the best within the margin."""
    margin = race.rule.margin
    inside = [m for m, d in against.items() if -margin < d.low and d.high < margin]
    left = [d.method for d in race.departures if f"equal to {best} within" in d.why]
    return list(dict.fromkeys([*inside, *left]))


def _needed(gain: Estimate, samples: int) -> str:
    """Say how many more samples a clear answer would take."""
    power = Power.of(gain, samples)
    if power is None or power.more_samples is None:
        return "More test samples alone would probably not settle it."
    return (
        f"About {power.more_samples:,} more test samples, of all parties together, would probably"
        " settle it."
    )


def names_of(methods: Sequence[str]) -> str:
    """Return the names of methods as text."""
    return join_names([display_name(m) for m in methods], most=4)
