"""What a relay keeps and forwards: class means and observations of the parties' representations,
with their age.
"""

from __future__ import annotations

from dataclasses import field, replace

import torch
from torch import Tensor

from comity.base.content import (
    AVERAGED_PART,
    CLASS_COUNTS,
    CLASS_MEANS,
    CLASSES_PRESENT,
    OBSERVATIONS,
    describe,
)
from comity.components.classwise import draw_sets, pool_means
from comity.components.hidden_means import Holding
from comity.core import Key, Params, record


@record
class Upload:
    """A party's class means and how many samples they are of, observations and of which classes,
    and averaged weights.
    """

    means: Tensor = describe(CLASS_MEANS)
    counts: Tensor = describe(CLASS_COUNTS)
    obs: Tensor = describe(OBSERVATIONS)
    seen: Tensor = describe(CLASSES_PRESENT)
    shared: Params = describe(AVERAGED_PART)


UPLOADED = Holding(means=("Upload.means", "Upload.obs"), classes=("Upload.counts", "Upload.seen"))


@record
class Bank:
    """What the relay keeps: last uploads and their rounds, this round and its draw, whom parties
    listen to, averaged weights.

    `places` are the parties' numbers in the whole federation, of which some may be left out: draws
    are made of them.
    """

    classes: int
    width: int
    last: dict[int, Upload]
    since: dict[int, int]
    round: int
    draw: int
    peers: list[list[int] | None]
    shared: Params
    places: list[int] = field(default_factory=list)

    def store(self, new: dict[int, Upload], t: int) -> Bank:
        """With the uploads of round t, each in place of its sender's last; noise from before round
        1 goes.
        """
        last = {u: up for u, up in self.last.items() if u >= 0} | {
            u: replace(up, shared={}) for u, up in new.items()
        }
        return replace(
            self, last=last, since={u: t if u in new else self.since[u] for u in last}, round=t
        )

    def heard_by(self, u: int, max_age: int) -> list[int]:
        """Whose uploads party u may learn from: all, or those it chose and its own; none older than
        `max_age` rounds.
        """
        wish = self.peers[u] if u < len(self.peers) else None
        young = [
            v for v, t in sorted(self.since.items()) if not max_age or self.round - t <= max_age
        ]
        return [v for v in young if wish is None or v in (-1, u, *wish)]

    def teacher(
        self, u: int, sources: list[int], sets: int, age_decay: float, exclude_self: bool
    ) -> Teacher:
        """Global class means over these uploads, and observations drawn from them for party u."""
        weights = [self.last[v].counts * age_decay ** (self.round - self.since[v]) for v in sources]
        means, mask = pool_means(
            [self.last[v].means for v in sources], weights, self.classes, self.width
        )
        candidates = [
            (obs, self.last[v].seen)
            for v in sources
            if v != u or not exclude_self
            for obs in self.last[v].obs
        ]
        key = Key(self.draw).fold(self.places[u] if self.places else u)
        return Teacher(
            means, mask, *draw_sets(candidates, sets, (self.classes, self.width), key), self.shared
        )


@record
class Teacher:
    """What a party learns from: t̄ and which classes it knows, M↓ sets of observations and which
    classes they show.
    """

    means: Tensor
    known: Tensor
    obs: Tensor
    seen: Tensor
    shared: Params


def noise(sets: int, classes: int, width: int, key: Key) -> Upload:
    """What a relay can offer before anybody has shown anything."""
    draws = torch.randn(1 + sets, classes, width, generator=key.generator())
    ones = torch.ones(classes)
    return Upload(draws[0], ones.int(), draws[1:], ones.bool(), {})
