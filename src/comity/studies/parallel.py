"""The runs of a study: one after the other in this process, or several at once, each in a process
of its own.

A run that has company is forked from here when its turn comes, after its data are loaded: torch is
not imported again, and the data are in memory once. It has one worker, so that as many runs as
there are cores keep all of them busy, without waiting for each other. What it computes is what it
would have computed alone.
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
from comity.engines.process import held_back
from comity.engines.ray_cluster import actors_kept
from comity.engines.site_store import state_bytes
from comity.errors import ComityError, CorruptedFile, UsageError, fate, shown
from comity.machine import available, private
from comity.models import OwnModel
from comity.names import display_name
from comity.runs import config
from comity.runs.build import SimulatedRun, federation_of, prepare
from comity.runs.config import Experiment
from comity.runs.environment import code, cores
from comity.runs.folder import RunFolder
from comity.runs.run import check_given, check_same, elsewhere, reopen, resume_in, start
from comity.runs.server_run import Progress
from comity.studies.plan import held
from comity.studies.run_process import PATIENCE, live
from comity.track import Trackers
from comity.wire.ledger import Ledger

AUTO = "auto"
DATA = ("data", "partition", "parties", "test", "validation", "seed")
"""The settings that say which data a run has."""
FLOOR = (
    256 << 20
)  # bytes of its own that a forked run takes at least: its heap, torch's buffers, pages that it writes to
LOOK = 0.5  # seconds from look to look at what is under way


def chosen_jobs(given: int | str) -> int:
    """How many runs may go on at once; `auto` is one a core."""
    if given == AUTO:
        return cores()
    if isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) < 10:
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UsageError(
            f"jobs is how many runs go on at once, a number from 1 or auto, not {shown(given)}."
        )
    return given


def settled(experiment: Experiment, jobs: int) -> Experiment:
    """An experiment that is one of several at once: it has one worker."""
    if jobs == 1:
        return experiment
    if experiment.engine == "ray":
        raise UsageError(
            "On Ray runs follow each other, each on all workers: give workers instead of jobs."
        )
    if (experiment.workers or 1) > 1:
        raise UsageError(
            f"With {jobs} jobs each run has one worker, not {experiment.workers}: give either jobs"
            " or workers."
        )
    return experiment.but(workers=1)


def shared(given: Federation | None = None) -> Callable[[Experiment], Federation]:
    """Who gives experiments their data, or the federation that is given: the last two are kept, for
    others on the same data.
    """

    @lru_cache(maxsize=2)
    def dealt(*which: Any) -> Federation:
        return federation_of(config.experiment(dict(zip(DATA, which, strict=True))))

    return lambda experiment: given or dealt(*_data_of(experiment))


def _data_of(experiment: Experiment) -> tuple[Any, ...]:
    return tuple(getattr(experiment, name) for name in DATA)


@dataclass(frozen=True)
class Cost:
    """What a run takes, roughly: to know which to begin with, and how many fit into memory."""

    seconds: float = 1.0
    """On one worker; only what this is to other runs' counts."""
    memory: int = FLOOR
    """Bytes of its own."""
    data: int = 0
    """Bytes that runs on the same data share."""

    @staticmethod
    def of(job: SimulatedRun) -> Cost:
        """Of a job, if it is forked from a process that has its data."""
        known = held(job)
        processes = 2 if job.experiment.engine == "process" else 1
        states = min(
            3 * known.states, state_bytes()
        )  # in a round a party keeps up to three; what is more is spilled to a file
        return Cost(
            job.seconds(),
            FLOOR * processes + states + 2 * known.messages + 4 * job.info.task.bytes(),
            known.data,
        )


@dataclass(frozen=True)
class Planned:
    """A run to come."""

    title: str
    experiment: Experiment
    folder: Path
    cost: Cost = Cost()
    record_messages: bool = False
    """Whether it keeps its messages."""


@runtime_checkable
class Overview(Protocol):
    """Whoever looks at all runs that are under way."""

    def overview(self, rest: int, left: float | None) -> None:
        """So many runs are not over yet, and they take about so many seconds more, if that can be
        told.
        """


def run_once(
    experiment: Experiment,
    federation: Federation,
    folder: Path,
    progress: Progress,
    track: Trackers | None = None,
    model: OwnModel | None = None,
    job: SimulatedRun | None = None,
    record_messages: bool = False,
) -> dict[str, Any]:
    """The summary of a run: a finished one in that folder is taken as it is, an unfinished one is
    continued.

    `job` is the experiment on these data made concrete, where that has been done.
    """
    job = job or prepare(experiment, federation, model)
    if not RunFolder(folder).begun:
        return start(job, folder, progress, track, record_messages=record_messages).summary
    check_same(folder, job.experiment, record_messages)
    if (summary := RunFolder(folder).read_summary()) is not None:
        RunFolder(folder).check()
        check_given(folder, job)
    else:
        again = reopen(folder, federation, model, trust=True)  # its code has just run, in `prepare`
        summary = resume_in(again, folder, progress, track).summary
    return summary | {"remarks": [*summary.get("remarks", ()), *elsewhere(folder, experiment)]}


def run_all(
    runs: Sequence[Planned],
    data: Callable[[Experiment], Federation],
    progress: Callable[[str], Progress],
    track: Trackers | None = None,
    model: OwnModel | None = None,
    jobs: int = 1,
) -> Generator[dict[str, Any], None, None]:
    """The summaries of all runs in the order of `runs`, each as soon as it and all before it are
    there.

    `progress` gives who watches a run of that title, and is told of all together if it is an
    `Overview`. With more than one of `jobs` the experiments must be `settled` for that.
    """
    if jobs == 1:
        with actors_kept():
            for run in runs:
                how = (run.experiment, data(run.experiment), run.folder)
                yield run_once(*how, progress(run.title), track, model, None, run.record_messages)
        return
    crew = _Crew(runs, data, progress, track or Trackers(), model, jobs)
    try:
        yield from crew.summaries()
    finally:
        crew.stop()


@dataclass
class _Member:
    """A run that is under way in its own process."""

    process: Any
    line: Connection
    watched: Progress
    job: SimulatedRun | None
    """Until it has begun there."""
    began: float
    first: int = 0
    last: int = 1
    round: int = 0

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    @property
    def whole(self) -> float | None:
        """Seconds that it takes in all, if that can be told from rounds that are over."""
        over = (self.round - self.first) / max(1, self.last - self.first)
        return self.spent / over if over > 0 else None


class _Crew:
    """Several runs at once: which is next, what they say, and their end."""

    def __init__(
        self,
        runs: Sequence[Planned],
        data: Callable[[Experiment], Federation],
        progress: Callable[[str], Progress],
        track: Trackers,
        model: OwnModel | None,
        jobs: int,
    ) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UsageError("Runs side by side need a system that can fork: leave jobs away here.")
        track.check_by_name()
        self._runs, self._data, self._progress, self._track, self._model, self._jobs = (
            runs,
            data,
            progress,
            track,
            model,
            jobs,
        )
        self._at_work: dict[int, _Member] = {}
        self._summaries: dict[int, dict[str, Any]] = {}
        self._paces: list[tuple[str, float]] = []
        """Of runs that are over: the method, and the seconds for each that was guessed."""
        of = [_data_of(run.experiment) for run in runs]
        longest: dict[tuple[Any, ...], float] = defaultdict(float)
        for which, run in zip(of, runs, strict=True):
            longest[which] = max(longest[which], run.cost.seconds)
        order = sorted(longest, key=lambda which: -longest[which])
        self._place = [order.index(which) for which in of]
        """By their data, so that few of these are in memory at a time: those with the longest run
        first.
        """
        self._waiting = list(range(len(runs)))
        self._warned: dict[Any, Any] = {}
        code()  # asks git, once for all

    def summaries(self) -> Generator[dict[str, Any], None, None]:
        """In the order of the runs."""
        for k in range(len(self._runs)):
            while k not in self._summaries:
                self._begin_what_fits()
                self._hear()
            yield self._summaries[k]

    def stop(self) -> None:
        """End what is under way; it can be gone on with."""
        for member in self._at_work.values():
            member.process.terminate()  # its own process answers as this one does to Ctrl-C
        for member in self._at_work.values():
            member.process.join(PATIENCE + 1)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.line.close()
            member.watched.end()
        self._at_work.clear()

    # Which is next.

    def _begin_what_fits(self) -> None:
        while self._waiting and len(self._at_work) < self._jobs:
            self._waiting.sort(key=lambda k: (self._place[k], -self._expected(k)))
            room = self._room()
            fitting = [k for k in self._waiting if room is None or self._needs(k) <= room]
            if not fitting and self._at_work:
                return  # it runs alone, later
            self._begin((fitting or self._waiting)[0])

    def _expected(self, k: int) -> float:
        """Seconds that a run takes, as far as it tells itself, others of its method do, or any."""
        if k in self._at_work and (whole := self._at_work[k].whole) is not None:
            return whole
        told = [
            (j, whole) for j, member in self._at_work.items() if (whole := member.whole) is not None
        ]
        paces = [
            *self._paces,
            *((self._method(j), whole / self._runs[j].cost.seconds) for j, whole in told),
        ]
        known = [pace for method, pace in paces if method == self._method(k)] or [
            pace for _, pace in paces
        ]
        return self._runs[k].cost.seconds * (statistics.fmean(known) if known else 1.0)

    def _method(self, k: int) -> str:
        return display_name(self._runs[k].experiment.algorithm)

    def _needs(self, k: int) -> int:
        cost = self._runs[k].cost
        there = any(self._place[k] == self._place[other] for other in self._at_work)
        return cost.memory + (0 if there else cost.data)

    def _room(self) -> int | None:
        """Bytes of memory that nobody has, nor is going to have."""
        free = available()
        if free is None:
            return None
        return free - sum(
            max(0, self._runs[k].cost.memory - private(m.process.pid))
            for k, m in self._at_work.items()
        )

    def _begin(self, k: int) -> None:
        run = self._runs[k]
        self._waiting.remove(k)
        federation = self._data(run.experiment)
        job = prepare(run.experiment, federation, self._model)
        if job.experiment.device != "cpu":
            raise UsageError(
                f"Runs side by side are on the CPU, not on {job.experiment.device}: choose --device"
                " cpu, or one job."
            )
        watched = self._progress(run.title)
        how = (run.experiment, federation, run.folder)
        if RunFolder(run.folder).ended:
            self._summaries[k] = run_once(
                *how, watched, self._track, self._model, job, run.record_messages
            )
            watched.end()
            return
        here, there = multiprocessing.Pipe(duplex=False)
        strangers = [here, *(member.line for member in self._at_work.values())]

        def work(progress: Progress, told: Callable[[str], None]) -> dict[str, Any]:
            return run_once(
                *how, progress, self._track.copy(told), self._model, job, run.record_messages
            )

        process = multiprocessing.get_context("fork").Process(
            target=live, args=(there, strangers, os.getpid(), work)
        )
        with held_back():
            process.start()
            there.close()
            self._at_work[k] = _Member(
                process, here, watched, job, time.monotonic(), last=job.experiment.rounds
            )

    # What they say.

    def _hear(self) -> None:
        """Wait for a while for what runs that are under way say, and tell it to who watches."""
        if not self._at_work:
            return
        wait([end for m in self._at_work.values() for end in (m.line, m.process.sentinel)], LOOK)
        for k, member in list(self._at_work.items()):
            gone = (
                not member.process.is_alive()
            )  # before its last words are read: then all are there
            try:
                while k in self._at_work and member.line.poll():
                    self._heard(k, member, *member.line.recv())
            except (EOFError, OSError):
                gone = True
            if gone and k in self._at_work:
                member.process.join(1)
                raise ComityError(f"The run {self._runs[k].title} {fate(member.process.exitcode)}.")
        if isinstance(self._progress, Overview):
            self._progress.overview(len(self._waiting) + len(self._at_work), self._left())

    def _heard(self, k: int, member: _Member, what: str, *told: Any) -> None:
        match what:
            case "begin":
                assert member.job
                member.first = member.round = told[0]
                member.watched.begin(member.job, told[0])
                member.job = None
            case "round":
                member.round = told[0]
                member.watched.round(told[0], told[1], Ledger(total=Counter(told[2])))
            case "told":
                self._track.warn(told[0])
            case "warned":
                text, category, filename, line = told
                warnings.warn_explicit(
                    text,
                    getattr(builtins, category, UserWarning),
                    filename,
                    line,
                    registry=self._warned,
                )
            case "said":
                getattr(sys, told[0]).write(told[1])
            case "done":
                self._ended(k, member, told[0])
            case "failed":
                kind = {"UsageError": UsageError, "CorruptedFile": CorruptedFile}.get(
                    told[0], ComityError
                )
                raise kind(f"{self._runs[k].title}: {told[1]}") from Elsewhere(told[2])

    def _ended(self, k: int, member: _Member, summary: dict[str, Any]) -> None:
        self._summaries[k] = summary
        del self._at_work[k]
        member.process.join()
        member.line.close()
        member.watched.end()
        self._paces.append((self._method(k), member.spent / self._runs[k].cost.seconds))

    def _left(self) -> float | None:
        """Seconds to the end of all, once any run tells how fast this machine is."""
        if not self._paces and all(member.whole is None for member in self._at_work.values()):
            return None
        under_way = [
            max(0.0, self._expected(k) - member.spent) for k, member in self._at_work.items()
        ]
        return max(
            [*under_way, (sum(under_way) + sum(map(self._expected, self._waiting))) / self._jobs],
            default=0.0,
        )


class Elsewhere(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
