"""Reads the folder of a finished run: that of a simulation, or that of a run between sites, at the
server or at a site.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from comity.checksums import UNREADABLE, read_json
from comity.core.release import Unit
from comity.data import Federation
from comity.data.preparation import Schema, Unusable
from comity.deploy.data import SiteSplit, fixed_split
from comity.deploy.flare.startup_kits import INVITE, Invite
from comity.deploy.job_submission import SubmittedJob, was_submitted
from comity.deploy.policy import SitePolicy
from comity.deploy.release_ledger import DELTA, ReleaseLedger
from comity.deploy.secure_server import Limits
from comity.deploy.secure_terms import strictest_threshold
from comity.deploy.sent_ledger import SentLedger
from comity.deploy.server import SCHEMA, read_parties, secure_limits, server_run_of
from comity.deploy.site_profile import PROFILE
from comity.deploy.site_setup import build_site
from comity.deploy.site_store import ROSTER, read_roster, runs_of
from comity.errors import ComityError, UsageError, unknown
from comity.metrics.metrics import count_by_class
from comity.models import CustomModel
from comity.names import display_name
from comity.privacy.account import PrivacyCharge
from comity.privacy.composition import epsilon, weakest_unit
from comity.runs.build import SimulatedRun
from comity.runs.context import PartyInfo
from comity.runs.folder import RunFolder
from comity.runs.run import reopen
from comity.runs.server_run import ServerRun
from comity.runs.trust import check, code_of
from comity.text import shell_line
from comity.wire.ledger import EVERYBODY, SERVER, Charge

Place = Literal["simulation", "server", "site"]
AUDIT = "audit.json"


@dataclass(frozen=True)
class RunTotal:
    """What one run at a site adds to the sum, by the ledgers of the site."""

    name: str
    method: str
    """Empty if the folder of the run was deleted."""
    bytes: int
    evaluations: int
    """How often figures of validation and test records left."""
    epsilon: float
    """ε of its releases at `DELTA`; infinite if anything left without noise."""


@dataclass(frozen=True)
class AllRuns:
    """What all runs at a site add up to, by the ledgers of the site."""

    runs: tuple[RunTotal, ...]
    bytes: int
    """All bytes that left."""
    epsilon: float
    """ε of all releases at `DELTA`; infinite if anything left without noise."""
    unit: Unit
    """What all of them protect."""
    evaluations: int
    """How often figures of validation and test records left."""
    policy: SitePolicy

    @staticmethod
    def at_site(folder: Path, policy: SitePolicy) -> AllRuns:
        """Read the ledgers of a site's folder."""
        ledger, sent_ledger = ReleaseLedger(folder), SentLedger(folder, policy.name)
        rows, sent_bytes = ledger.rows(), sent_ledger.bytes_by_run()
        methods = {
            run.path.name: display_name(run.read_experiment().algorithm) for run in runs_of(folder)
        }
        names = dict.fromkeys((*methods, *sent_bytes, *(row.run for row in rows)))
        names.pop(PROFILE, None)  # charged under a name of its own, and no run
        unbounded = {row.run for row in rows if row.charge.to_release() is None}
        history = ledger.history()
        return AllRuns(
            tuple(
                RunTotal(
                    name,
                    methods.get(name, ""),
                    sent_bytes.get(name, 0),
                    sent_ledger.evaluations(name),
                    math.inf if name in unbounded else epsilon(ledger.history(of=name), DELTA),
                )
                for name in names
            ),
            sent_ledger.total(),
            math.inf if unbounded else epsilon(history, DELTA),
            weakest_unit(history),
            sent_ledger.evaluations(),
            policy,
        )


@dataclass(frozen=True)
class Source:
    """What a run's folder contains about one party."""

    party: str
    place: Place
    run: RunFolder
    server_run: ServerRun
    summary: dict[str, Any]
    sent_rows: list[Charge]
    """The rows of the ledger for messages of the party."""
    privacy_rows: list[PrivacyCharge]
    """The rows of privacy.csv about the party."""
    audit: dict[str, Any] | None
    """The results of an audit of this run, if there was one."""
    class_counts: tuple[int, ...] | None = None
    """The number of the party's training records of each class; None if the folder does not show
    it.
    """
    schema: Schema | None = None
    """The schema that the parties agreed on, if the data are a table and the folder shows it."""
    is_table: bool | None = None
    """Whether the data are a table; None if the folder does not show it."""
    operator: str = ""
    """Who runs the server; empty if this is not known."""
    all_runs: AllRuns | None = None
    """What all runs at this site add up to, in the folder of a site."""
    secure: Limits | None = None
    """The terms of secure aggregation; None without it. In the folder of a site, they are the least
    ones that its policy accepts.
    """

    @property
    def info(self) -> PartyInfo:
        """The party's description of itself."""
        return self.server_run.context.party_infos.parties[self.party]

    @property
    def evaluations(self) -> int:
        """How often figures of validation and test records left."""
        return sum(row.kind == "eval" for row in self.sent_rows)

    @property
    def outcomes_left(self) -> bool | None:
        """Whether per-sample test outcomes left; None if the folder does not show it."""
        if self.place != "site":
            return self.run.outcomes.exists() and self.party in self.run.read_outcomes()
        most = max((row.bytes for row in self.sent_rows if row.kind == "eval"), default=0)
        # The model's answer and the right answer of a sample take 8 bytes.
        return None if most >= 8 * self.info.test else False

    def times(self) -> str:
        """When the run was begun and when it ended, by the times of its files."""
        stamps = [
            datetime.fromtimestamp(path.stat().st_mtime, UTC)
            for path in (self.run.environment, self.run.summary)
        ]
        start, end = (f"{stamp:%Y-%m-%d %H:%M}" for stamp in stamps)
        return f"begun {start}, ended {end} UTC, by the times of its files"


def read(
    folder: Path,
    party: str,
    server_run: ServerRun | None,
    federation: Federation | None,
    model: CustomModel | None,
    trust: bool,
    operator: str = "",
) -> Source:
    """Read what a folder contains about a party (arguments as of `disclose`).

    Raises `UsageError` if the run is not finished or has no such party, and `ComityError` if a file
    is damaged.
    """
    run = RunFolder(folder)
    run.check_begun()
    summary = run.read_summary()
    if summary is None:
        raise UsageError(
            f"The run in {folder} is not finished: what leaves in it is not known before its end."
        )
    run.check()
    if "privacy" not in summary:
        raise UsageError(
            f"The run in {folder} is of a version of Comity that kept no account of what leaves: it"
            " cannot be disclosed."
        )
    place = _place(run)
    site: Path | None = run.path.resolve().parent.parent if place == "site" else None
    server_run = server_run or _reopen(run, place, federation, model, trust)
    names = list(server_run.context.roster.names)
    if place == "site" and party in names and party != (owner := _site_name(run)):
        raise UsageError(f"{folder} is the folder of {owner}: it has nothing about {party}.")
    if party not in names:
        raise unknown("party called", party, [_site_name(run)] if place == "site" else names)
    ledger = run.read_ledger()
    if any(EVERYBODY in (row.src, row.dst) for row in ledger) and EVERYBODY not in names:
        raise UsageError(
            f"In {folder} the bytes of all parties are added up, as there are so many: no single"
            " one can be disclosed."
        )
    return Source(
        party,
        place,
        run,
        server_run,
        summary,
        [row for row in ledger if row.src == party],
        [row for row in run.read_privacy() if row.party == party],
        _read_audit(run, summary),
        *_about_data(run, place, site, server_run, party),
        operator or _operator(run, place),
        AllRuns.at_site(site, SitePolicy.read(site)) if site else None,
        _secure_limits(run, site, server_run),
    )


def _secure_limits(run: RunFolder, site: Path | None, server_run: ServerRun) -> Limits | None:
    """The terms of secure aggregation in a run; None without it."""
    if not server_run.experiment.secure_aggregation:
        return None
    if site is None:
        return secure_limits(server_run, read_parties(run))
    policy, sites = SitePolicy.read(site), len(server_run.info.names)
    threshold = strictest_threshold(sites, [policy.threshold], policy.colluders)
    return Limits(threshold, policy.colluders)


def _about_data(
    run: RunFolder, place: Place, site: Path | None, server_run: ServerRun, party: str
) -> tuple[tuple[int, ...] | None, Schema | None, bool | None]:
    """The number of a party's training records of each class, the schema of the data, and whether
    they are a table; None for what the folder does not show.
    """
    counts = server_run.context.party_infos.parties[party].counts
    known_counts = None if counts is None else tuple(counts)
    if isinstance(server_run, SimulatedRun):
        schema = server_run.federation.schema
        return known_counts, schema, schema is not None
    if site is None:
        schema = _server_schema(run) if place == "server" else None
        return known_counts, schema, True if schema else None
    federation = _site_data(run, site)
    labels = federation.parties[party].train.y
    return (
        count_by_class(labels, federation.classes),
        federation.schema,
        federation.schema is not None,
    )


def _server_schema(run: RunFolder) -> Schema | None:
    """The schema in the operator's folder, if that is on this machine."""
    path = _operators_folder(run) / SCHEMA
    try:
        return Schema.read(path) if path.exists() else None
    except Unusable:
        return None


def _operator(run: RunFolder, place: Place) -> str:
    """Who runs the server, by the site policy or by the operator's invitation."""
    if place == "site":
        return SitePolicy.read(run.path.resolve().parent.parent).operator
    path = _operators_folder(run) / INVITE
    return Invite.load(path).operator if place == "server" and path.exists() else ""


def _operators_folder(run: RunFolder) -> Path:
    """The operator's folder of a run between sites, from the run's folder at the server or at the
    researcher.
    """
    if was_submitted(run.path):
        return SubmittedJob.read(run.path).federation
    return run.path.resolve().parent.parent


def _site_data(run: RunFolder, site: Path) -> Federation:
    """The data of a site, as they were split for a run."""
    policy = SitePolicy.read(site)
    return fixed_split(site, policy.name, policy.data, SiteSplit.of(run.read_experiment()))[1]


def _place(run: RunFolder) -> Place:
    if (run.path / ROSTER).exists():
        return "site"
    return "server" if run.read_experiment().engine == "flare" else "simulation"


def _reopen(
    run: RunFolder,
    place: Place,
    federation: Federation | None,
    model: CustomModel | None,
    trust: bool,
) -> ServerRun:
    """The run, from its data or, between sites, from the descriptions of the sites."""
    if place == "simulation":
        return reopen(run.path, federation, model, trust=trust)
    experiment = run.read_experiment()
    check(run.path, run.config.read_text(encoding="utf-8"), code_of(experiment), trust)
    if place == "server":
        return server_run_of(run, experiment, read_parties(run), run.read_plan(), b"")
    at = run.path.resolve().parent.parent
    _, server_run = build_site(
        run, at, _site_name(run), experiment, _site_data(run, at), read_roster(run.path)
    )
    return server_run


def _site_name(run: RunFolder) -> str:
    """The name of the site in whose folder a run is."""
    return SitePolicy.read(run.path.resolve().parent.parent).name


def _read_audit(run: RunFolder, summary: dict[str, Any]) -> dict[str, Any] | None:
    """The results of `comity audit` for the run, from the run's folder or from that of the
    comparison to which the run belongs; None if there was no audit.
    """
    here = run.path.resolve()
    for place in (here, here.parent, here.parent.parent):
        path = place / AUDIT
        if not path.exists():
            continue
        try:
            content = read_json(path)
            entries = [entry for entry in content["runs"] if _is_of_run(entry, here, place)]
            bytes_sent = sum(summary["bytes"].get(kind, 0) for kind in ("up", "down", "peer"))
            if any(entry["bytes"] != bytes_sent for entry in entries):
                raise ComityError(
                    f"{path} is of another run than the one in {run.path}: make it anew with"
                    f" '{shell_line('comity', 'audit', place)}'."
                )
        except UNREADABLE as why:
            raise ComityError(f"{path} cannot be read: it is damaged.") from why
        if entries:
            return dict(entries[0])
    return None


def _is_of_run(entry: dict[str, Any], run: Path, place: Path) -> bool:
    """Whether an entry of the audit in `place` is about a run. The folders may have been moved
    together since.
    """
    inside = run.relative_to(place).parts
    return Path(entry["run"]).parts[-len(inside) :] == inside if inside else True


def to_server(rows: list[Charge], function: str, kind: str = "up") -> list[Charge]:
    """The rows of the ledger for messages to the server in calls of a party function."""
    return [row for row in rows if (row.call, row.kind, row.dst) == (function, kind, SERVER)]
