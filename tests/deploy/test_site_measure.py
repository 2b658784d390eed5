"""Measures of representations at a site: they equal those of a simulation for that party, and none
of them leaves the site.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from in_process_sites import Sites, watched
from matrix import STEEP

import comity
from comity import cli
from comity.data.prepared import save
from comity.deploy import site_results
from comity.deploy.data import import_site_data
from comity.deploy.site_results import measure
from comity.deploy.site_store import ROSTER
from comity.errors import CorruptedFile, UsageError
from comity.measure import conventions
from comity.measure.mdl import LEAST, Settings
from comity.measure.study import OF_OTHERS, study
from comity.runs.folder import RunFolder

SIZES = {"north": (47, 30), "east": (23, 9), "south": (34, 24)}
QUICK = Settings(points=2, seeds=1, steps=3, hidden=(8,))
# One model for all; party states; personal models; a wrapper; training after the last round; class
# means; no server.
METHODS = ["fedavg", "scaffold", "adcol", "fedavg+dbe", "fedbabu", "fedrep", "relay", "solo"]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


@pytest.fixture(autouse=True)
def _without_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the export of models and reports at the sites, which takes seconds and is tested
    elsewhere.
    """
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)


def settings(method: str) -> dict[str, Any]:
    return {
        "model": "mlp2(width=16)",
        "rounds": 2,
        "lr": 0.02 if method.startswith(STEEP) else 0.1,
        "test": "official",
    }


def run_at(sites: Sites, site: str, name: str) -> RunFolder:
    return RunFolder(sites.site(site) / "runs" / name)


def run_simulation(sites: Sites, method: str, out: Path) -> Path:
    """The same run with pooled data, given by their path, so that the run can be reopened."""
    data = str(sites.folder / "pooled")
    return comity.run(
        method, data=data, partition="natural(min=1)", out=out, engine="loop", **settings(method)
    ).folder


@pytest.mark.sweep("fedavg+dbe", "adcol", "solo")
@pytest.mark.parametrize("method", METHODS)
def test_measures_at_a_site_equal_those_of_a_simulation(
    method: str, sites: Sites, tmp_path: Path
) -> None:
    name = "m" + "".join(c for c in method if c.isalnum())
    sites.run(method, name, **settings(method))
    pooled = run_simulation(sites, method, tmp_path / "pooled")
    for site in sites.names:
        for samples in (2000, 22):  # all test samples, and some
            site_measures = measure(
                sites.site(site), run_at(sites, site, name), samples=samples, mdl=QUICK
            )
            expected = study(pooled, samples=samples, mdl=QUICK, party=site)
            assert site_measures.pop("dataset") != expected.pop("dataset")
            assert site_measures == expected
            assert site_measures["samples"] == min(samples, SIZES[site][1])
            assert site_measures["layers"]
            description_lengths = [
                entry[when]["mdl"]
                for entry in expected["layers"].values()
                for when in ("before", "after")
                if when in entry
            ]
            assert all(
                (length is None) == (SIZES[site][1] < LEAST) for length in description_lengths
            )
        assert conventions.party_figures(
            run_at(sites, site, name).path, site
        ) == conventions.party_figures(pooled, site)


def test_measures_that_need_other_parties_are_named(sites: Sites) -> None:
    sites.run("fedavg", "named", **settings("fedavg"))
    measures = measure(sites.site("east"), run_at(sites, "east", "named"), mdl=QUICK)
    assert measures["not_measured"] == [
        OF_OTHERS,
        "Not measured: description length, which needs 20 samples, and here are 9.",
    ]
    for entry in measures["layers"].values():
        for when in ("before", "after"):
            assert [
                entry[when][name] for name in ("frechet", "separability", "proxy_a", "drift")
            ] == [None] * 4
        assert entry["moved"]["distance"] > 0


def run_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["comity", *map(str, words)])
    code: Any = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    out = capsys.readouterr()
    return int(code or 0), out.out, out.err


def test_measure_command_at_a_site(
    sites: Sites,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It measures the newest finished run, writes the measures at the site, and sends nothing."""
    monkeypatch.setattr("comity.measure.mdl.CHEAP", QUICK)
    transport = sites.transport()
    for method in ("solo", "scaffold"):
        sites.run(method, f"c{method}", transport, **settings(method))
    carried_bytes, traffic = transport.carried, watched(transport)
    site_folder = sites.site("north")
    code, out, err = run_command(
        capsys, monkeypatch, "deploy", "measure", site_folder, "--layers", "fc2"
    )
    assert code == 0, err
    assert "scaffold at north, 30 of its test samples" in out
    assert OF_OTHERS in out.replace("\n", " ")
    assert (transport.carried, traffic) == (carried_bytes, [])
    measures = run_at(sites, "north", "cscaffold").read_measures()
    assert measures["party"] == "north"
    assert list(measures["layers"]) == ["fc2"]
    measure_files = set(sites.folder.rglob("measures.json"))
    assert measure_files == {site_folder / "runs" / "cscaffold" / "measures.json"}

    code, out, _ = run_command(
        capsys,
        monkeypatch,
        "deploy",
        "measure",
        site_folder,
        "--run",
        "csolo",
        "--layers",
        "fc2",
        "--json",
    )
    pooled = run_simulation(sites, "solo", tmp_path / "pooled")
    code, simulated_output, _ = run_command(
        capsys, monkeypatch, "measure", pooled, "--party", "north", "--layers", "fc2", "--json"
    )
    site_measures, simulated_measures = json.loads(out), json.loads(simulated_output)
    assert site_measures | {"dataset": ""} == simulated_measures | {"dataset": ""}
    assert not (pooled / "measures.json").exists()  # that file is for measures of all parties

    code, out, _ = run_command(
        capsys, monkeypatch, "measure", pooled, "--party", "north", "--layers", "fc2"
    )
    assert code == 0
    assert "solo at north, 30 of its test samples" in out

    code, _, err = run_command(
        capsys, monkeypatch, "deploy", "measure", site_folder, "--run", "cscafold"
    )
    assert code
    assert "Did you mean 'cscaffold'?" in err
    for other_folder in (site_folder / "runs" / "csolo", sites.folder / "hub" / "runs" / "csolo"):
        code, _, err = run_command(capsys, monkeypatch, "measure", other_folder)
        assert code
        assert (
            "are at sites of their own: 'comity deploy report SITE' and 'comity deploy measure"
            " SITE' show there" in err
        )
    code, _, err = run_command(capsys, monkeypatch, "measure", pooled, "--party", "nort")
    assert code
    assert "There is no party called 'nort'. Did you mean 'north'?" in err


def test_incomplete_or_changed_run_is_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path / "sites", SIZES)
    site_folder = sites.site("north")
    sites.run("fedavg", "one", **settings("fedavg"))
    run = run_at(sites, "north", "one")

    summary = run.summary.read_bytes()
    run.summary.unlink()
    with pytest.raises(
        UsageError, match="Run one is not finished at north: there is no model to look at yet"
    ):
        measure(site_folder, run)
    run.summary.write_bytes(summary)

    roster_text = (run.path / ROSTER).read_text()
    (run.path / ROSTER).write_text(roster_text.replace('"train": 4', '"train": 5'))
    with pytest.raises(CorruptedFile, match=r"seats\.json cannot be read: it is damaged"):
        measure(site_folder, run)
    (run.path / ROSTER).unlink()
    with pytest.raises(UsageError, match="did not store who else took part"):
        measure(site_folder, run)
    (run.path / ROSTER).write_text(roster_text)

    view_bytes = (run.path / "view.safetensors").read_bytes()
    (run.path / "view.safetensors").unlink()
    with pytest.raises(
        UsageError, match=r"has no view\.safetensors: its model was not evaluated at the end"
    ):
        measure(site_folder, run)
    (run.path / "view.safetensors").write_bytes(view_bytes)
    assert measure(site_folder, run, mdl=None)["party"] == "north"

    other_data = import_site_data(
        tmp_path / "sites" / "files" / "south.npz", tmp_path / "other", None, classes=10
    )
    for path in (site_folder / "data").iterdir():
        path.unlink()
    save(other_data, site_folder / "data")
    with pytest.raises(UsageError, match="The data of north have changed since run one was begun"):
        measure(site_folder, run)


def test_site_without_a_finished_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = Sites(tmp_path / "sites", SIZES)
    code, _, err = run_command(capsys, monkeypatch, "deploy", "measure", sites.site("east"))
    assert code
    assert "has not taken part in a run that has ended" in err
