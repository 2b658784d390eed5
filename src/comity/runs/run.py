"""A run as a whole: begun in a folder of its own, continued there, or made concrete again from what
lies there.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from comity import models
from comity.data import Dataset, Federation
from comity.data import load as load_dataset
from comity.engines.allocator import keeping_freed_memory
from comity.errors import ComityError, UsageError
from comity.metrics.custom_metrics import describe
from comity.models.modules import Modules
from comity.runs import config
from comity.runs.build import SimulatedRun, prepare
from comity.runs.checkpoint import interval
from comity.runs.config import WHERE, Experiment
from comity.runs.environment import environment
from comity.runs.folder import RunFolder
from comity.runs.loop import execute
from comity.runs.result import Result
from comity.runs.server_run import Progress
from comity.runs.trust import changes, check, code_of, mark
from comity.track import Trackers
from comity.training.task import fixed_in


def start(
    job: SimulatedRun,
    folder: Path,
    progress: Progress,
    track: Trackers | None = None,
    *,
    record_messages: bool = False,
) -> Result:
    """A new run in a folder of its own; a folder that holds a run already is refused.

    With `record_messages` it keeps its messages; its experiment is one of
    `record_messages.one_process`.
    """
    new = RunFolder(folder)
    new.check_free()
    interval()  # a wrong COMITY_CHECKPOINT_SECONDS is refused before anything is written
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder: choose another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    with at_work(new):
        new.check_free()  # once more, now that nobody else can begin here
        settings = config.write(job.experiment)
        split = job.federation.split.to_json()
        plan = job.absent.text
        mark(folder, settings, code_of(job.experiment))
        told = environment(settings, job.federation.fingerprint(), split=split, plan=plan)
        own = describe(job.experiment.metric)
        told |= ({"metric": own} if own else {}) | (
            {"record_messages": True} if record_messages else {}
        )
        new.begin(settings, told | _given_network(job), split=split, plan=plan)
        return Result(
            folder, job, execute(job, job.engine, new, progress, track or Trackers(), resume=False)
        )


def resume_in(
    job: SimulatedRun, folder: Path, progress: Progress, track: Trackers | None = None
) -> Result:
    """Go on with the run in a folder, from its last checkpoint; a finished one stays as it is, if
    it is still what it was.
    """
    begun = RunFolder(folder)
    with at_work(begun):
        if begun.ended:
            return Result(folder, job, _told_again(job, begun, progress, track or Trackers()))
        warnings = changes(folder, code_of(job.experiment))
        return Result(
            folder,
            job,
            execute(
                job,
                job.engine,
                begun,
                progress,
                track or Trackers(),
                resume=True,
                warnings=warnings,
            ),
        )


def _told_again(
    job: SimulatedRun, done: RunFolder, progress: Progress, track: Trackers
) -> dict[str, Any]:
    """The summary of a finished run, of which trackers may not have heard."""
    done.check()
    summary = done.read_summary()
    assert summary is not None
    track.begin(job, done.path)
    progress.begin(job, summary["rounds"])
    progress.end()
    track.end(summary)
    return summary


@contextlib.contextmanager
def at_work(folder: RunFolder) -> Iterator[None]:
    """A run's surroundings: its folder held, one thread, and a quiet garbage collector."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one thread everywhere: equal bits, and faster on a busy machine
    # what is loaded by now stays: without it each full collection walks all of torch, a tenth of a
    # second
    gc.freeze()
    try:
        with folder.locked(), keeping_freed_memory():
            yield
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)


def check_same(folder: Path, experiment: Experiment, record_messages: bool = False) -> None:
    """Refuse to go on with other settings or other code than a folder's run has; where it is
    computed may differ.

    The settings are those that `prepare` settled. What was not on tape from the beginning cannot be
    later.
    """
    if record_messages and not RunFolder(folder).recorded:
        raise UsageError(
            f"{folder} holds a run that did not keep its messages: choose another --out for one"
            " with a tape."
        )
    before = RunFolder(folder).read_experiment()
    if before.model_dump(exclude=WHERE) != experiment.model_dump(exclude=WHERE):
        if before.model_dump(exclude=WHERE | {"rounds"}) == experiment.model_dump(
            exclude=WHERE | {"rounds"}
        ):
            raise UsageError(
                f"{folder} holds a run of {before.rounds} rounds, not {experiment.rounds}: choose"
                f" another --out, or let it go on with 'comity resume {folder} --rounds"
                f" {experiment.rounds}'."
            )
        raise UsageError(f"{folder} holds a run with other settings: choose another --out.")
    if texts := changes(folder, code_of(experiment)):
        raise UsageError(f"{texts[0]} Choose another --out.")


def elsewhere(folder: Path, asked: Experiment) -> list[str]:
    """What to say if a folder's run is computed elsewhere than is asked for: where it began, it
    goes on.
    """
    before = RunFolder(folder).read_experiment()
    others = {name: (getattr(before, name), getattr(asked, name)) for name in ("engine", "device")}
    return [
        f"The run in {folder} is one on {name} {begun}, and stays one: {wish} was asked for."
        for name, (begun, wish) in others.items()
        if wish not in ("auto", begun)
    ]


def _data_of(experiment: Experiment) -> Dataset:
    """The dataset that a run's settings name."""
    try:
        return load_dataset(experiment.data)
    except UsageError as why:
        if re.fullmatch(
            r"[\w -]+", experiment.data
        ):  # no file, no folder: a name that is known elsewhere, or was a variable
            raise UsageError(
                f"{why} If the data were given from Python, give the same federation again."
            ) from why
        raise


def reopen(
    folder: Path,
    federation: Federation | None = None,
    model: models.OwnModel | None = None,
    *,
    trust: bool = False,
) -> SimulatedRun:
    """The job of a run's folder; data given as arrays, and models given as modules, must be given
    again.

    Files that its settings name are run only if the folder is the user's own, or `trust` says that
    they may be.
    """
    begun = RunFolder(folder)
    begun.check_begun()
    experiment = begun.read_experiment()
    before = begun.read_environment()
    if not {"fingerprint", "config"} <= before.keys():
        raise ComityError(f"{begun.environment} cannot be read.")
    check(folder, begun.config.read_text(encoding="utf-8"), code_of(experiment), trust)
    if experiment.engine == "flare":
        raise UsageError(
            f"The data and models of {folder} are at sites of their own: 'comity deploy report"
            " SITE' and 'comity deploy measure SITE' show there what came of it."
        )
    split = begun.read_split()
    if federation is None and experiment.data == "arrays":
        raise UsageError(
            f"The data of {folder} were given as arrays: resume it from Python with the same"
            " federation."
        )
    job = prepare(
        experiment, federation or _data_of(experiment).split(split), model, begun.read_plan()
    )
    check_given(folder, job)
    return job


def check_given(folder: Path, job: SimulatedRun) -> None:
    """Refuse to take a folder's run for one on other data, or of another network that was given
    from Python.
    """
    before = RunFolder(folder).read_environment()
    if before["fingerprint"] != job.federation.fingerprint():
        raise UsageError(
            f"The data of {folder} have changed since it was started: choose another --out for"
            " these."
        )
    if before.get("network", now := _given_network(job).get("network")) != now:
        raise UsageError(
            f"{folder} holds a run of another network: give the same again, or choose another"
            " --out."
        )


def _given_network(job: SimulatedRun) -> dict[str, str]:
    """What env.json keeps of a network that is modules of the user's own, or has a base that
    settings alone do not tell.
    """
    network = job.info.task.network
    digest = network.digest if isinstance(network, Modules) else fixed_in(network)
    return {"network": digest} if digest else {}
