"""Diagnostics that a method declares are charts of its report: for built-in and user methods, and
where the file of a user method cannot be imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from report_page import ReportPage, rows, run_comparison

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


def write_module(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


def forget(*names: str) -> None:
    """Undo the import of user modules, as in a new process."""
    for name in names:
        sys.modules.pop(f"comity_user.{name}", None)


def names(page: ReportPage) -> list[str]:
    return [str(chart["name"]) for chart in page.charts.values()]


@pytest.fixture
def user_method_runs(tmp_path: Path) -> Path:
    """The folder of a comparison of a user method."""
    path = write_module(tmp_path, "my_method", METHOD)
    run_comparison(tmp_path / "runs", [str(path)])
    return tmp_path / "runs"


def test_user_method_has_its_charts(user_method_runs: Path) -> None:
    page = ReportPage(report(user_method_runs, methods=[]))
    assert not page.failed_sections
    matrix = page.chart("trust-my_method")
    assert matrix["title"] == "my_method: who trusts whom"
    assert matrix["alt"] == "my_method: how much parties trust each other. Most: p2 and p1, 2.10."
    assert len(page.rows("trust-my_method")) == 6
    (curve,) = (
        chart for chart in page.charts.values() if chart["title"] == "The heat of the server"
    )
    assert curve["alt"] == "How hot the server is; the dashed line is 20. my_method ends at 20."
    assert [row["heat"] for row in page.rows(curve["data"])] == [10.0, 20.0]
    assert [row["reference"] for row in page.rows(curve["data"])] == [20.0, 20.0]
    assert page.chart("mine/other")["alt"] == "Mine/other, as it was noted. my_method ends at 0.5."


def test_chart_with_the_name_of_a_built_in_chart(user_method_runs: Path) -> None:
    """The user's chart and a built-in chart are both called "bytes": each has its own data and
    file.
    """
    page = ReportPage(report(user_method_runs, methods=[], figures="svg"))
    figures = {
        path.name: path.read_text(encoding="utf-8")
        for path in (user_method_runs / "figures").glob("bytes*.svg")
    }
    assert {"bytes.svg", "bytes-2.svg"} <= set(figures)
    assert "heat" in figures["bytes.svg"]
    assert "bytes of a whole run" in figures["bytes-2.svg"]
    data = [chart["data"] for chart in page.charts.values() if chart["name"] == "bytes"]
    assert len(set(data)) == 2
    assert sorted(sorted(page.rows(name)[0]) for name in data) == [
        ["bytes", "direction", "method"], ["heat", "method", "reference", "round"],
    ]  # fmt: skip


def check_without_declarations(page: ReportPage) -> None:
    """Check that recorded values are drawn under their metric names."""
    assert not page.failed_sections
    assert page.chart("trust-my_method")["title"] == "my_method: trust"
    assert [row["value"] for row in page.rows("mine/heat")] == [10.0, 20.0]
    assert page.chart("mine/heat")["title"] == "Mine/heat"


def test_missing_method_file(user_method_runs: Path) -> None:
    (user_method_runs.parent / "my_method.py").unlink()
    forget("my_method")
    check_without_declarations(ReportPage(report(user_method_runs, methods=[])))


@pytest.mark.parametrize(
    "text", ["raise SystemExit(3)", "diagnostics = (", "from nowhere import nothing", ""]
)
def test_method_file_that_cannot_be_imported(user_method_runs: Path, text: str) -> None:
    write_module(user_method_runs.parent, "my_method", text)
    forget("my_method")
    check_without_declarations(ReportPage(report(user_method_runs, methods=[])))


@pytest.mark.parametrize(
    "declaration",
    ["None", "('heat', 3)", "(CurveByRound(name='x', title=1, meaning=2, value='y', metric=3),)"],
)
def test_invalid_declaration(user_method_runs: Path, declaration: str) -> None:
    head, rest = METHOD.split("    traits = Traits(")
    write_module(
        user_method_runs.parent,
        "my_method",
        f"{head}    traits = Traits(diagnostics={declaration})\n\n    def round{rest.split('    def round')[1]}",
    )
    forget("my_method")
    check_without_declarations(ReportPage(report(user_method_runs, methods=[])))


def test_quick_page_imports_no_user_file(user_method_runs: Path) -> None:
    marker = user_method_runs.parent / "imported"
    write_module(
        user_method_runs.parent, "my_method", f"open({str(marker)!r}, 'w').close()\n{METHOD}"
    )
    forget("my_method")
    check_without_declarations(ReportPage(report(user_method_runs, quick=True)))
    assert not marker.exists()
    assert "comity_user.my_method" not in sys.modules


def test_charts_of_a_wrapper_come_after_those_of_its_host(tmp_path: Path) -> None:
    host = write_module(tmp_path, "mine_host", METHOD)
    wrapper = write_module(tmp_path, "mine_around", WRAPPER)
    run_comparison(tmp_path / "runs", [f"{host}+{wrapper}"])
    page = ReportPage(report(tmp_path / "runs", methods=[]))
    assert not page.failed_sections
    chart_names = names(page)
    assert (
        chart_names.index("trust-mine_host+mine_around")
        < chart_names.index("around")
        < chart_names.index("mine/other")
    )
    curves = [
        chart["title"] for chart in page.charts.values() if chart["name"] in ("bytes", "around")
    ]
    assert curves[:2] == ["The heat of the server", "Around"]


def test_methods_that_share_a_curve_share_its_chart(tmp_path: Path) -> None:
    imports = "from comity.algorithms.adcol import Adcol\nfrom comity.core import algorithm\n"
    text = f"{imports}\n@algorithm\nclass Mine(Adcol):\n    pass\n"
    path = write_module(tmp_path, "mine_adcol", text)
    run_comparison(tmp_path / "runs", ["adcol", str(path)])
    page = ReportPage(report(tmp_path / "runs", methods=[]))
    assert {row["method"] for row in page.rows("discriminator")} == {"adcol", "mine_adcol"}
    metric_rows = rows(tmp_path / "runs" / "adcol" / "seed-0" / "metrics.csv")
    last = [
        float(row["value"]) for row in metric_rows if row["metric"] == "discriminator/accuracy"
    ][-1]
    assert (
        f"adcol ends at {last:.1%}; mine_adcol ends at {last:.1%}."
        in page.chart("discriminator")["alt"]
    )


def test_declarations_of_built_in_methods() -> None:
    diagnostics = {name: algorithms.find(name).traits.diagnostics for name in algorithms.names()}
    assert {name: [type(diagnostic) for diagnostic in declarations] for name, declarations in diagnostics.items() if declarations} == {
        "adcol": [CurveByRound], "fed-sps": [PartyMatrix], "fedfomo": [PartyMatrix],
        "dbe": [ParameterNorms], "prbm": [ParameterNorms],
    }  # fmt: skip


@pytest.mark.parametrize("value", ["round", "party", "two words", ""])
def test_invalid_value_name_is_refused(value: str) -> None:
    settings: dict[str, Any] = {"name": "x", "title": "x", "meaning": "x", "metric": "x/y"}
    with pytest.raises(UsageError, match="must be one word"):
        CurveByRound(value=value, **settings)
