"""Build networks: from a name, a user's file, or modules passed from Python."""

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
CustomModel = Pair | Callable[[tuple[int, ...], int], Pair | Stack]
"""A network passed from Python: an (encoder, head) pair, or a function of the sample shape and the
number of classes that returns one.
"""
MODULES = "modules"
"""The value of the setting `model` for a network passed from Python."""


def build(model: str | CustomModel, shape: tuple[int, ...], classes: int) -> Network:
    """Build the network `model` for samples of the given shape.

    Args:
        model: A name with options, such as `cnn4(width=64)`; a path to a Python file with a
            function `build`; an (encoder, head) pair of modules; or a function that returns one.
        shape: The shape of one sample.
        classes: The number of classes; 1 where the label is a number.

    Raises:
        UsageError: The name is unknown, an option is out of range, or the network does not fit.
    """
    if callable(model) and not isinstance(model, nn.Module):
        return _call_builder("The function that was given as the model", model, shape, classes)
    if not isinstance(model, str):
        return _network_of_modules("The model", model, shape, classes)
    if model == MODULES:
        raise UsageError(
            "The model was given from Python as modules: give the same again, with model=..."
        )
    if is_code(model):
        # Initial values that layers draw while they are built are the same for all methods.
        with LayerStream(Key.root(0).fold("build")):
            network = call_from_file(model, "build", shape, classes)
        return _check_network(f"What build of {model} returns", network, shape, classes)
    spec = parse(model)
    if spec.name not in ZOO:
        raise unknown("model", spec.name, ZOO)
    # `base` is a seed, which may be 0, or a folder.
    values = [*spec.args, *(v for k, v in spec.options.items() if k != "base")]
    if not all(_is_positive(value) for value in values):
        raise UsageError(f"{spec} is out of range: the options of {spec.name} must be positive.")
    return call(spec, ZOO[spec.name], shape, classes)


def _is_positive(value: object) -> bool:
    """Return whether an option is a positive finite number, or no number at all."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return 0 < value < float("inf")


def _call_builder(
    what: str, builder: Callable[..., object], shape: tuple[int, ...], classes: int
) -> Network:
    """Call a user's function that returns a network, and check the result."""
    try:
        # Initial values that layers draw while they are built are the same for all methods.
        with LayerStream(Key.root(0).fold("build")):
            network = builder(shape, classes)
    except Exception as why:
        raise UsageError(f"{what} failed: {type(why).__name__}: {why}") from why
    return _check_network("What it returns as the model", network, shape, classes)


def _check_network(what: str, network: object, shape: tuple[int, ...], classes: int) -> Network:
    """Return a user's network, if its output has one score per class."""
    if not isinstance(network, Stack):
        return _network_of_modules(what, network, shape, classes)
    if (output := network.shape_after(network.stages[-1])) != (classes,):
        raise UsageError(_wrong_width(what, output, classes))
    return network


def _wrong_width(what: str, output: tuple[int, ...], classes: int) -> str:
    expected = (
        f"one score for each of the {classes} classes"
        if classes > 1
        else "one number, the prediction"
    )
    return f"{what} must give {expected}, but its output has shape {output}."


def _network_of_modules(what: str, pair: object, shape: tuple[int, ...], classes: int) -> Modules:
    """Return an (encoder, head) pair as a network, after a forward pass of two samples of zeros."""
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
    encoder, head = deepcopy(pair)  # the user's modules are not changed
    _check_plain(what, encoder, head)
    network = Modules(encoder, head, shape)
    try:
        output = network.shape_after("head")
    except Exception as why:
        raise UsageError(f"{what} does not fit samples of shape {shape}: {why}") from why
    if output != (classes,):
        raise UsageError(_wrong_width(what, output, classes))
    return network


def _check_plain(what: str, encoder: nn.Module, head: nn.Module) -> None:
    """Refuse frozen and shared weights, which would be trained in another way than in PyTorch."""
    weights = [
        (name, weight)
        for part in (encoder, head)
        for name, weight in part.named_parameters(remove_duplicate=False)
    ]
    if frozen := next((name for name, weight in weights if not weight.requires_grad), None):
        raise UsageError(
            f"{what} has frozen weights ({frozen}, requires_grad=False): make them buffers with"
            " register_buffer."
        )
    if len({id(weight) for _, weight in weights}) < len(weights):
        raise UsageError(
            f"{what} uses one weight in two places, which would be trained as two weights: give"
            " each place its own."
        )


def catalogue() -> list[dict[str, str]]:
    """Return the rows that `comity list models` prints."""
    rows = []
    for name, builder in ZOO.items():
        options = list(inspect.signature(builder).parameters.values())[2:]
        rows.append(
            {
                "name": name,
                "description": " ".join((builder.__doc__ or "").split()),
                "options": ", ".join(f"{p.name}={format_value(p.default)}" for p in options),
            }
        )
    return rows
