"""Patients: all samples of a patient stay in one part of a split, and `+dp` protects them together.

A dataset holds the number of each sample's patient, and not the identifier. Neither leaves a party:
others learn how many patients there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity.base.samples import Ints
from comity.data.groups import Groups
from comity.data.split import Indices, Share
from comity.errors import UsageError


def number_patients(identifiers: Sequence[str] | NDArray[Any]) -> Ints:
    """The number of each sample's patient, from 0 in the order of their first samples.

    Examples:
        >>> number_patients(["b", "a", "b"]).tolist()
        [0, 1, 0]
    """
    _, first, inverse = np.unique(np.asarray(identifiers), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def merge_units(patients: Ints | None, copies: Ints | None) -> Ints | None:
    """The number of each sample's unit: samples of one patient, and copies of one row, are in one
    unit. None if each sample is a unit.

    Examples:
        >>> merge_units(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2])).tolist()
        [0, 0, 0, 1]
    """
    if patients is None or copies is None:
        return copies if patients is None else patients
    numbers = np.arange(len(patients))
    while True:
        least = numbers
        for grouping in (patients, copies):
            of_group = np.full(int(grouping.max()) + 1, len(least))
            np.minimum.at(of_group, grouping, least)
            least = of_group[grouping]
        if np.array_equal(least, numbers):
            return number_patients(numbers)
        numbers = least


@dataclass(frozen=True, eq=False)
class Units:
    """What a partition assigns to parties: single samples, or samples that stay together.

    Samples of a patient stay together, and copies of a row (`merge_units`); in the messages and
    names below, such samples are those of one patient. A unit's number is a position in the
    dataset, or the number of a patient. If each patient has one sample, both are the same.
    """

    patients: Ints | None
    """The number of each sample's patient; None if each sample is a unit."""

    @cached_property
    def _firsts(self) -> Ints:
        """The position of each patient's first sample."""
        assert self.patients is not None
        return np.unique(self.patients, return_index=True)[1]

    def labels(self, y: NDArray[Any]) -> NDArray[Any]:
        """The label of each unit: the most frequent class of a patient's samples, or the number of
        its first sample.
        """
        if self.patients is None:
            return y
        if y.dtype.kind == "f":
            return y[self._firsts]
        counts = np.zeros((len(self._firsts), int(y.max()) + 1), np.int64)
        np.add.at(counts, (self.patients, y), 1)
        labels: NDArray[Any] = counts.argmax(1).astype(y.dtype)
        return labels

    def of_first_samples(self, values: Ints) -> Ints:
        """The value of each unit's first sample."""
        return values if self.patients is None else values[self._firsts]

    def mask(self, what: str, values: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """A mask of the samples as one of the units; refuse one that divides a patient."""
        if self.patients is None:
            return values
        mask = values[self._firsts]
        if (mask[self.patients] != values).any():
            raise UsageError(
                f"A patient has samples inside and outside of {what}: move all of them to one side,"
                " or use own(0.25)."
            )
        return mask

    def groups(self, groups: Mapping[str, Groups]) -> dict[str, Groups]:
        """The groupings of the samples as groupings of the units."""
        if self.patients is None:
            return dict(groups)
        return {by: grouping.take(self._firsts) for by, grouping in groups.items()}

    def samples(self, share: Share) -> Share:
        """The positions of all samples of a party's units."""
        if self.patients is None:
            return share
        return replace(
            share,
            train=self._positions(share.train),
            validation=self._positions(share.validation),
            test=self._positions(share.test),
        )

    @cached_property
    def _members(self) -> list[Ints]:
        """The positions of each patient's samples."""
        assert self.patients is not None
        order = np.argsort(self.patients, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.patients))[:-1])

    def _positions(self, patients: Indices) -> Indices:
        return tuple(
            position for patient in patients for position in self._members[patient].tolist()
        )


def keep_shared_rows_together(
    shares: Mapping[str, Share], contents: Ints | None
) -> Mapping[str, Share]:
    """The parties' shares, in which rows that several parties have are in the same part at all of
    them: in the part of the first party that has the row.

    Args:
        shares: the shares, with positions of units.
        contents: the number of each unit's content; None if parties have no row in common.

    Raises:
        UsageError: if a party would be left without training or test samples.
    """
    if contents is None:
        return shares
    is_shared = np.bincount(contents)[contents] > 1
    part_of: dict[int, str] = {}
    changed: dict[str, Share] = {}
    for party, share in shares.items():
        parts = {"train": share.train, "validation": share.validation, "test": share.test}
        new: dict[str, list[int]] = {part: [] for part in parts}
        for part, positions in parts.items():
            for position in positions:
                target = part
                if is_shared[position]:
                    target = part_of.setdefault(int(contents[position]), part)
                    # A party without validation part stays without one.
                    target = target if parts[target] else "train"
                new[target].append(position)
        if not new["train"] or not new["test"]:
            raise UsageError(
                f"Party {party!r} has no {'test' if new['train'] else 'training'} samples left, as"
                " its rows are also rows of other parties, where they are in the other part: leave"
                " the party out with --without, or remove the rows from one of the files."
            )
        train, validation, test = (
            tuple(sorted(new[part])) if set(new[part]) != set(positions) else positions
            for part, positions in parts.items()
        )
        changed[party] = replace(share, train=train, validation=validation, test=test)
    return changed


def check_patients(patients: object, samples: int, groups: Mapping[str, Groups]) -> None:
    """Refuse numbers of patients that do not fit the samples or the groups of a dataset."""
    if not (
        isinstance(patients, np.ndarray)
        and patients.dtype.kind in "iu"
        and patients.shape == (samples,)
        and np.array_equal(number_patients(patients), patients)
    ):
        raise UsageError(
            f"patients must give each of the {samples} samples the number of its patient, from 0 in"
            " the order of their first samples; comity.data.patients.number_patients makes them."
        )
    firsts = np.unique(patients, return_index=True)[1]
    for by, grouping in groups.items():
        if (grouping.of[firsts][patients] != grouping.of).any():
            raise UsageError(f"A patient has samples in two groups of the grouping {by!r}.")


def check_undivided(party: str, patients: Ints, share: Share) -> None:
    """Refuse a split that trains on some samples of a patient and judges by others."""
    trained, validated, tested = (
        patients[list(part)] for part in (share.train, share.validation, share.test)
    )
    if np.isin(trained, np.union1d(validated, tested)).any() or np.isin(validated, tested).any():
        raise UsageError(
            f"The split has samples of one patient, or copies of one row, of party {party!r} in two"
            " of training, validation and test; make the split anew."
        )
