"""Kills, absences and returns of server and sites under `+dp`: each release is charged once, a
repeated request gets the same reply, and no two replies have the same noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process_sites import OPEN, Handed, Sites, ended
from malicious_server import SIZES

from comity.deploy import site_results
from comity.deploy.messages import REPLIES, REQUESTS, Answered, RunCall, unpack
from comity.deploy.release_ledger import ReleaseLedger
from comity.deploy.session import content_of
from comity.wire.codec import decode

NOISE = 4.0
SETTINGS: dict[str, Any] = {
    "model": "linear", "rounds": 2, "steps": 1, "batch": 16, "lr": 1.0, "test": "official",
}  # fmt: skip
SPREAD = NOISE / SETTINGS["batch"]  # of the noise in a reply
METHODS = {"fedavg": f"fedavg+dp(noise={NOISE})", "scaffold": f"scaffold+dp(noise={NOISE})"}


@pytest.fixture(autouse=True)
def _no_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)


class Killed(BaseException):
    """The server's process ends here."""


class Attempt(Handed):
    """One job: it is killed at an exchange, and a site is offline in some rounds.

    What each site answers is kept in `answers`: site, call, request and change of the weights.
    """

    def __init__(self, sites: Sites, kill_at: int, before: bool, offline: tuple[str, int]) -> None:
        super().__init__({name: sites.handler(name) for name in sites.names})
        self.kill_at, self.before, self.offline = kill_at, before, offline
        self.exchanges = 0
        self.answers: list[tuple[str, Any, bytes, torch.Tensor]] = []

    def ask(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        self.exchanges += 1
        if self.exchanges == self.kill_at and self.before:
            raise Killed
        replies = list(self._ask_all(requests, seconds))
        if self.exchanges == self.kill_at:
            raise Killed
        yield from replies

    def _ask_all(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, request in requests.items():
            head, body = unpack(content_of(request), REQUESTS, 1 << 30)
            if isinstance(head, RunCall) and self.offline == (name, head.call[2]):
                yield name, None
                continue
            [(_, reply)] = super().ask({name: request}, seconds)
            if isinstance(head, RunCall) and reply is not None:
                self._note(name, head, body, reply)
            yield name, reply

    def _note(self, name: str, head: RunCall, body: bytes, reply: bytes) -> None:
        answer, content = unpack(reply, REPLIES, 1 << 30)
        assert isinstance(answer, Answered), answer
        message, model = decode(body).theta, decode(content).theta
        change = torch.cat([(model[k] - value).flatten() for k, value in message.items()])
        self.answers.append((name, (head.call, head.after), body, change))


def check(sites: Sites, answers: list[tuple[str, Any, bytes, torch.Tensor]]) -> None:
    """Each distinct request was charged once, and distinct requests have distinct noise."""
    for name in sites.names:
        distinct: dict[tuple[Any, bytes], torch.Tensor] = {}
        for site, call, body, change in answers:
            if site != name:
                continue
            if (call, body) in distinct and call[1] is None:
                assert torch.equal(distinct[call, body], change)  # the same request again
            distinct.setdefault((call, body), change)
        rows = ReleaseLedger(sites.site(name)).rows()
        assert len(rows) == len({row.digest for row in rows})
        assert len(rows) >= len(distinct)
        changes = list(distinct.values())
        for i, one in enumerate(changes):
            for other in changes[i + 1 :]:
                assert (one - other).std() > SPREAD  # √2 times the noise, if it is independent


@pytest.mark.sweep("fedavg-before-4-", "scaffold-after-5-first")
@pytest.mark.parametrize("offline", ["nobody", "first", "second"])
@pytest.mark.parametrize("kill_at", range(3, 8))
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_killed_and_submitted_again(
    method: str, when: str, kill_at: int, offline: str, tmp_path: Path
) -> None:
    """The server is killed before or after an exchange; east is offline in round 1 of one
    attempt. Checkpoints are written at the end only, so that the second attempt begins anew.
    """
    sites = Sites(tmp_path / "sites", SIZES, OPEN | {'epsilon = "inf"': "epsilon = 50.0"})
    absences = {"first": ("east", 1) if offline == "first" else ("", 0)}
    absences["second"] = ("east", 1) if offline == "second" else ("", 0)
    first = Attempt(sites, kill_at, when == "before", absences["first"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMITY_CHECKPOINT_SECONDS", "1000")
        with pytest.raises(Killed):
            sites.run(METHODS[method], "run", first, **SETTINGS)
    second = Attempt(sites, -1, False, absences["second"])
    ended(sites.run(METHODS[method], "run", second, **SETTINGS))
    check(sites, first.answers + second.answers)


def test_a_site_that_is_killed_after_its_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has charged the release, and computes the reply after its restart without another
    charge.
    """
    from comity.engines.site import Site

    sites = Sites(tmp_path / "sites", SIZES)
    run = Site.run
    killed: list[Any] = []

    def running(self: Site, call: Any, *args: Any) -> Any:
        if self.party.name == "north" and call.function == "local" and not killed:
            killed.append(call)
            raise RuntimeError("killed")
        return run(self, call, *args)

    monkeypatch.setattr(Site, "run", running)
    transport = Attempt(sites, -1, False, ("", 0))
    transport._note = lambda *_: None
    folder = sites.run(METHODS["fedavg"], "run", transport, **SETTINGS)
    ended(folder)
    assert killed
    rows = ReleaseLedger(sites.site("north")).rows()
    assert [row.charge.round for row in rows] == [1, 2]
