"""Reconstruction by a decoder: a colluding party learns, on its own samples, to compute inputs from
representations.

The decoder is a ridge regression, because a larger model would memorise the few samples of one
party. It is applied to the victim's rows, after these are standardised to the means and spreads of
the colluder's rows. A row is re-identified if, of all training samples of the victim, the right one
is closest to the decoded input. Guessing knows the class, and names one of the victim's samples of
that class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from comity.auditing.chance import share
from comity.auditing.finding import Outcome, Pictures, Untried, best_and_median, reconstruction
from comity.auditing.membership_rows import first_and_last, spread, standardise
from comity.auditing.nearest_neighbours import nearest
from comity.auditing.observed import Rows
from comity.auditing.view import FIRST, LAST, Attacker, View, represent

ATTACK = "decoder"
RIDGE = 0.1  # of the mean square of a row
MOST = 2000  # the largest number of samples that a decoder learns from
HOW = {
    FIRST: (
        "A colluding party learns to invert the weights that all start from, and is given a party's"
        " first rows."
    ),
    LAST: (
        "A colluding party learns to invert its own last model, and is given a party's last rows."
    ),
}


def attack_by_decoder(view: View) -> list[Outcome]:
    """Decode the first rows with the common initial weights, and the last rows with a colluding
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
        if any(len(rows.z) != len(train) for rows in (first[i], last[i])):
            return [
                Untried(
                    ATTACK,
                    "parties sent only some of their rows, so that it is not known which sample a"
                    " row is of",
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
                pictures[attacker.by] = _pictures(view, i, train.x, guesses.view_as(train.x), off)
    prior = sum(priors) / len(priors)
    outcomes: list[Outcome] = []
    for by, hits_by_party in hits.items():
        all_hits = torch.cat(hits_by_party)
        squared, other = (sum(part) / len(part) for part in zip(*errors[by], strict=True))
        figures = {
            "squared_error": squared,
            "squared_error_of_a_mean_picture": other,
            "samples": len(all_hits),
        }
        estimate = share(int(all_hits.sum()), len(all_hits))
        outcomes.append(
            reconstruction(
                f"{ATTACK}, {by}",
                HOW[by],
                "re-identified",
                estimate,
                prior,
                figures=figures,
                pictures=pictures[by],
            )
        )
    return outcomes


def _decode(attacker: Attacker, rows: Rows) -> Tensor:
    """The attacker's reconstructions of the inputs of rows."""
    x = attacker.data.x[:MOST]
    own = represent(attacker, x)
    return ridge(own, x.flatten(1))(standardise(rows.z) * spread(own) + own.mean(0))


def ridge(z: Tensor, x: Tensor) -> Callable[[Tensor], Tensor]:
    """The ridge regression of x on z, in its dual form: there may be more values than rows."""
    middle, centre = z.mean(0), x.mean(0)
    off = z - middle
    products = off @ off.T
    weights: Tensor = torch.linalg.solve(
        products + RIDGE * products.diagonal().mean().clamp(min=1e-12) * torch.eye(len(z)),
        x - centre,
    )
    return lambda rows: (rows - middle) @ off.T @ weights + centre


def _pictures(view: View, i: int, x: Tensor, guesses: Tensor, errors: Tensor) -> Pictures:
    """The best reconstructions of a party, and those around the median."""
    indices = best_and_median(errors)
    return Pictures(view.party(i).name, x[indices], guesses[indices])
