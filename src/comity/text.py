"""Text for a terminal, a shell or a Markdown file.

Names come from files, folders and users, and may contain characters that control a terminal.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence


def escape_terminal(text: str) -> str:
    """Return the text as one line, with all unprintable characters escaped.

    The result cannot move the cursor, change colours, or hide or reverse text.

    Examples:
        >>> escape_terminal("two\\nlines, \\x1b[2Ja clean screen, \\u202eright to left")
        'two\\\\nlines, \\\\x1b[2Ja clean screen, \\\\u202eright to left'
        >>> escape_terminal("größer als 方法 [red] \\\\ is text")
        'größer als 方法 [red] \\\\ is text'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shell_line(*words: object) -> str:
    """Return words as a line for a shell to copy, quoted where they need it.

    Examples:
        >>> shell_line("comity", "resume", "my runs/fedavg")
        "comity resume 'my runs/fedavg'"
    """
    return shlex.join(map(str, words))


def markdown_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numeric: Collection[int] = ()
) -> str:
    """Return a table in Markdown. Columns whose indices are in `numeric` are aligned at the right.

    Examples:
        >>> print(markdown_table(["method", "gain"], [["a|b", "+1.0"]], numeric=[1]))
        | method | gain |
        | --- | ---: |
        | a\\|b | +1.0 |
    """
    rule = ["---:" if k in numeric else "---" for k in range(len(heads))]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        for row in (heads, rule, *rows)
    )


def first_paragraph(docstring: str) -> str:
    """Return the first paragraph of a docstring as one line.

    Examples:
        >>> first_paragraph("A title that\\ngoes on.\\n\\nMore.")
        'A title that goes on.'
    """
    return " ".join(docstring.strip().partition("\n\n")[0].split())


def join_names(names: Iterable[str], most: int = 12) -> str:
    """Return the first names, joined by commas, and how many more there are.

    Examples:
        >>> join_names(["p0", "p1", "p2"], most=2)
        'p0, p1 and 1 more'
    """
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


class RunNumbers:
    """Numbers the titles of consecutive runs, as in `3/21 adcol seed 1`.

    Examples:
        >>> numbered = RunNumbers(12)
        >>> numbered("solo"), numbered("fedavg"), numbered("solo")
        (' 1/12 solo', ' 2/12 fedavg', ' 1/12 solo')
        >>> RunNumbers(None)("solo")
        '1 solo'
    """

    def __init__(self, total: int | None) -> None:
        """`total` is the number of runs, or None if it is not known beforehand."""
        self._total = total
        self._numbers: dict[str, int] = {}

    def __call__(self, title: str) -> str:
        """Return the title with its number. The same title always has the same number."""
        number = self._numbers.setdefault(title, len(self._numbers) + 1)
        if self._total is None:
            return f"{number} {title}"
        return f"{number:>{len(str(self._total))}}/{self._total} {title}"
