"""Colours of methods: readers with and without colour vision can tell them apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from comity.charts.themes import DARK, LIGHT, Theme

METHODS = ["@grey", *(f"@c{k}" for k in range(8))]
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
"""How linear RGB is seen, after Machado, Oliveira and Fernandes (2009)."""
DIFFERENT = 15
"""The least distance in CIELAB; 2.3 is just noticeable side by side."""


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def cielab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_methods_have_different_colours(theme: Theme, vision: str) -> None:
    seen = {name: cielab(VISION[vision] @ linear(theme[name])) for name in METHODS}
    for one, other in itertools.combinations(METHODS, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > DIFFERENT, (one, other)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_methods_stand_out_from_the_page(theme: Theme) -> None:
    def luminance(colour: str) -> float:
        return float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour))

    for name in METHODS:
        darker, lighter = sorted((luminance(theme[name]), luminance(theme["@page"])))
        assert (lighter + 0.05) / (darker + 0.05) >= 3, name
