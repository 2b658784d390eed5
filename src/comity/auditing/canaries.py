"""A lower bound on the epsilon of private training, by an attack with canaries (white box).

A mechanism gets the gradients of a batch's samples, one in each row, and returns their noisy
clipped mean. Some of the rows are canaries: their gradient is zero except in one coordinate of
their own (Dirac), and so long that it is clipped. A random half of them, drawn anew in each trial,
is set to zero, as if it were not there. The attacker sees the result of each step and looks at the
canaries' coordinates. Its success bounds epsilon from below: a mechanism that claims less is broken
(Jagielski et al. 2020). If each step uses all samples, the claim is that of Gaussian noise, whose
error rates are known at every threshold. The bound is then much tighter (Nasr et al. 2023).

An attack that detects nothing shows nothing. Therefore the same attack is made on the mechanism
with a tenth of its noise, which is certainly broken. If the attack does not detect that, it has no
power, and only this is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import norm
from torch import Tensor

from comity.auditing.chance import share
from comity.base.record import Params
from comity.privacy.accounting import gaussian_delta
from comity.training.task import Batch, LearningTask

Step = Callable[[Tensor], Tensor]
"""Maps the gradients of n samples (n, d) to their noisy clipped mean (d). Each call draws new
noise.
"""
Outcomes = tuple[int, int]
"""The number of successes, and the number of trials."""
Mechanism = Callable[[float], Step]
"""Maps a factor to the step with its noise multiplied by that factor; 1 is the step of the run."""

TRIALS = 4000
CANARIES = 50
"""The number of canaries in one trial."""
BROKEN = 0.1
LEVEL = 0.002
"""The largest chance that a correct mechanism is refuted. It is small, because an audit with a
false alarm in one of twenty runs would not be trusted.
"""
LENGTH = 1e4
"""The length of a canary's gradient before clipping."""
MOST = 100.0
"""The largest epsilon that is reported."""


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


def attack(
    mechanism: Mechanism,
    gradients: Tensor,
    claimed: float,
    delta: float,
    *,
    steps: int = 1,
    whole: bool = False,
    trials: int = TRIALS,
) -> CanaryResult:
    """Attack a mechanism with canaries, with its own noise and with a tenth of it.

    Arguments:
        mechanism: the mechanism to attack
        gradients: the gradients of the other samples
        claimed: the epsilon, at `delta`, of adding or removing a sample over all steps
        delta: the delta of the claim
        steps: how many steps an attack sees
        whole: whether each step uses all samples, so that the claim is that of Gaussian noise
        trials: the number of trials with a canary, and of trials without it
    """
    broken = least_epsilon(mechanism(BROKEN), gradients, delta, steps, whole, trials)
    if broken <= claimed:
        return CanaryResult(claimed, delta, None, broken)
    return CanaryResult(
        claimed,
        delta,
        least_epsilon(mechanism(1.0), gradients, delta, steps, whole, trials),
        broken,
    )


def least_epsilon(
    step: Step, gradients: Tensor, delta: float, steps: int, whole: bool, trials: int
) -> float:
    """A lower bound on epsilon, at 99.8%, from trials with and without a canary.

    The threshold is chosen on the first half of the trials, and the bound computed on the second.
    """
    present, absent = _run_trials(step, gradients, steps, trials)
    halves = [(part[: len(part) // 2], part[len(part) // 2 :]) for part in (present, absent)]
    bound = _gaussian_bound if whole else _general_bound
    first, second = ([half[k] for half in halves] for k in (0, 1))
    values = torch.cat(first).quantile(torch.linspace(0.005, 0.995, 199)).tolist()
    threshold = max(values, key=lambda value: bound(*_count_above(first, value), delta))
    return bound(*_count_above(second, threshold), delta)


def _count_above(parts: Sequence[Tensor], threshold: float) -> tuple[Outcomes, Outcomes]:
    """How many values with a canary, and without it, are above a threshold, and of how many."""
    present, absent = ((int((part > threshold).sum()), len(part)) for part in parts)
    return present, absent


def _run_trials(step: Step, gradients: Tensor, steps: int, trials: int) -> tuple[Tensor, Tensor]:
    """The sums over steps of the results in the canaries' coordinates.

    Returns those of trials with the canary, and those of trials without it. Each canary has a
    coordinate of its own, in which the noise is claimed to be independent, so that many are tried
    at once.
    """
    n, d = gradients.shape
    others = torch.cat([gradients, gradients.new_zeros(n, CANARIES)], 1)
    source = torch.Generator().manual_seed(0)
    with_canary: list[Tensor] = []
    without: list[Tensor] = []
    for _ in range(-(-2 * trials // CANARIES)):
        present = torch.rand(CANARIES, generator=source) < 0.5
        canaries = torch.cat(
            [gradients.new_zeros(CANARIES, d), LENGTH * torch.diag(present.to(gradients))], 1
        )
        rows = torch.cat([others, canaries])
        sums = torch.stack([step(rows)[d:] for _ in range(steps)]).sum(0)
        with_canary.append(sums[present])
        without.append(sums[~present])
    return torch.cat(with_canary), torch.cat(without)


def _general_bound(hits: Outcomes, alarms: Outcomes, delta: float) -> float:
    """A lower bound on epsilon from true positives (`hits`) and false positives (`alarms`).

    An (epsilon, delta) mechanism has hits <= e^epsilon alarms + delta, and the same holds for true
    and false negatives. Each share has a two-sided interval at LEVEL, of which one side is used:
    together they miss in at most LEVEL of all cases.
    """
    hit, alarm = share(*hits, LEVEL).low, share(*alarms, LEVEL).high
    pairs = [
        (larger, smaller)
        for larger, smaller in ((hit, alarm), (1 - alarm, 1 - hit))
        if larger > delta
    ]
    return max([0.0, *(math.log((larger - delta) / smaller) for larger, smaller in pairs)])


def _gaussian_bound(hits: Outcomes, alarms: Outcomes, delta: float) -> float:
    """A lower bound on epsilon, if the mechanism adds Gaussian noise to the sum of all samples."""
    hit, alarm = share(*hits, LEVEL).low, share(*alarms, LEVEL).high
    if not 0 < hit <= 1 or not 0 < alarm < 1:
        return 0.0
    # The canary's length in standard deviations of the noise.
    apart = float(norm.ppf(hit) - norm.ppf(alarm))
    if apart <= 0:
        return 0.0
    low, high = 0.0, MOST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(1 / apart, middle) > delta else (low, middle)
    return low


def row_loss(task: LearningTask, theta: Params, batch: Batch, own: None) -> Tensor:
    """A loss whose gradient of a sample is the sample itself, so that a trainer gets gradients as
    its samples.
    """
    return (batch.x @ theta["w"]).mean()
