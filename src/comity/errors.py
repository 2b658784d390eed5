"""What Comity says when it cannot go on: one plain sentence, and the exit code that belongs to it."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterable
from pathlib import Path
from traceback import extract_tb

from comity.hints import near


class ComityError(Exception):
    """A run that failed: the message is one sentence a person can act on."""

    exit_code = 1


class UsageError(ComityError):
    """A wrong name or value, or a combination that makes no sense: nothing was started."""

    exit_code = 2


class CorruptedFile(ComityError):
    """What came from a disk or a wire is not what it should be: nothing of it was used."""


class WorkerLost(ComityError):
    """Somebody who held parties' states is gone: the run can go on from its last checkpoint, with
    everybody.
    """


def shown(value: object, most: int = 40) -> str:
    """A value as it can be quoted in a sentence: on one line and not too long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not spell out numbers of more than some thousand digits
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[: most - 4]}...{text[-1]}"


def unknown(what: str, name: str, names: Iterable[str]) -> UsageError:
    """A refusal for `name`, with the nearest of `names` as a suggestion (or all of them when they
    are few).
    """
    known = sorted(names)
    if meant := near(what, str(name), known):
        hint = f" Did you mean {' or '.join(map(repr, meant))}?"
    elif 0 < len(known) <= 12:
        hint = f" Known: {', '.join(known)}."
    else:
        hint = ""
    return UsageError(f"There is no {what} {shown(name, 200)}.{hint}")


def describe(why: BaseException) -> str:
    """An unforeseen exception as one sentence: what, where, and its own words."""
    if isinstance(why, ComityError):
        return str(why)
    if lack := _lacking(why):
        return lack
    if isinstance(why, OSError):
        return f"{why.strerror or why}{f': {why.filename}' if why.filename else ''}."
    frames = extract_tb(why.__traceback__)
    ours = [
        f
        for f in frames
        if "site-packages" not in Path(f.filename).parts and f.name != "__getattr__"
    ] or frames
    where = (
        f" in {ours[-1].name} ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    )
    said = str(why).partition("\nException raised from")[0]  # torch's stack of C++ follows there
    return f"{type(why).__name__}{where}: {said}"


NO_MEMORY = (
    "not enough memory",
    "can't allocate memory",
    "size calculation overflowed",
    "Cannot allocate memory",
    "failed to map segment",
    "bad_alloc",
)
"""How torch, the system and the linker call it."""


def _lacking(why: BaseException) -> str:
    """What there is too little of, when that is the reason; libraries say it in exceptions of every
    kind.
    """
    number = why.errno if isinstance(why, OSError) else None
    if (
        isinstance(why, MemoryError)
        or number == errno.ENOMEM
        or any(words in str(why) for words in NO_MEMORY)
    ):
        return (
            "There is not enough memory for this: try fewer workers, smaller batches or a smaller"
            " model."
        )
    if number in (errno.EMFILE, errno.ENFILE) or "Too many open files" in str(why):
        return (
            f"There are too few file descriptors for this ({_descriptors()}): allow more, with"
            " ulimit -n 1024 for instance."
        )
    if isinstance(why, RecursionError) and "JSON" in str(why):
        return (
            "A json file that was to be read is nested too deeply to be one of Comity's: it is"
            " damaged."
        )
    return ""


def _descriptors() -> str:
    try:
        from resource import RLIMIT_NOFILE, getrlimit
    except ImportError:  # not a system that counts them
        return "too many files are open"
    return f"ulimit -n says {getrlimit(RLIMIT_NOFILE)[0]}"


def fate(exit_code: int | None) -> str:
    """How a process ended: on its own, or by which signal."""
    if exit_code is None or exit_code >= 0:
        return "ended unexpectedly"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"was ended by {name}" + (
        ", as systems do when memory runs out" if name == "SIGKILL" else ""
    )
