"""Reconstruction by a decoder: a colluding party learns, on its own samples, to compute inputs from
representations.

The decoder is a ridge regression, because a larger model would memorise the few samples of one
party. It is applied to the victim's rows, after these are standardised to the means and spreads of
the colluder's rows. The colluder's rows come from the common initial weights, from its last model,
or are those that it sent itself in the round of the victim's rows: after one round its encoder has
more in common with the victim's than the initial weights have.

The decoder learns from the colluder's samples, and successes are counted on the victim's. A row is
re-identified if, of all training samples of the victim, the right one is closest to the decoded
input. Guessing knows the class, and names one of the victim's samples of that class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from comity.auditing.chance import share
from comity.auditing.finding import Outcome, Pictures, Untried, best_and_median, reconstruction
from comity.auditing.membership_rows import first_and_last, spread, standardise
from comity.auditing.nearest_neighbours import nearest
from comity.auditing.observed import Rows
from comity.auditing.view import FIRST, LAST, View, represent

ATTACK = "decoder"
RIDGE = 0.03  # of the mean square of a row
MOST = 2000  # the largest number of samples that a decoder learns from
SAME_ROUND = "rows of the same round"
HOW = {
    FIRST: (
        "A colluding party learns to invert the weights that all start from, and is given a party's"
        " first rows."
    ),
    LAST: (
        "A colluding party learns to invert its own last model, and is given a party's last rows."
    ),
    SAME_ROUND: (
        "A colluding party learns to invert its own model from the rows that it sent in the first"
        " round, and is given those that another party sent in that round."
    ),
}


def attack_by_decoder(view: View) -> list[Outcome]:
    """Decode the first rows with the common initial weights and with a colluding party's rows of
    the same round, and the last rows with its model.
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
        for by, decode, z in _decoders(view, i, first, last):
            guesses = decode(z)
            right = nearest(guesses, flat)[1][:, 0] == torch.arange(len(flat))
            hits.setdefault(by, []).append(right)
            off = (guesses - flat).square().mean(1)
            blind = (flat - decode.mean).square().mean()
            errors.setdefault(by, []).append((float(off.mean()), float(blind)))
            if by not in pictures:
                pictures[by] = _pictures(view, i, train.x, guesses.view_as(train.x), off)
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


class Decoder:
    """A decoder that a party learns from representations of its own samples."""

    def __init__(self, own: Tensor, x: Tensor) -> None:
        self.mean = x.flatten(1).mean(0)
        self._own_mean, self._own_spread = own.mean(0), spread(own)
        self._regression = ridge(own[:MOST], x[:MOST].flatten(1))

    def __call__(self, z: Tensor) -> Tensor:
        """Reconstructions of the inputs of another party's rows."""
        return self._regression(standardise(z) * self._own_spread + self._own_mean)


def _decoders(
    view: View, i: int, first: Mapping[int, Rows], last: Mapping[int, Rows]
) -> Iterator[tuple[str, Decoder, Tensor]]:
    """The decoders that attack a party, each with its name and the rows that it is given."""
    for attacker in view.attackers(i):
        rows = first[i] if attacker.first else last[i]
        own = represent(attacker, attacker.data.x[:MOST])
        yield attacker.by, Decoder(own, attacker.data.x[:MOST]), rows.z
    colluder = view.colluder(i)
    own_rows = None if colluder is None else first.get(colluder)
    if own_rows and own_rows.round == first[i].round:
        x = view.party(own_rows.party).data.train.x
        if len(own_rows.z) == len(x):
            yield SAME_ROUND, Decoder(own_rows.z, x), first[i].z


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
