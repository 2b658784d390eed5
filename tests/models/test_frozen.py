"""Frozen parts of a network (`requires_grad=False`): never trained, never sent, in every method and
on every engine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from closed_forms import assert_closed_forms
from frozen_models import SHARE_THE_ENCODER, encoder, model
from harness import succeed
from matrix import compositions, ragged, run, short, weights
from sweeps import over_methods
from torch import nn

import comity
from comity.base.noise import gaussian
from comity.core import Key
from comity.errors import UsageError
from comity.models.exported import read_parameters
from comity.runs import config
from comity.runs.build import prepare
from comity.studies.export import load
from comity.training import dp_sgd


def with_batchnorm() -> tuple[nn.Module, nn.Module]:
    layers = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8)
    )
    layers[0].requires_grad_(False)
    layers[1].requires_grad_(False)
    return layers, nn.Linear(8, 10)


TRAINED = {
    "part": {"encoder.4.weight", "encoder.4.bias", "head.weight", "head.bias"},
    "all": {"head.weight", "head.bias"},
}


@pytest.mark.parametrize("frozen", ["part", "all"])
@pytest.mark.parametrize("text", over_methods(compositions()), ids=short)
def test_every_method_neither_trains_nor_sends_frozen_weights(
    text: str, frozen: str, tmp_path: Path
) -> None:
    """No state, message or model has a frozen tensor, and the closed forms count none."""
    if frozen == "all" and text.startswith(SHARE_THE_ENCODER):
        with pytest.raises(UsageError, match="Nothing of modules would be shared"):
            run(text, tmp_path, model=model(frozen))
        return
    # By default fedmeta refuses layers that may draw at random, as all of a user's may.
    text = "fedmeta(first_order=true)" if text == "fedmeta" else text
    result = run(text, tmp_path, model=model(frozen), rounds=2)
    task = result.job.info.task
    assert set(task.init(Key(0))) == TRAINED[frozen]
    assert task.bytes() == sum(v.nbytes for v in task.init(Key(0)).values())
    (start,) = result.summary["initial_weights"]
    assert set(start["frozen"]) & TRAINED[frozen] == set()
    assert len(start["frozen"]) + len(TRAINED[frozen]) == 6
    for theta in weights(result).values():
        assert not set(theta) & set(start["frozen"])
    assert_closed_forms(result)
    deployed = result.model("north")
    x = result.job.federation.parties["north"].test.x
    whole = encoder(frozen).eval()
    if frozen == "all" and type(deployed.task).__name__ == "LearningTask":
        torch.testing.assert_close(deployed.task.features(deployed.theta, x), whole(x))


@pytest.mark.parametrize("frozen", ["part", "all"])
@pytest.mark.parametrize("text", ["fedavg", "fedavg+dbe", "relay", "fedproto", "lg-fedavg"])
def test_engines_agree(text: str, frozen: str, tmp_path: Path) -> None:
    results = {
        engine: run(
            text,
            tmp_path / engine,
            model=model(frozen),
            engine=engine,
            workers=None if engine == "loop" else 2,
            steps=2,
        )
        for engine in ("loop", "process", "stacked")
    }
    for name, theta in weights(results["loop"]).items():
        assert all(torch.equal(v, weights(results["process"])[name][k]) for k, v in theta.items())
        if frozen == "all":  # elsewhere dropout draws other values
            other = weights(results["stacked"])[name]
            torch.testing.assert_close(other, theta, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", ["part", "all"])
@pytest.mark.parametrize("text", over_methods(compositions()), ids=short)
def test_every_engine_trains_and_sends_the_same_weights(
    text: str, frozen: str, tmp_path: Path
) -> None:
    """No frozen tensor is in a model or in the ledger's bytes; process has the bits of loop."""
    if frozen == "all" and text.startswith(SHARE_THE_ENCODER):
        pytest.skip("it has nothing to share: refused on every engine")
    text = "fedmeta(first_order=true)" if text == "fedmeta" else text
    loop, process, stacked = (
        run(
            text,
            tmp_path / engine,
            model=model(frozen),
            engine=engine,
            workers=None if engine == "loop" else 2,
            rounds=1,
            steps=1,
        )
        for engine in ("loop", "process", "stacked")
    )
    (start,) = loop.summary["initial_weights"]
    for result in (process, stacked):
        assert result.summary["initial_weights"] == [start]
        assert result.summary["bytes"] == loop.summary["bytes"]
        for name, theta in weights(loop).items():
            other = weights(result)[name]
            assert {k: v.shape for k, v in other.items()} == {k: v.shape for k, v in theta.items()}
            assert not set(other) & set(start["frozen"])
    for name, theta in weights(loop).items():
        assert all(torch.equal(v, weights(process)[name][k]) for k, v in theta.items())


def test_fedavg_sends_the_head_alone(tmp_path: Path) -> None:
    result = run("fedavg", tmp_path, model=model("all"), rounds=2)
    head = 4 * (8 * 10 + 10)
    assert {row.bytes for row in result.ledger if row.kind in ("up", "down")} == {head}


def test_a_frozen_encoder_is_what_plain_torch_trains(tmp_path: Path) -> None:
    """One party, one full batch: the head moves as in torch, and nothing else moves."""
    parts = model("all")
    fed = comity.load("digits").partition("iid|keep(samples=30)", parties=1, seed=0)
    result = comity.run(
        "fedavg", fed, model=parts, rounds=1, batch=1000, lr=0.1, engine="loop", out=tmp_path
    )
    body, head = encoder("all").eval(), parts[1]
    samples = result.job.parties[0].data.train
    loss = nn.functional.cross_entropy(head(body(fed.parties["p0"].train.x)), samples.y)
    (slope,) = torch.autograd.grad(loss, head.weight)
    theta = result.model("p0").theta
    assert theta.keys() == {"head.weight", "head.bias"}
    expected = (head.weight - 0.1 * slope).detach()
    torch.testing.assert_close(theta["head.weight"], expected, rtol=1e-5, atol=1e-6)


def test_frozen_batchnorm_keeps_its_statistics(tmp_path: Path) -> None:
    result = run("fedavg", tmp_path, model=with_batchnorm(), rounds=1)
    (start,) = result.summary["initial_weights"]
    assert "encoder.1.~running_mean" in start["frozen"]
    assert result.job.info.task.network.norms == frozenset()
    assert set(weights(result)["north"]) == {
        "encoder.4.weight",
        "encoder.4.bias",
        "head.weight",
        "head.bias",
    }


def test_frozen_weights_stay_with_random_and_own(tmp_path: Path) -> None:
    for init in ("random", "own"):
        result = run("fedavg", tmp_path / init, model=model("all"), rounds=1, init=init)
        features = result.model("north").task.features(
            result.model("north").theta, torch.ones(2, 64)
        )
        torch.testing.assert_close(features, encoder("all").eval()(torch.ones(2, 64)))


def test_a_frozen_head_is_supported(tmp_path: Path) -> None:
    layers, head = encoder("part"), nn.Linear(8, 10).requires_grad_(False)
    result = run("fedavg", tmp_path, model=(layers, head), rounds=1)
    assert set(weights(result)["north"]) == {"encoder.4.weight", "encoder.4.bias"}


def test_nothing_to_train_is_refused(tmp_path: Path) -> None:
    layers, head = model("all")
    with pytest.raises(UsageError, match="nothing to train"):
        run("fedavg", tmp_path, model=(layers, head.requires_grad_(False)))


def test_optimizers_have_no_state_of_frozen_weights(tmp_path: Path) -> None:
    how: dict[str, Any] = {"optimizer": "adam", "opt_state": "keep", "rounds": 2}
    result = run("fedavg", tmp_path, model=model("all"), **how)
    assert set(weights(result)["north"]) == TRAINED["all"]


def test_other_frozen_weights_are_another_network(tmp_path: Path) -> None:
    run("fedavg", tmp_path, model=model("all"), rounds=1)
    layers, head = model("all")
    torch.nn.init.ones_(layers.get_parameter("1.weight"))
    reopened = comity.open(tmp_path, ragged(), model=(layers, head))
    assert isinstance(reopened, comity.Result)
    with pytest.raises(UsageError, match="another network"):
        reopened.model("north")


FILE = """
import torch
from torch import nn


def build(shape, classes):
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh()).requires_grad_(False)
    return layers, nn.Linear(6, classes)
"""


def test_an_exported_model_has_its_frozen_weights_with_it(
    tmp_path: Path, without_onnx: None
) -> None:
    path = tmp_path / f"frozen_{abs(hash(tmp_path)) % 10**8}.py"
    path.write_text(FILE)
    how: dict[str, Any] = {"data": "digits", "parties": 3, "rounds": 1, "engine": "loop"}
    result = comity.run("fedavg", model=str(path), out=tmp_path / "run", **how)
    succeed("export", tmp_path / "run", "--party", "p0", "--out", tmp_path / "out")
    values = read_parameters(tmp_path / "out")
    assert set(values) == {"encoder.1.weight", "encoder.1.bias", "head.weight", "head.bias"}
    x = comity.load("digits").x[:5]
    exported = load(tmp_path / "out")
    torch.testing.assert_close(exported.predict_proba(x), result.model("p0").predict_proba(x))
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    prepared = exported.inputs.prepare(x)
    torch.testing.assert_close(program(prepared), exported.logits(prepared), rtol=1e-4, atol=1e-5)


def test_noise_is_added_to_the_trained_values_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-SGD clips and blurs gradients of the head's 90 values, not of the encoder's."""
    sizes = []

    def watched(key: Any, shape: list[int], *more: Any) -> Any:
        sizes.append(shape)
        return gaussian(key, shape, *more)

    monkeypatch.setattr(dp_sgd, "gaussian", watched)
    with tempfile.TemporaryDirectory() as folder:
        run("fedavg+dp(noise=1)", Path(folder), model=model("all"), rounds=1)
    assert {tuple(shape) for shape in sizes} == {(8 * 10 + 10,)}


@pytest.mark.parametrize(
    ("text", "term"),
    [("moon", "the contrastive loss"), ("adcol(hidden=8)", "the adversarial loss")],
)
def test_a_method_that_only_changes_the_encoder_warns(text: str, term: str, tmp_path: Path) -> None:
    """Without a trained encoder they are FedAvg and SOLO, with more traffic."""
    with pytest.warns(UserWarning, match=f"the encoder is frozen, so {term} has no effect"):
        frozen = run(text, tmp_path / "all", model=model("all"), rounds=1)
    parent = run(
        "fedavg" if text == "moon" else "solo", tmp_path / "p", model=model("all"), rounds=1
    )
    for name, theta in weights(parent).items():
        torch.testing.assert_close(weights(frozen)[name], theta, rtol=1e-5, atol=1e-6)
    job = prepare(config.experiment({"algorithm": text, "engine": "loop"}), ragged(), model("part"))
    assert not any("encoder is frozen" in warning for warning in job.warnings())


def test_methods_that_share_the_encoder_alone_are_left_out_of_a_comparison_by_name(
    tmp_path: Path,
) -> None:
    """The others are compared; a single run of such a method still says why it cannot."""
    parts = model("all")
    with pytest.warns(UserWarning, match="fedbabu is left out: Nothing of modules would be shared"):
        comparison = comity.compare(
            ["fedavg", "fedper", "fedbabu"], ragged(), model=parts, rounds=1, out=tmp_path
        )
    assert [row.algorithm for row in comparison.rows] == ["solo", "fedavg"]
    texts = [warning.text for warning in comparison.findings.warnings]
    assert any(text.startswith("fedper is left out: ") for text in texts)
    with pytest.raises(UsageError, match="No method is left to compare with these modules"):
        comity.compare(["fedper"], ragged(), model=parts, rounds=1)
    with pytest.raises(UsageError, match="mu"):  # its own mistake is not the network's
        comity.compare(["fedprox(mu=-1)"], ragged(), model=parts, rounds=1)
