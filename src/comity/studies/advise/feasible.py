"""Which methods can run on a federation within limits, and why the others cannot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from comity.algorithms import compose
from comity.core.wrapper import chain
from comity.data import Federation
from comity.errors import UsageError
from comity.models import CustomModel
from comity.names import SOLO, display_name
from comity.privacy.account import epsilon_for_json, read_epsilon
from comity.runs.build import prepare
from comity.runs.config import Experiment
from comity.studies.advise.race import Arm
from comity.studies.compare import check_settings, experiment_of, runnable_methods
from comity.studies.equal_steps import equal_steps
from comity.studies.method_settings import split_settings
from comity.studies.plan import traffic
from comity.units import SCALES, parse_size, size

METHODS = (
    "fedavg",
    "fedprox",
    "scaffold",
    "ditto",
    "fedper",
    "fedrep",
    "fedbabu",
    "apfl",
    "fedala",
    "fedbn",
    "fedrod",
    "fedavg+dbe",
    "adcol",
    "relay",
)
"""The methods that are tried unless others are named."""
PRIVATE = ("fedavg+dp", "fedprox+dp", "ditto+dp", "fedper+dp", "fedrep+dp", "fedavg+dbe+dp")
"""Those that are tried under a privacy budget."""
VALUES: dict[str, tuple[str, tuple[float, ...]]] = {
    "adcol": ("mu", (0.1, 1.0)),
    "fedprox": ("mu", (0.01, 1.0)),
    "ditto": ("lam", (0.1, 1.0)),
}
"""Options that papers tune, and the values that are tried."""
TIMES = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Candidate:
    """A method that can run here, and what its whole run takes."""

    method: str
    rounds: int
    bytes: float
    """All bytes that its run sends, by the method's closed form; NaN if it has none."""
    epsilon: float | None
    """The largest privacy loss of a party: infinite if something leaves without noise, None if
    nothing leaves.
    """
    finishes: bool = False
    """Whether it takes steps after the last round."""

    @property
    def arm(self) -> Arm:
        """The method as it takes part in a race."""
        return Arm(self.method, self.bytes, halves=self.rounds > 1 and not self.finishes)

    def plain(self) -> dict[str, Any]:
        """Return the entry of advice.json."""
        epsilon = None if self.epsilon is None else epsilon_for_json(self.epsilon)
        return {**vars(self), "epsilon": epsilon}


@dataclass(frozen=True)
class LeftOut:
    """A method that cannot run here, and why."""

    method: str
    why: str


def parse_bytes(text: str) -> float:
    """Parse a number of bytes, as in `100MB`."""
    count = parse_size(text)
    if not count:
        units = ", ".join(SCALES)
        raise UsageError(f"max-bytes is a number with a unit ({units}), as in 100MB, not {text!r}.")
    return count


def parse_time(text: str) -> float:
    """Parse a duration, as in `10min`. Returns seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-z]+)", text.strip().lower())
    if not match or match[2] not in TIMES or not float(match[1]):
        units = ", ".join(TIMES)
        raise UsageError(
            f"budget-time is a number with a unit ({units}), as in 10min, not {text!r}."
        )
    return float(match[1]) * TIMES[match[2]]


def with_values(methods: Sequence[str], base: Experiment) -> list[str]:
    """Return the methods, with each of the values of options that papers tune.

    A method that is written with options, or whose option is set for all, keeps its own.
    """
    every: list[str] = []
    for method in methods:
        first, *wrappers = method.split("+")
        if first in VALUES and VALUES[first][0] not in base.set:
            name, values = VALUES[first]
            every += ["+".join([f"{first}({name}={v:g})", *wrappers]) for v in values]
        else:
            every.append(method)
    return list(dict.fromkeys(every))


def feasible(
    base: Experiment,
    methods: Sequence[str] | None,
    federation: Federation,
    model: CustomModel | None = None,
    max_bytes: float | None = None,
) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the methods that can run here, SOLO first, and the others with the reason.

    Args:
        base: The settings of all runs.
        methods: The methods to try; None for the usual ones. `all` stands for all methods.
        federation: The parties.
        model: A custom network, in place of the one that the settings name.
        max_bytes: The most bytes that a run may send.
    """
    left_out: list[LeftOut] = []
    if methods and "all" in methods:
        runnable, reasons = runnable_methods(base, federation, model)
        left_out += [LeftOut(name, why) for name, why in reasons.items()]
        methods = [*runnable, *(m for m in methods if m != "all")]
    chosen = methods or (PRIVATE if base.budget else METHODS)
    check_settings(base, chosen)
    candidates: list[Candidate] = []
    for method in dict.fromkeys([SOLO, *with_values(chosen, base)]):
        own = base.but(budget=None) if method == SOLO else base
        try:
            candidate = _candidate(own, method, federation, model)
        except UsageError as why:
            if method == SOLO or (methods and method in methods and _is_unknown(method)):
                raise
            left_out.append(LeftOut(method, str(why)))
            continue
        if method != SOLO and max_bytes is not None and not candidate.bytes <= max_bytes:
            sent = f"It sends {size(candidate.bytes)}" if candidate.bytes >= 0 else "Its bytes"
            rest = "" if candidate.bytes >= 0 else " are not known before the run"
            left_out.append(LeftOut(method, f"{sent}{rest}, and the limit is {size(max_bytes)}."))
            continue
        candidates.append(candidate)
    if len(candidates) < 2:
        reasons_text = " ".join(f"{display_name(o.method)}: {o.why}" for o in left_out[:2])
        raise UsageError(
            "None of the methods can run here within the limits: name others with --methods, or"
            f" raise the limits. {reasons_text}"
        )
    return candidates, left_out


def _is_unknown(method: str) -> bool:
    """Whether there is no such method."""
    try:
        compose(split_settings(method)[0])
    except UsageError:
        return True
    return False


def _candidate(
    base: Experiment, method: str, federation: Federation, model: CustomModel | None
) -> Candidate:
    job = prepare(experiment_of(base, method, base.seed), federation, model)
    if any(part.traits.shares == "data" for part in chain(job.algorithm)):
        raise UsageError("It pools the data, so it is a reference and no method.")
    if method == "fedbn" and job.info.task.norm_names <= job.info.task.private:
        raise UsageError("The model has no BatchNorm that would be shared, so it is FedAvg here.")
    rounds = equal_steps(job).rounds
    if base.budget and method != SOLO:
        rounds = base.rounds  # noise was solved for these rounds
    job = prepare(experiment_of(base, method, base.seed, {method: rounds}), federation, model)
    try:
        start, by_round = traffic(job)
        total = float(
            sum(t.up + t.down + t.peer for t in (start, *by_round)) if method != SOLO else 0
        )
    except UsageError:  # a user's method without a closed form
        total = float("nan")
    privacy = job.privacy.guarantees()
    epsilon = privacy.get("epsilon")
    return Candidate(
        method,
        rounds,
        total,
        None if method == SOLO or epsilon is None else read_epsilon(epsilon),
        any(part.traits.finishes for part in chain(job.algorithm)),
    )


def cheaper(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates whose bytes are not known as if they sent most."""
    return [c if c.bytes >= 0 else replace(c, bytes=float("inf")) for c in candidates]
