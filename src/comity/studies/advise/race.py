"""The race: all methods are tried on one fold, and the best is tested on the others.

All methods begin with half of their rounds on the first fold. The better ones finish their rounds
there, and the best of them becomes the finalist. It runs on the other folds beside training alone.
Only these other folds count for claims: since nobody was chosen by them, their intervals need no
correction for the number of methods that were tried.

This module trains nothing. It gets the outcomes of the steps that it asks for, so that a rule can
be replayed on outcomes that were computed before.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comity.names import SOLO, display_name
from comity.studies.advise.evidence import FoldOutcome, PairedTest, TrainingNoise
from comity.studies.advise.prior import PriorOfRace
from comity.studies.estimate import Estimate

CHOICE = 0
"""The fold by which the finalists are chosen."""


@dataclass(frozen=True)
class Arm:
    """A method, with the values of its options, as it takes part in a race."""

    method: str
    price: float = 0.0
    """The bytes that the whole run sends: of two equal methods the cheaper one is used."""
    cost: float = 1.0
    """What a whole run takes, relative to the other methods."""
    halves: bool = True
    """Whether half of its rounds are comparable with half of those of others. They are not if there
    is only one, or if the method takes many of its steps after the last round, as FedBABU does.
    """


@dataclass(frozen=True)
class RaceRule:
    """How a race goes."""

    folds: int = 4
    half: bool = True
    """Whether there is a look after half of the rounds."""
    finalists: int = 1
    """How many methods are tested on the other folds."""
    margin: float = 0.01
    """Differences below it do not matter."""
    budget: float = 1.0
    """What may be spent, relative to one whole run of every method."""
    small: int = 3
    """The budget allows at least for so many methods on all folds."""
    after_half: float = 0.6
    """The largest share of the methods that go on after half of the rounds."""
    loss_weight: float = 0.1
    """How much of the test loss is subtracted from the metric to choose who goes on: the loss
    varies less than the metric.
    """
    prior_folds: float = 0.2
    """How many folds the prior counts for in choosing who goes on."""
    prior_cut: float = 0.1
    """How far behind the best the prior may expect a method to be. A method that is expected
    further behind does not start, unless it was often near the best.
    """
    prior_near: float = 0.1
    """The share of similar federations on which a method must have been near the best to start all
    the same.
    """
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
        return f"{self.method}, fold {self.fold + 1}" + (", half of the rounds" * self.half)


def longest_course(methods: int, rule: RaceRule) -> list[tuple[str, float]]:
    """Return the stage and the cost of each run of a race, for a progress line.

    Fewer runs take place where the budget ends before the last fold, and where a method has no
    comparable half.

    Args:
        methods: The number of methods beside training alone.
        rule: How the race goes.
    """
    going_on = max(2, math.ceil(rule.after_half * methods)) if rule.half else methods
    course = [("half of the rounds", 0.5)] * (methods + 1) if rule.half else []
    course += [("all rounds", 0.5 if rule.half else 1.0)] * (min(going_on, methods) + 1)
    for fold in range(1, rule.folds):
        course += [(f"fold {fold + 1} of {rule.folds}", 1.0)] * (rule.finalists + 1)
    return course


@dataclass(frozen=True)
class Departure:
    """A method that left the race, and why."""

    method: str
    when: str
    why: str


@dataclass(frozen=True)
class Rung:
    """The state of the race after one look: the gains of the methods."""

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
    rule: RaceRule
    prior: PriorOfRace
    baseline: str = SOLO
    """What gains are over: training alone, or on tables each party's own model, which is the best
    of training alone and plain models.
    """
    outcomes: dict[Step, FoldOutcome] = field(default_factory=dict)
    departures: list[Departure] = field(default_factory=list)
    rungs: list[Rung] = field(default_factory=list)
    finalists: list[str] = field(default_factory=list)
    spent: float = 0.0
    """The cost so far, in the units of the methods' costs."""
    warnings: list[str] = field(default_factory=list)

    @property
    def budget(self) -> float:
        """What may be spent in total."""
        once = sum(arm.cost for arm in self.arms)
        longest = max(arm.cost for arm in self.arms)
        return self.rule.budget * max(once, self.rule.small * self.rule.folds * longest)

    @property
    def racing(self) -> list[str]:
        """The methods that have not left."""
        left = {departure.method for departure in self.departures}
        return [arm.method for arm in self.arms if arm.method not in left]

    @property
    def ranking(self) -> list[str]:
        """The finalists, the best first."""
        return sorted(self.finalists, key=self.score, reverse=True)

    def arm(self, method: str) -> Arm:
        """Return the arm of a method."""
        return next(arm for arm in self.arms if arm.method == method)

    def folds_of(self, method: str) -> list[int]:
        """Return the folds on which a method has run all of its rounds."""
        return sorted(s.fold for s in self.outcomes if s.method == method and not s.half)

    def test_folds(self, method: str, other: str) -> list[int]:
        """Return the folds on which two methods were tested, and not chosen by."""
        both = set(self.folds_of(method)) & set(self.folds_of(other))
        return sorted(both - {CHOICE})

    def samples(self, method: str) -> int:
        """Return how many test samples a method was tested on."""
        folds = self.test_folds(method, self.baseline)
        outcomes = [self.outcomes[Step(method, k, False)] for k in folds]
        return sum(len(v) for outcome in outcomes for v in outcome.values.values())

    def gain(self, method: str, party: str | None = None, half: bool = False) -> Estimate | None:
        """Return the gain of a method over the baseline. After half of the rounds, that is over
        training alone.
        """
        return self.difference(method, SOLO if half else self.baseline, party, half)

    def difference(
        self, method: str, other: str, party: str | None = None, half: bool = False
    ) -> Estimate | None:
        """Return the difference between two methods; None if they have no fold in common.

        Of finalists and the baseline it is that of the test folds. Of all others it is that of
        the fold by which methods were chosen, with an interval that holds for all of them together.
        """
        tests = self.test_folds(method, other)
        folds = tests if tests and not half else [CHOICE]
        runs = [[self.outcomes.get(Step(m, k, half)) for k in folds] for m in (method, other)]
        now, before = ([outcome for outcome in run if outcome] for run in runs)
        if not (len(now) == len(before) == len(folds)):
            return None
        tried = len(self.arms) - 1
        pairs = math.comb(len(self.finalists) + 1, 2) if tests and not half else tried
        return PairedTest(pairs, self.rule.folds, self.rule.noise).difference(now, before, party)

    def score(self, method: str) -> float:
        """Return how good a method seems, relative to training alone: by the metric, the loss and
        the prior. It chooses who goes on, and is no claim.
        """
        folds = self.folds_of(method)
        half = not folds
        steps = [Step(method, fold, half) for fold in folds or [CHOICE]]
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


Advance = Callable[[Sequence[Step]], Sequence[FoldOutcome]]


def run_race(
    arms: Sequence[Arm],
    rule: RaceRule,
    prior: PriorOfRace,
    advance: Advance,
    time_left: Callable[[], float] = lambda: math.inf,
    baseline: str = SOLO,
) -> Race:
    """Run a race.

    Args:
        arms: The methods, among them training alone.
        rule: How the race goes.
        prior: What is expected of the methods.
        advance: Computes steps, and returns their outcomes.
        time_left: Returns how much of the time that the race may take is left, relative to the time
            that it has taken so far.
        baseline: What gains are over.
    """
    race = Race(arms, rule, prior, baseline)
    _leave_by_prior(race)
    course = _Course(race, advance, time_left)
    if rule.half:
        when = "half of the rounds"
        course.climb(when, [m for m in race.racing if race.arm(m).halves], CHOICE, half=True)
        course.keep(course.most_after_half(), when)
    course.climb("all rounds", race.racing, CHOICE)
    course.keep(rule.finalists, "all rounds")
    race.finalists = [m for m in race.racing if m != SOLO]
    for fold in range(1, rule.folds):
        if not course.can_afford(race.racing):
            race.warnings.append(
                f"The race ended after {fold} of {rule.folds} folds: its budget was spent."
            )
            break
        course.climb(f"{fold + 1} folds", race.racing, fold)
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

    def can_afford(self, methods: Sequence[str]) -> bool:
        """Return whether methods can run on another fold."""
        return sum(self.race.arm(m).cost for m in methods) <= self.allowance() + 1e-9

    def most_after_half(self) -> int:
        """Return how many methods may finish their rounds, so that the finalists can be tested."""
        race, rule = self.race, self.race.rule
        others = [race.arm(m) for m in race.racing if m != SOLO]
        longest = max(arm.cost for arm in others)
        tests = (rule.folds - 1) * (rule.finalists * longest + race.arm(SOLO).cost)
        left = self.allowance() - tests - 0.5 * race.arm(SOLO).cost
        left -= sum(arm.cost for arm in others if not arm.halves)
        halves = [arm.cost for arm in others if arm.halves]
        payable = int(left / (0.5 * statistics.fmean(halves)) + 1e-9) if halves else 0
        payable += len(others) - len(halves)
        return max(2, min(math.ceil(rule.after_half * len(others)), payable))

    def climb(self, name: str, methods: Sequence[str], fold: int, half: bool = False) -> None:
        """Compute the outcomes of the next rung."""
        race = self.race
        steps = [Step(method, fold, half) for method in methods]
        for step, outcome in zip(steps, self.advance(steps), strict=True):
            race.outcomes[step] = outcome
            is_part = half or Step(step.method, fold, True) in race.outcomes
            race.spent += race.arm(step.method).cost * (0.5 if is_part else 1.0)
        if race.baseline != SOLO and not half:
            own = Step(race.baseline, fold, False)
            race.outcomes[own] = self.advance([own])[0]
        others = [m for m in methods if m != SOLO]
        gains = {m: gain for m in others if (gain := race.gain(m, half=half)) is not None}
        race.rungs.append(Rung(name, gains, half, fold + 1, race.spent))

    def keep(self, count: int, when: str) -> None:
        """Keep the best methods. Those without a look so far go on."""
        race = self.race
        seen = {step.method for step in race.outcomes}
        rest = sorted((m for m in race.racing if m != SOLO), key=race.score, reverse=True)
        judged = [m for m in rest if m in seen]
        going_on = max(1, count - (len(rest) - len(judged)))
        for method in judged[going_on:]:
            behind = 100 * (race.score(judged[0]) - race.score(method))
            by = "metric, loss and prior" if race.prior.expected else "metric and loss"
            why = f"{behind:.1f} points behind {display_name(judged[0])} by {by}"
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
