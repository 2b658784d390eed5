"""Encoders of torchvision, timm and Hugging Face, with small models made on the spot."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import comity as command
from harness import one_sentence
from matrix import run, weights
from safetensors.torch import save_file
from small_encoder import FakeLibrary, Small
from torch import nn

from comity import models
from comity.core import Key
from comity.errors import UsageError
from comity.models import encoders
from comity.models.pretrained import Pretrained, initial_weights
from comity.training.task import LearningTask


def library(name: str) -> Any:
    """A library that may be missing or broken here; then the test is skipped."""
    try:
        return importlib.import_module(name)
    except Exception:
        pytest.skip(f"{name} cannot be imported")


@pytest.mark.parametrize(
    ("model", "package"),
    [("timm", "timm"), ("torchvision", "torchvision"), ("hf(path={})", "transformers")],
)
def test_a_missing_library_is_one_sentence(
    model: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, "torchvision.models"):
        monkeypatch.setitem(sys.modules, name, None)
    refusal = command("run", "fedavg", "--data", "digits", "--model", model.format(tmp_path))
    assert f"needs the package {package}" in one_sentence(refusal, 2)
    assert "pip install 'comity[encoders]'" in refusal.err


def test_a_library_that_is_broken_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision for another build of torch fails at import, but not by an ImportError."""
    broken = tmp_path / "torchvision"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('operator nms does not exist')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    refusal = command("run", "fedavg", "--data", "digits", "--model", "torchvision")
    assert "cannot be imported: RuntimeError: operator nms" in one_sentence(refusal, 2)


def test_a_folder_is_needed(tmp_path: Path) -> None:
    for model in ("hf", f"hf(path={tmp_path / 'none'})"):
        refusal = command("run", "fedavg", "--model", model)
        assert "hf needs the folder of an encoder" in one_sentence(refusal, 2)


@pytest.mark.parametrize("name", ["timm", "torchvision"])
def test_only_images_fit(name: str) -> None:
    with pytest.raises(UsageError, match="needs images of 1 or 3 channels"):
        models.build(name, (12,), 3)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "_imported", lambda *names: FakeLibrary())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("freeze", ["false", "true"])
def test_weights_of_a_file_and_a_new_head(freeze: str, tmp_path: Path) -> None:
    """The case of an encoder that was trained for 1,000 classes on coloured pictures."""
    trained = Small()
    save_file(trained.state_dict(), tmp_path / "w.safetensors")
    model = f"torchvision(name=small,weights={tmp_path / 'w.safetensors'},freeze={freeze})"
    with pytest.warns(UserWarning, match=r"not used of w.safetensors: fc.bias, fc.weight"):
        result = run("fedavg", tmp_path / "run", model=model, rounds=1, lr=1e-9)
    network = result.job.info.task.network
    assert isinstance(network, Pretrained)
    whole = network.whole(weights(result)["north"])
    torch.testing.assert_close(
        whole["encoder.net.conv1.weight"], trained.conv1.weight.detach(), rtol=0, atol=1e-6
    )
    (start,) = result.summary["initial_weights"]
    encoder = ["encoder.net.conv1.weight", "encoder.net.conv1.bias"]
    assert start["drawn"] == ["head.weight", "head.bias"]
    assert start["frozen" if freeze == "true" else "kept"] == encoder
    x = torch.rand(2, 1, 8, 8)
    features = result.job.info.task.features(weights(result)["north"], x)
    torch.testing.assert_close(
        features, trained.conv1(x.expand(-1, 3, -1, -1)).mean((2, 3)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.usefixtures("small")
def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="no model called 'large'"):
        models.build("torchvision(name=large)", (1, 8, 8), 10)


@pytest.mark.usefixtures("small")
def test_a_new_encoder_is_drawn_from_the_seed() -> None:
    network = models.build("torchvision(name=small)", (1, 8, 8), 10)
    first, second = (network.init(Key(seed))["encoder.net.conv1.weight"] for seed in (0, 1))
    assert initial_weights(network) is None
    assert not torch.equal(first, second)


def test_timm_by_name(tmp_path: Path) -> None:
    timm = library("timm")
    net = timm.create_model("resnet10t", pretrained=False, num_classes=0)
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    model = f"timm(name=resnet10t,weights={tmp_path / 'w.safetensors'},freeze=true,size=32)"
    network = models.build(model, (3, 16, 16), 4)
    start = initial_weights(network)
    assert start is not None
    assert not start.unused
    task = LearningTask(network, 4, network.cut)
    x = torch.rand(2, 3, 16, 16)
    big = nn.functional.interpolate(x, (32, 32), mode="bilinear")
    torch.testing.assert_close(task.features(task.init(Key(0)), x), net.eval()(big))
    assert set(task.init(Key(0))) == {"head.weight", "head.bias"}


def test_torchvision_by_name() -> None:
    library("torchvision")
    network = models.build("torchvision(name=resnet18,size=32)", (1, 16, 16), 4)
    assert network.shape_after("encoder") == (512,)


@pytest.mark.parametrize("cut", ["pooler", "cls", "mean"])
def test_hugging_face_pictures(cut: str, tmp_path: Path) -> None:
    transformers = library("transformers")
    settings = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "image_size": 8, "patch_size": 4, "num_channels": 3,
    }  # fmt: skip
    net = transformers.ViTModel(transformers.ViTConfig(**settings)).eval()
    net.save_pretrained(tmp_path / "encoder")
    model = f"hf(path={tmp_path / 'encoder'},cut={cut},freeze=true)"
    network = models.build(model, (1, 8, 8), 10)
    task = LearningTask(network, 10, network.cut)
    x = torch.rand(3, 1, 8, 8)
    output = net(x.expand(-1, 3, -1, -1))
    states = output.last_hidden_state
    expected = {"pooler": output.pooler_output, "cls": states[:, 0], "mean": states.mean(1)}[cut]
    torch.testing.assert_close(task.features(task.init(Key(0)), x), expected)
    result = run("fedavg", tmp_path / "run", model=model, rounds=1)
    assert set(weights(result)["north"]) == {"head.weight", "head.bias"}


def test_hugging_face_texts(tmp_path: Path) -> None:
    """Padding changes nothing, and trained encoders start from the folder's weights."""
    transformers = library("transformers")
    settings = {
        "vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "max_position_embeddings": 32, "pad_token_id": 0,
    }  # fmt: skip
    net = transformers.BertModel(transformers.BertConfig(**settings)).eval()
    net.save_pretrained(tmp_path / "encoder")
    network = models.build(f"hf(path={tmp_path / 'encoder'},cut=mean)", (6,), 3)
    task = LearningTask(network, 3, network.cut)
    theta = task.init(Key(4))
    short = torch.tensor([[3.0, 7.0, 9.0, 0.0, 0.0, 0.0]])
    expected = net(short[:, :3].long()).last_hidden_state.mean(1)
    torch.testing.assert_close(task.features(theta, short), expected, rtol=1e-4, atol=1e-5)
    name = "encoder.net.embeddings.word_embeddings.weight"
    assert torch.equal(theta[name], net.get_input_embeddings().weight)
    assert not any("pooler" in entry for entry in theta)


def test_an_encoder_without_a_pooler(tmp_path: Path) -> None:
    transformers = library("transformers")
    settings = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "image_size": 8, "patch_size": 4, "num_channels": 1,
    }  # fmt: skip
    net = transformers.ViTModel(transformers.ViTConfig(**settings), add_pooling_layer=False)
    wrapped = encoders.HuggingFaceEncoder(net, 1, 0, "pooler")
    with pytest.raises(UsageError, match="use cut=cls or cut=mean"):
        wrapped(torch.zeros(2, 1, 8, 8))


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    library("transformers")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="hf cannot build"):
        models.build(f"hf(path={tmp_path})", (1, 8, 8), 10)


def test_sites_read_no_files_that_a_run_names() -> None:
    from comity.models.named_files import names_files

    assert names_files("hf(./x)")
    assert names_files("timm(resnet18,./w.safetensors)")
    assert not names_files("timm(resnet18)")
