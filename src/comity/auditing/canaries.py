"""The epsilon of private training, shown by an attack: canaries whose gradient nobody else's
touches (white box).

A mechanism gets the gradients of a batch's samples, one a row, and returns their noisy clipped
mean. Some of the rows are canaries, whose gradient is one coordinate and nothing else (Dirac), as
long as can be; half of them, drawn anew in each trial, are zeros, as if they were not there. The
attacker sees what comes out of each step and looks at their coordinates. How often it is right
bounds epsilon from below: a mechanism that claims less is broken (Jagielski et al. 2020). Where
each step sees all samples, the claim is that of Gaussian noise, whose errors are known at every
threshold: then the bound is tighter by far (Nasr et al. 2023).

An attack that catches nothing shows nothing. So the same attack is made on the same mechanism with
a tenth of its noise, which is broken for sure: if it is not caught, nothing is reported but that.
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
"""step(gradients of n samples, one a row: (n, d)) -> their noisy clipped mean (d). Each call draws
noise of its own.
"""
Outcomes = tuple[int, int]
"""How often, of how often."""
Mechanism = Callable[[float], Step]
"""The mechanism with its noise multiplied: by 1 it is what runs, by a tenth it is broken."""

TRIALS = 4000
CANARIES = 50
"""That are tried at once."""
BROKEN = 0.1
LEVEL = 0.002
"""How often a right mechanism is refuted, at most: an audit that cried wolf in one run of twenty
would not be believed.
"""
LENGTH = 1e4
"""How long a canary's gradient is: any clipping makes it as long as can be."""
MOST = 100.0
"""Larger epsilons are not told apart."""


@dataclass(frozen=True)
class Shown:
    """What canaries show of a mechanism."""

    claimed: float
    delta: float
    epsilon: float | None
    """The least epsilon that it can have, at 99.8%; None if the attack has no power."""
    broken: float
    """What the same attack shows of the same mechanism with a tenth of its noise."""

    @property
    def power(self) -> bool:
        """Whether the attack catches the broken mechanism."""
        return self.broken > self.claimed

    @property
    def refuted(self) -> bool:
        """Whether the mechanism has a larger epsilon than it claims."""
        return self.epsilon is not None and self.epsilon > self.claimed

    @property
    def says(self) -> str:
        """It in a sentence."""
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
) -> Shown:
    """What canaries show of `steps` steps of a mechanism on these gradients, and of the same with a
    tenth of its noise.

    `claimed` is the epsilon, at `delta`, of adding or removing a sample over all steps. `whole`
    says that each step sees all samples, so that the claim is that of Gaussian noise.
    """
    broken = least_epsilon(mechanism(BROKEN), gradients, delta, steps, whole, trials)
    if broken <= claimed:
        return Shown(claimed, delta, None, broken)
    return Shown(
        claimed,
        delta,
        least_epsilon(mechanism(1.0), gradients, delta, steps, whole, trials),
        broken,
    )


def least_epsilon(
    step: Step, gradients: Tensor, delta: float, steps: int, whole: bool, trials: int
) -> float:
    """The largest epsilon that the outcomes with and without a canary show from below, at 99.8%.

    A threshold is chosen by the first half of the trials, and judged by the second.
    """
    inside, without = _seen(step, gradients, steps, trials)
    halves = [(part[: len(part) // 2], part[len(part) // 2 :]) for part in (inside, without)]
    bound = _gaussian if whole else _any
    first, judged = ([half[k] for half in halves] for k in (0, 1))
    values = torch.cat(first).quantile(torch.linspace(0.005, 0.995, 199)).tolist()
    chosen = max(values, key=lambda at: bound(*_above(first, at), delta))
    return bound(*_above(judged, chosen), delta)


def _above(parts: Sequence[Tensor], at: float) -> tuple[Outcomes, Outcomes]:
    """How many values with a canary, and without, are above a threshold, and of how many."""
    inside, without = ((int((part > at).sum()), len(part)) for part in parts)
    return inside, without


def _seen(step: Step, gradients: Tensor, steps: int, trials: int) -> tuple[Tensor, Tensor]:
    """What steps leave in canaries' coordinates, added up: where the canary was there, and where it
    was not.

    Each has a coordinate of its own, so that many are tried at once: noise is claimed to be
    independent there.
    """
    n, d = gradients.shape
    others = torch.cat([gradients, gradients.new_zeros(n, CANARIES)], 1)
    source = torch.Generator().manual_seed(0)
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    for _ in range(-(-2 * trials // CANARIES)):
        there = torch.rand(CANARIES, generator=source) < 0.5
        canaries = torch.cat(
            [gradients.new_zeros(CANARIES, d), LENGTH * torch.diag(there.to(gradients))], 1
        )
        rows = torch.cat([others, canaries])
        left = torch.stack([step(rows)[d:] for _ in range(steps)]).sum(0)
        found[0].append(left[there])
        found[1].append(left[~there])
    return torch.cat(found[0]), torch.cat(found[1])


def _any(hits: Outcomes, alarms: Outcomes, delta: float) -> float:
    """Epsilon from below, by how often a canary was seen where there was one, and where there was
    none.

    An (epsilon, delta) mechanism has hits <= e^epsilon alarms + delta, and the same of right
    silence and misses. Each share has its interval at LEVEL on both sides, of which one is looked
    at: together they miss in no more than LEVEL of all cases.
    """
    hit, alarm = share(*hits, LEVEL).low, share(*alarms, LEVEL).high
    pairs = [
        (much, little) for much, little in ((hit, alarm), (1 - alarm, 1 - hit)) if much > delta
    ]
    return max([0.0, *(math.log((much - delta) / little) for much, little in pairs)])


def _gaussian(hits: Outcomes, alarms: Outcomes, delta: float) -> float:
    """Epsilon of the Gaussian noise that is told apart as well as this, from below."""
    hit, alarm = share(*hits, LEVEL).low, share(*alarms, LEVEL).high
    if not 0 < hit <= 1 or not 0 < alarm < 1:
        return 0.0
    apart = float(norm.ppf(hit) - norm.ppf(alarm))  # the canary's length in spreads of the noise
    if apart <= 0:
        return 0.0
    low, high = 0.0, MOST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(1 / apart, middle) > delta else (low, middle)
    return low


def row_loss(task: LearningTask, theta: Params, batch: Batch, own: None) -> Tensor:
    """The loss whose gradient of a sample is the sample itself: with it, a trainer is given
    gradients as they are.
    """
    return (batch.x @ theta["w"]).mean()
