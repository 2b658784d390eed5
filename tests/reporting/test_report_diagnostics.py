"""Methods say what the page shows of them: Comity's own and a user's, also where a user's file
cannot be asked any more.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from written import Written, compared, rows

from comity import algorithms
from comity.core.diagnostics import CurveByRound, ParameterNorms, PartyMatrix
from comity.errors import UsageError
from comity.reporting import report

METHOD = """
from comity.algorithms.fedavg import FedAvg
from comity.core import Traits, algorithm
from comity.core.diagnostics import CurveByRound, PartyMatrix

@algorithm
class Mine(FedAvg):
    traits = Traits(start_weights="theta", one_model=True, diagnostics=(
        PartyMatrix(name="trust", title="who trusts whom", meaning="how much parties trust each other", value="trust",
                    prefix="trust/"),
        CurveByRound(name="bytes", title="the heat of the server", meaning="how hot the server is", value="heat",
                     metric="mine/heat", reference=20.0),
    ))

    def round(self, s, server, t):
        server.note("mine/heat", 10.0 * t)
        server.note("mine/other", 0.5)
        for i in server.info.parties:
            for j in server.info.parties:
                if i != j:
                    server.note(f"trust/{server.info.name(j)}", i + j / 10, party=i)
        return super().round(s, server, t)
"""

WRAPPER = """
from comity.core import Traits, Wrapper, algorithm
from comity.core.diagnostics import CurveByRound

@algorithm
class Around(Wrapper):
    host: object
    traits = Traits(diagnostics=(
        CurveByRound(name="around", title="around", meaning="what is around", value="air", metric="around/air"),
    ))

    def wrap_party(self, party, extra):
        return party

    def round(self, s, server, t):
        server.note("around/air", 1.0)
        return super().round(s, server, t)
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


def forget(*names: str) -> None:
    """As a new process: nothing of a user's files has been imported."""
    for name in names:
        sys.modules.pop(f"comity_user.{name}", None)


def names(page: Written) -> list[str]:
    return [str(chart["name"]) for chart in page.charts.values()]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A comparison of a user's own method."""
    path = written(tmp_path, "mine_told", METHOD)
    compared(tmp_path / "runs", [str(path)])
    return tmp_path / "runs"


def test_a_users_method_has_its_charts(mine: Path) -> None:
    page = Written(report(mine, methods=[]))
    assert not page.broken
    matrix = page.chart("trust-mine_told")
    assert matrix["title"] == "mine_told: who trusts whom"
    assert matrix["alt"] == "mine_told: how much parties trust each other. Most: p2 and p1, 2.10."
    assert len(page.rows("trust-mine_told")) == 6
    (curve,) = (
        chart for chart in page.charts.values() if chart["title"] == "The heat of the server"
    )
    assert curve["alt"] == "How hot the server is; the dashed line is 20. mine_told ends at 20."
    assert [row["heat"] for row in page.rows(curve["data"])] == [10.0, 20.0]
    assert [row["reference"] for row in page.rows(curve["data"])] == [20.0, 20.0]
    assert page.chart("mine/other")["alt"] == "Mine/other, as it was noted. mine_told ends at 0.5."


def test_a_name_that_the_page_has_already(mine: Path) -> None:
    """The user's chart is called "bytes", as one of the page's own is: each has its own data and
    file.
    """
    page = Written(report(mine, methods=[], figures="svg"))
    figures = {
        path.name: path.read_text(encoding="utf-8")
        for path in (mine / "figures").glob("bytes*.svg")
    }
    assert {"bytes.svg", "bytes-2.svg"} <= set(figures)
    assert "heat" in figures["bytes.svg"]
    assert "bytes of a whole run" in figures["bytes-2.svg"]
    data = [chart["data"] for chart in page.charts.values() if chart["name"] == "bytes"]
    assert len(set(data)) == 2
    assert sorted(sorted(page.rows(name)[0]) for name in data) == [
        ["bytes", "direction", "method"], ["heat", "method", "reference", "round"],
    ]  # fmt: skip


def check_plain(page: Written) -> None:
    """What was noted is drawn, under the names it was noted by."""
    assert not page.broken
    assert page.chart("trust-mine_told")["title"] == "mine_told: trust"
    assert [row["value"] for row in page.rows("mine/heat")] == [10.0, 20.0]
    assert page.chart("mine/heat")["title"] == "Mine/heat"


def test_a_file_that_is_gone(mine: Path) -> None:
    (mine.parent / "mine_told.py").unlink()
    forget("mine_told")
    check_plain(Written(report(mine, methods=[])))


@pytest.mark.parametrize(
    "text", ["raise SystemExit(3)", "diagnostics = (", "from nowhere import nothing", ""]
)
def test_a_file_that_cannot_be_imported(mine: Path, text: str) -> None:
    written(mine.parent, "mine_told", text)
    forget("mine_told")
    check_plain(Written(report(mine, methods=[])))


@pytest.mark.parametrize(
    "declared",
    ["None", "('heat', 3)", "(CurveByRound(name='x', title=1, meaning=2, value='y', metric=3),)"],
)
def test_a_declaration_that_makes_no_sense(mine: Path, declared: str) -> None:
    head, rest = METHOD.split("    traits = Traits(")
    written(
        mine.parent,
        "mine_told",
        f"{head}    traits = Traits(diagnostics={declared})\n\n    def round{rest.split('    def round')[1]}",
    )
    forget("mine_told")
    check_plain(Written(report(mine, methods=[])))


def test_a_quick_page_imports_no_users_file(mine: Path) -> None:
    marker = mine.parent / "imported"
    written(mine.parent, "mine_told", f"open({str(marker)!r}, 'w').close()\n{METHOD}")
    forget("mine_told")
    check_plain(Written(report(mine, quick=True)))
    assert not marker.exists()
    assert "comity_user.mine_told" not in sys.modules


def test_a_wrapper_comes_after_its_host(tmp_path: Path) -> None:
    host = written(tmp_path, "mine_host", METHOD)
    wrapper = written(tmp_path, "mine_around", WRAPPER)
    compared(tmp_path / "runs", [f"{host}+{wrapper}"])
    page = Written(report(tmp_path / "runs", methods=[]))
    assert not page.broken
    found = names(page)
    assert (
        found.index("trust-mine_host+mine_around")
        < found.index("around")
        < found.index("mine/other")
    )
    curves = [
        chart["title"] for chart in page.charts.values() if chart["name"] in ("bytes", "around")
    ]
    assert curves[:2] == ["The heat of the server", "Around"]


def test_methods_that_share_a_curve_share_its_chart(tmp_path: Path) -> None:
    imports = "from comity.algorithms.adcol import Adcol\nfrom comity.core import algorithm\n"
    text = f"{imports}\n@algorithm\nclass Mine(Adcol):\n    pass\n"
    path = written(tmp_path, "mine_adcol", text)
    compared(tmp_path / "runs", ["adcol", str(path)])
    page = Written(report(tmp_path / "runs", methods=[]))
    assert {row["method"] for row in page.rows("discriminator")} == {"adcol", "mine_adcol"}
    noted = rows(tmp_path / "runs" / "adcol" / "seed-0" / "metrics.csv")
    last = [float(row["value"]) for row in noted if row["metric"] == "discriminator/accuracy"][-1]
    assert (
        f"adcol ends at {last:.1%}; mine_adcol ends at {last:.1%}."
        in page.chart("discriminator")["alt"]
    )


def test_what_comitys_own_methods_declare() -> None:
    found = {name: algorithms.find(name).traits.diagnostics for name in algorithms.names()}
    assert {name: [type(one) for one in declared] for name, declared in found.items() if declared} == {
        "adcol": [CurveByRound], "fed-sps": [PartyMatrix], "fedfomo": [PartyMatrix],
        "dbe": [ParameterNorms], "prbm": [ParameterNorms],
    }  # fmt: skip


@pytest.mark.parametrize("value", ["round", "party", "two words", ""])
def test_a_value_is_one_word_of_its_own(value: str) -> None:
    settings: dict[str, Any] = {"name": "x", "title": "x", "meaning": "x", "metric": "x/y"}
    with pytest.raises(UsageError, match="must be one word"):
        CurveByRound(value=value, **settings)
