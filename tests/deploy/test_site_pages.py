"""Reports of runs between sites: a site's report shows only that site, the server's report shows no
samples, and neither reports missing files.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process_sites import Sites

from comity.reporting import build_sections, report
from comity.reporting.blocks import Facts, Section, Table, Text
from comity.reporting.gather import gather


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """Two sites with a run of FedAvg and a run of SOLO; outcomes stay at the sites."""
    two_sites = Sites(tmp_path_factory.mktemp("sites"), {"east": (60, 20), "west": (40, 20)}, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "comity.studies.export.find_spec", lambda name: None
        )  # no ONNX, which takes seconds
        two_sites.run("fedavg", "together", rounds=2, model="linear", test="official")
        two_sites.run("solo", "alone", rounds=2, model="linear", test="official")
    return two_sites


def sections(folder: Path) -> dict[str, Section]:
    (group,) = gather(folder)
    return {
        section.name: section for section in build_sections(group, folder, None, None, False, True)
    }


def text_of(folder: Path) -> str:
    """All sentences of a page, and the titles and heads of its tables."""
    texts = []
    for section in sections(folder).values():
        for block in section.blocks:
            texts += [block.text] if isinstance(block, Text) else []
            texts += [*block.rows, *block.rows.values()] if isinstance(block, Facts) else []
            texts += [block.title, *block.heads] if isinstance(block, Table) else []
            texts += [getattr(block, "alt", "")]
    return "\n".join(texts)


def missing_notes(folder: Path) -> list[str]:
    blocks = (block for section in sections(folder).values() for block in section.blocks)
    return [block.text for block in blocks if isinstance(block, Text) and block.kind == "missing"]


def test_page_of_a_site_shows_only_that_site(sites: Sites) -> None:
    site_folder = sites.site("east") / "runs" / "together"
    assert (site_folder / "report.html").exists()
    assert set(sections(site_folder)) == {"answer", "methods", "curves", "data", "wire", "again"}
    assert missing_notes(site_folder) == []
    page_text = text_of(site_folder)
    assert "on east's own test samples" in page_text
    assert "at east, between sites" in page_text
    for word in ("parties", "west", "None", "worst", "time"):
        assert word not in page_text, word


def test_site_compares_with_its_solo_run(sites: Sites) -> None:
    page_text = text_of(sites.site("east") / "runs")
    assert "Does collaborating help?" in page_text
    assert "points of accuracy over training alone (between " in page_text
    assert "Whom?" not in page_text


def test_page_of_the_server_reports_no_missing_files(sites: Sites) -> None:
    hub = sites.folder / "hub" / "runs" / "together"
    assert missing_notes(hub) == [
        "Each site can see whether it gains, once solo was run with the same settings: comity"
        " report SITE/runs, at the site."
    ]
    assert "between 2 sites" in text_of(hub)
    assert "Samples by party: between 36 and 54 for training." in text_of(hub)


def test_outcomes_that_stay_at_sites_are_not_reported_as_missing(sites: Sites) -> None:
    assert missing_notes(sites.folder / "hub" / "runs") == []
    assert report(sites.folder / "hub" / "runs").exists()
