"""How many more samples, or runs, would show a difference: against simulations, and in words."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_rows import row

from comity.measure.cross_validation import FoldRun, cross_validated_gains
from comity.measure.gain import Gain, bootstrap_gain, paired_gain
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import METRICS
from comity.studies.estimate import Estimate, Variances
from comity.studies.overall_verdict import overall_verdict
from comity.studies.party_verdicts import SampleCounts, combine_seeds, party_verdicts
from comity.studies.power import MOST_TIMES, PROBABILITY, Power, visible_difference

TRIALS = 300
TOLERANCE = 0.09
"""Four standard errors of a share of 80% in `TRIALS` trials are 0.09."""


def power_of(estimate: Estimate, samples: int) -> Power:
    power = Power.of(estimate, samples)
    assert power is not None
    return power


def typical(simulate: Callable[[int], Gain], samples: int, trials: int = 60) -> Estimate:
    """The estimate with the mean gain and the mean variances of many samples of that size."""
    estimates = [combine_seeds([simulate(samples)], 1, bounded=False) for _ in range(trials)]
    variances = [e.variances for e in estimates if e.variances]
    mean = replace(
        variances[0],
        sampling=statistics.fmean(v.sampling for v in variances),
        between=statistics.fmean(v.between for v in variances),
    )
    gain = statistics.fmean(e.gain for e in estimates)
    return Estimate(gain, gain - 0.1, gain + 0.1, mean)


def share_clear(simulate: Callable[[int], Gain], samples: int, trials: int = TRIALS) -> float:
    return statistics.fmean(
        combine_seeds([simulate(samples)], 1, bounded=False).helped for _ in range(trials)
    )


def outcomes(draw: random.Random) -> Callable[[int], Gain]:
    """Samples that became right, or wrong, with known probabilities."""

    def simulate(samples: int) -> Gain:
        changes = draw.choices((1, -1, 0), weights=(0.15, 0.09, 0.76), k=samples)
        return paired_gain("p", [int(c >= 0) for c in changes], [int(c <= 0) for c in changes])

    return simulate


def two_models(samples: int, draw: torch.Generator) -> tuple[Answers, Answers]:
    """The scores of two models, most of whose noise is common; the first separates better."""
    y = torch.arange(samples) % 2
    common = math.sqrt(0.7) * torch.randn(samples, generator=draw)
    scores = [
        common + math.sqrt(0.3) * torch.randn(samples, generator=draw) + distance * (y - 0.5)
        for distance in (1.2, 0.9)
    ]
    now, before = (Answers(y.int(), (score > 0).int(), score) for score in scores)
    return now, before


def two_predictions(samples: int, draw: torch.Generator) -> tuple[Answers, Answers]:
    """Two models' predictions of a number; the first has less noise."""
    y = torch.randn(samples, generator=draw)
    noises = [scale * torch.randn(samples, generator=draw) for scale in (0.6, 0.7)]
    now, before = (Answers(y, y + noise, None) for noise in noises)
    return now, before


def in_folds(now: Answers, before: Answers, metric: str, folds: int = 5) -> Gain:
    """The gain where each fifth of the samples is tested by another run."""
    runs: list[list[FoldRun]] = [[], []]
    for k in range(folds):
        positions = torch.arange(len(now.truth))
        at = positions[(positions // 2) % folds == k]
        for answers, of_method in zip((now, before), runs, strict=True):
            score = None if answers.score is None else answers.score[at]
            part = Answers(answers.truth[at], answers.given[at], score)
            of_method.append(FoldRun(k, {"p": part}, {"p": at.tolist()}))
    return cross_validated_gains(runs[0], runs[1], folds, METRICS[metric])[0]


def test_as_many_samples_show_the_difference_in_four_of_five_trials() -> None:
    simulate = outcomes(random.Random(0))
    more = power_of(typical(simulate, 200, 400), 200).more_samples
    assert more is not None
    assert abs(share_clear(simulate, 200 + more, 400) - PROBABILITY) < TOLERANCE


def test_so_it_is_with_a_bootstrapped_auc() -> None:
    """The pseudo-samples of the bootstrap make the intervals of few samples wide, so that the
    number is on the safe side.
    """
    draw = torch.Generator().manual_seed(0)
    metric = replace(METRICS["auc"], draws=200)

    def simulate(samples: int) -> Gain:
        gain = bootstrap_gain("p", *two_models(samples, draw), metric)
        assert gain is not None
        return gain

    more = power_of(typical(simulate, 100, 30), 100).more_samples
    assert more is not None
    assert share_clear(simulate, 100 + more, 100) > PROBABILITY - 0.12
    assert share_clear(simulate, 100 + more // 4, 100) < PROBABILITY - 0.12


@pytest.mark.parametrize(
    ("metric", "models"),
    [("accuracy", two_models), ("auc", two_models), ("r2", two_predictions)],
)
def test_so_it_is_in_folds(
    metric: str, models: Callable[[int, torch.Generator], tuple[Answers, Answers]]
) -> None:
    """The variance between runs is estimated from five of them, and here it is zero: intervals are
    too wide rather than too narrow, so that the number is on the safe side.
    """
    draw = torch.Generator().manual_seed(1)

    def simulate(samples: int) -> Gain:
        return in_folds(*models(samples, draw), metric)

    power = power_of(typical(simulate, 100, 30), 100)
    assert power.folds == 5
    assert power.more_samples is not None
    assert share_clear(simulate, 100 + power.more_samples, 80) > PROBABILITY - TOLERANCE - 0.02
    assert share_clear(simulate, 100 + power.more_samples // 4, 80) < PROBABILITY - TOLERANCE


def test_a_visible_difference_shows_in_four_of_five_trials() -> None:
    draw = random.Random(1)
    variances = Variances(sampling=0.02**2)
    gain = visible_difference(variances)
    shown = statistics.fmean(draw.gauss(gain, 0.02) > 1.96 * 0.02 for _ in range(4000))
    assert abs(shown - PROBABILITY) < 0.03


@given(st.floats(0.001, 0.2), st.integers(5, 2000))
def test_a_smaller_difference_takes_more_samples(gain: float, samples: int) -> None:
    def needed(gain: float) -> float:
        estimate = Estimate(gain, gain - 0.3, gain + 0.3, Variances(0.15**2))
        more = power_of(estimate, samples).more_samples
        return math.inf if more is None else more

    assert needed(gain) >= needed(2 * gain)
    assert needed(gain) == math.inf or needed(gain) <= (MOST_TIMES - 1) * samples


def test_numbers_have_two_digits() -> None:
    estimate = Estimate(0.03, -0.01, 0.07, Variances(0.03**2))
    more = power_of(estimate, 1234).more_samples
    assert more is not None
    assert str(more)[2:] == "0" * (len(str(more)) - 2)
    # One step of rounding fewer would not be enough.
    too_few = Variances(0.03**2).with_samples(1 + (more - 100) / 1234)
    assert visible_difference(too_few) > 0.03


def test_samples_cannot_settle_what_training_hides_but_repeats_can() -> None:
    between = Variances(sampling=1e-5, between=0.02**2, runs=2)
    power = power_of(Estimate(0.03, -0.1, 0.16, between), 50)
    assert power.more_samples is None
    assert power.repeats is not None
    assert power.remedies == [f"{power.repeats} seeds"]
    enough = replace(between, runs=power.repeats)
    assert (
        visible_difference(enough)
        <= 0.03
        < visible_difference(replace(between, runs=power.repeats - 1))
    )
    in_folds = power_of(Estimate(0.03, -0.1, 0.16, replace(between, runs=10, folds=10)), 50)
    assert in_folds.remedies[0] == "2 repeats (--repeats 2)"


def test_repeats_do_not_remove_the_overlap_of_training_sets() -> None:
    many = Variances(0.0, between=0.01, runs=50_000, folds=5)
    assert many.training == pytest.approx(0.01 / 4, rel=1e-3)


def test_more_samples_also_train_where_all_are_tested_on() -> None:
    in_folds = Variances(0.04, between=0.03, runs=5, folds=5)
    assert in_folds.with_samples(4).error == pytest.approx(in_folds.error / 2)
    tested_only = Variances(0.04, between=0.03, runs=5)
    assert tested_only.with_samples(4).training == tested_only.training


def test_a_tiny_difference_has_no_remedy() -> None:
    power = power_of(Estimate(0.0005, -0.04, 0.041, Variances(0.02**2)), 100)
    assert power.remedies == []
    assert str(power) == "a difference below 5.6 points hardly shows"


def test_a_party_without_a_clear_difference_is_told_what_it_takes() -> None:
    unclear = Estimate(0.03, -0.01, 0.07, Variances(0.0004))
    clear = Estimate(0.06, 0.02, 0.1, Variances(0.0004))
    counts = {name: [SampleCounts((40, 40), (50, 50))] for name in ("north", "south")}
    verdicts = party_verdicts(
        {"fedavg": {"north": unclear, "south": clear}}, counts, METRICS["accuracy"]
    )
    assert verdicts[0].power == Power(visible_difference(Variances(0.0004)), 250, None)
    assert str(verdicts[0]) == (
        "north: no clear difference; fedavg gives +3.0 points (between -1.0 and 7.0); a difference"
        " below 5.6 points hardly shows; about 250 more test samples would probably settle it"
    )
    assert verdicts[1].power is None
    assert "settle" not in str(verdicts[1])


def test_earlier_results_have_no_such_phrase() -> None:
    assert Power.of(Estimate(0.03, -0.01, 0.07), 100) is None


def verdict_on(gain: Estimate, parties: dict[str, Estimate], seeds: int = 1) -> str:
    """What the overall verdict says would settle it, for parties with 50 samples each."""
    counts = {name: [SampleCounts((40, 40), (25, 25))] for name in parties}
    answers = party_verdicts({"fedavg": parties}, counts, METRICS["accuracy"])
    verdict = overall_verdict(
        [replace(row("fedavg", gain), gains=parties)], answers, seeds, samples=50 * len(parties)
    )
    assert verdict is not None
    return verdict.settle


def test_what_would_settle_it_in_words() -> None:
    unclear = Estimate(0.06, -0.04, 0.16, Variances(0.05**2))
    tiny = Estimate(0.0, -0.1, 0.1, Variances(0.05**2))
    clear = Estimate(0.2, 0.1, 0.3, Variances(0.05**2))
    text = verdict_on(unclear, {"north": unclear, "south": tiny, "west": clear})
    assert text == (
        "The average difference would probably show with about 670 more test samples over all"
        " parties (now 150). Single parties: north needs about 230 more test samples; 1 more would"
        " need unrealistically many."
    )
    assert verdict_on(clear, {"west": clear}) == ""
    assert verdict_on(tiny, {"south": tiny}) == (
        "The average difference is so small that no realistic number of samples or runs would show"
        " it. Single parties: no realistic number of samples would show a gain as small as theirs."
    )


@pytest.mark.parametrize(("seeds", "word"), [(2, "Two"), (4, "Four"), (5, "")])
def test_few_seeds_do_not_say_that_nothing_would_settle_it(seeds: int, word: str) -> None:
    """Over two seeds, +4.3 points (± 79.4): the interval is wide because seeds are few."""
    wide = Estimate(0.043, -0.751, 0.837, Variances(0.0001, 0.008, runs=seeds))
    for gain, parties in ((wide, {"north": wide}), (Estimate(0.2, 0.1, 0.3), {"north": wide})):
        text = verdict_on(gain, parties, seeds)
        few = f"{word} seeds are too few to say what would settle it; use five or more."
        assert (few in text) == bool(word)
        assert ("no realistic number" in text) != bool(word)


def test_twenty_parties_are_summed_up_in_one_sentence() -> None:
    parties = {
        f"p{k}": Estimate(0.05 + k / 1000, -0.05, 0.16, Variances(0.05**2)) for k in range(20)
    }
    text = verdict_on(parties["p0"], parties)
    assert "Single parties: 20 of 20 without a clear difference need more test samples" in text
    assert len(text) < 260
