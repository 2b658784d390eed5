"""Kits: who makes which key, what is signed, and what the hardened files allow."""

from __future__ import annotations

import json
import os
import shutil
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
from harness import succeed

from comity.deploy.flare import hardening, startup_kits
from comity.errors import UsageError


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("startup_kits") / "hub"
    startup_kits.init(folder, "localhost", 18999)
    return folder


@pytest.fixture(scope="module")
def joined(hub: Path) -> tuple[Path, Path]:
    """A site that asked, and its request."""
    site = hub.parent / "north"
    return site, startup_kits.join(
        startup_kits.Invite.load(hub / startup_kits.INVITE), "north", site
    )


def read(file: Path) -> dict[str, object]:
    held = json.loads(file.read_text(encoding="utf-8"))
    assert isinstance(held, dict)
    return held


def test_an_invitation_holds_no_secret(hub: Path) -> None:
    assert set(read(hub / startup_kits.INVITE)) == {"project", "host", "port", "fingerprint"}
    assert startup_kits.Invite.load(hub / startup_kits.INVITE).fingerprint.startswith("SHA256:")


def test_keys_are_their_owners_only(hub: Path, joined: tuple[Path, Path]) -> None:
    site, request = joined
    for key in [*hub.rglob("*.key"), *site.rglob("*.key")]:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key
    assert sorted(key.name for key in hub.rglob("*.key")) == [
        "client.key",
        "rootCA.key",
        "server.key",
    ]
    with zipfile.ZipFile(request) as held:
        assert sorted(held.namelist()) == ["north.csr", "request.json", "site.yaml"]
        assert not any(b"PRIVATE" in held.read(name) for name in held.namelist())


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_site_s_folder_is_for_the_site_alone(
    umask: int, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"west-{umask}"
    monkeypatch.chdir(tmp_path)
    np.savez(f"{name}.npz", x=np.zeros((40, 3), np.float32), y=np.arange(40) % 2)
    before = os.umask(umask)
    try:
        succeed("deploy", "join", hub / startup_kits.INVITE, "--data", f"{name}.npz")
        signed = startup_kits.approve(hub, tmp_path / f"{name}.request.zip")
        fingerprint = startup_kits.Invite.load(hub / startup_kits.INVITE).fingerprint
        startup_kits.accept(signed, tmp_path / name, fingerprint)
    finally:
        os.umask(before)
    inside = list((tmp_path / name).rglob("*"))
    assert {"site.toml", "x.npy", "dataset.json", "client.key"} <= {path.name for path in inside}
    for path in (tmp_path / name, *inside):
        assert not path.stat().st_mode & 0o077, path


def test_a_root_is_not_made_twice(hub: Path) -> None:
    with pytest.raises(UsageError, match="has a root already"):
        startup_kits.init(hub, "localhost", 18999)


def test_nothing_is_left_of_an_init_that_failed(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        startup_kits.init(tmp_path, "not a host", 18999)
    assert not (tmp_path / startup_kits.ROOT).exists()


@pytest.mark.parametrize("name", ["", "no/rth", "n" * 64, "a b", "-north"])
def test_names_that_sites_cannot_have(hub: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="letters, digits and hyphens"):
        startup_kits.join(startup_kits.Invite.load(hub / startup_kits.INVITE), name, tmp_path)


def test_only_sites_are_approved(hub: Path, tmp_path: Path) -> None:
    """A request that asks for more than a site's place would make its owner a researcher."""
    entry = {"name": "eve@comity.local", "type": "admin", "org": "comity", "role": "org_admin"}
    request = startup_kits._request(tmp_path / "eve", "comity", entry)
    with pytest.raises(UsageError, match="'user', not a site"):
        startup_kits.approve(hub, request)
    with pytest.raises(UsageError, match="is not a request"):
        startup_kits.approve(hub, hub / startup_kits.INVITE)
    with pytest.raises(UsageError, match="No such file"):
        startup_kits.approve(hub, tmp_path / "none.request.zip")


def test_a_request_that_lies_about_its_kind_is_refused(hub: Path, tmp_path: Path) -> None:
    entry = {"name": "eve@comity.local", "type": "admin", "org": "comity", "role": "lead"}
    request = startup_kits._request(tmp_path / "eve", "comity", entry)
    lie = tmp_path / "lie.request.zip"
    with zipfile.ZipFile(request) as held, zipfile.ZipFile(lie, "w") as out:
        for name in held.namelist():
            content = held.read(name)
            if name == "request.json":
                content = json.dumps(
                    json.loads(content) | {"kind": "site", "cert_type": "client", "cert_role": None}
                ).encode()
            out.writestr(name, content)
    with pytest.raises(UsageError):
        startup_kits.approve(hub, lie)
    assert not list(tmp_path.glob("*.signed.zip"))


def test_from_request_to_kit(hub: Path, joined: tuple[Path, Path], tmp_path: Path) -> None:
    site, request = joined
    invite = startup_kits.Invite.load(hub / startup_kits.INVITE)
    signed = startup_kits.approve(hub, request)
    assert startup_kits.approve(hub, request, again=False) == signed  # the same key once more
    other = startup_kits.join(invite, "north", tmp_path / "other")
    with pytest.raises(UsageError, match="another key was approved"):
        startup_kits.approve(hub, other)

    wrong = invite.fingerprint[:-2] + ("00" if invite.fingerprint[-2:] != "00" else "01")
    with pytest.raises(UsageError, match=r"(?i)fingerprint"):
        startup_kits.accept(signed, site, wrong)
    assert not (site / startup_kits.KIT).exists()
    with pytest.raises(UsageError):  # signed for another key than the one that lies here
        startup_kits.accept(signed, tmp_path / "other", invite.fingerprint)
    kit = startup_kits.accept(signed, site, invite.fingerprint)
    assert not (site / startup_kits.REQUEST).exists()
    assert stat.S_IMODE((kit / "startup" / "client.key").stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="has a kit already"):
        startup_kits.join(invite, "north", site)


def test_what_kits_allow(hub: Path, tmp_path: Path) -> None:
    shutil.copytree(hub / startup_kits.SERVER, tmp_path / "server")
    (tmp_path / "site" / "local").mkdir(parents=True)
    (tmp_path / "site" / "startup").mkdir()
    (tmp_path / "site" / "startup" / "fed_client.json").write_text("{}", encoding="utf-8")
    hardening.harden_site(tmp_path / "site")
    for kit, start in (
        (tmp_path / "server", "fed_server.json"),
        (tmp_path / "site", "fed_client.json"),
    ):
        permissions = read(kit / "local" / "authorization.json")["permissions"]
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
        resources = read(kit / "local" / "resources.json")
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert "streamer" not in json.dumps(resources)
        assert "log_receiver" not in json.dumps(resources)
        assert '"/tmp/nvflare' not in json.dumps(resources)
        assert read(kit / "startup" / start)["require_signed_jobs"] is True
    assert read(tmp_path / "site" / "local" / "resources.json")["allow_log_streaming"] is False
