"""Membership by weights: a model's loss is smaller on what it was trained on, compared with other parties' models (which tell how
hard a sample is)."""

from __future__ import annotations

import torch

from comity.audit.chance import Scored
from comity.audit.finding import Outcome, membership
from comity.audit.sent import last_weights
from comity.audit.view import View, losses

ATTACK = "membership: weights"
HOW = (
    "Whoever gets the last weights that parties sent compares a candidate's loss under one party's with those under the others'."
)


def by_weights(view: View) -> list[Outcome]:
    """By the last weights that each party sent."""
    found = last_weights(view)
    scored = []
    for i in found:
        x, y, member = view.candidates(i)
        each = {j: losses(view.party(j).task, theta, x, y) for j, theta in found.items()}
        others = [loss for j, loss in each.items() if j != i]
        hard = torch.stack(others).mean(0) if others else torch.zeros(len(x))
        scored.append(Scored(hard - each[i], member))
    return [membership(ATTACK, HOW, scored, view.drawn, view.delta, view.key.fold(ATTACK))] if scored else []
