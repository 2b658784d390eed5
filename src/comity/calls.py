"""The calls that run experiments: `comity.run`, `compare`, `tune`, `advise` and `leave_one_out`;
and `comity.profile`, which looks at the data.

`run` has a keyword for each setting of `comity.runs.config.Experiment`, with its type and default.
The other calls take the same settings as keywords of the type `Settings`. A test checks that the
three lists agree.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import TypedDict, Unpack

from comity.data import Dataset, Federation
from comity.data.profiles import Profile, Protection, profile_data
from comity.errors import UsageError
from comity.metrics.custom_metrics import Function, register_function
from comity.models import MODULES, CustomModel
from comity.names import SOLO
from comity.notebook import views as _views  # noqa: F401 - registers how results are shown
from comity.progress import ProgressFactory, show_progress
from comity.runs.auto_model import resolve_auto_model
from comity.runs.build import federation_of, prepare
from comity.runs.call_settings import (
    Option,
    check_data,
    check_federation,
    check_options,
    experiment_from_call,
    settings_in,
)
from comity.runs.config import Experiment
from comity.runs.recording import one_process
from comity.runs.result import Result
from comity.runs.run import can_continue, engine_warnings, reopen, resume_in, start
from comity.runs.run_warnings import warning_texts
from comity.runs.server_run import Progress
from comity.studies import compare as comparing
from comity.studies import leave_one_out as leaving
from comity.studies import tune as tuning
from comity.studies.advise import advise as advising
from comity.studies.advise.advise import Advice
from comity.studies.cross_validation import default_folds, fold_seeds
from comity.studies.finished import Comparison, Tuning, open_comparison
from comity.studies.method_settings import take_solo
from comity.studies.parallel import parse_jobs
from comity.text import escape_terminal
from comity.track import Tracker, Trackers


class Settings(TypedDict, total=False):
    """The settings of an experiment as keywords. `comity.run` documents them and their defaults."""

    data: str | None
    partition: str | None
    parties: int | None
    model: str | CustomModel
    weights: str | Path | None
    rounds: int
    epochs: int
    steps: int | None
    batch: int
    optimizer: str
    lr: float
    participation: float
    test: str | None
    validation: float | None
    eval_every: int
    eval_share: float
    patience: int | None
    metric: str | Function
    calibrate: str
    augment: str
    bn: Literal["all", "params_only", "none"]
    init: Literal["common", "random", "own"]
    cut: str | None
    precision: Literal["float32", "bf16"]
    opt_state: Literal["reset", "keep"]
    last_batch: Literal["keep", "drop"]
    newcomers: int
    join_epochs: int
    without: Sequence[str] | None
    absent: str | None
    min_replies: int
    on_nonfinite: Literal["drop", "stop"]
    budget: str | None
    seed: int
    device: Literal["auto", "cpu", "cuda", "mps"]
    engine: Literal["auto", "loop", "process", "stacked", "ray"]
    workers: int | None
    gpus: float | None
    cache: bool
    partial_sums: bool
    secure_aggregation: bool
    secure_aggregation_range: float
    set: Mapping[str, Option] | None
    party: Mapping[str, Any] | None


SETTING_NAMES = frozenset(Settings.__annotations__)
FROM_FEDERATION = ("data", "partition", "parties", "test", "validation")
"""The settings that a federation fixes."""


def run(
    algorithm: str,
    federation: Federation | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | Progress | None = None,
    track: Sequence[str | Tracker] = (),
    record_messages: bool = False,
    data: str | None = None,
    partition: str | None = None,
    parties: int | None = None,
    model: str | CustomModel = "mlp2",
    weights: str | Path | None = None,
    rounds: int = 20,
    epochs: int = 1,
    steps: int | None = None,
    batch: int = 10,
    optimizer: str = "sgd",
    lr: float = 0.05,
    participation: float = 1.0,
    test: str | None = None,
    validation: float | None = None,
    eval_every: int = 1,
    eval_share: float = 1.0,
    patience: int | None = None,
    metric: str | Function = "accuracy",
    calibrate: str = "none",
    augment: str = "none",
    bn: Literal["all", "params_only", "none"] = "all",
    init: Literal["common", "random", "own"] = "common",
    cut: str | None = None,
    precision: Literal["float32", "bf16"] = "float32",
    opt_state: Literal["reset", "keep"] = "reset",
    last_batch: Literal["keep", "drop"] = "keep",
    newcomers: int = 0,
    join_epochs: int = 10,
    without: Sequence[str] | None = None,
    absent: str | None = None,
    min_replies: int = 1,
    on_nonfinite: Literal["drop", "stop"] = "drop",
    budget: str | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    engine: Literal["auto", "loop", "process", "stacked", "ray"] = "auto",
    workers: int | None = None,
    gpus: float | None = None,
    cache: bool = True,
    partial_sums: bool = False,
    secure_aggregation: bool = False,
    secure_aggregation_range: float = 128.0,
    set: Mapping[str, Option] | None = None,
    party: Mapping[str, Any] | None = None,
    **options: Option,
) -> Result:
    """Run a method on a federation: `comity.run("fedavg+dbe", fed, rounds=20, seed=0, kappa=50)`.

    The options of a method (kappa, mu) are written in its name, `"fedavg+dbe(kappa=50)"`, in
    `set={"kappa": 50}`, or as further keywords, as above.

    Args:
        algorithm: method with optional wrappers, as in fedavg+dbe, or a ./file.py
        federation: the parties and their data; default: built from `data`, `partition`, `parties`
            and `seed`
        out: folder of the run; default: a temporary folder, deleted with the result
        resume: continue the run in the folder `out`
        progress: True shows a progress line, False shows none, None shows one in notebooks only; or
            an object with the methods of `Progress`
        track: trackers that log the run: "tensorboard", "mlflow", "wandb", a ./file.py or a
            `Tracker`
        record_messages: keep every message for `comity.audit`; all parties then run in one process
        data: dataset name, or path to your own data; default: digits. A given federation fixes this
            setting
        partition: how samples are split among parties: a partition, a saved split.json, or a
            ./file.py; auto: the natural parties of the dataset (persons, sites, sources), otherwise
            dirichlet(alpha=0.5); default: auto. A given federation fixes this setting
        parties: number of parties; default: 10, or the number of natural parties. A given
            federation fixes this setting
        model: network name, or a ./file.py, or your own network: a pair (encoder, head) of modules,
            or a function that makes it
        weights: file of initial weights, matched by name: safetensors, a state dict, or an exported
            model
        rounds: number of communication rounds
        epochs: local epochs per round
        steps: local steps per round, instead of epochs
        batch: mini-batch size
        optimizer: sgd, sgd(momentum=0.9,decay=1e-5) or adam
        lr: learning rate
        participation: fraction of parties that train in a round
        test: test protocol: own(0.25), tail(0.25), folds(5), official, matched or common; default:
            own(0.25). A given federation fixes this setting
        validation: fraction of each party's training samples held out for validation; default: 0.1.
            A given federation fixes this setting
        eval_every: rounds between evaluations; the last round is always evaluated
        eval_share: fraction of parties evaluated per round (a new sample each time; all parties
            after the last round)
        patience: stop after this many rounds without improvement on validation data (on test data
            if validation is 0)
        metric: metric that rounds, settings and methods are chosen by: accuracy, balanced_accuracy,
            macro_f1, auc, sensitivity, specificity, r2, a ./file.py, or a function of (truth,
            answer)
        calibrate: calibrate each party's final model on its own validation samples: none,
            threshold, threshold(specificity=0.9), temperature or platt
        augment: random augmentation of training images, as in flip|crop(pad=4)|rotate(degrees=10)
        bn: which BatchNorm values are shared: all, its weights but no running statistics (better
            where inputs differ, worse where labels do), or none
        init: initial weights: the model's own, or drawn if it has none, the same for all parties
            (common); drawn anew, the same for all (random); drawn for each party (own)
        cut: stage whose output is the representation; default: chosen by the model
        precision: precision of the forward and backward passes in training: float32, or bf16
            (faster for convolutions on processors with bfloat16 instructions); weights, updates,
            averages and evaluation are float32
        opt_state: optimizer state of the parties between rounds
        last_batch: last batch of an epoch, if it is smaller than the others
        newcomers: number of parties (the last ones) that join only after training, and are then
            evaluated
        join_epochs: epochs of a newcomer's warm-up
        without: parties to leave out, as in p1,p2; the others keep their data and their random
            streams
        absent: simulated absences: a table such as absences.csv, or random(offline=0.1,lost=0.1)
        min_replies: minimum number of replies to a call (or all, if fewer parties are called);
            otherwise the round is discarded
        on_nonfinite: reply that contains NaN or infinity: drop the reply, or stop the run
        budget: privacy budget of each party, as in epsilon=8,delta=1e-5; dp solves for its noise
            level
        seed: random seed
        device: device of the tensors; auto: a GPU if there is one (GPUs are untested)
        engine: how parties are run: one after another (loop), in worker processes, batched
            (stacked), or on a Ray cluster; flare: at real sites, with --federation
        workers: number of worker processes; default: one per core
        gpus: GPUs, or a fraction of one, per Ray worker (untested)
        cache: compute the representations of a frozen encoder once, if there is no augmentation;
            results differ by rounding
        partial_sums: let each worker (process or ray) sum its parties' replies where the method
            only averages them: less traffic; results differ by rounding
        secure_aggregation: with --federation: the server learns the mean of the replies and no
            single reply (experimental)
        secure_aggregation_range: largest absolute value that secure aggregation can encode; larger
            ones are clipped
        set: options of the method
        party: settings of individual parties
        options: options of the method, by name

    Returns:
        The result of the finished run.

    Raises:
        UsageError: a name or a value is wrong. Nothing was started.
        ComityError: the run failed.

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("dirichlet(alpha=0.1)", parties=3, seed=0)
        >>> result = comity.run("fedavg+dbe", fed, rounds=2, seed=0, model="linear", kappa=50)
        >>> 0 < result.summary["accuracy"]["mean"] <= 1
        True
    """
    settings, custom_model = _read_settings(locals())
    check_federation("run", algorithm, federation)
    check_data("run", algorithm, data)
    experiment = experiment_from_call([algorithm], federation, settings, options, run)
    experiment = one_process(experiment) if record_messages else experiment
    if out is None and any(isinstance(tracker, str) for tracker in track):
        raise UsageError("Trackers write beside the run: give the run a folder with out=...")
    trackers = Trackers(track)
    tested = federation_of(experiment, federation)
    experiment, reason = resolve_auto_model(experiment, tested)
    job = prepare(experiment, tested, custom_model)
    job = replace(job, auto_model=reason)
    for text in job.warnings():
        warnings.warn(escape_terminal(text), stacklevel=2)
    temporary, folder = _run_folder(out)
    with show_progress(progress) as progress_for:
        display = progress_for(comparing.title(experiment, False))
        if resume and can_continue(folder, job.experiment, record_messages):
            for text in engine_warnings(folder, experiment):
                warnings.warn(escape_terminal(text), stacklevel=2)
            # trust: the caller itself names the code that the folder names
            interrupted = reopen(folder, federation, custom_model, trust=True, prepared=job)
            result = resume_in(interrupted, folder, display, trackers)
        else:
            result = start(job, folder, display, trackers, record_messages=record_messages)
    for text in warning_texts(result.summary, "during", "after"):
        warnings.warn(escape_terminal(text), stacklevel=2)
    result._keep = temporary
    return result


def compare(
    algorithms: Sequence[str],
    federation: Federation | None = None,
    *,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    progress: bool | ProgressFactory | None = None,
    jobs: int | Literal["auto"] = 1,
    track: Sequence[str | Tracker] = (),
    record_messages: bool = False,
    equal_steps: bool = False,
    reference: str | None = None,
    folds: int | None = None,
    repeats: int = 1,
    plain: str = "auto",
    **settings: Unpack[Settings],
) -> Comparison:
    """Compare methods, and SOLO, on the same data.

    Each seed changes the initial weights, the batches and all other random draws. With a
    federation, all seeds use its split, so the spread over seeds does not include the effect of
    other splits. Without one, each seed splits the data anew, as on the command line.

    Args:
        algorithms: the methods; SOLO is always added. A method may have its own settings, as in
            "fedper(lr=0.1)"
        federation: the parties and their data; default: built from `data`, `partition` and
            `parties` for each seed
        seeds: each method runs once per seed; default: `seed` alone
        out: folder of the comparison; the same call continues an interrupted comparison there.
            Default: a temporary folder, deleted with the result
        progress: True shows a progress line, False shows none, None shows one in notebooks only; or
            a function that makes a `Progress` from a run's title
        jobs: number of runs in parallel, each in its own process with one worker; auto: one per
            core, if memory allows
        track: trackers, as in `comity.run`
        record_messages: keep every message, as in `comity.run`
        equal_steps: scale each method's rounds, so that parties take equally many gradient
            evaluations as in plain local training for `rounds` rounds
        reference: the method that is compared with each of the others, in `comparison.against`
        folds: number of folds of cross-validation, in place of `seeds` and `test`: each method runs
            once per fold, and every sample of a party is tested on once; 1 for none. Default: as on
            the command line, 5 for small tables if neither `seeds`, `test` nor a federation is
            given, otherwise 1
        repeats: number of repeats of cross-validation, with other folds and starts
        plain: plain models that each party also trains alone, with scikit-learn: "linear",
            "boosting", "linear,boosting" or "none"; "auto": both on tables. Gains are then over the
            best of these and SOLO, which each party chooses by cross-validation on its training
            samples.
        settings: settings of `comity.run`. Options of methods are also accepted as keywords at run
            time, but type checkers know them only in `set`; each goes to the methods that have it.

    Returns:
        The ranking, the verdicts for the parties, and the result of every run.

    Raises:
        UsageError: a name or a value is wrong. Nothing was started.
        ComityError: a run failed.

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("dirichlet(alpha=0.1)", parties=3, seed=0)
        >>> comparison = comity.compare(
        ...     ["fedavg", "fedavg+dbe"], fed, seeds=(0, 1), rounds=2, model="linear", kappa=50
        ... )
        >>> sorted(comparison.results)
        ['fedavg', 'fedavg+dbe', 'solo']
    """
    job_count = parse_jobs(jobs)
    methods = _check_methods(algorithms)
    base, custom_model = _experiment(compare, methods, federation, **settings)
    base, seed_list = _cross_validated(
        base,
        _check_seeds(seeds, base),
        folds,
        repeats,
        seeds_given=seeds is not None,
        test_given=federation is not None or settings.get("test") is not None,
    )
    temporary, folder = _run_folder(out)
    trackers = _trackers(track, temporary, folder)
    run_count = len(take_solo(methods, SOLO)[0]) * len(seed_list)
    with show_progress(progress, run_count, job_count) as progress_for:
        comparing.compare(
            base,
            methods,
            seed_list,
            folder,
            progress_for,
            _warn,
            track=trackers,
            federation=federation,
            model=custom_model,
            jobs=job_count,
            record_messages=record_messages,
            equal_steps=equal_steps,
            reference=reference,
            plain=plain,
        )
    # trust: the caller itself names the code that the folder names
    return open_comparison(folder, federation, custom_model, trust=True, keep=temporary)


def tune(
    algorithm: str,
    federation: Federation | None = None,
    *,
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    progress: bool | ProgressFactory | None = None,
    jobs: int | Literal["auto"] = 1,
    track: Sequence[str | Tracker] = (),
    **settings: Unpack[Settings],
) -> Tuning:
    """Try a grid of values, each for the same number of rounds, and choose the best on validation
    data.

    Args:
        algorithm: method with optional wrappers
        federation: the parties and their data; default: built from `data`, `partition` and
            `parties` for each seed
        grid: the values to try, by the name of a setting or of an option of the method; all
            combinations are tried
        seeds: each combination runs once per seed, with the meaning of seeds in `comity.compare`;
            default: `seed` alone
        out: folder of the trials; the same call continues interrupted trials there. Default: a
            temporary folder, deleted with the result
        progress: as in `comity.compare`
        jobs: number of runs in parallel, as in `comity.compare`
        track: trackers, as in `comity.run`
        settings: settings of `comity.run`, and options of the method as in `comity.compare`

    Returns:
        The trials, the best first.

    Raises:
        UsageError: a name or a value is wrong. Nothing was started.
        ComityError: a run failed.

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("iid", parties=2, seed=0)
        >>> tuning = comity.tune("fedprox", fed, grid={"mu": [0.1, 1.0]}, rounds=1, model="linear")
        >>> sorted(trial.settings["mu"] for trial in tuning.trials)
        [0.1, 1.0]
    """
    job_count = parse_jobs(jobs)
    base, custom_model = _experiment(tune, [algorithm], federation, **settings)
    points = _check_grid(grid, federation)
    option_names = [name for name in points if name not in Experiment.model_fields]
    check_options([algorithm], option_names, tune)
    temporary, folder = _run_folder(out)
    seed_list = _check_seeds(seeds, base)
    trackers = _trackers(track, temporary, folder)
    run_count = prod(map(len, points.values())) * len(seed_list)
    with show_progress(progress, run_count, job_count) as progress_for:
        trials = tuning.tune(
            base,
            points,
            seed_list,
            folder,
            progress_for,
            trackers,
            federation,
            custom_model,
            job_count,
        )
    if trials.unequal_steps:
        warnings.warn(escape_terminal(trials.unequal_steps), stacklevel=2)
    return Tuning(folder, algorithm, trials, temporary)


def advise(
    federation: Federation | None = None,
    *,
    methods: Sequence[str] | None = None,
    folds: int = 4,
    margin: float = 1.0,
    max_bytes: float | None = None,
    budget_time: float | None = None,
    max_hurt: int | None = None,
    repeats: int = 1,
    plain: str = "auto",
    prior: Literal["none", "board"] = "none",
    out: str | Path | None = None,
    progress: bool | ProgressFactory | None = None,
    jobs: int | Literal["auto"] = 1,
    **settings: Unpack[Settings],
) -> Advice:
    """Find the method to use on a federation, or that the parties should stay alone.

    All methods are tried on one fold of the samples, and the best is tested on the others.

    Args:
        federation: the parties and their data; default: built from `data`, `partition` and
            `parties`
        methods: the methods to try; `"all"` stands for all; default: a dozen usual ones
        folds: folds of each party's samples
        margin: differences below it do not matter, in points
        max_bytes: the most bytes that the final run may send
        budget_time: how many seconds the race may take: those of its runs, divided by `jobs`
        max_hurt: the most parties that may clearly be hurt
        repeats: seeds with which the method that is tested runs on each fold
        plain: plain models that each party also trains alone, as in `comity.compare`
        prior: "board" lets gains on similar federations help to choose who goes on
        out: folder of the race; the same call continues an interrupted race there. Default: a
            temporary folder
        progress: as in `comity.compare`
        jobs: number of runs in parallel, as in `comity.compare`
        settings: settings of `comity.run`, and options of the methods as in `comity.compare`

    Returns:
        The verdict, the race behind it, and what each method costs.

    Raises:
        UsageError: a name or a value is wrong. Nothing was started.
        ComityError: a run failed.

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("iid", parties=3, seed=0)
        >>> advice = comity.advise(fed, methods=["fedavg"], rounds=2, model="linear", folds=2)
        >>> advice.verdict.kind in ("use", "alone", "cannot tell")
        True
    """
    job_count = parse_jobs(jobs)
    if "test" in settings:
        raise UsageError("advise tests by cross-validation: leave out test, and give folds.")
    if not isinstance(folds, int) or isinstance(folds, bool) or folds < 2:
        raise UsageError(f"folds is a whole number from 2 on, not {folds!r}.")
    names = None if methods is None else _check_methods(methods)
    algorithms = [name for name in names or () if name != "all"] or ["fedavg"]
    base, custom_model = _experiment(advise, algorithms, federation, **settings)
    base = base.but(test=f"folds({folds})")
    temporary, folder = _run_folder(out)
    options = {name: value for name, value in settings.items() if name not in SETTING_NAMES}
    run_settings = {name: value for name, value in settings.items() if name in SETTING_NAMES}
    run_settings["set"] = {**(settings.get("set") or {}), **options}
    with show_progress(progress, None, job_count) as progress_for:
        advice = advising.advise(
            base,
            folder,
            progress_for,
            _warn,
            methods=names,
            federation=federation,
            model=custom_model,
            jobs=job_count,
            margin=margin,
            plain=plain,
            prior=advising.find_prior(prior),
            max_bytes=max_bytes,
            budget_time=budget_time,
            max_hurt=max_hurt,
            repeats=repeats,
            settings=run_settings,
            in_python=True,
        )
    del temporary  # a temporary folder must exist until here
    return advice


def leave_one_out(
    algorithms: str | Sequence[str],
    federation: Federation | None = None,
    *,
    leave_out: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    progress: bool | ProgressFactory | None = None,
    jobs: int | Literal["auto"] = 1,
    **settings: Unpack[Settings],
) -> list[leaving.Effect]:
    """Measure how much each party helps or hurts the others, with one more run without each party.

    Args:
        algorithms: one method or several
        federation: the parties and their data; default: built from `data`, `partition` and
            `parties` for each seed
        leave_out: the parties that are left out in turn; default: all
        seeds: each run is repeated once per seed, with the meaning of seeds in `comity.compare`;
            default: `seed` alone
        out: folder of the runs; the same call continues interrupted runs there. Default: a
            temporary folder
        progress: as in `comity.compare`
        jobs: number of runs in parallel, as in `comity.compare`
        settings: settings of `comity.run`, and options of the methods as in `comity.compare`

    Returns:
        One effect for each method, seed, party left out and other party.

    Raises:
        UsageError: a name or a value is wrong. Nothing was started.
        ComityError: a run failed.

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("iid", parties=3, seed=0)
        >>> rows = comity.leave_one_out("fedavg", fed, rounds=1, model="linear", leave_out=["p0"])
        >>> [(row.left_out, row.party) for row in rows]
        [('p0', 'p1'), ('p0', 'p2')]
    """
    job_count = parse_jobs(jobs)
    methods = [algorithms] if isinstance(algorithms, str) else _check_methods(algorithms)
    if not isinstance(settings.get("model", ""), str):
        raise UsageError(
            "leave_one_out takes a model by name or as a file: put the function into a ./file.py"
            " that defines build."
        )
    base, _ = _experiment(leave_one_out, methods, federation, **settings)
    temporary, folder = _run_folder(out)
    seed_list = _check_seeds(seeds, base)
    run_count = leaving.count_runs(base, methods, seed_list, leave_out, federation)
    with show_progress(progress, run_count, job_count) as progress_for:
        effects = leaving.measure_effects(
            base,
            methods,
            seed_list,
            folder,
            progress_for,
            leave_out,
            federation,
            _warn,
            job_count,
        )
    del temporary  # a temporary folder must exist until here
    return effects


def _experiment(
    call: Callable[..., Any],
    methods: Sequence[str],
    federation: Federation | None,
    **keywords: Unpack[Settings],
) -> tuple[Experiment, CustomModel | None]:
    """Return the experiment that a call's keywords describe, and the custom model if it has one.

    Keywords that are not settings must be options of the methods.
    """
    if TYPE_CHECKING:
        # Type checkers compare Settings with the keywords of run here. Jedi does not know Unpack,
        # but it follows the keywords to this call and completes those of run.
        run(methods[0], federation, **keywords)
    check_federation(call.__name__, methods, federation)
    check_data(call.__name__, methods, keywords.get("data"))
    settings, custom_model = _read_settings(keywords)
    options = {name: value for name, value in keywords.items() if name not in SETTING_NAMES}
    return experiment_from_call(methods, federation, settings, options, call), custom_model


def _read_settings(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], CustomModel | None]:
    """Return the settings among a call's arguments, and the custom model if there is one.

    Functions given as model or metric are replaced by the names under which runs record them.
    """
    settings = settings_in(arguments)
    custom_model = None if isinstance(settings.get("model", ""), str) else settings["model"]
    if custom_model is not None:
        settings["model"] = MODULES
    if not isinstance(weights := settings.get("weights", ""), str | Path):
        raise UsageError(
            f"weights takes a file, as in weights='encoder.pt', not a {type(weights).__name__}:"
            " write one with torch.save(module.state_dict(), 'encoder.pt'), or pass trained modules"
            " as model=(encoder, head)."
        )
    if not isinstance(settings.get("metric", ""), str):
        settings["metric"] = register_function(settings["metric"])
    return settings, custom_model


def _warn(text: str) -> None:
    """Issue a warning from inside a study."""
    warnings.warn(escape_terminal(text), stacklevel=4)


def _cross_validated(
    base: Experiment,
    seed_list: Sequence[int],
    folds: int | None,
    repeats: int,
    *,
    seeds_given: bool,
    test_given: bool,
) -> tuple[Experiment, Sequence[int]]:
    """Return the experiment and the seeds of a comparison, by cross-validation if there are several
    folds or, where nothing else was chosen, if the data are small tables.
    """
    if folds is None and not seeds_given and not test_given:
        folds, reason = default_folds(federation_of(base))
        if reason:
            _warn(f"{reason} folds=1 makes it one.")
    folds = 1 if folds is None else folds
    if folds == 1 and repeats == 1:
        return base, seed_list
    if not isinstance(folds, int) or folds < 2 or not isinstance(repeats, int) or repeats < 1:
        raise UsageError(
            "folds is a whole number from 2 on, and repeats one from 1 on: folds=5, repeats=2."
        )
    if seeds_given:
        raise UsageError("Give either seeds, or folds and repeats of cross-validation.")
    return base.but(test=f"folds({folds})"), fold_seeds(folds, repeats, base.seed)


def _run_folder(out: str | Path | None) -> tuple[tempfile.TemporaryDirectory[str] | None, Path]:
    """Return a call's folder; if it is temporary, also the object that deletes it."""
    if out is not None:
        return None, Path(out)
    temporary = tempfile.TemporaryDirectory(prefix="comity-")
    return temporary, Path(temporary.name)


def _check_methods(methods: Sequence[str]) -> list[str]:
    """Return the methods as a list, or raise `UsageError` if they are not a list of names."""
    is_list = not isinstance(methods, str) and len(methods) > 0
    if not is_list or not all(isinstance(name, str) for name in methods):
        raise UsageError('Methods must be a list of names, as in ["fedavg", "fedavg+dbe"].')
    return list(methods)


def _check_seeds(seeds: Sequence[int] | None, base: Experiment) -> list[int]:
    """Return the seeds of a study; without any, the seed of the experiment."""
    if seeds is None:
        return [base.seed]
    if (
        isinstance(seeds, int)
        or not len(seeds)
        or not all(isinstance(seed, int) and seed >= 0 for seed in seeds)
    ):
        raise UsageError(f"seeds must be non-negative integers, as in (0, 1, 2), not {seeds!r}.")
    if len({*seeds}) < len(seeds):
        raise UsageError(f"seeds must differ, as in (0, 1, 2), not {seeds!r}.")
    return list(seeds)


def _trackers(track: Sequence[str | Tracker], temporary: object, folder: Path) -> Trackers:
    """Return the trackers of a study, or raise `UsageError` if their files would be temporary."""
    if temporary is not None and any(isinstance(tracker, str) for tracker in track):
        raise UsageError("Trackers write beside the runs: give the runs a folder with out=...")
    return Trackers(track, folder, _warn)


def _check_grid(
    grid: Mapping[str, Sequence[Any]], federation: Federation | None
) -> dict[str, list[Any]]:
    """Return the values to try by name, or raise `UsageError` if they cannot be tried."""
    if not isinstance(grid, Mapping) or not grid:
        raise UsageError("tune needs values to try, as in grid={'mu': [0.1, 1]}.")
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            raise UsageError(
                f"The values of {name} must be a list, as in grid={{'{name}': [0.1, 1]}}."
            )
        if federation is not None and name in FROM_FEDERATION:
            raise UsageError(
                f"{name} is fixed by the federation: leave out the federation, or {name}."
            )
    return {name: list(values) for name, values in grid.items()}


def profile(
    data: Dataset,
    federation: Federation | None = None,
    *,
    out: str | Path | None = None,
    records: int = 0,
    rounding: int = 1,
) -> Profile:
    """Show the columns of all parties side by side: `comity.profile(comity.load("heart"))`.

    Args:
        data: the dataset
        federation: the parties, made of this dataset; default: `data.partition("auto")`
        out: folder for profile.html and profile.json; default: nothing is written
        records: withhold counts below this number, as a site would
        rounding: round counts to multiples of this number

    Returns:
        The profile: `parties`, `to_pandas()` and `save(path)`.

    Raises:
        UsageError: the federation is made of other data.

    Examples:
        >>> import comity
        >>> profile = comity.profile(comity.load("heart"))
        >>> profile.parties["cleveland"].columns["sex"].counts
        {'female': 97, 'male': 206}
    """
    parties = data.partition("auto") if federation is None else federation
    if parties.split.fingerprint != data.fingerprint():
        raise UsageError(f"The federation was made of other data than {data.name!r}.")
    result = profile_data(parties, data, Protection(records, rounding))
    if out is not None:
        from comity.reporting.profile_page import write_profile

        write_profile(result, Path(out))
    return result
