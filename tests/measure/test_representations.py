"""Representations read from a run folder, and their study."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import comity
from comity.algorithms.dbe import OFFSET
from comity.core import Key, plain
from comity.errors import UsageError
from comity.measure.mdl import Settings
from comity.measure.representations import Projection, representations
from comity.measure.study import study
from comity.training.descent import train

QUICK = Settings(points=2, seeds=1, steps=3, hidden=(8,))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, comity.Result]:
    """One short run of each kind of method, all on one split."""
    root = tmp_path_factory.mktemp("runs")
    how: dict[str, Any] = {
        "parties": 3,
        "rounds": 1,
        "model": "mlp2(width=16)",
        "partition": "dirichlet(alpha=0.5)",
    }
    results = {
        name: comity.run(name, out=root / name, **how) for name in ("fedavg", "fedavg+dbe", "solo")
    }
    return results | {"fedrod": comity.run("fedrod", out=root / "fedrod", cut="fc1", **how)}


def by_party(rows, layer, when):
    return {r.party: r for r in rows if (r.layer, r.when) == (layer, when)}


def test_offered_layers_are_the_deployed_models(runs):
    run = runs["fedavg+dbe"]
    rows = representations(run.folder)
    assert list(dict.fromkeys(r.layer for r in rows)) == ["fc1", "fc2", "fc2+offset", "fc3"]
    for party in run.job.parties:
        model, test = run.model(party.name), party.data.test
        z_g, z, answer = (
            by_party(rows, layer, "before")[party.name] for layer in ("fc2", "fc2+offset", "fc3")
        )
        assert torch.equal(z_g.labels, test.y)
        assert torch.allclose(z_g.features, model.task.features(model.theta, test.x), atol=1e-6)
        assert model.theta[OFFSET].abs().max() > 0
        assert torch.allclose(
            z.features, z_g.features + model.theta[OFFSET], atol=1e-6
        )  # DBE eq. 6
        assert torch.allclose(answer.features, model.logits(test.x), atol=1e-6)


def test_after_is_one_local_training_of_what_was_offered(runs):
    run = runs["fedavg+dbe"]
    rows = representations(run.folder, ["fc2"], seed=4)
    for party in run.job.parties:
        model, key = run.model(party.name), Key.root(4).fold("measure").fold("train", party.id)
        assert model.task.kappa == 50  # the task is DBE's, with its regulariser
        theta = train(replace(party, task=model.task).fit(plain, model.theta, key)).theta
        z_g, z = (
            by_party(rows, layer, "after")[party.name].features for layer in ("fc2", "fc2+offset")
        )
        assert torch.allclose(z_g, model.task.features(theta, party.data.test.x), atol=1e-6)
        assert torch.allclose(z - z_g, theta[OFFSET].expand_as(z), atol=1e-5)
        assert not torch.allclose(
            z_g, by_party(rows, "fc2", "before")[party.name].features, atol=1e-3
        )


def test_a_model_of_ones_own_has_no_before(runs):
    run = runs["solo"]
    rows = representations(run.folder, ["cut"])
    assert {r.when for r in rows} == {"after"}
    for party in run.job.parties:
        model = run.model(party.name)
        features = by_party(rows, "cut", "after")[party.name].features
        assert torch.allclose(
            features, model.task.features(model.theta, party.data.test.x), atol=1e-6
        )


def test_two_heads_answer_together_and_are_seen_as_the_shared_one(runs):
    run = runs["fedrod"]
    rows = representations(run.folder)
    assert list(dict.fromkeys(r.layer for r in rows)) == ["fc1", "fc2", "fc3"]
    for party in run.job.parties:
        model, x = run.model(party.name), party.data.test.x
        assert torch.allclose(
            by_party(rows, "fc3", "before")[party.name].features, model.logits(x), atol=1e-6
        )
        shared = party.task.network.run(model.theta, x, False, 0, 2)
        assert torch.allclose(
            by_party(rows, "fc2", "before")[party.name].features, shared, atol=1e-6
        )


def test_samples_are_drawn_from_all_parties_together_and_from_any_split(runs):
    run = runs["fedavg"]
    subset, again, other = (
        representations(run.folder, ["fc1"], samples=50, seed=s) for s in (0, 0, 1)
    )
    before = by_party(subset, "fc1", "before")
    assert sum(len(r.labels) for r in before.values()) == 50
    assert all(torch.equal(a.features, b.features) for a, b in zip(subset, again, strict=True))
    assert any(not torch.equal(a.labels, b.labels) for a, b in zip(subset, other, strict=False))
    train = by_party(representations(run.folder, ["fc1"], split="train"), "fc1", "before")
    assert {p: len(r.labels) for p, r in train.items()} == {
        p.name: len(p.data.train) for p in run.job.parties
    }
    with pytest.raises(UsageError, match="train, validation or test"):
        representations(run.folder, split="all")


def test_unknown_layers_are_refused(runs):
    with pytest.raises(UsageError, match="fc2"):
        representations(runs["fedavg"].folder, ["fc22"])


def test_a_projection_keeps_distances_and_is_the_same_for_all_layers():
    z = torch.randn(40, 3000, generator=Key.root(0).generator())
    project = Projection(512, Key.root(1))
    projection = project("fc1", z)
    assert projection.shape == (40, 512)
    assert (torch.pdist(projection) / torch.pdist(z)).sub(1).abs().max() < 0.2
    assert torch.equal(Projection(512, Key.root(1))("fc1+offset", z), projection)
    assert torch.equal(Projection(4000, Key.root(1))("fc1", z), z)


def test_a_module_that_writes_in_place_does_not_change_recorded_features(tmp_path):
    x = torch.randn(60, 4, generator=Key.root(0).generator())
    fed = comity.Federation.from_arrays({name: (x, torch.arange(60) % 2) for name in "ab"})
    pair = nn.Linear(4, 3), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2))
    comity.run("fedavg", fed, model=pair, rounds=1, out=tmp_path / "run")
    rows = representations(tmp_path / "run", federation=fed, model=pair)
    assert [r.layer for r in rows[::4]] == ["encoder", "head"]
    assert by_party(rows, "encoder", "before")["a"].features.min() < 0


def test_a_study_is_plain_and_repeatable(runs):
    folder = runs["fedavg+dbe"].folder
    study_result = study(folder, samples=200, mdl=QUICK, width=8)
    assert study_result == json.loads(json.dumps(study_result, allow_nan=False))
    assert study_result == study(Path(folder), samples=200, mdl=QUICK, width=8)
    assert study_result["samples"] == 200
    assert list(study_result["layers"]) == ["fc1", "fc2", "fc2+offset", "fc3"]
    fc2 = study_result["layers"]["fc2"]
    assert (fc2["width"], fc2["measured_width"]) == (16, 8)
    for when in ("before", "after"):
        assert fc2[when]["mdl"]["bits"] > fc2[when]["mdl"]["nats"] > 0
        assert fc2[when]["frechet"]["mean"] > 0
        assert fc2[when]["separability"]["parties"] == 3
        assert fc2[when]["drift"]["relative"] > 0
    assert fc2["moved"]["distance"] > 0


def test_a_study_of_own_models_has_no_before(runs):
    study_result = study(runs["solo"].folder, ["fc2"], samples=200, mdl=None)
    assert study_result["layers"]["fc2"].keys() == {"width", "measured_width", "after"}
    assert study_result["layers"]["fc2"]["after"]["mdl"] is None


def test_local_training_makes_parties_easier_to_tell_apart(runs):
    """DBE, section 4: what local training does to a common extractor."""
    layer = study(runs["fedavg"].folder, ["fc2"], samples=2000, mdl=None)["layers"]["fc2"]
    assert layer["after"]["separability"]["balanced"] > layer["before"]["separability"]["balanced"]
    assert layer["after"]["drift"]["relative"] > layer["before"]["drift"]["relative"]
