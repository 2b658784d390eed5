"""Samples in the open: what was sent has the shape of samples, and is them, or nearly."""

from __future__ import annotations

from collections import defaultdict

from torch import Tensor

from comity.auditing.chance import share
from comity.auditing.finding import Outcome, Pictures, Untried, best_and_median, pieced
from comity.auditing.inverting import unmistakable
from comity.auditing.observed import by_parties, inside
from comity.auditing.view import View

ATTACK = "samples in the open"
HOW = "Whoever gets what a party sent looks at it: it has the shape of samples."


def in_the_open(view: View) -> list[Outcome]:
    """How many of the training samples were sent as they are, or so that they cannot be mistaken
    for others.
    """
    found: dict[int, set[int]] = defaultdict(set)
    looked = False
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
                looked = True
                certain, nearest, off = unmistakable(node.flatten(1), x)
                members = certain & (nearest < len(view.party(i).data.train))
                found[i] |= set(nearest[members].tolist())
                if pictures is None and members.any():
                    chosen = best_and_median(off)
                    pictures = Pictures(view.party(i).name, x[nearest[chosen]], node[chosen])
    hits = sum(map(len, found.values()))
    if not hits and "samples" not in view.leaves:
        return []
    if not looked:
        return [
            Untried(ATTACK, "the method says that parties send samples, but none is on the tape")
        ]
    tries = sum(len(view.party(i).data.train) for i in view.parties)
    figures = {"samples": tries, "recovered": hits}
    return [
        pieced(
            ATTACK, HOW, "recovered", share(hits, tries), 0.0, figures=figures, pictures=pictures
        )
    ]
