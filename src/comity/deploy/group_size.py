"""Minimum group size: how many records are behind each value that a method would send, or how many
patients, where the data name them.

The check comes before anything is computed. It does not rely on the options of the method: it
counts the records from the site's data, the settings of training and the description of each field
of a reply (`base/content.py`). Where a value is of some records only, they may be those of the
patients with the most records: the number of patients is the least possible one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import accumulate
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import torch
from torch import Tensor

from comity.base.content import Content, content_of, reply_content
from comity.base.declared import resolve_field_type
from comity.base.record import is_record_type
from comity.base.samples import PartyData
from comity.core.accounting import Accounting
from comity.core.algorithm import AnyAlgorithm
from comity.core.release import PartyFacts, Release, releases_of
from comity.core.signature import party_functions, records_in, sealed_types, signature
from comity.core.wrapper import chain
from comity.training.settings import Training

RECORDS, PATIENTS = "records", "patients"
"""What the minimum group size counts."""


def unit_of(data: PartyData) -> str:
    """What is counted of a site's data."""
    return RECORDS if data.patients is None else PATIENTS


class RecordGroup(NamedTuple):
    """The records or patients behind a field of a reply."""

    field: str
    kind: str
    """The kind of content, of `core.traits.LEAVES`, if it has one."""
    size: int | None
    """The least number of patients behind one value, or of records if the data name no patients; 1
    for values of single records. None if the method does not describe the field.
    """


class Records(NamedTuple):
    """Some records of a site, and whose they are."""

    total: int
    by_patient: Sequence[int] = ()
    """How many of them each patient has, the largest number first; empty if the data name no
    patients.
    """

    def group_size(self, records: int) -> int:
        """The least number of patients that so many of these records can be of; the number of
        records if the data name no patients.
        """
        records = min(records, self.total)
        if not self.by_patient or not records:
            return records
        return 1 + bisect_left(list(accumulate(self.by_patient)), records)

    @property
    def whole_group(self) -> int:
        """The number of patients that all these records are of, or of records."""
        return self.group_size(self.total)


class LocalData(NamedTuple):
    """What the group size depends on."""

    train: Records
    validation: int
    """How many patients or records there are for validation."""
    by_class: Sequence[Records]
    """The training records of each class that the site has; empty for regression."""
    training: Training

    @staticmethod
    def of(data: PartyData, classes: int, training: Training) -> LocalData:
        """The data of a site. `classes` is 0 for regression."""

        def records(mask: Tensor) -> Records:
            if data.patients is None:
                return Records(int(mask.sum()))
            by_patient = torch.bincount(data.patients[mask])
            largest_first = by_patient[by_patient > 0].sort(descending=True).values
            return Records(int(mask.sum()), largest_first.tolist())

        y = data.train.y
        masks = [y == label for label in range(classes)]
        return LocalData(
            records(torch.ones(len(y), dtype=torch.bool)),
            data.group_size("validation"),
            [records(mask) for mask in masks if mask.any()],
            training,
        )

    @staticmethod
    def of_counts(
        train: int, validation: int, counts: Sequence[int], training: Training
    ) -> LocalData:
        """The data of a site by their numbers of records, where nothing is known of patients."""
        by_class = [Records(count) for count in counts if count]
        return LocalData(Records(train), validation, by_class, training)


def groups(algorithm: AnyAlgorithm, data: LocalData, facts: PartyFacts) -> Iterator[RecordGroup]:
    """The group behind each field of the replies of a method, sealed messages among them.

    Fields that leave through noise are left out: there the privacy account says what they tell.

    Arguments:
        algorithm: the method
        data: the site's data
        facts: what is known of the party before it is called
    """
    sent_kinds = {kind for layer in chain(algorithm) for kind in layer.traits.leaves}
    for depth, function in party_functions(algorithm):
        releases = releases_of(algorithm, depth, function, facts)
        owner = chain(algorithm)[depth]
        for name, content in _contents(algorithm, depth, function).items():
            if _is_noisy(releases.get(name)):
                continue
            if content is not None and content.kind and content.kind not in sent_kinds:
                continue  # with its settings the method never fills this field
            yield RecordGroup(
                name, content.kind if content else "", _size(owner, name, content, data)
            )


def _is_noisy(releases: Sequence[Release] | None) -> bool:
    """Whether a field leaves through noise, or does not depend on the data at all."""
    return releases is not None and all(release.noise > 0 for release in releases)


def _contents(algorithm: AnyAlgorithm, depth: int, function: str) -> dict[str, Content | None]:
    """The descriptions of all fields of a party function's reply."""
    hint: Any = signature(algorithm, depth, function).reply
    if hint in (None, type(None)):
        return {}
    kinds = records_in(hint, *sealed_types(algorithm))
    contents: dict[str, Content | None] = {}
    for kind in sorted(kinds, key=lambda kind: kind.__name__):
        contents |= {
            f"{kind.__name__}.{f.name}": content_of(f)
            for f in fields(kind)
            if content_of(f) or not _is_record_or_none(resolve_field_type(kind, f))
        }
    if not is_record_type(hint) and not kinds:
        contents["reply"] = reply_content(type(chain(algorithm)[depth]), function)
    return contents


def _is_record_or_none(hint: Any) -> bool:
    """Whether values of a type are records, whose fields are described one by one, or None."""
    if get_origin(hint) in (Union, UnionType):
        return all(map(_is_record_or_none, get_args(hint)))
    return hint is type(None) or is_record_type(get_origin(hint) or hint)


def _size(owner: AnyAlgorithm, name: str, content: Content | None, data: LocalData) -> int | None:
    """The least number of patients or records behind a value of a field."""
    if content is None:
        return None
    by_class = data.by_class or [data.train]
    declared = _declared_size(owner, name, by_class)
    if declared is not None:
        return declared
    trained = data.training.batch * data.training.steps_for(data.train.total)
    return {
        "nothing": data.train.whole_group,
        "training": data.train.group_size(trained),
        "by class": min(records.whole_group for records in by_class),
        "validation": data.validation,
        "single": 1,
    }[content.behind]


def _declared_size(owner: AnyAlgorithm, name: str, by_class: Sequence[Records]) -> int | None:
    """The least number of patients or records behind a value of a field by the accounting of the
    method; None if that does not tell it.
    """
    accounting: Accounting[Any] = owner.accounting
    declared = accounting.group_size(name, [records.total for records in by_class])
    if declared is None:
        return None
    sizes = []
    for records in by_class:
        least = accounting.group_size(name, [records.total])
        # A method that sends values of more records only sends none of this class.
        if least is not None and least <= records.total:
            sizes.append(records.group_size(least))
    return min(sizes, default=declared)
