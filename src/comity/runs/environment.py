"""What a run was made with: the code, the versions, the machine, and exact marks of its settings,
its split and its data.
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


@cache
def version(package: str) -> str:
    """The installed version of a package. Cached, since the package's metadata are parsed anew for
    each question.
    """
    return metadata.version(package)


@cache
def code() -> str:
    """The commit of a checkout (with -dirty if files were changed), or the version of an installed
    package.
    """
    asked = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=10",
    ]
    try:
        found = subprocess.run(
            asked, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        found = ""
    inside = (
        "site-packages" not in Path(__file__).parts
    )  # an installed copy may lie inside somebody else's checkout
    return f"commit {found}" if found and inside else f"version {version('comity')}"


def cores() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def digest(text: str) -> str:
    """A short name for exactly these settings: a run knows those that it was started with."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def environment(settings: str, fingerprint: str, **others: str) -> dict[str, Any]:
    """All that `env.json` holds: of a run with these settings, on data with this fingerprint.

    `others` are whatever else it began with (`split` or `parties`, `plan`), of which it has a mark
    unless it is empty.
    """
    marks = {"config": digest(settings)} | {
        name: digest(text) for name, text in others.items() if text
    }
    return {**here(), "fingerprint": fingerprint, **marks}


def here() -> dict[str, Any]:
    """The code, the versions and the machine, here and now."""
    import torch  # lazily: `comity --version` asks this module for the code only

    return {
        "comity": version("comity"),
        "code": code(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": cores(),
    }


MATTERS = {
    "code": "",  # says itself what it is: a commit or a version
    "python": "Python ",
    "torch": "torch ",
    "numpy": "numpy ",
    "system": "",
    "machine": "",
    "cpu": "kernels for ",
}
"""Upon what it depends which bits come out, and how it is called; with more or fewer processors,
the same do.
"""


def changed_since(before: Mapping[str, Any]) -> str:
    """What is another here than where a run was begun, and what that means, in a sentence; nothing
    if all is as it was.
    """
    now = here()
    others = [
        name
        for name in MATTERS
        if name in before and _plain(name, before[name]) != _plain(name, now[name])
    ]
    if not others:
        return ""
    then, today = (
        " and ".join(f"{MATTERS[name]}{told[name]}" for name in others) for told in (before, now)
    )
    return (
        f"This run was begun with {then} and went on with {today}: from there on it may differ, by"
        " rounding or by more, from one that was made in one go."
    )


def _plain(name: str, value: Any) -> str:
    """A version as far as it matters: Python's last number stands for mended faults."""
    return str(value).rpartition(".")[0] if name == "python" else str(value)
