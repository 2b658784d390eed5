"""The rounds of a run, from the first one or from the last checkpoint. All results are written to
the run's folder.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from comity.base.call import CallId
from comity.base.finite import first_not_finite, is_finite
from comity.base.record import on_device
from comity.checksums import Checksum
from comity.core.participation import NOT_FINITE, NoReplies
from comity.core.server import Note, Server
from comity.core.wrapper import chain
from comity.engines.engine import Engine
from comity.engines.purity import UnkeyedDraw, drawn_from, generator_states
from comity.errors import ComityError, WorkerLost
from comity.metrics.metrics import TWO
from comity.plugins import is_code
from comity.privacy.account import AGAINST_SERVER, Account, BudgetExceeded, PrivacyCharge
from comity.runs.caveats import add_caveats
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
from comity.runs.folder import OUTCOMES, RunFolder
from comity.runs.memory import peak_memory
from comity.runs.recording import MessageRecorder
from comity.runs.run_warnings import WARNINGS, RunWarning, read_warnings
from comity.runs.schedule import Schedule
from comity.runs.server_run import Progress, ServerRun
from comity.runs.summary import summarise
from comity.runs.tables import ABSENCES, LEDGER, METRICS, PRIVACY, TIMING, Writer
from comity.runs.tracking import RunTracker
from comity.spec import parse

UNCHECKED = (
    "This run was begun with an earlier version of Comity, whose checkpoints have no checksums of"
    " the tables: whether a row was changed before it went on cannot be checked."
)
Conclude = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Called with the summary of a run before it is written. Returns further entries of the summary."""
IN_THIS_PROCESS = ("loop", "stacked", "process")
"""The engines without threads of their own beside the server."""
REWINDS = 3
"""How often a run returns to its last checkpoint after losing a worker, before it fails."""


def execute(
    job: ServerRun,
    connect: Callable[[], Engine],
    folder: RunFolder,
    progress: Progress,
    track: RunTracker,
    *,
    resume: bool,
    warnings: Iterable[str] = (),
    conclude: Conclude = lambda summary: {},
) -> dict[str, Any]:
    """Run all remaining rounds and write the summary, which is returned.

    `connect` returns the engine with the parties; it is called after the checkpoint was read.
    `warnings` are added to those of the summary. `conclude` can add entries to the summary.

    If a worker is lost with the states of its parties, all parties return to the last checkpoint:
    parties that were restored alone would be behind the others.
    """
    all_warnings = list(warnings)
    rewinds = 0
    while True:
        try:
            with _open_rounds(job, connect, folder, progress, track, resume) as rounds:
                for text in all_warnings:
                    rounds.warn(text)
                track.begin(job, folder.path)
                progress.begin(job, max(rounds.completed, 0))
                while rounds.completed < rounds.last:
                    figure, notes = rounds.next_round()
                    if rounds.completed <= rounds.schedule.rounds:
                        progress.round(rounds.completed, figure, rounds.server.ledger)
                    track.round(rounds.completed, notes, rounds.server.ledger.total)
                rounds.summary = summary = rounds.summarise()
                summary |= conclude(summary)
                add_caveats(summary)
                folder.write_summary(summary, rounds.files)
                return summary
        except WorkerLost as why:
            if rewinds == REWINDS:
                raise
            rewinds += 1
            reason = str(why).partition(";")[0]
            all_warnings.append(f"{reason}: the run went on from its last checkpoint.")
            resume = True


@contextmanager
def _open_rounds(
    job: ServerRun,
    connect: Callable[[], Engine],
    folder: RunFolder,
    progress: Progress,
    track: RunTracker,
    resume: bool,
) -> Iterator[_Rounds]:
    """Connect to the parties and restore the last checkpoint, if there is one to resume from."""
    begin = time.perf_counter()
    checkpoints = folder.checkpoints()
    manifest = checkpoints.load() if resume else None
    engine = connect()
    account = job.privacy.account()
    tables = folder.tables()
    runner = MessageRecorder(engine, tables.record_message) if folder.recorded else engine
    server = job.server(runner, progress, account)
    rounds = _Rounds(job, folder, checkpoints, tables, engine, server, account)
    try:
        if manifest:
            rounds.restore(manifest)
        else:
            rounds.create()
        if resume and (changed := changed_since(folder.read_environment())):
            rounds.warn(changed)
        rounds.seconds["setup"] += time.perf_counter() - begin
        yield rounds
    finally:
        engine.close()
        progress.end()
        track.end(rounds.summary)


@dataclass
class _Exchange:
    """Exchanges that count as a whole or not at all."""

    state: Any
    """The server's state after them."""
    discarded: str = ""
    """Why they do not count; empty if they do."""
    over_budget: bool = False
    """Whether they do not count because they would exceed the privacy budget."""


class _Rounds:
    """A run between two of its rounds: everything that changes from round to round."""

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
        self.schedule = Schedule(job.experiment.rounds, job.experiment.patience)
        self.completed = -1
        """The last complete round; -1 before the start, which is round 0."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.summary: dict[str, Any] | None = None
        """The summary, once the run has ended."""
        self._account = account
        self._folder = folder
        self._checkpoints = checkpoints
        self._tables = tables
        self._engine = engine
        self._discarded: dict[int, str] = {}
        """Rounds whose exchanges were discarded, and why."""
        self._state: Any = None
        """The server's state."""
        self._gained: dict[str, dict[str, float]] = {}
        """Gains over training alone, as computed by parties that keep their predictions."""
        self._never_predicted: dict[str, list[int]] = {}
        """Of more than two classes: those that a party's final model never predicts."""
        self._exchange_seconds: float | None = None
        """Set if the next round begins with its evaluation, as in a run that was extended: the
        seconds that its exchanges took.
        """
        self._ending: dict[str, Any] | None = None
        """The tables and counters before the last evaluation, from where a run can be extended."""

    @property
    def files(self) -> Mapping[str, Checksum]:
        """The files written so far, and their checksums."""
        return self._tables.files

    @property
    def last(self) -> int:
        """The last round as planned now. Newcomers have a round of their own after all others."""
        return self.schedule.rounds + bool(self.job.info.newcomers)

    def create(self) -> None:
        """Start a new run, or one whose server was stopped before its first checkpoint."""
        charged = self._charged_rows()
        self._tables.create()
        if self.job.secret:
            self._charge_again(charged)
        initial_state = self.job.algorithm.init_server(self.job.root.fold("init"), self.server.info)
        self._state = on_device(initial_state, self.job.device)

    def restore(self, manifest: Manifest) -> None:
        """Continue from a checkpoint."""
        counters = manifest.counters
        server = self.server
        server.versions = _versions(manifest)
        server.participation_log.waiting = set(counters.get("waiting", ()))
        discarded = counters.get("discarded", counters.get("void", {}))
        self._discarded = {int(t): why for t, why in discarded.items()}
        workers_by_party = {int(i): w for i, w in counters.get("homes", {}).items()}
        self._engine.load(
            self._checkpoints.folder,
            manifest.parties.values(),
            server.versions,
            workers_by_party,
        )
        server.ledger.total.update(counters["bytes"])
        server.steps = counters["steps"]
        server.server_steps = counters["server_steps"]
        server.warnings |= {warning.text: warning.round for warning in read_warnings(counters)}
        server.first = counters.get("first", 1)
        server.length_fields.update(counters.get("looked", ()))
        server.withholding.update(counters.get("withholding", ()))
        self.seconds.update(counters["seconds"])
        self._state = on_device(self._checkpoints.server_state(), self.job.device)
        self._gained = counters.get("gained", {})
        self._never_predicted = counters.get("never_predicted", {})
        self._exchange_seconds = counters.get("exchanged")
        self.completed = manifest.round - (self._exchange_seconds is not None)
        self.schedule.load(counters["schedule"])
        if not manifest.checked:
            self.warn(UNCHECKED)
        # The tables come last: a damaged checkpoint must not remove any rows.
        charged = self._charged_rows()
        self._tables.resume(manifest.files)
        charged_before = self._tables.rows(PRIVACY)
        self._account.restore(charged_before)
        if self.job.secret:
            self._charge_again(charged[len(charged_before) :])
        if OUTCOMES not in manifest.files:
            self._folder.outcomes.unlink(missing_ok=True)  # written after the checkpoint

    def _charged_rows(self) -> list[PrivacyCharge]:
        """The rows of privacy.csv, which may go beyond the last checkpoint."""
        folder = self._folder.path
        return PRIVACY.salvage(folder).rows if (folder / PRIVACY.name).exists() else []

    def _charge_again(self, rows: Sequence[PrivacyCharge]) -> None:
        """Keep what was charged after the checkpoint in a run between sites.

        Those rounds are computed again, perhaps with other parties and then with other noise.
        What was sent in the meantime cannot be taken back.
        """
        if rows:
            self._account.add(rows)
            self._tables.add(PRIVACY, self._account.take())
            self.warn(f"{len(rows)} releases of rounds that are computed again count twice.")

    def next_round(self) -> tuple[float | None, list[Note]]:
        """Run the next round and write it to the disk.

        Returns the mean of the chosen metric, if the round was evaluated, and all notes.
        """
        t = self.completed + 1
        self.schedule.enter(t)
        if self._exchange_seconds is None:
            begin = time.perf_counter()
            self._exchange(t)
            training = time.perf_counter() - begin
            self.seconds["train"] += training
        else:
            training, self._exchange_seconds = self._exchange_seconds, None
            self.server.begin(t)
        notes = self._write_tables()
        self._ending = self._ending_after(t, training)

        begin = time.perf_counter()
        evaluations = self._evaluate(t)
        evaluating = time.perf_counter() - begin
        self.seconds["evaluate"] += evaluating
        notes += self._write_tables()

        saving = self._save(t)
        seconds = [f"{part:.4f}" for part in (training, evaluating, saving)]
        # Written last: a round with this row is complete.
        self._tables.add(TIMING, [(t, *seconds, peak_memory())])
        self.completed = t
        return (evaluations.figure if evaluations else None), notes

    def _ending_after(self, t: int, seconds: float) -> dict[str, Any] | None:
        """What a checkpoint needs so that the run can be extended; None if it cannot be."""
        if t != self.schedule.rounds or self._finishes:
            return None
        return {
            "files": dict(self._tables.files),
            "bytes": dict(self.server.ledger.total),
            "schedule": self.schedule.dump(),
            "exchanged": seconds,
        }

    def _write_tables(self) -> list[Note]:
        """Write all new rows of the tables. Returns the notes among them."""
        notes = self.server.take_notes()
        self._tables.add(METRICS, notes)
        self._tables.add(LEDGER, self.server.ledger.take())
        self._tables.add(ABSENCES, self.server.participation_log.take())
        self._tables.add(PRIVACY, self._account.take())
        return notes

    @property
    def _finishes(self) -> bool:
        """Whether the method has exchanges after the last round."""
        return any(part.traits.finishes for part in chain(self.job.algorithm))

    def _exchange(self, t: int) -> None:
        """The exchanges of round t: the method's code at the server and, through it, at parties."""
        algorithm, server = self.job.algorithm, self.server
        server.begin(t)
        if t == 0:
            self._start()
        elif t <= self.schedule.rounds:
            self._catch_up(self.job.cohort(t))
            with self._all_or_nothing(self.job.experiment.min_replies) as exchange:
                exchange.state = algorithm.round(self._state, server, t)
            server.first += bool(exchange.discarded) and t == server.first
        else:
            self._join(t)
        if t == self.schedule.rounds and self._finishes:
            evaluate_unfinished(self.job, server, self._engine, self._state)
            with self._all_or_nothing() as exchange:
                exchange.state = algorithm.finish(self._state, server)

    def _start(self) -> None:
        """The exchanges before round 1, without which there is no run.

        Parties that missed one wait until they have caught up.
        """
        self.server.charge_introduction(self.job.info.parties)
        with self._all_or_nothing(self.job.experiment.min_replies) as exchange:
            exchange.state = self.job.algorithm.start(self._state, self.server)
        if why := exchange.discarded:
            raise ComityError(f"The run cannot begin: {why[0].lower()}{why[1:]}")
        self.server.participation_log.waiting = set(self.server.participation_log.missed)

    def _catch_up(self, cohort: Iterable[int]) -> None:
        """Let parties of a round that missed the start catch up. Those not reached keep waiting."""
        participation = self.server.participation_log
        late = sorted(participation.waiting.intersection(cohort))
        if not late:
            return
        participation.waiting -= set(late)
        with self._all_or_nothing() as exchange:
            exchange.state = self.job.algorithm.catch_up(self._state, self.server, late)
        participation.waiting |= (
            set(late) if exchange.discarded else participation.missed.intersection(late)
        )

    def _join(self, t: int) -> None:
        """The round in which newcomers join, after all others."""
        algorithm, server, late = self.job.algorithm, self.server, self.job.info.late
        server.charge_introduction(late)
        evaluate_newcomers(self.job, server, self._engine, self._state, "offered")
        evaluate_newcomers_alone(self.job, server, self._engine)
        if any(part.traits.protects_records for part in chain(algorithm)):
            for i in late:
                self._account.note_open(
                    t, "alone", i, "figures of a model that it trained alone, without noise"
                )
        with self._all_or_nothing() as exchange:
            exchange.state = algorithm.join(self._state, server, late)
        if not exchange.over_budget:
            evaluate_newcomers(self.job, server, self._engine, self._state, "joined")

    @contextmanager
    def _all_or_nothing(self, quorum: int = 1) -> Iterator[_Exchange]:
        """Exchanges that count as a whole or not at all, at the server and at the parties.

        The caller sets the new server state. If there are fewer replies than `quorum`, the state is
        not finite or the privacy budget is spent, everything is undone, and `discarded` says why.
        """
        exchange = _Exchange(self._state)
        self.server.begin_exchanges(quorum)
        generators = generator_states()
        try:
            yield exchange
            self._check_draws(generators)
            versions = self.server.commit()
            if not is_finite(exchange.state):
                self._check_may_go_on(exchange.state)
                raise NoReplies(
                    f"What the server made of the replies in round {self.server.round} is not"
                    " finite."
                )
        except (NoReplies, BudgetExceeded) as why:
            self._engine.commit(self.server.undo())
            if isinstance(why, BudgetExceeded):
                exchange.over_budget = True
                self._end_here()
            self.server.note("silence", 1.0)
            self._discarded[self.server.round] = exchange.discarded = str(why)
            return
        self._state = exchange.state
        self._engine.commit(versions)

    def _check_draws(self, before: tuple[object, ...]) -> None:
        """Refuse a method that draws unkeyed random numbers at the server.

        Ray and connections to sites have threads in this process, which may draw as well.
        """
        if self.job.experiment.engine in IN_THIS_PROCESS and (whose := drawn_from(before)):
            name = parse(self.job.experiment.algorithm).name
            raise UnkeyedDraw(
                f"The code of {name} at the server",
                whose,
                f"'comity check {name}' names the line" if is_code(name) else "",
                'server.key("purpose")',
            )

    def _end_here(self) -> None:
        """End the run with this round, which does not count, because the budget is spent.

        The models are evaluated as they are. The round of the newcomers is the last one in any
        case.
        """
        if self.server.round > self.schedule.rounds:
            names = ", ".join(self.job.info.newcomers)
            self.server.warn(
                f"The privacy budget does not suffice for the warm-up of {names}, which was left"
                " out: there are no figures after joining. Use fewer --join-epochs, or a larger"
                " --budget."
            )
        elif self.server.round:
            self.schedule.rounds, self.schedule.ends_early = self.server.round, True
            self.server.warn(
                f"The run ended in round {self.server.round}, in which its privacy budget was"
                " spent."
            )

    def _check_may_go_on(self, state: Any) -> None:
        if self.job.experiment.on_nonfinite == "stop":
            raise ComityError(
                f"What the server made of the replies in round {self.server.round} is not finite"
                f" ({first_not_finite(state)}): try a smaller lr."
            )

    def _evaluate(self, t: int) -> Evaluations | None:
        """Have parties evaluate their models, if they do so after this round."""
        final = t == self.schedule.rounds
        due = t % self.job.experiment.eval_every == 0 and t < self.schedule.rounds
        if not due and not final:
            return None
        evaluations = evaluate(self.job, self.server, self._engine, self._state, final=final)
        if final:
            self._gained = {
                self.job.info.names[i]: vars(evaluation.gained)
                for i, evaluation in evaluations.by_party.items()
                if evaluation.gained
            }
            if self.job.info.task.classes > TWO:
                self._never_predicted = {
                    self.job.info.names[i]: labels
                    for i, evaluation in evaluations.by_party.items()
                    if evaluation.answers and (labels := evaluation.answers.never_predicted())
                }
            write_outcomes(self.job, self._folder, evaluations)
            self._tables.note(OUTCOMES)
        # Without some parties, a round would look better or worse than it is.
        if evaluations.complete and (goodness := evaluations.goodness) is not None:
            self.schedule.record(t, goodness)
        return evaluations

    def _save(self, t: int) -> float:
        """Write a checkpoint if one is due, or at the end. Returns the seconds that it took."""
        before = self._checkpoints.seconds
        if self._checkpoints.due() or t == self.last:
            self._checkpoints.save(
                t, self._state, self._engine, self._tables.files, self._counters()
            )
            self._engine.checkpoint_written(self.server.versions)
        return self._checkpoints.seconds - before

    def _counters(self) -> dict[str, Any]:
        """The plain values of a checkpoint."""
        server = self.server
        counters = {
            "bytes": dict(server.ledger.total),
            "seconds": dict(self.seconds),
            **self._steps(),
            "schedule": self.schedule.dump(),
            WARNINGS: [asdict(warning) for warning in self._warnings()],
            "versions": {i: list(version) for i, version in server.versions.items()},
            "homes": dict(self._engine.workers_by_party),
            "discarded": self._discarded,
            "waiting": sorted(server.participation_log.waiting),
            "first": server.first,
            "looked": sorted(server.length_fields),
            "withholding": sorted(server.withholding),
        }
        counters |= {"gained": self._gained} if self._gained else {}
        if self._never_predicted:
            counters["never_predicted"] = self._never_predicted
        counters |= {"ending": self._ending} if self._ending else {}
        return counters

    def warn(self, text: str) -> None:
        """Add a warning, if it is new, that was known before the next round began."""
        self.server.warnings.setdefault(text, self.completed + 1)

    def _warnings(self) -> list[RunWarning]:
        """The warnings during the run."""
        first_known: dict[str, int | None] = dict(self.server.warnings)
        for text, t in self._engine.warnings.items():
            first_known.setdefault(text, t)
        return [RunWarning("during", text, t) for text, t in first_known.items()]

    def _steps(self) -> dict[str, int]:
        return {"steps": self.server.steps, "server_steps": self.server.server_steps}

    def _charged_in_vain(self) -> list[RunWarning]:
        """A warning about parties whose replies were charged but never finite, and so never used.

        A reply is charged before the party is called, because it has left the party even if the
        server discards it.
        """
        charged: dict[str, set[tuple[int, str]]] = defaultdict(set)
        for row in self._folder.read_privacy():
            if row.mechanism != "none" and row.against == AGAINST_SERVER:
                charged[row.party].add((row.round, row.call))
        discarded: dict[str, set[tuple[int, str]]] = defaultdict(set)
        for absence in self._folder.read_absences():
            if absence.how == NOT_FINITE:
                discarded[absence.party].add((absence.round, absence.call))
        names = [party for party, calls in charged.items() if calls <= discarded[party]]
        if not names:
            return []
        text = (
            f"All replies of {', '.join(names)} had values that are not finite: none counted, but"
            " their epsilon is spent."
        )
        return [RunWarning("after", text)]

    def summarise(self) -> dict[str, Any]:
        """The summary of the finished run."""
        total_seconds = (
            sum(self.seconds[part] for part in ("setup", "train", "evaluate"))
            + self._checkpoints.seconds
        )
        withholding = self.server.withholding
        entries: dict[str, Any] = {"rounds": self.schedule.rounds, **self._steps()}
        entries |= {"gained": self._gained} if self._gained else {}
        if self._never_predicted:
            entries["never_predicted"] = self._never_predicted
        entries["withheld"] = [self.job.info.name(i) for i in sorted(withholding)]
        entries["discarded"] = [{"round": t, "why": why} for t, why in self._discarded.items()]
        entries["privacy"] = self._account.summary(self.job.privacy.assumptions())
        return summarise(
            self.job,
            self._folder.read_metrics(),
            self._folder.read_absences(),
            self.server.ledger.total,
            entries,
            {**self.seconds, "total": total_seconds},
            [*self._warnings(), *self._charged_in_vain()],
            needs_figures=not withholding,
        )


def _versions(manifest: Manifest) -> dict[int, CallId]:
    """The call after which each party's state was saved, here or at its site.

    Earlier versions of Comity did not save it.
    """
    saved = manifest.counters.get("versions", {})
    versions = {int(i): CallId(*version) for i, version in saved.items()}
    return {i: CallId("", 0, manifest.round, 0) for i in manifest.parties} | versions
