"""What the machine has, as far as it tells."""

from __future__ import annotations

import os

from comity.errors import Refusal
from comity.units import size


def memory() -> int | None:
    """Bytes of memory that this process could have at most; None where the system does not say."""
    limits = []
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit

        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        if (allowed := getrlimit(RLIMIT_AS)[0]) != RLIM_INFINITY:
            limits.append(allowed)
    except (ImportError, OSError, ValueError):
        pass
    return min(limits, default=None)


def check_fits(what: str, needed: int) -> None:
    """Refuse what cannot be held however little else there is: asking the system for it may end in its killing us."""
    most = memory()
    if most is not None and needed > most:
        raise Refusal(
            f"{what}, would take {size(min(needed, 10**30))}, but this machine has {size(most)} of memory: make it smaller."
        )
