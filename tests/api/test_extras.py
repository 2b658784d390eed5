"""What is not installed: every optional import names the extra that has it, and nothing optional is
imported before it is needed.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from harness import comity, one_sentence

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "comity").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
RUN_BY_FLARE = {"apps.py", "launcher.py"}
"""Modules that only NVIDIA FLARE imports."""
USERS_OWN = {"pandas", "IPython"}
"""Packages that only users who have them already can meet: frames, and notebooks."""


def package(requirement: str) -> str:
    """The package that a requirement names, in its normal form."""
    name = re.split(r"[\[<>=~ ]", requirement)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def imports(path: Path) -> list[tuple[str, bool]]:
    """The packages that a module imports, and whether it does at its top."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        found += [(name.partition(".")[0], node in tree.body) for name in names]
    return found


def test_whatever_is_imported_is_a_dependency_or_in_an_extra() -> None:
    required = {package(r) for r in PROJECT["dependencies"]} | {"markupsafe"}  # Jinja's own
    optional = {package(r) for rows in EXTRAS.values() for r in rows} | {"psutil"}  # FLARE's own
    distributions = packages_distributions()
    for path in SOURCES:
        for module, at_top in imports(path):
            if module in sys.stdlib_module_names or module in {"comity", *USERS_OWN}:
                continue
            # an import may have another name than its package, as PIL has
            candidates = {package(d) for d in distributions.get(module, [module])}
            candidates |= {package(module), "mlflow-skinny" if module == "mlflow" else ""}
            if candidates & required:
                continue
            assert candidates & optional, f"{path} imports {module}, which no extra has"
            assert not at_top or path.name in RUN_BY_FLARE, f"{path} imports {module} at its top"


def test_messages_name_extras_that_exist_in_quotes() -> None:
    """Some shells refuse brackets without quotes."""
    mentioned = set()
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        joined = re.sub(r'"\s*\n\s*f?"', "", text)
        for extra in re.findall(r"pip install\s+'?comity\[(\w+)\]", joined):
            assert extra in EXTRAS, f"{path} names {extra}"
            mentioned.add(extra)
        unquoted = re.findall(r"pip install comity\[", joined.split('"""', 2)[-1])
        assert not unquoted, f"{path} names an extra without quotes"
    assert mentioned >= {"data", "onnx", "encoders", "privacy", "sites", "ray", "track"}


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        (("run", "fedavg", "--engine", "ray"), "ray", "ray"),
        (("run", "fedavg", "--track", "tensorboard"), "tensorboard", "track"),
        (("run", "fedavg", "--track", "mlflow"), "mlflow", "track"),
        (("run", "fedavg", "--track", "wandb"), "wandb", "track"),
        (("run", "fedavg", "--model", "timm(name=resnet18)"), "timm", "encoders"),
        (("run", "fedavg", "--data", "hub:someone/something"), "datasets", "data"),
        (("deploy", "init", "hub", "--server", "localhost:8002"), "nvflare", "sites"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_without_its_extra_names_it(
    words: tuple[str, ...],
    missing: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)  # it is neither found nor imported
    assert f"pip install 'comity[{extra}]'" in one_sentence(comity(*words), 2)
