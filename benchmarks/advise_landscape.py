"""Landscapes for `advise.py`: what methods do on federations that a script draws.

    COMITY_DATA=... python benchmarks/advise_landscape.py dev /tmp/landscape
    COMITY_DATA=... python benchmarks/advise_landscape.py heldout /tmp/landscape

Each federation is a file of JSON, so an interrupted command goes on where it stopped. For every arm
the file has the out-of-fold outcomes of folds, and the accuracy of two models that learn from all of
the parties' samples, on fresh test samples that no fold contains.

- dev: a few methods on all folds, with few and many samples and parties. The training noise that
  `comity advise` assumes was measured on these.
- heldout: all methods that `comity advise` tries by default on the fold that chooses, and those
  that its rule tests on the other folds. Rules are replayed on these files without training.

Rounds are computed as `comity run` does, without a folder; `tests/studies/test_advise_landscape.py`
checks that the figures are the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from comity.base.call import EvaluationRequest, Message
from comity.core.wrapper import chain
from comity.data import Dataset, Federation, load
from comity.errors import ComityError, UsageError
from comity.metrics.evaluation import Evaluation
from comity.names import SOLO
from comity.runs.build import SimulatedRun, federation_of, prepare
from comity.runs.config import Experiment, experiment
from comity.runs.server_run import Quiet
from comity.studies.advise.evidence import FoldOutcome
from comity.studies.advise.feasible import feasible
from comity.studies.advise.prior import FederationTraits, PriorOfRace
from comity.studies.advise.race import Arm, RaceRule, Step, run_race
from comity.studies.board import Description, describe
from comity.studies.compare import experiment_of
from comity.studies.equal_steps import equal_steps
from comity.studies.plan import traffic

FOLDS = 4
TRUTHS = 2
"""Trainings on all samples that the accuracy on fresh samples is the mean of."""
ROUNDS, STEPS = 12, 8
SEEDS = {"dev": 1000, "heldout": 4000}
COUNT = {"dev": 30, "heldout": 100}
PARTIES = {"dev": (3, 8, 20), "heldout": (4, 8, 8, 16)}
SAMPLES = {"dev": (120, 600, 1500), "heldout": (60, 120, 240, 600)}
DEV_ARMS = ("solo", "fedavg", "ditto(lam=1)", "fedper", "fedrod")
FRESH = 400
"""The most fresh test samples of a party."""
DEV_DATA = ("digits", "fashion-mnist", "har", "adult", "svhn", "breast-cancer")
MORE_DATA = ("mnist", "usps", "mnist-m", "cifar10", "pacs", "heart", "agnews")
"""Datasets that no federation for development has."""
VOCABULARY = 2001
"""Texts are their first 40 words, of which each is one of so many numbers."""


@lru_cache(maxsize=4)
def small(name: str) -> Dataset:
    """Return a dataset at hand, with pictures and signals averaged to a few hundred values."""
    if name == "breast-cancer":
        from sklearn.datasets import load_breast_cancer

        table = load_breast_cancer()
        x = (table.data - table.data.mean(0)) / table.data.std(0)
        return Dataset(
            name,
            torch.tensor(x, dtype=torch.float32),
            torch.tensor(table.target),
            len(table.target_names),
            mean=(0.0,),
            std=(1.0,),
        )
    full = load(name)
    keep = torch.arange(len(full.y))
    if len(keep) > 12_000 and not full.groups:
        keep = torch.as_tensor(np.random.default_rng(0).permutation(len(keep))[:12_000]).sort()[0]
    x = full.x[keep]
    if name == "agnews":
        x = torch.where(x[:, :40] > 0, 1 + (x[:, :40] - 1) % (VOCABULARY - 1), 0)
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    if x.dim() == 4 and x.shape[-1] > 16:
        factor = {28: 2, 32: 4, 64: 8}[int(x.shape[-1])]
        x = F.avg_pool2d(x, factor)
    if x.dim() == 3:
        x = F.avg_pool1d(x, 8)
    groups = full.groups if len(keep) == len(full.y) else {}
    return Dataset(
        name, x, full.y[keep], full.classes, mean=full.mean, std=full.std, groups=groups,
        missing=full.missing, scale=full.scale, scaled=full.scaled,
    )  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A federation that the script drew, and the settings of its runs."""

    name: str
    data: str
    partition: str
    model: str
    samples: int
    parties: int
    seed: int

    def parts(self) -> tuple[Federation, Federation]:
        """Return the parties' federation, and the same parties with fresh test samples."""
        whole = small(self.data).partition(
            self.partition,
            None if "natural" in self.partition or "domain" in self.partition else self.parties,
            seed=self.seed,
            test="own(0.6)",
            validation=0,
        )
        rng = np.random.default_rng(self.seed)
        own: dict[str, Any] = {}
        fresh: dict[str, Any] = {}
        for name, party in list(whole.parties.items())[: self.parties]:
            size = max(24, int(self.samples * rng.uniform(0.5, 1.5)))
            order = torch.as_tensor(rng.permutation(len(party.train))[:size])
            tests = torch.as_tensor(rng.permutation(len(party.test))[:FRESH])
            mine = (party.train.x[order], party.train.y[order])
            own[name] = mine
            fresh[name] = (mine, (party.test.x[tests], party.test.y[tests]))
        classes = whole.classes
        return (
            Federation.from_arrays(own, test=f"folds({FOLDS})", seed=0, classes=classes),
            Federation.from_arrays(fresh, seed=0, classes=classes),
        )


def draw(kind: str, number: int) -> Drawn:
    """Return one of the federations; the same for every call."""
    seed = SEEDS[kind] + number
    rng = np.random.default_rng(seed)
    data = str(rng.choice(DEV_DATA if kind == "dev" else (*DEV_DATA, *MORE_DATA)))
    pictures = data not in ("har", "adult", "breast-cancer", "heart", "agnews")
    kinds = ["label", "label", "pathological", "quantity", "iid"] + ["shift"] * 2 * pictures
    if data in ("har", "pacs", "heart"):
        kinds = ["natural", "natural", "label"]
    skew = str(rng.choice(kinds))
    alpha = float(rng.choice([0.1, 0.3, 1.0]))
    partition = {
        "label": f"dirichlet(alpha={alpha},min=24)",
        "pathological": "pathological(classes=2)",
        "quantity": "lognormal(sigma=1.0,min=24)",
        "iid": "iid",
        "shift": f"dirichlet(alpha={10 * alpha},min=24)|shift",
        "natural": "domain(parts=2)" if data == "pacs" else "natural(min=40)",
    }[skew]
    if skew == "pathological" and data in ("adult", "breast-cancer", "heart"):
        partition = "dirichlet(alpha=0.5,min=24)"  # two classes are all that there are
    samples = int(rng.choice(SAMPLES[kind]))
    parties = int(rng.choice(PARTIES[kind]))
    model = str(rng.choice(["mlp2(width=100)", "mlp2(width=100)", "mlp2(width=32)", "linear"]))
    if data == "agnews":
        model = f"fasttext(vocabulary={VOCABULARY})"
    return Drawn(f"{kind}-{number:03}", data, partition, model, samples, parties, seed)


def settings(drawn: Drawn) -> Experiment:
    """Return the settings of all runs on a federation."""
    return experiment(
        {
            "algorithm": "fedavg",
            "data": "arrays",
            "partition": "given",
            "model": drawn.model,
            "rounds": ROUNDS,
            "steps": STEPS,
            "batch": 10,
            "last_batch": "drop",
            "lr": 0.1,
            "engine": "stacked",
            "workers": 1,
            "validation": 0.1,
        }
    )


@dataclass(frozen=True)
class Landscape:
    """What every method does on one federation."""

    content: dict[str, Any]

    @property
    def methods(self) -> list[str]:
        """The methods that can run here, training alone first."""
        return list(self.content["arms"])

    @property
    def traits(self) -> FederationTraits:
        """The traits of the federation."""
        return FederationTraits.of(Description(**self.content["description"]))

    def arms(self) -> list[Arm]:
        """Return the methods as they take part in a race."""
        return [
            Arm(method, arm["bytes"], halves=arm["halves"])
            for method, arm in self.content["arms"].items()
        ]

    def outcome(self, step: Step) -> FoldOutcome:
        """Return the outcome of a step."""
        plain = self.content["arms"][step.method]["folds"][step.fold][0 if step.half else -1]
        values = {p: tuple(map(float, bits)) for p, bits in plain["right"].items() if bits}
        return FoldOutcome(values, statistics.fmean(plain["loss"].values()))

    def truth(self, method: str) -> float:
        """Return the accuracy on fresh samples after training on all samples, mean over parties."""
        runs = self.content["arms"][method]["truth"]
        return statistics.fmean(
            statistics.fmean(bits.count("1") / len(bits) for bits in run["right"].values())
            for run in runs
        )

    def validation(self, method: str) -> float:
        """Return the accuracy on all validation samples of one training on all samples."""
        counts = list(self.content["arms"][method]["truth"][0]["validation"].values())
        return float(sum(right for right, _ in counts) / max(1, sum(n for _, n in counts)))

    def party_gain(self, method: str, party: str) -> float:
        """Return a party's gain over training alone on fresh samples."""

        def accuracy(method: str) -> float:
            runs: list[str] = [run["right"][party] for run in self.content["arms"][method]["truth"]]
            return statistics.fmean(bits.count("1") / len(bits) for bits in runs)

        return accuracy(method) - accuracy(SOLO)


def evaluations(job: SimulatedRun, rungs: tuple[int, ...]) -> dict[int, dict[int, Evaluation]]:
    """Compute the run, and return the parties' evaluations after some of its rounds."""
    engine = job.engine()
    server = job.server(engine, Quiet())
    results: dict[int, dict[int, Evaluation]] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        state = job.algorithm.init_server(job.root.fold("init"), server.info)
        for t in range(max(rungs) + 1):
            server.begin(t)
            server.begin_exchanges(1)
            run = job.algorithm.round
            state = run(state, server, t) if t else job.algorithm.start(state, server)
            engine.commit(server.commit())
            if t == job.experiment.rounds and any(
                part.traits.finishes for part in chain(job.algorithm)
            ):
                server.begin_exchanges(1)
                state = job.algorithm.finish(state, server)
                engine.commit(server.commit())
            if t in rungs:
                messages = {
                    i: Message(job.algorithm.message_for(state, i), server.versions.get(i))
                    for i in job.info.parties
                }
                results[t] = dict(engine.evaluate(messages, EvaluationRequest(t, True)))
        return results
    finally:
        engine.close()
        torch.set_num_threads(threads)


def outcome(job: SimulatedRun, of_party: dict[int, Evaluation]) -> dict[str, Any]:
    """Return the outcomes of one rung: right or wrong by party and sample, and mean losses."""
    right, loss, validation = {}, {}, {}
    for i, result in of_party.items():
        name = job.info.names[i]
        assert result.answers is not None
        right[name] = "".join("1" if bit else "0" for bit in result.answers.right.tolist())
        loss[name] = round(result.test.loss, 5)
        validation[name] = [result.validation.correct, result.validation.count]
    return {"right": right, "loss": loss, "validation": validation}


@dataclass(frozen=True)
class Measured:
    """Runs one arm on a federation."""

    base: Experiment
    arm: str
    own: Federation
    fresh: Federation

    @cached_property
    def first(self) -> Experiment:
        """The settings of the runs on folds."""
        return self.base.but(test=f"folds({FOLDS})")

    @cached_property
    def rounds(self) -> int:
        """The rounds by which the arm takes as many steps as the others."""
        job = prepare(
            experiment_of(self.first, self.arm, 0), federation_of(self.first.but(seed=0), self.own)
        )
        return equal_steps(job).rounds

    @cached_property
    def job(self) -> SimulatedRun:
        """The run on the first fold."""
        whole = experiment_of(self.first, self.arm, 0, {self.arm: self.rounds})
        return prepare(whole, federation_of(whole, self.own))

    @property
    def finishes(self) -> bool:
        """Whether the arm takes steps after the last round."""
        return any(part.traits.finishes for part in chain(self.job.algorithm))

    @property
    def half(self) -> int:
        """Half of its rounds."""
        return max(1, self.rounds // 2)

    def run(
        self, settings: Experiment, federation: Federation, seed: int, rungs: tuple[int, ...]
    ) -> list[dict[str, Any]]:
        """Return the outcomes after some of the rounds."""
        if self.finishes and len(rungs) > 1:  # finished after each of the rungs
            return [o for rung in rungs for o in self.run(settings, federation, seed, (rung,))]
        method = experiment_of(settings, self.arm, seed, {self.arm: max(rungs)})
        job = prepare(method, federation_of(method, federation))
        return [outcome(job, rung) for rung in evaluations(job, rungs).values()]

    def fold(self, seed: int, half: bool = True) -> list[dict[str, Any]]:
        """Return the outcomes of a fold, also after half of the rounds if the arm is judged then."""
        rungs = (self.half, self.rounds) if half and not self.finishes else (self.rounds,)
        return self.run(self.first, self.own, seed, rungs)

    def content(self, folds: int) -> dict[str, Any]:
        """Run the arm on some folds, and on all samples with fresh test samples."""
        begin = time.process_time()
        start, by_round = traffic(self.job)
        outcomes = [self.fold(seed) for seed in range(folds)]
        seconds = (time.process_time() - begin) / folds
        whole = self.base.but(test="own(0.25)")
        return {
            "rounds": self.rounds,
            "half": self.half,
            "halves": self.rounds > 1 and not self.finishes,
            "bytes": sum(t.up + t.down + t.peer for t in (start, *by_round)) * (self.arm != "solo"),
            "folds": outcomes,
            "truth": [self.run(whole, self.fresh, s, (self.rounds,))[0] for s in range(TRUTHS)],
            "seconds": round(seconds, 3),
        }


def landscape(drawn: Drawn, kind: str) -> dict[str, Any]:
    """Return what the arms do on one federation."""
    own, fresh = drawn.parts()
    base = settings(drawn)
    arms: dict[str, Any] = {}
    first = experiment_of(base.but(test=f"folds({FOLDS})"), "solo", 0)
    candidates, left_out = feasible(first, None, federation_of(first, own))
    refused = {method.method: method.why for method in left_out}
    measured = {c.method: Measured(base, c.method, own, fresh) for c in candidates}
    for method, runs in measured.items():
        if kind == "dev" and method not in DEV_ARMS:
            continue
        try:
            arms[method] = runs.content(FOLDS if kind == "dev" else 1)
        except ComityError as why:
            refused[method] = str(why)
    description = describe(prepare(first, federation_of(first, own)))
    content = {
        **vars(drawn),
        "classes": own.classes,
        "width": int(np.prod(own.shape)),
        "sizes": [sum(map(len, (p.train, p.validation, p.test))) for p in own.parties.values()],
        "description": asdict(description),
        "arms": arms,
        "refused": refused,
    }
    if kind != "dev":
        add_tests(content, measured)
    return content


def add_tests(content: dict[str, Any], measured: Mapping[str, Measured]) -> None:
    """Compute the folds on which the rule of `comity advise` tests methods."""
    result = Landscape(content)

    def advance(steps: Sequence[Step]) -> list[FoldOutcome]:
        for step in steps:
            folds = content["arms"][step.method]["folds"]
            while len(folds) <= step.fold:
                folds.append(measured[step.method].fold(len(folds), half=False))
        return [result.outcome(step) for step in steps]

    run_race(result.arms(), RaceRule(folds=FOLDS), PriorOfRace(), advance)


def main() -> None:
    """Compute the federations that are missing in the folder."""
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    cli.add_argument("kind", choices=list(SEEDS))
    cli.add_argument("out", type=Path)
    cli.add_argument("--count", type=int, help="how many federations to draw")
    args = cli.parse_args()
    warnings.simplefilter("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    every = [draw(args.kind, number) for number in range(args.count or COUNT[args.kind])]
    every.sort(key=lambda drawn: drawn.data == "agnews")  # these take longest
    for drawn in every:
        file = args.out / f"{drawn.name}.json"
        if file.exists():
            continue
        begin = time.process_time()
        try:
            content: dict[str, Any] = landscape(drawn, args.kind)
        except UsageError as why:  # the partition does not fit the data: no federation
            content = {**vars(drawn), "refused_federation": str(why)}
        partial = file.with_suffix(".part")
        partial.write_text(json.dumps(content), encoding="utf-8")
        partial.replace(file)
        print(
            f"{drawn.name}: {drawn.data}, {drawn.partition}, {drawn.model}, {drawn.samples} samples,"
            f" {drawn.parties} parties,"
            f" {time.process_time() - begin:.0f} s {content.get('refused_federation', '')}",
            flush=True,
        )


if __name__ == "__main__":
    main()
