"""How often the interval of a gain holds the true gain: the bootstrap of `measure/gain.py`, the
interval over seeds of `studies/party_verdicts.py`, and that of cross-validation.

    python benchmarks/coverage.py [--trials 200]
    python benchmarks/coverage.py --folds 5 [--repeats 3] [--samples 40,150]

Two models score samples of two classes; the scores of both are normal and correlated, and the
second is the better one. The true gain is that of a million samples. Prints how many of a hundred
nominal 95 % intervals hold it, for several sizes of test sets.

Over seeds: a gain that test samples move by one amount, the same for all seeds, and training by
another, anew for each.

With folds: four parties draw their samples again in each trial. A model with random hidden units is
trained on a party's own samples and on those of all parties, fold by fold, with other units in each
run. The true gain is the mean over all trials, on further samples. Prints how many intervals hold
it: those of the parties, and that of their mean.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from comity.measure.cross_validation import FoldRun, cross_validated_gains
from comity.measure.gain import Gain, bootstrap_gain
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import METRICS, Metric
from comity.studies.party_verdicts import average_gain, combine_seeds

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


PARTIES, COLUMNS, UNITS = 4, 8, 16
TEST = 1000  # further samples of a party in each trial, for the true figures of its models


@dataclass
class Population:
    """Parties with different distributions of their columns, and different weights of these."""

    amounts: bool
    """Whether labels are numbers, not classes."""
    means: Tensor
    weights: Tensor

    @staticmethod
    def draw(amounts: bool, skew: float, draw: torch.Generator) -> Population:
        """Draw a population. With more `skew`, parties differ more in their weights."""
        common = torch.randn(COLUMNS, generator=draw)
        own = skew * torch.randn(PARTIES, COLUMNS, generator=draw)
        return Population(
            amounts, 0.5 * torch.randn(PARTIES, COLUMNS, generator=draw), common + own
        )

    def samples(self, party: int, number: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw samples of a party."""
        x = self.means[party] + torch.randn(number, COLUMNS, generator=draw)
        signal = (x - self.means[party]) @ self.weights[party]
        y = signal + 2 * torch.randn(number, generator=draw)
        return x, y if self.amounts else (y > 0).int()


def hidden(x: Tensor, units: Tensor) -> Tensor:
    """The features that a model computes from its random hidden units."""
    return torch.cat([torch.tanh(x @ units / math.sqrt(COLUMNS)), torch.ones(len(x), 1)], 1)


def train(x: Tensor, y: Tensor, units: Tensor) -> Tensor:
    """Ridge regression on the hidden features; classes are -1 and 1."""
    z, target = hidden(x, units), y.float() if y.is_floating_point() else 2.0 * y - 1
    return torch.linalg.solve(z.T @ z + torch.eye(UNITS + 1), z.T @ target)


def answer(x: Tensor, y: Tensor, units: Tensor, model: Tensor) -> Answers:
    """A model's predictions."""
    score = hidden(x, units) @ model
    if y.is_floating_point():
        return Answers(y, score, None)
    return Answers(y, (score > 0).int(), score)


def deal(y: Tensor, folds: int, draw: torch.Generator) -> list[Tensor]:
    """The positions of each fold, stratified by class."""
    order = torch.randperm(len(y), generator=draw)
    if not y.is_floating_point():
        order = order[y[order].argsort(stable=True)]
    return [order[k::folds] for k in range(folds)]


@dataclass
class Trial:
    """The intervals of one trial, and the true gains of its models."""

    gains: dict[str, list[Gain]]
    true: dict[str, dict[str, float]]


def cross_validate(
    population: Population, metrics: list[Metric], number: int, folds: int, repeats: int,
    draw: torch.Generator, same: bool,
) -> Trial:  # fmt: skip
    """Draw samples, train both models in all folds, and estimate the gains. If both are the `same`,
    they are trained on own samples, with other units.
    """
    data = [population.samples(party, number, draw) for party in range(PARTIES)]
    tests = [population.samples(party, TEST, draw) for party in range(PARTIES)]
    now, before = [], []
    true: dict[str, dict[str, list[float]]] = {
        metric.name: {f"p{party}": [] for party in range(PARTIES)} for metric in metrics
    }
    for repeat in range(repeats):
        dealt = [deal(y, folds, draw) for _, y in data]
        for k in range(folds):
            units = torch.randn(COLUMNS, UNITS, generator=draw)
            others = torch.randn(COLUMNS, UNITS, generator=draw) if same else units
            parts = []
            for (_x, y), positions in zip(data, dealt, strict=True):
                training = torch.ones(len(y), dtype=torch.bool)
                training[positions[k]] = False
                parts.append(training)
            together = train(
                torch.cat([x[part] for (x, _), part in zip(data, parts, strict=True)]),
                torch.cat([y[part] for (_, y), part in zip(data, parts, strict=True)]),
                units,
            )
            of_run: list[dict[str, Answers]] = [{}, {}]
            for party, ((x, y), part) in enumerate(zip(data, parts, strict=True)):
                own = train(x[part], y[part], others)
                joint = train(x[part], y[part], units) if same else together
                at, name = dealt[party][k], f"p{party}"
                of_run[0][name] = answer(x[at], y[at], units, joint)
                of_run[1][name] = answer(x[at], y[at], others, own)
                answers = [
                    answer(*tests[party], units, joint), answer(*tests[party], others, own)
                ]  # fmt: skip
                for metric in metrics:
                    figures = [figure(metric, one) for one in answers]
                    true[metric.name][name].append(figures[0] - figures[1])
            places = {f"p{party}": dealt[party][k].tolist() for party in range(PARTIES)}
            now.append(FoldRun(repeat * folds + k, of_run[0], places))
            before.append(FoldRun(repeat * folds + k, of_run[1], places))
    return Trial(
        {metric.name: cross_validated_gains(now, before, folds, metric) for metric in metrics},
        {
            name: {party: statistics.fmean(values) for party, values in by_party.items()}
            for name, by_party in true.items()
        },
    )


def figure(metric: Metric, answers: Answers) -> float:
    """A metric of predictions."""
    y = answers.truth if answers.amounts else answers.truth.long()
    return metric.of(answers.scores(2).double(), y) or 0.0


def holding(intervals: Iterable[tuple[Gain | None, float]], methods: int) -> str:
    """How many intervals hold their true gain, and half of their mean width."""
    held, halves = [], []
    for gain, true in intervals:
        if gain is not None:
            estimate = combine_seeds([gain], methods, bounded=False)
            held.append(estimate.low <= true <= estimate.high)
            halves.append((estimate.high - estimate.low) / 2)
    return f"{statistics.fmean(held):6.1%} (±{100 * statistics.fmean(halves):.1f} points)"


def over_folds(trials: int, folds: int, repeats: int, sizes: list[int]) -> None:
    """Try the intervals of cross-validation, for parties and for their mean."""
    print(f"{folds} folds, {repeats} repeats, {trials} trials of {PARTIES} parties")
    for skew, same, title in ((0.3, False, "all parties' data"), (0.3, True, "another start")):
        for number in sizes:
            for amounts in (False, True):
                names = ("r2",) if amounts else ("accuracy", "auc")
                draw = torch.Generator().manual_seed(number)
                population = Population.draw(amounts, skew, draw)
                results = [
                    cross_validate(
                        population, [METRICS[name] for name in names], number, folds, repeats,
                        draw, same,
                    )
                    for _ in range(trials)
                ]  # fmt: skip
                for name in names:
                    report(name, results, f"{title:17} {number:4} samples")


def report(name: str, results: list[Trial], title: str) -> None:
    """Print the coverage of one metric."""
    parties = results[0].true[name]
    true = {
        party: statistics.fmean(result.true[name][party] for result in results) for party in parties
    }
    of_parties = [
        (gain, true[gain.party]) for result in results for gain in result.gains[name]
    ]  # fmt: skip
    means = []
    for result in results:
        estimate = average_gain({0: result.gains[name]}, 1, METRICS[name])
        if estimate:
            means.append((estimate, statistics.fmean(true[g.party] for g in result.gains[name])))
    held = statistics.fmean(e.low <= value <= e.high for e, value in means)
    half = statistics.fmean((e.high - e.low) / 2 for e, _ in means)
    print(
        f"{name:9} {title}, true gain {100 * statistics.fmean(true.values()):+5.1f}: parties"
        f" {holding(of_parties, 1)}, mean {held:6.1%} (±{100 * half:.1f} points)",
        flush=True,
    )


def main() -> None:
    """Try every metric with test sets of several sizes."""
    options = argparse.ArgumentParser()
    options.add_argument("--trials", type=int, default=200)
    options.add_argument("--folds", type=int, help="try cross-validation with that many folds")
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--samples", default="40,150", help="samples of a party")
    args = options.parse_args()
    if args.folds:
        sizes = [int(number) for number in args.samples.split(",")]
        over_folds(args.trials, args.folds, args.repeats, sizes)
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
