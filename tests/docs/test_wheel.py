"""The wheel, installed in a new environment outside this checkout."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def run(*command: object, cwd: Path, **env: str) -> str:
    """The stdout of a command, which must succeed."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": "", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


@pytest.mark.long
def test_the_wheel_works_without_the_checkout(tmp_path: Path) -> None:
    """It runs the README's example and the demo."""
    # A copy: setuptools leaves its build folder beside the sources.
    run("git", "clone", "--quiet", ROOT, tmp_path / "sources", cwd=tmp_path)
    pytest.importorskip("twine")
    run(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", cwd=tmp_path / "sources")
    files = sorted((tmp_path / "dist").iterdir())
    assert [path.suffix for path in files] == [".whl", ".gz"]
    run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")

    # The dependencies are those of this environment; `make package` tries an empty one.
    script = tmp_path / "sources" / "scripts" / "try_wheel.py"
    output = run(sys.executable, script, wheel, "--borrow", cwd=tmp_path)
    printed = re.findall(
        r"^```text\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    number = re.compile(r"-?\d+(?:\.\d+)?")
    assert number.sub("#", printed[0]) in number.sub("#", output)
    assert output.count("\nAnswer: ") == 3
    assert output.endswith("The wheel works.\n")


def test_the_description_on_pypi_has_no_relative_links(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "absolute_links", ROOT / "scripts" / "absolute_links.py"
    )
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    address = "https://example.org/comity"
    page = tmp_path / "README.md"
    page.write_text(script.absolute(README.read_text("utf-8"), address, "v1.2.3"), "utf-8")
    before, found = (LINK.findall(each.read_text("utf-8")) for each in (README, page))
    assert len(found) == len(before) > 10
    assert not [link for link in found if not link.startswith((f"{address}/", "#", "https:"))]
    assert f"{address}/raw/v1.2.3/docs/images/report.png" in found
    assert f"{address}/blob/v1.2.3/CONTRIBUTING.md" in found


def test_the_release_makes_links_absolute_before_it_builds() -> None:
    """And it tries the wheel as `make package` does."""
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert 0 < workflow.index("scripts/absolute_links.py") < workflow.index("python -m build")
    assert "scripts/try_wheel.py" in workflow
    assert "scripts/try_wheel.py" in (ROOT / "Makefile").read_text(encoding="utf-8")
