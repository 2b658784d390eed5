"""Augmentation: random changes of training images.

Changes are drawn from keys, so that a run sees the same images on every engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.key import Key
from comity.errors import UsageError, unknown
from comity.spec import call, parse, split

Change = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Flip:
    """Horizontal flip with probability 1/2."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        flipped = torch.rand(len(x), generator=generator).to(x.device) < 0.5
        return torch.where(flipped.view(-1, 1, 1, 1), x.flip(-1), x)


@dataclass(frozen=True)
class Crop:
    """Random translation by up to `pad` pixels in each direction, filled with black."""

    pad: int = 4

    def __post_init__(self) -> None:
        if self.pad < 1:
            raise UsageError(f"pad of crop must be at least 1, not {self.pad}.")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        n, _, height, width = x.shape
        padded = F.pad(x, (self.pad,) * 4)
        down, right = torch.randint(0, 2 * self.pad + 1, (2, n, 1), generator=generator).to(
            x.device
        )
        rows = down + torch.arange(height, device=x.device)
        columns = right + torch.arange(width, device=x.device)
        samples = torch.arange(n, device=x.device).view(-1, 1, 1)
        return (
            padded[samples, :, rows[:, :, None], columns[:, None, :]]
            .permute(0, 3, 1, 2)
            .contiguous()
        )


@dataclass(frozen=True)
class Rotate:
    """Random rotation by up to `degrees` in each direction, bilinear, filled with black."""

    degrees: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.degrees <= 180:
            raise UsageError(
                f"degrees of rotate must be more than 0 and at most 180, not {self.degrees}."
            )

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        angle = (torch.rand(len(x), generator=generator).to(x.device) * 2 - 1) * math.radians(
            self.degrees
        )
        cos = angle.cos()
        sin = angle.sin()
        zero = torch.zeros_like(angle)
        # Rotation is in pixels, but both sides of the grid have length 2.
        ratio = x.shape[-2] / x.shape[-1]
        theta = torch.stack(
            [torch.stack([cos, -sin * ratio, zero], 1), torch.stack([sin / ratio, cos, zero], 1)], 1
        )
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


CHANGES: dict[str, Callable[..., Change]] = {"flip": Flip, "crop": Crop, "rotate": Rotate}


@dataclass(frozen=True)
class Augment:
    """A sequence of changes.

    `black` is the normalised value of a black pixel: one number, or one per channel.
    """

    changes: tuple[Change, ...]
    black: tuple[float, ...] = (0.0,)

    @staticmethod
    def read(text: str, black: tuple[float, ...], shape: tuple[int, ...]) -> Augment | None:
        """Parse an augmentation, as in `flip|crop(pad=4)`; None for `none`."""
        if text == "none":
            return None
        specs = [parse(part) for part in split(text, "|")]
        for spec in specs:
            if spec.name not in CHANGES:
                raise unknown("augmentation", spec.name, CHANGES)
        if len(shape) != 3:
            raise UsageError(
                f"augment is for images, but a sample here has shape {shape}; use augment=none."
            )
        return Augment(tuple(call(spec, CHANGES[spec.name]) for spec in specs), black)

    def __call__(self, x: Tensor, key: Key) -> Tensor:
        """Augment a batch of images; other inputs (for example representations) do not change."""
        if x.dim() != 4:
            return x
        black = torch.tensor(self.black, dtype=x.dtype, device=x.device).view(-1, 1, 1)
        x = x - black
        for k, change in enumerate(self.changes):
            x = change(x, key.fold(k).generator())
        return x + black
