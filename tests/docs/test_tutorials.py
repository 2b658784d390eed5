"""The tutorials: their files are written and their commands run, in order.

The tutorial about real sites is executed by tests/deploy/flare/test_tutorial.py; here its commands
are only looked up (test_deploy.py).
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from harness import succeed

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
WRITTEN = {
    "own-method": ["mine/comparison.json"],
    "thesis-table": ["encoder.pt", "tuned/mine/tune.json", "thesis/comparison.json"],
    "four-hospitals": ["found/comparison.json", "model/predict.py"],
    "private-run": ["private/privacy.csv", "private/audit.html"],
    "paper-table": ["table/table.md"],
}
"""What the commands of each tutorial leave in the folder."""


def blocks(name: str) -> list[tuple[str, str]]:
    """The kinds and texts of all blocks."""
    text = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_tutorial_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_onnx: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COMITY_DATA", raising=False)
    executed = 0
    for kind, block in blocks(name):
        if kind == "python":
            title = re.match(r"# (\w+\.py)\n", block)
            assert title
            (tmp_path / title[1]).write_text(block, encoding="utf-8")
        elif kind == "sh":
            for line in block.splitlines():
                program, *words = shlex.split(line, comments=True)
                if program == "python":
                    subprocess.run([sys.executable, *words], check=True)
                else:
                    assert program == "comity"
                    succeed(*words)
                executed += 1
    assert executed
    for file in WRITTEN[name]:
        assert (tmp_path / file).is_file(), file


def test_every_tutorial_is_executed() -> None:
    pages = {page.stem for page in TUTORIALS.glob("*.md")}
    assert pages == {*WRITTEN, "real-sites"}


def write_method(name: str, folder: Path) -> Path:
    """Write a method of the tutorial to its file."""
    sources = [source for kind, source in blocks("own-method") if kind == "python"]
    (source,) = [source for source in sources if source.startswith(f"# {name}.py\n")]
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    return path


def test_the_loss_of_the_anchored_method_is_that_of_fedprox(tmp_path: Path) -> None:
    import comity

    path = write_method("anchored", tmp_path)
    fed = comity.load("digits").partition("iid", parties=3, seed=0)
    anchored, fedprox = (
        comity.run(method, fed, rounds=2, model="linear", progress=False)
        for method in (f"{path}(mu=5)", "fedprox(mu=5)")
    )
    for party in fed.names:
        own, its = (
            run.model(party).predict(fed.parties[party].test) for run in (anchored, fedprox)
        )
        assert (own == its).all()


def test_the_damped_method_is_damped(tmp_path: Path) -> None:
    """With the share 1 the method of the tutorial is FedAvg, and with 0 nothing is learned."""
    import comity

    path = write_method("damped", tmp_path)
    fed = comity.load("digits").partition("iid", parties=3, seed=0)
    whole, none, fedavg = (
        comity.run(method, fed, rounds=2, model="linear", progress=False)
        for method in (f"{path}(share=1)", f"{path}(share=0)", "fedavg")
    )
    mean = [run.summary["accuracy"]["mean"] for run in (whole, none, fedavg)]
    assert mean[0] == pytest.approx(mean[2], abs=0.02)
    assert mean[1] < 0.3 < mean[0]


def test_the_table_of_a_thesis_is_of_the_pretrained_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each method starts from the encoder that was trained before, and the table is in LaTeX."""
    monkeypatch.chdir(tmp_path)
    for kind, source in blocks("thesis-table"):
        if kind == "python" and (title := re.match(r"# (\w+\.py)\n", source)):
            (tmp_path / title[1]).write_text(source, encoding="utf-8")
    subprocess.run([sys.executable, "pretrain.py"], check=True)
    succeed(
        "compare", "./mine.py(share=1,lr=0.1)", "fedper(lr=0.1)", "--data", "./rest.py",
        "--parties", "3", "--rounds", "1", "--model", "./net.py", "--weights", "encoder.pt",
        "--reference", "mine", "--no-report", "--out", "thesis",
    )  # fmt: skip
    rows = json.loads(Path("thesis/comparison.json").read_text(encoding="utf-8"))["rows"]
    figures = {row["algorithm"]: row["figure"] for row in rows}
    # With the share 1 the method of the tutorial is FedPer.
    assert figures["mine(share=1,lr=0.1)"] == figures["fedper(lr=0.1)"]
    for summary in Path("thesis").rglob("summary.json"):
        (start,) = json.loads(summary.read_text(encoding="utf-8"))["initial_weights"]
        assert start["kept"] == ["encoder.1.weight", "encoder.1.bias"]
    table = succeed("report", "thesis", "--quick", "--table", "latex", "--label", "mine=Ours").out
    assert "% Ours against each" in table
