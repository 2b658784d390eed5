"""A user's own file as an algorithm, a model or a dataset."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from comity.errors import Refusal


def module_from(path: str) -> ModuleType:
    """Import a Python file by its path, once; its records are known by the file's own name."""
    file = Path(path).resolve()
    name = f"comity_user.{file.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(file):
        return known
    if not file.is_file():
        raise Refusal(f"There is no file {path}.")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise Refusal(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as why:
        del sys.modules[name]
        raise Refusal(f"{path} could not be imported: {type(why).__name__}: {why}") from why
    return module


def from_file(path: str, name: str) -> Any:
    """What a user's file calls `name`."""
    module = module_from(path)
    if not callable(made := getattr(module, name, None)):
        raise Refusal(f"{path} must define {name}(...).")
    return made


def call_from_file(path: str, name: str, *given: Any) -> Any:
    """What a user's function `name` returns; its own failures are refusals that name the file."""
    try:
        return from_file(path, name)(*given)
    except Refusal:
        raise
    except Exception as why:
        raise Refusal(f"{name} of {path} failed: {type(why).__name__}: {why}") from why
