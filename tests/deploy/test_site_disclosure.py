"""Disclosures of what left a site, from the folder at the site and from that at the server."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import succeed
from in_process_sites import Root, Sites, ended

import comity
from comity.data.tables import agreed_schema
from comity.deploy.data import import_site_data
from comity.deploy.policy import write
from comity.deploy.release_ledger import DELTA, ReleaseLedger
from comity.deploy.sent_ledger import SentLedger
from comity.deploy.server import SCHEMA
from comity.errors import UsageError
from comity.privacy.composition import epsilon
from comity.runs.folder import RunFolder

SETTINGS: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 2, "test": "official"}


def disclosure_text(folder: Path, party: str) -> str:
    return html.unescape(comity.disclose(folder, party)[0].read_text(encoding="utf-8"))


def table_cells(page: str, section: str) -> list[list[str]]:
    """The cells of the table in a section of the page, by row, without the heads."""
    text = page.split(f'<section id="{section}">')[1].split("</section>", maxsplit=1)[0]
    rows = text.split("<tbody>")[1].split("</tbody>")[0].split("<tr>")[1:]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]


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
    sent = SentLedger(home, "north")
    assert f"In all of them {sent.total():,} bytes left, of 100,000,000,000 that" in page
    cells = table_cells(page, "all-runs")
    assert cells[0][:2] == ["two", "fedavg+dp(noise=2)"]
    assert cells[1][:2] == ["three", "fedavg"]
    assert cells[1][4] == "infinite"
    assert cells[2][:2] == ["one", "not known: its folder was deleted"]
    assert sum(int(row[2].replace(",", "")) for row in cells) == sent.total()
    assert sum(int(row[3]) for row in cells) == sent.evaluations()


def test_columns_and_words_of_the_schema_are_on_the_page(tmp_path: Path) -> None:
    """The schema is what leaves before training; the page of a site and of the server show it."""
    files, hub = tmp_path / "files", tmp_path / "hub"
    files.mkdir()
    hub.mkdir()
    rows = [
        f"{9000 + k},{100 + k % 40}.5,{'mf'[k % 2]},{'yes' if k % 3 else 'no'}" for k in range(60)
    ]
    for k, name in enumerate(("north", "south")):
        lines = ["id,glucose,sex,ill", *rows[k : k + 50]]
        (files / f"{name}.csv").write_text("\n".join(lines) + "\n")
    schema = hub / SCHEMA
    agreed_schema([files], label="ill", scale="own", units={"glucose": "mg/dl"}).write(schema)
    sites = Sites.__new__(Sites)
    sites.folder, sites.names, sites.root = tmp_path, ["north", "south"], Root()
    for name in sites.names:
        sites.site(name).mkdir()
        import_site_data(files / f"{name}.csv", sites.site(name) / "data", schema)
        write(sites.site(name), name, "data", operator='The "Example" Hospital, Ärztehaus')
        sites.change(name, {"export = true": "export = false"})
    server = sites.run("fedavg", "a", model="linear", rounds=1)
    ended(server)
    at_site = disclosure_text(sites.site("north") / "runs" / "a", "north")
    for page in (at_site, disclosure_text(server, "north")):
        cells = table_cells(page, "before")
        assert cells == [
            ["glucose", "number in mg/dl", "", ""],
            ["sex", "words", "f, m", ""],
            ["ill", "label", "no, yes", ""],
        ]
        assert "the schema has the names: id (looks like an identifier: " in page
    assert "its request had the site's name and a public key, and nothing of its data" in at_site
    assert 'The "Example" Hospital, Ärztehaus. The operator runs the server' in at_site
    assert "The operator runs the server, and gets what leaves: name it with" in disclosure_text(
        server, "north"
    )


def test_operator_named_by_the_command(sites: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    ended(sites.run("fedavg", "named", **SETTINGS))
    folder = sites.site("north") / "runs" / "named"
    assert "not named. The operator runs the server" in disclosure_text(folder, "north")
    succeed("disclose", folder, "--party", "north", "--operator", "University of Example")
    page = (folder / "disclosure-north.html").read_text()
    assert "University of Example. The operator runs the server" in page
    capsys.readouterr()


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
