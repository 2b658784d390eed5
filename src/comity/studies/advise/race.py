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
from dataclasses import dataclass, field, replace
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
    repeats: int = 1
    """How many seeds a finalist is tested with on each fold."""


@dataclass(frozen=True)
class Step:
    """A piece of work: a method on a fold, up to half of its rounds or all of them."""

    method: str
    fold: int
    half: bool
    repeat: int = 0
    """Which seed of the fold."""

    @property
    def name(self) -> str:
        """The step in words."""
        half = ", half of the rounds" if self.half else ""
        repeat = f", repeat {self.repeat + 1}" if self.repeat else ""
        return f"{self.method}, fold {self.fold + 1}{half}{repeat}"


def longest_course(methods: int, rule: RaceRule) -> list[tuple[str, float]]:
    """Return the stage and the cost of each run of a race, for a progress line.

    Fewer runs take place where the budget ends before the last fold, and where a method has no
    comparable half. A second finalist takes more.

    Args:
        methods: The number of methods beside training alone.
        rule: How the race goes.
    """
    going_on = max(2, math.ceil(rule.after_half * methods)) if rule.half else methods
    course = [("half of the rounds", 0.5)] * (methods + 1) if rule.half else []
    course += [("all rounds", 0.5 if rule.half else 1.0)] * (min(going_on, methods) + 1)
    for fold in range(1, rule.folds):
        course += [(f"fold {fold + 1} of {rule.folds}", 1.0)] * (rule.finalists + 1)
    for repeat in range(1, rule.repeats):
        tests = (rule.folds - 1) * (rule.finalists + 1)
        course += [(f"repeat {repeat + 1} of {rule.repeats}", 1.0)] * tests
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
        rule = self.rule
        repeated = (rule.repeats - 1) * (rule.folds - 1) * (rule.finalists + 1) * longest
        return rule.budget * max(once, rule.small * rule.folds * longest) + repeated

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
        return sorted({s.fold for s in self.outcomes if s.method == method and not s.half})

    def test_folds(self, method: str, other: str) -> list[int]:
        """Return the folds on which two methods were tested, and not chosen by."""
        both = set(self.folds_of(method)) & set(self.folds_of(other))
        return sorted(both - {CHOICE})

    def samples(self, method: str) -> int:
        """Return how many samples all parties have together, by the folds that a method was tested
        on.
        """
        folds = self.test_folds(method, self.baseline) or [CHOICE]
        outcomes = [self.outcomes[Step(method, k, False)] for k in folds]
        tested = sum(len(v) for outcome in outcomes for v in outcome.values.values())
        return round(tested * self.rule.folds / len(folds))

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
        Intervals of single parties hold for all parties together.
        """
        tests = self.test_folds(method, other)
        folds = tests if tests and not half else [CHOICE]
        now, before = ([self._runs(m, k, half) for k in folds] for m in (method, other))
        if not all((*now, *before)):
            return None
        if tests and not half:
            pairs = math.comb(len(self.finalists) + 1, 2)
        elif other in (SOLO, self.baseline):
            pairs = len(self.arms) - 1
        else:  # the fold chose one of the two, so that any pair may be looked at
            pairs = math.comb(len(self.arms), 2)
        if party is not None:
            pairs *= len({name for of_fold in now for name in of_fold[0].values})
        return PairedTest(pairs, self.rule.folds, self.rule.noise).difference(now, before, party)

    def _runs(self, method: str, fold: int, half: bool) -> list[FoldOutcome]:
        """Return the outcomes of a method on a fold, by repeat."""
        runs = (self.outcomes.get(Step(method, fold, half, r)) for r in range(self.rule.repeats))
        return [outcome for outcome in runs if outcome]

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
        course.climb(when, [m for m in race.racing if race.arm(m).halves], [CHOICE], half=True)
        course.keep(course.most_after_half(), when)
    course.climb("all rounds", race.racing, [CHOICE])
    course.keep(rule.finalists, "all rounds")
    race.finalists = [m for m in race.racing if m != SOLO]
    for fold in range(1, rule.folds):
        if not course.can_afford(race.racing):
            race.warnings.append(
                f"The race ended after {fold} of {rule.folds} folds: its budget was spent."
            )
            break
        course.climb(f"{fold + 1} folds", race.racing, [fold])
    course.repeat(race.racing)
    course.test_another()
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

    def test_another(self) -> None:
        """Test the second best method of the first fold if the best gained nothing on the others,
        and the budget allows it.

        Its folds are those on which the first was tested. The intervals of both are then wider, as
        they hold for two finalists.
        """
        race = self.race
        tested = race.folds_of(SOLO)
        gains = [race.gain(m) for m in race.finalists]
        if len(tested) < race.rule.folds or any(gain and gain.gain > 0 for gain in gains):
            return
        others = [
            m
            for arm in race.arms
            if (m := arm.method) not in (SOLO, *race.finalists)
            and race.folds_of(m)
            and race.score(m) > 0
        ]
        if not others:
            return
        second = max(others, key=race.score)
        if (race.rule.folds - 1) * race.arm(second).cost > self.allowance() + 1e-9:
            return
        race.departures = [d for d in race.departures if d.method != second]
        race.finalists.append(second)
        self.climb("second finalist", [second], range(1, race.rule.folds))
        self.repeat([second])

    def repeat(self, methods: Sequence[str]) -> None:
        """Test methods with further seeds, on the folds on which they were tested."""
        race = self.race
        for repeat in range(1, race.rule.repeats):
            folds = race.test_folds(methods[-1], SOLO)
            if sum(race.arm(m).cost for m in methods) * len(folds) > self.allowance() + 1e-9:
                race.warnings.append(
                    f"The race ended after {repeat} of {race.rule.repeats} repeats: its budget was"
                    " spent."
                )
                break
            self.climb(f"repeat {repeat + 1}", methods, folds, repeat=repeat)

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

    def climb(
        self,
        name: str,
        methods: Sequence[str],
        folds: Sequence[int],
        half: bool = False,
        repeat: int = 0,
    ) -> None:
        """Compute the outcomes of the next rung."""
        race = self.race
        steps = [Step(method, fold, half, repeat) for fold in folds for method in methods]
        for step, outcome in zip(steps, self.advance(steps), strict=True):
            race.outcomes[step] = outcome
            is_part = half or replace(step, half=True) in race.outcomes
            race.spent += race.arm(step.method).cost * (0.5 if is_part else 1.0)
        if race.baseline != SOLO and not half:
            own = [Step(race.baseline, fold, False, repeat) for fold in folds]
            new = [step for step in own if step not in race.outcomes]
            race.outcomes.update(zip(new, self.advance(new), strict=True))
        others = [m for m in methods if m != SOLO]
        gains = {m: gain for m in others if (gain := race.gain(m, half=half)) is not None}
        race.rungs.append(Rung(name, gains, half, max(folds) + 1, race.spent))

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
