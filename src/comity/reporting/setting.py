"""A sentence on what a setting is: parties, data, how they differ, network and rounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from comity.data.shifts import SENSORS
from comity.names import display_dataset, display_model, display_partition
from comity.reporting.gather import RunGroup
from comity.runs.config import Experiment
from comity.spec import Spec, Value, parse, split

MOST_NAMES = 6
"""The most parties that are named."""
SERIAL_NAME = re.compile(r"p\d+")
"""A name that a partition gives, and that says nothing."""
Options = Mapping[str, Value]
Words = Mapping[str, Callable[[Options], str]]
UNCHANGED = "unchanged"


def _unequal_classes(options: Options) -> str:
    return f"unequal shares of the classes (Dirichlet, alpha={options.get('alpha')})"


def _unequal_sizes(options: Options) -> str:
    return "random parts of unequal size"


def _natural(options: Options) -> str:
    return f"divided by {options.get('by', 'person, site or source')}, as the data were collected"


def _domain(options: Options) -> str:
    parts = options.get("parts", 1)
    return f"divided by {options.get('by', 'source')}" + (f", {parts} parts each" * (parts != 1))


PARTITIONS: Words = {
    "iid": lambda options: "equal random parts",
    "dirichlet": _unequal_classes,
    "mixture": _unequal_classes,
    "pathological": lambda options: f"{options.get('classes', 2)} classes each",
    "shard": lambda options: f"{options.get('per_party', 2)} shards each, sorted by class",
    "quantity": _unequal_sizes,
    "lognormal": _unequal_sizes,
    "natural": _natural,
    "domain": _domain,
}
"""How each partition divides a dataset, in words."""


def _keep(options: Options) -> str:
    if "samples" in options:
        return f"each keeps {options['samples']} training samples"
    return f"each keeps {float(str(options.get('fraction', 1))):.0%} of its training samples"


def _shift(options: Options) -> str:
    kinds = options.get("kinds", SENSORS)
    names = [str(kind) for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
    return f"inputs differ ({', '.join(UNCHANGED if k == 'none' else k for k in names)})"


STEPS: Words = {
    "keep": _keep,
    "shift": _shift,
    "concept": lambda options: f"{options.get('groups', 2)} groups number classes differently",
}
"""What each step after a partition does, in words."""


def describe_setting(group: RunGroup) -> str:
    """Return what a group's setting is; empty if no run's settings can be read."""
    e = group.experiment
    if e is None:
        return ""
    return f"{_describe_parties(group, e)} {_describe_training(group, e)}"


def _describe_parties(group: RunGroup, e: Experiment) -> str:
    """Return a sentence on the parties and how they differ."""
    if group.site:
        return f"{group.site} is one of several sites, each with its own data."
    names = max((list(run.amounts) for run in group.runs), key=len, default=[])
    count = len(names) or e.parties
    parties = "1 party" if count == 1 else f"{count} parties"
    if 1 < len(names) <= MOST_NAMES and not all(map(SERIAL_NAME.fullmatch, names)):
        parties += f" ({', '.join(names)})"
    if group.between_sites:
        return f"{parties} at separate sites, each with its own data."
    first, *steps = [parse(step) for step in split(e.partition, "|")]
    how = "; ".join([_describe(first, PARTITIONS), *(_describe(step, STEPS) for step in steps)])
    hold = "holds" if count == 1 else "hold parts of"
    return f"{parties} {hold} the dataset {display_dataset(e.data)}: {how}."


def _describe_training(group: RunGroup, e: Experiment) -> str:
    """Return a sentence on the network and the rounds."""
    text = f"They train the network {display_model(e.model)} for {e.rounds} rounds"
    if e.rounds == 1:
        text = text.removesuffix("s")
    if e.participation < 1:
        text += f", {e.participation:.0%} of them in each"
    if group.folds > 1:
        text += f", in {group.folds}-fold cross-validation"
    return f"{text}."


def _describe(spec: Spec, words: Words) -> str:
    """Return what a partition or a step does; of a file or a user's own, what it is called."""
    if spec.name not in words or spec.args:
        return f"divided by {display_partition(str(spec))}"
    return words[spec.name](spec.options)
