"""Authenticated requests: a site computes something only for the server of its federation, and only
once for each request.

The transport does not prove who asks: any local process can reach a site's internal listener. So
the first request of a job is signed with the key of the server's certificate. It brings a fresh
X25519 key, and the site's reply brings another one, also signed. Both sides derive a common key
from these. Every later request carries an HMAC under it, and a number that grows, so that no
request can be made up, changed or replayed.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from importlib.metadata import version

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from comity.base.record import record
from comity.deploy.key_exchange import Identity
from comity.deploy.messages import (
    REPLIES,
    REQUESTS,
    AskProfile,
    AskRanges,
    Introduce,
    Introduced,
    SignedKey,
    unpack,
)
from comity.deploy.transport import Transport
from comity.errors import ComityError, UsageError
from comity.wire.codec import decode, encode

SIGNED, AUTHENTICATED = b"comity-s", b"comity-m"
"""The first bytes of a request: signed by a certificate's key, or with an HMAC."""
PROTOCOL = 1
"""The number of the protocol between server and sites. Versions of Comity with the same number can
take part in one run. It changes with every message that an earlier version could not read, and with
every change of what a message means.
"""
VERSION = 4  # bytes of the number
LENGTH = 8  # bytes of a length or a number
TAG = 32  # bytes of an HMAC
KEY = 32  # bytes of a key
MOST_OPENING = 1 << 16
"""The largest opening, in bytes."""
NOT_AUTHENTICATED = "The request does not come from the server of this federation."
REPLAYED = "The request was made before: a request is answered once."


@record
class Opening:
    """What proves that the first request of a job comes from the server."""

    signed_key: SignedKey
    """The server's key for this job."""
    signature: str
    """A signature of the request, by the key of the same certificate."""


class AuthenticatedTransport:
    """A transport that authenticates the server's requests.

    Arguments:
        transport: carries the requests
        identity: the server's certificate and key
        run: the run's name
    """

    def __init__(self, transport: Transport, identity: Identity, run: str) -> None:
        self._transport = transport
        self._identity = identity
        self._run = run
        self._key = X25519PrivateKey.generate()
        self._keys: dict[str, bytes] = {}
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """The names of the sites that are connected to this job."""
        return self._transport.names

    @property
    def revoked(self) -> str:
        """The signed list of revoked certificates; empty if there is none."""
        revocations = self._identity.revocations
        return revocations.text if revocations else ""

    def find_fault(self, name: str, signed_key: SignedKey | None) -> str:
        """Why a site that describes itself is not the one with this name; empty if it is."""
        if signed_key is None:
            return "it has shown no certificate."
        try:
            self._identity.public_key(self._run, name, signed_key)
        except UsageError as why:
            return str(why)
        return ""

    def ask(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        """Send all requests, and yield the replies, as `Transport.ask` does."""
        authenticated = {name: self.wrap(name, request) for name, request in requests.items()}
        for name, reply in self._transport.ask(authenticated, seconds):
            if reply is not None and name not in self._keys:
                self._agree(name, reply)
            yield name, reply

    def wrap(self, name: str, request: bytes) -> bytes:
        """A request to a site with its authentication. The first request to a site is signed."""
        if name not in self._keys:
            signature = self._identity.sign(_opening_text(self._run, request)).hex()
            opening = Opening(self._identity.signed_key(self._run, self._key), signature)
            head = encode(opening)
            number = PROTOCOL.to_bytes(VERSION, "little")
            return b"".join([SIGNED, number, len(head).to_bytes(LENGTH, "little"), head, request])
        self._numbers[name] += 1
        number = self._numbers[name].to_bytes(LENGTH, "little")
        tag = _tag(self._keys[name], number, request)
        return b"".join([AUTHENTICATED, number, tag, request])

    def _agree(self, name: str, reply: bytes) -> None:
        """Derive the common key with a site from its description of itself."""
        try:
            head, _ = unpack(reply, REPLIES, len(reply))
            if isinstance(head, Introduced) and head.signed_key is not None:
                public = self._identity.public_key(self._run, name, head.signed_key)
                self._keys[name] = _common_key(self._key, public, self._run, name)
                self._numbers[name] = 0
        except ComityError:
            return  # the server reads the reply itself, and says what is wrong with it


class RequestAuthenticator:
    """A site's side: checks the authentication of requests.

    Arguments:
        identity: the site's certificate and key
        server: the name in the server's certificate
    """

    def __init__(self, identity: Identity, server: str) -> None:
        self._identity = identity
        self._server = server
        self._openings: set[bytes] = set()
        self._opening: Opening | None = None
        self._public: X25519PublicKey | None = None
        self._key = b""
        self._number = 0

    def open(self, request: bytes, run: str | None) -> bytes:
        """The request itself, after all checks. Raises `UsageError` if it is not authenticated.

        Arguments:
            request: what came over the wire
            run: the name of the run that the request must be for; None if the request begins one
        """
        if request.startswith(SIGNED):
            return self._open_signed(request)
        if not request.startswith(AUTHENTICATED):
            raise UsageError(NOT_AUTHENTICATED)
        if not self._key or run is None:  # as after a restart of the site
            raise UsageError(f"{self._identity.name} takes no part in that run.")
        number, tag, content = _split(request)
        if not hmac.compare_digest(_tag(self._key, number, content), tag):
            raise UsageError(NOT_AUTHENTICATED)
        count = int.from_bytes(number, "little")
        if count <= self._number:
            raise UsageError(REPLAYED)
        self._number = count
        return content

    def check_server(self) -> None:
        """Refuse the server of the last opening if its certificate has been revoked since."""
        if self._opening is not None and self._identity.is_revoked(self._opening.signed_key):
            raise UsageError(f"The certificate of {self._server} was revoked by the operator.")

    def begin(self, run: str, key: X25519PrivateKey) -> None:
        """Derive the common key for a run whose signed request was accepted."""
        if self._public is None:
            raise UsageError(NOT_AUTHENTICATED)
        self._key = _common_key(key, self._public, run, self._identity.name)
        self._number = 0

    def _open_signed(self, request: bytes) -> bytes:
        # The protocol comes first: of another one, nothing that follows can be read.
        number = int.from_bytes(request[len(SIGNED) : len(SIGNED) + VERSION], "little")
        if number != PROTOCOL:
            raise UsageError(
                f"{self._identity.name} speaks protocol {PROTOCOL} (Comity {version('comity')}),"
                f" the server protocol {number}: install a newer Comity where the number is"
                " smaller."
            )
        content, opening = _read_opening(request)
        if request in self._openings:
            raise UsageError(REPLAYED)
        run = _run_of(content)
        self._public = self._identity.public_key(run, self._server, opening.signed_key)
        if not self._identity.is_signed(
            opening.signed_key.certificate, opening.signature, _opening_text(run, content)
        ):
            raise UsageError(NOT_AUTHENTICATED)
        self._openings.add(request)
        self._opening = opening
        return content


def content_of(request: bytes) -> bytes:
    """A request without its authentication, which is not checked."""
    if request.startswith(SIGNED):
        return _read_opening(request)[0]
    return _split(request)[2] if request.startswith(AUTHENTICATED) else request


def _tag(key: bytes, number: bytes, content: bytes) -> bytes:
    """The HMAC of a number and a content, which may be large and is not copied."""
    authentication = hmac.new(key, number, "sha256")
    authentication.update(content)
    return authentication.digest()


def _split(request: bytes) -> tuple[bytes, bytes, bytes]:
    """Number, tag and content of an authenticated request."""
    at = len(AUTHENTICATED)
    number, tag = request[at : at + LENGTH], request[at + LENGTH : at + LENGTH + TAG]
    return number, tag, request[at + LENGTH + TAG :]


def _read_opening(request: bytes) -> tuple[bytes, Opening]:
    before = len(SIGNED) + VERSION
    at = before + LENGTH
    length = int.from_bytes(request[before:at], "little")
    if length > MOST_OPENING or len(request) < at + length:
        raise UsageError(NOT_AUTHENTICATED)
    opening = decode(
        request[at : at + length], most_bytes=MOST_OPENING, records=frozenset((Opening, SignedKey))
    )
    if not isinstance(opening, Opening):
        raise UsageError(NOT_AUTHENTICATED)
    return request[at + length :], opening


def _run_of(content: bytes) -> str:
    """The run that the first request of a job names. Requests for a profile are all signed."""
    head, _ = unpack(content, REQUESTS, len(content))
    if not isinstance(head, Introduce | AskRanges | AskProfile):
        raise UsageError(NOT_AUTHENTICATED)
    return head.run


def _opening_text(run: str, request: bytes) -> bytes:
    return f"comity request {run} ".encode() + request


def _common_key(key: X25519PrivateKey, public: X25519PublicKey, run: str, site: str) -> bytes:
    info = f"comity requests {run} {site}".encode()
    return HKDF(SHA256(), KEY, None, info).derive(key.exchange(public))
