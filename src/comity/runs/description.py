"""A finished run in one line: its setting and its figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comity.errors import ComityError
from comity.metrics.metrics import ACCURACY, METRICS, Metric
from comity.runs.folder import RunFolder
from comity.runs.run_metric import metric_of
from comity.runs.summary import has_diverged


def setting(summary: Mapping[str, Any]) -> str:
    """Return a run's setting in one line: data, partition, parties and rounds."""
    parties = f"{summary['parties']} {'party' if summary['parties'] == 1 else 'parties'}"
    rounds = f"{summary['rounds']} {'round' if summary['rounds'] == 1 else 'rounds'}"
    return f"{summary['dataset']}, {summary['partition']}, {parties}, {rounds}"


def chosen_metric(path: Path, summary: Mapping[str, Any]) -> Metric:
    """Return the metric by which the run in a folder is judged."""
    folder = RunFolder(path)
    try:
        return metric_of(folder, folder.read_experiment())
    except ComityError:  # the folder is missing or damaged; reading its tables will say so
        name = str(summary.get("metric"))
        return METRICS[name] if name in METRICS or name in METRICS.custom else ACCURACY


def figure(summary: Mapping[str, Any], metric: Metric) -> str:
    """Return the name and the mean of a run's metric, or why it has none."""
    block = summary.get(metric.name) or {}
    if block.get("mean") is None:
        return (
            f"{metric.title} {'diverged' if has_diverged(block) else 'not reported by any party'}"
        )
    return f"{metric.title} {block['mean']:.1%}"
