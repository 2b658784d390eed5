"""Restarts of servers and sites, and lost replies: the results equal those of an undisturbed run,
or of a simulation with the same absences.
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
def _without_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        site_results, "export", lambda *_: []
    )  # it takes seconds, and is tested elsewhere
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


class ServerKilled(BaseException):
    """Stands for the end of the server's process."""


class KilledTransport(Handed):
    """A transport that is killed, with its server, before the k-th exchange or after all its
    replies.
    """

    def __init__(self, sites: Sites, at: int, after_replies: bool) -> None:
        super().__init__({name: sites.handler(name) for name in sites.names})
        self.at = at
        self.after_replies = after_replies
        self.exchange_count = 0

    def ask(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        self.exchange_count += 1
        if self.exchange_count > self.at:
            raise ServerKilled  # no request leaves any more
        if self.exchange_count == self.at:
            if self.after_replies:
                list(super().ask(requests, seconds))
            raise ServerKilled
        yield from super().ask(requests, seconds)


def run_and_count(sites: Sites, method: str, run: str) -> tuple[Path, int]:
    """Do an undisturbed run. Returns its folder and the number of exchanges."""
    transport = KilledTransport(sites, 10**9, False)
    folder = sites.run(method, run, transport, **USUAL)
    ended(folder)
    return folder, transport.exchange_count


def alphanumeric(method: str) -> str:
    return "".join(c for c in method if c.isalnum())


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_run_resumes_after_the_server_is_killed_at_any_exchange(method: str, sites: Sites) -> None:
    """The run is submitted again under its name and resumes, with new request handlers, to the same
    tables. The server is killed before or after the replies.
    """
    expected, count = run_and_count(sites, method, f"right{alphanumeric(method)}")
    stride = (
        1 if method == "scaffold" or os.environ.get("COMITY_SITES") else 4
    )  # `make test-sites` kills at every exchange
    for k in range(1, count + 1, stride):
        run = f"killed{alphanumeric(method)}{k}"
        with pytest.raises(ServerKilled):
            sites.run(method, run, KilledTransport(sites, k, after_replies=bool(k % 2)), **USUAL)
        folder = sites.run(method, run, **USUAL)
        summary = ended(folder)
        for name in TABLES:
            assert (folder / name).read_text() == (expected / name).read_text(), (k, name)
        assert summary["absent"] == {}
        for site in sites.names:  # each site's own metrics equal those of the undisturbed run
            site_folder = RunFolder(sites.site(site) / "runs" / run)
            expected_site_folder = RunFolder(sites.site(site) / "runs" / expected.name)
            assert site_folder.read_metrics() == expected_site_folder.read_metrics()
            summaries = [site_folder.read_summary(), expected_site_folder.read_summary()]
            assert summaries[0] is not None
            assert summaries[0]["steps"] == summaries[1]["steps"]  # type: ignore[index]


def test_run_resumes_after_many_kills(sites: Sites) -> None:
    expected, count = run_and_count(sites, "scaffold", "rightagain")
    for k in range(3, count + 1):
        try:
            folder = sites.run(
                "scaffold", "again", KilledTransport(sites, k, after_replies=True), **USUAL
            )
        except ServerKilled:
            continue
        break
    else:
        folder = sites.run("scaffold", "again", **USUAL)
    ended(folder)
    assert (folder / "metrics.csv").read_text() == (expected / "metrics.csv").read_text()


def test_restarted_site_misses_calls_until_the_run_is_submitted_again(sites: Sites) -> None:
    """A new request handler knows no run: it refuses calls, and continues with its stored state
    once the run is submitted again.
    """
    transport = sites.transport()
    replaced_sites: list[str] = []

    def replace_handler(name: str, request: bytes) -> str:
        head = unpack(request, REQUESTS, 1 << 30)[0]
        if (
            name == "east"
            and isinstance(head, RunCall)
            and head.call[2] == 2
            and not replaced_sites
        ):
            transport.desks["east"] = sites.handler("east")
            replaced_sites.append(name)
        return ""

    transport.lost = replace_handler
    folder = sites.run("scaffold", "restarted", transport, **(USUAL | {"rounds": 3}))
    assert "east was not heard in round 2: east takes no part in that run." in warning_texts(
        ended(folder), "during"
    )
    same_as_planned(sites, folder, "scaffold", **(USUAL | {"rounds": 3}))


METHODS_WITH_STATES = ["scaffold", "fedavg+dbe", "fed-sps", "relay"]


def miss_when(who: str, how: str, when: Callable[[Any], bool]) -> Callable[[str, bytes], str]:
    return lambda name, request: (
        how if name == who and when(unpack(request, REQUESTS, 1 << 30)[0]) else ""
    )


def is_call_in(*rounds: int) -> Callable[[Any], bool]:
    return lambda head: isinstance(head, RunCall) and head.call[2] in rounds


@pytest.mark.sweep("fed-sps-lost", "fedavg+dbe-offline", "scaffold-offline")
@pytest.mark.parametrize("how", ["lost", "offline"])
@pytest.mark.parametrize("method", METHODS_WITH_STATES)
def test_lost_replies_and_offline_sites_equal_planned_absences(
    method: str, how: str, sites: Sites
) -> None:
    """The tables equal those of a simulation with the same absences."""
    settings = USUAL | {"rounds": 4}
    transport = sites.transport()
    transport.lost = miss_when("east", how, is_call_in(2, 3))
    folder = sites.run(method, f"{how}{alphanumeric(method)}", transport, **settings)
    assert ended(folder)["absent"].keys() == {"east"}
    same_as_planned(sites, folder, method, **settings)


@pytest.mark.parametrize("method", METHODS_WITH_STATES)
def test_site_that_misses_the_start_or_an_evaluation(method: str, sites: Sites) -> None:
    settings = USUAL | {"rounds": 3}
    transport = sites.transport()

    def is_missed(head: Any) -> bool:
        return (isinstance(head, RunCall) and head.call[2] <= 1) or (
            isinstance(head, Evaluate) and head.round == 2
        )

    transport.lost = miss_when("south", "offline", is_missed)
    folder = sites.run(method, f"start{alphanumeric(method)}", transport, **settings)
    ended(folder)
    same_as_planned(sites, folder, method, **settings)


@pytest.mark.parametrize("method", ["scaffold", "fedavg+dbe"])
def test_rounds_with_too_few_replies_are_discarded(method: str, sites: Sites) -> None:
    settings = USUAL | {"rounds": 4, "min_replies": 3}
    transport = sites.transport()
    transport.lost = miss_when("north", "lost", is_call_in(2, 4))
    folder = sites.run(method, f"quorum{alphanumeric(method)}", transport, **settings)
    summary = ended(folder)
    assert [entry["round"] for entry in summary["discarded"]] == [2, 4]
    same_as_planned(sites, folder, method, **settings)


@pytest.mark.parametrize("method", ["scaffold", "fed-sps"])
def test_run_resumes_without_a_disconnected_site(method: str, sites: Sites) -> None:
    """The others continue, and still seal messages for the missing site, which nobody can open."""
    settings = USUAL | {"rounds": 3}
    run = f"gone{alphanumeric(method)}"
    _, count = run_and_count(sites, method, f"whole{alphanumeric(method)}")
    with pytest.raises(ServerKilled):
        sites.run(
            method, run, KilledTransport(sites, count // 2 + 1, after_replies=True), **settings
        )
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


def test_other_settings_for_an_existing_run_are_refused(sites: Sites) -> None:
    with pytest.raises(ServerKilled):
        sites.run("fedavg", "named", KilledTransport(sites, 5, after_replies=True), **USUAL)
    folder = sites.run("fedavg", "named", **(USUAL | {"lr": 0.5}))
    assert (folder / FAILURE).read_text().startswith("Run named was begun with other settings.\n")
    assert not (folder / "summary.json").exists()
    first = ended(sites.run("fedavg", "named", **USUAL))
    transport = sites.transport()
    transport.lost = miss_when(
        "east",
        "offline",
        lambda head: (
            pytest.fail("a finished run calls a party function")
            if isinstance(head, RunCall)
            else False
        ),
    )
    assert ended(sites.run("fedavg", "named", transport, **USUAL)) == first


def test_site_with_changed_data_takes_no_part(tmp_path: Path) -> None:
    """The site refuses, with a warning, and the others continue."""
    sites = Sites(tmp_path, SIZES)
    with pytest.raises(ServerKilled):
        sites.run("fedavg", "changed", KilledTransport(sites, 5, after_replies=True), **USUAL)
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


def test_site_with_a_different_introduction_takes_no_part(tmp_path: Path) -> None:
    sites = Sites(tmp_path, SIZES)
    with pytest.raises(ServerKilled):
        sites.run("fedavg", "tells", KilledTransport(sites, 5, after_replies=True), **USUAL)
    sites.change("east", {'"class counts", ': ""})
    summary = ended(sites.run("fedavg", "tells", **USUAL))
    assert (
        "east takes no part: it says something else of itself than when the run began."
        in warning_texts(summary, "during")
    )


def test_sites_with_other_versions_are_named_and_with_other_schemas_take_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site with another version takes part, with a warning (test_protocol_version.py has other
    protocols). If all have another schema, the run fails and says why.
    """
    sites = Sites(tmp_path, SIZES)
    transport = sites.transport()
    asked_sites: list[str] = []
    transport.lost = lambda name, request: asked_sites.append(name) or ""
    monkeypatch.setattr(
        site_run,
        "version",
        lambda package: "9.9" if asked_sites[-1] == "east" else version(package),
    )
    summary = ended(sites.run("fedavg", "older", transport, **USUAL))
    assert summary["parties"] == 3
    assert any("east" in text and "Comity 9.9" in text for text in warning_texts(summary, "during"))
    monkeypatch.undo()
    monkeypatch.setattr(site_run, "schema_digest", lambda schema: "another")
    folder = sites.run("fedavg", "schema", **USUAL)
    assert (folder / FAILURE).read_text().count("follow another schema than the server's") == 3


# States at sites


def test_states_before_a_checkpoint_are_deleted(sites: Sites) -> None:
    ended(sites.run("scaffold", "forgets", **(USUAL | {"rounds": 4})))
    for name in sites.names:
        states_folder = sites.site(name) / "runs" / "forgets" / STATES
        assert (
            len([path for path in states_folder.iterdir() if STATE_FILE.fullmatch(path.name)]) == 1
        )


def test_site_that_misses_checkpoint_messages_keeps_more_states(sites: Sites) -> None:
    transport = sites.transport()
    transport.lost = miss_when("east", "offline", lambda head: isinstance(head, Committed))
    summary = ended(sites.run("scaffold", "keeps", transport, **(USUAL | {"rounds": 3})))
    assert len(list((sites.site("east") / "runs" / "keeps" / STATES).iterdir())) == 3
    assert summary["absent"] == {}
    assert warning_texts(summary, "during") == []


@pytest.mark.parametrize("what", ["state", "cut", "missing", "swapped", "index", "older index"])
def test_site_with_a_damaged_state_takes_no_part(what: str, sites: Sites) -> None:
    """The site reports the damage and takes no part; it gets no new state."""
    run = "damaged" + alphanumeric(what)
    transport = sites.transport()
    transport.lost = miss_when("east", "offline", lambda head: isinstance(head, Committed))
    original, kill_count = transport.ask, []

    def ask(requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | None]]:
        heads = [unpack(content_of(request), REQUESTS, 1 << 30)[0] for request in requests.values()]
        if any(isinstance(head, RunCall) and head.call[2] == 3 for head in heads):
            kill_count.append(1)
            raise ServerKilled
        yield from original(requests, seconds)

    transport.ask = ask
    settings = USUAL | {"rounds": 4}
    with pytest.raises(ServerKilled):
        sites.run("scaffold", run, transport, **settings)
    run_folder = sites.site("east") / "runs" / run
    files = sorted((run_folder / STATES).iterdir())
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
        (run_folder / INDEX).write_text(
            (run_folder / INDEX).read_text().replace('"local"', '"lokal"', 1)
        )
    else:
        index = json.loads((run_folder / INDEX).read_text())
        (run_folder / INDEX).write_text(json.dumps(with_crc({"states": index["states"][:1]})))
    folder = sites.run("scaffold", run, **settings)
    summary = ended(folder)
    assert summary["absent"].keys() == {"east"}
    why = [text for text in warning_texts(summary, "during") if text.startswith("east ")]
    assert any("damaged" in text or "lost" in text or "has no state after" in text for text in why)
    assert str(sites.folder) not in "".join(why)
    same_as_planned(sites, folder, "scaffold", **settings)


def test_run_resumes_from_an_older_checkpoint_of_the_server(sites: Sites) -> None:
    """The sites are several rounds ahead of the server's checkpoint, which is from an older backup."""
    settings = USUAL | {"rounds": 4}
    expected = sites.run("scaffold", "rightolder", **settings)

    def killed_at(at: int) -> Handed:
        transport = sites.transport()
        original = transport.ask

        def ask(
            requests: Mapping[str, bytes], seconds: float
        ) -> Iterator[tuple[str, bytes | None]]:
            heads = [
                unpack(content_of(request), REQUESTS, 1 << 30)[0] for request in requests.values()
            ]
            if any(isinstance(head, RunCall) and head.call[2] == at for head in heads):
                raise ServerKilled
            yield from original(requests, seconds)

        transport.ask = ask
        return transport

    with pytest.raises(ServerKilled):
        sites.run("scaffold", "older", killed_at(2), **settings)
    folder = sites.folder / "hub" / "runs" / "older"
    backup = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    transport = killed_at(4)
    transport.lost = lambda name, request: (
        "offline" if isinstance(unpack(request, REQUESTS, 1 << 30)[0], Committed) else ""
    )
    with pytest.raises(ServerKilled):
        sites.run("scaffold", "older", transport, **settings)
    for path in [path for path in folder.rglob("*") if path.is_file() and path not in backup]:
        path.unlink()
    for path, blob in backup.items():  # restore the server's older backup
        path.write_bytes(blob)
    ended(sites.run("scaffold", "older", **settings))
    for name in TABLES:
        assert (folder / name).read_text() == (expected / name).read_text(), name


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


def test_states_are_stored_by_call(tmp_path: Path) -> None:
    states = States(tmp_path)
    first, second, third = (CallId("local", 0, t, 0) for t in (1, 2, 3))
    for t, call in enumerate((first, second, third)):
        states.write(0, call, encode({"t": t}))
    states.write(0, second, encode({"t": 20}))  # called again by a restarted server
    assert [States(tmp_path).read(call)["t"] for call in (first, second, third)] == [0, 20, 2]
    states.forget_before(None)
    states.forget_before(CallId("local", 0, 9, 0))
    assert len(list((tmp_path / STATES).iterdir())) == 4
    states.forget_before(second)
    assert len(list((tmp_path / STATES).iterdir())) == 1
    with pytest.raises(ComityError, match="no state after local of round 3"):
        States(tmp_path).read(third)
