"""The messages of a round. Keys, shares and signatures are texts of hexadecimal digits.

They are records, so `wire.codec` writes and reads them. `from_bytes` accepts untrusted bytes.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from comity.base.record import record
from comity.privacy.secagg.errors import SecureAggregationError
from comity.wire.codec import decode, encode

M = TypeVar("M")


@record
class SiteKeys:
    """Step 1, from a site: its fresh public keys."""

    name: str
    terms: str
    """The digest of the terms that the site takes part under."""
    cipher_key: str
    """The key that shares for this site are encrypted with (the paper's c^PK)."""
    mask_key: str
    """The key that its masks are derived from (the paper's s^PK)."""
    commitment: str
    """To its self seed."""
    signature: str


@record
class RosterKeys:
    """Step 1, to all sites: the keys of all sites that sent some (U1)."""

    keys: list[SiteKeys]


@record
class SiteShares:
    """Step 2, from a site: encrypted shares by recipient."""

    name: str
    shares: dict[str, str]


@record
class Inbox:
    """Step 2, to one site: encrypted shares by sender. Senders and recipient are U2."""

    shares: dict[str, str]


@record
class MaskedReply:
    """Step 3, from a site: its masked reply, as 32-bit integers."""

    name: str
    values: Tensor


@record
class Survivors:
    """Step 3, to the survivors: who they are (U3)."""

    names: list[str]


@record
class SurvivorSignature:
    """Step 4, from a site: its signature of the list of survivors."""

    name: str
    signature: str


@record
class Signatures:
    """Step 4, to the sites that signed: all signatures by site (U4)."""

    signatures: dict[str, str]


@record
class RevealedShares:
    """Step 5, from a site: one share for each site that sent shares."""

    name: str
    seeds: dict[str, str]
    """Of the self seeds of survivors."""
    mask_keys: dict[str, str]
    """Of the private mask keys of lost sites."""


def to_bytes(message: object) -> bytes:
    """A message as bytes."""
    return encode(message)


def from_bytes(kind: type[M], data: bytes) -> M:
    """A message of a kind. Raises CorruptedFile or SecureAggregationError if there is none."""
    message = decode(data, records=frozenset((kind, SiteKeys)))
    if not isinstance(message, kind):
        raise SecureAggregationError(
            f"A message of secure aggregation should be {kind.__name__}, and is"
            f" {type(message).__name__}."
        )
    return message


def from_hex(text: str, length: int, whose: str) -> bytes:
    """Bytes of that length from lower-case hexadecimal digits."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) != length or data.hex() != text:
        raise SecureAggregationError(
            f"A message from {whose} should have {length} bytes in hexadecimal digits where it has"
            " something else."
        )
    return data
