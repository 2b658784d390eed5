"""Does overlapping data augmentation (Fed-SPS, eq. 12) find how much two parties' data overlap,
where that is known?

    python benchmarks/overlap.py [--seeds 5] [--plot docs/reference/methods/overlap.svg]

Two parties, A and B, share out the embedded digits; a dose says which part of B's samples is of A's
kind:

    classes    A has the classes 0 to 4; so has the dose of B's samples, the others are of 5 to 9
    features   both have all classes; the dose of B's samples is plain as A's are, the others are inverted

They learn by Fed-SPS as it is set by default. Then all their samples are perturbed against their
owner's model, and eq. 12 is applied to the other's: `A<-B` is the share of B's samples that A would
learn from. For B's samples it is known which are of A's kind, so that the rise of A's loss, by
which eq. 12 selects, can be judged as a test for it, beside two simpler ones: A's loss on the
sample as it is, and how sure A is. An area of 0.5 is a coin, 1 a perfect test. Means and 95%
intervals (t) over seeds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.stats import rankdata
from scipy.stats import t as student
from torch import Tensor

import comity
from comity.algorithms.fed_sps import FedSps
from comity.charts.chart import Chart, Data
from comity.charts.encodings import quantitative
from comity.charts.render import complete, picture
from comity.components.overlap import losses
from comity.core import Key, Params, Party, Samples
from comity.data import load

DOSES = (0.0, 0.25, 0.5, 0.75, 1.0)
EACH = 300  # samples a party
COMMON = 5  # A's classes, in the study of classes
TESTS = ("rise", "low loss", "sure")


def parties(study: str, dose: float, seed: int) -> tuple[Samples, Samples, Tensor]:
    """A's samples, B's, and which of B's are of A's kind."""
    digits = load("digits")
    order = Key.root(seed).fold(study).permutation(len(digits.y))
    x, y = digits.x[order], digits.y[order].long()
    shared = round(dose * EACH)
    if study == "classes":
        common, others = (y < COMMON).nonzero().flatten(), (y >= COMMON).nonzero().flatten()
        mine, theirs = (
            common[:EACH],
            torch.cat([common[EACH : EACH + shared], others[: EACH - shared]]),
        )
        return Samples(x[mine], y[mine]), Samples(x[theirs], y[theirs]), y[theirs] < COMMON
    plain = torch.arange(EACH) < shared
    b = x[EACH : 2 * EACH]
    return (
        Samples(x[:EACH], y[:EACH]),
        Samples(torch.where(plain.view(-1, 1, 1, 1), b, 1 - b), y[EACH : 2 * EACH]),
        plain,
    )


def learnt(
    a: Samples, b: Samples, model: str, rounds: int, seed: int
) -> tuple[list[Party], list[Params]]:
    """Both parties and their models after Fed-SPS."""
    federation = comity.Federation.from_arrays(
        {name: ((s.x, s.y), (s.x[:10], s.y[:10])) for name, s in (("A", a), ("B", b))},
        validation=0.0,
        classes=10,
    )
    result = comity.run(
        "fed-sps",
        federation,
        model=model,
        rounds=rounds,
        batch=10,
        lr=0.1,
        engine="loop",
        seed=seed,
    )
    return list(result.job.parties), [result.model(name).theta for name in ("A", "B")]


def rises(owner: Party, of_owner: Params, judge: Params) -> tuple[Tensor, Tensor, Tensor]:
    """By how much T, on its owner's model, raises the judge's loss of each sample; that loss
    before; how sure the judge is.
    """
    fed, data = FedSps(), owner.data.train
    T = fed.attacker()
    bad, _ = T(
        owner.task, of_owner, data.x, data.y, None, torch.tensor(0.0), fed.range_of(owner.data)
    )
    before, after = (
        losses(owner.task, judge, data.x, data.y),
        losses(owner.task, judge, bad, data.y),
    )
    with torch.no_grad():
        sure = owner.task.logits(judge, data.x).softmax(1).max(1).values
    return after - before, before, sure


def area(score: Tensor, truth: Tensor) -> float:
    """The area under the ROC curve: how often a sample of A's kind scores higher than one that is
    not; ties count half.
    """
    ranks = torch.from_numpy(rankdata(score.double().numpy()))
    yes, no = int(truth.sum()), int((~truth).sum())
    return (float(ranks[truth].sum()) - yes * (yes + 1) / 2) / (yes * no)


def measured(study: str, dose: float, seed: int, model: str, rounds: int) -> dict[str, float]:
    """One pair of parties: both overlaps, the shares that eq. 12 selects of B's samples of either
    kind, and the tests' areas.
    """
    a, b, truth = parties(study, dose, seed)
    (at_a, at_b), (h_a, h_b) = learnt(a, b, model, rounds, seed)
    rise, before, sure = rises(at_b, h_b, h_a)
    found = {
        "A<-B": (rise > 0).float().mean().item(),
        "B<-A": (rises(at_a, h_a, h_b)[0] > 0).float().mean().item(),
    }
    if 0 < dose < 1:
        found |= {
            "of A's kind": (rise[truth] > 0).float().mean().item(),
            "others": (rise[~truth] > 0).float().mean().item(),
        }
        found |= {
            test: area(score, truth)
            for test, score in zip(TESTS, (rise, -before, sure), strict=True)
        }
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A mean and half its 95% interval."""
    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), float(student.ppf(0.975, len(values) - 1)) * spread


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--seeds", type=int, default=5)
    cli.add_argument("--rounds", type=int, default=10)
    cli.add_argument("--model", default="mlp2(width=64)")
    cli.add_argument("--plot", type=Path)
    args = cli.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    names = ("A<-B", "B<-A", "of A's kind", "others", *TESTS)
    for study in ("classes", "features"):
        print(f"\n{study:10}{'dose':>5}" + "".join(f"{name:>15}" for name in names))
        for dose in DOSES:
            runs = [
                measured(study, dose, seed, args.model, args.rounds) for seed in range(args.seeds)
            ]
            made = {name: interval([run[name] for run in runs]) for name in runs[0]}
            cells = [f"{made[n][0]:.3f} ± {made[n][1]:.3f}" if n in made else "" for n in names]
            print(f"{'':10}{dose:5.2f}" + "".join(f"{cell:>15}" for cell in cells), flush=True)
            rows += [
                {
                    "study": study,
                    "dose": dose,
                    "who": name,
                    "mean": mean,
                    "low": mean - half,
                    "high": mean + half,
                }
                for name, (mean, half) in made.items()
                if name in ("A<-B", "B<-A")
            ]
    print(f"\n{time.process_time():.0f} s of computing")
    if args.plot:
        args.plot.write_bytes(plot(rows))


def plot(rows: list[dict[str, Any]]) -> bytes:
    """Two panels as SVG: the overlap that eq. 12 finds against the dose; grey is where they would
    be equal.
    """
    who = {"A<-B": "of B's samples, for A", "B<-A": "of A's samples, for B"}
    titles = {"classes": "B's samples of A's classes", "features": "B's samples not inverted"}
    scale = {"domain": list(who.values()), "range": ["@c0", "@c1"]}
    colour = {"field": "who", "type": "nominal", "title": None, "scale": scale}
    unit = {"domain": [0, 1]}
    equal = {"values": [{"dose": 0, "mean": 0}, {"dose": 1, "mean": 1}]}

    def panel(study: str) -> dict[str, Any]:
        x = quantitative("dose", f"overlap there: {titles[study]}")
        y = quantitative("mean", "overlap found (eq. 12)", scale=unit)
        ends = {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour}
        return {
            "width": 300,
            "height": 220,
            "transform": [{"filter": f"datum.study == '{study}'"}],
            "layer": [
                {
                    "data": equal,
                    "mark": {"type": "line", "color": "@line", "strokeDash": [4, 4]},
                    "encoding": {"x": x, "y": y},
                },
                {
                    "mark": {"type": "line", "point": True},
                    "encoding": {"x": x, "y": y, "color": colour},
                },
                {"mark": {"type": "rule"}, "encoding": ends},
            ],
        }

    data = Data.of(
        "overlap",
        [row | {"who": who[row["who"]]} for row in rows],
        ("study", "who", "dose", "mean", "low", "high"),
    )
    spec = {"hconcat": [panel("classes"), panel("features")]}
    title = "The overlap that eq. 12 finds against the overlap there is"
    return picture(complete(Chart("overlap", title, title, data, spec)), "svg")


if __name__ == "__main__":
    main()
