"""Membership by weights: a model's loss is smaller on what it was trained on, compared with other
parties' models (which tell how hard a sample is).
"""

from __future__ import annotations

import torch

from comity.auditing.chance import Scored
from comity.auditing.finding import Outcome, membership
from comity.auditing.observed import last_weights
from comity.auditing.view import View, losses

ATTACK = "membership: weights"
OTHERS = 5  # parties whose models say how hard a sample is
HOW = (
    "Whoever gets the last weights that parties sent compares a candidate's loss under one party's"
    " with those under the others'."
)


def by_weights(view: View) -> list[Outcome]:
    """By the last weights that each party sent."""
    found = last_weights(view)
    scored = []
    for i in found:
        x, y, member = view.candidates(i)
        others = [j for j in found if j != i][:OTHERS]
        hard = [losses(view.party(j).task, found[j], x, y) for j in others]
        own = losses(view.party(i).task, found[i], x, y)
        scored.append(Scored((torch.stack(hard).mean(0) if hard else 0) - own, member))
    return (
        [membership(ATTACK, HOW, scored, view.drawn, view.delta, view.key.fold(ATTACK))]
        if scored
        else []
    )
