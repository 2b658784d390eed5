"""A site's side of secure aggregation in a run: its terms, the keys of the other sites, and the
call that is under way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from comity.base.call import CallId
from comity.base.record import Params
from comity.checksums import UNREADABLE, read_json, with_crc
from comity.deploy.key_exchange import Identity
from comity.deploy.messages import SecureCall, SignedKey
from comity.deploy.policy import SitePolicy
from comity.deploy.secure_terms import SecureRun, least_sites
from comity.errors import CorruptedFile, UsageError
from comity.privacy.secagg import (
    Inbox,
    Layout,
    RosterKeys,
    RoundFiles,
    SecureAggregationError,
    Signatures,
    SiteKeys,
    SiteRound,
    Survivors,
    from_bytes,
    least_threshold,
)
from comity.safe_files import write_atomically

PEERS = "peers.json"
"""The file in a site's folder of a run with digests of the public keys of all sites."""
MASKED = "masked_calls"
"""The folder in a site's folder with a file for each call that a reply was masked for."""
ANY_LAYOUT = Layout((("reply", (1,)),))
"""Stands for the layout of a reply before it is computed."""


class CertifiedSites:
    """Signs with the key of this site's certificate, and verifies by the certificates of the sites
    on the roster.

    Arguments:
        identity: this site's certificate and key
        certificates: the certificates of all sites on the roster, checked against the root
    """

    def __init__(self, identity: Identity, certificates: Mapping[str, str]) -> None:
        self.name = identity.name
        self._identity = identity
        self._certificates = dict(certificates)

    def sign(self, text: bytes) -> bytes:
        """This site's signature of a text."""
        return self._identity.sign(text)

    def verify(self, name: str, text: bytes, signature: bytes) -> bool:
        """Whether a signature is that of site `name`. False for a site that is not on the
        roster.
        """
        certificate = self._certificates.get(name)
        return certificate is not None and self._identity.is_signed(
            certificate, signature.hex(), text
        )


def roster_certificates(
    identity: Identity | None,
    run: str,
    roster: tuple[str, ...],
    signed_keys: Mapping[str, SignedKey],
) -> dict[str, str]:
    """The certificates of all sites on the roster, after checking them against the root.

    Raises `UsageError` if one has none.
    """
    if identity is None:
        raise UsageError(
            "Secure aggregation needs certificates, and this site has none: comity deploy accept"
            " makes one."
        )
    own = identity.certificate.public_bytes(Encoding.PEM).decode()
    certificates = {identity.name: own}
    for name in roster:
        if name == identity.name:
            continue
        if name not in signed_keys:
            raise UsageError(
                f"Secure aggregation needs the certificates of all sites, and {name} has shown"
                " none."
            )
        identity.public_key(run, name, signed_keys[name])
        certificates[name] = signed_keys[name].certificate
    return certificates


def pin_certificates(folder: Path, certificates: Mapping[str, str]) -> None:
    """Store the public keys of the sites when the run begins. Later, refuse other sites or keys.

    Arguments:
        folder: the site's folder of the run
        certificates: the certificates of all sites on the roster
    """
    keys = {name: _key_digest(certificate) for name, certificate in sorted(certificates.items())}
    path = folder / PEERS
    if not path.exists():
        write_atomically(path, json.dumps(with_crc({"keys": keys})))
        return
    try:
        pinned = read_json(path)["keys"]
    except UNREADABLE as why:
        raise CorruptedFile(
            f"{path} is damaged: the keys of the other sites when this run began are not known."
        ) from why
    if pinned != keys:
        changed = sorted(name for name in {*pinned, *keys} if pinned.get(name) != keys.get(name))
        raise UsageError(
            f"{changed[0]} has another key than when this run began, or takes part only now: start"
            " a new run."
        )


def _key_digest(certificate: str) -> str:
    public = x509.load_pem_x509_certificate(certificate.encode()).public_key()
    return sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


@dataclass
class _CallUnderWay:
    """A call whose reply has been computed, and is not yet masked."""

    call: CallId
    round: SiteRound
    reply: Params
    weight: float


class SecureSite:
    """One site's side of all secure aggregation in a run.

    Arguments:
        run: what all sites know of the run
        signatory: signs and verifies
        folder: the site's folder, which has files for the calls that were masked
    """

    def __init__(self, run: SecureRun, signatory: CertifiedSites, folder: Path) -> None:
        self._run = run
        self._signatory = signatory
        self._log = RoundFiles(folder / MASKED)
        self._under_way: _CallUnderWay | None = None

    @property
    def sites(self) -> int:
        """The number of sites on the roster."""
        return len(self._run.roster)

    def check_limits(self, policy: SitePolicy) -> None:
        """Refuse a run whose sites are too few for the limits of the site policy."""
        if self.sites < max(policy.sites, least_threshold(self.sites, policy.colluders)):
            least = max(policy.sites, least_sites(policy.colluders))
            raise UsageError(
                f"{policy.name} takes part in secure aggregation of at least {least} sites, not of"
                f" {self.sites} (colluders, sites)."
            )

    def check_call(self, head: SecureCall, body: bytes, policy: SitePolicy) -> None:
        """Refuse a call whose terms this site does not accept, or that it has answered before."""
        self._under_way = None  # a new call ends the one before
        self._log.check_free(self._run.run, CallId(*head.call))
        policy.limits(self.sites).check(self._run.terms(head, body, ANY_LAYOUT))

    def begin(self, head: SecureCall, body: bytes, reply: Params, policy: SitePolicy) -> SiteKeys:
        """Step 1, after the reply was computed."""
        round = SiteRound(
            self._run.terms(head, body, Layout.of(reply)),
            policy.limits(self.sites),
            self._signatory,
            self._log,
        )
        weight = self._run.weights(head.by_samples)[self._signatory.name]
        keys = round.keys()
        self._under_way = _CallUnderWay(CallId(*head.call), round, reply, weight)
        return keys

    def step(self, call: CallId, step: str, body: bytes) -> tuple[Any, Any]:
        """A later step. Returns the server's message and this site's reply to it."""
        under_way = self._under_way
        if under_way is None or under_way.call != call:
            raise SecureAggregationError(
                f"{self._signatory.name} has no secure aggregation of {call.function} in round"
                f" {call.round} under way."
            )
        round = under_way.round
        message: Any
        match step:
            case "shares":
                message = from_bytes(RosterKeys, body)
                return message, round.shares(message)
            case "masked":
                message = from_bytes(Inbox, body)
                masked = round.masked(message, under_way.reply, under_way.weight)
                under_way.reply = {}
                return message, masked
            case "signature":
                message = from_bytes(Survivors, body)
                return message, round.signature(message)
            case "reveal":
                message = from_bytes(Signatures, body)
                return message, round.reveal(message)
        raise SecureAggregationError(f"There is no step {step[:100]!r} of secure aggregation.")
