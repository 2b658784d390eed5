"""Representations of the parties' samples by the models of a run, at each layer, before and after
local training.

`before` is the model that the server offers after the last round, with the party's private
parameters. `after` is that model after one more local training. Methods have different local
updates (FedRep's two phases, SCAFFOLD's corrections). To compare them fairly, all models are
trained in the same way: `fit` on the loss of the method's task (for DBE with its offset and its
regulariser), with the run's settings and a new optimizer. A model that belongs to the party (Ditto,
ADCOL, SOLO, or any model that was fine-tuned after the last round) is the result of local training
already: it is `after`, and there is no `before`.

Layers are the stages of the network, with convolutions flattened; the last layer has the logits.
Where a party adds an offset before its head (DBE), `fc1` is the output of the stage (z^g in the
paper), and `fc1+offset` is the input of the head (z).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from comity import models
from comity.base.key import Key
from comity.base.record import Empty, Params, on_device
from comity.base.samples import Samples
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Party
from comity.core.wrapper import chain
from comity.data import Federation
from comity.errors import ComityError, UsageError, unknown
from comity.runs.build import SimulatedRun
from comity.runs.folder import RunFolder
from comity.runs.run import reopen
from comity.training.descent import train_outside
from comity.training.requests import plain
from comity.training.task import LearningTask, Network

When = Literal["before", "after"]
OFFSET = "+offset"
CUT = "cut"
"""The name of the layer that is each party's representation, whatever its stage is called."""
ROWS = 256


@dataclass(frozen=True, eq=False)
class Representation:
    """The representations of one party's samples at one layer, one row per sample."""

    party: str
    layer: str
    when: When
    labels: Tensor
    features: Tensor
    width: int
    """The width of the layer; `features` may be a projection of it."""


@dataclass(frozen=True)
class PartyModel:
    """A party, with the task that its method defines for it, and the parameters it would deploy."""

    party: Party
    theta: Params


def deployed_models(
    job: SimulatedRun, folder: Path, ids: Iterable[int] | None = None
) -> Iterator[PartyModel]:
    """Yield the models of a run's parties at the last checkpoint.

    `ids` are the numbers of the parties (default: all except newcomers). Raises ComityError if the
    folder has no checkpoint.
    """
    checkpoints = RunFolder(folder).checkpoints()
    if checkpoints.load() is None:
        raise ComityError(f"{folder} holds no checkpoint.")
    algorithm = job.algorithm
    server = checkpoints.server_state()
    for i in job.info.parties if ids is None else ids:
        party = job.parties[i]
        saved = checkpoints.party_state(i)
        device = party.data.train.x.device
        state = (
            algorithm.init_party(party.first_key(job.root), party) if saved is None else saved.mine
        )
        message = Empty() if algorithm.traits.self_contained else algorithm.message_for(server, i)
        state = on_device(state, device)
        message = on_device(message, device)
        yield PartyModel(
            algorithm.party_for(party, state), dict(algorithm.deployed_model(state, message, party))
        )


def is_trained_by_party(algorithm: AnyAlgorithm) -> bool:
    """Return whether the deployed model comes from a party's training, not from the server."""
    return any(a.traits.self_contained or a.traits.finishes for a in chain(algorithm))


def train_locally(model: PartyModel, key: Key) -> PartyModel:
    """Return the model after one local training, the same for every method (see above)."""
    party = model.party
    how = replace(party.training, keep=False)
    return PartyModel(party, train_outside(party.fit(plain, model.theta, key, training=how)).theta)


class _Tap:
    """A network that records the output of each stage, and the input of the head if it differs."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.outputs: dict[str, Tensor] = {}
        self._first: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        stages = self.network.stages
        if begin and x is not self._first.get(stages[begin - 1]):
            self._store(stages[begin - 1] + OFFSET, x)
        for k in range(begin, end):
            x = self.network.run(theta, x, train, k, k + 1)
            self._store(stages[k], x)
        return x

    def _store(self, layer: str, x: Tensor) -> None:
        if layer not in self._first:  # of two heads (FedRoD) the first, the shared one
            self._first[layer] = x
            self.outputs[layer] = x.clone()  # the next module of a user may change x in place

    def clear(self) -> None:
        """Discard all recorded outputs."""
        self.outputs = {}
        self._first = {}


def _with_network(task: LearningTask, tap: _Tap) -> LearningTask:
    """Return the task, and all tasks in its fields, with the network `tap`."""
    changed: dict[str, Any] = {
        f.name: _with_network(t, tap)
        for f in fields(task)
        if isinstance(t := getattr(task, f.name), LearningTask)
    }
    return replace(task, network=cast(Network, tap), **changed)


@torch.no_grad()
def layer_outputs(model: PartyModel, x: Tensor) -> Iterator[dict[str, Tensor]]:
    """Yield the values of all layers for batches of x."""
    tap = _Tap(model.party.task.network)
    task = _with_network(model.party.task, tap)
    for rows in x.split(ROWS):
        tap.clear()
        logits = task.logits(model.theta, rows)
        yield tap.outputs | {task.network.stages[-1]: logits}


class Projection:
    """A random projection of layers wider than `width` onto `width` values.

    It approximately preserves distances (Johnson and Lindenstrauss) and keeps probes cheap. The
    projection depends only on the seed, the layer and its width: it is the same for all methods
    and parties, before and after training.
    """

    def __init__(self, width: int | None, key: Key) -> None:
        self.width = width
        self._key = key
        self._matrices: dict[tuple[str, int], Tensor] = {}

    def __call__(self, layer: str, z: Tensor) -> Tensor:
        z = z.flatten(1).cpu().float()
        d = z.shape[1]
        if self.width is None or d <= self.width:
            return z
        which = layer.removesuffix(OFFSET), d
        if which not in self._matrices:
            generator = self._key.fold(*which).generator()
            matrix = torch.randn(d, self.width, generator=generator) / self.width**0.5
            self._matrices[which] = matrix
        return z @ self._matrices[which]


def select_layers(tasks: Sequence[LearningTask], layers: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the layers to measure, without duplicates.

    Default: all stages, or the representation (`CUT`) if the parties' networks differ. Raises
    UsageError if a network has no layer of that name.
    """
    networks = [task.network for task in tasks]
    alike = all(n.stages == networks[0].stages for n in networks)
    if layers is None:
        return networks[0].stages if alike else (CUT,)
    for layer in layers:
        for network in networks:
            if layer not in (CUT, *network.stages):
                raise unknown(f"layer of {network.name} called", layer, (CUT, *network.stages))
    return tuple(dict.fromkeys(layers))


def extract(
    job: SimulatedRun,
    folder: Path,
    layers: Sequence[str],
    *,
    split: str,
    samples: int | None,
    seed: int,
    width: int | None,
) -> list[Representation]:
    """Return the representations of a run's parties, ordered by layer, time and party.

    The arguments are those of `representations`.
    """
    parties = [job.parties[i] for i in job.info.parties]
    return compute_representations(
        parties,
        deployed_models(job, folder),
        is_trained_by_party(job.algorithm),
        layers,
        split=split,
        samples=samples,
        seed=seed,
        width=width,
    )


def compute_representations(
    parties: Sequence[Party],
    models: Iterable[PartyModel],
    trained_by_party: bool,
    layers: Sequence[str],
    *,
    split: str,
    samples: int | None,
    seed: int,
    width: int | None,
) -> list[Representation]:
    """Return the representations of the parties' samples by their models, ordered as above.

    `trained_by_party` says whether the models are the result of the parties' own training already.
    """
    key = Key.root(seed).fold("measure")
    project = Projection(width, key.fold("projection"))
    rows: list[Representation] = []
    subsets = _draw_samples(
        [_samples(party, split) for party in parties], samples, key.fold("samples")
    )
    for model, data in zip(models, subsets, strict=True):
        if not len(data):
            continue
        times: dict[When, PartyModel] = {"after": model}
        if not trained_by_party:
            after = train_locally(model, key.fold("train", model.party.stream))
            times = {"before": model, "after": after}
        for when, model_then in times.items():
            rows += _at_layers(model_then, when, data, layers, project)
    order = {layer: k for k, layer in enumerate(layers)}
    return sorted(
        rows, key=lambda r: (order[r.layer.removesuffix(OFFSET)], r.layer, r.when == "after")
    )


def _at_layers(
    model: PartyModel, when: When, data: Samples, layers: Sequence[str], project: Projection
) -> list[Representation]:
    party = model.party.name
    task = model.party.task
    stages = {
        layer + end: (task.cut if layer == CUT else layer) + end
        for layer in layers
        for end in ("", OFFSET)
    }
    parts: dict[str, list[Tensor]] = {}
    widths: dict[str, int] = {}
    for values in layer_outputs(model, data.x):
        for layer, stage in stages.items():
            if stage in values:
                parts.setdefault(layer, []).append(project(layer, values[stage]))
                widths[layer] = values[stage][0].numel()
    rows = [
        Representation(party, n, when, data.y.cpu(), torch.cat(z), widths[n])
        for n, z in parts.items()
    ]
    for r in rows:
        if not r.features.isfinite().all():
            raise ComityError(
                f"The model of {r.party} has diverged: its representations after {r.layer} are not"
                " finite."
            )
    return rows


def _samples(party: Party, split: str) -> Samples:
    if split not in ("train", "validation", "test"):
        raise UsageError(f"The split must be train, validation or test, not {split!r}.")
    data: Samples = getattr(party.data, split)
    return data


def _draw_samples(parts: list[Samples], samples: int | None, key: Key) -> Iterator[Samples]:
    """Draw `samples` (default: all) of the parties' pooled samples; yield each party's subset."""
    sizes = [len(data) for data in parts]
    selected = torch.zeros(sum(sizes), dtype=torch.bool)
    selected[key.permutation(sum(sizes))[:samples]] = True
    for data, mask in zip(parts, selected.split(sizes), strict=True):
        at = mask.nonzero().squeeze(1).to(data.x.device)
        yield Samples(data.x[at], data.y[at])


def representations(
    folder: str | Path,
    layers: Sequence[str] | None = None,
    *,
    split: str = "test",
    samples: int | None = None,
    seed: int = 0,
    width: int | None = None,
    federation: Federation | None = None,
    model: models.Pair | None = None,
    trust: bool = False,
) -> list[Representation]:
    """Return the representations of the parties' samples by the models of a finished run.

    Args:
        folder: The run folder.
        layers: Names of stages (default: all); "cut" is the representation of the method.
        split: "train", "validation" or "test".
        samples: How many samples to draw from all parties together (default: all).
        seed: The seed of the draw, of the projection and of the local training.
        width: Wider layers are projected at random onto this many values (default: never).
        federation: The data, if the run's data were passed as arrays.
        model: The model, if the run's model was passed as modules.
        trust: Run the Python files that the settings of somebody else's run name.
    """
    job = reopen(Path(folder), federation, model, trust=trust)
    return extract(
        job,
        Path(folder),
        select_layers(job.info.tasks, layers),
        split=split,
        samples=samples,
        seed=seed,
        width=width,
    )
