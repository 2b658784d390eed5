"""Membership by means: a mean is closer to the samples that it contains.

For a mean of k samples of a class the score is the log-likelihood ratio of the mean with and
without the candidate (Dwork et al. 2015). It assumes that the samples of a class are normally
distributed, with the mean and the covariance that the attacker sees in its own samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comity.auditing.chance import Scored
from comity.auditing.finding import Outcome, membership
from comity.auditing.observed import Means, means
from comity.auditing.view import FIRST, LAST, Attacker, Candidates, View, represent

ATTACK = "membership: class means"
DEFAULT_COUNT = 10  # assumed number of samples of a mean, if it is not sent
RIDGE = 0.1  # of the mean variance, added to the covariance, as an attacker has few samples
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


def first_and_last_means(view: View) -> tuple[dict[int, Means], dict[int, Means]]:
    """By party: the first class means that it sent, and the last."""
    first: dict[int, Means] = {}
    last: dict[int, Means] = {}
    for class_means in means(view):
        first.setdefault(class_means.party, class_means)
        last[class_means.party] = class_means
    return first, last


def attack_means(view: View) -> list[Outcome]:
    """Attack the first means with the common initial weights, and the last means with a colluding
    party's model.
    """
    first, last = first_and_last_means(view)
    scored: dict[str, list[Scored]] = {}
    for i in sorted(first):
        for attacker in view.attackers(i):
            class_means = first[i] if attacker.first else last[i]
            scores = likelihood_ratios(attacker, class_means, view.candidates(i))
            scored.setdefault(attacker.by, []).append(scores)
    return [
        membership(
            f"{ATTACK}, {by}",
            HOW[by],
            parties,
            view.random_split,
            view.delta,
            view.key.fold(ATTACK, by),
        )
        for by, parties in scored.items()
    ]


def likelihood_ratios(attacker: Attacker, class_means: Means, candidates: Candidates) -> Scored:
    """The log-likelihood ratios of all candidates whose class has a mean."""
    classes = len(class_means.means)
    own, labels = represent(attacker, attacker.data.x, class_means.space), attacker.data.y
    centres = torch.stack(
        [own[labels == c].mean(0) if (labels == c).any() else own.mean(0) for c in range(classes)]
    )
    spread = own - centres[labels]
    covariance = spread.T @ spread / len(own)
    covariance += RIDGE * covariance.diagonal().mean().clamp(min=1e-12) * torch.eye(len(covariance))
    has_mean = (
        class_means.counts > 0
        if class_means.counts is not None
        else class_means.means.abs().sum(1) > 0
    )
    x, y, member = (part[has_mean[candidates.y]] for part in candidates)
    off = represent(attacker, x, class_means.space) - centres[y]
    whitened: Tensor = torch.linalg.solve(covariance, off.T).T
    k = (
        class_means.counts[y].clamp(min=1)
        if class_means.counts is not None
        else torch.full_like(y, DEFAULT_COUNT)
    )
    inner = (whitened * (class_means.means - centres)[y]).sum(1)
    return Scored(inner - (whitened * off).sum(1) / (2 * k), member)
