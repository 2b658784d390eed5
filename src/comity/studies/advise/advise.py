"""`comity advise`: which method to use on a federation, or whether to stay alone."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comity.algorithms import accepts
from comity.checksums import with_crc
from comity.data import Federation
from comity.data.protocols import folds_of
from comity.errors import CorruptedFile, UsageError
from comity.models import CustomModel
from comity.names import display_name
from comity.runs.build import prepare
from comity.runs.config import Experiment
from comity.runs.run_warnings import RunWarning
from comity.runs.server_run import Progress, judged_by
from comity.safe_files import write_atomically
from comity.studies.advise.feasible import Candidate, LeftOut, cheaper, feasible
from comity.studies.advise.prior import Prior, PriorOfRace, Traits, prior_of
from comity.studies.advise.race import SOLO, Race, Rule, run_race
from comity.studies.advise.runner import Runner
from comity.studies.advise.verdict import Verdict, give_verdict
from comity.studies.board import BOARD, describe, read_board
from comity.studies.cross_validation import fold_seeds
from comity.studies.method_settings import split_settings
from comity.studies.parallel import cached_federations, with_one_worker

ADVICE = "advice.json"
FOLDS = 4
FROM_DATA = frozenset(("data", "partition", "parties", "validation"))
"""Settings that a federation from Python fixes."""
NOT_REPEATED = frozenset(("rounds", "algorithm", "seed", "test", "set"))
"""Settings that the final run has of its own."""


@dataclass(frozen=True)
class Advice:
    """The result of `comity advise`, the content of advice.json."""

    verdict: Verdict
    race: Race
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    metric: str
    command: str
    """The command that trains the final model; empty to stay alone."""
    seconds: float
    similar: int
    """The number of similar federations that the prior knows."""
    folder: Path
    warnings: tuple[RunWarning, ...] = ()

    def candidate(self, method: str) -> Candidate:
        """Return the costs of a method."""
        return next(c for c in self.candidates if c.method == method)

    def plain(self) -> dict[str, Any]:
        """Return the content of advice.json."""
        race = self.race
        content = {
            "verdict": self.verdict.plain(),
            "metric": self.metric,
            "command": self.command,
            "candidates": [c.plain() for c in self.candidates],
            "left_out": [vars(o) for o in self.left_out],
            "departures": [vars(d) for d in race.departures],
            "rungs": [rung.plain() for rung in race.rungs],
            "notes": race.notes,
            "rule": {
                **vars(race.rule),
                "noise": vars(race.rule.noise),
            },
            "prior": {**race.prior.plain(), "similar_federations": self.similar},
            "cost": {
                "runs": round(race.spent, 3),
                "of_all_methods_once": len(race.arms),
                "seconds": self.seconds,
            },
        }
        plain: dict[str, Any] = _finite(content)
        return plain


def _finite(value: Any) -> Any:
    """Return JSON content in which figures that are not finite are None."""
    if isinstance(value, Mapping):
        return {name: _finite(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def advise(
    base: Experiment,
    out: Path,
    progress: Callable[[str], Progress],
    warn: Callable[[str], None],
    methods: Sequence[str] | None = None,
    federation: Federation | None = None,
    model: CustomModel | None = None,
    jobs: int = 1,
    rule: Rule | None = None,
    prior: Prior | None = None,
    max_bytes: float | None = None,
    budget_time: float | None = None,
    max_hurt: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Advice:
    """Find the method to use, by a race of methods on out-of-fold samples.

    Args:
        base: The settings of all runs. Its test protocol is `folds(K)`.
        out: The folder. Finished steps in it are used, so the same call goes on where it stopped.
        progress: Returns the observer of a run, given the run's title.
        warn: Is called with each warning for the user.
        methods: The methods to try; default: the usual ones.
        federation: The data, in place of those that the settings name.
        model: A custom network, in place of the one that the settings name.
        jobs: How many runs go on at once.
        rule: How the race goes.
        prior: The standings of methods on other federations.
        max_bytes: The most bytes that the final run may send.
        budget_time: The most seconds that the race may take.
        max_hurt: How many parties the method may clearly hurt; default: any number.
        settings: The typed settings, for the command that trains the final model.
    """
    folds = folds_of(base.test)
    if folds < 2:
        raise UsageError(
            "advise tests every sample by cross-validation: use --folds 4 in place of --test"
            f" {base.test}."
        )
    if base.patience is not None:
        raise UsageError("advise compares methods after equal steps: leave out --patience.")
    if base.newcomers:
        raise UsageError("advise does not rate newcomers: leave out --newcomers.")
    base = with_one_worker(base, jobs)
    data = cached_federations(federation)
    first = base.but(seed=fold_seeds(folds, 1, base.seed)[0])
    present = data(first)
    base = judged_by(base, present.classes)
    smallest = min(len(p.train) + len(p.validation) for p in present.parties.values())
    if smallest < 2:
        raise UsageError(
            f"A party has {smallest} training samples with {folds} folds: use fewer folds, or leave"
            " it out with --without."
        )
    candidates, left_out = feasible(
        judged_by(first, present.classes), methods, present, model, max_bytes
    )
    rule = replace(rule or Rule(), folds=folds)
    if base.budget:
        rule = replace(rule, half=False)  # noise is solved for the number of rounds
    traits = Traits.of(
        describe(prepare(first.but(algorithm=SOLO, set={}, budget=None), present, model))
    )
    expected = prior.expectations(traits) if prior and present.classes else {}
    runner = Runner(
        base,
        {c.method: c.rounds for c in candidates},
        out,
        data,
        progress,
        warn,
        model,
        jobs,
    )

    def time_left() -> float:
        if budget_time is None:
            return math.inf
        return max(0.0, budget_time - runner.seconds) / max(runner.seconds, 1e-9)

    race = run_race(
        [c.arm for c in cheaper(candidates)],
        rule,
        PriorOfRace(expected, rule.prior_folds if expected else 0.0),
        runner,
        time_left,
    )
    for method in dict.fromkeys(runner.computed_twice):
        race.notes.append(
            f"{display_name(method)} cannot go on from half of its rounds, so it began anew."
        )
    verdict = give_verdict(race, max_hurt)
    advice = Advice(
        verdict,
        race,
        tuple(candidates),
        tuple(left_out),
        base.metric,
        final_command(verdict, candidates, settings or {}, federation is not None),
        runner.seconds,
        prior.similar(traits) if prior else 0,
        out,
    )
    write_atomically(out / ADVICE, json.dumps(with_crc(advice.plain()), indent=2) + "\n")
    return advice


PRIORS = ("none", "board")
"""What a race may know beforehand: nothing, or how methods stood on the federations of the board.

The default is nothing: on the development federations of `benchmarks/advise.py` a prior made the
advice worse.
"""


def find_prior(name: str) -> Prior | None:
    """Return a prior by its name in `PRIORS`; None for no prior.

    Raises:
        UsageError: there is no prior of that name
    """
    if name not in PRIORS:
        raise UsageError(f"prior is {' or '.join(PRIORS)}, not {name!r}.")
    if name == "none":
        return None
    try:
        return prior_of(read_board())
    except CorruptedFile:
        if BOARD.exists():
            raise
        return None


def final_command(
    verdict: Verdict,
    candidates: Sequence[Candidate],
    settings: Mapping[str, Any],
    in_python: bool = False,
) -> str:
    """Return the command, or the call `in_python`, that trains the final model; empty to stay
    alone.
    """
    if verdict.method == SOLO:
        return ""
    rounds = next(c.rounds for c in candidates if c.method == verdict.method)
    algorithm, own = split_settings(verdict.method)
    chosen = {n: v for n, v in {**settings, **own}.items() if n not in NOT_REPEATED}
    if in_python:
        texts = [f"{name}={value!r}" for name, value in chosen.items() if name not in FROM_DATA]
        return f"comity.run({', '.join([repr(algorithm), 'federation', *texts, f'{rounds=}'])})"
    words = ["comity", "run", algorithm]
    for name, value in chosen.items():
        if value is not None and not isinstance(value, Mapping):
            words += _option(name, value)
    for name, value in settings.get("set", {}).items():
        if accepts(algorithm, name):
            words += ["--set", f"{name}={value}"]
    for party, of_party in settings.get("party", {}).items():
        for name, value in of_party.items():
            text = ",".join(value) if isinstance(value, list) else value
            words += ["--party", f"{party}.{name}={text}"]
    return shlex.join([*words, "--rounds", str(rounds)])


def _option(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{'' if value else 'no-'}{flag}"]
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return [f"--{flag}", text]
