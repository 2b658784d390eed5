"""Servers and sites that stop and come back, replies that are lost: what comes out is what would
have come out.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process_sites import HUB, Handed, Sites, ended, same_as_planned
from matrix import TABLES

from comity.base.call import CallId
from comity.checksums import with_crc
from comity.deploy import site_results, site_run
from comity.deploy.data import import_site_data
from comity.deploy.messages import REQUESTS, Committed, Evaluate, RunCall, unpack
from comity.deploy.server import FAILURE, serve
from comity.deploy.session import content_of
from comity.deploy.site_store import INDEX, STATES, States
from comity.engines.saved import STATE_FILE
from comity.errors import ComityError
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import warning_texts
from comity.wire.codec import encode

SIZES = {"north": (31, 12), "east": (23, 9), "south": (26, 7)}
USUAL: dict[str, Any] = {
    "model": "linear",
    "rounds": 2,
    "test": "official",
    "lr": 0.05,
    "batch": 16,
}
METHODS = ["fedavg", "scaffold", "adcol(hidden=4)", "fedavg+dbe"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        site_results, "export", lambda *_: []
    )  # it takes seconds, and has a test of its own
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


class Killed(BaseException):
    """The server's process ends here."""


class Fatal(Handed):
    """A courier that is killed, with its server, before it asks anybody for the k-th time, or after
    all have answered.
    """

    def __init__(self, sites: Sites, at: int, answered: bool) -> None:
        super().__init__({name: sites.handler(name) for name in sites.names})
        self.at = at
        self.answered = answered
        self.asked = 0

    def ask(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        self.asked += 1
        if self.asked > self.at:
            raise Killed  # and nothing can be told any more
        if self.asked == self.at:
            if self.answered:
                list(super().ask(requests, seconds))
            raise Killed
        yield from super().ask(requests, seconds)


def exchanges(sites: Sites, method: str, run: str) -> tuple[Path, int]:
    """A run that nothing happens to, and how often it asks."""
    transport = Fatal(sites, 10**9, False)
    folder = sites.run(method, run, transport, **USUAL)
    ended(folder)
    return folder, transport.asked


def plain(method: str) -> str:
    return "".join(c for c in method if c.isalnum())


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_a_server_that_is_killed_between_any_two_exchanges(method: str, sites: Sites) -> None:
    """SubmittedJob again by its name it goes on, with fresh desks, to the same tables; it is killed
    before or after the answers.
    """
    right, count = exchanges(sites, method, f"right{plain(method)}")
    some = (
        1 if method == "scaffold" or os.environ.get("COMITY_SITES") else 4
    )  # `make test-sites` kills at all of them
    for k in range(1, count + 1, some):
        run = f"killed{plain(method)}{k}"
        with pytest.raises(Killed):
            sites.run(method, run, Fatal(sites, k, answered=bool(k % 2)), **USUAL)
        folder = sites.run(method, run, **USUAL)
        summary = ended(folder)
        for name in TABLES:
            assert (folder / name).read_text() == (right / name).read_text(), (k, name)
        assert summary["absent"] == {}
        for site in sites.names:  # and each site's own figures are those of the run that counts
            own = RunFolder(sites.site(site) / "runs" / run)
            whole = RunFolder(sites.site(site) / "runs" / right.name)
            assert own.read_metrics() == whole.read_metrics()
            assert own.read_summary() is not None
            assert own.read_summary()["steps"] == whole.read_summary()["steps"]  # type: ignore[index]


def test_a_run_that_is_killed_again_and_again(sites: Sites) -> None:
    right, count = exchanges(sites, "scaffold", "rightagain")
    for k in range(3, count + 1):
        try:
            folder = sites.run("scaffold", "again", Fatal(sites, k, answered=True), **USUAL)
        except Killed:
            continue
        break
    else:
        folder = sites.run("scaffold", "again", **USUAL)
    ended(folder)
    assert (folder / "metrics.csv").read_text() == (right / "metrics.csv").read_text()


def test_a_site_that_was_restarted_waits_for_the_next_job(sites: Sites) -> None:
    """A fresh desk knows of no run: it refuses, is not heard, and goes on with its own state once
    the run is ordered again.
    """
    transport = sites.transport()
    replaced: list[str] = []

    def lost(name: str, request: bytes) -> str:
        head = unpack(request, REQUESTS, 1 << 30)[0]
        if name == "east" and isinstance(head, RunCall) and head.call[2] == 2 and not replaced:
            transport.desks["east"] = sites.handler("east")
            replaced.append(name)
        return ""

    transport.lost = lost
    folder = sites.run("scaffold", "restarted", transport, **(USUAL | {"rounds": 3}))
    assert "east was not heard in round 2: east takes no part in that run." in warning_texts(
        ended(folder), "during"
    )
    same_as_planned(sites, folder, "scaffold", **(USUAL | {"rounds": 3}))


MISSED = ["scaffold", "fedavg+dbe", "fed-sps", "relay"]


def missing(who: str, how: str, when: Callable[[Any], bool]) -> Callable[[str, bytes], str]:
    return lambda name, request: (
        how if name == who and when(unpack(request, REQUESTS, 1 << 30)[0]) else ""
    )


def works_of(*rounds: int) -> Callable[[Any], bool]:
    return lambda head: isinstance(head, RunCall) and head.call[2] in rounds


@pytest.mark.sweep("fed-sps-lost", "fedavg+dbe-offline", "scaffold-offline")
@pytest.mark.parametrize("how", ["lost", "offline"])
@pytest.mark.parametrize("method", MISSED)
def test_lost_replies_and_dead_sites(method: str, how: str, sites: Sites) -> None:
    """As in a loop in which the same parties miss the same."""
    settings = USUAL | {"rounds": 4}
    transport = sites.transport()
    transport.lost = missing("east", how, works_of(2, 3))
    folder = sites.run(method, f"{how}{plain(method)}", transport, **settings)
    assert ended(folder)["absent"].keys() == {"east"}
    same_as_planned(sites, folder, method, **settings)


@pytest.mark.parametrize("method", MISSED)
def test_a_site_that_misses_the_start_or_an_evaluation(method: str, sites: Sites) -> None:
    settings = USUAL | {"rounds": 3}
    transport = sites.transport()

    def away(head: Any) -> bool:
        return (isinstance(head, RunCall) and head.call[2] <= 1) or (
            isinstance(head, Evaluate) and head.round == 2
        )

    transport.lost = missing("south", "offline", away)
    folder = sites.run(method, f"start{plain(method)}", transport, **settings)
    ended(folder)
    same_as_planned(sites, folder, method, **settings)


@pytest.mark.parametrize("method", ["scaffold", "fedavg+dbe"])
def test_a_quorum_that_is_missed(method: str, sites: Sites) -> None:
    settings = USUAL | {"rounds": 4, "min_replies": 3}
    transport = sites.transport()
    transport.lost = missing("north", "lost", works_of(2, 4))
    folder = sites.run(method, f"quorum{plain(method)}", transport, **settings)
    summary = ended(folder)
    assert [void["round"] for void in summary["discarded"]] == [2, 4]
    same_as_planned(sites, folder, method, **settings)


@pytest.mark.parametrize("method", ["scaffold", "fed-sps"])
def test_a_site_that_is_gone_when_a_run_goes_on(method: str, sites: Sites) -> None:
    """The others go on without it, and can still seal parcels for it, which nobody can open."""
    settings = USUAL | {"rounds": 3}
    run = f"gone{plain(method)}"
    _, count = exchanges(sites, method, f"whole{plain(method)}")
    with pytest.raises(Killed):
        sites.run(method, run, Fatal(sites, count // 2 + 1, answered=True), **settings)
    transport = sites.transport()
    del transport.desks["east"]
    order = {"run": run, "settings": {}}
    serve(transport, order, sites.folder / "hub", identity=sites.root.identity(HUB))
    folder = sites.folder / "hub" / "runs" / run
    summary = ended(folder)
    assert "east takes no part: it is not connected." in warning_texts(summary, "during")
    assert summary["absent"].keys() == {"east"}
    assert not summary["discarded"]
    same_as_planned(sites, folder, method, **settings)


def test_other_settings_under_the_name_of_a_run(sites: Sites) -> None:
    with pytest.raises(Killed):
        sites.run("fedavg", "named", Fatal(sites, 5, answered=True), **USUAL)
    folder = sites.run("fedavg", "named", **(USUAL | {"lr": 0.5}))
    assert (folder / FAILURE).read_text() == "Run named was begun with other settings.\n"
    assert not (folder / "summary.json").exists()
    first = ended(sites.run("fedavg", "named", **USUAL))
    transport = sites.transport()
    transport.lost = missing(
        "east",
        "offline",
        lambda head: pytest.fail("it works again") if isinstance(head, RunCall) else False,
    )
    assert ended(sites.run("fedavg", "named", transport, **USUAL)) == first


def test_data_that_changed_since_a_run_was_begun(tmp_path: Path) -> None:
    """The site refuses, which is told, and the others go on."""
    sites = Sites(tmp_path, SIZES)
    with pytest.raises(Killed):
        sites.run("fedavg", "changed", Fatal(sites, 5, answered=True), **USUAL)
    file = tmp_path / "other.npz"
    with np.load(tmp_path / "files" / "east.npz") as old:
        np.savez(file, **{name: old[name][:-1] for name in old})
    import_site_data(file, sites.site("east") / "newer", None, classes=10)
    sites.change("east", {'data = "data"': 'data = "newer"'})
    summary = ended(sites.run("fedavg", "changed", **USUAL))
    assert (
        "east takes no part: The data of east have changed since run changed was begun."
        in warning_texts(summary, "during")
    )
    assert summary["absent"]["east"]["lost"] >= 2


def test_a_site_that_tells_something_else_than_before(tmp_path: Path) -> None:
    sites = Sites(tmp_path, SIZES)
    with pytest.raises(Killed):
        sites.run("fedavg", "tells", Fatal(sites, 5, answered=True), **USUAL)
    sites.change("east", {'"class counts", ': ""})
    summary = ended(sites.run("fedavg", "tells", **USUAL))
    assert (
        "east takes no part: it says something else of itself than when the run began."
        in warning_texts(summary, "during")
    )


def test_sites_that_cannot_take_part_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version at one, another schema at another: the third goes on, or nobody does, and it
    is told why.
    """
    sites = Sites(tmp_path, SIZES)
    transport = sites.transport()
    asked: list[str] = []
    transport.lost = lambda name, request: asked.append(name) or ""
    monkeypatch.setattr(
        site_run, "version", lambda package: "9.9" if asked[-1] == "east" else version(package)
    )
    summary = ended(sites.run("fedavg", "older", transport, **USUAL))
    assert summary["parties"] == 2
    assert any(
        text.startswith("east takes no part: east has Comity 9.9, the server has")
        for text in warning_texts(summary, "during")
    )
    monkeypatch.undo()
    monkeypatch.setattr(site_run, "schema_digest", lambda schema: "another")
    folder = sites.run("fedavg", "schema", **USUAL)
    assert (folder / FAILURE).read_text().count("follow another schema than the server's") == 3


# States at home


def test_states_that_a_checkpoint_made_useless_are_gone(sites: Sites) -> None:
    ended(sites.run("scaffold", "forgets", **(USUAL | {"rounds": 4})))
    for name in sites.names:
        kept = sites.site(name) / "runs" / "forgets" / STATES
        assert len([path for path in kept.iterdir() if STATE_FILE.fullmatch(path.name)]) == 1


def test_a_site_that_did_not_hear_of_a_checkpoint_keeps_more(sites: Sites) -> None:
    transport = sites.transport()
    transport.lost = missing("east", "offline", lambda head: isinstance(head, Committed))
    summary = ended(sites.run("scaffold", "keeps", transport, **(USUAL | {"rounds": 3})))
    assert len(list((sites.site("east") / "runs" / "keeps" / STATES).iterdir())) == 3
    assert summary["absent"] == {}
    assert warning_texts(summary, "during") == []


@pytest.mark.parametrize("what", ["state", "cut", "missing", "swapped", "index", "older index"])
def test_a_damaged_state_is_never_gone_on_with(what: str, sites: Sites) -> None:
    """The site says so, and is not heard any more; nobody makes up a state for it."""
    run = "damaged" + plain(what)
    transport = sites.transport()
    transport.lost = missing("east", "offline", lambda head: isinstance(head, Committed))
    original, done = transport.ask, []

    def ask(requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | None]]:
        heads = [unpack(content_of(request), REQUESTS, 1 << 30)[0] for request in requests.values()]
        if any(isinstance(head, RunCall) and head.call[2] == 3 for head in heads):
            done.append(1)
            raise Killed
        yield from original(requests, seconds)

    transport.ask = ask
    settings = USUAL | {"rounds": 4}
    with pytest.raises(Killed):
        sites.run("scaffold", run, transport, **settings)
    at = sites.site("east") / "runs" / run
    files = sorted((at / STATES).iterdir())
    assert len(files) == 2
    if what == "state":
        blob = bytearray(files[-1].read_bytes())
        blob[-1] ^= 1
        files[-1].write_bytes(blob)
    elif what == "cut":
        files[-1].write_bytes(files[-1].read_bytes()[:-1])
    elif what == "missing":
        files[-1].unlink()
    elif what == "swapped":
        files[-1].write_bytes(files[0].read_bytes())
    elif what == "index":
        (at / INDEX).write_text((at / INDEX).read_text().replace('"local"', '"lokal"', 1))
    else:
        told = json.loads((at / INDEX).read_text())
        (at / INDEX).write_text(json.dumps(with_crc({"states": told["states"][:1]})))
    folder = sites.run("scaffold", run, **settings)
    summary = ended(folder)
    assert summary["absent"].keys() == {"east"}
    why = [text for text in warning_texts(summary, "during") if text.startswith("east ")]
    assert any("damaged" in text or "lost" in text or "has no state after" in text for text in why)
    assert str(sites.folder) not in "".join(why)
    same_as_planned(sites, folder, "scaffold", **settings)


def test_an_older_checkpoint_can_be_gone_on_with(sites: Sites) -> None:
    """A site is several rounds ahead of the server's last checkpoint, of which it was the last to
    hear.
    """
    settings = USUAL | {"rounds": 4}
    right = sites.run("scaffold", "rightolder", **settings)

    def stopped(at: int) -> Handed:
        transport = sites.transport()
        original = transport.ask

        def ask(
            requests: Mapping[str, bytes], seconds: float
        ) -> Iterator[tuple[str, bytes | None]]:
            heads = [
                unpack(content_of(request), REQUESTS, 1 << 30)[0] for request in requests.values()
            ]
            if any(isinstance(head, RunCall) and head.call[2] == at for head in heads):
                raise Killed
            yield from original(requests, seconds)

        transport.ask = ask
        return transport

    with pytest.raises(Killed):
        sites.run("scaffold", "older", stopped(2), **settings)
    folder = sites.folder / "hub" / "runs" / "older"
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    transport = stopped(4)
    transport.lost = lambda name, request: (
        "offline" if isinstance(unpack(request, REQUESTS, 1 << 30)[0], Committed) else ""
    )
    with pytest.raises(Killed):
        sites.run("scaffold", "older", transport, **settings)
    for path in [path for path in folder.rglob("*") if path.is_file() and path not in kept]:
        path.unlink()
    for path, blob in kept.items():  # the server's disk is that of an older backup
        path.write_bytes(blob)
    ended(sites.run("scaffold", "older", **settings))
    for name in TABLES:
        assert (folder / name).read_text() == (right / name).read_text(), name


def test_a_state_is_on_the_disk_before_the_index_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content, and its name in the folder."""
    synced: dict[int, int] = {}
    checked: list[int] = []
    replace = os.replace

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced[status.st_ino] = (
            len(os.listdir(descriptor)) if stat.S_ISDIR(status.st_mode) else status.st_size
        )

    def replacing(source: str, target: str, **folders: int) -> None:
        assert target == INDEX
        files = list((tmp_path / STATES).iterdir())
        assert all(synced.get(file.stat().st_ino) == file.stat().st_size for file in files)
        assert synced.get((tmp_path / STATES).stat().st_ino) == len(files)
        checked.append(len(files))
        replace(source, target, **folders)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replacing)
    states = States(tmp_path)
    for t in (1, 2):
        states.write(0, CallId("local", 0, t, 0), encode({"t": t}))
    assert checked == [1, 2]


def test_states_by_their_calls(tmp_path: Path) -> None:
    states = States(tmp_path)
    one, two, three = (CallId("local", 0, t, 0) for t in (1, 2, 3))
    for t, call in enumerate((one, two, three)):
        states.write(0, call, encode({"t": t}))
    states.write(0, two, encode({"t": 20}))  # asked for again, by a server that came back
    assert [States(tmp_path).read(call)["t"] for call in (one, two, three)] == [0, 20, 2]
    states.forget_before(None)
    states.forget_before(CallId("local", 0, 9, 0))
    assert len(list((tmp_path / STATES).iterdir())) == 4
    states.forget_before(two)
    assert len(list((tmp_path / STATES).iterdir())) == 1
    with pytest.raises(ComityError, match="no state after local of round 3"):
        States(tmp_path).read(three)
