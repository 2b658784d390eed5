"""Fixed-point encoding of a site's reply and its weight as integers modulo 2^32.

A reply is a tree of floating-point tensors x with a weight w. The site sends round(f·x·scale) and
round(f·W), where f = w / largest weight. The server divides the sum of the first by the sum of the
second. W is the largest integer for which the weights of all sites cannot overflow. Both parts are
in one masked vector, so the server learns the sum of the weights only.

Without noise each coordinate is clipped to [−clip, clip]. With noise the whole reply is clipped to
the Euclidean norm `clip`, and all weights are equal: neighbours differ in one site, whose reply is
zero in one of them.

**Sensitivity.** Rounding to the nearest integer moves each of d coordinates by at most ½, and the
vector by at most √d/2. So the integers of one site have a norm of at most scale·clip + √d/2, and
that is the sensitivity of their sum. Kairouz, Liu and Steinke (ICML 2021, section 4) round at
random instead and repeat until the norm is small enough. That has a smaller bound where scale·clip
is not much larger than √d; with 32 bits it can be a thousand times as large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from comity.base.record import Params
from comity.errors import UsageError
from comity.privacy.secagg.errors import SecureAggregationError
from comity.privacy.secagg.masks import RING, Ring, join_fields
from comity.privacy.secagg.noise import (
    LEAST_SIGMA,
    MOST_SIGMA,
    TAIL,
    discrete_gaussian,
    site_sigma,
)

MORE_THAN_ROUNDING = 128
"""How many times as large as the error of rounding a clipped reply is, with noise."""
LARGEST = 2**31 - 1
"""The largest absolute value of a sum that can be read from an integer modulo 2^32."""
ROUNDING = 1 - 2.0**-40
"""A reply is clipped to slightly less than `clip`, so that rounding in float64 cannot exceed it."""


@dataclass(frozen=True)
class Layout:
    """The names and shapes of the tensors in a reply, in the order of their names."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @staticmethod
    def of(tree: Mapping[str, torch.Tensor]) -> Layout:
        """The layout of a reply."""
        for name, value in tree.items():
            if not value.is_floating_point():
                kind = str(value.dtype).removeprefix("torch.")
                raise UsageError(
                    f"Secure aggregation averages floating-point tensors, and {name} is {kind}:"
                    " leave it out of the reply."
                )
        return Layout(tuple((name, tuple(tree[name].shape)) for name in sorted(tree)))

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return sum(math.prod(shape) for _, shape in self.tensors)


class Encoded(NamedTuple):
    """An encoded reply, and how many of its coordinates were changed by clipping."""

    vector: Ring
    clipped: int


@dataclass(frozen=True)
class Encoding:
    """How replies are written as integers. All sites of a round must use the same encoding.

    Arguments:
        layout: names and shapes of the tensors
        clip: largest absolute value of a coordinate; with noise, largest Euclidean norm of a reply
        scale: how many integer steps 1.0 has
        largest_weight: the largest weight that a site can have
        noise: standard deviation of the noise on the sum, in units of the sensitivity; 0 for none
    """

    layout: Layout
    clip: float
    scale: float
    largest_weight: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("clip", "scale", "largest_weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} must be a number above 0, not {value!r}.")
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise UsageError(f"noise must be a number from 0 on, not {self.noise!r}.")
        if not self.layout.size:
            raise UsageError("Secure aggregation needs a reply with at least one number.")

    @staticmethod
    def largest_scale(clip: float, sites: int) -> float:
        """The largest scale without noise for which the sum of so many sites cannot overflow."""
        return (LARGEST // sites) / clip

    @staticmethod
    def scale_with_noise(
        clip: float, noise: float, size: int, sites: int, threshold: int, colluders: int
    ) -> float:
        """A scale with noise for which the sum cannot overflow and the noise can be drawn.

        Rounding adds √d/2 steps to the sensitivity, and the noise grows with it. At this scale that
        is less than a hundredth, unless that would overflow.

        Arguments:
            clip: the largest Euclidean norm of a reply
            noise: standard deviation of the noise on the sum, in units of the sensitivity
            size: d, the number of coordinates
            sites: the number of sites on the roster
            threshold: the least number of sites in a sum
            colluders: how many of them may leave out their noise
        """
        site_noise = site_sigma(noise, threshold, colluders)
        rounding = math.sqrt(size) / 2
        enough = max(MORE_THAN_ROUNDING * rounding, 2 * LEAST_SIGMA / site_noise)
        drawable = MOST_SIGMA / site_noise - rounding
        tail = TAIL * math.sqrt(sites) * site_noise
        without_overflow = (LARGEST - sites - tail * rounding) / (sites + tail)
        steps = min(enough, ROUNDING * drawable, ROUNDING * without_overflow)
        if steps < rounding:  # most of the noise would hide the error of rounding
            raise UsageError(
                f"Noise of {noise:g} times the clipping norm on the sum of {size:,} numbers cannot"
                " be encoded for secure aggregation: use less noise or a smaller model."
            )
        return steps / clip

    @property
    def length(self) -> int:
        """The length of an encoded reply: its coordinates and its weight."""
        return self.layout.size + 1

    @property
    def sensitivity(self) -> float:
        """The largest Euclidean norm of one site's integers (see the module's docstring)."""
        return self.scale * self.clip + math.sqrt(self.layout.size) / 2

    def sigma(self, threshold: int, colluders: int) -> float:
        """The standard deviation of the noise that each site adds to each integer."""
        return site_sigma(self.noise * self.sensitivity, threshold, colluders)

    def check(self, sites: int, threshold: int, colluders: int) -> None:
        """Refuse an encoding in which a sum could overflow, or whose noise cannot be drawn."""
        largest_value = self.clip * self.scale + 0.5
        if largest_value >= LARGEST:
            raise self._overflow(sites, largest_value * sites)
        sigma = self.sigma(threshold, colluders)
        if self.noise and not LEAST_SIGMA <= sigma <= MOST_SIGMA:
            raise UsageError(
                f"Each site would add noise with a standard deviation of {sigma:.4g} steps, which"
                f" must be from {LEAST_SIGMA:g} to {MOST_SIGMA:g}: use a"
                f" {'larger' if sigma < LEAST_SIGMA else 'smaller'} scale than {self.scale:g}."
            )
        largest_sum = sites * math.floor(largest_value) + TAIL * math.sqrt(sites) * sigma
        if largest_sum > LARGEST:
            raise self._overflow(sites, largest_sum)

    def _overflow(self, sites: int, largest_sum: float) -> UsageError:
        return UsageError(
            f"The sum of {sites} sites could reach {largest_sum:.4g} steps, and overflow beyond"
            f" {LARGEST}: use a smaller scale than {self.scale:g}."
        )

    def fields(self) -> bytes:
        """All values that sites must agree on, as bytes."""
        numbers = (self.clip, self.scale, self.largest_weight, self.noise)
        shapes = (part for name, shape in self.layout.tensors for part in (name, str(shape)))
        return join_fields(*(float(number).hex() for number in numbers), *shapes)

    def encode(self, tree: Params, weight: float, sites: int) -> Encoded:
        """A reply and its weight as integers.

        Arguments:
            tree: the reply
            weight: its weight, from 0 to `largest_weight`
            sites: the number of sites on the roster
        """
        if Layout.of(tree) != self.layout:
            raise UsageError("A reply has other tensors than those agreed on for this round.")
        weight_steps = self._weight_steps(weight, sites)
        fraction = weight_steps / (LARGEST // sites)
        norm = math.sqrt(sum(_squares(_values(tree, name)) for name in tree)) if self.noise else 0.0
        shrink = min(1.0, self.clip / norm * ROUNDING) if norm else 1.0
        clipped = self.layout.size if shrink < 1 else 0
        vector = np.empty(self.length, dtype=RING)
        begin = 0
        for name, _ in self.layout.tensors:
            values = _values(tree, name)
            if not self.noise:
                clipped += int(np.count_nonzero(np.abs(values) > self.clip))
                np.clip(values, -self.clip, self.clip, out=values)
            values *= shrink * fraction * self.scale
            np.rint(values, out=values)
            vector[begin : begin + len(values)] = values.astype(np.int64).astype(RING)
            begin += len(values)
        vector[-1] = weight_steps
        return Encoded(vector, clipped)

    def add_noise(self, vector: Ring, key: bytes, threshold: int, colluders: int) -> None:
        """Add this site's noise to an encoded reply, but not to its weight, in place."""
        if self.noise:
            sigma = self.sigma(threshold, colluders)
            vector[:-1] += discrete_gaussian(key, self.layout.size, sigma).view(RING)

    def decode(self, total: Ring, sites: int) -> tuple[Params, float]:
        """The weighted mean of the replies in a sum, and the sum of their weights."""
        signed = total.view(np.dtype("<i4"))
        fraction = int(total[-1]) / (LARGEST // sites)
        if not 0 < fraction <= sites:
            raise SecureAggregationError(
                f"The weights in the sum come to {fraction * self.largest_weight:g}, which is no"
                f" sum of positive weights of {sites} sites up to {self.largest_weight:g}."
            )
        mean: Params = {}
        begin = 0
        for name, shape in self.layout.tensors:
            count = math.prod(shape)
            part = signed[begin : begin + count] / (self.scale * fraction)
            mean[name] = torch.from_numpy(part.astype(np.float32)).reshape(shape)
            begin += count
        return mean, fraction * self.largest_weight

    def _weight_steps(self, weight: float, sites: int) -> int:
        if not 0 <= weight <= self.largest_weight:
            raise UsageError(
                f"A weight must be from 0 to {self.largest_weight:g} (largest_weight), not"
                f" {weight!r}."
            )
        if self.noise and weight != self.largest_weight:
            raise UsageError(
                f"With noise all sites count alike, so the weight must be {self.largest_weight:g},"
                f" not {weight!r}."
            )
        return round(weight / self.largest_weight * (LARGEST // sites))


def _values(tree: Params, name: str) -> NDArray[np.float64]:
    """A tensor of a reply as a flat float64 array, which may be changed."""
    values = tree[name].detach().cpu().to(torch.float64, copy=True).flatten().numpy()
    if not np.isfinite(values).all():
        raise UsageError(
            f"{name} has values that are not finite, which cannot be encoded for secure"
            " aggregation."
        )
    return values


def _squares(values: NDArray[np.float64]) -> float:
    return float(np.vdot(values, values))
