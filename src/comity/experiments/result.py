"""What a finished run gives to whoever called it from Python: its figures, and the parties' models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from comity.core.ledger import Charge
from comity.core.net import Note
from comity.core.record import Params
from comity.core.task import Task, in_chunks
from comity.engines.site import Site
from comity.errors import ComityError, unknown
from comity.experiments.build import Job
from comity.experiments.checkpoint import Checkpoints
from comity.experiments.folder import RunFolder


@dataclass(frozen=True)
class Deployed:
    """A party's model as it would be used."""

    task: Task
    theta: Params

    def logits(self, x: Tensor) -> Tensor:
        """Scores for each class."""
        return in_chunks(lambda part: self.task.logits(self.theta, part), x)

    def predict(self, x: Tensor) -> Tensor:
        """The most likely class of each sample."""
        return self.logits(x).argmax(1)


@dataclass
class Result:
    """A finished run: its summary, its tables and each party's model.

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("iid", parties=2, seed=0)
        >>> result = comity.run("fedavg", fed, rounds=1, model="linear")
        >>> result.summary["rounds"], result.summary["parties"]
        (1, 2)
        >>> result.metrics[0]._fields
        ('round', 'party', 'split', 'metric', 'value')
        >>> sum(row.bytes for row in result.ledger if row.kind == "up") == result.summary["bytes"]["up"]
        True
        >>> result.model("p0").predict(fed.parties["p0"].test.x[:3]).shape
        torch.Size([3])
    """

    folder: Path
    job: Job
    summary: dict[str, Any]
    _keep: Any = None
    """A temporary folder lives as long as the result."""

    @cached_property
    def metrics(self) -> list[Note]:
        """Rows of metrics.csv: (round, party, split, metric, value)."""
        return RunFolder(self.folder).read_metrics()

    @cached_property
    def ledger(self) -> list[Charge]:
        """Rows of ledger.csv: (round, work, src, dst, kind, bytes)."""
        return RunFolder(self.folder).read_ledger()

    def model(self, party: str) -> Deployed:
        """What that party would deploy after the last round."""
        i = self._number(party)
        who = self.job.parties[i]
        checkpoints = self._checkpoints()
        mine = self._kept(i, checkpoints)
        letter = self.job.algorithm.view(checkpoints.server_state(), i)
        return Deployed(self.job.algorithm.party_for(who, mine).task, self.job.algorithm.model(mine, letter, who))

    def state(self, party: str) -> Any:
        """What the method keeps at that party."""
        return self._kept(self._number(party), self._checkpoints())

    def _number(self, party: str) -> int:
        everyone = self.job.info.names + self.job.info.newcomers
        if party not in everyone:
            raise unknown("party called", party, everyone)
        return everyone.index(party)

    def _checkpoints(self) -> Checkpoints:
        checkpoints = RunFolder(self.folder).checkpoints()
        if checkpoints.load() is None:
            raise ComityError(f"{self.folder} holds no checkpoint.")
        return checkpoints

    def _kept(self, i: int, checkpoints: Checkpoints) -> Any:
        """A party's state; one that was never written is what every party begins with."""
        saved = checkpoints.party_state(i)
        return Site(self.job.algorithm, self.job.parties[i], self.job.root).mine if saved is None else saved.mine
