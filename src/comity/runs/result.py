"""The result of a finished run in Python: its scores, and the parties' models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from comity.base.record import Params
from comity.core.server import Note
from comity.data import Federation
from comity.data.inputs import Inputs
from comity.engines.site import Site
from comity.errors import ComityError, UsageError, unknown
from comity.frames import frame
from comity.html import page, sentences, view
from comity.metrics.calibration import UNCALIBRATED, Calibration
from comity.privacy.account import PrivacyCharge
from comity.runs.build import SimulatedRun
from comity.runs.checkpoint import Checkpoints
from comity.runs.description import chosen_metric, figure, setting
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import RunWarning, read_warnings
from comity.training.task import LearningTask, in_chunks
from comity.wire.ledger import Charge

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Deployed:
    """A party's model, for predictions."""

    task: LearningTask
    theta: Params
    inputs: Inputs
    class_names: tuple[str, ...]
    """The party's names of the classes, by number."""
    calibration: Calibration = UNCALIBRATED
    """How its logits are calibrated (`calibrate`), and by which of the party's samples."""

    def __repr__(self) -> str:
        values = sum(tensor.numel() for tensor in self.theta.values())
        output = f"{self.task.classes} classes" if self.task.classes else "a number"
        return (
            f"<model {self.task.network.name}: from samples of shape {self.inputs.shape} to"
            f" {output}, {values:,} values>"
        )

    def _repr_html_(self) -> str:
        hint = "model.predict(x) and model.predict_proba(x) take samples as the party has them."
        return page(repr(self)[1:-1], sentences([hint]))

    def logits(self, x: Tensor) -> Tensor:
        """Calibrated logits of samples that are preprocessed already."""
        return self.calibration.apply(in_chunks(lambda part: self.task.logits(self.theta, part), x))

    def predict_proba(self, x: Any) -> Tensor:
        """Class probabilities of each sample. The party's preprocessing is applied first.

        `x` is unprocessed: an array, tensor, list or pandas frame, unscaled, with missing values
        (see `Inputs.prepared`).
        """
        if not self.task.classes:
            raise UsageError("This model predicts a number, which has no classes: use predict.")
        return self.logits(self.inputs.prepare(x)).softmax(1)

    def predict(self, x: Any) -> Tensor:
        """The most likely class of each sample, by number, or the predicted value in regression.
        `x` as in `predict_proba`.
        """
        outputs = self.logits(self.inputs.prepare(x))
        if self.task.classes:
            return outputs.argmax(1)
        mean, std = self.inputs.preprocess.label
        return outputs[:, 0] * std + mean


def inputs_of(federation: Federation, party: str) -> Inputs:
    """How a party's samples are prepared."""
    preprocess = federation.preprocess.for_party(party)
    return Inputs(federation.shape, preprocess, federation.schema_at(party))


def class_names_of(federation: Federation, party: str) -> tuple[str, ...]:
    """The party's names of the classes. With a concept shift, parties have different ones."""
    names = federation.class_names or tuple(map(str, range(federation.classes)))
    labels = federation.split.parties[party].labels
    return tuple(names[labels.index(k)] for k in range(len(names))) if labels else names


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
        >>> sent = sum(row.bytes for row in result.ledger if row.kind == "up")
        >>> sent == result.summary["bytes"]["up"]
        True
        >>> model = result.model("p0")
        >>> pictures = comity.load("digits").x[:3]  # as they are in the dataset, from 0 to 1
        >>> model.predict(pictures).shape, model.predict_proba(pictures.numpy()).shape
        (torch.Size([3]), torch.Size([3, 10]))
        >>> # Samples of a party are prepared already.
        >>> model.predict(fed.parties["p0"].test).shape == fed.parties["p0"].test.y.shape
        True
        >>> result
        <fedavg: accuracy 85.3%; digits, iid, 2 parties, 1 round>
    """

    folder: Path
    source: SimulatedRun | Callable[[], SimulatedRun]
    """The run, or a function that builds it when models are requested: scores need neither data nor
    code.
    """
    summary: dict[str, Any]
    _keep: Any = None
    """Keeps a temporary folder alive as long as the result."""

    def __repr__(self) -> str:
        metric = chosen_metric(self.folder, self.summary)
        return (
            f"<{self.summary['algorithm']}: {figure(self.summary, metric)};"
            f" {setting(self.summary)}>"
        )

    def _repr_html_(self) -> str:
        return view(self)

    @cached_property
    def job(self) -> SimulatedRun:
        """The run: its settings, its parties with their data, its method."""
        return self.source() if callable(self.source) else self.source

    @property
    def temporary(self) -> bool:
        """Whether its folder is removed with it."""
        return self._keep is not None

    def to_pandas(self, what: Literal["metrics", "ledger"] = "metrics") -> pandas.DataFrame:
        """The rows of metrics.csv or of ledger.csv as a pandas frame.

        Examples:
            >>> import comity
            >>> fed = comity.load("digits").partition("iid", parties=2, seed=0)
            >>> rows = comity.run("fedavg", fed, rounds=1, model="linear").to_pandas()
            >>> accuracies = rows[rows.metric == "accuracy"].groupby(["round", "split"])
            >>> accuracies.value.count().loc[1].to_dict()
            {'pooled': 1, 'test': 2, 'validation': 2}
        """
        tables: dict[str, Sequence[Any]] = {"metrics": self.metrics, "ledger": self.ledger}
        if what not in tables:
            raise unknown("table called", str(what), tables)
        return frame(tables[what], (Note if what == "metrics" else Charge)._fields)

    def report(self, out: str | Path | None = None, *, trust: bool = False) -> Path:
        """Write the run's HTML page, as `comity.report` does."""
        from comity.reading import report

        return report(self, out=out, trust=trust)

    @cached_property
    def metrics(self) -> list[Note]:
        """Rows of metrics.csv: (round, party, split, metric, value)."""
        return self._run_folder().read_metrics()

    @cached_property
    def ledger(self) -> list[Charge]:
        """Rows of ledger.csv: (round, call, src, dst, kind, bytes)."""
        return self._run_folder().read_ledger()

    @cached_property
    def privacy(self) -> list[PrivacyCharge]:
        """Rows of privacy.csv: what left parties with which noise, and what without.
        `summary["privacy"]` composes it.
        """
        return self._run_folder().read_privacy()

    @property
    def warnings(self) -> list[RunWarning]:
        """The warnings about the run: a text each, when it was known and, if known, the round."""
        return read_warnings(self.summary)

    def model(self, party: str) -> Deployed:
        """The model that a party would deploy after the last round."""
        i = self._number(party)
        owner = self.job.parties[i]
        checkpoints = self._checkpoints()
        state = self._party_state(i, checkpoints)
        message = self.job.algorithm.message_for(checkpoints.server_state(), i)
        theta = self.job.algorithm.deployed_model(state, message, owner)
        task = self.job.algorithm.party_for(owner, state).task
        site = Site(self.job.algorithm, owner, self.job.root)
        return Deployed(
            task,
            theta,
            inputs_of(self.job.federation, party),
            class_names_of(self.job.federation, party),
            site.calibration(task, theta),
        )

    def state(self, party: str) -> Any:
        """The method's state at a party."""
        return self._party_state(self._number(party), self._checkpoints())

    def _number(self, party: str) -> int:
        all_names = self.job.info.names + self.job.info.newcomers
        if party not in all_names:
            raise unknown("party called", party, all_names)
        return all_names.index(party)

    def _run_folder(self) -> RunFolder:
        """The folder of the run. Raises ComityError if it was removed."""
        if not self.folder.is_dir():
            raise ComityError(f"The folder of this run is gone: {self.folder}.")
        return RunFolder(self.folder)

    def _checkpoints(self) -> Checkpoints:
        checkpoints = self._run_folder().checkpoints()
        if checkpoints.load() is None:
            raise ComityError(f"{self.folder} holds no checkpoint.")
        return checkpoints

    def _party_state(self, i: int, checkpoints: Checkpoints) -> Any:
        """The method's state at a party: the saved one, or the initial one if none was saved."""
        saved = checkpoints.party_state(i)
        if saved is None:
            return Site(self.job.algorithm, self.job.parties[i], self.job.root).mine
        return saved.mine
