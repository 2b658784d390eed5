"""What an attacker has: what the server saw, what one party besides the victim has itself, and
samples to be judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params
from comity.base.samples import Samples
from comity.core.party import Party
from comity.core.wrapper import chain
from comity.data import Federation
from comity.errors import UsageError
from comity.models import CustomModel
from comity.runs.build import SimulatedRun
from comity.runs.folder import RunFolder
from comity.runs.recording import RecordedMessage
from comity.runs.result import Result
from comity.runs.run import reopen
from comity.training.task import LearningTask, in_chunks

DELTA = 1e-5
FIRST, LAST = "first weights", "colluder's model"


class Candidates(NamedTuple):
    """A party's samples to be told apart: it was trained on the members, the others are of the same
    kind.
    """

    x: Tensor
    y: Tensor
    member: Tensor


class Attacker(NamedTuple):
    """Weights that somebody besides the victim has, and what it sees through them."""

    who: str
    task: LearningTask
    theta: Params
    data: Samples
    """Its own."""
    first: bool
    """Whether these are the weights that everybody starts from: then the victim's first messages
    are attacked, else its last.
    """

    @property
    def by(self) -> str:
        """What is attacked with, in a few words."""
        return FIRST if self.first else LAST


class View:
    """A taped run, as attacks look at it. An attack may use the truth only to see whether it was
    right.
    """

    def __init__(
        self,
        folder: Path,
        federation: Federation | None = None,
        model: CustomModel | None = None,
        trust: bool = False,
    ) -> None:
        self.folder = RunFolder(folder)
        self.folder.check_begun()
        self.summary: dict[str, Any] = self._summary()
        if not self.folder.recorded:
            raise UsageError(
                f"{folder} has no recorded messages: start the run with --record-messages (in"
                " Python record_messages=True)."
            )
        self.folder.check()
        self.job: SimulatedRun = reopen(folder, federation, model, trust=trust)
        self.job.info.needs_classes("audit", "tells samples apart by the loss of their classes")

    def _summary(self) -> dict[str, Any]:
        summary = self.folder.read_summary()
        if summary is None:
            raise UsageError(
                f"The run in {self.folder.path} is not finished: go on with 'comity resume"
                f" {self.folder.path}'."
            )
        return summary

    @property
    def key(self) -> Key:
        """Of what attacks draw."""
        return Key.root(self.job.experiment.seed).fold("audit")

    @property
    def delta(self) -> float:
        """The delta that epsilon is counted at: the run's own, if it has one."""
        return float(self.summary.get("privacy", {}).get("delta") or DELTA)

    @property
    def claimed(self) -> float | None:
        """The epsilon that the run claims; None if that is infinite."""
        told = self.summary.get("privacy", {}).get("epsilon", "infinite")
        return None if told == "infinite" else float(told)

    @property
    def unit(self) -> str:
        """Whom the claim protects against whoever gets what was sent: a record, a row, a party;
        nobody if it claims nothing.
        """
        told = self.summary.get("privacy", {})
        return (
            ""
            if self.claimed is None
            else "party"
            if told.get("trusted_server")
            else str(told.get("unit") or "")
        )

    @property
    def leaves(self) -> frozenset[str]:
        """The kinds of what the method says that its parties send."""
        return frozenset(kind for each in chain(self.job.algorithm) for kind in each.traits.leaves)

    @property
    def drawn(self) -> bool:
        """Whether each party's test samples were drawn at random from what it has."""
        return self.job.federation.split.test.startswith("own")

    def messages(self) -> Iterator[RecordedMessage]:
        """All messages, as often as they are asked for."""
        return self.folder.read_messages()

    def party(self, i: int) -> Party:
        """A party, with its data: the truth."""
        return self.job.parties[i]

    @property
    def parties(self) -> range:
        """The parties' numbers."""
        return self.job.info.parties

    def candidates(self, i: int) -> Candidates:
        """What a party trained on, and its test samples."""
        data = self.party(i).data
        member = torch.arange(len(data.train) + len(data.test)) < len(data.train)
        return Candidates(
            torch.cat([data.train.x, data.test.x]).cpu(),
            torch.cat([data.train.y, data.test.y]).cpu(),
            member,
        )

    def attackers(self, i: int) -> list[Attacker]:
        """Who attacks a party by looking through weights of its own: the largest of the others,
        before and after training.
        """
        others = [j for j in self.parties if j != i]
        if not others:
            return []
        c = max(others, key=lambda j: len(self.party(j).data.train))
        who, data = self.party(c).name, self.party(c).data.train
        found = [Attacker(who, *self._deployed(c), data, first=False)]
        if (
            self.job.experiment.init == "common"
            and self.party(c).task.shapes == self.party(i).task.shapes
        ):
            found.insert(0, Attacker(who, self.party(c).task, self.first(c), data, first=True))
        return found

    def first(self, i: int) -> Params:
        """The weights that a party starts from."""
        return self.party(i).task.init(self.party(i).first_key(self.job.root))

    @cached_property
    def _models(self) -> dict[int, tuple[LearningTask, Params]]:
        return {}

    def _deployed(self, i: int) -> tuple[LearningTask, Params]:
        if i not in self._models:
            made = Result(self.folder.path, self.job, self.summary).model(self.party(i).name)
            self._models[i] = made.task, made.theta
        return self._models[i]


def losses(task: LearningTask, theta: Params, x: Tensor, y: Tensor) -> Tensor:
    """The loss of each sample."""
    return F.cross_entropy(in_chunks(lambda part: task.logits(theta, part), x), y, reduction="none")


def seen_by(attacker: Attacker, x: Tensor, space: str = "features") -> Tensor:
    """What an attacker makes of samples by its own weights: representations, or logits."""
    task, theta = attacker.task, attacker.theta
    see = task.logits if space == "logits" else task.features
    return in_chunks(lambda part: see(theta, part).flatten(1), x)
