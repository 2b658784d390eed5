"""How often the interval of a gain holds the true gain: the bootstrap of `measure/gain.py`, and the
interval over seeds of `studies/answers.py`, on samples from known distributions.

    python benchmarks/coverage.py [--trials 200]

Two models score samples of two classes; the scores of both are normal and correlated, and the
second is the better one. The true gain is that of a million samples. Prints how many of a hundred
nominal 95 % intervals hold it, for several sizes of test sets.

Over seeds: a gain that test samples move by one amount, the same for all seeds, and training by
another, anew for each.
"""

from __future__ import annotations

import argparse
import random

import torch

from comity.measure.gain import Gain, bootstrap_gain
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import METRICS
from comity.studies.party_verdicts import combine_seeds

BEFORE, NOW = 0.8, 1.2  # by how much the classes lie apart in each model's scores
SHARED = 0.7  # of a sample's noise is the same for both models


def drawn(each: int, draw: torch.Generator) -> tuple[Answers, Answers]:
    """What both models say of so many samples of each class."""
    y = torch.arange(2).repeat_interleave(each)
    common = SHARED**0.5 * torch.randn(len(y), generator=draw)
    made = []
    for apart in (NOW, BEFORE):
        score = (
            common + (1 - SHARED) ** 0.5 * torch.randn(len(y), generator=draw) + apart * (y - 0.5)
        )
        made.append(Answers(y.int(), (score > 0).int(), score))
    return made[0], made[1]


def over_several_seeds(trials: int) -> None:
    """Try the interval over two, three and five seeds, where training varies less than the samples,
    as much, and more.
    """
    draw = random.Random(0)
    for samples, training in ((0.03, 0.01), (0.02, 0.02), (0.01, 0.03), (0.01, 0.1)):
        for seeds in (2, 3, 5):
            held = 0
            for _ in range(trials):
                same = draw.gauss(0, samples)
                each = [same + draw.gauss(0, training) for _ in range(seeds)]
                found = combine_seeds([Gain("p", g, g, g, g, samples) for g in each], methods=1)
                held += found.low <= 0 <= found.high
            print(
                f"{seeds} seeds, samples {samples:.2f}, training {training:.2f}: held in"
                f" {held / trials:.1%}"
            )


def main() -> None:
    """Try every metric with test sets of several sizes."""
    options = argparse.ArgumentParser()
    options.add_argument("--trials", type=int, default=200)
    args = options.parse_args()
    over_several_seeds(20 * args.trials)
    draw = torch.Generator().manual_seed(0)
    for name in ("balanced_accuracy", "auc", "macro_f1"):
        metric = METRICS[name]
        now, before = drawn(500_000, draw)
        figures = [
            metric.of(one.scores(2).double(), one.truth.long()) or 0.0 for one in (now, before)
        ]
        true = figures[0] - figures[1]
        for each in (5, 10, 30, 100):
            found = [
                bootstrap_gain(f"p{k}", *drawn(each, draw), metric) for k in range(args.trials)
            ]
            held = [gain.low <= true <= gain.high for gain in found if gain is not None]
            width = sum(gain.high - gain.low for gain in found if gain is not None) / max(
                1, len(held)
            )
            print(
                f"{name:18} {each:4} of each class: held in {sum(held) / len(held):.1%},"
                f" {100 * width:.0f} points wide"
            )


if __name__ == "__main__":
    main()
