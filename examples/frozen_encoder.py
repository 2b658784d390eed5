"""A public encoder in a federation: frozen, or tuned together.

An encoder is trained on MNIST, which stands in for public data. Nine parties have few samples each
of other digits: three of USPS, three of MNIST-M, three of SVHN. Six methods start from that
encoder, once with the encoder frozen and once with all weights trained, with three seeds. All
settings were fixed before the first run. The table is that of docs/how-to/frozen-encoder.md:

    COMITY_DATA=/path/to/data python examples/frozen_encoder.py --out frozen-encoder
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import comity

METHODS = ("solo", "fedavg", "fedavg+dbe", "relay", "fedproto", "adcol")
DOMAINS = ("usps", "mnist-m", "svhn")
PARTIES_PER_DOMAIN = 3
WIDTH = 64  # of the representation
Build = Callable[[tuple[int, ...], int], tuple[nn.Module, nn.Module]]


def new_encoder() -> nn.Module:
    """A small convolutional network for 3 x 28 x 28 pictures."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(16, 32, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 4 * 4, WIDTH), nn.ReLU(),
    )  # fmt: skip


def pretrain(file: Path, epochs: int = 2) -> float:
    """Train an encoder on MNIST's training samples, save it, and return its test accuracy."""
    digits = comity.load("digits-five").partition("natural", test="official", validation=0, seed=0)
    mnist = digits.parties["mnist"]
    torch.manual_seed(0)
    encoder, head = new_encoder(), nn.Linear(WIDTH, 10)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(mnist.train)).split(64):
            optimizer.zero_grad()
            logits = head(encoder(mnist.train.x[rows]))
            F.cross_entropy(logits, mnist.train.y[rows]).backward()
            optimizer.step()
    save_file(encoder.state_dict(), file)
    with torch.no_grad():
        answers = head(encoder(mnist.test.x)).argmax(1)
    return float((answers == mnist.test.y).float().mean())


def federation(samples: int, seed: int) -> comity.Federation:
    """Three parties of each domain but MNIST, with so many samples each, drawn with the seed."""
    digits = comity.load("digits-five").partition("natural", test="official", validation=0, seed=0)
    parties = {}
    for domain in DOMAINS:
        data = digits.parties[domain]
        x, y = torch.cat([data.train.x, data.test.x]), torch.cat([data.train.y, data.test.y])
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        for k in range(PARTIES_PER_DOMAIN):
            rows = order[k * samples : (k + 1) * samples]
            parties[f"{domain} {k + 1}"] = (x[rows], y[rows])
    return comity.Federation.from_arrays(parties, classes=10, seed=seed)


def model(file: Path, frozen: bool) -> Build:
    """A function that builds the pretrained encoder and a new head."""

    def build(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        encoder = new_encoder()
        encoder.load_state_dict(load_file(file))
        return encoder.requires_grad_(not frozen), nn.Linear(WIDTH, classes)

    return build


def row(name: str, results: list[comity.Result]) -> str:
    """A row of the table: accuracy by domain and of all parties, and traffic."""
    figures = [result.summary["accuracy"]["per_party"] for result in results]
    by_domain = [
        mean(figure[party] for figure in figures for party in figure if party.startswith(domain))
        for domain in DOMAINS
    ]
    means = [mean(figure.values()) for figure in figures]
    spread = f" ± {100 * stdev(means):.1f}" if len(means) > 1 else ""
    sent = mean(result.summary["bytes"]["total"] for result in results)
    cells = [
        name,
        *(f"{100 * value:.1f}" for value in by_domain),
        f"{100 * mean(means):.1f}{spread}",
        f"{sent / 1e6:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Train the encoder, run all methods, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--samples", type=int, default=360, help="of each party")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--encoder", nargs="+", default=["frozen", "tuned"])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    file = arguments.out / "mnist.safetensors"
    if not file.exists():
        print(f"encoder: {pretrain(file):.1%} of MNIST's test samples", flush=True)
    federations = [federation(arguments.samples, seed) for seed in range(arguments.seeds)]
    print("| method | USPS | MNIST-M | SVHN | all parties | MB sent |")
    print("| --- | --- | --- | --- | --- | --- |")
    for how in arguments.encoder:
        for method in arguments.methods:
            results = [
                comity.run(
                    method,
                    parties,
                    model=model(file, how == "frozen"),
                    lr=arguments.lr,
                    rounds=arguments.rounds,
                    eval_every=arguments.rounds,
                    seed=seed,
                    engine="loop",
                    progress=False,
                    resume=True,
                    out=arguments.out / how / method / f"seed-{seed}",
                )
                for seed, parties in enumerate(federations)
            ]
            print(row(f"{method}, {how}", results), flush=True)


if __name__ == "__main__":
    main()
