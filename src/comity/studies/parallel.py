"""The runs of a study: one after the other in this process, or several in parallel, each in its own
process.

A parallel run is forked from this process when its data are loaded. So torch is not imported again,
and runs share the memory of the data. Each run has one worker; as many runs as there are cores keep
all cores busy. The result of a run is the same as without parallel runs.
"""

from __future__ import annotations

import builtins
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from comity.data import Federation
from comity.engines.process import signals_blocked
from comity.engines.ray_cluster import keep_actors
from comity.engines.site_store import state_bytes
from comity.errors import ComityError, CorruptedFile, UsageError, WorkerLost, describe_exit, quote
from comity.machine import available_memory, can_fork, private_memory
from comity.models import CustomModel
from comity.names import display_name
from comity.runs import config
from comity.runs.build import SimulatedRun, federation_of, prepare
from comity.runs.config import Experiment
from comity.runs.environment import code, cores
from comity.runs.folder import RunFolder
from comity.runs.run import (
    can_continue,
    check_same_data,
    engine_warnings,
    reopen,
    resume_in,
    start,
)
from comity.runs.run_warnings import RunWarning, add_warnings
from comity.runs.server_run import Progress
from comity.studies.plan import memory_of
from comity.studies.run_process import PATIENCE, run_and_report
from comity.track import Trackers
from comity.wire.ledger import Ledger

AUTO = "auto"
SHARED_DATA = 2
"""How many federations are kept for further runs on the same data."""
DATA = ("data", "partition", "parties", "test", "validation", "seed")
"""The settings that determine the data of a run."""
# The least private memory of a forked run, in bytes: its heap, torch's buffers, written pages.
FLOOR = 256 << 20
POLL = 0.5  # seconds between two looks at the running processes


def parse_jobs(jobs: int | str) -> int:
    """Return how many runs go on at once; `auto` is one per core."""
    if jobs == AUTO:
        return cores() if can_fork() else 1
    if isinstance(jobs, str) and jobs.isascii() and jobs.isdecimal() and len(jobs) < 10:
        jobs = int(jobs)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise UsageError(
            f"jobs is how many runs go on at once, a number from 1 or auto, not {quote(jobs)}."
        )
    return jobs


def with_one_worker(experiment: Experiment, jobs: int) -> Experiment:
    """Return an experiment with one worker, if several `jobs` go on at once.

    Raises UsageError if it asks for several workers, or for Ray.
    """
    if jobs == 1:
        return experiment
    if experiment.engine == "ray":
        raise UsageError(
            "On Ray, runs follow each other, each on all workers: give workers instead of jobs."
        )
    if (experiment.workers or 1) > 1:
        raise UsageError(
            f"With {jobs} jobs each run has one worker, not {experiment.workers}: give either jobs"
            " or workers."
        )
    return experiment.but(workers=1)


def cached_federations(
    federation: Federation | None = None,
) -> Callable[[Experiment], Federation]:
    """Return a function from an experiment to its data, which caches the last two federations.

    If a federation is given, it is the data of all experiments; under cross-validation, each has
    its fold of them.
    """

    @lru_cache(maxsize=SHARED_DATA)
    def load(*settings: Any) -> Federation:
        return federation_of(config.experiment(dict(zip(DATA, settings, strict=True))), federation)

    return lambda experiment: load(*_data_settings(experiment))


def _data_settings(experiment: Experiment) -> tuple[Any, ...]:
    return tuple(getattr(experiment, name) for name in DATA)


@dataclass(frozen=True)
class Cost:
    """A rough estimate of the cost of a run, for scheduling."""

    seconds: float = 1.0
    """Seconds on one worker; only the ratio to other runs matters."""
    memory: int = FLOOR
    """Private memory in bytes."""
    data: int = 0
    """Bytes of data, which runs on the same data share."""

    @staticmethod
    def of(job: SimulatedRun) -> Cost:
        """Return the cost of a run that is forked from a process with its data."""
        usage = memory_of(job)
        processes = 2 if job.experiment.engine == "process" else 1
        # A party has up to three states in a round; those beyond the limit are spilled to a file.
        states = min(3 * usage.states, state_bytes())
        return Cost(
            job.cost.seconds(),
            FLOOR * processes + states + 2 * usage.messages + 4 * job.info.task.bytes(),
            usage.data,
        )


@dataclass(frozen=True)
class PlannedRun:
    """A run that a study has planned."""

    title: str
    experiment: Experiment
    folder: Path
    cost: Cost = Cost()
    record_messages: bool = False
    """Whether it stores its messages."""
    job: SimulatedRun | None = None
    """The prepared run, if it is kept until the run starts."""


@runtime_checkable
class Overview(Protocol):
    """An observer of all parallel runs."""

    def overview(self, rest: int, seconds_left: float | None) -> None:
        """Show that `rest` runs are not finished, and the seconds left (None if unknown)."""


def run_once(
    experiment: Experiment,
    federation: Federation,
    folder: Path,
    progress: Progress,
    track: Trackers | None = None,
    model: CustomModel | None = None,
    job: SimulatedRun | None = None,
    record_messages: bool = False,
) -> dict[str, Any]:
    """Run an experiment and return its summary.

    A finished run in `folder` is used as it is, an unfinished one is continued. `job` is the
    prepared experiment, if it has been prepared already.
    """
    job = job or prepare(experiment, federation, model)
    if not can_continue(folder, job.experiment, record_messages):
        return start(job, folder, progress, track, record_messages=record_messages).summary
    summary = finished_summary(job, folder)
    if summary is None:
        # Trusted: `prepare` has just run its code.
        again = reopen(folder, federation, model, trust=True, prepared=job)
        summary = resume_in(again, folder, progress, track).summary
    add_warnings(
        summary, [RunWarning("during", text) for text in engine_warnings(folder, experiment)]
    )
    return summary


def finished_summary(job: SimulatedRun, folder: Path) -> dict[str, Any] | None:
    """Return the summary of a run that can continue (`can_continue`); None if it is not finished.

    Refuses a run on other data.
    """
    run = RunFolder(folder)
    summary = run.read_summary()
    if summary is not None:
        run.check()
        check_same_data(folder, job)
    return summary


def run_all(
    runs: Sequence[PlannedRun],
    data: Callable[[Experiment], Federation],
    progress: Callable[[str], Progress],
    track: Trackers | None = None,
    model: CustomModel | None = None,
    jobs: int = 1,
) -> Generator[dict[str, Any], None, None]:
    """Yield the summaries of all runs in their order, each as soon as it is available.

    `progress` returns the observer of a run, given the run's title. If it is an `Overview`, it is
    told about all runs, too. With several `jobs`, the experiments must have one worker
    (`with_one_worker`).
    """
    if jobs == 1:
        with keep_actors():
            for run in runs:
                how = (run.experiment, data(run.experiment), run.folder)
                observer = progress(run.title)
                yield run_once(*how, observer, track, model, run.job, run.record_messages)
        return
    pool = _RunPool(runs, data, progress, track or Trackers(), model, jobs)
    try:
        yield from pool.summaries()
    finally:
        pool.stop()


@dataclass
class _RunningRun:
    """A run in its own process."""

    process: Any
    connection: Connection
    observer: Progress
    job: SimulatedRun | None
    """The prepared run, until the process reports that it has begun."""
    began: float
    first: int = 0
    last: int = 1
    round: int = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def expected(self) -> float | None:
        """The expected seconds in total; None before the first round is finished."""
        fraction = (self.round - self.first) / max(1, self.last - self.first)
        return self.elapsed / fraction if fraction > 0 else None


class _RunPool:
    """Several runs in parallel processes: their order, their messages, and their end."""

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        data: Callable[[Experiment], Federation],
        progress: Callable[[str], Progress],
        track: Trackers,
        model: CustomModel | None,
        jobs: int,
    ) -> None:
        if not can_fork():
            raise UsageError("Parallel runs need a system that can fork: run without jobs here.")
        track.check_by_name()
        self._runs, self._data, self._progress, self._track, self._model, self._jobs = (
            runs,
            data,
            progress,
            track,
            model,
            jobs,
        )
        self._running: dict[int, _RunningRun] = {}
        self._summaries: dict[int, dict[str, Any]] = {}
        self._paces: list[tuple[str, float]] = []
        """Of finished runs: the method, and the actual seconds divided by the estimate."""
        data_settings = [_data_settings(run.experiment) for run in runs]
        longest: dict[tuple[Any, ...], float] = defaultdict(float)
        for which, run in zip(data_settings, runs, strict=True):
            longest[which] = max(longest[which], run.cost.seconds)
        order = sorted(longest, key=lambda which: -longest[which])
        self._place = [order.index(which) for which in data_settings]
        """The position of each run's data in the schedule: runs on the same data follow each other,
        so that few datasets are in memory at a time; data with the longest run come first.
        """
        self._waiting = list(range(len(runs)))
        self._shown_warnings: dict[Any, Any] = {}
        code()  # asks git once, before the forks

    def summaries(self) -> Generator[dict[str, Any], None, None]:
        """Yield the summaries in the order of the runs."""
        for k in range(len(self._runs)):
            while k not in self._summaries:
                self._begin_what_fits()
                self._receive()
            yield self._summaries[k]

    def stop(self) -> None:
        """Stop all running processes; their runs can be continued later."""
        for member in self._running.values():
            member.process.terminate()  # handled as Ctrl-C in the process
        for member in self._running.values():
            member.process.join(PATIENCE + 1)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.connection.close()
            member.observer.end()
        self._running.clear()

    # Scheduling.

    def _begin_what_fits(self) -> None:
        while self._waiting and len(self._running) < self._jobs:
            self._waiting.sort(key=lambda k: (self._place[k], -self._expected(k)))
            room = self._room()
            fitting = [k for k in self._waiting if room is None or self._needs(k) <= room]
            if not fitting and self._running:
                return  # too large beside the others: it runs alone later
            self._begin((fitting or self._waiting)[0])

    def _expected(self, k: int) -> float:
        """Return the expected seconds of a run.

        They come from its own rounds, from other runs of its method, or from any other runs.
        """
        if k in self._running and (seconds := self._running[k].expected) is not None:
            return seconds
        running = [
            (j, seconds)
            for j, member in self._running.items()
            if (seconds := member.expected) is not None
        ]
        paces = [
            *self._paces,
            *((self._method(j), seconds / self._runs[j].cost.seconds) for j, seconds in running),
        ]
        of_method = [pace for method, pace in paces if method == self._method(k)]
        of_any = of_method or [pace for _, pace in paces]
        return self._runs[k].cost.seconds * (statistics.fmean(of_any) if of_any else 1.0)

    def _method(self, k: int) -> str:
        return display_name(self._runs[k].experiment.algorithm)

    def _needs(self, k: int) -> int:
        cost = self._runs[k].cost
        loaded = any(self._place[k] == self._place[other] for other in self._running)
        return cost.memory + (0 if loaded else cost.data)

    def _room(self) -> int | None:
        """Return the free memory in bytes, without what running processes are expected to need."""
        free = available_memory()
        if free is None:
            return None
        return free - sum(
            max(0, self._runs[k].cost.memory - private_memory(m.process.pid))
            for k, m in self._running.items()
        )

    def _begin(self, k: int) -> None:
        run = self._runs[k]
        self._waiting.remove(k)
        federation = self._data(run.experiment)
        job = run.job or prepare(run.experiment, federation, self._model)
        if job.experiment.device != "cpu":
            raise UsageError(
                f"Parallel runs are on the CPU, not on {job.experiment.device}: choose --device"
                " cpu, or one job."
            )
        observer = self._progress(run.title)
        how = (run.experiment, federation, run.folder)
        if RunFolder(run.folder).is_finished:
            self._summaries[k] = run_once(
                *how, observer, self._track, self._model, job, run.record_messages
            )
            observer.end()
            return
        receiver, sender = multiprocessing.Pipe(duplex=False)
        inherited = [receiver, *(member.connection for member in self._running.values())]

        def run_in_process(progress: Progress, warn: Callable[[str], None]) -> dict[str, Any]:
            return run_once(
                *how, progress, self._track.copy(warn), self._model, job, run.record_messages
            )

        process = multiprocessing.get_context("fork").Process(
            target=run_and_report, args=(sender, inherited, os.getpid(), run_in_process)
        )
        with signals_blocked():
            process.start()
            sender.close()
            self._running[k] = _RunningRun(
                process, receiver, observer, job, time.monotonic(), last=job.experiment.rounds
            )

    # Messages of the running processes.

    def _receive(self) -> None:
        """Wait for messages of the running processes, and pass them to the observers."""
        if not self._running:
            return
        wait(
            [end for m in self._running.values() for end in (m.connection, m.process.sentinel)],
            POLL,
        )
        for k, member in list(self._running.items()):
            # This is checked before the last messages are read, so that none is missed.
            has_exited = not member.process.is_alive()
            try:
                while k in self._running and member.connection.poll():
                    self._handle(k, member, *member.connection.recv())
            except (EOFError, OSError):
                has_exited = True
            if has_exited and k in self._running:
                member.process.join(1)
                raise WorkerLost(
                    f"The run {self._runs[k].title} {describe_exit(member.process.exitcode)}."
                )
        if isinstance(self._progress, Overview):
            self._progress.overview(len(self._waiting) + len(self._running), self._seconds_left())

    def _handle(self, k: int, member: _RunningRun, kind: str, *content: Any) -> None:
        match kind:
            case "begin":
                assert member.job
                member.first = member.round = content[0]
                member.observer.begin(member.job, content[0])
                member.job = None
            case "round":
                member.round = content[0]
                member.observer.round(content[0], content[1], Ledger(total=Counter(content[2])))
            case "told":
                self._track.warn(content[0])
            case "warned":
                text, category, filename, line = content
                warnings.warn_explicit(
                    text,
                    getattr(builtins, category, UserWarning),
                    filename,
                    line,
                    registry=self._shown_warnings,
                )
            case "said":
                getattr(sys, content[0]).write(content[1])
            case "done":
                self._finish(k, member, content[0])
            case "failed":
                errors: dict[str, type[ComityError]] = {
                    "UsageError": UsageError,
                    "CorruptedFile": CorruptedFile,
                    **dict.fromkeys(("WorkerLost", "OSError", "MemoryError"), WorkerLost),
                }
                error = errors.get(content[0], ComityError)
                raise error(f"{self._runs[k].title}: {content[1]}") from Elsewhere(content[2])

    def _finish(self, k: int, member: _RunningRun, summary: dict[str, Any]) -> None:
        self._summaries[k] = summary
        del self._running[k]
        member.process.join()
        member.connection.close()
        member.observer.end()
        self._paces.append((self._method(k), member.elapsed / self._runs[k].cost.seconds))

    def _seconds_left(self) -> float | None:
        """Return the seconds until all runs are finished; None before any round is finished."""
        if not self._paces and all(member.expected is None for member in self._running.values()):
            return None
        under_way = [
            max(0.0, self._expected(k) - member.elapsed) for k, member in self._running.items()
        ]
        return max(
            [*under_way, (sum(under_way) + sum(map(self._expected, self._waiting))) / self._jobs],
            default=0.0,
        )


class Elsewhere(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
