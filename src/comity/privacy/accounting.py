"""What a sequence of noisy releases gives away: ε at a chosen δ, composed over all of them."""

from __future__ import annotations

import math

ORDERS = (*range(2, 64), 72, 80, 96, 128, 192, 256, 384, 512)


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def gaussian_delta(sigma: float, epsilon: float, sensitivity: float = 1.0) -> float:
    """The smallest δ for which Gaussian noise of that scale is (ε, δ)-private (Balle and Wang 2018,
    Theorem 8).
    """
    a, b = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    tail = _normal(-a - b)
    return _normal(a - b) - (math.exp(epsilon + math.log(tail)) if tail > 0 else 0.0)


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest Gaussian noise that is (ε, δ)-private: the analytic Gaussian mechanism."""
    low, high = 1e-9, sensitivity
    while gaussian_delta(high, epsilon, sensitivity) > delta:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if gaussian_delta(middle, epsilon, sensitivity) > delta
            else (low, middle)
        )
    return high


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """The smallest ε for which that noise, on what changes by 1, is (ε, δ)-private:
    `gaussian_sigma` of it is sigma.
    """
    low, high = 0.0, 1.0
    while gaussian_delta(sigma, high) > delta:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(sigma, middle) > delta else (low, middle)
    return high


def _log_add(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high


def sampled_gaussian_rdp(rate: float, noise: float, order: int) -> float:
    """Rényi divergence of whole order of one step on a Poisson sample of that rate (Mironov et al.
    2019, eq. 12).
    """
    if rate >= 1:
        return order / (2 * noise**2)
    total = -math.inf
    for k in range(order + 1):
        ways = math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
        chance = (
            k * math.log(rate) + (order - k) * math.log1p(-rate)
            if rate > 0
            else (0.0 if k == 0 else -math.inf)
        )
        total = _log_add(total, ways + chance + (k * k - k) / (2 * noise**2))
    return max(0.0, total) / (order - 1)


def sampled_gaussian_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """ε at δ after so many steps of DP-SGD: Rényi composition, then the conversion of Canonne et
    al. 2020, Proposition 12.
    """
    if not steps:
        return 0.0
    if noise**2 <= 0:  # none, or so little that its square is none
        return math.inf
    found: list[float] = []
    for order in ORDERS:
        rdp = steps * sampled_gaussian_rdp(rate, noise, order)
        found.append(rdp + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return float(max(0.0, min(found)))
