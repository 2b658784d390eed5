"""Parties: what a party function gets (`Party`), what everybody knows about a run (`Info`), and the
bytes of exchanges in closed form (`Traffic`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
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

O = TypeVar("O")  # noqa: E741 - the type of a loss's aux argument
S = TypeVar("S")
NOT_PRIVATE = "The method cannot be trained privately"


@dataclass(frozen=True)
class Party:
    """A party as its party functions see it: its data and settings, and the trainings that it can
    request.
    """

    id: int
    name: str
    task: LearningTask
    training: Training
    data: PartyData
    federation_size: int = 1
    """The number of parties."""
    inbox: Mapping[int, Any] = field(default_factory=dict)
    """The contents of sealed messages from other parties, by sender, during one call."""
    place: int | None = None
    """Its number in the whole federation. Parties may be left out of a run, so that `id` can be
    smaller.
    """
    metric: str = "accuracy"
    """The metric of the run, which is computed in every evaluation beside accuracy (see
    `metrics/metrics.py`).
    """
    calibrate: str = "none"
    """How its final model is calibrated (see `metrics/calibration.py`)."""
    own_start: bool = False
    """Whether it starts from its own random weights (`init = "own"`) instead of the common ones."""
    key: Key = field(default=Key(0))
    """The key for random draws outside of party functions, which are the same each time."""
    private: Private | None = None
    """The settings of DP-SGD, if the party trains with it. Then party functions cannot read `data`
    and cannot use `fold`.
    """
    hidden_means: HiddenMeans | None = None
    """The noise on class means, if the party adds any. Then party functions cannot read `data`."""

    @property
    def stream(self) -> int:
        """The number that its random streams are folded from. Leaving out other parties does not
        change it.
        """
        return self.id if self.place is None else self.place

    @property
    def _records(self) -> Samples:
        """Its training samples, also where `data` cannot be read."""
        protection = self.private or self.hidden_means
        return protection.samples if protection else self.data.train

    @property
    def device(self) -> torch.device:
        """The device of its samples and of its trainings."""
        return self._records.x.device

    def first_key(self, root: Key) -> Key:
        """The key of its initial weights, in a run whose key is `root`."""
        return root.fold("party", self.stream, "init") if self.own_start else _common_key(root)

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
        """Request a training: `result = await party.fit(self.loss, theta, key, aux)`. The trained
        weights are `result.theta`.

        Args:
            loss: the loss to minimise, `loss(task, theta, batch, aux)`
            theta: the weights to start from, which are not changed
            key: the key of the batches' order
            aux: a record of everything that the loss needs beside the task
            task: the learning task; default: the party's
            samples: the samples; default: the party's training samples
            training: the training settings; default: the party's
            only: the names of the parameters to train; default: all but the buffers
            add: tensors that are added to every gradient
            pull: a proximal term
            draw: `draw(batch, key, aux)` returns a batch's random tensors, which the loss finds in
                `batch.draws`
            batched: whether the engine may batch this training with those of other parties
        """
        if self.private and (samples is not None or draw is not None):
            raise UsageError(
                f"{NOT_PRIVATE}: it trains with {'samples' if samples is not None else 'draws'} of"
                " its own."
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
        """The model after a training on the party's data, the same each time. For
        `Algorithm.deployed_model`.
        """
        return train_outside(self.fit(plain, theta, self.key.fold("adapt"), training=how)).theta

    def represent(
        self, task: LearningTask, theta: Params, leaving: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The representations of all training samples, one row each, as they leave the party.

        `leaving` is applied to the rows. If the party protects its records, it must clip each row
        and add the noise that the method's accounting declares (`releases`).
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
        """Request that a method's own step (an inner loop, a mixture) is folded over batches:
        `state = await party.fold(step, state, key)`.
        """
        if self.private:
            raise UsageError(
                f"{NOT_PRIVATE}: it takes steps of its own, whose gradients are not clipped."
            )
        return FoldRequest(
            step,
            state,
            samples or self.data.train,
            key,
            training or self.training,
            self.training.batch,
        )


@lru_cache(maxsize=8)
def _common_key(root: Key) -> Key:
    """The key of initial weights that all parties share."""
    return root.fold("init")


@dataclass(frozen=True)
class Info:
    """What the server and all parties know. It is exchanged once before round 1 and charged as
    `setup`.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    tasks: tuple[LearningTask, ...]
    training: Training
    shape: tuple[int, ...]
    """The shape of one sample."""
    newcomers: tuple[str, ...] = ()
    """The names of parties that join after the last round. They take no part before."""
    rounds: int = 0
    """The number of rounds."""
    cohort: int = 0
    """The number of parties in a round."""
    round: int = 0
    """The round whose traffic is computed in closed form."""
    peers: tuple[tuple[int, ...] | None, ...] = ()
    """The peers that each party chose to learn from; None for all parties."""
    places: tuple[int, ...] = ()
    """The numbers of parties and newcomers in the whole federation, from which parties may be left
    out.
    """
    whole: int = 0
    """The number of parties of the whole federation without newcomers. Cohorts are drawn from all
    of them.
    """
    shared_columns: int = 0
    """The number of columns whose sums and squares parties send before the start, so that all scale
    them alike.
    """
    patients: tuple[int | None, ...] = ()
    """The number of patients that the training samples of each party and newcomer are of; None
    where the data name no patients.
    """
    secure_sums: bool = False
    """Whether the server learns sums of replies only, to which parties may add noise (secure
    aggregation).
    """
    weights_file: int = 0
    """The bytes of a file of initial weights that each party is sent before the start."""

    @property
    def parties(self) -> range:
        """The numbers of all parties."""
        return range(len(self.names))

    @property
    def late(self) -> range:
        """The newcomers' numbers, which follow the parties'."""
        return range(len(self.names), len(self.names) + len(self.newcomers))

    def listens(self, i: int, j: int) -> bool:
        """Whether party i learns from party j. A party that chose no peers learns from all other
        parties.
        """
        wish = self.peers[i] if i < len(self.peers) else None
        return i != j and (wish is None or j in wish)

    def patient_count(self, i: int) -> int | None:
        """The number of patients of a party or newcomer; None where its data name no patients."""
        return self.patients[i] if self.patients else None

    def stream(self, i: int) -> int:
        """The number that a party's random streams are folded from. Leaving out other parties does
        not change it.
        """
        return self.places[i] if self.places else i

    def name(self, i: int) -> str:
        """A party's or a newcomer's name."""
        return self.names[i] if i < len(self.names) else self.newcomers[i - len(self.names)]

    @property
    def task(self) -> LearningTask:
        """The learning task, where all parties have the same."""
        return self.tasks[0]

    @property
    def width(self) -> int:
        """The width of the representation, where all parties have the same."""
        return self.tasks[0].width

    def same_architecture(self, who: str) -> None:
        """Refuse parties with different networks, since `who` exchanges weights."""
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
                    f"{who} exchanges low-rank factors, so all parties need one base, but the base"
                    f" of {name} differs from that of {self.names[0]}."
                )

    def needs_classes(self, who: str, why: str) -> None:
        """Refuse data whose label is a number, since `who` needs classes."""
        if not self.task.classes:
            raise UsageError(f"{who} {why}, but the label of these data is a number, not a class.")

    def same_width(self, who: str) -> None:
        """Refuse parties whose representations differ in width, since `who` exchanges them."""
        for name, task in zip(self.names, self.tasks, strict=True):
            if task.width != self.width:
                raise UsageError(
                    f"{who} exchanges representations, so all parties need one width, but {name}'s"
                    f" are {task.width} wide and {self.names[0]}'s {self.width}."
                )


class _WatchedField:
    """A field of `WatchedInfo` that records when it is read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, info: WatchedInfo, owner: type) -> int:
        info.length_fields.add(self._name)
        value: int = vars(info)[self._name]
        return value

    def __set__(self, info: WatchedInfo, value: int) -> None:
        vars(info)[self._name] = value


@dataclass(frozen=True)
class WatchedInfo(Info):
    """Info that records in `length_fields` which fields a method reads that depend on the number of
    rounds.

    A run whose method has read one cannot be extended, because its first rounds would have been
    different. Reading is recorded instead of declared, so that a method cannot forget it.
    """

    length_fields: set[str] = field(default_factory=set, repr=False, compare=False)

    rounds = _WatchedField()
    cohort = _WatchedField()

    @staticmethod
    def of(info: Info, length_fields: set[str]) -> WatchedInfo:
        """The same info, which records reading in `length_fields`."""
        return WatchedInfo(
            **{f.name: getattr(info, f.name) for f in fields(info)}, length_fields=length_fields
        )


@dataclass(frozen=True)
class Traffic:
    """Bytes of exchanges, computed in closed form. Tests compare them with the ledger."""

    up: int = 0
    down: int = 0
    peer: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.up + other.up, self.down + other.down, self.peer + other.peer)


def with_task(party: Party, task: LearningTask) -> Party:
    """The same party with another task."""
    return replace(party, task=task)
