"""Models of which a part is frozen, for tests over all methods."""

from __future__ import annotations

import torch
from torch import nn

SHARE_THE_ENCODER = ("fedper", "fedrep(", "fedbabu")
"""Methods that share nothing if the encoder is frozen."""


def encoder(frozen: str) -> nn.Sequential:
    """An encoder with BatchNorm and dropout, of which the first layers or all are frozen."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 8), nn.Tanh()
        )
    layers[1].requires_grad_(False)
    if frozen == "all":
        layers.requires_grad_(False)
    return layers


def model(frozen: str) -> tuple[nn.Sequential, nn.Linear]:
    with torch.random.fork_rng():
        torch.manual_seed(6)
        return encoder(frozen), nn.Linear(8, 10)
