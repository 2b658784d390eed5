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

from comity.data import Federation, load
from comity.errors import ComityError, Refusal
from comity.experiments.result import Result
from comity.experiments.run import run
from comity.studies.leave_one_out import Effect, leave_one_out

__all__ = ["ComityError", "Effect", "Federation", "Refusal", "Result", "leave_one_out", "load", "run"]
