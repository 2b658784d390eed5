"""`scripts/install.sh` prints one line for each step, and pip's output only if a step fails."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKE_PYTHON = """#!/bin/sh
# Replaces `python -m venv FOLDER`: its pip prints warnings, and fails if the folder is called broken.
mkdir -p "$3/bin"
cat >"$3/bin/pip" <<'PIP'
#!/bin/sh
echo "WARNING: Location 'file:///somewhere/' is ignored" >&2
echo "Collecting $*"
case "$0 $*" in *broken*"-e"*) echo "ERROR: no matching distribution" >&2; exit 7;; esac
PIP
chmod +x "$3/bin/pip"
"""


def install(folder: Path, python: Path, **more: str) -> subprocess.CompletedProcess[str]:
    python.write_text(FAKE_PYTHON, encoding="utf-8")
    python.chmod(0o755)
    command = ["sh", str(ROOT / "scripts" / "install.sh"), str(folder), "dev"]
    env = {"PATH": "/usr/bin:/bin", "PYTHON": str(python), **more}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="make and sh are for POSIX systems")
def test_pips_warnings_are_in_the_log_only(tmp_path: Path) -> None:
    result = install(tmp_path / "env", tmp_path / "python")
    assert (result.returncode, result.stderr) == (0, "")
    creating, torch, comity, ready = result.stdout.splitlines()
    assert creating == f"Creating the environment in {tmp_path / 'env'} ... done"
    assert torch.startswith("Installing torch==")
    assert comity == "Installing Comity with [dev] (a minute or two) ... done"
    assert ready.startswith("Ready after ")
    assert (tmp_path / "env" / "install.log").read_text(encoding="utf-8").count("WARNING") == 2


@pytest.mark.skipif(sys.platform == "win32", reason="make and sh are for POSIX systems")
@pytest.mark.parametrize("index", ["", "https://download.pytorch.org/whl/cpu"])
def test_only_torch_is_taken_from_its_index(index: str, tmp_path: Path) -> None:
    assert install(tmp_path / "env", tmp_path / "python", TORCH_INDEX=index).returncode == 0
    log = (tmp_path / "env" / "install.log").read_text(encoding="utf-8")
    torch, comity = re.findall(r"^Collecting (.*)$", log, flags=re.MULTILINE)
    assert (f"--index-url {index}" in torch) == bool(index)
    assert "--index-url" not in comity


def test_pages_name_the_same_torch_and_index() -> None:
    """The constraints decide which torch it is; the index of its CPU build is named in full."""
    (torch,) = re.findall(
        r"^torch==\S+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    command = f"pip install {torch} --index-url https://download.pytorch.org/whl/cpu"
    for page in ("README.md", "docs/get-started/install.md"):
        assert command in (ROOT / page).read_text(encoding="utf-8"), page


@pytest.mark.skipif(sys.platform == "win32", reason="make and sh are for POSIX systems")
def test_a_failed_step_shows_the_log_and_ends_with_its_code(tmp_path: Path) -> None:
    result = install(tmp_path / "broken", tmp_path / "python")
    assert result.returncode == 7
    assert result.stdout.endswith("failed\n")
    assert "ERROR: no matching distribution" in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        "comity: Installing Comity with [dev] (a minute or two) failed with exit code 7."
    )
    assert last.endswith("install.log.")
