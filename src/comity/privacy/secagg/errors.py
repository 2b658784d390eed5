"""The error of a round of secure aggregation that cannot go on."""

from __future__ import annotations

from comity.errors import ComityError


class SecureAggregationError(ComityError):
    """A round of secure aggregation was refused or cannot be completed. No reply was exposed."""
