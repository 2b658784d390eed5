"""One thread everywhere. A test that has an argument `text` runs for every method: those of FEW in
`make test`, all others are marked long.
"""

from __future__ import annotations

import pytest
import torch
from matrix import GOSSIP, compositions, short
from sweeps import over_methods

torch.set_num_threads(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "text" in metafunc.fixturenames and not any(
        "text" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")
    ):
        metafunc.parametrize("text", over_methods([*compositions(), GOSSIP]), ids=short)
