"""Networks by name, and the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy

from torch import nn

from comity.base.key import Key
from comity.errors import UsageError, unknown
from comity.models.layer_stream import LayerStream
from comity.models.modules import Modules
from comity.models.stack import Stack
from comity.models.zoo import ZOO
from comity.plugins import call_from_file, is_code
from comity.spec import call, format_value, parse
from comity.training.task import Network

Pair = tuple[nn.Module, nn.Module]
OwnModel = Pair | Callable[[tuple[int, ...], int], Pair | Stack]
"""A network that is given from Python: an encoder and a head, or a function that makes them for a
shape and so many classes.
"""
MODULES = "modules"
"""What settings call a network that was given from Python."""


def build(model: str | OwnModel, shape: tuple[int, ...], classes: int) -> Network:
    """The network `model` for samples of that shape: a name with options, a user's file, a pair of
    modules, or who makes one.
    """
    if callable(model) and not isinstance(model, nn.Module):
        return _made("The function that was given as the model", model, shape, classes)
    if not isinstance(model, str):
        return _of_modules("The model", model, shape, classes)
    if model == MODULES:
        raise UsageError(
            "The model was given from Python as modules: give the same again, with model=..."
        )
    if is_code(model):
        with LayerStream(
            Key.root(0).fold("build")
        ):  # what layers draw for themselves is the same for all methods
            made = call_from_file(model, "build", shape, classes)
        return _checked(f"What build of {model} returns", made, shape, classes)
    spec = parse(model)
    if spec.name not in ZOO:
        raise unknown("model", spec.name, ZOO)
    for given in (
        *spec.args,
        *(v for k, v in spec.options.items() if k != "base"),
    ):  # which is a seed, or a folder
        if (
            isinstance(given, int | float)
            and not isinstance(given, bool)
            and not 0 < given < float("inf")
        ):
            raise UsageError(f"{spec} is out of range: what {spec.name} takes is positive.")
    return call(spec, ZOO[spec.name], shape, classes)


def _made(what: str, make: Callable[..., object], shape: tuple[int, ...], classes: int) -> Network:
    """What a user's function makes."""
    try:
        with LayerStream(
            Key.root(0).fold("build")
        ):  # what layers draw for themselves is the same for all methods
            made = make(shape, classes)
    except Exception as why:
        raise UsageError(f"{what} failed: {type(why).__name__}: {why}") from why
    return _checked("What it returns as the model", made, shape, classes)


def _checked(what: str, made: object, shape: tuple[int, ...], classes: int) -> Network:
    """A user's network, if it answers with a score for each class."""
    if not isinstance(made, Stack):
        return _of_modules(what, made, shape, classes)
    if (answer := made.shape_after(made.stages[-1])) != (classes,):
        raise UsageError(_wrong_width(what, answer, classes))
    return made


def _wrong_width(what: str, answer: tuple[int, ...], classes: int) -> str:
    wanted = (
        f"one score for each of the {classes} classes"
        if classes > 1
        else "one number, as one is to be predicted"
    )
    return f"{what} must answer with {wanted}, but its answer has shape {answer}."


def _of_modules(what: str, pair: object, shape: tuple[int, ...], classes: int) -> Modules:
    """A pair of modules as a network, tried on two samples of zeros."""
    if not (
        isinstance(pair, tuple)
        and len(pair) == 2
        and all(isinstance(part, nn.Module) for part in pair)
    ):
        hint = (
            ": (net[:-1], net[-1]) cuts a Sequential before its last layer"
            if isinstance(pair, nn.Sequential)
            else ""
        )
        raise UsageError(f"{what} must be a pair (encoder, head) of nn.Modules{hint}.")
    encoder, head = deepcopy(pair)  # the user's own modules are left alone
    _check_plain(what, encoder, head)
    network = Modules(encoder, head, shape)
    try:
        answer = network.shape_after("head")
    except Exception as why:
        raise UsageError(f"{what} does not fit samples of shape {shape}: {why}") from why
    if answer != (classes,):
        raise UsageError(_wrong_width(what, answer, classes))
    return network


def _check_plain(what: str, encoder: nn.Module, head: nn.Module) -> None:
    """Refuse what would be trained otherwise than its author means."""
    weights = [
        (name, one)
        for part in (encoder, head)
        for name, one in part.named_parameters(remove_duplicate=False)
    ]
    if frozen := next((name for name, one in weights if not one.requires_grad), None):
        raise UsageError(
            f"{what} has weights that are not to be trained ({frozen}): make them buffers, by"
            " register_buffer."
        )
    if len({id(one) for _, one in weights}) < len(weights):
        raise UsageError(
            f"{what} uses one weight in two places, which would be trained as two: give each place"
            " its own."
        )


def catalogue() -> list[dict[str, str]]:
    """What `comity list models` shows."""
    rows = []
    for name, make in ZOO.items():
        options = list(inspect.signature(make).parameters.values())[2:]
        rows.append(
            {
                "name": name,
                "description": " ".join((make.__doc__ or "").split()),
                "options": ", ".join(f"{p.name}={format_value(p.default)}" for p in options),
            }
        )
    return rows
