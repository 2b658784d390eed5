"""Membership by rows: a candidate whose representation, by weights that the attacker has, lies
close to a row was trained on.

An attacker does not have the encoder that made the rows. But where all start from the same weights,
the first rows were made by weights that hardly differ from those; and later a party's own encoder
may do, as methods that share rows make encoders alike. Both sides are brought to one mean and
spread, value by value, to allow for what training has moved.
"""

from __future__ import annotations

from torch import Tensor

from comity.auditing.chance import Scored
from comity.auditing.finding import Outcome, membership
from comity.auditing.nearest_neighbours import nearest
from comity.auditing.observed import Rows, rows
from comity.auditing.view import FIRST, LAST, View, seen_by

ATTACK = "membership: rows"
FLOOR = 0.3  # of the spread of all values: what hardly varies is not blown up


def first_and_last(view: View) -> tuple[dict[int, Rows], dict[int, Rows]]:
    """By party: the first rows that it sent, and the last."""
    first: dict[int, Rows] = {}
    last: dict[int, Rows] = {}
    for found in rows(view):
        first.setdefault(found.party, found)
        last[found.party] = found
    return first, last


def spread(z: Tensor) -> Tensor:
    """The unit that each value is measured in."""
    return z.std(0) + FLOOR * z.std().clamp(min=1e-12)


def even(z: Tensor) -> Tensor:
    """Rows with each value around 0, in its own unit."""
    return (z - z.mean(0)) / spread(z)


def by_rows(view: View) -> list[Outcome]:
    """By weights that everybody starts from on first rows, and by a colluding party's model on last
    ones.
    """
    first, last = first_and_last(view)
    scored: dict[str, list[Scored]] = {}
    for i in sorted(first):
        x, _, member = view.candidates(i)
        for attacker in view.attackers(i):
            there = first[i] if attacker.first else last[i]
            if len(there.z) < 2:
                continue
            near, _ = nearest(even(seen_by(attacker, x)), even(there.z))
            scored.setdefault(attacker.by, []).append(Scored(-near[:, 0], member))
    return [
        membership(
            f"{ATTACK}, {by}", HOW[by], parties, view.drawn, view.delta, view.key.fold(ATTACK, by)
        )
        for by, parties in scored.items()
    ]


HOW = {
    FIRST: (
        "Whoever sees a party's first rows and knows the weights that all start from looks for the"
        " row closest to a candidate."
    ),
    LAST: (
        "The server and another party, which has a model of its own, look for the row closest to a "
        "candidate among a party's last rows."
    ),
}
