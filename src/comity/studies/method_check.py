"""Checks of a method on a tiny federation: does it keep the rules that all engines rely on?

Each check is one property that Comity's own tests ask of every method. A check runs the method for
two rounds with four small parties, so that all of them take some seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from comity.base.call import CallId, Message, PartyResult
from comity.core.validate import MessageValidator
from comity.data import Federation, load
from comity.engines.engine import Engine, Inboxes, Sites
from comity.engines.loop import LoopEngine, Sequential
from comity.engines.purity import (
    LineFinder,
    UnkeyedDraw,
    UnseededFinder,
    comparing_contents,
    generator_states,
)
from comity.engines.site_store import SiteStore
from comity.errors import UsageError, describe
from comity.metrics.evaluation import Evaluation
from comity.runs.build import SimulatedRun, prepare
from comity.runs.config import experiment
from comity.runs.folder import RunFolder
from comity.runs.result import Result
from comity.runs.run import reopen, resume_in, start
from comity.runs.server_run import Quiet
from comity.studies.plan import traffic
from comity.wire.ledger import Ledger

SIZES = {"north": (47, 12), "east": (23, 9), "south": (34, 17), "west": (12, 5)}
"""Training and test samples of each party. One party's last batch has a single sample."""
MODEL = "mlp2(width=8)"
ROUNDS = 2
TABLES = ("metrics.csv", "ledger.csv", "outcomes.csv", "absences.csv", "privacy.csv")
"""The tables that are equal in equal runs."""
Verdict = Literal["holds", "fails", "note"]


@dataclass(frozen=True)
class Check:
    """The outcome of one check. A note is about something that only some uses need."""

    name: str
    verdict: Verdict
    text: str


class Differs(Exception):
    """Two runs that must be equal are not. The message says in what."""


class _Stop(Exception):
    """Interrupts a run, to resume it."""


class _StopAfterOne(Quiet):
    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        if t == 1:
            raise _Stop


def tiny_federation() -> Federation:
    """Four parties of different sizes with handwritten digits of 8 x 8 pixels."""
    digits = load("digits")
    parties: dict[str, Any] = {}
    at = 0
    for name, (train, test) in SIZES.items():
        middle, end = at + train, at + train + test
        parties[name] = (
            (digits.x[at:middle], digits.y[at:middle]),
            (digits.x[middle:end], digits.y[middle:end]),
        )
        at = end
    return Federation.from_arrays(parties, classes=10)


class MethodCheck:
    """All checks of one method, which write their runs to a folder."""

    def __init__(self, algorithm: str, folder: Path, model: str = MODEL) -> None:
        self._settings = {"algorithm": algorithm, "model": model, "rounds": ROUNDS, "lr": 0.05}
        self._folder = folder
        self._federation = tiny_federation()
        self.prepare()  # a wrong name or option is refused here

    def prepare(self, **settings: Any) -> SimulatedRun:
        """A run of the method on the tiny federation, on the loop engine by default."""
        experiment_ = experiment(self._settings | {"engine": "loop"} | settings)
        return prepare(experiment_, self._federation)

    def run(self, name: str, **settings: Any) -> Result:
        """Run the method in a folder of this name."""
        return start(self.prepare(**settings), self._folder / name, Quiet())

    def all(self) -> Iterator[Check]:
        """All checks, each as soon as it is done. Without a first run there are no others."""
        checks: Mapping[str, Callable[[], str | Check]] = {
            "purity": self._purity,
            "repeatability": self._repeatability,
            "resume": self._resume,
            "engines": self._engines,
            "bytes": self._bytes,
            "absences": self._absences,
            "newcomers": self._newcomers,
            "messages": self._messages,
        }
        for name, check in checks.items():
            try:
                result = check()
            except Exception as why:
                yield Check(name, "fails", str(why) if isinstance(why, Differs) else describe(why))
                if name == "purity":
                    return
            else:
                yield Check(name, "holds", result) if isinstance(result, str) else result

    @cached_property
    def _reference(self) -> Result:
        return self.run("reference")

    def _purity(self) -> str:
        try:
            with comparing_contents():
                figure = self._reference.summary[self._reference.job.metric.name]["mean"]
        except UnkeyedDraw as why:
            raise self._with_line(why) from why
        return (
            f"{ROUNDS} rounds at {len(SIZES)} parties: nothing received is written to, all random"
            f" numbers come from keys (test accuracy {100 * figure:.0f}%)"
        )

    def _with_line(self, why: UnkeyedDraw) -> UnkeyedDraw:
        """The same error with the line of the draw, found by a run line by line."""
        before = generator_states()
        finder = LineFinder(lambda: generator_states() != before)
        with suppress(Exception), finder:
            self.run("traced")
        return UnkeyedDraw(why.function, why.whose, finder.place or why.place, why.key)

    def _repeatability(self) -> str:
        try:
            _compare(self._reference, self._from_new_process("repeated"), REPEAT)
        except Differs as why:
            finder = UnseededFinder()
            with suppress(Exception), finder:
                self.run("unseeded")
            if not finder.places:
                raise
            raise Differs(str(why).replace(REPEAT, UNSEEDED.format(finder.places[0]))) from why
        return "a second run, in a new process, is equal to the bit"

    def _resume(self) -> str:
        _compare(self._reference, self._from_new_process("resumed"), RESUME)
        return "a run that was stopped after round 1 and resumed is equal to the bit"

    def _engines(self) -> str:
        _compare(self._reference, self.run("process", engine="process", workers=2), ENGINES)
        stacked = self.run("stacked", engine="stacked", workers=1)
        _compare(self._reference, stacked, ENGINES, exact=False)
        return "process is equal to loop to the bit, stacked up to rounding"

    def _bytes(self) -> str | Check:
        try:
            start_formula, round_formulas = traffic(self._reference.job)
        except UsageError as why:
            return Check(
                "bytes", "note", f"{why} Without it, 'comity plan' cannot count; runs can."
            )
        ledger: dict[int, Counter[str]] = {t: Counter() for t in range(ROUNDS + 1)}
        for row in self._reference.ledger:
            ledger[row.round][row.kind] += row.bytes
        for t, formula in enumerate([start_formula, *round_formulas]):
            for kind in ("up", "down", "peer"):
                declared, in_ledger = getattr(formula, kind), ledger[t][kind]
                if declared != in_ledger:
                    raise Differs(
                        f"in round {t} (0: before the first), {in_ledger:,} bytes are sent {kind},"
                        f" but the accounting declares {declared:,}: write a `traffic` for this"
                        " method."
                    )
        return f"the accounting declares what is sent: {ledger[1].total():,} bytes in round 1"

    def _absences(self) -> str:
        self.run("absences", absent="random(offline=0.2,lost=0.2)", rounds=4)
        return "4 rounds with parties offline and replies lost"

    def _newcomers(self) -> str | Check:
        try:
            self.run("newcomers", newcomers=1, join_epochs=1)
        except UsageError as why:
            return Check("newcomers", "note", str(why))
        return "a party that joins after the last round gets a model"

    def _messages(self) -> str | Check:
        job = self.prepare()
        validated = _ValidatedRun(**{f.name: getattr(job, f.name) for f in fields(job)})
        try:
            start(validated, self._folder / "messages", Quiet())
        except UsageError as why:
            return Check("messages", "note", f"{why} Until then it runs in simulations only.")
        return "all messages are of the declared types, as parties at real sites require"

    @cached_property
    def _new_process(self) -> dict[str, str]:
        """Repeats the run, and resumes an interrupted one, in a new process, which has another
        order of sets. Returns the error of each, if any.
        """
        with suppress(_Stop), _checkpoint_after_each_round():
            start(self.prepare(), self._folder / "resumed", _StopAfterOne())
        path = os.pathsep.join(filter(None, sys.path))
        process = subprocess.run(
            [
                *(sys.executable, "-c", f"import {__name__} as c; c._main()"),
                *(str(self._settings[name]) for name in ("algorithm", "model")),
                str(self._folder),
            ],
            env=os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            last = (process.stderr.strip().splitlines() or ["it ended without a message"])[-1]
            return {"repeated": last, "resumed": last}
        errors: dict[str, str] = json.loads(process.stdout.splitlines()[-1])
        return errors

    def _from_new_process(self, name: str) -> Result:
        if error := self._new_process.get(name):
            raise Differs(f"in a new process it fails: {error}")
        folder = self._folder / name
        job = reopen(folder, self._federation, trust=True)
        summary = RunFolder(folder).read_summary()
        assert summary is not None
        return Result(folder, job, summary)

    def resume(self, name: str) -> Result:
        """Resume the interrupted run in a folder of this name."""
        folder = self._folder / name
        return resume_in(reopen(folder, self._federation, trust=True), folder, Quiet())


REPEAT = (
    "look for random numbers without a key, for loops over a set, and for values that depend on"
    " the time or the process."
)
UNSEEDED = (
    "a random generator gets no seed ({}), so that every run draws other numbers: draw with"
    " key.numpy() or generator=key.generator()."
)
RESUME = (
    "what must outlast a round belongs in the server's state or a party's state, not in a variable"
    " of the module or the class."
)
ENGINES = (
    "look for variables of the module that parties share, and for writes to replies at the server."
)


def _compare(expected: Result, result: Result, advice: str, exact: bool = True) -> None:
    """Raise Differs unless two runs are equal: to the bit, or up to the rounding of batches."""
    for table in TABLES if exact else ("ledger.csv",):
        files = [run.folder / table for run in (expected, result)]
        contents = [file.read_bytes() if file.exists() else b"" for file in files]
        if contents[0] != contents[1]:
            raise Differs(f"{result.folder.name}: {table} differs: {advice}")
    for party in expected.job.info.names:
        theta, other = expected.model(party).theta, result.model(party).theta
        for name, value in theta.items():
            equal = (
                torch.equal(value, other[name])
                if exact
                else torch.allclose(value, other[name], rtol=1e-3, atol=1e-4)
            )
            if not equal:
                raise Differs(f"{result.folder.name}: {name} of {party} differs: {advice}")


@contextmanager
def _checkpoint_after_each_round() -> Iterator[None]:
    name = "COMITY_CHECKPOINT_SECONDS"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class _Validating(Sequential):
    """Runs parties one after the other, and validates messages and replies as a site does."""

    def __init__(self, job: SimulatedRun) -> None:
        self._validator = MessageValidator(job.algorithm, job.info.task, len(job.parties))

    def run(
        self, sites: Sites, call: CallId, messages: Mapping[int, Message], inboxes: Inboxes
    ) -> Iterator[tuple[int, PartyResult]]:
        for message in messages.values():
            self._validator.check_message(call, message.content)
        for i, result in super().run(sites, call, messages, inboxes):
            self._validator.check_reply(call, result.reply)
            yield i, result

    def evaluate(
        self, sites: Sites, messages: Mapping[int, Message], final: bool
    ) -> Iterator[tuple[int, Evaluation]]:
        for message in messages.values():
            self._validator.check_evaluation_message(message.content)
        yield from super().evaluate(sites, messages, final)


@dataclass(frozen=True, kw_only=True)
class _ValidatedRun(SimulatedRun):
    """A run whose messages are validated."""

    def engine(self) -> Engine:
        return LoopEngine(SiteStore(self.algorithm, self.parties, self.root), _Validating(self))


def _main() -> None:
    """In a new process: repeat the run and resume the interrupted one. Prints the errors as
    JSON.
    """
    algorithm, model, folder = sys.argv[1:]
    check = MethodCheck(algorithm, Path(folder), model)
    errors = {}
    # The resumed run comes first: the other one would leave values behind in the module.
    for name, run in {"resumed": check.resume, "repeated": check.run}.items():
        try:
            run(name)
        except Exception as why:
            errors[name] = describe(why)
    print(json.dumps(errors))


def check_method(algorithm: str, model: str = MODEL) -> Iterator[Check]:
    """Check a method, one property after the other.

    Raises UsageError if there is no such method, or if it does not accept the model.
    """
    with TemporaryDirectory(prefix="comity-check-") as folder:
        yield from MethodCheck(algorithm, Path(folder), model).all()
