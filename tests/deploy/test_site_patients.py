"""Patients at sites: the same code runs, and only their number leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_process_sites import ended, watched
from patient_sites import PatientSites

import comity
from comity.deploy import site_results
from comity.deploy.messages import REPLIES, Introduced, unpack
from comity.deploy.release_ledger import ReleaseLedger
from comity.privacy.composition import epsilon
from comity.runs.folder import RunFolder

SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=8)",
    "rounds": 2,
    "batch": 8,
    "test": "own(0.25)",
    "lr": 0.05,
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)


@pytest.fixture
def sites(tmp_path: Path) -> PatientSites:
    return PatientSites(tmp_path / "sites")


def test_sites_split_and_account_by_patient(sites: PatientSites) -> None:
    transport = sites.transport(None)
    messages = watched(transport)
    server = sites.run("fedavg+dp(noise=1.5)", "a", transport, **SETTINGS)
    privacy = ended(server)["privacy"]
    assert privacy["unit"] == "patient"
    federation = comity.load(str(sites.folder / "again")).partition("natural(min=1)")
    introductions = [
        head for _, message in messages if isinstance(head := head_of(message), Introduced)
    ]
    assert len(introductions) == 2
    for name, party in federation.parties.items():
        count = party.patient_count
        assert count is not None
        description = RunFolder(server).read_parties()[name]["said"]
        assert description["patients"] == count
        assert description["train"] == len(party.train)
        rows = [row for row in RunFolder(server).read_privacy() if row.party == name]
        assert {(row.unit, row.rate) for row in rows} == {("patient", min(1.0, 8 / count))}
        assert RunFolder(sites.site(name) / "runs" / "a").read_privacy() == rows
        history = ReleaseLedger(sites.site(name)).history()
        assert privacy["parties"][name] == pytest.approx(epsilon(history, 1e-5), abs=1e-6)
    assert not any(b"mrn-" in message for _, message in messages)


def head_of(message: bytes) -> Any:
    try:
        return unpack(message, REPLIES, 1 << 30)[0]
    except Exception:
        return None


def test_without_noise_sites_compute_what_a_simulation_does(
    sites: PatientSites, tmp_path: Path
) -> None:
    """Up to the draws, which come from a site's secret: with a rate of 1 there are none."""
    settings = SETTINGS | {"batch": 100}
    server = sites.run("fedavg+dp(noise=0)", "b", **settings)
    ended(server)
    federation = comity.load(str(sites.folder / "again")).partition("natural(min=1)")
    with pytest.warns(UserWarning, match="all records of a patient are protected together"):
        pooled = comity.run(
            "fedavg+dp(noise=0)", federation, out=tmp_path / "pooled", engine="loop", **settings
        )
    for table in ("metrics.csv",):
        assert (server / table).read_text() == (pooled.folder / table).read_text()
