"""Commands of runs between sites: an operator admits sites, a site keeps its own law, each runs its
own process.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from comity.cli.finished import AsJson, Full, Samples, Some, listed, measuring, show_own_measures
from comity.cli.options import deploy_app
from comity.errors import ComityError, UsageError, unknown
from comity.units import size

Site = Annotated[Path, typer.Argument(metavar="SITE", help="the site's folder")]
Federation = Annotated[Path, typer.Option("--federation", help="the operator's folder")]


@deploy_app.command("init")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="the operator's folder, which is made")
    ],
    server: Annotated[
        str, typer.Option("--server", help="the address that sites dial", metavar="HOST:PORT")
    ],
    schema: Annotated[
        Path | None, typer.Option("--schema", help="the columns that all sites' tables have")
    ] = None,
    researcher: Annotated[
        str, typer.Option("--researcher", help="who orders runs")
    ] = "lead@comity.local",
) -> None:
    """Operator: make the root of all certificates, the server's and the researcher's kit, and an
    invitation for sites.
    """
    from comity.cli import screen
    from comity.data.preparation import Schema, Unusable
    from comity.deploy.flare import startup_kits
    from comity.deploy.server import SCHEMA

    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(
            f"--server takes an address and a port, as in hub.example.org:8102, not {server!r}."
        )
    try:
        agreed = Schema.read(schema) if schema else None
    except Unusable as why:
        raise UsageError(str(why)) from why
    invite = startup_kits.init(folder, host, int(port), researcher)
    if agreed:
        agreed.write(folder / SCHEMA)
    path = folder / startup_kits.INVITE
    told = json.loads(path.read_text(encoding="utf-8")) | {
        "schema": agreed.told() if agreed else None
    }
    path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    screen.out.print(
        f"The federation is in {folder}; keep {folder / startup_kits.ROOT} to yourself.",
        soft_wrap=True,
    )
    screen.out.print(
        f"Send {path} to the sites, and tell them this fingerprint by another way (by telephone):",
        soft_wrap=True,
    )
    screen.out.print(invite.fingerprint, soft_wrap=True)


@deploy_app.command("join")
def join(
    invite: Annotated[
        Path, typer.Argument(metavar="INVITE", help="the file that the operator sent")
    ],
    data: Annotated[
        Path, typer.Option("--data", help="the site's own file, or folder of pictures")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="the site's name; the file's unless told")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="the site's folder, which is made; its name unless told"),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option("--classes", help="of arrays: how many classes there are at all sites"),
    ] = None,
) -> None:
    """Site: import its data, make its key and its law, and a request for the operator, which holds
    neither key nor data.
    """
    from comity.cli import screen
    from comity.data.party_files import stem
    from comity.data.preparation import Schema, Unusable
    from comity.deploy import policy
    from comity.deploy.data import import_site_data
    from comity.deploy.flare import startup_kits

    asked = startup_kits.Invite.load(invite)
    told = json.loads(invite.read_text(encoding="utf-8")).get("schema")
    display_name = name or stem(data)
    folder = out or Path(display_name)
    if folder.exists():
        raise UsageError(f"{folder} is there already: choose another --out.")
    if not data.exists():
        raise UsageError(f"There is no {data}.")
    folder.mkdir(parents=True)
    try:
        agreed = None
        if told:
            agreed = folder / "schema.json"
            Schema.of(told).write(agreed)
        made = import_site_data(data, folder / "data", agreed, classes)
        policy.write(folder, display_name, "data")
        request = startup_kits.join(asked, display_name, folder)
    except (Exception, KeyboardInterrupt) as why:
        shutil.rmtree(folder)
        if isinstance(why, Unusable):
            raise UsageError(str(why)) from why
        raise
    sent = Path(f"{display_name}.request.zip")
    shutil.copy(request, sent)
    for note in made.notes:
        screen.out.print(note, soft_wrap=True)
    screen.out.print(
        f"{len(made)} samples are in {folder / 'data'}, and stay there.", soft_wrap=True
    )
    screen.out.print(
        f"Read {folder / policy.NAME}: it is what this site allows. Then send {sent} to the"
        " operator.",
        soft_wrap=True,
    )
    screen.out.print(
        "If asked by telephone, its key is"
        f" {startup_kits.read_request(sent).get('public_key_sha256')}",
        soft_wrap=True,
    )


@deploy_app.command("approve")
def approve(
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="NAME.request.zip, as a site sent it")
    ],
    federation: Federation = Path(),
    again: Annotated[
        bool, typer.Option("--again", help="also if a site of that name has another key")
    ] = False,
) -> None:
    """Operator: sign a site's request. Ask the site by another way whether it is really its own."""
    from comity.cli import screen
    from comity.deploy.flare import startup_kits

    if not (federation / startup_kits.ROOT).is_dir():
        raise UsageError(f"{federation} is no operator's folder: name it with --federation.")
    asked = startup_kits.read_request(request)
    signed = startup_kits.approve(
        federation, request, Path(request.name.removesuffix(".request.zip") + ".signed.zip"), again
    )
    screen.out.print(
        f"{asked['name']} may take part; its key: {asked.get('public_key_sha256')}", soft_wrap=True
    )
    screen.out.print(f"Send it {signed}.", soft_wrap=True)


@deploy_app.command("accept")
def accept(
    signed: Annotated[
        Path, typer.Argument(metavar="SIGNED", help="NAME.signed.zip, as the operator sent it")
    ],
    fingerprint: Annotated[
        str, typer.Option("--fingerprint", help="of the root, as the operator told it")
    ],
    site: Annotated[
        Path | None, typer.Option("--site", help="the site's folder; NAME unless told")
    ] = None,
) -> None:
    """Site: check that what came is of the root with this fingerprint, and make the site's kit of
    it.
    """
    from comity.cli import screen
    from comity.deploy.flare import startup_kits

    folder = site or Path(signed.name.removesuffix(".signed.zip"))
    startup_kits.accept(signed, folder, fingerprint)
    screen.out.print(
        f"{folder} is ready: comity deploy check {folder}, then comity deploy start {folder}",
        soft_wrap=True,
    )


@deploy_app.command("serve")
def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the operator's folder")],
) -> None:
    """Operator: run the server, until it is stopped."""
    from comity.cli import screen
    from comity.deploy.flare import startup_kits
    from comity.deploy.flare.processes import run_server

    at = startup_kits.Invite.load(folder / startup_kits.INVITE)
    screen.out.print(
        f"Serving at {at.host}:{at.port} until Ctrl-C; runs are in {folder / 'runs'}.",
        soft_wrap=True,
    )
    run_server(folder, folder / startup_kits.SERVER)


@deploy_app.command("start")
def start(site: Site = Path()) -> None:
    """Site: run the site, until it is stopped; every request, and what becomes of it, is shown and
    kept.
    """
    from comity.cli import screen
    from comity.deploy.flare.processes import run_site
    from comity.deploy.handler import KIT, LOG
    from comity.deploy.policy import SitePolicy

    policy = SitePolicy.read(site)
    screen.out.print(
        f"{policy.name} takes part until Ctrl-C, as {site / 'site.toml'} allows.", soft_wrap=True
    )
    threading.Thread(target=_follow, args=(site / LOG,), daemon=True).start()
    run_site(site, site / KIT)


def _follow(path: Path) -> None:
    """Show what is added to a log."""
    from comity.cli import screen

    at = path.stat().st_size if path.exists() else 0
    while True:
        if path.exists():
            with path.open(encoding="utf-8", errors="replace") as file:
                file.seek(at)
                for line in file:
                    screen.out.print(line.rstrip(), soft_wrap=True)
                at = file.tell()
        time.sleep(0.5)


@deploy_app.command("check")
def check(site: Site = Path()) -> None:
    """Site: whether all is well before it starts: its law, its data, its certificate, the way to
    the server.
    """
    from comity.cli import screen
    from comity.deploy.data import site_federation
    from comity.deploy.flare import needs_flare
    from comity.deploy.flare.processes import running
    from comity.deploy.handler import KIT
    from comity.deploy.key_exchange import Identity
    from comity.deploy.policy import SitePolicy
    from comity.deploy.site_store import bytes_sent
    from comity.metrics.metrics import ACCURACY
    from comity.runs.config import Experiment
    from comity.runs.context import PartyInfo

    needs_flare()
    policy = SitePolicy.read(site)
    own = site_federation(policy.name, policy.data, Experiment())
    said = PartyInfo.of(own.parties[policy.name], own.classes, ACCURACY, counts=policy.class_counts)
    screen.out.print(
        f"data: {said.train + said.validation + said.test} samples of shape"
        f" {'x'.join(map(str, own.shape))}"
    )
    identity = Identity.read(site / KIT / "startup")
    if identity.name != policy.name:
        raise UsageError(
            f"The certificate is made out to {identity.name}, but site.toml says that this is"
            f" {policy.name}."
        )
    until = identity.certificate.not_valid_after_utc
    screen.out.print(f"certificate: {identity.name}, until {until:%Y-%m-%d}")
    methods = f"methods {', '.join(policy.methods)}, never {', '.join(policy.never)}"
    screen.out.print(f"law: {methods}; may leave: {', '.join(policy.kinds)}", soft_wrap=True)
    screen.out.print(
        f"sent so far: {size(bytes_sent(site, policy.name))} of {size(policy.budget_bytes)}"
    )
    host, port = _server_of(site / KIT)
    try:
        socket.create_connection((host, port), timeout=5).close()
        screen.out.print(f"server: {host}:{port} answers")
    except OSError as why:
        raise ComityError(
            f"The server at {host}:{port} does not answer ({why.strerror or why})."
        ) from why
    if pid := running(site / KIT):
        screen.out.print(f"running as process {pid}")


def _server_of(kit: Path) -> tuple[str, int]:
    """Where a site's kit dials."""
    try:
        told = json.loads((kit / "startup" / "fed_client.json").read_text(encoding="utf-8"))
        host, _, port = told["servers"][0]["service"]["target"].rpartition(":")
        return host, int(port)
    except (OSError, ValueError, LookupError) as why:
        raise UsageError(f"{kit} is not a site's kit: comity deploy accept makes one.") from why


@deploy_app.command("log")
def log(
    site: Site = Path(),
    last: Annotated[int, typer.Option("--last", help="so many lines; 0 for all")] = 40,
) -> None:
    """Site: what was asked of it, and what became of it."""
    from comity.cli import screen
    from comity.deploy.handler import LOG

    if not (site / LOG).exists():
        raise UsageError(f"{site} was asked nothing yet.")
    for line in (site / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-last:]:
        screen.out.print(line, soft_wrap=True)


@deploy_app.command("report")
def report(site: Site = Path()) -> None:
    """Site: the runs that it took part in, what left in each, what its models were worth, and where
    they are.
    """
    from comity.cli import screen
    from comity.deploy.policy import SitePolicy
    from comity.deploy.site_store import SiteTables, bytes_sent, runs_of
    from comity.names import display_name

    policy = SitePolicy.read(site)
    rows: list[list[str]] = []
    for run in runs_of(site):
        summary: dict[str, Any] | None = run.read_summary()
        got = summary.get(summary["metric"]) if summary else None
        figure = f"{got['mean']:.1%}" if got and got.get("mean") is not None else "·"
        model = str(run.path / "model") if (run.path / "model").is_dir() else "·"
        method = display_name(run.read_experiment().algorithm)
        rounds = str(summary["rounds"]) if summary else "not finished"
        rows.append(
            [run.path.name, method, rounds, size(SiteTables(run.path, policy.name).sent), figure, model]
        )
    if not rows:
        raise UsageError(f"{site} has taken part in no run yet.")
    title = f"{policy.name}: {size(bytes_sent(site, policy.name))} sent in all"
    screen.table(["run", "method", "rounds", "sent", "figure", "model"], rows, title)
    screen.note(
        "sent: all that left this site, evaluation too. figure: by the run's own metric, on this"
        " site's test samples."
    )


@deploy_app.command("measure")
def measure(
    site: Site = Path(),
    run: Annotated[
        str | None,
        typer.Option("--run", help="which run, as report lists them; the newest that has ended"),
    ] = None,
    layers: Some = None,
    samples: Samples = 2000,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Site: what its own model of a run makes of its own samples, layer by layer. Nothing of it
    leaves.
    """
    from comity.cli import screen
    from comity.deploy.site_results import measure as measured
    from comity.deploy.site_store import runs_of
    from comity.measure import conventions, mdl

    known = {one.path.name: one for one in runs_of(site)}
    ended = [name for name, one in known.items() if one.ended]
    if run is None and not ended:
        raise UsageError(f"{site} has taken part in no run that has ended.")
    if (name := run or ended[-1]) not in known:
        raise unknown(f"run of {site} called", name, known)
    folder = known[name]
    found = measured(
        site, folder, listed(layers), samples, mdl=mdl.FULL if full else mdl.CHEAP, report_progress=measuring
    )
    found |= {"accuracy": conventions.of_party(folder.path, found["party"])}
    folder.write_measures(found)
    if as_json:
        print(json.dumps(found))
        return
    show_own_measures(found)
    screen.out.print(f"Written to {folder.measures}", soft_wrap=True)
