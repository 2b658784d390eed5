"""PNG files with samples in the upper row and their reconstructions in the lower one."""

from __future__ import annotations

import torch
from torch import Tensor

from comity.auditing.finding import Pictures
from comity.data import Federation
from comity.reporting.sections.data import png, unscale

LEAST_WIDTH = 64
"""The smallest width of a picture, in pixels."""


def sheet(federation: Federation, pictures: Pictures) -> bytes | None:
    """A PNG file; None if the samples are no pictures."""
    if len(federation.shape) != 3 or federation.shape[0] not in (1, 3):
        return None
    originals, guesses = (
        unscale(federation, pictures.party, x) for x in (pictures.originals, pictures.guesses)
    )
    low, high = float(originals.amin()), float(originals.amax())
    zoom = max(1, -(-LEAST_WIDTH // originals.shape[-1]))
    return png(torch.cat([_row(x, low, high, zoom) for x in (originals, guesses)]))


def _row(x: Tensor, low: float, high: float, zoom: int) -> Tensor:
    """Pictures (count, channels, height, width) side by side with frames, as (height, width,
    channels).
    """
    pixels = ((x - low) / max(high - low, 1e-9) * 255).round().clamp(0, 255).to(torch.uint8)
    pixels = pixels.repeat_interleave(zoom, 2).repeat_interleave(zoom, 3)
    framed = torch.full(
        (len(x), x.shape[1], pixels.shape[2] + 2, pixels.shape[3] + 2), 128, dtype=torch.uint8
    )
    framed[..., 1:-1, 1:-1] = pixels
    return framed.permute(2, 0, 3, 1).reshape(framed.shape[2], -1, x.shape[1])
