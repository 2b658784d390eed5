"""Discrete Gaussian noise from a ChaCha20 key stream, and its size when several sites add it.

The discrete Gaussian N_Z(0, σ²) has probability proportional to exp(−k²/2σ²) at each integer k. It
has the same zero-concentrated privacy as continuous noise (Canonne, Kamath and Steinke, The
Discrete Gaussian for Differential Privacy, NeurIPS 2020, Theorem 4), and no floating-point gaps
(Mironov 2012). `comity.base.noise` computes normal numbers in float32 from uniform ones of 32 bits.
These are too coarse for integers of this size and end at 6.8 σ, so there is a sampler here.

The sum of m such noises of variance σ² is not exactly discrete Gaussian, but is within max
divergence τ = 10 Σ_{k<m} exp(−2π²σ²k/(k+1)) of N_Z(0, mσ²) (Kairouz, Liu and Steinke, The
Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation, ICML 2021).
At the smallest σ that is allowed here, 4, τ is below 1e-64 for 1000 sites.

The sampler inverts the distribution function of |k|, and takes the sign from another bit. The
function is computed in integers of 256 bits and compared with random numbers of 127 bits, so a
sample is within total variation distance 2^-100 of the distribution. That includes the truncation
at 12 σ. An account of (ε, δ) adds (1 + e^ε)·d·2^-100 to δ for each site's d integers.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.privacy.secagg.masks import BLOCK, ZEROS, KeyStream, derive, key_stream

LEAST_SIGMA = 4.0
MOST_SIGMA = 2.0**16
TAIL = 12
"""Noise is at most this many standard deviations: the probability of more is below 2^-107."""
PRECISION = 256  # bits of the computed probabilities
HIGH, LOW = 63, 64  # bits of the random numbers


class NoiseTable(NamedTuple):
    """P(|k| > j) as integers of 127 bits, for j from the largest down to 0: in ascending order."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]


def site_sigma(sigma: float, threshold: int, colluders: int) -> float:
    """The standard deviation of the noise that each site adds, so that the honest sites in any sum
    together add at least variance σ².

    A sum has at least `threshold` survivors. `colluders` of them may leave out their noise or know
    it. So each site adds variance σ² / (threshold − colluders).
    """
    return sigma / math.sqrt(threshold - colluders)


@lru_cache(maxsize=4)
def tail_table(sigma: float) -> NoiseTable:
    """The tail probabilities of |k|."""
    with localcontext() as context:
        context.prec = 100
        # exp(-(k+1)²/2σ²) is exp(-k²/2σ²) times r^(2k+1), where r = exp(-1/2σ²).
        ratio = int((-1 / (2 * Decimal(sigma) ** 2)).exp() * 2**PRECISION)
    factor, mass = ratio, 1 << PRECISION
    masses = [mass]
    for _ in range(math.ceil(TAIL * sigma)):
        mass = mass * factor >> PRECISION
        factor = factor * ratio * ratio >> 2 * PRECISION
        masses.append(2 * mass)  # of both signs
    *tails, total = accumulate(reversed(masses))
    scaled = [(tail << HIGH + LOW) // total for tail in tails]
    low_bits = (1 << LOW) - 1
    return NoiseTable(
        np.array([tail >> LOW for tail in scaled], dtype=np.uint64),
        np.array([tail & low_bits for tail in scaled], dtype=np.uint64),
    )


def discrete_gaussian(key: bytes, count: int, sigma: float) -> NDArray[np.int32]:
    """Noise with that standard deviation: `count` integers that nothing but the key determines."""
    table = tail_table(sigma)
    stream = key_stream(derive(key, "noise"))
    low_bits = key_stream(derive(key, "low bits of noise"))
    zeros = memoryview(ZEROS)
    noise = np.empty(count, dtype=np.int32)
    for begin in range(0, count, BLOCK):
        block = noise[begin : begin + BLOCK]
        bits = np.frombuffer(stream.update(zeros[: 8 * len(block)]), dtype="<u8")
        sizes = _sizes(table, bits >> np.uint64(1), low_bits)
        block[:] = np.where(bits & np.uint64(1), -sizes, sizes)
    return noise


def _sizes(table: NoiseTable, high: NDArray[np.uint64], low_bits: KeyStream) -> NDArray[np.int64]:
    """|k| for random numbers with these high bits: how many entries of the table are larger.

    The low bits matter only where the high bits equal those of an entry, which is rare. They are
    drawn there only.
    """
    positions = np.searchsorted(table.high, high, side="left")
    is_tie = table.high[np.minimum(positions, len(table.high) - 1)] == high
    for i in np.flatnonzero(is_tie):
        begin = positions[i]
        end = np.searchsorted(table.high, high[i], side="right")
        low = np.uint64(int.from_bytes(low_bits.update(bytes(8)), "little"))
        positions[i] = begin + np.searchsorted(table.low[begin:end], low, side="right")
    return len(table.high) - positions
