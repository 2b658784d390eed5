"""Pages for a browser to open. Without COMITY_BROWSER=1 (`make test-browser` sets it) these tests are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HERE = Path(__file__).parent
SMALL: dict[str, Any] = {
    "partition": "dirichlet(alpha=0.5)|keep(samples=60)", "parties": 3, "rounds": 3, "model": "mlp2(width=8)", "engine": "loop",
}  # fmt: skip
HELPS = """method,seed,left_out,party,effect,low,high
fedavg,0,p0,p1,0.10,0.02,0.18
fedavg,0,p1,p0,-0.12,-0.2,0.0
fedavg,0,p2,p0,0.05,0,0.1
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("COMITY_BROWSER") != "1":
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs a browser: make test-browser"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    from browser import browser

    with browser() as started:
        yield started


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run; five methods under three seeds; a run that stopped half way; two groups."""
    from comity import run
    from comity.experiments.build import Quiet
    from comity.experiments.config import experiment
    from comity.report import report
    from comity.studies.compare import compare

    root = tmp_path_factory.mktemp("pages")
    run("fedavg", out=root / "one", **SMALL)
    methods = ["fedavg", "fedavg+dbe", "fed-sps", "adcol"]
    compare(experiment(SMALL), methods, [0, 1, 2], root / "five", lambda _: Quiet(), lambda _: None)
    (root / "five" / "leave-one-out.csv").write_text(HELPS, encoding="utf-8")
    half = Path(shutil.copytree(root / "one", root / "half"))
    (half / "summary.json").unlink()
    for name in ("metrics.csv", "ledger.csv", "timing.csv"):
        whole = (half / name).read_bytes()
        (half / name).write_bytes(whole[: 2 * len(whole) // 3])
    for name in ("a", "b"):
        shutil.copytree(root / "five", root / "groups" / name, ignore=shutil.ignore_patterns("adcol", "fed-sps", "*dbe"))
    return {name: report(root / name, quick=name == "groups") for name in ("one", "five", "half", "groups")}
