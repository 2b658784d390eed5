"""Reconstruction from class means of few samples: a decoder computes the mean input, which names
the samples.

A colluding party learns to compute inputs from representations of its own samples (a ridge
regression, as in `decoding`), and applies it to a class mean that another party sent. If a class
mean is that of two or three samples, the attacker compares the decoded mean with the means of all
pairs or triples of candidates: samples of that class from all parties but its own. A mean is
re-identified if the right pair or triple is the closest. Guessing names one of them at random.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.auditing.chance import share
from comity.auditing.decoding import MOST, ridge
from comity.auditing.finding import Outcome, reconstruction
from comity.auditing.membership_means import first_and_last_means
from comity.auditing.nearest_neighbours import nearest
from comity.auditing.observed import Means
from comity.auditing.view import FIRST, LAST, Attacker, View, represent

ATTACK = "decoder: class means of few samples"
FEW = 3
"""The largest number of samples in a mean that is attacked."""
MOST_SETS = 50_000
"""The largest number of pairs or triples of candidates."""
HOW = {
    FIRST: (
        "A colluding party learns to invert the weights that all start from, decodes a party's"
        " first class means, and names the two or three samples that each is the mean of."
    ),
    LAST: (
        "A colluding party learns to invert its own last model, decodes a party's last class means,"
        " and names the two or three samples that each is the mean of."
    ),
}


def attack_few_means(view: View) -> list[Outcome]:
    """Attack the first means with the common initial weights, and the last means with a colluding
    party's model.
    """
    first, last = first_and_last_means(view)
    if not first or not view.party(0).data.train.x.is_floating_point():
        return []
    results: dict[str, list[tuple[bool, float, float]]] = {}
    for i in sorted(first):
        for attacker in view.attackers(i):
            class_means = first[i] if attacker.first else last[i]
            results.setdefault(attacker.by, []).extend(_attack(view, i, attacker, class_means))
    outcomes: list[Outcome] = []
    for by, tries in results.items():
        if not tries:
            continue
        hits = sum(right for right, _, _ in tries)
        figures = {
            "means": len(tries),
            "cosine": sum(cosine for _, _, cosine in tries) / len(tries),
        }
        outcomes.append(
            reconstruction(
                f"{ATTACK}, {by}",
                HOW[by],
                "re-identified",
                share(hits, len(tries)),
                sum(prior for _, prior, _ in tries) / len(tries),
                figures=figures,
            )
        )
    return outcomes


def _attack(
    view: View, i: int, attacker: Attacker, class_means: Means
) -> list[tuple[bool, float, float]]:
    """For each class mean of few samples: whether its samples were named, the chance of that by
    guessing, and the cosine of the decoded mean and the true one.
    """
    if class_means.counts is None:
        return []
    train = view.party(i).data.train
    x = attacker.data.x[:MOST]
    decode = None
    tries = []
    for c, count in enumerate(class_means.counts.round().int().tolist()):
        members = (train.y == c).nonzero()[:, 0]
        if not 2 <= count <= FEW or len(members) != count:
            continue
        if decode is None:
            decode = ridge(represent(attacker, x, class_means.space), x.flatten(1))
        guess = decode(class_means.means[c][None])
        pool = _candidates(view, i, attacker, c, count)
        sets = torch.tensor(list(combinations(range(len(pool)), count)))
        true = pool[:count].mean(0)
        # The members are the first candidates, so that they are the first set.
        right = int(nearest(guess, pool[sets].mean(1))[1]) == 0
        cosine = float(F.cosine_similarity(guess[0], true, dim=0))
        tries.append((right, 1 / len(sets), cosine))
    return tries


def _candidates(view: View, i: int, attacker: Attacker, c: int, count: int) -> Tensor:
    """Samples of a class from all parties but the attacker's, those in the mean first."""
    parts = [view.party(i).data.train, view.party(i).data.test]
    for j in view.parties:
        if j != i and view.party(j).name != attacker.who:
            parts += [view.party(j).data.train, view.party(j).data.test]
    pool = torch.cat([part.x[part.y == c].flatten(1) for part in parts])
    most = count
    while most < len(pool) and comb(most + 1, count) <= MOST_SETS:
        most += 1
    others = view.key.fold(ATTACK, i, c).permutation(len(pool) - count)[: most - count]
    return torch.cat([pool[:count], pool[count:][others]])
