"""Startup kits: where keys are created, what is signed, and the permissions in hardened files."""

from __future__ import annotations

import json
import os
import shutil
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
from deployment import expire
from harness import comity, one_sentence, succeed

from comity.deploy.flare import hardening, startup_kits
from comity.deploy.flare.processes import check_certificate
from comity.deploy.key_exchange import Identity
from comity.deploy.revocation import Revocations
from comity.errors import UsageError


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("startup_kits") / "hub"
    startup_kits.init(folder, "localhost", 18999)
    return folder


@pytest.fixture
def site_and_request(hub: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The folder of a site that asked to join, and its request."""
    site = tmp_path / "north"
    return site, startup_kits.join(
        startup_kits.Invite.load(hub / startup_kits.INVITE), "north", site
    )


def read_json(file: Path) -> dict[str, object]:
    content = json.loads(file.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def test_invitation_has_no_secret(hub: Path) -> None:
    assert set(read_json(hub / startup_kits.INVITE)) == {
        "project",
        "host",
        "port",
        "fingerprint",
        "operator",
    }
    assert startup_kits.Invite.load(hub / startup_kits.INVITE).fingerprint.startswith("SHA256:")


def test_keys_are_readable_only_by_their_owner(
    hub: Path, site_and_request: tuple[Path, Path]
) -> None:
    site, request = site_and_request
    for key in [*hub.rglob("*.key"), *site.rglob("*.key")]:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key
    assert sorted(key.name for key in hub.rglob("*.key")) == [
        "client.key",
        "rootCA.key",
        "server.key",
    ]
    with zipfile.ZipFile(request) as archive:
        assert sorted(archive.namelist()) == ["north.csr", "request.json", "site.yaml"]
        assert not any(b"PRIVATE" in archive.read(name) for name in archive.namelist())


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_site_folder_is_readable_only_by_its_owner(
    umask: int, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"west-{umask}"
    monkeypatch.chdir(tmp_path)
    np.savez(f"{name}.npz", x=np.zeros((40, 3), np.float32), y=np.arange(40) % 2)
    before = os.umask(umask)
    try:
        succeed("deploy", "join", hub / startup_kits.INVITE, "--data", f"{name}.npz")
        signed_request = startup_kits.approve(hub, tmp_path / f"{name}.request.zip")
        fingerprint = startup_kits.Invite.load(hub / startup_kits.INVITE).fingerprint
        startup_kits.accept(signed_request, tmp_path / name, fingerprint)
    finally:
        os.umask(before)
    paths = list((tmp_path / name).rglob("*"))
    assert {"site.toml", "x.npy", "dataset.json", "client.key"} <= {path.name for path in paths}
    for path in (tmp_path / name, *paths):
        assert not path.stat().st_mode & 0o077, path


def test_second_root_is_refused(hub: Path) -> None:
    with pytest.raises(UsageError, match="has a root already"):
        startup_kits.init(hub, "localhost", 18999)


def test_failed_init_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        startup_kits.init(tmp_path, "not a host", 18999)
    assert not (tmp_path / startup_kits.ROOT).exists()


@pytest.mark.parametrize("name", ["", "no/rth", "n" * 64, "a b", "-north"])
def test_invalid_site_names_are_refused(hub: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="letters, digits and hyphens"):
        startup_kits.join(startup_kits.Invite.load(hub / startup_kits.INVITE), name, tmp_path)


def test_only_sites_are_approved(hub: Path, tmp_path: Path) -> None:
    """A request for another role than a site is refused: it would make its owner a researcher."""
    entry = {"name": "eve@comity.local", "type": "admin", "org": "comity", "role": "org_admin"}
    request = startup_kits._request(tmp_path / "eve", "comity", entry)
    with pytest.raises(UsageError, match="'user', not a site"):
        startup_kits.approve(hub, request)
    with pytest.raises(UsageError, match="is not a request"):
        startup_kits.approve(hub, hub / startup_kits.INVITE)
    with pytest.raises(UsageError, match="No such file"):
        startup_kits.approve(hub, tmp_path / "none.request.zip")


def test_request_with_a_forged_kind_is_refused(hub: Path, tmp_path: Path) -> None:
    entry = {"name": "eve@comity.local", "type": "admin", "org": "comity", "role": "lead"}
    request = startup_kits._request(tmp_path / "eve", "comity", entry)
    forged_request = tmp_path / "lie.request.zip"
    with zipfile.ZipFile(request) as archive, zipfile.ZipFile(forged_request, "w") as out:
        for name in archive.namelist():
            content = archive.read(name)
            if name == "request.json":
                content = json.dumps(
                    json.loads(content) | {"kind": "site", "cert_type": "client", "cert_role": None}
                ).encode()
            out.writestr(name, content)
    with pytest.raises(UsageError):
        startup_kits.approve(hub, forged_request)
    assert not list(tmp_path.glob("*.signed.zip"))


def test_from_request_to_kit(
    hub: Path, site_and_request: tuple[Path, Path], tmp_path: Path
) -> None:
    site, request = site_and_request
    invite = startup_kits.Invite.load(hub / startup_kits.INVITE)
    signed_request = startup_kits.approve(hub, request)
    assert startup_kits.approve(hub, request, again=False) == signed_request  # the same key again
    other_request = startup_kits.join(invite, "north", tmp_path / "other")
    with pytest.raises(UsageError, match="another key was approved"):
        startup_kits.approve(hub, other_request)

    wrong_fingerprint = invite.fingerprint[:-2] + (
        "00" if invite.fingerprint[-2:] != "00" else "01"
    )
    with pytest.raises(UsageError, match=r"(?i)fingerprint"):
        startup_kits.accept(signed_request, site, wrong_fingerprint)
    assert not (site / startup_kits.KIT).exists()
    with pytest.raises(UsageError):  # signed for another key than the one in this folder
        startup_kits.accept(signed_request, tmp_path / "other", invite.fingerprint)
    kit = startup_kits.accept(signed_request, site, invite.fingerprint)
    assert not (site / startup_kits.REQUEST).exists()
    assert stat.S_IMODE((kit / "startup" / "client.key").stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="has a kit already"):
        startup_kits.join(invite, "north", site)


def test_permissions_in_hardened_kits(hub: Path, tmp_path: Path) -> None:
    shutil.copytree(hub / startup_kits.SERVER, tmp_path / "server")
    (tmp_path / "site" / "local").mkdir(parents=True)
    (tmp_path / "site" / "startup").mkdir()
    (tmp_path / "site" / "startup" / "fed_client.json").write_text("{}", encoding="utf-8")
    hardening.harden_site(tmp_path / "site")
    for kit, start in (
        (tmp_path / "server", "fed_server.json"),
        (tmp_path / "site", "fed_client.json"),
    ):
        permissions = read_json(kit / "local" / "authorization.json")["permissions"]
        assert isinstance(permissions, dict)
        assert set(permissions) == {"project_admin", "org_admin", "lead", "member"}
        for rights in permissions.values():
            assert {
                rights[name]
                for name in ("byoc", "shell_commands", "operate", "download_job", "clone_job")
            } == {"none"}
        assert [role for role, rights in permissions.items() if rights["submit_job"] != "none"] == [
            "lead"
        ]
        resources = read_json(kit / "local" / "resources.json")
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert "streamer" not in json.dumps(resources)
        assert "log_receiver" not in json.dumps(resources)
        assert '"/tmp/nvflare' not in json.dumps(resources)
        assert read_json(kit / "startup" / start)["require_signed_jobs"] is True
    assert read_json(tmp_path / "site" / "local" / "resources.json")["allow_log_streaming"] is False


def printed(*words: object) -> str:
    return " ".join(succeed(*words).out.split())


def refusal(*words: object) -> str:
    return one_sentence(comity(*words), 1, 2)


def test_accepted_site_has_nothing_to_accept(
    hub: Path, site_and_request: tuple[Path, Path]
) -> None:
    site, request = site_and_request
    signed = startup_kits.approve(hub, request, again=True)
    fingerprint = startup_kits.Invite.load(hub / startup_kits.INVITE).fingerprint
    startup_kits.accept(signed, site, fingerprint)
    with pytest.raises(UsageError, match="was accepted before, and has nothing to accept"):
        startup_kits.accept(signed, site, fingerprint)
    with pytest.raises(UsageError, match="comes first"):
        startup_kits.accept(signed, site.with_name("elsewhere"), fingerprint)


def test_site_renews_its_certificate_and_the_old_one_can_be_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands that the page names, from an expired certificate to a revoked key."""
    monkeypatch.chdir(tmp_path)
    hub, site = tmp_path / "hub", tmp_path / "north"
    startup_kits.init(hub, "localhost", 18998)
    invite = startup_kits.Invite.load(hub / startup_kits.INVITE)
    signed = startup_kits.approve(hub, startup_kits.join(invite, "north", site))
    startup_kits.accept(signed, site, invite.fingerprint)
    (site / "kit" / "console.txt").write_text("a line of the log\n")
    before = Identity.read(site / "kit" / "startup")
    expire(site / "kit" / "startup" / "client.crt", hub / startup_kits.ROOT)
    with pytest.raises(UsageError, match=f"expired on .*: comity deploy renew {site} asks"):
        check_certificate(site / "kit", "client.crt")
    message = printed("deploy", "renew", site)
    assert "north.request.zip" in message
    assert "already" in refusal("deploy", "renew", site)
    request = tmp_path / "north.request.zip"
    with pytest.raises(UsageError, match="another key was approved before"):
        startup_kits.approve(hub, request)
    succeed("deploy", "approve", request, "--federation", hub, "--again")
    succeed("deploy", "accept", "north.signed.zip", "--fingerprint", invite.fingerprint)
    check_certificate(site / "kit", "client.crt")
    after = Identity.read(site / "kit" / "startup")
    assert after.name == "north"
    assert after.certificate.serial_number != before.certificate.serial_number
    assert (site / "kit" / "console.txt").read_text() == "a line of the log\n"
    assert not (site / "request").exists()
    assert stat.S_IMODE((site / "kit" / "startup" / "client.key").stat().st_mode) == 0o600
    resources = read_json(site / "kit" / "local" / "resources.json")
    assert resources["class_list_enforcement_mode"] == "enforce"

    message = printed("deploy", "revoke", "north", "--federation", hub)
    assert "The certificates of north are revoked" in message
    revocations = Revocations(hub, after.root)
    assert revocations.has(before.certificate)
    assert revocations.has(after.certificate)
    with pytest.raises(UsageError, match="key of this request was revoked"):
        startup_kits.approve(hub, request, again=True)
    assert "nobody" in refusal("deploy", "revoke", "nobody", "--federation", hub)
    assert "is the server" in refusal("deploy", "revoke", "localhost", "--federation", hub)
    assert "is not an operator's folder" in refusal("deploy", "revoke", "north")


def test_operator_renews_the_kits_of_server_and_researcher(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    startup_kits.init(hub, "localhost", 18997)
    server = hub / startup_kits.SERVER
    expire(server / "startup" / "server.crt", hub / startup_kits.ROOT)
    with pytest.raises(UsageError, match=f"comity deploy renew {hub} makes a new one"):
        check_certificate(server, "server.crt")
    succeed("deploy", "renew", hub)
    check_certificate(server, "server.crt")
    assert Identity.read(server / "startup", "server").name == "localhost"
    resources = read_json(server / "local" / "resources.json")
    assert resources["class_list_enforcement_mode"] == "enforce"
