"""The server of a run between sites: it has no data, conducts the rounds, and keeps the run's
folder.

What a researcher orders is a run's settings and its name. Sites introduce themselves, or refuse
with a reason; what they said is kept as `parties.json`. A run whose server was stopped is ordered
again by its name, and goes on from its last checkpoint; if it had ended, sites that have not heard
of that do so.
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from comity.algorithms.dp import Dp
from comity.base.samples import combine
from comity.core.wrapper import chain
from comity.data.preparation import Schema
from comity.deploy.data import DATA, schema_mark
from comity.deploy.engine import SitesEngine, told
from comity.deploy.messages import (
    ANSWERED,
    Begin,
    Done,
    End,
    Failed,
    Introduce,
    Introduced,
    SignedKey,
    pack,
    unpack,
)
from comity.deploy.site_store import run_secret
from comity.deploy.transport import Aborted, Transport
from comity.errors import ComityError, UsageError
from comity.metrics.metrics import check_fits
from comity.runs.noise_calibration import uncalibrated_wrappers
from comity.runs import config
from comity.runs.checkpoint import write_atomically
from comity.runs.config import Experiment
from comity.runs.context import PartyInfo, PartyInfos, RunContext
from comity.runs.environment import environment
from comity.runs.folder import RunFolder
from comity.runs.loop import execute
from comity.runs.planned_absences import planned
from comity.runs.run import at_work
from comity.runs.server_run import Progress, Quiet, ServerRun, judged_by
from comity.runs.server_side import resolve_method
from comity.track import Trackers

SCHEMA = "schema.json"
RUNS = "runs"
FAILURE = "failure.txt"
"""Why a run could not go on, in the server's folder of it."""
FAILED_ENDINGS = "failed_endings"
"""In the summary of a run between sites: where its end failed, and why, by the site's name."""
NOT_CONNECTED = "it is not connected."
NO_ANSWER = "it did not answer."
UNEXPECTED = "it answered something else than it was asked."
MOST_BYTES = 1 << 34
MOST_SIDES, MOST_VALUES = 8, 1 << 28
"""How many sides a sample may have, and how many values."""


@dataclass(frozen=True)
class JobRequest:
    """What a researcher asks for."""

    run: str
    settings: dict[str, Any]
    sites: tuple[str, ...] = ()
    """Who is to take part; nobody in particular: whoever is there."""
    deadline: float = 600.0
    """Seconds that a site has for an answer."""

    @staticmethod
    def read(told: Mapping[str, Any]) -> JobRequest:
        """An order as it was submitted."""
        try:
            made = JobRequest(**{**told, "sites": tuple(told.get("sites", ()))})
            if not (made.run.isalnum() and len(made.run) <= 64 and made.deadline > 0):
                raise ValueError
        except (TypeError, ValueError, AttributeError) as why:
            raise UsageError(
                "What was ordered is no run: it needs a name of letters and digits, settings and a"
                " deadline."
            ) from why
        return made


def serve(
    transport: Transport, order: Mapping[str, Any], folder: Path, progress: Progress | None = None
) -> dict[str, Any] | None:
    """Conduct the run that was ordered; its summary, or None if it failed, and then its folder says
    why, or was ended.
    """
    asked = JobRequest.read(order)
    there = folder / RUNS / asked.run
    there.mkdir(parents=True, exist_ok=True)
    (there / FAILURE).unlink(missing_ok=True)
    try:
        return conduct(transport, asked, folder, progress or Quiet())
    except Aborted:
        return None  # it did not fail: whoever ended the job may order the run again
    except ComityError as why:
        write_atomically(there / FAILURE, f"{why}\n")
    except Exception as why:
        write_atomically(
            there / FAILURE,
            f"The server failed ({type(why).__name__}: {why}).\n\n{traceback.format_exc()}",
        )
    return None


def conduct(
    transport: Transport, order: JobRequest, folder: Path, progress: Progress
) -> dict[str, Any]:
    """The run itself."""
    run = RunFolder(folder / RUNS / order.run)
    begun = run.begun
    experiment = run.read_experiment() if begun else settled(config.experiment(order.settings))
    schema = folder / SCHEMA
    mark = schema_mark(Schema.read(schema)) if schema.exists() else ""
    known = read_parties(run) if begun else None
    if known:
        _check_settings(order, experiment, next(iter(known.values())).classes)
    wanted = tuple(known) if known else order.sites
    answers, refused = introduced(transport, order, experiment, mark, wanted)
    everybody = known or answers
    if not everybody:
        raise ComityError(
            "No site takes part. " + " ".join(f"{name}: {why}" for name, why in refused.items())
        )
    for name in [
        name
        for name, one in answers.items()
        if (one.said, one.digest) != (everybody[name].said, everybody[name].digest)
    ]:
        del answers[name]
        refused[name] = "it says something else of itself than when the run began."
    if not answers:
        raise ComityError(
            "No site is there. " + " ".join(f"{name}: {why}" for name, why in refused.items())
        )
    experiment = judged_by(experiment, next(iter(everybody.values())).classes)
    server_run = server_run_of(
        experiment, everybody, run.read_plan() if begun else None, run_secret(folder, order.run)
    )
    _begin_everywhere(transport, order, answers, everybody)
    with at_work(run):
        summary = run.read_summary()
        if summary is not None and not summary.get(FAILED_ENDINGS):
            _tell(transport, order, answers, End(order.run, summary["rounds"], True))
            return summary
        run.summary.unlink(missing_ok=True)  # its endings are repeated
        if not begun:
            _write_beginning(run, server_run, everybody)
        engine = SitesEngine(transport, server_run, order.run, order.deadline, MOST_BYTES)
        warnings = [f"{name} takes no part: {why}" for name, why in refused.items()]

        def end_everywhere(found: Mapping[str, Any]) -> dict[str, Any]:
            failures = _end_everywhere(transport, order, answers, found["rounds"])
            failures |= {name: why for name, why in refused.items() if name in everybody}
            return {
                FAILED_ENDINGS: {name: failures[name] for name in everybody if name in failures}
            }

        try:
            return execute(
                server_run,
                lambda: engine,
                run,
                progress,
                Trackers(),
                resume=begun,
                warnings=warnings,
                conclude=end_everywhere,
            )
        except Aborted:
            raise  # nobody can be told
        except BaseException:
            _tell(transport, order, everybody, End(order.run, 0, False))
            raise


def _check_settings(order: JobRequest, begun: Experiment, classes: int) -> None:
    """Refuse to go on with a run that was begun with other settings than are ordered now; without
    any it goes on as it is.
    """
    if order.settings and judged_by(settled(config.experiment(order.settings)), classes) != begun:
        raise UsageError(f"Run {order.run} was begun with other settings.")


def settled(experiment: Experiment) -> Experiment:
    """The settings of a run between sites: where it is computed, and that each site is a party, is
    no choice.
    """
    return experiment.but(
        engine="flare", workers=None, device="cpu", data=DATA, partition="natural", parties=None
    )


def server_run_of(
    experiment: Experiment, everybody: Mapping[str, Introduced], plan: str | None, secret: bytes
) -> ServerRun:
    """The run as the server knows it, of what sites said."""
    first = next(iter(everybody.values()))
    check_fits(experiment.metric, first.classes)
    told = PartyInfos(
        {name: one.said for name, one in everybody.items()},
        tuple(first.shape),
        first.classes,
        tuple(first.black),
        class_names=tuple(first.class_names),
    )
    common = RunContext(experiment, told)
    algorithm, info = resolve_method(common)
    if open_ := uncalibrated_wrappers(algorithm):
        who = open_[0]
        raise UsageError(
            f"Between sites {who}'s noise is given as a number, as in {who}(noise=1.1): comity plan"
            " finds it for a budget."
        )
    if experiment.participation < 1 and any(
        isinstance(one, Dp) and one.level == "party" and one.amplify for one in chain(algorithm)
    ):
        raise UsageError(
            "Between sites everybody can compute who is drawn for a round: give dp amplify=false."
        )
    made = ServerRun(
        experiment,
        common,
        algorithm,
        info,
        planned(experiment.absent, experiment.seed, told.names, plan),
        secret,
    )
    made.check_judged()
    if not made.judged("test"):
        raise UsageError(
            "No site would tell a figure of its test samples: all have too few for that, or none by"
            " this metric."
        )
    return made


def introduced(
    transport: Transport,
    order: JobRequest,
    experiment: Experiment,
    schema: str,
    wanted: tuple[str, ...],
) -> tuple[dict[str, Introduced], dict[str, str]]:
    """Who takes part, by name in order, and who does not and why. All must agree on what a sample
    is.
    """
    names = [name for name in wanted or transport.names if name in transport.names]
    settings = json.dumps(experiment.model_dump(mode="json", exclude_none=True))
    asked = pack(Introduce(order.run, settings, version("comity"), schema))
    found: dict[str, Introduced] = {}
    refused = {name: NOT_CONNECTED for name in wanted if name not in names}
    for name, answer in transport.ask(dict.fromkeys(names, asked), order.deadline):
        said = _read(answer)
        if not isinstance(said, Introduced):
            refused[name] = said if isinstance(said, str) else UNEXPECTED
        elif odd := _odd(said):
            refused[name] = odd
        else:
            found[name] = said
    there = {name: found[name] for name in sorted(found)}
    alike = {
        (tuple(one.shape), one.classes, tuple(one.class_names), tuple(one.black))
        for one in there.values()
    }
    if len(alike) > 1:
        kinds = "; ".join(
            f"{name}: samples of shape {one.shape}, {one.classes} classes"
            for name, one in there.items()
        )
        raise UsageError(f"The sites' data do not fit together: {kinds}.")
    return there, refused


def _read(answer: bytes | None) -> Any:
    """The head of a site's answer, or why there is none."""
    if answer is None:
        return NO_ANSWER
    try:
        head, _ = unpack(answer, ANSWERED, MOST_BYTES)
    except ComityError as why:
        return str(why)
    return told(head.why) if isinstance(head, Failed) else head


def _odd(one: Introduced) -> str:
    """What cannot be so of what a site says of itself; nothing if all can."""
    said = one.said
    if said.train < 1 or said.validation < 0 or said.test < 0:
        return "it says that it has no samples to learn from, or fewer than none of others."
    if said.counts is not None and (
        len(said.counts) != one.classes or min(said.counts, default=0) < 0
    ):
        return "the counts that it tells of its classes are none."
    if (
        one.classes < 0
        or len(one.shape) > MOST_SIDES
        or not all(1 <= side <= MOST_VALUES for side in one.shape)
    ):
        return "its samples are of a shape that nothing can have."
    return "" if math.prod(one.shape) <= MOST_VALUES else "its samples are too large."


def _begin_everywhere(
    transport: Transport,
    order: JobRequest,
    there: Mapping[str, Introduced],
    everybody: Mapping[str, Introduced],
) -> None:
    """Tell sites who takes part. All must agree to that, or the run does not begin.

    For a site that was there when the run began, and is not now, parcels are sealed by the key that
    it had: nobody has it now.
    """
    signed_keys = {
        name: one.signed_key for name, one in {**everybody, **there}.items() if one.signed_key
    }
    head = Begin(order.run, {name: one.said for name, one in everybody.items()}, signed_keys)
    for name, answer in transport.ask(dict.fromkeys(there, pack(head)), order.deadline):
        if answer is None:
            continue  # it is not heard, then
        try:
            said, _ = unpack(answer, ANSWERED, MOST_BYTES)
        except ComityError as why:
            said = Failed(str(why))
        if not isinstance(said, Done):
            raise ComityError(
                f"{name} does not begin:"
                f" {told(said.why) if isinstance(said, Failed) else 'it answered something else.'}"
            )


def _tell(transport: Transport, order: JobRequest, everybody: Iterable[str], head: Any) -> None:
    for _ in transport.ask(
        {name: pack(head) for name in everybody if name in transport.names}, order.deadline
    ):
        pass  # who does not hear of it finds out when it is asked for another run


def _end_everywhere(
    transport: Transport, order: JobRequest, sites: Iterable[str], rounds: int
) -> dict[str, str]:
    """End the run at these sites; why that failed, by the site's name."""
    head = pack(End(order.run, rounds, True))
    failures = {name: NOT_CONNECTED for name in sites if name not in transport.names}
    connected = [name for name in sites if name not in failures]
    for name, answer in transport.ask(dict.fromkeys(connected, head), order.deadline):
        answer_head = _read(answer)
        if not isinstance(answer_head, Done):
            failures[name] = answer_head if isinstance(answer_head, str) else UNEXPECTED
    return failures


def _write_beginning(
    run: RunFolder, server_run: ServerRun, everybody: Mapping[str, Introduced]
) -> None:
    """What a run's folder begins with: settings, and what sites said of themselves in place of a
    split.
    """
    settings = config.write(server_run.experiment)
    parties = json.dumps({name: asdict(one) for name, one in everybody.items()}, indent=2) + "\n"
    fingerprint = combine((name, one.digest) for name, one in everybody.items())
    plan = server_run.absent.text
    run.begin(
        settings,
        environment(settings, fingerprint, parties=parties, plan=plan),
        parties=parties,
        plan=plan,
    )


def read_parties(run: RunFolder) -> dict[str, Introduced]:
    """What sites said of themselves when a run began."""
    try:
        told = run.read_parties()
        return {name: _introduced(**one) for name, one in told.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as why:
        raise ComityError(f"{run.parties} cannot be read: it is damaged.") from why


def _introduced(said: dict[str, Any], signed_key: dict[str, Any] | None, **rest: Any) -> Introduced:
    return Introduced(
        PartyInfo(**said), signed_key=SignedKey(**signed_key) if signed_key else None, **rest
    )
