"""The progress line in a notebook: it follows the runs and disappears when they end."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import comity
from comity.notebook import live


@pytest.fixture
def displays(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace IPython's display; returns the list of all displayed objects."""
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


def test_progress_line_follows_a_run_and_disappears(
    displays: list[Any], fed: comity.Federation
) -> None:
    comity.run("fedavg", fed, rounds=3, model="linear")
    texts = [repr(picture) for picture in displays]
    for t in (1, 2, 3):
        assert any(f"fedavg: round {t}/3, accuracy " in text for text in texts)
    assert '<progress value="3" max="3">' in displays[-2]._repr_html_()
    assert texts[-1] == ""
    assert "<progress" not in displays[-1]._repr_html_()


def test_comparison_has_one_progress_line(displays: list[Any], fed: comity.Federation) -> None:
    comity.compare(["fedavg"], fed, rounds=1, model="linear", seeds=(0, 1))
    text = " ".join(map(repr, displays))
    for run in ("1/4 solo seed 0", "2/4 fedavg seed 0", "3/4 solo seed 1", "4/4 fedavg seed 1"):
        assert run in text
    assert repr(displays[-1]) == ""


def test_progress_line_disappears_when_a_run_fails(
    displays: list[Any], fed: comity.Federation
) -> None:
    def picky(truth: Any, answer: Any) -> Any:
        return (
            0.5
            if (truth == answer).all() or (truth == answer[::-1]).all() or not answer.any()
            else float("nan")
        )

    with pytest.raises(comity.ComityError):
        comity.run("fedavg", fed, rounds=1, model="linear", metric=picky)
    assert repr(displays[-1]) == ""


def test_no_progress_line_with_progress_false(displays: list[Any], fed: comity.Federation) -> None:
    comity.run("fedavg", fed, rounds=1, model="linear", progress=False)
    assert not displays
