"""Keys for sealed parcels between sites that trust nobody's machine but their own.

For each run a site draws an X25519 key and signs its public half, with the run's name, by the
certificate that it has from the federation's root. Every site checks all others' before it seals
anything: a server that put in a key of its own is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from comity.deploy.messages import SignedKey
from comity.errors import UsageError
from comity.wire.sealing import KEY

Signer = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@dataclass(frozen=True)
class Identity:
    """Who a site is: its certificate, the key that belongs to it, and the root that vouches for
    everybody.
    """

    certificate: x509.Certificate
    signer: Signer
    root: x509.Certificate

    @staticmethod
    def read(startup: Path) -> Identity:
        """Of a site's kit."""
        try:
            pems = [(startup / name).read_bytes() for name in ("client.crt", "rootCA.pem")]
            certificate, root = map(x509.load_pem_x509_certificate, pems)
            signer = load_pem_private_key((startup / "client.key").read_bytes(), None)
        except (OSError, ValueError) as why:
            raise UsageError(
                f"The certificate and key in {startup} cannot be read: comity deploy accept makes"
                " them."
            ) from why
        if not isinstance(signer, Signer):
            raise UsageError(f"The key in {startup} is of a kind that signs nothing.")
        return Identity(certificate, signer, root)

    @property
    def name(self) -> str:
        """The name that the certificate was made out to."""
        return owner(self.certificate)

    def signed_key(self, run: str, key: X25519PrivateKey) -> SignedKey:
        """The public half of a key, signed for one run."""
        public = key.public_key().public_bytes_raw().hex()
        signature = _signed(self.signer, _bound(run, self.name, public))
        pem = self.certificate.public_bytes(Encoding.PEM).decode()
        return SignedKey(self.name, public, pem, signature.hex())

    def public_key(self, run: str, name: str, signed_key: SignedKey) -> X25519PublicKey:
        """The key in somebody's passport, if it is his, for this run, and the root vouches for him."""
        try:
            certificate = x509.load_pem_x509_certificate(signed_key.certificate.encode())
            certificate.verify_directly_issued_by(self.root)
            now = datetime.now(UTC)
            if owner(certificate) != name or signed_key.name != name:
                raise ValueError("it is another's")
            if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
                raise ValueError("it has expired")
            _verify(
                certificate.public_key(),
                bytes.fromhex(signed_key.signature),
                _bound(run, name, signed_key.public),
            )
            return X25519PublicKey.from_public_bytes(bytes.fromhex(signed_key.public))
        except (ValueError, TypeError, InvalidSignature) as why:
            raise UsageError(
                f"The key that is said to be {name}'s is not: parcels for it would be open to"
                " somebody else."
            ) from why


def owner(certificate: x509.Certificate) -> str:
    """The name in a certificate."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


class SitesKeys:
    """The keys that one site shares with each of the others: nobody else can compute them."""

    def __init__(
        self, run: str, own: int, key: X25519PrivateKey, others: Mapping[int, X25519PublicKey]
    ) -> None:
        self._run = run
        self._own = own
        self._key = key
        self._others = others

    def __call__(self, one: int, other: int) -> bytes:
        peer = other if one == self._own else one
        if self._own not in (one, other):
            raise UsageError("A parcel between other parties cannot be opened here.")
        if peer not in self._others:
            raise UsageError(
                f"There is no key of party {peer}: no parcel can be sealed for it, or opened that"
                " is said to be its."
            )
        info = f"comity parcels {self._run} {min(one, other)} {max(one, other)}".encode()
        return HKDF(SHA256(), KEY, None, info).derive(self._key.exchange(self._others[peer]))


def keys_of(
    identity: Identity,
    run: str,
    key: X25519PrivateKey,
    names: Sequence[str],
    signed_keys: Mapping[str, SignedKey],
) -> SitesKeys:
    """The keys of this site in a run with parties of these names, each of whose passports is
    checked.
    """
    own = names.index(identity.name)
    there = [i for i, name in enumerate(names) if i != own and name in signed_keys]
    return SitesKeys(
        run, own, key, {i: identity.public_key(run, names[i], signed_keys[names[i]]) for i in there}
    )


def _bound(run: str, name: str, public: str) -> bytes:
    return f"comity passport {run} {name} {public}".encode()


def _signed(signer: Signer, text: bytes) -> bytes:
    if isinstance(signer, rsa.RSAPrivateKey):
        return signer.sign(text, PSS, SHA256())
    return (
        signer.sign(text, ec.ECDSA(SHA256()))
        if isinstance(signer, ec.EllipticCurvePrivateKey)
        else signer.sign(text)
    )


def _verify(public: object, signature: bytes, text: bytes) -> None:
    if isinstance(public, rsa.RSAPublicKey):
        public.verify(signature, text, PSS, SHA256())
    elif isinstance(public, ec.EllipticCurvePublicKey):
        public.verify(signature, text, ec.ECDSA(SHA256()))
    elif isinstance(public, ed25519.Ed25519PublicKey):
        public.verify(signature, text)
    else:
        raise ValueError("a certificate of no known kind")


PSS = padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH)
