"""A malicious server, and honest restarts, against the noise of a site: no two different answers
have the same noise, and every answer is charged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process_sites import Sites, ended
from malicious_server import (
    BUDGET,
    METHOD,
    NOISE,
    SETTINGS,
    SIZES,
    MaliciousServer,
    Refused,
    attack,
    change,
    spent,
    weights,
)

from comity.algorithms.scaffold import Control
from comity.base.record import Model, seal
from comity.deploy import site_results
from comity.deploy.messages import REPLIES, REQUESTS, Begin, Failed, RunCall, unpack
from comity.deploy.release_ledger import ReleaseLedger
from comity.deploy.site_calls import SiteCalls
from comity.deploy.site_store import REPLIES as REPLIES_FOLDER
from comity.runs.folder import RunFolder
from comity.wire.codec import decode


@pytest.fixture(autouse=True)
def _no_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path / "sites", SIZES, BUDGET)


def test_two_messages_for_one_call_have_different_noise(sites: Sites) -> None:
    """Otherwise the difference of two replies has no noise."""
    server = attack(sites)
    answers = []
    for value in (0.0, 0.01):
        message = weights(value)
        answers.append(change(server.call("local", Model(message), depth=1), message))
    expected = NOISE / SETTINGS["batch"] * 2**0.5
    assert (answers[0] - answers[1]).std() > 0.8 * expected


def test_a_second_message_for_one_call_is_charged(sites: Sites) -> None:
    server = attack(sites)
    server.call("local", Model(weights(0.0)), depth=1)
    once = spent(sites, "north")
    server.call("local", Model(weights(0.01)), depth=1)
    assert spent(sites, "north") > once > 0


def test_a_repeated_request_gets_the_same_reply_and_costs_nothing(sites: Sites) -> None:
    server = attack(sites)
    first = server.call("local", Model(weights(0.0)), depth=1)
    once = spent(sites, "north")
    again = server.call("local", Model(weights(0.0)), depth=1)
    assert all(torch.equal(first.theta[name], value) for name, value in again.theta.items())
    assert spent(sites, "north") == once
    folder = RunFolder(sites.site("north") / "runs" / server.run)
    sizes = [row.bytes for row in folder.read_ledger() if row.kind == "up"]
    assert len(sizes) == 2
    assert sizes[0] == sizes[1]  # it left twice


def test_a_repeated_request_after_a_restart_gets_the_same_reply(sites: Sites) -> None:
    first = attack(sites).call("local", Model(weights(0.0)), depth=1)
    once = spent(sites, "north")
    again = attack(sites).call("local", Model(weights(0.0)), depth=1)
    assert all(torch.equal(first.theta[name], value) for name, value in again.theta.items())
    assert spent(sites, "north") == once


def test_another_state_makes_another_noise(sites: Sites) -> None:
    """The message of round 2 is the same twice, but round 1 was answered with other weights."""
    answers = []
    for value in (0.0, 0.01):
        server = MaliciousServer(sites, "north", "states", "scaffold+dp(noise=4.0)", **SETTINGS)
        server.begin()
        zeros = weights(0.0)
        first = ("local", 1, 1, 0)
        server.call("local", Control(weights(value), zeros), depth=1)
        reply = server.call("local", Control(zeros, zeros), round=2, depth=1, after=first)
        answers.append(torch.cat([t.flatten() for t in reply.theta.values()]))
    assert (answers[0] - answers[1]).std() > 0.5 * NOISE / SETTINGS["batch"]


def test_other_sealed_messages_make_another_request(sites: Sites) -> None:
    """The noise and the charge of a reply are those of its request."""
    run = attack(sites).handler._run
    assert run is not None
    head = RunCall(run.name, ("local", 1, 1, 0), None, False, {})
    one, other = (seal(Model(weights(value)), 0) for value in (0.0, 0.01))
    inboxes: list[dict[int, Any]] = [{}, {1: one}, {1: other}, {2: one}, {1: one, 2: other}]
    calls = SiteCalls(run)
    digests = {calls._request_digest(head, b"body", inbox) for inbox in inboxes}
    assert len(digests) == len(inboxes)


def test_a_damaged_stored_reply_is_computed_again(sites: Sites) -> None:
    first = attack(sites).call("local", Model(weights(0.0)), depth=1)
    once = spent(sites, "north")
    [stored] = (sites.site("north") / "runs" / "attack" / REPLIES_FOLDER).iterdir()
    content = stored.read_bytes()
    stored.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    again = attack(sites).call("local", Model(weights(0.0)), depth=1)
    assert all(torch.equal(first.theta[name], value) for name, value in again.theta.items())
    assert spent(sites, "north") == once
    assert stored.read_bytes() == content


def test_nothing_is_answered_after_the_end(sites: Sites) -> None:
    server = attack(sites)
    server.call("local", Model(weights(0.0)), depth=1)
    server.evaluate(Model(weights(0.0)), final=True)
    server.end(1)
    requests: list[Callable[[], Any]] = [
        lambda: server.call("local", Model(weights(0.0)), depth=1),
        lambda: server.call("local", Model(weights(0.5)), depth=1, round=2),
        lambda: server.evaluate(Model(weights(0.0)), round=2),
    ]
    for request in requests:
        with pytest.raises(Refused, match="has ended"):
            request()
    again = attack(sites)
    with pytest.raises(Refused, match="has ended"):
        again.call("local", Model(weights(0.5)), depth=1, round=2)


class Recorder:
    """Collects what the site `north` answers, with the message that it was sent."""

    def __init__(self, sites: Sites) -> None:
        self.transport = sites.transport()
        self.answers: dict[int, list[torch.Tensor]] = {}
        self._request: Any = None
        self.offline: set[str] = set()
        self.transport.lost = self._ask
        self.transport.changed = self._reply

    def _ask(self, name: str, request: bytes) -> str:
        if name in self.offline:
            return "offline"
        if name == "north":
            self._request = unpack(request, REQUESTS, 1 << 30)
        return ""

    def _reply(self, name: str, reply: bytes) -> bytes:
        head, body = self._request or (None, b"")
        if name == "north" and isinstance(head, RunCall):
            answer, content = unpack(reply, REPLIES, 1 << 30)
            assert not isinstance(answer, Failed), answer.why
            message = decode(body).theta
            self.answers.setdefault(head.call[2], []).append(change(decode(content), message))
        return reply


class Stop(Exception):
    """The server is stopped."""


@pytest.mark.parametrize("away", ["first", "second"])
def test_an_honest_restart_with_another_site_has_no_noise_in_common(
    sites: Sites, away: str
) -> None:
    """East is offline in one of two attempts. North is asked twice for round 2, with other
    messages: its two answers share no noise, and both are charged.
    """
    first, second = Recorder(sites), Recorder(sites)
    (first if away == "first" else second).offline = set()
    settings = SETTINGS | {"rounds": 3}
    calls = 0
    lose = first.transport.lost

    def stop_in_round_3(name: str, request: bytes) -> str:
        nonlocal calls
        head = unpack(request, REQUESTS, 1 << 30)[0]
        if isinstance(head, RunCall):
            calls += 1
            if name == "east" and away == "first" and head.call[2] >= 1:
                return "offline"
            if head.call[2] == 3:
                raise Stop
        return lose(name, request)

    first.transport.lost = stop_in_round_3
    monkey = pytest.MonkeyPatch()
    monkey.setenv("COMITY_CHECKPOINT_SECONDS", "1000")  # the restart begins with round 1
    sites.run(METHOD, "restart", first.transport, **settings)
    monkey.undo()
    if away == "second":
        later = second.transport.lost

        def offline(name: str, request: bytes) -> str:
            head = unpack(request, REQUESTS, 1 << 30)[0]
            return (
                "offline" if name == "east" and isinstance(head, RunCall) else later(name, request)
            )

        second.transport.lost = offline
    ended(sites.run(METHOD, "restart", second.transport, **settings))
    one, other = first.answers[2][0], second.answers[2][0]
    assert not torch.equal(one, other)
    expected = NOISE / SETTINGS["batch"] * 2**0.5
    assert (one - other).std() > 0.8 * expected
    rows = ReleaseLedger(sites.site("north")).rows()
    assert len({row.digest for row in rows}) == len(rows) == 4  # round 1 once, round 2 twice, 3


def test_a_run_cannot_be_begun_again_with_other_parties(sites: Sites) -> None:
    """Who takes part changes what a party function computes, and is not in the request."""
    server = attack(sites)
    server.call("local", Model(weights(0.0)), depth=1)
    parties = {"a-new-one": server.described.said, "north": server.described.said}
    with pytest.raises(Refused, match="other parties"):
        server.send(Begin(server.run, parties, {}))
    again = MaliciousServer(sites, "north", server.run, METHOD, **SETTINGS)
    again.introduce()
    with pytest.raises(Refused, match="other parties"):
        again.send(Begin(server.run, parties, {}))
