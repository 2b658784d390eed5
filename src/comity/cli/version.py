"""The version of Comity. This module does not import torch, so it is fast."""

from __future__ import annotations

from importlib.metadata import version

from comity.runs.environment import code


def version_line() -> str:
    """Return the version and, in a git checkout, the commit."""
    origin = code()
    commit = f" ({origin})" if origin.startswith("commit") else ""
    return f"comity {version('comity')}{commit}"
