"""Membership by gradients: the rows of a dense first layer's gradient are linear combinations of
the inputs of the batch.

An input in the span of these rows was in the batch, as long as the batch has fewer samples than a
sample has values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comity.auditing.chance import Scored
from comity.auditing.finding import Outcome, Untried, membership
from comity.auditing.first_layer import first_layer, span
from comity.auditing.observed import gradients
from comity.auditing.view import View

ATTACK = "membership: gradients"
HOW = (
    "Whoever gets a party's gradients looks whether a candidate lies in the space that the first"
    " layer's gradient spans."
)


def attack_gradients(view: View) -> list[Outcome]:
    """Attack all gradients of each party; for a candidate the best fitting one counts."""
    best: dict[int, Tensor] = {}
    full = dense = 0
    for gradient in gradients(view):
        task, (x, _, _) = view.party(gradient.party).task, view.candidates(gradient.party)
        layer = first_layer(task, tuple(x.shape[1:]), gradient.grads)
        if layer is None:
            return [
                Untried(
                    ATTACK,
                    "the network's first layer is not dense, so that its gradient is no mixture of"
                    " whole inputs",
                )
            ]
        dense += 1
        basis, _ = span(layer.weight)
        flat = x.flatten(1).double()
        if not 0 < len(basis) < flat.shape[1]:
            full += len(basis) > 0
            continue
        outside = (flat - flat @ basis.T @ basis).norm(dim=1) / flat.norm(dim=1).clamp(min=1e-12)
        best[gradient.party] = torch.maximum(best.get(gradient.party, -outside), -outside)
    if not dense:
        return []
    if not best:
        return [
            Untried(
                ATTACK, f"all {full} gradients mix at least as many samples as a sample has values"
            )
        ]
    parties = [Scored(scores, view.candidates(i).member) for i, scores in sorted(best.items())]
    return [membership(ATTACK, HOW, parties, view.random_split, view.delta, view.key.fold(ATTACK))]
