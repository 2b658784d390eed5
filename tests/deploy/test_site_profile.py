"""Profiles of the data of sites: what the policy allows leaves, once, and is charged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from table_sites import ALLOWED, TableSites

from comity.data.profiles import Protection, findings
from comity.deploy.handler import LOG
from comity.deploy.messages import REPLIES, Profiled, pack, unpack
from comity.deploy.release_ledger import DELTA, ReleaseLedger
from comity.deploy.sent_ledger import SentLedger
from comity.deploy.site_profile import PROFILE, STORE, sent_profiles
from comity.privacy.composition import epsilon
from comity.reporting.profile_page import page


def table(seed: int, count: int, unit: float = 1.0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": draw.integers(20, 90, count),
            "glucose": (draw.normal(110, 20, count) * unit).round(2),
            "sex": draw.choice(["female", "male"], count),
            "outcome": draw.choice(["ill", "well"], count),
        }
    )


TABLES = {"north": table(1, 120), "south": table(2, 90, 1 / 18.02), "east": table(3, 80)}


@pytest.fixture
def sites(tmp_path: Path) -> TableSites:
    return TableSites(tmp_path / "sites", TABLES)


def policy_of(sites: TableSites, name: str, **values: object) -> None:
    """Change keys of a site's policy."""
    path = sites.site(name) / "site.toml"
    lines = path.read_text().splitlines()
    for key, value in values.items():
        (at,) = [k for k, line in enumerate(lines) if line.startswith(f"{key} = ")]
        lines[at] = f"{key} = {value}"
    path.write_text("\n".join(lines) + "\n")


def test_profile_of_all_sites(sites: TableSites) -> None:
    profile = sites.profile()
    assert list(profile.parties) == ["east", "north", "south"]
    assert profile.refusals == {}
    assert {p.protection for p in profile.parties.values()} == {Protection(10, 5)}
    north = profile.parties["north"]
    assert north.rows == 120
    counts = TABLES["north"]["sex"].value_counts()
    assert north.columns["sex"].counts["male"] == pytest.approx(counts["male"], abs=2.5)
    middle = north.columns["glucose"].quantiles[2]
    assert middle == pytest.approx(TABLES["north"]["glucose"].median(), rel=0.05)
    (unit,) = [text for text in findings(profile) if "another unit" in text]
    assert "at south" in unit
    log = (sites.site("north") / LOG).read_text()
    assert "asks for a profile of the data" in log
    assert "a profile of the data leaves" in log


def test_new_sites_refuse(tmp_path: Path) -> None:
    """One site allows it. The others say what to write where."""
    sites = TableSites(tmp_path / "sites", TABLES, {})
    reason = (
        "east sends no profile of its data. Its operator can allow one: write profiles = 1 under"
        " [allow] in site.toml (profiles)."
    )
    assert reason in sites.ask("p0")
    sites.change("north", ALLOWED)
    profile = sites.profile()
    assert list(profile.parties) == ["north"]
    assert profile.refusals["east"] == reason
    assert not (sites.site("east") / STORE).exists()
    assert f"east sent no profile: {reason}" in page(profile)


def test_same_question_gets_the_same_answer(sites: TableSites) -> None:
    first = sites.profile("p1")
    rows = ReleaseLedger(sites.site("north")).rows()
    assert [row.charge.release for row in rows] == ["ranges", "profile"]
    assert sites.profile("p2") == first
    assert ReleaseLedger(sites.site("north")).rows() == rows
    assert SentLedger(sites.site("north"), "north").total() > 0
    (sent,) = sent_profiles(sites.site("north"))
    assert sent.submitter == "lead@comity"
    assert (sites.site("north") / STORE).stat().st_mode & 0o077 == 0


def test_changed_policy_or_data_is_another_profile(sites: TableSites) -> None:
    first = sites.profile("p1")
    policy_of(sites, "north", profile_rounding=1)
    again = sites.profile("p2")
    assert again.refusals["north"] == (
        "north has changed its policy since a profile of these data left, and 1 may leave in all:"
        " its operator can write profiles = 2 under [allow] in site.toml (profiles)."
    )
    assert again.parties["east"] == first.parties["east"]  # although the common ranges differ
    policy_of(sites, "north", profiles=2)
    assert sites.profile("p3").parties["north"].protection == Protection(10, 1)
    policy_of(sites, "north", profile_rounding=5, profiles=1)
    assert sites.profile("p4") == first


def test_noise_is_charged_once(tmp_path: Path) -> None:
    sites = TableSites(tmp_path / "sites", TABLES, {})
    for name in sites.names:
        policy_of(sites, name, profiles=2, profile_epsilon=1.0, epsilon=1.2)
    first = sites.profile("p1")
    history = ReleaseLedger(sites.site("north")).history()
    assert sum(history.values()) == 1
    assert epsilon(history, DELTA) == pytest.approx(1.0, abs=0.02)
    assert sites.profile("p2") == first
    assert ReleaseLedger(sites.site("north")).history() == history
    assert first.parties["north"].protection.noise > 0
    (sites.site("north") / STORE).unlink()  # the same noise again, and no new charge
    assert sites.profile("p3").parties["north"] == first.parties["north"]
    assert ReleaseLedger(sites.site("north")).history() == history
    policy_of(sites, "north", records=20)
    refusal = sites.profile("p4").refusals["north"]
    assert "privacy budget is spent" in refusal


def test_budget_refuses_a_profile_without_noise(sites: TableSites) -> None:
    policy_of(sites, "north", epsilon=3)
    assert "profile without noise has no bound" in sites.profile().refusals["north"]
    assert not (sites.site("north") / STORE).exists()


def test_profile_without_noise_spends_later_budgets(sites: TableSites) -> None:
    sites.profile()
    assert not ReleaseLedger(sites.site("north")).is_bounded()
    assert {row.run for row in ReleaseLedger(sites.site("north")).rows()} == {PROFILE}


def test_submitters(sites: TableSites) -> None:
    policy_of(sites, "north", submitters='["other@comity"]')
    assert "does not accept runs submitted by" in sites.profile().refusals["north"]


def test_too_few_patients(tmp_path: Path) -> None:
    """A hundred rows of nine patients are nine patients."""
    tables = {"north": table(1, 120), "south": table(2, 100)}
    tables["north"]["patient"] = range(120)
    tables["south"]["patient"] = [k % 9 for k in range(100)]
    sites = TableSites(tmp_path / "sites", tables, group="patient")
    assert sites.profile().refusals == {"south": "south has fewer than 10 patients (records)."}


def test_federation_without_a_schema(sites: TableSites) -> None:
    (sites.folder / "hub" / "schema.json").unlink()
    assert "this federation has no schema" in sites.ask()


def test_other_schema(sites: TableSites) -> None:
    schema = sites.folder / "hub" / "schema.json"
    content = json.loads(schema.read_text())
    content["columns"][0]["unit"] = "years"
    schema.write_text(json.dumps(content))
    assert "follow another schema" in sites.ask()


def test_site_that_sends_something_else(sites: TableSites) -> None:
    first = sites.profile("p1")
    for k, content in enumerate(("", "[]", '{"rows": 3}', "[" * 100_000, "NaN")):
        transport = sites.transport()

        def change(name: str, answer: bytes, content: str = content) -> bytes:
            is_profile = isinstance(unpack(answer, REPLIES, 1 << 30)[0], Profiled)
            return pack(Profiled(), content.encode()) if name == "east" and is_profile else answer

        transport.changed = change
        again = sites.profile(f"again{k}", transport)
        assert again.refusals == {"east": "it answered something else than it was asked."}
        assert again.parties["north"] == first.parties["north"]


def test_silent_site(sites: TableSites) -> None:
    transport = sites.transport()
    transport.lost = lambda name, request: "offline" if name == "east" else ""
    assert sites.profile("p1", transport).refusals == {"east": "it did not answer."}
