"""Two models that are trained together: among what is trained each has names of its own."""

from __future__ import annotations

from comity.core import Params


def add_prefix(prefix: str, theta: Params) -> Params:
    """One of the models, under names of its own among what is trained together."""
    return {prefix + k: x for k, x in theta.items()}


def strip_prefix(theta: Params, prefix: str) -> Params:
    """One of the models, of what is trained together."""
    return {k.removeprefix(prefix): x for k, x in theta.items() if k.startswith(prefix)}
