"""Landscapes for `advise.py`: what every arm does on federations that a script draws.

    COMITY_DATA=... python benchmarks/advise_landscape.py dev /tmp/landscape
    COMITY_DATA=... python benchmarks/advise_landscape.py heldout /tmp/landscape

Each federation is a file of JSON, so an interrupted command goes on where it stopped. For every arm
the file has the out-of-fold outcomes of each fold after half of the rounds and after all of them, and
the accuracy of three models that learn from all of the parties' samples, on fresh test samples that no
fold contains. The arms are those that `comity advise` tries by default. Rules are then replayed on these files without training anything.

Rounds are computed as `comity run` does, without a folder; `tests/studies/test_advise_landscape.py`
checks that the figures are the same.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import count
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
from comity.runs.build import SimulatedRun, federation_of, prepare
from comity.runs.config import Experiment, experiment
from comity.runs.server_run import Quiet
from comity.studies.advise.feasible import feasible
from comity.studies.board import describe
from comity.studies.compare import experiment_of
from comity.studies.equal_steps import equal_steps
from comity.studies.plan import traffic

FOLDS = 4
TRUTHS = 3
"""Trainings on all samples that the accuracy on fresh samples is the mean of."""
ROUNDS = 20
PARTIES = 8
SEEDS = {"dev": 1000, "heldout": 3000}
COUNT = {"dev": 24, "heldout": 60}
FRESH = 400
"""The most fresh test samples of a party."""
DEV_DATA = ("digits", "fashion-mnist", "har", "adult", "svhn", "breast-cancer")
MORE_DATA = ("mnist", "usps", "mnist-m", "cifar10", "pacs", "heart")
"""Datasets that no federation for development has."""


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
    seed: int

    def parts(self) -> tuple[Federation, Federation]:
        """Return the parties' federation, and the same parties with fresh test samples."""
        whole = small(self.data).partition(
            self.partition,
            None if "natural" in self.partition or "domain" in self.partition else PARTIES,
            seed=self.seed,
            test="own(0.6)",
            validation=0,
        )
        rng = np.random.default_rng(self.seed)
        own: dict[str, Any] = {}
        fresh: dict[str, Any] = {}
        for name, party in list(whole.parties.items())[:PARTIES]:
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
    pictures = data not in ("har", "adult", "breast-cancer", "heart")
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
    samples = int(rng.choice([60, 120, 240]))
    model = str(rng.choice(["mlp2(width=100)", "mlp2(width=100)", "mlp2(width=32)", "linear"]))
    return Drawn(f"{kind}-{number:02}", data, partition, model, samples, seed)


def settings(drawn: Drawn) -> Experiment:
    """Return the settings of all runs on a federation."""
    return experiment(
        {
            "algorithm": "fedavg",
            "data": "arrays",
            "partition": "given",
            "model": drawn.model,
            "rounds": ROUNDS,
            "steps": 8,
            "batch": 10,
            "last_batch": "drop",
            "lr": 0.1,
            "engine": "stacked",
            "workers": 1,
            "validation": 0.1,
        }
    )


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


def measure(base: Experiment, arm: str, own: Federation, fresh: Federation) -> dict[str, Any]:
    """Run one arm on all folds, and on all samples with fresh test samples."""
    begin = time.process_time()
    first = base.but(test=f"folds({FOLDS})")
    rounds = equal_steps(
        prepare(experiment_of(first, arm, 0), federation_of(first.but(seed=0), own))
    ).rounds
    half = max(1, rounds // 2)
    whole = experiment_of(first, arm, 0, {arm: rounds})
    job = prepare(whole, federation_of(whole, own))
    start, by_round = traffic(job)
    finishes = any(part.traits.finishes for part in chain(job.algorithm))

    def run(
        settings: Experiment, federation: Federation, seed: int, rungs: tuple[int, ...]
    ) -> list[dict[str, Any]]:
        by_rung = []
        method = experiment_of(settings, arm, seed, {arm: max(rungs)})
        job = prepare(method, federation_of(method, federation))
        if finishes and len(rungs) > 1:  # finished after each of the rungs
            return [
                *run(settings, federation, seed, rungs[:1]),
                *run(settings, federation, seed, rungs[1:]),
            ]
        for rung in evaluations(job, rungs).values():
            by_rung.append(outcome(job, rung))
        return by_rung

    folds = [run(first, own, seed, (half, rounds)) for seed in range(FOLDS)]
    truth = [run(base.but(test="own(0.25)"), fresh, seed, (rounds,))[0] for seed in range(TRUTHS)]
    return {
        "rounds": rounds,
        "half": half,
        "halves": rounds > 1 and not finishes,
        "bytes": sum(t.up + t.down + t.peer for t in (start, *by_round)) * (arm != "solo"),
        "folds": folds,
        "truth": truth,
        "seconds": round(time.process_time() - begin, 2),
    }


def landscape(drawn: Drawn) -> dict[str, Any]:
    """Return what every arm does on one federation."""
    own, fresh = drawn.parts()
    base = settings(drawn)
    arms: dict[str, Any] = {}
    first = experiment_of(base.but(test=f"folds({FOLDS})"), "solo", 0)
    candidates, left_out = feasible(first, None, federation_of(first, own))
    refused = {method.method: method.why for method in left_out}
    for candidate in candidates:
        try:
            arms[candidate.method] = measure(base, candidate.method, own, fresh)
        except ComityError as why:
            refused[candidate.method] = str(why)
    description = describe(prepare(first, federation_of(first, own)))
    return {
        **vars(drawn),
        "classes": own.classes,
        "width": int(np.prod(own.shape)),
        "sizes": [sum(map(len, (p.train, p.validation, p.test))) for p in own.parties.values()],
        "description": asdict(description),
        "arms": arms,
        "refused": refused,
    }


def main() -> None:
    """Compute the federations that are missing in the folder."""
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    cli.add_argument("kind", choices=list(SEEDS))
    cli.add_argument("out", type=Path)
    cli.add_argument("--count", type=int)
    args = cli.parse_args()
    warnings.simplefilter("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    missing = args.count or COUNT[args.kind]
    for number in count():
        drawn = draw(args.kind, number)
        file = args.out / f"{drawn.name}.json"
        if file.exists():
            missing -= "arms" in json.loads(file.read_text(encoding="utf-8"))
            if missing <= 0:
                return
            continue
        begin = time.process_time()
        try:
            content: dict[str, Any] = landscape(drawn)
        except UsageError as why:  # the partition does not fit the data: no federation
            content = {**vars(drawn), "refused_federation": str(why)}
        missing -= "arms" in content
        partial = file.with_suffix(".part")
        partial.write_text(json.dumps(content), encoding="utf-8")
        partial.replace(file)
        print(
            f"{drawn.name}: {drawn.data}, {drawn.partition}, {drawn.model}, {drawn.samples} samples,"
            f" {time.process_time() - begin:.0f} s {content.get('refused_federation', '')}",
            flush=True,
        )
        if missing <= 0:
            return


if __name__ == "__main__":
    main()
