"""Membership by gradients: where the first layer is dense, rows of its gradient mix the inputs of
the batch, and nothing else.

So an input that lies in the space of these rows was in the batch, as long as that has fewer samples
than a sample has values.
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


def by_gradients(view: View) -> list[Outcome]:
    """By all gradients that a party sent; the one that a candidate fits best counts."""
    best: dict[int, Tensor] = {}
    full = dense = 0
    for sent in gradients(view):
        task, (x, _, _) = view.party(sent.party).task, view.candidates(sent.party)
        layer = first_layer(task, tuple(x.shape[1:]), sent.grads)
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
        best[sent.party] = torch.maximum(best.get(sent.party, -outside), -outside)
    if not dense:
        return []
    if not best:
        return [
            Untried(
                ATTACK, f"all {full} gradients mix at least as many samples as a sample has values"
            )
        ]
    parties = [Scored(scores, view.candidates(i).member) for i, scores in sorted(best.items())]
    return [membership(ATTACK, HOW, parties, view.drawn, view.delta, view.key.fold(ATTACK))]
