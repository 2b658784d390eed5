"""From a call in Python to the experiment that it names: settings by keyword, a federation, and a
method's own options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comity.algorithms import accepts, find, options
from comity.data import Dataset, Federation
from comity.errors import UsageError, unknown
from comity.runs import config
from comity.runs.config import Experiment
from comity.spec import parse, split

Option = bool | int | float | str
"""What a method's own option can be."""


def settings_in(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a call's arguments that are settings of an experiment and were told."""
    return {
        name: given[name]
        for name in Experiment.model_fields
        if given.get(name) is not None and name != "algorithm"
    }


def asked(
    methods: Sequence[str],
    federation: Federation | None,
    settings: Mapping[str, Any],
    more: Mapping[str, Any],
    call: Callable[..., Any],
) -> Experiment:
    """The experiment that a call names; `more` are the keywords beside settings, which must be the
    methods' own options.
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
    chosen = {**settings, "algorithm": methods[0], "set": {**settings.get("set", {}), **more}}
    if federation is not None:
        made = federation.split
        known_of = {
            "data": federation.name,
            "parties": len(federation.names),
            "partition": made.partition,
        }
        known_of |= {"test": made.test, "validation": made.validation}
        for name, value in known_of.items():
            if settings.get(name, value) != value:
                raise UsageError(
                    f"{name} was settled when the federation was made: it is {value!r}, not"
                    f" {settings[name]!r}."
                )
        chosen |= known_of
    return config.experiment(chosen)


def check_options(methods: Sequence[str], names: Iterable[str], call: Callable[..., Any]) -> None:
    """Refuse names that are options of none of the methods; who has misspelt one may have meant a
    setting of the call.
    """
    for name in names:
        if not any(accepts(method, name) for method in methods):
            own = {
                option
                for method in methods
                for part in split(method, "+")
                for option in options(find(parse(part).name))
            }
            keywords = {
                p.name
                for p in inspect.signature(call).parameters.values()
                if p.kind == p.KEYWORD_ONLY
            }
            known = keywords | (Experiment.model_fields.keys() - {"algorithm"}) | own
            raise unknown(f"setting, and no option of {', '.join(methods)}, called", name, known)


def check_federation(call: str, method: str | Sequence[str], given: object) -> None:
    """Refuse what is no federation, with the call that makes one of it; and what is no method,
    should it stand in its place.
    """
    for name in [method] if not isinstance(method, list | tuple) else method:
        if not isinstance(name, str):
            how = f"comity.{call}('fedavg+dbe', federation, ...)"
            raise UsageError(
                f"A method is a name or a user's file, and comes first, as in {how}; this is a"
                f" {type(name).__name__}."
            )
    if given is None or isinstance(given, Federation):
        return
    begin = f"comity.{call}({method!r}, "
    if isinstance(given, Dataset):
        how = (
            f"A dataset is not yet dealt to parties: {begin}dataset.partition("
            f"'{given.default_partition}', parties=10), ...)."
        )
    elif isinstance(given, str | Path):
        how = (
            f"A federation is no text: {begin}data={str(given)!r}, ...), or"
            f" comity.load({str(given)!r}).partition(...)."
        )
    elif isinstance(given, Mapping | tuple | list) or hasattr(given, "shape"):
        how = (
            f"Arrays are not yet a federation: {begin}comity.Federation.from_arrays({{'north': (x,"
            " y), ...}), ...)."
        )
    else:
        how = (
            f"This is no federation but a {type(given).__name__}:"
            " comity.load('digits').partition(...) makes one."
        )
    raise UsageError(how)
