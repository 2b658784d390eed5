"""A server that has no data: what comes out between sites is, byte for byte, what comes out of a
loop that has all of them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from in_process_sites import OPEN, Sites
from matrix import STEEP, TABLES, compositions
from sweeps import over_methods

from comity.deploy import site_results
from comity.deploy.comparison import compare_sites
from comity.deploy.job_submission import SubmittedJob
from comity.deploy.server import FAILURE
from comity.measure import gains
from comity.runs.config import experiment
from comity.runs.folder import RunFolder
from comity.runs.server_run import Quiet
from comity.studies.compare import compare
from comity.wire.ledger import Charge

SIZES = {"north": (47, 12), "east": (23, 9), "south": (34, 17)}
MODEL = "fedbn-cnn(scale=0.06)"


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without models and pages at the sites, which take seconds and have a test of their own."""
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)


def usual(method: str) -> dict[str, Any]:
    return {
        "model": MODEL,
        "rounds": 2,
        "lr": 0.02 if method.startswith(STEEP) else 0.1,
        "test": "official",
    }


def same(one: Path, other: Path) -> None:
    for name in TABLES:
        assert (one / name).exists() == (other / name).exists(), name
        assert (
            not (one / name).exists() or (one / name).read_text() == (other / name).read_text()
        ), name


@pytest.mark.sweep("fedavg", "adcol", "relay-p2p")
@pytest.mark.parametrize("text", over_methods(text for text in compositions() if "dp(" not in text))
def test_all_methods_with_a_server_that_has_no_data(
    text: str, sites: Sites, tmp_path: Path, quiet: None
) -> None:
    settings = usual(text)
    for site in sites.names:  # who has trained alone before says more
        shutil.rmtree(sites.site(site) / "runs", ignore_errors=True)
    name = "".join(c for c in text if c.isalnum())
    between = sites.run(text, f"all{name}", **settings)
    assert not (between / FAILURE).exists(), (between / FAILURE).read_text()
    pooled = sites.pooled(text, tmp_path / "pooled", **settings)
    same(between, pooled.folder)
    assert not list((between / "checkpoints").glob("party-*"))  # states stay at home
    for site in sites.names:
        own = RunFolder(sites.site(site) / "runs" / f"all{name}")
        assert [row for row in own.read_metrics() if row.party != site] == []
        assert own.read_privacy() == [
            row for row in RunFolder(between).read_privacy() if row.party == site
        ]
        server = [
            row
            for row in RunFolder(between).read_ledger()
            if site in (row.src, row.dst) and row.kind != "setup"
        ]
        ours = own.read_ledger()
        assert [row for row in ours if row.kind != "peer"] == [
            row for row in server if row.kind != "peer"
        ]
        assert sealed_messages(ours, site) == sealed_messages(server, site)


def test_private_training_at_sites_has_the_same_account_and_other_noise(
    sites: Sites, tmp_path: Path, quiet: None
) -> None:
    """Noise is drawn from the sites' secrets, which nobody else has; what it is accounted for as is
    everybody's.
    """
    settings = usual("fedavg") | {"model": "lenet5(width=8)"}
    between = sites.run("fedavg+dp(noise=1.5)", "private", **settings)
    pooled = sites.pooled("fedavg+dp(noise=1.5)", tmp_path / "pooled", **settings)
    for name in ("ledger.csv", "privacy.csv"):
        assert (between / name).read_text() == (pooled.folder / name).read_text()
    assert (between / "metrics.csv").read_text() != (pooled.folder / "metrics.csv").read_text()
    drawn = sites.run("fedavg+dp(noise=1,level=party)", "drawn", **settings, participation=0.5)
    assert "everybody can compute who is drawn" in (drawn / FAILURE).read_text()
    told = json.loads((between / "summary.json").read_text())["privacy"]
    assert told["parties"] == pooled.summary["privacy"]["parties"]
    assert any("secrets of the sites" in text for text in told["assumptions"])
    for site in sites.names:
        own = RunFolder(sites.site(site) / "runs" / "private")
        assert own.read_privacy() == [
            row for row in RunFolder(between).read_privacy() if row.party == site
        ]
        assert (own.read_summary() or {})["privacy"]["epsilon"] == told["parties"][site]


def test_a_site_keeps_to_its_epsilon_over_all_runs(tmp_path: Path, quiet: None) -> None:
    """Two runs of 4 to 5.7 each: a law of 5.7 allows the first, and never what has no bound."""
    changes = {**OPEN, 'epsilon = "inf"': "epsilon = 5.7"}
    sites = Sites(tmp_path / "bounded", SIZES, changes)
    settings = usual("fedavg") | {"model": "lenet5(width=8)", "rounds": 1}
    one = sites.run("fedavg+dp(noise=1)", "one", **settings)
    assert not (one / FAILURE).exists(), (one / FAILURE).read_text()
    spent = json.loads((one / "summary.json").read_text())["privacy"]["parties"]
    assert 4 < min(spent.values()) <= max(spent.values()) < 5.7
    two = sites.run("fedavg+dp(noise=1)", "two", **settings)
    assert "allows a privacy loss of 5.7 in all, and with fedavg+dp" in (two / FAILURE).read_text()
    bare = sites.run("fedavg", "bare", **settings)
    assert "has no bound (budget: epsilon)" in (bare / FAILURE).read_text()
    undecided = sites.run("fedavg+dp", "undecided", **settings)
    assert "noise is given as a number" in (undecided / FAILURE).read_text()


def sealed_messages(rows: list[Charge], site: str) -> list[tuple[Any, ...]]:
    """The parcels of a site; one that leaves is charged there under its own work, and at the server
    under its recipient's.
    """
    return sorted(
        (r.round, r.call if r.dst == site else "", r.src, r.dst, r.bytes)
        for r in rows
        if r.kind == "peer"
    )


def test_a_site_that_has_trained_alone_says_what_it_gains(tmp_path: Path, quiet: None) -> None:
    """By the same figures as a comparison that has everybody's answers; and these stay at home."""
    sites = Sites(tmp_path / "closed", SIZES, {**OPEN, "outcomes = false": "outcomes = false "})
    settings = usual("fedavg")
    sites.run("solo", "alone", **settings)
    between = sites.run("fedavg", "together", **settings)
    told = json.loads((between / "summary.json").read_text())["gained"]
    pooled = {m: sites.pooled(m, tmp_path / m, **settings).folder for m in ("solo", "fedavg")}
    expected = {
        gain.party: {k: v for k, v in vars(gain).items() if k != "party"}
        for gain in gains(pooled["fedavg"], pooled["solo"])
    }
    assert told == expected
    assert (between / "outcomes.csv").read_text() == "party,sample,correct,truth,answer\n"
    other = sites.run(
        "fedavg", "otherwise", **settings | {"lr": 0.2}
    )  # it was never alone with these settings
    assert "gained" not in json.loads((other / "summary.json").read_text())


def test_a_comparison_between_sites_says_what_one_of_all_data_says(
    tmp_path: Path, quiet: None
) -> None:
    """Gains, intervals and answers are those of the pooled data, although no site's answers have
    left it.
    """
    sites = Sites(tmp_path / "closed", SIZES, {**OPEN, "outcomes = false": "outcomes = false "})
    settings = usual("fedavg") | {"model": "mlp2(width=8)"}

    def conduct(ordered: SubmittedJob, folder: Path) -> dict[str, Any]:
        made = sites.run(
            ordered.settings["algorithm"], ordered.run, **ordered.settings | {"engine": "flare"}
        )
        shutil.copytree(made, folder, dirs_exist_ok=True)
        return json.loads((folder / "summary.json").read_text())

    (sites.folder / "hub" / "lead").mkdir()
    base = experiment(settings)
    apart = compare_sites(
        sites.folder / "hub", base, ["fedavg", "fedper"], [0], tmp_path / "apart", conduct, 60, 0
    )
    whole = compare(
        base.but(engine="loop", data=str(sites.folder / "pooled"), partition="natural(min=1)"),
        ["fedavg", "fedper"], [0], tmp_path / "whole", lambda title: Quiet(), lambda text: None,
    )  # fmt: skip
    told = [
        [(one.party, one.verdict, one.method, one.methods) for one in made.answers]
        for made in (apart, whole)
    ]
    assert told[0] == told[1]
    assert [row.gains for row in apart.rows] == [row.gains for row in whole.rows]
    assert apart.overall == whole.overall
