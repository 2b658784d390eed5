"""Pictures of samples above and what an attack made of them below, as PNG files."""

from __future__ import annotations

import torch
from torch import Tensor

from comity.auditing.finding import Pictures
from comity.data import Federation
from comity.reporting.sections.data import png, unscale

TIMES = 64
"""Pixels that a picture is to be wide at least."""


def sheet(federation: Federation, found: Pictures) -> bytes | None:
    """A PNG file; None if samples are no pictures."""
    if len(federation.shape) != 3 or federation.shape[0] not in (1, 3):
        return None
    originals, guesses = (
        unscale(federation, found.party, x) for x in (found.originals, found.guesses)
    )
    low, high = float(originals.amin()), float(originals.amax())
    larger = max(1, -(-TIMES // originals.shape[-1]))
    lines = [_line(x, low, high, larger) for x in (originals, guesses)]
    return png(torch.cat(lines))


def _line(x: Tensor, low: float, high: float, larger: int) -> Tensor:
    """Pictures (count, channels, height, width) side by side, with a frame, as (height, width,
    channels).
    """
    pixels = ((x - low) / max(high - low, 1e-9) * 255).round().clamp(0, 255).to(torch.uint8)
    pixels = pixels.repeat_interleave(larger, 2).repeat_interleave(larger, 3)
    framed = torch.full(
        (len(x), x.shape[1], pixels.shape[2] + 2, pixels.shape[3] + 2), 128, dtype=torch.uint8
    )
    framed[..., 1:-1, 1:-1] = pixels
    return framed.permute(2, 0, 3, 1).reshape(framed.shape[2], -1, x.shape[1])
