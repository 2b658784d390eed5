"""A server without data: runs between sites write the same bytes as the loop engine with pooled
data.
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
def without_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the export of models and reports at the sites, which takes seconds and is tested
    elsewhere.
    """
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)


def usual(method: str) -> dict[str, Any]:
    return {
        "model": MODEL,
        "rounds": 2,
        "lr": 0.02 if method.startswith(STEEP) else 0.1,
        "test": "official",
    }


def assert_same_tables(folder: Path, expected: Path) -> None:
    for name in TABLES:
        assert (folder / name).exists() == (expected / name).exists(), name
        assert (
            not (folder / name).exists()
            or (folder / name).read_text() == (expected / name).read_text()
        ), name


@pytest.mark.sweep("fedavg", "adcol", "relay-p2p")
@pytest.mark.parametrize("text", over_methods(text for text in compositions() if "dp(" not in text))
def test_sites_equal_loop_for_every_method(
    text: str, sites: Sites, tmp_path: Path, without_exports: None
) -> None:
    settings = usual(text)
    for site in sites.names:  # with an earlier SOLO run, a site also reports its gain
        shutil.rmtree(sites.site(site) / "runs", ignore_errors=True)
    name = "".join(c for c in text if c.isalnum())
    server_folder = sites.run(text, f"all{name}", **settings)
    assert not (server_folder / FAILURE).exists(), (server_folder / FAILURE).read_text()
    pooled = sites.pooled(text, tmp_path / "pooled", **settings)
    assert_same_tables(server_folder, pooled.folder)
    assert not list((server_folder / "checkpoints").glob("party-*"))  # states stay at the sites
    for site in sites.names:
        site_folder = RunFolder(sites.site(site) / "runs" / f"all{name}")
        assert [row for row in site_folder.read_metrics() if row.party != site] == []
        assert site_folder.read_privacy() == [
            row for row in RunFolder(server_folder).read_privacy() if row.party == site
        ]
        server_ledger = [
            row
            for row in RunFolder(server_folder).read_ledger()
            if site in (row.src, row.dst) and row.kind != "setup"
        ]
        site_ledger = site_folder.read_ledger()
        assert [row for row in site_ledger if row.kind != "peer"] == [
            row for row in server_ledger if row.kind != "peer"
        ]
        assert sealed_messages(site_ledger, site) == sealed_messages(server_ledger, site)


def test_dp_at_sites_has_the_same_account_and_different_noise(
    sites: Sites, tmp_path: Path, without_exports: None
) -> None:
    """Noise is drawn from the sites' secrets, so it differs from a simulation's; the account is
    equal.
    """
    settings = usual("fedavg") | {"model": "lenet5(width=8)"}
    server_folder = sites.run("fedavg+dp(noise=1.5)", "private", **settings)
    pooled = sites.pooled("fedavg+dp(noise=1.5)", tmp_path / "pooled", **settings)
    for name in ("ledger.csv", "privacy.csv"):
        assert (server_folder / name).read_text() == (pooled.folder / name).read_text()
    assert (server_folder / "metrics.csv").read_text() != (
        pooled.folder / "metrics.csv"
    ).read_text()
    sampled_run = sites.run(
        "fedavg+dp(noise=1,level=party)", "drawn", **settings, participation=0.5
    )
    assert "everybody can compute who is drawn" in (sampled_run / FAILURE).read_text()
    guarantee = json.loads((server_folder / "summary.json").read_text())["privacy"]
    assert guarantee["parties"] == pooled.summary["privacy"]["parties"]
    assert any("secrets of the sites" in text for text in guarantee["assumptions"])
    for site in sites.names:
        site_folder = RunFolder(sites.site(site) / "runs" / "private")
        assert site_folder.read_privacy() == [
            row for row in RunFolder(server_folder).read_privacy() if row.party == site
        ]
        assert (site_folder.read_summary() or {})["privacy"]["epsilon"] == guarantee["parties"][
            site
        ]


def test_epsilon_budget_of_a_site_covers_all_runs(tmp_path: Path, without_exports: None) -> None:
    """Each of two runs costs 4 to 5.7. A policy with epsilon 5.7 allows the first, and refuses
    every run without a bound.
    """
    changes = {**OPEN, 'epsilon = "inf"': "epsilon = 5.7"}
    sites = Sites(tmp_path / "bounded", SIZES, changes)
    settings = usual("fedavg") | {"model": "lenet5(width=8)", "rounds": 1}
    first_run = sites.run("fedavg+dp(noise=1)", "one", **settings)
    assert not (first_run / FAILURE).exists(), (first_run / FAILURE).read_text()
    epsilons = json.loads((first_run / "summary.json").read_text())["privacy"]["parties"]
    assert 4 < min(epsilons.values()) <= max(epsilons.values()) < 5.7
    second_run = sites.run("fedavg+dp(noise=1)", "two", **settings)
    assert (
        "allows a privacy loss of 5.7 in all, and with fedavg+dp"
        in (second_run / FAILURE).read_text()
    )
    run_without_noise = sites.run("fedavg", "bare", **settings)
    assert "has no bound (budget: epsilon)" in (run_without_noise / FAILURE).read_text()
    run_without_noise_level = sites.run("fedavg+dp", "undecided", **settings)
    assert "noise is given as a number" in (run_without_noise_level / FAILURE).read_text()


def sealed_messages(rows: list[Charge], site: str) -> list[tuple[Any, ...]]:
    """The sealed messages of a site. The site charges one that it sends under its own call, the
    server under the recipient's call.
    """
    return sorted(
        (r.round, r.call if r.dst == site else "", r.src, r.dst, r.bytes)
        for r in rows
        if r.kind == "peer"
    )


def test_site_with_a_solo_run_reports_its_gain(tmp_path: Path, without_exports: None) -> None:
    """The gain equals that of a comparison with all outcomes, although outcomes stay at the sites."""
    sites = Sites(tmp_path / "closed", SIZES, {**OPEN, "outcomes = false": "outcomes = false "})
    settings = usual("fedavg")
    sites.run("solo", "alone", **settings)
    server_folder = sites.run("fedavg", "together", **settings)
    reported_gains = json.loads((server_folder / "summary.json").read_text())["gained"]
    pooled = {m: sites.pooled(m, tmp_path / m, **settings).folder for m in ("solo", "fedavg")}
    expected = {
        gain.party: {k: v for k, v in vars(gain).items() if k not in ("party", "folds")}
        for gain in gains(pooled["fedavg"], pooled["solo"])
    }
    assert reported_gains == expected
    assert (server_folder / "outcomes.csv").read_text() == "party,sample,correct,truth,answer\n"
    other_settings_run = sites.run(
        "fedavg", "otherwise", **settings | {"lr": 0.2}
    )  # there is no SOLO run with these settings
    assert "gained" not in json.loads((other_settings_run / "summary.json").read_text())


def test_comparison_between_sites_equals_that_of_pooled_data(
    tmp_path: Path, without_exports: None
) -> None:
    """Gains, intervals and verdicts equal those of pooled data, although outcomes stay at the
    sites.
    """
    sites = Sites(tmp_path / "closed", SIZES, {**OPEN, "outcomes = false": "outcomes = false "})
    settings = usual("fedavg") | {"model": "mlp2(width=8)"}

    def conduct(job: SubmittedJob, folder: Path) -> dict[str, Any]:
        run_folder = sites.run(
            job.settings["algorithm"], job.run, **job.settings | {"engine": "flare"}
        )
        shutil.copytree(run_folder, folder, dirs_exist_ok=True)
        return json.loads((folder / "summary.json").read_text())

    (sites.folder / "hub" / "lead").mkdir()
    base = experiment(settings)
    comparison_of_sites = compare_sites(
        sites.folder / "hub", base, ["fedavg", "fedper"], [0], tmp_path / "apart", conduct, 60, 0
    )
    comparison_of_pooled_data = compare(
        base.but(engine="loop", data=str(sites.folder / "pooled"), partition="natural(min=1)"),
        ["fedavg", "fedper"], [0], tmp_path / "whole", lambda title: Quiet(), lambda text: None,
    )  # fmt: skip
    verdicts = [
        [
            (verdict.party, verdict.verdict, verdict.method, verdict.methods)
            for verdict in comparison.answers
        ]
        for comparison in (comparison_of_sites, comparison_of_pooled_data)
    ]
    assert verdicts[0] == verdicts[1]
    assert [row.gains for row in comparison_of_sites.rows] == [
        row.gains for row in comparison_of_pooled_data.rows
    ]
    of_sites, of_pooled_data = (
        {
            question: text
            for question, text in comparison.overall.questions.items()
            if "cost" not in question
        }
        for comparison in (comparison_of_sites, comparison_of_pooled_data)
        if comparison.overall
    )
    assert of_sites == of_pooled_data, "except for the cost, which has the time of a run"
