"""What a server and sites refuse, whoever asks."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from deployed import Deployed

from comity.deploy.flare import startup_kits
from comity.deploy.flare.jobs import Jobs, write_job
from comity.errors import ComityError, UsageError


def submit(jobs: Jobs, change: Callable[[Path], object]) -> str:
    """Submit a job that is not as we write them."""
    with tempfile.TemporaryDirectory() as folder:
        write_job({"steps": [{"ask": "who"}]}, Path(folder) / "comity")
        change(Path(folder) / "comity")
        return str(jobs._session.submit_job(str(Path(folder) / "comity")))


def with_code(job: Path) -> None:
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "more.py").write_text("raise SystemExit\n", encoding="utf-8")


def with_class(file: str, path: str) -> Callable[[Path], object]:
    def change(job: Path) -> None:
        config = job / "app" / "config" / file
        held: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
        held["components"].append({"id": "more", "path": path, "args": {}})
        config.write_text(json.dumps(held), encoding="utf-8")

    return change


def test_code_in_a_job(place: Deployed) -> None:
    """The server refuses it; and so do sites, when the server lets it pass."""
    with place.jobs() as jobs:
        place.wait_for(jobs)
        job = submit(jobs, with_code)
        assert jobs.wait(job, seconds=60) == "FINISHED:FAILED_TO_RUN"
        assert jobs._session.get_job_meta(job)["job_deploy_detail"] == [
            "server: BYOC not permitted"
        ]
    rules = place.hub / startup_kits.SERVER / "local" / "authorization.json"
    strict = rules.read_text(encoding="utf-8")
    place.stop("server")
    try:
        rules.write_text(
            (rules.parent / "authorization.json.default").read_text(encoding="utf-8"),
            encoding="utf-8",
        )
        place.start("server")
        with place.jobs() as jobs:
            place.wait_for(jobs)
            job = submit(jobs, with_code)
            assert jobs.wait(job, seconds=60) == "FINISHED:FAILED_TO_RUN"
            detail = jobs._session.get_job_meta(job)["job_deploy_detail"]
            assert set(detail) >= {
                f"{name}: NVFLARE_ERROR: BYOC not permitted" for name in place.names
            }
    finally:
        place.stop("server")
        rules.write_text(strict, encoding="utf-8")


@pytest.mark.parametrize(
    ("where", "file", "path"),
    [
        ("north", "config_fed_client.json", "nvflare.app_common.np.np_trainer.NPTrainer"),
        ("north", "config_fed_client.json", "subprocess.Popen"),
        ("server", "config_fed_server.json", "nvflare.app_common.np.np_formatter.NPFormatter"),
    ],
)
def test_a_class_that_is_not_listed(place: Deployed, where: str, file: str, path: str) -> None:
    with place.jobs() as jobs:
        place.wait_for(jobs)
        job = submit(jobs, with_class(file, path))
        assert jobs.wait(job, seconds=60) in (
            "FINISHED:ABNORMAL",
            "FINISHED:EXECUTION_EXCEPTION",
            "FINISHED:ABORTED",
        )
    assert f"{path!r} at config path 'components.#2' is not in allow_list" in place.said(where)
    assert not place.steps()


def test_a_role_that_may_not(place: Deployed) -> None:
    if not (place.hub / "member").exists():
        startup_kits.add_user(place.hub, "member", "member@comity.local", "member")
    with (
        place.jobs("member") as jobs,
        pytest.raises(UsageError, match="not authorized for 'submit_job'"),
    ):
        jobs.submit({"steps": []})


def test_the_lead_may_not_look_into_a_site(place: Deployed) -> None:
    from nvflare.fuel.flare_api.api_spec import AuthorizationError

    with place.jobs() as jobs:
        place.wait_for(jobs)
        with pytest.raises(AuthorizationError):
            jobs._session.cat_target("north", file="log.txt")
        with pytest.raises(AuthorizationError):
            jobs._session.configure_site_log("DEBUG")
        assert "not authorized" in str(jobs._session.restart("client", ["north"]))
        assert "north" in jobs.sites()


def test_a_kit_of_another_root(place: Deployed, tmp_path: Path) -> None:
    """A site and a researcher of another federation, who point their startup_kits at this server."""
    ours = startup_kits.Invite.load(place.hub / startup_kits.INVITE)
    theirs = startup_kits.init(tmp_path / "hub", ours.host, ours.port)
    west = place.site("west")
    request = startup_kits.join(theirs, "west", west)
    startup_kits.accept(startup_kits.approve(tmp_path / "hub", request), west, theirs.fingerprint)
    with (
        pytest.raises(ComityError, match="did not let this kit in"),
        Jobs.at(tmp_path / "hub" / startup_kits.LEAD, seconds=5),
    ):
        pass
    try:
        assert kept_out(place, "west")
    finally:
        shutil.rmtree(west)


def test_a_certificate_that_has_expired(place: Deployed) -> None:
    west = place.site("west")
    place.stop("north")
    with place.jobs() as jobs:
        place.wait_until_gone(jobs, "north")
    shutil.copytree(place.site("north"), west)
    expire(west / startup_kits.KIT / "startup" / "client.crt", place.hub / startup_kits.ROOT)
    try:
        place.start("west")
        assert place.processes.pop("west").wait(timeout=30) == 1
        assert "expired on" in place.said("west")
        unchecked = (
            "from comity.deploy.flare import processes; processes.check_certificate = lambda *_:"
            " None; "
        )
        assert kept_out(place, "west", known_as="north", first=unchecked)
    finally:
        shutil.rmtree(west)


def kept_out(place: Deployed, name: str, known_as: str = "", first: str = "") -> bool:
    """Whether a site that was started is not among those that are connected after a while."""
    place.start(name, first=first)
    try:
        with place.jobs() as jobs:
            place.wait_for(jobs, *(one for one in place.names if one in place.processes))
            time.sleep(10)
            return (known_as or name) not in jobs.sites()
    finally:
        place.stop(name)


def test_the_server_shakes_hands_with_nobody_else(place: Deployed, tmp_path: Path) -> None:
    """At the port itself: a site's certificate, none, an expired one, one of another root."""
    startup = place.site("north") / startup_kits.KIT / "startup"
    assert lets_in(place, startup / "client.crt", startup / "client.key")
    assert not lets_in(place, None, None)
    shutil.copy(startup / "client.crt", tmp_path / "expired.crt")
    expire(tmp_path / "expired.crt", place.hub / startup_kits.ROOT)
    assert not lets_in(place, tmp_path / "expired.crt", startup / "client.key")
    startup_kits._nvflare(
        tmp_path,
        "cert",
        "init",
        "--profile",
        place.hub / startup_kits.PROFILE,
        "-o",
        tmp_path / "other",
    )
    shutil.copy(startup / "client.crt", tmp_path / "foreign.crt")
    sign(tmp_path / "foreign.crt", tmp_path / "other", -1, 100)
    assert not lets_in(place, tmp_path / "foreign.crt", startup / "client.key")


def lets_in(place: Deployed, certificate: Path | None, key: Path | None) -> bool:
    """Whether the server begins to talk to whoever has this certificate."""
    context = ssl.create_default_context(cafile=str(place.hub / startup_kits.ROOT / "rootCA.pem"))
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    port = startup_kits.Invite.load(place.hub / startup_kits.INVITE).port
    try:
        with (
            socket.create_connection(("localhost", port), timeout=10) as at,
            context.wrap_socket(at, server_hostname="localhost") as to,
        ):
            to.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")  # how HTTP/2 begins
            return len(to.recv(9)) == 9
    except (ssl.SSLError, ConnectionError):
        return False


def expire(certificate: Path, root: Path) -> None:
    """The same certificate, signed by the same root, but of last year."""
    sign(certificate, root, -400, -35)


def sign(certificate: Path, root: Path, first: int, last: int) -> None:
    """The same certificate, signed by a root, valid from one day to another, counted from today."""
    was = x509.load_pem_x509_certificate(certificate.read_bytes())
    key: Any = serialization.load_pem_private_key((root / "rootCA.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((root / "rootCA.pem").read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    fresh = (
        x509.CertificateBuilder()
        .subject_name(was.subject)
        .issuer_name(issuer.subject)
        .public_key(was.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=-first))
        .not_valid_after(now - datetime.timedelta(days=-last))
    )
    for extension in was.extensions:
        fresh = fresh.add_extension(extension.value, extension.critical)
    certificate.write_bytes(
        fresh.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
