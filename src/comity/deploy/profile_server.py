"""The server's side of a profile: it asks all sites, and writes what they send side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from comity.data.preparation import Schema
from comity.data.profiles import PartyProfile, Profile, ProfiledColumn, profiled_columns
from comity.data.profiles.edges import Range, common_ranges, is_range
from comity.deploy.data import schema_digest
from comity.deploy.messages import AskProfile, AskRanges, Profiled, Ranges, pack, reply_body
from comity.deploy.server import NOT_CONNECTED, SCHEMA, UNEXPECTED, JobRequest, read_head
from comity.deploy.transport import Transport
from comity.errors import ComityError, UsageError

DATA = "profile.json"
MOST_BYTES = 1 << 26
"""The largest profile of a site."""


def collect_profile(
    transport: Transport, order: JobRequest, folder: Path, out: Path
) -> dict[str, Any]:
    """Ask the sites for their profiles in two steps, and write profile.json to `out`.

    Arguments:
        transport: carries the requests
        order: the submitted job
        folder: the operator's folder
        out: the folder of this profile
    """
    if not (folder / SCHEMA).exists():
        raise UsageError(
            "A profile is about the columns of tables, and this federation has no schema: give one"
            " to comity deploy init."
        )
    schema = Schema.read(folder / SCHEMA)
    columns = profiled_columns(schema, len(schema.classes), schema.classes)
    here, digest = version("comity"), schema_digest(schema)
    names = order.sites or tuple(transport.names)
    connected = [name for name in names if name in transport.names]
    refusals = {name: NOT_CONNECTED for name in names if name not in connected}
    first = _ask(transport, order, dict.fromkeys(connected, AskRanges(order.run, here, digest)))
    ranges: dict[str, dict[str, Range]] = {}
    for name, (head, _) in first.items():
        if isinstance(head, Ranges) and _are_ranges(head.ranges, columns):
            ranges[name] = {column: (low, high) for column, (low, high) in head.ranges.items()}
        else:
            refusals[name] = head if isinstance(head, str) else UNEXPECTED
    common = {name: list(limits) for name, limits in common_ranges(ranges.values()).items()}
    request = AskProfile(order.run, here, digest, common)
    parties: dict[str, PartyProfile] = {}
    for name, (head, body) in _ask(transport, order, dict.fromkeys(ranges, request)).items():
        if not isinstance(head, Profiled) or len(body) > MOST_BYTES:
            refusals[name] = head if isinstance(head, str) else UNEXPECTED
            continue
        try:
            parties[name] = PartyProfile.from_dict(json.loads(body), columns)
        except (ComityError, ValueError, RecursionError):
            refusals[name] = UNEXPECTED
    if not parties:
        reasons = " ".join(f"{name}: {why}" for name, why in sorted(refusals.items()))
        raise ComityError(f"No site sends a profile. {reasons}")
    profile = Profile(
        folder.resolve().name,
        columns,
        {name: parties[name] for name in sorted(parties)},
        {name: refusals[name] for name in sorted(refusals)},
    )
    profile.save(out / DATA)
    return profile.to_dict()


def _ask(
    transport: Transport, order: JobRequest, requests: Mapping[str, Any]
) -> dict[str, tuple[Any, bytes]]:
    """The head and body of each site's reply, by name in alphabetical order; a text with the reason
    instead of a head if there is none.
    """
    packed = {name: pack(head) for name, head in requests.items()}
    replies: dict[str, tuple[Any, bytes]] = {}
    for name, reply in transport.ask(packed, order.deadline):
        head = read_head(reply)
        body = b"" if reply is None or isinstance(head, str) else reply_body(reply)
        replies[name] = head, body
    return dict(sorted(replies.items()))


def _are_ranges(ranges: Mapping[str, list[float]], columns: tuple[ProfiledColumn, ...]) -> bool:
    names = {column.name for column in columns if column.kind == "number"}
    return all(
        name in names and len(limits) == 2 and is_range(*limits) for name, limits in ranges.items()
    )
