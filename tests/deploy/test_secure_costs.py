"""What plan and disclosure say about secure aggregation, beside the ledgers of runs."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from harness import comity as command
from harness import succeed
from in_process_sites import Sites, ended

import comity
from comity.deploy import site_results
from comity.deploy.secure_costs import protocol_traffic, smallest_sum
from comity.runs.folder import RunFolder

SIZES = {"north": (31, 12), "east": (23, 9), "south": (26, 7), "west": (40, 9)}
USUAL: dict[str, Any] = {"model": "linear", "rounds": 2, "test": "official", "batch": 16}
SIGNATURE = 64  # bytes, of the keys of these sites (Ed25519)
SMALL = ("--data", "digits", "--model", "linear", "--rounds", "3", "--batch", "16")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """Four sites of which one may collude: three must take part to the end."""
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto", "fedavg+dp(noise=1)"])
def test_bytes_of_the_protocol_are_those_of_the_ledger(method: str, sites: Sites) -> None:
    name = "".join(filter(str.isalnum, method))
    plain = ended(sites.run(method, f"plain{name}", **USUAL))["bytes"]
    secure = ended(sites.run(method, f"secure{name}", secure_aggregation=True, **USUAL))["bytes"]
    traffic = protocol_traffic(sites.names, SIGNATURE)
    assert secure["up"] - plain["up"] == USUAL["rounds"] * traffic.up
    assert secure["down"] - plain["down"] == USUAL["rounds"] * traffic.down


def amounts(text: str, row: str) -> list[str]:
    line = next(line for line in text.splitlines() if row in line)
    return re.findall(r"[\d.]+ [kMG]?B", line)


def test_the_plan_counts_the_protocol_and_says_what_the_server_learns() -> None:
    words = ("plan", "scaffold", "--parties", "5", *SMALL)
    plain, secure = succeed(*words).out, succeed(*words, "--secure-aggregation").out
    text = " ".join(secure.split())
    assert "the server learns the mean of at least 4 of 5 sites" in text
    assert "at most 1 of them colludes with it; 1 may drop out" in text
    assert "experimental" in text
    traffic = protocol_traffic([f"p{i}" for i in range(5)])
    assert f"{traffic.up:,} up and {traffic.down:,} down are keys, shares" in text
    assert amounts(plain, "whole run") != amounts(secure, "whole run")
    assert "secure" not in plain


@pytest.mark.parametrize(
    ("method", "words", "why"),
    [
        ("fedavg", ("--parties", "2"), "at least 3 sites"),
        ("fedavg+median", ("--parties", "5"), "cannot have secure aggregation"),
        ("relay", ("--parties", "5"), "cannot have secure aggregation"),
    ],
)
def test_a_plan_of_what_cannot_be_is_refused(method: str, words: tuple[str, ...], why: str) -> None:
    result = command("plan", method, *words, *SMALL, "--secure-aggregation")
    assert result.code
    assert why in " ".join(result.err.split())


def test_the_records_behind_the_smallest_sum() -> None:
    """The site itself and the smallest others."""
    assert smallest_sum(40, [31, 23, 26], 3) == (89, 40 / 89)
    assert smallest_sum(10, [10], 2) == (20, 0.5)


def page_of(folder: Path, party: str) -> str:
    return html.unescape(comity.disclose(folder, party)[0].read_text(encoding="utf-8"))


@pytest.mark.parametrize("place", ["site", "server"])
def test_the_disclosure_says_that_the_server_saw_sums_only(place: str, sites: Sites) -> None:
    run = f"disclosed{place}"
    server = sites.run("scaffold", run, secure_aggregation=True, **USUAL)
    ended(server)
    folder = server if place == "server" else sites.site("north") / "runs" / run
    page = page_of(folder, "north")
    assert "as part of a sum: the server learns the mean of at least 3 of 4 sites" in page
    parties = RunFolder(server).read_parties()
    own, *others = (parties[name]["said"]["train"] for name in ("north", "east", "south", "west"))
    fewest = own + sum(sorted(others)[:2])
    assert f"are {fewest} training records, of which {own / fewest:.0%} are this party's" in page
    rows = [
        row for row in RunFolder(folder).read_ledger() if row.src == "north" and row.kind == "up"
    ]
    reply = 4 * 2 * 650  # scaffold: weights and control variates of linear on digits
    assert f'<td class="word" data-head="Bytes">{2 * reply:,}, with' in page
    protocol = sum(row.bytes for row in rows) - 2 * reply
    assert f">{protocol:,}<" in page
    assert "keys, encrypted shares and signatures" in page
    assert "rounds 1 to 2; 2 times" in page
    assert "nobody outside of the project has reviewed it" in page


def test_the_disclosure_of_a_plain_run_does_not_mention_it(sites: Sites) -> None:
    server = sites.run("fedavg", "plaindisclosed", **USUAL)
    ended(server)
    page = page_of(server, "north")
    assert "ecure aggregation" not in page
    assert "to the server; rounds 1 to 2; 2 times" in page
