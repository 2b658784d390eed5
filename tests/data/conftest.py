"""One thread, and one copy of the digits for the whole folder."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from comity.data import Dataset, load

torch.set_num_threads(1)
settings.register_profile("comity", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("comity")


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load("digits")
