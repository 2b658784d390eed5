"""Compare several methods, and training alone (SOLO), on the same split."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from comity.algorithms import accepts, compose, find, names
from comity.checksums import with_crc
from comity.core.algorithm import AnyAlgorithm
from comity.core.wrapper import Wrapper, chain
from comity.data import Federation
from comity.data.protocols import folds_of
from comity.errors import UsageError
from comity.measure import Gain, gains
from comity.metrics.metrics import METRICS, Metric
from comity.models import CustomModel
from comity.names import OWN_MODEL, OWN_MODELS, SOLO, display_name
from comity.runs.auto_model import LINEAR, resolve_auto_model
from comity.runs.build import prepare
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.recording import one_process
from comity.runs.run import can_continue
from comity.runs.run_warnings import RunWarning, warning_texts
from comity.runs.server_run import Progress, judged_by
from comity.runs.summary import no_round_counted
from comity.safe_files import path_inside, write_atomically
from comity.spec import parse
from comity.studies.against import AgainstEach, against_each, find_method
from comity.studies.compare_warnings import BatchNormCheck, compare_steps
from comity.studies.cross_validation import (
    check_seeds,
    find_too_few,
    pool_parties,
    pool_summaries,
    pooled_gains,
    read_fold_runs,
)
from comity.studies.equal_steps import describe_equal_steps
from comity.studies.equal_steps import equal_steps as measure_equal_steps
from comity.studies.estimate import OVER_OWN_MODEL, OVER_SOLO, Baseline
from comity.studies.method_settings import split_settings, take_solo
from comity.studies.method_summary import MethodSummary, method_summary
from comity.studies.overall_verdict import OverallVerdict, best_on_average, overall_verdict
from comity.studies.own_models import AUTO, count_choices, plain_models_for, run_own_models
from comity.studies.parallel import (
    SHARED_DATA,
    Cost,
    PlannedRun,
    cached_federations,
    run_all,
    with_one_worker,
)
from comity.studies.party_verdicts import (
    Parties,
    PartyVerdict,
    counts_by_party,
    describe_folds,
    how_to_read,
    party_verdicts,
    same_parties,
)
from comity.studies.same_comparison import SameComparison
from comity.track import Trackers
from comity.training.task import fixed_in
from comity.wire.ledger import SERVER

COMPARISON = "comparison.json"
WITH_LAYERS = "mlp2"
"""A network that has a representation, for data of any shape."""
LEFT_OUT = "leave-one-out"
"""The folder of the runs with one party left out (see `leave_one_out`)."""


def folder_name(algorithm: str) -> str:
    """Return the folder name of an algorithm."""
    return display_name(algorithm)


@dataclass(frozen=True)
class Findings:
    """The result of a comparison, the content of comparison.json."""

    metric: str
    """The name of the metric that methods are compared by."""
    seeds: tuple[int, ...]
    rows: list[MethodSummary]
    overall: OverallVerdict | None
    """The verdict for all parties together."""
    answers: list[PartyVerdict]
    """The verdict for each party."""
    reading: str
    """How to read the intervals."""
    warnings: list[RunWarning]
    """Warnings about several runs, or that name a run in their text."""
    equal_steps: bool = False
    """Whether methods have the rounds in which parties take equally many gradient evaluations."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The settings in which a method differs from the others."""
    against: AgainstEach | None = None
    """One method against each of the others, if the comparison has a reference."""
    folds: int = 1
    """The number of folds of cross-validation. Lists in `rows` then have one entry per repeat."""
    baseline: Baseline = OVER_SOLO
    """What gains are over: SOLO, or each party's own model."""
    own_models: dict[str, dict[str, int]] = field(default_factory=dict)
    """By party: in how many runs each model was chosen as its own model. Empty with SOLO as the
    baseline.
    """

    @property
    def repeats(self) -> int:
        """The number of seeds, or of repeats of cross-validation."""
        return len(self.seeds) // self.folds

    @property
    def runs_phrase(self) -> str:
        """The seeds or folds as a phrase for a title; empty for a single run of each method."""
        if self.folds > 1:
            return describe_folds(self.folds, self.repeats)
        return f"{self.repeats} seeds" if self.repeats > 1 else ""

    def plain(self) -> dict[str, Any]:
        """Return the content of comparison.json."""
        return asdict(self) | {"rows": [row.plain() for row in self.rows]}


def compare(
    base: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    progress: Callable[[str], Progress],
    warn: Callable[[str], None],
    *,
    track: Trackers | None = None,
    federation: Federation | None = None,
    model: CustomModel | None = None,
    jobs: int = 1,
    record_messages: bool = False,
    equal_steps: bool = False,
    reference: str | None = None,
    plain: str = AUTO,
) -> Findings:
    """Run every method, and SOLO, on the same split for each seed.

    Args:
        base: The settings that all runs share.
        algorithms: The methods. SOLO is added.
        seeds: The seeds. Each seed has its own split, unless a federation is given.
        out: The folder of the comparison. Finished runs in it are used, others are continued.
        progress: Returns the observer of a run, given the run's title.
        warn: Is called with each warning for the user.
        track: Trackers that the runs report to.
        federation: The data, in place of those that the settings name.
        model: A custom network, in place of the one that the settings name.
        jobs: How many runs go on at once.
        record_messages: Whether all runs store their messages.
        equal_steps: Whether methods get the numbers of rounds in which a party takes equally many
            gradient evaluations, in place of equally many rounds.
        reference: The method that is compared with each of the others.
        plain: The plain models that each party also trains alone (see `own_models.parse_plain`).
            Gains are then over the best of these and SOLO.
    """
    check_folders(list(dict.fromkeys([SOLO, *algorithms])))
    methods, alone = take_solo(algorithms, SOLO)
    _warn_of_duplicates(algorithms, warn)
    data = cached_federations(federation)
    base = with_one_worker(one_process(base) if record_messages else base, jobs)
    first = data(base.but(seed=seeds[0]))
    base = judged_by(base, first.classes)
    kinds = plain_models_for(plain, first)
    base, about_methods = _with_model(base, seeds[0], first)
    methods, left_out = usable_methods(base, methods, first, model)
    reference = find_method(reference, methods) if reference else None
    check_seeds(seeds, folds_of(base.test))
    check_settings(base, methods)
    rounds, scaling = (
        _equal_rounds(base, methods, seeds[0], data, model, alone) if equal_steps else ({}, [])
    )
    experiments = [
        (method, experiment_of(base, method, seed, rounds, alone))
        for seed in seeds
        for method in methods
    ]
    passed_on: set[str] = set()

    def warn_once(texts: Iterable[str]) -> None:
        """Pass on each text once: warnings about the data are the same for all methods."""
        for text in texts:
            if text not in passed_on:
                warn(text)
            passed_on.add(text)

    about_methods += [*left_out, *scaling]
    warn_once(about_methods)
    parties: dict[int, Parties] = {}
    runs: list[PlannedRun] = []
    batchnorm = BatchNormCheck()
    for method, experiment in experiments:
        seed = experiment.seed
        # All experiments are checked before the first run starts.
        job = prepare(experiment, data(experiment), model)
        warn_once(job.warnings())
        batchnorm.add(job)
        parties[seed] = parties.get(seed) or Parties.of(data(experiment))
        runs.append(
            PlannedRun(
                title(experiment, len(seeds) > 1, method=method),
                experiment,
                _checked_run_folder(out, method, job.experiment, seeds, record_messages),
                Cost.of(job),
                record_messages,
                job if len(seeds) <= SHARED_DATA else None,
            )
        )
    summaries: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    with closing(run_all(runs, data, progress, track, model, jobs)) as finished:
        for method, summary in zip(itertools.cycle(methods), finished, strict=False):
            summaries[method].append(summary)
            warn_once(
                f"{display_name(method)}: {warning}" for warning in warning_texts(summary, "during")
            )
    own = {}
    if kinds:
        of_solo = [experiment_of(base, SOLO, seed, rounds, alone) for seed in seeds]
        own = _run_own_models(of_solo, kinds, data, out, model)
    present = summaries[SOLO][0]["accuracy"]["per_party"]
    equal_methods = find_equal_methods(
        {m: [*run_folders(out, m, seeds).values()] for m in methods}, folds_of(base.test)
    )
    warnings = [
        *(RunWarning("before", text) for text in (*about_methods, *batchnorm.warnings())),
        *(RunWarning("after", text) for text in equal_methods),
    ]
    summaries = {SOLO: summaries[SOLO]} | own | summaries
    from_start = {seed: of_seed.only(present) for seed, of_seed in parties.items()}
    result = findings(base, summaries, out, from_start, warnings, equal_steps, reference)
    result = replace(result, settings=({SOLO: alone} if alone else {}) | result.settings)
    warn_once(warning.text for warning in result.warnings)
    write_atomically(out / COMPARISON, json.dumps(with_crc(result.plain()), indent=2) + "\n")
    return result


def _with_model(
    base: Experiment, seed: int, federation: Federation
) -> tuple[Experiment, list[str]]:
    """Return the settings with a network in place of `model=auto`, and a sentence if there was one.

    All runs have the network that the training samples of the first seed choose.
    """
    resolved, reason = resolve_auto_model(base.but(seed=seed), federation)
    return base.but(model=resolved.model), [reason] if reason else []


def _warn_of_duplicates(algorithms: Sequence[str], warn: Callable[[str], None]) -> None:
    for method in dict.fromkeys(m for m in algorithms if list(algorithms).count(m) > 1):
        warn(f"{display_name(method)} is given several times, and is compared once.")


def _run_own_models(
    of_solo: Sequence[Experiment],
    kinds: Sequence[str],
    data: Callable[[Experiment], Federation],
    out: Path,
    model: CustomModel | None,
) -> dict[str, list[dict[str, Any]]]:
    """Train plain models, and choose each party's own model, with the data and seeds of the runs of
    SOLO. Returns the summaries by name.
    """
    names = [*kinds, OWN_MODEL]
    summaries: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for experiment in of_solo:
        job = prepare(experiment, data(experiment), model)
        folders = {name: run_folder(out, name, experiment.seed) for name in (SOLO, *names)}
        for name, summary in run_own_models(job, kinds, folders, model).items():
            summaries[name].append(summary)
    return summaries


def runnable_methods(
    base: Experiment, federation: Federation, model: CustomModel | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return all methods that can run with these settings, and the reason of each that cannot.

    Wrappers are wrapped around FedAvg.
    """
    runnable: list[str] = []
    reasons: dict[str, str] = {}
    for name in names():
        method = f"fedavg+{name}" if issubclass(find(name), Wrapper) else name
        try:
            prepare(experiment_of(base, method, base.seed), federation, model)
        except UsageError as reason:
            reasons[method] = str(reason)
        else:
            runnable.append(method)
    return runnable, reasons


def usable_methods(
    base: Experiment,
    methods: Sequence[str],
    federation: Federation,
    model: CustomModel | None = None,
) -> tuple[list[str], list[str]]:
    """Return the methods that can train the comparison's network, and a sentence for each that
    cannot because the network is linear, and has no representation beside its inputs, or because a
    part of it is frozen, and nothing is left that the method would share.

    Raises UsageError if no method is left beside SOLO.
    """
    is_linear = model is None and parse(base.model).name == LINEAR
    if not is_linear and not _is_frozen(base, federation, model):
        return list(methods), []
    usable, reasons = [], []
    for method in methods:
        try:
            prepare(experiment_of(base, method, base.seed), federation, model)
        except UsageError as reason:
            if not _can_train_layers(base, method, federation):
                raise
            reasons.append(f"{display_name(method)} is left out: {reason}")
        else:
            usable.append(method)
    if usable == [SOLO] and reasons:
        network = f"model={base.model}" if model is None else "these modules"
        raise UsageError(f"No method is left to compare with {network}. {' '.join(reasons)}")
    return usable, reasons


def _is_frozen(base: Experiment, federation: Federation, model: CustomModel | None) -> bool:
    """Return whether a part of the comparison's network is frozen."""
    job = prepare(experiment_of(base, SOLO, base.seed), federation, model)
    return bool(fixed_in(job.info.task.network))


def _can_train_layers(base: Experiment, method: str, federation: Federation) -> bool:
    """Return whether a method that cannot train the comparison's network can train a network with
    hidden layers, none of which is frozen.
    """
    other = base.but(model=WITH_LAYERS, weights=None)
    try:
        prepare(experiment_of(other, method, base.seed), federation)
    except UsageError:
        return False
    return True


def find_equal_methods(folders: Mapping[str, Sequence[Path]], folds: int = 1) -> list[str]:
    """Return a sentence for each group of methods with equal figures in all rounds of all runs.

    `folders` has the runs of each method, and `folds` is the number of folds of cross-validation.
    Values that methods log themselves may differ.
    """
    groups: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for method, runs in folders.items():
        rows = (RunFolder(run).read_metrics() for run in runs)
        figures = tuple(
            tuple(str(tuple(row)) for row in table if row.party != SERVER and row.split != "train")
            for table in rows
        )
        groups.setdefault(figures, []).append(display_name(method))
    seeds = max(map(len, folders.values()))
    when = "in every round"
    if folds > 1:
        when += " of every fold"
    elif seeds > 1:
        when += f", under each of {seeds} seeds"
    return [
        f"{', '.join(names[:-1])} and {names[-1]} are the same here: all parties have equal figures"
        f" {when}."
        for names in groups.values()
        if len(names) > 1
    ]


@dataclass(frozen=True)
class _ComparedRuns:
    """The runs of a comparison, by seed or, under cross-validation, by repeat."""

    summaries: Mapping[str, Sequence[dict[str, Any]]]
    """By method: one summary for each seed or repeat."""
    parties: Mapping[int, Parties]
    gains: Callable[[str, str], dict[int, list[Gain]]]
    """Returns the parties' gains of one method over another."""

    @property
    def same_parties(self) -> bool:
        """Whether parties are the same under all seeds."""
        return same_parties(of_seed.shares for of_seed in self.parties.values())

    @property
    def tested(self) -> int:
        """The number of test samples of all parties and seeds."""
        return sum(
            sum(counts.test)
            for of_seed in self.parties.values()
            for counts in of_seed.counts.values()
        )


def _runs_by_seed(
    summaries: Mapping[str, Sequence[dict[str, Any]]],
    parties: Mapping[int, Parties],
    out: Path,
    metric: Metric,
) -> _ComparedRuns:
    """Return the runs of a comparison without cross-validation."""

    def gains_over(method: str, other: str) -> dict[int, list[Gain]]:
        now, before = (run_folders(out, m, parties) for m in (method, other))
        return {seed: gains(now[seed], before[seed], metric.name) for seed in parties}

    return _ComparedRuns(summaries, parties, gains_over)


def _pooled_runs(
    summaries: Mapping[str, Sequence[dict[str, Any]]],
    parties: Mapping[int, Parties],
    out: Path,
    folds: int,
    metric: Metric,
) -> _ComparedRuns:
    """Return the runs of cross-validation, with the predictions of all folds together."""
    pooled = pool_parties(parties, folds)
    same = same_parties(of_repeat.shares for of_repeat in pooled.values())
    too_few = find_too_few(pooled, metric)
    runs = {method: read_fold_runs(run_folders(out, method, parties)) for method in summaries}
    pooled_summaries = {
        method: pool_summaries(of_method, runs[method], too_few, folds, metric)
        for method, of_method in summaries.items()
    }

    def gains_over(method: str, other: str) -> dict[int, list[Gain]]:
        return pooled_gains(runs[method], runs[other], folds, metric, same)

    return _ComparedRuns(pooled_summaries, pooled, gains_over)


def findings(
    base: Experiment,
    summaries: Mapping[str, Sequence[dict[str, Any]]],
    out: Path,
    parties: Mapping[int, Parties],
    warnings: list[RunWarning],
    equal_steps: bool = False,
    reference: str | None = None,
) -> Findings:
    """Compare every method with SOLO, or with the parties' own models if there are any, for each
    party and for all together.

    The verdicts name the best of the methods in which a party could take part, so the intervals are
    Bonferroni-corrected for their number. Warnings about the methods' steps are added to those
    given. A `reference` is also compared with each of the other methods. Under cross-validation,
    predictions of all folds are pooled.
    """
    metric = METRICS[base.metric]
    own_models = count_choices(summaries.get(OWN_MODEL, ()))
    about_steps = compare_steps(
        {display_name(m): runs for m, runs in summaries.items() if m not in OWN_MODELS}, equal_steps
    )
    untrained = {m for m, runs in summaries.items() if any(map(no_round_counted, runs))}
    folds = folds_of(base.test)
    if folds > 1:
        runs = _pooled_runs(summaries, parties, out, folds, metric)
    else:
        runs = _runs_by_seed(summaries, parties, out, metric)
    baseline = OWN_MODEL if OWN_MODEL in summaries else SOLO
    over = OVER_OWN_MODEL if baseline == OWN_MODEL else OVER_SOLO
    shares = {
        method: "nothing"
        if method in OWN_MODELS
        else chain(composed(base, method))[-1].traits.shares
        for method in summaries
    }
    open_to_all = [method for method in summaries if shares[method] not in ("nothing", "data")]
    picked = max(1, len(open_to_all))
    same = runs.same_parties
    too_few = {summary["seed"]: summary.get("too_few", ()) for summary in runs.summaries[SOLO]}
    rows = {}
    for method in summaries:
        is_ranked = method != baseline and not untrained & {method, baseline}
        rows[method] = method_summary(
            display_name(method),
            runs.summaries[method],
            runs.gains(method, baseline) if is_ranked else {},
            too_few,
            same,
            picked,
            metric.name,
            over,
        )
    class_names = next(iter(runs.parties.values())).class_names
    joint = [rows[m] for m in open_to_all]
    best = best_on_average(joint)
    verdicts = party_verdicts(
        {row.algorithm: row.gains for row in joint},
        counts_by_party(runs.parties, same),
        metric,
        class_names,
        best[0].algorithm if best else "",
        own_models,
    )
    repeats = len(runs.parties)
    overall = overall_verdict(joint, verdicts, repeats, folds, round(runs.tested / repeats))
    reading = how_to_read(len(open_to_all), list(runs.parties), metric, same, folds, over)
    return Findings(
        metric.name,
        tuple(parties),
        list(rows.values()),
        overall,
        verdicts,
        reading,
        [*warnings, *(RunWarning("after", text) for text in about_steps)],
        equal_steps,
        {
            display_name(m): own
            for m in summaries
            if m not in OWN_MODELS and (own := split_settings(m)[1])
        },
        against_each(
            reference,
            [m for m in summaries if m != reference and m not in untrained],
            runs.gains,
            too_few,
            same,
            metric,
        )
        if reference and reference not in untrained
        else None,
        folds,
        over,
        own_models,
    )


def composed(base: Experiment, method: str) -> AnyAlgorithm:
    """Return the algorithm of a method with those of the common options that it accepts."""
    return compose(split_settings(method)[0], settings_for(base, method))


def _equal_rounds(
    base: Experiment,
    methods: Sequence[str],
    seed: int,
    data: Callable[[Experiment], Federation],
    model: CustomModel | None,
    alone: Mapping[str, Any],
) -> tuple[dict[str, int], list[str]]:
    """Return the rounds of all methods by which they spend equal steps, and what to say about it.

    They are measured under one seed and hold for all.
    """
    equal = {}
    for method in methods:
        experiment = experiment_of(base, method, seed, alone=alone)
        equal[method] = measure_equal_steps(prepare(experiment, data(experiment), model))
    rounds = {method: equal_steps.rounds for method, equal_steps in equal.items()}
    return rounds, describe_equal_steps(equal, base.rounds)


def check_folders(methods: Sequence[str]) -> None:
    """Raise UsageError for two methods with the same folder, for a reserved folder name, and for a
    settings file in place of a method.
    """
    if file := next(
        (method for method in methods if method.endswith((".toml", ".yaml", ".yml", ".json"))), None
    ):
        raise UsageError(f"{file} is not a method: give methods by name, and settings as options.")
    folders = [folder_name(method) for method in methods]
    if reserved := next((folder for folder in folders if folder in OWN_MODELS), None):
        raise UsageError(
            f"{reserved} is not a method: the models that each party trains alone are added with"
            " --plain."
        )
    if twice := next((f for f in folders if folders.count(f) > 1), None):
        raise UsageError(
            f"Two of the methods would share the folder {twice}: rename one of the files."
        )
    if LEFT_OUT in folders:
        raise UsageError(
            f"{LEFT_OUT} is the folder of runs without a party: give that method's file another"
            " name."
        )


def title(experiment: Experiment, several: bool, without: str = "", method: str = "") -> str:
    """Return the title of a run in a study; with `several` seeds, it includes the seed or fold.

    `method` is the method with its own settings, if it has any.
    """
    parts = [
        display_name(method or experiment.algorithm),
        f"without {without}" if without else "",
        _seed_title(experiment) if several else "",
    ]
    return " ".join(filter(None, parts))


def _seed_title(experiment: Experiment) -> str:
    """Return the seed of a run as a phrase; under cross-validation, its fold and repeat."""
    folds = folds_of(experiment.test)
    if folds == 1:
        return f"seed {experiment.seed}"
    repeat, fold = divmod(experiment.seed, folds)
    return f"fold {fold + 1}" + (f" of repeat {repeat + 1}" if repeat else "")


def run_folder(out: Path, method: str, seed: int) -> Path:
    """Return the folder of a run in a comparison; refuse links that lead out of it."""
    return path_inside(out, folder_name(method), f"seed-{seed}")


def _checked_run_folder(
    out: Path, method: str, experiment: Experiment, seeds: Sequence[int], record_messages: bool
) -> Path:
    """Return the folder of a run in a comparison. Refuse one that holds a run, or a folder that
    holds a comparison, with other settings.
    """
    if method == SOLO and experiment.seed == seeds[0]:
        SameComparison(out, out / COMPARISON).check(experiment, seeds)
    folder = run_folder(out, method, experiment.seed)
    can_continue(folder, experiment, record_messages)
    return folder


def run_folders(out: Path, method: str, seeds: Iterable[int]) -> dict[int, Path]:
    """Return the folders of a method's runs in a comparison, by seed."""
    return {seed: run_folder(out, method, seed) for seed in seeds}


def experiment_of(
    base: Experiment,
    method: str,
    seed: int,
    rounds: Mapping[str, int] | None = None,
    alone: Mapping[str, Any] | None = None,
) -> Experiment:
    """Return the experiment of one method in a comparison, with its own settings.

    `rounds` has the numbers of rounds of methods that differ from the others in it, and `alone` the
    own settings of SOLO.
    """
    algorithm, own = (SOLO, dict(alone)) if alone and method == SOLO else split_settings(method)
    options = settings_for(base, method)
    equal = {"rounds": rounds[method]} if rounds and method in rounds else {}
    return base.but(**{"algorithm": algorithm, "seed": seed, "set": options} | own | equal)


def settings_for(base: Experiment, method: str) -> dict[str, Any]:
    """Return those of the common settings (`--set`) that a method accepts."""
    return {name: value for name, value in base.set.items() if accepts(method, name)}


def check_settings(base: Experiment, methods: Iterable[str]) -> None:
    """Raise UsageError for a setting that no method accepts."""
    for name in base.set:
        if not any(name in settings_for(base, method) for method in methods):
            raise UsageError(f"None of the methods has an option called {name!r}.")
