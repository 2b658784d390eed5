"""`comity advise`: which method to use on a federation, or whether to stay alone."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comity.algorithms import accepts
from comity.checksums import UNREADABLE, read_json, with_crc
from comity.data import Federation
from comity.data.protocols import folds_of
from comity.errors import CorruptedFile, UsageError
from comity.models import CustomModel
from comity.names import OWN_MODEL, SOLO, display_name
from comity.runs.build import SimulatedRun, prepare
from comity.runs.config import WHERE, Experiment
from comity.runs.run import network_digests
from comity.runs.server_run import Progress, judged_by
from comity.safe_files import write_atomically
from comity.studies.advise.feasible import Candidate, LeftOut, cheaper, feasible
from comity.studies.advise.prior import FederationTraits, MethodPrior, PriorOfRace, prior_of
from comity.studies.advise.race import Race, RaceRule, run_race
from comity.studies.advise.runner import Runner
from comity.studies.advise.verdict import AdviceVerdict, give_verdict
from comity.studies.board import BOARD, describe, read_board
from comity.studies.cross_validation import fold_seeds
from comity.studies.method_settings import split_settings
from comity.studies.own_models import AUTO, plain_models_for
from comity.studies.parallel import cached_federations, with_one_worker
from comity.studies.power import MOST_REPEATS

ADVICE = "advice.json"
RACE_FOLDER = "race"
"""The folder of a race beside the runs of a comparison."""
RACE = "race.json"
"""What a race in a folder is about."""
FOLDS = 4
"""How many folds the samples are divided into unless another number is given."""
FROM_DATA = frozenset(("data", "partition", "parties", "validation"))
"""Settings that a federation from Python fixes."""
NOT_REPEATED = frozenset(("rounds", "algorithm", "test", "set"))
"""Settings that the final run has of its own, and options of methods."""


@dataclass(frozen=True)
class Advice:
    """The result of `comity advise`, the content of advice.json."""

    verdict: AdviceVerdict
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
    own_models: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """On tables: by party, the models that were best within its training samples, the most frequent
    first, with the number of folds.
    """

    def candidate(self, method: str) -> Candidate:
        """Return the costs of a method."""
        return next(c for c in self.candidates if c.method == method)

    def plain(self) -> dict[str, Any]:
        """Return the content of advice.json."""
        race = self.race
        content = {
            "verdict": self.verdict.plain(),
            "metric": self.metric,
            "baseline": race.baseline,
            "own_models": {party: dict(models) for party, models in self.own_models.items()},
            "command": self.command,
            "candidates": [c.plain() for c in self.candidates],
            "left_out": [vars(o) for o in self.left_out],
            "departures": [vars(d) for d in race.departures],
            "rungs": [rung.plain() for rung in race.rungs],
            "warnings": race.warnings,
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
    *,
    methods: Sequence[str] | None = None,
    federation: Federation | None = None,
    model: CustomModel | None = None,
    jobs: int = 1,
    margin: float = 1.0,
    plain: str = AUTO,
    prior: MethodPrior | None = None,
    max_bytes: float | None = None,
    budget_time: float | None = None,
    max_hurt: int | None = None,
    repeats: int = 1,
    settings: Mapping[str, Any] | None = None,
    in_python: bool = False,
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
        margin: Differences below it do not matter, in points.
        plain: The plain models that each party also trains alone (see `own_models.parse_plain`).
        prior: What methods gained on other federations.
        max_bytes: The most bytes that the final run may send.
        budget_time: The most seconds that the race may take.
        max_hurt: How many parties the method may clearly hurt; default: any number.
        repeats: How many seeds the method that is tested runs with on each fold.
        settings: The settings that the user gave, for the command that trains the final model.
        in_python: Whether that command is a call in Python.
    """
    if not 0 < margin < 100:
        raise UsageError(f"margin is a number of points between 0 and 100, not {margin!r}.")
    if not 1 <= repeats <= MOST_REPEATS:
        raise UsageError(f"repeats is a number from 1 to {MOST_REPEATS}, not {repeats}.")
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
    # Under a privacy budget there is no half: noise is solved for the number of rounds.
    rule = RaceRule(folds=folds, margin=margin / 100, half=not base.budget, repeats=repeats)
    alone = prepare(first.but(algorithm=SOLO, set={}, budget=None), present, model)
    claim_folder(out, base, alone)
    traits = FederationTraits.of(describe(alone))
    expected = prior.expectations(traits) if prior and present.classes else {}
    kinds = plain_models_for(plain, present)
    rounds = {c.method: c.rounds for c in candidates}
    runner = Runner(base, rounds, out, data, progress, warn, model, jobs, kinds)

    def time_left() -> float:
        if budget_time is None:
            return math.inf
        spent = runner.seconds / jobs
        return max(0.0, budget_time - spent) / max(spent, 1e-9)

    race = run_race(
        [c.arm for c in cheaper(candidates)],
        rule,
        PriorOfRace(expected, rule.prior_folds if expected else 0.0),
        runner,
        time_left,
        OWN_MODEL if kinds else SOLO,
    )
    for method in dict.fromkeys(runner.computed_twice):
        race.warnings.append(
            f"{display_name(method)} cannot go on from half of its rounds, so it began anew."
        )
    verdict = give_verdict(race, max_hurt)
    advice = Advice(
        verdict,
        race,
        tuple(candidates),
        tuple(left_out),
        base.metric,
        final_command(verdict, candidates, settings or {}, federation is not None, in_python),
        runner.seconds,
        prior.similar(traits) if prior else 0,
        out,
        runner.own_models(race.folds_of(SOLO)),
    )
    write_atomically(out / ADVICE, json.dumps(with_crc(advice.plain()), indent=2) + "\n")
    return advice


def claim_folder(out: Path, base: Experiment, job: SimulatedRun) -> None:
    """Write what a race is about into its folder, or refuse a folder that holds another race.

    Args:
        out: The folder.
        base: The settings of all runs.
        job: A prepared run on the race's data.
    """
    settings = base.model_dump(mode="json", exclude=WHERE | {"algorithm"})
    content = {"settings": settings, "data": job.federation.fingerprint(), **network_digests(job)}
    file = out / RACE
    if not file.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(with_crc(content), indent=2) + "\n")
        return
    try:
        before = read_json(file)
        settings_before = dict(before.pop("settings"))
    except UNREADABLE as why:
        raise CorruptedFile(f"{file} is damaged: choose another --out.") from why
    for name, value in settings.items():
        if settings_before.get(name) != value:
            raise UsageError(
                f"{out} holds a race with {name}={settings_before.get(name)}, not {value}: choose"
                " another --out."
            )
    if before != {name: value for name, value in content.items() if name != "settings"}:
        raise UsageError(f"{out} holds a race on other data or models: choose another --out.")


PRIORS = ("none", "board")
"""What a race may know beforehand: nothing, or what methods gained on the board's federations."""


def find_prior(name: str) -> MethodPrior | None:
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
    verdict: AdviceVerdict,
    candidates: Sequence[Candidate],
    settings: Mapping[str, Any],
    own_data: bool = False,
    in_python: bool = False,
) -> str:
    """Return what trains the final model; empty to stay alone.

    Args:
        verdict: The verdict, with the method.
        candidates: The methods that raced, with their rounds.
        settings: The settings that the user gave.
        own_data: Whether the data are an object in Python, called `federation` in the call.
        in_python: Whether to return a call in Python, in place of a command.
    """
    if verdict.method == SOLO:
        return ""
    rounds = next(c.rounds for c in candidates if c.method == verdict.method)
    algorithm, own = split_settings(verdict.method)
    chosen = {n: v for n, v in {**settings, **own}.items() if n not in NOT_REPEATED}
    options = {n: v for n, v in settings.get("set", {}).items() if accepts(algorithm, n)}
    if in_python:
        chosen = {n: v for n, v in chosen.items() if not (own_data and n in FROM_DATA)}
        arguments = [repr(algorithm), *(["federation"] if own_data else [])]
        arguments += [f"{name}={value!r}" for name, value in (chosen | options).items()]
        return f"comity.run({', '.join([*arguments, f'{rounds=}'])})"
    words = ["comity", "run", algorithm]
    for name, value in chosen.items():
        if value is not None and not isinstance(value, Mapping):
            words += _option(name, value)
    for name, value in options.items():
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
