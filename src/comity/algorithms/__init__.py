"""The methods, one paper per file. A method's name is that of its file; `+` puts a wrapper around
the method before it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from comity.components.own_models import METHODS
from comity.core.algorithm import Algorithm, AnyAlgorithm
from comity.core.class_means import describe_smallest_mean, smallest_class_means
from comity.core.release import reply_fields
from comity.core.signature import party_functions
from comity.core.wrapper import Wrapper
from comity.errors import UsageError, unknown
from comity.names import OWN_MODELS
from comity.plugins import is_code, module_from
from comity.spec import Spec, coerce, parse, split
from comity.text import first_paragraph, join_names

TRAINING = ("lr", "epochs", "steps", "batch", "optimizer", "rounds")
"""Settings of a run that are easily taken for options of its method."""


def names() -> list[str]:
    """The names of all methods, including wrappers."""
    files = [m.name.replace("_", "-") for m in pkgutil.iter_modules(__path__)]
    return sorted([*files, *(e.name for e in entry_points(group="comity.algorithms"))])


def find(name: str) -> type[AnyAlgorithm]:
    """The class of a method: from this folder, from a user's file such as `./mine.py`, or from an
    installed entry point.
    """
    if name in OWN_MODELS:
        return METHODS[name]
    if is_code(name):
        module = module_from(name)
    elif (
        name.replace("-", "_") in {m.name for m in pkgutil.iter_modules(__path__)}
        and "_" not in name
    ):
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    else:
        entries = [e for e in entry_points(group="comity.algorithms") if e.name == name]
        if not entries:
            raise unknown("algorithm", name, names())
        module = entries[0].load()
    methods = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, Algorithm)]
    algorithm_classes = [c for c in methods if getattr(c, "__algorithm__", None) == module.__name__]
    if len(algorithm_classes) != 1:
        raise UsageError(
            f"{name} must mark exactly one class with @algorithm, but marks"
            f" {len(algorithm_classes)}."
        )
    return algorithm_classes[0]


@dataclass(frozen=True)
class Option:
    """An option of a method, as `comity show` prints it."""

    name: str
    default: Any
    kind: Any
    doc: str


def options(cls: type[AnyAlgorithm]) -> dict[str, Option]:
    """The options of a method by name: its dataclass fields with a default."""
    hints = get_type_hints(cls)
    return {
        f.name: Option(f.name, f.default, hints[f.name], f.metadata.get("doc", ""))
        for f in fields(cls)  # type: ignore[arg-type]
        if f.init and f.default is not MISSING
    }


def accepts(text: str, setting: str) -> bool:
    """Whether a composition has the option `mu` or `dbe.mu`."""
    whose, _, name = setting.rpartition(".")
    specs = [parse(part) for part in split(text, "+")]
    return any(name in options(find(spec.name)) for spec in specs if whose in ("", spec.name))


def compose(text: str, settings: Mapping[str, Any] | None = None) -> AnyAlgorithm:
    """Build a composition such as `fedprox(mu=0.1)+dbe(kappa=50)`. `settings` are further options,
    as `mu` or `dbe.mu`.
    """
    specs = [parse(part) for part in split(text, "+")]
    classes = [find(spec.name) for spec in specs]
    raw_by_method = [dict(spec.options) for spec in specs]
    for spec in specs:
        if spec.args:
            raise UsageError(
                f"{spec} needs names for its options, as in {spec.name}(option=value)."
            )
    for setting, value in (settings or {}).items():
        raw_by_method[_owner(setting, specs, classes)][setting.rpartition(".")[2]] = value
    method: AnyAlgorithm | None = None
    for spec, cls, raw in zip(specs, classes, raw_by_method, strict=True):
        declared = options(cls)
        _check_names(spec.name, raw, declared)
        values = {n: coerce(f"{n} of {spec.name}", v, declared[n].kind) for n, v in raw.items()}
        if issubclass(cls, Wrapper):
            if method is None:
                raise UsageError(
                    f"{spec.name} wraps another method: write fedavg+{spec.name}, for instance."
                )
            cls.check_host(method, specs[0].name, spec.name)
            method = _build(spec, cls, {"host": method, **values})
        elif method is not None:
            raise UsageError(
                f"{spec.name} is a method of its own, not a wrapper, so it cannot follow a '+'."
            )
        else:
            method = _build(spec, cls, values)
    assert method is not None
    return method


def _check_names(method: str, values: Mapping[str, Any], declared: Mapping[str, Option]) -> None:
    """Raise UsageError for a value that is none of the method's options."""
    for name in (name for name in values if name not in declared):
        if name in TRAINING:
            raise UsageError(
                f"{name} is no option of {method}, but a setting of the run: --{name}"
                f" {values[name]}. Only a comparison takes it in brackets."
            )
        raise unknown(f"option of {method} called", name, declared)


def _build(spec: Spec, cls: type[AnyAlgorithm], values: dict[str, Any]) -> AnyAlgorithm:
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        described = [
            f"{name} ({first_paragraph(doc).rstrip('.')})" if doc else name
            for name in missing
            for doc in [inspect.getdoc(getattr(cls, name)) or ""]
        ]
        raise UsageError(
            f"{spec.name} cannot be built: {cls.__name__} must define {join_names(described)}."
        )
    try:
        return cls(**values)
    except TypeError as why:  # a field without a default
        raise UsageError(f"{spec.name} cannot be built: {why}.") from why


def _owner(setting: str, specs: list[Spec], classes: list[type[AnyAlgorithm]]) -> int:
    """The position in the composition of the method that has this option."""
    whose, _, name = setting.rpartition(".")
    if whose:
        places = [k for k, spec in enumerate(specs) if spec.name == whose]
        if not places:
            raise unknown("method in this composition called", whose, [s.name for s in specs])
        return places[0]
    places = [k for k, cls in enumerate(classes) if name in options(cls)]
    if not places:
        raise unknown(
            f"option of {'+'.join(s.name for s in specs)} called",
            name,
            {n for c in classes for n in options(c)},
        )
    if len(places) > 1:
        both = " and ".join(f"{specs[k].name}.{name}" for k in places)
        raise UsageError(f"{name} could mean {both}: say which.")
    return places[0]


@dataclass(frozen=True)
class Card:
    """The description of a method that `comity show` prints."""

    name: str
    title: str
    text: str
    wrapper: bool
    bytes: str
    options: list[Option]
    glance: dict[str, str]
    """The method's row in the table of methods: what is personal, what is exchanged, what is kept,
    and the number of steps.
    """
    privacy: str = ""
    experimental: str = ""
    """Why the method's results are not reliable yet; "" if its paper was followed."""


def _reflow(text: str) -> str:
    """The docstring with each labelled statement on one line, for screens of any width."""
    labelled = re.sub(r"\n(?=\S)(?!([A-Z][\w., ]*:|\n))", " ", text)
    return re.sub(r" *\n", "\n", labelled)


def card(name: str) -> Card:
    """A method's card, from the docstring of its file and from its class."""
    name = parse(name).name
    cls = find(name)
    text = inspect.getdoc(inspect.getmodule(cls)) or ""
    title = first_paragraph(text)
    wrapper = issubclass(cls, Wrapper)
    privacy = "" if wrapper else _bare(cls)
    reflowed = _reflow(text)
    return Card(
        name,
        title,
        reflowed,
        wrapper,
        cls.traits.bytes_formula,
        list(options(cls).values()),
        _glance(reflowed),
        privacy,
        cls.traits.experimental,
    )


GLANCE = re.compile(
    r"^At a glance: personal = (.+?); exchanged = (.+?); kept = (.+?); steps = (.+)\.$",
    flags=re.MULTILINE,
)


def _glance(text: str) -> dict[str, str]:
    """The entries of a card's line "At a glance". A user's method may have no such line."""
    match = GLANCE.search(text)
    return (
        dict(zip(("personal", "exchanged", "kept", "steps"), match.groups(), strict=True))
        if match
        else {}
    )


def _bare(cls: type[AnyAlgorithm]) -> str:
    """A sentence about the reply fields that leave a party without noise."""
    method = cls()
    fields = dict.fromkeys(
        name for place in party_functions(method) for name in reply_fields(method, *place)
    )
    if not fields:
        return "nothing leaves a party."
    return (
        f"unless an option says otherwise, {', '.join(fields)} leave a party without noise, and"
        f" epsilon is infinite.{_smallest_mean(method)}"
    )


def _smallest_mean(method: AnyAlgorithm) -> str:
    """A sentence about how many records a class mean is of, if the method sends class means."""
    sizes = smallest_class_means(method)
    if not sizes:
        return ""
    return f" By default, {describe_smallest_mean(method, min(sizes.values()))}."


def catalogue() -> list[dict[str, str]]:
    """The rows of `comity list algorithms`."""
    cards = [card(name) for name in names()]
    return [
        {"name": c.name, "kind": "wrapper" if c.wrapper else "method", "paper": c.title}
        for c in cards
    ]
