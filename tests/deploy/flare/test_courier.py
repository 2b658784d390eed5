"""The courier alone, with sites that are functions."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from comity.errors import ComityError


class Far:
    """A site that answers as it is told, and counts what it was asked."""

    def __init__(self, answer: Callable[[bytes], object], there: bool = True) -> None:
        self._answer = answer
        self.there = there
        self.asked = 0

    def ask(self, request: bytes, seconds: float) -> object:
        self.asked += 1
        return self._answer(request)

    def here(self, seconds: float) -> object:
        if not self.there:
            raise TimeoutError
        return True


def later(seconds: float) -> Callable[[bytes], object]:
    def answer(request: bytes) -> bytes:
        time.sleep(seconds)
        return request

    return answer


def fails(request: bytes) -> bytes:
    raise SystemExit


def test_answers_come_as_they_arrive() -> None:
    from comity.deploy.flare.apps import FlareTransport

    transport = FlareTransport(
        {"slow": Far(later(0.3)), "quick": Far(later(0)), "never": Far(later(2))}, lambda: False
    )
    assert transport.names == ["never", "quick", "slow"]
    begun = time.monotonic()
    assert list(transport.ask(dict.fromkeys(transport.names, b"x"), 0.8)) == [
        ("quick", b"x"),
        ("slow", b"x"),
        ("never", None),
    ]
    assert 0.8 <= time.monotonic() - begun < 1.5
    assert list(transport.ask({}, 1)) == []


def test_a_fault_is_no_answer() -> None:
    from comity.deploy.flare.apps import FAILED, FlareTransport

    transport = FlareTransport(
        {"a": Far(fails), "b": Far(lambda _: FAILED), "c": Far(lambda _: b"well")}, lambda: False
    )
    assert dict(transport.ask(dict.fromkeys([*transport.names, "nobody"], b""), 5)) == {
        "a": None,
        "b": None,
        "c": b"well",
        "nobody": None,
    }


def test_who_was_silent_is_asked_whether_it_is_there() -> None:
    from comity.deploy.flare.apps import FlareTransport

    gone = Far(later(1))
    transport = FlareTransport({"gone": gone}, lambda: False)
    assert list(transport.ask({"gone": b""}, 0.1)) == [("gone", None)]
    gone.there = False
    assert list(transport.ask({"gone": b""}, 5)) == [("gone", None)]
    assert gone.asked == 1  # not asked in vain
    gone.there = True
    assert list(transport.ask({"gone": b"back"}, 5)) == [("gone", b"back")]


def test_an_aborted_job_is_nobodys_silence() -> None:
    from comity.deploy.flare.apps import FlareTransport

    transport = FlareTransport({"a": Far(fails), "b": Far(later(5))}, lambda: True)
    with pytest.raises(ComityError, match="aborted"):
        list(transport.ask({"a": b"", "b": b""}, 10))


def test_a_site_that_is_gone_does_not_cost_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    from comity.deploy.flare import apps

    monkeypatch.setattr(apps, "PING_INTERVAL", 0.05)
    transport = apps.FlareTransport(
        {"gone": Far(later(5), there=False), "works": Far(later(0.5))}, lambda: False
    )
    begun = time.monotonic()
    assert list(transport.ask(dict.fromkeys(transport.names, b"x"), 20)) == [
        ("gone", None),
        ("works", b"x"),
    ]
    assert time.monotonic() - begun < 3
