"""Which Comity this is. Nothing here imports torch, so that it is said at once."""

from __future__ import annotations

from importlib.metadata import version

from comity.runs.environment import code


def version_line() -> str:
    """The version and, in a checkout, the commit."""
    known = code()
    return f"comity {version('comity')}" + (f" ({known})" if known.startswith("commit") else "")
