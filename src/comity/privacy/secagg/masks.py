"""Keys and masks: HKDF-SHA256 derives keys, ChaCha20 expands them to integers modulo 2^32.

No key is used for two purposes, and no key stream is used twice: the names of both sites and the
context of the round go into each derivation, and all secrets are fresh in each round.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from comity.privacy.secagg.errors import SecureAggregationError
from comity.wire.sealing import KEY

KeyStream = CipherContext
Ring = NDArray[np.uint32]
"""A vector of integers modulo 2^32. Its additions wrap around."""
RING = np.dtype("<u4")
FIRST_BLOCK = bytes(16)  # counter and nonce of ChaCha20: a key expands to one stream only
BLOCK = 2**16
"""How many integers are computed at a time, so that they fit into the processor's cache."""
ZEROS = bytes(8 * BLOCK)


def join_fields(*parts: str | bytes | int) -> bytes:
    """The parts as bytes that can be read in one way only: each is preceded by its length."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def digest(*parts: str | bytes | int) -> bytes:
    """The SHA-256 digest of the parts."""
    sha = Hash(SHA256())
    sha.update(join_fields(*parts))
    return sha.finalize()


def derive(secret: bytes, *purpose: str | bytes | int) -> bytes:
    """A key for one purpose, from a secret of 32 random bytes."""
    return HKDFExpand(SHA256(), KEY, join_fields("comity secagg", *purpose)).derive(secret)


def agree(private: X25519PrivateKey, public: str, *purpose: str | bytes | int) -> bytes:
    """The key that two sites share for one purpose, from one's private and the other's public key.

    `public` is in hexadecimal digits.
    """
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
    except ValueError as why:  # a wrong length, or a point of low order
        raise SecureAggregationError(
            "A site's public key is not an X25519 key: somebody replaced it."
        ) from why
    info = join_fields("comity secagg", *purpose)
    return HKDF(SHA256(), KEY, None, info).derive(secret)


def pair_key(
    private: X25519PrivateKey, public: str, context: bytes, first: str, second: str
) -> bytes:
    """The key of the mask that two sites share in one round, the same for both."""
    return agree(private, public, "pair mask", context, *sorted((first, second)))


def key_stream(key: bytes) -> KeyStream:
    """The ChaCha20 encryptor of a key. Encrypted zeros are the key stream."""
    return Cipher(algorithms.ChaCha20(key, FIRST_BLOCK), mode=None).encryptor()


def add_mask(vector: Ring, key: bytes, sign: int) -> None:
    """Add the mask that a key expands to, or subtract it if `sign` is -1, in place."""
    stream = key_stream(key)
    zeros = memoryview(ZEROS)
    for begin in range(0, len(vector), BLOCK):
        block = vector[begin : begin + BLOCK]
        mask = np.frombuffer(stream.update(zeros[: 4 * len(block)]), dtype=RING)
        if sign > 0:
            block += mask
        else:
            block -= mask


def pair_sign(name: str, other: str) -> int:
    """Whether site `name` adds (1) or subtracts (-1) the mask that it shares with `other`."""
    return 1 if name > other else -1
