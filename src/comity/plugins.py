"""Users' Python files as algorithms, models, datasets and trackers. Only this module runs them.

This module does not check whether a file may be trusted. `comity.runs.trust` does that where a
folder, and not the user, names the file.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from comity.errors import UsageError, is_authors_file
from comity.text import escape_terminal

DIGEST = "__digest__"
"""The attribute of a user's module that holds the digest of its source."""
_PREFIX = "comity_user."
"""The beginning of the names of users' modules."""
_HELPERS: dict[Path, dict[Path, str]] = {}
"""By folder of users' files: the files that these imported from it, with their digests then."""


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


def helper_digests(path: str) -> dict[str, str]:
    """Return the files beside a user's file that files of this folder imported in this process,
    with their digests when they were imported.
    """
    helpers = _HELPERS.get(Path(path).resolve().parent, {})
    return {str(file): expected for file, expected in sorted(helpers.items())}


def module_from(path: str) -> ModuleType:
    """Import a Python file by its path, once per process. Its records are named by the file.

    It can import modules in its own folder.
    """
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
        code = compile(source, file, "exec", dont_inherit=True)
        with _importing_from(file.parent):
            exec(code, vars(module))
    except (Exception, SystemExit) as why:
        del sys.modules[name]
        raise UsageError(f"{path} could not be imported: {type(why).__name__}: {why}") from why
    return module


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Let a user's file import modules in its folder, and note which files these are."""
    _forget_namesakes(folder)
    before = set(sys.modules)
    writes_bytecode = sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    # A .pyc file may belong to another version of the source.
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_bytecode
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = _source_of(name)
            if file is None or folder not in file.parents or name.startswith(_PREFIX):
                continue
            if not is_authors_file(str(file)):
                continue  # of Comity, or of a package installed inside of the folder
            if (file_digest := _file_digest(file)) is not None:
                _HELPERS.setdefault(folder, {})[file] = file_digest


def _forget_namesakes(folder: Path) -> None:
    """Forget modules that a file of another folder imported from there under a name that a module
    in this folder has, too. Files that have imported them keep them.
    """
    elsewhere = {file for helpers in _HELPERS.values() for file in helpers}
    for name in list(sys.modules) if elsewhere else ():
        file = _source_of(name)
        if file not in elsewhere or file is None or folder in file.parents:
            continue
        module = folder / name.partition(".")[0]
        if module.is_dir() or module.with_suffix(".py").exists():
            del sys.modules[name]


def _source_of(name: str) -> Path | None:
    """Return the file that a module was imported from, if any."""
    file = getattr(sys.modules[name], "__dict__", {}).get("__file__")
    return Path(file) if isinstance(file, str) else None


def _module_name(file: Path) -> str:
    return f"{_PREFIX}{file.stem}"


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


def call_from_file(path: str, name: str, *arguments: Any, **options: Any) -> Any:
    """Call the function `name` of a user's file. Its exceptions become `UsageError`."""
    function = from_file(path, name)
    try:
        with _importing_from(Path(path).resolve().parent):
            return function(*arguments, **options)
    except UsageError:
        raise
    except Exception as why:
        raise UsageError(f"{name} of {path} failed: {type(why).__name__}: {why}") from why
