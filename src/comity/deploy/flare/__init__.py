"""The transport between sites by NVIDIA FLARE 2.9. Only this folder depends on FLARE.

`startup_kits` makes the folders with certificates for server, sites and researchers, and
`hardening` restricts what FLARE may do there. `processes` runs a server or a site in the
foreground. `jobs` submits a job and waits for its end. `apps` runs in the processes of a job, which
`launcher` starts at a site.
"""

from __future__ import annotations

from importlib.util import find_spec

from comity.errors import UsageError


def needs_flare() -> None:
    """Raise `UsageError`, with the command to type, if NVIDIA FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise UsageError(
            "Runs between sites need NVIDIA FLARE, which is not installed: pip install"
            " 'comity[sites]'."
        )
