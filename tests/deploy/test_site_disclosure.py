"""What left a site is told at the site and at the server, of the folders that each has."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from in_process_sites import Sites, ended

import comity
from comity.errors import UsageError
from comity.runs.folder import RunFolder

SETTINGS: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 2, "test": "official"}


def disclosed(folder: Path, party: str) -> str:
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
def test_a_site_and_its_server_tell_the_same_of_it(method: str, field: str, sites: Sites) -> None:
    run = "a" + method.replace("-", "")
    server = sites.run(method, run, **SETTINGS)
    ended(server)
    home = sites.site("north") / "runs" / run
    pages = {place: disclosed(place, "north") for place in (home, server)}
    for place, page in pages.items():
        sent = [row for row in RunFolder(place).read_ledger() if row.src == "north"]
        assert f"({field})" in page
        assert "no guarantee (epsilon infinite)" in page
        for those, whom in (({"server"}, "the server"), ({"south"}, "other parties")):
            if total := sum(row.bytes for row in sent if row.dst in those):
                assert f"{total:,} bytes to {whom}" in page
        assert "A run between sites cannot be audited" in page
        assert (
            "the right answer and the model's" not in page
        )  # by the law of these sites no outcomes leave
        assert (
            "how many training records there are of each class;" not in page
        )  # nor how many there are of each class
    assert "as this site itself wrote it down" in pages[home]
    assert "as its server wrote it down" in pages[server]
    assert "not counted in this folder" in pages[home]
    if (
        method == "fed-sps"
    ):  # a site charges parcels to the work that seals them, so that it can tell them apart
        assert "which this ledger does not separate" in pages[server]
        assert "which this ledger does not separate" not in pages[home]


def test_a_site_knows_nothing_of_others(sites: Sites) -> None:
    ended(sites.run("fedavg", "b", **SETTINGS))
    home = sites.site("north") / "runs" / "b"
    with pytest.raises(
        UsageError,
        match=re.escape(f"{home} is the folder of north: it has nothing about south."),
    ):
        comity.disclose(home, "south")
    with pytest.raises(
        UsageError, match=re.escape("There is no party called 'nort'. Did you mean 'north'?")
    ):
        comity.disclose(home, "nort")
