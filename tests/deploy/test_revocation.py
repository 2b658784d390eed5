"""Revoked certificates: who refuses them, and which lists are believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from in_process_sites import HUB, OPEN, Root, Sites, ended

from comity.deploy.key_exchange import Identity
from comity.deploy.messages import REPLIES, Introduced, pack, unpack
from comity.deploy.revocation import REVOKED, Revocations, revoke
from comity.deploy.server import FAILURE, RUNS, serve
from comity.errors import UsageError
from comity.runs.folder import RunFolder
from comity.wire.ledger import SERVER

SIZES = {"north": (47, 12), "east": (23, 9), "south": (34, 17)}
SETTINGS = {"algorithm": "fedavg", "model": "linear", "rounds": 1, "data": "sites"} | {
    "partition": "natural"
}


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    sites = Sites(tmp_path, SIZES, OPEN | {"export = true": "export = false"})
    for name in SIZES:
        with_list(sites, name, sites.root.lasting_identity(name))
    sites.root.lasting[HUB] = sites.root.identity(HUB)
    return sites


def with_list(sites: Sites, name: str, identity: Identity) -> None:
    """Give a site the list in its folder, as `Identity.read` does."""
    revocations = Revocations(sites.site(name), sites.root.certificate)
    sites.root.lasting[name] = Identity(
        identity.certificate, identity.signer, identity.root, revocations
    )


def root_folder(root: Root, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "rootCA.pem").write_bytes(root.certificate.public_bytes(Encoding.PEM))
    (folder / "rootCA.key").write_bytes(
        root.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return folder


def revoked(sites: Sites, name: str) -> Revocations:
    """Revoke a certificate as the operator does."""
    hub = sites.folder / "hub"
    certificate = sites.root.lasting[name].certificate
    serial = f"{certificate.serial_number:#x}"
    return revoke(hub, root_folder(sites.root, sites.folder / "root"), [serial], name)


def run(sites: Sites, name: str, revocations: Revocations | None = None) -> Path:
    server = sites.root.lasting[HUB]
    identity = Identity(server.certificate, server.signer, server.root, revocations)
    transport = sites.transport()
    serve(
        transport,
        {"run": name, "settings": SETTINGS},
        sites.folder / "hub",
        identity=identity,
    )
    return sites.folder / "hub" / RUNS / name


def taking_part(folder: Path) -> set[str]:
    return {row.party for row in RunFolder(folder).read_metrics()} - {SERVER}


@pytest.fixture(autouse=True)
def _no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages take seconds, and are tested elsewhere."""
    monkeypatch.setattr("comity.deploy.site_results._write_page", lambda run: [])


def test_revoked_site_takes_no_part(sites: Sites) -> None:
    folder = run(sites, "first")
    assert "takes no part" not in str(ended(folder)["warnings"])
    folder = run(sites, "second", revoked(sites, "south"))
    summary = ended(folder)
    assert taking_part(folder) == {"east", "north"}
    assert (
        "south takes no part: The certificate of south was revoked by the operator."
        in str(summary["warnings"])
    )  # fmt: skip


def test_sites_refuse_a_peer_that_a_server_without_the_list_lets_in(sites: Sites) -> None:
    """North got the list by mail; the server does not send it."""
    revoked(sites, "south")
    (sites.site("north") / REVOKED).write_bytes((sites.folder / "hub" / REVOKED).read_bytes())
    with_list(sites, "north", sites.root.lasting["north"])
    folder = run(sites, "first")
    assert (
        "north does not begin: The certificate of south was revoked by the operator."
        in (folder / FAILURE).read_text()
    )


def test_sites_learn_the_list_from_the_server_and_keep_it(sites: Sites) -> None:
    revocations = revoked(sites, "south")
    ended(run(sites, "first", revocations))
    for name in ("north", "east"):
        assert (sites.site(name) / REVOKED).read_text() == revocations.text
        assert not (sites.site(name) / REVOKED).stat().st_mode & 0o077
    # A server that forgets the list later, or sends the one before, changes nothing.
    with_list(sites, "north", sites.root.lasting["north"])
    assert "was revoked" in (run(sites, "second") / FAILURE).read_text()
    newer = revoked(sites, "east")
    assert newer.number == 2
    ended(run(sites, "third", newer))
    assert "was revoked" in (run(sites, "fourth", revocations) / FAILURE).read_text()
    assert (sites.site("north") / REVOKED).read_text() == newer.text


def test_revoked_server_is_refused_at_once(sites: Sites) -> None:
    """A thief of the server's key brings the list itself, or a site has it from before."""
    revocations = revoked(sites, HUB)
    folder = run(sites, "first", revocations)
    assert (
        f"The certificate of {HUB} was revoked by the operator." in (folder / FAILURE).read_text()
    )
    folder = run(sites, "second")
    assert (
        f"The certificate of {HUB} was revoked by the operator." in (folder / FAILURE).read_text()
    )
    assert not (sites.site("north") / "runs").exists()


def test_list_of_another_root_is_refused(sites: Sites, tmp_path: Path) -> None:
    other = Root()
    south = sites.root.lasting["south"].certificate
    forged = revoke(
        tmp_path / "hub",
        root_folder(other, tmp_path / "other"),
        [hex(south.serial_number)],
        "south",
    )
    folder = run(sites, "first", forged)
    assert "is not signed by the root of this federation" in (folder / FAILURE).read_text()
    assert not (sites.site("north") / REVOKED).exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content | {"revoked": []},
        lambda content: content | {"number": 99},
        lambda content: content | {"signature": "00"},
        lambda content: {"revoked": content["revoked"]},
        lambda content: [],
    ],
)
def test_changed_list_is_refused(change: object, sites: Sites) -> None:
    revoked(sites, "south")
    path = sites.folder / "hub" / REVOKED
    assert callable(change)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(UsageError, match="get it from the operator again"):
        Revocations(sites.folder / "hub", sites.root.certificate)


def test_revoked_twice_is_listed_once(sites: Sites) -> None:
    revoked(sites, "south")
    again = revoked(sites, "south")
    assert again.number == 2
    assert len(json.loads(again.text)["revoked"]) == 1


def test_new_certificate_of_a_revoked_site_is_accepted(sites: Sites) -> None:
    revocations = revoked(sites, "south")
    with_list(sites, "south", sites.root.identity("south"))
    folder = run(sites, "first", revocations)
    ended(folder)
    assert taking_part(folder) == {*SIZES}


def test_site_without_a_certificate_takes_no_part(sites: Sites) -> None:
    """TLS lets a revoked site in. It cannot avoid the list by showing no certificate."""
    transport = sites.transport()

    def without(name: str, answer: bytes) -> bytes:
        head, body = unpack(answer, REPLIES, len(answer))
        if name == "south" and isinstance(head, Introduced):
            object.__setattr__(head, "signed_key", None)
            return pack(head, body)
        return answer

    transport.changed = without
    serve(
        transport,
        {"run": "first", "settings": SETTINGS},
        sites.folder / "hub",
        identity=sites.root.lasting[HUB],
    )
    summary = ended(sites.folder / "hub" / RUNS / "first")
    assert "south takes no part: it has shown no certificate." in str(summary["warnings"])
