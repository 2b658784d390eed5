"""What an attacker has: the recorded messages, the model and data of a colluding party, and
candidate samples.
"""

from __future__ import annotations

import math
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
from comity.privacy.account import INFINITE, read_epsilon
from comity.runs.build import SimulatedRun
from comity.runs.folder import RunFolder
from comity.runs.recording import RecordedMessage
from comity.runs.result import Result
from comity.runs.run import reopen
from comity.training.task import LearningTask, in_chunks

DELTA = 1e-5
FIRST, LAST = "first weights", "colluder's model"


class Candidates(NamedTuple):
    """A party's training samples (members) and test samples (others), which an attack must tell
    apart.
    """

    x: Tensor
    y: Tensor
    member: Tensor


class Attacker(NamedTuple):
    """A colluding party with its weights and data."""

    who: str
    task: LearningTask
    theta: Params
    data: Samples
    """The attacker's own samples."""
    first: bool
    """Whether the weights are the common initial ones. Then the victim's first messages are
    attacked, else its last ones.
    """

    @property
    def by(self) -> str:
        """The weights that it attacks with, in words."""
        return FIRST if self.first else LAST


class View:
    """A run with recorded messages, as attacks see it. An attack may use the parties' data only to
    check whether it was right.
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
                f"{folder} has no recorded messages: run it with --record-messages (in Python"
                " record_messages=True)."
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
        """The key of the attacks' random draws."""
        return Key.root(self.job.experiment.seed).fold("audit")

    @property
    def delta(self) -> float:
        """The delta of epsilon: that of the run, if it has one."""
        return float(self.summary.get("privacy", {}).get("delta") or DELTA)

    @property
    def claimed(self) -> float | None:
        """The epsilon that the run claims; None if it is infinite."""
        epsilon = read_epsilon(self.summary.get("privacy", {}).get("epsilon", INFINITE))
        return None if math.isinf(epsilon) else epsilon

    @property
    def unit(self) -> str:
        """What the claim protects from the recipients of messages: a record, a row, or a party;
        empty if the run claims nothing.
        """
        if self.claimed is None:
            return ""
        privacy = self.summary.get("privacy", {})
        return "party" if privacy.get("trusted_server") else str(privacy.get("unit") or "")

    @property
    def leaves(self) -> frozenset[str]:
        """The kinds of values that the method declares that its parties send."""
        return frozenset(
            kind for layer in chain(self.job.algorithm) for kind in layer.traits.leaves
        )

    @property
    def random_split(self) -> bool:
        """Whether each party's test samples were drawn at random from its samples."""
        return self.job.federation.split.test.startswith("own")

    def messages(self) -> Iterator[RecordedMessage]:
        """All recorded messages, in their order."""
        return self.folder.read_messages()

    def party(self, i: int) -> Party:
        """A party, with its data."""
        return self.job.parties[i]

    @property
    def parties(self) -> range:
        """The parties' numbers."""
        return self.job.info.parties

    def candidates(self, i: int) -> Candidates:
        """A party's training samples, and its test samples."""
        data = self.party(i).data
        member = torch.arange(len(data.train) + len(data.test)) < len(data.train)
        return Candidates(
            torch.cat([data.train.x, data.test.x]).cpu(),
            torch.cat([data.train.y, data.test.y]).cpu(),
            member,
        )

    def colluder(self, i: int) -> int | None:
        """The party that colludes against a party: the largest other one; None if there is none."""
        others = [j for j in self.parties if j != i]
        return max(others, key=lambda j: len(self.party(j).data.train), default=None)

    def attackers(self, i: int) -> list[Attacker]:
        """The attackers of a party: the largest other party, with the common initial weights (if
        there are such) and with its own trained model.
        """
        c = self.colluder(i)
        if c is None:
            return []
        who, data = self.party(c).name, self.party(c).data.train
        attackers = [Attacker(who, *self._deployed(c), data, first=False)]
        if (
            self.job.experiment.init == "common"
            and self.party(c).task.shapes == self.party(i).task.shapes
        ):
            initial = Attacker(who, self.party(c).task, self.first(c), data, first=True)
            attackers.insert(0, initial)
        return attackers

    def first(self, i: int) -> Params:
        """The weights that a party starts from."""
        return self.party(i).task.init(self.party(i).first_key(self.job.root))

    @cached_property
    def _models(self) -> dict[int, tuple[LearningTask, Params]]:
        return {}

    def _deployed(self, i: int) -> tuple[LearningTask, Params]:
        if i not in self._models:
            model = Result(self.folder.path, self.job, self.summary).model(self.party(i).name)
            self._models[i] = model.task, model.theta
        return self._models[i]


def losses(task: LearningTask, theta: Params, x: Tensor, y: Tensor) -> Tensor:
    """The loss of each sample."""
    return F.cross_entropy(in_chunks(lambda part: task.logits(theta, part), x), y, reduction="none")


def represent(attacker: Attacker, x: Tensor, space: str = "features") -> Tensor:
    """The attacker's representations of samples by its weights, or its logits."""
    task, theta = attacker.task, attacker.theta
    forward = task.logits if space == "logits" else task.features
    return in_chunks(lambda part: forward(theta, part).flatten(1), x)
