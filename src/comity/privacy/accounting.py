"""Formulas of privacy accounting: the Gaussian mechanism, and Rényi composition of DP-SGD."""

from __future__ import annotations

import math

ORDERS = (*range(2, 64), 72, 80, 96, 128, 192, 256, 384, 512)


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def gaussian_delta(sigma: float, epsilon: float, sensitivity: float = 1.0) -> float:
    """The smallest δ for which Gaussian noise of standard deviation `sigma` is (ε, δ)-private
    (Balle and Wang 2018, Theorem 8).
    """
    a, b = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    tail = _normal(-a - b)
    return _normal(a - b) - (math.exp(epsilon + math.log(tail)) if tail > 0 else 0.0)


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest standard deviation of Gaussian noise that is (ε, δ)-private (the analytic
    Gaussian mechanism).
    """
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
    """The smallest ε for which Gaussian noise of standard deviation `sigma` is (ε, δ)-private, at
    sensitivity 1. It is the inverse of `gaussian_sigma`.
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
    """Rényi divergence, of an integer order, of one Gaussian step on a Poisson sample of that rate
    (Mironov et al. 2019, eq. 12).
    """
    if rate >= 1:
        return order / (2 * noise**2)
    total = -math.inf
    for k in range(order + 1):
        log_binomial = math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
        if rate > 0:
            log_chance = k * math.log(rate) + (order - k) * math.log1p(-rate)
        else:
            log_chance = 0.0 if k == 0 else -math.inf
        total = _log_add(total, log_binomial + log_chance + (k * k - k) / (2 * noise**2))
    return max(0.0, total) / (order - 1)


def sampled_gaussian_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """ε at δ of a number of DP-SGD steps, by Rényi composition and the conversion of Canonne et
    al. 2020, Proposition 12.
    """
    if not steps:
        return 0.0
    if noise**2 <= 0:  # also where the square of a tiny noise underflows
        return math.inf
    bounds: list[float] = []
    for order in ORDERS:
        rdp = steps * sampled_gaussian_rdp(rate, noise, order)
        bounds.append(rdp + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return float(max(0.0, min(bounds)))
