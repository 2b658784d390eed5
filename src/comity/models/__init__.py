"""Networks by name, and the user's own."""

from __future__ import annotations

import inspect
from copy import deepcopy

from torch import nn

from comity.core.task import Network
from comity.errors import Refusal, unknown
from comity.models.modules import Modules
from comity.models.stack import Stack
from comity.models.zoo import ZOO
from comity.plugins import call_from_file, is_code
from comity.spec import call, parse, show

Pair = tuple[nn.Module, nn.Module]


def build(model: str | Pair, shape: tuple[int, ...], classes: int) -> Network:
    """The network `model` for samples of that shape: a name with options, a user's file, or a pair of modules."""
    if not isinstance(model, str):
        return _of_modules("The model", model, shape, classes)
    if is_code(model):
        made = call_from_file(model, "build", shape, classes)
        return made if isinstance(made, Stack) else _of_modules(f"What build of {model} returns", made, shape, classes)
    spec = parse(model)
    if spec.name not in ZOO:
        raise unknown("model", spec.name, ZOO)
    for given in (*spec.args, *spec.options.values()):
        if isinstance(given, int | float) and not isinstance(given, bool) and not 0 < given < float("inf"):
            raise Refusal(f"{spec} is out of range: what {spec.name} takes is positive.")
    return call(spec, ZOO[spec.name], shape, classes)


def _of_modules(what: str, pair: object, shape: tuple[int, ...], classes: int) -> Modules:
    """A pair of modules as a network, tried on two samples of zeros."""
    if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, nn.Module) for part in pair)):
        raise Refusal(f"{what} must be a pair (encoder, head) of nn.Modules.")
    encoder, head = deepcopy(pair)  # the user's own modules are left alone
    network = Modules(encoder, head, shape)
    try:
        answer = network.shape_after("head")
    except Exception as why:
        raise Refusal(f"{what} does not fit samples of shape {shape}: {why}") from why
    if answer != (classes,):
        raise Refusal(f"{what} must answer with one score for each of the {classes} classes, but its answer has shape {answer}.")
    return network


def catalogue() -> list[dict[str, str]]:
    """What `comity list models` shows."""
    rows = []
    for name, make in ZOO.items():
        options = list(inspect.signature(make).parameters.values())[2:]
        rows.append(
            {
                "name": name,
                "description": " ".join((make.__doc__ or "").split()),
                "options": ", ".join(f"{p.name}={show(p.default)}" for p in options),
            }
        )
    return rows
