"""The folders with certificates that a server, a site and a researcher need, each made by its
owner.

The operator makes the root and invites; a site makes its key and a request, which the operator
signs; the site checks that the signature is of the root whose fingerprint it was told, and builds
its kit. No private key leaves the folder it was made in. All of it is done by the commands `nvflare
cert` and `nvflare package`, in processes of their own: they end their process when they refuse
something.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comity.deploy.flare import needs_flare
from comity.deploy.flare.hardening import harden_server, harden_site
from comity.errors import ComityError, UsageError, quote
from comity.runs.checkpoint import write_atomically

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
    """What a site must know to ask for admission; nothing in it is secret."""

    project: str
    host: str
    port: int
    fingerprint: str

    def save(self, file: Path) -> None:
        """Write it as a small json file."""
        write_atomically(file, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, file: Path) -> Invite:
        """Read what `save` wrote."""
        try:
            held = json.loads(file.read_text(encoding="utf-8"))
            invite = cls(
                str(held["project"]), str(held["host"]), int(held["port"]), str(held["fingerprint"])
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
) -> Invite:
    """Make the root, the server's kit and the researcher's kit in `folder`, and the invitation for
    sites.
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
            f"{folder} has a root already: it is not made anew, as every site's certificate hangs"
            " on it."
        )
    (folder / ROOT).mkdir(parents=True, mode=0o700)
    try:
        invite = _init(folder, host, port, researcher, project)
    except BaseException:
        for made in (folder / ROOT, folder / SERVER, folder / LEAD):
            shutil.rmtree(made, ignore_errors=True)
        raise
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
    made = _nvflare(folder / ROOT, "cert", "init", "--profile", profile, "-o", folder / ROOT)
    fingerprint = str(made["rootca_fingerprint_sha256"])
    ports = {"fed_learn_port": port, "admin_port": port, "connection_security": "mtls"}
    for kit, entry in (
        (SERVER, {"name": host, "type": "server", "org": ORGANISATION, **ports}),
        (LEAD, {"name": researcher, "type": "admin", "org": ORGANISATION, "role": "lead"}),
    ):
        _own_kit(folder, kit, project, entry, fingerprint)
    harden_server(folder / SERVER, folder)
    return Invite(project, host, port, fingerprint)


def add_user(folder: Path, kit: str, user: str, role: str) -> Path:
    """One more kit in the operator's `folder`, for a person with a role of FLARE's (lead, member or
    org_admin).
    """
    needs_flare()
    invite = Invite.load(folder / INVITE)
    _own_kit(
        folder,
        kit,
        invite.project,
        {"name": user, "type": "admin", "org": ORGANISATION, "role": role},
        invite.fingerprint,
    )
    return folder / kit


def join(invite: Invite, name: str, folder: Path) -> Path:
    """Make a site's private key and its request in `folder`; returns the zip file to send to the
    operator, which holds no key.
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
            f"{folder} has asked already: send its request again, or remove {folder / REQUEST} to"
            " ask anew."
        )
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"name": name, "type": "client", "org": ORGANISATION}
    return _request(folder / REQUEST, invite.project, entry)


def approve(folder: Path, request: Path, signed: Path | None = None, again: bool = False) -> Path:
    """Sign a site's request with the root in the operator's `folder`; returns the zip file to send
    back.

    A request for anything but a site is refused, and so is one with the name of a site that has
    another key, unless `again`.
    """
    needs_flare()
    asked = requested(request)
    if asked.get("kind") != "site":
        raise UsageError(
            f"{request} asks to be {quote(asked.get('kind'))}, not a site: it is not signed."
        )
    if asked.get("name") in approved(folder, but=asked.get("public_key_sha256")) and not again:
        raise UsageError(
            f"A site {quote(asked.get('name'))} with another key was approved before: whoever has"
            " both keys is both."
        )
    return _sign(
        folder,
        request,
        signed or request.with_name(request.name.removesuffix(".request.zip") + ".signed.zip"),
    )


def requested(request: Path) -> dict[str, Any]:
    """What a request asks for: its name, the kind (site, server or user), and the hash of its
    public key.
    """
    try:
        with zipfile.ZipFile(request) as held, held.open("request.json") as file:
            asked = json.loads(file.read(LARGEST))
    except OSError as why:
        raise UsageError(f"The request {request} cannot be read: {why.strerror}.") from None
    except (zipfile.BadZipFile, KeyError, ValueError, RuntimeError, NotImplementedError):
        raise UsageError(f"{request} is not a request of `comity deploy join`.") from None
    if not isinstance(asked, dict):
        raise UsageError(f"{request} is not a request of `comity deploy join`.")
    return asked


def approved(folder: Path, but: str | None = None) -> set[str]:
    """The names of the sites that were approved, but for those with one public key."""
    names = set()
    for record in (folder / ROOT / ".nvflare" / "cert_approves").glob("*.json"):
        asked = json.loads(record.read_text(encoding="utf-8"))["request"]
        if asked["kind"] == "site" and asked["public_key_sha256"] != but:
            names.add(asked["name"])
    return names


def _sign(folder: Path, request: Path, to: Path, days: int = 1095) -> Path:
    _nvflare(
        folder / ROOT, "cert", "approve", request, "-c", folder / ROOT, "--profile", folder / PROFILE,
        "--out", to, "--valid-days", days, "--force",
    )  # fmt: skip
    return to


def accept(signed: Path, folder: Path, fingerprint: str) -> Path:
    """Check that `signed` is of the root with this fingerprint, and build the site's kit from it
    and the key in `folder`.
    """
    needs_flare()
    if not (folder / REQUEST).is_dir():
        raise UsageError(
            f"{folder} has not asked for admission yet: comity deploy join comes first."
        )
    if not signed.is_file():
        raise UsageError(f"There is no signed request {signed}.")
    _package(signed, folder / REQUEST, fingerprint, folder / KIT)
    harden_site(folder / KIT)
    shutil.rmtree(folder / REQUEST)  # the key is in the kit now, and needs no second place
    return folder / KIT


def _own_kit(folder: Path, kit: str, project: str, entry: dict[str, Any], fingerprint: str) -> None:
    """All three steps at once, for what belongs to the operator."""
    asked = folder / f".{kit}"
    request = _request(asked, project, entry)
    signed = _sign(folder, request, asked / "own.signed.zip")
    _package(signed, asked, fingerprint, folder / kit)
    shutil.rmtree(asked)


def _request(folder: Path, project: str, entry: dict[str, Any]) -> Path:
    folder.mkdir(mode=0o700)
    try:
        _write_yaml(folder / "participant.yaml", {"name": project, "participants": [entry]})
        made = _nvflare(
            folder, "cert", "request", "-p", folder / "participant.yaml", "--out", folder, "--force"
        )
    except BaseException:
        shutil.rmtree(folder)
        raise
    return Path(made["request_zip"])


def _package(signed: Path, request: Path, fingerprint: str, to: Path) -> None:
    built = to.parent / f".{to.name}-built"
    try:
        made = _nvflare(
            request, "package", signed, "--request-dir", request, "--fingerprint", fingerprint, "-w", built, "--force"
        )  # fmt: skip
        os.replace(made["output_dir"], to)
    finally:
        shutil.rmtree(built, ignore_errors=True)
    os.chmod(to, 0o700)


def _nvflare(home: Path, *words: object) -> dict[str, Any]:
    """What one of FLARE's own commands answers; what it would write into the home directory goes to
    `home`.
    """
    command = [sys.executable, "-m", "nvflare.cli", *map(str, words), "--format", "json"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(home)},
        check=False,
    )
    try:
        said = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise ComityError(f"nvflare {words[0]} failed and said: {last}") from None
    if said.get("status") != "ok":
        # Some hints are of its own command line, which nobody used.
        hint = "" if said.get("error_code") == "INVALID_ARGS" else said.get("hint") or ""
        raise UsageError(
            f"{said.get('message', 'NVIDIA FLARE refused, and did not say why.')} {hint}".strip()
        )
    return dict(said["data"])


def _write_yaml(file: Path, held: dict[str, Any]) -> None:
    write_atomically(file, json.dumps(held, indent=2) + "\n")  # every json text is yaml
