"""What the models of a run make of their parties' samples, layer by layer, before and after local
training.

`before` is the model as the server offers it after the last round, with what the party keeps at
home; `after` is that model after one more local training. The method's own local step may be
intricate (FedRep's two phases, SCAFFOLD's corrections), so all are trained alike, which keeps a
comparison fair: `fit` on the loss of the task as the method sees it (DBE's with its offset and its
regulariser), by the run's own settings, from a fresh optimizer. A model that is the party's own
(Ditto, ADCOL, SOLO, or anything fine-tuned after the last round) is the outcome of local training
already: it is `after`, and there is no `before`.

Layers are the network's stages, convolutions flattened; the last one holds the logits. Where a
party adds an offset before its head (DBE), `fc1` is what the stage puts out, the paper's z^g, and
`fc1+offset` what the head gets, its z.
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
"""A layer by its role: the stage that makes a party's representation, whatever it is called there.
"""
ROWS = 256


@dataclass(frozen=True, eq=False)
class Representation:
    """One party's samples at one layer, a row each."""

    party: str
    layer: str
    when: When
    labels: Tensor
    features: Tensor
    width: int
    """Values in the layer, of which `features` may be a projection."""


@dataclass(frozen=True)
class Offered:
    """A party with the task that its method gives it, and the model that it would deploy."""

    party: Party
    theta: Params


def offered(job: SimulatedRun, folder: Path, ids: Iterable[int] | None = None) -> Iterator[Offered]:
    """The parties of a run's folder (some of them, by number) and their models after the last
    checkpoint; no newcomers.
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
        mine = (
            algorithm.init_party(party.first_key(job.root), party) if saved is None else saved.mine
        )
        message = Empty() if algorithm.traits.self_contained else algorithm.message_for(server, i)
        mine = on_device(mine, device)
        message = on_device(message, device)
        yield Offered(
            algorithm.party_for(party, mine), dict(algorithm.deployed_model(mine, message, party))
        )


def own_model(algorithm: AnyAlgorithm) -> bool:
    """Whether what a party deploys comes from its own training, not from the server."""
    return any(a.traits.self_contained or a.traits.finishes for a in chain(algorithm))


def trained(model: Offered, key: Key) -> Offered:
    """The model after one local training, the same for every method (see above)."""
    party = model.party
    how = replace(party.training, keep=False)
    return Offered(party, train_outside(party.fit(plain, model.theta, key, training=how)).theta)


class _Tap:
    """A network that notes what its stages put out, and what a head is given if that is something
    else.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.seen: dict[str, Tensor] = {}
        self._passed: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        stages = self.network.stages
        if begin and x is not self._passed.get(stages[begin - 1]):
            self._note(stages[begin - 1] + OFFSET, x)
        for k in range(begin, end):
            x = self.network.run(theta, x, train, k, k + 1)
            self._note(stages[k], x)
        return x

    def _note(self, layer: str, x: Tensor) -> None:
        if layer not in self._passed:  # of two heads (FedRoD) the first, which is the shared one
            self._passed[layer] = x
            self.seen[layer] = x.clone()  # a user's next module may work in place

    def forget(self) -> None:
        """Begin again."""
        self.seen = {}
        self._passed = {}


def _tapped(task: LearningTask, tap: _Tap) -> LearningTask:
    """The task on a tapped network, and so all tasks that it is made of."""
    changed: dict[str, Any] = {
        f.name: _tapped(t, tap)
        for f in fields(task)
        if isinstance(t := getattr(task, f.name), LearningTask)
    }
    return replace(task, network=cast(Network, tap), **changed)


@torch.no_grad()
def layers_of(model: Offered, x: Tensor) -> Iterator[dict[str, Tensor]]:
    """All layers' values for x, some hundred rows at a time."""
    tap = _Tap(model.party.task.network)
    task = _tapped(model.party.task, tap)
    for rows in x.split(ROWS):
        tap.forget()
        answer = task.logits(model.theta, rows)
        yield tap.seen | {task.network.stages[-1]: answer}


class Projection:
    """Layers wider than `width` in random directions, as many: distances survive (Johnson and
    Lindenstrauss), probes stay cheap.

    The directions depend on the seed, the layer and its width alone: methods, parties and times
    meet the same ones.
    """

    def __init__(self, width: int | None, key: Key) -> None:
        self.width = width
        self._key = key
        self._known: dict[tuple[str, int], Tensor] = {}

    def __call__(self, layer: str, z: Tensor) -> Tensor:
        z = z.flatten(1).cpu().float()
        d = z.shape[1]
        if self.width is None or d <= self.width:
            return z
        which = layer.removesuffix(OFFSET), d
        if which not in self._known:
            generator = self._key.fold(*which).generator()
            self._known[which] = torch.randn(d, self.width, generator=generator) / self.width**0.5
        return z @ self._known[which]


def chosen_layers(tasks: Sequence[LearningTask], layers: Sequence[str] | None) -> tuple[str, ...]:
    """The layers asked for, checked; unless told all stages, or the representation if parties'
    networks differ.
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
    """Representations of a run's parties, in the order of layer, time and party; see
    `representations`.
    """
    parties = [job.parties[i] for i in job.info.parties]
    own = own_model(job.algorithm)
    return taken(
        parties,
        offered(job, folder),
        own,
        layers,
        split=split,
        samples=samples,
        seed=seed,
        width=width,
    )


def taken(
    parties: Sequence[Party],
    models: Iterable[Offered],
    own: bool,
    layers: Sequence[str],
    *,
    split: str,
    samples: int | None,
    seed: int,
    width: int | None,
) -> list[Representation]:
    """Representations of these parties by these models, in the same order; `own` says whether
    models are the parties' own.
    """
    key = Key.root(seed).fold("measure")
    project = Projection(width, key.fold("projection"))
    found: list[Representation] = []
    chosen = _drawn([_samples(party, split) for party in parties], samples, key.fold("samples"))
    for model, data in zip(models, chosen, strict=True):
        if not len(data):
            continue
        after = model if own else trained(model, key.fold("train", model.party.stream))
        times: dict[When, Offered] = {"after": after} if own else {"before": model, "after": after}
        for when, which in times.items():
            found += _at_layers(which, when, data, layers, project)
    order = {layer: k for k, layer in enumerate(layers)}
    return sorted(
        found, key=lambda r: (order[r.layer.removesuffix(OFFSET)], r.layer, r.when == "after")
    )


def _at_layers(
    model: Offered, when: When, data: Samples, layers: Sequence[str], project: Projection
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
    for values in layers_of(model, data.x):
        for layer, stage in stages.items():
            if stage in values:
                parts.setdefault(layer, []).append(project(layer, values[stage]))
                widths[layer] = values[stage][0].numel()
    made = [
        Representation(party, n, when, data.y.cpu(), torch.cat(z), widths[n])
        for n, z in parts.items()
    ]
    for r in made:
        if not r.features.isfinite().all():
            raise ComityError(
                f"The model of {r.party} has diverged: its representations after {r.layer} are not"
                " finite."
            )
    return made


def _samples(party: Party, split: str) -> Samples:
    if split not in ("train", "validation", "test"):
        raise UsageError(f"Samples are train, validation or test, not {split!r}.")
    data: Samples = getattr(party.data, split)
    return data


def _drawn(everybody: list[Samples], samples: int | None, key: Key) -> Iterator[Samples]:
    """Of all parties' samples together as many as asked for, party by party."""
    total = sum(map(len, everybody))
    kept = torch.zeros(total, dtype=torch.bool)
    kept[key.permutation(total)[:samples]] = True
    for data, mine in zip(everybody, kept.split([len(data) for data in everybody]), strict=True):
        at = mine.nonzero().squeeze(1).to(data.x.device)
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
    """Representations of a run's parties at some layers (all unless told; "cut" is the method's
    own).

    `samples` are drawn from all parties' together (all unless told), `width` caps a layer's values
    by a random projection. Data given as arrays, and models given as modules, must be given again.
    `trust` lets the files run that a stranger's run names.
    """
    job = reopen(Path(folder), federation, model, trust=trust)
    return extract(
        job,
        Path(folder),
        chosen_layers(job.info.tasks, layers),
        split=split,
        samples=samples,
        seed=seed,
        width=width,
    )
