"""FlareTransport without FLARE: sites are plain objects."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from comity.errors import ComityError


class FakeSite:
    """A site that answers with a function, and counts its requests."""

    def __init__(self, answer: Callable[[bytes], object], is_connected: bool = True) -> None:
        self._answer = answer
        self.is_connected = is_connected
        self.request_count = 0

    def ask(self, request: bytes, seconds: float) -> object:
        self.request_count += 1
        return self._answer(request)

    def here(self, seconds: float) -> object:
        if not self.is_connected:
            raise TimeoutError
        return True


def answer_after(seconds: float) -> Callable[[bytes], object]:
    def answer(request: bytes) -> bytes:
        time.sleep(seconds)
        return request

    return answer


def fails(request: bytes) -> bytes:
    raise SystemExit


def test_replies_are_returned_as_they_arrive() -> None:
    from comity.deploy.flare.apps import FlareTransport

    transport = FlareTransport(
        {
            "slow": FakeSite(answer_after(0.3)),
            "quick": FakeSite(answer_after(0)),
            "never": FakeSite(answer_after(2)),
        },
        lambda: False,
    )
    assert transport.names == ["never", "quick", "slow"]
    start = time.monotonic()
    assert list(transport.ask(dict.fromkeys(transport.names, b"x"), 0.8)) == [
        ("quick", b"x"),
        ("slow", b"x"),
        ("never", None),
    ]
    assert 0.8 <= time.monotonic() - start < 1.5
    assert list(transport.ask({}, 1)) == []


def test_failed_site_gives_no_reply() -> None:
    from comity.deploy.flare.apps import FAILED, FlareTransport

    transport = FlareTransport(
        {"a": FakeSite(fails), "b": FakeSite(lambda _: FAILED), "c": FakeSite(lambda _: b"well")},
        lambda: False,
    )
    assert dict(transport.ask(dict.fromkeys([*transport.names, "nobody"], b""), 5)) == {
        "a": None,
        "b": None,
        "c": b"well",
        "nobody": None,
    }


def test_silent_site_is_pinged_before_the_next_request() -> None:
    from comity.deploy.flare.apps import FlareTransport

    site = FakeSite(answer_after(1))
    transport = FlareTransport({"gone": site}, lambda: False)
    assert list(transport.ask({"gone": b""}, 0.1)) == [("gone", None)]
    site.is_connected = False
    assert list(transport.ask({"gone": b""}, 5)) == [("gone", None)]
    assert site.request_count == 1  # no second request while it is disconnected
    site.is_connected = True
    assert list(transport.ask({"gone": b"back"}, 5)) == [("gone", b"back")]


def test_aborted_job_is_an_error() -> None:
    from comity.deploy.flare.apps import FlareTransport

    transport = FlareTransport({"a": FakeSite(fails), "b": FakeSite(answer_after(5))}, lambda: True)
    with pytest.raises(ComityError, match="aborted"):
        list(transport.ask({"a": b"", "b": b""}, 10))


def test_disconnected_site_is_noticed_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    from comity.deploy.flare import apps

    monkeypatch.setattr(apps, "PING_INTERVAL", 0.05)
    transport = apps.FlareTransport(
        {
            "gone": FakeSite(answer_after(5), is_connected=False),
            "works": FakeSite(answer_after(0.5)),
        },
        lambda: False,
    )
    start = time.monotonic()
    assert list(transport.ask(dict.fromkeys(transport.names, b"x"), 20)) == [
        ("gone", None),
        ("works", b"x"),
    ]
    assert time.monotonic() - start < 3
