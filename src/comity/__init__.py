"""Comity: collaborative learning between parties whose data differ and may not be pooled."""

from comity.data import Federation, load
from comity.errors import ComityError, Refusal
from comity.run import Result, run

__all__ = ["ComityError", "Federation", "Refusal", "Result", "load", "run"]
