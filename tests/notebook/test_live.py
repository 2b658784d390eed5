"""Who watches from Python: in a notebook's kernel a line that follows the runs and goes, elsewhere
nobody unless asked.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import comity
from comity.notebook import live


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that a kernel would show, picture by picture."""
    pictures: list[Any] = []

    def display(what: Any, display_id: bool) -> Any:
        assert display_id
        pictures.append(what)
        return SimpleNamespace(update=pictures.append)

    kernel, drawing = ModuleType("IPython"), ModuleType("IPython.display")
    vars(kernel)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    vars(drawing)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", drawing)
    monkeypatch.setattr(live, "INTERVAL", 0.0)
    return pictures


@pytest.fixture(scope="module")
def fed() -> comity.Federation:
    return comity.load("digits").partition("iid|keep(samples=30)", parties=2, seed=0)


def test_a_line_follows_a_run_and_goes(shown: list[Any], fed: comity.Federation) -> None:
    comity.run("fedavg", fed, rounds=3, model="linear")
    told = [repr(picture) for picture in shown]
    for t in (1, 2, 3):
        assert any(f"fedavg: round {t}/3, accuracy " in one for one in told)
    assert '<progress value="3" max="3">' in shown[-2]._repr_html_()
    assert told[-1] == ""
    assert "<progress" not in shown[-1]._repr_html_()


def test_one_line_for_all_runs_of_a_comparison(shown: list[Any], fed: comity.Federation) -> None:
    comity.compare(["fedavg"], fed, rounds=1, model="linear", seeds=(0, 1))
    told = " ".join(map(repr, shown))
    for run in ("1/4 solo seed 0", "2/4 fedavg seed 0", "3/4 solo seed 1", "4/4 fedavg seed 1"):
        assert run in told
    assert repr(shown[-1]) == ""


def test_a_line_goes_when_a_run_fails(shown: list[Any], fed: comity.Federation) -> None:
    def picky(truth: Any, answer: Any) -> Any:
        return (
            0.5
            if (truth == answer).all() or (truth == answer[::-1]).all() or not answer.any()
            else float("nan")
        )

    with pytest.raises(comity.ComityError):
        comity.run("fedavg", fed, rounds=1, model="linear", metric=picky)
    assert repr(shown[-1]) == ""


def test_not_if_it_is_not_wanted(shown: list[Any], fed: comity.Federation) -> None:
    comity.run("fedavg", fed, rounds=1, model="linear", progress=False)
    assert not shown
