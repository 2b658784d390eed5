"""Users' Python files as algorithms, models, datasets and trackers. Only this module runs them.

This module does not check whether a file may be trusted. `comity.runs.trust` does that where a
folder, and not the user, names the file.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from comity.errors import UsageError
from comity.text import escape_terminal

DIGEST = "__digest__"
"""The attribute of a user's module that holds the digest of its source."""


def is_code(name: str) -> bool:
    """Return whether a name in the settings is a user's Python file."""
    return name.endswith(".py")


def digest(path: str) -> str | None:
    """Return the SHA-256 digest of the code that a file stands for.

    This is the code that this process imported from the file, or otherwise the code on disk. None
    if there is no such file.
    """
    file = Path(path).resolve()
    module = _imported_module(file)
    return str(vars(module)[DIGEST]) if module else _file_digest(file)


def module_from(path: str) -> ModuleType:
    """Import a Python file by its path, once per process. Its records are named by the file."""
    file = Path(path).resolve()
    if imported := _imported_module(file):
        if _file_digest(file) not in (vars(imported)[DIGEST], None):
            warnings.warn(
                escape_terminal(
                    f"{path} has changed since this process imported it; the earlier version is"
                    " used."
                ),
                stacklevel=2,
            )
        return imported
    if not file.is_file():
        raise UsageError(f"There is no file {path}.")
    name = _module_name(file)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None:
        raise UsageError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        source = file.read_bytes()
        vars(module)[DIGEST] = sha256(source).hexdigest()
        # Compiled here, since a .pyc file may belong to another version of the source.
        exec(compile(source, file, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as why:
        del sys.modules[name]
        raise UsageError(f"{path} could not be imported: {type(why).__name__}: {why}") from why
    return module


def _module_name(file: Path) -> str:
    return f"comity_user.{file.stem}"


def _imported_module(file: Path) -> ModuleType | None:
    """Return the module that this process imported from a file, if any."""
    module = sys.modules.get(_module_name(file))
    return module if module is not None and module.__file__ == str(file) else None


def _file_digest(file: Path) -> str | None:
    try:
        return sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def from_file(path: str, name: str) -> Any:
    """Return the function or class `name` of a user's file."""
    module = module_from(path)
    if not callable(member := getattr(module, name, None)):
        raise UsageError(f"{path} must define {name}(...).")
    return member


def call_from_file(path: str, name: str, *arguments: Any) -> Any:
    """Call the function `name` of a user's file. Its exceptions become `UsageError`."""
    try:
        return from_file(path, name)(*arguments)
    except UsageError:
        raise
    except Exception as why:
        raise UsageError(f"{name} of {path} failed: {type(why).__name__}: {why}") from why
