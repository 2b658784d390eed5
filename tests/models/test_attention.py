"""Small transformers, against torch's own layers with the same weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comity
from comity import models
from comity.core import Key, LearningTask, Params, value_and_gradient
from comity.training.kernels import over_rows


def task_of(model: str, shape: tuple[int, ...], classes: int) -> tuple[LearningTask, Params]:
    network = models.build(model, shape, classes)
    return LearningTask(network, classes, network.cut), network.init(Key(0))


def words(rows: int = 6, length: int = 12, vocabulary: int = 30) -> Tensor:
    """Rows of tokens, the k-th with 2k of padding behind them; of the last nothing is left."""
    tokens = torch.randint(1, vocabulary, (rows, length), generator=Key(1).generator()).float()
    for k in range(rows):
        tokens[k, length - 2 * k :] = 0
    tokens[-1] = 0
    return tokens


def torch_layers(theta: Params, width: int, heads: int, depth: int) -> list[nn.Module]:
    """torch's encoder layers with our weights."""
    layers: list[nn.Module] = []
    for k in range(depth):
        with torch.random.fork_rng():
            layer = nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
            ).eval()
        ours = {
            n.removeprefix(f"encoder.{k}."): v
            for n, v in theta.items()
            if n.startswith(f"encoder.{k}.")
        }
        attention = {
            f"self_attn.in_proj_{p}": torch.cat([ours[f"{n}.{p}"] for n in "qkv"])
            for p in ("weight", "bias")
        }
        names = {
            "o": "self_attn.out_proj",
            "fc1": "linear1",
            "fc2": "linear2",
            "norm1": "norm1",
            "norm2": "norm2",
        }
        others = {
            f"{theirs}.{p}": ours[f"{n}.{p}"]
            for n, theirs in names.items()
            for p in ("weight", "bias")
        }
        layer.load_state_dict(attention | others)
        layers.append(layer)
    return layers


def shifted_weights(theta: Params) -> Params:
    """Weights with biases and norms away from their initial values."""
    return {
        k: v + 0.1 * torch.randn(v.shape, generator=Key(5).fold(k).generator())
        for k, v in theta.items()
    }


def test_transformer_is_torchs() -> None:
    task, theta = task_of("transformer(vocabulary=30,width=8,heads=2,depth=2)", (12,), 4)
    theta = shifted_weights(theta)
    x = words()[:-1]  # torch returns NaN for a row of padding alone
    padding = x == 0
    z = F.embedding(x.long(), theta["encoder.begin.weight"]) + theta["encoder.positions.weight"]
    for layer in torch_layers(theta, 8, 2, 2):
        z = layer(z, src_key_padding_mask=padding)
    z = F.layer_norm(z, (8,), theta["encoder.norm.weight"], theta["encoder.norm.bias"])
    z = torch.stack([row[real].mean(0) for row, real in zip(z, ~padding, strict=True)])
    torch.testing.assert_close(task.features(theta, x), z, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        task.logits(theta, x),
        F.linear(z, theta["fc.weight"], theta["fc.bias"]),
        rtol=1e-4,
        atol=1e-5,
    )


def test_vit_is_torchs() -> None:
    task, theta = task_of("vit(patch=4,width=8,heads=2,depth=1)", (3, 8, 12), 5)
    theta = shifted_weights(theta)
    x = torch.randn(4, 3, 8, 12, generator=Key(2).generator())
    squares = F.unfold(x, 4, stride=4).mT  # each a row of its channels' rows
    z = (
        F.linear(squares, theta["encoder.begin.weight"], theta["encoder.begin.bias"])
        + theta["encoder.positions.weight"]
    )
    for layer in torch_layers(theta, 8, 2, 1):
        z = layer(z)
    z = F.layer_norm(z, (8,), theta["encoder.norm.weight"], theta["encoder.norm.bias"]).mean(1)
    torch.testing.assert_close(task.features(theta, x), z, rtol=1e-4, atol=1e-5)


def test_padding_does_not_matter() -> None:
    """Outputs depend neither on the values at padded places nor on their number."""
    task, theta = task_of("transformer(vocabulary=30,width=8,length=20)", (12,), 4)
    wider, same = task_of("transformer(vocabulary=30,width=8,length=20)", (20,), 4)
    same["encoder.positions.weight"] = F.pad(theta["encoder.positions.weight"], (0, 0, 0, 8))
    same |= {k: v for k, v in theta.items() if k != "encoder.positions.weight"}
    x = words()
    torch.testing.assert_close(
        task.logits(theta, x), wider.logits(same, F.pad(x, (0, 8))), rtol=1e-5, atol=1e-6
    )
    poked = dict(theta)
    poked["encoder.begin.weight"] = theta["encoder.begin.weight"].clone()
    poked["encoder.begin.weight"][0] = 100.0
    torch.testing.assert_close(task.logits(theta, x), task.logits(poked, x), rtol=1e-5, atol=1e-6)


def test_a_row_of_padding_alone_has_an_answer() -> None:
    task, theta = task_of("transformer(vocabulary=30,width=8)", (12,), 4)
    assert torch.equal(task.features(theta, torch.zeros(2, 12)), torch.zeros(2, 8))
    _, slope = value_and_gradient(
        lambda p: task.logits(p, torch.zeros(2, 12)).square().sum(), theta
    )
    assert all(torch.isfinite(v).all() for v in slope.values())


def test_the_transformer_reads_the_first_tokens() -> None:
    task, theta = task_of("transformer(vocabulary=30,width=8,length=5)", (12,), 4)
    x = words()
    other = x.clone()
    other[:, 5:] = 7
    assert torch.equal(task.logits(theta, x), task.logits(theta, other))
    assert theta["encoder.positions.weight"].shape == (5, 8)


def test_second_gradients_exist() -> None:
    task, theta = task_of("vit(patch=4,width=8,heads=2,depth=1)", (1, 8, 8), 3)
    x = torch.randn(4, 1, 8, 8, generator=Key(2).generator())
    weight = theta["encoder.0.q.weight"].clone().requires_grad_()
    loss = task.logits(theta | {"encoder.0.q.weight": weight}, x).square().sum()
    (first,) = torch.autograd.grad(loss, weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weight)
    assert second.abs().sum() > 0


@pytest.mark.parametrize(
    "model", ["transformer(vocabulary=30,width=8)", "transformer(vocabulary=30,width=8,rank=2)"]
)
def test_tokens_are_checked_within_vmap_too(model: str) -> None:
    task, theta = task_of(model, (12,), 4)
    x = torch.stack([words(), words().flip(0)])
    both = {k: torch.stack([v, v + 0.01]) for k, v in theta.items()}

    def answers(p: Params, data: Params) -> Params:
        return {"y": task.logits(p, data["x"])}

    scores = over_rows(answers, both, {"x": x})["y"]
    for k in range(2):
        torch.testing.assert_close(
            scores[k], task.logits({n: v[k] for n, v in both.items()}, x[k]), rtol=1e-4, atol=1e-5
        )
    x[1, 2, 3] = 2.5
    with pytest.raises(comity.UsageError, match="needs token numbers from 0"):
        over_rows(answers, both, {"x": x})


@pytest.mark.parametrize(
    ("model", "shape", "sentence"),
    [
        ("transformer", (1, 8, 8), "needs rows of token numbers"),
        ("vit", (12,), "needs images"),
        ("vit(patch=3)", (1, 8, 8), "cannot cut images of 8x8 into squares of 3x3"),
        ("vit(width=10,heads=4)", (1, 8, 8), "width must be a multiple of heads"),
        ("vit(depth=1000)", (1, 8, 8), "at most 100 blocks, not 1000"),
        ("vit(rank=65)", (1, 8, 8), "factors is at most 64, not 65"),
        ("vit(alpha=3)", (1, 8, 8), "give it a rank"),
        ("vit(base=3)", (1, 8, 8), "give it a rank"),
        ("vit(rank=2,adapt=some)", (1, 8, 8), "adapt of vit must be one of qv, attention, all"),
        ("vit(rank=2,base=-1)", (1, 8, 8), "must be a seed, 0 or more"),
        ("vit(rank=2,base=nowhere)", (1, 8, 8), "nowhere holds no exported model"),
    ],
)
def test_invalid_models_are_refused(model: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(comity.ComityError, match=sentence):
        models.build(model, shape, 3)
