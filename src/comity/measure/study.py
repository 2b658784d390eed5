"""Measures of the representations of a finished run: `comity measure RUN_DIR`."""

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
from comity.measure.frechet import distances_to_union
from comity.measure.mdl import CHEAP, Settings, curve
from comity.measure.representations import (
    PartyModel,
    Representation,
    compute_representations,
    deployed_models,
    extract,
    is_trained_by_party,
    select_layers,
)
from comity.measure.separability import LEAST, proxy_a, separability
from comity.runs.run import reopen
from comity.runs.server_run import ServerRun

PAIRED = 20  # the most parties for which proxy A-distances of all pairs are computed
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
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Measure each layer: description length, Fréchet distance to the union, separability, drift.

    Each is measured on the samples of all parties, before and after local training where there is a
    model before it. `moved` is how far local training moves the class centroids. For DBE, `fc1` is
    z^g and `fc1+offset` is z. The estimates depend on the number of samples: compare runs with
    equal `samples`, `seed` and `split`.

    Args:
        folder: The run folder.
        layers: Names of stages (default: all).
        samples: How many samples to draw from all parties together.
        seed: The seed of the draw, the probes and the local training.
        mdl: Settings of the description length, the slowest measure; None leaves it out.
        party: Measure this party alone, as at its site.
        split: "train", "validation" or "test".
        width: Wider layers are projected at random onto this many values (None: never).
        federation: The data, if the run's data were passed as arrays.
        model: The model, if the run's model was passed as modules.
        trust: Run the Python files that the settings of somebody else's run name.
        progress: Is called with the name of each part before it is measured.

    Returns:
        The measures as plain numbers, by layer and time.
    """
    job = reopen(Path(folder), federation, model, trust=trust)
    if party is not None and party not in job.info.names:
        raise unknown("party called", party, job.info.names)
    ids = list(job.info.parties) if party is None else [job.info.names.index(party)]
    return study_models(
        job,
        [job.parties[i] for i in ids],
        deployed_models(job, Path(folder), ids),
        layers,
        samples,
        seed,
        mdl,
        party,
        split,
        width,
        progress,
    )


def study_models(
    run: ServerRun,
    parties: Sequence[Party],
    party_models: Iterable[PartyModel],
    layers: Sequence[str] | None,
    samples: int,
    seed: int,
    mdl: Settings | None,
    alone: str | None,
    split: str = "test",
    width: int | None = 512,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Measure the models of some parties as in `study`.

    `alone` is the name of the party if only one is measured.
    """
    run.info.needs_classes(
        "measure", "describes representations by the classes that can be predicted from them"
    )
    layer_names = select_layers([party.task for party in parties], layers)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a run: equal bits
    try:
        progress("representations")
        rows = compute_representations(
            parties,
            party_models,
            is_trained_by_party(run.algorithm),
            layer_names,
            split=split,
            samples=samples,
            seed=seed,
            width=width,
        )
        count = sum(len(r.labels) for r in rows if (r.layer, r.when) == (rows[0].layer, "after"))
        if not count:
            raise UsageError(
                f"There are no {split} samples to measure{f' at {alone}' if alone else ''}."
            )
        lacking = _lacking(count) if alone and mdl else None
        layer_measures = _by_layer(
            rows,
            Key.root(seed).fold("measure"),
            None if lacking else mdl,
            run.info.task.classes,
            progress,
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
        "layers": layer_measures,
    }


def _lacking(samples: int) -> str | None:
    """Return why one party has no description length, if its samples are too few.

    For all parties together, `mdl.curve` raises UsageError instead.
    """
    least = description.LEAST
    return (
        f"Not measured: description length, which needs {least} samples, and here are {samples}."
        if samples < least
        else None
    )


def _by_layer(
    rows: Sequence[Representation],
    key: Key,
    mdl: Settings | None,
    classes: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Measure each layer, before and after local training; `rows` are ordered by layer and time."""
    by_layer: dict[str, Any] = {}
    for layer, group in groupby(rows, lambda r: r.layer):
        times = {when: list(part) for when, part in groupby(group, lambda r: r.when)}
        pooled = {when: _Pooled(part) for when, part in times.items()}
        after = pooled["after"]
        entry: dict[str, Any] = {
            "width": times["after"][0].width,
            "measured_width": after.z.shape[1],
        }
        for when, pool in pooled.items():
            progress(f"{layer} {when} local training")
            entry[when] = _measures(pool, key, mdl, classes)
        if "before" in pooled:
            entry["moved"] = _plain(
                over_training(pooled["before"].z, after.z, after.labels, after.owners)
            )
        by_layer[layer] = entry
    return by_layer


def description_length(
    folder: str | Path,
    layer: str,
    samples: int = 2000,
    seed: int = 0,
    settings: Settings = CHEAP,
    *,
    trust: bool = False,
) -> float:
    """Return the description length of one layer after local training, in bits (DBE's tables)."""
    job = reopen(Path(folder), trust=trust)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        layers = select_layers(job.info.tasks, [layer])
        rows = extract(
            job, Path(folder), layers, split="test", samples=samples, seed=seed, width=512
        )
        pool = _Pooled([r for r in rows if r.when == "after"])
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
    """The representations of all parties at one layer and time."""

    def __init__(self, parts: Sequence[Representation]) -> None:
        if len({r.features.shape[1] for r in parts}) > 1:
            raise UsageError(
                f"Parties' representations after {parts[0].layer} differ in width and cannot be"
                " compared."
            )
        self.sets: list[Tensor] = [r.features for r in parts]
        self.z = torch.cat(self.sets)
        self.labels = torch.cat([r.labels for r in parts])
        self.owners = torch.arange(len(parts)).repeat_interleave(
            torch.tensor([len(s) for s in self.sets])
        )


def _measures(pool: _Pooled, key: Key, mdl: Settings | None, classes: int) -> dict[str, Any]:
    large = [s for s in pool.sets if len(s) >= LEAST]
    probe = separability(large, key.fold("separability")) if len(large) > 1 else None
    pairs = proxy_a(large, key.fold("pairs")) if 1 < len(large) <= PAIRED else None
    union = distances_to_union(pool.sets) if len(pool.sets) > 1 else None
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
