"""A user's own file as an algorithm, a model, a dataset or a tracker: the one place where such
files are run.

Whose file it is nobody asks here; `experiments.trust` does, wherever it is a folder that names it
and not the user.
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
"""The name under which a user's module keeps the digest of its source."""


def is_code(name: str) -> bool:
    """Whether a name in the settings is that of a file to be run, not of something that Comity has."""
    return name.endswith(".py")


def digest(path: str) -> str | None:
    """The digest of what runs if this file is asked for: as this process imported it or, failing
    that, as it is on the disk.
    """
    file = Path(path).resolve()
    known = _imported(file)
    return str(vars(known)[DIGEST]) if known else _on_disk(file)


def module_from(path: str) -> ModuleType:
    """Import a Python file by its path, once; its records are known by the file's own name."""
    file = Path(path).resolve()
    if known := _imported(file):
        if _on_disk(file) not in (vars(known)[DIGEST], None):
            warnings.warn(
                escape_terminal(
                    f"{path} has changed since it was imported here, and is used as it was then."
                ),
                stacklevel=2,
            )
        return known
    if not file.is_file():
        raise UsageError(f"There is no file {path}.")
    name = _name(file)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None:
        raise UsageError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        source = file.read_bytes()
        vars(module)[DIGEST] = sha256(source).hexdigest()
        exec(
            compile(source, file, "exec", dont_inherit=True), vars(module)
        )  # the source itself: a .pyc can be of another
    except (Exception, SystemExit) as why:
        del sys.modules[name]
        raise UsageError(f"{path} could not be imported: {type(why).__name__}: {why}") from why
    return module


def _name(file: Path) -> str:
    return f"comity_user.{file.stem}"


def _imported(file: Path) -> ModuleType | None:
    """The module that this process made of a file, if it did."""
    known = sys.modules.get(_name(file))
    return known if known is not None and known.__file__ == str(file) else None


def _on_disk(file: Path) -> str | None:
    try:
        return sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def from_file(path: str, name: str) -> Any:
    """What a user's file calls `name`."""
    module = module_from(path)
    if not callable(made := getattr(module, name, None)):
        raise UsageError(f"{path} must define {name}(...).")
    return made


def call_from_file(path: str, name: str, *given: Any) -> Any:
    """What a user's function `name` returns; its own failures are refusals that name the file."""
    try:
        return from_file(path, name)(*given)
    except UsageError:
        raise
    except Exception as why:
        raise UsageError(f"{name} of {path} failed: {type(why).__name__}: {why}") from why
