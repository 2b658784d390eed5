"""Trackers: a run's course written down elsewhere, too. Comity has TensorBoard and MLflow; anything
with three methods is one.
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
    """Whoever follows a run; one may follow several, one after the other.

    After `begin` every evaluated round is told from the first on, in order. A run that is resumed
    begins again, and what was known of it is told again: a tracker either writes it anew or leaves
    out what it has.
    """

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """A run begins, or goes on, in a folder; its settings are those of config.toml."""

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """A round was evaluated: figures by name, as in accuracy/mean or bytes/up."""

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """The run is finished, and this is summary.json; None: it was stopped."""


def needs(what: str, *modules: str) -> None:
    """Refuse a tracker whose library is not here, before anything starts."""
    if any(find_spec(module) is None for module in modules):
        raise UsageError(f"{what} is not installed: pip install 'comity[track]'.")


def _tensorboard(home: Path | None) -> Tracker:
    from comity.track.tensorboard import TensorBoard

    return TensorBoard()


def _mlflow(home: Path | None) -> Tracker:
    from comity.track.mlflow import MLflow

    return MLflow(home)


KNOWN: dict[str, Callable[[Path | None], Tracker]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
}


def tracker(wanted: str | Tracker, home: Path | None) -> Tracker:
    """A tracker by name, or one that a user's file makes with tracker()."""
    if not isinstance(wanted, str):
        return wanted
    if is_code(wanted):
        made: Tracker = call_from_file(wanted, "tracker")
        return made
    if wanted not in KNOWN:
        raise unknown("tracker", wanted, KNOWN)
    return KNOWN[wanted](home)


class Trackers:
    """All trackers of a run. One that fails is told of once and left out from then on; the run does
    not notice.
    """

    def __init__(
        self,
        wanted: Iterable[str | Tracker] = (),
        home: Path | None = None,
        told: Callable[[str], None] = warnings.warn,
    ) -> None:
        self._wanted, self._home = list(wanted), home
        self._all = [tracker(one, home) for one in self._wanted]
        self._following: list[Tracker] = []
        self.told = told

    def check_by_name(self) -> None:
        """Refuse trackers that are objects, where each run has a process of its own."""
        if one := next((one for one in self._wanted if not isinstance(one, str)), None):
            raise UsageError(
                f"A {type(one).__name__} that is an object lives in this process, and with several"
                " jobs each run has its own: name a file that makes one, as in"
                " track=['./tracker.py'], or leave jobs away."
            )

    def anew(self, told: Callable[[str], None]) -> Trackers:
        """The same trackers made once more, for a run in another process."""
        return Trackers(self._wanted, self._home, told)

    def begin(self, job: ServerRun, folder: Path) -> None:
        """Follow a run; what its tables hold already is told first."""
        if not self._all:
            return
        settings = job.experiment.model_dump(exclude_none=True)
        self._sizes = {job.info.name(i): said.test for i, said in job.party_infos.items()}
        self._metric = job.metric.name
        self._following = self._each(self._all, lambda one: one.begin(folder, settings))
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
        """A round is over; the trackers hear of it if it was evaluated."""
        if self._following and (found := figures(t, notes, total, self._sizes, self._metric)):
            self._following = self._each(self._following, lambda one: one.round(t, found))

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """The run has ended; it may not even have begun."""
        self._each(self._following, lambda one: one.end(summary))
        self._following = []

    def _each(self, who: Sequence[Tracker], tell: Callable[[Tracker], None]) -> list[Tracker]:
        """Tell them; those that it went well with."""
        well = []
        for one in list(who):
            try:
                tell(one)
                well.append(one)
            except Exception as why:
                self._all.remove(one)
                words = escape_terminal(" ".join(describe(why).split()))
                self.told(
                    f"{type(one).__name__} failed and is left out from now on; the run itself goes"
                    f" on. {words}"
                )
        return well


def figures(
    t: int,
    notes: Sequence[Note],
    total: Mapping[str, int],
    sizes: Mapping[str, int],
    metric: str = ACCURACY.name,
) -> dict[str, float]:
    """What trackers are told of a round; nothing if it was not evaluated. `sizes` are the parties'
    test samples.

    Another metric than accuracy that the run is judged by is told beside it.
    """
    losses = {n.party: n.value for n in notes if (n.split, n.metric) == ("test", "loss")}
    if not losses:
        return {}
    return {
        **_accuracy(t, notes, sizes),
        "loss/mean": fmean(losses.values()),
        **{f"bytes/{kind}": float(total.get(kind, 0)) for kind in KINDS},
        **{f"party_loss/{party}": value for party, value in losses.items()},
        **(
            _told(metric, by_round(notes, metric=metric).get(t, {}))
            if metric != ACCURACY.name
            else {}
        ),
    }


def _accuracy(t: int, notes: Sequence[Note], sizes: Mapping[str, int]) -> dict[str, float]:
    """The accuracies of a round; none where the label is a number."""
    parties = {party: line[t] for party, line in party_curves(notes).items()}
    if not parties:
        return {}
    chosen_by = [n.value for n in notes if (n.split, n.metric) == ("validation", "accuracy")]
    return {
        "accuracy/mean": fmean(parties.values()),
        "accuracy/weighted": curve(notes, "weighted", sizes)[t],
        "accuracy/worst": min(parties.values()),
        "accuracy/best": max(parties.values()),
        **({"accuracy/global": pooled[t]} if (pooled := curve(notes, "global")) else {}),
        **({"accuracy/validation": fmean(chosen_by)} if chosen_by else {}),
        **{f"party_accuracy/{party}": value for party, value in parties.items()},
    }


def _told(metric: str, parties: Mapping[str, float]) -> dict[str, float]:
    """The figures of a round by another metric than accuracy."""
    if not parties:
        return {}
    sign = METRICS[metric].sign
    return {
        f"{metric}/mean": fmean(parties.values()),
        f"{metric}/worst": sign * min(sign * value for value in parties.values()),
        f"{metric}/best": sign * max(sign * value for value in parties.values()),
        **{f"party_{metric}/{party}": value for party, value in parties.items()},
    }
