"""The state of a relay: class means and observations of the parties' representations, with their
age.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """A party's upload: class means with sample counts, sets of observations with the classes that
    they have, and averaged weights.
    """

    means: Tensor = describe(CLASS_MEANS)
    counts: Tensor = describe(CLASS_COUNTS)
    obs: Tensor = describe(OBSERVATIONS)
    seen: Tensor = describe(CLASSES_PRESENT)
    shared: Params = describe(AVERAGED_PART)


def smallest_mean(field: str, counts: Sequence[int], n_avg: int, min_count: int) -> int | None:
    """The least number of records behind a class mean or an observation.

    Classes of fewer than `min_count` records are not sent. An observation is the mean of `n_avg`
    records of a class, or of all if `n_avg` is 0.
    """
    if field.rpartition(".")[2] not in ("means", "obs"):
        return None
    smallest = min((count for count in counts if count >= min_count), default=min_count)
    is_observation = field.endswith(".obs")
    return min(smallest, n_avg) if is_observation and n_avg else smallest


UPLOADED = Holding(means=("Upload.means", "Upload.obs"), classes=("Upload.counts", "Upload.seen"))


@record
class Bank:
    """The relay's state: each party's last upload and its round, the current round and its random
    draw, the peers that parties chose, and averaged weights.

    `places` are the parties' numbers in the whole federation, from which some parties may be left
    out. Random draws depend on these numbers.
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
        """Add the uploads of round t. Each replaces its sender's previous one. Placeholders from
        before round 1 are removed.
        """
        last = {u: up for u, up in self.last.items() if u >= 0}
        last |= {u: replace(up, shared={}) for u, up in new.items()}
        since = {u: t if u in new else self.since[u] for u in last}
        return replace(self, last=last, since=since, round=t)

    def heard_by(self, u: int, max_age: int) -> list[int]:
        """The parties whose uploads party u may learn from: all, or those it chose and itself.
        Uploads older than `max_age` rounds are left out.
        """
        wish = self.peers[u] if u < len(self.peers) else None
        young = [
            v for v, t in sorted(self.since.items()) if not max_age or self.round - t <= max_age
        ]
        return [v for v in young if wish is None or v in (-1, u, *wish)]

    def teacher(
        self, u: int, sources: list[int], sets: int, age_decay: float, exclude_self: bool
    ) -> Teacher:
        """The global class means over these uploads, and observations drawn from them for
        party u.
        """
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
        obs, present = draw_sets(candidates, sets, (self.classes, self.width), key)
        return Teacher(means, mask, obs, present, self.shared)


@record
class Teacher:
    """What a party learns from: the global class means t̄ with a mask of known classes, and M↓ sets
    of observations with a mask of the classes that they have.
    """

    means: Tensor
    known: Tensor
    obs: Tensor
    seen: Tensor
    shared: Params


def noise(sets: int, classes: int, width: int, key: Key) -> Upload:
    """A random placeholder upload, for a relay that has no uploads yet."""
    draws = torch.randn(1 + sets, classes, width, generator=key.generator())
    ones = torch.ones(classes)
    return Upload(draws[0], ones.int(), draws[1:], ones.bool(), {})
