"""LoRA: what is trained and sent, its initial values, and two senses in which a full rank equals
the whole layer.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import comity
from comity import models
from comity.core import Key, LearningTask, Params, value_and_gradient
from comity.models.low_rank import LowRank, low_rank, without_factors
from comity.models.named_files import located, named_files
from comity.models.stack import Builder, Stack, linear
from comity.studies.export import export, load

SMALL = "vit(patch=4,width=8,heads=2"
VIT = f"{SMALL},rank=2)"
RUN: dict[str, Any] = {"rounds": 3, "lr": 0.1, "batch": 10, "engine": "loop"}


def build_low_rank(model: str, shape: tuple[int, ...] = (1, 8, 8), classes: int = 10) -> LowRank:
    network = models.build(model, shape, classes)
    assert isinstance(network, LowRank)
    return network


def rows(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=Key(seed).generator())


@cache
def digits() -> comity.Federation:
    data = comity.load("digits")
    parties = {
        f"p{i}": (data.x[80 * i : 80 * i + 80], data.y[80 * i : 80 * i + 80]) for i in range(3)
    }
    return comity.Federation.from_arrays(parties, classes=10)


def one_layer(into: int, out: int, rank: int, alpha: float) -> LowRank:
    """y = fc(x Wᵀ + b) with factors beside W."""
    stack = (
        Builder("one-layer", (into,)).stage("body", linear(out)).stage("fc", linear(out)).build()
    )
    return low_rank(stack, ("body",), rank, alpha, 0)


# What is trained, and what it begins with.


def test_only_factors_and_head_are_parameters() -> None:
    network = build_low_rank(VIT)
    theta = network.init(Key(3))
    layers = [f"encoder.{k}.{n}" for k in (0, 1) for n in ("q", "v")]
    assert set(theta) == {"fc.weight", "fc.bias"} | {
        f"{layer}.{factor}" for layer in layers for factor in "AB"
    }
    assert theta["encoder.0.q.A"].shape == (2, 8)
    assert theta["encoder.0.q.B"].shape == (8, 2)
    assert not theta["encoder.0.q.B"].any()
    assert not torch.equal(theta["encoder.0.q.A"], theta["encoder.0.v.A"])
    whole = models.build(f"{SMALL})", (1, 8, 8), 10).init(Key(3))
    assert set(network.base) == {k for k in whole if k.startswith("encoder")}
    assert torch.equal(theta["fc.weight"], whole["fc.weight"])


@pytest.mark.parametrize(
    ("adapt", "layers"), [("qv", "q v"), ("attention", "q k v o"), ("all", "q k v o fc1 fc2")]
)
def test_which_layers_are_adapted(adapt: str, layers: str) -> None:
    expected = {f"encoder.{k}.{name}" for k in (0, 1) for name in layers.split()}
    assert set(build_low_rank(f"{SMALL},rank=2,adapt={adapt})").adapted) == expected


def test_initially_the_network_equals_its_base() -> None:
    """B = 0: the outputs are those of the full network with these weights."""
    network, whole = (
        build_low_rank(f"{SMALL},rank=2,base=5)"),
        models.build(f"{SMALL})", (1, 8, 8), 10),
    )
    theta = whole.init(Key.root(5).fold("init"))
    head = {k: v for k, v in theta.items() if k.startswith("fc")}
    x = rows(4, 1, 8, 8)
    assert torch.equal(
        network.run(network.init(Key(0)) | head, x, False, 0, 2), whole.run(theta, x, False, 0, 2)
    )


def test_a_seeds_base_is_what_a_run_with_that_seed_begins_with() -> None:
    """So that a full run and one of factors start from the same weights, if `base` is the run's
    seed.
    """
    result = comity.run(
        "fedavg", digits(), model=f"{SMALL})", seed=4, **RUN | {"rounds": 1, "lr": 1e-30}
    )
    base = build_low_rank(f"{SMALL},rank=2,base=4)").base
    theta = result.model("p0").theta
    for name, value in base.items():
        torch.testing.assert_close(theta[name], value, rtol=1e-6, atol=1e-6)
    assert (
        build_low_rank(VIT).fixed
        == build_low_rank(f"{SMALL},rank=7,adapt=all)").fixed
        != build_low_rank(f"{SMALL},rank=2,base=4)").fixed
    )


def test_equation_3() -> None:
    """h = W₀x + (α/r) BAx."""
    network = one_layer(5, 4, 2, 6.0)
    theta = network.init(Key(0))
    theta["body.B"] = rows(4, 2, seed=7)
    x = rows(3, 5)
    w = network.base["body.weight"] + 6.0 / 2 * theta["body.B"] @ theta["body.A"]
    expected = x @ w.T + network.base["body.bias"]
    torch.testing.assert_close(network.run(theta, x, False, 0, 1), expected)
    merged = network.merged(theta)
    torch.testing.assert_close(merged["body.weight"], w)
    assert set(merged) == {"body.weight", "body.bias", "fc.weight", "fc.bias"}
    torch.testing.assert_close(
        network.network.run(merged, x, False, 0, 2), network.run(theta, x, False, 0, 2)
    )


# A full rank is the whole layer, in two senses.


def test_full_rank_takes_the_first_step_of_the_whole_layer() -> None:
    """With A orthogonal and α = r a step of B alone moves W by −η g AᵀA = −η g; A's gradient is
    zero as long as B is.
    """
    into = out = 6
    network = one_layer(into, out, 6, 6.0)
    x, y = rows(20, into), rows(20, out, seed=2)
    square, _ = torch.linalg.qr(rows(6, 6, seed=3))
    theta = network.init(Key(0)) | {"body.A": square}

    def loss(p: Params) -> Tensor:
        return (network.run(p, x, True, 0, 1) - y).square().mean()

    def whole(p: Params) -> Tensor:
        return (network.network.run(p, x, True, 0, 1) - y).square().mean()

    _, factors = value_and_gradient(loss, theta)
    _, layer = value_and_gradient(whole, dict(network.base))
    assert not factors["body.A"].any()
    merged = network.merged(theta | {"body.B": theta["body.B"] - 0.3 * factors["body.B"]})
    torch.testing.assert_close(
        merged["body.weight"], network.base["body.weight"] - 0.3 * layer["body.weight"]
    )


@pytest.mark.sweep("3-6")
@pytest.mark.parametrize(("into", "out"), [(4, 4), (3, 6), (6, 3)])
def test_full_rank_reaches_the_whole_layers_optimum(into: int, out: int) -> None:
    """Least squares: B and A of rank min(in, out) can be any change of W, and descent finds the
    closed form's.
    """
    network = one_layer(into, out, min(into, out), float(min(into, out)))
    x = rows(60, into).double()
    b = network.base["body.bias"].double()
    y = x @ rows(into, out, seed=2).double() + b + 0.1 * rows(60, out, seed=3).double()
    best = torch.linalg.lstsq(x, y - b).solution.T
    theta = {k: v.double() for k, v in network.init(Key(0)).items()}
    for _ in range(4000):
        _, slope = value_and_gradient(
            lambda p: (network.run(p, x, True, 0, 1) - y).square().mean(), theta
        )
        theta = {k: v - 0.2 * slope[k] for k, v in theta.items()}
    merged = network.merged(theta)["body.weight"]
    torch.testing.assert_close(merged, best, rtol=1e-4, atol=1e-4)


def test_a_low_rank_does_not_reach_it() -> None:
    """Otherwise the test above would show nothing: rank 1 cannot make the second-largest change."""
    network = one_layer(4, 4, 1, 1.0)
    change = torch.diag(torch.tensor([2.0, 1.0, 0.0, 0.0]))
    x = rows(60, 4)
    y = x @ (network.base["body.weight"] + change).T + network.base["body.bias"]
    theta = network.init(Key(0))
    for _ in range(2000):
        _, slope = value_and_gradient(
            lambda p: (network.run(p, x, True, 0, 1) - y).square().mean(), theta
        )
        theta = {k: v - 0.1 * slope[k] for k, v in theta.items()}
    gap = (
        (network.merged(theta)["body.weight"] - network.base["body.weight"] - change).norm().item()
    )
    assert gap > 0.5


# Runs.


def bytes_up(result: comity.Result) -> int:
    total: int = result.summary["bytes"]["up"]
    return total


@pytest.mark.parametrize("method", ["fedavg", "fedavg+dbe"])
def test_bytes_fall_to_the_factors_and_the_head(method: str) -> None:
    """2 blocks, q and v, r(in + out) values each, and the head; the ledger and the closed form say
    the same.
    """
    low = comity.run(method, digits(), model=VIT, **RUN)
    full = comity.run(method, digits(), model=f"{SMALL})", **RUN)
    factors = 4 * (2 * 2 * 2 * (8 + 8) + 8 * 10 + 10)
    means = 3 * 8 * 4 if "dbe" in method else 0
    assert bytes_up(low) == 3 * RUN["rounds"] * factors + means
    values = sum(v.numel() for v in full.model("p0").theta.values()) - (8 if "dbe" in method else 0)
    assert bytes_up(full) == 3 * RUN["rounds"] * 4 * values + means
    info = low.job.info
    assert low.job.algorithm.accounting.traffic(info, [0, 1, 2]).up == 3 * factors
    assert set(low.model("p0").theta) - set(low.job.info.task.shapes) <= {"dbe.offset"}


def test_it_learns_and_the_base_does_not_move() -> None:
    before = build_low_rank(f"{SMALL},rank=2,adapt=all)").fixed
    settings = RUN | {"rounds": 15, "epochs": 2, "lr": 0.3}
    result = comity.run("fedavg", digits(), model=f"{SMALL},rank=2,adapt=all)", **settings)
    assert result.summary["accuracy"]["mean"] > 0.3
    network = result.job.info.task.network
    assert isinstance(network, LowRank)
    assert network.fixed == before
    assert (
        LowRank(network.network, dict(network.base), network.adapted, 2, 8.0).fixed == before
    )  # computed again
    assert result.model("p0").theta["encoder.0.q.B"].any()


def test_parties_with_other_bases_are_not_averaged() -> None:
    """Their factors have the same names and shapes, but belong to different bases."""
    other_base = {"p1": {"model": f"{SMALL},rank=2,base=9)"}}
    with pytest.raises(
        comity.UsageError,
        match="exchanges low-rank factors, so all parties need one base, but the base of p1 differs from",
    ):
        comity.run("fedavg", digits(), model=VIT, party=other_base, **RUN)
    comity.run("solo", digits(), model=VIT, party=other_base, **RUN | {"rounds": 1})


# Trained bases, and exported models.


@pytest.fixture(scope="module")
def exported_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported model of a whole network."""
    at = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comity.studies.export.find_spec", lambda name: None)
        export(
            comity.run("fedavg", digits(), model=f"{SMALL})", out=at / "run", **RUN),
            "p0",
            at / "model",
        )
    return at / "model"


def test_a_trained_base(exported_model: Path, tmp_path: Path) -> None:
    network = build_low_rank(f"{SMALL},rank=2,base={exported_model})")
    theta = load(exported_model).theta
    assert all(torch.equal(network.base[k], theta[k]) for k in network.base)
    assert (
        build_low_rank(f"{SMALL},rank=2,base={exported_model / 'weights.safetensors'})").fixed
        == network.fixed
    )
    with pytest.raises(
        comity.UsageError,
        match=r"is no base for this vit: it needs encoder.begin.weight of shape \(8, 4\)",
    ):
        models.build(f"vit(patch=2,width=8,heads=2,rank=2,base={exported_model})", (1, 8, 8), 10)
    x = rows(5, 1, 8, 8)  # initially it equals the exported model, including the head
    assert torch.equal(
        network.run(network.init(Key(0)), x, False, 0, 2),
        load(exported_model).task.logits(theta, x),
    )
    other = models.build(
        f"{SMALL},rank=2,base={exported_model})", (1, 8, 8), 3
    )  # another task: its head is its own
    assert other.init(Key(0))["fc.weight"].shape == (3, 8)


def deployed_weights(folder: Path) -> Params:
    """The weights of a party's model in a finished run's folder."""
    result = comity.open(folder, digits())
    assert isinstance(result, comity.Result)
    return result.model("p0").theta


def test_a_run_refuses_a_replaced_base(
    exported_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_onnx: None
) -> None:
    """A run records its base's absolute path and fingerprint: a base that was replaced is refused."""
    monkeypatch.chdir(exported_model.parent)
    result = comity.run(
        "fedavg", digits(), model=f"{SMALL},rank=2,base=model)", out=tmp_path / "run", **RUN
    )
    assert result.job.experiment.model == f"{SMALL},rank=2,base={exported_model.resolve()})"
    monkeypatch.chdir(tmp_path)
    assert torch.equal(
        deployed_weights(tmp_path / "run")["encoder.0.q.B"],
        result.model("p0").theta["encoder.0.q.B"],
    )
    second = comity.run(
        "fedavg", digits(), model=f"{SMALL})", out=tmp_path / "second", **RUN | {"seed": 1}
    )
    export(second, "p0", tmp_path / "other")
    backup = tmp_path / "aside"
    exported_model.rename(backup)
    try:
        (tmp_path / "other").rename(exported_model)
        with pytest.raises(comity.UsageError, match="holds a run of another network"):
            deployed_weights(tmp_path / "run")
        exported_model.rename(tmp_path / "other")
        with pytest.raises(comity.ComityError, match="holds no exported model"):
            deployed_weights(tmp_path / "run")
    finally:
        backup.rename(exported_model)


@pytest.mark.sweep("fedavg+dbe")
@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "fedavg+dbe",
        *(pytest.param(method, marks=pytest.mark.long) for method in ("fedrod", "ditto")),
    ],
)
def test_exported_models_need_no_base(method: str, tmp_path: Path) -> None:
    """The factors are merged into the weights: exports for torch, ONNX and Comity answer as the
    party's model does.
    """
    result = comity.run(
        method, digits(), model=f"{SMALL},rank=2,adapt=all,base=3)", out=tmp_path / "run", **RUN
    )
    export_warnings = export(result, "p1", tmp_path / "model")
    assert export_warnings == []
    x = digits().parties["p1"].test.x
    deployed = result.model("p1")
    expected = deployed.task.logits(deployed.theta, x)
    loaded = load(tmp_path / "model")
    assert isinstance(loaded.task.network, Stack)
    torch.testing.assert_close(loaded.task.logits(loaded.theta, x), expected, rtol=1e-4, atol=1e-4)
    program = torch.export.load(tmp_path / "model" / "model.pt2").module()
    torch.testing.assert_close(program(x), expected, rtol=1e-4, atol=1e-4)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        tmp_path / "model" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    (scores,) = session.run(None, {"samples": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(scores), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.long
def test_a_text_model_is_exported_too(tmp_path: Path) -> None:
    x = torch.randint(0, 30, (60, 12), generator=Key(1).generator()).float()
    fed = comity.Federation.from_arrays(
        {f"p{i}": (x[20 * i :][:20], torch.arange(20) % 3) for i in range(3)}, classes=3
    )
    result = comity.run(
        "fedavg",
        fed,
        model="transformer(vocabulary=30,width=8,rank=2)",
        out=tmp_path / "run",
        **RUN,
    )
    assert export(result, "p1", tmp_path / "model") == []
    program = torch.export.load(tmp_path / "model" / "model.pt2").module()
    deployed = result.model("p1")
    torch.testing.assert_close(
        program(x), deployed.task.logits(deployed.theta, x), rtol=1e-4, atol=1e-4
    )


def test_model_strings() -> None:
    assert without_factors("vit(patch=2,rank=3,alpha=1,adapt=all,base=./x)") == "vit(patch=2)"
    assert without_factors("vit(rank=3)") == "vit"
    assert located("vit(rank=3,base=7)") == "vit(rank=3,base=7)"
    assert located("vit(rank=3,base=x)") == f"vit(rank=3,base={Path('x').resolve()})"
    assert named_files("vit(rank=3)") == named_files("mlp2") == []
    assert named_files("vit(rank=3,base=x/weights.safetensors)") == [
        Path("x/weights.safetensors").resolve()
    ]
    assert located("hf(./x)") == f"hf(path={Path('x').resolve()})"


def test_networks_are_compared_by_identity() -> None:
    """Comparing two networks by their tensors would raise an error."""
    network = build_low_rank(VIT)
    assert network == network  # noqa: PLR0124
    assert network != build_low_rank(VIT)
    assert LearningTask(network, 10, network.cut) == LearningTask(network, 10, network.cut)
