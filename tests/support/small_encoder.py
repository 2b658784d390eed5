"""A small network that stands in for one of torchvision, which may be missing."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """A network for coloured pictures and 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4, 1000)

    def forward(self, x: Tensor) -> Tensor:
        out: torch.Tensor = self.fc(self.conv1(x).mean((2, 3)))
        return out


class FakeLibrary:
    """The functions of torchvision.models that Comity calls."""

    def list_models(self) -> list[str]:
        return ["small"]

    def get_model(self, name: str, weights: None) -> nn.Module:
        return Small()
