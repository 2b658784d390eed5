"""What every bad file must come to: one plain sentence that names it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from comity.errors import Refusal

Refuses = Callable[..., AbstractContextManager[None]]


def one_sentence(text: str) -> bool:
    """Whether a text is one line that ends in a full stop and has no other sentence in it."""
    return text.endswith(".") and "\n" not in text and not re.search(r"[.!?] +[A-Z]", text) and not text.endswith("..")


@pytest.fixture
def refuses() -> Refuses:
    """`with refuses(path, words...)`: what is inside must be refused in one sentence with the file's name and these words."""

    @contextmanager
    def check(path: str | Path, *words: str) -> Iterator[None]:
        with pytest.raises(Refusal) as told:
            yield
        text = str(told.value)
        assert one_sentence(text), text
        for word in (Path(path).name, *words):
            assert word in text, text

    return check
