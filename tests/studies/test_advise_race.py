"""Advice: the race, its intervals and its verdicts, on outcomes whose truth is known."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import comity
from comity.data import Federation
from comity.errors import CorruptedFile, UsageError
from comity.names import SOLO
from comity.runs.config import experiment
from comity.runs.folder import RunFolder
from comity.runs.server_run import Quiet
from comity.studies.advise.advise import final_command
from comity.studies.advise.evidence import FoldOutcome, PairedTest, TrainingNoise
from comity.studies.advise.feasible import Candidate, feasible, parse_bytes, parse_time, with_values
from comity.studies.advise.prior import (
    Expectation,
    FederationTraits,
    GainsElsewhere,
    MethodPrior,
    PriorOfRace,
)
from comity.studies.advise.race import CHOICE, Arm, Race, RaceRule, Step, run_race
from comity.studies.advise.verdict import AdviceVerdict, give_verdict

QUIET = TrainingNoise(seeds=1e-5, party_seeds=4e-5, sets=0.1, freedom=50)
PARTIES = 4


class World:
    """Methods with known accuracies. Samples are right or wrong for several methods together."""

    def __init__(
        self,
        strengths: Mapping[str, float | Sequence[float]],
        samples: int = 400,
        half: Mapping[str, float] | None = None,
    ) -> None:
        self.strengths = strengths
        self.half = half or {}
        self.steps: list[Step] = []
        self._samples = samples

    def __call__(self, steps: Sequence[Step]) -> list[FoldOutcome]:
        self.steps += steps
        return [self.outcome(step) for step in steps]

    def outcome(self, step: Step) -> FoldOutcome:
        values = {}
        for p in range(PARTIES):
            # the same samples for all methods: a sample is right if it is easy enough
            ease = np.random.default_rng((step.fold, p)).random(self._samples)
            strength = self.strengths[step.method]
            level = strength if isinstance(strength, float) else strength[p]
            level = self.half.get(step.method, level) if step.half else level
            values[f"p{p}"] = tuple((ease < level).astype(float).tolist())
        mean = float(np.mean([np.mean(v) for v in values.values()]))
        return FoldOutcome(values, loss=1 - mean)


def race_in(
    world: World,
    rule: RaceRule | None = None,
    prices: Mapping[str, float] | None = None,
    prior: PriorOfRace | None = None,
    **more: Any,
) -> Race:
    arms = [Arm(method, (prices or {}).get(method, 1.0)) for method in world.strengths]
    return run_race(arms, rule or RaceRule(noise=QUIET), prior or PriorOfRace(), world, **more)


def test_the_clearly_best_method_is_used_and_the_others_left_with_a_reason() -> None:
    race = race_in(World({SOLO: 0.6, "fedavg": 0.7, "fedper": 0.85, "ditto": 0.62}))
    verdict = give_verdict(race)
    assert (verdict.kind, verdict.method) == ("use", "fedper")
    assert verdict.gain
    assert verdict.gain.low > 0.1
    left = {departure.method for departure in race.departures}
    assert left == {"fedavg", "ditto"}
    assert "fedper" in verdict.sentence
    assert "fedavg" not in verdict.sentence


def test_who_is_ahead_early_and_behind_later_does_not_win() -> None:
    world = World({SOLO: 0.6, "fast": 0.7, "slow": 0.8}, half={"fast": 0.7, "slow": 0.64})
    assert give_verdict(race_in(world)).method == "slow"


def test_parties_stay_alone_where_every_method_is_worse() -> None:
    race = race_in(World({SOLO: 0.8, "fedavg": 0.7, "fedper": 0.74}))
    verdict = give_verdict(race)
    assert (verdict.kind, verdict.method) == ("alone", SOLO)
    assert verdict.sentence.startswith("Stay alone")


def test_few_samples_cannot_tell_and_say_how_many_would() -> None:
    race = race_in(World({SOLO: 0.70, "fedavg": 0.715, "fedper": 0.71}, samples=40), RaceRule())
    verdict = give_verdict(race)
    assert verdict.kind == "cannot tell"
    assert re.search(r"[Aa]bout \d[\d,]* samples more|--repeats \d", verdict.sentence)
    assert verdict.gain
    assert verdict.gain.low < 0 < verdict.gain.high


def test_of_two_equal_methods_the_cheaper_one_is_used() -> None:
    world = World({SOLO: 0.6, "dear": 0.8, "cheap": 0.8}, samples=2000)
    rule = RaceRule(noise=TrainingNoise(seeds=1e-6, sets=0.1, freedom=50), finalists=2)
    verdict = give_verdict(race_in(world, rule, prices={"dear": 9.0, "cheap": 1.0}))
    assert (verdict.kind, verdict.method, verdict.equal) == ("equal", "cheap", ("dear",))
    assert "cheap and dear are equal within 1 point" in verdict.sentence


def test_methods_that_were_not_tested_are_named_as_open() -> None:
    world = World({SOLO: 0.6, "a": 0.80, "b": 0.801, "c": 0.799, "d": 0.802}, samples=100)
    verdict = give_verdict(race_in(world))
    assert verdict.kind == "use"
    assert {verdict.method, *verdict.open_against} >= {"a", "b", "d"} - set(verdict.equal)
    assert "cannot be told" in verdict.sentence


def test_parties_that_a_method_hurts_are_named_and_may_exclude_it() -> None:
    strengths = {SOLO: [0.6] * 4, "best": [0.9, 0.9, 0.9, 0.3], "safe": [0.67] * 4}
    race = race_in(World(strengths, samples=800), RaceRule(noise=QUIET))
    verdict = give_verdict(race)
    assert (verdict.method, verdict.hurt) == ("best", ("p3",))
    assert give_verdict(race, max_hurt=1).method == "best"
    safe = give_verdict(race, max_hurt=0)
    assert (safe.method, safe.hurt) == ("safe", ())
    assert "best" not in [safe.sentence, *safe.equal]


def test_a_method_that_hurts_is_not_named_as_equal() -> None:
    strengths = {SOLO: [0.6] * 4, "bad": [0.9, 0.9, 0.9, 0.3], "good": [0.75] * 4}
    rule = RaceRule(noise=QUIET, margin=0.05, finalists=2)
    verdict = give_verdict(race_in(World(strengths, samples=800), rule), max_hurt=0)
    assert (verdict.kind, verdict.method, verdict.equal) == ("use", "good", ())
    assert "bad" not in verdict.sentence


def test_stay_alone_where_every_method_hurts_too_many() -> None:
    race = race_in(World({SOLO: [0.6] * 4, "best": [0.9, 0.9, 0.9, 0.3]}, samples=800))
    verdict = give_verdict(race, max_hurt=0)
    assert verdict.kind == "alone"
    assert "hurts more than 0 parties" in verdict.sentence


def test_nothing_is_computed_twice_and_the_budget_holds() -> None:
    methods = {SOLO: 0.6} | {f"m{k}": 0.6 + 0.005 * k for k in range(11)}
    world = World(methods, samples=30)
    race = race_in(world)
    assert len(world.steps) == len(set(world.steps))
    assert race.spent <= len(methods)
    # everybody has run half of the rounds, and only the best all of them
    assert {s.method for s in world.steps if s.half} == set(methods)
    assert 1 <= sum(bool(race.folds_of(m)) for m in methods if m != SOLO) < 11
    # only the finalist is tested on further folds
    assert {m for m in methods if len(race.folds_of(m)) > 1} == {SOLO, *race.finalists}


def test_time_that_is_over_ends_the_race_with_a_verdict() -> None:
    world = World({SOLO: 0.7, "a": 0.71, "b": 0.72, "c": 0.7}, samples=30)
    race = race_in(world, time_left=lambda: 0.0)
    assert max(race.folds_of(SOLO)) == 0
    assert any("budget was spent" in warning for warning in race.warnings)
    assert give_verdict(race).kind in ("cannot tell", "alone")


def test_a_method_without_comparable_halves_is_judged_on_all_rounds_only() -> None:
    world = World({SOLO: 0.6, "fedavg": 0.7, "fedbabu": 0.8}, half={"fedbabu": 0.99})
    arms = [Arm(SOLO), Arm("fedavg"), Arm("fedbabu", halves=False)]
    race = run_race(arms, RaceRule(noise=QUIET), PriorOfRace(), world)
    assert Step("fedbabu", 0, True) not in world.steps
    assert give_verdict(race).method == "fedbabu"


def test_a_prior_orders_the_race_but_does_not_decide_it() -> None:
    """It keeps hopeless methods out, and evidence overrules what it expects of the others."""
    expected = {
        "hopeless": Expectation(-0.2, 0.0),
        **{f"m{k}": Expectation(0.05 if k else 0.0, 0.5) for k in range(5)},
    }
    strengths = {SOLO: 0.6, "hopeless": 0.5} | {f"m{k}": 0.61 for k in range(1, 5)} | {"m0": 0.8}
    world = World(strengths)
    race = race_in(world, prior=PriorOfRace(expected, 0.5))
    assert all(step.method != "hopeless" for step in world.steps)
    (why,) = [d.why for d in race.departures if d.method == "hopeless"]
    assert "similar federations" in why
    assert give_verdict(race).method == "m0"


# -- intervals -------------------------------------------------------------------------------------


def noisy_fold(rng: np.random.Generator, level: float, spread: float, samples: int) -> FoldOutcome:
    level += rng.normal(0, spread)
    return FoldOutcome(
        {f"p{p}": tuple((rng.random(samples) < level).astype(float)) for p in range(PARTIES)}
    )


@pytest.mark.parametrize("spread", [0.0, 0.014])  # of a method: a difference has 1.4 of it
def test_equal_methods_are_seldom_told_apart(spread: float) -> None:
    """Of 60 races of equal methods, at most a few may end with a clear difference."""
    rng = np.random.default_rng(0)

    class Equal(World):
        def outcome(self, step: Step) -> FoldOutcome:
            return noisy_fold(rng, 0.7, spread, 60)

    misses = 0
    for _ in range(60):
        race = race_in(Equal(dict.fromkeys([SOLO, "a", "b", "c", "d"], 0.7)), RaceRule())
        gain = race.difference(race.ranking[0], SOLO)
        assert gain
        misses += gain.low > 0 or gain.high < 0
    assert misses <= 6


def test_the_fold_that_chooses_does_not_count_for_the_finalist() -> None:
    """A method that is lucky on the first fold is tested without that fold."""

    class Lucky(World):
        def outcome(self, step: Step) -> FoldOutcome:
            level = 0.9 if step.method == "lucky" and step.fold == CHOICE else 0.7
            return noisy_fold(np.random.default_rng(step.fold), level, 0.0, 200)

    race = race_in(Lucky({SOLO: 0.7, "lucky": 0.7, "other": 0.7}))
    assert race.finalists == ["lucky"]
    gain = race.difference("lucky", SOLO)
    assert gain
    assert gain.gain == 0
    assert give_verdict(race).method == SOLO


def test_intervals_narrow_with_folds_and_widen_with_methods_and_noise() -> None:
    rng = np.random.default_rng(1)
    now, before = ([noisy_fold(rng, a, 0.0, 100) for _ in range(4)] for a in (0.8, 0.7))

    def width(test: PairedTest, folds: int) -> float:
        found = test.difference([[o] for o in now[:folds]], [[o] for o in before[:folds]])
        return found.high - found.low

    test = PairedTest(1, 4, QUIET)
    assert width(test, 4) < width(test, 2) < width(test, 1)
    assert width(PairedTest(20, 4, QUIET), 4) > width(test, 4)
    assert width(PairedTest(1, 4, TrainingNoise(seeds=0.01)), 4) > width(test, 4)


def test_a_difference_is_the_mean_over_parties_not_over_samples() -> None:
    now = [[FoldOutcome({"large": (1.0,) * 90 + (0.0,) * 10, "small": (0.0,) * 10})]]
    before = [[FoldOutcome({"large": (0.0,) * 100, "small": (1.0,) * 10})]]
    test = PairedTest(1, 4, QUIET)
    assert test.difference(now, before).gain == pytest.approx((0.9 - 1) / 2)
    assert test.difference(now, before, "large").gain == pytest.approx(0.9)


def test_a_party_that_one_run_lacks_is_left_out() -> None:
    now = [[FoldOutcome({"a": (1.0, 0.0), "b": (1.0, 1.0)})], [FoldOutcome({"a": (1.0, 1.0)})]]
    before = [[FoldOutcome({"a": (0.0, 0.0), "b": (1.0, 1.0)})]] * 2
    assert PairedTest(1, 4, QUIET).difference(now, before).gain == pytest.approx(0.75)


def as_folds(outcomes: Sequence[FoldOutcome]) -> list[list[FoldOutcome]]:
    return [[outcome] for outcome in outcomes]


def test_with_many_samples_two_like_methods_are_equal_within_a_point() -> None:
    """What is assumed about training must not keep intervals wide however many samples there are."""
    size = 20_000
    same = (1.0,) * (size - 400)
    now = [[FoldOutcome({"a": same + (1.0, 0.0) * 200})] for _ in range(3)]
    before = [[FoldOutcome({"a": same + (0.0, 1.0) * 200})] for _ in range(3)]
    gain = PairedTest(1, 4).difference(now, before)
    assert -0.01 < gain.low < 0 < gain.high < 0.01


def test_stay_alone_can_be_said_by_default() -> None:
    world = World({SOLO: 0.8, "a": 0.797, "b": 0.795, "c": 0.79}, samples=6000)
    verdict = give_verdict(race_in(world, RaceRule()))
    assert verdict.kind == "alone"
    assert verdict.gain
    assert verdict.gain.gain > -0.01


def test_what_would_settle_it_is_what_the_rule_needs() -> None:
    """With as many samples as are named, the same gain is clear."""
    alike = (1.0,) * 36 + (0.0,) * 16
    right = {SOLO: alike + (1.0,) * 3 + (0.0,) * 5, "a": alike + (0.0,) * 3 + (1.0,) * 5}

    def outcomes(times: int) -> Race:
        def advance(steps: Sequence[Step]) -> list[FoldOutcome]:
            values = [right[step.method] * times for step in steps]
            return [FoldOutcome({f"p{p}": v for p in range(PARTIES)}) for v in values]

        return run_race([Arm(SOLO), Arm("a")], RaceRule(), PriorOfRace(), advance)

    now = give_verdict(outcomes(1))
    assert now.kind == "cannot tell"
    named = re.search(r"bout ([\d,]+) samples more than the ([\d,]+)", now.sentence)
    assert named
    more, have = (int(text.replace(",", "")) for text in named.groups())
    assert have == 4 * 60 * PARTIES
    assert now.gain
    assert now.gain.variances
    enough = 1 + -(-more // have)
    assert give_verdict(outcomes(enough)).kind == "use"
    promised = now.gain.variances.with_samples(enough).error
    then = outcomes(enough).gain("a")
    assert then
    assert then.variances
    assert then.variances.error == pytest.approx(promised, rel=0.1)


def test_intervals_of_parties_hold_for_all_parties_together() -> None:
    race = race_in(World({SOLO: 0.6, "a": 0.7}))
    one, mean = race.gain("a", "p0"), race.gain("a")
    assert one
    assert mean
    assert one.variances
    assert mean.variances
    assert one.variances.tail == pytest.approx(mean.variances.tail / PARTIES)


def test_no_party_seems_clearly_helped_or_hurt_by_luck() -> None:
    """Of 60 races of equal methods, a party may seem so in a few: 5% of them."""
    rng = np.random.default_rng(3)

    class Equal(World):
        def outcome(self, step: Step) -> FoldOutcome:
            levels = rng.random((8, 40)) < 0.7
            return FoldOutcome({f"p{p}": tuple(v.astype(float)) for p, v in enumerate(levels)})

    clear = 0
    for _ in range(60):
        verdict = give_verdict(race_in(Equal(dict.fromkeys([SOLO, "a", "b"], 0.7)), RaceRule()))
        clear += any(p.gain.helped or p.gain.hurt for p in verdict.parties)
    assert clear <= 5


def test_repeats_narrow_intervals_and_measure_the_noise_of_seeds() -> None:
    rng = np.random.default_rng(5)

    def folds(level: float, spread: float, repeats: int) -> list[list[FoldOutcome]]:
        return [[noisy_fold(rng, level, spread, 500) for _ in range(repeats)] for _ in range(3)]

    test = PairedTest(1, 4)
    once = test.difference(folds(0.7, 0.03, 1), folds(0.7, 0.03, 1))
    often = test.difference(folds(0.7, 0.03, 9), folds(0.7, 0.03, 9))
    quiet = test.difference(folds(0.7, 0.0, 9), folds(0.7, 0.0, 9))
    assert often.high - often.low < 0.7 * (once.high - once.low)
    assert often.variances
    assert quiet.variances
    assert often.variances.between == pytest.approx(2 * 0.03**2, rel=0.5)
    assert quiet.variances.between < 0.3 * often.variances.between


def test_a_second_method_is_tested_if_the_first_gains_nothing() -> None:
    """On the first fold `lucky` seems best; on the others it is worse than training alone."""

    class Lucky(World):
        def outcome(self, step: Step) -> FoldOutcome:
            lucky = step.method == "lucky" and step.fold != CHOICE
            return super().outcome(Step("bad", *list(vars(step).values())[1:]) if lucky else step)

    strengths = {SOLO: 0.6, "lucky": 0.9, "good": 0.7, "bad": 0.5}
    race = run_race(
        [Arm(SOLO), Arm("lucky"), Arm("good")],
        RaceRule(noise=QUIET),
        PriorOfRace(),
        Lucky(strengths),
    )
    assert race.finalists == ["lucky", "good"]
    assert "good" not in [departure.method for departure in race.departures]
    assert race.spent <= race.budget
    verdict = give_verdict(race)
    assert (verdict.kind, verdict.method) == ("use", "good")
    gain = race.gain("good")
    assert gain
    assert gain.variances
    assert gain.variances.tail < 0.025 / 2

    # Without budget for a second, the verdict says what was not tested.
    only = RaceRule(noise=QUIET, budget=0.8)
    alone = give_verdict(
        run_race([Arm(SOLO), Arm("lucky"), Arm("good")], only, PriorOfRace(), Lucky(strengths))
    )
    assert (alone.kind, alone.method) == ("alone", SOLO)
    assert (
        "lucky, the most promising of 2 methods on the first fold, gains no more" in alone.sentence
    )
    assert "No other method was tested" in alone.sentence
    assert "use --methods 'good'" in alone.sentence


# -- the prior -------------------------------------------------------------------------------------


def test_similar_federations_count_and_others_do_not() -> None:
    here = FederationTraits(8, 100, 10, 0.5)
    prior = MethodPrior(
        [
            GainsElsewhere(FederationTraits(8, 120, 10, 0.55), {"fedper": 0.1, "fedavg": -0.1}),
            GainsElsewhere(FederationTraits(8, 100, 10, 0.0), {"fedper": -0.2, "fedavg": 0.3}),
            GainsElsewhere(FederationTraits(200, 9000, 2, 0.0, linear=True), {"fedavg": 0.5}),
        ]
    )
    assert here.similarity(here) == 1
    expected = prior.expectations(here)
    assert expected["fedper"].gain > 0.05 > expected["fedavg"].gain
    assert expected["fedper"].near_best > 0.8
    assert prior.similar(here) == 2
    assert not prior.expectations(FederationTraits(2, 1e6, 1000, 1.0))


# -- feasibility -----------------------------------------------------------------------------------


def base(**settings: Any) -> Any:
    return experiment(
        {"algorithm": "fedavg", "rounds": 2, "model": "linear", "test": "folds(2)", **settings}
    )


@pytest.fixture(scope="module")
def digits() -> Federation:
    return comity.load("digits").partition("iid", parties=3, seed=0, test="folds(2)")


def test_methods_that_cannot_run_are_left_out_with_the_reason(digits: Federation) -> None:
    candidates, left_out = feasible(base(), ["fedavg", "fedrep", "centralized", "solo"], digits)
    assert [c.method for c in candidates] == ["solo", "fedavg"]
    reasons = {o.method: o.why for o in left_out}
    assert "stay at the party" in reasons["fedrep"]
    assert "pools the data" in reasons["centralized"]


def test_a_limit_on_bytes_is_that_of_the_closed_form(digits: Federation) -> None:
    (solo, fedavg), _ = feasible(base(), ["fedavg"], digits)
    assert (solo.bytes, fedavg.bytes > 0) == (0, True)
    within, _ = feasible(base(), ["fedavg"], digits, max_bytes=fedavg.bytes)
    assert len(within) == 2
    with pytest.raises(UsageError, match=r"fedavg: It sends .* and the limit is"):
        feasible(base(), ["fedavg"], digits, max_bytes=fedavg.bytes - 1)


def test_a_privacy_budget_leaves_out_methods_without_a_mechanism(digits: Federation) -> None:
    budget = base(budget="epsilon=3")
    candidates, left_out = feasible(budget, ["fedavg", "fedavg+dp"], digits)
    assert [c.method for c in candidates] == ["solo", "fedavg+dp"]
    assert "cannot keep to a budget" in left_out[0].why
    assert candidates[1].epsilon is not None
    assert 0 < candidates[1].epsilon <= 3


def test_options_that_papers_tune_are_tried_with_several_values() -> None:
    assert with_values(["fedprox", "fedavg", "ditto+dp"], base()) == [
        "fedprox(mu=0.01)",
        "fedprox(mu=1)",
        "fedavg",
        "ditto(lam=0.1)+dp",
        "ditto(lam=1)+dp",
    ]
    assert with_values(["ditto(lam=3)"], base()) == ["ditto(lam=3)"]
    assert with_values(["fedprox"], base(set={"mu": 5})) == ["fedprox"]


@pytest.mark.parametrize("parse", [parse_bytes, parse_time])
@pytest.mark.parametrize("text", ["", "10", "MB", "10 parsecs", "-1MB", "0s", "nanMB", "1e3MB"])
def test_wrong_amounts_are_refused_in_a_sentence(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(UsageError, match="is a number with a unit"):
        parse(text)


def test_amounts() -> None:
    assert (parse_bytes("1.5 kB"), parse_bytes("2GB")) == (1500, 2e9)
    assert (parse_time("10min"), parse_time("2 h")) == (600, 7200)


# -- whole races -----------------------------------------------------------------------------------


def hospitals(rows: int = 60) -> Federation:
    """Hospitals with opposite labels: whoever averages learns nothing."""
    rng = np.random.default_rng(0)
    arrays = {}
    for k, name in enumerate(("north", "south", "west", "east")):
        x = rng.normal(size=(rows, 4)).astype(np.float32)
        y = ((x[:, 0] > 0) ^ bool(k % 2)).astype(np.int64)
        arrays[name] = (x, y)
    return Federation.from_arrays(arrays)


SMALL: dict[str, Any] = {"rounds": 4, "model": "linear", "folds": 2, "engine": "loop"}


def test_hospitals_with_opposite_labels_should_stay_alone(tmp_path: Path) -> None:
    advice = comity.advise(hospitals(), methods=["fedavg", "fedprox"], out=tmp_path, **SMALL)
    assert (advice.verdict.kind, advice.verdict.method, advice.command) == ("alone", "solo", "")
    plain = json.loads((tmp_path / "advice.json").read_text())
    assert plain["verdict"]["kind"] == "alone"
    assert {c["method"] for c in plain["candidates"]} == {
        "solo", "fedavg", "fedprox(mu=0.01)", "fedprox(mu=1)",
    }  # fmt: skip


def test_survivors_go_on_from_their_checkpoint(tmp_path: Path) -> None:
    """A run that was continued has the models of one that was not, to the bit."""
    comity.advise(hospitals(), methods=["fedavg"], out=tmp_path / "race", **SMALL)
    continued = tmp_path / "race" / "fedavg" / "fold-1"
    assert (continued / "summary-2-rounds.json").exists()
    fold = hospitals().under_folds("folds(2)", 0)
    comity.run("fedavg", fold, rounds=4, model="linear", engine="loop", out=tmp_path / "whole")
    for table in ("metrics.csv", "ledger.csv"):
        assert (continued / table).read_bytes() == (tmp_path / "whole" / table).read_bytes()


def test_the_same_call_uses_what_is_there(tmp_path: Path) -> None:
    first = comity.advise(hospitals(), methods=["fedavg"], out=tmp_path, **SMALL)
    times = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.csv")}
    second = comity.advise(hospitals(), methods=["fedavg"], out=tmp_path, **SMALL)
    assert first.plain() == second.plain()
    assert times == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.csv")}


def test_a_race_that_was_killed_goes_on_to_the_same_advice(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def dying(title: str) -> Any:
        if title == "fedavg, fold 1":
            raise Killed
        return Quiet()

    whole = comity.advise(hospitals(), methods=["fedavg"], out=tmp_path / "whole", **SMALL)
    with pytest.raises(Killed):
        comity.advise(
            hospitals(), methods=["fedavg"], out=tmp_path / "killed", progress=dying, **SMALL
        )
    assert not (tmp_path / "killed" / "advice.json").exists()
    again = comity.advise(hospitals(), methods=["fedavg"], out=tmp_path / "killed", **SMALL)
    figures = [[(rung.name, rung.gains) for rung in advice.race.rungs] for advice in (whole, again)]
    assert figures[0] == figures[1]
    assert whole.verdict == again.verdict


def test_parallel_runs_give_the_same_advice(tmp_path: Path) -> None:
    one, two = (
        comity.advise(hospitals(), methods=["fedavg"], out=tmp_path / f"{n}", jobs=n, **SMALL)
        for n in (1, 2)
    )
    assert one.verdict == two.verdict


def test_repeats_train_with_other_seeds_on_the_same_folds(tmp_path: Path) -> None:
    once = comity.advise(hospitals(), methods=["fedavg"], out=tmp_path, **SMALL)
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.csv")}
    again = comity.advise(hospitals(), methods=["fedavg"], out=tmp_path, repeats=2, **SMALL)
    for method in ("solo", "fedavg"):
        first, second = (tmp_path / method / f"fold-2{r}" for r in ("", "-repeat-2"))
        splits = [RunFolder(folder).read_split().parties for folder in (first, second)]
        assert splits[0] == splits[1]
        assert (first / "metrics.csv").read_bytes() != (second / "metrics.csv").read_bytes()
        assert not (tmp_path / method / "fold-1-repeat-2").exists()
    assert kept == {file: file.stat().st_mtime_ns for file in kept}
    assert (once.race.spent, again.race.spent) == (4, 6)
    assert again.verdict.gain
    assert again.verdict.gain.variances
    assert again.verdict.gain.variances.runs == 2


def test_a_damaged_outcome_is_refused(tmp_path: Path) -> None:
    comity.advise(hospitals(), methods=["fedavg"], out=tmp_path, **SMALL)
    file = next((tmp_path / "outcomes").glob("fedavg-*.json"))
    file.write_text(file.read_text().replace("1.0", "0.0", 1))
    with pytest.raises(CorruptedFile, match="damaged"):
        comity.advise(hospitals(), methods=["fedavg"], out=tmp_path, **SMALL)


def test_a_method_that_finishes_is_not_cut_at_half(tmp_path: Path) -> None:
    comity.advise(
        hospitals(), methods=["fedbabu"], out=tmp_path, **SMALL | {"model": "mlp2(width=8)"}
    )
    assert RunFolder(tmp_path / "fedbabu" / "fold-1").is_finished
    assert not list((tmp_path / "outcomes").glob("fedbabu-*-half.json"))


def test_other_metrics_are_judged_by_their_own_outcomes(tmp_path: Path) -> None:
    advice = comity.advise(hospitals(), methods=["fedavg"], out=tmp_path, metric="auc", **SMALL)
    assert advice.metric == "auc"
    assert advice.verdict.kind == "alone"


def test_the_call_that_trains_the_final_model_works(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=20)
    arrays = {}
    for name in ("north", "south", "west", "east"):  # alike, and too small to learn alone
        x = rng.normal(size=(40, 20)).astype(np.float32)
        arrays[name] = (x, (x @ w > 0).astype(np.int64))
    federation = Federation.from_arrays(arrays)
    advice = comity.advise(
        federation, methods=["fedavg"], out=tmp_path, **SMALL | {"rounds": 20}, lr=0.5
    )
    assert advice.verdict.method == "fedavg"
    result = eval(advice.command, {"comity": comity, "federation": federation})
    assert result.summary["rounds"] == 20


def test_the_call_that_trains_the_final_model_keeps_the_options() -> None:
    use = AdviceVerdict("use", "ditto", "", None)
    candidates = [Candidate("ditto", 5, 0.0, None)]
    settings = {"model": "linear", "set": {"lam": 0.5, "mu": 3}, "seed": 2, "data": "digits"}
    call = final_command(use, candidates, settings, own_data=True, in_python=True)
    assert call == "comity.run('ditto', federation, model='linear', seed=2, lam=0.5, rounds=5)"
    command = final_command(use, candidates, settings)
    assert command == (
        "comity run ditto --model linear --seed 2 --data digits --set lam=0.5 --rounds 5"
    )


def test_python_without_a_federation_gets_a_call_that_works(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"partition": "iid|keep(samples=40)", "parties": 6, "lr": 0.1}
    advice = comity.advise(
        methods=["fedprox"], out=tmp_path, **SMALL | settings | {"rounds": 12, "mu": 0.01}
    )
    assert advice.command.startswith("comity.run('fedprox', ")
    assert "mu=0.01" in advice.command
    result = eval(advice.command, {"comity": comity})
    assert len(result.summary["accuracy"]["per_party"]) == 6


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"test": "own(0.25)"}, "leave out test"),
        ({"folds": 1}, "folds is a whole number"),
        ({"margin": 0}, "margin is a number"),
        ({"repeats": 0}, "repeats is a number from 1 to 10, not 0"),
        ({"patience": 3}, "leave out --patience"),
        ({"newcomers": 1}, "newcomers"),
        ({"methods": ["fedavgg"]}, "fedavgg"),
        ({"methods": []}, "list of names"),
        ({"folds": 70}, "too few"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    arguments: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        comity.advise(hospitals(), out=tmp_path, **SMALL | arguments)
    assert not list(tmp_path.rglob("config.toml"))
