"""Who takes part: what a party knows of itself and may ask for, what everybody may know, and
traffic in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params
from comity.base.samples import PartyData, Samples
from comity.errors import UsageError
from comity.training.descent import train_outside
from comity.training.requests import (
    Draw,
    FitRequest,
    FoldRequest,
    HiddenMeans,
    Loss,
    Private,
    Pull,
    plain,
)
from comity.training.settings import Training
from comity.training.task import Batch, LearningTask, fixed_in, in_chunks

O = TypeVar("O")  # noqa: E741 - what is a party's own
S = TypeVar("S")
NOT_PRIVATE = "The method cannot be trained privately"


@dataclass(frozen=True)
class Party:
    """What a party knows of itself, and what it can ask for while it works."""

    id: int
    name: str
    task: LearningTask
    training: Training
    data: PartyData
    federation_size: int = 1
    """How many parties there are."""
    inbox: Mapping[int, Any] = field(default_factory=dict)
    """Parcels from other parties, by sender, for the length of one work."""
    place: int | None = None
    """Its number in the whole federation, of which some may be left out of this run."""
    metric: str = "accuracy"
    """What its models are judged by while a run goes on, beside accuracy (see `core/metrics.py`).
    """
    own_start: bool = False
    """Whether it starts from weights of its own, not from those that everybody else starts from."""
    key: Key = field(default=Key(0))
    """What it draws outside of works comes from this, so that it is the same each time."""
    private: Private | None = None
    """How it trains so that no record tells, if it does: then its `data` are out of reach, and it
    has no steps of its own.
    """
    hidden_means: HiddenMeans | None = None
    """Behind which noise its class means leave, if they do: then its `data` are out of reach."""

    @property
    def stream(self) -> int:
        """The number that its random streams are made of: leaving out others does not change it."""
        return self.id if self.place is None else self.place

    @property
    def _records(self) -> Samples:
        """Its training samples, for what may look at them."""
        behind = self.private or self.hidden_means
        return behind.samples if behind else self.data.train

    @property
    def device(self) -> torch.device:
        """Where its samples are, and what it trains."""
        return self._records.x.device

    def first_key(self, root: Key) -> Key:
        """The key of the weights that it starts from, in a run whose key is `root`."""
        return root.fold("party", self.stream, "init") if self.own_start else root.fold("init")

    @overload
    def fit(
        self,
        loss: Loss[None],
        theta: Params,
        key: Key,
        aux: None = None,
        *,
        task: LearningTask | None = None,
        samples: Samples | None = None,
        training: Training | None = None,
        only: frozenset[str] | None = None,
        add: Params | None = None,
        pull: Pull | None = None,
        draw: Draw[None] | None = None,
        batched: bool = True,
    ) -> FitRequest[None]: ...
    @overload
    def fit(
        self,
        loss: Loss[O],
        theta: Params,
        key: Key,
        aux: O,
        *,
        task: LearningTask | None = None,
        samples: Samples | None = None,
        training: Training | None = None,
        only: frozenset[str] | None = None,
        add: Params | None = None,
        pull: Pull | None = None,
        draw: Draw[O] | None = None,
        batched: bool = True,
    ) -> FitRequest[O]: ...
    def fit(
        self,
        loss: Loss[Any],
        theta: Params,
        key: Key,
        aux: Any = None,
        *,
        task: LearningTask | None = None,
        samples: Samples | None = None,
        training: Training | None = None,
        only: frozenset[str] | None = None,
        add: Params | None = None,
        pull: Pull | None = None,
        draw: Draw[Any] | None = None,
        batched: bool = True,
    ) -> FitRequest[Any]:
        """Ask for a training: `done = await party.fit(self.loss, theta, key, aux)`, then
        `done.theta`.

        `loss(task, theta, batch, aux)` is minimised from `theta`, which is not changed, on the
        party's data, by its task and its way of training, unless others are given. `aux` is a
        record of all that the loss needs beside the task. `only` names what is trained (all but the
        buffers, unless told). `add` is added to every gradient; `pull` is a pull to a fixed point.
        `draw(batch, key, aux)` makes a batch's random tensors, which the loss finds in
        `batch.drawn`. With `batched=False` it is never one computation with other parties'
        trainings.
        """
        if self.private and (samples is not None or draw is not None):
            raise UsageError(
                f"{NOT_PRIVATE}: it makes {'samples' if samples is not None else 'draws'} of its"
                " own for a training."
            )
        if self.private:
            batched = False
        return FitRequest(
            objective=loss,
            begin=theta,
            samples=samples or self._records,
            key=key,
            training=training or self.training,
            task=task or self.task,
            aux=aux,
            only=only,
            add=add,
            pull=pull,
            draw=draw,
            batched=batched,
            private=self.private,
        )

    def adapted(self, theta: Params, how: Training) -> Params:
        """What a training on its own data makes of a model, the same each time: for
        `Algorithm.deployed_model`.
        """
        return train_outside(self.fit(plain, theta, self.key.fold("adapt"), training=how)).theta

    def represent(
        self, task: LearningTask, theta: Params, leaving: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """What a model makes of each training sample, row by row, as it may leave.

        Where no record may tell, `leaving` must bound each row by itself and add noise to it, as
        the method's `releases` say.
        """
        return leaving(in_chunks(lambda x: task.features(theta, x), self._records.x).flatten(1))

    def fold(
        self,
        step: Callable[[S, Batch], S],
        state: S,
        key: Key,
        training: Training | None = None,
        samples: Samples | None = None,
    ) -> FoldRequest[S]:
        """Ask for a step of one's own (an inner loop, a mixture) over batches: `state = await
        party.fold(step, state, key)`.
        """
        if self.private:
            raise UsageError(
                f"{NOT_PRIVATE}: it makes steps of its own, whose gradients nobody clips."
            )
        return FoldRequest(step, state, samples or self.data.train, key, training or self.training)


@dataclass(frozen=True)
class Info:
    """What everybody may know: exchanged once before round 1 and charged as `setup`."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    tasks: tuple[LearningTask, ...]
    training: Training
    shape: tuple[int, ...]
    """The shape of one sample."""
    newcomers: tuple[str, ...] = ()
    """Parties that join after the last round; until then nobody knows of them."""
    rounds: int = 0
    """How many rounds there will be."""
    cohort: int = 0
    """How many parties take part in one."""
    round: int = 0
    """The round that a closed form of the traffic is asked for."""
    peers: tuple[tuple[int, ...] | None, ...] = ()
    """Whom each party chose to learn from; None for everybody."""
    places: tuple[int, ...] = ()
    """The numbers of parties and newcomers in the whole federation, of which some may be left out
    of this run.
    """
    whole: int = 0
    """How many parties the whole federation has from the start: cohorts are drawn from all of them.
    """
    shared_columns: int = 0
    """Of how many columns all send sums and squares before the start, so that they are scaled
    alike.
    """

    @property
    def parties(self) -> range:
        """All parties' numbers."""
        return range(len(self.names))

    @property
    def late(self) -> range:
        """The newcomers' numbers, which follow the parties'."""
        return range(len(self.names), len(self.names) + len(self.newcomers))

    def listens(self, i: int, j: int) -> bool:
        """Whether party i learns from party j: unless it chose others, from everybody but
        itself.
        """
        wish = self.peers[i] if i < len(self.peers) else None
        return i != j and (wish is None or j in wish)

    def stream(self, i: int) -> int:
        """The number that a party's random streams are made of: leaving out others does not change
        it.
        """
        return self.places[i] if self.places else i

    def name(self, i: int) -> str:
        """A party's or a newcomer's name."""
        return self.names[i] if i < len(self.names) else self.newcomers[i - len(self.names)]

    @property
    def task(self) -> LearningTask:
        """The one task that all parties have."""
        return self.tasks[0]

    @property
    def width(self) -> int:
        """The width of the representation that all parties agree on."""
        return self.tasks[0].width

    def same_architecture(self, who: str) -> None:
        """Refuse if parties have different networks: `who` exchanges weights."""
        for name, task in zip(self.names, self.tasks, strict=True):
            if task is self.task:
                continue
            if task.shapes != self.task.shapes:
                raise UsageError(
                    f"{who} exchanges weights, so all parties need one architecture, but {name} has"
                    f" {task.network.name} and {self.names[0]} has {self.task.network.name}."
                )
            if fixed_in(task.network) != fixed_in(self.task.network):
                raise UsageError(
                    f"{who} exchanges factors, which mean something else at {name}: it has another"
                    " base."
                )

    def needs_classes(self, who: str, why: str) -> None:
        """Refuse data whose label is a number: `who` makes use of classes."""
        if not self.task.classes:
            raise UsageError(f"{who} {why}, but the label of these data is a number, not a class.")

    def same_width(self, who: str) -> None:
        """Refuse if parties' representations differ in width: `who` exchanges representations."""
        for name, task in zip(self.names, self.tasks, strict=True):
            if task.width != self.width:
                raise UsageError(
                    f"{who} exchanges representations, so all parties need one width, but {name}'s"
                    f" are {task.width} wide and {self.names[0]}'s {self.width}."
                )


class _WatchedField:
    """A field of `WatchedInfo` that writes down when it is read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, info: WatchedInfo, owner: type) -> int:
        info.looked.add(self._name)
        value: int = vars(info)[self._name]
        return value

    def __set__(self, info: WatchedInfo, value: int) -> None:
        vars(info)[self._name] = value


@dataclass(frozen=True)
class WatchedInfo(Info):
    """Info that writes down in `looked` whether a method looks at what depends on how long the run
    is to be.

    A run whose method did cannot be made longer: its rounds so far would have been others. It is
    observed, not declared, so that nobody's forgetting makes a run longer wrongly.
    """

    looked: set[str] = field(default_factory=set, repr=False, compare=False)

    rounds = _WatchedField()
    cohort = _WatchedField()

    @staticmethod
    def of(info: Info, looked: set[str]) -> WatchedInfo:
        """The same info, watched."""
        return WatchedInfo(
            **{each.name: getattr(info, each.name) for each in fields(info)}, looked=looked
        )


@dataclass(frozen=True)
class Traffic:
    """Bytes in closed form, to be compared with the ledger."""

    up: int = 0
    down: int = 0
    peer: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.up + other.up, self.down + other.down, self.peer + other.peer)


def with_task(party: Party, task: LearningTask) -> Party:
    """The same party with another task."""
    return replace(party, task=task)
