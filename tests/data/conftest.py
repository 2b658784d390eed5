"""One thread, one copy of the digits for all tests of data, and a check of refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from comity.data import Dataset, load
from comity.errors import UsageError

torch.set_num_threads(1)
settings.register_profile("comity", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("comity")

Refuses = Callable[..., AbstractContextManager[None]]


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load("digits")


def one_sentence(text: str) -> bool:
    """Whether a text is a single sentence on one line."""
    return (
        text.endswith(".")
        and "\n" not in text
        and not re.search(r"[.!?] +[A-Z]", text)
        and not text.endswith("..")
    )


@pytest.fixture
def refuses() -> Refuses:
    """`with refuses(path, words...)`: the body must be refused in one sentence with the file's name
    and these words.
    """

    @contextmanager
    def check(path: str | Path, *words: str) -> Iterator[None]:
        with pytest.raises(UsageError) as caught:
            yield
        text = str(caught.value)
        assert one_sentence(text), text
        for word in (Path(path).name, *words):
            assert word in text, text

    return check
