"""Whether the Python files that a folder's settings name may be executed. Folders can come from
anywhere.

A folder that this user's Comity created has a file `trust.json`: the digests of the files that its
settings name, and an HMAC of these and the settings with the user's secret. So users open their own
runs without questions, even after moving or copying them. Other folders, and files that have
changed since, need `--trust` (in Python `trust=True`). A folder that names no files needs no mark.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comity.errors import UsageError
from comity.plugins import digest, helper_digests, is_code
from comity.runs.config import Experiment
from comity.safe_files import write_atomically
from comity.spec import parse, split

MARK = "trust.json"
SECRET_BYTES = 32


class Untrusted(UsageError):
    """Opening a folder would execute files that are not known to be the user's own, or have
    changed.
    """


def code_of(experiment: Experiment) -> list[str]:
    """The Python files that an experiment's settings name."""
    models = [experiment.model, *(party.model for party in experiment.party.values())]
    model_names = [parse(model).name for model in models if model]
    is_saved_split = experiment.partition.endswith(".json")
    partitions = (
        [] if is_saved_split else [parse(part).name for part in split(experiment.partition, "|")]
    )
    return code_in(
        experiment.algorithm,
        [*model_names, experiment.data, *partitions, experiment.metric],
    )


def code_in(algorithm: str, others: Iterable[str]) -> list[str]:
    """The Python files among the parts of an algorithm and among other names."""
    return sorted(
        {
            name
            for name in (*(parse(part).name for part in split(algorithm, "+")), *others)
            if is_code(name)
        }
    )


def mark(folder: Path, settings: str, files: Sequence[str]) -> None:
    """Mark a folder as created by this user, with these settings and files, and the files that
    these have imported from their folders.
    """
    if not files:
        return
    digests: dict[str, str | None] = {}
    for file in files:
        digests |= helper_digests(file)
    digests |= {file: digest(file) for file in files}
    try:
        code = _code(settings, digests)
    except NoSecret:
        # `check` reports the reason when the folder is opened. The digests are useful without it.
        code = None
    write_atomically(folder / MARK, json.dumps({"files": digests, "code": code}, indent=2) + "\n")


def mark_again(folder: Path, before: str, settings: str) -> None:
    """Let a folder's mark also hold for other settings, if the folder is the user's own."""
    digests, codes = _read(folder)
    with contextlib.suppress(NoSecret):
        if digests and _is_among(_code(before, digests), codes):
            codes = [_code(settings, digests), _code(before, digests)]
            write_atomically(
                folder / MARK,
                json.dumps({"files": digests, "code": codes[0], "before": codes[1]}, indent=2)
                + "\n",
            )


def check(folder: Path, settings: str, files: Sequence[str], trust: bool) -> None:
    """Refuse to execute the files that a folder's settings name, unless the folder is the user's
    own or is trusted.
    """
    if not files or trust:
        return
    listed = ", ".join(files)
    digests, codes = _read(folder)
    try:
        is_custom = _is_among(_code(settings, digests), codes)
    except NoSecret as why:
        raise Untrusted(
            f"To open {folder} would run {listed}, and whether you made it cannot be told, as"
            f" {why}: if you know what that does, say --trust (in Python trust=True)."
        ) from why
    if not is_custom:
        raise Untrusted(
            f"{folder} was not made by you here, or not as it is now, and to open it would run"
            f" {listed}: look at what that does, then say --trust (in Python trust=True)."
        )
    if texts := changes(folder, files):
        raise Untrusted(f"{texts[0]} Say --trust (in Python trust=True) to use it as it is now.")


def changes(folder: Path, files: Sequence[str]) -> list[str]:
    """A warning for each of these files, and of those that they imported from their folder, that
    has changed since the folder was created.
    """
    digests, _ = _read(folder)
    imported = [file for file in digests if file not in files] if files else []
    return [
        f"{file} has changed since {folder} was begun."
        for file in (*files, *imported)
        if file in digests and digests[file] != digest(file)
    ]


def _is_among(code: str, codes: Sequence[str]) -> bool:
    """Whether a code is one of a folder's."""
    return any(
        hmac.compare_digest(code.encode(), other.encode(errors="replace")) for other in codes
    )


def _read(folder: Path) -> tuple[dict[str, str | None], list[str]]:
    """The digests and codes of a folder's mark; empty if there is none, or it is invalid."""
    try:
        values: Any = json.loads((folder / MARK).read_text(encoding="utf-8"))
        return dict(values["files"]), [
            str(values[name]) for name in ("code", "before") if name in values
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return {}, []


def _code(settings: str, digests: Mapping[str, str | None]) -> str:
    """The HMAC of these settings and files with the user's secret."""
    text = json.dumps([settings, sorted(digests.items())]).encode()
    return hmac.digest(_secret(), text, "sha256").hex()


# The secret.


class NoSecret(Exception):
    """The user has no secret, and none can be saved. The message says why."""


def state_folder() -> Path:
    """The folder for data that belong to the user and not to a run."""
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (
        folder if folder.is_absolute() else Path("~").expanduser() / ".local" / "state"
    ) / "comity"


def _secret() -> bytes:
    """The user's secret, which is created when it is first needed."""
    try:
        file = state_folder() / "secret"
        if not file.exists():
            _create_secret(file)
        secret = file.read_bytes()
    except OSError as why:
        raise NoSecret(f"nothing can be kept in {state_folder()} ({why.strerror})") from why
    except RuntimeError as why:
        raise NoSecret("there is no home directory") from why
    if len(secret) != SECRET_BYTES:
        raise NoSecret(f"{file} is damaged")
    return secret


def _create_secret(file: Path) -> None:
    """Write a secret that only the user can read. Of several concurrent processes, one succeeds."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = file.with_name(f"secret-{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(secrets.token_bytes(SECRET_BYTES))
            out.flush()
            os.fsync(out.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(new, file)  # unlike renaming, it never replaces another process's file
    finally:
        new.unlink(missing_ok=True)
