"""An unexpected exception as one sentence that names the lines to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

import comity

METHOD = '''"""Peeking: FedAvg that asks for features of what is no set of samples.

Idea: an example of a mistake.
"""

from __future__ import annotations

from comity.algorithms.fedavg import FedAvg
from comity.components.classwise import features_of
from comity.core import *


@algorithm
class Peeking(FedAvg):
    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        {line}
        return theta
'''


def failure(folder: Path, line: str) -> str:
    file = folder / "peeking.py"
    file.write_text(METHOD.format(line=line), encoding="utf-8")
    with pytest.raises(comity.ComityError) as raised:
        comity.run(
            str(file),
            data="digits",
            parties=2,
            rounds=1,
            model="linear",
            engine="process",
            workers=1,
        )
    return str(raised.value)


def test_a_mistake_that_a_called_function_finds_names_the_line_of_the_method(
    tmp_path: Path,
) -> None:
    words = failure(tmp_path, "features_of(party.task, theta, party.data.train.x)")
    assert words.startswith("AttributeError in features_of (classwise.py:")
    assert ", called from train_locally (peeking.py:16): 'Tensor' object" in words


def test_a_mistake_of_the_method_itself_is_named_once(tmp_path: Path) -> None:
    words = failure(tmp_path, "1 / 0")
    assert words.startswith("ZeroDivisionError in train_locally (peeking.py:16): ")
    assert "called from" not in words
