"""Membership by weights: a model's loss is smaller on its training samples.

The loss is compared with that of other parties' models, which show how hard a sample is.
"""

from __future__ import annotations

import torch

from comity.auditing.chance import Scored
from comity.auditing.finding import Outcome, membership
from comity.auditing.observed import last_weights
from comity.auditing.view import View, losses

ATTACK = "membership: weights"
OTHERS = 5  # the number of other parties whose models a loss is compared with
HOW = (
    "Whoever gets the last weights that parties sent compares a candidate's loss under one party's"
    " with those under the others'."
)


def attack_weights(view: View) -> list[Outcome]:
    """Attack the last weights that each party sent."""
    weights = last_weights(view)
    scored = []
    for i in weights:
        x, y, member = view.candidates(i)
        others = [j for j in weights if j != i][:OTHERS]
        other_losses = [losses(view.party(j).task, weights[j], x, y) for j in others]
        difficulty = torch.stack(other_losses).mean(0) if other_losses else 0
        scored.append(Scored(difficulty - losses(view.party(i).task, weights[i], x, y), member))
    if not scored:
        return []
    return [membership(ATTACK, HOW, scored, view.random_split, view.delta, view.key.fold(ATTACK))]
