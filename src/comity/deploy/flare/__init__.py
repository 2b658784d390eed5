"""NVIDIA FLARE 2.9 as the way between sites; nothing outside of this folder knows of it.

`kits` makes the folders with certificates that server, sites and researchers need, `hardening`
writes into them what FLARE may do; `processes` runs a server or a site in the foreground, `jobs`
submits an order and waits for its end; `apps` is what runs in the processes of a job, `launcher`
how a site starts them.
"""

from __future__ import annotations

from importlib.util import find_spec

from comity.errors import UsageError


def needs_flare() -> None:
    """Refuse, with the way out, where NVIDIA FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise UsageError(
            "Runs between sites need NVIDIA FLARE, which is not installed: pip install"
            " 'comity[sites]'."
        )
