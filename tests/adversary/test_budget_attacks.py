"""A malicious server against the privacy budget of a site policy: the site's ledger is charged
before every release, sums over all runs, and refuses what would exceed the budget.
"""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
from in_process_sites import OPEN, Sites
from malicious_server import SETTINGS, SIZES, MaliciousServer, Refused, attack, spent, weights

from comity.base.record import Model
from comity.deploy import site_results
from comity.deploy.release_ledger import LEDGER_FILE

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
    import os

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


def test_a_damaged_ledger_is_refused(sites: Sites) -> None:
    attack(sites).call("local", Model(weights(0.0)), depth=1)
    ledger = sites.site("north") / LEDGER_FILE
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join([*lines[:-1], lines[-1].replace("gaussian", "none?"), ""]))
    with pytest.raises(Refused, match="ledger"):
        attack(sites, "second").call("local", Model(weights(0.0)), depth=1)


def test_methods_without_noise_are_refused_under_a_budget(sites: Sites) -> None:
    for method in ("fedavg", "solo", "fedavg+dp(noise=0)"):
        server = MaliciousServer(sites, "north", "open", method, **SETTINGS)
        with pytest.raises(Refused, match="epsilon"):
            server.begin()
