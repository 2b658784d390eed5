"""MLflow: a run in a local database beside the runs, or wherever MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from comity.names import display_name
from comity.runs.checkpoint import write_atomically
from comity.track import needs

KEPT = "mlflow.json"  # in a run's folder: which run of MLflow's it is
STORE = "mlflow.db"
EXPERIMENT = "comity"
METRICS = 1000  # so many MLflow takes at once
PARAMETERS = 100  # so many it takes at once
LONGEST = 6000  # characters of a parameter
URI = "MLFLOW_TRACKING_URI"


class MLflow:
    """Logs to mlflow.db in `home`, which is the folder around the run's unless told.

    RUN_DIR/mlflow.json says which run it is there, and a resumed run goes on with it. Rounds that
    MLflow has already are left out, since they come out the same again.
    """

    def __init__(self, home: Path | None = None) -> None:
        needs("MLflow", "mlflow", *(() if URI in os.environ else ("sqlalchemy", "alembic")))
        self._home = home

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Go on with the run that MLflow has, or make one whose parameters are the settings."""
        os.environ.setdefault(
            "MLFLOW_DISABLE_TELEMETRY", "true"
        )  # nothing leaves this machine unasked
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        with _one_at_a_time(self._home or folder.parent):
            self._begin(folder, settings)

    def _begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        known = _kept(folder)
        store = (
            folder / known["store"] if "store" in known else (self._home or folder.parent) / STORE
        )
        self._client = MlflowClient(os.environ.get(URI) or f"sqlite:///{store.resolve()}")
        try:
            self._run = self._client.get_run(known["run"]).info.run_id
            self._client.update_run(self._run, "RUNNING")
        except (KeyError, MlflowException):  # new, or of another store
            self._run = self._create(folder, settings)
            at = {} if URI in os.environ else {"store": os.path.relpath(store, folder)}
            write_atomically(folder / KEPT, json.dumps(at | {"run": self._run}) + "\n")
        self._last = max(
            (point.step for point in self._client.get_metric_history(self._run, "accuracy/mean")),
            default=-1,
        )

    def _create(self, folder: Path, settings: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        where = found.experiment_id if found else self._client.create_experiment(name)
        title = (
            f"{display_name(settings['algorithm'])} on {settings['data']}, seed {settings['seed']}"
        )
        run: str = self._client.create_run(
            where, run_name=title, tags={"folder": str(folder.resolve())}
        ).info.run_id
        parameters = [Param(key, str(value)[:LONGEST]) for key, value in _flat(settings)]
        for k in range(0, len(parameters), PARAMETERS):
            self._client.log_batch(run, params=parameters[k : k + PARAMETERS])
        return run

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """A metric each, with the round as its step."""
        from mlflow.entities import Metric

        if t <= self._last:
            return
        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, t) for name, value in figures.items()]
        for k in range(0, len(metrics), METRICS):
            self._client.log_batch(self._run, metrics=metrics[k : k + METRICS])

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Say how it ended."""
        self._client.set_terminated(self._run, "KILLED" if summary is None else "FINISHED")


@contextmanager
def _one_at_a_time(home: Path) -> Iterator[None]:
    """Of runs that begin side by side, one makes MLflow's database and experiment, and the others
    find them there.
    """
    try:
        import fcntl
    except ImportError:  # a system on which runs are not forked either
        yield
        return
    held = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _kept(folder: Path) -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads((folder / KEPT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return known


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Tables in tables as dotted names."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
