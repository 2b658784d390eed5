"""Who may ask: a site answers the server of its federation only, each request once, and only for
the run that the submitter has signed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from in_process_sites import HUB, Handed, Root, Sites
from malicious_server import METHOD, SETTINGS, SIZES, MaliciousServer, Refused, weights

from comity.base.record import Model
from comity.deploy.handler import RequestHandler
from comity.deploy.key_exchange import Identity
from comity.deploy.messages import REPLIES, Failed, Introduce, RunCall, pack, unpack
from comity.deploy.session import AUTHENTICATED, LENGTH, SIGNED, AuthenticatedTransport
from comity.wire.codec import encode


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


def server_of(sites: Sites, run: str, identity: Identity | None = None) -> MaliciousServer:
    server = MaliciousServer(sites, "north", run, METHOD, **SETTINGS)
    if identity:
        handler = Handed({"north": server.handler})
        server.session = AuthenticatedTransport(handler, identity, run)
    return server


def introduction(server: MaliciousServer) -> bytes:
    settings = json.dumps(server.experiment.model_dump(mode="json", exclude_none=True))
    return pack(Introduce(server.run, settings, version("comity"), ""))


def call(run: str) -> bytes:
    head = RunCall(run, ("local", 1, 1, 0), None, False, {})
    return pack(head, encode(Model(weights(0.0))))


def refusal(handler: RequestHandler, request: bytes) -> str:
    head, _ = unpack(handler.answer(request), REPLIES, 1 << 20)
    assert isinstance(head, Failed)
    return head.why


def test_a_request_without_authentication_is_refused(sites: Sites) -> None:
    """As of a local process that has no certificate."""
    server = server_of(sites, "bare")
    assert "does not come from the server" in refusal(server.handler, introduction(server))
    server.begin()
    assert "does not come from the server" in refusal(server.handler, call("bare"))
    assert not list((sites.site("north") / "runs" / "bare").glob("steps.csv")) or (
        "local" not in (sites.site("north") / "runs" / "bare" / "steps.csv").read_text()
    )


@pytest.mark.parametrize("who", ["another site", "a researcher", "another root", "expired"])
def test_only_the_certificate_of_the_server_opens_a_run(sites: Sites, who: str) -> None:
    identities: dict[str, Callable[[], Identity]] = {
        "another site": lambda: sites.root.identity("east"),
        "a researcher": lambda: sites.root.identity("lead@comity"),
        "another root": lambda: Root().identity(HUB),
        "expired": lambda: sites.root.identity(HUB, days=-1),
    }
    server = server_of(sites, "who", identities[who]())
    with pytest.raises(Refused, match="is not"):
        server.introduce()
    assert not (sites.site("north") / "runs" / "who").exists()


def _flip(request: bytes, at: int) -> bytes:
    return request[:at] + bytes([request[at] ^ 1]) + request[at + 1 :]


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "number": lambda request: _flip(request, len(AUTHENTICATED)),
    "tag": lambda request: _flip(request, len(AUTHENTICATED) + LENGTH),
    "content": lambda request: _flip(request, len(request) - 1),
    "cut": lambda request: request[:-1],
    "longer": lambda request: request + b"x",
    "head only": lambda request: request[: len(AUTHENTICATED) + 3],
    "other kind": lambda request: SIGNED + request[len(SIGNED) :],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_request_that_was_changed_on_the_way_is_refused(sites: Sites, change: str) -> None:
    server = server_of(sites, "changed" + change.replace(" ", ""))
    server.begin()
    request = server.session.wrap("north", call(server.run))
    refusal(server.handler, CHANGES[change](request))
    head, _ = unpack(server.handler.answer(request), REPLIES, 1 << 20)
    assert not isinstance(head, Failed)  # the request itself is still answered


def test_a_replayed_request_is_refused(sites: Sites) -> None:
    server = server_of(sites, "replayed")
    opening = server.session.wrap("north", introduction(server))
    server.begin()
    request = server.session.wrap("north", call("replayed"))
    head, _ = unpack(server.handler.answer(request), REPLIES, 1 << 20)
    assert not isinstance(head, Failed)
    assert "answered once" in refusal(server.handler, request)
    assert "answered once" in refusal(server.handler, opening)  # `begin` has sent the same bytes


def test_a_request_of_an_earlier_job_is_refused(sites: Sites) -> None:
    first = server_of(sites, "earlier")
    first.begin()
    request = first.session.wrap("north", call("earlier"))
    second = server_of(sites, "earlier")
    second.begin()
    assert "does not come from the server" in refusal(second.handler, request)


def test_a_signed_opening_cannot_carry_other_settings(sites: Sites) -> None:
    """The signature covers the whole request."""
    server = server_of(sites, "swapped")
    opening = server.session.wrap("north", introduction(server))
    at = opening.index(b": 3, ", opening.index(b"rounds"))
    other = opening[: at + 2] + b"9" + opening[at + 3 :]
    assert "does not come from the server" in refusal(server.handler, other)


ORDERS: dict[str, dict[str, Any]] = {
    "other settings": {"lr": 0.5},
    "other method": {"algorithm": "fedavg+dp(noise=0.1)"},
    "more rounds": {"rounds": 30},
}


@pytest.mark.parametrize("change", ORDERS)
def test_settings_other_than_the_signed_ones_are_refused(sites: Sites, change: str) -> None:
    server = server_of(sites, "signed")
    settings = {"algorithm": METHOD, "data": "sites", "partition": "natural", **SETTINGS}
    server.handler._order = {"run": "signed", "settings": settings}
    server.session = AuthenticatedTransport(
        Handed({"north": server.handler}), sites.root.identity(HUB), "signed"
    )
    with pytest.raises(Refused, match="another run than the submitter has signed"):
        server.introduce(**ORDERS[change])
    server.introduce()


def test_a_run_of_another_name_than_the_signed_one_is_refused(sites: Sites) -> None:
    server = server_of(sites, "name")
    server.handler._order = {"run": "other", "settings": {}}
    with pytest.raises(Refused, match="another run than the submitter has signed"):
        server.introduce()


def test_a_site_cannot_be_named_like_the_server(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from comity.deploy.flare import startup_kits
    from comity.errors import UsageError

    startup_kits.Invite("comity", "hub", 8002, "f").save(tmp_path / startup_kits.INVITE)
    request = tmp_path / "hub.request.zip"
    import zipfile

    with zipfile.ZipFile(request, "w") as archive:
        content = {"kind": "site", "name": "hub", "public_key_sha256": "k"}
        archive.writestr("request.json", json.dumps(content))
    with pytest.raises(UsageError, match="like the server"):
        startup_kits.approve(tmp_path, request)
