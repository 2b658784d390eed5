"""Gains by any metric and the verdict per party: computed by hand, and the coverage of intervals."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import scipy.stats
import torch
from torch import Tensor

from comity.errors import ComityError
from comity.measure.gain import (
    Gain,
    bootstrap_gain,
    count_changes,
    mean_and_error,
    paired_gain,
    paired_interval,
)
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import METRICS, Metric
from comity.metrics.reliability import Z95
from comity.studies.estimate import Estimate
from comity.studies.party_verdicts import (
    MOST,
    PartyVerdict,
    SampleCounts,
    average_gain,
    combine_seeds,
    estimates,
    format_verdicts,
    how_to_read,
    party_verdicts,
    without_few,
)


def answers_of(truth: Tensor, score: Tensor) -> Answers:
    return Answers(truth, (score > 0).long(), score)


def models(seed: int, zeros: int, ones: int, now: float, before: float) -> tuple[Answers, Answers]:
    """Two models of the same samples; `now` and `before` are the distances of their scores from the
    threshold, and half of each score is common to both.
    """
    draw = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.zeros(zeros), torch.ones(ones)]).long()
    common, a, b = torch.randn(3, len(y), generator=draw) / math.sqrt(2)
    side = 2 * y - 1
    return answers_of(y, common + a + now * side), answers_of(y, common + b + before * side)


def test_a_gain_is_the_difference_of_the_figures_and_repeatable() -> None:
    now, before = models(0, 30, 20, 1.0, 0.3)
    for name in ("balanced_accuracy", "macro_f1", "auc", "sensitivity", "specificity"):
        metric = METRICS[name]
        gain = bootstrap_gain("south", now, before, metric)
        assert gain is not None
        figures = [metric.of(answers.scores(2), answers.truth) or 0.0 for answers in (now, before)]
        assert gain.gain == pytest.approx(figures[0] - figures[1])
        assert gain.low < gain.gain < gain.high
        assert gain == bootstrap_gain("south", now, before, metric)
        back = bootstrap_gain("south", before, now, metric)
        assert back is not None
        assert (back.gain, back.low, back.high) == pytest.approx(
            (-gain.gain, -gain.high, -gain.low), abs=0.03
        )


def test_where_less_is_better_a_gain_is_less() -> None:
    now, before = models(0, 30, 20, 1.0, 0.3)
    balanced = METRICS["balanced_accuracy"]
    missed = replace(
        balanced, higher=False, figures=lambda *arguments: 1 - balanced.figures(*arguments)
    )
    gain, gain_of_missed = (
        bootstrap_gain("south", now, before, balanced),
        bootstrap_gain("south", now, before, missed),
    )
    assert gain is not None
    assert gain_of_missed is not None
    assert (gain_of_missed.gain, gain_of_missed.low, gain_of_missed.high) == pytest.approx(
        (gain.gain, gain.low, gain.high)
    )


def test_sensitivity_has_about_the_interval_of_agresti_and_min() -> None:
    """Sensitivity is a paired proportion, which this interval is made for."""
    now, before = models(5, 30, 60, 0.8, 0.2)
    gain = bootstrap_gain("south", now, before, METRICS["sensitivity"])
    ill = now.truth == 1
    better = int((now.right & ~before.right & ill).sum())
    worse = int((~now.right & before.right & ill).sum())
    assert gain is not None
    assert (gain.low, gain.high) == pytest.approx(paired_interval(better, worse, 60), abs=0.025)


def test_the_interval_of_accuracy_by_hand() -> None:
    """Agresti and Min (2005): half a sample is added to each cell. Of 20 samples, 8 were right only
    now and 2 only before: (8.5 - 2.5) / 22 = 0.27273, with a standard error of 0.13909.
    """
    assert paired_interval(8, 2, 20) == pytest.approx((0.00011, 0.54534), abs=1e-5)
    low, high = paired_interval(0, 0, 12)  # no sample changed, which proves nothing
    assert (low, high) == pytest.approx((-0.14, 0.14), abs=1e-3)


def test_samples_that_all_agree_have_an_interval_of_some_width() -> None:
    y = torch.tensor([0] * 6 + [1] * 6)
    gain = bootstrap_gain(
        "p", answers_of(y, 2.0 * y - 1), answers_of(y, 1 - 2.0 * y), METRICS["balanced_accuracy"]
    )
    assert gain is not None
    assert gain.gain == 1
    assert 0.2 < gain.low < 0.9


@pytest.mark.sweep("sizes0-auc", "sizes1-balanced_accuracy")
@pytest.mark.parametrize(("name", "truth"), [("balanced_accuracy", 0.3057), ("auc", 0.3437)])
@pytest.mark.parametrize("sizes", [(8, 30), (40, 40)])
def test_intervals_hold_the_truth_as_often_as_they_say(
    name: str, truth: float, sizes: tuple[int, int]
) -> None:
    """Scores are normal around ±1.2 now and ±0.2 before, so that the true metrics are known."""
    normal = torch.distributions.Normal(0.0, 1.0)
    scale = 1.0 if name == "balanced_accuracy" else math.sqrt(2)
    exact = [float(normal.cdf(torch.tensor(shift * scale))) for shift in (1.2, 0.2)]
    assert exact[0] - exact[1] == pytest.approx(truth, abs=1e-3)
    gains = [
        bootstrap_gain(f"p{k}", *models(k, *sizes, 1.2, 0.2), METRICS[name]) for k in range(100)
    ]
    covered = sum(gain is not None and gain.low <= truth <= gain.high for gain in gains)
    assert 90 <= covered <= 100


def test_a_party_without_a_metric_has_no_gain() -> None:
    y = torch.ones(9).long()
    assert (
        bootstrap_gain(
            "p", answers_of(y, torch.rand(9)), answers_of(y, torch.rand(9)), METRICS["auc"]
        )
        is None
    )
    both = torch.tensor([0, 1] * 5)
    assert (
        bootstrap_gain(
            "p",
            answers_of(both, torch.full((10,), math.nan)),
            answers_of(both, torch.rand(10)),
            METRICS["auc"],
        )
        is None
    )
    with pytest.raises(ComityError, match="differ between the runs"):
        bootstrap_gain(
            "p",
            answers_of(both, torch.rand(10)),
            answers_of(1 - both, torch.rand(10)),
            METRICS["auc"],
        )


# --- the answer for each party

ACCURACY = METRICS["accuracy"]


def clear(party: str, gain: float, error: float = 0.01) -> Gain:
    return Gain(party, gain, gain - 2 * error, gain + 2 * error, gain, error)


def verdicts_of(
    gains: dict[str, list[list[Gain]]],
    metric: Metric = ACCURACY,
    names: tuple[str, ...] = (),
    **counts: SampleCounts,
) -> dict[str, PartyVerdict]:
    all_counts = {
        gain.party: SampleCounts((20, 20), (20, 20))
        for seeds in gains.values()
        for seed in seeds
        for gain in seed
    } | counts
    by_method = {
        method: estimates(dict(enumerate(seeds)), True, len(gains), metric)
        for method, seeds in gains.items()
    }
    return {
        verdict.party: verdict
        for verdict in party_verdicts(
            by_method, {party: [of_party] for party, of_party in all_counts.items()}, metric, names
        )
    }


def test_the_sentence_of_each_kind_of_verdict() -> None:
    gains = {
        "fedavg": [
            [clear("south", 0.02), clear("north", 0.01), clear("east", -0.2), clear("west", 0.3)]
        ],
        "fedavg+dbe": [[clear("south", 0.0412, 0.005), clear("north", -0.01), clear("east", -0.1)]],
    }
    verdicts = verdicts_of(
        gains,
        names=("healthy", "ill"),
        west=SampleCounts((5, 78), (2, 30)),
        far=SampleCounts((9, 9), (9, 9)),
    )
    assert [f"{verdict.party}: {verdict.says}" for verdict in verdicts.values()] == [
        "south: +4.1 points (between 3.0 and 5.2) by fedavg+dbe",
        "north: no clear difference; fedavg gives +1.0 points (between -1.2 and 3.2)",
        (
            "east: better alone; fedavg+dbe, which costs it least, gives -10.0 points (between"
            " -12.2 and -7.8)"
        ),
        "west: too few samples of 'healthy' to say (2 to test on, 5 to train on)",
        "far: not judged: it was not heard at the end, or a model has diverged",
    ]
    assert [verdict.verdict for verdict in verdicts.values()] == [
        "gains",
        "level",
        "alone",
        "too few",
        "not judged",
    ]
    assert [verdict.method for verdict in verdicts.values()] == [
        "fedavg+dbe",
        None,
        "fedavg+dbe",
        None,
        None,
    ]
    assert set(verdicts["west"].methods) == {"fedavg"}


def test_too_few_looks_at_the_classes_that_the_metric_looks_at() -> None:
    gains = {"fedavg": [[clear("p", 0.1)]]}
    counts = SampleCounts((5, 78), (2, 30))
    assert verdicts_of(gains, METRICS["sensitivity"], p=counts)["p"].verdict == "gains"
    assert verdicts_of(gains, METRICS["specificity"], p=counts)["p"].says.startswith(
        "too few samples of class 0 to say (2 to test on"
    )
    assert (
        verdicts_of(gains, p=SampleCounts((9, 9, 0), (5, 4, 0)))["p"].says
        == "too few test samples (9) to say"
    )
    assert (
        verdicts_of(gains, p=SampleCounts((9, 9, 0), (5, 5, 0)))["p"].verdict == "gains"
    )  # of several classes one may be missing


def test_pseudo_samples_of_differences_are_those_of_agresti_and_min() -> None:
    """The closed form for paired outcomes and the form for any differences agree."""
    now, before = [1] * 18 + [0] * 4, [1] * 9 + [0] * 10 + [1] * 3
    differences = torch.tensor(now).double() - torch.tensor(before).double()
    middle, error = mean_and_error(differences, resolution=1.0)
    gain = paired_gain("p", now, before)
    assert (middle, error) == pytest.approx((gain.middle, gain.error))
    low, high = paired_interval(*count_changes(now, before), len(now))
    assert (low, high) == pytest.approx((middle - Z95 * error, middle + Z95 * error))


def test_the_interval_over_seeds_by_hand() -> None:
    """Sampling variance is not divided by the number of seeds, which share the test samples;
    variance between seeds is. The interval is corrected for choosing the best of m methods.
    """
    estimate = combine_seeds([clear("p", 0.1, 0.02), clear("p", 0.2, 0.04)], methods=4)
    sampling, training = (0.0004 + 0.0016) / 2, 0.005 / 2
    freedom = (sampling + training) ** 2 / training**2  # Satterthwaite; two seeds leave one degree
    half = scipy.stats.t(freedom).ppf(1 - 0.05 / 8) * math.sqrt(sampling + training)
    assert (estimate.gain, estimate.low, estimate.high) == pytest.approx(
        (0.15, 0.15 - half, 0.15 + half), abs=1e-4
    )


def test_one_method_and_one_seed_have_the_interval_of_the_table() -> None:
    gain = paired_gain("p", [1] * 18 + [0] * 2, [1] * 10 + [0] * 10)
    estimate = combine_seeds([gain], methods=1)
    assert (estimate.low, estimate.high) == pytest.approx((gain.low, gain.high))


def test_of_equal_methods_the_first_is_named() -> None:
    same = {method: {"p": Estimate(0.1, 0.05, 0.15)} for method in ("adcol", "fedavg", "relay")}
    counts = {"p": [SampleCounts((20, 20), (20, 20))]}
    assert [
        party_verdicts(same, counts, ACCURACY, foremost=method)[0].method
        for method in ("fedavg", "relay")
    ] == ["fedavg", "relay"]


def test_many_parties_are_counted() -> None:
    gains = {"fedavg": [[clear(f"p{k}", 0.1 if k % 3 else 0.0) for k in range(MOST + 1)]]}
    lines = format_verdicts(list(verdicts_of(gains).values()))
    assert lines[0].startswith("13 parties: 8 gain by collaborating, 5 no clear difference.")
    assert len(lines) == 9, "all that gain"
    assert lines[1] == "p1: +10.0 points (between 8.0 and 12.0) by fedavg"
    assert len(format_verdicts(list(verdicts_of(gains).values())[:MOST])) == MOST


def test_of_many_parties_those_that_gain_or_are_hurt_are_printed_first() -> None:
    differences = {7: 0.2, 13: -0.1}
    gains = {"fedavg": [[clear(f"p{k}", differences.get(k, 0.0)) for k in range(20)]]}
    lines = format_verdicts(list(verdicts_of(gains).values()))
    assert [line.split(":")[0] for line in lines[1:]] == ["p7", "p13", "p0", "p1", "p2"]
    assert "5 here, those with a clear difference first" in lines[0]


def test_of_many_parties_that_gain_only_some_are_printed() -> None:
    gains = {"fedavg": [[clear(f"p{k}", 0.1) for k in range(40)]]}
    assert len(format_verdicts(list(verdicts_of(gains).values()))) == 1 + MOST


def test_how_to_read_says_which_seeds_and_methods() -> None:
    assert "mean over 3 seeds" in how_to_read(2, [0, 1, 2], ACCURACY)
    assert "best of 2 methods" in how_to_read(2, [0, 1, 2], ACCURACY)
    assert "under each seed a party has other samples" in how_to_read(
        1, [5, 6], ACCURACY, same=False
    )
    assert "another start of training" in how_to_read(1, [5], ACCURACY)
    assert "another start of training" not in how_to_read(1, [5, 6], ACCURACY)
    assert "Two seeds tell little" in how_to_read(1, [5, 6], ACCURACY)
    assert how_to_read(1, [5, 6, 7], ACCURACY).endswith("with 95% confidence.")


def test_intervals_over_three_seeds_hold_the_truth_as_often_as_they_say() -> None:
    """Training moves a gain ten times as much as test samples do. With z instead of t the coverage
    would be 82 of 100.
    """
    draw = random.Random(0)
    covered = 0
    for _ in range(2000):
        sample = draw.gauss(0, 0.01)  # the error of these test samples, the same for every seed
        estimate = combine_seeds(
            [clear("p", 0.05 + sample + draw.gauss(0, 0.1), 0.01) for _ in range(3)], methods=1
        )
        covered += estimate.low <= 0.05 <= estimate.high
    assert 0.91 <= covered / 2000 <= 0.97


def test_the_average_over_parties_by_hand() -> None:
    """Parties have separate test samples, so the error of their mean is smaller than a party's;
    seeds share test samples.
    """
    gains = [clear("a", 0.1, 0.03), clear("b", 0.3, 0.04)]
    one_seed = average_gain({0: gains}, 1, ACCURACY)
    assert one_seed is not None
    assert (one_seed.gain, one_seed.high - one_seed.low) == pytest.approx(
        (0.2, 2 * 1.95996 * 0.05 / 2), abs=1e-5
    )
    two_seeds = average_gain({0: gains, 1: gains}, 1, ACCURACY)
    assert two_seeds is not None
    assert (two_seeds.low, two_seeds.high) == pytest.approx((one_seed.low, one_seed.high))
    assert average_gain({0: []}, 1, ACCURACY) is None


def test_parties_with_too_few_samples_are_not_counted() -> None:
    """A party is left out of all seeds; where parties differ by seed, of that seed only."""
    gains = {0: [clear("a", 0.1), clear("b", 0.1)], 1: [clear("a", 0.1), clear("b", 0.1)]}
    assert list(estimates(without_few(gains, {1: ["b"]}, True), True, 1, ACCURACY)) == ["a"]
    apart = estimates(without_few(gains, {1: ["b"]}, False), False, 1, ACCURACY)
    assert list(apart) == ["a (seed 0)", "b (seed 0)", "a (seed 1)"]
