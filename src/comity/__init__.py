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

# typing's own takes longer to import than all that stands here; where it is plainly False, Jedi
# completes nothing.
TYPE_CHECKING = bool()  # noqa: UP018
if TYPE_CHECKING:
    from typing import Any

    from comity.audit.auditing import audit
    from comity.calls import compare, leave_one_out, run, tune
    from comity.data import Dataset, Federation, load
    from comity.errors import ComityError, UsageError
    from comity.metrics.custom_metrics import metric
    from comity.reading import disclose, open, report
    from comity.runs.result import Result
    from comity.studies.finished import Comparison, Tuning
    from comity.studies.leave_one_out import Effect

__all__ = [
    "ComityError",
    "Comparison",
    "Dataset",
    "Effect",
    "Federation",
    "Result",
    "Tuning",
    "UsageError",
    "__version__",
    "audit",
    "compare",
    "disclose",
    "leave_one_out",
    "load",
    "metric",
    "open",
    "report",
    "run",
    "tune",
]
__version__: str

_HOMES = {
    "ComityError": "comity.errors",
    "Comparison": "comity.studies.finished",
    "Dataset": "comity.data",
    "Effect": "comity.studies.leave_one_out",
    "Federation": "comity.data",
    "UsageError": "comity.errors",
    "Result": "comity.runs.result",
    "Tuning": "comity.studies.finished",
    "compare": "comity.calls",
    "disclose": "comity.reading",
    "leave_one_out": "comity.calls",
    "load": "comity.data",
    "metric": "comity.metrics.custom_metrics",
    "open": "comity.reading",
    "run": "comity.calls",
    "tune": "comity.calls",
}


def __getattr__(name: str) -> Any:
    """A public name from where it is at home, when it is first asked for: `comity --version` does
    not wait for torch.

    The version too: reading it takes longer than all that stands here, and the command line must be
    quick to hear Ctrl-C.
    """
    if name == "__version__":
        found: Any = import_module("importlib.metadata").version("comity")
    elif name in ("audit", "report"):
        found = import_module(f"comity.{name}")  # a folder of modules that can be called: see there
    elif name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'comity' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
