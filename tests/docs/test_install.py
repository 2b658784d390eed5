"""`scripts/install.sh` prints one line for each step, and pip's output only if a step fails."""

from __future__ import annotations

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


def install(folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    python.write_text(FAKE_PYTHON, encoding="utf-8")
    python.chmod(0o755)
    command = ["sh", str(ROOT / "scripts" / "install.sh"), str(folder), "dev"]
    env = {"PATH": "/usr/bin:/bin", "PYTHON": str(python)}
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
