"""What private training costs: the same local training with and without it, in turn, in processor
time.

`python private.py` prints a line for each network and batch: milliseconds a step, how many of them
draw noise, and the ratio of the medians with its range. Without any noise, private training takes
what is left: clipping, and batches drawn anew.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from comity.base.noise import gaussian
from comity.core import FitRequest, Key, LearningTask, Samples, Training, plain
from comity.models import build
from comity.training.descent import train
from comity.training.requests import Private

CASES = (("mlp2", 10), ("mlp2", 32), ("mlp2", 64), ("mlp2", 128), ("cnn4", 10), ("cnn4", 64))


def seconds(request: FitRequest[None]) -> float:
    """Processor time of one training."""
    begin = time.process_time()
    train(request)
    return time.process_time() - begin


def compare(model: str, batch: int, pairs: int, samples: int) -> str:
    """A line about one network."""
    network = build(model, (1, 28, 28), 10)
    task, how = LearningTask(network, 10, network.cut), Training(lr=0.05, batch=batch, epochs=2)
    data = Samples(
        torch.randn(samples, 1, 28, 28, generator=Key(1).generator()), torch.arange(samples) % 10
    )
    theta, steps = task.init(Key(2)), how.steps_for(samples)

    def one(private: Private | None) -> float:
        return seconds(FitRequest(plain, theta, data, Key(3), how, task, None, private=private))

    def noise() -> float:
        out = torch.empty(sum(value.numel() for value in theta.values()))
        begin = time.process_time()
        for step in range(steps):
            gaussian(Key(step), [len(out)], 1.0, out)
        return time.process_time() - begin

    one(None)
    usual, hidden, drawn = zip(
        *((one(None), one(Private(data, 1.0, 1.0, [])), noise()) for _ in range(pairs)), strict=True
    )
    ratios = sorted(b / a for a, b in zip(usual, hidden, strict=True))
    plainly, privately, noisily = (
        1e3 * statistics.median(times) / steps for times in (usual, hidden, drawn)
    )
    return (
        f"{model:6} batch {batch:4}: {plainly:6.2f} ms a step, private {privately:6.2f} ms"
        f" ({noisily:.2f} of it noise), {privately / plainly:.1f} times as long ({ratios[0]:.1f} to"
        f" {ratios[-1]:.1f})"
    )


def main() -> None:
    """Print all lines."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--samples", type=int, default=600)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for model, batch in CASES:
        print(compare(model, batch, chosen.pairs, chosen.samples), flush=True)


if __name__ == "__main__":
    main()
