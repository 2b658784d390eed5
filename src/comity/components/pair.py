"""Prefixes for the parameters of two models that are trained as one set of parameters."""

from __future__ import annotations

from comity.core import Params


def add_prefix(prefix: str, theta: Params) -> Params:
    """The parameters of one model, with a prefix before their names."""
    return {prefix + k: x for k, x in theta.items()}


def strip_prefix(theta: Params, prefix: str) -> Params:
    """The parameters with this prefix, under their names in the model."""
    return {k.removeprefix(prefix): x for k, x in theta.items() if k.startswith(prefix)}
