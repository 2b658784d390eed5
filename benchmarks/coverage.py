"""How often the interval of a gain holds the true gain: the bootstrap of `measure/gain.py`, and the
interval over seeds of `studies/answers.py`, on samples from known distributions.

    python benchmarks/coverage.py [--trials 200]

Two models score samples of two classes; the scores of both are normal and correlated, and the
second is the better one. The true gain is that of a million samples. Prints how many of a hundred
nominal 95 % intervals hold it, for several sizes of test sets.

Over a race (`comity advise`): several methods on the folds of several parties, whose true
differences are known. A race counts as held if all intervals of all its looks hold their
differences. `--race` tries nothing else.

Over seeds: a gain that test samples move by one amount, the same for all seeds, and training by
another, anew for each.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random

import numpy as np
import torch

from comity.measure.gain import Gain, bootstrap_gain
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import METRICS
from comity.studies.advise.evidence import Looks, Outcome, TrainingNoise, excess_variance
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


PARTIES, METHODS, FOLDS = 8, 10, 4
RACING = 4  # the methods, with the first, whose folds inform about the noise of training


def simulated_race(
    samples: int, noise: float, rng: np.random.Generator
) -> tuple[list[list[Outcome]], list[float]]:
    """Return the outcomes of each method on each fold, and the methods' true accuracies.

    A prediction is right if the sum of the method's strength at the party, of the sample's ease
    (the same for all methods), and of noise is positive. Training moves the strength by `noise`,
    anew for each fold; as training sets overlap, a part of 1 / FOLDS of its variance is the same for
    all folds.
    """
    ease = math.sqrt(SHARED) * rng.standard_normal((PARTIES, samples))
    fold = np.arange(samples) % FOLDS
    common = rng.normal(0.5, 0.5, PARTIES)
    outcomes, truths = [], []
    for _ in range(METHODS):
        strength = common + rng.normal(0, 0.1) + rng.normal(0, 0.2, PARTIES)
        kept, anew = math.sqrt(1 / FOLDS), math.sqrt(1 - 1 / FOLDS)
        shift = kept * rng.normal(0, noise) + anew * rng.normal(0, noise, (FOLDS, 1))
        shift = shift + 2 * noise * (
            kept * rng.standard_normal(PARTIES) + anew * rng.standard_normal((FOLDS, PARTIES))
        )
        luck = math.sqrt(1 - SHARED) * rng.standard_normal((PARTIES, samples))
        right = strength[:, None] + shift[fold].T + ease + luck > 0
        deviation = math.sqrt(1 + noise**2 * (1 + 4))
        truths.append(
            float(np.mean([0.5 * (1 + math.erf(s / deviation / math.sqrt(2))) for s in strength]))
        )
        outcomes.append(
            [
                Outcome(
                    {
                        f"p{p}": tuple(map(float, right[p, fold == k].tolist()))
                        for p in range(PARTIES)
                    }
                )
                for k in range(FOLDS)
            ]
        )
    return outcomes, truths


def over_races(trials: int) -> None:
    """Try the intervals of a race, with few and many samples, and much or little training noise."""
    rng = np.random.default_rng(0)
    noise_assumed = TrainingNoise()
    for samples, noise in itertools.product((40, 160, 640), (0.0, 0.02, 0.05, 0.1)):
        held = single = compared = clear = wrong = 0
        widths = []
        # the slope of accuracy in the strength is about 0.3
        spread = 0.3 * math.sqrt(2) * noise * math.sqrt(1 + 4 / PARTIES)
        for _ in range(trials):
            outcomes, truths = simulated_race(samples, noise, rng)
            all_held = True
            looks = [
                Looks(
                    METHODS - 1,
                    FOLDS + 1,
                    FOLDS,
                    noise_assumed.informed_by(
                        [
                            (excess_variance(o[:count], outcomes[0][:count]), count - 1)
                            for o in outcomes[1:RACING]
                            if count > 1
                        ]
                    ),
                )
                for count in range(1, FOLDS + 1)
            ]
            for other in range(1, METHODS):
                true = truths[0] - truths[other]
                for count in range(1, FOLDS + 1):
                    found = looks[count - 1].difference(
                        outcomes[0][:count], outcomes[other][:count]
                    )
                    all_held &= found.low <= true <= found.high
                    single += found.low <= true <= found.high
                    compared += 1
                    clear += found.low > 0 or found.high < 0
                    wrong += (found.low > 0 and true <= 0) or (found.high < 0 and true >= 0)
                widths.append(found.high - found.low)
            held += all_held
        print(
            f"{samples:4} samples of each party, training noise {noise:.2f} (a spread of"
            f" {100 * spread:.1f} points): all intervals of a race held in"
            f" {held / trials:.1%}, a single one in {single / compared:.2%}; clear"
            f" {clear / compared:.0%}, of these wrong {wrong / max(1, clear):.2%};"
            f" {100 * float(np.mean(widths)):.1f} points wide with {FOLDS} folds",
            flush=True,
        )


def main() -> None:
    """Try every metric with test sets of several sizes."""
    options = argparse.ArgumentParser()
    options.add_argument("--trials", type=int, default=200)
    options.add_argument("--race", action="store_true", help="only the intervals of a race")
    args = options.parse_args()
    over_races(args.trials)
    if args.race:
        return
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
