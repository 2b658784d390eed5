"""Runs in folders: started, resumed, or reopened."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from comity import models
from comity.data import Dataset, Federation
from comity.data import load as load_dataset
from comity.engines.allocator import keeping_freed_memory
from comity.errors import ComityError, UsageError
from comity.metrics.custom_metrics import describe
from comity.names import OWN_MODELS, SOLO
from comity.runs import config
from comity.runs.build import SimulatedRun, federation_of, prepare
from comity.runs.checkpoint import interval
from comity.runs.config import WHERE, Experiment
from comity.runs.environment import environment
from comity.runs.folder import RunFolder
from comity.runs.loop import execute
from comity.runs.result import Result
from comity.runs.server_run import Progress
from comity.runs.tracking import NoTracker, RunTracker
from comity.runs.trust import changes, check, code_of, mark
from comity.text import join_names, shell_line
from comity.training.task import fixed_in


def start(
    job: SimulatedRun,
    folder: Path,
    progress: Progress,
    track: RunTracker | None = None,
    *,
    record_messages: bool = False,
) -> Result:
    """Start a new run in a folder. A folder that holds a run already is refused, unless no round of
    that run is finished: then it is replaced.

    With `record_messages` all messages are recorded; the experiment must then come from
    `recording.one_process`.
    """
    run_folder = RunFolder(folder)
    run_folder.check_free()
    interval()  # a wrong COMITY_CHECKPOINT_SECONDS is refused before anything is written
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder: choose another --out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as why:
        raise UsageError(
            f"The folder {folder} cannot be created ({why.strerror}): choose another --out."
        ) from why
    with prepared_process(run_folder):
        run_folder.check_free()  # once more, now that no other process can start here
        run_folder.clear()
        settings = config.write(job.experiment)
        split = job.federation.split.to_json()
        plan = job.absences.text
        mark(folder, settings, code_of(job.experiment))
        entries = environment(settings, job.federation.fingerprint(), split=split, plan=plan)
        if metric := describe(job.experiment.metric):
            entries["metric"] = metric
        if record_messages:
            entries["record_messages"] = True
        run_folder.begin(settings, entries | network_digests(job), split=split, plan=plan)
        summary = execute(job, job.engine, run_folder, progress, track or NoTracker(), resume=False)
        return Result(folder, job, summary)


def resume_in(
    job: SimulatedRun, folder: Path, progress: Progress, track: RunTracker | None = None
) -> Result:
    """Resume the run in a folder from its last checkpoint. A finished run is checked and stays as
    it is.
    """
    run_folder = RunFolder(folder)
    track = track or NoTracker()
    with prepared_process(run_folder):
        if run_folder.is_finished:
            return Result(folder, job, _finished_summary(job, run_folder, progress, track))
        warnings = changes(folder, code_of(job.experiment))
        summary = execute(
            job, job.engine, run_folder, progress, track, resume=True, warnings=warnings
        )
        return Result(folder, job, summary)


def _finished_summary(
    job: SimulatedRun, folder: RunFolder, progress: Progress, track: RunTracker
) -> dict[str, Any]:
    """The summary of a finished run, which is also passed to the trackers."""
    folder.check()
    summary = folder.read_summary()
    assert summary is not None
    track.begin(job, folder.path)
    progress.begin(job, summary["rounds"])
    progress.end()
    track.end(summary)
    return summary


@contextlib.contextmanager
def prepared_process(folder: RunFolder) -> Iterator[None]:
    """Lock the run's folder, use one thread, and exempt loaded modules from garbage collection."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # equal bits on all machines, and faster on a busy one
    # Without it, each full collection visits all of torch, which takes a tenth of a second.
    gc.freeze()
    try:
        with folder.locked(), keeping_freed_memory():
            yield
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)


def check_same(folder: Path, experiment: Experiment, record_messages: bool = False) -> None:
    """Refuse to continue a folder's run with other settings or code. The engine may differ.

    `experiment` must have its `auto` settings resolved. Messages must be recorded from the start.
    """
    if record_messages and not RunFolder(folder).recorded:
        raise UsageError(
            f"{folder} holds a run that does not record its messages: choose another --out."
        )
    before = RunFolder(folder).read_experiment()
    if before.model_dump(exclude=WHERE) != experiment.model_dump(exclude=WHERE):
        if before.model_dump(exclude=WHERE | {"rounds"}) == experiment.model_dump(
            exclude=WHERE | {"rounds"}
        ):
            raise UsageError(
                f"{folder} holds a run of {before.rounds} rounds, not {experiment.rounds}: choose"
                f" another --out, or let it go on with"
                f" '{shell_line('comity', 'resume', folder, '--rounds', experiment.rounds)}'."
            )
        differences = join_names(setting_differences(before, experiment))
        raise UsageError(
            f"{folder} holds a run with other settings, {differences}: choose another --out."
        )
    if texts := changes(folder, code_of(experiment)):
        raise UsageError(f"{texts[0]} Choose another --out.")


def can_continue(folder: Path, experiment: Experiment, record_messages: bool = False) -> bool:
    """Return whether a folder holds a run to continue, with these settings and code.

    Refuses a run with others, as `check_same` does, unless no round of it is finished: then a new
    run can replace it.
    """
    run = RunFolder(folder)
    if not run.has_run:
        return False
    run.check_begun()
    try:
        check_same(folder, experiment, record_messages)
    except UsageError:
        if run.has_no_round:
            return False
        raise
    return True


def setting_differences(
    before: Experiment, now: Experiment, besides: Collection[str] = ()
) -> list[str]:
    """Return a phrase for each setting in which two experiments differ, as in `lr=0.1 (not 0.01)`.

    Settings that say where a run is computed may differ, and those in `besides`.
    """
    old, new = (_flat_settings(experiment) for experiment in (before, now))
    names = [name for name in old | new if name not in WHERE and name not in besides]
    return [
        f"{name}={_setting(old.get(name))} (not {_setting(new.get(name))})"
        for name in names
        if old.get(name) != new.get(name)
    ]


def _flat_settings(experiment: Experiment) -> dict[str, Any]:
    """All settings by name. Options of the method and settings of single parties are in one table
    with the others.
    """
    settings = experiment.model_dump()
    options = {f"set.{name}": value for name, value in settings.pop("set").items()}
    of_parties = {
        f"party.{party}.{name}": value
        for party, values in settings.pop("party").items()
        for name, value in values.items()
    }
    return settings | options | of_parties


def _setting(value: Any) -> str:
    return "default" if value is None else str(value)


def engine_warnings(folder: Path, experiment: Experiment) -> list[str]:
    """Warnings if a folder's run uses another engine or device than the experiment: it continues
    where it started.
    """
    before = RunFolder(folder).read_experiment()
    warnings = []
    for name in ("engine", "device"):
        current, requested = getattr(before, name), getattr(experiment, name)
        if requested not in ("auto", current):
            warnings.append(
                f"{folder} was started with {name}={current} and continues with it;"
                f" {name}={requested} is ignored."
            )
    return warnings


def _load_data(experiment: Experiment) -> Dataset:
    """The dataset that a run's settings name."""
    try:
        return load_dataset(experiment.data)
    except UsageError as why:
        # Neither a file nor a folder: a name that is registered elsewhere, or data from Python.
        if re.fullmatch(r"[\w -]+", experiment.data):
            raise UsageError(
                f"{why} If the data were given from Python, give the same federation again."
            ) from why
        raise


def reopen(
    folder: Path,
    federation: Federation | None = None,
    model: models.CustomModel | None = None,
    *,
    trust: bool = False,
    prepared: SimulatedRun | None = None,
) -> SimulatedRun:
    """Build the run of a folder again. Data given as arrays, and networks given as modules, must be
    given again.

    Files that its settings name are executed only if the folder is the user's own, or with `trust`.
    `prepared` is returned instead of a new run if it has the same settings.
    """
    run_folder = RunFolder(folder)
    run_folder.check_begun()
    experiment = run_folder.read_experiment()
    if experiment.algorithm in OWN_MODELS:
        raise UsageError(
            f"{folder} holds models that scikit-learn trained for a comparison, of which only"
            " figures and predictions are kept: 'comity export' trains one of them again. To"
            " complete the comparison, repeat it with the same --out."
        )
    return _build_again(folder, experiment, federation, model, trust, prepared)


def reopen_own_models(
    folder: Path, federation: Federation | None = None, *, trust: bool = False
) -> SimulatedRun:
    """Build the run of SOLO with the data and settings of a folder of own models."""
    run_folder = RunFolder(folder)
    run_folder.check_begun()
    experiment = run_folder.read_experiment().but(algorithm=SOLO)
    return _build_again(folder, experiment, federation, None, trust, None)


def _build_again(
    folder: Path,
    experiment: Experiment,
    federation: Federation | None,
    model: models.CustomModel | None,
    trust: bool,
    prepared: SimulatedRun | None,
) -> SimulatedRun:
    """Build the run of `experiment` with the data and split of a folder."""
    run_folder = RunFolder(folder)
    environment_before = run_folder.read_environment()
    if not {"fingerprint", "config"} <= environment_before.keys():
        raise ComityError(f"{run_folder.environment} cannot be read.")
    check(folder, run_folder.config.read_text(encoding="utf-8"), code_of(experiment), trust)
    if experiment.engine == "flare":
        raise UsageError(
            f"The data and models of {folder} are at sites of their own: 'comity deploy report"
            " SITE' and 'comity deploy measure SITE' show there what came of it."
        )
    split = run_folder.read_split()
    if federation is None and experiment.data == "arrays":
        raise UsageError(
            f"The data of {folder} were given as arrays: resume it from Python with the same"
            " federation."
        )
    plan = run_folder.read_plan()
    if prepared and prepared.experiment == experiment and prepared.absences.text == (plan or ""):
        job = prepared
    else:
        data = (
            federation_of(experiment, federation)
            if federation
            else _load_data(experiment).split(split)
        )
        job = prepare(experiment, data, model, plan)
    check_same_data(folder, job, resumes=prepared is not None or not run_folder.is_finished)
    return job


def check_same_data(folder: Path, job: SimulatedRun, *, resumes: bool = True) -> None:
    """Refuse if a folder's run has other data, or another network that was given from Python.

    A run that `resumes`, or stands for one that would be started, has the same initial weights,
    too. To look at a finished run, they are not needed.
    """
    before = RunFolder(folder).read_environment()
    if before["fingerprint"] != job.federation.fingerprint():
        raise UsageError(
            f"The data of {folder} have changed since it was started: choose another --out for"
            " these."
        )
    now = network_digests(job)
    if before.get("network", now.get("network")) != now.get("network"):
        raise UsageError(
            f"{folder} holds a run of another network: give the same again, or choose another"
            " --out."
        )
    if resumes and before.get("initial_weights") != now.get("initial_weights"):
        raise UsageError(
            f"{folder} holds a run from other initial weights: give the same again, or choose"
            " another --out."
        )


def network_digests(job: SimulatedRun) -> dict[str, str]:
    """The env.json entries of a network that the settings do not determine: a user's modules, a
    network with a base, or one with given initial weights.
    """
    network = job.info.task.network
    digests = {
        "network": getattr(network, "digest", "") or fixed_in(network),
        "initial_weights": getattr(network, "given_digest", ""),
    }
    return {name: digest for name, digest in digests.items() if digest}
