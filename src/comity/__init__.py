"""Comity: collaborative learning between parties whose data differ and may not be pooled."""

from comity.data import Federation, load
from comity.errors import ComityError, Refusal
from comity.leaving import Effect, leave_one_out
from comity.run import Result, run

__all__ = ["ComityError", "Effect", "Federation", "Refusal", "Result", "leave_one_out", "load", "run"]
