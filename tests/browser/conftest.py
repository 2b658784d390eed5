"""Pages for a browser to open. Without COMITY_BROWSER=1 (`make test-browser` sets it) these tests
are skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from browser import Open, OpenPage

HERE = Path(__file__).parent
SMALL: dict[str, Any] = {
    "partition": "dirichlet(alpha=0.5)|keep(samples=60)", "parties": 3, "rounds": 3, "model": "mlp2(width=8)", "engine": "loop",
}  # fmt: skip
DAYS = """
import numpy as np, torch
from comity.data import Dataset
from comity.data.groups import Groups

def load():
    rng = np.random.default_rng(0)
    site = np.arange(150) % 3
    x = rng.normal(size=(150, 4)) + site[:, None]
    y = 10 + 5 * site + x @ np.array([2.0, 1.0, 0.0, -1.0])
    return Dataset("days", torch.tensor(x), torch.tensor(y), 0, groups={"ward": Groups(("east", "north", "west"), site)},
                   default_partition="natural(by=ward)", scale="own", scaled=(0, 1, 2, 3))
"""
PRIVATE: dict[str, Any] = {
    "partition": "iid|keep(samples=60)", "parties": 3, "rounds": 2, "model": "mlp2(width=8)", "engine": "loop", "seed": 0,
}  # fmt: skip
PAPER_TABLE = """column,row,algorithm,paper,paper_std,measured,measured_std,seeds,note
digits,FedAvg,fedavg,81.20,0.40,80.10,0.90,0.801 0.792,
digits,Ditto,ditto,82.00,,,,,not run
"""
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

    with browser() as instance:
        yield instance


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run; five methods with three seeds; an unfinished run; two settings; hospitals
    by AUC with three seeds; parties with different feature shifts; a regression.
    """
    from browser import KINDS
    from comity import run
    from comity.reporting import report
    from comity.reporting.sections import space
    from comity.runs.config import experiment
    from comity.runs.server_run import Quiet
    from comity.studies.compare import compare

    root = tmp_path_factory.mktemp("pages")

    def compare_methods(name: str, methods: list[str], seeds: list[int], **settings: Any) -> None:
        compare(
            experiment(SMALL | settings),
            methods,
            seeds,
            root / name,
            lambda _: Quiet(),
            lambda _: None,
        )

    run("fedavg", out=root / "one", **SMALL)
    compare_methods("five", ["fedavg", "fedavg+dbe", "fed-sps", "adcol"], [0, 1, 2])
    (root / "five" / "leave-one-out.csv").write_text(HELPS, encoding="utf-8")
    half = Path(shutil.copytree(root / "one", root / "half"))
    (half / "summary.json").unlink()
    for name in ("metrics.csv", "ledger.csv", "timing.csv"):
        whole = (half / name).read_bytes()
        (half / name).write_bytes(whole[: 2 * len(whole) // 3])
    for name, without in (("a", ("adcol", "fed-sps")), ("b", ("fedavg", "fedavg*"))):
        shutil.copytree(
            root / "five", root / "groups" / name, ignore=shutil.ignore_patterns(*without)
        )
    compare_methods(
        "heart",
        ["fedavg", "fedprox"],
        [0, 1, 2],
        data="heart",
        partition="auto",
        parties=4,
        metric="auc",
        model="linear",
    )
    shift = "iid|shift(kinds=none,invert,rotate,noise,contrast,blur)|keep(samples=60)"
    compare_methods("sensors", ["fedavg"], [0], partition=shift, parties=6)
    (root / "days.py").write_text(DAYS, encoding="utf-8")
    compare_methods(
        "amounts", ["fedavg"], [0], data=str(root / "days.py"), partition="auto", lr=0.02
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space, "SAMPLES", 120)  # points to hover over
        return {name: report(root / name, quick=name == "groups") for name in KINDS}


@pytest.fixture(scope="session")
def privacy_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A comparison of methods with and without noise, with its three kinds of pages."""
    import comity
    from browser import PRIVATE_METHODS

    root = tmp_path_factory.mktemp("private") / "methods"
    with pytest.warns(UserWarning, match=r"nothing is guaranteed|no BatchNorm|trusted|Models are"):
        comity.compare(list(PRIVATE_METHODS), out=root, record_messages=True, **PRIVATE)
    comity.audit(root)
    paths = {"report": comity.report(root), "audit": root / "audit.html"}
    for method in PRIVATE_METHODS:
        text, sheets = comity.disclose(next((root / method).iterdir()), "p0")
        assert sheets.stat().st_size > 1000
        paths[method] = text
    return paths


@pytest.fixture(scope="session")
def other_pages(
    tmp_path_factory: pytest.TempPathFactory, pages: dict[str, Path]
) -> dict[str, Path]:
    """Pages of other commands: advice, a tuning, a reproduction, a profile of columns."""
    import comity
    from comity.reporting.advice_page import write_advice_page

    root = tmp_path_factory.mktemp("other-pages")
    brief = SMALL | {"partition": "dirichlet(alpha=0.5)", "rounds": 2}
    advice = comity.advise(methods=["fedavg", "fedprox"], folds=3, out=root / "advice", **brief)
    comity.tune("fedprox", grid={"mu": [0.1, 1.0], "lr": [0.05]}, out=root / "tune", **brief)
    shutil.copytree(pages["one"].parent, root / "paper")
    (root / "paper" / "table.csv").write_text(PAPER_TABLE, encoding="utf-8")
    comity.profile(comity.load("heart"), out=root / "profile")
    return {
        "advice": write_advice_page(advice),
        "tune": comity.report(root / "tune"),
        "paper": comity.report(root / "paper"),
        "profile": root / "profile" / "profile.html",
    }


@pytest.fixture
def look(chromium: Browser, pages: dict[str, Path]) -> Open:
    """`with look("one", 400, "dark") as it`: the page with all its charts drawn; it must make no
    requests and print nothing on the console.
    """
    from browser import open_page

    @contextmanager
    def open_kind(
        kind: str, width: int = 1440, scheme: str = "light", **more: Any
    ) -> Iterator[OpenPage]:
        with open_page(chromium, pages[kind], width, scheme, **more) as it:
            it.draw()
            yield it
            assert not it.requests
            assert not it.console

    return open_kind
