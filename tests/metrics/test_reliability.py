"""The points of a reliability curve, and their intervals."""

from __future__ import annotations

import pytest
import torch

from comity.metrics.reliability import BIN_SAMPLES, reliability_bins, wilson_interval


def test_interval_of_a_proportion() -> None:
    """Newcombe (1998), table I: 81 of 263, and 0 of 20 with Wilson's method."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson_interval(20, 20)[1] == 1.0


def test_bins_of_probabilities_that_are_right_are_on_the_diagonal() -> None:
    draw = torch.Generator().manual_seed(0)
    score = 2 * torch.randn(4000, generator=draw)
    y = (torch.rand(4000, generator=draw) < score.sigmoid()).int()
    bins = reliability_bins(score, y)
    assert [b.samples for b in bins] == [400] * 10
    assert [b.predicted for b in bins] == sorted(b.predicted for b in bins)
    assert sum(b.low <= b.predicted <= b.high for b in bins) >= 8
    too_extreme = reliability_bins(3 * score, y)
    assert too_extreme[0].observed > too_extreme[0].predicted
    assert too_extreme[0].low > too_extreme[0].predicted


def test_equal_probabilities_are_in_one_bin() -> None:
    score = torch.tensor([-1.0] * 70 + [2.0] * 30)
    y = torch.tensor([0] * 60 + [1] * 40)
    low, high = reliability_bins(score, y)
    assert (low.samples, high.samples) == (70, 30)
    assert low.observed == pytest.approx(10 / 70)
    assert low.predicted == pytest.approx(float(torch.tensor(-1.0).sigmoid()))


def test_too_few_samples_and_diverged_models_have_no_curve() -> None:
    few = torch.linspace(-1, 1, 2 * BIN_SAMPLES - 1)
    assert reliability_bins(few, few > 0) == []
    assert reliability_bins(torch.full((100,), torch.nan), torch.arange(100) % 2) == []
