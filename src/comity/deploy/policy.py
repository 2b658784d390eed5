"""The site policy, `site.toml`: what may run at a site, and what may leave it.

The file is read anew for every request. A request that the policy does not allow is refused before
any data are read, and the error message names the key that forbids it.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from comity import algorithms
from comity.core.algorithm import AnyAlgorithm
from comity.core.signature import party_functions
from comity.core.traits import LEAVES
from comity.core.wrapper import chain
from comity.deploy.group_size import RECORDS, RecordGroup
from comity.deploy.secure_terms import check_can_be_secure, is_private, is_silent, share_of
from comity.errors import UsageError, quote, unknown
from comity.models.named_files import names_files
from comity.models.referenced_weights import WeightsReference
from comity.names import display_name
from comity.plugins import is_code
from comity.privacy.secagg import SiteLimits
from comity.runs.config import Experiment
from comity.safe_files import write_atomically
from comity.spec import format_value, parse, split
from comity.units import SCALES, parse_size, size

NAME = "site.toml"
BUDGET = "budget_"
CLASS_COUNTS = "class counts"
NEVER, ALLOWED, REQUIRED = "never", "allowed", "required"
"""The values of `secure_aggregation`."""
MOST_OVERHEAD = 1 << 10
"""Bytes by which a request is larger than the file that it brings, at most."""
TEMPLATE = """\
# Site policy of {name}: what may run here, and what may leave. Comity reads this file before every
# request. The server and the researchers can neither see nor change it.

name = "{name}"

# The folder that `comity deploy join` imported this site's data to.
data = "{data}"

# Who runs the server, and gets what leaves. The disclosure page names the operator.
operator = {operator}

# Write the model after each run, ready for use.
export = true

[allow]
# Methods that may run, by their names in `comity list algorithms`. "fedavg*" allows every method
# whose name begins with fedavg.
methods = ["*"]

# Methods that never run. Options in parentheses forbid only this setting of a method. These two
# send samples.
never = ["centralized", "fed-sps(mode=samples)"]

# Kinds of values that may leave the site. Other kinds are "class counts", "covariances" and
# "samples".
kinds = ["weights", "representations", "means", "gradients"]

# Of these, the kinds whose values may describe a single record. adcol and fada need
# "representations", fed-sps needs "gradients". Nothing is averaged then: a value tells about one
# patient.
single_records = []

# Researchers who may submit a run, by the name in their certificate.
submitters = ["*"]

# The least number of sites, with this one, that must take part in a run. They prove it by their
# certificates.
sites = 2

# The largest number of rounds of a run, and of epochs and steps of one local training.
rounds = 1000
epochs = 100
steps = 100000

# The largest number of weights of a model.
weights = 1000000000

# The largest file of initial weights that a run may bring along, as in "200 MB". 0 refuses them.
# They are signed by the researcher, and hold tensors only. But whoever chooses the encoder chooses
# what "representations" and "means" tell of the records.
initial_weights = 0

# The most bytes that may leave the site in a run.
bytes = "10 GB"

# The largest message, sent or received.
message = "1 GB"

# Minimum group size: a value leaves only if at least this many records are behind it. It applies to
# the records of a class, to those that a training uses, and to the samples that a metric is
# computed on. Where the data name patients (comity deploy join --group), it counts patients.
records = 10

# The largest share of the records that a run may set aside for validation and tests. The first run
# decides which records these are; all later runs on the same data use the same ones.
held_out = 0.5

# The largest number of evaluations of a run, and the significant digits of losses and metrics that
# leave. No noise protects the records that models are evaluated on.
evaluations = 1100
digits = 3

# Allow per-sample test outcomes to leave the site.
outcomes = false

# Profiles (comity data profile): how many different ones of the same data may leave. 0 refuses
# them. A profile has the number of rows and, for each column and the label, the share of missing
# values, and the counts of its words or of a histogram. Counts below `records` are withheld, and
# all others are rounded to multiples of profile_rounding. With a number as profile_epsilon, noise
# is added to all counts, and the privacy loss is charged to the budget.
profiles = 0
profile_rounding = 5
profile_epsilon = inf

# Secure aggregation (experimental), by which the server learns the mean of the sites' replies and
# no single reply. "allowed": if a run asks for it. "required": replies leave in no other way, and
# methods that do more than average replies are refused. "never": runs that ask for it are refused.
secure_aggregation = "allowed"

# How many sites, at least, must take part in secure aggregation to the end, as a share of the sites
# of the run; and how many of the others, at least, may collude with the server without learning
# more than the mean. Between 3 sites of which 1 may collude, all must take part to the end.
threshold = 0.5
colluders = 1

# Limits over all runs since this site joined.
[budget]
bytes = "100 GB"

# Largest privacy loss (epsilon) of a record, at delta 1e-5. A number allows only methods that bound
# the privacy loss, for instance fedavg+dp.
epsilon = "inf"
"""
UNBOUNDED = (
    "there is no bound on it: values have left in earlier runs without noise, or the site's own"
    " records determine how its inputs are scaled or filled in (a schema with fixed constants"
    " avoids that)"
)


@dataclass(frozen=True)
class SitePolicy:
    """What a site allows."""

    name: str
    data: Path
    operator: str = ""
    """Who runs the server; empty if this is not known."""
    export: bool = True
    methods: tuple[str, ...] = ("*",)
    never: tuple[str, ...] = ("centralized", "fed-sps(mode=samples)")
    kinds: tuple[str, ...] = ("weights", "representations", "means", "gradients")
    single_records: tuple[str, ...] = ()
    sites: int = 2
    submitters: tuple[str, ...] = ("*",)
    rounds: int = 1000
    epochs: int = 100
    steps: int = 100_000
    weights: int = 1_000_000_000
    initial_weights: int = 0
    bytes: int = 10 * SCALES["GB"]
    message: int = SCALES["GB"]
    records: int = 10
    held_out: float = 0.5
    evaluations: int = 1100
    digits: int = 3
    outcomes: bool = False
    profiles: int = 0
    profile_rounding: int = 5
    profile_epsilon: float = field(default=math.inf)
    secure_aggregation: str = "allowed"
    threshold: float = 0.5
    colluders: int = 1
    budget_bytes: int = 100 * SCALES["GB"]
    budget_epsilon: float = field(default=math.inf)

    @staticmethod
    def read(folder: Path) -> SitePolicy:
        """Read the policy in a site's folder.

        A key that is missing has the default of a new site. An unknown key, or a value of the wrong
        kind, raises `UsageError`.
        """
        path = folder / NAME
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as why:
            raise UsageError(f"{path} cannot be read: {why}.") from why
        rules = _rules(path, content)
        if not isinstance(rules.get("name"), str) or not isinstance(rules.get("data"), str):
            raise UsageError(f"{path} must say the site's name and where its data are.")
        values = {key: _value(path, key, value) for key, value in rules.items()}
        policy = SitePolicy(**values | {"data": (folder / rules["data"]).resolve()})
        kinds = (*policy.kinds, *policy.single_records)
        if unknown_kinds := [kind for kind in kinds if kind not in LEAVES]:
            raise unknown(f"kind of what leaves in {path} called", unknown_kinds[0], LEAVES)
        for forbidden in policy.never:
            _check_known(path, forbidden)
        return policy

    def check_names(self, experiment: Experiment, submitter: str) -> None:
        """Refuse a run by its submitter and by the names in its settings.

        This comes before anything else, because a setting that names a Python file would run that
        file as soon as it is resolved.
        """
        self.check_submitter(submitter)
        party_models = [party.model or "" for party in experiment.party.values()]
        names = (experiment.algorithm, experiment.model, experiment.metric, *party_models)
        for text in names:
            if any(is_code(parse(part).name) for part in split(text, "+") if part):
                raise UsageError(
                    f"{self.name} runs no files that a run names, as {quote(text, 100)}: install a"
                    " package there."
                )
        self._check_initial_weights(experiment.weights)
        for text in (experiment.model, *party_models):
            if names_files(text):
                raise UsageError(
                    f"{self.name} reads no files that a run names, as {quote(text, 100)}: a base"
                    " can be a seed only, and the configuration of an hf encoder says which code"
                    " to run. A package with such a model can be installed there; its weights can"
                    " come with --weights."
                )

    def _check_initial_weights(self, setting: str | None) -> None:
        """Refuse initial weights that are a file here, or a file to be sent that is too large."""
        if setting is None:
            return
        reference = WeightsReference.read(setting)
        if reference is None:
            raise UsageError(
                f"{self.name} reads no files that a run names, as {quote(setting, 100)}."
            )
        if reference.size > self.initial_weights:
            accepts = (
                f"accepts {size(self.initial_weights)} of initial weights at most, not"
                f" {size(reference.size)}"
                if self.initial_weights
                else "accepts no initial weights with a run"
            )
            raise UsageError(
                f"{self.name} {accepts}. Its operator can allow them: write initial_weights ="
                f' "{size(_rounded_up(reference.size))}" under [allow] in {NAME} (initial_weights).'
            )
        if reference.size + MOST_OVERHEAD > self.message:
            raise UsageError(
                f"{self.name} receives messages of {size(self.message)} at most, and the initial"
                f" weights have {size(reference.size)} (message)."
            )

    def check_submitter(self, submitter: str) -> None:
        """Refuse a run or a profile by its submitter."""
        if not any(fnmatchcase(submitter, pattern) for pattern in self.submitters):
            raise UsageError(
                f"{self.name} does not accept runs submitted by {quote(submitter, 100)}"
                " (submitters)."
            )

    def check_profile(self, submitter: str) -> None:
        """Refuse a profile of the site's data that the policy does not allow."""
        self.check_submitter(submitter)
        if not self.profiles:
            raise UsageError(
                f"{self.name} sends no profile of its data. Its operator can allow one: write"
                f" profiles = 1 under [allow] in {NAME} (profiles)."
            )
        if math.isfinite(self.budget_epsilon) and not math.isfinite(self.profile_epsilon):
            raise UsageError(
                f"{self.name} allows a privacy loss of {self.budget_epsilon:g}, and that of a"
                " profile without noise has no bound: its operator can write profile_epsilon = 1"
                f" under [allow] in {NAME} (profile_epsilon, budget: epsilon)."
            )

    def check(self, experiment: Experiment, algorithm: AnyAlgorithm, submitter: str) -> None:
        """Refuse a run that the policy does not allow."""
        self.check_names(experiment, submitter)
        name = display_name(experiment.algorithm)
        self._check_method(name, experiment, algorithm)
        if experiment.rounds > self.rounds:
            raise UsageError(
                f"{self.name} takes part in {self.rounds} rounds at most, not in"
                f" {experiment.rounds} (rounds)."
            )
        self._check_training(experiment)
        self._check_aggregation(name, experiment, algorithm)
        if math.isfinite(self.budget_epsilon) and not is_private(algorithm, experiment):
            raise UsageError(
                f"{self.name} allows a privacy loss of {self.budget_epsilon:g}, and that of {name}"
                " has no bound (budget: epsilon)."
            )

    def _check_aggregation(
        self, name: str, experiment: Experiment, algorithm: AnyAlgorithm
    ) -> None:
        """Refuse secure aggregation that is forbidden or impossible, and replies without it where
        it is required.
        """
        if experiment.secure_aggregation:
            if self.secure_aggregation == NEVER:
                raise UsageError(
                    f"{self.name} takes no part in secure aggregation (secure_aggregation)."
                )
            check_can_be_secure(algorithm, name)
        elif self.secure_aggregation == REQUIRED and any(
            not is_silent(algorithm, *place) for place in party_functions(algorithm)
        ):
            check_can_be_secure(algorithm, name)
            raise UsageError(
                f"{self.name} takes part in {name} with secure aggregation only: use"
                " --secure-aggregation (secure_aggregation)."
            )

    def limits(self, sites: int) -> SiteLimits:
        """The least terms of secure aggregation that this site accepts, among so many sites."""
        return SiteLimits(share_of(sites, self.threshold), self.sites, self.colluders)

    def _check_training(self, experiment: Experiment) -> None:
        """Refuse longer local trainings than the policy allows."""
        for party in (experiment, *experiment.party.values()):
            for name in ("epochs", "steps"):
                value, most = getattr(party, name) or 0, getattr(self, name)
                if value > most:
                    raise UsageError(
                        f"{self.name} trains for {most} {name} at most, not for {value} ({name})."
                    )

    def check_sites(self, certified: int) -> None:
        """Refuse a run in which too few sites take part.

        `certified` is the number of sites, with this one, that have shown a certificate.
        """
        if certified < self.sites:
            raise UsageError(
                f"{self.name} takes part with {self.sites} sites or more, and {certified} have"
                " shown a certificate (sites)."
            )

    def check_weights(self, weights: int) -> None:
        """Refuse a model that is too large."""
        if weights > self.weights:
            raise UsageError(
                f"{self.name} trains models of {self.weights:,} weights at most, not of"
                f" {weights:,} (weights)."
            )

    def check_held_out(self, share: float) -> None:
        """Refuse a split that leaves too few records for training."""
        if share > self.held_out:
            raise UsageError(
                f"{self.name} sets aside {self.held_out:.0%} of its records at most, not"
                f" {share:.0%} (held_out)."
            )

    def check_groups(self, groups: Iterable[RecordGroup], method: str, unit: str = RECORDS) -> None:
        """Refuse a method that would send values of too few records or patients.

        Arguments:
            groups: how many records or patients are behind each field of the method's replies
            method: how the method is called in the error message
            unit: what is counted: records or patients
        """
        for group in groups:
            if group.size is None:
                raise UsageError(
                    f"{self.name} cannot tell how many {unit} are behind {group.field}, which"
                    f" {method} sends: the method does not describe it (records)."
                )
            if group.size >= self.records or group.kind in self.single_records:
                continue
            if group.kind == CLASS_COUNTS:
                continue  # a site that lets them leave names them in `kinds`
            what = LEAVES.get(group.kind, group.field)
            raise UsageError(
                f"{self.name} lets values of {self.records} {unit} or more leave, and behind"
                f" {group.field} of {method} ({what}) there may be fewer (records,"
                " single_records)."
            )

    def round_figure(self, value: float) -> float:
        """A loss or metric with as many digits as may leave."""
        if not math.isfinite(value) or not value:
            return value
        return float(f"{value:.{max(1, self.digits)}g}")

    def check_epsilon(self, epsilon: float, name: str) -> None:
        """Refuse a run with which the privacy loss of all runs would exceed the budget.

        Arguments:
            epsilon: the privacy loss of all runs, including this one
            name: how the method is called in the error message
        """
        if epsilon > self.budget_epsilon:
            reason = f"it would be {epsilon:.3g}" if math.isfinite(epsilon) else UNBOUNDED
            raise UsageError(
                f"{self.name} allows a privacy loss of {self.budget_epsilon:g} in all, and with"
                f" {name} {reason} (budget: epsilon)."
            )

    def _check_method(self, name: str, experiment: Experiment, algorithm: AnyAlgorithm) -> None:
        for part in split(experiment.algorithm, "+"):
            method = parse(part).name
            if not any(fnmatchcase(method, pattern) for pattern in self.methods):
                raise UsageError(f"{self.name} does not allow {method} (methods).")
        for forbidden in self.never:
            if any(_matches(layer, forbidden) for layer in chain(algorithm)):
                raise UsageError(f"{self.name} never takes part in {forbidden} (never).")
        for layer in chain(algorithm):
            if other_kinds := sorted(layer.traits.leaves - set(self.kinds)):
                raise UsageError(
                    f"{self.name} does not let {LEAVES[other_kinds[0]]} leave, as {name} would"
                    f" (kinds: {other_kinds[0]})."
                )

    @property
    def class_counts(self) -> bool:
        """Whether the number of samples of each class may leave the site."""
        return CLASS_COUNTS in self.kinds

    def check_size(self, request: Sized) -> None:
        """Refuse a request that is too large."""
        if len(request) > self.message:
            raise UsageError(
                f"A request of {len(request):,} bytes is too large: at most {self.message:,} bytes"
                " are allowed (message)."
            )

    def check_leaving(self, message: Sized) -> None:
        """Refuse to send a message that is too large."""
        if len(message) > self.message:
            raise UsageError(f"{self.name} sends no message of {size(len(message))} (message).")

    def check_records(self, train: int, unit: str = RECORDS) -> None:
        """Refuse any run if there are too few training samples, or if they are of too few patients.

        Arguments:
            train: the number of training samples, or of their patients
            unit: what is counted: records or patients
        """
        if train < self.records:
            few = "training samples" if unit == RECORDS else f"{unit} to train on"
            raise UsageError(f"{self.name} has fewer than {self.records} {few} (records).")


def _rules(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The rules of the file by their field of `SitePolicy`. Each must be in its table."""
    all_names = {f.name for f in fields(SitePolicy)}
    budget = {name for name in all_names if name.startswith(BUDGET)}
    top_level = {"name", "data", "operator", "export"}
    tables = {
        "": (top_level, ""),
        "allow": (all_names - budget - top_level, ""),
        "budget": (budget, BUDGET),
    }
    rules: dict[str, Any] = {}
    for title, (names, prefix) in tables.items():
        table = (
            content.get(title, {})
            if title
            else {name: value for name, value in content.items() if name not in tables}
        )
        if not isinstance(table, dict):
            raise UsageError(
                f"{path}: {title} must be a table, as in [{title}], not {quote(table)}."
            )
        values = {prefix + name: value for name, value in table.items()}
        if unknown_names := sorted(values.keys() - names):
            where = f"under [{title}]" if title else "before [allow]"
            raise unknown(
                f"rule {where} of {path} called",
                unknown_names[0].removeprefix(prefix),
                {name.removeprefix(prefix) for name in names},
            )
        rules |= values
    return rules


def _check_known(path: Path, forbidden: str) -> None:
    """Refuse an entry of `never` that would forbid nothing: an unknown method or option."""
    spec = parse(forbidden)
    options = algorithms.options(algorithms.find(spec.name))
    if unknown_options := sorted(spec.options.keys() - options.keys()):
        raise unknown(
            f"option of {spec.name}, which {path} forbids, called", unknown_options[0], options
        )


def _matches(layer: AnyAlgorithm, forbidden: str) -> bool:
    """Whether a method or wrapper is the one that an entry of `never` names, with its options."""
    spec = parse(forbidden)
    return isinstance(layer, algorithms.find(spec.name)) and all(
        format_value(getattr(layer, option, None)) == format_value(value)
        for option, value in spec.options.items()
    )


def _value(path: Path, name: str, value: Any) -> Any:
    """A value of the file, checked and converted to the type of its field."""
    kind = {f.name: str(f.type) for f in fields(SitePolicy)}[name]
    if name in ("bytes", "message", "budget_bytes", "initial_weights"):
        return _bytes(path, name, value)
    if name in ("budget_epsilon", "profile_epsilon"):
        return _epsilon(path, name.removeprefix(BUDGET), value)
    if kind.startswith("tuple"):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{path}: {name} must be a list of names, not {quote(value)}.")
        return tuple(value)
    if name in ("held_out", "threshold"):
        return _share(path, name, value)
    if name == "secure_aggregation" and value not in (NEVER, ALLOWED, REQUIRED):
        raise UsageError(
            f"{path}: {name} must be {ALLOWED!r}, {REQUIRED!r} or {NEVER!r}, not {quote(value)}."
        )
    descriptions = {
        "int": "a whole number",
        "bool": "true or false",
        "str": "a text",
        "Path": "a text",
    }
    if type(value).__name__ != kind.replace("Path", "str") or (kind == "int" and value < 0):
        raise UsageError(f"{path}: {name} must be {descriptions[kind]}, not {quote(value)}.")
    return value


def _epsilon(path: Path, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number >= 0:  # also true of nan
        raise UsageError(f"{path}: {name} must be a number from 0 on, or inf, not {quote(value)}.")
    return number


def _share(path: Path, name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:
        raise UsageError(f"{path}: {name} must be a number from 0 to 1, not {quote(value)}.")
    return float(value)


def _bytes(path: Path, name: str, value: Any) -> int:
    """A number of bytes, written as a number or as in "10 GB"."""
    amount = parse_size(str(value))
    if amount is not None:
        return amount
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(
            f"{path}: {name} must be a number of bytes, as in {size(10**9)!r}, not {quote(value)}."
        )
    return int(value)


def _rounded_up(amount: int) -> int:
    """A number of bytes that is not smaller, with one significant digit."""
    step: int = 10 ** (len(str(amount)) - 1)
    return -(-amount // step) * step


def write(folder: Path, name: str, data: str, operator: str = "") -> Path:
    """Write the policy of a new site, to be reviewed and edited by the site's data owner."""
    path = folder / NAME
    quoted_operator = json.dumps(operator)  # a string of JSON is one of TOML
    write_atomically(path, TEMPLATE.format(name=name, data=data, operator=quoted_operator))
    return path
