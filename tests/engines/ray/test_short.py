"""One run on Ray equals the same run on the loop engine: the short test of Ray in `make test`,
where Ray is installed.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from small import SMALL

import comity


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install comity[ray]")
def test_ray_equals_loop(tmp_path: Path) -> None:
    loop = comity.run("scaffold", out=tmp_path / "loop", engine="loop", **SMALL)
    ray = comity.run("scaffold", out=tmp_path / "ray", engine="ray", workers=1, **SMALL)
    for name in ("metrics.csv", "ledger.csv", "outcomes.csv"):
        assert (ray.folder / name).read_bytes() == (loop.folder / name).read_bytes()
