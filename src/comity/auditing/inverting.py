"""Gradient inversion: from the gradient of a batch back to its samples, exactly, if the first layer
is dense with ReLU after it.

The gradient of that layer's weights is D X and that of its bias D 1, with a row of X for each
sample and a column of D for each: how much each unit's output should change for it. That is 0 where
ReLU switched the unit off, so that columns of D have many zeros (Dimitrov et al. 2024 go by this).
With G = L A, L a basis of its columns, a column of D is L q for some q: if one guesses as many
units as fix q, and all of them happen to be off for one sample, q is its column, and others of its
zeros prove it. Once all columns are found, X and its scale follow from G and the bias. So it is
with what one step of SGD takes from weights; several steps mix so many samples that there is
nothing to find.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from comity.auditing.chance import share
from comity.auditing.finding import Outcome, Pictures, Untried, best_and_median, pieced
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
MOST_PARTIES = 10  # whose batches are looked for
MOST_MIXED = 13  # samples: of more, guessed units are hardly ever all off for one of them
GUESSES, TIMES = 4000, 5
LOOKED = 100  # of these, those with the most zeros
SAME = 0.999  # cosine of two that are one
ZERO = 1e-4  # of a column's length
DIFFERENT = 1e-2  # how far from what was found before a column is another one
PROVED = 4  # zeros beside those that were guessed


def inverted(view: View) -> list[Outcome]:
    """Of the first gradient that each party sent, and of the first update."""
    found: list[Outcome] = []
    for what, sent in (("gradients", _first_gradients(view)), ("updates", _first_updates(view))):
        by_party = dict(islice(sent, MOST_PARTIES))
        if by_party:
            found.append(_tried(view, what, by_party))
    return found


def _first_gradients(view: View) -> Iterator[tuple[int, Params]]:
    seen: set[int] = set()
    for one in gradients(view):
        if one.party not in seen and any(grad.any() for grad in one.grads.values()):
            seen.add(one.party)
            yield one.party, one.grads


def _first_updates(view: View) -> Iterator[tuple[int, Params]]:
    seen: set[int] = set()
    for one in updates(view):
        if one.party not in seen:
            seen.add(one.party)
            yield (
                one.party,
                {k: one.before[k] - v for k, v in one.after.items() if not is_buffer(k)},
            )


def _tried(view: View, what: str, sent: dict[int, Params]) -> Outcome:
    name = f"{ATTACK}: {what}"
    hits = tries = controls = 0
    made: dict[int, Tensor] = {}
    pictures: Pictures | None = None
    for i, grads in sent.items():
        train = view.party(i).data.train
        layer = first_layer(view.party(i).task, train.shape, grads)
        if layer is None or layer.bias is None:
            return Untried(name, "the network's first layer is not dense, or has no bias")
        mixed = len(span(layer.weight)[0])
        tries += mixed if what == "gradients" else _used(view, i)
        batch = samples_of(layer, view.key.fold(name, i))
        if batch is not None:
            made[i] = batch
            certain, nearest, off = unmistakable(batch, view.candidates(i).x)
            hits += len(nearest[certain & (nearest < len(train))].unique())
            pictures = pictures or _shown(view, i, batch, nearest, off)
    for i in made:  # what another party's gradient gives must not look like this one's samples
        other = next((j for j in made if j != i), None)
        if other is not None:
            certain, nearest, _ = unmistakable(made[other], view.candidates(i).x)
            controls += len(nearest[certain & (nearest < len(view.party(i).data.train))].unique())
    figures = {"samples": tries, "recovered": hits, "gradients": len(sent), "solved": len(made)}
    estimate = share(min(hits, tries), max(1, tries))
    return pieced(
        name,
        HOW[what],
        "recovered",
        estimate,
        controls / max(1, tries),
        figures=figures,
        pictures=pictures,
    )


def _used(view: View, i: int) -> int:
    """How many samples a training of a party sees."""
    party = view.party(i)
    many = len(party.data.train)
    return min(many, party.training.steps_for(many) * party.training.batch)


def samples_of(layer: FirstLayer, key: Key) -> Tensor | None:
    """The samples of a batch, one a row, from the gradient of the first layer; None if they cannot
    be told apart.
    """
    basis, units = span(layer.weight)
    rank = len(basis)
    if not 0 < rank <= MOST_MIXED or layer.bias is None:
        return None
    columns = torch.ones(1, 1, dtype=units.dtype) if rank == 1 else _columns(units, rank, key)
    if columns is None:
        return None
    scale = torch.linalg.lstsq(units @ columns, layer.bias[:, None]).solution[:, 0]
    found: Tensor = torch.linalg.solve(columns, basis) / scale[:, None]
    return found if found.isfinite().all() else None


def _columns(units: Tensor, rank: int, key: Key) -> Tensor | None:
    """The columns of D in a basis (rank, rank), by guessing units that are off for the same sample."""
    live = units[units.norm(dim=1) > ZERO * units.norm(dim=1).max()]
    if len(live) < rank + PROVED:
        return None
    seen: list[tuple[int, Tensor]] = []
    for k in range(TIMES):
        draws = torch.rand(GUESSES, len(live), generator=key.fold(k).generator())
        guessed = live[draws.topk(rank - 1, dim=1).indices]
        q = torch.linalg.svd(guessed, full_matrices=True).Vh[:, -1]
        columns = live @ q.T
        zeros = columns.abs() < ZERO * columns.norm(dim=0)
        seen += _distinct(live, q, zeros, rank - 1 + PROVED)
    found: list[Tensor] = []
    for _, q in sorted(
        seen, key=lambda one: -one[0]
    ):  # a mixture of columns has fewer zeros than each of them
        if torch.linalg.svdvals(torch.stack([*found, q]))[-1] > DIFFERENT:
            found.append(q)
        if len(found) == rank:
            return torch.stack(found, 1)
    return None


def _distinct(live: Tensor, q: Tensor, zeros: Tensor, least: int) -> list[tuple[int, Tensor]]:
    """What was guessed with at least so many zeros, those with the most first, each direction once,
    and how many it has.

    Each is found again by all units that are off for it, not only by those guessed: that is more
    exact.
    """
    many = zeros.sum(0)
    found: list[tuple[int, Tensor]] = []
    while len(found) < LOOKED and int(many.max()) >= least:
        j = int(many.argmax())
        found.append((int(many[j]), torch.linalg.svd(live[zeros[:, j]]).Vh[-1]))
        many = many.masked_fill((q @ q[j]).abs() > SAME, 0)
    return found


def unmistakable(guesses: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each guess: whether it is twice as close to one sample as to any other, which is closest,
    and how far that is.
    """
    near, which = nearest(guesses.to(x.dtype), x.flatten(1), 2)
    return near[:, 0] < near[:, 1] / 2, which[:, 0], near[:, 0]


def _shown(view: View, i: int, batch: Tensor, nearest: Tensor, off: Tensor) -> Pictures:
    """The best reconstructions of a batch, and those in the middle, below the samples that are
    closest to them.
    """
    chosen = best_and_median(off)
    x = view.candidates(i).x
    return Pictures(
        view.party(i).name,
        x[nearest[chosen]],
        batch[chosen].to(x.dtype).view(len(chosen), *x.shape[1:]),
    )
