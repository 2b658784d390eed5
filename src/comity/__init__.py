"""Comity: collaborative learning between parties whose data differ and may not be pooled."""

from comity.data import Federation, load
from comity.errors import ComityError, Refusal
from comity.experiments.result import Result
from comity.experiments.run import run
from comity.studies.leave_one_out import Effect, leave_one_out

__all__ = ["ComityError", "Effect", "Federation", "Refusal", "Result", "leave_one_out", "load", "run"]
