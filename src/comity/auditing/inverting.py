"""Gradient inversion: the exact samples of a batch from its gradient, if the first layer is dense
and followed by ReLU.

The gradient of that layer's weights is G = D X, and that of its bias D 1. X has a row for each
sample, and D a column for each: the gradient of the units' outputs. An entry of D is 0 where ReLU
switched the unit off, so that the columns of D have many zeros (Dimitrov et al. 2024 use this).
With G = L A, where L is a basis of its columns, a column of D is L q for some q. If as many units
as determine q are guessed, and all of them are off for one sample, then q gives its column, and
further zeros prove it. From all columns, X and its scale follow from G and the bias. The same holds
for the difference of weights after one step of SGD; several steps mix too many samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from comity.auditing.chance import share
from comity.auditing.finding import Outcome, Pictures, Untried, best_and_median, reconstruction
from comity.auditing.first_layer import FirstLayer, first_layer, span
from comity.auditing.nearest_neighbours import nearest
from comity.auditing.observed import gradients, updates
from comity.auditing.view import View
from comity.base.key import Key
from comity.base.record import Params, is_buffer

ATTACK = "inversion"
HOW = {
    "gradients": "Whoever gets a party's first gradient computes the batch that it is of.",
    "updates": (
        "The server takes what a party's first training took from the weights for the gradient of"
        " one batch."
    ),
}
MOST_PARTIES = 10  # the largest number of parties that are attacked
MOST_MIXED = 13  # samples; with more, guessed units are hardly ever all off for one sample
GUESSES, TIMES = 4000, 5
MOST_GUESSES = 100  # of the guesses: those with the most zeros
SAME = 0.999  # the cosine from which two directions count as one
ZERO = 1e-4  # relative to the length of a column
DIFFERENT = 1e-2  # the smallest singular value from which a column is a new one
PROVED = 4  # zeros in addition to those that were guessed


def attack_by_inversion(view: View) -> list[Outcome]:
    """Invert the first gradient that each party sent, and the first update."""
    outcomes: list[Outcome] = []
    for what, by_party in (
        ("gradients", _first_gradients(view)),
        ("updates", _first_updates(view)),
    ):
        grads_by_party = dict(islice(by_party, MOST_PARTIES))
        if grads_by_party:
            outcomes.append(_invert(view, what, grads_by_party))
    return outcomes


def _first_gradients(view: View) -> Iterator[tuple[int, Params]]:
    parties: set[int] = set()
    for gradient in gradients(view):
        if gradient.party not in parties and any(grad.any() for grad in gradient.grads.values()):
            parties.add(gradient.party)
            yield gradient.party, gradient.grads


def _first_updates(view: View) -> Iterator[tuple[int, Params]]:
    parties: set[int] = set()
    for update in updates(view):
        if update.party not in parties:
            parties.add(update.party)
            difference = {
                k: update.before[k] - v for k, v in update.after.items() if not is_buffer(k)
            }
            yield update.party, difference


def _invert(view: View, what: str, grads_by_party: dict[int, Params]) -> Outcome:
    name = f"{ATTACK}: {what}"
    hits = tries = controls = 0
    batches: dict[int, Tensor] = {}
    pictures: Pictures | None = None
    for i, grads in grads_by_party.items():
        train = view.party(i).data.train
        layer = first_layer(view.party(i).task, train.shape, grads)
        if layer is None or layer.bias is None:
            return Untried(name, "the network's first layer is not dense, or has no bias")
        mixed = len(span(layer.weight)[0])
        tries += mixed if what == "gradients" else _samples_used(view, i)
        batch = recover_samples(layer, view.key.fold(name, i))
        if batch is not None:
            batches[i] = batch
            certain, nearest, off = match_samples(batch, view.candidates(i).x)
            hits += len(nearest[certain & (nearest < len(train))].unique())
            pictures = pictures or _pictures(view, i, batch, nearest, off)
    # The control: samples from another party's gradient must not match this party's samples.
    for i in batches:
        other = next((j for j in batches if j != i), None)
        if other is not None:
            certain, nearest, _ = match_samples(batches[other], view.candidates(i).x)
            controls += len(nearest[certain & (nearest < len(view.party(i).data.train))].unique())
    figures = {
        "samples": tries,
        "recovered": hits,
        "gradients": len(grads_by_party),
        "solved": len(batches),
    }
    estimate = share(min(hits, tries), max(1, tries))
    return reconstruction(
        name,
        HOW[what],
        "recovered",
        estimate,
        controls / max(1, tries),
        figures=figures,
        pictures=pictures,
    )


def _samples_used(view: View, i: int) -> int:
    """How many samples a party uses in one local training."""
    party = view.party(i)
    many = len(party.data.train)
    return min(many, party.training.steps_for(many) * party.training.batch)


def recover_samples(layer: FirstLayer, key: Key) -> Tensor | None:
    """The samples of a batch, one in each row, from the gradient of the first layer.

    None if they cannot be separated.
    """
    basis, units = span(layer.weight)
    rank = len(basis)
    if not 0 < rank <= MOST_MIXED or layer.bias is None:
        return None
    columns = torch.ones(1, 1, dtype=units.dtype) if rank == 1 else _columns(units, rank, key)
    if columns is None:
        return None
    scale = torch.linalg.lstsq(units @ columns, layer.bias[:, None]).solution[:, 0]
    samples: Tensor = torch.linalg.solve(columns, basis) / scale[:, None]
    return samples if samples.isfinite().all() else None


def _columns(units: Tensor, rank: int, key: Key) -> Tensor | None:
    """The columns of D in a basis (rank, rank), by guessing units that are off for one sample."""
    live = units[units.norm(dim=1) > ZERO * units.norm(dim=1).max()]
    if len(live) < rank + PROVED:
        return None
    guesses: list[tuple[int, Tensor]] = []
    for k in range(TIMES):
        draws = torch.rand(GUESSES, len(live), generator=key.fold(k).generator())
        guessed = live[draws.topk(rank - 1, dim=1).indices]
        q = torch.linalg.svd(guessed, full_matrices=True).Vh[:, -1]
        columns = live @ q.T
        zeros = columns.abs() < ZERO * columns.norm(dim=0)
        guesses += _distinct(live, q, zeros, rank - 1 + PROVED)
    independent: list[Tensor] = []
    # A linear combination of columns has fewer zeros than each of them, so that columns come first.
    for _, q in sorted(guesses, key=lambda guess: -guess[0]):
        if torch.linalg.svdvals(torch.stack([*independent, q]))[-1] > DIFFERENT:
            independent.append(q)
        if len(independent) == rank:
            return torch.stack(independent, 1)
    return None


def _distinct(live: Tensor, q: Tensor, zeros: Tensor, least: int) -> list[tuple[int, Tensor]]:
    """The distinct guesses with at least `least` zeros, by decreasing numbers of zeros.

    Each comes with its number of zeros. It is recomputed from all units that are off for it, which
    is more exact than from the guessed ones.
    """
    counts = zeros.sum(0)
    distinct: list[tuple[int, Tensor]] = []
    while len(distinct) < MOST_GUESSES and int(counts.max()) >= least:
        j = int(counts.argmax())
        distinct.append((int(counts[j]), torch.linalg.svd(live[zeros[:, j]]).Vh[-1]))
        counts = counts.masked_fill((q @ q[j]).abs() > SAME, 0)
    return distinct


def match_samples(guesses: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Match reconstructions with samples.

    Returns, for each guess, whether it is twice as close to one sample as to any other, the index
    of the closest sample, and its distance.
    """
    distances, indices = nearest(guesses.to(x.dtype), x.flatten(1), 2)
    return distances[:, 0] < distances[:, 1] / 2, indices[:, 0], distances[:, 0]


def _pictures(view: View, i: int, batch: Tensor, nearest: Tensor, errors: Tensor) -> Pictures:
    """The best reconstructions and those around the median, with the closest samples."""
    indices = best_and_median(errors)
    x = view.candidates(i).x
    return Pictures(
        view.party(i).name,
        x[nearest[indices]],
        batch[indices].to(x.dtype).view(len(indices), *x.shape[1:]),
    )
