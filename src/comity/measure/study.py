"""A finished run's representations, measured: `comity measure RUN_DIR`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comity import models
from comity.core.key import Key
from comity.data import Federation
from comity.errors import Refusal
from comity.experiments.run import reopen
from comity.measure.drift import Drift, between_parties, over_training
from comity.measure.frechet import to_union
from comity.measure.mdl import CHEAP, Settings, curve
from comity.measure.representations import Representation, chosen_layers, extract
from comity.measure.separability import LEAST, proxy_a, separability

PAIRED = 20  # parties up to which all pairs are told apart


def study(
    folder: str | Path,
    layers: Sequence[str] | None = None,
    samples: int = 2000,
    seed: int = 0,
    mdl: Settings | None = CHEAP,
    *,
    split: str = "test",
    width: int | None = 512,
    federation: Federation | None = None,
    model: models.Pair | None = None,
    trust: bool = False,
    told: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Every layer's description length, Fréchet distance to the union, separability and class drift, as plain numbers.

    Each before and after local training where there is a before, pooled over parties; `moved` is how far local training moves
    class centroids. For DBE, `fc1` is z^g and `fc1+offset` is z. Layers wider than `width` are projected at random onto as many
    values (None: never). Estimates depend on how many samples there are, so compare runs on the same ones: equal `samples`,
    `seed` and split. `told` hears what is being measured; `mdl=None` leaves out the slowest part. `trust` lets the files
    run that a stranger's run names.
    """
    job = reopen(Path(folder), federation, model, trust=trust)
    job.info.needs_classes("measure", "describes representations by the classes that can be told from them")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a run: equal bits
    try:
        told("representations")
        found = extract(job, Path(folder), chosen_layers(job, layers), split=split, samples=samples, seed=seed, width=width)
        measured = _by_layer(found, Key.root(seed).fold("measure"), mdl, job.info.task.classes, told)
    finally:
        torch.set_num_threads(threads)
    return {
        "algorithm": job.experiment.algorithm,
        "dataset": job.experiment.data,
        "model": job.experiment.model,
        "seed": job.experiment.seed,
        "split": split,
        "samples": sum(len(r.labels) for r in found if (r.layer, r.when) == (found[0].layer, "after")),
        "drawn_with_seed": seed,
        "mdl": None if mdl is None else asdict(mdl) | {"hidden": list(mdl.hidden)},
        "layers": measured,
    }


def _by_layer(
    found: Sequence[Representation], key: Key, mdl: Settings | None, classes: int, told: Callable[[str], None]
) -> dict[str, Any]:
    """The measures of each layer, before and after local training; `found` is in the order of layer and time."""
    measured: dict[str, Any] = {}
    for layer, group in groupby(found, lambda r: r.layer):
        times = {when: list(some) for when, some in groupby(group, lambda r: r.when)}
        pooled = {when: _Pooled(some) for when, some in times.items()}
        after = pooled["after"]
        entry: dict[str, Any] = {"width": times["after"][0].width, "measured_width": after.z.shape[1]}
        for when, pool in pooled.items():
            told(f"{layer} {when} local training")
            entry[when] = _measures(pool, key, mdl, classes)
        if "before" in pooled:
            entry["moved"] = _plain(over_training(pooled["before"].z, after.z, after.labels, after.owners))
        measured[layer] = entry
    return measured


def description_length(
    folder: str | Path, layer: str, samples: int = 2000, seed: int = 0, settings: Settings = CHEAP, *, trust: bool = False
) -> float:
    """The description length in bits of one layer after local training, and nothing else: what DBE's tables have."""
    job = reopen(Path(folder), trust=trust)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = extract(job, Path(folder), chosen_layers(job, [layer]), split="test", samples=samples, seed=seed, width=512)
        pool = _Pooled([r for r in found if r.when == "after"])
        return curve(pool.z, pool.labels, Key.root(seed).fold("measure", "mdl"), settings, job.info.task.classes).bits
    finally:
        torch.set_num_threads(threads)


class _Pooled:
    """All parties' representations at one layer and time."""

    def __init__(self, parts: Sequence[Representation]) -> None:
        if len({r.features.shape[1] for r in parts}) > 1:
            raise Refusal(f"Parties' representations after {parts[0].layer} differ in width: there is nothing to compare.")
        self.sets: list[Tensor] = [r.features for r in parts]
        self.z = torch.cat(self.sets)
        self.labels = torch.cat([r.labels for r in parts])
        self.owners = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(s) for s in self.sets]))


def _measures(pool: _Pooled, key: Key, mdl: Settings | None, classes: int) -> dict[str, Any]:
    told_apart = [s for s in pool.sets if len(s) >= LEAST]
    probe = separability(told_apart, key.fold("separability")) if len(told_apart) > 1 else None
    pairs = proxy_a(told_apart, key.fold("pairs")) if 1 < len(told_apart) <= PAIRED else None
    union = to_union(pool.sets)
    return {
        "mdl": None if mdl is None else curve(pool.z, pool.labels, key.fold("mdl"), mdl, classes).plain(),
        "frechet": {"mean": union.mean, "std": union.std},
        "separability": None if probe is None else asdict(probe) | {"log_n": probe.log_n},
        "proxy_a": None if pairs is None else float(pairs.sum()) / (len(pairs) * (len(pairs) - 1)),
        "drift": _plain(between_parties(pool.z, pool.labels, pool.owners)),
    }


def _plain(drift: Drift | None) -> dict[str, float | None] | None:
    return None if drift is None else asdict(drift) | {"relative": drift.relative}
