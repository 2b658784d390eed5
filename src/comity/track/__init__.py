"""Trackers, which log the metrics of a run to other tools.

Comity has trackers for TensorBoard, MLflow, and Weights & Biases. Any object with the methods of
`Tracker` is one.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from comity.core.server import Note
from comity.errors import UsageError, describe, unknown
from comity.measure.conventions import curve, party_curves
from comity.metrics.metrics import ACCURACY, METRICS
from comity.plugins import call_from_file, is_code
from comity.runs.figures import by_round
from comity.runs.folder import RunFolder
from comity.runs.server_run import ServerRun
from comity.runs.summary import KINDS
from comity.text import escape_terminal


class Tracker(Protocol):
    """Logs runs, one after the other.

    After `begin`, `round` is called for every evaluated round, in order from the first. A run that
    is resumed begins again, and its earlier rounds are repeated: a tracker either writes them again
    or skips those that it has.
    """

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Start to log a run, new or resumed. Its settings are those of config.toml."""

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """Log the figures of an evaluated round, by names such as accuracy/mean or bytes/up."""

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Finish the log. The summary is that of summary.json, or None if the run was stopped."""


def require(library: str, *modules: str) -> None:
    """Raise UsageError if a tracker's library is not installed."""
    if any(find_spec(module) is None for module in modules):
        raise UsageError(f"{library} is not installed: pip install 'comity[track]'.")


def _tensorboard(folder: Path | None) -> Tracker:
    from comity.track.tensorboard import TensorBoard

    return TensorBoard()


def _mlflow(folder: Path | None) -> Tracker:
    from comity.track.mlflow import MLflow

    return MLflow(folder)


def _wandb(folder: Path | None) -> Tracker:
    from comity.track.wandb import WeightsAndBiases

    return WeightsAndBiases()


TRACKERS: dict[str, Callable[[Path | None], Tracker]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}


def make_tracker(tracker: str | Tracker, folder: Path | None) -> Tracker:
    """Return a tracker: by name, from the function `tracker` of a user's file, or as it is.

    `folder` is where MLflow keeps its database.
    """
    if not isinstance(tracker, str):
        return tracker
    if is_code(tracker):
        from_file: Tracker = call_from_file(tracker, "tracker")
        return from_file
    if tracker not in TRACKERS:
        raise unknown("tracker", tracker, TRACKERS)
    return TRACKERS[tracker](folder)


class Trackers:
    """All trackers of a run.

    A tracker that raises an error is dropped with a warning, and the run continues.
    """

    def __init__(
        self,
        trackers: Iterable[str | Tracker] = (),
        folder: Path | None = None,
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        self._specs, self._folder = list(trackers), folder
        self._all = [make_tracker(spec, folder) for spec in self._specs]
        self._active: list[Tracker] = []
        self.warn = warn

    def check_by_name(self) -> None:
        """Raise UsageError if a tracker is an object, which runs in other processes cannot use."""
        tracker = next((spec for spec in self._specs if not isinstance(spec, str)), None)
        if tracker is not None:
            raise UsageError(
                f"The tracker {type(tracker).__name__} is an object of this process, and with"
                " several jobs each run has a process of its own: name a file that makes a"
                " tracker, as in track=['./tracker.py'], or leave out jobs."
            )

    def copy(self, warn: Callable[[str], None]) -> Trackers:
        """Return new trackers of the same kinds, for a run in another process."""
        return Trackers(self._specs, self._folder, warn)

    def begin(self, job: ServerRun, folder: Path) -> None:
        """Start to log a run, and log the rounds that its tables have already."""
        if not self._all:
            return
        settings = job.experiment.model_dump(exclude_none=True)
        self._sizes = {job.info.name(i): party.test for i, party in job.party_infos.items()}
        self._metric = job.metric.name
        self._active = self._call(self._all, lambda tracker: tracker.begin(folder, settings))
        charges = defaultdict(list)
        notes = defaultdict(list)
        total = Counter[str]()
        for charge in RunFolder(folder).read_ledger():
            charges[charge.round].append(charge)
        for note in RunFolder(folder).read_metrics():
            notes[note.round].append(note)
        for t in sorted(charges.keys() | notes.keys()):
            for charge in charges[t]:
                total[charge.kind] += charge.bytes
            self.round(t, notes[t], total)

    def round(self, t: int, notes: Sequence[Note], total: Mapping[str, int]) -> None:
        """Log a round if it was evaluated. `total` is the bytes so far, by direction."""
        if not self._active:
            return
        values = figures(t, notes, total, self._sizes, self._metric)
        if values:
            self._active = self._call(self._active, lambda tracker: tracker.round(t, values))

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Finish the log of the run, if it has begun."""
        self._call(self._active, lambda tracker: tracker.end(summary))
        self._active = []

    def _call(
        self, trackers: Sequence[Tracker], method: Callable[[Tracker], None]
    ) -> list[Tracker]:
        """Call a method of each tracker, and return the trackers that raised no error."""
        working = []
        for tracker in list(trackers):
            try:
                method(tracker)
                working.append(tracker)
            except Exception as why:
                self._all.remove(tracker)
                reason = escape_terminal(" ".join(describe(why).split()))
                self.warn(
                    f"{type(tracker).__name__} failed and is left out from now on; the run itself"
                    f" goes on. {reason}"
                )
        return working


def figures(
    t: int,
    notes: Sequence[Note],
    total: Mapping[str, int],
    sizes: Mapping[str, int],
    metric: str = ACCURACY.name,
) -> dict[str, float]:
    """Return the figures of a round by name; empty if the round was not evaluated.

    Args:
        t: the round
        notes: the rows of metrics.csv of this round
        total: the bytes so far, by direction
        sizes: the number of each party's test samples
        metric: the metric that the run chose; if it is not accuracy, it is added
    """
    losses = {n.party: n.value for n in notes if (n.split, n.metric) == ("test", "loss")}
    if not losses:
        return {}
    values = {
        **_accuracy(t, notes, sizes),
        "loss/mean": fmean(losses.values()),
        **{f"bytes/{kind}": float(total.get(kind, 0)) for kind in KINDS},
        **{f"party_loss/{party}": value for party, value in losses.items()},
    }
    if metric != ACCURACY.name:
        values |= _other_metric(metric, by_round(notes, metric=metric).get(t, {}))
    return values


def _accuracy(t: int, notes: Sequence[Note], sizes: Mapping[str, int]) -> dict[str, float]:
    """Return the accuracies of a round; empty for regression."""
    parties = {party: line[t] for party, line in party_curves(notes).items()}
    if not parties:
        return {}
    validation = [n.value for n in notes if (n.split, n.metric) == ("validation", "accuracy")]
    pooled = curve(notes, "global")
    return {
        "accuracy/mean": fmean(parties.values()),
        "accuracy/weighted": curve(notes, "weighted", sizes)[t],
        "accuracy/worst": min(parties.values()),
        "accuracy/best": max(parties.values()),
        **({"accuracy/global": pooled[t]} if pooled else {}),
        **({"accuracy/validation": fmean(validation)} if validation else {}),
        **{f"party_accuracy/{party}": value for party, value in parties.items()},
    }


def _other_metric(metric: str, parties: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of a round by a metric other than accuracy; empty without parties."""
    if not parties:
        return {}
    sign = METRICS[metric].sign
    return {
        f"{metric}/mean": fmean(parties.values()),
        f"{metric}/worst": sign * min(sign * value for value in parties.values()),
        f"{metric}/best": sign * max(sign * value for value in parties.values()),
        **{f"party_{metric}/{party}": value for party, value in parties.items()},
    }
