"""The rounds of a run: they follow each other, from the first or from the last checkpoint, and all they bring is written down."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from comity.checksums import Checksum
from comity.core.net import Net, NoReplies, Note
from comity.core.record import on_device
from comity.core.wrapper import chain
from comity.engines.engine import Engine
from comity.experiments.build import Job, Progress
from comity.experiments.checkpoint import Checkpoints, Manifest
from comity.experiments.environment import changed_since
from comity.experiments.evaluation import (
    Evaluations,
    evaluate,
    evaluate_newcomers,
    evaluate_newcomers_alone,
    evaluate_unfinished,
    write_outcomes,
)
from comity.experiments.folder import OUTCOMES, RunFolder
from comity.experiments.schedule import Schedule
from comity.experiments.tables import LEDGER, METRICS, TIMING
from comity.measure import summarise
from comity.measure.memory import peak_memory
from comity.track import Trackers

UNCHECKED = (
    "This run was begun with an earlier version of Comity, whose checkpoints have no checksums of the tables: whether a row was "
    "changed before it went on cannot be checked."
)


def execute(job: Job, folder: RunFolder, progress: Progress, track: Trackers, *, resume: bool) -> dict[str, Any]:
    """All rounds that are still to come, and the summary at the end."""
    begin = time.perf_counter()
    checkpoints = folder.checkpoints()
    manifest = checkpoints.load() if resume else None
    engine = job.engine()
    rounds = _Rounds(job, folder, checkpoints, engine, job.net(engine, progress))
    summary = None
    try:
        if resume and (changed := changed_since(folder.read_environment())):
            rounds.net.remarks[changed] = None
        if manifest:
            rounds.restore(manifest)
        else:
            rounds.create()
        rounds.seconds["setup"] += time.perf_counter() - begin
        track.begin(job, folder.path)
        progress.begin(job, max(rounds.done, 0))
        while rounds.done < rounds.last:
            accuracy, notes = rounds.go_on()
            if rounds.done <= rounds.schedule.rounds:
                progress.round(rounds.done, accuracy, rounds.net.ledger)
            track.round(rounds.done, notes, rounds.net.ledger.total)
        summary = rounds.summary()
        folder.write_summary(summary, rounds.files)
        return summary
    finally:
        engine.close()
        progress.end()
        track.end(summary)


class _Rounds:
    """A run between two of its rounds: all that changes from round to round."""

    def __init__(self, job: Job, folder: RunFolder, checkpoints: Checkpoints, engine: Engine, net: Net) -> None:
        self.job = job
        self.net = net
        self.schedule = Schedule(job.experiment.rounds, job.experiment.patience)
        self.done = -1
        """The last round that is over; -1 before the start, which is round 0."""
        self.seconds: dict[str, float] = defaultdict(float)
        self._folder = folder
        self._checkpoints = checkpoints
        self._tables = folder.tables()
        self._engine = engine
        self._state: Any = None
        """The server's state."""

    @property
    def files(self) -> Mapping[str, Checksum]:
        """What was written so far, and its checksums."""
        return self._tables.files

    @property
    def last(self) -> int:
        """The last round as far as is known: newcomers have one of their own after all others."""
        return self.schedule.rounds + bool(self.job.info.newcomers)

    def create(self) -> None:
        """Begin from nothing."""
        self._tables.create()
        self._state = on_device(self.job.algorithm.server(self.job.root.fold("init"), self.job.info), self.job.device)

    def restore(self, manifest: Manifest) -> None:
        """Begin where a checkpoint was made."""
        counters = manifest.counters
        self._engine.load(self._checkpoints.folder, manifest.parties.values())
        self.net.ledger.total.update(counters["bytes"])
        self.net.steps = counters["steps"]
        self.net.server_steps = counters["server_steps"]
        self.net.remarks.update(dict.fromkeys(counters["remarks"]))
        self.seconds.update(counters["seconds"])
        self._state = on_device(self._checkpoints.server_state(), self.job.device)
        self.done = manifest.round
        self.schedule.load(counters["schedule"])
        if not manifest.checked:
            self.net.remarks[UNCHECKED] = None
        self._tables.go_on(manifest.files)  # last: a damaged checkpoint must not cost any rows

    def go_on(self) -> tuple[float | None, list[Note]]:
        """The next round, to its end on disk; the mean accuracy, if it was evaluated, and all that was noted."""
        t = self.done + 1
        self.schedule.enter(t)
        begin = time.perf_counter()
        self._exchange(t)
        trained = time.perf_counter()
        found = self._evaluate(t)
        evaluated = time.perf_counter()
        self.seconds["train"] += trained - begin
        self.seconds["evaluate"] += evaluated - trained
        notes = self.net.take_notes()
        self._tables.add(METRICS, notes)
        self._tables.add(LEDGER, self.net.ledger.take())
        saving = self._save(t)
        took = (trained - begin, evaluated - trained, saving)
        self._tables.add(TIMING, [(t, *(f"{seconds:.4f}" for seconds in took), peak_memory())])  # last: the round is whole
        self.done = t
        return (found.accuracy if found else None), notes

    def _exchange(self, t: int) -> None:
        """What a round is about: the algorithm's own code runs, at the server and, through the net, at the parties."""
        algorithm = self.job.algorithm
        self.net.begin(t)
        if t == 0:
            self.net.charge_introduction(self.job.info.parties)
            self._state = algorithm.start(self._state, self.net)
        elif t <= self.schedule.rounds:
            self._state = _round(self.job, self.net, self._state, t)
        else:
            self._state = _join(self.job, self.net, self._engine, self._state)
        self.net.check_all_heard()
        if t == self.schedule.rounds and any(a.finishes for a in chain(algorithm)):
            evaluate_unfinished(self.job, self.net, self._engine, self._state)
            self._state = algorithm.finish(self._state, self.net)
            self.net.check_all_heard()

    def _evaluate(self, t: int) -> Evaluations | None:
        """Let parties evaluate, if this round is one after which they do."""
        final = t == self.schedule.rounds
        due = t % self.job.experiment.eval_every == 0 and t < self.schedule.rounds
        if not due and not final:
            return None
        found = evaluate(self.job, self.net, self._engine, self._state, final=final)
        if final:
            write_outcomes(self.job, self._folder, found)
            self._tables.note(OUTCOMES)
        self.schedule.seen(t, found.chosen_by)
        return found

    def _save(self, t: int) -> float:
        """A checkpoint, if the last one is old enough, or at the end; the seconds that it took."""
        before = self._checkpoints.seconds
        if self._checkpoints.due() or t == self.last:
            counters = {"bytes": dict(self.net.ledger.total), "seconds": dict(self.seconds), **self._steps()}
            counters["schedule"] = self.schedule.dump()
            counters["remarks"] = list(self.net.remarks)
            self._checkpoints.save(t, self._state, self._engine, self._tables.files, counters)
        return self._checkpoints.seconds - before

    def _steps(self) -> dict[str, int]:
        return {"steps": self.net.steps, "server_steps": self.net.server_steps}

    def summary(self) -> dict[str, Any]:
        """The finished run in a few figures."""
        spent = sum(self.seconds[part] for part in ("setup", "train", "evaluate")) + self._checkpoints.seconds
        made = {"rounds": self.schedule.rounds, **self._steps(), "remarks": list(self.net.remarks)}
        return summarise(self.job, self._folder.read_metrics(), self.net.ledger.total, made, {**self.seconds, "total": spent})


def _round(job: Job, net: Net, s: Any, t: int) -> Any:
    """One round; where nobody answers, the state stays as it was."""
    try:
        return job.algorithm.round(s, net, t)
    except NoReplies:
        net.note("silence", 1.0)
        return s


def _join(job: Job, net: Net, engine: Engine, s: Any) -> Any:
    """Newcomers after the last round: what each is offered, what it would have alone, and what it has after its warm-up."""
    net.charge_introduction(job.info.late)
    evaluate_newcomers(job, net, engine, s, "offered")
    evaluate_newcomers_alone(job, net, engine)
    s = job.algorithm.join(s, net, job.info.late)
    evaluate_newcomers(job, net, engine, s, "joined")
    return s
