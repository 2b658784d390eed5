"""Names of models on pages and in tables."""

from __future__ import annotations

import pytest

from comity.names import display_model


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
