"""The epsilon of private training, shown by an attack: canaries whose gradient nobody else's touches (white box).

A mechanism gets the gradients of a batch's samples, one a row, and returns their noisy clipped mean. In half of the trials one
of the rows is a canary, whose gradient is one coordinate and nothing else (Dirac), as long as can be; in the others it is zeros,
as if it were not there. The attacker sees what comes out of each step and looks at that coordinate. How often it is right bounds
epsilon from below: a mechanism that claims less is broken (Jagielski et al. 2020). Where each step sees all samples, the claim is
that of Gaussian noise, whose errors are known at every threshold: then the bound is tighter by far (Nasr et al. 2023).

An attack that catches nothing shows nothing. So the same attack is made on the same mechanism with a tenth of its noise, which is
broken for sure: if it is not caught, nothing is reported but that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch
from scipy.stats import norm
from torch import Tensor

from comity.audit.chance import share
from comity.core.fit import FitRequest, Fitted
from comity.core.key import Key
from comity.core.record import Params
from comity.core.samples import Samples
from comity.core.task import Batch, Task
from comity.core.training import Training
from comity.privacy.accounting import gaussian_delta

Step = Callable[[Tensor], Tensor]
"""step(gradients of n samples, one a row: (n, d)) -> their noisy clipped mean (d). Each call draws noise of its own."""
Mechanism = Callable[[float], Step]
"""The mechanism with its noise multiplied: by 1 it is what runs, by a tenth it is broken."""

TRIALS = 4000
BROKEN = 0.1
LEVEL = 0.05
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
    """The least epsilon that it can have, at 95%; None if the attack has no power."""
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
                f"Canaries have no power here: with a tenth of the noise they show epsilon {self.broken:.2f}, not more than the "
                f"{self.claimed:.2f} that is claimed. Whether the noise is right they cannot tell."
            )
        verdict = "so the claim is refuted" if self.refuted else "so they do not refute it"
        return (
            f"Canaries show epsilon {self.epsilon:.2f} at least, {self.claimed:.2f} is claimed, {verdict}; with a tenth of the "
            f"noise they show {self.broken:.2f}."
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
    """What canaries show of `steps` steps of a mechanism on these gradients, and of the same with a tenth of its noise.

    `claimed` is the epsilon, at `delta`, of adding or removing a sample over all steps. `whole` says that each step sees all
    samples, so that the claim is that of Gaussian noise.
    """
    broken = least_epsilon(mechanism(BROKEN), gradients, delta, steps, whole, trials)
    if broken <= claimed:
        return Shown(claimed, delta, None, broken)
    return Shown(claimed, delta, least_epsilon(mechanism(1.0), gradients, delta, steps, whole, trials), broken)


def least_epsilon(step: Step, gradients: Tensor, delta: float, steps: int, whole: bool, trials: int) -> float:
    """The largest epsilon that the outcomes with and without a canary show from below, at 95%.

    A threshold is chosen by the first half of the trials, and judged by the second.
    """
    without = torch.cat([gradients, gradients.new_zeros(1, gradients.shape[1])])
    without[:, -1] = 0.0  # nobody else's gradient touches the coordinate
    inside = without.clone()
    inside[-1, -1] = LENGTH
    seen = [_seen(step, rows, steps, trials) for rows in (inside, without)]
    half = trials // 2
    bound = _gaussian if whole else _any
    values = torch.cat([part[:half] for part in seen]).quantile(torch.linspace(0.005, 0.995, 199)).tolist()
    counted = {at: (int((seen[0][:half] > at).sum()), int((seen[1][:half] > at).sum())) for at in values}
    chosen = max(values, key=lambda at: bound(*counted[at], half, delta))
    return bound(int((seen[0][half:] > chosen).sum()), int((seen[1][half:] > chosen).sum()), trials - half, delta)


def _seen(step: Step, rows: Tensor, steps: int, trials: int) -> Tensor:
    """What each trial's steps leave in the canary's coordinate, added up."""
    return torch.tensor([math.fsum(float(step(rows)[-1]) for _ in range(steps)) for _ in range(trials)])


def _any(hits: int, alarms: int, trials: int, delta: float) -> float:
    """Epsilon from below, by how often a canary was seen where there was one, and where there was none.

    An (epsilon, delta) mechanism has hits <= e^epsilon alarms + delta, and the same of right silence and misses. Each share has
    its interval at LEVEL on both sides, of which one is looked at: together they miss in no more than LEVEL of all cases.
    """
    hit, alarm = share(hits, trials, LEVEL).low, share(alarms, trials, LEVEL).high
    pairs = [(much, little) for much, little in ((hit, alarm), (1 - alarm, 1 - hit)) if much > delta]
    return max([0.0, *(math.log((much - delta) / little) for much, little in pairs)])


def _gaussian(hits: int, alarms: int, trials: int, delta: float) -> float:
    """Epsilon of the Gaussian noise that is told apart as well as this, from below."""
    hit, alarm = share(hits, trials, LEVEL).low, share(alarms, trials, LEVEL).high
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


def row_loss(task: Task, theta: Params, batch: Batch, own: None) -> Tensor:
    """The loss whose gradient of a sample is the sample itself: with it, a trainer is given gradients as they are."""
    return (batch.x @ theta["w"]).mean()


def step_of(train: Callable[[FitRequest[None]], Fitted], task: Task, key: Key) -> Step:
    """One step of a trainer as a step: what it takes from weights of zero, at a learning rate of 1, with all rows in one batch.

    Each call has a key of its own, so that noise is drawn anew. The task is there because a trainer may want one.
    """
    calls = count()

    def step(rows: Tensor) -> Tensor:
        how = Training("sgd", lr=1.0, batch=len(rows), steps=1)
        samples = Samples(rows, torch.zeros(len(rows), dtype=torch.int64))
        begin = {"w": torch.zeros(rows.shape[1])}
        done = train(FitRequest(row_loss, begin, samples, key.fold("canary", next(calls)), how, task, None))
        return -done.theta["w"]

    return step
