"""Membership by means: a mean leans towards the samples that are in it.

For a mean of k samples of a class the score is the logarithm of how much likelier it is with the
candidate in it than without (Dwork et al. 2015), if samples of a class are normal around what the
attacker sees of its own, with the spread that it sees.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comity.auditing.chance import Scored
from comity.auditing.finding import Outcome, membership
from comity.auditing.observed import Means, means
from comity.auditing.view import FIRST, LAST, Attacker, Candidates, View, seen_by

ATTACK = "membership: class means"
UNTOLD = 10  # samples that a mean is taken to be of, where it is not told
RIDGE = 0.1  # of the mean variance, added to each: an attacker sees few samples
HOW = {
    FIRST: (
        "Whoever sees a party's first class means and knows the weights that all start from"
        " compares a candidate with the mean of its class."
    ),
    LAST: (
        "The server and another party, which has a model of its own, compare a candidate with the"
        " last mean of its class."
    ),
}


def by_means(view: View) -> list[Outcome]:
    """By weights that everybody starts from on first means, and by a colluding party's model on
    last ones.
    """
    first: dict[int, Means] = {}
    last: dict[int, Means] = {}
    for found in means(view):
        first.setdefault(found.party, found)
        last[found.party] = found
    scored: dict[str, list[Scored]] = {}
    for i in sorted(first):
        for attacker in view.attackers(i):
            there = first[i] if attacker.first else last[i]
            scored.setdefault(attacker.by, []).append(leaning(attacker, there, view.candidates(i)))
    return [
        membership(
            f"{ATTACK}, {by}", HOW[by], parties, view.drawn, view.delta, view.key.fold(ATTACK, by)
        )
        for by, parties in scored.items()
    ]


def leaning(attacker: Attacker, sent: Means, candidates: Candidates) -> Scored:
    """The scores of candidates whose class has a mean."""
    classes = len(sent.means)
    own, labels = seen_by(attacker, attacker.data.x, sent.space), attacker.data.y
    centres = torch.stack(
        [own[labels == c].mean(0) if (labels == c).any() else own.mean(0) for c in range(classes)]
    )
    spread = own - centres[labels]
    covariance = spread.T @ spread / len(own)
    covariance += RIDGE * covariance.diagonal().mean().clamp(min=1e-12) * torch.eye(len(covariance))
    shown = sent.counts > 0 if sent.counts is not None else sent.means.abs().sum(1) > 0
    there = shown[candidates.y]
    x, y, member = (part[there] for part in candidates)
    off = seen_by(attacker, x, sent.space) - centres[y]
    whitened: Tensor = torch.linalg.solve(covariance, off.T).T
    k = sent.counts[y].clamp(min=1) if sent.counts is not None else torch.full_like(y, UNTOLD)
    lean = (whitened * (sent.means - centres)[y]).sum(1)
    return Scored(lean - (whitened * off).sum(1) / (2 * k), member)
