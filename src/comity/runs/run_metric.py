"""The metric of a run in a folder, from its function or from the description in the folder."""

from __future__ import annotations

from comity.errors import ComityError, UsageError
from comity.metrics.custom_metrics import is_custom, load_metric, register_description
from comity.metrics.metrics import ACCURACY, METRICS, Metric
from comity.plugins import is_code
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.trust import check, code_of


def metric_of(folder: RunFolder, experiment: Experiment, trust: bool = False) -> Metric:
    """The metric of a run. A user's file is executed only if the folder is the user's own, or with
    `trust`.

    Otherwise the description in env.json is used, or accuracy if there is none, which all
    classification runs have.
    """
    key = experiment.metric
    if not is_custom(key):
        return METRICS[key]
    try:
        if is_code(key):
            check(
                folder.path, folder.config.read_text(encoding="utf-8"), code_of(experiment), trust
            )
        return load_metric(key)
    except UsageError:
        try:
            return register_description(key, folder.read_environment()["metric"])
        except (ComityError, KeyError, TypeError):
            return ACCURACY
