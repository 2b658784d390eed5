"""Names of models on pages and in tables, and how many names in the source say little."""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from pathlib import Path

import pytest

from comity.names import display_model

ROOT = Path(__file__).parents[1]


def test_few_names_are_participles_or_of_the_old_vocabulary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`made` or `told` do not say what a name holds. What is left are fields of records and files,
    whose names older folders have, too. Lower the limits where you rename some.
    """
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    counts = importlib.import_module("counts")
    names = Counter(
        name.strip("_")
        for path in (ROOT / "src" / "comity").rglob("*.py")
        for name in counts.bound_names(ast.parse(path.read_text(encoding="utf-8")))
    )
    assert sum(names[word] for word in counts.PARTICIPLES) <= 50
    assert sum(names[word] for word in counts.OLD_NAMES) <= 2


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("/home/me/thesis/tuned.py", "tuned.py"),
        ("/home/me/net.py(width=3)", "net.py(width=3)"),
        (
            "timm(name=resnet18,weights=/home/me/w.safetensors)",
            "timm(name=resnet18,weights=w.safetensors)",
        ),
        ("cnn4(width=64)", "cnn4(width=64)"),
        ("mlp2", "mlp2"),
    ],
)
def test_model_is_shown_without_the_folders_of_a_machine(model: str, shown: str) -> None:
    assert display_model(model) == shown
