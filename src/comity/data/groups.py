"""Natural parties: partitions that follow where samples come from (a person, a hospital, a source
of pictures).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from comity.base.samples import Ints
from comity.data.split import check_name
from comity.errors import UsageError, unknown


@dataclass(frozen=True, eq=False)
class Groups:
    """One way in which samples belong together: the groups' names, and which of them each sample is
    of.
    """

    names: tuple[str, ...]
    of: Ints

    def check(self, by: str, samples: int) -> None:
        """Refuse groups that do not fit so many samples, or that no parties could be called after."""
        of = self.of
        numbers = isinstance(of, np.ndarray) and of.dtype.kind in "iu" and of.shape == (samples,)
        if not numbers or (samples and not 0 <= of.min() <= of.max() < len(self.names)):
            raise UsageError(
                f"The grouping {by!r} must say for each of the {samples} samples which of its"
                f" {len(self.names)} groups it is of, as a number from 0."
            )
        if len(set(self.names)) < len(self.names):
            raise UsageError(f"Two groups of the grouping {by!r} have one name.")
        for name in self.names:
            check_name(name)

    def take(self, positions: Ints) -> Groups:
        """The same groups, of some samples only."""
        return Groups(self.names, self.of[positions])


@dataclass(frozen=True, eq=False)
class Piece:
    """A party's samples, and the group they are of."""

    positions: Ints
    by: str
    group: int


Grouped = Callable[..., dict[str, Piece]]
GROUPED: dict[str, Grouped] = {}


def grouped(function: Grouped) -> Grouped:
    """Register a partition that follows the data's groups; `parties`, where given, are the first so
    many of them.
    """
    GROUPED[function.__name__] = function
    return function


def _chosen(groups: Mapping[str, Groups], by: str) -> tuple[str, Groups]:
    """The grouping called `by`; the only or first one unless told."""
    if not groups:
        raise UsageError(
            "These data have no natural parties; use dirichlet, iid or another partition."
        )
    if by and by not in groups:
        raise unknown("natural grouping", by, groups)
    name = by or next(iter(groups))
    return name, groups[name]


@grouped
def natural(
    groups: Mapping[str, Groups],
    parties: int | None,
    rng: np.random.Generator,
    *,
    by: str = "",
    min: int = 4,
) -> dict[str, Piece]:
    """One party a person, site or writer, as the data say; those with fewer than `min` samples are
    left out.
    """
    if min < 1:
        raise UsageError(f"min of natural must be at least 1, not {min}.")
    name, mine = _chosen(groups, by)
    sizes = np.bincount(mine.of, minlength=len(mine.names))
    kept = [g for g in range(len(mine.names)) if sizes[g] >= min][:parties]
    if len(kept) < (parties or 1):
        raise UsageError(
            f"Only {len(kept)} of the data's {len(mine.names)} {name} groups have {min} samples or"
            f" more; use {f'--parties {len(kept)}' if kept else 'a smaller min'}."
        )
    return {mine.names[g]: Piece(np.flatnonzero(mine.of == g), name, g) for g in kept}


@grouped
def domain(
    groups: Mapping[str, Groups],
    parties: int | None,
    rng: np.random.Generator,
    *,
    by: str = "",
    parts: int = 1,
    take: int | None = None,
) -> dict[str, Piece]:
    """Each source is cut at random in `parts` parties, of which each gets `take` samples (all of
    its part unless told).
    """
    if parts < 1 or (take is not None and take < 1):
        raise UsageError("parts and take of domain must be at least 1.")
    name, mine = _chosen(groups, by)
    made: dict[str, Piece] = {}
    for g in np.unique(mine.of).tolist():
        order = rng.permutation(np.flatnonzero(mine.of == g))
        if len(order) < parts * (take or 1):
            raise UsageError(
                f"{mine.names[g]} has {len(order)} samples, too few for {parts} parties of"
                f" {take or 1}; use "
                + (
                    f"take={len(order) // parts} or less."
                    if len(order) >= parts
                    else "fewer parts."
                )
            )
        pieces = (
            order[: parts * take].reshape(parts, take) if take else np.array_split(order, parts)
        )
        for k, piece in enumerate(pieces):
            party = mine.names[g] if parts == 1 else f"{mine.names[g]}-{k}"
            check_name(party)
            made[party] = Piece(piece, name, g)
    if parties is not None and parties > len(made):
        raise UsageError(
            f"The data's sources make {len(made)} parties, not {parties}; use --parties {len(made)}"
            " or more parts."
        )
    return dict(list(made.items())[:parties])
