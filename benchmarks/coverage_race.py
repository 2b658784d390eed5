"""How often the intervals of a race hold, as `comity advise` computes them.

    python benchmarks/coverage_race.py --trials 200

Several methods are tried on the folds of several parties, and their true differences are known. A
race counts as held if all intervals of all its looks hold their differences.
"""

from __future__ import annotations

import argparse
import itertools
import math

import numpy as np

from comity.studies.advise.evidence import Looks, Outcome, TrainingNoise, excess_variance

SHARED = 0.7  # of a sample's noise is the same for all methods
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
    """Try races with several numbers of samples and amounts of training noise."""
    options = argparse.ArgumentParser()
    options.add_argument("--trials", type=int, default=200)
    over_races(options.parse_args().trials)


if __name__ == "__main__":
    main()
