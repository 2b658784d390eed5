"""Whose code a folder names. Settings can name Python files, and a folder may come from anybody: to
open it must not run them.

A folder that this user's Comity made has a mark, `trust.json`: the digests of the files that its
settings name, and a code that only this user's secret can make of these and the settings. So the
user's own runs open without asking, wherever they lie and however they were copied; everybody
else's take the user's word (`--trust`, in Python `trust=True`), and so does a file that has changed
since. A folder that names no files needs no mark.
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
from comity.runs.checkpoint import write_atomically
from comity.runs.config import Experiment
from comity.plugins import digest, is_code
from comity.spec import parse, split

MARK = "trust.json"
SECRET_BYTES = 32


class Untrusted(UsageError):
    """To open a folder would run files that are not known to be the user's own, or are no longer
    what they were.
    """


def code_of(experiment: Experiment) -> list[str]:
    """The files that an experiment's settings name."""
    own = [party.model for party in experiment.party.values() if party.model]
    saved = experiment.partition.endswith(".json")
    dealt = [] if saved else [parse(part).name for part in split(experiment.partition, "|")]
    return code_in(
        experiment.algorithm, [experiment.model, *own, experiment.data, *dealt, experiment.metric]
    )


def code_in(algorithm: str, others: Iterable[str]) -> list[str]:
    """The files among the names that an algorithm is composed of, and among other names."""
    return sorted(
        {
            name
            for name in (*(parse(part).name for part in split(algorithm, "+")), *others)
            if is_code(name)
        }
    )


def mark(folder: Path, settings: str, files: Sequence[str]) -> None:
    """Mark a folder as made here, by this user, with these settings and these files as they are."""
    if not files:
        return
    used = {file: digest(file) for file in files}
    try:
        code = _code(settings, used)
    except (
        NoSecret
    ):  # whoever opens the folder hears why; what the files were is worth knowing without it
        code = None
    write_atomically(folder / MARK, json.dumps({"files": used, "code": code}, indent=2) + "\n")


def mark_again(folder: Path, before: str, settings: str) -> None:
    """Let a folder's mark hold for other settings beside those it had; one that is not the user's
    own gets none.
    """
    used, codes = _read(folder)
    with contextlib.suppress(NoSecret):
        if used and _is_among(_code(before, used), codes):
            codes = [_code(settings, used), _code(before, used)]
            write_atomically(
                folder / MARK,
                json.dumps({"files": used, "code": codes[0], "before": codes[1]}, indent=2) + "\n",
            )


def check(folder: Path, settings: str, files: Sequence[str], trust: bool) -> None:
    """Refuse to run the files that a folder's settings name, unless the folder is the user's own or
    the user trusts it.
    """
    if not files or trust:
        return
    listed = ", ".join(files)
    used, codes = _read(folder)
    try:
        own = _is_among(_code(settings, used), codes)
    except NoSecret as why:
        raise Untrusted(
            f"To open {folder} would run {listed}, and whether you made it cannot be told, as"
            f" {why}: if you know what that does, say --trust (in Python trust=True)."
        ) from why
    if not own:
        raise Untrusted(
            f"{folder} was not made by you here, or not as it is now, and to open it would run"
            f" {listed}: look at what that does, then say --trust (in Python trust=True)."
        )
    if texts := changes(folder, files):
        raise Untrusted(f"{texts[0]} Say --trust (in Python trust=True) to use it as it is now.")


def changes(folder: Path, files: Sequence[str]) -> list[str]:
    """A sentence for each of these files that is known to have been another when the folder was
    made.
    """
    used, _ = _read(folder)
    return [
        f"{file} has changed since {folder} was begun."
        for file in files
        if file in used and used[file] != digest(file)
    ]


def _is_among(code: str, codes: Sequence[str]) -> bool:
    """Whether a code is one of a folder's."""
    return any(
        hmac.compare_digest(code.encode(), known.encode(errors="replace")) for known in codes
    )


def _read(folder: Path) -> tuple[dict[str, str | None], list[str]]:
    """What a folder's mark says of files, and its codes; nothing if there is none, or none that
    makes sense.
    """
    try:
        told: Any = json.loads((folder / MARK).read_text(encoding="utf-8"))
        return dict(told["files"]), [str(told[name]) for name in ("code", "before") if name in told]
    except (OSError, ValueError, TypeError, KeyError):
        return {}, []


def _code(settings: str, used: Mapping[str, str | None]) -> str:
    """What only the owner of the secret can make of these settings and files."""
    said = json.dumps([settings, sorted(used.items())]).encode()
    return hmac.digest(_secret(), said, "sha256").hex()


# The secret.


class NoSecret(Exception):
    """This user has no secret and none can be kept; the message says why."""


def state_folder() -> Path:
    """Where Comity keeps what belongs to the user and not to a run."""
    told = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (told if told.is_absolute() else Path("~").expanduser() / ".local" / "state") / "comity"


def _secret() -> bytes:
    """The user's secret, made when it is first asked for."""
    try:
        file = state_folder() / "secret"
        if not file.exists():
            _make(file)
        found = file.read_bytes()
    except OSError as why:
        raise NoSecret(f"nothing can be kept in {state_folder()} ({why.strerror})") from why
    except RuntimeError as why:
        raise NoSecret("there is no home directory") from why
    if len(found) != SECRET_BYTES:
        raise NoSecret(f"{file} is damaged")
    return found


def _make(file: Path) -> None:
    """Write a secret that nobody else can read; of several processes that try at once, one
    succeeds.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = file.with_name(f"secret-{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(secrets.token_bytes(SECRET_BYTES))
            out.flush()
            os.fsync(out.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(new, file)  # unlike a renaming, it never replaces what another process made
    finally:
        new.unlink(missing_ok=True)
