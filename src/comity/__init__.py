"""Comity: collaborative learning between parties whose data differ and may not be pooled.

Examples:
    >>> import comity
    >>> fed = comity.load("digits").partition("dirichlet(alpha=0.1)", parties=4, seed=0)
    >>> result = comity.run("fedavg+dbe", fed, rounds=2, seed=0, model="linear", kappa=50)
    >>> sorted(result.summary["accuracy"]["per_party"])
    ['p0', 'p1', 'p2', 'p3']
    >>> result.summary["bytes"]["up"] > 0
    True
"""

from __future__ import annotations

from importlib import import_module

# `typing.TYPE_CHECKING` is not used: importing `typing` takes longer than the rest of this module.
# A literal False would stop Jedi from completing the names below.
TYPE_CHECKING = bool()  # noqa: UP018
if TYPE_CHECKING:
    from typing import Any

    from comity.auditing.audit import audit
    from comity.calls import advise, compare, leave_one_out, profile, run, tune
    from comity.data import Dataset, Federation, load
    from comity.errors import ComityError, UsageError
    from comity.metrics.custom_metrics import metric
    from comity.reading import disclose, open, report
    from comity.runs.result import Result
    from comity.studies.advise.advise import Advice
    from comity.studies.finished import Comparison, Tuning
    from comity.studies.leave_one_out import Effect

__all__ = [
    "Advice",
    "ComityError",
    "Comparison",
    "Dataset",
    "Effect",
    "Federation",
    "Result",
    "Tuning",
    "UsageError",
    "__version__",
    "advise",
    "audit",
    "compare",
    "disclose",
    "leave_one_out",
    "load",
    "metric",
    "open",
    "profile",
    "report",
    "run",
    "tune",
]
__version__: str

_MODULES = {
    "Advice": "comity.studies.advise.advise",
    "ComityError": "comity.errors",
    "Comparison": "comity.studies.finished",
    "Dataset": "comity.data",
    "Effect": "comity.studies.leave_one_out",
    "Federation": "comity.data",
    "Result": "comity.runs.result",
    "Tuning": "comity.studies.finished",
    "UsageError": "comity.errors",
    "advise": "comity.calls",
    "audit": "comity.auditing.audit",
    "compare": "comity.calls",
    "disclose": "comity.reading",
    "leave_one_out": "comity.calls",
    "load": "comity.data",
    "metric": "comity.metrics.custom_metrics",
    "open": "comity.reading",
    "profile": "comity.calls",
    "report": "comity.reading",
    "run": "comity.calls",
    "tune": "comity.calls",
}
"""The module that defines each public name."""


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used.

    Importing everything here would import torch, and `comity --version` should not wait for that.
    The version is read on demand for the same reason: the command line has to react to Ctrl-C soon
    after it starts.
    """
    if name == "__version__":
        value: Any = import_module("importlib.metadata").version("comity")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'comity' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
