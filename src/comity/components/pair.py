"""Two models that are trained together: among what is trained each has names of its own."""

from __future__ import annotations

from comity.core import Params


def named(which: str, theta: Params) -> Params:
    """One of the models, under names of its own among what is trained together."""
    return {which + k: x for k, x in theta.items()}


def part(theta: Params, which: str) -> Params:
    """One of the models, of what is trained together."""
    return {k.removeprefix(which): x for k, x in theta.items() if k.startswith(which)}
