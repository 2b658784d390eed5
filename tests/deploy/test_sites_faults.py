"""Faults at sites: missing and invalid replies are reported, and everything else equals a
simulation with the same absences.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process_sites import Handed, Sites, ended, same_as_planned, watched

from comity.base.record import Empty, Model
from comity.core.server import Note
from comity.deploy import site_results, site_store
from comity.deploy.handler import FAULT, LOG
from comity.deploy.messages import (
    REPLIES,
    REQUESTS,
    Done,
    Evaluate,
    Failed,
    Introduced,
    RunCall,
    pack,
    unpack,
)
from comity.deploy.sent_ledger import SENT_FILE, SentLedger
from comity.deploy.server import FAILURE
from comity.engines import site as engine_site
from comity.engines.saved import write_state
from comity.errors import ComityError, CorruptedFile
from comity.metrics.evaluation import Answers, Evaluation, Score
from comity.runs.run_warnings import warning_texts
from comity.safe_files import write_atomically
from comity.wire.codec import decode, encode

MODEL = "mlp2(width=8)"
SIZES = {"north": (40, 23), "east": (30, 7), "south": (34, 17)}
USUAL: dict[str, Any] = {"model": MODEL, "rounds": 3, "test": "official", "lr": 0.05}


@pytest.fixture(autouse=True)
def _without_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        site_results, "export", lambda *_: []
    )  # it takes seconds, and is tested elsewhere
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")


@pytest.fixture(scope="module")
def open_sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """Sites whose policies allow everything that a simulation does."""
    return Sites(tmp_path_factory.mktemp("open"), SIZES)


# Sites with invalid replies


def change_replies_of(
    name: str, change: Callable[[Any, bytes], bytes], rounds: tuple[int, ...] = (2,)
) -> Callable[[Handed], None]:
    """Change the replies of a site in some rounds."""

    def do(transport: Handed) -> None:
        last_requests: dict[str, Any] = {}

        def record_request(who: str, request: bytes) -> str:
            last_requests[who] = unpack(request, REQUESTS, 1 << 30)[0]
            return ""

        def change_reply(who: str, answer: bytes) -> bytes:
            head = last_requests[who]
            if who == name and isinstance(head, RunCall) and head.call[2] in rounds:
                reply_head, body = unpack(answer, REPLIES, 1 << 30)
                return change(reply_head, body)
            return answer

        transport.lost, transport.changed = record_request, change_reply

    return do


def with_content(content: Any) -> Callable[[Any, bytes], bytes]:
    return lambda head, body: pack(
        head, encode(content(decode(body)) if callable(content) else content)
    )


def with_first_tensor(
    theta: dict[str, torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]
) -> Model:
    name = sorted(theta)[0]
    return Model(theta | {name: change(theta[name])})


INVALID_REPLIES: dict[str, tuple[Callable[[Any, bytes], bytes], str]] = {
    "shape": (
        with_content(lambda m: with_first_tensor(m.theta, lambda w: w[..., :-1].clone())),
        "where float32",
    ),
    "dtype": (
        with_content(lambda m: with_first_tensor(m.theta, lambda w: w.double())),
        "where float32",
    ),
    "extra": (with_content(lambda m: Model(m.theta | {"more": torch.ones(2)})), "not of the model"),
    "class": (with_content(Empty()), "has no place in it"),
    "figures": (
        with_content(Evaluation(Score(0, 0, 0.0, {}), Score(0, 0, 0.0, {}), None)),
        "has no place in it",
    ),
    "a dict": (with_content(lambda m: m.theta), "should be Model"),
    "nothing": (with_content(None), "should be Model"),
    "garbage": (lambda head, body: b"\x00" * 40, "damaged or foreign"),
    "empty": (lambda head, body: b"", "incomplete"),
    "half": (lambda head, body: pack(head, body)[:-5], "damaged or foreign"),
    "another head": (lambda head, body: pack(Done(), body), "answered something else"),
    "steps": (lambda head, body: pack(replace(head, steps=-5), body), "steps"),
    "others": (
        lambda head, body: pack(replace(head, unusable=(0, 1)), body),
        "sealed messages that it was not sent",
    ),
    "nobody": (
        lambda head, body: pack(replace(head, unusable=(99,)), body),
        "sealed messages that it was not sent",
    ),
    "many words": (lambda head, body: pack(Failed("no\x1b[2J" * 100_000)), "no"),
}


@pytest.mark.parametrize("what", INVALID_REPLIES)
def test_invalid_reply_is_left_out_of_its_round(what: str, open_sites: Sites) -> None:
    """The site is left out of that round, with a warning, and takes part in the next."""
    change, words = INVALID_REPLIES[what]
    transport = open_sites.transport()
    change_replies_of("east", change)(transport)
    folder = open_sites.run(
        "fedavg", "bad" + "".join(c for c in what if c.isalnum()), transport, **USUAL
    )
    summary = ended(folder)
    [warning] = [
        text
        for text in warning_texts(summary, "during")
        if text.startswith("east was not heard in round 2: ")
    ]
    assert words in warning
    assert len(warning) < 600
    assert warning.isprintable()
    assert summary["absent"] == {"east": {"lost": 1}}
    same_as_planned(open_sites, folder, "fedavg", **USUAL)


def test_reply_that_is_not_finite_is_left_out(open_sites: Sites) -> None:
    """As in a simulation, the party is named and left out, and the others continue."""
    transport = open_sites.transport()
    change_replies_of(
        "east",
        with_content(
            lambda m: with_first_tensor(m.theta, lambda w: torch.full_like(w, float("nan")))
        ),
    )(transport)
    folder = open_sites.run("fedavg", "nan", transport, **USUAL)
    assert ended(folder)["absent"] == {"east": {"nonfinite": 1}}
    transport = open_sites.transport()
    change_replies_of(
        "east",
        with_content(
            lambda m: with_first_tensor(m.theta, lambda w: torch.full_like(w, float("nan")))
        ),
    )(transport)
    folder = open_sites.run("fedavg", "nanstop", transport, on_nonfinite="stop", **USUAL)
    assert "east has values that are not finite in round 2" in (folder / FAILURE).read_text()


INVALID_EVALUATIONS: dict[str, Callable[[Evaluation], Any]] = {
    "too many right": lambda e: replace(e, test=replace(e.test, correct=e.test.count + 1)),
    "fewer than none": lambda e: replace(e, test=replace(e.test, correct=-1)),
    "other count": lambda e: replace(e, test=replace(e.test, count=10**6)),
    "other metrics": lambda e: replace(e, test=replace(e.test, figures={"glory": 1.0})),
    "answers": lambda e: replace(
        e, answers=Answers(torch.ones(3).int(), torch.ones(2).int(), None)
    ),
    "strange classes": lambda e: replace(
        e, answers=Answers(torch.full((7,), 99).int(), torch.ones(7).int(), None)
    ),
    "no evaluation": lambda e: e.test,
}


@pytest.mark.parametrize("what", INVALID_EVALUATIONS)
def test_impossible_evaluation_is_left_out(what: str, open_sites: Sites) -> None:
    """A site can send wrong metrics, but values that no evaluation of its samples can have are
    refused.
    """
    transport = open_sites.transport()
    last_requests: dict[str, Any] = {}

    def record_request(who: str, request: bytes) -> str:
        last_requests[who] = unpack(request, REQUESTS, 1 << 30)[0]
        return ""

    def change_evaluation(who: str, answer: bytes) -> bytes:
        if who == "east" and isinstance(last_requests[who], Evaluate) and last_requests[who].final:
            head, body = unpack(answer, REPLIES, 1 << 30)
            return pack(head, encode(INVALID_EVALUATIONS[what](decode(body))))
        return answer

    transport.lost, transport.changed = record_request, change_evaluation
    folder = open_sites.run(
        "fedavg", "figures" + "".join(c for c in what if c.isalnum()), transport, **USUAL
    )
    summary = ended(folder)
    assert any(
        text.startswith("east was not heard in round 3: ")
        for text in warning_texts(summary, "during")
    )
    assert summary["accuracy"]["as_of"] == {"east": 2}
    assert "east" not in (folder / "outcomes.csv").read_text()


INVALID_INTRODUCTIONS: dict[str, Callable[[Introduced], Any]] = {
    "no samples": lambda reply: replace(reply, said=replace(reply.said, train=0)),
    "fewer than none": lambda reply: replace(reply, said=replace(reply.said, train=-7)),
    "strange counts": lambda reply: replace(reply, said=replace(reply.said, counts=[1])),
    "a huge shape": lambda reply: replace(reply, shape=[1 << 40, 1 << 40]),
}


@pytest.mark.parametrize("what", INVALID_INTRODUCTIONS)
def test_invalid_introduction_is_refused(what: str, open_sites: Sites) -> None:
    transport = open_sites.transport()

    def change_introduction(who: str, answer: bytes) -> bytes:
        head, body = unpack(answer, REPLIES, 1 << 30)
        return (
            pack(INVALID_INTRODUCTIONS[what](head), body)
            if who == "east" and isinstance(head, Introduced)
            else answer
        )

    transport.changed = change_introduction
    folder = open_sites.run(
        "fedavg", "intro" + "".join(c for c in what if c.isalnum()), transport, **USUAL
    )
    if (folder / FAILURE).exists():
        assert "The sites' data do not fit together" in (folder / FAILURE).read_text()
    else:
        assert any(
            text.startswith("east takes no part: ")
            for text in warning_texts(ended(folder), "during")
        )


# Sites that fail


MARKER = "the-secret-of-a-patient"


def test_error_at_a_site_is_reported_without_its_message(
    open_sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a fixed sentence leaves the site. The run equals a simulation in which the reply is
    lost.
    """
    transport = open_sites.transport()
    traffic = watched(transport)
    original = engine_site.Site.begin

    def begin(self: Any, call: Any, *more: Any) -> Any:
        if self.party.name == "east" and call.round == 2:
            raise ValueError(MARKER)
        return original(self, call, *more)

    monkeypatch.setattr(engine_site.Site, "begin", begin)
    folder = open_sites.run("scaffold", "raises", transport, **USUAL)
    monkeypatch.undo()
    summary = ended(folder)
    assert f"east was not heard in round 2: {FAULT}" in warning_texts(summary, "during")
    assert not any(MARKER.encode() in message for _, message in traffic)
    assert MARKER not in "".join(
        path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
    )
    assert MARKER in (open_sites.site("east") / LOG).read_text()
    same_as_planned(open_sites, folder, "scaffold", **USUAL)


@pytest.mark.sweep("fedavg+dbe")
@pytest.mark.parametrize("where", ["state", "index", "ledger", "all"])
@pytest.mark.parametrize("method", ["scaffold", "fedavg+dbe"])
def test_site_with_a_full_disk_misses_a_round_and_continues(
    method: str, where: str, open_sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site misses the call, and continues with the right state at the next call."""
    transport = open_sites.transport()
    disk_full = {"now": False}
    requests: list[Any] = []

    def watch_requests(who: str, request: bytes) -> str:
        head = unpack(request, REQUESTS, 1 << 30)[0]
        disk_full["now"] = who == "east" and isinstance(head, RunCall) and head.call[2] == 2
        requests.append(head)
        return ""

    transport.lost = watch_requests

    def fail_when_full(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def do(*args: Any, **options: Any) -> Any:
            if disk_full["now"] and where in (kind, "all"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*args, **options)

        return do

    monkeypatch.setattr(site_store, "write_state", fail_when_full(write_state, "state"))
    monkeypatch.setattr(site_store, "write_atomically", fail_when_full(write_atomically, "index"))
    monkeypatch.setattr(
        site_store.SiteTables, "_append", fail_when_full(site_store.SiteTables._append, "ledger")
    )
    name = f"full{where}{method.replace('+', '')}"
    folder = open_sites.run(method, name, transport, **USUAL)
    monkeypatch.undo()
    summary = ended(folder)
    assert f"east was not heard in round 2: {FAULT}" in warning_texts(summary, "during")
    assert "No space left on device" in (open_sites.site("east") / LOG).read_text()
    assert summary["absent"]["east"] == {
        "lost": sum(isinstance(h, RunCall) and h.call[2] == 2 for h in requests) // 3
    }
    same_as_planned(open_sites, folder, method, **USUAL)


def test_incomplete_row_of_a_table_is_removed(tmp_path: Path) -> None:
    """An incomplete row is removed; otherwise the next row would be appended to it."""
    book = site_store.SiteTables(tmp_path, "north")
    book.charge_sent(1, "local", "up", 100)
    with (tmp_path / "ledger.csv").open("a") as file:
        file.write("2,local,north,server,up,12")  # of 1234: the process was killed here
    book = site_store.SiteTables(tmp_path, "north")
    assert book.bytes_sent == 100
    book.charge_sent(2, "local", "up", 1234)
    assert [row.bytes for row in site_store.SiteTables(tmp_path, "north").ledger()] == [100, 1234]
    text = (tmp_path / "ledger.csv").read_text()
    (tmp_path / "ledger.csv").write_text(text.replace("up,100", "up,1x0"))
    with pytest.raises(ComityError, match=r"ledger\.csv is damaged"):
        site_store.SiteTables(tmp_path, "north")


def test_damaged_ledger_of_an_earlier_version_is_an_error(tmp_path: Path) -> None:
    """The total of bytes sent is then unknown, so nothing more is sent."""
    (tmp_path / "runs" / "before").mkdir(parents=True)
    site_store.SiteTables(tmp_path / "runs" / "before", "north").charge_sent(1, "local", "up", 100)
    assert SentLedger(tmp_path, "north").total() == 100
    (tmp_path / SENT_FILE).unlink()
    with (tmp_path / "runs" / "before" / "ledger.csv").open("a") as file:
        file.write("what is this?\n")
    with pytest.raises(CorruptedFile, match="how much has left this site in all is not known"):
        SentLedger(tmp_path, "north").total()


def test_metrics_of_a_repeated_round_replace_earlier_ones(tmp_path: Path) -> None:
    """The later repetition counts: other parties may have been absent, so its metrics may differ."""
    book = site_store.SiteTables(tmp_path, "north")
    note = Note(2, "north", "test", "accuracy", 0.5)
    book.add_metrics([Note(1, "north", "test", "accuracy", 0.25), note])
    book.add_metrics([note])
    book = site_store.SiteTables(tmp_path, "north")
    book.add_metrics([note._replace(value=0.75), note._replace(metric="loss", value=2.0)])
    assert [(row.round, row.metric, row.value) for row in site_store.SiteTables(tmp_path, "north").metrics()] == [
        (1, "accuracy", 0.25), (2, "accuracy", 0.75), (2, "loss", 2.0),
    ]  # fmt: skip
