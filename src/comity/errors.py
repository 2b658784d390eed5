"""What Comity says when it cannot go on: one plain sentence, and the exit code that belongs to it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb


class ComityError(Exception):
    """A run that failed: the message is one sentence a person can act on."""

    exit_code = 1


class Refusal(ComityError):
    """A wrong name or value, or a combination that makes no sense: nothing was started."""

    exit_code = 2


class Damaged(ComityError):
    """What came from a disk or a wire is not what it should be: nothing of it was used."""


def unknown(what: str, name: str, names: Iterable[str]) -> Refusal:
    """A refusal for `name`, with the nearest of `names` as a suggestion (or all of them when they are few)."""
    known = sorted(names)
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        hint = f" Did you mean {near[0]!r}?"
    elif 0 < len(known) <= 12:
        hint = f" Known: {', '.join(known)}."
    else:
        hint = ""
    return Refusal(f"There is no {what} {name!r}.{hint}")


def describe(why: BaseException) -> str:
    """An unforeseen exception as one sentence: what, where, and its own words."""
    if isinstance(why, ComityError):
        return str(why)
    if isinstance(why, OSError):
        return f"{why.strerror or why}{f': {why.filename}' if why.filename else ''}."
    frames = extract_tb(why.__traceback__)
    ours = [f for f in frames if "site-packages" not in Path(f.filename).parts and f.name != "__getattr__"] or frames
    where = f" in {ours[-1].name} ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    return f"{type(why).__name__}{where}: {why}"
