"""How many more test samples would show a difference."""

from __future__ import annotations

import math
import random
import statistics

from hypothesis import given
from hypothesis import strategies as st

from comity.measure.gain import Gain, paired_gain
from comity.metrics.metrics import METRICS
from comity.studies.estimate import Estimate
from comity.studies.party_verdicts import SampleCounts, combine_seeds, party_verdicts
from comity.studies.power import MOST, POWER, describe_power, more_samples


def test_as_many_samples_show_the_difference_in_four_of_five_trials() -> None:
    """Samples that became right, or wrong, with known probabilities, drawn again and again."""
    draw = random.Random(0)

    def gain_of(samples: int) -> Estimate:
        changes = draw.choices((1, -1, 0), weights=(0.15, 0.09, 0.76), k=samples)
        now = [int(change >= 0) for change in changes]
        before = [int(change <= 0) for change in changes]
        return combine_seeds([paired_gain("p", now, before)], 1)

    typical = Gain("p", 0.06, 0, 0, 0.06, math.sqrt((0.24 - 0.06**2) / 200))
    more = more_samples(combine_seeds([typical], 1), 200)
    assert more is not None
    clear = statistics.fmean(gain_of(200 + more).helped for _ in range(400))
    assert abs(clear - POWER) < 0.08


@given(st.floats(0.001, 0.2), st.integers(5, 2000))
def test_a_smaller_difference_takes_more_samples(gain: float, samples: int) -> None:
    def needed(gain: float) -> float:
        estimate = Estimate(gain, gain - 0.3, gain + 0.3, 0.15**2, 0.0, 1.96)
        more = more_samples(estimate, samples)
        return MOST if more is None else more

    assert needed(gain) >= needed(2 * gain)


def test_samples_cannot_mend_what_training_hides() -> None:
    estimate = Estimate(0.01, -0.1, 0.12, sampling=0.001, training=0.01, quantile=2.5)
    assert more_samples(estimate, 50) is None
    assert "more test samples alone would not settle it" in describe_power(estimate, 50)


def test_a_party_without_a_clear_difference_is_told_what_it_takes() -> None:
    estimate = Estimate(0.03, -0.01, 0.07, 0.0004, 0.0, 1.96)
    counts = {"north": [SampleCounts((40, 40), (50, 50))]}
    verdict = party_verdicts({"fedavg": {"north": estimate}}, counts, METRICS["accuracy"])[0]
    assert verdict.verdict == "level"
    assert "a difference below 4.0 points cannot be seen; about" in verdict.says
    assert "more test samples would probably settle it" in verdict.says


def test_earlier_results_have_no_such_phrase() -> None:
    assert describe_power(Estimate(0.03, -0.01, 0.07), 100) == ""
