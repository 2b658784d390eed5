"""The warnings about a run: one list, `warnings` in `summary.json`, each with when it was known.

Checkpoints and `comparison.json` have a list of the same form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

When = Literal["before", "during", "after"]
WARNINGS = "warnings"
"""The key of the list."""
OLD_LISTS: dict[str, When] = {"cautions": "before", "remarks": "during"}
"""The lists of texts that summaries and checkpoints of earlier versions have instead, and when
these texts were known.
"""


@dataclass(frozen=True)
class RunWarning:
    """A warning about a run.

    Examples:
        >>> warning = RunWarning("during", "p1 was not heard in round 2.", round=2)
        >>> print(warning)
        p1 was not heard in round 2.
    """

    when: When
    """When it was known: before the run, from the settings and the data; during the run; or after
    the run, from the results.
    """
    text: str
    """One sentence or more."""
    round: int | None = None
    """The round in which it was first known, if it was known during the run. None if that is not
    saved.
    """

    def __str__(self) -> str:
        return self.text


def add_warnings(summary: dict[str, Any], warnings: Iterable[RunWarning]) -> None:
    """Add warnings to a summary, without those that it has already."""
    listed = summary.setdefault(WARNINGS, [])
    entries = {(entry["when"], entry["text"]) for entry in listed}
    for warning in warnings:
        if (warning.when, warning.text) not in entries:
            entries.add((warning.when, warning.text))
            listed.append(asdict(warning))


def read_warnings(
    content: Mapping[str, Any], old_lists: Mapping[str, When] = OLD_LISTS
) -> list[RunWarning]:
    """Return the warnings in the content of a JSON file, also of one by an earlier version.

    Raises an error (KeyError, TypeError or ValueError) if the content is damaged.
    """
    if WARNINGS in content:
        return [_parse(entry) for entry in content[WARNINGS]]
    return [
        _parse({"when": when, "text": text, "round": None})
        for name, when in old_lists.items()
        for text in content.get(name, ())
    ]


def warning_texts(summary: Mapping[str, Any], *when: When) -> list[str]:
    """Return the texts of those warnings of a summary that were known then; without `when`, all.

    Examples:
        >>> summary = {"warnings": [{"when": "after", "text": "p1 has diverged.", "round": None}]}
        >>> warning_texts(summary, "during", "after")
        ['p1 has diverged.']
    """
    return [warning.text for warning in read_warnings(summary) if not when or warning.when in when]


def upgrade_warnings(
    content: Mapping[str, Any], old_lists: Mapping[str, When] = OLD_LISTS
) -> dict[str, Any]:
    """Return the content of a JSON file with the one list in place of those of earlier versions.

    Raises an error as `read_warnings` does.
    """
    warnings = [asdict(warning) for warning in read_warnings(content, old_lists)]
    replaced = () if WARNINGS in content else old_lists
    others = {name: value for name, value in content.items() if name not in replaced}
    return others | {WARNINGS: warnings}


def _parse(entry: Mapping[str, Any]) -> RunWarning:
    when, text, t = entry["when"], entry["text"], entry["round"]
    if when not in get_args(When) or not isinstance(text, str):
        raise ValueError(f"not a warning: {entry!r}")
    if t is not None and type(t) is not int:
        raise ValueError(f"not a round: {t!r}")
    return RunWarning(when, text, t)
