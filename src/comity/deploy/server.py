"""The server of a run between sites: it has no data, conducts the rounds, and writes the run's
folder.

A researcher submits the settings of a run and its name. Sites describe themselves, or refuse with a
reason; the descriptions are stored as `parties.json`. A run whose server was stopped is submitted
again under its name, and continues from its last checkpoint. If it had ended already, the sites are
told so.
"""

from __future__ import annotations

import json
import math
import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from comity.algorithms.dp import Dp
from comity.base.samples import combine
from comity.core.wrapper import chain
from comity.data.preparation import Schema
from comity.deploy.data import SiteSplit, schema_digest, site_settings
from comity.deploy.engine import SitesEngine, one_line
from comity.deploy.key_exchange import Identity
from comity.deploy.messages import (
    REPLIES,
    Begin,
    Done,
    End,
    Failed,
    Introduce,
    Introduced,
    SignedKey,
    TakeWeights,
    pack,
    unpack,
)
from comity.deploy.secure_server import Limits
from comity.deploy.secure_terms import (
    check_can_be_secure,
    check_only_floating,
    least_sites,
    strictest_threshold,
)
from comity.deploy.session import AuthenticatedTransport
from comity.deploy.site_store import run_secret
from comity.deploy.transport import Aborted, Transport
from comity.errors import ComityError, UsageError
from comity.metrics.metrics import check_fits
from comity.models.referenced_weights import INITIAL_WEIGHTS, WeightsReference
from comity.names import display_name
from comity.runs import config
from comity.runs.config import Experiment
from comity.runs.context import PartyInfo, PartyInfos, RunContext
from comity.runs.environment import environment
from comity.runs.folder import RunFolder
from comity.runs.loop import execute
from comity.runs.noise_calibration import undecided
from comity.runs.planned_absences import read_plan
from comity.runs.run import prepared_process
from comity.runs.server_run import Progress, Quiet, ServerRun, judged_by
from comity.runs.server_side import resolve_method
from comity.safe_files import write_atomically
from comity.track import Trackers

SCHEMA = "schema.json"
RUNS, PROFILES = "runs", "profiles"
KIT = "server"  # the server's startup kit in the operator's folder
FAILURE = "failure.txt"
"""The file in the server's folder of a run that says why the run could not continue."""
REFUSED, WRONG_SETTINGS = "refused", "wrong settings"
"""The second line of that file, if the sites refused the run or its settings are wrong."""
SUMS = "sums"
"""The folder in the server's folder of a run with sums of replies that no checkpoint contains."""
FAILED_ENDINGS = "failed_endings"
"""The key in the summary of a run between sites that says, by site, why the end failed there."""
NOT_CONNECTED = "it is not connected."
NO_ANSWER = "it did not answer."
UNEXPECTED = "it answered something else than it was asked."
MOST_BYTES = 1 << 34
MOST_SIDES, MOST_VALUES = 8, 1 << 28
"""The largest number of dimensions of a sample, and of values in it."""


class SitesRefused(ComityError):
    """The sites refuse a run, or are not there. The same run may begin once that has changed."""


@dataclass(frozen=True)
class JobRequest:
    """What a researcher submits."""

    run: str
    settings: dict[str, Any] = field(default_factory=dict)
    sites: tuple[str, ...] = ()
    """The sites that take part; empty for all that are connected."""
    profile: bool = False
    """Whether the job asks for a profile of the sites' data, instead of a run."""
    deadline: float = 600.0
    """Seconds that a site has for a reply."""

    @staticmethod
    def read(content: Mapping[str, Any]) -> JobRequest:
        """Check and convert the content of a submitted job."""
        try:
            request = JobRequest(**{**content, "sites": tuple(content.get("sites", ()))})
            if not (request.run.isalnum() and len(request.run) <= 64 and request.deadline > 0):
                raise ValueError
        except (TypeError, ValueError, AttributeError) as why:
            raise UsageError(
                "The job is no run: it needs a name of letters and digits, settings and a deadline."
            ) from why
        return request


def serve(
    transport: Transport,
    order: Mapping[str, Any],
    folder: Path,
    progress: Progress | None = None,
    identity: Identity | None = None,
) -> dict[str, Any] | None:
    """Conduct the run of a submitted job, and return its summary; or collect a profile of the
    sites' data, if the job asks for one.

    Returns None if the job was aborted, or if the run failed; in the second case `failure.txt` in
    the run's folder says why.

    Arguments:
        transport: carries requests to the sites
        order: the content of the job, as `JobRequest.read` expects it
        folder: the operator's folder
        progress: is told about rounds
        identity: the server's certificate and key, with which its requests are authenticated;
            default: those of the server's startup kit
    """
    request = JobRequest.read(order)
    startup = folder / KIT / "startup"
    if identity is None and startup.exists():
        identity = Identity.read(startup, "server", folder)
    if identity is not None:
        transport = AuthenticatedTransport(transport, identity, request.run)
    run = folder / (PROFILES if request.profile else RUNS) / request.run
    run.mkdir(parents=True, exist_ok=True)
    (run / FAILURE).unlink(missing_ok=True)
    try:
        if request.profile:
            from comity.deploy.profile_server import collect_profile

            return collect_profile(transport, request, folder, run)
        return conduct(transport, request, folder, progress or Quiet())
    except Aborted:
        return None  # no failure: the run can be submitted again
    except SitesRefused as why:
        write_atomically(run / FAILURE, f"{why}\n{REFUSED}\n")
    except UsageError as why:
        write_atomically(run / FAILURE, f"{why}\n{WRONG_SETTINGS}\n")
    except ComityError as why:
        write_atomically(run / FAILURE, f"{why}\n")
    except Exception as why:
        write_atomically(
            run / FAILURE,
            f"The server failed ({type(why).__name__}: {why}).\n\n{traceback.format_exc()}",
        )
    return None


def conduct(
    transport: Transport, order: JobRequest, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Conduct a run, from its beginning or from its last checkpoint, and return its summary."""
    run = RunFolder(folder / RUNS / order.run)
    is_resumed = run.has_run
    experiment = (
        run.read_experiment() if is_resumed else site_settings(config.experiment(order.settings))
    )
    schema_file = folder / SCHEMA
    schema = schema_digest(Schema.read(schema_file)) if schema_file.exists() else ""
    earlier_parties = read_parties(run) if is_resumed else None
    if earlier_parties:
        _check_settings(order, experiment, next(iter(earlier_parties.values())).classes)
    names = tuple(earlier_parties) if earlier_parties else order.sites
    connected, refusals = introduce(transport, order, experiment, schema, names)
    parties = earlier_parties or connected
    if not parties:
        raise SitesRefused(f"No site takes part. {_list_reasons(refusals)}")
    _drop_changed(connected, parties, refusals)
    if not connected:
        raise SitesRefused(f"No site is there. {_list_reasons(refusals)}")
    experiment = judged_by(experiment, next(iter(parties.values())).classes)
    server_run = server_run_of(
        run,
        experiment,
        parties,
        run.read_plan() if is_resumed else None,
        run_secret(folder, order.run),
    )
    secure = secure_limits(server_run, {**parties, **connected})
    _send_weights(transport, order, run, experiment, connected)
    _begin_at_sites(transport, order, connected, parties)
    with prepared_process(run):
        summary = run.read_summary()
        if summary is not None and not summary.get(FAILED_ENDINGS):
            _send_to_all(transport, order, connected, End(order.run, summary["rounds"], True))
            return summary
        run.summary.unlink(missing_ok=True)  # the end is repeated at all sites
        if not is_resumed:
            _write_first_files(run, server_run, parties)
        engine = SitesEngine(
            transport, server_run, order.run, order.deadline, MOST_BYTES, secure, run.path / SUMS
        )
        warnings = [
            f"{name} takes no part: {re.sub(f'^{re.escape(name)} ', 'it ', why)}"
            for name, why in sorted(refusals.items())
        ]
        warnings += _other_splits(experiment, connected)
        warnings += _other_versions(connected)
        warnings += [s.text for s in server_run.context.initial_weights if s.is_partial]

        def end_run(summary: Mapping[str, Any]) -> dict[str, Any]:
            failures = _end_at_sites(transport, order, connected, summary["rounds"])
            failures |= {name: why for name, why in refusals.items() if name in parties}
            return {FAILED_ENDINGS: {name: failures[name] for name in parties if name in failures}}

        try:
            return execute(
                server_run,
                lambda: engine,
                run,
                progress,
                Trackers(),
                resume=is_resumed,
                warnings=warnings,
                conclude=end_run,
            )
        except Aborted:
            raise  # no message reaches the sites
        except BaseException:
            _send_to_all(transport, order, parties, End(order.run, 0, False))
            raise


def _other_splits(experiment: Experiment, sites: Mapping[str, Introduced]) -> list[str]:
    """Warnings about sites that split their records otherwise than the settings say."""
    requested = str(SiteSplit.of(experiment))
    return [
        f"{name} keeps the split of its first run on these data: {site.split} instead of"
        f" {requested}."
        for name, site in sites.items()
        if site.split and site.split != requested
    ]


def _other_versions(sites: Mapping[str, Introduced]) -> list[str]:
    """Warnings about sites with another version of Comity, which speaks the same protocol."""
    here = version("comity")
    return [
        f"{name} has Comity {site.comity}, the server {here}: they understand each other, but"
        " results may differ from those of a single version."
        for name, site in sites.items()
        if site.comity != here
    ]


def _drop_changed(
    connected: dict[str, Introduced], before: Mapping[str, Introduced], refusals: dict[str, str]
) -> None:
    """Move sites that describe themselves otherwise than before from `connected` to `refusals`."""
    for name in list(connected):
        now, then = connected[name], before[name]
        if (now.said, now.digest) != (then.said, then.digest):
            del connected[name]
            refusals[name] = "it says something else of itself than when the run began."


def _list_reasons(refusals: Mapping[str, str]) -> str:
    """Why sites take no part. A site that gives a reason itself has its name in it."""
    return " ".join(
        why if why.startswith(f"{name} ") else f"{name}: {why}"
        for name, why in sorted(refusals.items())
    )


def _check_settings(order: JobRequest, stored: Experiment, classes: int) -> None:
    """Refuse to continue a run with other settings than it began with.

    A job without settings continues the run as it is.
    """
    if not order.settings:
        return
    if judged_by(site_settings(config.experiment(order.settings)), classes) != stored:
        raise UsageError(f"Run {order.run} was begun with other settings.")


def server_run_of(
    run: RunFolder,
    experiment: Experiment,
    sites: Mapping[str, Introduced],
    plan: str | None,
    secret: bytes,
) -> ServerRun:
    """The run as the server knows it.

    Arguments:
        run: the server's folder of the run, with its initial weights if they are sent to sites
        experiment: the settings
        sites: the descriptions of all sites that take part, by name
        plan: the planned absences of a run that was begun
        secret: the server's secret for noise
    """
    first = next(iter(sites.values()))
    check_fits(experiment.metric, first.classes)
    party_infos = PartyInfos(
        {name: site.said for name, site in sites.items()},
        tuple(first.shape),
        first.classes,
        tuple(first.black),
        class_names=tuple(first.class_names),
    )
    common = RunContext(experiment, party_infos, run_folder=run.path)
    algorithm, info = resolve_method(common)
    if uncalibrated := undecided(algorithm):
        wrapper = uncalibrated[0]
        raise UsageError(
            f"Between sites {wrapper}'s noise is given as a number, as in {wrapper}(noise=1.1):"
            " comity plan finds it for a budget."
        )
    if experiment.participation < 1 and any(
        isinstance(layer, Dp) and layer.level == "party" and layer.amplify
        for layer in chain(algorithm)
    ):
        raise UsageError(
            "Between sites everybody can compute who is drawn for a round: give dp amplify=false."
        )
    server_run = ServerRun(
        experiment,
        common,
        algorithm,
        info,
        read_plan(experiment.absent, experiment.seed, party_infos.names, plan),
        secret,
    )
    server_run.check_metric()
    if not server_run.parties_with_metric("test"):
        raise UsageError(
            "No site would send a score of its test samples: all have too few for that, or none by"
            " this metric."
        )
    return server_run


def secure_limits(server_run: ServerRun, sites: Mapping[str, Introduced]) -> Limits | None:
    """The terms of secure aggregation that all sites of a run accept; None without it.

    Raises `UsageError` if the method cannot have it, or if there are too few sites.
    """
    experiment = server_run.experiment
    if not experiment.secure_aggregation:
        return None
    check_can_be_secure(server_run.algorithm, display_name(experiment.algorithm))
    check_only_floating(server_run.algorithm, server_run.info)
    names = server_run.info.names
    colluders = max(sites[name].colluders for name in names)
    threshold = strictest_threshold(
        len(names), [sites[name].threshold for name in names], colluders
    )
    if threshold > len(names):
        raise UsageError(
            f"Secure aggregation of {len(names)} sites cannot withstand {colluders} colluders, as a"
            f" site requires: at least {least_sites(colluders)} sites must take part."
        )
    return Limits(threshold, colluders)


def introduce(
    transport: Transport,
    order: JobRequest,
    experiment: Experiment,
    schema: str,
    names: tuple[str, ...],
) -> tuple[dict[str, Introduced], dict[str, str]]:
    """Ask sites for their descriptions of themselves.

    Arguments:
        transport: carries the requests
        order: the submitted job
        experiment: the settings of the run
        schema: the digest of the common schema
        names: the sites to ask; empty for all that are connected

    Returns the descriptions, by name in alphabetical order, and why the other sites take no part.
    Raises `UsageError` if samples of the sites differ in shape or classes.
    """
    called_names = [name for name in names or transport.names if name in transport.names]
    settings = json.dumps(experiment.model_dump(mode="json", exclude_none=True))
    revoked = transport.revoked if isinstance(transport, AuthenticatedTransport) else ""
    request = pack(Introduce(order.run, settings, version("comity"), schema, revoked))
    descriptions: dict[str, Introduced] = {}
    refusals = {name: NOT_CONNECTED for name in names if name not in called_names}
    for name, reply in transport.ask(dict.fromkeys(called_names, request), order.deadline):
        head = read_head(reply)
        if not isinstance(head, Introduced):
            refusals[name] = head if isinstance(head, str) else UNEXPECTED
        elif fault := _find_fault(head) or _find_wrong_certificate(transport, name, head):
            refusals[name] = fault
        else:
            descriptions[name] = head
    descriptions = {name: descriptions[name] for name in sorted(descriptions)}
    forms = {
        (tuple(site.shape), site.classes, tuple(site.class_names), tuple(site.black))
        for site in descriptions.values()
    }
    if len(forms) > 1:
        kinds = "; ".join(
            f"{name}: samples of shape {site.shape}, {site.classes} classes"
            for name, site in descriptions.items()
        )
        raise UsageError(f"The sites' data do not fit together: {kinds}.")
    return descriptions, refusals


def _find_wrong_certificate(transport: Transport, name: str, site: Introduced) -> str:
    """Why a site's certificate is not accepted; empty if it is, or if requests need none."""
    if not isinstance(transport, AuthenticatedTransport):
        return ""
    return transport.find_fault(name, site.signed_key)


def read_head(reply: bytes | None) -> Any:
    """The head of a site's reply; a text with the reason if there is none."""
    if reply is None:
        return NO_ANSWER
    try:
        head, _ = unpack(reply, REPLIES, MOST_BYTES)
    except ComityError as why:
        return str(why)
    return one_line(head.why) if isinstance(head, Failed) else head


def _find_fault(site: Introduced) -> str:
    """What is impossible in a site's description of itself; empty if nothing is."""
    info = site.said
    if info.train < 1 or info.validation < 0 or info.test < 0:
        return "it says that it has no training samples, or a negative number of other samples."
    if not 0 <= site.threshold <= 1 or site.colluders < 0:
        return "its limits of secure aggregation are impossible."
    if info.patients is not None and not 1 <= info.patients <= info.train:
        return "its number of patients is impossible."
    if info.counts is not None and (
        len(info.counts) != site.classes or min(info.counts, default=0) < 0
    ):
        return "its class counts are impossible."
    if (
        site.classes < 0
        or len(site.shape) > MOST_SIDES
        or not all(1 <= side <= MOST_VALUES for side in site.shape)
    ):
        return "the shape of its samples is impossible."
    return "" if math.prod(site.shape) <= MOST_VALUES else "its samples are too large."


def _send_weights(
    transport: Transport,
    order: JobRequest,
    run: RunFolder,
    experiment: Experiment,
    connected: Mapping[str, Introduced],
) -> None:
    """Send the initial weights to the sites that do not have them yet. If one refuses, the run does
    not begin.
    """
    names = [name for name, site in connected.items() if site.needs_weights]
    reference = WeightsReference.read(experiment.weights)
    if reference is None or not names:
        return
    request = pack(TakeWeights(order.run), reference.read_file(run.path / INITIAL_WEIGHTS))
    for name, reply in transport.ask(dict.fromkeys(names, request), order.deadline):
        head = read_head(reply)
        if not isinstance(head, Done):
            raise SitesRefused(
                f"{name} did not take the initial weights:"
                f" {head if isinstance(head, str) else UNEXPECTED}"
            )


def _begin_at_sites(
    transport: Transport,
    order: JobRequest,
    connected: Mapping[str, Introduced],
    parties: Mapping[str, Introduced],
) -> None:
    """Send the descriptions of all parties to the connected sites. If one refuses, the run does not
    begin.

    For a site that took part before and is not connected now, messages are sealed with the key that
    it had then. Nobody has the private half of that key any more.
    """
    signed_keys = {
        name: site.signed_key for name, site in {**parties, **connected}.items() if site.signed_key
    }
    head = Begin(order.run, {name: site.said for name, site in parties.items()}, signed_keys)
    for name, reply in transport.ask(dict.fromkeys(connected, pack(head)), order.deadline):
        if reply is None:
            continue  # it counts as absent from the rounds
        try:
            answer, _ = unpack(reply, REPLIES, MOST_BYTES)
        except ComityError as why:
            answer = Failed(str(why))
        if not isinstance(answer, Done):
            reason = (
                one_line(answer.why)
                if isinstance(answer, Failed)
                else "it answered something else."
            )
            raise SitesRefused(f"{name} does not begin: {reason}")


def _send_to_all(transport: Transport, order: JobRequest, names: Iterable[str], head: Any) -> None:
    """Send a head to the connected ones of these sites, whatever they reply."""
    requests = {name: pack(head) for name in names if name in transport.names}
    for _ in transport.ask(requests, order.deadline):
        pass  # a site that does not get it finds out with the next run


def _end_at_sites(
    transport: Transport, order: JobRequest, sites: Iterable[str], rounds: int
) -> dict[str, str]:
    """End the run at these sites; returns, by site, why that failed."""
    request = pack(End(order.run, rounds, True))
    failures = {name: NOT_CONNECTED for name in sites if name not in transport.names}
    connected = [name for name in sites if name not in failures]
    for name, reply in transport.ask(dict.fromkeys(connected, request), order.deadline):
        head = read_head(reply)
        if not isinstance(head, Done):
            failures[name] = head if isinstance(head, str) else UNEXPECTED
    return failures


def _write_first_files(
    run: RunFolder, server_run: ServerRun, sites: Mapping[str, Introduced]
) -> None:
    """Write the first files of a run's folder: the settings, and the descriptions of the sites in
    place of a split.
    """
    settings = config.write(server_run.experiment)
    parties = json.dumps({name: asdict(site) for name, site in sites.items()}, indent=2) + "\n"
    fingerprint = combine((name, site.digest) for name, site in sites.items())
    plan = server_run.absences.text
    run.begin(
        settings,
        environment(settings, fingerprint, parties=parties, plan=plan),
        parties=parties,
        plan=plan,
    )


def read_parties(run: RunFolder) -> dict[str, Introduced]:
    """The descriptions of the sites when a run began, by name."""
    try:
        return {name: _introduced(site) for name, site in run.read_parties().items()}
    except (ValueError, TypeError, KeyError, AttributeError) as why:
        raise ComityError(f"{run.parties} cannot be read: it is damaged.") from why


def _introduced(content: Mapping[str, Any]) -> Introduced:
    key = content["signed_key"]
    parts = {"said": PartyInfo(**content["said"]), "signed_key": SignedKey(**key) if key else None}
    return Introduced(**{**content, **parts})
