"""Membership by rows: a candidate was trained on if its representation, by weights that the
attacker has, is close to a row.

The attacker does not have the encoder that computed the rows. But if all parties start from the
same weights, the first rows come from weights that hardly differ from those. Later a party's own
encoder may serve, because methods that share rows make the encoders similar. Both sides are
standardised to the same mean and spread, value by value, to compensate for the changes by training.
"""

from __future__ import annotations

from torch import Tensor

from comity.auditing.chance import Scored
from comity.auditing.finding import Outcome, membership
from comity.auditing.nearest_neighbours import nearest
from comity.auditing.observed import Rows, rows
from comity.auditing.view import FIRST, LAST, View, represent

ATTACK = "membership: rows"
FLOOR = 0.3  # of the spread of all values, so that values that hardly vary are not magnified


def first_and_last(view: View) -> tuple[dict[int, Rows], dict[int, Rows]]:
    """By party: the first rows that it sent, and the last."""
    first: dict[int, Rows] = {}
    last: dict[int, Rows] = {}
    for sent_rows in rows(view):
        first.setdefault(sent_rows.party, sent_rows)
        last[sent_rows.party] = sent_rows
    return first, last


def spread(z: Tensor) -> Tensor:
    """The scale of each value: its standard deviation, with a floor."""
    return z.std(0) + FLOOR * z.std().clamp(min=1e-12)


def standardise(z: Tensor) -> Tensor:
    """Rows with each value centred and divided by its scale."""
    return (z - z.mean(0)) / spread(z)


def attack_rows(view: View) -> list[Outcome]:
    """Attack the first rows with the common initial weights, and the last rows with a colluding
    party's model.
    """
    first, last = first_and_last(view)
    scored: dict[str, list[Scored]] = {}
    for i in sorted(first):
        x, _, member = view.candidates(i)
        for attacker in view.attackers(i):
            sent_rows = first[i] if attacker.first else last[i]
            if len(sent_rows.z) < 2:
                continue
            distances, _ = nearest(standardise(represent(attacker, x)), standardise(sent_rows.z))
            scored.setdefault(attacker.by, []).append(Scored(-distances[:, 0], member))
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
