"""The gain of cached representations: runs with a frozen encoder, with and without the cache.

    python benchmarks/frozen.py [--rounds 20]

Four parties have 150 pictures of 3 x 32 x 32 values each, drawn at random: the values do not change
the time. The table has processor time of whole runs of FedAvg in one process (set-up, training and
an evaluation after each round), and the largest difference of the heads' weights.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import comity

PARTIES, SAMPLES, SIDE = 4, 150, 32


def small() -> nn.Module:
    """Two convolutions, as in examples/frozen_encoder.py."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(16, 32, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(800, 64), nn.ReLU(),
    )  # fmt: skip


def deep() -> nn.Module:
    """Twelve convolutions with BatchNorm, of 32 to 128 channels."""
    layers: list[nn.Module] = []
    into = 3
    for channels in (32, 64, 128):
        for _ in range(4):
            layers += [nn.Conv2d(into, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
            into = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def measure(
    encoder: nn.Module, width: int, rounds: int, cache: bool
) -> tuple[float, comity.Result]:
    """Processor time of a run, and its result."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(PARTIES * SAMPLES, 3, SIDE, SIDE, generator=generator)
    y = torch.randint(10, (PARTIES * SAMPLES,), generator=generator)
    parts = zip(x.split(SAMPLES), y.split(SAMPLES), strict=True)
    parties = {f"p{i}": (a, b) for i, (a, b) in enumerate(parts)}
    fed = comity.Federation.from_arrays(parties, classes=10)
    torch.manual_seed(1)
    pair = encoder.requires_grad_(False), nn.Linear(width, 10)
    before = time.process_time()
    result = comity.run("fedavg", fed, model=pair, rounds=rounds, engine="loop", cache=cache)
    return time.process_time() - before, result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print("| encoder | without cache, s | with cache, s | times faster | largest difference |")
    print("| --- | --- | --- | --- | --- |")
    for name, build, width in (("2 convolutions", small, 64), ("12 convolutions", deep, 128)):
        torch.manual_seed(0)
        encoder = build()
        (slow, plain), (fast, cached) = (
            measure(encoder, width, rounds, cache) for cache in (False, True)
        )
        ours, theirs = cached.model("p0").theta, plain.model("p0").theta
        gap = max(float((ours[k] - theirs[k]).abs().max()) for k in ours)
        print(f"| {name} | {slow:.1f} | {fast:.2f} | {slow / fast:.0f} | {gap:.0e} |", flush=True)


if __name__ == "__main__":
    main()
