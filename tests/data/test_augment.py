"""Random augmentations of training images: each does what it says, depends on keys only, and
changes nothing but training samples.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sweeps import over_methods
from torch import Tensor
from torch.nn.functional import pad

import comity
from comity.base.key import Key
from comity.base.samples import Samples
from comity.data import Dataset, Federation
from comity.data.augment import Augment
from comity.errors import UsageError
from comity.runs.server_run import Quiet
from comity.training.settings import Training, batches

KEY = Key.root(0)
TABLES = ("metrics.csv", "ledger.csv", "outcomes.csv")


def augment(
    text: str, black: tuple[float, ...] = (0.0,), shape: tuple[int, ...] = (1, 4, 4)
) -> Augment:
    augmentation = Augment.read(text, black, shape)
    assert augmentation is not None
    return augmentation


def images(
    n: int = 12, channels: int = 2, height: int = 4, width: int = 5, seed: int = 0
) -> Tensor:
    """Images whose pixels are all different, not zero, and exact in 32 bits after any sum."""
    values = np.random.default_rng(seed).permutation(n * channels * height * width) + 1
    return torch.from_numpy(values.reshape(n, channels, height, width)).float()


def chance(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Make every uniform draw return this value."""
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.full((n,), value))


# --- flip


def test_flip_mirrors_whole_images() -> None:
    x = images(200)
    changed = augment("flip")(x, KEY)
    turned = (changed == x.flip(-1)).flatten(1).all(1)
    stayed = (changed == x).flatten(1).all(1)
    assert (turned ^ stayed).all()  # each image one of the two, all its channels alike
    assert 70 < int(turned.sum()) < 130


def test_flip_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]])
    chance(monkeypatch, 0.49)
    assert augment("flip")(x, KEY).tolist() == [[[[3, 2, 1], [6, 5, 4]]]]
    chance(monkeypatch, 0.5)
    assert augment("flip")(x, KEY).tolist() == x.tolist()


# --- crop


def moves(x: Tensor, changed: Tensor, by: int, black: float = 0.0) -> list[tuple[int, int]]:
    """How far each image was moved down and right, found by comparing windows of the padded image."""
    height, width = x.shape[-2:]
    offsets = []
    for before, after in zip(x, changed, strict=True):
        wide = pad(before, (by,) * 4, value=black)
        at = [
            (by - i, by - j)
            for i in range(2 * by + 1)
            for j in range(2 * by + 1)
            if torch.equal(wide[:, i : i + height, j : j + width], after)
        ]
        assert len(at) == 1
        offsets += at
    return offsets


@pytest.mark.parametrize("by", [1, 2, 3])
def test_crop_moves_whole_images_up_to_pad_pixels(by: int) -> None:
    x = images(400)
    offsets = moves(x, augment(f"crop(pad={by})")(x, KEY), by)
    all_offsets = {(i, j) for i in range(-by, by + 1) for j in range(-by, by + 1)}
    assert set(offsets) == all_offsets  # all moves occur, none is larger
    assert max(offsets.count(move) for move in all_offsets) < 4 * 400 / len(all_offsets)


def test_crop_pads_four_by_default() -> None:
    x = images(300, height=2, width=2)
    changed = augment("crop")(x, KEY)
    is_black = (changed == 0).flatten(1).all(1)
    assert float(is_black.float().mean()) == pytest.approx(
        1 - (3 / 9) ** 2, abs=0.1
    )  # moved by 2 or more, one way or the other
    assert augment("crop").changes == augment("crop(pad=4)").changes == augment("crop(4)").changes


def test_crop_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]]).repeat(2, 1, 1, 1)
    monkeypatch.setattr(
        torch, "randint", lambda *_, **__: torch.tensor([[[0], [2]], [[2], [1]]])
    )  # rows, then columns
    assert augment("crop(pad=1)")(x, KEY).tolist() == [
        [[[0, 0], [2, 0]], [[0, 0], [6, 0]]],  # down by one and left by one
        [[[3, 4], [0, 0]], [[7, 8], [0, 0]]],  # up by one
    ]


# --- rotate


@pytest.mark.parametrize(("uniform", "turns"), [(1.0, 1), (0.0, -1), (0.5, 0)])
def test_rotate_by_a_quarter_each_way(
    uniform: float, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = images(3, height=5, width=5) / 1000
    chance(monkeypatch, uniform)
    torch.testing.assert_close(
        augment("rotate(degrees=90)")(x, KEY), torch.rot90(x, turns, (-2, -1)), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(("height", "width"), [(3, 5), (6, 4), (4, 4)])
def test_rotation_of_images_that_are_not_square(
    height: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter turn of an image that is not square equals that of a black square around it,
    cropped to the middle.
    """
    x = images(3, height=height, width=width) / 1000
    side = max(height, width)
    margin_top, margin_left = (side - height) // 2, (side - width) // 2
    square = pad(
        x, (margin_left, side - width - margin_left, margin_top, side - height - margin_top)
    )
    expected = torch.rot90(square, 1, (-2, -1))[
        ..., margin_top : margin_top + height, margin_left : margin_left + width
    ]
    chance(monkeypatch, 1.0)
    torch.testing.assert_close(augment("rotate(degrees=90)")(x, KEY), expected, rtol=0, atol=1e-5)
    chance(monkeypatch, 1.0)
    torch.testing.assert_close(
        augment("rotate(degrees=180)")(x, KEY), x.flip(-1, -2), rtol=0, atol=1e-5
    )


def test_rotate_is_bilinear(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eighth of a turn: pixels beside the middle are interpolated between their neighbours."""
    x = torch.zeros(1, 1, 3, 3)
    x[0, 0, 0, 2] = 1.0  # the corner, at (1, 1) from the middle
    chance(monkeypatch, 1.0)
    turned = augment("rotate(degrees=45)")(x, KEY)[0, 0]
    near = math.sqrt(
        0.5
    )  # what was at (√½, √½) is now at (0, 1) or (1, 0): √½ of the way to the corner, both ways
    assert turned[0, 1].item() == pytest.approx(near * near, abs=1e-5)
    assert turned[1, 1].item() == pytest.approx(0, abs=1e-6)
    assert turned[1, 2].item() == pytest.approx(0, abs=1e-5)


def test_rotate_draws_angles_up_to_its_degrees() -> None:
    """A pixel far from the middle shows the angle of each image."""
    x = torch.zeros(300, 1, 41, 41)
    x[:, :, 19:22, 38:41] = 1.0
    changed = augment("rotate(degrees=30)")(x, KEY)[:, 0]
    rows, columns = torch.meshgrid(torch.arange(41.0) - 20, torch.arange(41.0) - 20, indexing="ij")
    angles = torch.rad2deg(
        torch.atan2((changed * -rows).sum((1, 2)), (changed * columns).sum((1, 2)))
    )
    assert angles.abs().max() < 30.5
    assert angles.max() > 27
    assert angles.min() < -27
    assert abs(float(angles.mean())) < 3
    assert augment("rotate").changes == augment("rotate(degrees=10)").changes


# --- black


def test_border_is_the_normalised_zero() -> None:
    """White images with known mean and deviation per channel: pixels from outside are (0 - mean) /
    std.
    """
    data = Dataset(
        "white",
        torch.ones(40, 2, 16, 16),
        torch.arange(40) % 2,
        2,
        mean=(0.25, 0.5),
        std=(0.5, 2.0),
    )
    fed = data.partition("iid", 2)
    assert fed.preprocess.black == (-0.5, -0.25)
    x = fed.parties["p0"].train.x
    assert x[0, :, 0, 0].tolist() == [1.5, 0.25]
    for text in ("crop(pad=2)", "rotate(degrees=45)", "crop(pad=2)|rotate(degrees=45)|flip"):
        changed = augment(text, fed.preprocess.black, fed.shape)(x, KEY)
        for channel, (black, white) in enumerate(((-0.5, 1.5), (-0.25, 0.25))):
            values = changed[:, channel]
            assert values.min().item() == pytest.approx(black, abs=1e-6)
            assert values.max().item() == pytest.approx(white, abs=1e-6)
            assert (values - black).abs().lt(1e-6).float().mean() > 0.02


@pytest.mark.parametrize(
    ("mean", "std", "black"),
    [
        ((0.5,), (0.5,), (-1.0,)),
        ((0.2,), (0.1, 0.4), (-2.0, -0.5)),
        ((0.2, 0.4), (0.1,), (-2.0, -4.0)),
        ((0.0,), (1.0,), (0.0,)),
    ],
)
def test_constants_of_one_or_two_channels(
    mean: tuple[float, ...], std: tuple[float, ...], black: tuple[float, ...]
) -> None:
    data = Dataset("two", torch.zeros(40, 2, 4, 4), torch.arange(40) % 2, 2, mean=mean, std=std)
    fed = data.partition("iid", 2)
    assert fed.preprocess.black == pytest.approx(black)
    x = fed.parties["p0"].train.x  # all pixels are black, and so are those from outside
    torch.testing.assert_close(augment("crop|rotate", fed.preprocess.black, fed.shape)(x, KEY), x)


def test_arrays_have_black_at_zero() -> None:
    assert Federation.from_arrays(
        {"north": (torch.zeros(9, 1, 4, 4), [0, 1, 2] * 3)}
    ).preprocess.black == (0.0,)


# --- keys


@pytest.mark.parametrize(
    "text", ["flip", "crop(pad=2)", "rotate", "flip|crop(pad=1)|rotate(degrees=20)"]
)
def test_augmentation_depends_on_the_key_only(text: str) -> None:
    change, x = augment(text), images(20)
    before = x.clone()
    assert torch.equal(change(x, KEY), change(x, KEY))
    assert not torch.equal(change(x, KEY), change(x, KEY.fold("other")))
    assert torch.equal(x, before)  # nothing in place


def test_each_change_draws_for_itself() -> None:
    """With equal draws the second flip would undo the first."""
    x = images(100)
    turned = (augment("flip|flip")(x, KEY) == x.flip(-1)).flatten(1).all(1)
    assert 25 < int(turned.sum()) < 75


def test_draws_do_not_drift() -> None:
    """A seed gives the same images in later versions."""
    x = images(8, height=3, width=3)
    turned = (augment("flip")(x, KEY) != x).flatten(1).any(1)
    assert turned.int().tolist() == [1, 0, 0, 0, 1, 0, 1, 1]
    assert moves(x, augment("crop(pad=1)")(x, KEY), 1) == [
        (1, 0),
        (-1, 1),
        (1, -1),
        (1, 1),
        (-1, -1),
        (1, 0),
        (1, -1),
        (-1, -1),
    ]


def stream(text: str, **how: Any) -> list[Any]:
    data = Samples(images(23), torch.arange(23) % 3)
    change = None if text == "none" else augment(text)
    return list(batches(data, KEY, Training(batch=5, augment=change, **how)))


def test_every_epoch_augments_the_same_samples_differently() -> None:
    plain, changed = stream("none", epochs=2), stream("crop(pad=2)", epochs=2)
    assert [b.number for b in changed] == list(range(10))
    batches_by_epoch: list[dict[int, Tensor]] = [{}, {}]
    for original, augmented in zip(plain, changed, strict=True):
        assert torch.equal(
            original.indices, augmented.indices
        )  # the same batches in the same order
        assert torch.equal(original.y, augmented.y)
        moves(original.x, augmented.x, 2)  # each image is a crop of the same sample
        batches_by_epoch[augmented.number // 5] |= dict(
            zip(augmented.indices.tolist(), augmented.x, strict=True)
        )
    first, second = batches_by_epoch
    assert first.keys() == second.keys() == set(range(23))
    assert sum(torch.equal(first[i], second[i]) for i in first) < 6  # 1 in 25 moves alike
    offsets_by_epoch = [
        moves(original.x, augmented.x, 2)
        for original, augmented in zip(plain, changed, strict=True)
    ]
    assert (
        len({tuple(epoch_offsets[:3]) for epoch_offsets in offsets_by_epoch}) == 10
    )  # each batch of each epoch has its own draws


def test_a_number_of_steps_instead_of_epochs() -> None:
    by_steps, by_epochs = stream("flip|crop(pad=1)", steps=8), stream("flip|crop(pad=1)", epochs=2)
    assert len(by_steps) == 8
    assert all(torch.equal(a.x, b.x) for a, b in zip(by_steps, by_epochs, strict=False))


@given(st.integers(0, 1000))
def test_data_without_images_are_not_changed(seed: int) -> None:
    """Representations, signals and tables."""
    change, key = augment("flip|crop(pad=1)|rotate", (0.5,)), Key.root(seed)
    for x in (images(6).flatten(1), images(6)[:, 0]):
        assert change(x, key) is x
    data = Samples(images(23).flatten(1), torch.arange(23))
    first, second = (list(batches(data, key, Training(batch=5, augment=a))) for a in (None, change))
    assert all(torch.equal(a.x, b.x) for a, b in zip(first, second, strict=True))


# --- in a run


@pytest.fixture(scope="module", name="fed")
def small(digits: Dataset) -> Federation:
    return digits.partition("dirichlet(alpha=1)|keep(samples=60)", 4, seed=1)


def run(text: str, fed: Federation, out: Path, **settings: Any) -> comity.Result:
    usual: dict[str, Any] = {
        "model": "fedbn-cnn(scale=0.06)",
        "rounds": 2,
        "lr": 0.05,
        "engine": "loop",
    }
    return comity.run(text, fed, out=out, **(usual | settings))


def tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in TABLES]


def same_weights(first: comity.Result, second: comity.Result) -> bool:
    all_offsets = [
        (first.model(name).theta, second.model(name).theta) for name in first.job.info.names
    ]
    return all(torch.equal(a[k], b[k]) for a, b in all_offsets for k in a)


ALL = "flip|crop(pad=2)|rotate(degrees=15)"


@pytest.mark.filterwarnings("ignore:adcol is meant for")
@pytest.mark.parametrize("text", over_methods(["fedavg", "feduad", "adcol", "fedrep"]))
def test_engines_have_the_same_augmented_images(text: str, fed: Federation, tmp_path: Path) -> None:
    """Also for methods that train a part on representations (feduad, adcol)."""
    loop = run(text, fed, tmp_path / "loop", augment=ALL)
    process = run(text, fed, tmp_path / "process", augment=ALL, engine="process", workers=2)
    assert tables(tmp_path / "loop") == tables(tmp_path / "process")
    assert same_weights(loop, process)
    assert not same_weights(loop, run(text, fed, tmp_path / "none"))


def test_augment_none_changes_nothing(fed: Federation, tmp_path: Path) -> None:
    first, second = (
        run("fedavg", fed, tmp_path / "a"),
        run("fedavg", fed, tmp_path / "b", augment="none"),
    )
    assert tables(tmp_path / "a") == tables(tmp_path / "b")
    assert same_weights(first, second)
    assert all(p.training.augment is None for p in first.job.parties)


def test_step_of_solo_uses_images_of_its_key(fed: Federation, tmp_path: Path) -> None:
    """One step equals the gradient at the first batch, augmented by the batch's key."""
    result = run("solo", fed, tmp_path, model="linear", rounds=1, steps=1, augment=ALL)
    party = result.job.parties[2]
    key = result.job.root.fold("party", 2, 1, "local", 0)
    order = key.fold("order", 0).permutation(len(party.data.train))[:10]
    x = augment(ALL, fed.preprocess.black, fed.shape)(
        party.data.train.x[order], key.fold("augment", 0)
    )
    theta = {
        k: v.clone().requires_grad_()
        for k, v in party.task.init(result.job.root.fold("init")).items()
    }
    loss = torch.nn.functional.cross_entropy(party.task.logits(theta, x), party.data.train.y[order])
    for name, gradient in zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True):
        torch.testing.assert_close(
            result.model(party.name).theta[name], theta[name].detach() - 0.05 * gradient
        )


def test_test_images_are_not_augmented(fed: Federation, tmp_path: Path) -> None:
    plain, augmented = (
        run("fedavg", fed, tmp_path / "a"),
        run("fedavg", fed, tmp_path / "b", augment=ALL),
    )
    first, second = ([m for m in r.metrics if m.round == 0] for r in (plain, augmented))
    assert first == second  # before the first step nothing differs
    for name in fed.names:
        test = fed.parties[name].test
        right = (augmented.model(name).predict(test) == test.y).float().mean().item()
        assert augmented.summary["accuracy"]["per_party"][name] == pytest.approx(right)


def test_resumed_run_has_the_same_augmentation(
    fed: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    straight = run("fedavg", fed, tmp_path / "straight", augment=ALL, rounds=4)

    class Stop(Quiet):
        def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
            if t == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("fedavg", fed, tmp_path / "stopped", augment=ALL, rounds=4, progress=Stop())
    resumed_run = run("fedavg", fed, tmp_path / "stopped", augment=ALL, rounds=4, resume=True)
    assert tables(tmp_path / "straight") == tables(tmp_path / "stopped")
    assert same_weights(straight, resumed_run)
    assert f'augment = "{ALL}"' in (tmp_path / "stopped" / "config.toml").read_text()
    with pytest.raises(UsageError, match="other settings"):
        run("fedavg", fed, tmp_path / "stopped", augment="flip", rounds=4, resume=True)


def test_training_of_newcomers_is_augmented(fed: Federation, tmp_path: Path) -> None:
    late = {"newcomers": 1, "join_epochs": 2}
    first, second = (
        run("fedavg", fed, tmp_path / "a", **late),
        run("fedavg", fed, tmp_path / "b", augment="crop(pad=3)", **late),
    )
    assert all(p.training.augment is not None for p in second.job.parties)
    alone = [
        [m.value for m in r.metrics if m.split == "test-alone" and m.metric == "loss"]
        for r in (first, second)
    ]
    assert alone[0] != alone[1]


# --- refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flop", "There is no augmentation 'flop'. Did you mean 'flip'?"),
        ("", "'' is not of the form name or name(option=value,...)."),
        ("flip|", "'' is not of the form name or name(option=value,...)."),
        ("flip(2)", "flip takes at most 0 values, but 1 were given."),
        ("crop(pad=0)", "pad of crop must be at least 1, not 0."),
        ("crop(pad=-2)", "pad of crop must be at least 1, not -2."),
        ("crop(pad=1.5)", "pad of crop must be a whole number, not '1.5'."),
        ("crop(by=2)", "There is no option of crop called 'by'."),
        ("rotate(degrees=0)", "degrees of rotate must be more than 0 and at most 180, not 0.0."),
        (
            "rotate(degrees=181)",
            "degrees of rotate must be more than 0 and at most 180, not 181.0.",
        ),
        ("rotate(degrees=nan)", "degrees of rotate must be more than 0 and at most 180, not nan."),
        ("rotate(degrees=some)", "degrees of rotate must be a number, not 'some'."),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Augment.read(text, (0.0,), (1, 4, 4))


@pytest.mark.parametrize("shape", [(4,), (9, 128)])
def test_augment_is_refused_without_images(shape: tuple[int, ...]) -> None:
    data = Dataset("flat", torch.rand(40, *shape), torch.arange(40) % 2, 2)
    fed = data.partition("iid", 2)
    message = f"augment is for images, but a sample here has shape {shape}; use augment=none."
    with pytest.raises(UsageError, match=re.escape(message)):
        comity.run("fedavg", fed, model="linear", rounds=1, augment="flip")
    assert Augment.read("none", fed.preprocess.black, fed.shape) is None


# --- regressions


def test_centralized_training_is_augmented(fed: Federation, tmp_path: Path) -> None:
    first, second = (
        run("centralized", fed, tmp_path / "a"),
        run("centralized", fed, tmp_path / "b", augment=ALL),
    )
    assert not same_weights(first, second)


def test_none_is_not_suggested_for_none() -> None:
    with pytest.raises(UsageError) as caught:
        Augment.read("none|flip", (0.0,), (1, 4, 4))
    assert "Did you mean 'none'" not in str(caught.value)
