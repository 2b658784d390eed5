"""How often the intervals of `comity advise` hold.

    python benchmarks/coverage_race.py --trials 200

Several methods race on the folds of several parties, by the rule of `comity advise`, and their true
accuracies are known. A race chooses one method by its luck on the first fold. Does the interval that
it ends with hold the true gain of that method?
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np

from comity.names import SOLO
from comity.studies.advise.evidence import FoldOutcome
from comity.studies.advise.prior import PriorOfRace
from comity.studies.advise.race import Arm, RaceRule, Step, run_race

SHARED = 0.7
"""The share of a sample's noise that is the same for all methods."""
PARTIES, FOLDS = 8, 4
METHODS = (SOLO, *(f"method-{k}" for k in range(1, 16)))


def simulated_outcomes(
    samples: int, noise: float, rng: np.random.Generator
) -> tuple[dict[Step, FoldOutcome], dict[str, float]]:
    """Return the outcomes of each method on each fold, and the methods' true accuracies.

    A prediction is right if the sum of the method's strength at the party, of the sample's ease
    (the same for all methods), and of noise is positive. Training moves the strength by `noise`,
    anew for each fold; as training sets overlap, a part of 1 / FOLDS of its variance is the same for
    all folds.
    """
    ease = math.sqrt(SHARED) * rng.standard_normal((PARTIES, samples))
    fold = np.arange(samples) % FOLDS
    common = rng.normal(0.5, 0.5, PARTIES)
    kept, anew = math.sqrt(1 / FOLDS), math.sqrt(1 - 1 / FOLDS)
    outcomes: dict[Step, FoldOutcome] = {}
    truths: dict[str, float] = {}
    for method in METHODS:
        strength = common + rng.normal(0, 0.1) + rng.normal(0, 0.2, PARTIES)
        shift = kept * rng.normal(0, noise) + anew * rng.normal(0, noise, (FOLDS, 1))
        shift = shift + 2 * noise * (
            kept * rng.standard_normal(PARTIES) + anew * rng.standard_normal((FOLDS, PARTIES))
        )
        luck = math.sqrt(1 - SHARED) * rng.standard_normal((PARTIES, samples))
        right = strength[:, None] + shift[fold].T + ease + luck > 0
        deviation = math.sqrt(1 + noise**2 * (1 + 4))
        truths[method] = statistics.fmean(
            0.5 * (1 + math.erf(s / deviation / math.sqrt(2))) for s in strength
        )
        for k, half in itertools.product(range(FOLDS), (True, False)):
            values = {
                f"p{p}": tuple(map(float, right[p, fold == k].tolist())) for p in range(PARTIES)
            }
            outcomes[Step(method, k, half)] = FoldOutcome(values)
    return outcomes, truths


def try_races(samples: int, noise: float, trials: int) -> None:
    """Print how often the interval of the chosen method holds."""
    rng = np.random.default_rng(0)
    held = clear = wrong = 0
    widths = []
    for _ in range(trials):
        outcomes, truths = simulated_outcomes(samples, noise, rng)

        def advance(
            steps: Sequence[Step], outcomes: dict[Step, FoldOutcome] = outcomes
        ) -> list[FoldOutcome]:
            return [outcomes[step] for step in steps]

        race = run_race([Arm(m) for m in METHODS], RaceRule(folds=FOLDS), PriorOfRace(), advance)
        (chosen,) = race.finalists
        gain = race.gain(chosen)
        assert gain is not None
        true = truths[chosen] - truths[SOLO]
        held += gain.low <= true <= gain.high
        clear += gain.helped or gain.hurt
        wrong += (gain.helped and true <= 0) or (gain.hurt and true >= 0)
        widths.append(gain.high - gain.low)
    # the slope of accuracy in the strength is about 0.3
    spread = 0.3 * math.sqrt(2) * noise * math.sqrt(1 + 4 / PARTIES)
    print(
        f"{samples:4} samples of each party, a spread of {100 * spread:.1f} points over trainings:"
        f" the interval held in {held / trials:.1%}; clear {clear / trials:.0%}, of these wrong"
        f" {wrong / max(1, clear):.1%}; {100 * statistics.fmean(widths):.1f} points wide",
        flush=True,
    )


def main() -> None:
    """Try races with several numbers of samples and amounts of training noise."""
    options = argparse.ArgumentParser()
    options.add_argument("--trials", type=int, default=200)
    trials = options.parse_args().trials
    for samples, noise in itertools.product((40, 160, 640), (0.0, 0.02, 0.04, 0.08)):
        try_races(samples, noise, trials)


if __name__ == "__main__":
    main()
