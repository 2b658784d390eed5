"""Mean ranks and their tests, against the worked example of Demšar 2006 (section 3.2.2): four
versions of C4.5 on 14 data sets.
"""

from __future__ import annotations

import math

import pytest
from scipy.stats import friedmanchisquare

from comity.measure.mean_ranks import MeanRanks, mean_ranks

# The paper's Table 6. On the 13th data set (voting) C4.5+cf and C4.5+m+cf are both printed as 0.975
# but have ranks 2 and 3, so their unrounded figures differ: 0.9751 stands for the larger one.
AUC = {
    "C4.5": (0.763, 0.599, 0.954, 0.628, 0.882, 0.936, 0.661, 0.583, 0.775, 1.000, 0.940, 0.619, 0.972, 0.957),
    "C4.5+m": (0.768, 0.591, 0.971, 0.661, 0.888, 0.931, 0.668, 0.583, 0.838, 1.000, 0.962, 0.666, 0.981, 0.978),
    "C4.5+cf": (0.771, 0.590, 0.968, 0.654, 0.886, 0.916, 0.609, 0.563, 0.866, 1.000, 0.965, 0.614, 0.9751, 0.946),
    "C4.5+m+cf": (0.798, 0.569, 0.967, 0.657, 0.898, 0.931, 0.685, 0.625, 0.875, 1.000, 0.962, 0.669, 0.975, 0.970),
}  # fmt: skip
PRINTED_RANKS = {"C4.5+m+cf": 1.964, "C4.5+m": 2.000, "C4.5+cf": 2.893, "C4.5": 3.143}


@pytest.fixture(scope="module")
def example() -> MeanRanks:
    return mean_ranks(AUC)


def test_printed_ranks_and_critical_difference(example: MeanRanks) -> None:
    assert list(example.ranks) == list(PRINTED_RANKS)
    assert example.ranks == pytest.approx(PRINTED_RANKS, abs=0.0005)
    assert example.federations == 14
    # printed: CD = 2.569 sqrt(4 * 5 / (6 * 14)) = 1.25
    assert example.critical_difference == pytest.approx(2.569 * math.sqrt(20 / 84), abs=0.001)


def test_friedman_is_that_of_scipy_and_near_the_printed_value(example: MeanRanks) -> None:
    expected = friedmanchisquare(*AUC.values())
    assert (example.chi_square, example.p) == (expected.statistic, expected.pvalue)
    # Without the correction for equal figures it is the printed 9.28.
    squares = sum(rank**2 for rank in example.ranks.values())
    uncorrected = 12 * 14 / (4 * 5) * (squares - 4 * 5**2 / 4)
    assert uncorrected == pytest.approx(9.28, abs=0.005)
    assert example.chi_square >= uncorrected
    assert example.differ


def test_methods_alike(example: MeanRanks) -> None:
    """At 5% the largest difference of the example, 3.143 - 1.964 = 1.179, is below 1.25."""
    assert example.alike == [list(PRINTED_RANKS)]


def test_sets_of_methods_alike_overlap() -> None:
    ranks = {"a": 1.0, "b": 2.0, "c": 2.8, "d": 5.0}
    result = MeanRanks(ranks, 10, 20.0, 0.001, 1.5)
    assert result.alike == [["a", "b"], ["b", "c"]]
    assert MeanRanks(ranks, 10, 2.0, 0.5, 1.5).alike == [["a", "b", "c", "d"]]


def test_a_difference_as_large_as_the_critical_one_counts() -> None:
    result = MeanRanks({"a": 1.0, "b": 2.5, "c": 2.5}, 10, 20.0, 0.001, 1.5)
    assert result.alike == [["b", "c"]]


def test_equal_figures_everywhere() -> None:
    result = mean_ranks({name: [0.5] * 6 for name in "abc"})
    assert result.ranks == {"a": 2.0, "b": 2.0, "c": 2.0}
    assert (result.chi_square, result.p) == (0.0, 1.0)
    assert result.alike == [["a", "b", "c"]]


def test_too_few_are_refused() -> None:
    with pytest.raises(ValueError, match="three methods"):
        mean_ranks({"a": [1.0, 2.0], "b": [2.0, 1.0]})
