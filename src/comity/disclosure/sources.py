"""A finished run as its folder tells it, be it a simulation, a run between sites at its server, or
the same at a site.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from comity.checksums import without_crc
from comity.data import Federation
from comity.errors import ComityError, UsageError, unknown
from comity.models import OwnModel
from comity.privacy.account import PrivacyCharge
from comity.runs.context import PartyInfo
from comity.runs.folder import RunFolder
from comity.runs.run import reopen
from comity.runs.server_run import ServerRun
from comity.runs.trust import check, code_of
from comity.wire.ledger import EVERYBODY, SERVER, Charge

Place = Literal["simulation", "server", "site"]
AUDIT = "audit.json"


@dataclass(frozen=True)
class Source:
    """What a run's folder says that concerns one party."""

    party: str
    place: Place
    run: RunFolder
    server_run: ServerRun
    summary: dict[str, Any]
    sent: list[Charge]
    """All that left the party."""
    spent: list[PrivacyCharge]
    """What that gave away."""
    audit: dict[str, Any] | None
    """What an audit found of this run, if there was one."""

    @property
    def said(self) -> PartyInfo:
        """What the party told of itself."""
        return self.server_run.common.introductions.parties[self.party]

    @property
    def answers_left(self) -> bool | None:
        """Whether its answers to single test records left; None if that cannot be told."""
        if self.place != "site":
            return self.run.outcomes.exists() and self.party in self.run.read_outcomes()
        most = max((row.bytes for row in self.sent if row.kind == "eval"), default=0)
        return (
            None if most >= 8 * self.said.test else False
        )  # an answer and what is right take 8 bytes

    def times(self) -> str:
        """When it was begun and ended, as far as files tell."""
        stamps = [
            datetime.fromtimestamp(path.stat().st_mtime, UTC)
            for path in (self.run.environment, self.run.summary)
        ]
        begun, ended = (f"{stamp:%Y-%m-%d %H:%M}" for stamp in stamps)
        return f"begun {begun}, ended {ended} UTC, by the times of its files"


def read(
    folder: Path,
    party: str,
    made: ServerRun | None,
    federation: Federation | None,
    model: OwnModel | None,
    trust: bool,
) -> Source:
    """What a folder says of a party; `made` is the run made concrete, if it is at hand. What is
    damaged is refused.
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
    server_run = made or _outline(run, place, federation, model, trust)
    names = list(server_run.common.seats.names)
    if place == "site" and party in names and party != (own := _at_home(run)):
        raise UsageError(f"{folder} is what {own} keeps of the run: of {party} it knows nothing.")
    if party not in names:
        raise unknown("party called", party, [_at_home(run)] if place == "site" else names)
    ledger, spent = run.read_ledger(), run.read_privacy()
    if any(EVERYBODY in (row.src, row.dst) for row in ledger) and EVERYBODY not in names:
        raise UsageError(
            f"In {folder} the bytes of all parties are added up, as there are so many: no single"
            " one can be disclosed."
        )
    sent = [row for row in ledger if row.src == party]
    return Source(
        party,
        place,
        run,
        server_run,
        summary,
        sent,
        [row for row in spent if row.party == party],
        _audit(run, summary),
    )


def _place(run: RunFolder) -> Place:
    from comity.deploy.site_store import SEATS

    if (run.path / SEATS).exists():
        return "site"
    return "server" if run.read_experiment().engine == "flare" else "simulation"


def _outline(
    run: RunFolder, place: Place, federation: Federation | None, model: OwnModel | None, trust: bool
) -> ServerRun:
    """The run made concrete: between sites of what these said of themselves, else of its data."""
    if place == "simulation":
        return reopen(run.path, federation, model, trust=trust)
    experiment = run.read_experiment()
    check(run.path, run.config.read_text(encoding="utf-8"), code_of(experiment), trust)
    if place == "server":
        from comity.deploy.server import read_parties, server_run_of

        return server_run_of(experiment, read_parties(run), run.read_plan(), b"")
    from comity.deploy.data import own_federation
    from comity.deploy.policy import SitePolicy
    from comity.deploy.site_run import seated
    from comity.deploy.site_store import read_seats

    at = run.path.resolve().parent.parent
    policy = SitePolicy.read(at)
    return seated(
        run,
        at,
        policy.name,
        experiment,
        own_federation(policy.name, policy.data, experiment),
        read_seats(run.path),
    )[1]


def _at_home(run: RunFolder) -> str:
    """Whose folder a site's run lies in."""
    from comity.deploy.policy import SitePolicy

    return SitePolicy.read(run.path.resolve().parent.parent).name


def _audit(run: RunFolder, summary: dict[str, Any]) -> dict[str, Any] | None:
    """What `comity audit` found of the run: it leaves that in the run's folder, or in the
    comparison's in which the run lies.
    """
    here = run.path.resolve()
    for place in (here, here.parent, here.parent.parent):
        path = place / AUDIT
        if not path.exists():
            continue
        try:
            found = [
                one
                for one in without_crc(json.loads(path.read_text(encoding="utf-8")))["runs"]
                if _same(one, here, place)
            ]
            sent = sum(summary["bytes"].get(kind, 0) for kind in ("up", "down", "peer"))
            if any(one["bytes"] != sent for one in found):
                raise ComityError(
                    f"{path} is of another run than the one in {run.path}: make it anew with"
                    f" 'comity audit {place}'."
                )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
            raise ComityError(f"{path} cannot be read: it is damaged.") from why
        if found:
            return dict(found[0])
    return None


def _same(told: dict[str, Any], run: Path, place: Path) -> bool:
    """Whether an entry of an audit is of a run; folders may have been moved together."""
    inside = run.relative_to(place).parts
    return Path(told["run"]).parts[-len(inside) :] == inside if inside else True


def to_server(rows: list[Charge], function: str, kind: str = "up") -> list[Charge]:
    """What went to the server for a work."""
    return [row for row in rows if (row.call, row.kind, row.dst) == (function, kind, SERVER)]
