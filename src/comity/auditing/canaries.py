"""A lower bound on the epsilon of private training, by an attack with canaries (white box).

A mechanism trains on a batch's samples and adds noise. Some of the samples are canaries, whose
clipped gradients the attacker knows. A random half of them, drawn anew in each trial, takes part.
The attacker sees the result, and for each canary looks at one number: the result along a direction
of the canary's own, without the contributions of all other samples, which it knows.

If the mechanism is what it claims to be, this number is normal: its mean is the canary's length if
the canary takes part in every step (`rate` of that if batches are sampled), and 0 if it is absent;
its standard deviation is that of the noise. The distance of the two means, in standard deviations,
therefore bounds the noise from above and epsilon from below. A claim of less is refuted (Jagielski
et al. 2020; Nasr et al. 2023 for the Gaussian bound).

An attack that detects nothing shows nothing. Therefore the same attack is made on the mechanism
with a tenth of its noise, which is certainly broken. If the attack does not detect that, it has no
power, and only this is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from scipy.stats import chi2, nct, norm
from torch import Tensor

from comity.core.release import Release
from comity.privacy.accounting import gaussian_delta
from comity.privacy.composition import epsilon as composed_epsilon

Observe = Callable[[Tensor], Tensor]
"""Trains once, with new noise. Maps which canaries take part to a number for each canary."""
Mechanism = Callable[[float], Observe]
"""Maps a factor to the mechanism with its noise multiplied by that factor; 1 is that of the run."""

CANARIES = 50
"""The largest number of canaries."""
BROKEN = 0.1
LEVEL = 0.002
"""The largest chance that a correct mechanism is refuted. It is small, because an audit with a
false alarm in one of twenty runs would not be trusted.
"""
MOST = 100.0
"""The largest epsilon that is reported."""
LEAST_NOISE = 0.2
"""The smallest noise multiplier that epsilon is computed for if batches are sampled: less takes
long, and epsilon is far above any claim already.
"""


@dataclass(frozen=True)
class CanaryResult:
    """What canaries show about a mechanism."""

    claimed: float
    delta: float
    epsilon: float | None
    """A lower bound on the mechanism's epsilon, at 99.8%; None if the attack has no power."""
    broken: float
    """The lower bound for the same mechanism with a tenth of its noise."""

    @property
    def power(self) -> bool:
        """Whether the attack detects the broken mechanism."""
        return self.broken > self.claimed

    @property
    def refuted(self) -> bool:
        """Whether the mechanism has a larger epsilon than it claims."""
        return self.epsilon is not None and self.epsilon > self.claimed

    @property
    def sentence(self) -> str:
        """The result in a sentence."""
        if self.epsilon is None:
            return (
                "Canaries have no power here: with a tenth of the noise they show epsilon"
                f" {self.broken:.2f}, not more than the {self.claimed:.2f} that is claimed. Whether"
                " the noise is right they cannot tell."
            )
        verdict = "so the claim is refuted" if self.refuted else "so they do not refute it"
        return (
            f"Canaries show epsilon {self.epsilon:.2f} at least, {self.claimed:.2f} is claimed,"
            f" {verdict}; with a tenth of the noise they show {self.broken:.2f}."
        )


@dataclass(frozen=True)
class Steps:
    """How the steps of the claim use a sample: with which chance, and how many steps there are."""

    rate: float = 1.0
    count: int = 1


def attack(
    mechanism: Mechanism,
    claimed: float,
    delta: float,
    steps: Steps,
    *,
    trainings: int,
    canaries: int = CANARIES,
) -> CanaryResult:
    """Attack a mechanism with canaries, with its own noise and with a tenth of it.

    Arguments:
        mechanism: the mechanism to attack
        claimed: the epsilon, at `delta`, of a sample over all steps
        delta: the delta of the claim
        steps: the steps of the claim
        trainings: how often the mechanism is run with each noise
        canaries: the number of canaries, half of which take part in each training
    """
    broken = least_epsilon(mechanism(BROKEN), delta, steps, trainings, canaries)
    if broken <= claimed:
        return CanaryResult(claimed, delta, None, broken)
    epsilon = least_epsilon(mechanism(1.0), delta, steps, trainings, canaries)
    return CanaryResult(claimed, delta, epsilon, broken)


def least_epsilon(
    observe: Observe, delta: float, steps: Steps, trainings: int, canaries: int = CANARIES
) -> float:
    """A lower bound on epsilon, at 99.8%, from canaries that take part and canaries that do not."""
    present, absent = _run_trials(observe, trainings, canaries)
    if steps.rate >= 1:
        return gaussian_bound(present, absent, delta)
    return sampled_bound(present, absent, delta, steps)


def _run_trials(observe: Observe, trainings: int, canaries: int) -> tuple[Tensor, Tensor]:
    """The numbers of canaries that took part, and of those that did not.

    Each canary has a direction of its own, in which the noise is claimed to be independent, so that
    many are tried at once.
    """
    source = torch.Generator().manual_seed(0)
    with_canary: list[Tensor] = []
    without: list[Tensor] = []
    for _ in range(trainings):
        present = torch.zeros(canaries, dtype=torch.bool)
        present[torch.randperm(canaries, generator=source)[: canaries // 2]] = True
        values = observe(present).double()
        with_canary.append(values[present])
        without.append(values[~present])
    return torch.cat(with_canary), torch.cat(without)


def gaussian_bound(present: Tensor, absent: Tensor, delta: float) -> float:
    """A lower bound on epsilon if each step uses all samples, from the difference of two means.

    Student's statistic of the two groups has a noncentral t distribution, whose parameter is the
    distance of the means in standard deviations. Its lower confidence limit is exact.
    """
    n, m = len(present), len(absent)
    freedom = n + m - 2
    squares = (present - present.mean()).square().sum() + (absent - absent.mean()).square().sum()
    scale = math.sqrt(n * m / (n + m))
    difference = float(present.mean() - absent.mean())
    if difference <= 0:
        return 0.0
    if not squares:
        return MOST
    t = difference * scale / math.sqrt(float(squares) / freedom)
    if nct.sf(t, freedom, 0.0) > LEVEL:
        return 0.0
    # The limit lies between 0 and a little above t. The distribution is known there for large t,
    # too, by its normal approximation.
    width = math.sqrt(1 + t * t / (2 * freedom))
    low = max(0.0, t - 10 * width)
    exact = freedom < 10_000 and t < 30
    limit = (
        float(brentq(lambda shift: nct.sf(t, freedom, shift) - LEVEL, low, t + width))
        if exact
        else t - float(norm.isf(LEVEL)) * width
    )
    return _gaussian_epsilon(max(0.0, limit) / scale, delta)


def _gaussian_epsilon(apart: float, delta: float) -> float:
    """Epsilon of Gaussian noise, if a sample moves the mean by `apart` standard deviations."""
    if apart <= 0:
        return 0.0
    low, high = 0.0, MOST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(1 / apart, middle) > delta else (low, middle)
    return low


def sampled_bound(present: Tensor, absent: Tensor, delta: float, steps: Steps) -> float:
    """A lower bound on epsilon if batches are Poisson samples.

    The mean of a canary that takes part is `rate` times the number of steps. Without the canary
    there is noise only. Their ratio bounds the noise of a step from above, and epsilon is that of
    this noise with the claimed sampling. Half of the error level goes to the difference of the
    means, half to the standard deviation.
    """
    n, m = len(present), len(absent)
    difference = float(present.mean() - absent.mean())
    error = math.sqrt(float(present.var()) / n + float(absent.var()) / m)
    shift = difference - float(norm.isf(LEVEL / 2)) * error
    if shift <= 0:
        return 0.0
    spread = math.sqrt(float(absent.var()) * (m - 1) / float(chi2.ppf(LEVEL / 2, m - 1)))
    noise = max(LEAST_NOISE, steps.rate * math.sqrt(steps.count) * spread / shift)
    release = Release("record", "gaussian", 1.0, noise, rate=steps.rate, steps=steps.count)
    return composed_epsilon({release: 1}, delta)
