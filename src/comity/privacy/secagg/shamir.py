"""Shamir's secret sharing (How to Share a Secret, CACM 1979) of 32-byte secrets.

A secret is the constant coefficient of a random polynomial of degree t − 1 over a prime field. Its
shares are values of the polynomial at 1, 2, and so on. Any t shares determine the secret, and fewer
say nothing about it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from comity.privacy.secagg.errors import SecureAggregationError

PRIME = 2**256 + 297
"""The smallest prime above 2^256: every secret of 32 bytes is an element of the field."""
SECRET = 32  # bytes
SHARE = 33  # bytes


def split(secret: bytes, threshold: int, points: Iterable[int]) -> dict[int, bytes]:
    """Shares of a secret by their points, of which any `threshold` determine it.

    Arguments:
        secret: 32 bytes
        threshold: how many shares determine the secret
        points: where the polynomial is evaluated: distinct numbers from 1 on
    """
    xs = list(points)
    if len(secret) != SECRET:
        raise ValueError(f"a secret has {SECRET} bytes, not {len(secret)}")
    if len(set(xs)) < len(xs) or not all(0 < x < PRIME for x in xs):
        raise ValueError("points must be distinct numbers from 1 on")
    if not 1 <= threshold <= len(xs):
        raise ValueError(f"{len(xs)} shares cannot have the threshold {threshold}")
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return {x: _value(coefficients, x).to_bytes(SHARE, "big") for x in xs}


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret that `threshold` of the shares determine. More shares than that are ignored.

    Wrong shares give a wrong secret or an error. The caller has to check the secret.
    """
    if len(shares) < threshold:
        raise SecureAggregationError(
            f"A secret needs {threshold} shares, and there are {len(shares)}: too many sites were"
            " lost."
        )
    points = sorted(shares)[:threshold]
    total = 0
    for x in points:
        numerator = denominator = 1
        for other in points:
            if other != x:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - x) % PRIME
        y = int.from_bytes(shares[x], "big")
        total += y * numerator * pow(denominator, -1, PRIME)
    secret = total % PRIME
    if secret >> 8 * SECRET:
        raise SecureAggregationError(
            "Shares of a site's secret do not fit together: a site sent a wrong share."
        )
    return secret.to_bytes(SECRET, "big")


def _value(coefficients: list[int], x: int) -> int:
    """The value of a polynomial (Horner's rule)."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value
