"""Canaries against the private training of a run, through the run's own network and trainer.

All releases of the party with the largest epsilon are attacked together, as the account composes
them. The training is the one that the run's party function requests: its network, loss, weights,
clipping norm and noise. Only the samples differ: some of them are canaries.

A canary is a random input with a random label. Its gradient reaches all layers, so that clipping
is tested in all of them. Gradients of canaries are not orthogonal to each other, so they are
whitened: canary j gets a unit vector w_j, orthogonal to those of all others, and as close as
possible to its own gradient. The noise along the w_j is independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from comity.auditing.canaries import CANARIES, CanaryResult, Mechanism, Observe, Steps, attack
from comity.auditing.finding import Untried
from comity.auditing.local_training import local_trainings
from comity.auditing.view import View
from comity.base.key import Key
from comity.base.record import Params
from comity.base.samples import Samples
from comity.core.release import RECORD_UNITS
from comity.privacy.account import PrivacyCharge
from comity.training.descent import train
from comity.training.dp_sgd import NoScratch, per_record
from comity.training.requests import FitRequest, Private
from comity.training.settings import Training
from comity.training.task import Batch

ATTACK = "canaries"
MOST_STEPS = 4000
"""The largest number of steps with the run's noise; as many are made with a tenth of it."""
MOST_DRAWS = 2**30
"""The largest number of normal numbers that all these steps draw."""
LEAST_TRAININGS, MOST_TRAININGS = 4, 400
OTHERS = 50
"""The number of samples beside the canaries. Epsilon does not depend on it, and the fewer they are,
the less they blur the canaries. There are more if a sampling rate needs it.
"""
MOST_OTHERS = 200
"""The number of other samples that directions are orthogonal to, if batches are sampled."""
CANDIDATES = 3
"""For each canary so many inputs are drawn. Those whose gradients are least alike are used."""
MOST_NUMBERS = 2**26
"""The largest number of values in all gradients of candidates together."""
LEAST_CANARIES = 10
MOVE = 1e-3
"""How far the noise of all steps moves a weight, in units of the weights. The learning rate is
chosen for that: gradients stay what they are at the first step, and rounding does not matter.
"""


def attack_private_training(view: View) -> CanaryResult | Untried | None:
    """Attack private training with canaries; None if the run claims nothing for a record."""
    if view.claimed is None or view.unit not in RECORD_UNITS:
        return None
    if view.unit == "patient":
        return Untried(ATTACK, "they are single records, and the run claims to protect patients")
    epsilons = view.summary["privacy"]["parties"]
    worst = max(epsilons, key=lambda name: epsilons[name])
    rows = [
        row for row in view.folder.read_privacy() if row.party == worst and row.unit == "record"
    ]
    kinds = {(row.mechanism, row.sensitivity, row.noise, row.rate) for row in rows}
    if len(kinds) != 1 or rows[0].mechanism != "gaussian" or not rows[0].steps:
        return Untried(
            ATTACK, "not all that protects a record is training with one and the same noise"
        )
    request = _largest_request(view, worst)
    if request is None:
        return Untried(
            ATTACK, "the training that a party function requests depends on more than its messages"
        )
    steps = Steps(rows[0].rate, sum(row.steps for row in rows))
    effort = _effort(request, steps)
    if isinstance(effort, str):
        return Untried(ATTACK, effort)
    return _attack_request(view, worst, request, steps, effort, rows[0])


def _attack_request(
    view: View,
    party: str,
    request: FitRequest[Any],
    steps: Steps,
    effort: Effort,
    charge: PrivacyCharge,
) -> CanaryResult | Untried:
    """Plant canaries in a training that a party's function requests, and attack it."""
    assert request.private
    assert view.claimed is not None
    records, half = len(request.private.samples), effort.canaries // 2
    size = few_samples(steps.rate, half + min(OTHERS, records), half + records)
    steps = replace(steps, rate=int(steps.rate * size) / size)
    if not steps.rate:
        return Untried(ATTACK, f"{party} has too few records for canaries beside them")
    key = view.key.fold(ATTACK)
    planted = plant(request, steps, size, charge.sensitivity, effort.canaries, key)
    return attack(
        mechanism(planted, request, steps, charge.noise, key),
        view.claimed,
        view.delta,
        steps,
        trainings=effort.trainings,
        canaries=effort.canaries,
    )


def _largest_request(view: View, party: str) -> FitRequest[Any] | None:
    """The training with the most weights that a party's function requests, if that is known."""
    trainings = local_trainings(view, view.job.info.names.index(party))
    return max((each.request for each in trainings), key=_count_weights, default=None)


@dataclass(frozen=True)
class Effort:
    """How many canaries are used, and how often the training is made with each noise."""

    canaries: int
    trainings: int


def _effort(request: FitRequest[Any], steps: Steps) -> Effort | str:
    """The effort of an attack on a training; the reason if it cannot be attacked."""
    if request.task.network.draws:
        return "layers of the network draw at random, and gradients vary with that"
    weights = _count_weights(request)
    canaries = min(CANARIES, MOST_NUMBERS // (CANDIDATES * weights))
    canaries -= canaries % 2
    if canaries < LEAST_CANARIES:
        return f"a model of {weights:,} weights is too large"
    most_steps = min(MOST_STEPS, MOST_DRAWS // weights)
    trainings = min(MOST_TRAININGS, most_steps // steps.count)
    if trainings < LEAST_TRAININGS:
        return (
            f"{steps.count:,} steps of a model of {weights:,} weights are too many to be made often"
            " enough"
        )
    return Effort(canaries, trainings)


def _count_weights(request: FitRequest[Any]) -> int:
    return sum(request.begin[name].numel() for name in request.names)


def few_samples(rate: float, least: int, most: int) -> int:
    """A number of samples, of which `rate` is nearly a whole number and not less than one.

    The batch size is a whole number, so that the rate of the attacked training is a little smaller
    than that of the run. The claim of the run covers that.
    """
    if rate >= 1:
        return least
    enough = math.ceil(1 / rate)
    numbers = range(least, max(4 * least, enough + 1, least + 1))
    usable = [number for number in numbers if number <= most] or [most]
    return max(usable, key=lambda number: int(rate * number) / number)


@dataclass(frozen=True)
class Planted:
    """Canaries beside other samples of a party."""

    others: Samples
    canaries: Samples
    directions: Tensor
    """A unit vector for each canary, orthogonal to those of all others: (canaries, weights)."""
    lengths: Tensor
    """[j, i]: how long the clipped gradient of canary i is along the direction of canary j."""
    offset: Tensor
    """How long the sum of the other samples' clipped gradients is along each direction."""


def plant(
    request: FitRequest[Any], steps: Steps, size: int, clip: float, canaries: int, key: Key
) -> Planted:
    """Draw canaries for a training, and compute what the attacker knows of them.

    Arguments:
        request: the training
        steps: the steps of the claim
        size: the number of samples of a training, of which half of the canaries are a part
        clip: the norm that each sample's gradient is claimed to be clipped to
        canaries: the number of canaries
        key: the key of the draws
    """
    assert request.private
    own = request.private.samples
    others = own.take(key.fold("others").choose(min(size - canaries // 2, len(own)), len(own)))
    total, basis = _sum_and_basis(request, others, clip, canaries)
    inputs = _draw_inputs(request, own, CANDIDATES * canaries, clip, key)
    gradients = _clipped(_gradients(request, inputs), clip)
    units = gradients
    if steps.rate < 1:  # who of the others is in a batch is not known, so they must not matter
        units = units - (units @ basis) @ basis.T
    units = units / units.norm(dim=1, keepdim=True).clamp(min=1e-12)
    indices = _least_alike(units, canaries)
    gradients, units = gradients[indices], units[indices]
    values, vectors = torch.linalg.eigh((units @ units.T).double())
    whitening = vectors @ torch.diag(values.clamp(min=1e-9).rsqrt()) @ vectors.T
    directions = whitening.to(units) @ units
    return Planted(
        others, inputs.take(indices), directions, directions @ gradients.T, directions @ total
    )


def _sum_and_basis(
    request: FitRequest[Any], others: Samples, clip: float, at_once: int
) -> tuple[Tensor, Tensor]:
    """The sum of the clipped gradients of samples, and an orthonormal basis of the space of the
    first of them: (weights, samples).
    """
    total = torch.zeros(_count_weights(request))
    first: list[Tensor] = []
    most = min(MOST_OTHERS, MOST_NUMBERS // _count_weights(request))
    for part in torch.arange(len(others)).split(at_once):
        gradients = _clipped(_gradients(request, others.take(part)), clip)
        total += gradients.sum(0)
        if sum(map(len, first)) < most:
            first.append(gradients)
    basis: Tensor = torch.linalg.qr(torch.cat(first)[:most].T).Q
    return total, basis


def _draw_inputs(
    request: FitRequest[Any], own: Samples, number: int, clip: float, key: Key
) -> Samples:
    """Random inputs with random labels, so large that most of their gradients are clipped."""
    source = key.fold("canaries").generator()
    y = torch.randint(request.task.classes, (number,), generator=source)
    rows = {
        name: values[torch.randint(len(own), (number,), generator=source)]
        for name, values in own.rows.items()
    }
    if not own.x.is_floating_point():
        x = torch.randint(int(own.x.max()) + 1, (number, *own.shape), generator=source)
        return Samples(x.to(own.x), y, rows)
    samples = Samples(torch.randn(number, *own.shape, generator=source), y, rows)
    for _ in range(10):
        if _gradients(request, samples).norm(dim=1).median() >= 2 * clip:
            break
        samples = replace(samples, x=2 * samples.x)
    return samples


def _gradients(request: FitRequest[Any], samples: Samples) -> Tensor:
    """Each sample's gradient as one row, computed without the trainer's kernels."""

    def loss(theta: Params, batch: Batch) -> Tensor:
        return request.objective(request.task, theta, batch, request.aux)

    batch = Batch(
        samples.x, samples.y, torch.arange(len(samples)), 0, NoScratch(), dict(samples.rows)
    )
    gradients = per_record(loss, request.begin, request.names, batch)
    return torch.cat([gradients[name].flatten(1) for name in request.names], 1)


def _clipped(gradients: Tensor, clip: float) -> Tensor:
    clipped: Tensor = gradients * (clip / gradients.norm(dim=1, keepdim=True).clamp(min=clip))
    return clipped


def _least_alike(units: Tensor, number: int) -> Tensor:
    """The indices of so many unit vectors, chosen one by one: each has the smallest cosine with
    those before it.
    """
    cosines = (units @ units.T).abs()
    indices = [0]
    largest = cosines[0].clone()
    for _ in range(number - 1):
        largest[indices[-1]] = math.inf
        indices.append(int(largest.argmin()))
        largest = torch.maximum(largest, cosines[indices[-1]])
    return torch.tensor(indices)


def mechanism(
    planted: Planted,
    request: FitRequest[Any],
    steps: Steps,
    noise: float,
    key: Key,
) -> Mechanism:
    """The requested training as a mechanism that makes all `steps` of the claim at once.

    `noise` is the claimed standard deviation, which the learning rate is chosen by.
    """
    assert request.private
    private: Private = request.private
    canaries = planted.canaries
    size = len(planted.others) + len(canaries) // 2
    expected = steps.rate * size
    begin = torch.cat([request.begin[name].flatten() for name in request.names])
    unit = float(begin.square().mean().sqrt().clamp(min=1e-3))
    lr = MOVE * unit * expected / (noise * math.sqrt(steps.count))
    how = Training("sgd", lr=lr, batch=max(1, round(expected)), steps=steps.count)
    calls = count()

    def with_noise(factor: float) -> Observe:
        def observe(present: Tensor) -> Tensor:
            indices = present.nonzero()[:, 0]
            samples = _concatenate(planted.others, canaries.take(indices))
            trained = train(
                replace(
                    request,
                    samples=samples,
                    key=key.fold(next(calls)),
                    training=how,
                    private=replace(
                        private, samples=samples, noise=factor * private.noise, trainings=[]
                    ),
                    pull=None,
                    add=None,
                    before=None,
                )
            ).theta
            end = torch.cat([trained[name].flatten() for name in request.names])
            sums = planted.directions @ (begin - end) * (expected / lr)
            # What the attacker knows of all other samples, which take part in `rate` of all steps.
            of_canaries = (planted.lengths * present).sum(1) - planted.lengths.diagonal() * present
            return sums - steps.rate * steps.count * (planted.offset + of_canaries)

        return observe

    return with_noise


def _concatenate(first: Samples, second: Samples) -> Samples:
    """The samples of both, one after the other."""
    return Samples(
        torch.cat([first.x, second.x]),
        torch.cat([first.y, second.y]),
        {name: torch.cat([first.rows[name], second.rows[name]]) for name in first.rows},
    )
