"""The exceptions of Comity, each with its exit code, and exceptions as one plain sentence."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from functools import cache
from pathlib import Path
from traceback import FrameSummary, extract_tb

from comity.hints import find_similar

PACKAGE = Path(__file__).parent
METHODS = PACKAGE / "algorithms"
STANDARD_LIBRARY = Path(os.__file__).parent


class ComityError(Exception):
    """Base class of all errors of Comity. The message is one sentence that says what to do."""

    exit_code = 1


class UsageError(ComityError, ValueError):
    """A wrong name or value, or settings that contradict each other. Nothing was started."""

    exit_code = 2


class UsageErrors(UsageError):
    """Several usage errors that were found together. `sentences` has one sentence for each."""

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__(" ".join(sentences))
        self.sentences = tuple(sentences)


class ErrorCollector:
    """Collects usage errors, so that the user learns of all of them at once.

    Examples:
        >>> errors = ErrorCollector()
        >>> for name in ("a", "b"):
        ...     with errors.collect():
        ...         raise UsageError(f"{name} is wrong.")
        >>> errors.check()
        Traceback (most recent call last):
        comity.errors.UsageErrors: a is wrong. b is wrong.
    """

    def __init__(self) -> None:
        self.sentences: list[str] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep the usage error that is raised inside, and continue after the `with` block."""
        try:
            yield
        except UsageErrors as error:
            self.sentences += error.sentences
        except UsageError as error:
            self.sentences.append(str(error))

    def check(self) -> None:
        """Raise all errors that were collected, if there are any."""
        sentences = list(dict.fromkeys(self.sentences))
        if len(sentences) > 1:
            raise UsageErrors(sentences)
        if sentences:
            raise UsageError(sentences[0])


class CorruptedFile(ComityError):
    """A file or a message is not what was written. Nothing of it was used."""


class WorkerLost(ComityError):
    """A worker with states of parties ended. The run can be resumed from its last checkpoint."""


def quote(value: object, max_length: int = 40) -> str:
    """Return a value as text for a message: on one line, shortened to `max_length` characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to convert integers with thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= max_length else f"{text[: max_length - 4]}...{text[-1]}"


def unknown(what: str, name: str, names: Iterable[str]) -> UsageError:
    """Return an error for an unknown name.

    Args:
        what: the kind of the name, as in "model"
        name: the unknown name
        names: the valid names; the message suggests the most similar one, or lists them all if
            there are at most twelve
    """
    valid_names = sorted(names)
    if suggestions := find_similar(what, str(name), valid_names):
        hint = f" Did you mean {' or '.join(map(repr, suggestions))}?"
    elif 0 < len(valid_names) <= 12:
        hint = f" Known: {', '.join(valid_names)}."
    else:
        hint = ""
    return UsageError(f"There is no {what} {quote(name, 200)}.{hint}")


def describe(why: BaseException) -> str:
    """Return an exception as one sentence: its type, where it was raised, from which line of a
    method or a user's file, and its message.
    """
    if isinstance(why, ComityError):
        return str(why)
    if shortage := _describe_shortage(why):
        return shortage
    if isinstance(why, OSError):
        return f"{why.strerror or why}{f': {why.filename}' if why.filename else ''}."
    all_frames = extract_tb(why.__traceback__)
    frames = [
        frame
        for frame in all_frames
        if "site-packages" not in Path(frame.filename).parts
        and frame.name != "__getattr__"
        and not frame.filename.startswith("<")  # generated code
    ] or all_frames
    where = ""
    if frames:
        where = f" in {_place(frames[-1])}"
        if (caller := _line_of_method(frames)) and caller is not frames[-1]:
            where += f", called from {_place(caller)}"
    # torch appends its C++ stack after these words
    message = str(why).partition("\nException raised from")[0]
    if isinstance(why, FrozenInstanceError):
        message += (
            ". Methods and records cannot be changed: what outlasts a call belongs in the server's"
            " state or a party's state."
        )
    return f"{type(why).__name__}{where}: {message}"


def _place(frame: FrameSummary) -> str:
    return f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})"


def _line_of_method(frames: Sequence[FrameSummary]) -> FrameSummary | None:
    """The innermost line of a method's file, or of a user's file, that Comity called; None if there
    is none.
    """
    first = next((n for n, frame in enumerate(frames) if _in_package(frame)), len(frames))
    method_lines = [
        frame
        for frame in frames[first:]
        if not _in_package(frame) or METHODS in Path(frame.filename).parents
    ]
    return method_lines[-1] if method_lines else None


def _in_package(frame: FrameSummary) -> bool:
    return PACKAGE in Path(frame.filename).parents


@cache
def is_authors_file(filename: str) -> bool:
    """Return whether a source file is that of a method: in Comity's own folder of methods, or
    anywhere outside of Comity, of the standard library and of installed packages.
    """
    file = Path(filename)
    if not file.is_absolute():  # generated code, such as <string>
        return False
    if PACKAGE in file.parents:
        return METHODS in file.parents
    return "site-packages" not in file.parts and STANDARD_LIBRARY not in file.parents


NO_MEMORY = (
    "not enough memory",
    "can't allocate memory",
    "size calculation overflowed",
    "Cannot allocate memory",
    "failed to map segment",
    "bad_alloc",
)
"""Messages of torch, the system and the linker when memory runs out."""


def _describe_shortage(why: BaseException) -> str:
    """Return a sentence if memory or file descriptors ran out, otherwise an empty text.

    Libraries report such shortages with exceptions of many types.
    """
    number = why.errno if isinstance(why, OSError) else None
    if (
        isinstance(why, MemoryError)
        or number == errno.ENOMEM
        or any(words in str(why) for words in NO_MEMORY)
    ):
        return "There is not enough memory: try fewer workers, smaller batches or a smaller model."
    if number in (errno.EMFILE, errno.ENFILE) or "Too many open files" in str(why):
        return (
            f"There are too few file descriptors ({_descriptor_limit()}): allow more, for example"
            " with ulimit -n 1024."
        )
    if isinstance(why, RecursionError) and "JSON" in str(why):
        return "A JSON file is nested too deeply to be one that Comity wrote: it is damaged."
    return ""


def may_pass(why: BaseException) -> bool:
    """Return whether what failed may succeed when it is tried again: resources ran out, a file
    could not be written, or a worker was lost. An error of a method's code occurs again.
    """
    return isinstance(why, OSError | MemoryError | WorkerLost) or bool(_describe_shortage(why))


def _descriptor_limit() -> str:
    try:
        from resource import RLIMIT_NOFILE, getrlimit
    except ImportError:  # the system has no such limit
        return "too many files are open"
    return f"ulimit -n says {getrlimit(RLIMIT_NOFILE)[0]}"


def describe_exit(exit_code: int | None) -> str:
    """Return how a process ended: by itself, or by which signal."""
    if exit_code is None or exit_code >= 0:
        return "ended unexpectedly"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"was ended by {name}" + (
        ", as systems do when memory runs out" if name == "SIGKILL" else ""
    )
