"""Networks by name, and the user's own."""

from __future__ import annotations

import inspect
from copy import deepcopy

from torch import nn

from comity.core.task import Network
from comity.errors import Refusal, unknown
from comity.models.modules import Modules
from comity.models.zoo import ZOO
from comity.spec import call, parse

Pair = tuple[nn.Module, nn.Module]


def build(model: str | Pair, shape: tuple[int, ...], classes: int) -> Network:
    """The network `model` for samples of that shape: a name with options, a user's file, or a pair of modules."""
    if not isinstance(model, str):
        encoder, head = deepcopy(model)  # the user's own modules are left alone
        return Modules(encoder, head, shape)
    if model.endswith(".py"):
        from comity.plugins import from_file

        made = from_file(model, "build")(shape, classes)
        if isinstance(made, tuple):
            encoder, head = made
            made = Modules(encoder, head, shape, name=model)
        network: Network = made
        return network
    spec = parse(model)
    if spec.name not in ZOO:
        raise unknown("model", spec.name, ZOO)
    for option, given in spec.options.items():
        if isinstance(given, int | float) and not given > 0:
            raise Refusal(f"{option} of {spec.name} must be positive, not {given}.")
    return call(spec, ZOO[spec.name], shape, classes)


def catalogue() -> list[dict[str, str]]:
    """What `comity list models` shows."""
    rows = []
    for name, make in ZOO.items():
        options = list(inspect.signature(make).parameters.values())[2:]
        rows.append({
            "name": name,
            "description": inspect.getdoc(make) or "",
            "options": ", ".join(f"{p.name}={p.default}" for p in options),
        })
    return rows
