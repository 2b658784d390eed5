"""Between sites things go wrong: what a site does not say, or says wrongly, is told, and all else
is as it should be.
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
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        site_results, "export", lambda *_: []
    )  # it takes seconds, and has a test of its own
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")


@pytest.fixture(scope="module")
def open_sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """Whose laws allow what a simulation does."""
    return Sites(tmp_path_factory.mktemp("open"), SIZES)


# Sites that answer what they should not


def reply_of(
    name: str, change: Callable[[Any, bytes], bytes], rounds: tuple[int, ...] = (2,)
) -> Callable[[Handed], None]:
    """Have a site answer something else than it would in some rounds."""

    def do(transport: Handed) -> None:
        asked: dict[str, Any] = {}

        def lost(who: str, request: bytes) -> str:
            asked[who] = unpack(request, REQUESTS, 1 << 30)[0]
            return ""

        def changed(who: str, answer: bytes) -> bytes:
            head = asked[who]
            if who == name and isinstance(head, RunCall) and head.call[2] in rounds:
                said, body = unpack(answer, REPLIES, 1 << 30)
                return change(said, body)
            return answer

        transport.lost, transport.changed = lost, changed

    return do


def of(content: Any) -> Callable[[Any, bytes], bytes]:
    return lambda said, body: pack(
        said, encode(content(decode(body)) if callable(content) else content)
    )


def first_of(
    theta: dict[str, torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]
) -> Model:
    name = sorted(theta)[0]
    return Model(theta | {name: change(theta[name])})


MALICE: dict[str, tuple[Callable[[Any, bytes], bytes], str]] = {
    "shape": (of(lambda m: first_of(m.theta, lambda w: w[..., :-1].clone())), "where float32"),
    "dtype": (of(lambda m: first_of(m.theta, lambda w: w.double())), "where float32"),
    "extra": (of(lambda m: Model(m.theta | {"more": torch.ones(2)})), "not of the model"),
    "class": (of(Empty()), "has no place in it"),
    "figures": (
        of(Evaluation(Score(0, 0, 0.0, {}), Score(0, 0, 0.0, {}), None)),
        "has no place in it",
    ),
    "a dict": (of(lambda m: m.theta), "should be Model"),
    "nothing": (of(None), "should be Model"),
    "garbage": (lambda said, body: b"\x00" * 40, "damaged or foreign"),
    "empty": (lambda said, body: b"", "incomplete"),
    "half": (lambda said, body: pack(said, body)[:-5], "damaged or foreign"),
    "another head": (lambda said, body: pack(Done(), body), "answered something else"),
    "steps": (lambda said, body: pack(replace(said, steps=-5), body), "steps"),
    "others": (
        lambda said, body: pack(replace(said, unusable=(0, 1)), body),
        "sealed messages that it was not sent",
    ),
    "nobody": (
        lambda said, body: pack(replace(said, unusable=(99,)), body),
        "sealed messages that it was not sent",
    ),
    "many words": (lambda said, body: pack(Failed("no\x1b[2J" * 100_000)), "no"),
}


@pytest.mark.parametrize("what", MALICE)
def test_a_site_that_answers_what_it_should_not(what: str, open_sites: Sites) -> None:
    """It is not heard in that round, which is told, and is heard in the next."""
    change, words = MALICE[what]
    transport = open_sites.transport()
    reply_of("east", change)(transport)
    folder = open_sites.run(
        "fedavg", "bad" + "".join(c for c in what if c.isalnum()), transport, **USUAL
    )
    summary = ended(folder)
    [told] = [
        text
        for text in warning_texts(summary, "during")
        if text.startswith("east was not heard in round 2: ")
    ]
    assert words in told
    assert len(told) < 600
    assert told.isprintable()
    assert summary["absent"] == {"east": {"lost": 1}}
    same_as_planned(open_sites, folder, "fedavg", **USUAL)


def test_a_reply_that_is_no_number(open_sites: Sites) -> None:
    """As in a simulation: its party is named and left out, and the others go on."""
    transport = open_sites.transport()
    reply_of("east", of(lambda m: first_of(m.theta, lambda w: torch.full_like(w, float("nan")))))(
        transport
    )
    folder = open_sites.run("fedavg", "nan", transport, **USUAL)
    assert ended(folder)["absent"] == {"east": {"nonfinite": 1}}
    transport = open_sites.transport()
    reply_of("east", of(lambda m: first_of(m.theta, lambda w: torch.full_like(w, float("nan")))))(
        transport
    )
    folder = open_sites.run("fedavg", "nanstop", transport, on_nonfinite="stop", **USUAL)
    assert "east has values that are not finite in round 2" in (folder / FAILURE).read_text()


FIGURES: dict[str, Callable[[Evaluation], Any]] = {
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


@pytest.mark.parametrize("what", FIGURES)
def test_figures_that_cannot_be(what: str, open_sites: Sites) -> None:
    """A site can lie about its figures; but what no evaluation of its samples could bring is
    refused.
    """
    transport = open_sites.transport()
    asked: dict[str, Any] = {}

    def lost(who: str, request: bytes) -> str:
        asked[who] = unpack(request, REQUESTS, 1 << 30)[0]
        return ""

    def changed(who: str, answer: bytes) -> bytes:
        if who == "east" and isinstance(asked[who], Evaluate) and asked[who].final:
            said, body = unpack(answer, REPLIES, 1 << 30)
            return pack(said, encode(FIGURES[what](decode(body))))
        return answer

    transport.lost, transport.changed = lost, changed
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


INTRODUCED: dict[str, Callable[[Introduced], Any]] = {
    "no samples": lambda one: replace(one, said=replace(one.said, train=0)),
    "fewer than none": lambda one: replace(one, said=replace(one.said, train=-7)),
    "strange counts": lambda one: replace(one, said=replace(one.said, counts=[1])),
    "a huge shape": lambda one: replace(one, shape=[1 << 40, 1 << 40]),
}


@pytest.mark.parametrize("what", INTRODUCED)
def test_introductions_that_cannot_be(what: str, open_sites: Sites) -> None:
    transport = open_sites.transport()

    def changed(who: str, answer: bytes) -> bytes:
        said, body = unpack(answer, REPLIES, 1 << 30)
        return (
            pack(INTRODUCED[what](said), body)
            if who == "east" and isinstance(said, Introduced)
            else answer
        )

    transport.changed = changed
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


def test_a_work_that_fails_at_a_site(open_sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a fixed sentence leaves; the run is that of a loop in which the site is not heard."""
    transport = open_sites.transport()
    seen = watched(transport)
    right = engine_site.Site.begin

    def begin(self: Any, call: Any, *rest: Any) -> Any:
        if self.party.name == "east" and call.round == 2:
            raise ValueError(MARKER)
        return right(self, call, *rest)

    monkeypatch.setattr(engine_site.Site, "begin", begin)
    folder = open_sites.run("scaffold", "raises", transport, **USUAL)
    monkeypatch.undo()
    summary = ended(folder)
    assert f"east was not heard in round 2: {FAULT}" in warning_texts(summary, "during")
    assert not any(MARKER.encode() in message for _, message in seen)
    assert MARKER not in "".join(
        path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
    )
    assert MARKER in (open_sites.site("east") / LOG).read_text()
    same_as_planned(open_sites, folder, "scaffold", **USUAL)


@pytest.mark.sweep("fedavg+dbe")
@pytest.mark.parametrize("where", ["state", "index", "ledger", "all"])
@pytest.mark.parametrize("method", ["scaffold", "fedavg+dbe"])
def test_a_full_disk_at_a_site(
    method: str, where: str, open_sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site is not heard, and the next time it is asked it goes on with the right state."""
    transport = open_sites.transport()
    full = {"now": False}
    asked: list[Any] = []

    def lost(who: str, request: bytes) -> str:
        head = unpack(request, REQUESTS, 1 << 30)[0]
        full["now"] = who == "east" and isinstance(head, RunCall) and head.call[2] == 2
        asked.append(head)
        return ""

    transport.lost = lost

    def failing(right: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def do(*given: Any, **options: Any) -> Any:
            if full["now"] and where in (kind, "all"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return right(*given, **options)

        return do

    monkeypatch.setattr(site_store, "write_state", failing(write_state, "state"))
    monkeypatch.setattr(site_store, "write_atomically", failing(write_atomically, "index"))
    monkeypatch.setattr(
        site_store.SiteTables, "_append", failing(site_store.SiteTables._append, "ledger")
    )
    name = f"full{where}{method.replace('+', '')}"
    folder = open_sites.run(method, name, transport, **USUAL)
    monkeypatch.undo()
    summary = ended(folder)
    assert f"east was not heard in round 2: {FAULT}" in warning_texts(summary, "during")
    assert "No space left on device" in (open_sites.site("east") / LOG).read_text()
    assert summary["absent"]["east"] == {
        "lost": sum(isinstance(h, RunCall) and h.call[2] == 2 for h in asked) // 3
    }
    same_as_planned(open_sites, folder, method, **USUAL)


def test_rows_that_a_full_disk_cut_off(tmp_path: Path) -> None:
    """Half a row is taken back, or the next one would be written behind it, and both would be lost
    or wrong.
    """
    book = site_store.SiteTables(tmp_path, "north")
    book.charge_sent(1, "local", "up", 100)
    with (tmp_path / "ledger.csv").open("a") as file:
        file.write("2,local,north,server,up,12")  # of 1234: the process was killed here
    book = site_store.SiteTables(tmp_path, "north")
    assert book.sent == 100
    book.charge_sent(2, "local", "up", 1234)
    assert [row.bytes for row in site_store.SiteTables(tmp_path, "north").ledger()] == [100, 1234]
    text = (tmp_path / "ledger.csv").read_text()
    (tmp_path / "ledger.csv").write_text(text.replace("up,100", "up,1x0"))
    with pytest.raises(ComityError, match=r"ledger\.csv is damaged"):
        site_store.SiteTables(tmp_path, "north")


def test_a_damaged_ledger_of_another_run(tmp_path: Path) -> None:
    """How much has left in all is not known then: nothing more leaves before somebody has looked."""
    (tmp_path / "runs" / "before").mkdir(parents=True)
    site_store.SiteTables(tmp_path / "runs" / "before", "north").charge_sent(1, "local", "up", 100)
    assert site_store.bytes_sent(tmp_path, "north") == 100
    with (tmp_path / "runs" / "before" / "ledger.csv").open("a") as file:
        file.write("what is this?\n")
    with pytest.raises(CorruptedFile, match="how much has left this site in all is not known"):
        site_store.bytes_sent(tmp_path, "north")


def test_figures_of_a_round_that_is_made_again(tmp_path: Path) -> None:
    """The round that counts is the later one: others may have been absent from it, and then its
    figures differ.
    """
    book = site_store.SiteTables(tmp_path, "north")
    note = Note(2, "north", "test", "accuracy", 0.5)
    book.add_metrics([Note(1, "north", "test", "accuracy", 0.25), note])
    book.add_metrics([note])
    book = site_store.SiteTables(tmp_path, "north")
    book.add_metrics([note._replace(value=0.75), note._replace(metric="loss", value=2.0)])
    assert [(row.round, row.metric, row.value) for row in site_store.SiteTables(tmp_path, "north").metrics()] == [
        (1, "accuracy", 0.25), (2, "accuracy", 0.75), (2, "loss", 2.0),
    ]  # fmt: skip
