"""A finished run's representations, measured: `comity measure RUN_DIR`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comity import models
from comity.base.key import Key
from comity.core.party import Party
from comity.data import Federation
from comity.errors import UsageError, unknown
from comity.measure import mdl as description
from comity.measure.drift import Drift, between_parties, over_training
from comity.measure.frechet import to_union
from comity.measure.mdl import CHEAP, Settings, curve
from comity.measure.representations import (
    Offered,
    Representation,
    chosen_layers,
    extract,
    offered,
    own_model,
    taken,
)
from comity.measure.separability import LEAST, proxy_a, separability
from comity.runs.run import reopen
from comity.runs.server_run import ServerRun

PAIRED = 20  # parties up to which all pairs are told apart
OF_OTHERS = (
    "Not measured: the Fréchet distance to all parties together, how well parties can be told"
    " apart, and the drift between parties. They compare a party's representations with those of"
    " the others, and here are one party's alone."
)


def study(
    folder: str | Path,
    layers: Sequence[str] | None = None,
    samples: int = 2000,
    seed: int = 0,
    mdl: Settings | None = CHEAP,
    *,
    party: str | None = None,
    split: str = "test",
    width: int | None = 512,
    federation: Federation | None = None,
    model: models.Pair | None = None,
    trust: bool = False,
    told: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Every layer's description length, Fréchet distance to the union, separability and class
    drift, as plain numbers.

    Each before and after local training where there is a before, pooled over parties; `moved` is
    how far local training moves class centroids. For DBE, `fc1` is z^g and `fc1+offset` is z.
    Layers wider than `width` are projected at random onto as many values (None: never). Estimates
    depend on how many samples there are, so compare runs on the same ones: equal `samples`, `seed`
    and split. `told` hears what is being measured; `mdl=None` leaves out the slowest part. `trust`
    lets the files run that a stranger's run names. With `party` all of it is of that party alone,
    as it would be at a site of its own.
    """
    job = reopen(Path(folder), federation, model, trust=trust)
    if party is not None and party not in job.info.names:
        raise unknown("party called", party, job.info.names)
    ids = list(job.info.parties) if party is None else [job.info.names.index(party)]
    models_of = offered(job, Path(folder), ids)
    return studied(
        job,
        [job.parties[i] for i in ids],
        models_of,
        layers,
        samples,
        seed,
        mdl,
        party,
        split,
        width,
        told,
    )


def studied(
    run: ServerRun,
    parties: Sequence[Party],
    offers: Iterable[Offered],
    layers: Sequence[str] | None,
    samples: int,
    seed: int,
    mdl: Settings | None,
    alone: str | None,
    split: str = "test",
    width: int | None = 512,
    told: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """What `study` finds in the models that these parties have; `alone` names the one party that is
    looked at, if it is one.
    """
    run.info.needs_classes(
        "measure", "describes representations by the classes that can be told from them"
    )
    chosen = chosen_layers([party.task for party in parties], layers)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a run: equal bits
    try:
        told("representations")
        own = own_model(run.algorithm)
        found = taken(
            parties, offers, own, chosen, split=split, samples=samples, seed=seed, width=width
        )
        count = sum(len(r.labels) for r in found if (r.layer, r.when) == (found[0].layer, "after"))
        if not count:
            raise UsageError(
                f"There are no {split} samples to look at{f' at {alone}' if alone else ''}."
            )
        lacking = _lacking(count) if alone and mdl else None
        measured = _by_layer(
            found,
            Key.root(seed).fold("measure"),
            None if lacking else mdl,
            run.info.task.classes,
            told,
        )
    finally:
        torch.set_num_threads(threads)
    return {
        "algorithm": run.experiment.algorithm,
        "dataset": run.experiment.data,
        "model": run.experiment.model,
        "seed": run.experiment.seed,
        **(
            {"party": alone, "not_measured": [OF_OTHERS, *([lacking] if lacking else [])]}
            if alone
            else {}
        ),
        "split": split,
        "samples": count,
        "drawn_with_seed": seed,
        "mdl": None if mdl is None else asdict(mdl) | {"hidden": list(mdl.hidden)},
        "layers": measured,
    }


def _lacking(samples: int) -> str | None:
    """Why one party has no description length, if its samples are too few; all parties' together
    are refused instead.
    """
    least = description.LEAST
    return (
        f"Not measured: description length, which needs {least} samples, and here are {samples}."
        if samples < least
        else None
    )


def _by_layer(
    found: Sequence[Representation],
    key: Key,
    mdl: Settings | None,
    classes: int,
    told: Callable[[str], None],
) -> dict[str, Any]:
    """The measures of each layer, before and after local training; `found` is in the order of layer
    and time.
    """
    measured: dict[str, Any] = {}
    for layer, group in groupby(found, lambda r: r.layer):
        times = {when: list(some) for when, some in groupby(group, lambda r: r.when)}
        pooled = {when: _Pooled(some) for when, some in times.items()}
        after = pooled["after"]
        entry: dict[str, Any] = {
            "width": times["after"][0].width,
            "measured_width": after.z.shape[1],
        }
        for when, pool in pooled.items():
            told(f"{layer} {when} local training")
            entry[when] = _measures(pool, key, mdl, classes)
        if "before" in pooled:
            entry["moved"] = _plain(
                over_training(pooled["before"].z, after.z, after.labels, after.owners)
            )
        measured[layer] = entry
    return measured


def description_length(
    folder: str | Path,
    layer: str,
    samples: int = 2000,
    seed: int = 0,
    settings: Settings = CHEAP,
    *,
    trust: bool = False,
) -> float:
    """The description length in bits of one layer after local training, and nothing else: what
    DBE's tables have.
    """
    job = reopen(Path(folder), trust=trust)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        layers = chosen_layers(job.info.tasks, [layer])
        found = extract(
            job, Path(folder), layers, split="test", samples=samples, seed=seed, width=512
        )
        pool = _Pooled([r for r in found if r.when == "after"])
        return curve(
            pool.z,
            pool.labels,
            Key.root(seed).fold("measure", "mdl"),
            settings,
            job.info.task.classes,
        ).bits
    finally:
        torch.set_num_threads(threads)


class _Pooled:
    """All parties' representations at one layer and time."""

    def __init__(self, parts: Sequence[Representation]) -> None:
        if len({r.features.shape[1] for r in parts}) > 1:
            raise UsageError(
                f"Parties' representations after {parts[0].layer} differ in width: there is nothing"
                " to compare."
            )
        self.sets: list[Tensor] = [r.features for r in parts]
        self.z = torch.cat(self.sets)
        self.labels = torch.cat([r.labels for r in parts])
        self.owners = torch.arange(len(parts)).repeat_interleave(
            torch.tensor([len(s) for s in self.sets])
        )


def _measures(pool: _Pooled, key: Key, mdl: Settings | None, classes: int) -> dict[str, Any]:
    told_apart = [s for s in pool.sets if len(s) >= LEAST]
    probe = separability(told_apart, key.fold("separability")) if len(told_apart) > 1 else None
    pairs = proxy_a(told_apart, key.fold("pairs")) if 1 < len(told_apart) <= PAIRED else None
    union = to_union(pool.sets) if len(pool.sets) > 1 else None
    return {
        "mdl": (
            None
            if mdl is None
            else curve(pool.z, pool.labels, key.fold("mdl"), mdl, classes).plain()
        ),
        "frechet": None if union is None else {"mean": union.mean, "std": union.std},
        "separability": None if probe is None else asdict(probe) | {"log_n": probe.log_n},
        "proxy_a": None if pairs is None else float(pairs.sum()) / (len(pairs) * (len(pairs) - 1)),
        "drift": _plain(between_parties(pool.z, pool.labels, pool.owners)),
    }


def _plain(drift: Drift | None) -> dict[str, float | None] | None:
    return None if drift is None else asdict(drift) | {"relative": drift.relative}
