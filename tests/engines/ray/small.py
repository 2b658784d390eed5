"""Settings of a run of a few seconds, on data that are installed with Comity."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "data": "digits", "parties": 4, "rounds": 2, "model": "mlp2(width=16)", "partition": "dirichlet(alpha=0.5)|keep(samples=60)",
    "lr": 0.02,
}  # fmt: skip
