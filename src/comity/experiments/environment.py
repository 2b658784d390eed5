"""What a run was made with: the code, the versions, the machine, and exact marks of its settings and its data."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any


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


def cores() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def digest(text: str) -> str:
    """A short name for exactly these settings: a run knows those that it was started with."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def environment(settings: str, fingerprint: str) -> dict[str, Any]:
    """All that `env.json` holds: of a run with these settings, on data with this fingerprint."""
    import torch  # lazily: `comity --version` asks this module for the code only

    return {
        "comity": version("comity"),
        "code": code(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": cores(),
        "fingerprint": fingerprint,
        "config": digest(settings),
    }
