"""Feature shifts: what they do to images, to which parties, and that they are deterministic."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from comity.base.key import Key
from comity.data import Dataset
from comity.data.shifts import KINDS, apply
from comity.errors import UsageError

KEY = Key.root(0)


def images(height: int = 6, width: int = 6, seed: int = 0) -> Tensor:
    return torch.from_numpy(
        np.random.default_rng(seed).random((5, 2, height, width), dtype=np.float32)
    )


@given(
    kind=st.sampled_from(sorted(KINDS)),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_shape_and_range_stay(kind: str, height: int, width: int, seed: int) -> None:
    x = images(height, width, seed)
    before = x.clone()
    shifted = apply(kind, x, KEY)
    assert shifted.shape == x.shape
    assert shifted.dtype == torch.float32
    assert shifted.min() >= 0
    assert shifted.max() <= 1
    assert torch.equal(x, before)  # nothing is changed in place


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"none"}))
def test_every_shift_changes_the_images(kind: str) -> None:
    assert (apply(kind, images(), KEY) - images()).abs().mean() > 0.1


def test_none_changes_nothing() -> None:
    assert torch.equal(apply("none", images(), KEY), images())


def test_invert_twice_is_identity() -> None:
    assert torch.equal(apply("invert", images(), KEY), 1 - images())
    torch.testing.assert_close(apply("invert|invert", images(), KEY), images())


@pytest.mark.parametrize(("width", "turns"), [(6, 4), (4, 2)])
def test_rotate_turns_and_comes_back(width: int, turns: int) -> None:
    x = images(6, width)
    assert torch.equal(apply("|".join(["rotate"] * turns), x, KEY), x)
    assert not torch.equal(apply("|".join(["rotate"] * (turns - 1)), x, KEY), x)


def test_rotate_is_a_quarter_turn() -> None:
    x = torch.tensor([[[[1.0, 0.5], [0.0, 0.25]]]])
    assert apply("rotate", x, KEY).tolist() == [[[[0.5, 0.25], [1.0, 0.0]]]]


def test_contrast_halves_and_more_around_grey() -> None:
    x = torch.tensor([[[[0.0, 0.5, 1.0]]]])
    torch.testing.assert_close(apply("contrast", x, KEY), torch.tensor([[[[0.3, 0.5, 0.7]]]]))


def test_blur_is_the_binomial_filter() -> None:
    x = torch.zeros(1, 1, 5, 5)
    x[0, 0, 2, 2] = 1
    expected = torch.tensor([1.0, 2, 1]).outer(torch.tensor([1.0, 2, 1])) / 16
    torch.testing.assert_close(apply("blur", x, KEY)[0, 0, 1:4, 1:4], expected)
    flat = torch.full((1, 1, 5, 5), 0.25)
    assert torch.equal(apply("blur", flat, KEY), flat)


def test_thick_and_thin_examples() -> None:
    """The largest, or smallest, of a pixel and its neighbours to the right, below, and below to the
    right.
    """
    x = torch.tensor(
        [
            [
                [
                    [0.0, 0.0, 0.0, 0.0],
                    [0.0, 0.8, 0.6, 0.0],
                    [0.0, 0.7, 0.5, 0.0],
                    [0.0, 0.0, 0.0, 0.25],
                ]
            ]
        ]
    )
    thicker = torch.tensor(
        [
            [
                [
                    [0.8, 0.8, 0.6, 0.0],
                    [0.8, 0.8, 0.6, 0.0],
                    [0.7, 0.7, 0.5, 0.25],
                    [0.0, 0.0, 0.25, 0.25],
                ]
            ]
        ]
    )
    thinner = torch.tensor(
        [
            [
                [
                    [0.0, 0.0, 0.0, 0.0],
                    [0.0, 0.5, 0.0, 0.0],
                    [0.0, 0.0, 0.0, 0.0],
                    [0.0, 0.0, 0.0, 0.25],
                ]
            ]
        ]
    )
    torch.testing.assert_close(apply("thick", x, KEY), thicker)
    torch.testing.assert_close(apply("thin", x, KEY), thinner)


def test_thick_and_thin_are_each_others_negatives() -> None:
    x = images()
    assert (apply("thin", x, KEY) <= x + 1e-6).all()
    assert (apply("thick", x, KEY) >= x).all()
    torch.testing.assert_close(apply("invert|thick|invert", x, KEY), apply("thin", x, KEY))
    for flat in (0.0, 0.25, 1.0):  # strokes of light on nothing: a plain picture stays
        same = torch.full((1, 1, 4, 4), flat)
        torch.testing.assert_close(apply("thin", same, KEY), same)
        torch.testing.assert_close(apply("thick", same, KEY), same)


def test_texture_is_a_soft_pattern_of_each_samples_own() -> None:
    dark, light = torch.zeros(200, 1, 8, 8), torch.ones(200, 1, 8, 8)
    pattern = apply("texture", dark, KEY)
    torch.testing.assert_close(
        apply("texture", light, KEY), 1 - pattern
    )  # the absolute difference, with one pattern
    half = torch.full((200, 1, 8, 8), 0.5)
    torch.testing.assert_close(apply("texture", half, KEY), (0.5 - pattern).abs())
    assert pattern.max() <= 0.7
    assert pattern.mean().item() == pytest.approx(0.35, abs=0.02)
    assert pattern.std() > 0.1
    first, second = pattern[:, :, 2:-2, 2:-3], pattern[:, :, 2:-2, 3:-2]
    neighbours = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]
    samples = torch.corrcoef(pattern[:40].flatten(1))
    assert neighbours > 0.6  # soft
    assert (samples - torch.eye(40)).abs().mean() < 0.3  # each its own
    assert torch.equal(pattern, apply("texture", dark, KEY))
    assert not torch.equal(pattern, apply("texture", dark, KEY.fold("other")))


def test_texture_of_images_with_channels_has_colours() -> None:
    pattern = apply("texture", torch.zeros(50, 3, 8, 8), KEY)
    assert not torch.equal(pattern[:, 0], pattern[:, 1])


def test_noise_has_its_size_and_belongs_to_its_key() -> None:
    x = torch.full((200, 1, 8, 8), 0.5)
    first = apply("noise", x, KEY)
    assert torch.equal(first, apply("noise", x, KEY))
    assert not torch.equal(first, apply("noise", x, KEY.fold("other")))
    inside = (first > 0) & (first < 1)
    assert inside.float().mean().item() == pytest.approx(0.904, abs=0.02)  # P(|z| < 0.5 / 0.3)
    assert (first.mean() - 0.5).abs() < 0.01
    doubled = (x + 2 * (first - x)).clamp(0, 1)
    assert (
        apply("noise|noise", x, KEY) - doubled
    ).abs().median() > 0.1  # the second step draws noise of its own


def test_parties_take_turns(digits: Dataset) -> None:
    fed = digits.partition("iid|shift(kinds=none,invert,rotate)", 5)
    assert [s.shift for s in fed.split.parties.values()] == [
        "none",
        "invert",
        "rotate",
        "none",
        "invert",
    ]
    for party, share in zip(fed.parties.values(), fed.split.parties.values(), strict=True):
        for samples, indices in ((party.train, share.train), (party.test, share.test)):
            raw = apply(share.shift or "none", digits.x[list(indices)], KEY)
            assert torch.equal(samples.x, (raw - 0.5) / 0.5)


def test_all_kinds_by_default_and_steps_chain(digits: Dataset) -> None:
    fed = digits.partition("iid|shift|shift(kinds=none,invert)", 7)
    assert [s.shift for s in fed.split.parties.values()] == [
        "none|none",
        "invert|invert",
        "rotate|none",
        "noise|invert",
        "contrast|none",
        "blur|invert",
        "none|none",
    ]
    assert fed.split.partition == "iid|shift|shift(kinds=none,invert)"


def test_default_kinds_of_shift_are_stable(digits: Dataset) -> None:
    """New kinds must be named, so that saved commands keep their meaning."""
    shifts = [s.shift for s in digits.partition("iid|shift", 9).split.parties.values()]
    assert shifts == [
        "none",
        "invert",
        "rotate",
        "noise",
        "contrast",
        "blur",
        "none",
        "invert",
        "rotate",
    ]
    new = digits.partition("iid|shift(kinds=thin,thick,texture)", 3)
    assert [s.shift for s in new.split.parties.values()] == ["thin", "thick", "texture"]


def test_partition_without_shift_has_none(digits: Dataset) -> None:
    assert all(s.shift is None for s in digits.partition("iid", 3).split.parties.values())


def test_noise_of_a_sample_does_not_depend_on_the_test_part(digits: Dataset) -> None:
    def values(test: str, validation: float) -> dict[int, Tensor]:
        fed = digits.partition("iid|shift(kinds=noise)", 3, 5, test, validation)
        return {
            index: x
            for party, share in zip(fed.parties.values(), fed.split.parties.values(), strict=True)
            for part in ("train", "validation", "test")
            for index, x in zip(getattr(share, part), getattr(party, part).x, strict=True)
        }

    first, second = values("own(0.25)", 0.1), values("own(0.6)", 0)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[i], second[i]) for i in first)


def test_parties_and_seeds_have_noise_of_their_own() -> None:
    data = Dataset("grey", torch.full((40, 1, 4, 4), 0.5), torch.arange(40) % 2, 2)
    feds = [
        data.partition("iid|shift(kinds=noise)", 2, seed, "matched(size=2)", 0) for seed in (0, 1)
    ]
    images = [image for fed in feds for party in fed.parties.values() for image in party.train.x]
    assert len({tuple(image.flatten().tolist()) for image in images}) == len(images) == 2 * 32


def test_matched_test_samples_are_shifted(digits: Dataset) -> None:
    fed = digits.partition("iid|shift(kinds=invert)", 2, test="matched(size=10)")
    raw = digits.x[list(fed.split.parties["p1"].test)]
    assert torch.equal(fed.parties["p1"].test.x, (1 - raw - 0.5) / 0.5)


@pytest.mark.parametrize("kind", ["rotate", "blur", "texture", "thick", "thin"])
def test_kinds_for_images_are_refused_for_tables(kind: str) -> None:
    with pytest.raises(
        UsageError,
        match=re.escape(
            f"The shift {kind} is for images, but a sample here has shape (4,); use"
            " kinds=none,invert,noise,contrast."
        ),
    ):
        table().partition(f"iid|shift(kinds={kind})", 4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("iid|shift(kinds=turn)", "There is no kind of shift 'turn'."),
        (
            "iid|shift(kinds=rotat,noise)",
            "There is no kind of shift 'rotat'. Did you mean 'rotate'?",
        ),
        ("iid|shfit", "There is no step after a partition called 'shfit'. Did you mean 'shift'?"),
        ("iid|", "is not of the form name"),
        (
            "iid|shift(kind=noise)",
            "There is no option of shift called 'kind'. Did you mean 'kinds'?",
        ),
        ("iid|shift(kinds=noise", "do not match"),
    ],
)
def test_refusals(digits: Dataset, spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        digits.partition(spec, 4)


def table(low: float = 0, high: float = 1) -> Dataset:
    return Dataset("table", torch.linspace(low, high, 160).reshape(40, 4), torch.arange(40) % 2, 2)


def test_tables_take_the_shifts_that_need_no_picture() -> None:
    fed = table().partition("iid|shift(kinds=none,invert,noise,contrast)", 4)
    assert fed.shape == (4,)
    with pytest.raises(
        UsageError,
        match=re.escape(
            "The shift rotate is for images, but a sample here has shape (4,); use"
            " kinds=none,invert,noise,contrast."
        ),
    ):
        table().partition("iid|shift", 4)


def test_values_beyond_one_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"The shift invert needs values from 0 to 1.*rescale the data"
    ):
        table(-3, 3).partition("iid|shift(kinds=invert)", 4)
