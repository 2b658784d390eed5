"""Key exchange for sealed messages between sites that do not trust the server.

For each run a site generates an X25519 key. It signs the public key and the run's name with the key
of its certificate, which the federation's root has issued. Every site checks the signed keys of all
others before it seals anything, so that a server cannot put in a key of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from comity.deploy.messages import SignedKey
from comity.deploy.revocation import Revocations
from comity.deploy.signatures import Signer, owner, sign, verify
from comity.errors import UsageError
from comity.wire.sealing import KEY


@dataclass(frozen=True)
class Identity:
    """The certificate of a site or of the server, its private key, and the root certificate of the
    federation.
    """

    certificate: x509.Certificate
    signer: Signer
    root: x509.Certificate
    revocations: Revocations | None = None
    """The revoked certificates; None to check no list."""

    @staticmethod
    def read(startup: Path, whose: str = "client", folder: Path | None = None) -> Identity:
        """Read the identity in the `startup` folder of a startup kit.

        Arguments:
            startup: the folder
            whose: "client" for a site's kit, "server" for that of the server
            folder: the folder of the site or operator, which has the list of revoked certificates
        """
        try:
            pems = [(startup / name).read_bytes() for name in (f"{whose}.crt", "rootCA.pem")]
            certificate, root = map(x509.load_pem_x509_certificate, pems)
            signer = load_pem_private_key((startup / f"{whose}.key").read_bytes(), None)
        except (OSError, ValueError) as why:
            raise UsageError(
                f"The certificate and key in {startup} cannot be read: comity deploy accept makes"
                " them."
            ) from why
        if not isinstance(signer, Signer):
            raise UsageError(f"The key in {startup} is of a kind that cannot sign.")
        return Identity(certificate, signer, root, Revocations(folder, root))

    @property
    def name(self) -> str:
        """The name that the certificate was issued to."""
        return owner(self.certificate)

    def signed_key(self, run: str, key: X25519PrivateKey) -> SignedKey:
        """The public key that belongs to `key`, signed for one run."""
        public = key.public_key().public_bytes_raw().hex()
        signature = sign(self.signer, _signed_text(run, self.name, public))
        pem = self.certificate.public_bytes(Encoding.PEM).decode()
        return SignedKey(self.name, public, pem, signature.hex())

    def sign(self, text: bytes) -> bytes:
        """A signature of a text by the key of the certificate."""
        return sign(self.signer, text)

    def is_signed(self, certificate: str, signature: str, text: bytes) -> bool:
        """Whether a text is signed by the key of this certificate. The certificate itself is not
        checked.
        """
        try:
            public = x509.load_pem_x509_certificate(certificate.encode()).public_key()
            verify(public, bytes.fromhex(signature), text)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def is_revoked(self, signed_key: SignedKey) -> bool:
        """Whether the certificate of a signed key was revoked."""
        if self.revocations is None:
            return False
        try:
            certificate = x509.load_pem_x509_certificate(signed_key.certificate.encode())
        except ValueError:
            return False
        return self.revocations.has(certificate)

    def public_key(self, run: str, name: str, signed_key: SignedKey) -> X25519PublicKey:
        """The public key in `signed_key`, after all checks.

        Raises `UsageError` if the key is not that of the site `name`, was signed for another run,
        or has a certificate that the root did not issue, that is not valid now or was revoked.
        """
        if self.is_revoked(signed_key):
            raise UsageError(f"The certificate of {name} was revoked by the operator.")
        try:
            certificate = x509.load_pem_x509_certificate(signed_key.certificate.encode())
            certificate.verify_directly_issued_by(self.root)
            now = datetime.now(UTC)
            if owner(certificate) != name or signed_key.name != name:
                raise ValueError("it has another name")
            if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
                raise ValueError("it has expired")
            verify(
                certificate.public_key(),
                bytes.fromhex(signed_key.signature),
                _signed_text(run, name, signed_key.public),
            )
            return X25519PublicKey.from_public_bytes(bytes.fromhex(signed_key.public))
        except (ValueError, TypeError, InvalidSignature) as why:
            raise UsageError(
                f"The key that is said to be {name}'s is not: somebody else could read what is"
                " sealed for it."
            ) from why


class SitesKeys:
    """The symmetric keys that one site shares with each of the others.

    Called with the numbers of two parties, of which one is this site, it returns their common key.
    Only these two parties can compute it.

    Arguments:
        run: the run's name
        number: the number of this site's party
        key: this site's private key
        public_keys: the public keys of the other parties, by number
    """

    def __init__(
        self,
        run: str,
        number: int,
        key: X25519PrivateKey,
        public_keys: Mapping[int, X25519PublicKey],
    ) -> None:
        self._run = run
        self._number = number
        self._key = key
        self._public_keys = public_keys

    def __call__(self, one: int, other: int) -> bytes:
        peer = other if one == self._number else one
        if self._number not in (one, other):
            raise UsageError("A sealed message between other parties cannot be opened here.")
        if peer not in self._public_keys:
            raise UsageError(
                f"There is no key of party {peer}: no message can be sealed for it, and none from"
                " it can be opened."
            )
        info = f"comity parcels {self._run} {min(one, other)} {max(one, other)}".encode()
        secret = self._key.exchange(self._public_keys[peer])
        return HKDF(SHA256(), KEY, None, info).derive(secret)


def keys_of(
    identity: Identity,
    run: str,
    key: X25519PrivateKey,
    names: Sequence[str],
    signed_keys: Mapping[str, SignedKey],
) -> SitesKeys:
    """The keys of this site in a run, after the signed keys of all other sites are checked.

    Arguments:
        identity: this site's certificate and key
        run: the run's name
        key: this site's private key for the run
        names: the names of all parties, in order
        signed_keys: the signed keys of the sites that have one, by name
    """
    number = names.index(identity.name)
    public_keys = {
        i: identity.public_key(run, name, signed_keys[name])
        for i, name in enumerate(names)
        if i != number and name in signed_keys
    }
    return SitesKeys(run, number, key, public_keys)


def _signed_text(run: str, name: str, public: str) -> bytes:
    return f"comity passport {run} {name} {public}".encode()
