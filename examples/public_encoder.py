"""A public encoder, frozen: sites train a head on its representations and send nothing else.

    python examples/public_encoder.py [folder]

Public data are the digits 0 to 4. The sites have few samples of the digits 5 to 9, which the
encoder has never seen. frozen_encoder.py beside this file is the experiment on real sources.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import comity

PICTURE = "accuracy-by-bytes"
WIDTH = 32


def new_encoder() -> nn.Module:
    """A small network for 1 x 8 x 8 pictures."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, WIDTH), nn.ReLU()
    )


def train_publicly(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """Return an encoder that was trained on public samples."""
    torch.manual_seed(0)
    encoder, head = new_encoder(), nn.Linear(WIDTH, 5)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
    for rows in torch.cat([torch.randperm(len(y)) for _ in range(20)]).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(encoder(x[rows])), y[rows]).backward()
        optimizer.step()
    return encoder.requires_grad_(False)


def main(out: str | Path = "runs/public-encoder", rounds: int = 20) -> comity.Comparison:
    """Compare three methods on top of the frozen encoder, and write the page."""
    digits = comity.load("digits")
    public, own = digits.y < 5, torch.nonzero(digits.y >= 5)[:, 0][:400]
    encoder = train_publicly(digits.x[public], digits.y[public])
    sites = {f"site {k + 1}": own[50 * k : 50 * k + 50] for k in range(8)}
    federation = comity.Federation.from_arrays(
        {name: (digits.x[rows], digits.y[rows] - 5) for name, rows in sites.items()}, classes=5
    )
    model, methods = (encoder, nn.Linear(WIDTH, 5)), ["fedavg", "relay", "fedproto"]
    comparison = comity.compare(methods, federation, model=model, rounds=rounds, out=out)
    print(comity.report(comparison, quick=True, figures="svg"))
    return comparison


if __name__ == "__main__":
    main(*sys.argv[1:2])
