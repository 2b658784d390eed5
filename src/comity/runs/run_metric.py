"""What a run that lies in a folder was judged by, whether the function is here or only what the
folder says of it.
"""

from __future__ import annotations

from comity.metrics.custom_metrics import register_description, is_custom, load_metric
from comity.metrics.metrics import ACCURACY, METRICS, Metric
from comity.errors import ComityError, UsageError
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.trust import check, code_of
from comity.plugins import is_code


def metric_of(folder: RunFolder, experiment: Experiment, trust: bool = False) -> Metric:
    """The metric of a run; a user's own file is run only if the folder is the user's own, or
    `trust` says that it may be.

    Failing that, it is the description in env.json; accuracy if there is none, which all runs of
    classes have.
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
