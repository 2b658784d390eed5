"""What a finished run gives to whoever called it from Python: its figures, and the parties' models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from comity.wire.ledger import Charge
from comity.base.record import Params
from comity.core.server import Note
from comity.training.task import LearningTask, in_chunks
from comity.data.inputs import Inputs
from comity.engines.site import Site
from comity.errors import ComityError, UsageError, unknown
from comity.runs.build import SimulatedRun
from comity.runs.checkpoint import Checkpoints
from comity.runs.folder import RunFolder
from comity.frames import frame
from comity.notebook.html import page, sentences
from comity.privacy.account import PrivacyCharge

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Deployed:
    """A party's model as it would be used."""

    task: LearningTask
    theta: Params
    inputs: Inputs
    class_names: tuple[str, ...]
    """What the party calls the classes, by their numbers."""

    def __repr__(self) -> str:
        values = sum(tensor.numel() for tensor in self.theta.values())
        kinds = f"{self.task.classes} classes" if self.task.classes else "a number"
        return (
            f"<model {self.task.network.name}: from samples of shape {self.inputs.shape} to"
            f" {kinds}, {values:,} values>"
        )

    def _repr_html_(self) -> str:
        how = "model.predict(x) and model.predict_proba(x) take samples as the party has them."
        return page(repr(self)[1:-1], sentences([how]))

    def logits(self, x: Tensor) -> Tensor:
        """Scores for each class, of samples that are prepared already."""
        return in_chunks(lambda part: self.task.logits(self.theta, part), x)

    def predict_proba(self, x: Any) -> Tensor:
        """How likely each class is, for each sample: what training did to the party's samples is
        done to these first.

        `x` is as the party has it: an array, tensor, list or pandas frame, unscaled, with missing
        values (see `Inputs.prepared`).
        """
        if not self.task.classes:
            raise UsageError("This model predicts a number, which has no classes: use predict.")
        return self.logits(self.inputs.prepared(x)).softmax(1)

    def predict(self, x: Any) -> Tensor:
        """The most likely class of each sample, by its number, or the number that it predicts; `x`
        as for `predict_proba`.
        """
        found = self.logits(self.inputs.prepared(x))
        if self.task.classes:
            return found.argmax(1)
        mean, std = self.inputs.preprocess.label
        return found[:, 0] * std + mean


@dataclass(repr=False)
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
        >>> model = result.model("p0")
        >>> pictures = comity.load("digits").x[:3]  # as they are in the dataset, from 0 to 1
        >>> model.predict(pictures).shape, model.predict_proba(pictures.numpy()).shape
        (torch.Size([3]), torch.Size([3, 10]))
        # Samples are prepared already
        >>> model.predict(fed.parties["p0"].test).shape == fed.parties["p0"].test.y.shape
        True
        >>> result
        <fedavg: accuracy 85.3%; digits, iid, 2 parties, 1 round>
    """

    folder: Path
    made: SimulatedRun | Callable[[], SimulatedRun]
    """The run made concrete, or what does so when the models are asked for: its figures need
    neither data nor code.
    """
    summary: dict[str, Any]
    _keep: Any = None
    """A temporary folder lives as long as the result."""

    def __repr__(self) -> str:
        from comity.notebook.views import figure, judged_by, setting

        return (
            f"<{self.summary['algorithm']}: {figure(self.summary, judged_by(self))};"
            f" {setting(self.summary)}>"
        )

    def _repr_html_(self) -> str:
        from comity.notebook.views import of_result

        return of_result(self)

    @cached_property
    def job(self) -> SimulatedRun:
        """The run made concrete: its settings, its parties with their data, its method."""
        return self.made() if callable(self.made) else self.made

    @property
    def temporary(self) -> bool:
        """Whether its folder goes with it."""
        return self._keep is not None

    def to_pandas(self, what: Literal["metrics", "ledger"] = "metrics") -> pandas.DataFrame:
        """The rows of metrics.csv or of ledger.csv as a pandas frame.

        Examples:
            >>> import comity
            >>> fed = comity.load("digits").partition("iid", parties=2, seed=0)
            >>> rows = comity.run("fedavg", fed, rounds=1, model="linear").to_pandas()
            >>> rows[rows.metric == "accuracy"].groupby(["round", "split"]).value.count().loc[1].to_dict()
            {'pooled': 1, 'test': 2, 'validation': 2}
        """
        tables: dict[str, Sequence[Any]] = {"metrics": self.metrics, "ledger": self.ledger}
        if what not in tables:
            raise unknown("table called", str(what), tables)
        return frame(tables[what], (Note if what == "metrics" else Charge)._fields)

    def report(self, out: str | Path | None = None, *, trust: bool = False) -> Path:
        """Write the run's page, as `comity.report` does."""
        from comity.reading import report

        return report(self, out=out, trust=trust)

    @cached_property
    def metrics(self) -> list[Note]:
        """Rows of metrics.csv: (round, party, split, metric, value)."""
        return self._there().read_metrics()

    @cached_property
    def ledger(self) -> list[Charge]:
        """Rows of ledger.csv: (round, work, src, dst, kind, bytes)."""
        return self._there().read_ledger()

    @cached_property
    def privacy(self) -> list[PrivacyCharge]:
        """Rows of privacy.csv: what left parties behind which noise, and what without any;
        `summary["privacy"]` adds it up.
        """
        return self._there().read_privacy()

    def model(self, party: str) -> Deployed:
        """What that party would deploy after the last round."""
        i = self._number(party)
        who = self.job.parties[i]
        checkpoints = self._checkpoints()
        mine = self._kept(i, checkpoints)
        message = self.job.algorithm.message_for(checkpoints.server_state(), i)
        theta = self.job.algorithm.deployed_model(mine, message, who)
        return Deployed(
            self.job.algorithm.party_for(who, mine).task,
            theta,
            self._inputs(party),
            self._class_names(party),
        )

    def _inputs(self, party: str) -> Inputs:
        federation = self.job.federation
        return Inputs(federation.shape, federation.preprocess.for_party(party), federation.schema)

    def _class_names(self, party: str) -> tuple[str, ...]:
        """What the party calls the classes: a concept shift gives each its own names."""
        federation = self.job.federation
        names = federation.class_names or tuple(map(str, range(federation.classes)))
        labels = federation.split.parties[party].labels
        return tuple(names[labels.index(k)] for k in range(len(names))) if labels else names

    def state(self, party: str) -> Any:
        """What the method keeps at that party."""
        return self._kept(self._number(party), self._checkpoints())

    def _number(self, party: str) -> int:
        everyone = self.job.info.names + self.job.info.newcomers
        if party not in everyone:
            raise unknown("party called", party, everyone)
        return everyone.index(party)

    def _there(self) -> RunFolder:
        """Its folder, if it was not taken away."""
        if not self.folder.is_dir():
            raise ComityError(f"The folder of this run is gone: {self.folder}.")
        return RunFolder(self.folder)

    def _checkpoints(self) -> Checkpoints:
        checkpoints = self._there().checkpoints()
        if checkpoints.load() is None:
            raise ComityError(f"{self.folder} holds no checkpoint.")
        return checkpoints

    def _kept(self, i: int, checkpoints: Checkpoints) -> Any:
        """A party's state; one that was never written is what every party begins with."""
        saved = checkpoints.party_state(i)
        return (
            Site(self.job.algorithm, self.job.parties[i], self.job.root).mine
            if saved is None
            else saved.mine
        )
