"""One thread everywhere, and every algorithm there is wherever a test asks for `text`."""

from __future__ import annotations

import pytest
import torch
from matrix import GOSSIP, compositions, short

torch.set_num_threads(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "text" in metafunc.fixturenames and not any(
        "text" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")
    ):
        metafunc.parametrize("text", [*compositions(), GOSSIP], ids=short)
