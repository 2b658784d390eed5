"""MLflow: logs to a local database beside the runs, or to MLFLOW_TRACKING_URI if it is set."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from comity.names import display_name
from comity.safe_files import write_atomically
from comity.track import require

LINK = "mlflow.json"
"""The file in a run's folder that names the run's MLflow run."""
STORE = "mlflow.db"
EXPERIMENT = "comity"
MAX_METRICS = 1000
"""The most metrics that MLflow takes in one request."""
MAX_PARAMETERS = 100
"""The most parameters that MLflow takes in one request."""
MAX_LENGTH = 6000
"""The most characters of a parameter."""
URI = "MLFLOW_TRACKING_URI"


class MLflow:
    """Logs to mlflow.db in a folder (default: the folder that contains the run's folder).

    RUN_DIR/mlflow.json names the MLflow run, and a resumed run continues it. Rounds that MLflow has
    already are skipped: a resumed run has the same figures.
    """

    def __init__(self, folder: Path | None = None) -> None:
        database = () if URI in os.environ else ("sqlalchemy", "alembic")
        require("MLflow", "mlflow", *database)
        self._folder = folder

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Continue the MLflow run of this folder, or create one with the settings as parameters."""
        # Without this, MLflow would send usage data to its developers.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        with _lock(self._folder or folder.parent):
            self._begin(folder, settings)

    def _begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        link = _read_link(folder)
        store = (self._folder or folder.parent) / STORE
        if "store" in link:
            store = folder / link["store"]
        self._client = MlflowClient(os.environ.get(URI) or f"sqlite:///{store.resolve()}")
        try:
            self._run = self._client.get_run(link["run"]).info.run_id
            self._client.update_run(self._run, "RUNNING")
        except (KeyError, MlflowException):  # the run is new, or in another store
            self._run = self._create(folder, settings)
            link = {} if URI in os.environ else {"store": os.path.relpath(store, folder)}
            write_atomically(folder / LINK, json.dumps(link | {"run": self._run}) + "\n")
        self._last = max(
            (point.step for point in self._client.get_metric_history(self._run, "accuracy/mean")),
            default=-1,
        )

    def _create(self, folder: Path, settings: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(name)
        )
        title = (
            f"{display_name(settings['algorithm'])} on {settings['data']}, seed {settings['seed']}"
        )
        run: str = self._client.create_run(
            experiment_id, run_name=title, tags={"folder": str(folder.resolve())}
        ).info.run_id
        parameters = [Param(key, str(value)[:MAX_LENGTH]) for key, value in _flatten(settings)]
        for k in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(run, params=parameters[k : k + MAX_PARAMETERS])
        return run

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """Log each figure as a metric, with the round as its step."""
        from mlflow.entities import Metric

        if t <= self._last:
            return
        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, t) for name, value in figures.items()]
        for k in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run, metrics=metrics[k : k + MAX_METRICS])

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Set the status of the MLflow run."""
        self._client.set_terminated(self._run, "KILLED" if summary is None else "FINISHED")


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, so that runs that start at once create one database together."""
    try:
        import fcntl
    except ImportError:  # the system does not fork runs either
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read_link(folder: Path) -> dict[str, str]:
    try:
        link: dict[str, str] = json.loads((folder / LINK).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return link


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all settings, those in tables under dotted names."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
