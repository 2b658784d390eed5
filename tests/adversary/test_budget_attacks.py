"""A malicious server against the privacy budget of a site policy: the site's ledger is charged
before every release, sums over all runs, and refuses what would exceed the budget.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process_sites import OPEN, Sites
from malicious_server import (
    METHOD,
    SETTINGS,
    SIZES,
    MaliciousServer,
    Refused,
    attack,
    spent,
    weights,
)

from comity.base.record import Model
from comity.deploy import site_results
from comity.deploy.release_ledger import LEDGER_FILE, ReleaseLedger
from comity.deploy.sent_ledger import SENT_FILE

BUDGET = 2.0


@pytest.fixture(autouse=True)
def _no_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    changes = OPEN | {'epsilon = "inf"': f"epsilon = {BUDGET}"}
    return Sites(tmp_path / "sites", SIZES, changes)


def ask_until_refused(server: MaliciousServer, most: int = 200) -> int:
    """Ask with ever new messages for one round; returns how many were answered."""
    for number in range(most):
        if not is_answered(server, number):
            return number
    return most


def is_answered(server: MaliciousServer, number: int) -> bool:
    """Whether the site answers the message with this number, and does not refuse by the budget."""
    try:
        server.call("local", Model(weights(number / 1000)), depth=1)
    except Refused as why:
        if "epsilon" not in str(why):
            raise
        return False
    return True


def test_answers_to_new_messages_end_with_the_budget(sites: Sites) -> None:
    server = attack(sites)
    answered = ask_until_refused(server)
    assert 0 < answered < 200
    assert spent(sites, "north") <= BUDGET


@pytest.mark.parametrize(
    "place",
    [
        {"round": 0},
        {"occurrence": 1},
        {"occurrence": 399},
        {"round": 4},
        {"function": "warm_up", "round": 1},
    ],
    ids=str,
)
def test_calls_outside_the_plan_are_refused(sites: Sites, place: dict[str, Any]) -> None:
    server = attack(sites)
    usual: dict[str, Any] = {"function": "local", "content": Model(weights(0.0)), "depth": 1}
    with pytest.raises(Refused, match=r"plan|round"):
        server.call(**usual | place)
    assert spent(sites, "north") == 0


def test_runs_that_begin_together_share_one_budget(sites: Sites) -> None:
    servers = [attack(sites, f"run{number}") for number in range(5)]
    for number in range(40):
        for server in servers:
            is_answered(server, number)
    assert spent(sites, "north") <= BUDGET


def test_deleting_the_folder_of_a_run_gives_nothing_back(sites: Sites) -> None:
    ask_until_refused(attack(sites))
    before = spent(sites, "north")
    shutil.rmtree(sites.site("north") / "runs")
    assert spent(sites, "north") == before
    with pytest.raises(Refused, match="epsilon"):
        attack(sites, "second").call("local", Model(weights(0.0)), depth=1)


def _ask(folder: Sites, run: str, results: Any) -> None:
    results.put(ask_until_refused(attack(folder, run), 60))


def test_concurrent_processes_share_one_budget(sites: Sites) -> None:
    """Two handlers of one site in two processes, as two jobs have them."""
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    processes = [fork.Process(target=_ask, args=(sites, run, results)) for run in ("left", "right")]
    for process in processes:
        process.start()
    answered = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
    assert sum(answered) > 0
    assert 0 < spent(sites, "north") <= BUDGET


def test_a_charge_is_on_the_disk_before_the_reply_is_computed(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the site is killed in between, the release counts."""
    from comity.engines.site import Site

    server = attack(sites)

    def killed(*_: Any) -> Any:
        raise RuntimeError("killed")

    monkeypatch.setattr(Site, "run", killed)
    with pytest.raises(Refused):
        server.call("local", Model(weights(0.0)), depth=1)
    assert spent(sites, "north") > 0


def test_the_ledger_is_synced_before_the_reply(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comity.engines.site import Site

    events: list[str] = []
    ledger = sites.site("north") / LEDGER_FILE
    run = Site.run

    def fsync(descriptor: int) -> None:
        if os.path.realpath(f"/proc/self/fd/{descriptor}") == str(ledger.resolve()):
            events.append("synced")

    def running(self: Site, *args: Any) -> Any:
        events.append("computed")
        return run(self, *args)

    server = attack(sites)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Site, "run", running)
    server.call("local", Model(weights(0.0)), depth=1)
    assert events[:2] == ["synced", "computed"]


DAMAGES: dict[str, Callable[[list[str]], list[str]]] = {
    "changed": lambda rows: [*rows[:-1], rows[-1].replace("gaussian", "none?")],
    "less noise": lambda rows: [*rows[:-1], rows[-1].replace(",4.0,", ",9.0,")],
    "removed": lambda rows: [rows[0], *rows[2:]],
    "swapped": lambda rows: [rows[1], rows[0], *rows[2:]],
    "repeated": lambda rows: [*rows, rows[-1]],
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_ledger_is_refused(sites: Sites, how: str) -> None:
    for number in range(3):
        attack(sites).call("local", Model(weights(number / 1000)), depth=1)
    ledger = sites.site("north") / LEDGER_FILE
    head, *rows = ledger.read_text().splitlines()
    damaged = DAMAGES[how](rows)
    assert damaged != rows
    ledger.write_text("\n".join([head, *damaged, ""]))
    with pytest.raises(Refused, match="ledger"):
        attack(sites, "second").call("local", Model(weights(0.0)), depth=1)


def test_the_ledger_is_locked_while_it_is_written(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that has the file open cannot get the lock."""
    path = sites.site("north") / LEDGER_FILE
    append, locked = ReleaseLedger._append, []

    def appending(self: ReleaseLedger, rows: Any) -> None:
        with path.open("rb") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked.append(False)
            except BlockingIOError:
                locked.append(True)
        append(self, rows)

    server = attack(sites)
    monkeypatch.setattr(ReleaseLedger, "_append", appending)
    server.call("local", Model(weights(0.0)), depth=1)
    assert set(locked) == {True}


def release_without_noise(sites: Sites) -> None:
    """North takes part in a run without noise, under a policy that allows it for a while."""
    budget = f"epsilon = {BUDGET}"
    sites.change("north", {budget: 'epsilon = "inf"'})
    sites.change("east", {budget: 'epsilon = "inf"'})
    server = MaliciousServer(sites, "north", "open", "fedavg", **SETTINGS)
    server.begin()
    server.call("local", Model(weights(0.0)))
    sites.change("north", {'epsilon = "inf"': budget})
    sites.change("east", {'epsilon = "inf"': budget})


def test_no_run_begins_under_a_budget_after_values_without_noise(sites: Sites) -> None:
    release_without_noise(sites)
    server = MaliciousServer(sites, "north", "later", METHOD, **SETTINGS)
    with pytest.raises(Refused, match="there is no bound on it"):
        server.begin()


def test_no_run_continues_under_a_budget_after_values_without_noise(sites: Sites) -> None:
    server = attack(sites)
    release_without_noise(sites)
    with pytest.raises(Refused, match="epsilon over all runs would be inf"):
        server.call("local", Model(weights(0.0)), depth=1)


def test_methods_without_noise_are_refused_under_a_budget(sites: Sites) -> None:
    for method in ("fedavg", "solo", "fedavg+dp(noise=0)"):
        server = MaliciousServer(sites, "north", "open", method, **SETTINGS)
        with pytest.raises(Refused, match="epsilon"):
            server.begin()


# Bytes and evaluations.

MODEL_BYTES = 4 * 650  # of a reply in these tests


def limit_bytes(sites: Sites, changes: dict[str, str]) -> None:
    for name in sites.names:
        sites.change(name, changes)


def byte_limit(replies: float) -> dict[str, str]:
    """A policy that allows so many replies in all runs."""
    return {'bytes = "100 GB"': f"bytes = {int(replies * MODEL_BYTES)}"}


def has_bytes_left(server: MaliciousServer, number: int, limit: str = "(budget: bytes)") -> bool:
    """Whether the site answers the message with this number, and does not refuse by a limit."""
    try:
        server.call("local", Model(weights(number / 1000)), depth=1)
    except Refused as why:
        if limit not in str(why):
            raise
        return False
    return True


def replies_until_refused(server: MaliciousServer, limit: str, most: int = 9) -> int:
    for number in range(most):
        if not has_bytes_left(server, number, limit):
            return number
    return most


def test_deleting_the_folder_of_a_run_gives_no_bytes_back(sites: Sites) -> None:
    limit_bytes(sites, byte_limit(3.5))
    assert replies_until_refused(attack(sites), "(budget: bytes)") == 3
    shutil.rmtree(sites.site("north") / "runs")
    assert replies_until_refused(attack(sites, "second"), "(budget: bytes)") == 0


def test_deleting_the_folder_of_a_run_does_not_begin_its_limits_anew(sites: Sites) -> None:
    """The server asks for the run of the same name again."""
    limits = {
        'bytes = "10 GB"': f"bytes = {int(2.5 * MODEL_BYTES)}",
        "evaluations = 1100": "evaluations = 2",
    }
    limit_bytes(sites, limits)
    server = attack(sites)
    for _ in range(2):
        server.evaluate(Model(weights(0.0)))
    assert replies_until_refused(server, "(bytes)") == 2
    shutil.rmtree(sites.site("north") / "runs")
    again = attack(sites)
    assert replies_until_refused(again, "(bytes)") == 0
    with pytest.raises(Refused, match="evaluations"):
        again.evaluate(Model(weights(0.0)))


def test_runs_at_the_same_time_share_the_budget_of_bytes(sites: Sites) -> None:
    limit_bytes(sites, byte_limit(3.5))
    servers = [attack(sites, f"run{number}") for number in range(3)]
    answered = [has_bytes_left(server, number) for number in range(3) for server in servers]
    assert sum(answered) == 3


def test_bytes_are_charged_before_the_reply_leaves(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The charge is on the disk before anything else is written; the reply leaves after that."""
    from comity.deploy.site_store import SiteTables

    ledger = sites.site("north") / SENT_FILE
    events: list[str] = []
    add_steps = SiteTables.add_steps

    def fsync(descriptor: int) -> None:
        if os.path.realpath(f"/proc/self/fd/{descriptor}") == str(ledger.resolve()):
            events.append("synced")

    def adding(self: SiteTables, *args: Any) -> None:
        events.append("written")
        add_steps(self, *args)

    server = attack(sites)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(SiteTables, "add_steps", adding)
    server.call("local", Model(weights(0.0)), depth=1)
    assert events == ["synced", "written"]


@pytest.mark.parametrize("how", ["changed", "removed"])
def test_a_damaged_ledger_of_bytes_is_refused(sites: Sites, how: str) -> None:
    for number in range(3):
        attack(sites).call("local", Model(weights(number / 1000)), depth=1)
    ledger = sites.site("north") / SENT_FILE
    head, *rows = ledger.read_text().splitlines()
    damaged = {"changed": [rows[0].replace("2600", "26"), *rows[1:]], "removed": rows[1:]}[how]
    assert damaged != rows
    ledger.write_text("\n".join([head, *damaged, ""]))
    with pytest.raises(Refused, match="ledger"):
        attack(sites, "second")


def test_runs_of_earlier_versions_count(sites: Sites) -> None:
    """They have no ledger of bytes beside the folders of runs."""
    limit_bytes(sites, byte_limit(3.5))
    assert replies_until_refused(attack(sites), "(budget: bytes)") == 3
    (sites.site("north") / SENT_FILE).unlink()
    assert replies_until_refused(attack(sites, "second"), "(budget: bytes)") == 0
