"""Startup kits: the folders with certificates that a server, a site and a researcher need.

The operator makes the root and an invitation. A site makes its key and a request, which the
operator signs. The site checks that the signature is that of the root whose fingerprint it knows,
and builds its kit. No private key leaves the folder in which it was made. All of this is done by
the commands `nvflare cert` and `nvflare package`. They run in processes of their own, because they
end their process when they refuse something.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cryptography import x509

from comity.deploy.flare import needs_flare
from comity.deploy.flare.hardening import harden_server, harden_site
from comity.deploy.flare.jobs import researcher as researcher_of
from comity.deploy.revocation import Revocations, revoke
from comity.errors import ComityError, UsageError, quote, unknown
from comity.safe_files import (
    PRIVATE_UMASK,
    close_to_others,
    make_private_folder,
    write_atomically,
)
from comity.text import shell_line

ROOT = "root"  # in the operator's folder: the root's key, and a record of what was signed
SERVER = "server"  # in the operator's folder: the server's kit
LEAD = "lead"  # in the operator's folder: the researcher's kit
KIT = "kit"  # in a site's folder
REQUEST = "request"  # in a site's folder, until it was accepted: its key and what is to be signed
PROFILE = "profile.yaml"
INVITE = "invite.json"
ORGANISATION = "comity"
LARGEST = 1 << 16  # bytes of what a request says of itself
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
RESEARCHER = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")


@dataclass(frozen=True)
class Invite:
    """What a site must know to request admission; nothing in it is secret."""

    project: str
    host: str
    port: int
    fingerprint: str
    operator: str = ""
    """Who runs the server, in words; the disclosure pages of sites name the operator."""

    def save(self, file: Path) -> None:
        """Write the invitation as a JSON file."""
        write_atomically(file, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, file: Path) -> Invite:
        """Read a file that `save` wrote."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            invite = cls(
                str(content["project"]),
                str(content["host"]),
                int(content["port"]),
                str(content["fingerprint"]),
                str(content.get("operator", "")),
            )
        except OSError as why:
            raise UsageError(f"The invitation {file} cannot be read: {why.strerror}.") from None
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{file} is not an invitation of `comity deploy init`.") from None
        return invite


def init(
    folder: Path,
    host: str,
    port: int,
    researcher: str = "lead@comity.local",
    project: str = "comity",
    operator: str = "",
) -> Invite:
    """Make the root, the server's kit and the researcher's kit in `folder`, and the invitation for
    sites, which names the `operator`.
    """
    needs_flare()
    if not 0 < port < 65536:
        raise UsageError(f"A port is a number from 1 to 65535, not {port}.")
    if not RESEARCHER.fullmatch(researcher):
        raise UsageError(
            "A researcher is named like an address, lead@comity.local for instance, not"
            f" {quote(researcher)}."
        )
    if (folder / ROOT).exists():
        raise UsageError(
            f"{folder} has a root already: it is not replaced, because every site's certificate"
            " depends on it."
        )
    (folder / ROOT).mkdir(parents=True, mode=0o700)
    try:
        invite = _init(folder, host, port, researcher, project)
    except BaseException:
        for path in (folder / ROOT, folder / SERVER, folder / LEAD):
            shutil.rmtree(path, ignore_errors=True)
        raise
    invite = replace(invite, operator=operator)
    invite.save(folder / INVITE)
    return invite


def _init(folder: Path, host: str, port: int, researcher: str, project: str) -> Invite:
    profile = folder / PROFILE
    _write_yaml(
        profile,
        {
            "name": project,
            "scheme": "grpc",
            "connection_security": "mtls",
            "server": {"host": host, "fed_learn_port": port},
        },
    )
    result = _nvflare(folder / ROOT, "cert", "init", "--profile", profile, "-o", folder / ROOT)
    fingerprint = str(result["rootca_fingerprint_sha256"])
    ports = {"fed_learn_port": port, "admin_port": port, "connection_security": "mtls"}
    for kit, entry in (
        (SERVER, {"name": host, "type": "server", "org": ORGANISATION, **ports}),
        (LEAD, {"name": researcher, "type": "admin", "org": ORGANISATION, "role": "lead"}),
    ):
        _make_kit(folder, kit, project, entry, fingerprint)
    harden_server(folder / SERVER, folder)
    return Invite(project, host, port, fingerprint)


def join(invite: Invite, name: str, folder: Path) -> Path:
    """Make a site's private key and its request in `folder`.

    Returns the zip file to send to the operator; the key is not in it.
    """
    needs_flare()
    if not NAME.fullmatch(name):
        raise UsageError(
            f"A site's name has letters, digits and hyphens, and at most 63 of them: {quote(name)}"
            " does not."
        )
    if (folder / KIT).exists():
        raise UsageError(f"{folder} has a kit already: it was accepted before.")
    if (folder / REQUEST).exists():
        raise UsageError(
            f"{folder} has a request already: send it again, or remove {folder / REQUEST} to make"
            " a new one."
        )
    make_private_folder(folder)
    entry = {"name": name, "type": "client", "org": ORGANISATION}
    return _request(folder / REQUEST, invite.project, entry)


def renew(folder: Path) -> Path:
    """Make a new private key and a request in the folder of a site that was accepted before.

    Returns the zip file to send to the operator. The site keeps its present kit until `accept`.
    """
    needs_flare()
    file = folder / KIT / "startup" / "fed_client.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        name, project = str(content["client"]["fqsn"]), str(content["servers"][0]["name"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        raise UsageError(
            f"{folder} has no startup kit to renew: comity deploy join and accept make one."
        ) from None
    if (folder / REQUEST).exists():
        raise UsageError(
            f"{folder} has a request already: send {folder / REQUEST / f'{name}.request.zip'}"
            f" again, or remove {folder / REQUEST} to make a new one."
        )
    entry = {"name": name, "type": "client", "org": ORGANISATION}
    return _request(folder / REQUEST, project, entry)


def renew_own(folder: Path) -> list[Path]:
    """Make new kits of the server and the researcher in the operator's `folder`, with new keys and
    certificates of the same root. Sites need nothing new.
    """
    needs_flare()
    invite = Invite.load(folder / INVITE)
    researcher = researcher_of(folder / LEAD)
    ports = {
        "fed_learn_port": invite.port,
        "admin_port": invite.port,
        "connection_security": "mtls",
    }
    server = {"name": invite.host, "type": "server", "org": ORGANISATION, **ports}
    lead = {"name": researcher, "type": "admin", "org": ORGANISATION, "role": "lead"}
    for kit, entry in ((SERVER, server), (LEAD, lead)):
        _make_kit(folder, kit, invite.project, entry, invite.fingerprint)
    harden_server(folder / SERVER, folder)
    return [folder / SERVER, folder / LEAD]


def approvals(folder: Path) -> list[dict[str, Any]]:
    """The records of all certificates that the operator issued, the oldest first."""
    files = (folder / ROOT / ".nvflare" / "cert_approves").glob("*.json")
    records = [json.loads(file.read_text(encoding="utf-8"))["approval"] for file in files]
    return sorted(records, key=lambda record: str(record["approved_at"]))


def revoke_certificates(folder: Path, name: str) -> Revocations:
    """Revoke all certificates that were issued to a site or researcher so far."""
    if not (folder / ROOT).is_dir():
        raise UsageError(f"{folder} is not an operator's folder: name it with --federation.")
    records = approvals(folder)
    serials = [r["certificate"]["serial"] for r in records if r["name"] == name]
    if not serials:
        raise unknown("certificate issued to", name, {record["name"] for record in records})
    if name == Invite.load(folder / INVITE).host:
        raise UsageError(
            f"{name} is the server of this federation:"
            f" {shell_line('comity', 'deploy', 'renew', folder)} gives it a new key, and comity"
            " deploy init makes another federation."
        )
    return revoke(folder, folder / ROOT, serials, name)


def approve(folder: Path, request: Path, signed: Path | None = None, again: bool = False) -> Path:
    """Sign a site's request with the root in the operator's `folder`.

    Arguments:
        folder: the operator's folder
        request: the zip file of the request; only requests of sites are signed
        signed: the zip file to write; default: beside the request
        again: sign also if another key was signed for the same name before

    Returns the zip file to send back.
    """
    needs_flare()
    content = read_request(request)
    kind, name, key = (content.get(field) for field in ("kind", "name", "public_key_sha256"))
    if kind != "site":
        raise UsageError(f"{request} asks to be {quote(kind)}, not a site: it is not signed.")
    if name == Invite.load(folder / INVITE).host:
        raise UsageError(
            f"A site cannot be called {quote(name)} like the server: sites would take its requests"
            " for the server's."
        )
    if name in approved_names(folder, but=key) and not again:
        raise UsageError(
            f"A site {quote(name)} with another key was approved before: whoever has both keys is"
            " both."
        )
    root = x509.load_pem_x509_certificate((folder / ROOT / "rootCA.pem").read_bytes())
    revocations = Revocations(folder, root)
    if any(
        record["hashes"]["public_key_sha256"] == key
        and revocations.has_serial(record["certificate"]["serial"])
        for record in approvals(folder)
    ):
        raise UsageError(
            f"The key of this request was revoked: {quote(name)} can make another with comity"
            " deploy renew."
        )
    default = request.with_name(request.name.removesuffix(".request.zip") + ".signed.zip")
    return _sign(folder, request, signed or default)


def read_request(request: Path) -> dict[str, Any]:
    """The content of a request: its name, the kind (site, server or user), and the hash of its
    public key.
    """
    try:
        with zipfile.ZipFile(request) as archive, archive.open("request.json") as file:
            content = json.loads(file.read(LARGEST))
    except OSError as why:
        raise UsageError(f"The request {request} cannot be read: {why.strerror}.") from None
    except (zipfile.BadZipFile, KeyError, ValueError, RuntimeError, NotImplementedError):
        raise UsageError(f"{request} is not a request of `comity deploy join`.") from None
    if not isinstance(content, dict):
        raise UsageError(f"{request} is not a request of `comity deploy join`.")
    return content


def approved_names(folder: Path, but: str | None = None) -> set[str]:
    """The names of the sites that were approved, without those of the public key `but`."""
    names = set()
    for record in (folder / ROOT / ".nvflare" / "cert_approves").glob("*.json"):
        request = json.loads(record.read_text(encoding="utf-8"))["request"]
        if request["kind"] == "site" and request["public_key_sha256"] != but:
            names.add(request["name"])
    return names


def _sign(folder: Path, request: Path, to: Path, days: int = 1095) -> Path:
    root = folder / ROOT
    options = ["-c", root, "--profile", folder / PROFILE, "--out", to, "--valid-days", days]
    _nvflare(root, "cert", "approve", request, *options, "--force")
    return to


def accept(signed: Path, folder: Path, fingerprint: str) -> Path:
    """Build a site's kit from its signed request and the key in `folder`.

    Raises `UsageError` if the request was not signed by the root with this fingerprint.
    """
    needs_flare()
    if not (folder / REQUEST).is_dir():
        if (folder / KIT).is_dir():
            raise UsageError(
                f"{folder} was accepted before, and has nothing to accept:"
                f" {shell_line('comity', 'deploy', 'check', folder)} tells until when its"
                f" certificate is valid, and {shell_line('comity', 'deploy', 'renew', folder)} asks"
                " for a new one."
            )
        raise UsageError(
            f"{folder} has not requested admission yet: comity deploy join comes first."
        )
    if not signed.is_file():
        raise UsageError(f"There is no signed request {signed}.")
    _package(signed, folder / REQUEST, fingerprint, folder / KIT)
    harden_site(folder / KIT)
    shutil.rmtree(folder / REQUEST)  # the kit has the key now
    return folder / KIT


def _make_kit(
    folder: Path, kit: str, project: str, entry: dict[str, Any], fingerprint: str
) -> None:
    """Make a kit that belongs to the operator: request, sign and build it."""
    temporary = folder / f".{kit}"
    request = _request(temporary, project, entry)
    signed = _sign(folder, request, temporary / "own.signed.zip")
    _package(signed, temporary, fingerprint, folder / kit)
    shutil.rmtree(temporary)


def _request(folder: Path, project: str, entry: dict[str, Any]) -> Path:
    folder.mkdir(mode=0o700)
    try:
        _write_yaml(folder / "participant.yaml", {"name": project, "participants": [entry]})
        result = _nvflare(
            folder, "cert", "request", "-p", folder / "participant.yaml", "--out", folder, "--force"
        )
    except BaseException:
        shutil.rmtree(folder)
        raise
    return Path(result["request_zip"])


def _package(signed: Path, request: Path, fingerprint: str, to: Path) -> None:
    built = to.parent / f".{to.name}-built"
    try:
        options = ["--request-dir", request, "--fingerprint", fingerprint, "-w", built]
        result = _nvflare(request, "package", signed, *options, "--force")
        if to.is_dir():  # a kit that is renewed
            _keep_logs(to, Path(result["output_dir"]))
            os.replace(to, built / "before")
        os.replace(result["output_dir"], to)
    finally:
        shutil.rmtree(built, ignore_errors=True)
    close_to_others(to)  # FLARE lets everybody run its scripts


def _keep_logs(before: Path, kit: Path) -> None:
    """Copy the logs of a kit to the one that replaces it."""
    for log in (*before.glob("log.txt*"), *before.glob("console.txt*")):
        shutil.copy2(log, kit / log.name)


def _nvflare(home: Path, *words: object) -> dict[str, Any]:
    """Run a command of FLARE and return its data.

    Files that the command writes to the home directory go to `home`. Only the user can read what it
    writes.
    """
    command = [sys.executable, "-m", "nvflare.cli", *map(str, words), "--format", "json"]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        umask=PRIVATE_UMASK,
        env=os.environ | {"HOME": str(home)},
        check=False,
    )
    try:
        output = json.loads(process.stdout)
    except ValueError:
        last = (process.stderr.strip() or process.stdout.strip() or "nothing").splitlines()[-1]
        raise ComityError(f"nvflare {words[0]} failed and said: {last}") from None
    if output.get("status") != "ok":
        # Hints for invalid arguments are about FLARE's command line, which the user did not type.
        hint = "" if output.get("error_code") == "INVALID_ARGS" else output.get("hint") or ""
        message = output.get("message", "NVIDIA FLARE refused, and did not say why.")
        raise UsageError(f"{message} {hint}".strip())
    return dict(output["data"])


def _write_yaml(file: Path, content: dict[str, Any]) -> None:
    write_atomically(file, json.dumps(content, indent=2) + "\n")  # JSON is valid YAML
