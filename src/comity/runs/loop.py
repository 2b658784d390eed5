"""The rounds of a run: they follow each other, from the first or from the last checkpoint, and all
they bring is written down.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from comity.checksums import Checksum
from comity.base.call import CallId
from comity.base.finite import first_not_finite, is_finite
from comity.core.participation import NoReplies
from comity.base.record import on_device
from comity.core.server import Note, Server
from comity.core.wrapper import chain
from comity.engines.engine import Engine
from comity.errors import ComityError, WorkerLost
from comity.runs.checkpoint import Checkpoints, Manifest
from comity.runs.environment import changed_since
from comity.runs.evaluation import (
    Evaluations,
    evaluate,
    evaluate_newcomers,
    evaluate_newcomers_alone,
    evaluate_unfinished,
    write_outcomes,
)
from comity.runs.folder import MESSAGES, OUTCOMES, RunFolder
from comity.runs.recording import MessageRecorder
from comity.runs.schedule import Schedule
from comity.runs.server_run import Progress, ServerRun
from comity.runs.tables import ABSENCES, LEDGER, METRICS, PRIVACY, TIMING, Writer
from comity.measure import summarise
from comity.measure.memory import peak_memory
from comity.privacy.account import Account, BudgetExceeded
from comity.track import Trackers

UNCHECKED = (
    "This run was begun with an earlier version of Comity, whose checkpoints have no checksums of"
    " the tables: whether a row was changed before it went on cannot be checked."
)


Conclude = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""What is done once a run has its summary: it returns more entries of that."""
REWINDS = 3
"""How often a run goes back to its last checkpoint by itself, before it is left to the user to
resume it.
"""


def execute(
    job: ServerRun,
    meet: Callable[[], Engine],
    folder: RunFolder,
    progress: Progress,
    track: Trackers,
    *,
    resume: bool,
    warnings: Iterable[str] = (),
    conclude: Conclude = lambda summary: {},
) -> dict[str, Any]:
    """All rounds that are still to come, and the summary at the end, with what there is to remark
    on how they come about.

    `conclude` is called with the summary before it is written; what it returns is written with it.

    `meet` gives the engine that has the parties, once it is known that there is something to go on
    with. If a worker is lost with what its parties kept, all parties go back to the last
    checkpoint: those that were restored alone would be behind the others.
    """
    told = list(warnings)
    for _ in range(REWINDS):
        try:
            return _execute(
                job, meet, folder, progress, track, conclude, resume=resume, warnings=told
            )
        except WorkerLost as why:
            told.append(f"{str(why).partition(';')[0]}: the run went on from its last checkpoint.")
            resume = True
    return _execute(job, meet, folder, progress, track, conclude, resume=resume, warnings=told)


def _execute(
    job: ServerRun,
    meet: Callable[[], Engine],
    folder: RunFolder,
    progress: Progress,
    track: Trackers,
    conclude: Conclude,
    *,
    resume: bool,
    warnings: Iterable[str],
) -> dict[str, Any]:
    begin = time.perf_counter()
    checkpoints = folder.checkpoints()
    manifest = checkpoints.load() if resume else None
    engine = meet()
    account = job.account()
    tables = folder.tables()
    works = MessageRecorder(engine, partial(tables.append, MESSAGES)) if folder.recorded else engine
    rounds = _Rounds(
        job, folder, checkpoints, tables, engine, job.server(works, progress, account), account
    )
    summary = None
    try:
        if resume and (changed := changed_since(folder.read_environment())):
            rounds.server.warnings[changed] = None
        if manifest:
            rounds.restore(manifest)
        else:
            rounds.create()
        rounds.server.warnings.update(dict.fromkeys(warnings))
        rounds.seconds["setup"] += time.perf_counter() - begin
        track.begin(job, folder.path)
        progress.begin(job, max(rounds.done, 0))
        while rounds.done < rounds.last:
            figure, notes = rounds.go_on()
            if rounds.done <= rounds.schedule.rounds:
                progress.round(rounds.done, figure, rounds.server.ledger)
            track.round(rounds.done, notes, rounds.server.ledger.total)
        summary = rounds.summary()
        summary |= conclude(summary)
        folder.write_summary(summary, rounds.files)
        return summary
    finally:
        engine.close()
        progress.end()
        track.end(summary)


class _Rounds:
    """A run between two of its rounds: all that changes from round to round."""

    def __init__(
        self,
        job: ServerRun,
        folder: RunFolder,
        checkpoints: Checkpoints,
        tables: Writer,
        engine: Engine,
        server: Server,
        account: Account,
    ) -> None:
        self.job = job
        self.server = server
        self._account = account
        self.schedule = Schedule(job.experiment.rounds, job.experiment.patience)
        self.done = -1
        """The last round that is over; -1 before the start, which is round 0."""
        self.seconds: dict[str, float] = defaultdict(float)
        self._folder = folder
        self._checkpoints = checkpoints
        self._tables = tables
        self._engine = engine
        self._discarded: dict[int, str] = {}
        """Rounds in which exchanges did not count, and why."""
        self._state: Any = None
        """The server's state."""
        self._gained: dict[str, dict[str, float]] = {}
        """What parties say of their gain over training alone, where they keep their answers to
        themselves.
        """
        self._exchanged: float | None = None
        """Where the next round begins with its evaluation, as a run that is made longer does: the
        seconds its exchange took.
        """
        self._ending: dict[str, Any] | None = None
        """What tables and counters were before the last evaluation: there a run that is made longer
        goes on.
        """

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
        self._state = on_device(
            self.job.algorithm.init_server(self.job.root.fold("init"), self.server.info),
            self.job.device,
        )

    def restore(self, manifest: Manifest) -> None:
        """Begin where a checkpoint was made."""
        counters = manifest.counters
        self.server.versions = _versions(manifest)
        self.server.participation_log.waiting = set(counters.get("waiting", ()))
        self._discarded = {
            int(t): why for t, why in counters.get("discarded", counters.get("void", {})).items()
        }
        homes = {int(i): w for i, w in counters.get("homes", {}).items()}
        self._engine.load(
            self._checkpoints.folder, manifest.parties.values(), self.server.versions, homes
        )
        self.server.ledger.total.update(counters["bytes"])
        self.server.steps = counters["steps"]
        self.server.server_steps = counters["server_steps"]
        self.server.warnings.update(dict.fromkeys(counters["remarks"]))
        self.seconds.update(counters["seconds"])
        self._state = on_device(self._checkpoints.server_state(), self.job.device)
        self.server.first = counters.get("first", 1)
        self.server.looked.update(counters.get("looked", ()))
        self.server.withholding.update(counters.get("withholding", ()))
        self._gained = counters.get("gained", {})
        self._exchanged = counters.get("exchanged")
        self.done = manifest.round - (self._exchanged is not None)
        self.schedule.load(counters["schedule"])
        if not manifest.checked:
            self.server.warnings[UNCHECKED] = None
        self._tables.go_on(manifest.files)  # last: a damaged checkpoint must not cost any rows
        self._account.restore(self._tables.rows(PRIVACY))
        if OUTCOMES not in manifest.files:
            self._folder.outcomes.unlink(missing_ok=True)  # those of an end that was not one

    def go_on(self) -> tuple[float | None, list[Note]]:
        """The next round, to its end on disk; the mean of the chosen metric, if it was evaluated,
        and all notes.
        """
        t = self.done + 1
        self.schedule.enter(t)
        training, notes = self._trained(t)
        begin = time.perf_counter()
        found = self._evaluate(t)
        evaluating = time.perf_counter() - begin
        self.seconds["evaluate"] += evaluating
        notes += self._written()
        saving = self._save(t)
        took = (training, evaluating, saving)
        self._tables.add(
            TIMING, [(t, *(f"{seconds:.4f}" for seconds in took), peak_memory())]
        )  # last: the round is whole
        self.done = t
        return (found.figure if found else None), notes

    def _trained(self, t: int) -> tuple[float, list[Note]]:
        """The exchanges of a round, unless they are over; the seconds that they took, and what
        there is to note of them.
        """
        if (seconds := self._exchanged) is not None:
            self._exchanged = None
            self.server.begin(t)
        else:
            begin = time.perf_counter()
            self._exchange(t)
            seconds = time.perf_counter() - begin
            self.seconds["train"] += seconds
        notes = self._written()
        files = dict(self._tables.files)
        now = {
            "files": files,
            "bytes": dict(self.server.ledger.total),
            "schedule": self.schedule.dump(),
            "exchanged": seconds,
        }
        self._ending = now if t == self.schedule.rounds and not self._finishes else None
        return seconds, notes

    def _written(self) -> list[Note]:
        """All that there is to write down by now, which is written; the notes among it."""
        notes = self.server.take_notes()
        self._tables.add(METRICS, notes)
        self._tables.add(LEDGER, self.server.ledger.take())
        self._tables.add(ABSENCES, self.server.participation_log.take())
        self._tables.add(PRIVACY, self._account.take())
        return notes

    @property
    def _finishes(self) -> bool:
        """Whether the method has exchanges after the last round."""
        return any(a.finishes for a in chain(self.job.algorithm))

    def _exchange(self, t: int) -> None:
        """What a round is about: the algorithm's own code runs, at the server and, through the net,
        at the parties.
        """
        algorithm, server, info = self.job.algorithm, self.server, self.job.info
        server.begin(t)
        if t == 0:
            server.charge_introduction(info.parties)
            self._start()
        elif t <= self.schedule.rounds:
            self._onboard(self.job.cohort(t))
            discarded = self._whole(
                lambda s: algorithm.round(s, server, t), quorum=self.job.experiment.min_replies
            )
            server.first += bool(discarded) and t == server.first
        else:
            server.charge_introduction(info.late)
            evaluate_newcomers(self.job, server, self._engine, self._state, "offered")
            evaluate_newcomers_alone(self.job, server, self._engine)
            for i in info.late if any(one.protects_records for one in chain(algorithm)) else ():
                self._account.note_open(
                    t, "alone", i, "figures of a model that it trained alone, without noise"
                )
            self._whole(lambda s: algorithm.join(s, server, info.late))
            evaluate_newcomers(self.job, server, self._engine, self._state, "joined")
        if t == self.schedule.rounds and self._finishes:
            evaluate_unfinished(self.job, server, self._engine, self._state)
            self._whole(lambda s: algorithm.finish(s, server))

    def _start(self) -> None:
        """The exchanges before round 1; without them there is no run. Who missed one waits until it
        was told what it missed.
        """
        if discarded := self._whole(
            lambda s: self.job.algorithm.start(s, self.server),
            quorum=self.job.experiment.min_replies,
        ):
            raise ComityError(f"The run cannot begin: {discarded[0].lower()}{discarded[1:]}")
        self.server.participation_log.waiting = set(self.server.participation_log.missed)

    def _onboard(self, cohort: Iterable[int]) -> None:
        """Tell those of a round who missed the start what they missed; who cannot be reached waits
        on.
        """
        participation_log = self.server.participation_log
        late = sorted(participation_log.waiting.intersection(cohort))
        if late:
            participation_log.waiting -= set(late)
            discarded = self._whole(lambda s: self.job.algorithm.catch_up(s, self.server, late))
            participation_log.waiting |= (
                set(late) if discarded else participation_log.missed.intersection(late)
            )

    def _whole(self, exchanges: Callable[[Any], Any], quorum: int = 1) -> str:
        """Exchanges that count as a whole or not at all, at the server and at the parties; if not,
        the reason.
        """
        self.server.open(quorum)
        try:
            state = exchanges(self._state)
            kept = self.server.settle()
            if not is_finite(state):
                self._check_may_go_on(state)
                raise NoReplies(
                    f"What the server made of the replies in round {self.server.round} is not"
                    " finite."
                )
        except (NoReplies, BudgetExceeded) as why:
            self._engine.settle(self.server.undo())
            if isinstance(why, BudgetExceeded):
                self._end_here()
            self.server.note("silence", 1.0)
            self._discarded[self.server.round] = str(why)
            return str(why)
        self._state = state
        self._engine.settle(kept)
        return ""

    def _end_here(self) -> None:
        """No more may be given away: this round, of which nothing counts, is the last. Models are
        judged as they are.
        """
        if self.server.round:
            self.schedule.rounds, self.schedule.stopped = self.server.round, True
            self.server.warnings[
                f"The run ended in round {self.server.round}, in which its privacy budget was"
                " spent."
            ] = None

    def _check_may_go_on(self, state: Any) -> None:
        if self.job.experiment.on_nonfinite == "stop":
            raise ComityError(
                f"What the server made of the replies in round {self.server.round} is not finite"
                f" ({first_not_finite(state)}): try a smaller lr."
            )

    def _evaluate(self, t: int) -> Evaluations | None:
        """Let parties evaluate, if this round is one after which they do."""
        final = t == self.schedule.rounds
        due = t % self.job.experiment.eval_every == 0 and t < self.schedule.rounds
        if not due and not final:
            return None
        found = evaluate(self.job, self.server, self._engine, self._state, final=final)
        if final:
            self._gained = {
                self.job.info.names[i]: vars(one.gained)
                for i, one in found.by_party.items()
                if one.gained
            }
            write_outcomes(self.job, self._folder, found)
            self._tables.note(OUTCOMES)
        if (
            found.complete and (goodness := found.goodness) is not None
        ):  # who is missing would flatter a round, or wrong it
            self.schedule.seen(t, goodness)
        return found

    def _save(self, t: int) -> float:
        """A checkpoint, if the last one is old enough, or at the end; the seconds that it took."""
        before = self._checkpoints.seconds
        if self._checkpoints.due() or t == self.last:
            counters = {
                "bytes": dict(self.server.ledger.total),
                "seconds": dict(self.seconds),
                **self._steps(),
            }
            counters["schedule"] = self.schedule.dump()
            counters["remarks"] = self._warnings()
            counters["versions"] = {i: list(version) for i, version in self.server.versions.items()}
            counters["homes"] = dict(self._engine.homes)
            counters["discarded"] = self._discarded
            counters["waiting"] = sorted(self.server.participation_log.waiting)
            counters["first"] = self.server.first
            counters["looked"] = sorted(self.server.looked)
            counters["withholding"] = sorted(self.server.withholding)
            counters |= {"gained": self._gained} if self._gained else {}
            counters |= {"ending": self._ending} if self._ending else {}
            self._checkpoints.save(t, self._state, self._engine, self._tables.files, counters)
            self._engine.committed(self.server.versions)
        return self._checkpoints.seconds - before

    def _warnings(self) -> list[str]:
        """What a user should know of how this came about, each sentence once."""
        return list(dict.fromkeys([*self.server.warnings, *self._engine.warnings]))

    def _steps(self) -> dict[str, int]:
        return {"steps": self.server.steps, "server_steps": self.server.server_steps}

    def summary(self) -> dict[str, Any]:
        """The finished run in a few figures."""
        spent = (
            sum(self.seconds[part] for part in ("setup", "train", "evaluate"))
            + self._checkpoints.seconds
        )
        made = {"rounds": self.schedule.rounds, **self._steps(), "remarks": self._warnings()}
        made |= {"gained": self._gained} if self._gained else {}
        withholding = self.server.withholding
        made["withheld"] = [self.job.info.name(i) for i in sorted(withholding)]
        made["discarded"] = [{"round": t, "why": why} for t, why in self._discarded.items()]
        rows = self._folder.read_metrics()
        absences = self._folder.read_absences()
        made["privacy"] = self._account.summary(self.job.privacy_assumptions())
        seconds = {**self.seconds, "total": spent}
        total = self.server.ledger.total
        return summarise(
            self.job, rows, absences, total, made, seconds, needs_figures=not withholding
        )


def _versions(manifest: Manifest) -> dict[int, CallId]:
    """After which call each party's state was saved, here or at its site; earlier versions of
    Comity did not write that down.
    """
    named = {
        int(i): CallId(*version) for i, version in manifest.counters.get("versions", {}).items()
    }
    return {i: CallId("", 0, manifest.round, 0) for i in manifest.parties} | named
