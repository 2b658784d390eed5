"""The embedded digits equal those of scikit-learn."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import numpy as np
import pytest
from sklearn.datasets import load_digits

from comity.data.sets import embedded


def test_embedded_file_equals_scikit_learn() -> None:
    pixels, labels = load_digits(return_X_y=True)
    ours, theirs = embedded._read_digits()
    assert ours.dtype == pixels.dtype
    assert theirs.dtype == labels.dtype
    assert np.array_equal(ours, pixels)
    assert np.array_equal(theirs, labels)


@pytest.mark.parametrize(
    "spec", [None, ModuleSpec("sklearn", None, origin="/nowhere/sklearn/__init__.py")]
)
def test_without_the_file_scikit_learn_is_used(
    spec: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = embedded._read_digits()
    monkeypatch.setattr(embedded, "find_spec", lambda name: spec)
    for a, b in zip(before, embedded._read_digits(), strict=True):
        assert np.array_equal(a, b)
