"""The wheel, installed in a new environment outside this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
    """Dependencies come from the environment of the tests; Comity comes from the wheel."""
    # A copy: setuptools leaves its build folder beside the sources.
    run("git", "clone", "--quiet", ROOT, tmp_path / "sources", cwd=tmp_path)
    pytest.importorskip("twine")
    run(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", cwd=tmp_path / "sources")
    files = sorted((tmp_path / "dist").iterdir())
    assert [path.suffix for path in files] == [".whl", ".gz"]
    run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")

    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    own = run(
        python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=tmp_path
    )
    (Path(own.strip()) / "dependencies.pth").write_text(
        sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8"
    )

    where = run(python, "-c", "import comity.calls; print(comity.calls.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path / "env"))
    comity = tmp_path / "env" / "bin" / "comity"
    small = ("--parties", "3", "--rounds", "1", "--model", "linear")
    out = run(comity, "compare", "fedavg", *small, "--out", "runs", cwd=tmp_path, COMITY_REPORT="1")
    assert "fedavg" in out
    assert (tmp_path / "runs" / "report.html").stat().st_size > 100_000
    assert "adcol/table1" in run(comity, "list", "experiments", cwd=tmp_path)
    assert "agnews" in run(comity, "list", "datasets", cwd=tmp_path)
    lines = run(
        comity, "demo", "--rounds", "1", cwd=tmp_path, COMITY_REPORT="1", COMITY_DATA=""
    ).splitlines()
    for number in (1, 2, 3):
        assert any(line.startswith(f"{number} of 3: ") for line in lines)
    assert sum(line.startswith("Answer: ") for line in lines) == 3
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
