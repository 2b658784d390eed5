"""Which code this is: a run's folder and a reproduced table say it."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def code() -> str:
    """The commit of a checkout (with -dirty if files were changed), or the version of an installed package."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        found = ""
    inside = "site-packages" not in Path(__file__).parts  # an installed copy may lie inside somebody else's checkout
    return f"commit {found}" if found and inside else f"version {version('comity')}"
