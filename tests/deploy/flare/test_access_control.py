"""Requests and connections that a server and its sites refuse."""

from __future__ import annotations

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
from deployment import Deployment, expire, sign

from comity.deploy.flare import startup_kits
from comity.deploy.flare.jobs import Jobs, write_job
from comity.errors import ComityError, UsageError


def submit(jobs: Jobs, change: Callable[[Path], object]) -> str:
    """Submit a job whose files were changed."""
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
        content: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
        content["components"].append({"id": "more", "path": path, "args": {}})
        config.write_text(json.dumps(content), encoding="utf-8")

    return change


def test_job_with_code_is_refused(deployment: Deployment) -> None:
    """The server refuses it; sites refuse it, too, if the server does not."""
    with deployment.jobs() as jobs:
        deployment.wait_for(jobs)
        job = submit(jobs, with_code)
        assert jobs.wait(job, seconds=60) == "FINISHED:FAILED_TO_RUN"
        assert jobs._session.get_job_meta(job)["job_deploy_detail"] == [
            "server: BYOC not permitted"
        ]
    rules = deployment.hub / startup_kits.SERVER / "local" / "authorization.json"
    strict = rules.read_text(encoding="utf-8")
    deployment.stop("server")
    try:
        rules.write_text(
            (rules.parent / "authorization.json.default").read_text(encoding="utf-8"),
            encoding="utf-8",
        )
        deployment.start("server")
        with deployment.jobs() as jobs:
            deployment.wait_for(jobs)
            job = submit(jobs, with_code)
            assert jobs.wait(job, seconds=60) == "FINISHED:FAILED_TO_RUN"
            detail = jobs._session.get_job_meta(job)["job_deploy_detail"]
            assert set(detail) >= {
                f"{name}: NVFLARE_ERROR: BYOC not permitted" for name in deployment.names
            }
    finally:
        deployment.stop("server")
        rules.write_text(strict, encoding="utf-8")


@pytest.mark.parametrize(
    ("where", "file", "path"),
    [
        ("north", "config_fed_client.json", "nvflare.app_common.np.np_trainer.NPTrainer"),
        ("north", "config_fed_client.json", "subprocess.Popen"),
        ("server", "config_fed_server.json", "nvflare.app_common.np.np_formatter.NPFormatter"),
    ],
)
def test_class_outside_the_allow_list_is_refused(
    deployment: Deployment, where: str, file: str, path: str
) -> None:
    with deployment.jobs() as jobs:
        deployment.wait_for(jobs)
        job = submit(jobs, with_class(file, path))
        assert jobs.wait(job, seconds=60) in (
            "FINISHED:ABNORMAL",
            "FINISHED:EXECUTION_EXCEPTION",
            "FINISHED:ABORTED",
        )
    assert f"{path!r} at config path 'components.#2' is not in allow_list" in deployment.output(
        where
    )
    assert not deployment.steps()


def add_member(hub: Path) -> None:
    """Make a kit for a person who may not submit jobs."""
    invite = startup_kits.Invite.load(hub / startup_kits.INVITE)
    member = {"name": "member@comity.local", "type": "admin", "role": "member"}
    member["org"] = startup_kits.ORGANISATION
    startup_kits._make_kit(hub, "member", invite.project, member, invite.fingerprint)


def test_member_must_not_submit_jobs(deployment: Deployment) -> None:
    if not (deployment.hub / "member").exists():
        add_member(deployment.hub)
    with (
        deployment.jobs("member") as jobs,
        pytest.raises(UsageError, match="not authorized for 'submit_job'"),
    ):
        jobs.submit({"steps": []})


def test_lead_has_no_access_to_a_site(deployment: Deployment) -> None:
    from nvflare.fuel.flare_api.api_spec import AuthorizationError

    with deployment.jobs() as jobs:
        deployment.wait_for(jobs)
        with pytest.raises(AuthorizationError):
            jobs._session.cat_target("north", file="log.txt")
        with pytest.raises(AuthorizationError):
            jobs._session.configure_site_log("DEBUG")
        assert "not authorized" in str(jobs._session.restart("client", ["north"]))
        assert "north" in jobs.sites()


def test_kit_of_another_root_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    """A site and a researcher of another federation connect to this server."""
    invite = startup_kits.Invite.load(deployment.hub / startup_kits.INVITE)
    foreign_invite = startup_kits.init(tmp_path / "hub", invite.host, invite.port)
    west = deployment.site("west")
    request = startup_kits.join(foreign_invite, "west", west)
    startup_kits.accept(
        startup_kits.approve(tmp_path / "hub", request), west, foreign_invite.fingerprint
    )
    with (
        pytest.raises(ComityError, match="did not let this kit in"),
        Jobs.at(tmp_path / "hub" / startup_kits.LEAD, seconds=5),
    ):
        pass
    try:
        assert is_kept_out(deployment, "west")
    finally:
        shutil.rmtree(west)


def test_expired_certificate_is_refused(deployment: Deployment) -> None:
    west = deployment.site("west")
    deployment.stop("north")
    with deployment.jobs() as jobs:
        deployment.wait_until_gone(jobs, "north")
    shutil.copytree(deployment.site("north"), west)
    expire(west / startup_kits.KIT / "startup" / "client.crt", deployment.hub / startup_kits.ROOT)
    try:
        deployment.start("west")
        assert deployment.processes.pop("west").wait(timeout=30) == 1
        assert "expired on" in deployment.output("west")
        unchecked = (
            "from comity.deploy.flare import processes; processes.check_certificate = lambda *_:"
            " None; "
        )
        assert is_kept_out(deployment, "west", known_as="north", first=unchecked)
    finally:
        shutil.rmtree(west)


def is_kept_out(deployment: Deployment, name: str, known_as: str = "", first: str = "") -> bool:
    """Whether a site that is started is not connected after a while."""
    deployment.start(name, first=first)
    try:
        with deployment.jobs() as jobs:
            deployment.wait_for(
                jobs, *(site for site in deployment.names if site in deployment.processes)
            )
            time.sleep(10)
            return (known_as or name) not in jobs.sites()
    finally:
        deployment.stop(name)


def test_server_refuses_tls_without_a_valid_certificate(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Connect to the port with a site's certificate, with none, with an expired one, and with one
    of another root.
    """
    startup = deployment.site("north") / startup_kits.KIT / "startup"
    assert accepts_certificate(deployment, startup / "client.crt", startup / "client.key")
    assert not accepts_certificate(deployment, None, None)
    shutil.copy(startup / "client.crt", tmp_path / "expired.crt")
    expire(tmp_path / "expired.crt", deployment.hub / startup_kits.ROOT)
    assert not accepts_certificate(deployment, tmp_path / "expired.crt", startup / "client.key")
    startup_kits._nvflare(
        tmp_path,
        "cert",
        "init",
        "--profile",
        deployment.hub / startup_kits.PROFILE,
        "-o",
        tmp_path / "other",
    )
    shutil.copy(startup / "client.crt", tmp_path / "foreign.crt")
    sign(tmp_path / "foreign.crt", tmp_path / "other", -1, 100)
    assert not accepts_certificate(deployment, tmp_path / "foreign.crt", startup / "client.key")


def accepts_certificate(deployment: Deployment, certificate: Path | None, key: Path | None) -> bool:
    """Whether the server accepts a connection with this certificate."""
    context = ssl.create_default_context(
        cafile=str(deployment.hub / startup_kits.ROOT / "rootCA.pem")
    )
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    port = startup_kits.Invite.load(deployment.hub / startup_kits.INVITE).port
    try:
        with (
            socket.create_connection(("localhost", port), timeout=10) as at,
            context.wrap_socket(at, server_hostname="localhost") as to,
        ):
            to.sendall(
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
            )  # the preface of HTTP/2
            return len(to.recv(9)) == 9
    except (ssl.SSLError, ConnectionError):
        return False
