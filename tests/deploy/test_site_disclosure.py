"""Disclosures of what left a site, from the folder at the site and from that at the server."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from in_process_sites import Sites, ended

import comity
from comity.deploy.release_ledger import DELTA, ReleaseLedger
from comity.errors import UsageError
from comity.privacy.composition import epsilon
from comity.runs.folder import RunFolder

SETTINGS: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 2, "test": "official"}


def disclosure_text(folder: Path, party: str) -> str:
    return html.unescape(comity.disclose(folder, party)[0].read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(
        tmp_path_factory.mktemp("sites"),
        {"north": (40, 12), "south": (30, 12)},
        {
            "export = true": "export = false",
            "single_records = []": 'single_records = ["gradients"]',
        },
    )


@pytest.mark.parametrize(
    ("method", "field"), [("fedavg", "Model.theta"), ("fed-sps", "Help.grads")]
)
def test_disclosures_of_a_site_and_its_server_agree(method: str, field: str, sites: Sites) -> None:
    run = "a" + method.replace("-", "")
    server_folder = sites.run(method, run, **SETTINGS)
    ended(server_folder)
    site_folder = sites.site("north") / "runs" / run
    pages = {folder: disclosure_text(folder, "north") for folder in (site_folder, server_folder)}
    for folder, page in pages.items():
        sent_rows = [row for row in RunFolder(folder).read_ledger() if row.src == "north"]
        assert f"({field})" in page
        assert "no guarantee (epsilon infinite)" in page
        for recipients, recipient_name in (
            ({"server"}, "the server"),
            ({"south"}, "other parties"),
        ):
            if total := sum(row.bytes for row in sent_rows if row.dst in recipients):
                assert f"{total:,} bytes to {recipient_name}" in page
        assert "A run between sites cannot be audited" in page
        assert (
            "the right answer and the model's" not in page
        )  # the policy of these sites withholds outcomes
        assert "how many training records there are of each class;" not in page  # and class counts
    assert "as this site itself wrote it down" in pages[site_folder]
    assert "as its server wrote it down" in pages[server_folder]
    assert "not counted in this folder" in pages[site_folder]
    if (
        method == "fed-sps"
    ):  # a site charges sealed messages to the call that seals them, so it can separate them
        assert "which this ledger does not separate" in pages[server_folder]
        assert "which this ledger does not separate" not in pages[site_folder]


def test_site_folder_has_no_disclosure_of_others(sites: Sites) -> None:
    ended(sites.run("fedavg", "b", **SETTINGS))
    site_folder = sites.site("north") / "runs" / "b"
    with pytest.raises(
        UsageError,
        match=re.escape(f"{site_folder} is the folder of north: it has nothing about south."),
    ):
        comity.disclose(site_folder, "south")
    with pytest.raises(
        UsageError, match=re.escape("There is no party called 'nort'. Did you mean 'north'?")
    ):
        comity.disclose(site_folder, "nort")


def test_a_site_adds_up_all_its_runs(tmp_path: Path) -> None:
    sites = Sites(
        tmp_path / "sites",
        {"north": (40, 12), "south": (30, 12)},
        {"export = true": "export = false", 'epsilon = "inf"': "epsilon = 9"},
    )
    for run in ("one", "two"):
        ended(sites.run("fedavg+dp(noise=2)", run, **SETTINGS))
    home = sites.site("north")
    page = disclosure_text(home / "runs" / "two", "north")
    total = epsilon(ReleaseLedger(home).history(), DELTA)
    assert "north has taken part in 2 runs, this one among them." in page
    assert f"Over all of them: epsilon {total:.3g} at delta 1e-05, for a training record." in page
    assert "The site policy allows 9 at most (budget: epsilon)." in page
    evaluations = sum(
        row.src == "north" and row.kind == "eval"
        for run in ("one", "two")
        for row in RunFolder(home / "runs" / run).read_ledger()
    )
    assert f"Figures of validation and test records left {evaluations} times" in page
    assert "Other runs on the same records are not on this page" not in page
    assert "How many records there are of each class did not leave with that." in page
    assert "Noise is drawn from secrets of the sites." in page
    assert "Other runs on the same records are not on this page" in disclosure_text(
        sites.folder / "hub" / "runs" / "two", "north"
    )
    sites.change("north", {"epsilon = 9": 'epsilon = "inf"'})
    sites.change("south", {"epsilon = 9": 'epsilon = "inf"'})
    ended(sites.run("fedavg", "three", **SETTINGS))
    shutil.rmtree(home / "runs" / "one")  # what it has released stays in the ledger of releases
    page = disclosure_text(home / "runs" / "two", "north")
    assert "north has taken part in 3 runs" in page
    assert "Over all of them there is no guarantee (epsilon infinite): in 1 of them" in page


def test_a_site_counts_the_records_behind_its_smallest_mean(tmp_path: Path) -> None:
    changes = {
        "export = true": "export = false",
        'kinds = ["weights"': 'kinds = ["class counts", "weights"',
        "records = 10": "records = 1",
    }
    sites = Sites(tmp_path / "sites", {"north": (40, 12), "south": (30, 12)}, changes)
    server = sites.run("relay", "c", **SETTINGS)
    ended(server)
    page = disclosure_text(sites.site("north") / "runs" / "c", "north")
    labels = comity.load("digits").y[:40]
    found = re.search(r"The smallest class mean \(Upload.means.*?\) is of (\d+) records", page)
    assert found
    assert 2 <= int(found[1]) <= int(labels.bincount().min())
