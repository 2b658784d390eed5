"""The commands `comity deploy`: an operator admits sites, and each site has its own policy."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comity.cli.data import Group
from comity.cli.finished_runs import (
    AsJson,
    Full,
    Samples,
    Some,
    show_party_measures,
    show_progress,
    split_names,
)
from comity.cli.options import deploy_app
from comity.errors import ComityError, UsageError, unknown
from comity.safe_files import make_private_folder, write_atomically
from comity.text import shell_line
from comity.units import size

if TYPE_CHECKING:
    from comity.cli.site_screen import SiteScreen

Site = Annotated[Path, typer.Argument(metavar="SITE", help="the site's folder")]
Federation = Annotated[Path, typer.Option("--federation", help="the operator's folder")]


@deploy_app.command("init")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="the operator's folder, which is created")
    ],
    server: Annotated[
        str, typer.Option("--server", help="address that sites connect to", metavar="HOST:PORT")
    ],
    schema: Annotated[
        Path | None, typer.Option("--schema", help="schema of the tables of all sites")
    ] = None,
    researcher: Annotated[
        str, typer.Option("--researcher", help="who may submit runs")
    ] = "lead@comity.local",
    operator: Annotated[
        str, typer.Option("--operator", help="who runs the server, for disclosure pages of sites")
    ] = "",
) -> None:
    """Operator: create the root certificate, the startup kits of the server and the researcher,
    and an invitation for sites.
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
        common_schema = Schema.read(schema) if schema else None
    except Unusable as why:
        raise UsageError(str(why)) from why
    invite = startup_kits.init(folder, host, int(port), researcher, operator=operator)
    if common_schema:
        common_schema.write(folder / SCHEMA)
    path = folder / startup_kits.INVITE
    content = json.loads(path.read_text(encoding="utf-8"))
    content["schema"] = common_schema.to_dict() if common_schema else None
    write_atomically(path, json.dumps(content, indent=2) + "\n")
    screen.out.print(
        f"The federation is in {folder}; keep {folder / startup_kits.ROOT} secret.",
        soft_wrap=True,
    )
    screen.out.print(
        f"Send {path} to the sites, and tell them this fingerprint by another channel, such as the"
        " telephone:",
        soft_wrap=True,
    )
    screen.out.print(invite.fingerprint, soft_wrap=True)


@deploy_app.command("join")
def join(
    invite: Annotated[
        Path, typer.Argument(metavar="INVITE", help="invitation file from the operator")
    ],
    data: Annotated[
        Path, typer.Option("--data", help="the site's data: a file, or a folder of images")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="name of the site; default: the name of the file")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="the site's folder, which is created; default: its name"),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option("--classes", help="for arrays: number of classes over all sites"),
    ] = None,
    group: Group = None,
) -> None:
    """Site: import the data, and create the site's key, its policy and a request for the operator.

    The request contains neither the key nor data.
    """
    from comity.cli import screen
    from comity.data.party_files import source_name
    from comity.data.preparation import Schema, Unusable
    from comity.deploy import policy
    from comity.deploy.data import import_site_data
    from comity.deploy.flare import startup_kits

    invitation = startup_kits.Invite.load(invite)
    schema = json.loads(invite.read_text(encoding="utf-8")).get("schema")
    site_name = name or source_name(data)
    folder = out or Path(site_name)
    if folder.exists():
        raise UsageError(f"{folder} exists already: choose another --out.")
    if not data.exists():
        raise UsageError(f"There is no {data}.")
    make_private_folder(folder)
    try:
        schema_file = None
        if schema:
            schema_file = folder / "schema.json"
            write_atomically(schema_file, Schema.from_dict(schema).to_text())
        dataset = import_site_data(data, folder / "data", schema_file, classes, group, site_name)
        policy.write(folder, site_name, "data", invitation.operator)
        request = startup_kits.join(invitation, site_name, folder)
    except (Exception, KeyboardInterrupt) as why:
        shutil.rmtree(folder)
        if isinstance(why, Unusable):
            raise UsageError(str(why)) from why
        raise
    request_copy = Path(f"{site_name}.request.zip")
    shutil.copy(request, request_copy)
    for warning in dataset.warnings:
        screen.out.print(warning, soft_wrap=True)
    screen.out.print(
        f"{len(dataset)} samples are in {folder / 'data'}, and stay there.", soft_wrap=True
    )
    screen.out.print(
        f"Read {folder / policy.NAME}: it is the policy of this site. Then send {request_copy} to"
        " the operator.",
        soft_wrap=True,
    )
    screen.out.print(
        "The operator may ask for the fingerprint of the site's key by telephone:"
        f" {startup_kits.read_request(request_copy).get('public_key_sha256')}",
        soft_wrap=True,
    )


@deploy_app.command("approve")
def approve(
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="NAME.request.zip from a site")
    ],
    federation: Federation = Path(),
    again: Annotated[
        bool, typer.Option("--again", help="replace the key of a site with this name")
    ] = False,
) -> None:
    """Operator: sign the request of a site, after asking the site for its key's fingerprint."""
    from comity.cli import screen
    from comity.deploy.flare import startup_kits

    if not (federation / startup_kits.ROOT).is_dir():
        raise UsageError(f"{federation} is not an operator's folder: name it with --federation.")
    content = startup_kits.read_request(request)
    signed = startup_kits.approve(
        federation, request, Path(request.name.removesuffix(".request.zip") + ".signed.zip"), again
    )
    screen.out.print(
        f"{content['name']} is admitted; fingerprint of its key:"
        f" {content.get('public_key_sha256')}",
        soft_wrap=True,
    )
    screen.out.print(f"Send {signed} to the site.", soft_wrap=True)


@deploy_app.command("accept")
def accept(
    signed: Annotated[
        Path, typer.Argument(metavar="SIGNED", help="NAME.signed.zip from the operator")
    ],
    fingerprint: Annotated[
        str,
        typer.Option(
            "--fingerprint", help="fingerprint of the root certificate, from the operator"
        ),
    ],
    site: Annotated[
        Path | None, typer.Option("--site", help="the site's folder; default: NAME")
    ] = None,
) -> None:
    """Site: verify the operator's signature by the fingerprint, and create the startup kit."""
    from comity.cli import screen
    from comity.deploy.flare import startup_kits
    from comity.deploy.flare.processes import running

    folder = site or Path(signed.name.removesuffix(".signed.zip"))
    if pid := running(folder / startup_kits.KIT):
        raise UsageError(f"{folder} is running, as process {pid}: stop it first.")
    startup_kits.accept(signed, folder, fingerprint)
    screen.out.print(
        f"{folder} is ready: {shell_line('comity', 'deploy', 'check', folder)}, then"
        f" {shell_line('comity', 'deploy', 'start', folder)}",
        soft_wrap=True,
    )


@deploy_app.command("renew")
def renew(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="the site's folder, or the operator's")
    ],
) -> None:
    """Renew certificates before or after they expire.

    A site gets a new key and a request for the operator. An operator gets new startup kits of the
    server and the researcher.
    """
    from comity.cli import screen
    from comity.deploy.flare import startup_kits
    from comity.deploy.flare.processes import running

    is_operator = (folder / startup_kits.ROOT).is_dir()
    if is_operator and (pid := running(folder / startup_kits.SERVER)):
        raise UsageError(f"The server is running, as process {pid}: stop it first.")
    if is_operator:
        kits = " and ".join(map(str, startup_kits.renew_own(folder)))
        screen.out.print(
            f"{kits} have new keys and certificates. Start the server again; sites need nothing"
            " new.",
            soft_wrap=True,
        )
        return
    request = startup_kits.renew(folder)
    request_copy = Path(request.name)
    shutil.copy(request, request_copy)
    fingerprint = startup_kits.read_request(request_copy).get("public_key_sha256")
    signed = request_copy.name.replace(".request.zip", ".signed.zip")
    screen.out.print(
        f"Send {request_copy} to the operator, who signs it:"
        f" {shell_line('comity', 'deploy', 'approve', request_copy, '--again')}. Then:"
        f" {shell_line('comity', 'deploy', 'accept', signed, '--site', folder)} --fingerprint ...",
        soft_wrap=True,
    )
    screen.out.print(
        f"The operator may ask for the fingerprint of the new key by telephone: {fingerprint}",
        soft_wrap=True,
    )


@deploy_app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a site, or a researcher")],
    federation: Federation = Path(),
) -> None:
    """Operator: revoke all certificates that were issued to a site or a researcher so far.

    The server and the sites refuse them from the next run on.
    """
    from comity.cli import screen
    from comity.deploy.flare import startup_kits
    from comity.deploy.revocation import REVOKED

    revocations = startup_kits.revoke_certificates(federation, name)
    screen.out.print(
        f"The certificates of {name} are revoked. The server and the sites refuse them from the"
        " next run on; a run that is going on is not ended.",
        soft_wrap=True,
    )
    screen.out.print(
        f"The server sends the list to the sites. To be sure that a site has it, send it"
        f" {federation / REVOKED}: the site copies the file into its folder.",
        soft_wrap=True,
    )
    screen.out.print(f"Revoked so far: {', '.join(revocations.names)}", soft_wrap=True)


@deploy_app.command("serve")
def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the operator's folder")],
) -> None:
    """Operator: run the server until Ctrl-C."""
    from comity.cli import screen
    from comity.deploy.flare import startup_kits
    from comity.deploy.flare.processes import run_server

    address = startup_kits.Invite.load(folder / startup_kits.INVITE)
    screen.out.print(
        f"Serving at {address.host}:{address.port} until Ctrl-C; runs are in {folder / 'runs'}.",
        soft_wrap=True,
    )
    run_server(
        folder,
        folder / startup_kits.SERVER,
        lambda sentence: screen.out.print(sentence, soft_wrap=True),
    )


@deploy_app.command("start")
def start(site: Site = Path()) -> None:
    """Site: take part in runs until Ctrl-C. Every request and its outcome are shown and logged.

    The rounds of a run are one line of progress. NVIDIA FLARE's lines go to files in SITE/kit.
    """
    from comity.cli import screen
    from comity.cli.site_screen import SiteScreen
    from comity.deploy.flare.processes import run_site
    from comity.deploy.handler import KIT, LOG
    from comity.deploy.policy import SitePolicy

    policy = SitePolicy.read(site)
    screen.out.print(
        f"{policy.name} takes part until Ctrl-C, as {site / 'site.toml'} allows.", soft_wrap=True
    )
    site_screen = SiteScreen(site / LOG)
    threading.Thread(target=_follow, args=(site / LOG, site_screen), daemon=True).start()
    try:
        run_site(site, site / KIT, site_screen.say)
    finally:
        site_screen.close()


def _follow(path: Path, site_screen: SiteScreen) -> None:
    """Show the lines that are added to a log."""
    position = path.stat().st_size if path.exists() else 0
    while True:
        if path.exists():
            with path.open(encoding="utf-8", errors="replace") as file:
                file.seek(position)
                for line in file:
                    site_screen.show(line.rstrip())
                position = file.tell()
        time.sleep(0.5)


@deploy_app.command("check")
def check(site: Site = Path()) -> None:
    """Site: check the policy, the data, the certificate and the connection to the server."""
    from comity.cli import screen
    from comity.deploy.data import SiteSplit, site_federation
    from comity.deploy.flare import needs_flare
    from comity.deploy.flare.processes import running
    from comity.deploy.handler import KIT
    from comity.deploy.key_exchange import Identity
    from comity.deploy.policy import SitePolicy
    from comity.deploy.sent_ledger import SentLedger
    from comity.metrics.metrics import ACCURACY
    from comity.runs.config import Experiment
    from comity.runs.context import PartyInfo

    needs_flare()
    policy = SitePolicy.read(site)
    federation = site_federation(policy.name, policy.data, SiteSplit.of(Experiment()))
    party = federation.parties[policy.name]
    info = PartyInfo.of(party, federation.classes, ACCURACY, counts=policy.class_counts)
    screen.out.print(
        f"data: {info.train + info.validation + info.test} samples of shape"
        f" {'x'.join(map(str, federation.shape))}"
    )
    identity = Identity.read(site / KIT / "startup")
    if identity.name != policy.name:
        raise UsageError(
            f"The certificate is for {identity.name}, but the name in site.toml is {policy.name}."
        )
    until = identity.certificate.not_valid_after_utc
    screen.out.print(f"certificate: {identity.name}, until {until:%Y-%m-%d}")
    methods = f"methods {', '.join(policy.methods)}, never {', '.join(policy.never)}"
    screen.out.print(f"policy: {methods}; may leave: {', '.join(policy.kinds)}", soft_wrap=True)
    screen.out.print(
        f"sent so far: {size(SentLedger(site, policy.name).total())} of {size(policy.budget_bytes)}"
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
    """Return the address of the server in a site's startup kit."""
    try:
        client = json.loads((kit / "startup" / "fed_client.json").read_text(encoding="utf-8"))
        host, _, port = client["servers"][0]["service"]["target"].rpartition(":")
        return host, int(port)
    except (OSError, ValueError, LookupError) as why:
        raise UsageError(
            f"{kit} is not the startup kit of a site: create one with comity deploy accept."
        ) from why


@deploy_app.command("log")
def log(
    site: Site = Path(),
    last: Annotated[int, typer.Option("--last", help="number of lines; 0 for all")] = 40,
) -> None:
    """Site: print the log of requests and their outcomes."""
    from comity.cli import screen
    from comity.deploy.handler import LOG

    if not (site / LOG).exists():
        raise UsageError(f"{site} has not received any requests yet.")
    for line in (site / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-last:]:
        screen.out.print(line, soft_wrap=True)


@deploy_app.command("report")
def report(site: Site = Path()) -> None:
    """Site: list its runs, with the bytes that left, and the figures and folders of its models."""
    from comity.cli import screen
    from comity.deploy.policy import SitePolicy
    from comity.deploy.sent_ledger import SentLedger
    from comity.deploy.site_store import SiteTables, runs_of
    from comity.names import display_name

    policy = SitePolicy.read(site)
    rows: list[list[str]] = []
    for run in runs_of(site):
        summary: dict[str, Any] | None = run.read_summary()
        block = summary.get(summary["metric"]) if summary else None
        figure = f"{block['mean']:.1%}" if block and block.get("mean") is not None else "·"
        model = str(run.path / "model") if (run.path / "model").is_dir() else "·"
        method = display_name(run.read_experiment().algorithm)
        rounds = str(summary["rounds"]) if summary else "not finished"
        rows.append(
            [
                run.path.name,
                method,
                rounds,
                size(SiteTables(run.path, policy.name).bytes_sent),
                figure,
                model,
            ]
        )
    if not rows:
        raise UsageError(f"{site} has not taken part in a run yet.")
    title = f"{policy.name}: {size(SentLedger(site, policy.name).total())} sent in total"
    screen.table(["run", "method", "rounds", "sent", "figure", "model"], rows, title)
    screen.print_legend(
        "sent: all bytes that left this site, including evaluation. figure: the run's metric on"
        " this site's test samples."
    )


@deploy_app.command("measure")
def measure(
    site: Site = Path(),
    run: Annotated[
        str | None,
        typer.Option("--run", help="run, as listed by report; default: the newest that has ended"),
    ] = None,
    layers: Some = None,
    samples: Samples = 2000,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Site: measure the representations of its model on its samples. No result leaves the site."""
    from comity.cli import screen
    from comity.deploy.site_results import measure as measure_run
    from comity.deploy.site_store import runs_of
    from comity.measure import conventions, mdl

    folders = {folder.path.name: folder for folder in runs_of(site)}
    ended_runs = [name for name, folder in folders.items() if folder.is_finished]
    if run is None and not ended_runs:
        raise UsageError(f"{site} has not taken part in a run that has ended.")
    if (name := run or ended_runs[-1]) not in folders:
        raise unknown(f"run of {site} called", name, folders)
    folder = folders[name]
    measures = measure_run(
        site,
        folder,
        split_names(layers),
        samples,
        mdl=mdl.FULL if full else mdl.CHEAP,
        report_progress=show_progress,
    )
    measures |= {"accuracy": conventions.party_figures(folder.path, measures["party"])}
    folder.write_measures(measures)
    if as_json:
        print(json.dumps(measures))
        return
    show_party_measures(measures)
    screen.out.print(f"Written to {folder.measures}", soft_wrap=True)
