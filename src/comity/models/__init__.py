"""Build networks: from a name, a user's file, or modules passed from Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib.metadata import entry_points

import torch
from torch import Tensor, nn

from comity.base.key import Key
from comity.errors import UsageError, unknown
from comity.models.encoders import ENCODERS
from comity.models.layer_stream import LayerStream
from comity.models.modules import Modules
from comity.models.pretrained import InitialWeights, Pretrained
from comity.models.stack import Stack
from comity.models.weight_files import load_weights
from comity.models.zoo import ZOO
from comity.plugins import call_from_file, from_file, is_code
from comity.spec import bind_options, call, format_value, parse
from comity.training.task import Network

Pair = tuple[nn.Module, nn.Module]
CustomModel = Pair | Callable[[tuple[int, ...], int], Pair | Stack]
"""A network passed from Python: an (encoder, head) pair, or a function of the sample shape and the
number of classes that returns one.
"""
INSTALLED = "comity.models"
"""The group of entry points by which installed packages have networks of their own."""
AUTO = "auto"
"""The value of the setting `model` for a network that is chosen by the data."""
MODULES = "modules"
"""The value of the setting `model` for a network passed from Python."""


def build(
    model: str | CustomModel,
    shape: tuple[int, ...],
    classes: int,
    weights: str | None = None,
    redraw: bool = False,
) -> Network:
    """Build the network `model` for samples of the given shape.

    Weights that modules are given with are kept: those of a pair of modules, and those that a
    user's function gives to every network that it builds. Others are drawn from the run's seed.

    Args:
        model: A name with options, such as `cnn4(width=64)`; a path to a Python file with a
            function `build`, with its options; an (encoder, head) pair of modules; or a function
            that returns one.
        shape: The shape of one sample.
        classes: The number of classes; 1 where the label is a number.
        weights: A file of initial weights, which are matched by name.
        redraw: Whether to draw weights that modules are given with. Frozen ones stay.

    Raises:
        UsageError: The name is unknown, an option is out of range, the network does not fit, or
            the file has no weights for it.
    """
    network = _build(model, shape, classes, redraw)
    return load_weights(network, weights) if weights else network


def _build(model: str | CustomModel, shape: tuple[int, ...], classes: int, redraw: bool) -> Network:
    """Build a network, with the weights that its modules were given with."""
    if callable(model) and not isinstance(model, nn.Module):
        what, returned = "The function that was given as the model", "What it returns as the model"
        return _call_builder(
            returned, partial(_try_builder, what, model, shape, classes), shape, classes, redraw
        )
    if not isinstance(model, str):
        modules = _network_of_modules("The model", model, shape, classes)
        return _with_given(modules, frozenset(modules.values()), redraw)
    if model == MODULES:
        raise UsageError(
            "The model was given from Python as modules: give the same again, with model=..."
        )
    if model == AUTO:
        raise UsageError(
            "model=auto is for 'comity run' and 'comity compare' on tables in a simulation: name a"
            " network here, as in --model linear."
        )
    spec = parse(model)
    if is_code(spec.name):
        from_users_file = from_file(spec.name, "build")
        has_options = bool(spec.args or spec.options)
        options = bind_options(spec, from_users_file, fixed=2) if has_options else {}
        builder = partial(call_from_file, spec.name, "build", shape, classes, **options)
        return _call_builder(f"What build of {spec.name} returns", builder, shape, classes, redraw)
    if spec.name in ENCODERS:
        encoder = call(spec, ENCODERS[spec.name], shape, classes)
        pair = encoder.encoder, encoder.head
        modules = _network_of_modules(f"The encoder {spec.name}", pair, shape, classes)
        network = _with_given(modules, encoder.given, redraw)
        return load_weights(network, encoder.weights) if encoder.weights else network
    if spec.name not in ZOO:
        installed = _installed_builder(spec.name)
        with_options = partial(installed, **bind_options(spec, installed, fixed=2))
        return _call_builder(
            f"What {spec.name} builds",
            partial(_try_builder, f"The builder of {spec.name}", with_options, shape, classes),
            shape,
            classes,
            redraw,
        )
    # `base` is a seed, which may be 0, or a folder.
    values = [*spec.args, *(v for k, v in spec.options.items() if k != "base")]
    if not all(_is_positive(value) for value in values):
        raise UsageError(f"{spec} is out of range: the options of {spec.name} must be positive.")
    return call(spec, ZOO[spec.name], shape, classes)


def _installed_builder(name: str) -> Callable[..., object]:
    """Return the function of an installed package that builds a network: an entry point of the
    group `comity.models`.
    """
    entries = {entry.name: entry for entry in entry_points(group=INSTALLED)}
    if name not in entries:
        raise unknown("model", name, [*ZOO, *ENCODERS, *entries])
    try:
        builder: Callable[..., object] = entries[name].load()
    except Exception as why:
        raise UsageError(
            f"The package of the model {name} cannot be imported: {type(why).__name__}: {why}"
        ) from why
    return builder


def _is_positive(value: object) -> bool:
    """Return whether an option is a positive finite number, or no number at all."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return 0 < value < float("inf")


def _try_builder(
    what: str, builder: Callable[..., object], shape: tuple[int, ...], classes: int
) -> object:
    """Call a user's function that returns a network."""
    try:
        return builder(shape, classes)
    except Exception as why:
        raise UsageError(f"{what} failed: {type(why).__name__}: {why}") from why


def _call_builder(
    what: str,
    builder: Callable[[], object],
    shape: tuple[int, ...],
    classes: int,
    redraw: bool,
) -> Network:
    """Return the network of a user's function, after checking it.

    The function is called twice, with different random numbers. Values that are the same both times
    were not drawn: these are weights that the user gives, and they are kept.
    """

    def build(purpose: str) -> Network:
        # Initial values that layers draw while they are built are the same for all methods.
        with LayerStream(Key.root(0).fold(purpose)):
            return _check_network(what, builder(), shape, classes)

    network = build("build")
    if not isinstance(network, Modules):
        return network
    values = network.values()
    other = build("build again")
    assert isinstance(other, Modules)
    equal = {name for name, value in other.values().items() if _is_equal(values.get(name), value)}
    return _with_given(network, frozenset(equal), redraw)


def _is_equal(value: Tensor | None, other: Tensor) -> bool:
    return value is not None and torch.equal(value, other)


def _check_network(
    what: str, network: object, shape: tuple[int, ...], classes: int
) -> Stack | Modules:
    """Return a user's network, if its output has one score per class."""
    if not isinstance(network, Stack):
        return _network_of_modules(what, network, shape, classes)
    if (output := network.shape_after(network.stages[-1])) != (classes,):
        raise UsageError(_wrong_width(what, output, classes))
    return network


def _with_given(network: Modules, names: frozenset[str], redraw: bool) -> Network:
    """Return a network of modules that starts from the `given` values among those that it has, or
    with `redraw` only from those that cannot be drawn. Frozen values stay in any case.
    """
    values = network.values()
    frozen = {name: values[name] for name in values if name in network.frozen_names}
    if len(frozen) == len(values):
        raise UsageError("The model has frozen weights only: there is nothing to train.")
    if not frozen and all(_is_constant(values[name]) for name in names):
        return network  # zeros and ones of a new network
    free = [name for name in values if name not in frozen]
    redrawn = network.redrawn_names() if redraw else frozenset()
    initial = {name: values[name] for name in free if name in names - redrawn}
    start = InitialWeights(
        source="the model",
        kept=tuple(initial),
        drawn=tuple(name for name in free if name not in initial),
        frozen=tuple(frozen),
        redrawn=bool(names & redrawn),
    )
    return Pretrained(network, initial, frozen, start)


def _is_constant(value: Tensor) -> bool:
    """Return whether all values of a tensor are the same, as in new layers of normalisation."""
    return not value.numel() or bool((value == value.flatten()[0]).all())


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
    _check_untied(what, encoder, head)
    network = Modules(encoder, head, shape)
    try:
        output = network.shape_after("head")
    except Exception as why:
        reason = _unequal_widths(network) or str(why)
        raise UsageError(f"{what} does not fit samples of shape {shape}: {reason}") from why
    if output != (classes,):
        raise UsageError(_wrong_width(what, output, classes))
    return network


def _unequal_widths(network: Modules) -> str:
    """Return a sentence if the head's first layer takes another number of values than the encoder
    gives, otherwise an empty text.
    """
    try:
        shape = network.shape_after("encoder")
    except Exception:  # the encoder itself does not fit the samples
        return ""
    layers = (module for module in network.head.modules() if [*module.parameters(recurse=False)])
    first = next(layers, None)
    if not isinstance(first, nn.Linear) or len(shape) != 1 or shape[0] == first.in_features:
        return ""
    return (
        f"the head takes {first.in_features} values, but the encoder gives {shape[0]}: make them"
        " equal."
    )


def _check_untied(what: str, encoder: nn.Module, head: nn.Module) -> None:
    """Refuse shared weights, which would be trained in another way than in PyTorch."""
    weights = [
        weight
        for part in (encoder, head)
        for _, weight in part.named_parameters(remove_duplicate=False)
    ]
    if len({id(weight) for weight in weights}) < len(weights):
        raise UsageError(
            f"{what} uses one weight in two places, which would be trained as two weights: give"
            " each place its own."
        )


def catalogue() -> list[dict[str, str]]:
    """Return the rows that `comity list models` prints."""
    rows = []
    builders: dict[str, Callable[..., object]] = {**ZOO, **ENCODERS}
    builders |= {e.name: _installed_builder(e.name) for e in entry_points(group=INSTALLED)}
    for name, builder in builders.items():
        options = list(inspect.signature(builder).parameters.values())[2:]
        rows.append(
            {
                "name": name,
                "description": " ".join((builder.__doc__ or "").split()),
                "options": ", ".join(f"{p.name}={format_value(p.default)}" for p in options),
            }
        )
    return rows
