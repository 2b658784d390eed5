"""Natural parties: partitions by the origin of samples (a person, a hospital, an image source)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from comity.base.samples import Ints
from comity.data.split import check_name
from comity.errors import UsageError, unknown


@dataclass(frozen=True, eq=False)
class Groups:
    """A grouping of samples: the names of the groups, and the number of each sample's group.

    Examples:
        >>> sites = Groups(("north", "south"), np.array([0, 0, 1]))
        >>> sites.take(np.array([2])).of
        array([1])
    """

    names: tuple[str, ...]
    of: Ints

    def check(self, by: str, samples: int) -> None:
        """Refuse groups that do not fit the samples, or whose names cannot be party names."""
        of = self.of
        numbers = isinstance(of, np.ndarray) and of.dtype.kind in "iu" and of.shape == (samples,)
        if not numbers or (samples and not 0 <= of.min() <= of.max() < len(self.names)):
            raise UsageError(
                f"The grouping {by!r} must give each of the {samples} samples the number of its"
                f" group, from 0 to {len(self.names) - 1}."
            )
        if len(set(self.names)) < len(self.names):
            raise UsageError(f"Two groups of the grouping {by!r} have the same name.")
        for name in self.names:
            check_name(name)

    def take(self, positions: Ints) -> Groups:
        """The grouping of a selection of the samples."""
        return Groups(self.names, self.of[positions])


@dataclass(frozen=True, eq=False)
class Piece:
    """A party's samples, and the group that they belong to."""

    positions: Ints
    by: str
    group: int


Grouped = Callable[..., dict[str, Piece]]
GROUPED: dict[str, Grouped] = {}


def grouped(function: Grouped) -> Grouped:
    """Register a partition by the groups of the data.

    If its argument `parties` is not None, it returns the first `parties` parties.
    """
    GROUPED[function.__name__] = function
    return function


def _find_grouping(groups: Mapping[str, Groups], by: str) -> tuple[str, Groups]:
    """The grouping named `by`. Default: the first one."""
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
    """One party per person, site or writer, as given by the data; parties with fewer than `min`
    samples are left out.
    """
    if min < 1:
        raise UsageError(f"min of natural must be at least 1, not {min}.")
    name, grouping = _find_grouping(groups, by)
    sizes = np.bincount(grouping.of, minlength=len(grouping.names))
    large_enough = [g for g in range(len(grouping.names)) if sizes[g] >= min][:parties]
    if len(large_enough) < (parties or 1):
        remedy = f"--parties {len(large_enough)}" if large_enough else "a smaller min"
        raise UsageError(
            f"Only {len(large_enough)} of the data's {len(grouping.names)} {name} groups have {min}"
            f" samples or more; use {remedy}."
        )
    return {
        grouping.names[g]: Piece(np.flatnonzero(grouping.of == g), name, g) for g in large_enough
    }


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
    """Each source is divided at random into `parts` parties, with `take` samples each (default:
    all samples of the source).
    """
    if parts < 1 or (take is not None and take < 1):
        raise UsageError("parts and take of domain must be at least 1.")
    name, grouping = _find_grouping(groups, by)
    pieces_by_party: dict[str, Piece] = {}
    for g in np.unique(grouping.of).tolist():
        order = rng.permutation(np.flatnonzero(grouping.of == g))
        if len(order) < parts * (take or 1):
            raise UsageError(
                f"{grouping.names[g]} has {len(order)} samples, too few for {parts} parties of"
                f" {take or 1}; use "
                + (
                    f"take={len(order) // parts} or less."
                    if len(order) >= parts
                    else "fewer parts."
                )
            )
        parts_of_source = (
            order[: parts * take].reshape(parts, take) if take else np.array_split(order, parts)
        )
        for k, piece in enumerate(parts_of_source):
            party = grouping.names[g] if parts == 1 else f"{grouping.names[g]}-{k}"
            check_name(party)
            pieces_by_party[party] = Piece(piece, name, g)
    if parties is not None and parties > len(pieces_by_party):
        raise UsageError(
            f"The data's sources give {len(pieces_by_party)} parties, not {parties}; use --parties"
            f" {len(pieces_by_party)} or more parts."
        )
    return dict(list(pieces_by_party.items())[:parties])
