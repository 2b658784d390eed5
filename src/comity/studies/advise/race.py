"""The race: methods are compared on more and more evidence, and leave when they cannot win.

All methods begin with half of their rounds on the first fold. Those that go on finish these rounds,
and the best of them then run on further folds, beside training alone. Early rounds mislead, so
nobody leaves before half of the rounds, except by the prior.

This module trains nothing. It gets the outcomes of the steps that it asks for, so that a rule can
be replayed on outcomes that were computed before.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comity.studies.advise.evidence import Looks, Outcome, TrainingNoise, excess_variance
from comity.studies.advise.prior import PriorOfRace
from comity.studies.estimate import Estimate

SOLO = "solo"


@dataclass(frozen=True)
class Arm:
    """A method, with the values of its options, as it takes part in a race."""

    method: str
    price: float = 0.0
    """The bytes that the whole run sends: the dearer of two equal methods leaves."""
    cost: float = 1.0
    """What a whole run takes, relative to the other methods."""
    halves: bool = True
    """Whether half of its rounds are comparable with half of those of others. They are not if there
    is only one, or if the method takes many of its steps after the last round, as FedBABU does.
    """


@dataclass(frozen=True)
class Rule:
    """How a race goes."""

    folds: int = 4
    half: bool = True
    """Whether there is a look after half of the rounds."""
    margin: float = 0.01
    """Differences below it do not matter."""
    budget: float = 1.0
    """What may be spent, relative to one whole run of every method."""
    on_all_folds: int = 3
    """However few methods there are, so many may run on all folds."""
    half_allowance: float = 0.1
    """How far behind a method may be after half of the rounds, beyond what its interval says: early
    differences are no bound of later ones.
    """
    after_half: float = 0.6
    """The share of the methods that may go on after half of the rounds."""
    after_first: float = 0.5
    """The share of the remaining methods that go on to each further fold."""
    loss_weight: float = 0.1
    """How much of the test loss is subtracted from the metric to choose who goes on: the loss
    varies less than the metric.
    """
    prior_folds: float = 0.2
    """How many folds the prior counts for in choosing who goes on."""
    prior_cut: float = 0.1
    """Methods that are expected to be further behind the best than this do not start..."""
    prior_near: float = 0.1
    """...if on a smaller share of similar federations they were near the best."""
    least: int = 4
    """The least number of methods that start."""
    noise: TrainingNoise = field(default_factory=TrainingNoise)


@dataclass(frozen=True)
class Step:
    """A piece of work: a method on a fold, up to half of its rounds or all of them."""

    method: str
    fold: int
    half: bool

    @property
    def name(self) -> str:
        """The step in words."""
        return f"{self.method}, fold {self.fold + 1}, {'half' if self.half else 'all'} rounds"


@dataclass(frozen=True)
class Departure:
    """A method that left the race, and why."""

    method: str
    when: str
    why: str
    clearly: bool = False
    """Whether an interval says that it is worse, in place of a limit on cost."""


@dataclass(frozen=True)
class Rung:
    """The state of the race after one look: differences of all methods to training alone."""

    name: str
    gains: Mapping[str, Estimate]
    half: bool
    folds: int
    spent: float

    def plain(self) -> dict[str, Any]:
        """Return the entry of advice.json."""
        return {**vars(self), "gains": {m: g.interval for m, g in self.gains.items()}}


@dataclass
class Race:
    """The outcomes and departures of a race."""

    arms: Sequence[Arm]
    rule: Rule
    prior: PriorOfRace
    outcomes: dict[Step, Outcome] = field(default_factory=dict)
    departures: list[Departure] = field(default_factory=list)
    rungs: list[Rung] = field(default_factory=list)
    spent: float = 0.0
    """The cost so far, in the units of the methods' costs."""
    notes: list[str] = field(default_factory=list)

    @property
    def budget(self) -> float:
        """What may be spent in total."""
        once = sum(arm.cost for arm in self.arms)
        longest = max(arm.cost for arm in self.arms)
        return self.rule.budget * max(once, self.rule.on_all_folds * self.rule.folds * longest)

    @property
    def looks(self) -> Looks:
        """The correction of all intervals. Folds of all methods inform about the training noise."""
        several = {
            m: folds
            for arm in self.arms
            if (m := arm.method) != SOLO
            and len(folds := sorted(set(self.folds_of(m)) & set(self.folds_of(SOLO)))) > 1
        }
        excess = [
            (
                excess_variance(
                    [self.outcomes[Step(m, k, False)] for k in folds],
                    [self.outcomes[Step(SOLO, k, False)] for k in folds],
                ),
                len(folds) - 1,
            )
            for m, folds in several.items()
        ]
        noise = self.rule.noise.informed_by(excess)
        return Looks(len(self.arms) - 1, self.rule.folds, self.rule.folds, noise)

    @property
    def racing(self) -> list[str]:
        """The methods that have not left."""
        left = {departure.method for departure in self.departures}
        return [arm.method for arm in self.arms if arm.method not in left]

    def samples(self, method: str) -> int:
        """Return how many test samples a method has been compared with training alone on."""
        folds = set(self.folds_of(method)) & set(self.folds_of(SOLO))
        outcomes = [self.outcomes[Step(method, fold, False)] for fold in folds]
        return sum(len(v) for outcome in outcomes for v in outcome.values.values())

    def arm(self, method: str) -> Arm:
        """Return the arm of a method."""
        return next(arm for arm in self.arms if arm.method == method)

    def folds_of(self, method: str) -> list[int]:
        """Return the folds on which a method has run all of its rounds."""
        return sorted(s.fold for s in self.outcomes if s.method == method and not s.half)

    def difference(
        self, method: str, other: str, half: bool = False, party: str | None = None
    ) -> Estimate | None:
        """Return the difference between two methods on all folds that both have; None if none."""
        if half:
            folds = [0] if {Step(m, 0, True) for m in (method, other)} <= set(self.outcomes) else []
        else:
            folds = sorted(set(self.folds_of(method)) & set(self.folds_of(other)))
        if not folds:
            return None
        now, before = (
            [self.outcomes[Step(m, fold, half)] for fold in folds] for m in (method, other)
        )
        return self.looks.difference(now, before, party)

    def score(self, method: str) -> float:
        """Return how good a method seems, relative to training alone: by the metric, the loss and
        the prior. It chooses who goes on, and is no claim.
        """
        folds = self.folds_of(method)
        half = not folds
        steps = [Step(method, fold, half) for fold in folds or [0]]
        pairs = [
            (self.outcomes[s], self.outcomes[alone])
            for s in steps
            if s in self.outcomes and (alone := Step(SOLO, s.fold, half)) in self.outcomes
        ]
        observed = [
            a.mean - b.mean - self.rule.loss_weight * ((a.loss or 0.0) - (b.loss or 0.0))
            for a, b in pairs
            if (a.loss is None) == (b.loss is None)
        ]
        count = len(observed) * (0.5 if half else 1.0)
        expectation = self.prior.of(method)
        weight = self.prior.folds if expectation else 0.0
        if not count + weight:
            return 0.0
        total = count * statistics.fmean(observed) if observed else 0.0
        if expectation:
            total += weight * expectation.gain
        score = total / (count + weight)
        return score if math.isfinite(score) else -math.inf

    @property
    def ranking(self) -> list[str]:
        """The methods in the race, the most promising first. More folds come before fewer."""
        return sorted(self.racing, key=lambda m: (-len(self.folds_of(m)), -self.score(m)))


Advance = Callable[[Sequence[Step]], Sequence[Outcome]]


def run_race(
    arms: Sequence[Arm],
    rule: Rule,
    prior: PriorOfRace,
    advance: Advance,
    time_left: Callable[[], float] = lambda: math.inf,
) -> Race:
    """Run a race.

    Args:
        arms: The methods, among them training alone.
        rule: How the race goes.
        prior: What is expected of the methods.
        advance: Computes steps, and returns their outcomes.
        time_left: Returns how much of the time that the race may take is left, relative to the time
            that it has taken so far.
    """
    race = Race(arms, rule, prior)
    _leave_by_prior(race)
    course = _Course(race, advance, time_left)
    if rule.half:
        when = "half of the rounds"
        course.climb(when, [m for m in race.racing if race.arm(m).halves], 0, True)
        _leave_by_evidence(race, when, half=True)
        others = max(1, len(race.racing) - 1)
        course.keep(max(2, math.ceil(rule.after_half * others)), when, 0.5)
    course.climb("all rounds", race.racing, 0, False)
    _leave_by_evidence(race, "all rounds")
    for fold in range(1, rule.folds):
        others = len(race.racing) - 1
        when = f"{fold} fold{'s' if fold > 1 else ''}"
        if not others or _is_decided(race):
            break
        if not course.can_afford_one():
            race.notes.append(f"The race ended after {when}: its budget was spent.")
            break
        # a second fold for two, so that the leader is compared with somebody
        count = max(2 if fold == 1 else 1, math.ceil(rule.after_first * others))
        course.keep(count, when, 1.0)
        course.climb(f"{fold + 1} folds", race.racing, fold, False)
        _leave_by_evidence(race, f"{fold + 1} folds")
    return race


@dataclass
class _Course:
    """Takes a race from rung to rung within its budget."""

    race: Race
    advance: Advance
    time_left: Callable[[], float]

    def allowance(self) -> float:
        """Return what may still be spent."""
        race = self.race
        by_cost = race.budget - race.spent
        return min(by_cost, self.time_left() * race.spent) if race.spent else by_cost

    def can_afford_one(self) -> bool:
        """Return whether training alone and one method can run on another fold."""
        race = self.race
        cheapest = min(race.arm(m).cost for m in race.racing if m != SOLO)
        return cheapest + race.arm(SOLO).cost <= self.allowance() + 1e-9

    def climb(self, name: str, methods: Sequence[str], fold: int, half: bool) -> None:
        """Compute the outcomes of the next rung."""
        race = self.race
        steps = [Step(method, fold, half) for method in methods]
        for step, outcome in zip(steps, self.advance(steps), strict=True):
            race.outcomes[step] = outcome
            is_part = half or Step(step.method, fold, True) in race.outcomes
            race.spent += race.arm(step.method).cost * (0.5 if is_part else 1.0)
        gains = {
            m: gain
            for m in methods
            if m != SOLO and (gain := race.difference(m, SOLO, half)) is not None
        }
        race.rungs.append(Rung(name, gains, half, fold + 1, race.spent))

    def keep(self, count: int, when: str, part: float) -> None:
        """Keep the best methods, as many as may go on and can be paid for.

        `part` is the share of a whole run that comes next. Methods without a look after half of the
        rounds go on.
        """
        race = self.race
        rest = sorted((m for m in race.racing if m != SOLO), key=lambda m: -race.score(m))
        unseen = [m for m in rest if not any(step.method == m for step in race.outcomes)]
        left = self.allowance() - part * race.arm(SOLO).cost
        left -= sum(race.arm(m).cost for m in unseen)
        seen = [m for m in rest if m not in unseen]
        kept: list[str] = []
        for method in seen:
            price = part * race.arm(method).cost
            if len(kept) < max(1, count - len(unseen)) and (price <= left + 1e-9 or not kept):
                kept.append(method)
                left -= price
            else:
                behind = 100 * (race.score(seen[0]) - race.score(method))
                why = (
                    f"{behind:.1f} points behind {seen[0]} by metric, loss and prior, and only the"
                    f" best {len(kept)} go on"
                )
                race.departures.append(Departure(method, when, why))


def _leave_by_prior(race: Race) -> None:
    """Let methods leave that were never near the best on similar federations."""
    expected = {m: e for m in race.racing if m != SOLO and (e := race.prior.of(m))}
    if not expected:
        return
    best = max(e.gain for e in expected.values())
    order = sorted(expected, key=lambda m: expected[m].gain)
    for method in order:
        others = len(race.racing) - 1
        behind = best - expected[method].gain
        never = expected[method].near_best < race.rule.prior_near
        if others > race.rule.least and never and behind > race.rule.prior_cut:
            race.departures.append(
                Departure(
                    method,
                    "before the race",
                    f"on similar federations {100 * behind:.1f} points behind the best on average,"
                    f" and near it on {expected[method].near_best:.0%} of them",
                )
            )


def _leave_by_evidence(race: Race, when: str, half: bool = False) -> None:
    """Let methods leave that are clearly worse than the leader, or equal to it and dearer."""
    contenders = [
        m for m in race.racing if m != SOLO and (Step(m, 0, True) in race.outcomes or not half)
    ]
    if len(contenders) < 2:
        return
    leader = max(contenders, key=race.score)
    for method in contenders:
        if method == leader:
            continue
        behind = race.difference(method, leader, half)
        if behind is None:
            continue
        margin = race.rule.margin
        if half and behind.high < -margin - race.rule.half_allowance:
            why = f"far behind {leader}: {behind}"
            race.departures.append(Departure(method, when, why))
        elif not half and behind.high < -margin:
            why = f"clearly worse than {leader}: {behind}"
            race.departures.append(Departure(method, when, why, clearly=True))
        elif not half and -margin < behind.low and behind.high < margin:
            dearer, other = (
                (method, leader)
                if race.arm(method).price >= race.arm(leader).price
                else (leader, method)
            )
            race.departures.append(
                Departure(
                    dearer,
                    when,
                    f"equal to {other} within {100 * margin:g} point{'s' * (margin != 0.01)}, and"
                    " sends no less",
                )
            )
            if dearer == leader:
                return


def _is_decided(race: Race) -> bool:
    """Whether one method is left, and it is clear how it compares with training alone."""
    contenders = [m for m in race.racing if m != SOLO]
    if len(contenders) != 1:
        return False
    gain = race.difference(contenders[0], SOLO)
    return gain is not None and (gain.low > 0 or gain.high < race.rule.margin)
