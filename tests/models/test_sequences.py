"""Networks for words, signals and records, against plain torch with the same weights."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comity
from comity import models
from comity.core import Key, LearningTask, Params, value_and_gradient


def words(rows: int = 6, length: int = 12, vocabulary: int = 30) -> Tensor:
    """Rows of tokens, the k-th with k of padding behind them."""
    tokens = torch.randint(1, vocabulary, (rows, length), generator=Key(1).generator()).float()
    for k in range(rows):
        tokens[k, length - k :] = 0
    return tokens


def task_of(model: str, shape: tuple[int, ...], classes: int) -> tuple[LearningTask, Params]:
    network = models.build(model, shape, classes)
    return LearningTask(network, classes, network.cut), network.init(Key(0))


# --- fastText


@pytest.mark.parametrize("mean", ["tokens", "positions"])
def test_fasttext_is_the_mean_of_torchs_embedding(mean: str) -> None:
    task, theta = task_of(f"fasttext(vocabulary=30,width=5,mean={mean})", (12,), 4)
    x = words()
    if mean == "positions":  # DBE's code
        mixed = nn.Embedding.from_pretrained(theta["embedding.weight"], padding_idx=0)(
            x.long()
        ).mean(1)
    else:
        mixed = nn.EmbeddingBag.from_pretrained(
            theta["embedding.weight"], mode="mean", padding_idx=0
        )(x.long())
    z = F.linear(mixed, theta["fc1.weight"], theta["fc1.bias"])
    assert torch.allclose(task.features(theta, x), z, atol=1e-6)
    assert torch.allclose(
        task.logits(theta, x), F.linear(z, theta["fc2.weight"], theta["fc2.bias"]), atol=1e-6
    )


def test_fasttext_compat_logsoftmax_is_the_representation_of_dbes_code() -> None:
    (plain, theta), (compat, same) = (
        task_of(f"fasttext(vocabulary=30,compat_logsoftmax={flag})", (12,), 4)
        for flag in ("false", "true")
    )
    assert torch.equal(theta["fc2.weight"], same["fc2.weight"])
    z = F.log_softmax(plain.features(theta, words()), dim=1)
    assert torch.allclose(compat.features(theta, words()), z, atol=1e-6)
    assert torch.allclose(compat.logits(theta, words()), plain.head(theta, z), atol=1e-6)


def test_padding_does_not_matter() -> None:
    x = words()
    longer = F.pad(x, (3, 5))
    (task, theta), (wider, same) = (task_of("fasttext(vocabulary=30)", (n,), 4) for n in (12, 20))
    theta["embedding.weight"][0] = same["embedding.weight"][0] = (
        7.0  # even where noise or an average has moved its row
    )
    assert torch.allclose(task.logits(theta, x), wider.logits(same, longer), atol=1e-6)
    shorter, theirs = task_of("fasttext(vocabulary=30,mean=positions)", (20,), 4)
    assert not torch.allclose(task.logits(theta, x), shorter.logits(theirs, longer), atol=1e-2)


def test_a_row_of_padding_alone_has_an_answer() -> None:
    task, theta = task_of("fasttext(vocabulary=30)", (12,), 4)
    assert torch.allclose(task.features(theta, torch.zeros(2, 12)), theta["fc1.bias"].expand(2, -1))


def test_the_embedding_of_padding_is_zero_and_is_not_trained() -> None:
    task, theta = task_of("fasttext(vocabulary=30)", (12,), 4)
    x = words()
    _, slope = value_and_gradient(lambda p: task.logits(p, x).square().sum(), theta)
    rows = slope["embedding.weight"].abs().sum(1)
    used = torch.zeros(30, dtype=torch.bool).index_fill(0, x.long().unique(), True)
    assert used[0]
    assert rows[0] == 0
    assert torch.equal(theta["embedding.weight"][0], torch.zeros(32))
    assert torch.equal(rows[1:] > 0, used[1:])


def test_embeddings_begin_standard_normal() -> None:
    rows = models.build("fasttext(vocabulary=5000)", (12,), 4).init(Key(0))["embedding.weight"][1:]
    assert rows.mean().item() == pytest.approx(0, abs=0.01)
    assert rows.std().item() == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("value", [30.0, -1.0, 2.5])
def test_fasttext_refuses_invalid_tokens(value: float) -> None:
    task, theta = task_of("fasttext(vocabulary=30)", (12,), 4)
    x = words()
    x[2, 3] = value
    with pytest.raises(comity.UsageError, match=r"from 0 .padding. to 29.*try mlp2"):
        task.logits(theta, x)


def test_fasttext_refuses_methods_that_perturb_samples() -> None:
    task, theta = task_of("fasttext(vocabulary=30)", (12,), 4)
    with pytest.raises(comity.UsageError, match="perturb"):
        task.logits(theta, words().requires_grad_())


# --- HAR-CNN


def test_har_cnn_is_torchs_1d_convolutions() -> None:
    task, theta = task_of("har-cnn", (9, 128), 6)
    plain = nn.Sequential(
        nn.Conv1d(9, 32, 9), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(32, 64, 9), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(),
        nn.Linear(1664, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 6),
    )  # fmt: skip
    sizes = [p.shape for p in plain.state_dict().values()]
    values = [v.reshape(size) for v, size in zip(theta.values(), sizes, strict=True)]
    plain.load_state_dict(dict(zip(plain.state_dict(), values, strict=True)))
    x = torch.randn(3, 9, 128, generator=Key(1).generator())
    assert torch.allclose(task.logits(theta, x), plain(x), atol=1e-5)
    assert torch.allclose(
        task.features(theta, x), plain[:7](x), atol=1e-5
    )  # the code's split: the FC layers are the head


def test_har_cnns_head_is_all_its_fc_layers_unless_cut_elsewhere() -> None:
    task, _ = task_of("har-cnn", (9, 128), 6)
    assert task.width == 1664
    assert task.head_names == {f"fc{k}.{part}" for k in (1, 2, 3) for part in ("weight", "bias")}
    assert LearningTask(task.network, 6, "fc2").width == 512


def test_har_cnn_takes_signals_as_images_one_line_high() -> None:
    (task, theta), (high, same) = (
        task_of("har-cnn", shape, 6) for shape in ((9, 128), (9, 1, 128))
    )
    x = torch.randn(3, 9, 128, generator=Key(1).generator())
    assert all(torch.equal(theta[k], same[k]) for k in theta)
    assert torch.equal(task.logits(theta, x), high.logits(same, x.unsqueeze(2)))


# --- the LSTM


def test_bilstm_is_torchs_lstm_with_its_gradients() -> None:
    task, theta = task_of("bilstm(width=4)", (7, 5), 3)
    plain = nn.LSTM(5, 4, bias=False, bidirectional=True, batch_first=True)
    names = (
        "input_forward",
        "hidden_forward",
        "input_backward",
        "hidden_backward",
    )  # torch's order
    plain.load_state_dict(
        {k: theta[f"lstm.{n}"] for k, n in zip(plain.state_dict(), names, strict=True)}
    )
    x = torch.randn(6, 7, 5, generator=Key(1).generator())
    z = F.max_pool1d(torch.tanh(plain(x)[0]).transpose(1, 2), 7).squeeze(2)  # as Fed-SPS's code
    answer = F.linear(z, theta["fc.weight"], theta["fc.bias"])
    assert task.z_shape == (8,)
    assert torch.allclose(task.features(theta, x), z, atol=1e-6)
    assert torch.allclose(task.logits(theta, x), answer, atol=1e-6)
    expected = torch.autograd.grad(answer.square().sum(), list(plain.parameters()))
    _, slope = value_and_gradient(
        lambda p: task.head(p, task.features(p, x, train=True), train=True).square().sum(), theta
    )
    for name, value in zip(names, expected, strict=True):
        assert value.abs().max() > 0
        assert torch.allclose(slope[f"lstm.{name}"], value, atol=1e-6)


def test_bilstm_gives_equal_bits_each_time() -> None:
    task, theta = task_of("bilstm", (20, 30), 2)
    x = torch.randn(9, 20, 30, generator=Key(1).generator())
    first, second = (
        value_and_gradient(
            lambda p: task.head(p, task.features(p, x, True), True).square().sum(), theta
        )[1]
        for _ in range(2)
    )
    assert all(torch.equal(first[k], second[k]) for k in first)


def test_bilstm_begins_in_torchs_bounds() -> None:
    theta = models.build("bilstm", (200, 442), 2).init(Key(0))
    bound = 1 / math.sqrt(20)  # by the hidden size, whatever the number of features
    for name, value in theta.items():
        if name.startswith("lstm."):
            assert 0.98 * bound < value.abs().max() <= bound


# --- all of them in a run


@pytest.mark.parametrize(
    ("model", "shape"),
    [("fasttext(vocabulary=30,width=8)", (12,)), ("har-cnn", (2, 30)), ("bilstm(width=4)", (7, 5))],
)
def test_sequences_are_learned_in_a_federation(
    model: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Samples of one class hold small values, those of the other large ones: their tokens hardly
    overlap.
    """
    y = torch.randint(0, 2, (120,), generator=Key(3).generator())
    x = torch.rand(120, *shape, generator=Key(2).generator()) + y.view(-1, *[1] * len(shape))
    x = (x * 5).floor() + 1 if "fasttext" in model else x
    fed = comity.Federation.from_arrays(
        {"north": (x[:70], y[:70]), "south": (x[70:], y[70:])}, classes=2
    )
    result = comity.run(
        "fedavg", fed, model=model, rounds=3, epochs=5, lr=0.1, engine="loop", out=tmp_path / "run"
    )
    assert min(result.summary["accuracy"]["per_party"].values()) > 0.8
