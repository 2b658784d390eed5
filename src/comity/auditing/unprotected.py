"""Samples in the open: values with the shape of samples that are samples, or nearly."""

from __future__ import annotations

from collections import defaultdict

from torch import Tensor

from comity.auditing.chance import share
from comity.auditing.finding import Outcome, Pictures, Untried, best_and_median, reconstruction
from comity.auditing.inverting import match_samples
from comity.auditing.observed import by_parties, inside
from comity.auditing.view import View

ATTACK = "samples in the open"
HOW = "Whoever gets what a party sent looks at it: it has the shape of samples."


def attack_samples(view: View) -> list[Outcome]:
    """Count the training samples that were sent, exactly or so that they are recognised."""
    recovered: dict[int, set[int]] = defaultdict(set)
    has_samples = False
    pictures: Pictures | None = None
    for i, message in by_parties(view):
        x = view.candidates(i).x
        for _, node in inside(message.content):
            if (
                isinstance(node, Tensor)
                and node.is_floating_point()
                and node.shape[1:] == x.shape[1:]
                and len(node)
            ):
                has_samples = True
                certain, nearest, off = match_samples(node.flatten(1), x)
                members = certain & (nearest < len(view.party(i).data.train))
                recovered[i] |= set(nearest[members].tolist())
                if pictures is None and members.any():
                    indices = best_and_median(off)
                    pictures = Pictures(view.party(i).name, x[nearest[indices]], node[indices])
    hits = sum(map(len, recovered.values()))
    if not hits and "samples" not in view.leaves:
        return []
    if not has_samples:
        return [
            Untried(
                ATTACK,
                "the method says that parties send samples, but none is in the recorded messages",
            )
        ]
    tries = sum(len(view.party(i).data.train) for i in view.parties)
    figures = {"samples": tries, "recovered": hits}
    return [
        reconstruction(
            ATTACK, HOW, "recovered", share(hits, tries), 0.0, figures=figures, pictures=pictures
        )
    ]
