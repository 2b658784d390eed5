"""Settings of one method in a comparison: `fedper(lr=0.1)` has its own learning rate, and a tuned
method the settings that tuning chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comity.algorithms import find, options
from comity.checksums import UNREADABLE, read_json
from comity.errors import UsageError
from comity.names import display_name
from comity.runs.config import WHERE, Experiment
from comity.runs.folder import RunFolder
from comity.spec import Spec, parse, split
from comity.studies.tune import TUNED
from comity.text import shell_line

OWN_SETTINGS = frozenset(
    (
        "lr",
        "epochs",
        "steps",
        "batch",
        "last_batch",
        "optimizer",
        "opt_state",
        "rounds",
        "patience",
        "participation",
        "augment",
        "model",
        "cut",
        "bn",
        "init",
    )
)
"""The settings that methods of a comparison may differ in. Data and test samples are the same."""


def split_settings(method: str) -> tuple[str, dict[str, Any]]:
    """Return a method without the settings in its brackets, and these settings.

    An option that the method itself has is no such setting.
    """
    specs = [parse(part) for part in split(method, "+")]
    settings: dict[str, Any] = {}
    bare = []
    for spec in specs:
        own = {
            name: value
            for name, value in spec.options.items()
            if name in OWN_SETTINGS and name not in options(find(spec.name))
        }
        settings |= own
        others = {name: value for name, value in spec.options.items() if name not in own}
        bare.append(str(replace(spec, options=others)))
    return ("+".join(bare), settings) if settings else (method, {})


def take_solo(methods: Sequence[str], solo: str) -> tuple[list[str], dict[str, Any]]:
    """Return all methods with SOLO first, and SOLO's own settings.

    `solo(lr=0.1)` among the methods is SOLO with these settings, so that gains are over training
    alone at its best. Raises UsageError if there are two such.
    """
    with_settings = [
        method
        for method in dict.fromkeys(methods)
        if "+" not in method and parse(method).name == solo and parse(method).options
    ]
    if len(with_settings) > 1:
        raise UsageError(
            f"Gains are over one kind of training alone: give {' or '.join(with_settings)}."
        )
    settings = split_settings(with_settings[0])[1] if with_settings else {}
    others = [method for method in methods if method not in with_settings]
    return list(dict.fromkeys([solo, *others])), settings


@dataclass(frozen=True)
class Tuned:
    """A method with the settings that `comity tune` chose."""

    method: str
    """The method with these settings in brackets."""
    chosen: dict[str, Any]
    seeds: tuple[int, ...]
    """The seeds of the tuning."""
    experiment: Experiment
    """The experiment of the best trial."""

    def differences(self, base: Experiment) -> list[str]:
        """Return a sentence if the method was tuned with other settings than it is compared
        with.
        """
        same = {"algorithm", "set", "seed", *self.chosen, *WHERE}
        tuned, compared = (e.model_dump(exclude=same) for e in (self.experiment, base))
        unequal = [name for name in tuned if not _equal(tuned[name], compared[name])]
        if not unequal:
            return []
        values = ", ".join(
            f"{name}={tuned[name]} (compared with {compared[name]})" for name in unequal
        )
        return [f"{display_name(self.method)} was tuned with {values}."]


def _equal(tuned: object, compared: object) -> bool:
    """Whether two values of a setting agree; a run has its own in place of `auto` and None."""
    return tuned == compared or compared in (None, "auto")


def read_tuned(folder: Path) -> Tuned:
    """Return the method that was tuned in a folder, with the chosen settings.

    Raises UsageError if the folder holds no finished tuning.
    """
    try:
        content = read_json(folder / TUNED)
        best, seeds = content["trials"][0], tuple(content["seeds"])
        best_settings: dict[str, Any] = best["settings"]
        experiment = RunFolder(folder / best["name"] / f"seed-{seeds[0]}").read_experiment()
    except UNREADABLE as why:
        raise UsageError(
            f"{folder} holds no finished tuning: write one with comity tune METHOD --grid ..."
            f" {shell_line('--out', folder)}"
        ) from why
    method = _with_options(experiment.algorithm, dict(experiment.set) | best_settings)
    return Tuned(method, best_settings, seeds, experiment)


def _with_options(algorithm: str, values: Mapping[str, Any]) -> str:
    """Return a method with options and settings in brackets: options behind the part of the
    composition that has them, settings behind the first.
    """
    specs = [parse(part) for part in split(algorithm, "+")]
    for setting, value in values.items():
        owner = _owner(setting, specs)
        name = setting.rpartition(".")[2]
        specs[owner] = replace(specs[owner], options=specs[owner].options | {name: value})
    return "+".join(map(str, specs))


def _owner(setting: str, specs: Sequence[Spec]) -> int:
    """The position of the method that has an option; the first for a setting."""
    whose, _, name = setting.rpartition(".")
    for k, spec in enumerate(specs):
        if whose == spec.name or (not whose and name in options(find(spec.name))):
            return k
    return 0


def other_seeds(tuned: Sequence[Tuned]) -> list[int]:
    """Return the first seeds that no tuning used, as many as the longest tuning had."""
    used = {seed for method in tuned for seed in method.seeds}
    count = max(len(method.seeds) for method in tuned)
    return [seed for seed in range(len(used) + count) if seed not in used][:count]


def shared_seeds(tuned: Sequence[Tuned], seeds: Sequence[int]) -> list[str]:
    """Return a sentence for each method that was tuned on a seed of the comparison."""
    return [
        f"{display_name(method.method)} was tuned with seed"
        f" {', '.join(str(seed) for seed in seeds if seed in method.seeds)} as well: its figures"
        " there are better than on new splits."
        for method in tuned
        if set(seeds) & set(method.seeds)
    ]
