"""A site looks at its own model's representations: the figures are those that a simulation has of
that party, and none leaves.
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
# One model for all; states at home; models of one's own; a wrapper; training after the last round;
# class means; no server.
METHODS = ["fedavg", "scaffold", "adcol", "fedavg+dbe", "fedbabu", "fedrep", "relay", "solo"]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without models and pages at the sites, which take seconds and have a test of their own."""
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


def simulated(sites: Sites, method: str, out: Path) -> Path:
    """The same run with all data in one place, by their path: it can be opened again."""
    data = str(sites.folder / "pooled")
    return comity.run(
        method, data=data, partition="natural(min=1)", out=out, engine="loop", **settings(method)
    ).folder


@pytest.mark.sweep("fedavg+dbe", "adcol", "solo")
@pytest.mark.parametrize("method", METHODS)
def test_a_site_measures_what_a_simulation_says_of_it(
    method: str, sites: Sites, tmp_path: Path
) -> None:
    name = "m" + "".join(c for c in method if c.isalnum())
    sites.run(method, name, **settings(method))
    pooled = simulated(sites, method, tmp_path / "pooled")
    for site in sites.names:
        for samples in (2000, 22):  # all that it has, and some
            at_home = measure(
                sites.site(site), run_at(sites, site, name), samples=samples, mdl=QUICK
            )
            there = study(pooled, samples=samples, mdl=QUICK, party=site)
            assert at_home.pop("dataset") != there.pop("dataset")
            assert at_home == there
            assert at_home["samples"] == min(samples, SIZES[site][1])
            assert at_home["layers"]
            measured = [
                entry[when]["mdl"]
                for entry in there["layers"].values()
                for when in ("before", "after")
                if when in entry
            ]
            assert all((one is None) == (SIZES[site][1] < LEAST) for one in measured)
        assert conventions.party_figures(
            run_at(sites, site, name).path, site
        ) == conventions.party_figures(pooled, site)


def test_what_needs_others_is_named_and_not_measured(sites: Sites) -> None:
    sites.run("fedavg", "named", **settings("fedavg"))
    found = measure(sites.site("east"), run_at(sites, "east", "named"), mdl=QUICK)
    assert found["not_measured"] == [
        OF_OTHERS,
        "Not measured: description length, which needs 20 samples, and here are 9.",
    ]
    for entry in found["layers"].values():
        for when in ("before", "after"):
            assert [
                entry[when][name] for name in ("frechet", "separability", "proxy_a", "drift")
            ] == [None] * 4
        assert entry["moved"]["distance"] > 0


def said(
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


def test_the_command(
    sites: Sites,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes the newest run that has ended, keeps what it found at home, and carries nothing."""
    monkeypatch.setattr("comity.measure.mdl.CHEAP", QUICK)
    transport = sites.transport()
    for method in ("solo", "scaffold"):
        sites.run(method, f"c{method}", transport, **settings(method))
    carried, seen = transport.carried, watched(transport)
    home = sites.site("north")
    code, out, err = said(capsys, monkeypatch, "deploy", "measure", home, "--layers", "fc2")
    assert code == 0, err
    assert "scaffold at north, 30 of its test samples" in out
    assert OF_OTHERS in out.replace("\n", " ")
    assert (transport.carried, seen) == (carried, [])
    found = run_at(sites, "north", "cscaffold").read_measures()
    assert found["party"] == "north"
    assert list(found["layers"]) == ["fc2"]
    written = set(sites.folder.rglob("measures.json"))
    assert written == {home / "runs" / "cscaffold" / "measures.json"}

    code, out, _ = said(
        capsys,
        monkeypatch,
        "deploy",
        "measure",
        home,
        "--run",
        "csolo",
        "--layers",
        "fc2",
        "--json",
    )
    pooled = simulated(sites, "solo", tmp_path / "pooled")
    code, there, _ = said(
        capsys, monkeypatch, "measure", pooled, "--party", "north", "--layers", "fc2", "--json"
    )
    one, other = json.loads(out), json.loads(there)
    assert one | {"dataset": ""} == other | {"dataset": ""}
    assert not (pooled / "measures.json").exists()  # which is of all parties

    code, out, _ = said(
        capsys, monkeypatch, "measure", pooled, "--party", "north", "--layers", "fc2"
    )
    assert code == 0
    assert "solo at north, 30 of its test samples" in out

    code, _, err = said(capsys, monkeypatch, "deploy", "measure", home, "--run", "cscafold")
    assert code
    assert "Did you mean 'cscaffold'?" in err
    for elsewhere in (home / "runs" / "csolo", sites.folder / "hub" / "runs" / "csolo"):
        code, _, err = said(capsys, monkeypatch, "measure", elsewhere)
        assert code
        assert (
            "are at sites of their own: 'comity deploy report SITE' and 'comity deploy measure"
            " SITE' show there" in err
        )
    code, _, err = said(capsys, monkeypatch, "measure", pooled, "--party", "nort")
    assert code
    assert "There is no party called 'nort'. Did you mean 'north'?" in err


def test_what_cannot_be_measured_is_refused_in_a_sentence(tmp_path: Path) -> None:
    sites = Sites(tmp_path / "sites", SIZES)
    at = sites.site("north")
    sites.run("fedavg", "one", **settings("fedavg"))
    run = run_at(sites, "north", "one")

    summary = run.summary.read_bytes()
    run.summary.unlink()
    with pytest.raises(
        UsageError, match="Run one is not finished at north: there is no model to look at yet"
    ):
        measure(at, run)
    run.summary.write_bytes(summary)

    seats = (run.path / ROSTER).read_text()
    (run.path / ROSTER).write_text(seats.replace('"train": 4', '"train": 5'))
    with pytest.raises(CorruptedFile, match=r"seats\.json cannot be read: it is damaged"):
        measure(at, run)
    (run.path / ROSTER).unlink()
    with pytest.raises(UsageError, match="did not store who else took part"):
        measure(at, run)
    (run.path / ROSTER).write_text(seats)

    view = (run.path / "view.safetensors").read_bytes()
    (run.path / "view.safetensors").unlink()
    with pytest.raises(
        UsageError, match=r"has no view\.safetensors: its model was not evaluated at the end"
    ):
        measure(at, run)
    (run.path / "view.safetensors").write_bytes(view)
    assert measure(at, run, mdl=None)["party"] == "north"

    other = import_site_data(
        tmp_path / "sites" / "files" / "south.npz", tmp_path / "other", None, classes=10
    )
    for path in (at / "data").iterdir():
        path.unlink()
    save(other, at / "data")
    with pytest.raises(UsageError, match="The data of north have changed since run one was begun"):
        measure(at, run)


def test_a_site_that_was_in_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = Sites(tmp_path / "sites", SIZES)
    code, _, err = said(capsys, monkeypatch, "deploy", "measure", sites.site("east"))
    assert code
    assert "has not taken part in a run that has ended" in err
