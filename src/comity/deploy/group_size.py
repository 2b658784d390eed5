"""Minimum group size: how many records are behind each value that a method would send.

The check comes before anything is computed. It does not rely on the options of the method: it
counts the records from the site's data, the settings of training and the description of each field
of a reply (`base/content.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from comity.base.content import Content, content_of, reply_content
from comity.base.declared import resolve_field_type
from comity.base.record import is_record_type
from comity.core.accounting import Accounting
from comity.core.algorithm import AnyAlgorithm
from comity.core.release import PartyFacts, Release, releases_of
from comity.core.signature import party_functions, records_in, sealed_types, signature
from comity.core.wrapper import chain
from comity.training.settings import Training


class Group(NamedTuple):
    """The records behind a field of a reply."""

    field: str
    kind: str
    """The kind of content, of `core.traits.LEAVES`, if it has one."""
    records: int | None
    """The least number of records behind one value; 1 for values of single records. None if the
    method does not describe the field.
    """


class LocalData(NamedTuple):
    """What the number of records depends on."""

    train: int
    validation: int
    counts: Sequence[int]
    """The number of training records of each class; empty for regression."""
    training: Training


def groups(algorithm: AnyAlgorithm, data: LocalData, facts: PartyFacts) -> Iterator[Group]:
    """The records behind each field of the replies of a method, sealed messages among them.

    Fields that leave through noise are left out: there the privacy account says what they tell.

    Arguments:
        algorithm: the method
        data: the site's data
        asked: what is known of the party before it is called
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
            yield Group(name, content.kind if content else "", _records(owner, name, content, data))


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


def _records(
    owner: AnyAlgorithm, name: str, content: Content | None, data: LocalData
) -> int | None:
    """The least number of records behind a value of a field."""
    if content is None:
        return None
    accounting: Accounting[Any] = owner.accounting
    by_class = [count for count in data.counts if count] or [data.train]
    trained = data.training.batch * data.training.steps_for(data.train)
    least = {
        "nothing": data.train,
        "training": min(data.train, trained),
        "by class": min(by_class),
        "validation": data.validation,
        "single": 1,
    }[content.behind]
    declared = accounting.group_size(name, by_class)
    return least if declared is None else min(declared, data.train)
