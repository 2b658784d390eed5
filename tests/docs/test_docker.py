"""The Dockerfile agrees with pyproject.toml and constraints.txt. These tests do not build the
image.
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
LINES = [
    line
    for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_python_is_the_oldest_supported() -> None:
    (version,) = [
        line.removeprefix("FROM python:").removesuffix("-slim")
        for line in LINES
        if line.startswith("FROM")
    ]
    assert PROJECT["requires-python"] == f">={version}"


def test_torch_is_pinned_and_comes_first() -> None:
    first, *others = [line for line in LINES if "pip install" in line]
    assert "$(grep '^torch==' constraints.txt)" in first
    assert '--index-url "$TORCH_INDEX"' in first
    pinned = re.findall(
        r"^torch==\S+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(pinned) == 1
    assert others
    assert all("-c constraints.txt" in line for line in others)


def test_extras_are_the_projects() -> None:
    (extras,) = [
        line.removeprefix("ARG EXTRAS=") for line in LINES if line.startswith("ARG EXTRAS=")
    ]
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


def test_compose_passes_arguments_that_the_image_has() -> None:
    """Sites train on CPUs: without an index of its own, torch would bring gigabytes for GPUs."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    declared = {line.removeprefix("ARG ").partition("=")[0] for line in LINES if line[:4] == "ARG "}
    for service in compose["services"].values():
        arguments = service["build"]["args"]
        assert arguments.keys() <= declared
        assert arguments["TORCH_INDEX"].endswith("/cpu}")


def test_container_runs_comity_as_a_user_without_privileges() -> None:
    assert LINES[-1] == 'ENTRYPOINT ["comity"]'
    user = next(k for k, line in enumerate(LINES) if line.startswith("USER"))
    assert LINES[user].split()[1] not in ("root", "0")
    assert not [line for line in LINES[user:] if line.startswith(("RUN", "COPY", "ADD"))]


def test_copied_files_exist_and_are_not_ignored() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    included = [line[1:] for line in ignore if line.startswith("!")]
    assert "*" in ignore
    copied = [name for line in LINES if line.startswith("COPY") for name in line.split()[1:-1]]
    assert {"src", "pyproject.toml", "constraints.txt"} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists()
        assert any(fnmatch(name, pattern) for pattern in included), name
    readme = PROJECT["readme"]
    assert (readme if isinstance(readme, str) else readme["file"]) in copied, (
        "the build needs the readme"
    )
