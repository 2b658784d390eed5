"""How often the intervals of `comity advise` hold.

    python benchmarks/coverage_race.py --trials 200

Several methods race on the folds of several parties, by the rule of `comity advise`, and their true
accuracies are known. A race chooses one method by its luck on the first fold. Does the interval that
it ends with hold the true gain of that method? And where all methods are as good as training alone,
in how many races does some party seem clearly helped or hurt?
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
from comity.studies.advise.verdict import party_gains

SHARED = 0.7
"""The share of a sample's noise that is the same for all methods."""
PARTIES, FOLDS = 8, 4
METHODS = (SOLO, *(f"method-{k}" for k in range(1, 16)))
SLOPE = 0.3
"""How much the accuracy rises with the strength of a method, about."""
SETS = 0.8
"""The standard deviation of a party's strength over training sets of one sample. It falls with the
square root of their size, and makes about half of the variance of test samples.
"""


def simulated_outcomes(
    samples: int, noise: float, rng: np.random.Generator, null: bool = False, repeats: int = 1
) -> tuple[dict[Step, FoldOutcome], dict[str, float]]:
    """Return the outcomes of each method on each fold, and the methods' true accuracies.

    A prediction is right if the sum of the method's strength at the party, of the sample's ease
    (the same for all methods), and of noise is positive. The seed moves the strength by `noise` for
    all parties and by twice that for each, anew for each training. The training set moves it, too;
    as training sets overlap, a part of 1 / FOLDS of its variance is the same for all folds.

    Args:
        samples: The samples of a party.
        noise: The standard deviation of the strength over seeds.
        rng: Draws all of it.
        null: Whether all methods are equally good.
        repeats: The seeds of each method on each fold.
    """
    ease = math.sqrt(SHARED) * rng.standard_normal((PARTIES, samples))
    fold = np.arange(samples) % FOLDS
    common = rng.normal(0.5, 0.5, PARTIES)
    kept, anew = math.sqrt(1 / FOLDS), math.sqrt(1 - 1 / FOLDS)
    by_set = SETS / math.sqrt(samples)
    outcomes: dict[Step, FoldOutcome] = {}
    truths: dict[str, float] = {}
    for method in METHODS:
        strength = common.copy()
        if not null:
            strength += rng.normal(0, 0.1) + rng.normal(0, 0.2, PARTIES)
        of_set = by_set * (
            kept * rng.standard_normal(PARTIES) + anew * rng.standard_normal((FOLDS, PARTIES))
        )
        luck = math.sqrt(1 - SHARED) * rng.standard_normal((PARTIES, samples))
        deviation = math.sqrt(1 + noise**2 * (1 + 4) + by_set**2)
        truths[method] = statistics.fmean(
            0.5 * (1 + math.erf(s / deviation / math.sqrt(2))) for s in strength
        )
        for repeat in range(repeats):
            of_seed = rng.normal(0, noise, (FOLDS, 1)) + rng.normal(0, 2 * noise, (FOLDS, PARTIES))
            right = strength[:, None] + (of_set + of_seed)[fold].T + ease + luck > 0
            for k in range(FOLDS):
                values = {
                    f"p{p}": tuple(map(float, right[p, fold == k].tolist())) for p in range(PARTIES)
                }
                for half in (True, False):
                    outcomes[Step(method, k, half, repeat)] = FoldOutcome(values)
    return outcomes, truths


def try_races(samples: int, noise: float, trials: int, repeats: int = 1) -> str:
    """Return a row of the table: how often the interval of the chosen method holds."""
    rng = np.random.default_rng(0)
    covered = clear = wrong = some_party = 0
    widths = []
    for trial, null in itertools.product(range(trials), (False, True)):
        del trial
        outcomes, truths = simulated_outcomes(samples, noise, rng, null, repeats)

        def advance(
            steps: Sequence[Step], outcomes: dict[Step, FoldOutcome] = outcomes
        ) -> list[FoldOutcome]:
            return [outcomes[step] for step in steps]

        rule = RaceRule(folds=FOLDS, repeats=repeats)
        race = run_race([Arm(m) for m in METHODS], rule, PriorOfRace(), advance)
        chosen = race.finalists[0]
        if null:
            parties = party_gains(race, chosen)
            some_party += any(p.gain.helped or p.gain.hurt for p in parties)
            continue
        gain = race.gain(chosen)
        assert gain is not None
        true = truths[chosen] - truths[SOLO]
        covered += gain.low <= true <= gain.high
        clear += gain.helped or gain.hurt
        wrong += (gain.helped and true <= 0) or (gain.hurt and true >= 0)
        widths.append(gain.high - gain.low)
    spread = SLOPE * math.sqrt(2) * noise * math.sqrt(1 + 4 / PARTIES)
    return (
        f"| {samples} | {100 * spread:.1f} | {repeats} | {covered / trials:.1%} |"
        f" {clear / trials:.0%} | {wrong / max(1, clear):.1%} |"
        f" {100 * statistics.fmean(widths):.1f} | {some_party / trials:.1%} |"
    )


def main() -> None:
    """Try races with several numbers of samples and amounts of training noise."""
    options = argparse.ArgumentParser()
    options.add_argument("--trials", type=int, default=200)
    trials = options.parse_args().trials
    print(
        "| samples of a party | spread over seeds, points | repeats | interval holds | clear | of"
        " these wrong | width, points | some party seems clear where none is |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for samples, noise in itertools.product((40, 160, 640), (0.0, 0.02, 0.04, 0.08)):
        print(try_races(samples, noise, trials), flush=True)
    for noise in (0.04, 0.08):
        print(try_races(160, noise, trials, repeats=4), flush=True)


if __name__ == "__main__":
    main()
