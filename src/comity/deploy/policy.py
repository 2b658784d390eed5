"""A site's own law, `site.toml`: what may run there, and what may leave. It is read anew for every request.

What a law does not allow is refused before data are touched, in a sentence that names the line which forbids it.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sized
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from comity import algorithms
from comity.core.algorithm import AnyAlgorithm
from comity.core.traits import LEAVES
from comity.core.wrapper import chain
from comity.errors import UsageError, quote, unknown
from comity.models.low_rank import base_file
from comity.names import display_name
from comity.plugins import is_code
from comity.runs.config import Experiment
from comity.spec import format_value, parse, split
from comity.units import size

NAME = "site.toml"
BUDGET = "budget_"
COUNTS = "class counts"
SCALES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
TEXT = """\
# What {name} allows. Comity reads this file before every run; the server and researchers cannot see or change it.
name = "{name}"
data = "{data}"                       # the folder that `comity deploy join` imported this site's files to
export = true                       # whether the model is written after each run, ready for use

[allow]
methods = ["*"]                     # as in `comity list algorithms`; "fedavg*" is every method whose name begins so
never = ["centralized", "fed-sps(mode=samples)"]        # these send samples; an option in parentheses forbids that way only
kinds = ["weights", "representations", "means", "gradients"]        # of what may leave; others: "class counts", "samples"
submitters = ["*"]                  # who may order a run, by the name in his certificate
rounds = 1000                       # at most, in a run
bytes = "10 GB"                     # that leave, at most, in a run
message = "1 GB"                    # the largest, either way
records = 10                        # behind a value that leaves, at least: training samples, and those that a figure is of
outcomes = false                    # whether may leave which test samples a model got right

[budget]                            # over all runs together, from the day that this site joined
bytes = "100 GB"
epsilon = "inf"                     # of a record, at delta 1e-5; a number allows only methods that bound it, as fedavg+dp
"""


UNBOUNDED = (
    "there is no bound on it: things have left in earlier runs without noise, or its inputs are"
    " scaled or filled in by its own records (a schema with fixed constants does without)"
)


@dataclass(frozen=True)
class SitePolicy:
    """What a site allows."""

    name: str
    data: Path
    export: bool = True
    methods: tuple[str, ...] = ("*",)
    never: tuple[str, ...] = ("centralized", "fed-sps(mode=samples)")
    kinds: tuple[str, ...] = ("weights", "representations", "means", "gradients")
    submitters: tuple[str, ...] = ("*",)
    rounds: int = 1000
    bytes: int = 10 * SCALES["GB"]
    message: int = SCALES["GB"]
    records: int = 10
    outcomes: bool = False
    budget_bytes: int = 100 * SCALES["GB"]
    budget_epsilon: float = field(default=math.inf)

    @staticmethod
    def read(folder: Path) -> SitePolicy:
        """The law of a site's folder; what is not said there is as in a new one, and what is no rule is refused."""
        path = folder / NAME
        try:
            told = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as why:
            raise UsageError(f"{path} cannot be read: {why}.") from why
        given = _rules(path, told)
        if not isinstance(given.get("name"), str) or not isinstance(given.get("data"), str):
            raise UsageError(f"{path} must say the site's name and where its data are.")
        made = {key: _value(path, key, value) for key, value in given.items()}
        policy = SitePolicy(**made | {"data": (folder / given["data"]).resolve()})
        if strange := [kind for kind in policy.kinds if kind not in LEAVES]:
            raise unknown(f"kind of what leaves in {path} called", strange[0], LEAVES)
        for forbidden in policy.never:
            _check_known(path, forbidden)
        return policy

    def check_names(self, experiment: Experiment, submitter: str) -> None:
        """Refuse a run by what it names, before anything is made of that: a file would run as soon as it is looked at."""
        if not any(fnmatchcase(submitter, one) for one in self.submitters):
            raise UsageError(
                f"{self.name} takes no orders from {quote(submitter, 100)} (submitters)."
            )
        own = [party.model or "" for party in experiment.party.values()]
        for text in (experiment.algorithm, experiment.model, experiment.metric, *own):
            if any(is_code(parse(part).name) for part in split(text, "+") if part):
                raise UsageError(
                    f"{self.name} runs no files that a run names, as {quote(text, 100)}: install a"
                    " package there."
                )
        for text in (experiment.model, *own):
            if base_file(text):
                raise UsageError(
                    f"{self.name} reads no files that a run names, as {quote(text, 100)}: a base"
                    " can be a seed only."
                )

    def check(self, experiment: Experiment, algorithm: AnyAlgorithm, submitter: str) -> None:
        """Refuse a run that this site does not take part in."""
        self.check_names(experiment, submitter)
        name = display_name(experiment.algorithm)
        self._check_method(name, experiment, algorithm)
        if experiment.rounds > self.rounds:
            raise UsageError(
                f"{self.name} takes part in {self.rounds} rounds at most, not in"
                f" {experiment.rounds} (rounds)."
            )
        if math.isfinite(self.budget_epsilon) and not any(
            one.traits.protects_records for one in chain(algorithm)
        ):
            most = f"{self.budget_epsilon:g}"
            raise UsageError(
                f"{self.name} allows a privacy loss of {most}, and that of {name} has no bound"
                " (budget: epsilon)."
            )

    def check_epsilon(self, found: float, name: str) -> None:
        """Refuse a run with which this site would have given away more of a record than it allows, over all runs."""
        if found > self.budget_epsilon:
            come = f"it would have come to {found:.3g}" if math.isfinite(found) else UNBOUNDED
            most = f"{self.budget_epsilon:g}"
            raise UsageError(
                f"{self.name} allows a privacy loss of {most} in all, and with {name} {come}"
                " (budget: epsilon)."
            )

    def _check_method(self, name: str, experiment: Experiment, algorithm: AnyAlgorithm) -> None:
        for part in split(experiment.algorithm, "+"):
            method = parse(part).name
            if not any(fnmatchcase(method, one) for one in self.methods):
                raise UsageError(f"{self.name} does not allow {method} (methods).")
        for forbidden in self.never:
            if any(_is(one, forbidden) for one in chain(algorithm)):
                raise UsageError(f"{self.name} never takes part in {forbidden} (never).")
        for one in chain(algorithm):
            if others := sorted(one.traits.leaves - set(self.kinds)):
                raise UsageError(
                    f"{self.name} does not let {LEAVES[others[0]]} leave, as {name} would (kinds:"
                    f" {others[0]})."
                )

    @property
    def class_counts(self) -> bool:
        """Whether others may know how many samples there are of each class."""
        return COUNTS in self.kinds

    def check_leaving(self, message: Sized) -> None:
        """Refuse to send a message that is too large."""
        if len(message) > self.message:
            raise UsageError(f"{self.name} sends no message of {size(len(message))} (message).")

    def check_records(self, train: int, counts: tuple[int, ...], algorithm: AnyAlgorithm) -> None:
        """Refuse to send what too few records are behind: of so many training samples, of which each class has its `counts`."""
        if train < self.records:
            raise UsageError(
                f"{self.name} has fewer than {self.records} training samples (records)."
            )
        few = [count for count in counts if 0 < count < self.records]
        if few and chain(algorithm)[-1].traits.shares == "means":
            raise UsageError(
                f"{self.name} has a class of fewer than {self.records} training samples, whose mean"
                " would leave (records)."
            )


def _rules(path: Path, told: dict[str, Any]) -> dict[str, Any]:
    """All rules of a file by name, each in the part of it where it belongs."""
    known = {f.name for f in fields(SitePolicy)}
    budget = {name for name in known if name.startswith(BUDGET)}
    own = {"name", "data", "export"}
    parts = {"": (own, ""), "allow": (known - budget - own, ""), "budget": (budget, BUDGET)}
    tables = {"": {name: value for name, value in told.items() if name not in parts}}
    found: dict[str, Any] = {}
    for part, (names, prefix) in parts.items():
        table = tables[part] if part in tables else told.get(part, {})
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {part} must be a table, as in [{part}], not {quote(table)}.")
        given = {prefix + name: value for name, value in table.items()}
        if strangers := sorted(given.keys() - names):
            where = (
                f"rule under [{part}] of {path} called"
                if part
                else f"rule before [allow] of {path} called"
            )
            raise unknown(
                where,
                strangers[0].removeprefix(prefix),
                {name.removeprefix(prefix) for name in names},
            )
        found |= given
    return found


def _check_known(path: Path, forbidden: str) -> None:
    """Refuse a line that would forbid nothing, since there is no such method, or none with such an option."""
    spec = parse(forbidden)
    known = algorithms.options(algorithms.find(spec.name))
    if strangers := sorted(spec.options.keys() - known.keys()):
        raise unknown(f"option of {spec.name}, which {path} forbids, called", strangers[0], known)


def _is(one: AnyAlgorithm, forbidden: str) -> bool:
    """Whether a method is what a line forbids: of that name and, if it names options, set so."""
    spec = parse(forbidden)
    same = isinstance(one, algorithms.find(spec.name))
    return same and all(
        format_value(getattr(one, option, None)) == format_value(value)
        for option, value in spec.options.items()
    )


def _value(path: Path, name: str, given: Any) -> Any:
    """A rule as the law has it."""
    kind = {f.name: str(f.type) for f in fields(SitePolicy)}[name]
    if name in ("bytes", "message", "budget_bytes"):
        return _bytes(path, name, given)
    if name == "budget_epsilon":
        return _epsilon(path, given)
    if kind.startswith("tuple"):
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            raise UsageError(f"{path}: {name} must be a list of names, not {quote(given)}.")
        return tuple(given)
    wanted = {"int": "a whole number", "bool": "true or false", "str": "a text", "Path": "a text"}[
        kind
    ]
    if type(given).__name__ != kind.replace("Path", "str") or (kind == "int" and given < 0):
        raise UsageError(f"{path}: {name} must be {wanted}, not {quote(given)}.")
    return given


def _epsilon(path: Path, given: Any) -> float:
    try:
        number = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not number >= 0:  # what is no number is not at least 0 either
        raise UsageError(f"{path}: epsilon must be a number from 0 on, or inf, not {quote(given)}.")
    return number


def _bytes(path: Path, name: str, given: Any) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?B)", str(given).strip().upper())
    if isinstance(given, bool) or not (found or (isinstance(given, int) and given >= 0)):
        raise UsageError(
            f"{path}: {name} must be a number of bytes, as in {size(10**9)!r}, not {quote(given)}."
        )
    return int(float(found[1]) * SCALES[found[2]]) if found else int(given)


def write(folder: Path, name: str, data: str) -> Path:
    """A new site's law, to be read and changed by whoever answers for its data."""
    path = folder / NAME
    path.write_text(TEXT.format(name=name, data=data), encoding="utf-8")
    return path
