"""Reconstruction by a decoder: a colluding party learns, on samples of its own, how inputs look
behind its representations.

The decoder is a ridge regression from representations to inputs: with the few samples that one
party has, more would be memorised. It is then given the victim's rows, brought to the means and
spreads of the colluder's own. A row is re-identified if of all samples that the victim trained on
the right one is closest to what was decoded. Guessing, for who could tell its class, names one of
the victim's samples of that class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from comity.auditing.chance import share
from comity.auditing.finding import Outcome, Pictures, Untried, best_and_median, pieced
from comity.auditing.membership_rows import even, first_and_last, spread
from comity.auditing.nearest_neighbours import nearest
from comity.auditing.observed import Rows
from comity.auditing.view import FIRST, LAST, Attacker, View, seen_by

ATTACK = "decoder"
RIDGE = 0.1  # of the mean square of a row
MOST = 2000  # samples that a decoder learns from
HOW = {
    FIRST: (
        "A colluding party learns to invert the weights that all start from, and is given a party's"
        " first rows."
    ),
    LAST: (
        "A colluding party learns to invert its own last model, and is given a party's last rows."
    ),
}


def decoded(view: View) -> list[Outcome]:
    """Of rows: of the first by weights that everybody starts from, of the last by a colluding
    party's model.
    """
    first, last = first_and_last(view)
    if not first:
        return []
    if not view.party(0).data.train.x.is_floating_point():
        return [
            Untried(ATTACK, "samples are words by their numbers, between which there is nothing")
        ]
    hits: dict[str, list[Tensor]] = {}
    priors: list[float] = []
    errors: dict[str, list[tuple[float, float]]] = {}
    pictures: dict[str, Pictures] = {}
    for i in sorted(first):
        train = view.party(i).data.train
        if any(len(found.z) != len(train) for found in (first[i], last[i])):
            return [
                Untried(
                    ATTACK,
                    "parties sent some of their rows only, so that nobody knows which row is whose",
                )
            ]
        priors += [len(train.y.unique()) / len(train)] * len(train)
        flat = train.x.flatten(1)
        for attacker in view.attackers(i):
            guesses = _decode(attacker, first[i] if attacker.first else last[i])
            right = nearest(guesses, flat)[1][:, 0] == torch.arange(len(flat))
            hits.setdefault(attacker.by, []).append(right)
            off = (guesses - flat).square().mean(1)
            blind = (flat - attacker.data.x.flatten(1).mean(0)).square().mean()
            errors.setdefault(attacker.by, []).append((float(off.mean()), float(blind)))
            if attacker.by not in pictures:
                pictures[attacker.by] = _shown(view, i, train.x, guesses.view_as(train.x), off)
    prior = sum(priors) / len(priors)
    found: list[Outcome] = []
    for by, each in hits.items():
        every = torch.cat(each)
        squared, other = (sum(part) / len(part) for part in zip(*errors[by], strict=True))
        figures = {
            "squared_error": squared,
            "squared_error_of_a_mean_picture": other,
            "samples": len(every),
        }
        estimate = share(int(every.sum()), len(every))
        found.append(
            pieced(
                f"{ATTACK}, {by}",
                HOW[by],
                "re-identified",
                estimate,
                prior,
                figures=figures,
                pictures=pictures[by],
            )
        )
    return found


def _decode(attacker: Attacker, sent: Rows) -> Tensor:
    """What the attacker takes for the inputs behind rows."""
    x = attacker.data.x[:MOST]
    own = seen_by(attacker, x)
    return ridge(own, x.flatten(1))(even(sent.z) * spread(own) + own.mean(0))


def ridge(z: Tensor, x: Tensor) -> Callable[[Tensor], Tensor]:
    """The ridge regression of x on z, by inner products of rows: there may be more values than
    samples.
    """
    middle, centre = z.mean(0), x.mean(0)
    off = z - middle
    products = off @ off.T
    weights: Tensor = torch.linalg.solve(
        products + RIDGE * products.diagonal().mean().clamp(min=1e-12) * torch.eye(len(z)),
        x - centre,
    )
    return lambda rows: (rows - middle) @ off.T @ weights + centre


def _shown(view: View, i: int, x: Tensor, guesses: Tensor, off: Tensor) -> Pictures:
    """The best reconstructions of a party, and those in the middle."""
    chosen = best_and_median(off)
    return Pictures(view.party(i).name, x[chosen], guesses[chosen])
