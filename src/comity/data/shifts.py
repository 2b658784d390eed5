"""Feature shifts, a step after a partition as in `iid|shift`: parties see inputs differently.

A shift maps values in [0, 1] to values in [0, 1], before they are normalised.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from comity.base.key import Key
from comity.errors import UsageError, unknown

Shift = Callable[[Tensor, np.random.Generator], Tensor]


def none(x: Tensor, rng: np.random.Generator) -> Tensor:
    """No change."""
    return x


def invert(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Inverted brightness."""
    return 1 - x


def rotate(x: Tensor, rng: np.random.Generator) -> Tensor:
    """A quarter turn, or half a turn if height and width differ, which keeps the shape."""
    return torch.rot90(x, 1 if x.shape[-1] == x.shape[-2] else 2, (-2, -1))


def noise(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Gaussian noise of standard deviation 0.3."""
    return (x + torch.from_numpy(rng.normal(0, 0.3, x.shape)).to(x.dtype)).clamp(0, 1)


def contrast(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Contrast reduced to 40 %, around mid-grey."""
    return 0.5 + 0.4 * (x - 0.5)


def blur(x: Tensor, rng: np.random.Generator) -> Tensor:
    """The 3 x 3 binomial filter, as sums so that the result is bit-identical on every machine."""
    x = pad(x, (1, 1, 1, 1), mode="replicate")
    x = (x[..., :-2, :] + 2 * x[..., 1:-1, :] + x[..., 2:, :]) / 4
    return (x[..., :-2] + 2 * x[..., 1:-1] + x[..., 2:]) / 4


def texture(x: Tensor, rng: np.random.Generator) -> Tensor:
    """A smooth random pattern behind each sample, blended by absolute difference as in MNIST-M."""
    pattern = torch.from_numpy(rng.random(x.shape)).to(x.dtype)
    for _ in range(2):
        pattern = blur(pattern, rng)
    return (x - ((pattern - 0.5) * 3 + 0.5).clamp(0, 1) * 0.7).abs()


def thick(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Wider strokes of light: the largest of each 2 x 2 neighbourhood."""
    return max_pool2d(pad(x, (0, 1, 0, 1)), 2, 1)


def thin(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Narrower strokes of light: the smallest of each 2 x 2 neighbourhood."""
    return 1 - thick(1 - x, rng)


KINDS: dict[str, Shift] = {
    f.__name__: f for f in (none, invert, rotate, noise, contrast, blur, texture, thick, thin)
}
SENSORS = ("none", "invert", "rotate", "noise", "contrast", "blur")
"""The default kinds of `shift`."""
FOR_IMAGES = ("rotate", "blur", "texture", "thick", "thin")


def apply(shift: str, x: Tensor, key: Key) -> Tensor:
    """Apply a shift, as in "rotate|noise", to samples.

    The noise of a sample depends on its position in `x`: pass the samples in a fixed order.
    """
    for step, kind in enumerate(shift.split("|")):
        if kind not in KINDS:
            raise unknown("kind of shift", kind, KINDS)
        if kind in FOR_IMAGES and x.dim() != 4:
            raise UsageError(
                f"The shift {kind} is for images, but a sample here has shape {tuple(x.shape[1:])};"
                f" use kinds={','.join(k for k in KINDS if k not in FOR_IMAGES)}."
            )
        if len(x) and not 0 <= x.min() <= x.max() <= 1:
            raise UsageError(
                f"The shift {kind} needs values from 0 to 1, but the data run from {x.min():g} to"
                f" {x.max():g}; rescale the data."
            )
        x = KINDS[kind](x, key.fold(step).numpy())
    return x


def kinds(kinds: tuple[str, ...] = SENSORS) -> tuple[str, ...]:
    """Parse a `shift` step: the kinds that parties get in turn; refuse unknown kinds."""
    for kind in kinds:
        if kind not in KINDS:
            raise unknown("kind of shift", kind, KINDS)
    return kinds
