"""Builds an experiment from a Python call: settings by keyword, a federation, and a method's own
options.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from comity.algorithms import accepts, find, options
from comity.core.algorithm import Algorithm
from comity.data import Dataset, Federation
from comity.errors import UsageError, unknown
from comity.runs import config
from comity.runs.config import Experiment
from comity.spec import Spec, parse, split

Option = bool | int | float | str
"""The values that a method's own option can have."""


def settings_in(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a call's arguments that are settings of an experiment and are not None."""
    return {
        name: arguments[name]
        for name in Experiment.model_fields
        if arguments.get(name) is not None and name != "algorithm"
    }


def experiment_from_call(
    methods: Sequence[str],
    federation: Federation | None,
    settings: Mapping[str, Any],
    more: Mapping[str, Any],
    call: Callable[..., Any],
) -> Experiment:
    """The experiment that a call describes. `more` are further keywords, which must be options of
    the methods.
    """
    check_options(methods, more, call)
    if not isinstance(settings.get("set", {}), Mapping):
        raise UsageError(
            "set is a dictionary of a method's own options, as in set={'mu': 1}, not"
            f" {settings['set']!r}."
        )
    for name in more:
        if name in settings.get("set", {}):
            raise UsageError(f"{name} is given twice, by itself and in set.")
    values = {**settings, "algorithm": methods[0], "set": {**settings.get("set", {}), **more}}
    if federation is not None:
        data_split = federation.split
        fixed = {
            "data": federation.name,
            "parties": len(federation.names),
            "partition": data_split.partition,
        }
        fixed |= {"test": data_split.test, "validation": data_split.validation}
        for name, value in fixed.items():
            if settings.get(name, value) != value:
                raise UsageError(
                    f"{name} was fixed when the federation was created: it is {value!r}, not"
                    f" {settings[name]!r}."
                )
        values |= fixed
    return config.experiment(values)


def check_options(methods: Sequence[str], names: Iterable[str], call: Callable[..., Any]) -> None:
    """Refuse names that are options of none of the methods. Suggestions include the settings of the
    call.
    """
    for name in names:
        if not any(accepts(method, name) for method in methods):
            method_options = {
                option
                for method in methods
                for part in split(method, "+")
                for option in options(find(parse(part).name))
            }
            known_names = {
                p.name
                for p in inspect.signature(call).parameters.values()
                if p.kind == p.KEYWORD_ONLY
            } | method_options
            raise unknown(
                f"setting, and no option of {', '.join(methods)}, called", name, known_names
            )


def check_federation(call: str, method: str | Sequence[str], value: object) -> None:
    """Refuse anything but a federation, and a method that is not a name. The error shows a correct
    call.
    """
    for name in [method] if not isinstance(method, list | tuple) else method:
        if not isinstance(name, str):
            hint = f"comity.{call}('fedavg+dbe', federation, ...)"
            kind = name.__name__ if isinstance(name, type) else type(name).__name__
            raise UsageError(
                f"A method is a name or a user's file, and comes first, as in {hint}; this is a"
                f" {kind}{_file_of_method(name)}."
            )
    if value is None or isinstance(value, Federation):
        return
    raise UsageError(how_to_give_data(f"comity.{call}({method!r}, ", value))


def check_data(call: str, method: str | Sequence[str], value: object) -> None:
    """Refuse anything but a text as the setting `data`. The error shows a correct call."""
    if value is None or isinstance(value, str | Path):
        return
    hint = how_to_give_data(f"comity.{call}({method!r}, ", value)
    if isinstance(value, Federation):
        hint = f"A federation is given by position: comity.{call}({method!r}, federation, ...)."
    raise UsageError(f"data takes a name or a path, not a {type(value).__name__}. {hint}")


def how_to_give_data(example: str, value: object) -> str:
    """How to make a federation of data of another kind, a sentence. `example` is the beginning of
    the call.
    """
    if isinstance(value, Dataset):
        hint = (
            "A dataset is not yet dealt to parties:"
            f" {example}dataset.partition('{value.default_partition}', parties=10), ...)."
        )
    elif isinstance(value, str | Path):
        hint = (
            f"A federation is no text: {example}data={str(value)!r}, ...), or"
            f" comity.load({str(value)!r}).partition(...)."
        )
    elif isinstance(value, torch.utils.data.Dataset):
        hint = (
            "A torch dataset is not yet dealt to parties. If each party has one:"
            f" {example}comity.Federation.from_arrays({{'north': dataset, 'south': other}}), ...)."
            " To split one among parties: x, y = zip(*dataset), then"
            " comity.Dataset('mine', torch.stack(x), torch.tensor(y), classes=10)"
            ".partition('iid', parties=5)."
        )
    elif isinstance(value, Mapping) and any(
        isinstance(part, torch.utils.data.Dataset) for part in value.values()
    ):
        hint = (
            "Datasets by party are not yet a federation:"
            f" {example}comity.Federation.from_arrays(datasets), ...)."
        )
    elif isinstance(value, Mapping | tuple | list) or hasattr(value, "shape"):
        hint = (
            f"Arrays are not yet a federation: {example}comity.Federation.from_arrays({{'north':"
            " (x, y), ...}), ...)."
        )
    else:
        hint = (
            f"This is no federation but a {type(value).__name__}:"
            " comity.load('digits').partition(...) makes one."
        )
    return hint


def _file_of_method(value: object) -> str:
    """Return what to pass in place of a method's class or instance, as the end of a sentence; empty
    for other values.
    """
    cls = value if isinstance(value, type) else type(value)
    if not issubclass(cls, Algorithm):
        return ""
    changed = {}
    if is_dataclass(value) and not isinstance(value, type):
        options = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        defaults = {field.name: field.default for field in fields(value)}
        changed = {name: options[name] for name in options if options[name] != defaults[name]}
    source = getattr(sys.modules.get(cls.__module__), "__file__", None)
    name = f"./{Path(source).name}" if source else f"./{cls.__name__.lower()}.py"
    return f": pass its file, as in {str(Spec(name, options=changed))!r}"
