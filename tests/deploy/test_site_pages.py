"""Pages of runs between sites: a site's own knows of nobody else, the server's knows no samples,
and neither misses a file.
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
    """Two sites that have run FedAvg and then training alone; outcomes stay with them."""
    made = Sites(tmp_path_factory.mktemp("sites"), {"east": (60, 20), "west": (40, 20)}, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "comity.studies.export.find_spec", lambda name: None
        )  # no ONNX, which takes seconds
        made.run("fedavg", "together", rounds=2, model="linear", test="official")
        made.run("solo", "alone", rounds=2, model="linear", test="official")
    return made


def sections(folder: Path) -> dict[str, Section]:
    (group,) = gather(folder)
    return {one.name: one for one in build_sections(group, folder, None, None, False, True)}


def words(folder: Path) -> str:
    """All sentences of a page, and its tables' titles and heads."""
    said = []
    for section in sections(folder).values():
        for block in section.blocks:
            said += [block.text] if isinstance(block, Text) else []
            said += [*block.rows, *block.rows.values()] if isinstance(block, Facts) else []
            said += [block.title, *block.heads] if isinstance(block, Table) else []
            said += [getattr(block, "alt", "")]
    return "\n".join(said)


def complaints(folder: Path) -> list[str]:
    found = (block for section in sections(folder).values() for block in section.blocks)
    return [block.text for block in found if isinstance(block, Text) and block.kind == "missing"]


def test_a_site_s_page_is_of_that_site(sites: Sites) -> None:
    own = sites.site("east") / "runs" / "together"
    assert (own / "report.html").exists()
    assert set(sections(own)) == {"answer", "curves", "data", "wire", "again"}
    assert complaints(own) == []
    said = words(own)
    assert "on east's own test samples" in said
    assert "at east, between sites" in said
    for strange in ("parties", "west", "None", "worst", "time"):
        assert strange not in said, strange


def test_at_home_a_site_compares_with_training_alone(sites: Sites) -> None:
    said = words(sites.site("east") / "runs")
    assert "Does collaborating help?" in said
    assert "points of accuracy over training alone (between " in said
    assert "Whom?" not in said


def test_the_server_s_page_misses_no_file(sites: Sites) -> None:
    hub = sites.folder / "hub" / "runs" / "together"
    assert complaints(hub) == [
        "Each site can see whether it gains, once solo was run with the same settings: comity"
        " report SITE/runs, at the site."
    ]
    assert "between 2 sites" in words(hub)
    assert "Samples by party: between 36 and 54 for training." in words(hub)


def test_outcomes_that_stay_at_home_are_no_damage(sites: Sites) -> None:
    assert complaints(sites.folder / "hub" / "runs") == []
    assert report(sites.folder / "hub" / "runs").exists()
