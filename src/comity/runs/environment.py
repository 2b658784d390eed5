"""The environment of a run: code, versions and machine, and digests of its settings, split and
data.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import Any

from comity.machine import processor


@cache
def version(package: str) -> str:
    """The installed version of a package. Cached, since each lookup parses the package's
    metadata.
    """
    return metadata.version(package)


@cache
def code() -> str:
    """The commit of a checkout (with -dirty if files were changed), or the version of an installed
    package.
    """
    here = Path(__file__)
    if "site-packages" in here.parts:  # an installed copy may be inside another checkout
        return f"version {version('comity')}"
    describe = ["describe", "--always", "--dirty", "--abbrev=10"]
    command = ["git", "-C", str(here.parent), *describe]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        commit = result.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = ""
    return f"commit {commit}" if commit else f"version {version('comity')}"


def cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def digest(text: str) -> str:
    """A short digest of a text."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def environment(settings: str, fingerprint: str, **others: str) -> dict[str, Any]:
    """The contents of `env.json` for a run with these settings, on data with this fingerprint.

    `others` are further texts that the run starts with (`split` or `parties`, `plan`). Nonempty
    ones are saved as digests.
    """
    digests = {"config": digest(settings)} | {
        name: digest(text) for name, text in others.items() if text
    }
    return {**here(), "fingerprint": fingerprint, **digests}


def here() -> dict[str, Any]:
    """The current code, versions and machine."""
    import torch  # lazily: `comity --version` needs only the code's version

    return {
        "comity": version("comity"),
        "code": code(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "machine": platform.machine(),
        "processor": processor(),
        "system": platform.system(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": cores(),
    }


REPRODUCIBLE_WITH = {
    "code": "",  # begins with "commit" or "version"
    "python": "Python ",
    "torch": "torch ",
    "numpy": "numpy ",
    "system": "",
    "machine": "",
    "cpu": "kernels for ",
}
"""What bit-for-bit results depend on, with the prefix of each value in a message. The number of
processors does not matter.
"""


def changed_since(before: Mapping[str, Any]) -> str:
    """A warning if the environment differs from that at the start of a run; empty if it does
    not.
    """
    now = here()
    others = [
        name
        for name in REPRODUCIBLE_WITH
        if name in before and _plain(name, before[name]) != _plain(name, now[name])
    ]
    if not others:
        return ""
    then, today = (
        " and ".join(f"{REPRODUCIBLE_WITH[name]}{values[name]}" for name in others)
        for values in (before, now)
    )
    return (
        f"This run was begun with {then} and went on with {today}: from there on it may differ, by"
        " rounding or by more, from one that was made in one go."
    )


def _plain(name: str, value: Any) -> str:
    """The part of a version that matters: a Python patch release does not."""
    return str(value).rpartition(".")[0] if name == "python" else str(value)
