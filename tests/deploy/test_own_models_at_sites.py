"""Plain models in a comparison between sites: each site trains its own, and gains are over the
better of these and SOLO.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import succeed
from in_process_sites import OPEN, Sites

import comity
from comity.deploy.policy import NAME
from comity.names import OWN_MODELS
from comity.reporting import report
from comity.runs.folder import RunFolder
from comity.studies.compare import Findings
from comity.studies.export import load

NAMES = ("east", "north", "west")
SETTINGS: dict[str, Any] = {
    "rounds": 2, "model": "linear", "metric": "auc", "validation": 0.1, "test": "own(0.25)", "seed": 0,
}  # fmt: skip
CLOSED = {**OPEN, "outcomes = false": "outcomes = false "}


class Tables(Sites):
    """Sites with tables, whose label is a steep function of two columns."""

    def __init__(self, folder: Path, changes: dict[str, str]) -> None:
        super().__init__(folder, dict.fromkeys(NAMES, (10, 10)), changes)
        files = folder / "tables"
        files.mkdir()
        draw = np.random.default_rng(0)
        for name in NAMES:
            shutil.rmtree(self.site(name) / "data")
            age, dose = draw.uniform(30, 90, 120), draw.uniform(0, 3, 120)
            ill = age / 30 + 2 * dose + draw.normal(size=120) / 2 > 5
            lines = [
                f"{a:.1f},{d:.2f},{'ill' if i else 'well'}"
                for a, d, i in zip(age, dose, ill, strict=True)
            ]
            (files / f"{name}.csv").write_text("\n".join(["age,dose,outcome", *lines]))
        shutil.rmtree(folder / "pooled")
        succeed("data", "import", files, "--label", "outcome", "--out", folder / "pooled")
        schema = folder / "pooled" / "schema.json"
        shutil.copy(schema, folder / "hub" / "schema.json")
        for name in NAMES:
            succeed(
                "data", "import", files / f"{name}.csv", "--schema", schema,
                "--out", self.site(name) / "data",
            )  # fmt: skip


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tables, Findings, Path]:
    """A comparison between sites of which none lets per-sample outcomes leave."""
    folder = tmp_path_factory.mktemp("tables")
    sites = Tables(folder / "sites", CLOSED)
    return sites, sites.compare(["fedavg"], folder / "out", **SETTINGS), folder / "out"


def test_gains_are_over_the_better_own_model(compared: tuple[Tables, Findings, Path]) -> None:
    """They equal those of the same data in one place, although no outcome leaves a site."""
    sites, findings, out = compared
    assert findings.baseline == "own model"
    assert [row.algorithm for row in findings.rows] == ["solo", *OWN_MODELS, "fedavg"]
    folders = {name: out / name / "seed-0" for name in ("own-model", "fedavg")}
    assert all(not RunFolder(folder).read_answers() for folder in folders.values())
    whole = comity.compare(
        ["fedavg"], data=str(sites.folder / "pooled"), partition="natural(min=1)", progress=False,
        engine="loop", out=sites.folder / "whole", **SETTINGS,
    )  # fmt: skip
    plain = {row.algorithm: row.figure for row in whole.rows}
    for row in findings.rows:
        if row.algorithm in ("solo", "plain-linear", "fedavg"):
            assert row.figure == pytest.approx(plain[row.algorithm], abs=1e-3)
    choices = findings.own_models
    # The folds by which a party chooses are drawn from other keys, so that some choices differ.
    same = [
        name for name in NAMES if choices[name].keys() == whole.findings.own_models[name].keys()
    ]
    assert same
    ours, theirs = (
        {answer.party: answer.methods["fedavg"].gain for answer in comparison.answers}
        for comparison in (findings, whole)
    )
    assert [ours[name] for name in same] == pytest.approx([theirs[name] for name in same], abs=1e-3)


def test_every_site_is_named_its_own_model(compared: tuple[Tables, Findings, Path]) -> None:
    _, findings, _ = compared
    assert set(findings.own_models) == set(NAMES)
    for answer in findings.answers:
        assert "plain-" in answer.says or "solo" in answer.says, answer.says


def test_nothing_but_scores_leaves_for_plain_models(
    compared: tuple[Tables, Findings, Path],
) -> None:
    sites, _, out = compared
    for name in OWN_MODELS:
        with (out / name / "seed-0" / "ledger.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["kind"] not in ("eval", "setup")]
        assert sum(int(row["bytes"]) for row in rows) == 0
    for name in NAMES:
        text = (sites.site(name) / "log.txt").read_text()
        assert "failed" not in text


def test_a_site_has_its_plain_model(compared: tuple[Tables, Findings, Path]) -> None:
    sites, _, _ = compared
    runs = [RunFolder(path) for path in sorted((sites.site("east") / "runs").iterdir())]
    models = {run.read_experiment().algorithm: run.path / "model" for run in runs}
    for name in OWN_MODELS:
        card = (models[name] / "card.md").read_text()
        assert "learned from this party's data: treat" in card
        assert f"Model: {name}" in card
        settings = json.loads((models[name] / "model.json").read_text())
        assert settings["model"].startswith(("linear", "boosted-trees"))
        model = load(models[name])
        assert model.predict_proba(_rows()).shape[1] == 2
        weights = (models[name] / "weights.safetensors").read_bytes()
        assert b"out_of_fold" not in weights
    page = (sites.site("east") / "runs" / runs[0].path.name / "report.html").read_text()
    assert "damaged" not in page


def _rows() -> Any:
    import pandas

    return pandas.DataFrame({"age": [50.0, 80.0], "dose": [1.0, 2.0]})


def test_page_of_the_comparison(compared: tuple[Tables, Findings, Path]) -> None:
    _, _, out = compared
    page = report(out).read_text()
    first = page[page.index('data-part="answer"') : page.index('data-part="methods"')]
    assert "over each party&#x27;s own model" in first
    assert "Does collaborating help?" in first
    assert "What does a plain model of one&#x27;s own do?" in first
    assert "cannot be shown" not in page
    assert "differ in steps" not in page, "own models are no methods"


def allow_only(sites: Tables, names: tuple[str, ...]) -> None:
    for name in names:
        policy = sites.site(name) / NAME
        policy.write_text(
            policy.read_text().replace('methods = ["*"]', 'methods = ["solo", "fedavg"]')
        )


def test_a_site_that_refuses_plain_models_is_compared_with_solo(tmp_path: Path) -> None:
    sites = Tables(tmp_path / "sites", CLOSED)
    allow_only(sites, ("north",))
    findings = sites.compare(["fedavg"], tmp_path / "out", **SETTINGS)
    assert findings.baseline == "own model"
    says = {answer.party: answer.says for answer in findings.answers}
    assert "(solo)" in says["north"]
    assert "(solo)" not in says["east"]
    assert [w.text for w in findings.warnings if "north took no part" in w.text]


def test_refused_plain_models_leave_the_comparison_with_solo(tmp_path: Path) -> None:
    sites = Tables(tmp_path / "sites", CLOSED)
    allow_only(sites, NAMES)
    findings = sites.compare(["fedavg"], tmp_path / "out", **SETTINGS)
    assert findings.baseline == "SOLO"
    assert [row.algorithm for row in findings.rows] == ["solo", "fedavg"]
    (text,) = [w.text for w in findings.warnings if "refused" in w.text]
    assert "(methods)" in text
    assert not (tmp_path / "out" / "plain-linear").exists()


def test_none_are_trained_without_a_schema_or_if_nobody_wants_them(tmp_path: Path) -> None:
    sites = Tables(tmp_path / "sites", CLOSED)
    assert sites.compare(["fedavg"], tmp_path / "none", "none", **SETTINGS).baseline == "SOLO"
