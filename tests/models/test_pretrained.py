"""Weights that users give: kept, drawn anew or read from a file, in every method and on every
engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import comity as command
from harness import one_sentence, succeed
from matrix import compositions, ragged, run, short, weights
from safetensors.torch import save_file
from sweeps import over_methods
from torch import Tensor, nn

import comity
from comity import models
from comity.core import Key, Params
from comity.errors import UsageError
from comity.models.modules import Modules
from comity.models.pretrained import Pretrained
from comity.runs import config
from comity.runs.build import prepare

TINY = 1e-9
"""A learning rate so small that trained weights are the initial ones."""

OWN_RATES = ("fedtgp", "fedmeta", "pfedme")
"""Methods with learning rates of their own."""


def pair(seed: int = 3, frozen: bool = False) -> tuple[nn.Module, nn.Module]:
    """An encoder and a head with weights that no seed of a run draws."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh())
        head = nn.Linear(12, 10)
    return encoder.requires_grad_(not frozen), head


def given(parts: tuple[nn.Module, nn.Module]) -> Params:
    return {
        f"{stage}.{name}": value
        for stage, part in zip(("encoder", "head"), parts, strict=True)
        for name, value in part.state_dict().items()
    }


def start(result: comity.Result) -> dict[str, Any]:
    (entry,) = result.summary["initial_weights"]
    return dict(entry)


def build(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """A trained encoder and a new head."""
    encoder, _ = pair()
    return encoder, nn.Linear(12, classes)


# Kept by default.


@pytest.mark.parametrize("seed", [0, 1])
def test_weights_of_modules_are_kept_whatever_the_seed(seed: int, tmp_path: Path) -> None:
    parts = pair()
    result = run("fedavg", tmp_path, model=parts, lr=TINY, rounds=1, seed=seed)
    for theta in weights(result).values():
        torch.testing.assert_close(theta, given(parts), rtol=0, atol=1e-6)
    assert start(result)["kept"] == [*given(parts)]
    assert start(result)["text"] == (
        "Initial weights: 4 tensors (encoder.1.weight, encoder.1.bias, head.weight, head.bias) kept"
        " as in the model."
    )


def test_an_encoder_that_is_trained_already_starts_as_good_as_it_is(tmp_path: Path) -> None:
    """The case of the issue: 100% before, 9.6% after the weights were thrown away."""
    fed = ragged()
    x = torch.cat([p.train.x for p in fed.parties.values()])
    y = torch.cat([p.train.y for p in fed.parties.values()])
    encoder, head = pair()
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(encoder(x)), y).backward()
        optimizer.step()
    samples = torch.cat([p.test.x for p in fed.parties.values()])
    labels = torch.cat([p.test.y for p in fed.parties.values()])
    before = float((head(encoder(samples)).argmax(1) == labels).float().mean())
    result = run("fedavg", tmp_path, model=(encoder, head), lr=TINY, rounds=1)
    assert before > 0.6
    assert result.summary["accuracy"]["weighted"] == pytest.approx(before, abs=1e-6)


def test_a_function_keeps_what_it_loads_and_draws_the_rest(tmp_path: Path) -> None:
    encoder, _ = pair()
    thetas = []
    for seed in (0, 1):
        result = run("fedavg", tmp_path / str(seed), model=build, lr=TINY, rounds=1, seed=seed)
        thetas.append(weights(result)["north"])
        assert start(result)["kept"] == ["encoder.1.weight", "encoder.1.bias"]
        assert start(result)["drawn"] == ["head.weight", "head.bias"]
    for theta in thetas:
        torch.testing.assert_close(
            theta["encoder.1.weight"], encoder.state_dict()["1.weight"], rtol=0, atol=1e-6
        )
    assert not torch.allclose(thetas[0]["head.weight"], thetas[1]["head.weight"], atol=1e-3)


def test_new_modules_of_a_function_are_drawn_from_the_seed(tmp_path: Path) -> None:
    def new(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8)), nn.Linear(8, classes)

    ours, other = (
        run("fedavg", tmp_path / str(seed), model=new, lr=TINY, rounds=1, seed=seed)
        for seed in (0, 1)
    )
    assert "initial_weights" not in ours.summary
    first, second = weights(ours)["north"], weights(other)["north"]
    assert not torch.allclose(first["encoder.1.weight"], second["encoder.1.weight"], atol=1e-3)


class Attention(nn.Module):
    """A layer whose weights have no public `reset_parameters`."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1, 2)
        return self.attend(x, x, x)[0].mean(1) * self.scale


def test_random_draws_anew_and_says_what_it_cannot_draw(tmp_path: Path) -> None:
    parts = Attention(), nn.Linear(8, 10)
    kept = run("fedavg", tmp_path / "kept", model=parts, lr=TINY, rounds=1)
    assert start(kept)["drawn"] == []
    result = run("fedavg", tmp_path / "random", model=parts, lr=TINY, rounds=1, init="random")
    assert start(result)["kept"] == ["encoder.scale"]
    assert start(result)["redrawn"]
    assert "drawn anew, instead of the given values" in start(result)["text"]
    theta = weights(result)["north"]
    assert not torch.allclose(
        theta["encoder.attend.in_proj_weight"], parts[0].attend.in_proj_weight, atol=1e-3
    )
    again = run("fedavg", tmp_path / "again", model=parts, lr=TINY, rounds=1, init="random")
    assert all(torch.equal(v, theta[k]) for k, v in weights(again)["north"].items())


def test_random_is_what_named_networks_do_anyway(tmp_path: Path) -> None:
    ours, theirs = (
        run("fedavg", tmp_path / init, model="mlp2(width=8)", rounds=1, init=init)
        for init in ("common", "random")
    )
    assert all(torch.equal(v, weights(theirs)["east"][k]) for k, v in weights(ours)["east"].items())


def test_the_users_modules_are_not_changed(tmp_path: Path) -> None:
    parts = pair()
    before = {name: value.clone() for name, value in given(parts).items()}
    run("fedavg", tmp_path, model=parts, rounds=1, init="random")
    assert all(torch.equal(value, before[name]) for name, value in given(parts).items())


def test_given_weights_do_not_change_the_digest_of_the_layers(tmp_path: Path) -> None:
    """So finished runs of versions that drew all weights can be opened."""
    network = models.build(pair(), (1, 8, 8), 10)
    assert isinstance(network, Pretrained)
    assert isinstance(network.network, Modules)
    assert network.digest == network.network.digest


def test_other_weights_have_other_noise() -> None:
    """Otherwise the difference of two private runs of one seed would have none."""
    settings = config.experiment({"algorithm": "fedavg+dp(noise=1)", "engine": "loop"})
    roots = [prepare(settings, ragged(), pair(seed)).root for seed in (3, 3, 4)]
    assert roots[0] == roots[1] != roots[2]


def test_a_resumed_run_needs_the_same_weights(tmp_path: Path) -> None:
    run("fedavg", tmp_path, model=pair(), rounds=1)
    with pytest.raises(UsageError, match="other initial weights"):
        run("fedavg", tmp_path, model=pair(seed=4), rounds=1, resume=True)


@pytest.mark.parametrize("text", over_methods(compositions()), ids=short)
def test_every_method_starts_from_given_weights(text: str, tmp_path: Path) -> None:
    """Runs of two seeds and one without a step to speak of have the given weights."""
    parts = pair()
    settings: dict[str, Any] = {"lr": TINY, "rounds": 1, "steps": 1}
    # By default fedmeta refuses layers that may draw at random, as all of a user's may.
    text = "fedmeta(first_order=true)" if text == "fedmeta" else text
    result = run(text, tmp_path / "run", model=parts, **settings)
    task = result.job.parties[0].task
    initial = task.init(Key.root(7))
    assert initial.keys() == given(parts).keys()
    assert all(torch.equal(v, given(parts)[k]) for k, v in initial.items())
    assert_begins_with(result, parts, text)


def assert_begins_with(
    result: comity.Result, parts: tuple[nn.Module, nn.Module], text: str
) -> None:
    """After a step of almost no length, the encoders of all parties are the given one."""
    initial = given(parts)
    if "dp(" in text or "finetune" in text or "ccvr" in text or text.startswith(OWN_RATES):
        return  # they add noise, or take steps of a length of their own
    for theta in weights(result).values():
        body = {k: v for k, v in theta.items() if k.startswith("encoder.1")}
        for name, value in body.items():
            if value.shape == initial[name].shape:
                torch.testing.assert_close(value, initial[name], rtol=0, atol=1e-3)


@pytest.mark.parametrize("engine", ["process", "stacked"])
@pytest.mark.parametrize("text", over_methods(compositions()), ids=short)
def test_every_method_starts_from_given_weights_on_every_engine(
    text: str, engine: str, tmp_path: Path
) -> None:
    parts = pair()
    settings: dict[str, Any] = {"lr": TINY, "rounds": 1, "steps": 1, "workers": 2}
    text = "fedmeta(first_order=true)" if text == "fedmeta" else text
    result = run(text, tmp_path, model=parts, engine=engine, **settings)
    (entry,) = result.summary["initial_weights"]
    assert set(entry["kept"]) == set(given(parts))
    assert not entry["drawn"]
    assert_begins_with(result, parts, text)


@pytest.mark.parametrize("engine", ["loop", "process", "stacked"])
@pytest.mark.parametrize("text", ["fedavg", "fedproto", "relay", "adcol(hidden=8)"])
def test_every_engine_starts_from_given_weights(text: str, engine: str, tmp_path: Path) -> None:
    parts = pair()
    settings: dict[str, Any] = {"workers": None if engine == "loop" else 2, "lr": TINY, "rounds": 1}
    result = run(text, tmp_path, model=parts, engine=engine, **settings)
    for theta in weights(result).values():
        torch.testing.assert_close(
            theta["encoder.1.weight"], given(parts)["encoder.1.weight"], rtol=0, atol=1e-6
        )


# From a file.


def files(folder: Path) -> dict[str, str]:
    """The weights of a linear network of other modules, in each format."""
    theta = {"fc1.weight": torch.randn(8, 64), "fc1.bias": torch.randn(8)}
    extra = theta | {"fc3.weight": torch.randn(5, 8), "other": torch.ones(3)}
    save_file(extra, folder / "w.safetensors")
    torch.save(extra, folder / "w.pt")
    torch.save({"state_dict": extra, "epoch": 3}, folder / "w.ckpt")
    return {name: str(folder / f"w.{name}") for name in ("safetensors", "pt", "ckpt")}


@pytest.mark.parametrize("kind", ["safetensors", "pt", "ckpt"])
def test_a_file_of_weights_is_matched_by_name(kind: str, tmp_path: Path) -> None:
    file = files(tmp_path)[kind]
    values = torch.load(tmp_path / "w.pt", weights_only=True)
    with pytest.warns(UserWarning, match="not used of w"):
        result = run(
            "fedavg", tmp_path / "run", model="mlp2(width=8)", weights=file, lr=TINY, rounds=1
        )
    theta = weights(result)["west"]
    torch.testing.assert_close(theta["fc1.weight"], values["fc1.weight"], rtol=0, atol=1e-6)
    entry = start(result)
    assert entry["kept"] == ["fc1.weight", "fc1.bias"]
    assert set(entry["drawn"]) == theta.keys() - {"fc1.weight", "fc1.bias"}
    assert "other" in entry["unused"]
    assert any(text.startswith("fc3.weight (5x8, not 10x") for text in entry["unused"])


def test_weights_of_an_encoder_alone_fit_modules(tmp_path: Path) -> None:
    encoder, _ = pair(seed=5)
    torch.save(encoder.state_dict(), tmp_path / "e.pt")
    result = run(
        "fedavg", tmp_path / "run", model=build, weights=tmp_path / "e.pt", lr=TINY, rounds=1
    )
    theta = weights(result)["north"]["encoder.1.weight"]
    torch.testing.assert_close(theta, encoder.state_dict()["1.weight"], rtol=0, atol=1e-6)


def test_the_weights_of_an_exported_model(tmp_path: Path, without_onnx: None) -> None:
    model = "mlp2(width=8)"
    first = comity.run(
        "fedavg", data="digits", model=model, rounds=1, parties=3, out=tmp_path / "a"
    )
    succeed("export", tmp_path / "a", "--party", "p0", "--out", tmp_path / "exported")
    result = comity.run(
        "fedavg", data="digits", model=model, rounds=1, parties=3, lr=TINY, steps=1,
        weights=tmp_path / "exported",
    )  # fmt: skip
    ours, theirs = result.model("p1").theta, first.model("p0").theta
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_other_weights_in_the_file_are_noticed_on_resume(tmp_path: Path) -> None:
    torch.save({"fc1.weight": torch.ones(8, 64)}, tmp_path / "w.pt")
    how: dict[str, Any] = {"model": "mlp2(width=8)", "weights": tmp_path / "w.pt", "rounds": 1}
    run("fedavg", tmp_path / "run", **how)
    torch.save({"fc1.weight": torch.zeros(8, 64)}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match="other initial weights"):
        run("fedavg", tmp_path / "run", resume=True, **how)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "There is no file of weights called"),
        (b"no weights at all", "holds no state dict of tensors alone"),
        ({"a": torch.ones(3)}, "has no weights for mlp2"),
        ({"fc1.weight": torch.ones(3)}, "has no weights for mlp2"),
        ([1, 2], "holds no state dict of tensors alone"),
        ({"fc1.weight": torch.full((8, 64), torch.nan)}, "fc1.weight has values that are not finite"),
    ],
)  # fmt: skip
def test_files_without_weights_are_refused_in_one_sentence(
    content: Any, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "w.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    refusal = command("run", "fedavg", "--model", "mlp2(width=8)", "--weights", file)
    assert why in one_sentence(refusal, 2)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save(pair()[0], tmp_path / "w.pt")  # a whole module, not its weights
    refusal = command("run", "fedavg", "--weights", tmp_path / "w.pt")
    assert "holds no state dict" in one_sentence(refusal, 2)


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"\x00" * 40)
    refusal = command("run", "fedavg", "--weights", tmp_path / "w.safetensors")
    assert "cannot be read as safetensors" in one_sentence(refusal, 2)


def test_random_and_a_file_contradict(tmp_path: Path) -> None:
    torch.save({"fc1.weight": torch.ones(8, 64)}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match="leave out one"):
        run(
            "fedavg",
            tmp_path / "r",
            model="mlp2(width=8)",
            weights=tmp_path / "w.pt",
            init="random",
        )


def test_the_command_says_what_it_kept(tmp_path: Path) -> None:
    torch.save(pair()[0].state_dict(), tmp_path / "e.pt")
    name = f"net_{abs(hash(tmp_path)) % 10**8}.py"
    (tmp_path / name).write_text(
        "import torch\nfrom torch import nn\n\n\ndef build(shape, classes):\n"
        "    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh())\n"
        f"    encoder.load_state_dict(torch.load({str(tmp_path / 'e.pt')!r}))\n"
        "    return encoder, nn.Linear(12, classes)\n"
    )
    out = succeed(
        "run", "fedavg", "--model", tmp_path / name, "--rounds", 1, "--out", tmp_path / "run"
    ).out
    assert "2 tensors (encoder.1.weight, encoder.1.bias) kept as in the model" in out
    assert "2 tensors (head.weight, head.bias) drawn" in out
