"""Signatures by the keys of certificates: of a site, of the server, and of the root."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

Signer = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
PSS = padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH)


def owner(certificate: x509.Certificate) -> str:
    """The common name in a certificate."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def sign(signer: Signer, text: bytes) -> bytes:
    """A signature of a text."""
    if isinstance(signer, rsa.RSAPrivateKey):
        return signer.sign(text, PSS, SHA256())
    if isinstance(signer, ec.EllipticCurvePrivateKey):
        return signer.sign(text, ec.ECDSA(SHA256()))
    return signer.sign(text)


def verify(public: object, signature: bytes, text: bytes) -> None:
    """Raise `InvalidSignature`, or `ValueError` for a key of an unknown kind."""
    if isinstance(public, rsa.RSAPublicKey):
        public.verify(signature, text, PSS, SHA256())
    elif isinstance(public, ec.EllipticCurvePublicKey):
        public.verify(signature, text, ec.ECDSA(SHA256()))
    elif isinstance(public, ed25519.Ed25519PublicKey):
        public.verify(signature, text)
    else:
        raise ValueError("a certificate of an unknown kind")


def verified(public: object, signature: bytes, text: bytes) -> bool:
    """Whether a text is signed by the owner of a public key."""
    try:
        verify(public, signature, text)
    except (ValueError, InvalidSignature):
        return False
    return True
